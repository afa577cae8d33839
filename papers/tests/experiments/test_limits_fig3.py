"""Claims on fit lengths, each judged on made-up tables in which it comes out each way."""

import re
from collections.abc import Callable
from typing import Any

import kept_results
import pytest

from hmmscope import registry
from hmmscope.lab.evidence.effects import EstimateWithError
from hmmscope.lab.evidence.figure import Lines
from hmmscope.lab.evidence.ledger import read_tables
from hmmscope.lab.evidence.rows import Rows, as_tables
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope_papers.limits.lengths import growing, growth, length_of, slack
from hmmscope_papers.limits.tables import REMEMBERING, WHILE_TRAINING, task_title
from hmmscope_papers.limits.trainings import TASKS
from limits_cases import SEEDS, at_rest, closed, first_seed, judged, swapped, verdict

RESULTS = kept_results.RESULTS
Tables = dict[str, Any]
Length = Callable[[str, int, int], float]


def losses(length: float, longest: int) -> list[float]:
    """Losses by position that cross 0.1 at a length, and 0.05 just before it."""
    return [min(0.9, max(0.0, 0.1 + 0.8 * (t - length))) if length < longest else 0.01 for t in range(1, longest + 1)]


def fits(length: Length, longest: int = 16, moving: float = 0.0) -> Tables:
    """Losses by position such that the 0.1-fit length is `length` of task, layers and seed."""
    grid = [(task, n, seed) for task in TASKS for n in range(5) for seed in SEEDS]
    positions, whole = [], []
    for task, n, seed in grid:
        facts = {"task": task, "layers": n, "seed": seed}
        reached = min(length(task, n, seed), longest)
        exact = losses(reached, longest) if reached < longest else [0.01] * longest
        exact = [value + 0.001 * seed if value in (0.01, 0.9) else value for value in exact]  # no two seeds alike
        for name, values in (("model", exact), ("constant", [0.8 + 0.01 * seed] * longest)):
            positions += [
                facts | {"predictor": name, "position": t, "value": value, "low": value, "high": value, "samples": 9}
                for t, value in enumerate(values, 1)
            ]
        row = facts | {"predictor": "model", "by": "epochs", "definition": "prefix", "longest": longest}
        for rate in (0.05, 0.1):
            whole.append(row | {"error_rate": rate, "value": int(reached), "fits_from": None})
            whole.append(
                row | {"error_rate": rate, "value": 0, "predictor": "constant", "by": "final", "fits_from": None}
            )
    runs = [{"task": task, "layers": n, "seed": seed} for task, n, seed in grid]
    return {"positions": positions, "fit-lengths": whole, WHILE_TRAINING: at_rest(runs, 8.0 - moving)}


def test_the_lead_picture_marks_what_has_not_converged() -> None:
    def marked(moving: float) -> set[Any]:
        tables = as_tables(fits(lambda task, n, seed: 2.0 * n + 2, moving=moving) | {"windows": []})
        panels = experiment_named("limits-fig3").figures(tables)[0].panels
        return {one.x for panel in panels for one in panel.series if one.role == "unfinished"}  # type: ignore[union-attr]

    assert marked(1.0) == {(1, 2, 3, 4)}
    assert marked(0.1) == set()


def test_the_lead_picture_has_the_curve_of_the_paper_and_no_line_under_its_frame() -> None:
    tables = as_tables(fits(lambda task, n, seed: 2.0 * n + 2 if n else 16.0) | {"windows": []})
    panels = [panel for panel in experiment_named("limits-fig3").figures(tables)[0].panels if isinstance(panel, Lines)]
    assert [panel.title for panel in panels] == [task_title(task) for task in TASKS]
    for task, panel in zip(TASKS, panels, strict=True):
        found = {one.name: one for one in panel.series}
        paper = found.get("2^layers, claimed by the paper")
        assert (paper and (paper.x, paper.y)) == (((1, 2, 3, 4), (2, 4, 8, 16)) if task in REMEMBERING else None)
        assert max(found["RNN, error rate 0.1"].y) == 16  # the whole sequence
        assert panel.y_max is not None
        assert panel.y_max >= 1.05 * 16


