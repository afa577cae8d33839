"""[MultiTask] Figure 3b: which previous tokens a layer holds."""

import math
from typing import Any

import numpy as np
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import residual_layers
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.layer_curves import (
    Curves,
    at_layer,
    cross_fitted,
    onset_layer,
    peak_layer,
    resampled_curves,
    slope,
    with_interval,
)
from hmmscope.analysis.probes import (
    MAX_DISTANCE,
    chance_accuracy,
    label_stream,
    probe_correct,
    read_stream,
    reading_times,
)
from hmmscope.corpora.corpus import Corpus
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.construction_vs_trained import construct
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.multitask_fig3b_figures import figures, notes
from hmmscope.experiments.multitask_models import multitask_config
from hmmscope.runs.pipeline import Run, untrained_twin

#: Prompts of the probes, of which three quarters train them, and gradient steps of the constructed network.
SIZES: dict[str, dict[str, int]] = {
    "smoke": {"prompts": 32, "num_steps": 1},
    "small": {"prompts": 1024, "num_steps": 1},
    "gpu": {"prompts": 2048, "num_steps": 2},
    "paper": {"prompts": 4096, "num_steps": 2},
}
#: Prompts that fix the step size of the constructed network.
_REGRESSIONS = 64
DISTANCES = range(MAX_DISTANCE + 1)


@registry.experiment("multitask-fig3b")
class MultiTaskFig3b(Experiment):
    """See the module."""

    title = "Which previous tokens a layer holds"
    summary = (
        "Figure 3b of the multi-task paper. A RoFormer is trained on prompts from a pool of hidden Markov models; linear "
        "probes read from the residual stream after every layer which observation was made 0 to 4 steps back. Beside it "
        "stand the same model before training, shuffled labels, and the network of Theorem 1, which gathers a window of "
        "five observations in three layers."
    )
    intervals = SEED_INTERVALS
    num_seeds = NUM_SEEDS
    groups = {"probes": ("probes", "curves")}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {"model": multitask_config(scale)}

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(SIZES[scale])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        run = runs["model"]
        options = {"memory_length": MAX_DISTANCE + 1, "num_steps": sizes["num_steps"], "samples": _REGRESSIONS}
        built = construct(run, options)
        networks = {"trained": run.model, "untrained": untrained_twin(run), "constructed": built}
        rows: list[dict] = []
        curves: list[dict] = []
        for name, network in networks.items():
            found, right = _probes(network, run.corpus("probe"), sizes["prompts"], shuffled=name == "trained")
            rows += [{"network": name} | row for row in found]
            curves += [{"network": name} | row for row in _curves(right)]
        return {"probes": rows, "curves": curves}

    def figures(self, tables: Tables) -> list[Figure]:
        return figures(tables)

    def notes(self, tables: Tables) -> list[Finding]:
        return notes(tables)


def gathering_layer(distance: int) -> int:
    """The layer of the construction from which on the token at a distance is there: ⌈log2(distance + 1)⌉.

    Source: [MultiTask] §4.2, proof of Theorem 1 (the window doubles with every layer).
    """
    return math.ceil(math.log2(distance + 1))


def _probes(network: nn.Module, corpus: Corpus, count: int, *, shuffled: bool) -> tuple[list[dict], list[Curves]]:
    """Rows by distance and layer, and the share of right answers (sample, layer) of each distance."""
    times = reading_times(corpus, "previous-0")
    stream = read_stream(network, corpus, times, residual_layers(network), count)
    rows, right = [], []
    for distance in DISTANCES:
        data = label_stream(stream, corpus, f"previous-{distance}", times)
        right.append(probe_correct(data))
        answers = {"true": right[-1]} | ({"shuffled": probe_correct(data, shuffle=True)} if shuffled else {})
        for labels, by_sample in answers.items():
            mean, low, high = bootstrap_means(by_sample)
            rows += [
                {
                    "distance": distance,
                    "labels": labels,
                    "layer": layer,
                    "accuracy": float(mean[layer]),
                    "low": float(low[layer]),
                    "high": float(high[layer]),
                    "chance": chance_accuracy(data),
                    "samples": count,
                }
                for layer in range(len(mean))
            ]
    return rows, right


def _curves(right: list[Curves]) -> list[dict]:
    """Where the curve of each distance arrives, peaks and falls, and how that depends on the distance."""
    whole = [resampled_curves(by_sample) for by_sample in right]
    peaks, onsets = [peak_layer(curve) for curve in whole], [onset_layer(curve, above_first=True) for curve in whole]
    best = [cross_fitted(found, lambda chosen, measured: at_layer(measured, peak_layer(chosen))) for found in right]
    rises = [cross_fitted(by_sample, _rise) for by_sample in right]
    falls = [cross_fitted(by_sample, _fall) for by_sample in right]
    each = {"peak": peaks, "onset": onsets, "best accuracy": best, "rise": rises, "fall": falls}
    over = {
        "slope of the peak": slope(np.stack(peaks, 1)),
        "slope of the onset": slope(np.stack(onsets, 1)),
        "fall of the best accuracy with distance": -slope(np.stack(best, 1)),
    }
    rows: list[dict] = [
        {"distance": distance, "quantity": quantity, **with_interval(found[distance])}
        for quantity, found in each.items()
        for distance in DISTANCES
    ]
    return rows + [{"distance": None, "quantity": name, **with_interval(draws)} for name, draws in over.items()]


def _rise(chosen: Curves, measured: Curves) -> Curves:
    """From layer 0 to the peak."""
    return at_layer(measured, peak_layer(chosen)) - measured[:, 0]


def _fall(chosen: Curves, measured: Curves) -> Curves:
    """From the peak to the last layer."""
    return at_layer(measured, peak_layer(chosen)) - measured[:, -1]
