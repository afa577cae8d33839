"""Fit length on Cyclic-DET as a function of training, by depth, at two sequence lengths."""

import math
from typing import Any

from hmmscope import Run, lab, registry
from hmmscope_papers.limits.lengths import RATE, slope
from hmmscope_papers.limits.planned import GridExperiment
from hmmscope_papers.limits.tables import (
    LENGTH_AT_REST,
    WHILE_TRAINING,
    each,
    layers_of,
    log2_length,
    model_name,
    moving_layers,
    never_fitting,
    over_seeds,
    training_rows,
)
from hmmscope_papers.limits.trainings import grid, identity

TASK = "cyclic-det"


@registry.experiment("limits-depth")
class LimitsDepth(GridExperiment):
    """The runs of [Limits] Figures 3 and 6 on Cyclic-DET without curriculum, and runs on longer sequences."""

    title = "Does depth limit the fit length, or the speed of learning?"
    summary = (
        "Fit lengths (positions with an evaluation loss below 0.1) of Transformers of growing depth are measured "
        "during training on Cyclic-DET: five states, permuted by two actions that generate A5. If depth is a limit, "
        "the fit length of each depth converges below the sequence length. If depth only sets the speed of learning, "
        "the fit length keeps growing with training, and equals 2^L for L layers at one budget only."
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("layers", "longest")
    sizes = {scale: {"error_rate": RATE} for scale in ("smoke", "small", "medium", "gpu")}
    measure_per_run = True
    groups = {"lengths": (WHILE_TRAINING,)}
    #: Choices of the plan: numbers of layers at the sequence length of the scale, and at a longer one.
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"layers": [0, 1, 2], "long_layers": [1], "long_length": 6},
        "small": {"layers": [0, 1, 2, 3], "long_layers": [2], "long_length": 32},
        "medium": {"layers": [0, 1, 2, 3, 4, 5], "long_layers": [2, 4, 6], "long_length": 64},
        "gpu": {"layers": [0, 1, 2, 3, 4, 5], "long_layers": [2, 4, 6], "long_length": 128},
    }

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        length = choices["long_length"]
        longer = grid(scale, [TASK], choices["long_layers"], curriculum=False, length=length)
        found = grid(scale, [TASK], choices["layers"], curriculum=False)
        return found | {f"{label}, length {length}": data for label, data in longer.items()}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        rows = [row for run in runs.values() for row in training_rows(run, [sizes["error_rate"]], identity(run))]
        return {WHILE_TRAINING: rows}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        rows = tables[WHILE_TRAINING]
        return [_by_depth(rows), _by_training(rows)]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        return {**tables, WHILE_TRAINING: never_fitting(tables[WHILE_TRAINING])}


# ---------------------------------------------------------------------------------------------------------------------
# Figures

#: Fractions of the training at which fit lengths by depth are shown.
_SHARES = {0.25: "after a quarter of the training", 0.5: "after half", 1.0: "at the end"}


def _by_depth(rows: lab.Rows) -> lab.Figure:
    return lab.Figure(
        name="fit-length-by-depth",
        title="Fit length by number of layers, after all and after parts of the training",
        caption=(
            "The fit length here is the (interpolated) position at which the loss of one evaluation exceeds "
            f"{rows[0]['error_rate']:g}. 2^layers is cut at the sequence length. A ring marks a depth that has not "
            "converged, because its fit length changed by 7 % or more over the second half of the training (mean over "
            "seeds). Bands are 95 % intervals over seeds."
        ),
        panels=tuple(_depth_panel(own) for own in rows.by("longest").values()),
    )


def _depth_panel(rows: lab.Rows) -> lab.Panel:
    depths, longest = [n for n in layers_of(rows) if n > 0], rows[0]["longest"]
    deep, ends = rows.where(layers=depths), (float(min(depths)), float(max(depths)))
    series: list[lab.Series | None] = [
        lab.curve(
            lab.Rows(_at(one, share) for one in _runs(deep)),
            "layers",
            name,
            "model" if share == 1 else "control",
            y="length",
        )
        for share, name in _SHARES.items()
    ]
    last = lab.Rows(_at(one, 1.0) for one in _runs(deep.where(layers=moving_layers(deep))))
    series.append(lab.curve(last, "layers", "not converged", "unfinished", y="length", bands=False))
    series.append(
        lab.Series(
            name="2^layers", role="baseline", x=tuple(depths), y=tuple(float(min(2**n, longest)) for n in depths)
        )
    )
    series.append(lab.level(longest, ends, "end of the sequence", "ceiling"))
    recurrent = lab.Rows(_at(one, 1.0) | {"at": at} for one in _runs(rows.where(layers=0)) for at in ends)
    series.append(lab.curve(recurrent, "at", "RNN", "optimum", y="length"))
    shown: dict[str, Any] = {"x_label": "layers", "y_label": "fit length", "y_min": 0.0, "y_max": 1.08 * longest}
    return lab.lines(f"Sequences of {longest}", *series, **shown)


