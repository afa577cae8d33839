"""[Limits] Figure 3: fit length of Transformers (number of positions with a small loss) against depth."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hmmscope import Run, lab, registry
from hmmscope_papers.limits import lengths as fits
from hmmscope_papers.limits.planned import GridExperiment
from hmmscope_papers.limits.tables import (
    EPOCHS,
    FORGETTING,
    HARD,
    REMEMBERING,
    WHILE_TRAINING,
    all_layers,
    baselines,
    drift,
    each_task,
    flat,
    layers_of,
    loss_of,
    model_name,
    moving_layers,
    never_fitting,
    over_seeds,
    relabelled,
    task_title,
    titles,
    told,
    training_rows,
    while_training,
)
from hmmscope_papers.limits.trainings import HEADLINES_FIRST, TASKS, grid, identity, is_deep
from hmmscope_papers.limits.trainings import length_of as scale_length

_COMMON = {"error_rates": [0.05, 0.1], "definition": "prefix", "last_epochs": 3, "windows": [0, 1, 2, 4]}


@registry.experiment("limits-fig3")
class LimitsFig3(GridExperiment):
    """Fit lengths by task and depth, on the grid of Figure 2 and Table 3."""

    title = "Fit length of Transformers by number of layers"
    in_paper = "[Limits] §4.3", "The scaling curves reveal that tasks can be roughly categorized into three classes"
    summary = (
        "The fit length of a model is the number of positions, counted from the first, up to which its evaluation loss "
        "stays below an error rate in the last epochs of training. It is measured for Transformers of growing depth and for "
        "a one-layer RNN, on processes that forget quickly, on cycles and matrix products, which never forget, and on "
        "Cyclic-HARD, where labels of the state are rare. Exact filters that see only the last observations show which "
        "fit length a short memory reaches. " + EPOCHS
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("task", "layers")
    sizes = {
        "smoke": _COMMON | {"samples": 64, "least_count": 8, "window_samples": 32},
        "small": _COMMON | {"samples": 4096, "least_count": 256, "window_samples": 1000},
        "medium": _COMMON | {"samples": 4096, "least_count": 256, "window_samples": 1000},
        "gpu": _COMMON | {"samples": 8192, "least_count": 512, "window_samples": 1000},
        "paper": _COMMON | {"samples": 8192, "least_count": 512, "window_samples": 1000},
    }
    measure_per_run = True
    groups = {"losses": ("positions", "fit-lengths", WHILE_TRAINING), "windows": ("windows",)}

    def choices(self, scale: str) -> dict[str, Any]:
        tasks = ["ran-hmm", "cyclic-det", HARD] if scale == "smoke" else list(HEADLINES_FIRST)
        return {"tasks": tasks, "layers": all_layers(scale), "length": scale_length(scale)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return grid(scale, choices["tasks"], choices["layers"], length=choices.get("length"))

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        if group == "windows":
            of_task = {identity(run)["task"]: run for run in runs.values() if not is_deep(run)}
            return {"windows": [row for task, run in of_task.items() for row in fits.windows_of(task, run, sizes)]}
        tables: lab.MeasuredTables = {"positions": [], "fit-lengths": [], WHILE_TRAINING: []}
        for run in runs.values():
            facts = identity(run)
            rows = fits.final_losses(run, facts["task"], sizes)
            tables["positions"] += [facts | row for row in rows]
            tables["fit-lengths"] += [facts | row for row in fits.fit_lengths(run, rows, sizes)]
            tables[WHILE_TRAINING] += training_rows(run, sizes["error_rates"], facts)
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        figures = [_lengths_figure(tables), _positions_figure(tables), _explorer(tables)]
        return figures + ([_training_figure(tables[WHILE_TRAINING])] if WHILE_TRAINING in tables else [])

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        counted = relabelled(tables["fit-lengths"].where(by="final"), "constant").with_columns(by=lambda row: "epochs")
        changed = {"positions": relabelled(tables["positions"], "constant"), "fit-lengths": counted}
        return {**tables, **changed, WHILE_TRAINING: never_fitting(tables.get(WHILE_TRAINING, lab.Rows()))}


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _lengths_figure(tables: lab.Tables) -> lab.Figure:
    rows, panels = tables["fit-lengths"], []
    for task, own in rows.by("task").items():
        deep, longest = [n for n in layers_of(own) if n > 0], own[0]["longest"]
        ends = (float(min(deep, default=0)), float(max(deep, default=1)))
        rates = sorted(own.values("error_rate"))
        series: list[lab.Series | None] = []
        for rate in rates:
            of_model = own.where(error_rate=rate, predictor="model", by="epochs")
            series += [
                lab.curve(of_model.where(layers=deep), "layers", f"Transformer, error rate {rate:g}", "model"),
                flat(of_model.where(layers=0), ends, f"RNN, error rate {rate:g}", "other"),
            ]
        moving = of_model.where(layers=moving_layers(while_training(tables, task=task)))
        series.append(
            lab.curve(moving, "layers", f"not converged, error rate {rates[-1]:g}", "unfinished", bands=False)
        )
        nothing = own.where(predictor="constant", error_rate=rates[-1])
        series += [
            flat(nothing, ends, f"constant answer, error rate {rates[-1]:g}", "baseline"),
            lab.level(longest, ends, "sequence length", "ceiling"),
        ]
        if deep and task in REMEMBERING:
            powers = tuple(float(min(2**n, longest)) for n in deep)
            series.append(lab.Series(name="2^layers, claimed by the paper", role="control", x=tuple(deep), y=powers))
        shown: dict[str, Any] = {"x_label": "layers", "y_label": "fit length", "y_min": 0.0, "y_max": 1.08 * longest}
        panels.append(lab.lines(task_title(task), *series, **shown))
    definition = rows[0]["definition"]
    which = "the last position up to which" if definition == "prefix" else "the last position at which"
    return lab.Figure(
        name="fit-length",
        title="Fit length by number of layers",
        caption=(
            f"The fit length is {which} the evaluation loss is below the error rate, in each of the last epochs. If the "
            "RNN fits the whole sequence, its line covers the dotted line at the sequence length. On tasks for which the "
            "paper claims at least 2^layers positions, a line shows this number, cut at the sequence length. The constant "
            "answer is the mean of the exact answers. A ring marks a depth that has not converged: its mean fit length "
            "changed by 7 % or more over the second half of training. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _curves(rows: lab.Rows) -> dict[int, lab.Series]:
    found = {n: lab.curve(rows.where(layers=n), "position", model_name(n), "model") for n in layers_of(rows)}
    return {n: series for n, series in found.items() if series is not None}


def _positions_figure(tables: lab.Tables) -> lab.Figure:
    rows = fits.models(tables)
    shown: dict[str, Any] = {"x_label": "position", "y_label": "evaluation loss", "y_min": 0.0}
    panels = [
        lab.lines(task_title(task), *_curves(own).values(), *baselines(tables, task), **shown)
        for task, own in rows.by("task").items()
    ]
    return lab.Figure(
        name="loss-by-position",
        title="Evaluation loss by position after training",
        caption=(
            f"Curves show the evaluation loss on fresh samples (at least {min(row['samples'] for row in rows):,} at each "
            "position). The baselines are a constant answer and exact filters that see only the last observations. Bands "
            "are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _explorer(tables: lab.Tables) -> lab.Figure:
    curves = []
    for task, own in fits.models(tables).by("task").items():
        curves += [one.choice(task_title(task), model_name(n)) for n, one in _curves(own).items()]
        curves += [one.choice(task_title(task), "", name=one.name) for one in baselines(tables, task)]
    shown: dict[str, Any] = {"x_label": "position", "y_label": "evaluation loss", "y_min": 0.0}
    panel = lab.Explorer(title="", choices=("task", "model"), curves=tuple(curves), **shown)
    return lab.Figure(
        name="every-model",
        title="Evaluation loss by position, for a choice of task and model",
        caption="Curves show the evaluation loss by position, with all baselines. Bands are 95 % intervals over seeds.",
        panels=(panel,),
    )


def _training_figure(rows: lab.Rows) -> lab.Figure:
    rows = rows.where(error_rate=max(rows.values("error_rate")))
    panels = []
    for task, own in rows.by("task").items():
        models = [lab.curve(own.where(layers=n), "share", model_name(n), "model", y="length") for n in layers_of(own)]
        shown: dict[str, Any] = {"x_label": "fraction of the training", "y_label": "fit length", "y_min": 0.0}
        panels.append(lab.lines(task_title(task), *models, **shown))
    return lab.Figure(
        name="length-over-training",
        title="Fit length during training",
        caption=(
            "The fit length here is the (interpolated) position at which the evaluation loss, measured once, exceeds "
            f"{rows[0]['error_rate']:g}. If a curve still rises at the end, more training could increase the fit length. "
            "Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _learned(tables: lab.Tables, tasks: Sequence[str], numbers: lab.Numbers = None) -> tuple[lab.Gate, ...]:
    return fits.learned_by(tables, tasks, *fits.deep(tables), numbers=numbers)


def _of_rnn(tables: lab.Tables, numbers: lab.Numbers = None) -> tuple[lab.Gate, ...]:
    known = [task for task in TASKS if task not in ("ran-lds", HARD)]
    return *fits.learned_by(tables, known, 0, numbers=numbers), *fits.rarely_asked(tables["positions"], numbers)


@lab.claim("limits-rnn-fits")
def rnn_fits(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rate = lab.parameter(numbers, "rate")
    rows = fits.models(tables).where(layers=0)
    unit = f"error rate {rate:g} minus the second largest loss over positions"
    effects = each_task(rows, TASKS, lambda own: fits.slack(own, rate), unit)
    whole = tables["fit-lengths"].where(layers=0, predictor="model", by="epochs", error_rate=rate)
    longest = {row["task"]: row["longest"] for row in whole}
    seen = "; ".join(
        f"{task_title(row['task'])} {row['value']:.3g} of {longest[row['task']]}" for row in whole.pool("task")
    )
    text = f"Mean {rate:g}-fit length of the RNN: {seen}. "
    text += f"Error rate {rate:g} minus the RNN's second largest loss over positions: {told(effects)}."
    drifts = fits.drifts_of(
        tables, tuple(TASKS), fits.slack_then(rate, numbers), layers=rows.values("layers"), numbers=numbers
    )
    return lab.Measurement(
        effects, text, gates=_of_rnn(tables, numbers), required=titles(TASKS), last_doubling_change=drifts
    )


@lab.claim("limits-fit-length-grows")
def grows(tables: lab.Tables, numbers: Mapping[str, Any]) -> lab.Measurement:
    effects, drifts = fits.growing_by_task(tables, fits.growth, "doublings per layer", numbers["rate"], numbers)
    text = f"{fits.by_depth(tables, REMEMBERING, numbers)} Doublings of the fit length per layer: {told(effects)}."
    return lab.Measurement(
        effects,
        text,
        gates=_learned(tables, REMEMBERING, numbers),
        required=titles(REMEMBERING),
        last_doubling_change=drifts,
    )


@lab.claim("limits-fit-length-doubles")
def doubles(tables: lab.Tables, numbers: Mapping[str, Any]) -> lab.Measurement:
    effects, drifts = fits.growing_by_task(
        tables,
        lambda found, longest: fits.growth(found, longest, numbers["half"]),
        "doublings per layer",
        numbers["rate"],
        numbers,
    )
    spaces, _ = fits.growing_by_task(tables, fits.doublings_left, "", numbers["rate"], numbers)
    spaced = [
        lab.Gate.headroom(
            one.value,
            lab.parameter(numbers, "room"),
            f"the sequence length of {task}, in doublings above the fit length of the shallowest Transformer,",
        ).about(task)
        for task, one in spaces.items()
    ]
    text = f"{fits.by_depth(tables, REMEMBERING, numbers)} Doublings of the fit length per layer: {told(effects)}."
    gates = (*spaced, *_learned(tables, REMEMBERING, numbers))
    return lab.Measurement(effects, text, gates=gates, required=titles(REMEMBERING), last_doubling_change=drifts)


@lab.claim("limits-fit-length-power")
def power(tables: lab.Tables, numbers: Mapping[str, Any]) -> lab.Measurement:
    def least(found: fits.Lengths, longest: int) -> lab.EstimateWithError | None:
        logs = [(n, fits.log2(length)) for n, length in found.items() if 2**n < longest]
        return min((one - lab.EstimateWithError(n) for n, one in logs), default=None)

    unit = "doublings of the fit length above 2^L at the worst depth L"
    effects, drifts = fits.growing_by_task(tables, least, unit, numbers["rate"], numbers)
    text = f"{fits.by_depth(tables, REMEMBERING, numbers)} "
    text += f"log2(fit length / 2^L) at the worst depth L: {told(effects)}."
    return lab.Measurement(
        effects,
        text,
        gates=_learned(tables, REMEMBERING, numbers),
        required=titles(REMEMBERING),
        last_doubling_change=drifts,
    )


@lab.claim("limits-constant-depth")
def constant_depth(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    def best(own: lab.Rows) -> lab.EstimateWithError | None:
        return max(
            (fits.slack(own.where(layers=n), lab.parameter(numbers, "rate", fits.RATE)) for n in layers_of(own)),
            default=None,
        )

    rows = fits.models(tables).where(layers=[1, 2])
    effects = each_task(rows, FORGETTING, best, "error rate 0.1 minus the second largest loss over positions")
    deepest = each_task(fits.models(tables).where(layers=fits.deep(tables)), FORGETTING, best, "")
    short = [name for name, one in deepest.items() if one.value <= 0]
    depth = (
        f"At every depth the second largest loss on {' and '.join(short)} is at least 0.1, so more layers do not help"
        if short
        else "On each task the second largest loss is below 0.1 at some depth"
    )
    starts = tables["fit-lengths"].where(
        predictor="model",
        by="epochs",
        error_rate=lab.parameter(numbers, "rate", fits.RATE),
        layers=2,
        task=list(FORGETTING),
    )
    later = "; ".join(
        f"{task_title(task)} {max(row['fits_from'] for row in own if row['fits_from'] is not None)}"
        for task, own in starts.by("task").items()
        if any(row["fits_from"] is not None for row in own)
    )
    text = f"{fits.by_depth(tables, FORGETTING, numbers)} "
    text += f"Error rate 0.1 minus the second largest loss over positions: {told(effects)}."
    text += f" With two layers the loss stays below 0.1 from this position on: {later}." if later else ""
    text += f" {depth}."
    drifts = fits.drifts_of(
        tables,
        FORGETTING,
        fits.slack_then(lab.parameter(numbers, "rate", fits.RATE), numbers),
        layers=[1, 2],
        numbers=numbers,
    )
    return lab.Measurement(
        effects,
        text,
        gates=_few_layers_learned(tables, numbers),
        required=titles(FORGETTING),
        last_doubling_change=drifts,
    )


def _few_layers_learned(tables: lab.Tables, numbers: lab.Numbers = None) -> tuple[lab.Gate, ...]:
    def lead(own: lab.Rows) -> lab.EstimateWithError | None:
        models = own.where(predictor="model").by("layers").values()
        constant = own.where(predictor="constant")
        return max((loss_of(constant) - loss_of(model) for model in models), default=None) if constant else None

    found = each_task(tables["positions"].where(layers=[1, 2]), FORGETTING, lead, "")
    what = "a constant answer (model: one or two layers with the lower loss, {})"
    return tuple(
        lab.Gate.learned(found.get(task), lab.parameter(numbers, "rate", fits.RATE), what.format(task)).about(task)
        for task in titles(FORGETTING)
    )


@lab.claim("limits-hard-no-depth")
def hard_no_depth(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["positions"].where(task=HARD)
    best = over_seeds(
        rows.where(predictor="model", layers=fits.deep(tables)),
        lambda own: max(fits.lengths(own, numbers=numbers).values()),
        "positions",
    )
    trained = tables.get(WHILE_TRAINING, lab.Rows()).where(task=HARD, layers=fits.deep(tables))
    moved = drift(trained, lambda own: max(fits.lengths_then(own, numbers=numbers).values()), numbers)
    gates = (
        *fits.rarely_asked(rows, numbers),
        *fits.learned_by(tables, (HARD,), 0, numbers=numbers),
        *_learned(tables, fits.CYCLES[:1], numbers),
    )
    return lab.Measurement(best, fits.by_depth(tables, (HARD,), numbers), gates=gates, last_doubling_change=moved)


@lab.claim("limits-hard-below-det")
def hard_below_det(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    def least(easy: fits.Lengths, hard: fits.Lengths) -> lab.EstimateWithError:
        return min(fits.log2(easy[n]) - fits.log2(hard[n]) for n in easy.keys() & hard.keys())

    unit = "doublings of the fit length from Cyclic-HARD to Cyclic-DET at the worst depth"
    effect, moved = fits.both_cycles(tables, least, unit, numbers)
    gates = (*fits.rarely_asked(tables["positions"], numbers), *_learned(tables, fits.CYCLES, numbers))
    return lab.Measurement(effect, fits.by_depth(tables, fits.CYCLES, numbers), gates=gates, last_doubling_change=moved)


@lab.claim("limits-hard-plateau")
def hard_plateau(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    def gain(easy: fits.Lengths, hard: fits.Lengths) -> lab.EstimateWithError | None:
        most = max(easy.keys() & hard.keys())
        if most <= 2 or not {2} <= easy.keys() & hard.keys():
            return None
        return (fits.log2(easy[most]) - fits.log2(easy[2])) - (fits.log2(hard[most]) - fits.log2(hard[2]))

    unit = "doublings of the fit length by more layers on Cyclic-DET minus those on Cyclic-HARD"
    effect, moved = fits.both_cycles(tables, gain, unit, numbers)
    gates = (*fits.rarely_asked(tables["positions"], numbers), *_learned(tables, fits.CYCLES, numbers))
    return lab.Measurement(effect, fits.by_depth(tables, fits.CYCLES, numbers), gates=gates, last_doubling_change=moved)


@lab.claim("limits-error-rates-close")
def error_rates_close(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    def share(pairs: list[tuple[lab.EstimateWithError, lab.EstimateWithError]]) -> lab.EstimateWithError | None:
        found = [(strict, loose) for strict, loose in pairs if loose.value >= 1]
        if not found:
            return None
        error = math.hypot(*(part.error / loose.value for strict, loose in found for part in (strict, loose)))
        mean = math.fsum(strict.value / loose.value for strict, loose in found) / len(found)
        return lab.EstimateWithError(mean, error / len(found))

    def now(own: lab.Rows) -> lab.EstimateWithError | None:
        return share(
            [
                (
                    fits.length_of(one, lab.parameter(numbers, "stricter"), numbers=numbers),
                    fits.length_of(one, lab.parameter(numbers, "looser"), numbers=numbers),
                )
                for one in own.by("task", "layers").values()
            ]
        )

    def then(own: lab.Rows) -> lab.EstimateWithError | None:
        cells = own.by("task", "layers").values()
        return share(
            [
                (
                    fits.lengths_then(one, lab.parameter(numbers, "stricter"), numbers)[n],
                    fits.lengths_then(one, lab.parameter(numbers, "looser"), numbers)[n],
                )
                for one in cells
                for n in one.values("layers")
            ]
        )

    rows = fits.models(tables).where(layers=fits.deep(tables))
    unit = "0.05-fit length divided by 0.1-fit length"
    effect, parts = over_seeds(rows, now, unit), each_task(rows, REMEMBERING, now, unit)
    text = (
        ""
        if effect is None
        else f"The 0.05-fit length is {effect.short()} times the 0.1-fit length, on average over tasks and depths."
    )
    trained = tables.get(WHILE_TRAINING, lab.Rows()).where(layers=fits.deep(tables))
    drifts = {
        "": drift(trained, then, numbers),
        **fits.drifts_of(tables, REMEMBERING, then, layers=fits.deep(tables), numbers=numbers),
    }
    gates = (*_learned(tables, REMEMBERING, numbers), *fits.rarely_asked(tables["positions"], numbers))
    return lab.Measurement(effect, text, gates=gates, last_doubling_change=drifts, parts=parts)
