"""[MultiTask] Figure 3a: by which layer it is known which HMM of the pool speaks, and in which hidden state it is."""

from typing import Any

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import residual_layers
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.layer_curves import Curves, onset_layer, peak_layer, resampled_curves, with_interval
from hmmscope.analysis.probes import (
    ProbeData,
    chance_accuracy,
    label_stream,
    probe_correct,
    read_stream,
    reading_times,
)
from hmmscope.axes import Tensor
from hmmscope.corpora.corpus import Corpus
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.multitask_fig3a_figures import figures, notes
from hmmscope.experiments.multitask_models import multitask_config
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.pipeline import Run, untrained_twin

#: Components that the probe of the component tells apart and prompts of each; components with a probe of their hidden
#: state and prompts of each. Three quarters of the prompts train a probe.
SIZES: dict[str, dict[str, int]] = {
    "smoke": {"components": 2, "prompts": 24, "state_components": 2, "state_prompts": 32},
    "small": {"components": 16, "prompts": 64, "state_components": 4, "state_prompts": 512},
    "gpu": {"components": 32, "prompts": 64, "state_components": 8, "state_prompts": 2048},
    "paper": {"components": 64, "prompts": 48, "state_components": 8, "state_prompts": 4096},
}


@registry.experiment("multitask-fig3a")
class MultiTaskFig3a(Experiment):
    """See the module."""

    title = "Which HMM, and which hidden state: read layer by layer"
    summary = (
        "Figure 3a of the multi-task paper. A RoFormer is trained on prompts from a pool of hidden Markov models; linear "
        "probes read the residual stream after every layer. One probe tells which HMM of a subset of the pool speaks, at "
        "the last observation of a prompt; for each of several HMMs another one tells its hidden state. Beside them stand "
        "what the exact posterior reaches, the same model before training, shuffled labels, and probes that read nothing "
        "but frequencies of symbols in the prompt."
    )
    intervals = SEED_INTERVALS
    num_seeds = NUM_SEEDS
    groups = {"probes": ("probes", "frequencies", "onsets")}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {"model": multitask_config(scale)}

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(SIZES[scale])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        run = runs["model"]
        process, corpora = run.process, {}
        assert isinstance(process, Mixture)
        few = process.first(min(sizes["components"], len(process)))
        corpora["component"] = [(_corpus(run, few), len(few) * sizes["prompts"])]
        single = [process[m] for m in range(min(sizes["state_components"], len(process)))]
        corpora["state"] = [(_corpus(run, hmm), sizes["state_prompts"]) for hmm in single]
        rows: list[dict] = []
        curves: dict[tuple[str, str], Curves] = {}
        for name, model in {"trained": run.model, "untrained": untrained_twin(run)}.items():
            for target, wanted in corpora.items():
                found = [_probed(model, corpus, target, count) for corpus, count in wanted]
                for number, data in enumerate(found):
                    rows += _rows({"model": name, "target": target, "probe": number}, data, shuffled=name == "trained")
                right = [resampled_curves(probe_correct(data), seed=i) for i, data in enumerate(found)]
                curves[name, target] = np.mean(right, 0)
        return {"probes": rows, "frequencies": _frequencies(*corpora["component"][0]), "onsets": _onsets(curves)}

    def figures(self, tables: Tables) -> list[Figure]:
        return figures(tables)

    def notes(self, tables: Tables) -> list[Finding]:
        return notes(tables)


def _corpus(run: Run, process: Any) -> Corpus:
    """Prompts of a part of the pool that no model was trained on."""
    return Corpus(process, layout=run.config.layout, seed=run.config.seed, stream="probe")


def _probed(model: nn.Module, corpus: Corpus, target: str, count: int) -> ProbeData:
    times = reading_times(corpus, target)
    return label_stream(read_stream(model, corpus, times, residual_layers(model), count), corpus, target, times)


def _rows(names: dict[str, Any], data: ProbeData, *, shuffled: bool) -> list[dict]:
    """Accuracy by layer, with true labels and if wanted with shuffled ones."""
    rows = []
    for labels in ("true", "shuffled") if shuffled else ("true",):
        mean, low, high = bootstrap_means(probe_correct(data, shuffle=labels == "shuffled"))
        rows += [
            {
                **names,
                "labels": labels,
                "layer": layer,
                "accuracy": float(mean[layer]),
                "low": float(low[layer]),
                "high": float(high[layer]),
                "chance": chance_accuracy(data),
                "ceiling": data.ceiling,
                "samples": int(data.samples[-1]) + 1,
            }
            for layer in range(len(mean))
        ]
    return rows


def _frequencies(corpus: Corpus, count: int) -> list[dict]:
    """The probe of the component on frequencies of symbols, and of pairs of neighbours, in the prompt."""
    times, size, layout = reading_times(corpus, "component"), corpus.num_symbols, corpus.layout
    observations = corpus[0:count].observations
    pairs = observations[:, :-1] * size + observations[:, 1:]
    inside = torch.from_numpy(~layout.starts[1:])
    single, double = _share(observations, size), _share(pairs[:, inside], size * size)
    rows = []
    for name, features in {"symbols": single, "symbols and pairs": torch.cat([single, double], 1)}.items():
        data = label_stream(features.float()[None], corpus, "component", times)
        mean, low, high = (float(x[0]) for x in bootstrap_means(probe_correct(data)))
        rows.append({"frequencies": name, "accuracy": mean, "low": low, "high": high, "samples": count})
    return rows


def _share(symbols: Tensor, size: int) -> Tensor:
    """How often each of `size` symbols is in a row (sample, size)."""
    return torch.zeros(len(symbols), size).scatter_add_(1, symbols, torch.ones(symbols.shape)) / symbols.shape[1]


def _onsets(curves: dict[tuple[str, str], Curves]) -> list[dict]:
    """Layers at which curves arrive, and heights, each with its interval over prompts."""
    rows = []

    def add(model: str, target: str, quantity: str, draws: Curves) -> None:
        rows.append({"model": model, "target": target, "quantity": quantity, **with_interval(draws)})

    places = {
        "onset": onset_layer,
        "onset above layer 0": lambda found: onset_layer(found, above_first=True),
        "peak": peak_layer,
    }
    for model in ("trained", "untrained"):
        component, state = curves[model, "component"], curves[model, "state"]
        for quantity, place in places.items():
            add(model, "component", quantity, place(component))
            add(model, "state", quantity, place(state))
            add(model, "component - state", quantity, place(component) - place(state))
    for target in ("component", "state"):
        found, before = curves["trained", target], curves["untrained", target]
        add("trained", target, "rise from layer 1 to the last", found[:, -1] - found[:, 1])
        add("trained", target, "rise from layer 0 to layer 1", found[:, 1] - found[:, 0])
        add("trained - untrained", target, "accuracy at the last layer", found[:, -1] - before[:, -1])
    return rows