def test_the_length_lies_between_positions() -> None:
    def rows(*values: float) -> Rows:
        return Rows(
            {"position": t, "value": value, "low": value - 0.01, "high": value + 0.01}
            for t, value in enumerate(values, 1)
        )

    found = length_of(rows(0.0, 0.05, 0.15, 0.0), 0.1)
    assert found.value == pytest.approx(2.5)
    assert found.error == pytest.approx((2.6 - 2.4) / 3.92)  # what the samples leave open
    assert length_of(rows(0.2, 0.3), 0.1).value == pytest.approx(0.5)
    assert length_of(rows(0.0, 0.01), 0.1).value == 2.0
    assert slack(rows(0.0, 0.03, 0.9), 0.05).value == pytest.approx(0.02)  # no position decides alone


def test_growth_stops_counting_at_the_whole_length() -> None:
    def of(task: str, *lengths: float, most: float = 1.0) -> float | None:
        found = growth(growing({n: EstimateWithError(length) for n, length in enumerate(lengths)}, task, 16), 16, most)
        return None if found is None else found.value

    assert of("cyclic-det", 16, 4, 16, 16) == pytest.approx(2.0)
    assert of("cyclic-det", 16, 4) is None
    assert of("cyclic-det", 16, 16, 16) is None
    assert of("matmul", 16, 2, 4, 8, 8) == pytest.approx(1.0)  # the deepest on MatMul is excepted
    assert of("cyclic-det", 16, 9, 10, 11, most=0.5) is None  # no room to double


def jitter(length: Length) -> Length:
    """Seeds that differ a little, differently at each depth: equal numbers would leave no interval."""
    return lambda t, n, s: length(t, n, s) - (0.0002 * s * (1 + n * n) * len(t) if length(t, n, s) < 63 else 0)


@pytest.mark.parametrize(
    "name, good, bad, unclear",
    [
        ("limits-rnn-fits", lambda t, n, s: 63, lambda t, n, s: 60 - 0.01 * s if t == "matmul" else 63, None),
        ("limits-fit-length-grows", lambda t, n, s: 2**n, lambda t, n, s: 4, lambda t, n, s: 6 + 0.4 * n * (s - 1)),
        ("limits-fit-length-doubles", lambda t, n, s: 2**n, lambda t, n, s: 3.5 + 0.1 * n, None),
        ("limits-fit-length-power", lambda t, n, s: 2**n, lambda t, n, s: 2**n / 1.5, lambda t, n, s: 2**n - (s == 0)),
        ("limits-constant-depth", lambda t, n, s: 16, lambda t, n, s: 8 if n in (1, 2) else 16, None),
        ("limits-hard-below-det", lambda t, n, s: 4 if t == "cyclic-hard" else 8, lambda t, n, s: 8,
         lambda t, n, s: 5 + 2 * s if t == "cyclic-hard" else 8),
        ("limits-hard-plateau", lambda t, n, s: 4 if t == "cyclic-hard" else 2 * n, lambda t, n, s: 2 * n,
         lambda t, n, s: 4 * max(1, (n - 2) * s) if t == "cyclic-hard" else 2 * n),
    ],
)  # fmt: skip
def test_claims_on_fit_lengths(name: str, good: Length, bad: Length, unclear: Length | None) -> None:
    spread = jitter(good)
    longest = 63 if "hard" in name or "rnn" in name else 16  # Cyclic-HARD has to be asked rarely
    assert verdict(name, fits(spread, longest)) == "reproduced"
    assert verdict(name, fits(jitter(bad), longest)) == "not at this budget"
    if longest == 63:
        assert closed(name, fits(spread)) == ["regime"]
    if unclear is not None:
        assert verdict(name, fits(unclear, longest)) == "inconclusive"
    assert verdict(name, swapped("limits-fig3", fits(spread))) != "reproduced"
    assert verdict(name, first_seed(fits(spread))) in ("inconclusive", "not tested")


