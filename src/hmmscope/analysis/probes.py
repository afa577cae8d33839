"""Layerwise linear probes: what can be read from the residual stream, layer by layer, with controls and ceilings."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, read_stream, residual_layers
from hmmscope.analysis.geometry import BELIEF, geometry
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.logistic import fit_logistic, predict_logistic
from hmmscope.axes import Float, Int64, Tensor
from hmmscope.corpora.corpus import Batch, Corpus, check_corpus
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.reprs import Shown, Table
from hmmscope.schema import require, unknown_name
from hmmscope.seeds import numpy_generator

MAX_DISTANCE = 4
TARGETS = ("component", "state", "belief", *(f"previous-{k}" for k in range(MAX_DISTANCE + 1)))


@dataclass(frozen=True, repr=False)
class ProbeData(Shown):
    """Features and labels of one probe; examples of one sample share a sample number, so that splits are by sample.

    Attributes:
        features: activations (layer, example, feature).
        labels: classes (example,).
        samples: sample number of each example (example,), 0, 1, 2, ...
        num_classes: number of classes.
        ceiling: accuracy of the exact posterior's likeliest class on the same examples; 1 where the label was seen.
    """

    features: Float[Tensor, "layer example feature"]
    labels: Int64[Tensor, "example"]
    samples: Int64[Tensor, "example"]
    num_classes: int
    ceiling: float


@registry.instrument("probe")
def probe(
    model: nn.Module,
    corpus: Corpus,
    *,
    target: str = "component",
    layers: Sequence[str] | None = None,
    num_samples: int = 768,
    shuffled_labels: bool = True,
    seed: int = 0,
    observer: HMM | None = None,
) -> list[dict]:
    """Accuracy of a linear probe at each layer, on samples that its training did not see.

    Targets, read in the last sequence of each sample:
        ``component``: which component of the mixture, at the last observation;
        ``state``: the hidden state of an HMM, at positions >= 4 (probe a corpus of one component at a time);
        ``previous-k``: the observation k steps back, at positions >= 4;
        ``belief``: the law of the hidden state given the observations so far, after each of them, by least squares. Its rows
        have R² in place of the accuracy; they are those of the instrument `geometry`.

    The probe is multinomial logistic regression on standardised features with ridge 1e-3; three quarters of the samples
    train it, the rest test it. The control with shuffled labels trains on labels permuted over the training examples.

    Args:
        model: any module; models of this library are read at their residual taps.
        corpus: samples, with components for ``component``.
        target: what to read.
        layers: module names, if the model has no residual taps.
        num_samples: samples in all; of given sequences at most as many as there are different windows.
        shuffled_labels: add the control.
        seed: of the permutation and of the bootstrap.
        observer: whose ``belief``; by default that of the process. Another one may be an HMM fitted to the sequences.

    Returns:
        Rows (target, layer, layer_name, labels "true" or "shuffled", accuracy, low, high, chance, ceiling, samples); of
        ``belief`` (..., r2, low, high, chance, ceiling, from_prediction, samples) as `geometry` says.
        Chance is the share of the commonest class among the test examples. Intervals are 95 % over test samples.

    Raises:
        InputError: an unknown target or layer, or a target that the process does not have.

    Source: [MultiTask] Fig. 3 (the protocol is stated there in words only; sizes and controls are ours).
    """
    if target not in TARGETS:
        raise unknown_name("target", target, TARGETS)
    check_corpus(corpus)
    num_samples = corpus.different(num_samples)
    require(num_samples >= 8, "num_samples", "must be at least 8, to train and to test on", num_samples)
    require(observer is None or target == "belief", "observer", "is for the target belief", target)
    names = list(layers) if layers is not None else residual_layers(model)
    if target == "belief":
        return _belief_rows(model, corpus, names, num_samples, shuffled_labels, seed, observer)
    data = probe_data(model, corpus, target, names, num_samples)
    rows = []
    for labels in ("true", "shuffled") if shuffled_labels else ("true",):
        for layer, (mean, low, high) in enumerate(probe_accuracy(data, shuffle=labels == "shuffled", seed=seed)):
            rows.append(
                {
                    "target": target,
                    "layer": layer,
                    "layer_name": names[layer],
                    "labels": labels,
                    "accuracy": mean,
                    "low": low,
                    "high": high,
                    "chance": chance_accuracy(data),
                    "ceiling": data.ceiling,
                    "samples": num_samples,
                }
            )
    return Table(rows, f"probe of {target}", x="layer", y="accuracy", by=("labels",))


def _belief_rows(
    model: nn.Module,
    corpus: Corpus,
    names: list[str],
    num_samples: int,
    shuffled: bool,
    seed: int,
    observer: HMM | None,
) -> list[dict]:
    rows = geometry(model, corpus, layers=names, num_samples=num_samples, seed=seed, observer=observer)
    kept = ("layer", "layer_name", "r2", "low", "high", "ceiling", "from_prediction", "samples")
    found = (
        {"target": "belief", "labels": row["targets"], "chance": 0.0} | {key: row[key] for key in kept}
        for row in rows
        if row["target"] == BELIEF and (shuffled or row["targets"] == "true")
    )
    return Table(found, "probe of belief", x="layer", y="r2", by=("labels",))


def probe_data(model: nn.Module, corpus: Corpus, target: str, names: Sequence[str], num_samples: int) -> ProbeData:
    """Run the model and collect features, labels and the ceiling of a target."""
    times = reading_times(corpus, target)
    return label_stream(read_stream(model, corpus, times, names, num_samples), corpus, target, times)


def label_stream(
    features: Float[Tensor, "layer example feature"], corpus: Corpus, target: str, times: NDArray[np.int64]
) -> ProbeData:
    """Labels and the ceiling of a target for activations that `read_stream` has read at its `reading_times`."""
    num_samples = features.shape[1] // len(times)
    labels: list[Tensor] = []
    right: list[Tensor] = []
    for begin in range(0, num_samples, BATCH):
        batch = corpus[begin : min(begin + BATCH, num_samples)]
        batch_labels, best = _labels(corpus, batch, target, times)
        labels.append(batch_labels.flatten())
        right.append((best == batch_labels).double().flatten())
    classes = {"component": corpus.process.num_components or 1, "state": corpus.process.num_states}
    return ProbeData(
        features=features,
        labels=torch.cat(labels),
        samples=torch.arange(num_samples).repeat_interleave(len(times)),
        num_classes=classes.get(target, corpus.num_symbols),
        ceiling=float(torch.cat(right).mean()),
    )


def probe_correct(data: ProbeData, *, shuffle: bool = False, seed: int = 0) -> NDArray[np.float64]:
    """Share of right answers (sample, layer) in each test sample, which are the last quarter of the samples.

    Args:
        data: features and labels.
        shuffle: train on labels permuted over the training examples.
        seed: of the permutation.
    """
    num_samples = int(data.samples[-1]) + 1
    train = data.samples < (3 * num_samples) // 4
    x, y = data.features[:, train], data.labels[train]
    if shuffle:
        y = y[torch.from_numpy(numpy_generator(seed, "shuffled-labels").permutation(len(y)))]
    centre, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True).clamp_min(1e-6)
    weights = fit_logistic((x - centre) / scale, y, data.num_classes)
    predicted = predict_logistic((data.features[:, ~train] - centre) / scale, weights)
    correct = (predicted == data.labels[~train]).double().numpy()
    _, column = np.unique(data.samples[~train].numpy(), return_inverse=True)
    by_sample = np.zeros((column.max() + 1, len(correct)))
    np.add.at(by_sample, column, correct.T / np.bincount(column)[column][:, None])
    return by_sample


def probe_accuracy(data: ProbeData, *, shuffle: bool = False, seed: int = 0) -> list[tuple[float, float, float]]:
    """Accuracy with its 95 % interval, for each layer, on the last quarter of the samples."""
    mean, low, high = bootstrap_means(probe_correct(data, shuffle=shuffle, seed=seed), seed=seed)
    return list(zip(mean.tolist(), low.tolist(), high.tolist(), strict=True))


def chance_accuracy(data: ProbeData) -> float:
    """Share of the commonest class among the test examples."""
    num_samples = int(data.samples[-1]) + 1
    test = data.labels[data.samples >= (3 * num_samples) // 4]
    return float(test.bincount().max() / len(test))


def reading_times(corpus: Corpus, target: str) -> np.ndarray:
    """Numbers t of the observations at which a target is read."""
    layout = corpus.layout
    if target == "component":
        if not isinstance(corpus.process, Mixture):
            raise InputError("target: component needs a mixture; this process is a single HMM")
        return np.array([layout.num_observations - 1])
    if target == "state" and not isinstance(corpus.process, HMM):
        known = (
            "belief, component and previous-1 are known of a mixture; or take Corpus(mixture[m], ...), of one component"
        )
        raise InputError(f"target: state needs a single HMM; {known}")
    last = layout.sequence_index == layout.sequence_index[-1]
    times = np.flatnonzero(last & (layout.position_in_sequence >= MAX_DISTANCE))
    if not len(times):
        raise InputError(f"layout: the last sequence must be longer than {MAX_DISTANCE} for target {target}")
    return times


def _labels(corpus: Corpus, batch: Batch, target: str, times: np.ndarray) -> tuple[Tensor, Tensor]:
    """The labels (sample, time), and what the exact posterior holds likeliest."""
    starts = torch.from_numpy(corpus.layout.starts)
    if target == "component":
        assert batch.components is not None
        posterior = optimal_predictions(corpus.process, batch.observations, starts=starts).component_posterior
        assert posterior is not None
        return batch.components[:, None], posterior[:, times].argmax(-1)
    if target == "state":
        assert isinstance(corpus.process, HMM)
        beliefs = filter_beliefs(corpus.process, batch.observations, starts=starts).beliefs
        return batch.states[:, times], beliefs[:, times].argmax(-1)
    labels = batch.observations[:, times - int(target.rpartition("-")[2])]
    return labels, labels
