"""Claims on mechanisms and on tasks, on rows of networks whose answer is known."""

from typing import Any

import pytest

from hmmscope.analysis.mechanisms import mechanisms, paths, roles
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.models.base import make_model
from hmmscope.processes.make import make_process
from hmmscope_papers.constructions.induction import induction_network
from hmmscope_studies.beliefs.mechanisms_experiment import CHAINS, HIDDEN, _in_order

SEEDS, V, T = range(5), 3, 8


def seeded(rows: list[dict[str, Any]], **about: str) -> list[dict[str, Any]]:
    """The rows of five seeds that differ a little."""
    return [about | row | {"seed": seed, "value": row["value"] + 0.002 * (seed - 2)} for row in rows for seed in SEEDS]


def runs(labels: tuple[str, ...]) -> Rows:
    return Rows(
        {"label": label, "seed": seed, "excess": 0.1, "last_quarter": 0.0} for label in labels for seed in SEEDS
    )


@pytest.fixture(scope="module")
def known() -> Tables:
    """The induction circuit in the place of the trained network, on chains; hidden processes get the same rows."""
    chains = make_process("fresh-markov-chains", num_states=V, num_symbols=V, transition_concentration=0.3)
    dataset = ProcessDataset(chains, length=T, stream="probe")
    untrained = make_model("roformer", num_symbols=V, num_layers=2, num_heads=2, width=16)
    tables: dict[str, list] = {"ablations": [], "paths": []}
    for network, model in {"trained": induction_network(V, V, T), "untrained": untrained}.items():
        ablated, edges = (of(model, dataset, num_samples=64) for of in (mechanisms, paths))
        names, called = _in_order(ablated), roles(ablated)
        ablated = [row | {"part": names[row["component"]], "role": called.get(row["component"], "")} for row in ablated]
        edges = [row | {"sender": names.get(row["sender"], row["sender"])} for row in edges]
        for process in (CHAINS, *HIDDEN):
            about = {"process": process, "network": network}
            shown = (
                ablated if process == CHAINS else [row | {"quantity": _as_belief(row["quantity"])} for row in ablated]
            )
            tables["ablations"] += seeded(shown, **about)
            tables["paths"] += seeded(edges, **about)
    gain = {"quantity": "gain over unigrams", "value": 0.1, "low": 0.09, "high": 0.11}
    learned = Rows(seeded([gain], process=CHAINS))
    return {name: Rows(rows) for name, rows in tables.items()} | {"learned": learned, "runs": runs((CHAINS, *HIDDEN))}


def _as_belief(quantity: str) -> str:
    return "belief" if quantity == "bigram" else quantity


def verdicts(experiment: str, tables: Tables) -> dict[str, str]:
    return {claim.name: claim.evaluate(tables).verdict for claim in claims_of(experiment)}


def test_the_circuit_has_induction_heads_and_an_untrained_network_has_none(known: Tables) -> None:
    assert verdicts("mechanisms", known)["statistical-induction-heads"] == "reproduced in sign"
    control = experiment_named("mechanisms").without_training(known)
    assert control is not None
    assert verdicts("mechanisms", control)["statistical-induction-heads"] == "not tested"
    still = {**known, "runs": known["runs"].with_columns(last_quarter=lambda row: -0.1)}
    assert verdicts("mechanisms", still)["statistical-induction-heads"] == "not tested"


def test_the_question_finds_what_the_circuit_does(known: Tables) -> None:
    found = {claim.name: claim.evaluate(known) for claim in claims_of("mechanisms")}
    assert found["statistical-induction-heads"].text.endswith("5 previous-token heads, 5 induction heads in 5 seeds.")
    way = found["mechanisms-way"]
    assert way.value < -0.01  # straight from the head: there is no MLP


def test_figures_of_mechanisms(known: Tables) -> None:
    figures = [Figure.from_data(figure.to_data()) for figure in experiment_named("mechanisms").figures(known)]
    assert [figure.name for figure in figures] == ["loss", "read", "paths"]
    way = figures[2].panels[0]
    assert way.y == ("embedding", "head 1a", "head 1b", "head 2a", "head 2b")  # type: ignore[attr-defined]
    assert way.x == ("attention 1", "attention 2", "output")  # type: ignore[attr-defined]
    assert way.z[1][0] is None  # type: ignore[attr-defined]
    assert way.z[1][1] > 0.01  # type: ignore[attr-defined]


def task_tables(inner: float, last: float) -> Tables:
    """Shares of the way in the layer below the last, and in the last."""
    rows = []
    for network, subspace, factor in (
        ("trained", "task", 1.0),
        ("trained", "whole", 1.1),
        ("trained", "random", 0.05),
        ("untrained", "task", 0.0),
        ("untrained", "whole", 0.0),
        ("untrained", "random", 0.0),
    ):
        for layer, value in enumerate((0.0, inner, last)):
            for rank in (1, 3):
                about = {"network": network, "subspace": subspace, "layer": layer, "rank": rank, "reference": "filter"}
                rows.append(about | {"value": factor * value * (1 if rank == 3 else 0.4), "error": 0.01})
    gain = {"baseline": "order-1", "value": 0.1, "low": 0.09, "high": 0.11}
    return {"patches": Rows(seeded(rows)), "learned": Rows(seeded([gain])), "runs": runs(("mixture",))}


def test_a_task_counts_where_something_still_listens() -> None:
    """To move the prediction itself, in the last layer, shows no use of a task."""
    used = task_tables(0.8, 0.9)
    assert verdicts("task-patching", used)["task-is-a-vector"] == "reproduced"
    assert verdicts("task-patching", task_tables(0.1, 0.9))["task-is-a-vector"] == "not at this budget"
    control = experiment_named("task-patching").without_training(used)
    assert control is not None
    assert verdicts("task-patching", control)["task-is-a-vector"] == "not tested"
    (found,) = (claim.evaluate(used) for claim in claims_of("task-patching") if claim.name == "task-dimensions")
    assert found.value == pytest.approx(0.8 * 0.6)
    figures = [Figure.from_data(figure.to_data()) for figure in experiment_named("task-patching").figures(used)]
    assert [figure.name for figure in figures] == ["layers", "dimensions"]
