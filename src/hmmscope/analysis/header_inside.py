"""Header representation: test whether a network stores the HMM parameters that the header states."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import capture_activations as heard
from hmmscope.analysis.activations import inference_mode, layers_read, model_probs, read_stream
from hmmscope.analysis.geometry import read_off
from hmmscope.analysis.header import behind_headers
from hmmscope.analysis.initialization import Controls
from hmmscope.analysis.interventions import intervene, patch
from hmmscope.analysis.layer_curves import resampled_curves, with_interval
from hmmscope.analysis.untrained_controls import NO_COLUMNS, NUM_TWINS, ExplainedFraction, draw_controls
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.schema import require, require_count
from hmmscope.seeds import numpy_generator

#: Value of `where` for edits of the tokens.
TOKENS = "tokens"


@registry.instrument("header-memory", y="r2", by=("part",))
def header_memory(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    layers: Sequence[str] | None = None,
    num_samples: int = 512,
    num_controls: int = NUM_TWINS,
    controls: Controls | None = None,
    seed: int = 0,
) -> list[dict]:
    """Compute the held-out R² of affine maps from each layer, after the last observation, to the header's entries.

    Args:
        model: any module.
        dataset: dataset in the layout `header`.
        layers: module names (default: the residual stream).
        num_samples: number of samples; the last quarter tests the maps.
        num_controls, controls: see `InstrumentOptions`.
        seed: seed of bootstrap and controls.

    Returns:
        Rows (part "transition" or "emission", layer, layer_name, r2, low, high, samples, twins, share, share_low,
        share_high, beyond_twins), see `geometry`.

    Raises:
        InputError: the dataset is in another layout, or a layer is unknown.
    """
    length = behind_headers(dataset)
    require_count("num_samples", num_samples, 8, " (three quarters fit the map, one quarter tests it)")
    names = layers_read(model, layers)
    last = np.array([dataset.layout.num_observations - 1])
    entries = (dataset[0:num_samples].tokens[:, :length] - dataset.num_symbols).double()
    size = dataset.process.num_states
    parts = {"transition": entries[:, : size * (size - 1)], "emission": entries[:, size * (size - 1) :]}
    stream = read_stream(model, dataset, last, names, num_samples)
    drawn = draw_controls(model, num_controls, seed=seed, controls=controls)
    twins = [read_stream(twin, dataset, last, names, num_samples) for twin in drawn.models]
    rows = []
    for part, values in parts.items():
        for layer, name in enumerate(names):
            own = read_off(stream[layer : layer + 1], values, num_samples, seed=seed)
            beside = [read_off(one[layer : layer + 1], values, num_samples, seed=seed) for one in twins]
            found = with_interval(own.r2(seed=seed)[:, 0], len(own.spread))
            r2 = {"r2": found["value"], "low": found["low"], "high": found["high"], "samples": num_samples}
            columns = own.beyond(beside).columns() if beside else NO_COLUMNS
            if num_controls and not beside:
                columns = ExplainedFraction(found["value"], reason=drawn.reason).columns()
            rows.append({"part": part, "layer": layer, "layer_name": name} | r2 | columns)
    return rows


@registry.instrument("header-edits", x="where", by=("edit",))
def header_edits(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    layers: Sequence[str] | None = None,
    num_samples: int = 256,
    seed: int = 0,
) -> list[dict]:
    """Edit one entry of the header, and measure whether the model then predicts like the filter of the edited HMM.

    The entry is exchanged with the last entry of its matrix row, which the header omits because rows sum to one. The
    edit changes the tokens, or the residual stream of one layer at the header's positions. The value is the relative
    decrease of the model's distance from the filter of the edited HMM,

        1 - D(filter, model after edit) / D(filter, model before edit),

    where D is the mean KL divergence in nats over the second half of positions. The control ``other`` inserts another
    sample's edited header.

    Args:
        model: any module.
        dataset: dataset in the layout `header`.
        layers: module names (default: the residual stream).
        num_samples: number of samples; samples of probability zero under the edited HMM are left out.
        seed: seed of the exchanged entries and of the bootstrap.

    Returns:
        Rows (where, layer, edit, value, low, high, error, before, after, samples); `where` is "tokens" or a layer, and
        `edit` is "own" (the exchange) or "other".

    Raises:
        InputError: the dataset is in another layout, a layer is unknown, or fewer than two samples are left.
    """
    length = behind_headers(dataset)
    target = make_target("observation", dataset.process, dataset.layout)
    batch = dataset[0:num_samples]
    edited = exchanged(dataset, batch.tokens, seed)
    exact = target.optimum(Batch(edited, batch.observations, batch.states, batch.components))
    half = exact.shape[1] // 2
    kept = (exact[:, half:].sum(-1) > 0.5).all(1).nonzero()[:, 0]
    require(
        len(kept) >= 2, "num_samples", "must include two samples that are possible under the edited header", num_samples
    )
    old, new, wanted = batch.tokens[kept], edited[kept], exact[kept][:, half:]
    names = layers_read(model, layers)
    columns = torch.from_numpy(target.token_positions[half:])

    def answers(tokens: Tensor, edits: dict[str, Any]) -> Float64[Tensor, "sample judged symbol"]:
        with intervene(model, edits):
            return model_probs(model, tokens, dataset.num_symbols, columns)

    def away(laws: Tensor) -> np.ndarray:
        found: np.ndarray = (
            (torch.special.xlogy(wanted, wanted) - torch.special.xlogy(wanted, laws)).sum(-1).mean(1).numpy()
        )
        return found

    before = away(answers(old, {}))
    other = old.clone()
    other[:, :length] = new.roll(1, 0)[:, :length]
    changes = {"own": new, "other": other}
    rows = [_row(TOKENS, None, edit, before, away(answers(tokens, {})), seed) for edit, tokens in changes.items()]
    for edit, tokens in changes.items():
        with inference_mode(model) as device:
            held = heard(model, names, tokens.to(device), lambda x: x[:, :length])
        for layer, name in enumerate(names):
            change = {name: patch(_whole(held[name], old.shape[1]), positions=slice(0, length))}
            rows.append(_row(name, layer, edit, before, away(answers(old, change)), seed))
    return rows


def exchanged(
    dataset: ProcessDataset, tokens: Int64[Tensor, "batch column"], seed: int
) -> Int64[Tensor, "batch column"]:
    told = dataset.process.decode_header(tokens[:, : behind_headers(dataset)] - dataset.num_symbols).params
    values, lasts = [], []
    for matrix in (told.transition_MSS, told.emission_MSV):
        values.append(matrix[..., :-1].flatten(1))
        lasts.append(matrix[..., -1:].expand_as(matrix[..., :-1]).flatten(1))
    value, last = torch.cat(values, 1), torch.cat(lasts, 1)
    assert dataset.process.header_format is not None
    unit = dataset.process.header_format.num_values - 1
    apart = (value - last).abs()
    drawn = torch.from_numpy(numpy_generator(seed, "header-edits").random(apart.shape))
    chosen = (drawn + 2 * (apart >= 0.25) + apart / 8).argmax(1)
    found, rows = tokens.clone(), torch.arange(len(tokens))
    found[rows, chosen] = (last[rows, chosen] * unit).round().long() + dataset.num_symbols
    return found


def _whole(held: Tensor, num_columns: int) -> Tensor:
    return nn.functional.pad(held, (0, 0, 0, num_columns - held.shape[1]))


def _row(where: str, layer: int | None, edit: str, before: np.ndarray, after: np.ndarray, seed: int) -> dict[str, Any]:
    means = resampled_curves(np.stack([after, before], 1), seed=seed)
    share = with_interval(1 - means[:, 0] / means[:, 1], len(before))
    about = {"where": where, "layer": layer, "edit": edit}
    return about | share | {"before": float(before.mean()), "after": float(after.mean()), "samples": len(before)}
