"""Linear probes of the residual stream, with controls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, check_layers, layers_read, read_stream
from hmmscope.analysis.geometry import BELIEF, geometry
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.layer_curves import resampled_curves
from hmmscope.analysis.logistic import fit_logistic, predict_logistic
from hmmscope.analysis.untrained_controls import (
    NO_COLUMNS,
    NO_POINTS,
    InstrumentOptions,
    draw_controls,
    explained_by_layer,
)
from hmmscope.axes import Bool, Float, Int64, Tensor
from hmmscope.datasets.headers import observe_decoded
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.inference.stable_argmax import stable_argmax
from hmmscope.processes.capabilities import COMPONENTS, STATES
from hmmscope.reprs import ResultTable, Shown
from hmmscope.schema import options_of, require, require_count, require_known
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.gaps import MISSING

MAX_DISTANCE = 4
TARGETS = ("component", "state", "belief", *(f"previous-{k}" for k in range(MAX_DISTANCE + 1)))


@dataclass(frozen=True, repr=False)
class ProbeData(Shown):
    """Features and labels of one probe.

    Attributes:
        features: activations (layer, example, feature).
        labels: classes (example,).
        samples: sample index of each example (example,); all examples of a sample either train or test the probe.
        num_classes: number of classes.
        ceiling: accuracy of the exact posterior's most likely class; 1 for observed labels.
        inside: mask of all examples, False for dropped ones (padding, missing values); None if all are kept.
    """

    features: Float[Tensor, "layer example feature"]
    labels: Int64[Tensor, " example"]
    samples: Int64[Tensor, " example"]
    num_classes: int
    ceiling: float
    inside: Bool[Tensor, " every"] | None = None

    @classmethod
    def read(
        cls, model: nn.Module, dataset: ProcessDataset, target: str, names: Sequence[str], num_samples: int
    ) -> "ProbeData":
        """Run the model and collect a probe's features, labels and `ceiling`."""
        return cls.read_each(model, dataset, [target], names, num_samples)[target]

    @classmethod
    def read_each(
        cls, model: nn.Module, dataset: ProcessDataset, targets: Sequence[str], names: Sequence[str], num_samples: int
    ) -> dict[str, "ProbeData"]:
        """Collect the data of probes for several targets in one run of the model."""
        features = read_stream(model, dataset, reading_times(dataset, targets[0]), names, num_samples, stay=True)
        return {target: cls.of(features, dataset, target) for target in targets}

    @classmethod
    def of(cls, features: Float[Tensor, "layer example feature"], dataset: ProcessDataset, target: str) -> "ProbeData":
        """Add labels and `ceiling` to features."""
        times = reading_times(dataset, target)
        num_samples = features.shape[1] // len(times)
        labels: list[Tensor] = []
        right: list[Tensor] = []
        known: list[Tensor] = []
        for begin in range(0, num_samples, BATCH):
            batch = dataset[begin : min(begin + BATCH, num_samples)]
            batch_labels, best = _labels(dataset, batch, target, times)
            labels.append(batch_labels.flatten())
            right.append((best == batch_labels).double().flatten())
            known.append(((batch.states[:, times] >= 0) & (batch_labels != MISSING)).flatten())
        classes = {"component": dataset.process.num_components or 1, "state": dataset.process.num_states}
        samples, inside = torch.arange(num_samples).repeat_interleave(len(times)), None
        if dataset.process.data is not None:
            inside = torch.cat(known)
            told = len(samples[inside].unique())
            require(told >= 8, "dataset", f"must have at least 8 sequences of more than {MAX_DISTANCE} symbols", told)
        kept = slice(None) if inside is None else inside
        return cls(
            features=features[:, kept if inside is None else inside.to(features.device)],
            labels=torch.cat(labels)[kept],
            samples=samples[kept],
            num_classes=classes.get(target, dataset.num_symbols),
            ceiling=float(torch.cat(right)[kept].mean()),
            inside=inside,
        )

    def reading(self, features: Float[Tensor, "layer every feature"]) -> "ProbeData":
        return replace(self, features=features if self.inside is None else features[:, self.inside.to(features.device)])

    def correct(self, *, shuffle: bool = False, seed: int = 0) -> NDArray[np.float64]:
        """Train the probe and return its accuracy in each test sample (sample, layer).

        Args:
            shuffle: True permutes the training labels.
            seed: seed of the permutation.
        """
        num_samples = int(self.samples[-1]) + 1
        train, where = self.samples < (3 * num_samples) // 4, self.features.device
        x, y = self.features[:, train.to(where)], self.labels[train]
        if shuffle:
            y = y[torch.from_numpy(numpy_generator(seed, "shuffled-labels").permutation(len(y)))]
        centre, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True).clamp_min(1e-6)
        weights = fit_logistic((x - centre) / scale, y.to(where), self.num_classes)
        predicted = predict_logistic((self.features[:, ~train.to(where)] - centre) / scale, weights).cpu()
        correct = (predicted == self.labels[~train]).double().numpy()
        _, column = np.unique(self.samples[~train].numpy(), return_inverse=True)
        by_sample = np.zeros((column.max() + 1, len(correct)))
        np.add.at(by_sample, column, correct.T / np.bincount(column)[column][:, None])
        return by_sample

    def accuracy(self, *, shuffle: bool = False, seed: int = 0) -> list[tuple[float, float, float]]:
        """Return the test accuracy of each layer with its 95 % interval."""
        mean, low, high = bootstrap_means(self.correct(shuffle=shuffle, seed=seed), seed=seed)
        return list(zip(mean.tolist(), low.tolist(), high.tolist(), strict=True))

    @property
    def chance(self) -> float:
        """Frequency of the most common class among test examples."""
        num_samples = int(self.samples[-1]) + 1
        test = self.labels[self.samples >= (3 * num_samples) // 4]
        return float(test.bincount().max() / len(test))


@registry.instrument("probe")
def probe(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    target: str | None = None,
    layers: Sequence[str] | None = None,
    num_samples: int = 768,
    shuffled_labels: bool = True,
    seed: int = 0,
    options: InstrumentOptions | None = None,
) -> list[dict]:
    """Train a linear probe at each layer, and measure its accuracy on held-out samples.

    The targets, in the last sequence of a sample, are
        ``component``: the mixture component, read after the last observation;
        ``state``: the hidden state of a single HMM, at positions >= 4;
        ``previous-k``: the observation k steps back, at positions >= 4;
        ``belief``: the filtered posterior after every observation; here `geometry` gives ``r2``, not ``accuracy``.

    The other probes are multinomial logistic regressions on standardised features with ridge penalty 1e-3, trained on
    three quarters of the samples. The controls are permuted training labels and untrained networks.

    Args:
        model: any module.
        dataset: samples; the target ``component`` needs a mixture.
        target: name of the target (default: ``component`` for a mixture, otherwise ``belief``).
        layers: module names (default: the residual stream).
        num_samples: number of samples; for recorded sequences, at most the number of windows.
        shuffled_labels: True adds the control with permuted labels.
        seed: seed of permutation and bootstrap.
        options: see `InstrumentOptions`.

    Returns:
        Rows (target, layer, layer_name, labels "true" or "shuffled", accuracy, low, high, chance, ceiling, samples,
        twins, share, share_low, share_high, beyond_twins), see `geometry`.

    Raises:
        InputError: the target is unknown or does not apply to the process, or a layer is unknown.
        NonFiniteError: activations are NaN or infinite.

    Source: [MultiTask] Fig. 3; sizes and controls are choices of this project.
    """
    if target is None:
        target = "belief" if dataset.process.num_components is None else "component"
    require_known("target", target, TARGETS)
    require(layers is None or len(layers) > 0, "layers", "must be a list of at least one name", layers)
    check_layers(model, names := layers_read(model, layers))
    num_samples = dataset.different(num_samples)
    require_count("num_samples", num_samples, 8, " (three quarters train the probe, one quarter tests it)")
    options = options_of(options, InstrumentOptions).without(num_points=NO_POINTS)
    require(options.observer is None or target == "belief", "observer", "needs the target belief", target)
    if target == "belief":
        return _belief_rows(model, dataset, names, num_samples, shuffled_labels, seed, options)
    data, times = ProbeData.read(model, dataset, target, names, num_samples), reading_times(dataset, target)
    twins, twins_left = draw_controls(model, options.num_controls_or(), seed=seed, controls=options.controls), []
    for twin in twins.models:
        own = data.reading(read_stream(twin, dataset, times, names, num_samples, stay=True))
        twins_left.append(1 - resampled_curves(own.correct(), seed=seed))
    about = {"chance": data.chance, "ceiling": data.ceiling, "samples": num_samples}
    rows = []
    for labels in ("true", "shuffled") if shuffled_labels else ("true",):
        correct = data.correct(shuffle=labels == "shuffled", seed=seed)
        left = 1 - resampled_curves(correct, seed=seed)
        shares = explained_by_layer(left, twins_left, len(correct), reason=twins.reason)
        for layer, (mean, low, high) in enumerate(zip(*bootstrap_means(correct, seed=seed), strict=True)):
            where = {"target": target, "layer": layer, "layer_name": names[layer], "labels": labels}
            accuracy = {"accuracy": float(mean), "low": float(low), "high": float(high)}
            rows.append(where | accuracy | about | (shares[layer].columns() if labels == "true" else NO_COLUMNS))
    return ResultTable(rows, f"probe of {target}", x="layer", y="accuracy", by=("labels",))


def _belief_rows(
    model: nn.Module,
    dataset: ProcessDataset,
    names: list[str],
    num_samples: int,
    shuffled: bool,
    seed: int,
    options: InstrumentOptions,
) -> list[dict]:
    rows = geometry(model, dataset, layers=names, num_samples=num_samples, seed=seed, options=options)
    kept = ("layer", "layer_name", "r2", "low", "high", "ceiling", "from_prediction", "samples", *NO_COLUMNS)
    found = (
        {"target": "belief", "labels": row["targets"], "chance": 0.0} | {key: row[key] for key in kept}
        for row in rows
        if row["target"] == BELIEF and (shuffled or row["targets"] == "true")
    )
    return ResultTable(found, "probe of belief", x="layer", y="r2", by=("labels",))


def reading_times(dataset: ProcessDataset, target: str) -> np.ndarray:
    layout = dataset.layout
    if target == "component":
        if COMPONENTS not in dataset.process.uses_hmm_inference:
            raise InputError("target: component needs a mixture; this process is a single HMM")
        return np.array([layout.num_observations - 1])
    if target == "state" and STATES not in dataset.process.uses_hmm_inference and not layout.header_format:
        kind = type(dataset.process).__name__
        known = "for a mixture use belief, component or previous-1, or select one HMM, ProcessDataset(mixture[m], ...)"
        raise InputError(f"target: state needs a single HMM, not a {kind}; {known}")
    last = layout.sequence_index == layout.sequence_index[-1]
    times = np.flatnonzero(last & (layout.position_in_sequence >= MAX_DISTANCE))
    if not len(times):
        raise InputError(f"layout: the last sequence needs more than {MAX_DISTANCE} observations for target {target}")
    return times


def _labels(dataset: ProcessDataset, batch: Batch, target: str, times: np.ndarray) -> tuple[Tensor, Tensor]:
    reset_mask = torch.from_numpy(dataset.layout.reset_mask)
    if target == "component":
        assert batch.components is not None
        posterior = optimal_predictions(dataset.process, batch.observations, reset_mask=reset_mask).component_posterior
        assert posterior is not None
        return batch.components[:, None], stable_argmax(posterior[:, times])
    if target == "state":
        if dataset.layout.header_format:
            beliefs = observe_decoded(dataset.process, dataset.layout, batch).beliefs
        else:
            beliefs = filter_beliefs(dataset.process, batch.observations, reset_mask=reset_mask).beliefs
        return batch.states[:, times], stable_argmax(beliefs[:, times])
    labels = batch.observations[:, times - int(target.rpartition("-")[2])]
    return labels, labels
