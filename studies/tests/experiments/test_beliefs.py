"""Claims on the shape of beliefs and on discovery, on tables whose verdicts are known."""

from typing import Any

import pytest

from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.evidence.figure import Bars, Figure
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.scatter_data import pack_colours, pack_places
from hmmscope.lab.evidence.verdicts import OF_QUESTIONS
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope_studies.beliefs.belief_geometry import FACTORS, PROCESSES

SEEDS, STEPS = range(5), (0, 10, 100)


def runs(names: Any) -> Rows:
    return Rows({"label": name, "seed": seed, "excess": 0.001, "last_quarter": 0.0} for name in names for seed in SEEDS)


def geometry_tables(*, factored: bool = True) -> Tables:
    """Training reads the belief, and holds factors apart, or jointly."""
    rows = []
    for process in PROCESSES:
        for seed in SEEDS:
            for step, learned in zip(STEPS, (0.0, 0.6, 1.0), strict=True):
                jitter = 0.01 * (seed - 2)
                apart = learned if factored else 0.0
                values = {
                    "read": 0.4 + (0.55 + jitter) * learned + jitter,
                    "dimension": 8 - 4 * apart + jitter,
                    "moved": 0.5,
                }
                values |= {"joint": 8, "sum": 4, "random overlap": 0.1, "from the prediction": 0.3}
                values |= {
                    "factored": 0.6 + (0.38 + jitter) * apart + jitter,
                    "overlap": 0.05 - 0.045 * apart + jitter / 10,
                }
                about = {"process": process, "seed": seed, "step": step, "layer": 1, "fitted": 0.5 + learned / 3}
                for quantity, value in values.items():
                    ends = {"low": value - 0.01, "high": value + 0.01, "error": 0.005}
                    rows.append(about | {"quantity": quantity, "value": value} | ends)
    places, clouds = pack_places([[0.2, 0.4], [0.6, 0.7]]), []
    for process in ("Mess3", "RRXOR", "Bloch walk", "post-quantum"):
        clouds += [
            {"process": process, "side": side, "at": 0, "points": places, "seed": 0}
            for side in ("exact", "layer", "step")
        ]
        clouds.append(
            {"process": process, "side": "colours", "at": 0, "points": pack_colours([[0, 0, 1]] * 2), "seed": 0}
        )
    return {"steps": Rows(rows), "clouds": Rows(clouds), "runs": runs(PROCESSES)}


def verdicts(experiment: str, tables: Tables) -> dict[str, str]:
    return {claim.name: claim.evaluate(tables).verdict for claim in claims_of(experiment)}


def test_what_is_so_is_reproduced_and_nothing_without_training() -> None:
    tables = geometry_tables()
    assert set(verdicts("belief-geometry", tables).values()) == {"reproduced"}
    control = experiment_named("belief-geometry").without_training(tables)
    assert control is not None
    assert "reproduced" not in verdicts("belief-geometry", control).values()


def test_the_page_shows_what_training_explains_of_what_untrained_networks_leave() -> None:
    """Of a process whose belief is read before training, nothing; and without training, nothing of any."""
    experiment, tables = experiment_named("belief-geometry"), geometry_tables()
    read = tables["steps"].with_columns(
        value=lambda row: 0.99 if (row["process"], row["quantity"]) == ("Mess3", "read") else row["value"]
    )

    def shares(tables: Tables) -> dict[str, float]:
        (figure,) = (one for one in experiment.figures(tables) if one.name == "added")
        (panel,) = figure.panels
        assert isinstance(panel, Bars)
        return dict(zip(panel.categories, panel.series[0].y, strict=True))  # type: ignore[arg-type]

    found = shares({**tables, "steps": read})
    assert found.keys() == PROCESSES.keys() - {"Mess3"}
    assert found["RRXOR"] == pytest.approx(1 - 0.05 / 0.6)
    control = experiment.without_training(tables)
    assert control is not None
    assert shares(control)["RRXOR"] == pytest.approx(0)


