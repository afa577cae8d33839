"""The subspaces in which a layer represents the beliefs about a process and its factors."""

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

#: Singular values below this fraction of the largest are rounding: beliefs sum to one.
_ROUNDING = 1e-3


@registry.instrument("belief-space", by=("quantity",))
def belief_space(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    layers: Sequence[str] | None = None,
    num_samples: int = 512,
    num_factors: int = 1,
) -> list[dict]:
    """Measure the subspace in which the residual stream linearly represents the exact belief.

    A least-squares fit approximates the residual stream by m + (belief) M. The quantities are:

        dimension        effective dimension (Σ λ)² / Σ λ² of the principal variances λ of (belief) M
        moved            fraction of the stream's variance that (belief) M explains
        joint            dimension of the beliefs' affine span
        factored         fraction of the stream's variance that the factors' beliefs explain, divided by `moved`
        sum              dimension of the affine span of a factor's beliefs, summed over factors
        overlap          mean squared cosine of the principal angles between two factors' subspaces of the stream
        random overlap   expected `overlap` of random subspaces as large as the largest of the factors' subspaces

    The last four quantities need `num_factors` > 1.

    Args:
        model: any module.
        dataset: samples of an HMM, a generalised HMM or a mixture.
        layers: module names (default: the residual stream).
        num_samples: number of samples.
        num_factors: number of factors, each with k states; a state index in base k has the factors' states as digits.

    Returns:
        Rows (layer, layer_name, quantity, value, samples).

    Raises:
        InputError: the process has no belief states, or its number of states is not k^num_factors for a whole number k.

    Source: Shai et al. (2026), "Transformers learn factored representations".
    """
    names = layers_read(model, layers)
    exact = ExactBeliefs.of(dataset, num_samples)
    belief = exact.belief
    states = round(belief.shape[1] ** (1 / num_factors))
    rule = f"must be n with {belief.shape[1]} = k^n states for a whole number k"
    require(states**num_factors == belief.shape[1], "num_factors", rule, num_factors)
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
        rows += [about | {"quantity": key, "value": float(one), "samples": num_samples} for key, one in found.items()]
    return rows


def _moved(
    stream: Float64[Tensor, "example width"], belief: Float64[Tensor, "example state"]
) -> tuple[float, Float64[Tensor, " direction"], Float64[Tensor, "state width"]]:
    fit = fit_affine(belief[None], stream)
    values = fit(belief[None])[0]
    centred = values - values.mean(0)
    total = (stream - stream.mean(0)).square().sum()
    share = float(centred.square().sum() / total) if total > 0 else 0.0
    return share, torch.linalg.svdvals(centred).square(), fit.weights[0] / fit.scale[0].T


def _effective(variances: Float64[Tensor, " direction"]) -> float:
    squares = variances.square().sum()
    return float(variances.sum().square() / squares) if squares > 0 else 0.0


def _rank(belief: Float64[Tensor, "example state"]) -> int:
    sizes = torch.linalg.svdvals(belief - belief.mean(0))
    return int((sizes > _ROUNDING * sizes[0]).sum())


def _span(
    part: Float64[Tensor, "example state"], map_: Float64[Tensor, "state width"]
) -> Float64[Tensor, "direction width"]:
    moved = (part - part.mean(0)) @ map_
    _, sizes, directions = torch.linalg.svd(moved, full_matrices=False)
    return directions[: _rank(part)][sizes[: _rank(part)] > 0]


def _overlap(one: Float64[Tensor, "direction width"], other: Float64[Tensor, "other width"]) -> float:
    least = min(len(one), len(other))
    return float((one @ other.T).square().sum() / least) if least else 0.0
