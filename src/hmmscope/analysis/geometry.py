"""Belief geometry: how much of the exact belief state is an affine function of the residual stream, layer by layer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, layers_read, read_stream, residual_layers
from hmmscope.analysis.initialization import Controls
from hmmscope.analysis.layer_curves import NUM_RESAMPLES, Curves, resampled_curves, with_interval
from hmmscope.analysis.untrained_controls import (
    NO_COLUMNS,
    NUM_TWINS,
    ExplainedFraction,
    draw_controls,
    explained_beyond_controls,
    explained_by_layer,
)
from hmmscope.axes import Bool, Float, Float64, Int, Tensor
from hmmscope.datasets.headers import decoded_hmms, observe_decoded
from hmmscope.datasets.process_dataset import Batch, ProcessDataset, check_dataset
from hmmscope.errors import InputError
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.mixture_posterior import filter_known_component, filter_mixture
from hmmscope.inference.optimal import observe
from hmmscope.processes.capabilities import BELIEFS, COMPONENTS
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count
from hmmscope.seeds import numpy_generator
from hmmscope.ties import largest

#: What may be read off: the last is what the model is trained for.
BELIEF, MIXED_BELIEF, PREDICTION = "belief", "belief, component unknown", "next observation"

#: Of the regression, relative to standardised features: it only keeps the equations solvable.
RIDGE = 1e-6


@dataclass(frozen=True, repr=False)
class AffineFit(Shown):
    """Affine maps from features to a target, one a layer.

    Attributes:
        centre, scale: of the features over the training examples (layer, 1, feature).
        weights: (layer, feature, coordinate).
        mean: of the target over the training examples (coordinate,).
    """

    centre: Float64[Tensor, "layer 1 feature"]
    scale: Float64[Tensor, "layer 1 feature"]
    weights: Float64[Tensor, "layer feature coordinate"]
    mean: Float64[Tensor, "coordinate"]

    def __call__(self, features: Float[Tensor, "layer example feature"]) -> Float64[Tensor, "layer example coordinate"]:
        """The target as it is read off."""
        return (features.double() - self.centre) / self.scale @ self.weights + self.mean


@dataclass(frozen=True, repr=False)
class Readout(Shown):
    """Squared errors on test samples, the last quarter of all.

    Attributes:
        errors: of the map of each layer, summed over the examples of a sample (sample, layer).
        spread: of the mean over the training examples (sample,).
        fitted: R² on the training examples (layer,), by which a layer may be chosen.
        values: the target as it is read off (layer, example, coordinate).
    """

    errors: Curves
    spread: Curves
    fitted: Curves
    values: Float64[Tensor, "layer example coordinate"]

    def beyond(self, twins: Sequence["Readout"]) -> ExplainedFraction:
        """The share that it explains of what untrained twins leave, each at the layer that is chosen for it."""
        left, *twins_left = (1 - one.r2()[:, one.chosen] for one in (self, *twins))
        return explained_beyond_controls(left, np.stack(twins_left, 1), len(self.spread))

    def r2(self, *, seed: int = 0) -> Curves:
        """1 - errors / spread on all test samples and on resamples (1 + NUM_RESAMPLES, layer)."""
        return explained(self.errors, self.spread, seed=seed)

    def by_layer(self, samples: int | None = None) -> list[dict[str, Any]]:
        """R² of each layer with its interval, see `with_interval`, and `fitted`."""
        found = zip(self.r2().T, self.fitted, strict=True)
        return [with_interval(draws, samples) | {"fitted": float(fitted)} for draws, fitted in found]

    @property
    def chosen(self) -> int:
        """The layer that fits the training examples best."""
        return largest(range(len(self.fitted)), lambda layer: float(self.fitted[layer]))


@dataclass(frozen=True, eq=False, repr=False)
class ExactBeliefs(Shown):
    """Exact answers after every observation of the last sequence of some samples, and what is read of them from a network.

    Attributes:
        dataset: where the samples 0 .. num_samples - 1 come from.
        num_samples: samples in all.
        times: numbers t of the observations (time,).
        values: by name, see `geometry` (example, coordinate); examples of a sample stand together. The law of the next
            observation, and the belief without knowing the component, are left out where they do not vary.
        inside: which examples are no padding (example,); None if none is.
    """

    dataset: ProcessDataset
    num_samples: int
    times: NDArray[np.int64]
    values: dict[str, Float64[Tensor, "example coordinate"]]
    inside: Bool[Tensor, "example"] | None

    @classmethod
    def of(cls, dataset: ProcessDataset, num_samples: int, observer: HMM | LabelledHMM | None = None) -> "ExactBeliefs":
        """By the process of the corpus, or by another observer."""
        times = belief_times(dataset)
        found, inside = belief_targets(dataset, times, num_samples, observer), unpadded(dataset, times, num_samples)
        test = _split(len(found[BELIEF]), num_samples)
        told = test if inside is None else test & inside
        values = {
            name: one for name, one in found.items() if name == BELIEF or bool((one[told] != one[told][:1]).any())
        }
        return cls(dataset, num_samples, times, values, inside)

    @property
    def belief(self) -> Float64[Tensor, "example state"]:
        """The belief under the true component."""
        return self.values[BELIEF]

    def stream(self, model: nn.Module, layers: Sequence[str] | None = None) -> Float[Tensor, "layer example feature"]:
        """What layers hold there; by default the residual stream after each layer."""
        return read_stream(
            model, self.dataset, self.times, residual_layers(model) if layers is None else layers, self.num_samples
        )

    def read(self, features: Float[Tensor, "layer example feature"], target: str = BELIEF, **options: Any) -> Readout:
        """The answer of a name as it is read off features; options of `read_off`."""
        return read_off(features, self.values[target], self.num_samples, inside=self.inside, **options)

    def mapped(self, features: Float[Tensor, "layer example feature"]) -> Float64[Tensor, "layer example state"]:
        """The belief at all examples as the map that fits them all reads it."""
        return fit_affine(features, self.belief)(features)

    def from_prediction(self, target: str = BELIEF, **options: Any) -> Curves:
        """R² of what the exact law of the next observation gives of an answer, on the test samples and on resamples.

        Nothing where that law is always the same.
        """
        if PREDICTION not in self.values:
            return np.zeros(1 + NUM_RESAMPLES)
        return self.read(self.values[PREDICTION][None], target, **options).r2()[:, 0]

    def ceiling(self, target: str) -> float:
        """R² on the test samples of the best answer that observations allow: below one for the component's own belief."""
        if target != BELIEF or MIXED_BELIEF not in self.values:
            return 1.0
        test = _split(len(self.belief), self.num_samples)
        left = self.belief - self.belief[~test].mean(0)
        missed = self.belief - self.values[MIXED_BELIEF]
        return float(1 - missed[test].square().sum() / left[test].square().sum())