def test_joint_beliefs_are_no_factors() -> None:
    found = verdicts("belief-geometry", geometry_tables(factored=False))
    assert found["beliefs-are-linear"] == found["beliefs-beyond-hmms"] == "reproduced"
    assert "reproduced" not in {found[name] for name in ("factors-apart", "factors-orthogonal", "factored-early")}


def test_a_training_that_goes_on_decides_nothing() -> None:
    tables = geometry_tables()
    moving = tables["runs"].with_columns(excess=lambda row: 0.05, last_quarter=lambda row: -0.02)
    assert verdicts("belief-geometry", {**tables, "runs": moving})["beliefs-are-linear"] == "not tested"


def test_figures_come_with_and_without_clouds() -> None:
    tables, experiment = geometry_tables(), experiment_named("belief-geometry")
    whole = [Figure.from_data(figure.to_data()) for figure in experiment.figures(tables)]
    assert [figure.name for figure in whole] == ["layers", "added", "fractal", "shapes", "dimensions", "development"]
    assert len(experiment.figures({**tables, "clouds": Rows()})) == 4
    assert len(whole[0].panels) == len(PROCESSES)
    assert whole[4].panels[1].categories == FACTORS  # type: ignore[attr-defined]


def discovery_tables(recurrent: float) -> Tables:
    states, coordinates = [], []
    for process, exact in {"golden mean": 2, "even": 2, "RRXOR": 5, "Mess3": 40}.items():
        for seed in SEEDS:
            for network, value in {"trained": recurrent, "untrained": 1}.items():
                about = {"process": process, "network": network, "seed": seed}
                for quantity, found in {
                    "recurrent": value,
                    "rank": value,
                    "states": value,
                    "distance": 0.1 / value,
                }.items():
                    states.append(about | {"quantity": quantity, "value": found + 0.001 * seed, "exact": exact})
                for method in ("principal", "simplex", "sparse", "random"):
                    for quantity in ("read", "matched"):
                        row = {
                            "layer": 2,
                            "method": method,
                            "quantity": quantity,
                            "value": 0.4 + 0.1 * value + 0.01 * seed,
                        }
                        coordinates.append(about | row)
    return {
        "states": Rows(states),
        "coordinates": Rows(coordinates),
        "runs": runs(("golden mean", "even", "RRXOR", "Mess3")),
    }


def test_discovery_says_what_was_found() -> None:
    tables = discovery_tables(2)
    found = {claim.name: claim.evaluate(tables) for claim in claims_of("discovery")}
    assert {one.verdict for one in found.values()} <= set(OF_QUESTIONS)
    assert "exact 5" in found["states-from-predictions"].text
    assert [figure.name for figure in experiment_named("discovery").figures(tables)] == ["states", "coordinates"]


@pytest.mark.parametrize("trained, verdict", [(True, "reproduced"), (False, "not tested")])
def test_constrained_updates(trained: bool, verdict: str) -> None:
    rows = []
    for process, rate in {"Mess3, ζ = 0.85": 0.85, "Mess3, ζ = 0.7": 0.7, "Mess3, ζ = 0.55": 0.55}.items():
        for seed in SEEDS:
            for network in ("trained", "untrained"):
                learned, jitter = trained and network == "trained", 0.004 * (seed - 2)
                values = {
                    "rate": rate if learned else 1.0,
                    "constrained": 0.98 if learned else 0.7,
                    "exact": 0.8,
                    "values": 1.0,
                }
                values["attention"] = values["rate"]
                for quantity, value in values.items():
                    about = {"process": process, "seed": seed, "network": network, "quantity": quantity, "key": 1}
                    rows.append(about | {"value": value + jitter * (1 + learned), "predicted": rate})
    tables = {"updates": Rows(rows), "runs": runs(("a",))}
    found = verdicts("constrained-updates", tables)
    assert found["attention-decays-as-predicted"] == verdict  # whether it has learned is not recorded
    assert (found["layer-holds-constrained-belief"] == "reproduced") == trained
    assert len(experiment_named("constrained-updates").figures(tables)) == 2
