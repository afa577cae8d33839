"""Trace of one held-out sample, symbol by symbol: exact and decoded belief, and exact and predicted distribution."""

from typing import Any

import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import model_probs
from hmmscope.analysis.belief_map import BeliefReader
from hmmscope.analysis.geometry import PREDICTION, belief_targets, belief_times
from hmmscope.datasets.process_dataset import ProcessDataset

#: Most states or symbols that are shown as bars, and most symbols of the trace.
MOST_STATES, MOST_SYMBOLS = 64, 96


def traced(
    model: nn.Module, held_out: ProcessDataset, reader: BeliefReader | None, layer: str | None
) -> dict[str, Any] | None:
    process, layout = held_out.process, held_out.layout
    batch = held_out[0:1]
    if reader is None or layer is None or batch.tokens.ndim != 2 or process.num_symbols > MOST_STATES:
        return None
    times = belief_times(held_out)[:MOST_SYMBOLS]
    columns = torch.from_numpy(layout.token_positions[times])
    probs = model_probs(model, batch.tokens, process.num_symbols, columns)[0]
    exact = belief_targets(held_out, times, 1)[PREDICTION]
    names = [str(symbol) for symbol in process.symbols or range(process.num_symbols)]
    found: dict[str, Any] = {
        "symbols": names,
        "seen": [names[symbol] for symbol in batch.observations[0, times].tolist()],
        "exact": _rounded(exact),
        "model": _rounded(probs),
        "belief": None,
        "read": None,
        "layer": layer,
    }
    if reader.points.shape[1] <= MOST_STATES:
        belief, read = reader.compared(registry.adapted(model, [layer]), layer, held_out)
        found |= {"belief": _rounded(belief[: len(times)]), "read": _rounded(read[: len(times)])}
    return found


def _rounded(values: torch.Tensor) -> Any:
    return values.double().mul(1e4).round().div(1e4).tolist()
