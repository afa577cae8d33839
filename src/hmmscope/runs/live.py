"""A trained run as plain data that a page can compute with: weights, process, maps from each layer to the belief.

Numbers are base64 of little-endian arrays: float32 for the model, float64 for the process and the maps.
"""

import base64
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope.analysis.activations import read_stream, residual_layers
from hmmscope.analysis.belief_interventions import writing
from hmmscope.analysis.geometry import RIDGE, fit_affine, mixed_beliefs, read_off
from hmmscope.analysis.layer_curves import Curves
from hmmscope.analysis.learned import learned
from hmmscope.analysis.twins import draw_twins, share_beyond
from hmmscope.axes import Float64, Tensor
from hmmscope.corpora.corpus import Corpus
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.mixture_posterior import filter_mixture
from hmmscope.models.attention import Attention
from hmmscope.models.base import parameter_count
from hmmscope.models.decoder import Decoder
from hmmscope.models.recurrent import Recurrent
from hmmscope.processes.answers import COMPONENTS, STATES
from hmmscope.processes.process import Process
from hmmscope.runs.pipeline import Run

#: Most numbers of the model and of the process that one page carries, and most columns that it reads.
MOST_WEIGHTS, MOST_PROBABILITIES, MOST_COLUMNS = 4_000_000, 1_000_000, 512
#: Examples that the maps from layers to beliefs are fitted and tested on; samples that n-grams are counted in.
EXAMPLES, NGRAM_SAMPLES = 24_000, 4096
#: Most entries of the table of an n-gram, and its longest context.
MOST_CONTEXTS, LONGEST_CONTEXT = 4096, 2


def live_data(run: Run, process: Process | None = None) -> dict[str, Any]:
    """What `hmmscope.lab.report.live_page` shows of a run.

    Args:
        run: of a model that predicts the next observation.
        process: HMMs from which the page draws in place of those of the run, whose symbols they have; the maps are fitted
            and the optimum is computed for them.

    The maps are fitted as `geometry` does, on three quarters of the samples of the stream "probe", at every observation;
    R² is that of the last quarter, beside that of untrained twins. `learned` says how far the losses have come, `beyond`
    what is read of the belief beyond the twins, each network at the layer that fits its own training examples best. Beside a
    map stands its inverse, see `writing`: how the stream changes where the belief that is read changes.

    Raises:
        InputError: a model or a process that the page cannot compute, or one that is too large for it.
    """
    own, layout = process is None, run.config.layout
    process = run.process if process is None else process
    _check(run, process)
    corpus = Corpus(process, layout=layout, seed=run.config.seed, stream="probe")
    about = process.title or process.in_words()
    readouts, beyond = _readouts(run.model, corpus)
    held_out = Corpus(process, layout=layout, seed=run.config.seed, stream="evaluate")
    gone = learned(run.model, held_out, run.corpus("train"))
    return {
        "title": f"{run.config.model.name} on {about}"
        if own
        else f"{run.config.model.name} on HMMs never seen ({about})",
        "model": _model(run),
        "tensors": {name: _packed(tensor, "<f4") for name, tensor in run.model.state_dict().items()},
        "process": _process(process),
        "layout": {"delimiter": layout.has_delimiter, "lengths": list(layout.sequence_lengths)},
        "readouts": readouts,
        "beyond": beyond,
        "learned": {"verdict": gone.verdict, "bar": gone.bar, "text": str(gone)},
        "ngram": None if COMPONENTS in process.by_law else _ngram(run.corpus("train")),
        "excess": (run.summary or {}).get("excess") if own else None,
    }


def _check(run: Run, process: Process) -> None:
    model = run.model
    plain = isinstance(model, Recurrent) or (
        isinstance(model, Decoder)
        and model.causal
        and all(isinstance(block.attention, Attention) for block in model.blocks)
    )
    if not plain:
        raise InputError(f"model: a live page computes causal decoders, rnn, lstm and gru, not {run.config.model.name}")
    if run.config.target != "observation" or run.config.training.block_length:
        raise InputError("run: a live page shows models that predict the next observation in one pass")
    if not {STATES, COMPONENTS} & process.by_law:
        raise InputError(f"process: a live page computes HMMs and mixtures of them, not a {type(process).__name__}")
    sizes = {
        "parameters": (parameter_count(model), MOST_WEIGHTS),
        "probabilities": (sum(rows.numel() for rows in process.law.rows()), MOST_PROBABILITIES),
        "columns": (run.config.layout.num_columns, MOST_COLUMNS),
    }
    for what, (count, most) in sizes.items():
        if count > most:
            raise InputError(f"run: a live page carries at most {most:,} {what}, and this run has {count:,}")