@registry.instrument("geometry")
def geometry(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    layers: Sequence[str] | None = None,
    num_samples: int = 768,
    ridge: float = RIDGE,
    seed: int = 0,
    observer: HMM | LabelledHMM | None = None,
    num_controls: int = NUM_TWINS,
    controls: Controls | None = None,
) -> list[dict]:
    """Held-out R² of belief states, and of the next-observation law, as affine functions of each layer.

    Read after every observation of the last sequence of each sample:
        ``belief``: P(state | observations) under the true component; the predictive vector of a `GeneralisedHMM`; the mean
        of the state of a `LinearGaussian`, by the Kalman filter;
        ``belief, component unknown``: the same of the observer who does not know the component (mixtures);
        ``next observation``: the law of the next observation, that observer's.

    R² = 1 - Σ |target - map(stream)|² / Σ |target - mean|² over all coordinates, with the mean of the training examples.
    Three quarters of the samples fit the map (ridge regression on standardised features in float64, by Cholesky), the rest
    test it. One control fits maps to targets permuted over the training examples. The other is the same architecture without
    training: much can be read from a random network too, so what training added is `share`, see `analysis.controls`.

    Args:
        model: any module; models of this library are read at their residual taps.
        dataset: samples of an HMM or a mixture, or with an observer of anything.
        layers: module names, if the model has no residual taps.
        num_samples: samples in all; of given sequences at most as many as there are different windows.
        ridge: of the regression.
        seed: of the permutation and of the bootstrap.
        observer: whose beliefs and predictions are read; by default those of the corpus's own process.
        num_controls: untrained networks that are read beside the model, at least three; 0 for none.
        controls: a function that makes the untrained module, ``lambda: Mine()``; without it `draw_controls` draws them.

    Returns:
        Rows (target, targets "true" or "shuffled", layer, layer_name, r2, low, high, fitted, ceiling, from_prediction,
        samples, twins, share, share_low, share_high, beyond_twins). `fitted` is R² on the training examples; `ceiling` that
        of the best possible answer of an observer who does not know the component; `from_prediction` that of an affine
        function of the exact next-observation law, which is what a stream that holds only its prediction would give. `twins`
        is the mean R² of the untrained twins at that layer, `share` what the model explains of what they leave,
        `beyond_twins` the same in words, or why nothing is told. Intervals are 95 %: over test samples, of
        `share` over twins too.

    Raises:
        InputError: a process without belief states, or an unknown layer.

    Source: Shai et al. (2024), "Transformers represent belief state geometry in their residual stream"; there R² on all
    samples, the split and the controls beside the untrained model are ours.
    """
    check_dataset(dataset)
    num_samples = dataset.different(num_samples)
    require_count("num_samples", num_samples, 8, ", to fit and to test on")
    names = layers_read(model, layers)
    exact = ExactBeliefs.of(dataset, num_samples, observer)
    stream = exact.stream(model, names)
    twins = draw_controls(model, num_controls, seed=seed, controls=controls)
    twins_left: dict[str, list[Curves]] = {target: [] for target in exact.values}
    for twin in twins.models:
        streamed = exact.stream(twin, names)
        for target, left in twins_left.items():
            left.append(1 - exact.read(streamed, target, ridge=ridge).r2(seed=seed))
    rows = []
    for target in exact.values:
        alone = float(exact.from_prediction(target, ridge=ridge)[0])
        about = {"ceiling": exact.ceiling(target), "from_prediction": alone, "samples": num_samples}
        for labels in ("true", "shuffled"):
            found = exact.read(stream, target, ridge=ridge, shuffle=labels == "shuffled", seed=seed)
            draws = found.r2(seed=seed)
            shares = explained_by_layer(1 - draws, twins_left[target], len(found.spread), reason=twins.reason)
            for layer, name in enumerate(names):
                where = {"target": target, "targets": labels, "layer": layer, "layer_name": name}
                interval = with_interval(draws[:, layer], len(found.spread))
                r2 = {"r2": interval["value"], "low": interval["low"], "high": interval["high"]}
                beside = shares[layer].columns() if labels == "true" else NO_COLUMNS
                rows.append(where | r2 | {"fitted": float(found.fitted[layer])} | about | beside)
    return rows


