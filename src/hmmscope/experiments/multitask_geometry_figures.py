"""Figures and notes of `multitask_geometry`."""

from collections.abc import Sequence
from typing import Any

from hmmscope.analysis.geometry import BELIEF, MIXED_BELIEF, PREDICTION
from hmmscope.claims.multitask_geometry import NAMES, of_beliefs
from hmmscope.claims.multitask_probes import said
from hmmscope.evidence.figures import Figure, Lines, Points, Series
from hmmscope.evidence.pooling import pool_rows, rows_with
from hmmscope.experiments.experiment import Finding, Tables
from hmmscope.experiments.panels import series_of

#: Panels by process and target.
_PANELS = {
    ("mess3", BELIEF): "Mess3: belief",
    ("mess3-mixture", BELIEF): "Mixture: belief in the true component",
    ("mess3-mixture", MIXED_BELIEF): "Mixture: belief, component unknown",
    ("rrxor", BELIEF): "RRXOR: belief",
}
_TRIANGLES = {
    "mess3": ("Mess3", "states of Mess3"),
    "mess3-mixture": ("a mixture of Mess3", "states, the component being unknown"),
}


def figures(tables: Tables) -> list[Figure]:
    return [_layer_figure(tables), *(_triangle_figure(tables, process) for process in _TRIANGLES)]


def notes(tables: Tables) -> list[Finding]:
    return [_prediction_note(tables), _observer_note(tables)]


def _layer_figure(tables: Tables) -> Figure:
    def panel(process: str, target: str, title: str) -> Lines:
        rows = rows_with(tables["geometry"], process=process)
        about = rows_with(rows, target=target)
        trained = rows_with(about, source="trained")
        series = (
            _curve(trained, "trained", "model"),
            _curve(trained, "exact belief of an observer", "ceiling", "ceiling"),
            _curve(rows_with(rows, target=PREDICTION, source="trained"), "next-observation law, trained", "other"),
            _curve(rows_with(about, source="untrained"), "untrained model", "control"),
            _curve(rows_with(about, source="shuffled"), "shuffled beliefs", "control"),
            _curve(trained, "affine in the exact prediction", "baseline", "from_prediction"),
        )
        return Lines(title=title, x_label="layer", y_label="held-out R²", series=series, y_min=-0.05, y_max=1.02)

    return Figure(
        name="layers",
        title="How much of the belief an affine map reads from each layer",
        caption=(
            "R² on held-out samples of ridge regressions from the residual stream to the exact belief state, after every "
            "observation; layer 0 is the embedding. The ceiling is what the observations allow: in the mixture, the belief "
            "in the true component is not known to an observer who is not told it. The baseline is an affine function of "
            "the exact law of the next observation. In Mess3 law and belief are affine functions of each other, so that "
            "nothing tells them apart there; in RRXOR they are far from it. Controls: the model before training, and a map "
            "fitted to shuffled beliefs. Bands are 95 % intervals over seeds."
        ),
        panels=tuple(panel(process, target, title) for (process, target), title in _PANELS.items()),
    )


def _curve(rows: list[dict[str, Any]], name: str, role: str, column: str = "r2") -> Series:
    """A column over layers, pooled over seeds."""
    bare = [row if column == "r2" else {k: v for k, v in row.items() if k not in ("low", "high")} for row in rows]
    return series_of(pool_rows(bare, ("layer",), value=column), name, role, x="layer", y=column)


def _triangle_figure(tables: Tables, process: str) -> Figure:
    rows = rows_with(tables["points"], process=process)
    rows = rows_with(rows, seed=rows[0]["seed"])
    colours = tuple(_colour(row["exact"]) for row in rows)
    name, about = _TRIANGLES[process]
    titles = {"exact": "Exact", "trained": "Read off the trained model", "untrained": "Read off the untrained model"}

    def panel(side: str) -> Points:
        x, y = zip(*(_in_triangle(row[side]) for row in rows), strict=True)
        return Points(title=titles[side], x_label="", y_label="", x=x, y=y, colours=colours, frame=False)

    return Figure(
        name=f"simplex-{process}",
        title=f"Belief states of {name}",
        caption=(
            f"Beliefs over the three {about}, in the triangle whose corners are certainty; each point is one prefix of a "
            "held-out sample of the first seed. Red, green and blue are the exact probabilities of the three states, in all "
            "panels. Left: the forward filter. Middle and right: the affine map of the layer that fits its training samples "
            "best; nothing holds it inside the triangle."
        ),
        panels=tuple(panel(side) for side in titles),
    )


def _in_triangle(law: Sequence[float]) -> tuple[float, float]:
    """The point of a law over three states; corners (0, 0), (1, 0) and (1/2, √3/2)."""
    return law[1] + law[2] / 2, law[2] * 3**0.5 / 2


def _colour(law: Sequence[float]) -> str:
    """Red, green and blue by the square roots of three probabilities, so that mixed beliefs are not dark."""
    return "#" + "".join(f"{round(225 * min(1.0, max(0.0, p)) ** 0.5):02x}" for p in law)


def _prediction_note(tables: Tables) -> Finding:
    """Where belief and prediction can be told apart."""
    difference = of_beliefs(tables, "belief - next observation")
    law = of_beliefs(tables, "from the prediction")
    each = "; ".join(
        f"{NAMES[p]} {said(found, 3)} (from the law {law[p].value:.3f})" for p, found in difference.items()
    )
    rrxor = difference["rrxor"]
    return Finding(
        title="Belief or only prediction",
        text=(
            "R² of the belief less that of the next-observation law in the trained stream, and R² of the belief as an "
            f"affine function of the exact law: {each}. Where the latter is 1 the question has no answer."
        ),
        verdict="found",
        value=rrxor.value,
        low=rrxor.low,
        high=rrxor.high,
        unit="R² of the belief less that of the next-observation law, RRXOR",
    )


def _observer_note(tables: Tables) -> Finding:
    """Whose belief the stream of the mixture holds."""
    known = of_beliefs(tables, "trained")["mess3-mixture"]
    ceiling = of_beliefs(tables, "ceiling")["mess3-mixture"]
    mixed = of_beliefs(tables, "trained", MIXED_BELIEF)["mess3-mixture"]
    return Finding(
        title="Whose belief the model of the mixture holds",
        text=(
            f"The belief of the observer who does not know the component is read with R² {said(mixed, 3)}; that in the true "
            f"component with {said(known, 3)}, of {ceiling.value:.3f} that the observations allow."
        ),
        verdict="found",
        value=mixed.value,
        low=mixed.low,
        high=mixed.high,
        unit="R² of the belief without knowing the component",
    )
