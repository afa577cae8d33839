"""Claims of [Limits] on architectures: Figure 5, and recurrent networks against Transformers."""

from dataclasses import replace
from statistics import fmean
from typing import Any

from hmmscope.claims.limits_effects import is_below
from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled, by_seed, pool_rows, rows_with


@claim(
    "limits-fig5-width",
    source="[Limits] App. C.1, Fig. 5",
    statement="How much width matters: the paper chose 512 by its evaluation loss.",
    experiment="limits-fig5",
)
def width_matters(tables: Tables) -> Judgement:
    """Error at the smallest width less that at the largest, within a seed."""
    return _along(tables["errors"], "width", "vary_width")


@claim(
    "limits-fig5-heads",
    source="[Limits] App. C.1, Fig. 5",
    statement="How much the number of heads matters: the paper chose 8 by its evaluation loss.",
    experiment="limits-fig5",
)
def heads_matter(tables: Tables) -> Judgement:
    """Error with the fewest heads less that with the most, within a seed."""
    return _along(tables["errors"], "heads", "vary_heads")


def _along(rows: list[dict[str, Any]], axis: str, varied: str) -> Judgement:
    """The paper has no sentence on it, so what is seen is found, and neither reproduced nor not."""
    kept = [row for row in rows if row["predictor"] == "model" and row[varied]]
    pooled = sorted(pool_rows(kept, [axis]), key=lambda row: row[axis])
    least, most = pooled[0][axis], pooled[-1][axis]

    def fall(one: list) -> float | None:
        ends = [[row["value"] for row in one if row[axis] == end] for end in (least, most)]
        return sum(ends[0]) / len(ends[0]) - sum(ends[1]) / len(ends[1]) if all(ends) else None

    effect = by_seed(kept, fall)
    best = min(pooled, key=lambda row: row["value"])
    listed = "; ".join(f"{row[axis]}: {row['value']:.3f}" for row in pooled)
    if effect is None or least == most:
        return Judgement(verdict="inconclusive", text=f"There is one value of {axis} only ({listed}).")
    if effect.low > 0:
        seen = f"falls with the {axis}"
    elif effect.high < 0:
        seen = f"rises with the {axis}"
    else:
        seen = f"does not clearly depend on the {axis}"
    text = f"The evaluation loss {seen}: {listed}; least at {best[axis]}."
    unit = f"loss at {axis} {least} less that at {most}"
    return Judgement(verdict="found", text=text, value=effect.value, low=effect.low, high=effect.high, unit=unit)


# ---------------------------------------------------------------------------------------------------------------------
# Architectures

#: Tasks whose belief a window of constant length gives: there is no state to track.
FORGETTING = ("ran-hmm", "mess3")
#: A model whose mean evaluation loss is above this has not learned the task.
LEARNED = 0.1


