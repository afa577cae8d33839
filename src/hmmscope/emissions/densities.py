"""Gaussian densities, and weighted fits of Gaussians, for vectors with missing entries (NaN).

C Gaussians of Y coordinates have means (C, Y) and variances (C, Y) or covariance matrices (C, Y, Y).
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Float64, Tensor, Vectors
from hmmscope.errors import InputError
from hmmscope.kernels import coordinates
from hmmscope.schema import require, require_known

#: Covariance types: one variance, a variance per coordinate, a matrix, or one matrix shared by all Gaussians.
SHAPES = ("spherical", "diag", "full", "tied")
_LOG_2PI = math.log(2 * math.pi)


def check_shape(shape: str) -> str:
    require_known("covariance_type", shape, SHAPES)
    return shape


def spread_of(shape: str, covariances: Tensor, means_CY: Float64[Tensor, "law coordinate"]) -> Tensor:
    """Convert covariances of type `shape` to variances (C, Y) or matrices (C, Y, Y)."""
    if shape == "spherical":
        return covariances[:, None].expand_as(means_CY)
    return covariances.expand(len(means_CY), -1, -1) if shape == "tied" else covariances


def check_covariances(name: str, spread: Tensor) -> None:
    if spread.ndim == 2:
        for law, coordinate in (~(spread > 0)).nonzero()[:1].tolist():
            value = float(spread[law, coordinate])
            raise InputError(f"{name}[{law}]: the variance of coordinate {coordinate} must be positive, got {value:g}")
        return
    for law, matrix in enumerate(spread):
        even = torch.allclose(matrix, matrix.T, rtol=1e-9, atol=1e-12 * float(matrix.abs().max()))
        if not even or int(torch.linalg.cholesky_ex(matrix)[1]):
            raise InputError(f"{name}[{law}]: must be a symmetric positive definite matrix")


def require_range(name: str, width: float) -> None:
    factor = f"{min(max(1 / (width or 1), 1e-300), 1e300):.0e}"
    rule = f"range must be in [1e-150, 1e150], so that float64 holds its variance (multiply it by {factor})"
    require(width == 0 or 1e-150 <= width <= 1e150, name, rule, width)


def log_densities(
    vectors: Vectors, means: Float64[Tensor, "law coordinate"], spread: Tensor
) -> Float64[Tensor, "row law"]:
    """Compute log N(x; mean_c, covariance_c) of the observed entries, in nats.

    -1/2 (|L^-1 (x - mean)|^2 + log det covariance + Y log 2 pi),   L L^T = covariance
    """
    if spread.ndim == 2:
        constants, weights = -0.5 * (spread.log() + _LOG_2PI), -0.5 / spread
        return coordinate_sums(vectors, constants, weights=weights, means=means)
    missing = vectors.isnan()
    found = torch.zeros(len(means), len(vectors), dtype=torch.float64)
    whole = not bool(missing.any())
    for rows, seen in patterns(missing):
        chosen_YN = vectors.T.contiguous() if whole else vectors[rows][:, seen].T.contiguous()
        for law, (mean, matrix) in enumerate(zip(means, spread, strict=True)):
            factor = torch.linalg.cholesky(matrix[seen][:, seen])
            scaled_NY = torch.linalg.solve_triangular(
                factor.T, (chosen_YN - mean[seen, None]).T, upper=True, left=False
            )
            log_determinant = 2 * factor.diagonal().log().sum() + len(seen) * _LOG_2PI
            logs_N = -0.5 * (scaled_NY.T.square().sum(0) + log_determinant)
            found[law, slice(None) if whole else rows] = logs_N
    return found.T.contiguous()


def coordinate_sums(
    vectors: Vectors,
    constants: Float64[Tensor, "law coordinate"],
    *,
    slopes: Float64[Tensor, "law coordinate"] | None = None,
    weights: Float64[Tensor, "law coordinate"] | None = None,
    means: Float64[Tensor, "law coordinate"] | None = None,
) -> Float64[Tensor, "row law"]:
    """Sum constants + slopes x + weights (x - means)^2 over the observed coordinates x of each row."""
    zero, found = constants.new_zeros(constants.shape), np.empty((len(vectors), len(constants)))
    tables = (_table(zero if part is None else part) for part in (means, weights, slopes, constants))
    coordinates.sums(vectors.contiguous().numpy(), *tables, found)
    return torch.from_numpy(found)


def _table(parameters: Float64[Tensor, "law coordinate"]) -> NDArray[np.float64]:
    return np.ascontiguousarray(parameters.numpy().T)


def patterns(missing: Bool[Tensor, "row coordinate"]) -> Iterator[tuple[Tensor, Tensor]]:
    if not bool(missing.any()):
        yield torch.arange(len(missing)), torch.arange(missing.shape[1])
        return
    different, which = torch.unique(missing, dim=0, return_inverse=True)
    for number, lacks in enumerate(different):
        if not bool(lacks.all()):
            yield (which == number).nonzero()[:, 0], (~lacks).nonzero()[:, 0]


def explained_best(
    vectors: Vectors,
    weights: Float64[Tensor, "row law"],
    shape: str,
    means: Float64[Tensor, "law coordinate"],
    covariances: Tensor,
    floor: Float64[Tensor, " coordinate"],
) -> tuple[Float64[Tensor, "law coordinate"], Tensor]:
    """Fit means and covariances that maximize the weighted expected log-density.

    mean_c = sum_n w_nc x_n / sum_n w_nc;   covariance_c = sum_n w_nc (x_n - mean_c)(x_n - mean_c)^T / sum_n w_nc

    Every covariance_c - diag(floor) must be positive semidefinite. Fits of covariance matrices replace missing entries
    by their conditional expectation; fits of variances skip them.

    Source: Ghahramani and Jordan (1994) for missing entries.

    Args:
        vectors: Vectors (N, Y), NaN where missing.
        weights: Weights w_nc (N, C), at least 0.
        shape: Covariance type.
        means, covariances: Values from the previous EM iteration.
        floor: Least allowed variances (Y,).
    """
    missing, total_C, spread = vectors.isnan(), weights.sum(0), spread_of(shape, covariances, means)
    gaps, there, shift = bool(missing.any()), total_C > 0, far_from_zero(means, spread)
    if shape in ("spherical", "diag"):
        filled = (vectors - shift).nan_to_num(0.0)
        weight_CY = weights.T @ (~missing).double() if gaps else total_C[:, None].expand_as(means)
        seen_CY = weight_CY > 0
        safe_CY = weight_CY.where(seen_CY, 1.0)
        found = (weights.T @ filled / safe_CY + shift).where(seen_CY, means)
        squares = weighted_squares(vectors, weights, found)
        if shape == "spherical":
            whole_C = weight_CY.sum(1)
            variances_C = (squares.sum(1) / whole_C.where(there, 1.0)).where(there, spread[:, 0])
            return found, variances_C.clamp_min(float(floor.max()))
        return found, torch.maximum((squares / safe_CY).where(seen_CY, spread), floor)
    found, matrices = means.clone(), []
    for law, weight_N in enumerate(weights.T):
        filled, extra_YY = _completed(vectors, missing, weight_N, means[law], spread[law]) if gaps else (vectors, 0.0)
        if there[law]:
            found[law] = weight_N @ (filled - shift) / total_C[law] + shift
        away = filled - found[law]
        matrices.append((away * weight_N[:, None]).T @ away + extra_YY)
    if shape == "tied":
        scatters = sum(matrices, torch.zeros_like(covariances)) / total_C.sum()
        return found, with_least(scatters[None], floor)[0]
    scatters = torch.stack(matrices) / total_C.where(there, 1.0)[:, None, None]
    return found, with_least(scatters.where(there[:, None, None], spread), floor)


def far_from_zero(means: Float64[Tensor, "law coordinate"], spread: Tensor) -> Float64[Tensor, " coordinate"]:
    variances = spread if spread.ndim == 2 else spread.diagonal(dim1=1, dim2=2)
    ratio_Y, law_Y = (means.abs() / variances.sqrt()).max(0)
    return means.gather(0, law_Y[None])[0].where(ratio_Y > 1e6, 0.0)  # sums around 0 would lose the deviations


def weighted_squares(
    vectors: Vectors,
    weights: Float64[Tensor, "row law"],
    means: Float64[Tensor, "law coordinate"],
) -> Float64[Tensor, "law coordinate"]:
    """Compute sum_n w_nc (x_n - mean_c)^2 over the observed entries."""
    found = np.zeros(means.shape[::-1])
    given = vectors.contiguous().numpy(), weights.contiguous().numpy()
    coordinates.weighted_squares(*given, _table(means), found)
    return torch.from_numpy(found).T


def _completed(
    vectors: Tensor, missing: Tensor, weight_N: Tensor, mean_Y: Tensor, matrix_YY: Tensor
) -> tuple[Vectors, Float64[Tensor, "coordinate coordinate"]]:
    filled = vectors.where(~missing, mean_Y)
    extra_YY = weight_N[missing.all(1)].sum() * matrix_YY
    for rows, seen in patterns(missing):
        if len(seen) == len(mean_Y):
            continue
        lacking = torch.ones(len(mean_Y), dtype=torch.bool)
        lacking[seen] = False
        away = lacking.nonzero()[:, 0]
        factor = torch.linalg.cholesky(matrix_YY[seen][:, seen])
        gain = torch.cholesky_solve(matrix_YY[seen][:, away], factor).T  # regression of missing on observed entries
        filled[rows[:, None], away] = mean_Y[away] + (vectors[rows][:, seen] - mean_Y[seen]) @ gain.T
        left = matrix_YY[away][:, away] - gain @ matrix_YY[seen][:, away]
        extra_YY[away[:, None], away] += weight_N[rows].sum() * left
    return filled, extra_YY


def with_least(matrices: Float64[Tensor, "law y y"], floor: Float64[Tensor, " y"]) -> Float64[Tensor, "law y y"]:
    root = floor.sqrt()
    scaled = matrices / (root[:, None] * root)
    values, vectors = torch.linalg.eigh((scaled + scaled.transpose(1, 2)) / 2)
    if bool((values >= 1).all()):
        return (matrices + matrices.transpose(1, 2)) / 2
    clipped = vectors * values.clamp_min(1.0)[:, None, :] @ vectors.transpose(1, 2)
    return (clipped + clipped.transpose(1, 2)) / 2 * (root[:, None] * root)


def scattered_centres(
    vectors: Vectors, count: int, uniforms: Float64[Tensor, " draw"]
) -> Float64[Tensor, "centre coordinate"]:
    """Choose cluster centres by k-means++ and four k-means steps.

    Source: Arthur and Vassilvitskii (2007).
    """
    centres = vectors[int(uniforms[0] * len(vectors))][None]
    for drawn in uniforms[1:count]:
        nearest = torch.cdist(vectors, centres).square().amin(1)
        chosen = torch.searchsorted(nearest.cumsum(0), drawn * nearest.sum(), right=True).clamp(max=len(vectors) - 1)
        centres = torch.cat([centres, vectors[chosen][None]])
    for _ in range(4):
        member = torch.nn.functional.one_hot(torch.cdist(vectors, centres).argmin(1), count).double()
        sizes = member.sum(0)
        centres = (member.T @ vectors / sizes.clamp_min(1.0)[:, None]).where(sizes[:, None] > 0, centres)
    return centres
