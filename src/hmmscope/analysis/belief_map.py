"""The belief map of a layer: the exact beliefs, what an affine map reads of them from a model, and from untrained twins."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import check_layers, read_stream, residual_layers
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
from hmmscope.analysis.initialization import Controls
from hmmscope.analysis.layer_curves import with_interval
from hmmscope.analysis.rehearsing import rehearsed
from hmmscope.analysis.untrained_controls import NUM_TWINS, ExplainedFraction, draw_controls
from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.models.failing import POSITION_LIMITS, TRAINED_LENGTHS, read_number
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.make import as_process
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count
from hmmscope.text import in_digits
from hmmscope.ties import largest

#: Corners of the triangle of three states, and the colours of certainty there: the same as on pages.
CORNERS = ((0.5, 0.75**0.5), (0.0, 0.0), (1.0, 0.0))
COLOURS = ((216, 27, 96), (30, 136, 229), (224, 161, 0))
#: R² from the exact prediction from which on the belief is taken to be an affine function of it.
SAME_AS_PREDICTION = 0.98
#: Examples that are read at a time, and steps of training that are drawn.
_AT_ONCE, _DRAWN_STEPS = 16_384, 6

Points = NDArray[np.float64]


@runtime_checkable
class Trained(Protocol):
    """A run: a trained model whose earlier weights have stayed."""

    @property
    def model(self) -> Any:
        """With its last weights."""

    def dataset(self, stream: str = "evaluate") -> ProcessDataset:
        """Samples of what it was trained on."""

    def checkpoint_steps(self) -> list[int]:
        """Steps whose weights have stayed."""

    def model_at(self, step: int) -> Any:
        """The model after so many steps."""


@dataclass(frozen=True, repr=False, eq=False)
class BeliefMap(Shown):
    """What is read of the belief from one layer, point by point, on samples that the map was not fitted to.

    Attributes:
        layer: the name of the layer.
        exact: the exact belief after each observation (point, state).
        read: the same as the affine map reads it from the model (point, state); rows sum to one, entries may be negative.
        control: the same from the first untrained twin, by a map of its own; None where there are no twins.
        r2, low, high: R² of the map on held-out samples, with its 95 % interval.
        share: what the model explains of the belief beyond its untrained twins, with its interval, or why nothing is told.
        from_prediction: R² of an affine function of the exact law of the next observation: what a model that holds its
            prediction alone would give.
        step: of the training; None for the model as it was handed over.
        length: observations of a sample.
        warnings: about a model that this library did not make, a line each.
        earlier: the maps at the steps whose weights have stayed, the first weights included; empty unless asked for.
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

    @property
    def note(self) -> str:
        """What the picture cannot tell, in a line; empty where there is nothing to warn of."""
        if self.from_prediction < SAME_AS_PREDICTION:
            return ""
        return (
            "Here the belief is an affine function of the prediction, so this map cannot tell the two apart: take a process "
            "such as rrxor, or intervene."
        )

    def coordinates(self, values: Points | None = None) -> NDArray[np.float64]:
        """Places in the plane (point, 2) of beliefs (point, state), by default of those that are read.

        Of three states the triangle of beliefs, with state 0 on top, 1 left and 2 right. Of two states the exact
        probability of state 0, then that of `values`. Beyond three the first two principal axes of the exact beliefs.
        """
        values = self.read if values is None else values
        num_states = self.exact.shape[1]
        if num_states == 3:
            return np.asarray(values @ np.array(CORNERS))
        if num_states < 3:
            return np.stack([self.exact[:, 0], values[:, 0]], 1)
        return np.asarray((values - self.exact.mean(0)) @ _axes(self.exact)[:, :2])

    def colours(self) -> NDArray[np.float64]:
        """Red, green and blue in [0, 1] of each point (point, 3), by its exact belief: the same in every panel."""
        num_states = self.exact.shape[1]
        if num_states <= 3:
            return np.asarray(self.exact @ np.array(COLOURS)[:num_states] / 255)
        places = (self.exact - self.exact.mean(0)) @ _axes(self.exact)
        low, high = np.percentile(places, [2, 98], axis=0)
        scaled = np.clip((places - low) / np.where(high > low, high - low, 1), 0, 1)
        return np.asarray(0.1 + 0.75 * np.pad(scaled, ((0, 0), (0, 3 - scaled.shape[1]))))

    def table(self) -> list[dict[str, Any]]:
        """A row for each step of `earlier`, then one for the map itself."""
        return [
            {"step": one.step, "layer_name": one.layer, "r2": one.r2, "low": one.low, "high": one.high}
            | one.share.columns()
            | {"from_prediction": one.from_prediction}
            for one in (*self.earlier, self)
        ]

    def plot(self) -> Any:
        """A Matplotlib figure: the exact beliefs, those read from an untrained twin, over training, and at the end."""
        from matplotlib.figure import Figure

        panels = self._panels()
        figure = Figure(figsize=(3.0 * len(panels), 3.3), layout="constrained")
        colours, exact = self.colours(), self.coordinates(self.exact)
        size = float(np.clip(3e4 / len(exact), 0.12, 6))
        for axes, (title, values) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
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
        """Title and beliefs of each panel."""
        panels = [("exact", self.exact)]
        if self.control is not None:
            panels.append(
                (f"an untrained twin, {self.layer}\nR² {self.share.controls:.3f} (mean of twins)", self.control)
            )
        picked = np.linspace(0, len(self.earlier) - 1, min(len(self.earlier), _DRAWN_STEPS)).round().astype(int)
        panels += [(f"step {one.step}\nR² {one.r2:.3f}", one.read) for one in (self.earlier[i] for i in picked)]
        beyond = f"beyond twins {self.share}" if self.share.value is not None else "beyond twins: not identifiable"
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
        """The picture, for a notebook."""
        data = io.BytesIO()
        self.plot().savefig(data, format="png", dpi=72)
        return data.getvalue()