def _mean_error(rows: list, architecture: str, layers: int, *, beyond: bool) -> dict[str, float]:
    """Mean error by task over the positions of the training length, or those beyond it, of one seed."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if (row["architecture"], row["layers"], row["beyond"]) == (architecture, layers, beyond):
            found.setdefault(row["task"], []).append(row["value"])
    return {task: sum(values) / len(values) for task, values in found.items()}


def _difference(rows: list, one: tuple[str, int], other: tuple[str, int], *, beyond: bool = False) -> Pooled | None:
    """Error of one architecture less that of another, within seed and task; the mean over tasks that have both."""

    def of_seed(found: list) -> float | None:
        first, second = (_mean_error(found, *which, beyond=beyond) for which in (one, other))
        tasks = [task for task in first if task in second]
        return sum(first[task] - second[task] for task in tasks) / len(tasks) if tasks else None

    return by_seed(rows, of_seed)


def _depths(rows: list, architecture: str) -> list[int]:
    return sorted({row["layers"] for row in rows if row["architecture"] == architecture})


def _told(rows: list, *, beyond: bool = False) -> str:
    """Mean error by task and architecture."""
    kept = [row for row in rows if row["beyond"] == beyond and row["predictor"] == "model"]
    pooled = pool_rows(kept, ["task", "architecture", "layers"])
    return "; ".join(f"{r['task']}, {r['architecture']} ({r['layers']}): {r['value']:.3f}" for r in pooled)


def _tracking(tables: Tables) -> list:
    """Errors of the models on the tasks in which a state has to be tracked."""
    return [row for row in tables["errors"] if row["predictor"] == "model" and row["task"] not in FORGETTING]


@claim(
    "limits-architectures-recurrence",
    source="[Limits] §1, §6",
    statement="Where states have to be tracked the recurrent network is more accurate than the deepest Transformer.",
    experiment="limits-architectures",
)
def recurrence(tables: Tables) -> Judgement:
    """Error of the deepest Transformer less that of the ReLU RNN, within seed and task."""
    rows = _tracking(tables)
    depths, recurrent = _depths(rows, "transformer"), _depths(rows, "rnn")
    if not depths or not recurrent:
        return Judgement(verdict="inconclusive", text="Not both a Transformer and the ReLU RNN were trained.")
    effect = _difference(rows, ("transformer", depths[-1]), ("rnn", recurrent[-1]))
    assert effect is not None
    text = f"Mean evaluation loss up to the training length, by task and architecture (layers): {_told(rows)}."
    return is_above(effect, text, "loss of the Transformer less that of the RNN")


@claim(
    "limits-architectures-depth",
    source="[Limits] §4.2, Fig. 3",
    statement="A deeper Transformer is more accurate where states have to be tracked.",
    experiment="limits-architectures",
)
def depth(tables: Tables) -> Judgement:
    """Error of the shallowest Transformer less that of the deepest, within seed and task."""
    rows = _tracking(tables)
    depths = _depths(rows, "transformer")
    if len(depths) < 2:
        return Judgement(verdict="inconclusive", text="Transformers of one depth only were trained.")
    effect = _difference(rows, ("transformer", depths[0]), ("transformer", depths[-1]))
    assert effect is not None
    text = f"Depths {depths[0]} and {depths[-1]}. Mean evaluation loss up to the training length: {_told(rows)}."
    return is_above(effect, text, f"loss with {depths[0]} layers less that with {depths[-1]}")


@claim(
    "limits-architectures-length",
    source="[Limits] Thm. 5.1",
    statement="It stays so beyond the training length: the recurrent network is more accurate than the deepest Transformer.",
    experiment="limits-architectures",
)
def length(tables: Tables) -> Judgement:
    """Error beyond the training length of the deepest Transformer less that of the ReLU RNN, within seed and task.

    A Transformer that has not learned its training length, on any one of the tasks, leaves this open.
    """
    rows = _tracking(tables)
    depths, recurrent = _depths(rows, "transformer"), _depths(rows, "rnn")
    ends = ("transformer", depths[-1] if depths else 0), ("rnn", recurrent[-1] if recurrent else 0)
    effect = _difference(rows, *ends, beyond=True)
    if effect is None:
        return Judgement(verdict="inconclusive", text="Not both could be read beyond the training length.")
    text = f"Mean evaluation loss from the training length to twice it: {_told(rows, beyond=True)}."
    found = is_above(effect, text, "loss of the Transformer less that of the RNN, beyond")
    within = by_seed(rows, lambda one: max(_mean_error(one, *ends[0], beyond=False).values(), default=None))
    if within is not None and within.value > LEARNED:
        short = (
            f"The Transformer's loss within the training length is up to {within.value:.2f}: it has not learned that."
        )
        return replace(found, verdict="inconclusive", text=f"{text} {short}")
    return found


@claim(
    "limits-architectures-forgetting",
    source="[Limits] §4.2, Fig. 3",
    statement="On a process that forgets the shallowest Transformer has less than a tenth of a constant answer's loss.",
    experiment="limits-architectures",
)
def forgetting(tables: Tables) -> Judgement:
    """Loss of the shallowest Transformer over that of the constant answer, within seed and task."""
    rows = [row for row in tables["errors"] if row["task"] in FORGETTING and not row["beyond"]]
    models = [row for row in rows if row["predictor"] == "model"]
    depths = _depths(models, "transformer")
    if not depths:
        return Judgement(verdict="inconclusive", text="No Transformer was trained on a process that forgets.")
    constants = [row for row in rows if row["predictor"] == "constant"]
    shallowest = [row for row in models if (row["architecture"], row["layers"]) == ("transformer", depths[0])]

    def share(found: list) -> float:
        losses = {name: [row["value"] for row in found if row["predictor"] == name] for name in ("model", "constant")}
        return fmean(losses["model"]) / fmean(losses["constant"])

    by_task = {
        task: by_seed(rows_with(shallowest + constants, task=task), share)
        for task in dict.fromkeys(row["task"] for row in shallowest)
    }
    worst = max((effect for effect in by_task.values() if effect is not None), key=lambda effect: effect.value)
    told = "; ".join(f"{row['task']}, constant answer: {row['value']:.3f}" for row in pool_rows(constants, ["task"]))
    text = f"Mean evaluation loss up to the training length: {_told(models)}; {told}."
    unit = f"share of the constant answer's loss, {depths[0]} layer{'s' * (depths[0] > 1)}, worst task"
    return is_below(worst, text, unit, below=0.1)
