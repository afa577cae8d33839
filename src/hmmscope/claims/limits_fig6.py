"""Claims of [Limits] on curriculum training: Figure 6."""

from hmmscope.claims.limits_effects import (
    Rows,
    everywhere,
    inconclusive,
    listed,
    mean,
    of_task,
    per_seed,
    spread,
    tasks_of,
)
from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled, pool_values

#: A fit length that is shorter by no more than this share of the sequence is comparable.
COMPARABLE = 0.1


def lead(rows: Rows) -> float | None:
    """Fit length with the curriculum less that without, as a share of the length: mean over depths, of one seed and task.

    Of several epochs of a run it is the mean over them. Depths whose curriculum is one stage are the same twice; they do
    not count.
    """
    differences = []
    for n in sorted({row["layers"] for row in rows if row["curriculum"] and row["stages"] > 1}):
        both = [
            [row for row in rows if (row["layers"], row["curriculum"]) == (n, with_it)] for with_it in (True, False)
        ]
        if all(both):
            means = [mean([row["value"] / row["longest"] for row in own]) for own in both]
            differences.append(means[0] - means[1])
    return mean(differences) if differences else None


def _effect(tables: Tables, table: str, task: str) -> Pooled | None:
    values = per_seed(of_task(tables[table], task), lead)
    return pool_values(values) if values else None


def _lengths(tables: Tables, task: str) -> str:
    """Mean fit lengths by depth, with and without."""
    rows = of_task(tables["fit-lengths"], task)
    said = []
    for n in sorted({row["layers"] for row in rows}):
        both = [[row["value"] for row in rows if (row["layers"], row["curriculum"]) == (n, c)] for c in (True, False)]
        if all(both):
            said.append(f"{mean(both[0]):.3g} against {mean(both[1]):.3g} ({n})")
    return f"Mean fit length with against without curriculum, by layers: {', '.join(said)}."


@claim(
    "limits-curriculum-det",
    source="[Limits] App. C.2, Fig. 6 left",
    statement="On Cyclic-DET fit lengths with the curriculum are at least comparable: shorter by at most a tenth of T.",
    experiment="limits-fig6",
)
def curriculum_det(tables: Tables) -> Judgement:
    """Mean over depths, within seeds."""
    effect = _effect(tables, "fit-lengths", "cyclic-det")
    if effect is None:
        return inconclusive("Cyclic-DET was not trained with and without.")
    return is_above(effect, _lengths(tables, "cyclic-det"), "share of the length", above=-COMPARABLE)


@claim(
    "limits-curriculum-matmul",
    source="[Limits] App. C.2, Fig. 6 left",
    statement="On MatMul fit lengths with the curriculum are longer.",
    experiment="limits-fig6",
)
def curriculum_matmul(tables: Tables) -> Judgement:
    """Mean over depths, within seeds."""
    effect = _effect(tables, "fit-lengths", "matmul")
    if effect is None:
        return inconclusive("MatMul was not trained with and without.")
    return is_above(effect, _lengths(tables, "matmul"), "share of the length")


@claim(
    "limits-curriculum-faster",
    source="[Limits] §4.3 and App. C.2, Fig. 6 right (MatMul)",
    statement="On MatMul the fit length rises sooner with the curriculum: averaged over the epochs it is longer.",
    experiment="limits-fig6",
)
def curriculum_faster(tables: Tables) -> Judgement:
    """Mean over epochs and depths, within seeds, on MatMul; other tasks are told beside it."""
    found = {task: _effect(tables, "epochs", task) for task in tasks_of(tables["epochs"])}
    effects = {task: effect for task, effect in found.items() if effect is not None}
    shown = listed({task: spread(effect, "+.2g") for task, effect in effects.items()})
    text = (
        f"Fit length with less that without curriculum, mean over epochs and depths, as a share of the length: {shown}."
    )
    if "matmul" not in effects:
        return inconclusive(f"MatMul, which the figure shows, was not trained with and without. {text}")
    return is_above(effects["matmul"], text, "share of the length, MatMul")


@claim(
    "limits-curriculum-shortens",
    source="[Limits] §4.3 and App. C.2",
    statement="The curriculum shortens training: for the tokens that it takes, its fit length is longer than without.",
    experiment="limits-fig6",
)
def curriculum_shortens(tables: Tables) -> Judgement:
    """Fit length at the end with the curriculum less that without after as many tokens, within seeds, on every task."""
    values = {task: per_seed(of_task(tables["epochs"], task), _lead_by_tokens) for task in tasks_of(tables["epochs"])}
    effects = {task: pool_values(found) for task, found in values.items() if found}
    ends = [row for row in tables["fit-lengths"] if row["stages"] > 1 or not row["curriculum"]]
    costs = []
    for n in sorted({row["layers"] for row in ends if row["curriculum"]}):
        both = [[row["tokens"] for row in ends if (row["layers"], row["curriculum"]) == (n, c)] for c in (True, False)]
        if all(both):
            costs.append(f"{mean(both[0]) / mean(both[1]):.2f} ({n})")
    shown = listed({task: spread(effect, "+.2g") for task, effect in effects.items()})
    text = (
        f"Tokens of the whole training with over those without curriculum, by layers: {', '.join(costs)}. Fit length "
        f"after as many tokens, with less without, mean over depths as a share of the length: {shown}."
    )
    return everywhere(effects, text, "share of the length after as many tokens")


def _lead_by_tokens(rows: Rows) -> float | None:
    """`lead` at the end of the training with curriculum, of one seed and task; that without stops after as many tokens."""
    kept = []
    for n in {row["layers"] for row in rows if row["curriculum"] and row["stages"] > 1}:
        own = [row for row in rows if row["layers"] == n]
        end = max((row for row in own if row["curriculum"]), key=lambda row: row["tokens"])
        until = [row for row in own if not row["curriculum"] and row["tokens"] <= end["tokens"]]
        kept += [end, *sorted(until, key=lambda row: row["tokens"])[-1:]]
    return lead(kept)