def belief_map(
    model: nn.Module | Trained,
    process: Process | ProcessDataset | str | Path | None = None,
    layer: str | None = None,
    *,
    length: int | None = None,
    num_samples: int = 768,
    num_points: int = 100_000,
    num_controls: int = NUM_TWINS,
    controls: Controls | None = None,
    seed: int = 0,
    observer: HMM | LabelledHMM | None = None,
    over_checkpoints: bool = False,
) -> BeliefMap:
    """The picture of the belief inside a model: an affine map from one layer to the exact belief, beside untrained twins.

    The map is fitted to three quarters of `num_samples` samples as `geometry` does it, measured on the last quarter, and
    drawn on further samples. Of a mixture the belief is that of an observer who does not know the component.

    Args:
        model: any module from tokens (batch, time) to logits, of transformers or TransformerLens, a construction; or a run.
        process: what generates: a process, its name or file, or a corpus. By default that of the run.
        layer: the name of a module; by default the residual layer from which the training examples are read best, of each
            twin its own.
        length: observations of a sample, as in training; a process needs it, see `dataset_for`.
        num_samples: samples that the map is fitted and measured on.
        num_points: beliefs that are drawn.
        num_controls: untrained twins, at least three; 0 for none.
        controls: a function that makes the untrained module, ``lambda: Mine()``; without it `draw_controls` draws them.
        seed: of twins, bootstrap and, unless `process` is a corpus or a run's, samples.
        observer: whose belief; by default that of the process. Of given sequences an HMM fitted to them.
        over_checkpoints: of a run, also the maps at the steps whose weights have stayed (``training.num_log_checkpoints``).

    Raises:
        InputError: no process, one without beliefs, an unknown layer, a model without layers that are found, or a run that
            kept no steps.

    Source: Shai et al. (2024), "Transformers represent belief state geometry in their residual stream"; twins are ours.
    """
    run = model if isinstance(model, Trained) else None
    net: Any = run.model if run is not None else model
    require_count("num_points", num_points)
    if over_checkpoints and run is None:
        raise InputError("over_checkpoints: needs a run, whose earlier weights have stayed; got a model alone")
    dataset = run.dataset("probe") if run is not None and process is None else dataset_for(net, process, length, seed)
    lines = rehearsed(net, dataset)
    taken = registry.adapted(net, None if layer is None else [layer])
    names = residual_layers(taken) if layer is None else [layer]
    check_layers(taken, names)
    reader = BeliefReader.of(dataset, num_samples, num_points, observer)
    found = [reader.measured(taken, names)]
    first = None if run is None else run.model_at(0)
    twins = draw_controls(net, num_controls, seed=seed, controls=controls, first=first)
    adapted = [registry.adapted(twin, None if layer is None else [layer]) for twin in twins.models]
    found += [reader.measured(twin, names) for twin in adapted]
    here = names[found[0].chosen]
    twin = reader.drawn(adapted[0], names[found[1].chosen]) if adapted else None

    def at(one: nn.Module, readout: Readout, chosen: int, where: str, step: int | None) -> BeliefMap:
        r2 = with_interval(readout.r2(seed=seed)[:, chosen], len(readout.spread))
        share = readout.beyond(found[1:]) if adapted else ExplainedFraction(r2["value"], reason=twins.reason)
        read, alone = reader.drawn(one, where), reader.from_prediction
        one_map = BeliefMap(where, reader.points, read, twin, r2["value"], r2["low"], r2["high"], share, alone, step)
        return replace(one_map, length=int(dataset.layout.num_observations), warnings=lines)

    last = at(taken, found[0], found[0].chosen, here, None)
    if run is None or not over_checkpoints:
        return last
    *before, final = run.checkpoint_steps()
    models = ((step, registry.adapted(run.model_at(step), [here])) for step in before)
    earlier = tuple(at(one, reader.measured(one, [here]), 0, here, step) for step, one in models)
    return replace(last, earlier=earlier, step=final)


