"""Belief maps: exact beliefs compared with the beliefs read from a network's layer."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import check_layers, read_stream, residual_layers
from hmmscope.analysis.devices import about_of, takes_device
from hmmscope.analysis.geometry import (
    BELIEF,
    MIXED_BELIEF,
    PREDICTION,
    AffineFit,
    Readout,
    belief_targets,
    belief_times,
    fit_affine,
    read_off,
    unpadded,
)
from hmmscope.analysis.layer_curves import with_interval
from hmmscope.analysis.rehearsing import rehearsed
from hmmscope.analysis.untrained_controls import ExplainedFraction, InstrumentOptions, draw_controls
from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.models.adapted import title_of
from hmmscope.models.failing import POSITION_LIMITS, TRAINED_LENGTHS, read_number
from hmmscope.processes.make import as_process
from hmmscope.processes.process import Process
from hmmscope.progress import shows_progress
from hmmscope.reprs import Shown, Tabular
from hmmscope.schema import options_of, require, require_count
from hmmscope.text import in_digits
from hmmscope.ties import largest

#: Corners of the belief simplex of three states and their colours, as on pages.
CORNERS = ((0.5, 0.75**0.5), (0.0, 0.0), (1.0, 0.0))
COLOURS = ((216, 27, 96), (30, 136, 229), (224, 161, 0))
#: Least R² at which the belief counts as an affine function of the prediction.
SAME_AS_PREDICTION = 0.98
#: Default number of controls; the spread of three controls hides fractions up to .25, see `scripts/control_rates.py`.
NUM_CONTROLS = 8
#: Examples read at once, and training steps drawn.
_AT_ONCE, _DRAWN_STEPS = 16_384, 6

Points = NDArray[np.float64]


@runtime_checkable
class Trained(Protocol):
    """Interface of a training run with stored checkpoints."""

    @property
    def model(self) -> Any:
        """Return the trained model."""

    def dataset(self, stream: str = "evaluate") -> ProcessDataset:
        """Return a dataset of the run's process from a random stream."""

    def checkpoint_steps(self) -> list[int]:
        """Return the training steps of the stored checkpoints."""

    def model_at(self, step: int) -> Any:
        """Load the model's checkpoint at a training step."""


