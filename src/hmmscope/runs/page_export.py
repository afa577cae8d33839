"""Export of a model as data for a page: weights, process, and maps from layers to beliefs.

Arrays are stored as base64 of little-endian numbers: float32 for the model, float64 for the process and the maps.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope.analysis.activations import inference_mode, read_stream, residual_layers
from hmmscope.analysis.belief_interventions import writing
from hmmscope.analysis.geometry import RIDGE, fit_affine, mixed_beliefs, read_off
from hmmscope.analysis.layer_curves import Curves
from hmmscope.analysis.learned import learned
from hmmscope.analysis.untrained_controls import UntrainedControls, draw_controls, explained_beyond_controls
from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.mixture_posterior import filter_mixture
from hmmscope.models.adapted import call_on_tokens
from hmmscope.models.attention import Attention
from hmmscope.models.base import parameter_count
from hmmscope.models.decoder import Decoder
from hmmscope.models.recurrent import Recurrent
from hmmscope.models.user_module import logits_of
from hmmscope.processes.capabilities import COMPONENTS, STATES
from hmmscope.processes.process import Process
from hmmscope.runs.pipeline import Run

#: Most weights of the model, most probabilities of the process, and most positions on one page.
MOST_WEIGHTS, MOST_PROBABILITIES, MOST_COLUMNS = 4_000_000, 1_000_000, 512
#: Number of examples for the maps from layers to beliefs, and number of samples for n-gram counts.
EXAMPLES, NGRAM_SAMPLES = 24_000, 4096
#: Most entries of an n-gram table, and the longest context in symbols.
MOST_CONTEXTS, LONGEST_CONTEXT = 4096, 2


def live_data(run: Run, process: Process | None = None) -> dict[str, Any]:
    if run.config.target != "observation" or run.config.training.block_length:
        raise InputError("run: the interactive page needs target = observation and training.block_length = 0")
    layout, seed, own = run.config.layout, run.config.seed, process is None
    shown = run.process if process is None else process
    probe, held_out = (
        ProcessDataset(shown, layout=layout, seed=seed, stream=stream) for stream in ("probe", "evaluate")
    )
    twins, name = draw_controls(run.model, first=run.untrained()), run.config.model.name
    data = live_model_data(run.model, probe, held_out, run.dataset("train"), name=name, twins=twins)
    about = shown.title or shown.describe()
    data["title"] = (
        f"{run.config.model.name} on {about}"
        if own
        else f"{data['model']['name']} on HMMs that were not in training ({about})"
    )
    data["model"]["steps"] = run.config.training.num_steps
    return data | {"excess": (run.summary or {}).get("excess") if own else None}


@dataclass(frozen=True)
class ControlScores:
    """Scores of untrained controls: R² of regressions of the beliefs on activations of an untrained model.

    Attributes:
        num_samples: Number of samples of the probe dataset.
        r2: Mean R² of the controls, by layer name.
        beyond: Comparison of the best layers: R² of model ("r2") and controls ("twins"); "verdict", and its "text".
    """

    num_samples: int
    r2: Mapping[str, float | None]
    beyond: dict[str, Any]


def live_model_data(
    model: nn.Module,
    probe: ProcessDataset,
    held_out: ProcessDataset,
    training: ProcessDataset,
    *,
    name: str = "",
    twinned: ControlScores | None = None,
    twins: UntrainedControls | None = None,
) -> dict[str, Any]:
    """Return the data for the interactive section of a model page; the model predicts the next observation.

    Linear maps from layers to beliefs are fitted and evaluated on `probe`. The entry "beyond" compares the model and
    the untrained controls, each at its best layer.
    """
    name = name or type(model).__name__
    found = in_browser(model, probe)
    if found is None:
        raise InputError(f"model: the interactive page supports causal decoders, rnn, lstm and gru, got {name}")
    process, layout = probe.process, probe.layout
    _check(model, process, layout.context_length)
    readouts, beyond = _readouts(model, probe, twinned, twins)
    gone = learned(model, held_out, training)
    about, tensors = found
    sizes = {"name": name, "parameters": parameter_count(model), "steps": None, "columns": layout.context_length}
    return {
        "title": f"{name} on {process.title or process.describe()}",
        "model": sizes | about,
        "tensors": {key: _packed(tensor, "<f4") for key, tensor in tensors.items()},
        "process": _process(process),
        "layout": {"delimiter": layout.has_delimiter, "lengths": list(layout.sequence_lengths)},
        "several": len(layout.sequence_lengths) > 1,
        "readouts": readouts,
        "beyond": beyond,
        "learned": {"verdict": gone.verdict, "bar": gone.bar, "text": str(gone)},
        "ngram": None if COMPONENTS in process.uses_hmm_inference else _ngram(training),
        "excess": None,
    }


def _check(model: nn.Module, process: Process, columns: int) -> None:
    if not {STATES, COMPONENTS} & process.uses_hmm_inference:
        raise InputError(
            f"process: the interactive page supports HMMs and mixtures of HMMs, got {type(process).__name__}"
        )
    sizes = {
        "parameters": (parameter_count(model), MOST_WEIGHTS),
        "probabilities": (sum(rows.numel() for rows in process.params.rows()), MOST_PROBABILITIES),
        "columns": (columns, MOST_COLUMNS),
    }
    for what, (count, most) in sizes.items():
        if count > most:
            raise InputError(f"run: the interactive page holds at most {most:,} {what}, but this run has {count:,}")


def in_browser(model: nn.Module, dataset: ProcessDataset) -> tuple[dict[str, Any], Mapping[str, Tensor]] | None:
    """Return a model's sizes and weights if the page can compute the model, else None.

    The page computes hmmscope's causal decoders and recurrent networks, and user modules that consist of an embedding,
    one ``torch.nn.RNN``, ``LSTM`` or ``GRU``, and a linear head.
    """
    if isinstance(model, Recurrent) and model.spec is not None:
        spec: Any = model.spec
        kind = spec.name if spec.name != "rnn" else spec.nonlinearity
        sizes = {"kind": "recurrent", "cell": kind, "tokens": model.vocab_size, "heads": 0}
        return sizes | {"layers": len(model.layers)}, model.state_dict()
    if isinstance(model, Decoder) and model.spec is not None:
        mixers: list[Any] = [block.attention for block in model.blocks]
        if not model.causal or not all(isinstance(mixer, Attention) for mixer in mixers):
            return None
        decoder: Any = getattr(model.spec, "decoder", model.spec)
        return {
            "kind": "decoder",
            "layers": len(model.blocks),
            "heads": decoder.num_heads,
            "positions": decoder.positions,
            "scale": mixers[0].scale,
            "rotary_base": decoder.rotary_base,
            "max_length": model.model_io.max_length,
        }, model.state_dict()
    return _own_recurrent(model, dataset)


#: Name of the recurrent cell of the page, by the torch class in a user's module.
_CELLS = {nn.LSTM: "lstm", nn.GRU: "gru"}


def _own_recurrent(model: nn.Module, dataset: ProcessDataset) -> tuple[dict[str, Any], Mapping[str, Tensor]] | None:
    parts: dict[type[nn.Module], list[Any]] = {kind: [] for kind in (nn.Embedding, nn.RNNBase, nn.Linear)}
    for module in model.modules():
        kind = next((kind for kind in parts if isinstance(module, kind)), None)
        if kind is not None:
            parts[kind].append(module)
        elif next(module.parameters(recurse=False), None) is not None:
            return None  # the page would not have these weights
    if any(len(found) != 1 for found in parts.values()):
        return None
    embedding, layers, head = (parts[kind][0] for kind in (nn.Embedding, nn.RNNBase, nn.Linear))
    if layers.bidirectional or getattr(layers, "proj_size", 0) or head.in_features != layers.hidden_size:
        return None
    tokens = dataset[0:4].tokens
    with torch.no_grad(), inference_mode(model) as device:
        tokens = tokens.to(device)
        x = embedding(tokens)
        x = layers(x if layers.batch_first else x.transpose(0, 1))[0]
        expected = head(x if layers.batch_first else x.transpose(0, 1))
        answer = logits_of(call_on_tokens(model, tokens), tokens, dataset.num_symbols)
    expected = expected[..., : dataset.num_symbols]
    if expected.shape != answer.shape or not torch.allclose(expected, answer, atol=1e-5):
        return None
    weights: dict[str, Tensor] = {
        "embedding.weight": embedding.weight,
        "head.weight": head.weight[: dataset.num_symbols],
    }
    size = dataset.num_symbols
    weights["head.bias"] = torch.zeros(size) if head.bias is None else head.bias[:size]
    for layer in range(layers.num_layers):
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            found = getattr(layers, f"{name}_l{layer}", None)
            rows = layers.weight_hh_l0.shape[0]
            weights[f"layers.{layer}.{name}_l0"] = torch.zeros(rows) if found is None else found
    cell = next((cell for kind, cell in _CELLS.items() if isinstance(layers, kind)), None) or layers.nonlinearity
    sizes = {"kind": "recurrent", "cell": cell, "tokens": embedding.num_embeddings, "heads": 0}
    return sizes | {"layers": layers.num_layers}, weights


def _process(process: Process) -> dict[str, Any]:
    params = process.params
    names = {
        "symbols": list(process.symbols or (str(v) for v in range(process.num_symbols))),
        "states": list(process.states or (str(s) for s in range(process.num_states))),
    }
    arrays = {"initial": params.initial_MS, "weights": process.component_weights, **params.arrays()}
    packed = {name: _packed(tensor, "<f8") for name, tensor in arrays.items()}
    about = {"title": process.title, "source": process.source, "mixture": COMPONENTS in process.uses_hmm_inference}
    return about | {"components": len(process.component_weights)} | names | packed


def _readouts(
    model: nn.Module, dataset: ProcessDataset, twinned: ControlScores | None, twins: UntrainedControls | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    times = np.arange(dataset.layout.num_observations)
    num_samples = max(8, EXAMPLES // len(times)) if twinned is None else twinned.num_samples
    targets = _targets(dataset, num_samples)
    train = (3 * num_samples // 4) * len(times)
    found: list[dict[str, Any]] = []
    for layer, name in enumerate(residual_layers(model)):
        stream_ND = read_stream(model, dataset, times, [name], num_samples)[0].double()
        centred = stream_ND[:train] - stream_ND[:train].mean(0)
        covariance_DD = centred.T @ centred / train
        maps: dict[str, dict[str, Any]] = {}
        for what, values in targets.items():
            fit = fit_affine(stream_ND[None, :train], values[:train], RIDGE)
            read_DS = (fit.weights / fit.scale.transpose(1, 2))[0]
            left = (fit(stream_ND[None, train:])[0] - values[train:]).square().sum()
            spread = (values[train:] - fit.mean).square().sum()
            maps[what] = {
                "read": _packed(read_DS, "<f8"),
                "offset": _packed(fit.mean - fit.centre[0, 0] @ read_DS, "<f8"),
                "r2": float(1 - left / spread) if spread > 0 else None,
            }
            if what == "belief":
                maps[what]["write"] = _packed(writing(read_DS, covariance_DD), "<f8")
        found.append({"layer": layer, "name": name, **maps})
    twinned = twinned or _beyond_twins(model, dataset, times, targets["belief"], num_samples, twins)
    for readout in found:
        readout["belief"]["twins"] = twinned.r2.get(readout["name"])
    return found, twinned.beyond


def _beyond_twins(
    model: nn.Module,
    dataset: ProcessDataset,
    times: NDArray[np.int64],
    belief: Float64[Tensor, "example state"],
    num_samples: int,
    twins: UntrainedControls | None,
) -> ControlScores:
    names = residual_layers(model)
    if not bool((belief - belief[0]).any()):
        still = {"verdict": "not told", "text": "the belief never changes", "r2": None, "twins": None}
        return ControlScores(num_samples, {}, still)

    def read(network: nn.Module) -> tuple[Curves, Curves]:
        layers = [
            read_off(read_stream(network, dataset, times, [name], num_samples), belief, num_samples) for name in names
        ]
        r2 = np.concatenate([one.r2() for one in layers], 1)
        return r2, r2[:, int(np.argmax([one.fitted[0] for one in layers]))]

    twins = twins or draw_controls(model)
    found = [read(twin) for twin in twins.models]
    left = np.stack([1 - best for _, best in found], 1) if found else np.zeros((1, 0))
    num_test = num_samples - (3 * num_samples) // 4
    share = explained_beyond_controls(1 - read(model)[1], left, num_test, reason=twins.reason)
    by_layer = dict(zip(names, np.array([r2[0] for r2, _ in found]).mean(0).tolist(), strict=True)) if found else {}
    beyond = {"verdict": share.verdict, "text": str(share), "r2": share.read, "twins": share.controls}
    return ControlScores(num_samples, by_layer, beyond)


def _targets(dataset: ProcessDataset, num_samples: int) -> dict[str, Float64[Tensor, "example coordinate"]]:
    process, reset_mask = dataset.process, torch.from_numpy(dataset.layout.reset_mask)
    seen = dataset[0:num_samples].observations
    if COMPONENTS not in process.uses_hmm_inference:
        return {"belief": filter_beliefs(process, seen, reset_mask=reset_mask).beliefs.flatten(0, 1)}
    posterior = filter_mixture(process, seen, reset_mask=reset_mask).component_posterior
    belief = mixed_beliefs(process, seen, posterior, reset_mask)
    return {"belief": belief.flatten(0, 1), "component": posterior.flatten(0, 1)}


def _ngram(dataset: ProcessDataset) -> dict[str, Any]:
    size, seen = dataset.process.num_symbols, dataset[0:NGRAM_SAMPLES].observations.numpy()
    place, tables = dataset.layout.position_in_sequence, []
    for order in range(LONGEST_CONTEXT + 1):
        if size ** (order + 1) > MOST_CONTEXTS:
            break
        ends = np.flatnonzero(place >= order)
        code = np.zeros((len(seen), len(ends)), np.int64)
        for back in range(order, -1, -1):
            code = code * size + seen[:, ends - back]
        counts = np.bincount(code.ravel(), minlength=size ** (order + 1))
        tables.append(_packed(torch.from_numpy(counts.reshape(-1, size)), "<f8"))
    return {"tables": tables}


def _packed(tensor: Tensor, kind: str) -> dict[str, Any]:
    array = tensor.detach().cpu().numpy().astype(kind)
    return {"type": kind, "shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode()}
