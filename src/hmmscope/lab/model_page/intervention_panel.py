"""Interventions on the belief in a layer, for the model page."""

from typing import Any

import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import model_probs, read_stream
from hmmscope.analysis.belief_interventions import InterventionOptions, belief_interventions, exact_answers, writing
from hmmscope.analysis.geometry import BELIEF, RIDGE, belief_targets, belief_times, fit_affine
from hmmscope.analysis.interventions import add, intervene
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.text import in_digits

#: Number of steps towards a state, most states to move to, and number of samples for the map from layer to belief.
STEPS, MOST_STATES, SAMPLES = 10, 8, 512
#: Number of samples of `used` (activations of the last quarter are changed), and number of positions in each sample.
USED, POSITIONS = 256, 2


def pushed(model: nn.Module, dataset: ProcessDataset, layer: str) -> dict[str, Any]:
    """Return predictions while the belief in a layer, at one position, moves to each HMM state (at most `MOST_STATES`).

    For state s (one-hot e_s), a grows from 0 to 1: the belief b becomes b' = (1 - a) b + a e_s, and the activation x
    becomes x + (b' - read(x)) G. The affine map read decodes beliefs from activations; the matrix G (`writing`) maps
    changes of beliefs to changes of activations. "exact" holds the Bayes-optimal prediction for b'.
    """
    process = dataset.process
    taken, times = registry.adapted(model, [layer]), belief_times(dataset)
    stream = read_stream(taken, dataset, times, [layer], SAMPLES)[0].double()
    belief = belief_targets(dataset, times, SAMPLES)[BELIEF]
    fit = fit_affine(stream[None], belief, RIDGE)
    read_DS = (fit.weights / fit.scale.transpose(1, 2))[0]
    centred = stream - stream.mean(0)
    back_SD = writing(read_DS, centred.T @ centred / len(stream))
    here = (3 * len(times)) // 4
    batch = dataset[SAMPLES : SAMPLES + 1]
    x = read_stream(taken, dataset, times[here : here + 1], [layer], 1, first=SAMPLES)[0].double()
    before = fit(x[None])[0, 0]
    exact = belief_targets(dataset, times[here : here + 1], 1, first=SAMPLES)[BELIEF][0]
    states = range(min(process.num_states, MOST_STATES))
    shares = torch.arange(STEPS + 1, dtype=torch.float64) / STEPS
    corners = torch.eye(process.num_states, dtype=torch.float64)
    wanted_NS = torch.cat([(1 - shares)[:, None] * exact + shares[:, None] * corners[state] for state in states])
    change_ND = (wanted_NS - before) @ back_SD
    column = int(dataset.layout.token_positions[times[here]])
    tokens, last = batch.tokens[:, : column + 1].expand(len(wanted_NS), -1), slice(-1, None)
    with intervene(taken, {layer: add(change_ND[:, None, :].float(), positions=column)}):
        probs = model_probs(taken, tokens, dataset.num_symbols, last)[:, 0]
    free = model_probs(taken, tokens[:1], dataset.num_symbols, last)[0, 0]
    wanted = exact_answers(
        process.params, wanted_NS[:, None], torch.zeros(len(wanted_NS), dtype=torch.int64), "observation"
    )
    symbols = process.symbols or tuple(map(str, range(process.num_symbols)))
    names = process.states or tuple(map(str, range(process.num_states)))
    return {
        "layer": layer,
        "symbols": [str(symbol) for symbol in symbols],
        "states": [str(names[state]) for state in states],
        "steps": STEPS,
        "seen": [str(symbols[int(symbol)]) for symbol in batch.observations[0, : int(times[here]) + 1]],
        "free": _rounded(free),
        "belief": _rounded(exact),
        "model": _rounded(probs.unflatten(0, (len(states), STEPS + 1))),
        "exact": _rounded(wanted[:, 0].unflatten(0, (len(states), STEPS + 1))),
    }


def used(model: nn.Module, dataset: ProcessDataset, layer: str) -> dict[str, Any]:
    """Measure how predictions change when the belief of another sequence is written into a layer.

    The Bayes-optimal prediction for that belief is the target. "value" is the fraction by which writing reduces the
    total-variation distance to the target; "random" is this fraction for random changes of equal norm.
    """
    options = InterventionOptions(num_positions=POSITIONS)
    rows = belief_interventions(
        model, dataset, layers=[layer], num_samples=USED, interventions=("set",), options=options
    )
    rows = [row for row in rows if row["metric"] == "total_variation"]
    own, random = (next(row for row in rows if row["subspace"] == name) for name in ("belief", "random"))
    kept = ("value", "low", "high")
    found = {"layer": layer, "samples": own["samples"], "positions": POSITIONS} | {key: own[key] for key in kept}
    return found | {"random": {key: random[key] for key in kept}, "text": _said(own), "random_text": _said(random)}


def _said(row: dict[str, Any]) -> str:
    return in_digits(row["value"], row["low"], row["high"])


def _rounded(values: torch.Tensor) -> Any:
    return values.double().mul(1e5).round().div(1e5).tolist()