def belief_times(dataset: ProcessDataset) -> NDArray[np.int64]:
    """Numbers t of the observations of the last sequence."""
    layout = dataset.layout
    return np.flatnonzero(layout.sequence_index == layout.sequence_index[-1])


def belief_targets(
    dataset: ProcessDataset,
    times: NDArray[np.int64],
    num_samples: int,
    observer: HMM | LabelledHMM | None = None,
    *,
    first: int = 0,
) -> dict[str, Float64[Tensor, "example coordinate"]]:
    """Exact targets at some observations of `num_samples` samples from `first` on; examples of a sample stand together."""
    parts = [_targets(dataset, batch, observer) for batch in _batches(dataset, num_samples, first)]
    return {name: torch.cat([part[name][:, times].flatten(0, 1) for part in parts]) for name in parts[0]}


def unpadded(
    dataset: ProcessDataset, times: NDArray[np.int64], num_samples: int, *, first: int = 0
) -> Bool[Tensor, "example"] | None:
    """Where the examples of `belief_targets` are no padding; None if all are not."""
    if dataset.process.data is None:
        return None
    return torch.cat([batch.states[:, times].flatten() for batch in _batches(dataset, num_samples, first)]) >= 0


def _batches(dataset: ProcessDataset, num_samples: int, first: int) -> Iterator[Batch]:
    end = first + num_samples
    return (dataset[i : min(i + BATCH, end)] for i in range(first, end, BATCH))


def _targets(
    dataset: ProcessDataset, batch: Batch, observer: HMM | LabelledHMM | None
) -> dict[str, Float64[Tensor, "batch time coordinate"]]:
    process: Process = dataset.process if observer is None else observer
    if process.num_symbols != dataset.num_symbols:
        raise InputError(f"observer: must have {dataset.num_symbols} symbols, got {process!r}")
    starts = torch.from_numpy(dataset.layout.reset_mask)
    hmms = decoded_hmms(process, dataset.layout, batch.tokens) if observer is None else None
    if hmms is not None:
        beliefs = observe_decoded(process, dataset.layout, batch).beliefs
        return {BELIEF: beliefs, PREDICTION: beliefs @ hmms.params.predictive()}
    if COMPONENTS not in process.uses_hmm_inference:
        observed = observe(process, batch.observations, reset_mask=starts)
        belief = observed.belief
        if belief is None:
            raise process.missing_capability_error(BELIEFS)
        return {BELIEF: belief, PREDICTION: observed.next_observation}
    if batch.components is None:
        raise InputError("observer: must be one HMM where samples have no components")
    mixed = filter_mixture(process, batch.observations, reset_mask=starts)
    told = filter_known_component(process, batch.observations, batch.components, reset_mask=starts)
    return {
        BELIEF: told.beliefs,
        MIXED_BELIEF: mixed_beliefs(process, batch.observations, mixed.component_posterior, starts),
        PREDICTION: mixed.next_observation,
    }


