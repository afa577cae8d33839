"""Claims of [Limits] on curriculum training: Figure 6."""

from hmmscope.claims.ledger import Judgement, Tables, claim, is_above
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
from hmmscope.pooling import Pooled, pool_values

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
    statement="With the curriculum the fit length rises sooner: averaged over the epochs of training it is longer.",
    experiment="limits-fig6",
)
def curriculum_faster(tables: Tables) -> Judgement:
    """Mean over epochs and depths, within seeds, on every task that was trained both ways."""
    found = {task: _effect(tables, "epochs", task) for task in tasks_of(tables["epochs"])}
    effects = {task: effect for task, effect in found.items() if effect is not None}
    shown = listed({task: spread(effect, "+.2g") for task, effect in effects.items()})
    text = (
        f"Fit length with less that without curriculum, mean over epochs and depths, as a share of the length: {shown}."
    )
    return everywhere(effects, text, "share of the length")
