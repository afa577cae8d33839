"""The space of a layer in which the stream moves with the belief: how many dimensions it has, and its parts for factors.

A process of several factors can be held as one joint belief, whose dimension is a product, or as the beliefs of its
factors, whose dimensions add up. Where the belief is the product of theirs both predict alike, and only the space tells.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import layers_read
from hmmscope.analysis.geometry import ExactBeliefs, fit_affine
from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.processes.factored import factor_beliefs
from hmmscope.schema import require

#: Singular values below this share of the largest are rounding: beliefs sum to one.
_ROUNDING = 1e-3


@registry.instrument("belief-space")
def belief_space(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    layers: Sequence[str] | None = None,
    num_samples: int = 512,
    num_factors: int = 1,
) -> list[dict]:
    """Dimension of the space in which a layer moves with the exact belief, beside what the belief itself has.

    The stream is fitted as an affine function of the belief, by least squares: stream ≈ m + belief M. Quantities:

        dimension        effective dimension (Σ λ)² / Σ λ² of the variances λ of belief M along their principal directions
        moved            share of the stream's variance that belief M explains
        joint            effective dimension of the belief itself, each direction scaled to the same variance: its rank
        factored         what affine functions of the beliefs of the factors explain of the stream, as a share of `moved`
        sum              effective dimension of the factors' beliefs, so scaled
        overlap          mean squared cosine of the principal angles between the spaces of two factors; 0 if orthogonal
        random overlap   the same of random spaces of as many dimensions

    The last four exist with several factors only.

    Args:
        model: any module; models of this library are read at their residual taps.
        dataset: samples of an HMM, a generalised HMM or a mixture; the last sequence of each is read.
        layers: module names, if the model has no residual taps.
        num_samples: samples.
        num_factors: how many factors, of equally many states, the belief is of (the first one slowest).

    Returns:
        Rows (layer, layer_name, quantity, value, samples).

    Raises:
        InputError: a process without belief states, or whose number of states is no such power.

    Source: after Shai et al. (2026), "Transformers learn factored representations"; there dimensions are counted by
    explained variance.
    """
    names = layers_read(model, layers)
    exact = ExactBeliefs.of(dataset, num_samples)
    belief = exact.belief
    states = round(belief.shape[1] ** (1 / num_factors))
    require(states**num_factors == belief.shape[1], "num_factors", f"must divide {belief.shape[1]} states", num_factors)
    parts = factor_beliefs(belief, num_factors)
    joint, added = _rank(belief), sum(_rank(part) for part in parts)
    rows = []
    for layer, (name, stream) in enumerate(zip(names, exact.stream(model, names), strict=True)):
        x = stream.double()
        moved, variances, _ = _moved(x, belief)
        found = {"dimension": _effective(variances), "moved": moved, "joint": joint}
        if num_factors > 1:
            apart, _, map_ = _moved(x, torch.cat(parts, 1))
            spaces = [_span(part, rows_) for part, rows_ in zip(parts, map_.split(states), strict=True)]
            pairs = [_overlap(one, other) for one, other in combinations(spaces, 2)]
            found |= {"factored": apart / moved if moved else 0.0, "sum": added}
            found |= {"overlap": sum(pairs) / len(pairs), "random overlap": max(map(len, spaces)) / x.shape[1]}
        about = {"layer": layer, "layer_name": name}
        rows += [
            about | {"quantity": key, "value": float(value), "samples": num_samples} for key, value in found.items()
        ]
    return rows


def _moved(
    stream: Float64[Tensor, "example width"], belief: Float64[Tensor, "example state"]
) -> tuple[float, Float64[Tensor, "direction"], Float64[Tensor, "state width"]]:
    """Share of the stream that the belief explains, variances along the directions of the map's values, and the map."""
    fit = fit_affine(belief[None], stream)
    values = fit(belief[None])[0]
    centred = values - values.mean(0)
    total = (stream - stream.mean(0)).square().sum()
    share = float(centred.square().sum() / total) if total > 0 else 0.0
    return share, torch.linalg.svdvals(centred).square(), fit.weights[0] / fit.scale[0].T


def _effective(variances: Float64[Tensor, "direction"]) -> float:
    """The participation ratio: how many directions share the variance; 0 where there is none."""
    squares = variances.square().sum()
    return float(variances.sum().square() / squares) if squares > 0 else 0.0


def _rank(belief: Float64[Tensor, "example state"]) -> int:
    sizes = torch.linalg.svdvals(belief - belief.mean(0))
    return int((sizes > _ROUNDING * sizes[0]).sum())


def _span(
    part: Float64[Tensor, "example state"], map_: Float64[Tensor, "state width"]
) -> Float64[Tensor, "direction width"]:
    """Orthonormal directions in which the stream moves with the belief of one factor."""
    _, sizes, directions = torch.linalg.svd((part - part.mean(0)) @ map_, full_matrices=False)
    return directions[: _rank(part)][sizes[: _rank(part)] > 0]


def _overlap(one: Float64[Tensor, "direction width"], other: Float64[Tensor, "direction width"]) -> float:
    least = min(len(one), len(other))
    return float((one @ other.T).square().sum() / least) if least else 0.0