@dataclass(frozen=True, repr=False, eq=False)
class BeliefMap(Shown, Tabular):
    """Beliefs read from one layer by an affine map, on samples held out from the fit.

    Attributes:
        layer: name of the layer.
        exact: exact belief after each observation (point, state).
        read: belief as read from the layer (point, state); entries may be negative.
        control: belief as read from an untrained network of the same architecture, or None.
        r2, low, high: held-out R², with its 95 % interval.
        share: explained fraction of the variance that untrained networks leave unexplained.
        from_prediction: R² of an affine map from the exact prediction to the belief.
        step: training step, if known.
        length: number of observations per sample.
        warnings: problems found in the user's model.
        about: settings of the measurement.
        earlier: maps at earlier stored checkpoints, if requested.
    """

    layer: str
    exact: Points
    read: Points
    control: Points | None
    r2: float
    low: float
    high: float
    share: ExplainedFraction
    from_prediction: float
    step: int | None = None
    earlier: "tuple[BeliefMap, ...]" = ()
    length: int | None = None
    warnings: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """Warning if the map cannot distinguish the belief from the exact prediction, else ""."""
        if self.from_prediction < SAME_AS_PREDICTION:
            return ""
        return (
            "Here the belief is an affine function of the prediction, so this map cannot distinguish the belief from "
            "the prediction; use a process such as rrxor, or an intervention."
        )

    def coordinates(self, values: Points | None = None) -> NDArray[np.float64]:
        """Project beliefs (point, state), by default `read`, to the plane (point, 2).

        For three states the plane is that of the simplex, with state 0 on top, 1 left and 2 right. For two states the
        axes are P(state 0), exact and in `values`. For more states, they are the first two principal axes of `exact`.
        """
        values = self.read if values is None else values
        num_states = self.exact.shape[1]
        if num_states == 3:
            return np.asarray(values @ np.array(CORNERS))
        if num_states < 3:
            return np.stack([self.exact[:, 0], values[:, 0]], 1)
        return np.asarray((values - self.exact.mean(0)) @ _axes(self.exact)[:, :2])

    def colours(self) -> NDArray[np.float64]:
        """Return an RGB colour for each exact belief (point, 3)."""
        num_states = self.exact.shape[1]
        if num_states <= 3:
            return np.asarray(self.exact @ np.array(COLOURS)[:num_states] / 255)
        places = (self.exact - self.exact.mean(0)) @ _axes(self.exact)
        low, high = np.percentile(places, [2, 98], axis=0)
        scaled = np.clip((places - low) / np.where(high > low, high - low, 1), 0, 1)
        return np.asarray(0.1 + 0.75 * np.pad(scaled, ((0, 0), (0, 3 - scaled.shape[1]))))

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each map in `earlier`, then a row for this map."""
        return [
            {"step": one.step, "layer_name": one.layer, "r2": one.r2, "low": one.low, "high": one.high}
            | one.share.columns()
            | {"from_prediction": one.from_prediction}
            for one in (*self.earlier, self)
        ]

    def plot(self, *, ax: Any = None) -> Any:
        """Plot the exact beliefs next to those read from an untrained control and the model.

        Args:
            ax: Matplotlib axes; if passed, only the model's beliefs are plotted.
        """
        from matplotlib.figure import Figure

        panels = self._panels() if ax is None else self._panels()[-1:]
        figure = Figure(figsize=(3.0 * len(panels), 3.3), layout="constrained") if ax is None else ax.figure
        places = np.atleast_1d(figure.subplots(1, len(panels)) if ax is None else ax)
        colours, exact = self.colours(), self.coordinates(self.exact)
        size = float(np.clip(3e4 / len(exact), 0.12, 6))
        for axes, (title, values) in zip(places, panels, strict=True):
            if self.exact.shape[1] == 3:
                axes.fill(*np.array(CORNERS).T, fill=False, edgecolor="0.6", linewidth=0.8)
                axes.set(aspect="equal", xlim=(-0.1, 1.1), ylim=(-0.12, 0.98))
                axes.axis("off")
            else:
                low, high = exact.min(0), exact.max(0)
                room = 0.15 * np.where(high > low, high - low, 1)
                axes.set(xlim=(low[0] - room[0], high[0] + room[0]), ylim=(low[1] - room[1], high[1] + room[1]))
                axes.set(xticks=[], yticks=[])
            axes.scatter(*self.coordinates(values).T, s=size, c=colours, linewidths=0, rasterized=True)
            axes.set_title(title, fontsize=9)
        return figure

    def _panels(self) -> list[tuple[str, Points]]:
        panels = [("exact", self.exact)]
        if self.control is not None:
            panels.append(
                (f"untrained control, {self.layer}\nR² {self.share.controls:.3f} (mean of controls)", self.control)
            )
        picked = np.linspace(0, len(self.earlier) - 1, min(len(self.earlier), _DRAWN_STEPS)).round().astype(int)
        panels += [(f"step {one.step}\nR² {one.r2:.3f}", one.read) for one in (self.earlier[i] for i in picked)]
        beyond = (
            f"beyond controls {self.share}" if self.share.value is not None else "beyond controls: not identifiable"
        )
        panels.append((f"{self.layer}, R² {self.r2:.3f}\n{beyond.partition(' of what')[0]}", self.read))
        return panels

    def _facts(self) -> dict[str, str]:
        points = f"{len(self.exact):,} of {self.exact.shape[1]} states"
        r2 = in_digits(self.r2, self.low, self.high, least=3)
        found = {"layer": repr(self.layer), "points": points, "r2": r2, "beyond_twins": str(self.share)}
        if self.length is not None:
            found["length"] = str(self.length)
        if self.earlier:
            found["steps"] = f"{len(self.earlier)} earlier"
        if self.warnings:
            found["warnings"] = "; ".join(self.warnings)
        return found | ({"note": self.note} if self.note else {})

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.plot().savefig(data, format="png", dpi=72)
        return data.getvalue()


@shows_progress("belief map")
@takes_device
def belief_map(
    model: nn.Module | Trained,
    process: Process | ProcessDataset | str | Path | None = None,
    layer: str | None = None,
    *,
    length: int | None = None,
    num_samples: int = 768,
    seed: int = 0,
    over_checkpoints: bool = False,
    options: InstrumentOptions | None = None,
) -> BeliefMap:
    """Fit an affine map from one layer to the exact belief, for a model and for untrained controls.

    The map is fitted and tested as in `geometry`. The plot shows new samples, or the test samples if there are no more.
    For a mixture of HMMs, the exact belief is P(state | observations), averaged over the unknown component.

    Args:
        model: module from tokens (batch, time) to logits, or a run.
        process: process, name, file or dataset (default: process of the run).
        layer: module name (default: the layer of the residual stream with the largest R² on training samples).
        length: number of observations per sample, see `dataset_for`.
        num_samples: number of samples that fit or test the map.
        seed: seed of controls, bootstrap and new samples.
        over_checkpoints: True adds maps at the stored checkpoints of a run.
        options: see `InstrumentOptions`.

    Raises:
        InputError: the process is missing or has no beliefs, a layer is unknown, or `over_checkpoints` needs a run.

    Source: Shai et al. (2024), "Transformers represent belief state geometry in their residual stream".
    """
    run = model if isinstance(model, Trained) else None
    net: Any = run.model if run is not None else model
    options = options_of(options, InstrumentOptions)
    if over_checkpoints and run is None:
        raise InputError("over_checkpoints: needs a run, such as hs.load_run(...), got a model")
    dataset = run.dataset("probe") if run is not None and process is None else dataset_for(net, process, length, seed)
    lines = rehearsed(net, dataset)
    taken = registry.adapted(net, None if layer is None else [layer])
    names = residual_layers(taken) if layer is None else [layer]
    check_layers(taken, names)
    reader = BeliefReader.of(dataset, num_samples, options.num_points or 100_000, options.observer)
    found = [reader.measured(taken, names)]
    first = None if run is None else run.model_at(0)
    twins = draw_controls(net, options.num_controls_or(NUM_CONTROLS), seed=seed, controls=options.controls, first=first)
    adapted = [registry.adapted(twin, None if layer is None else [layer]) for twin in twins.models]
    found += [reader.measured(twin, names) for twin in adapted]
    here = names[found[0].chosen]
    twin = reader.drawn(adapted[0], names[found[1].chosen]) if adapted else None

    def at(one: nn.Module, readout: Readout, chosen: int, where: str, step: int | None) -> BeliefMap:
        r2 = with_interval(readout.r2(seed=seed)[:, chosen], len(readout.spread))
        share = readout.beyond(found[1:]) if adapted else ExplainedFraction(r2["value"], reason=twins.reason)
        read, alone = reader.drawn(one, where), reader.from_prediction
        one_map = BeliefMap(where, reader.points, read, twin, r2["value"], r2["low"], r2["high"], share, alone, step)
        about = about_of(net, dataset, reader.num_samples, seed=seed, layers=names)
        return replace(one_map, length=int(dataset.layout.num_observations), warnings=lines, about=about)

    last = at(taken, found[0], found[0].chosen, here, None)
    if run is None or not over_checkpoints:
        return last
    *before, final = run.checkpoint_steps()
    models = ((step, registry.adapted(run.model_at(step), [here])) for step in before)
    earlier = tuple(at(one, reader.measured(one, [here]), 0, here, step) for step, one in models)
    return replace(last, earlier=earlier, step=final)


def dataset_for(model: nn.Module, process: Any, length: int | None = None, seed: int = 0) -> ProcessDataset:
    """Return a dataset of `process` (object, name or file); a dataset is returned unchanged.

    By default, `length` is the window of recorded sequences, else the training length in the model (`TRAINED_LENGTHS`).

    Raises:
        InputError: the process or the length is missing.
    """
    if isinstance(process, ProcessDataset):
        require(length is None, "length", "must be omitted for a dataset (pass a process to choose it)", length)
        return process
    if process is None:
        raise InputError(
            "process: is missing, and models do not store their training process; pass a process, its name or a dataset"
        )
    made = as_process(process)
    stated = read_number(model, TRAINED_LENGTHS)
    known = [one for one in (length, made.window, None if stated is None else stated[1]) if one is not None]
    if not known:
        limit = read_number(model, POSITION_LIMITS)
        most = "" if limit is None else f"; the model has {limit[1]} positions ({limit[0]})"
        raise InputError(
            f"length: {title_of(model)} does not state its training length; pass length= (--length), the observations "
            f"per training sample{most}"
        )
    return ProcessDataset(made, length=known[0], seed=seed, stream="probe")


@dataclass(frozen=True, eq=False, repr=False)
class BeliefReader(Shown):
    """Samples with exact beliefs, the targets of affine maps from a model's layers.

    Attributes:
        dataset: dataset of the samples.
        times: indices of the observations after which beliefs are read.
        num_samples: number of samples that fit or test the maps.
        belief: exact beliefs of these samples (example, state).
        drawn_samples: indices of the plotted samples.
        points: exact beliefs of the plotted samples (point, state).
        from_prediction: R² of an affine map from the exact prediction to the belief.
        inside: masks (example,) for `belief` and for `points`, False at padding; None without padding.
    """

    dataset: ProcessDataset
    times: NDArray[np.int64]
    num_samples: int
    belief: Float64[Tensor, "example state"]
    drawn_samples: range
    points: Points
    from_prediction: float
    inside: tuple[Tensor | None, Tensor | None]

    @classmethod
    def of(
        cls, dataset: ProcessDataset, num_samples: int, num_points: int, observer: Process | None = None
    ) -> "BeliefReader":
        if dataset.process.data is not None and observer is None:
            raise InputError(
                "observer: is missing, and the process of recorded sequences is unknown; pass an HMM fitted to them, "
                "hs.fit(...).hmm"
            )
        num_samples, times = dataset.different(num_samples), belief_times(dataset)
        require_count("num_samples", num_samples, 8, " (three quarters fit the map, one quarter tests it)")
        targets = belief_targets(dataset, times, num_samples, observer)
        belief, inside = targets.get(MIXED_BELIEF, targets[BELIEF]), unpadded(dataset, times, num_samples)
        alone = read_off(targets[PREDICTION][None], belief, num_samples, inside=inside).r2()
        end = dataset.different(num_samples + -(-num_points // len(times)))
        drawn = range(num_samples, end) if end > num_samples else range((3 * num_samples) // 4, num_samples)
        more = belief_targets(dataset, times, len(drawn), observer, first=drawn.start)
        beliefs, shown = more.get(MIXED_BELIEF, more[BELIEF]), unpadded(dataset, times, len(drawn), first=drawn.start)
        points = (beliefs if shown is None else beliefs[shown])[:num_points].numpy()
        return cls(dataset, times, num_samples, belief, drawn, points, float(alone[0, 0]), (inside, shown))

    def measured(self, model: nn.Module, names: Sequence[str]) -> Readout:
        stream = self._stream(model, names, range(self.num_samples))
        return read_off(stream, self.belief, self.num_samples, inside=self.inside[0])

    def drawn(self, model: nn.Module, name: str) -> Points:
        fit, shown = self.fit(model, name), self.inside[1]
        values = torch.cat([fit(part)[0] for part in self._parts(model, name)])
        return (values if shown is None else values[shown])[: len(self.points)].numpy()

    def fit(self, model: nn.Module, name: str) -> AffineFit:
        inside = self.inside[0]
        train = torch.arange(len(self.belief)) < (3 * self.num_samples // 4) * len(self.times)
        train = train if inside is None else train & inside
        return fit_affine(self._stream(model, [name], range(self.num_samples))[:, train], self.belief[train])

    def compared(
        self, model: nn.Module, name: str, dataset: ProcessDataset
    ) -> tuple[Float64[Tensor, "time state"], Float64[Tensor, "time state"]]:
        targets = belief_targets(dataset, self.times, 1)
        stream = read_stream(model, dataset, self.times, [name], 1)
        return targets.get(MIXED_BELIEF, targets[BELIEF]), self.fit(model, name)(stream)[0]

    def _parts(self, model: nn.Module, name: str) -> Iterable[Tensor]:
        at_once = max(1, _AT_ONCE // len(self.times))
        for begin in range(self.drawn_samples.start, self.drawn_samples.stop, at_once):
            yield self._stream(model, [name], range(begin, min(begin + at_once, self.drawn_samples.stop)))

    def _stream(self, model: nn.Module, names: Sequence[str], samples: range) -> Tensor:
        found: Tensor = read_stream(model, self.dataset, self.times, names, len(samples), first=samples.start)
        return found


def _axes(exact: Points) -> NDArray[np.float64]:
    centred = torch.from_numpy(exact - exact.mean(0))
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :3].numpy()
    signs = [np.sign(axis[largest(range(len(axis)), lambda i, a=axis: float(abs(a[i])))]) for axis in axes.T]  # type: ignore[misc]
    return np.asarray(axes * signs)