def mixed_beliefs(
    mixture: Process,
    observations: Int[Tensor, "batch time"],
    posterior: Float64[Tensor, "batch time component"],
    reset_mask: Tensor,
) -> Float64[Tensor, "batch time state"]:
    """P(state t | o_0..o_t) = sum_m P(m | o_0..o_t) P_m(state t | o_0..o_t): belief without knowing the component.

    Of all functions of the observations it is nearest, in mean square, to the belief under the true component.

    Args:
        mixture: M components.
        observations: symbols (batch, time).
        posterior: P(component | o_0..o_t), from `filter_mixture`.
        reset_mask: mask (time,), true where a new sequence begins.
    """
    steps = forward_steps(mixture.params, observations[None], reset_mask)
    return torch.stack([torch.einsum("bm,mbs->bs", posterior[:, t], step.belief) for t, step in enumerate(steps)], 1)


def read_off(
    features: Float[Tensor, "layer example feature"],
    target: Float64[Tensor, "example coordinate"],
    num_samples: int,
    *,
    ridge: float = RIDGE,
    shuffle: bool = False,
    seed: int = 0,
    inside: Bool[Tensor, "example"] | None = None,
) -> Readout:
    """Fit a map for each layer on three quarters of the samples, and measure it on the rest.

    Args:
        features: examples of one sample stand together.
        target: what is read off.
        num_samples: samples, as many examples each.
        ridge: of the regression.
        shuffle: fit targets permuted over the training examples.
        seed: of the permutation.
        inside: which examples count; all by default.
    """
    test = _split(len(target), num_samples)
    train = ~test if inside is None else ~test & inside
    x, y = features[:, train], target[train]
    if shuffle:
        y = y[torch.from_numpy(numpy_generator(seed, "shuffled-labels").permutation(len(y)))]
    fit = fit_affine(x, y, ridge)
    spread = (y - fit.mean).square().sum()
    fitted = 1 - (fit(x) - y).square().sum((1, 2)) / spread.clamp_min(torch.finfo(torch.float64).tiny)
    values = fit(features[:, test])
    errors, spread = (values - target[test]).square().sum(2), (target[test] - fit.mean).square().sum(1)
    if inside is not None:
        errors, spread = errors * inside[test], spread * inside[test]
    each = len(target) // num_samples
    return Readout(
        errors=errors.unflatten(1, (-1, each)).sum(2).T.numpy(),
        spread=spread.unflatten(0, (-1, each)).sum(1).numpy(),
        fitted=fitted.numpy(),
        values=values,
    )


def fit_affine(
    features: Float[Tensor, "layer example feature"],
    target: Float64[Tensor, "example coordinate"],
    ridge: float = RIDGE,
) -> AffineFit:
    """Least squares with a penalty on standardised features, for each layer by itself, in float64 by Cholesky.

    weights = (XᵀX / N + ridge I)⁻¹ XᵀY / N,    X standardised, Y centred
    """
    x = features.double()
    centre, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True, correction=0)
    scale = torch.where(scale > 1e-9 * (1 + centre.abs()), scale, torch.inf)  # a constant tells nothing
    x = (x - centre) / scale
    gram = x.transpose(1, 2) @ x / x.shape[1] + ridge * torch.eye(x.shape[2], dtype=x.dtype)
    mean = target.mean(0)
    cross = x.transpose(1, 2) @ (target - mean) / x.shape[1]
    return AffineFit(centre, scale, torch.cholesky_solve(cross, torch.linalg.cholesky(gram)), mean)


def explained(errors: Curves, spread: Curves, *, seed: int = 0) -> Curves:
    """1 - mean error / mean spread (1 + NUM_RESAMPLES, layer) of errors (sample, layer) and spread (sample,).

    Raises:
        InputError: a target that does not vary.
    """
    require(bool(spread.sum() > 0), "dataset", "must have a target that varies", float(spread.sum()))
    means = resampled_curves(np.concatenate([errors, spread[:, None]], 1), seed=seed)
    r2: Curves = 1 - means[:, :-1] / means[:, -1:]
    return r2


def _split(num_examples: int, num_samples: int) -> Tensor:
    """Whether an example belongs to the last quarter of the samples."""
    samples = torch.arange(num_samples).repeat_interleave(num_examples // num_samples)
    return samples >= (3 * num_samples) // 4