def _model(run: Run) -> dict[str, Any]:
    model, spec = run.model, run.config.model
    found: dict[str, Any] = {"name": spec.name, "parameters": parameter_count(model), "layers": len(model.residual) - 1}
    found |= {"steps": run.config.training.num_steps, "columns": run.config.layout.num_columns}
    if isinstance(model, Recurrent):
        kind = spec.name if spec.name != "rnn" else spec.nonlinearity
        return found | {"kind": "recurrent", "cell": kind, "tokens": model.num_tokens, "heads": 0}
    decoder = getattr(spec, "decoder", spec)
    return found | {
        "kind": "decoder",
        "heads": decoder.num_heads,
        "positions": decoder.positions,
        "scale": model.blocks[0].attention.scale,
        "rotary_base": decoder.rotary_base,
        "max_length": model.ports.max_length,
    }


def _process(process: Process) -> dict[str, Any]:
    law = process.law
    names = {
        "symbols": list(process.symbols or (str(v) for v in range(process.num_symbols))),
        "states": list(process.states or (str(s) for s in range(process.num_states))),
    }
    arrays = {"initial": law.initial_MS, "weights": process.weights_M, **law.arrays()}
    packed = {name: _packed(tensor, "<f8") for name, tensor in arrays.items()}
    about = {"title": process.title, "source": process.source, "mixture": COMPONENTS in process.by_law}
    return about | {"components": len(process.weights_M)} | names | packed


def _readouts(model: nn.Module, corpus: Corpus) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """For each layer its maps to the belief, and in a mixture to the posterior of the components; what twins leave of it."""
    times = np.arange(corpus.layout.num_observations)
    num_samples = max(8, EXAMPLES // len(times))
    targets = _targets(corpus, num_samples)
    train = (3 * num_samples // 4) * len(times)
    found: list[dict[str, Any]] = []
    for layer, name in enumerate(residual_layers(model)):
        stream_ND = read_stream(model, corpus, times, [name], num_samples)[0].double()
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
        found.append({"layer": layer, **maps})
    beyond, by_layer = _beyond_twins(model, corpus, times, targets["belief"], num_samples)
    for readout, r2 in zip(found, by_layer, strict=True):
        readout["belief"]["twins"] = r2
    return found, beyond


def _beyond_twins(
    model: nn.Module,
    corpus: Corpus,
    times: NDArray[np.int64],
    belief: Float64[Tensor, "example state"],
    num_samples: int,
) -> tuple[dict[str, Any], list[float | None]]:
    """What is read of the belief beyond untrained twins, each network at its best layer; R² of the twins by layer."""
    names = residual_layers(model)
    if not bool((belief - belief[0]).any()):
        return {"verdict": "not told", "text": "the belief never changes", "r2": None, "twins": None}, [None] * len(
            names
        )

    def read(network: nn.Module) -> tuple[Curves, Curves]:
        """R² (1 + resamples, layer) of each layer, and of that which fits its training examples best."""
        layers = [
            read_off(read_stream(network, corpus, times, [name], num_samples), belief, num_samples) for name in names
        ]
        r2 = np.concatenate([one.r2() for one in layers], 1)
        return r2, r2[:, int(np.argmax([one.fitted[0] for one in layers]))]

    twins = draw_twins(model)
    found = [read(twin) for twin in twins.models]
    left = np.stack([1 - best for _, best in found], 1) if found else np.zeros((1, 0))
    num_test = num_samples - (3 * num_samples) // 4
    share = share_beyond(1 - read(model)[1], left, num_test, reason=twins.reason)
    by_layer = np.mean([r2[0] for r2, _ in found], 0).tolist() if found else [None] * len(names)
    return {"verdict": share.verdict, "text": str(share), "r2": share.read, "twins": share.twins}, by_layer


def _targets(corpus: Corpus, num_samples: int) -> dict[str, Float64[Tensor, "example coordinate"]]:
    """Exact beliefs and posteriors after every observation, examples of one sample together."""
    process, starts = corpus.process, torch.from_numpy(corpus.layout.starts)
    seen = corpus[0:num_samples].observations
    if COMPONENTS not in process.by_law:
        return {"belief": filter_beliefs(process, seen, starts=starts).beliefs.flatten(0, 1)}
    posterior = filter_mixture(process, seen, starts=starts).component_posterior
    belief = mixed_beliefs(process, seen, posterior, starts)
    return {"belief": belief.flatten(0, 1), "component": posterior.flatten(0, 1)}


def _ngram(corpus: Corpus) -> dict[str, Any]:
    """Counts of symbols after contexts in training samples: tables[k][context, symbol], the oldest symbol first."""
    size, seen = corpus.process.num_symbols, corpus[0:NGRAM_SAMPLES].observations.numpy()
    place, tables = corpus.layout.position_in_sequence, []
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
