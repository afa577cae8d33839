"""Belief geometry: how well the belief state is an affine function of the residual stream."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, layers_read, read_stream, residual_layers
from hmmscope.analysis.layer_curves import NUM_RESAMPLES, Curves, resampled_curves, with_interval
from hmmscope.analysis.untrained_controls import (
    NO_COLUMNS,
    NO_POINTS,
    ExplainedFraction,
    InstrumentOptions,
    draw_controls,
    explained_beyond_controls,
    explained_by_layer,
)
from hmmscope.axes import Bool, Float, Float64, Int, Tensor
from hmmscope.datasets.headers import decoded_hmms, observe_decoded
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.mixture_posterior import filter_known_component, filter_mixture
from hmmscope.inference.optimal import observe
from hmmscope.processes.capabilities import BELIEFS, COMPONENTS
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import options_of, require, require_count
from hmmscope.seeds import numpy_generator
from hmmscope.ties import largest

#: Names of targets; the last is what the model is trained for.
BELIEF, MIXED_BELIEF, PREDICTION = "belief", "belief, component unknown", "next observation"

#: Ridge penalty for standardised features; it only keeps the equations solvable.
RIDGE = 1e-6


@dataclass(frozen=True, repr=False)
class AffineFit(Shown):
    """Affine maps from features to a target, one per layer.

    Attributes:
        centre, scale: mean and standard deviation of the features (layer, 1, feature).
        weights: weights of the standardised features (layer, feature, coordinate).
        mean: mean of the target (coordinate,).
    """

    centre: Float64[Tensor, "layer 1 feature"]
    scale: Float64[Tensor, "layer 1 feature"]
    weights: Float64[Tensor, "layer feature coordinate"]
    mean: Float64[Tensor, " coordinate"]

    def __call__(self, features: Float[Tensor, "layer example feature"]) -> Float64[Tensor, "layer example coordinate"]:
        return (features.double() - self.centre) / self.scale @ self.weights + self.mean


@dataclass(frozen=True, repr=False)
class Readout(Shown):
    """Errors of affine maps on the test samples.

    Attributes:
        errors: squared errors by sample (sample, layer).
        spread: squared errors of the training mean as prediction (sample,).
        fitted: R² on the training samples (layer,).
        values: outputs of the maps (layer, example, coordinate).
    """

    errors: Curves
    spread: Curves
    fitted: Curves
    values: Float64[Tensor, "layer example coordinate"]

    def beyond(self, twins: Sequence["Readout"]) -> ExplainedFraction:
        """Compare to controls `twins` (`explained_beyond_controls`), each readout at the layer of largest `fitted`."""
        left, *twins_left = (1 - one.r2()[:, one.chosen] for one in (self, *twins))
        return explained_beyond_controls(left, np.stack(twins_left, 1), len(self.spread))

    def r2(self, *, seed: int = 0) -> Curves:
        """Return R² (1 + NUM_RESAMPLES, layer) on the test samples (row 0) and on bootstrap resamples."""
        return explained(self.errors, self.spread, seed=seed)

    def by_layer(self, samples: int | None = None) -> list[dict[str, Any]]:
        """Return a row per layer: R², its 95 % interval and `fitted`."""
        found = zip(self.r2().T, self.fitted, strict=True)
        return [with_interval(draws, samples) | {"fitted": float(fitted)} for draws, fitted in found]

    @property
    def chosen(self) -> int:
        return largest(range(len(self.fitted)), lambda layer: float(self.fitted[layer]))


@dataclass(frozen=True, eq=False, repr=False)
class ExactBeliefs(Shown):
    """Exact beliefs and predictions after every observation of each sample's last sequence.

    Attributes:
        dataset: source of the samples.
        num_samples: number of samples.
        times: observation indices (time,).
        values: targets by name (example, coordinate); constant targets are omitted, except the belief.
        inside: mask of the examples that are not padding (example,), or None.
    """

    dataset: ProcessDataset
    num_samples: int
    times: NDArray[np.int64]
    values: dict[str, Float64[Tensor, "example coordinate"]]
    inside: Bool[Tensor, " example"] | None

    @classmethod
    def of(cls, dataset: ProcessDataset, num_samples: int, observer: Process | None = None) -> "ExactBeliefs":
        """Compute the exact targets of samples under `observer` (default: the dataset's process)."""
        times = belief_times(dataset)
        found, inside = belief_targets(dataset, times, num_samples, observer), unpadded(dataset, times, num_samples)
        test = _split(len(found[BELIEF]), num_samples)
        told = test if inside is None else test & inside
        values = {name: x for name, x in found.items() if name == BELIEF or bool((x[told] != x[told][:1]).any())}
        return cls(dataset, num_samples, times, values, inside)

    @property
    def belief(self) -> Float64[Tensor, "example state"]:
        return self.values[BELIEF]

    def stream(self, model: nn.Module, layers: Sequence[str] | None = None) -> Float[Tensor, "layer example feature"]:
        """Return activations after each observation, by default of the residual stream."""
        return read_stream(
            model, self.dataset, self.times, residual_layers(model) if layers is None else layers, self.num_samples
        )

    def read(self, features: Float[Tensor, "layer example feature"], target: str = BELIEF, **options: Any) -> Readout:
        return read_off(features, self.values[target], self.num_samples, inside=self.inside, **options)

    def mapped(self, features: Float[Tensor, "layer example feature"]) -> Float64[Tensor, "layer example state"]:
        """Return beliefs read from activations by an affine map fitted to all examples."""
        return fit_affine(features, self.belief)(features)

    def from_prediction(self, target: str = BELIEF, **options: Any) -> Curves:
        """Return R² of an affine map from the exact prediction to a target; zero if the prediction is constant."""
        if PREDICTION not in self.values:
            return np.zeros(1 + NUM_RESAMPLES)
        return self.read(self.values[PREDICTION][None], target, **options).r2()[:, 0]

    def ceiling(self, target: str) -> float:
        """Return the highest possible test R², that of the target's mean given the observations."""
        if target != BELIEF or MIXED_BELIEF not in self.values:
            return 1.0
        test = _split(len(self.belief), self.num_samples)
        left = self.belief - self.belief[~test].mean(0)
        missed = self.belief - self.values[MIXED_BELIEF]
        return float(1 - missed[test].square().sum() / left[test].square().sum())


@registry.instrument("geometry", y="r2", by=("target", "targets"))
def geometry(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    layers: Sequence[str] | None = None,
    num_samples: int = 768,
    ridge: float = RIDGE,
    seed: int = 0,
    options: InstrumentOptions | None = None,
) -> list[dict]:
    """Compute held-out R² of beliefs and next-observation probabilities as affine functions of each layer.

    The targets, after every observation of the last sequence, are
        ``belief``: P(state | observations), for mixtures given the true component (for a `GeneralisedHMM` the
            predictive vector, for a `LinearGaussian` the Kalman mean);
        ``belief, component unknown``: for mixtures, P(state | observations);
        ``next observation``: next-observation probabilities, without knowledge of the component.

    R² = 1 - Σ |target - map(stream)|² / Σ |target - mean|². Ridge regression on standardised features fits the affine
    map to three quarters of the samples; one quarter tests it. Controls are permuted targets and untrained networks.

    Args:
        model: any module.
        dataset: samples of a process with beliefs; others need `options.observer`, the HMM that defines beliefs.
        layers: module names (default: the residual stream).
        num_samples: number of samples; for recorded sequences, at most the number of windows.
        ridge: penalty of the regression.
        seed: seed of permutation and bootstrap.
        options: see `InstrumentOptions`.

    Returns:
        Rows (target, targets, layer, layer_name, r2, low, high, fitted, ceiling, from_prediction, samples, twins,
            share, share_low, share_high, beyond_twins). `targets` is "true" or "shuffled", `fitted` the R² on training
            samples, `ceiling` the R² of the best estimate from the observations, `from_prediction` the R² of an affine
            map from the exact prediction, and `twins` the mean R² of untrained networks. `share` is the explained
            fraction of the variance that they leave unexplained; `beyond_twins` states it as text, or why it is
            unknown. Intervals (95 %) are over test samples, for `share` also over untrained networks.

    Raises:
        InputError: the process has no belief states, or a layer is unknown.

    Source: Shai et al. (2024), "Transformers represent belief state geometry in their residual stream".
    """
    options = options_of(options, InstrumentOptions).without(num_points=NO_POINTS)
    num_samples = dataset.different(num_samples)
    require_count("num_samples", num_samples, 8, " (three quarters fit the map, one quarter tests it)")
    names = layers_read(model, layers)
    exact = ExactBeliefs.of(dataset, num_samples, options.observer)
    stream = exact.stream(model, names)
    twins = draw_controls(model, options.num_controls_or(), seed=seed, controls=options.controls)
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
    layout = dataset.layout
    return np.flatnonzero(layout.sequence_index == layout.sequence_index[-1])


def belief_targets(
    dataset: ProcessDataset,
    times: NDArray[np.int64],
    num_samples: int,
    observer: Process | None = None,
    *,
    first: int = 0,
) -> dict[str, Float64[Tensor, "example coordinate"]]:
    parts = [_targets(dataset, batch, observer) for batch in _batches(dataset, num_samples, first)]
    return {name: torch.cat([part[name][:, times].flatten(0, 1) for part in parts]) for name in parts[0]}


def unpadded(
    dataset: ProcessDataset, times: NDArray[np.int64], num_samples: int, *, first: int = 0
) -> Bool[Tensor, " example"] | None:
    """Return a mask of the examples (sample, time) that are not padding; None if there is no padding."""
    if dataset.process.data is None:
        return None
    return torch.cat([batch.states[:, times].flatten() for batch in _batches(dataset, num_samples, first)]) >= 0


def _batches(dataset: ProcessDataset, num_samples: int, first: int) -> Iterator[Batch]:
    end = first + num_samples
    return (dataset[i : min(i + BATCH, end)] for i in range(first, end, BATCH))


def _targets(
    dataset: ProcessDataset, batch: Batch, observer: Process | None
) -> dict[str, Float64[Tensor, "batch time coordinate"]]:
    process: Process = dataset.process if observer is None else observer
    if process.num_symbols != dataset.num_symbols:
        raise InputError(f"observer: must have {dataset.num_symbols} symbols, got {process!r}")
    reset_mask = torch.from_numpy(dataset.layout.reset_mask)
    hmms = decoded_hmms(process, dataset.layout, batch.tokens) if observer is None else None
    if hmms is not None:
        beliefs = observe_decoded(process, dataset.layout, batch).beliefs
        return {BELIEF: beliefs, PREDICTION: beliefs @ hmms.params.predictive()}
    if COMPONENTS not in process.uses_hmm_inference:
        observed = observe(process, batch.observations, reset_mask=reset_mask)
        belief = observed.belief
        if belief is None:
            raise process.missing_capability_error(BELIEFS)
        return {BELIEF: belief, PREDICTION: observed.next_observation}
    if batch.components is None:
        raise InputError("observer: must be a single HMM, because the samples have no components; got a mixture")
    mixed = filter_mixture(process, batch.observations, reset_mask=reset_mask)
    told = filter_known_component(process, batch.observations, batch.components, reset_mask=reset_mask)
    return {
        BELIEF: told.beliefs,
        MIXED_BELIEF: mixed_beliefs(process, batch.observations, mixed.component_posterior, reset_mask),
        PREDICTION: mixed.next_observation,
    }


def mixed_beliefs(
    mixture: Process,
    observations: Int[Tensor, "batch time"],
    posterior: Float64[Tensor, "batch time component"],
    reset_mask: Tensor,
) -> Float64[Tensor, "batch time state"]:
    """Compute the belief with unknown component m, sum_m P(m | o_0..o_t) P_m(state t | o_0..o_t).

    Args:
        mixture: mixture of M components.
        observations: symbols (batch, time).
        posterior: P(component | o_0..o_t) (batch, time, component).
        reset_mask: True where a sequence starts (time,).
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
    inside: Bool[Tensor, " example"] | None = None,
) -> Readout:
    """Fit an affine map from each layer on three quarters of the samples; compute its errors on the other quarter.

    Args:
        features: activations (layer, example, feature); examples of a sample are adjacent.
        target: values to fit.
        num_samples: number of samples to which the examples belong.
        ridge: penalty of the regression.
        shuffle: True permutes the training targets.
        seed: seed of the permutation.
        inside: mask of the examples that are not padding, or None.
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
    """Fit ridge regression for each layer, in float64 by Cholesky decomposition.

    weights = (XᵀX / N + ridge I)⁻¹ XᵀY / N,    for N examples, standardised features X, centred targets Y
    """
    x = features.double()
    centre, scale = x.mean(1, keepdim=True), x.std(1, keepdim=True, correction=0)
    scale = torch.where(scale > 1e-9 * (1 + centre.abs()), scale, torch.inf)  # constant features get weight 0
    x = (x - centre) / scale
    gram = x.transpose(1, 2) @ x / x.shape[1] + ridge * torch.eye(x.shape[2], dtype=x.dtype)
    mean = target.mean(0)
    cross = x.transpose(1, 2) @ (target - mean) / x.shape[1]
    return AffineFit(centre, scale, torch.cholesky_solve(cross, torch.linalg.cholesky(gram)), mean)


def explained(errors: Curves, spread: Curves, *, seed: int = 0) -> Curves:
    """Return R² = 1 - mean(errors) / mean(spread) of the samples (row 0) and of bootstrap resamples.

    Raises:
        InputError: the target does not vary.
    """
    require(bool(spread.sum() > 0), "dataset", "must have a target of positive variance", float(spread.sum()))
    means = resampled_curves(np.concatenate([errors, spread[:, None]], 1), seed=seed)
    r2: Curves = 1 - means[:, :-1] / means[:, -1:]
    return r2


def _split(num_examples: int, num_samples: int) -> Tensor:
    samples = torch.arange(num_samples).repeat_interleave(num_examples // num_samples)
    return samples >= (3 * num_samples) // 4