def dataset_for(model: nn.Module, process: Any, length: int | None = None, seed: int = 0) -> ProcessDataset:
    """Samples of a process, its name or its file, as long as those of the training; a corpus as it is.

    The length is the one asked for, or else that of given sequences, or one that the model states as that of its training
    (`TRAINED_LENGTHS`, as models of runs do). The number of positions that a model can read is no such statement: beyond the
    length of its training a model with more positions gives other numbers.

    Raises:
        InputError: no process, or no length.
    """
    if isinstance(process, ProcessDataset):
        require(length is None, "length", "is that of the corpus; give a process to choose another", length)
        return process
    if process is None:
        raise InputError(
            "process: a model alone does not say what it was trained on; give a process, a name or a corpus"
        )
    made = as_process(process)
    stated = read_number(model, TRAINED_LENGTHS)
    known = [one for one in (length, made.window, None if stated is None else stated[1]) if one is not None]
    if not known:
        limit = read_number(model, POSITION_LIMITS)
        most = "" if limit is None else f"; it has at most {limit[1]} positions ({limit[0]})"
        raise InputError(
            f"length: {type(model).__name__} does not say at which length it was trained; give length=, the observations of "
            f"a training sample{most}"
        )
    return ProcessDataset(made, length=known[0], seed=seed, stream="probe")


@dataclass(frozen=True, eq=False, repr=False)
class BeliefReader(Shown):
    """Samples with their exact beliefs.

    Attributes:
        dataset: samples.
        times: of the observations after which is read.
        num_samples: samples on which maps are fitted and measured.
        belief: the exact ones there (example, state).
        drawn_samples: samples from `num_samples` on that are drawn; where the corpus has no more, those that measured.
        points: the exact beliefs there (point, state).
        from_prediction: R² of the belief as an affine function of the exact prediction.
        inside: which examples are no padding (example,), and which of those that are drawn; None if all are.
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
        cls, dataset: ProcessDataset, num_samples: int, num_points: int, observer: HMM | LabelledHMM | None = None
    ) -> "BeliefReader":
        if dataset.process.data is not None and observer is None:
            raise InputError(
                "observer: nobody knows the law of given sequences; give an HMM fitted to them, hs.fit(...).hmm"
            )
        num_samples, times = dataset.different(num_samples), belief_times(dataset)
        require_count("num_samples", num_samples, 8, ", to fit and to test on")
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
        """What each layer gives of the belief."""
        stream = self._stream(model, names, range(self.num_samples))
        return read_off(stream, self.belief, self.num_samples, inside=self.inside[0])

    def drawn(self, model: nn.Module, name: str) -> Points:
        """The points as they are read from a layer (point, state)."""
        fit, shown = self.fit(model, name), self.inside[1]
        values = torch.cat([fit(part)[0] for part in self._parts(model, name)])
        return (values if shown is None else values[shown])[: len(self.points)].numpy()

    def fit(self, model: nn.Module, name: str) -> AffineFit:
        """The map from a layer to the belief, of the first three quarters of the samples."""
        inside = self.inside[0]
        train = torch.arange(len(self.belief)) < (3 * self.num_samples // 4) * len(self.times)
        train = train if inside is None else train & inside
        return fit_affine(self._stream(model, [name], range(self.num_samples))[:, train], self.belief[train])

    def compared(
        self, model: nn.Module, name: str, dataset: ProcessDataset
    ) -> tuple[Float64[Tensor, "time state"], Float64[Tensor, "time state"]]:
        """The exact beliefs of the first sample of another corpus of the same layout, and what is read of them."""
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
    """The first three principal axes of the exact beliefs (state, axis), each with its largest entry positive."""
    centred = torch.from_numpy(exact - exact.mean(0))
    axes = torch.linalg.eigh(centred.T @ centred).eigenvectors.flip(1)[:, :3].numpy()
    signs = [np.sign(axis[largest(range(len(axis)), lambda i, a=axis: float(abs(a[i])))]) for axis in axes.T]  # type: ignore[misc]
    return np.asarray(axes * signs)
