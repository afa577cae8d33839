"""Constrained belief updating: the best approximation of the exact filter by one attention layer.

An attention layer adds one term for each observed symbol o_s:

    constrained_t = π + sum_{s <= t} (η[o_s] - π) T^(t - s),     η[v] = π labelled[v] / P(v)

with the transition matrix T, stationary probabilities π (states) and P(v) (symbols), and labelled[v][i, j] = P(emit v
and go to j given i).
"""

import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, capture_activations, inference_mode
from hmmscope.analysis.geometry import belief_times, fit_affine, read_off
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.stationary_process import stationary_distribution
from hmmscope.processes.capabilities import STATES
from hmmscope.processes.combine import as_labelled
from hmmscope.processes.process import Process
from hmmscope.schema import require_count

_TAPS = ("residual.0", "blocks.0.attention", "blocks.0.attention.pattern")


@registry.instrument("constrained-updates", x="key", by=("quantity",))
def constrained_updates(
    model: nn.Module, dataset: ProcessDataset, *, num_samples: int = 256, num_distances: int = 6
) -> list[dict]:
    """Compare a model's first attention layer with constrained belief updating.

    - attention: (mean attention at distance d) / (mean attention at distance 1); theory: ζ^(d-1), where ζ is the
    second-largest eigenvalue modulus of the transition matrix;
    - rate: fitted factor by which attention decays per unit of distance; theory: ζ;
    - values: cosine, for each symbol v, between η[v] - π and the belief change that attention to v writes (fitted by
    regression), both minus their means over v; theory: 1;
    - constrained: held-out R² of an affine map from the stream after attention to the constrained belief; theory: 1;
    - exact: held-out R² of an affine map from this stream to the exact belief; theory: R² of an affine map from the
    constrained to the exact belief.

    Attention is averaged over heads.

    Args:
        model: model with hook points ``residual.0`` and ``blocks.0.attention.pattern``.
        dataset: single sequences of an HMM with a unique stationary distribution.
        num_samples: number of samples; the last quarter tests the maps.
        num_distances: largest distance; only queries with keys at all these distances are used.

    Returns:
        Rows (quantity, key, value, predicted, samples); `predicted` is the value in theory.

    Raises:
        InputError: the dataset is not as described, or a hook point is missing.

    Source: Piotrowski, Riechers, Filan and Shai (2025).
    """
    process = dataset.process
    process.require_capability(STATES)
    if len(dataset.layout.sequence_lengths) > 1:
        raise InputError("dataset: must have one sequence per sample, all from one HMM")
    time = dataset.layout.num_observations
    require_count("num_distances", num_distances, 2, most=time - 1)
    known = dict(model.named_modules())
    if any(tap not in known for tap in _TAPS):
        raise InputError(f"model: must have the activations {', '.join(_TAPS)}")
    stream, written, pattern, observations = _seen(model, dataset, num_samples)
    transition, prior, said = _theory(process)
    modes = torch.linalg.eigvals(transition).abs().sort(descending=True).values
    rate = float(modes[1]) if len(modes) > 1 else 0.0
    constrained = constrained_beliefs(process, observations).flatten(0, 1)
    exact = filter_beliefs(process, observations).beliefs.flatten(0, 1)
    rows = []

    def add(quantity: str, key: int, value: float, predicted: float) -> None:
        row = {"quantity": quantity, "key": key, "value": float(value), "predicted": float(predicted)}
        rows.append(row | {"samples": num_samples})

    late = pattern[:, num_distances:]
    falls = torch.stack([late.diagonal(num_distances - d, 1, 2).mean() for d in range(1, num_distances + 1)])
    falls = (falls / falls[0]).clamp_min(1e-9)
    for distance, share in enumerate(falls.tolist(), 1):
        add("attention", distance, share, rate ** (distance - 1))
    steps = torch.arange(num_distances).double()
    slope = ((steps - steps.mean()) @ falls.log()) / (steps - steps.mean()).square().sum()
    add("rate", 0, float(slope.exp()), rate)

    after = (stream + written).flatten(0, 1)
    read = fit_affine(after[None], constrained)
    writes = _written_by(pattern, observations, written, dataset.num_symbols)
    effect, predicted = writes @ (read.weights / read.scale.transpose(1, 2))[0], said - prior
    effect, predicted = effect - effect.mean(0), predicted - predicted.mean(0)
    for symbol, cosine in enumerate(torch.cosine_similarity(effect, predicted, dim=1).tolist()):
        add("values", symbol, cosine, 1.0)
    at_best = float(read_off(constrained[None], exact, num_samples).r2()[0, 0])
    for quantity, target, best in (("constrained", constrained, 1.0), ("exact", exact, at_best)):
        add(quantity, 0, float(read_off(after[None], target, num_samples).r2()[0, 0]), best)
    return rows


def constrained_beliefs(
    process: Process, observations: Int64[Tensor, "batch time"]
) -> Float64[Tensor, "batch time state"]:
    """Compute the constrained belief defined in the module's docstring; its entries may lie outside [0, 1].

    Raises:
        InputError: the stationary distribution is not unique.
    """
    transition, prior, said = _theory(process)
    total, found = torch.zeros(len(observations), len(prior), dtype=torch.float64), []
    for t in range(observations.shape[1]):
        total = total @ transition + (said - prior)[observations[:, t]]
        found.append(prior + total)
    return torch.stack(found, 1)


def _theory(process: Process) -> tuple[Tensor, Tensor, Tensor]:
    labelled = as_labelled(process).labelled
    prior = stationary_distribution(process)
    joint = prior @ labelled
    said = torch.where(joint.sum(1, keepdim=True) > 0, joint / joint.sum(1, keepdim=True), prior)
    return labelled.sum(0), prior, said


def _seen(model: nn.Module, dataset: ProcessDataset, num_samples: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts: list[list[Tensor]] = [[], [], [], []]
    columns = torch.from_numpy(dataset.layout.token_positions[belief_times(dataset)])
    for begin in range(0, num_samples, BATCH):
        batch = dataset[begin : min(begin + BATCH, num_samples)]
        with inference_mode(model) as device:
            found = capture_activations(model, _TAPS, batch.tokens.to(device), lambda x: x.cpu().double())
        taken = [found[tap][:, columns] for tap in _TAPS[:2]]
        taken += [found[_TAPS[2]].mean(1)[:, columns][:, :, columns], batch.observations]
        for part, values in zip(parts, taken, strict=True):
            part.append(values)
    stream, written, pattern, observations = (torch.cat(part) for part in parts)
    return stream, written, pattern, observations


def _written_by(
    pattern: Float64[Tensor, "sample query key"],
    observations: Int64[Tensor, "sample time"],
    written: Float64[Tensor, "sample time width"],
    num_symbols: int,
) -> Float64[Tensor, "symbol width"]:
    one_hot = torch.nn.functional.one_hot(observations, num_symbols).double()
    attended = (pattern @ one_hot).flatten(0, 1)
    fit = fit_affine(attended[None], written.flatten(0, 1))
    return (fit.weights / fit.scale.transpose(1, 2))[0]
