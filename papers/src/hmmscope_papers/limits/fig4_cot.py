"""[Limits] Figure 4, right: training with and without block chain-of-thought."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hmmscope import Run, lab, registry
from hmmscope.analysis import evaluation_losses
from hmmscope.schema import require, require_known
from hmmscope.ties import smallest
from hmmscope_papers.limits.lengths import length_of, log2, rarely_asked, slack
from hmmscope_papers.limits.tables import (
    LOSS_AT_REST,
    each,
    epochs_of,
    fit_length_of,
    loss_of,
    mean_change,
    mean_late_change,
    over_seeds,
    relabelled,
    told,
    with_share,
)
from hmmscope_papers.limits.trainings import TASKS, limits_config, shortened

#: The paper's smaller training set for block chain-of-thought.
PAPER_TRAJECTORIES = 1_000_000
ERROR_RATES = (0.05, 0.1)


@registry.experiment("limits-fig4-cot")
class Figure4CoT(lab.Experiment):
    """Shallow Transformers on each task, one for each block length; block length 0 means no chain-of-thought."""

    title = "Block chain-of-thought lets a shallow Transformer follow long sequences"
    in_paper = "[Limits] Fig. 4, on blocks of 8 and 12", "The evaluation loss reduces dramatically with 8/12 block CoT"
    summary = (
        "A Transformer that is too shallow for its sequences receives its own answer after every b observations (block "
        "chain-of-thought). With b = 1 it has to follow only one step of the process at a time. If b exceeds the "
        "number of steps that it can follow, its answers are wrong and do not help."
    )
    num_seeds = {"smoke": 2, "small": 3, "gpu": 3, "paper": 1}
    run_columns = ("task", "block_length")
    #: Choices of the plan: layers in the order of the tasks; steps 0 means the steps of the scale.
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"tasks": ["cyclic-det", "cyclic-hard"], "layers": [1, 1], "blocks": [0, 1, 2]}
        | {"length": 4, "steps": 12},
        "small": {"tasks": ["cyclic-det", "matmul", "cyclic-hard"], "layers": [1, 2, 1], "blocks": [0, 1, 2, 4, 8]}
        | {"length": 16, "steps": 1000},
        "gpu": {"tasks": ["cyclic-det", "matmul", "cyclic-hard"], "layers": [2, 3, 2], "blocks": [0, 2, 4, 8, 16]}
        | {"length": 60, "steps": 3000},
        "paper": {"tasks": ["cyclic-det", "matmul", "cyclic-hard"], "layers": [3, 4, 3], "blocks": [0, 1, 8, 12, 24]}
        | {"length": 60, "steps": 0},
    }
    sizes = {
        "smoke": {"samples": 32, "position": 4},
        "small": {"samples": 1024, "position": 16},
        "gpu": {"samples": 4096, "position": 60},
        "paper": {"samples": 4096, "position": 60},
    }
    groups = {"errors": ("errors", "final"), "training": ("training",)}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        tasks, layers = choices["tasks"], choices["layers"]
        rule = f"must have {len(tasks)} numbers, one for each of `plan.tasks`"
        require(len(layers) == len(tasks), "plan.layers", rule, layers)
        for task in tasks:
            require_known("plan.tasks", task, TASKS)
        return {
            f"{task}, {f'block {block}' if block else 'without'}": limits_config(
                scale,
                task,
                depth,
                length=choices["length"],
                training=_training(scale, depth, choices["steps"]) | {"block_length": block},
            )
            for task, depth in zip(tasks, layers, strict=True)
            for block in choices["blocks"]
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        longest = min(run.config.layout.num_observations for run in runs.values())
        at = sizes["position"]
        require(1 <= at <= longest, "measurements.position", f"must be in [1, {longest}]", at)
        if group == "training":
            return {"training": [row for run in runs.values() for row in _training_rows(run, at)]}
        tables: lab.MeasuredTables = {"errors": [], "final": []}
        for run in runs.values():
            rows = error_rows(run, sizes["samples"])
            tables["errors"] += rows
            tables["final"].append(_final_row(run, lab.Rows(rows).where(predictor="trained"), at))
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_training_figure(tables["training"]), _final_figure(tables["final"]), _blocks_figure(tables["errors"])]

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        errors = relabelled(tables["errors"], "untrained", "trained")
        keys = ("seed", "task", "block_length")
        known = {key: own[0]["value"] for key, own in errors.where(predictor="trained").by(*keys, "position").items()}

        def untrained(row: dict[str, Any]) -> float:
            return float(known[(*(row[key] for key in keys), row["chosen_position"])])

        nothing = {f"fit_{rate:g}": lambda row: 0 for rate in ERROR_RATES}
        final = tables["final"].with_columns(error=untrained, **nothing)
        return {
            **tables,
            "errors": errors,
            "final": final,
            "training": tables["training"].with_columns(value=untrained),
        }


def _training(scale: str, depth: int, steps: int) -> dict[str, Any]:
    if steps or scale != "paper":
        return shortened(steps)
    batch = limits_config(scale, "cyclic-det", depth)["training"]["batch_size"]
    epoch = -(-PAPER_TRAJECTORIES // batch)
    changes = {"num_trajectories": PAPER_TRAJECTORIES, "num_steps": 100 * epoch}
    return changes | {"evaluate_every": epoch, "checkpoint_every": epoch}


def _names(run: Run) -> dict[str, Any]:
    config = run.config
    return {
        "task": TASKS[config.process.name][2],
        "layers": config.model.num_layers,
        "block_length": config.training.block_length,
    }


def error_rows(run: Run, num_samples: int) -> list[dict]:
    rows = []
    for name, model in {"trained": run.model, "untrained": run.untrained()}.items():
        found = evaluation_losses(
            model,
            run.dataset(),
            num_samples=num_samples,
            target=run.config.target,
            least_count=1 if run.config.target == "belief" else num_samples // 16,
            block_length=run.config.training.block_length,
        )
        known = {"model": name} | ({"constant": "constant"} if name == "trained" else {})
        rows += [_names(run) | row | {"predictor": known[kind]} for row in found if (kind := row["predictor"]) in known]
    return rows


def _final_row(run: Run, rows: lab.Rows, position: int) -> dict:
    at = max(row["position"] for row in rows if row["position"] <= position)
    fits = {f"fit_{rate:g}": fit_length_of(run, rate) for rate in ERROR_RATES}
    return _names(run) | {"chosen_position": at, "error": rows.one(position=at)["value"], **fits}


def _training_rows(run: Run, position: int) -> list[dict]:
    found, per_epoch = epochs_of(run), run.config.training.steps_per_epoch
    at = max(one for one in found.positions if one <= position)
    return [
        _names(run)
        | {"step": row["step"], "epoch": row["step"] / per_epoch, "chosen_position": at}
        | {"value": row["distances"][found.positions.index(at)]}
        for row in found.rows
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _by_block(rows: lab.Rows, x: str) -> list[lab.Series | None]:
    return [
        lab.curve(
            rows.where(block_length=block), x, f"b = {block}" if block else "without", "other" if block else "baseline"
        )
        for block in sorted(rows.values("block_length"))
    ]


def _training_figure(rows: lab.Rows) -> lab.Figure:
    label = f"evaluation loss at position {rows[0]['chosen_position']}"
    panels = [
        lab.lines(task, *_by_block(own, "epoch"), x_label="epoch", y_label=label, y_min=0.0)
        for task, own in rows.by("task").items()
    ]
    return lab.Figure(
        name="error-over-training",
        title="Loss at the last position during training, by block length",
        caption=(
            "Curves show the evaluation loss at the last position against the epoch, if the model receives its own answer "
            "after every b observations (block length b). The optimum is 0. Lines are means over seeds, bands 95 % "
            "intervals."
        ),
        panels=tuple(panels),
    )


def _blocks_figure(rows: lab.Rows) -> lab.Figure:
    panels = []
    for task, own in rows.by("task").items():
        series = [
            *_by_block(own.where(predictor="trained"), "position"),
            lab.curve(own.where(predictor="untrained", block_length=0), "position", "before training", "control"),
            lab.curve(own.where(predictor="constant", block_length=0), "position", "constant answer", "baseline"),
            lab.level(0.0, sorted(own.values("position")), "exact answer", "optimum"),
        ]
        panels.append(lab.lines(task, *series, x_label="position t", y_label="evaluation loss", y_min=0.0))
    return lab.Figure(
        name="error-by-position",
        title="Loss by position, for each block length",
        caption=(
            "Curves show the evaluation loss by position of models that receive their own answer after every b "
            "observations (block length b), of a model before training, and of a constant answer. Lines are means over "
            "seeds, bands 95 % intervals."
        ),
        panels=tuple(panels),
    )


def _final_figure(rows: lab.Rows) -> lab.Figure:
    def panel(column: str, label: str) -> lab.Panel:
        series: list[lab.Series | None] = []
        for task, own in rows.by("task").items():
            heard = lab.Rows(row for row in own if row["block_length"])
            series.append(lab.curve(heard, "block_length", task, y=column))
            plain = own.where(block_length=0).pool("task", value=column)
            if plain and heard:
                ends = (min(heard.values("block_length")), max(heard.values("block_length")))
                series.append(lab.level(plain[0][column], ends, f"{task}, without"))
        return lab.lines("", *series, x_label="block length b", y_label=label, log_x=True)

    position = rows[0]["chosen_position"]
    return lab.Figure(
        name="block-length",
        title="Fit length and loss by block length",
        caption=(
            "Left: number of positions, from the first on, up to which the evaluation loss stays below 0.05. Right: "
            f"evaluation loss at position {position}. Horizontal lines are values without chain-of-thought. Lines are "
            "means over seeds, bands 95 % intervals."
        ),
        panels=(panel("fit_0.05", "0.05-fit length"), panel("error", f"evaluation loss at position {position}")),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: The tasks of the figure.
SHOWN = ("Cyclic-DET", "MatMul")
HARD = "Cyclic-HARD"


def half_of_fit(lengths: list[int], fit_length: int) -> int | None:
    """Return the paper's block length: the longest of `lengths` up to half the `fit_length` without blocks."""
    allowed = [length for length in lengths if 0 < length <= max(1, fit_length // 2)]
    return max(allowed, default=None)


def _short(own: lab.Rows) -> list[int]:
    plain = own.where(block_length=0)
    fit = plain[0]["fit_0.05"] if plain else 0
    return [block for block in own.values("block_length") if 0 < block <= max(1, fit // 2)]


def _chosen(own: lab.Rows) -> int | None:
    plain = own.where(block_length=0)
    return half_of_fit(own.values("block_length"), plain[0]["fit_0.05"]) if plain else None


def _each_shown(
    tables: lab.Tables, measure: Callable[[lab.Rows], lab.EstimateWithError | float | None], unit: str
) -> dict[str, lab.Effect]:
    found = each(tables["final"].where(task=list(SHOWN)), "task", measure, unit)
    return {task: found[task] for task in SHOWN if task in found}


def _at_rest(tables: lab.Tables, tasks: tuple[str, ...], numbers: lab.Numbers = None) -> lab.Gate:
    cells: dict[str, list[dict[str, Any]]] = {}
    for (task, seed), own in tables["final"].where(task=list(tasks)).by("task", "seed").items():
        for name, block in (("without", 0), ("with the best block length", _chosen(own))):
            rows = tables["training"].where(task=task, seed=seed, block_length=block)
            cells.setdefault(f"{task}, {name}", []).extend(with_share(rows, "epoch") if rows else ())
    changes = {
        name: mean_late_change(lab.Rows(rows), partial(_change, numbers=numbers), numbers)
        for name, rows in cells.items()
        if rows
    }
    return lab.Gate.converged(
        changes, lab.parameter(numbers, "loss_at_rest", LOSS_AT_REST), "evaluation loss at the last position"
    )


def _learned(
    tables: lab.Tables,
    tasks: tuple[str, ...],
    *,
    chosen: bool = False,
    short: bool = False,
    numbers: lab.Numbers = None,
) -> lab.Gate:
    def lead(own: lab.Rows) -> lab.EstimateWithError | None:
        controls = [own.where(predictor=name, block_length=0) for name in ("untrained", "constant")]
        if not all(controls):
            return None
        plain = smallest(map(loss_of, controls), lambda one: one.value)
        heard = own.where(predictor="trained").by("block_length")
        leads = {block: plain - loss_of(rows) for block, rows in heard.items()}
        final = tables["final"].where(task=own[0]["task"], seed=own[0].get("seed"))
        if chosen:
            with_ = leads.get(_chosen(final))
        elif short:
            with_ = min((leads[block] for block in _short(final) if block in leads), default=None)
        else:
            with_ = max(one for block, one in leads.items() if block)
        return None if with_ is None else min(leads[0], with_)

    found = each(tables["errors"].where(task=list(tasks)), "task", lead)
    least = smallest(found.values(), lambda one: one.value) if found else None
    control = "its untrained version and a constant answer, on average over positions,"
    return lab.Gate.learned(least, lab.parameter(numbers, "loss_at_rest", LOSS_AT_REST), control)


def _change(end: dict[str, Any], before: dict[str, Any], numbers: lab.Numbers = None) -> float:
    return (
        0.0
        if end["value"] < lab.parameter(numbers, "loss_at_rest", LOSS_AT_REST)
        else float(end["value"] - before["value"])
    )


def _drifts(
    tables: lab.Tables, measure: Callable[[lab.Rows], float | None], numbers: lab.Numbers = None
) -> dict[str, float | None]:
    def at(row: dict[str, Any], until: float) -> float | None:
        same = {key: row.get(key) for key in ("task", "seed", "block_length")}
        rows = with_share(tables["training"].where(**same), "epoch") if tables["training"].where(**same) else lab.Rows()
        near = [one["value"] for one in rows if until - lab.parameter(numbers, "about") < one["share"] <= until + 1e-9]
        return sum(near) / len(near) if near and None not in near else None

    drifts = {}
    for task in SHOWN:
        own = tables["final"].where(task=task)
        half, end = (own.with_columns(error=lambda row, until=until: at(row, until)) for until in (0.5, 1.0))  # type: ignore[misc]
        known = all(row["error"] is not None for row in [*half, *end])
        drifts[task] = mean_change(half.per_seed(measure), end.per_seed(measure)) if known else None
    return drifts


def _said(rows: lab.Rows) -> str:
    keys = ("task", "block_length")
    fits = {(row["task"], row["block_length"]): row["fit_0.05"] for row in rows.pool(*keys, value="fit_0.05")}
    parts = [
        f"{row['task']} {'without' if row['block_length'] == 0 else 'b = ' + str(row['block_length'])}: "
        f"{row['error']:.3f} (fit length {fits[row['task'], row['block_length']]:.1f})"
        for row in rows.pool(*keys, value="error")
    ]
    return f"Mean evaluation loss at the last position: {'; '.join(parts) or 'not measured'}."


@lab.claim("limits-cot-lowers-loss")
def lowers_loss(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    def fall(own: lab.Rows) -> float | None:
        chosen = _chosen(own)
        return None if chosen is None else own.one(block_length=0)["error"] - own.one(block_length=chosen)["error"]

    effects, drifts = (
        _each_shown(tables, fall, "decrease of the loss by chain-of-thought"),
        _drifts(tables, fall, numbers),
    )
    gate = _learned(tables, SHOWN, chosen=True, numbers=numbers)
    return lab.Measurement(effects, _said(tables["final"]), gates=(gate,), required=SHOWN, last_doubling_change=drifts)


@lab.claim("limits-cot-lengthens")
def lengthens(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    def gain(own: lab.Rows) -> lab.EstimateWithError | None:
        chosen = _chosen(own)
        errors = tables["errors"].where(predictor="trained", task=own[0]["task"], seed=own[0].get("seed"))
        if chosen is None or not errors:
            return None
        plain, heard = (
            length_of(errors.where(block_length=block), lab.parameter(numbers, "rate", ERROR_RATES[0]), numbers=numbers)
            for block in (0, chosen)
        )
        return log2(heard) - log2(plain)

    effects = _each_shown(tables, gain, "doublings")
    text = f"Doublings of the 0.05-fit length gained by chain-of-thought: {told(effects)}. {_said(tables['final'])}"
    return lab.Measurement(
        effects,
        text,
        gates=(_learned(tables, SHOWN, chosen=True, numbers=numbers), _at_rest(tables, SHOWN, numbers)),
        required=SHOWN,
    )


@lab.claim("limits-cot-block-bound")
def block_bound(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    def difference(own: lab.Rows) -> float | None:
        fit = own.one(block_length=0)["fit_0.05"] if own.where(block_length=0) else 0
        errors = {row["block_length"]: row["error"] for row in own}
        long = [error for block, error in errors.items() if block > max(1, fit)]
        short = [errors[block] for block in _short(own)]
        return sum(long) / len(long) - sum(short) / len(short) if long and short else None

    unit = "loss with blocks above the fit length minus loss with blocks up to half the fit length"
    effects = _each_shown(tables, difference, unit)
    text, drifts = _said(tables["final"]), _drifts(tables, difference, numbers)
    gate = _learned(tables, SHOWN, short=True, numbers=numbers)
    return lab.Measurement(effects, text, gates=(gate,), required=SHOWN, last_doubling_change=drifts)


@lab.claim("limits-cot-hard")
def cot_hard(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    heard = lab.Rows(row for row in tables["errors"].where(predictor="trained") if row["block_length"])

    def least(own: lab.Rows) -> lab.EstimateWithError:
        best = max(
            slack(one, lab.parameter(numbers, "rate", ERROR_RATES[1])) for one in own.by("block_length").values()
        )
        return lab.EstimateWithError(lab.parameter(numbers, "rate", ERROR_RATES[1]) - best.value, best.error)

    rows = heard.where(task=HARD)
    effect = over_seeds(rows, least, "second largest loss over positions at the best block length")
    easy = over_seeds(
        heard.where(task=SHOWN[0]),
        lambda own: max(
            slack(one, lab.parameter(numbers, "rate", ERROR_RATES[1])) for one in own.by("block_length").values()
        ),
    )
    gates = [
        *rarely_asked(rows, numbers),
        _at_rest(tables, (HARD,), numbers),
    ]
    gates += (
        [
            lab.Gate.learned(
                easy, lab.parameter(numbers, "easy"), "the error rate 0.1, on Cyclic-DET with chain-of-thought,"
            )
        ]
        if easy
        else []
    )
    return lab.Measurement(effect, _said(tables["final"].where(task=[HARD, SHOWN[0]])), gates=gates)