def test_a_verdict_has_to_outlast_one_more_doubling_of_the_training() -> None:
    name = "limits-fit-length-grows"
    tables = fits(lambda t, n, s: 2**n - 0.02 * s, moving=2.0)
    assert closed(name, tables) == []  # all depths rise alike: the slope stays
    old = {key: rows for key, rows in tables.items() if key != WHILE_TRAINING}
    assert "not recorded" in judged(name, old).text
    for row in tables[WHILE_TRAINING]:  # shallow ones catch up by a doubling and more a layer
        row["length"] = 8.0 if row["share"] == 1 else 4.0 ** row["layers"] / 8
    assert closed(name, tables) == ["converged"]
    assert "would change the answer from supported to contradicted" in judged(name, tables).text
    for row in tables[WHILE_TRAINING]:  # the others rise, and growth grows
        row["length"] = 8.0 if row["share"] < 1 else 2.0 ** row["layers"]
    assert closed(name, tables) == []


def test_a_fit_without_room_to_double_says_nothing_of_doubling() -> None:
    name = "limits-fit-length-doubles"
    assert closed(name, fits(lambda t, n, s: 9 + n - 0.02 * s if t == "cyclic-det" else 2**n)) == ["room"]


def test_what_no_depth_fits_is_denied_and_said() -> None:
    """A row is not kept from being judged because what it comes to is unwelcome."""
    found = judged("limits-constant-depth", fits(lambda t, n, s: 8 - 0.02 * s))
    assert found.verdict == "not at this budget"
    assert "more layers do not help" in found.text


def test_what_nears_the_rate_is_not_yet_above_it() -> None:
    """The RNN's largest loss is above 0.05, and falls by as much with each doubling of the training."""
    tables = fits(jitter(lambda t, n, s: 60 if t == "matmul" else 63), 63)
    assert verdict("limits-rnn-fits", tables) == "not at this budget"
    for row in tables[WHILE_TRAINING]:
        row["worst"] = 0.9 if row["share"] < 1 else 0.05
    assert closed("limits-rnn-fits", tables) == ["converged"]


def test_hard_is_asked_where_the_paper_asks_it() -> None:
    name = "limits-hard-no-depth"

    def hard(length: float, recurrent: float = 100) -> Length:
        return lambda t, n, s: recurrent if n == 0 else length - 0.02 * s

    assert closed(name, fits(hard(1.5))) == ["regime"]  # one question in 17 actions
    assert verdict(name, fits(hard(1.5), 100)) == "reproduced"
    assert verdict(name, fits(hard(8), 100)) == "not reproduced"  # more training would lengthen it
    assert closed(name, fits(hard(1.5, 0.2), 100)) == ["learned"]  # nor does the RNN learn it
    assert "learned" in closed(name, swapped("limits-fig3", fits(hard(1.5), 100)))


def test_error_rates_are_close() -> None:
    def tables(below: float) -> Tables:
        """Losses that cross 0.1 at 10, and 0.05 at another length."""
        made = fits(lambda t, n, s: 10, 63)
        for row in made["positions"]:
            if row["predictor"] == "model":
                strict = below + 0.05 * row["seed"]
                row["value"] = max(0.0, 0.05 + 0.05 * (row["position"] - strict) / (10 - strict))
                row["low"] = row["high"] = row["value"]
        return made

    name = "limits-error-rates-close"
    assert verdict(name, tables(9.0)) == "reproduced"
    assert verdict(name, tables(5.0)) == "not at this budget"
    assert verdict(name, swapped("limits-fig3", tables(9.0))) == "not tested"


@pytest.mark.parametrize(
    "name, why",
    [
        ("limits-fit-length-grows", r"whether the model .*Transformers? on Cyclic-RND\) was not measured"),
        ("limits-constant-depth", "whether the model is better than a constant answer .* was not measured"),
        ("limits-hard-no-depth", r"whether the model is better .*RNN on Cyclic-HARD\) was not measured"),
    ],
)
def test_tasks_that_were_not_measured_are_named(name: str, why: str) -> None:
    """Of Cyclic-DET alone nothing is said of the others, and no number of theirs."""
    _, tables = read_tables(RESULTS / "gpu" / "limits-fig3@cyclic-det")
    assert re.match(rf"Undecided: {why}\. ", registry.lookup("claim", name).evaluate(tables).text)