def _by_training(rows: lab.Rows) -> lab.Figure:
    panels = []
    for longest, own in rows.by("longest").items():
        series = [
            lab.curve(own.where(layers=n), "sequences", model_name(n), "model", y="length") for n in layers_of(own)
        ]
        shown: dict[str, Any] = {"x_label": "sequences seen", "y_label": "fit length", "y_min": 0.0, "log_x": True}
        panels.append(lab.lines(f"Sequences of {longest}", *series, **shown))
    return lab.Figure(
        name="fit-length-by-training",
        title="Fit length by number of training sequences",
        caption="Each curve belongs to one number of layers. Bands are 95 % intervals over seeds.",
        panels=tuple(panels),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _runs(rows: lab.Rows) -> list[lab.Rows]:
    return list(rows.by("longest", "layers", "seed").values())


def _at(own: lab.Rows, share: float) -> dict[str, Any]:
    return max((row for row in own if row["share"] <= share + 1e-9), key=lambda row: row["share"], default=own[0])


def last_octave(own: lab.Rows) -> lab.EstimateWithError | None:
    """Return log2(final fit length / fit length at half of training); None if the latter is the whole sequence."""
    half, end = _at(own, 0.5), _at(own, 1.0)
    return None if half["length"] >= half["longest"] else lab.EstimateWithError(log2_length(end) - log2_length(half))


def _deep(tables: lab.Tables) -> lab.Rows:
    return lab.Rows(row for row in tables[WHILE_TRAINING] if row["layers"] > 0)


def _named(longest: int, layers: int) -> str:
    return f"{model_name(layers)} of {longest}"


@lab.claim("limits-depth-saturates")
def saturates(tables: lab.Tables) -> lab.Measurement:
    """Measure how fit lengths below the sequence length grow in the second half of training."""
    found: dict[str, lab.Effect] = {}
    for (longest, layers), own in _deep(tables).by("longest", "layers").items():
        effect = over_seeds(own, last_octave, "doublings of the fit length over the second half of training")
        if effect is not None:
            found[_named(longest, layers)] = effect
    effects = dict(sorted(found.items(), key=lambda item: -item[1].value))
    known = [(name, one.low, one.high) for name, one in effects.items() if one.low is not None and one.high is not None]
    moving = [name for name, low, _ in known if low > 0]
    rests = [name for name, low, high in known if low > -LENGTH_AT_REST and high < LENGTH_AT_REST]
    said = "; ".join(f"{name} {effect.short()}" for name, effect in effects.items())
    text = (
        "log2 of the factor by which the second half of training multiplies the fit length: "
        f"{said or 'all depths fit the sequence'}. "
    )
    text += (
        f"Still growing: {', '.join(moving) or 'none'}; converged: {', '.join(rests) or 'none'} (by 95 % intervals)."
    )
    return lab.Measurement(effects, text)


@lab.claim("limits-depth-speed")
def speed(tables: lab.Tables) -> lab.Measurement:
    rows = _deep(tables)
    rows = rows.where(longest=min(rows.values("longest"), default=0))

    def of_seed(own: lab.Rows) -> lab.EstimateWithError | None:
        reached = [(float(n), steps_to(one)) for n, one in own.by("layers").items()]
        known = [(n, lab.EstimateWithError(math.log2(count))) for n, count in reached if count is not None]
        return slope(known) if len(known) > 1 else None

    effect = over_seeds(rows, of_seed, "doublings of the number of sequences per additional layer")
    counts = each(rows, "layers", lambda own: steps_to(own))
    said = "; ".join(f"{model_name(n)} {count.value:,.0f}" for n, count in counts.items())
    return lab.Measurement(
        effect,
        f"Mean number of training sequences until half of the positions stay fitted: {said or 'reached by no depth'}.",
    )


def steps_to(own: lab.Rows) -> float | None:
    """Return the number of training sequences until fit length stays at least half the sequence; None if never."""
    ordered = sorted(own, key=lambda row: row["sequences"])
    below = [i for i, row in enumerate(ordered) if row["length"] < row["longest"] / 2]
    first = below[-1] + 1 if below else 0
    return float(ordered[first]["sequences"]) if first < len(ordered) else None
