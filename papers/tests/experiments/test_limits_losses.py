"""Claims on final and printed losses (Tables 3 and 4), each judged on made-up tables in which it comes out each way."""

from collections.abc import Callable
from typing import Any

import pytest

from hmmscope.lab.evidence.verdicts import OF_QUESTIONS
from hmmscope_papers.limits import paper_values as limits_printed
from hmmscope_papers.limits import table3 as limits_table3
from hmmscope_papers.limits.paper_values import paper_floors
from hmmscope_papers.limits.tables import REMEMBERING, WHILE_TRAINING
from hmmscope_papers.limits.trainings import label_of
from limits_cases import NOISE, SEEDS, at_rest, budgets, closed, judged, swapped, verdict

Tables = dict[str, Any]
FORGETTING = ("ran-hmm", "ran-lds")


def losses(
    excess: Callable[[int, int], float],
    tasks: tuple[str, ...] = REMEMBERING,
    *,
    passes: float = 100.0,
    fresh: float = 0.0,
) -> Tables:
    """Losses above a floor of 1, where the constant answer has 3; `fresh` is by how much of the excess training is below."""
    grid = [(task, n, seed) for task in tasks for n in range(5) for seed in SEEDS]
    rows = []
    for task, n, seed in grid:
        value = excess(n, seed) * (1 + (1 + n) * NOISE[seed])
        row = {"task": task, "layers": n, "seed": seed, "length": 16, "excess": value, "low": value, "high": value}
        row |= {"loss": 1 + value, "training_loss": 1 + value * (1 - fresh), "floor": 1.0, "trivial": 3.0}
        rows.append(row | {"passes": passes})
    labels = [label_of(task, n) for task in tasks for n in range(5)]
    facts = [{"task": task, "layers": n, "seed": seed} for task, n, seed in grid]
    return {"losses": rows, "runs": budgets(labels), WHILE_TRAINING: at_rest(facts)}


def test_short_depths_are_those_of_the_paper() -> None:
    assert limits_table3.short_depths(120) == (5, 6)
    assert limits_table3.short_depths(16) == (2, 3)
    assert limits_table3.short_depths(4) == (1, 1)


def test_remembering_tasks_are_worse() -> None:
    name = "limits-remembering-worse"
    good = losses(lambda n, s: 0.1 if n in (2, 3) else 1e-4)
    assert verdict(name, good) == "reproduced"
    assert verdict(name, losses(lambda n, s: 4e-4 if n == 3 else 1e-4)) == "not at this budget"
    assert (
        verdict(name, losses(lambda n, s: 4e-4 if n in (2, 3) else 1e-4)) == "not at this budget"
    )  # 4 times is not much
    assert verdict(name, losses(lambda n, s: 10.0 ** -(s + 2) if n else 1e-3)) == "inconclusive"
    assert verdict(name, losses(lambda n, s: 0.1 if n else 1e-4, REMEMBERING[:2])) == "not tested"
    assert verdict(name, swapped("limits-table3", good)) != "reproduced"
    longer = good | {
        "runs": budgets([row["label"] for row in good["runs"]], lambda label: 400 if "RNN" in label else 100)
    }
    assert set(closed(name, longer)) == {"matched"}


def test_forgetting_tasks_are_comparable_by_the_same_measure() -> None:
    name = "limits-forgetting-comparable"
    good = losses(lambda n, s: 0.01 * (1 + n), FORGETTING)
    assert verdict(name, good) == "reproduced"
    assert verdict(name, losses(lambda n, s: 0.3 if n else 0.01, FORGETTING)) == "not at this budget"
    assert verdict(name, losses(lambda n, s: 0.001 if n else 0.03, FORGETTING)) == "not at this budget"
    assert verdict(name, losses(lambda n, s: 0.1 * 10.0**-s if n else 0.01, FORGETTING)) == "inconclusive"
    assert closed(name, swapped("limits-table3", good)) == ["learned"]
    for row in good["losses"]:
        del row["trivial"]
    assert closed(name, good) == ["learned"]  # not recorded


def test_overfitting() -> None:
    name = "limits-no-overfitting"
    assert verdict(name, losses(lambda n, s: 0.1, fresh=0.01)) != "not at this budget"
    noisy = losses(lambda n, s: 0.1)
    for row in noisy["losses"]:
        row["training_loss"] -= 0.002 + 0.01 * abs(NOISE[row["seed"]])
    assert verdict(name, noisy) == "reproduced"
    for row in noisy["losses"]:
        row["training_loss"] -= 0.05
    assert verdict(name, noisy) == "not reproduced"
    once = losses(lambda n, s: 0.1, passes=1.0)
    assert closed(name, once) == ["regime"]  # every sample is fresh
    assert closed(name, losses(lambda n, s: 0.1, passes=4.0)) == ["regime"]  # too seldom to be learned by heart
    assert verdict(name, {**once, "fixed": noisy["losses"]}) == "not reproduced"
    assert "reproduced" not in verdict(
        name, {**noisy, "fixed": once["losses"]}
    )  # the grid beside it counts for nothing
    assert "learned" in closed(name, swapped("limits-table3", noisy))


def training(at: Callable[[str, float, int], float], tasks: tuple[str, ...] = REMEMBERING) -> Tables:
    """Losses at ten shares of the training; the trivial loss is 1."""
    rows = [
        {"task": task, "layers": 4, "long": False, "seed": seed, "epoch": epoch, "share": epoch / 10}
        | {"training_loss": at(task, epoch / 10, seed), "evaluation_loss": 1.0, "step": 100_000 * epoch}
        for task in tasks
        for seed in SEEDS
        for epoch in range(1, 11)
    ]
    long = [row | {"long": True, "training_loss": 0.0} for row in rows]  # must not count
    references = [{"task": t, "long": False, "seed": s, "trivial": 1.0} for t in tasks for s in SEEDS]
    return {"losses": rows + long, "references": references}


def slope(of_matmul: float, of_cycles: float, end: float = 0.5) -> Callable[[str, float, int], float]:
    """Losses that fall evenly, at these rates, a little apart by seed."""

    def at(task: str, share: float, seed: int) -> float:
        rate = of_matmul if task == "matmul" else of_cycles * (1 + NOISE[seed])
        return end + rate * (1 - share) + (0.1 if task == "matmul" else 0.05) * NOISE[seed]

    return at


def test_matmul_converges_slower() -> None:
    name = "limits-matmul-slower"
    good = training(slope(0.5, 0.01))
    assert verdict(name, good) == "reproduced"
    assert verdict(name, training(slope(0.01, 0.5))) == "not at this budget"
    assert verdict(name, training(slope(0.1, 0.1))) == "not at this budget"
    noisy = training(
        lambda task, share, seed: 0.5 + 0.01 * NOISE[seed] + (seed * 0.2 if task == "matmul" else 0.2) * (1 - share)
    )
    assert verdict(name, noisy) == "inconclusive"
    assert verdict(name, training(lambda task, share, seed: 1 - 0.01 * share)) == "not tested"  # nothing is learned
    assert verdict(name, training(slope(0.5, 0.01), REMEMBERING[1:])) == "not tested"  # of both cycles
    for row in good["losses"]:
        row["step"] *= 2 if row["task"] == "cyclic-det" else 1
    assert closed(name, good) == ["matched"]
    assert verdict(name, swapped("limits-table4", training(slope(0.5, 0.01)))) == "not tested"


def test_cycles_have_converged() -> None:
    name = "limits-cycles-converged"
    good = training(slope(0.5, 0.01))
    assert verdict(name, good) == "reproduced"
    assert verdict(name, training(slope(0.0, 0.2))) == "not at this budget"
    assert verdict(name, training(lambda task, share, seed: 0.05 * seed * (1 - share) + 0.01 * seed)) == "inconclusive"
    assert verdict(name, training(slope(0.5, 0.01), ("cyclic-det",))) == "not tested"
    assert closed(name, swapped("limits-table4", good)) == ["learned"]  # the constant answer is at rest too
    for row in good["losses"]:
        row["step"] //= 100
    assert closed(name, good) == ["regime"]  # the paper takes two million steps


def test_matmul_fails() -> None:
    name = "limits-matmul-fails"

    def ends(matmul: float, cycle: float, spread: float = 0.01, fall: float = 0.0) -> Tables:
        return training(
            lambda task, share, seed: (matmul if task == "matmul" else cycle) + spread * seed + fall * (1 - share)
        )

    assert verdict(name, ends(0.5, 0.0)) == "reproduced"
    assert verdict(name, ends(0.01, 0.0)) == "not reproduced"
    assert (
        verdict(name, training(lambda t, share, seed: 0.1 * seed if t == "matmul" else 0.01 * seed)) == "inconclusive"
    )
    assert closed(name, ends(0.5, 0.5)) == ["learned"]  # nor is Cyclic-DET learned
    assert closed(name, ends(0.5, 0.0, fall=0.1)) == []  # it falls, and not as far in one more doubling
    assert closed(name, ends(0.3, 0.0, fall=0.5)) == ["converged"]
    assert closed(name, swapped("limits-table4", ends(0.5, 0.0))) == ["learned"]


# ---------------------------------------------------------------------------------------------------------------------
# Printed losses


def floors(task: str, *values: float, deviation: float = 0.004) -> Tables:
    return {
        "paper-floors": [
            {"task": task, "backward": 0.01 if task.startswith("cyclic-rnd") else None, "seed": seed, "value": value}
            | {"low": value, "high": value, "batch_deviation": deviation, "samples": 100}
            for seed, value in enumerate(values)
        ]
    }


@pytest.mark.parametrize(
    "name, task, printed",
    [("limits-printed-rnd-rnn", "cyclic-rnd", 3.7769e-6), ("limits-printed-lds-rnn", "ran-lds", 2.58242)],
)
def test_printed_losses_are_judged_by_the_floor_of_one_more_instance(name: str, task: str, printed: float) -> None:
    def around(gap: float, spread: float = 0.001) -> Tables:
        least = (printed - gap) / limits_printed.LEAST_SHARE
        return floors(task, *(least + spread * (i - 1) for i in range(3)))

    assert verdict(name, around(0.1)) == "reproduced"
    assert verdict(name, around(-0.1)) == "not reproduced"
    assert verdict(name, around(0.0, 0.005)) == "inconclusive"
    assert verdict(name, floors("other", 1.0)) == "not tested"
    assert judged(name, around(-0.1)).value == pytest.approx(-0.1, abs=0.002)


def test_what_the_paper_does_not_say_keeps_its_loss_from_being_judged() -> None:
    """As measured: a batch of 256 scatters by 0.0094, and what the printed loss is a mean over is not said."""
    name = "limits-printed-lds-rnn"
    assert closed(name, floors("ran-lds", 2.6117, 2.6117, deviation=0.0094)) == ["regime"]


def test_one_more_instance_scatters_more_than_the_mean() -> None:
    """The mean floor is surely below the printed loss, that of one more instance is not."""
    found = judged(
        "limits-printed-rnd-transformers", floors("cyclic-rnd", *(1.140 + 0.005 * (-1) ** i for i in range(9)))
    )
    assert found.low < 0 < (found.value or 0)
    assert found.verdict in OF_QUESTIONS


def test_the_printed_loss_of_seven_layers() -> None:
    name, task = "limits-printed-rnd-converged", "cyclic-rnd, first action hidden"
    assert verdict(name, floors(task, 1.50, 1.501, 1.502, 1.504)) == "reproduced"
    assert verdict(name, floors(task, 1.12, 1.13, 1.125)) == "not reproduced"
    assert verdict(name, floors(task, 1.12, 1.13, 1.25)) == "not tested"
    wide = floors(task, 1.40, 1.45, 1.50)  # too wide to explain anything
    assert closed(name, wide) == ["regime"]
    assert verdict(name, floors("cyclic-rnd", 1.50, 1.501)) == "not tested"


def test_floors_at_the_paper_sizes() -> None:
    """As computed apart from this library: 1.1269 (sd 0.0016 over instances), 1.4387, 1.5075, and 2.6117240 exactly."""
    rows = paper_floors(["cyclic-rnd", "ran-lds"], 0, num_samples=300, backward=[0.01, 0.03, 0.05])
    found = {(row["task"], row["backward"]): row for row in rows}
    for backward, expected in ((0.01, 1.1269), (0.03, 1.4387), (0.05, 1.5075)):
        row = found["cyclic-rnd", backward]
        assert row["low"] <= row["value"] <= row["high"]
        assert row["value"] == pytest.approx(expected, abs=0.015)  # 300 sequences, one instance
    assert found["cyclic-rnd, augmented", 0.01]["value"] == pytest.approx(1.1269, abs=0.015)
    hidden = found["cyclic-rnd, first action hidden", 0.01]
    assert 1.28 < hidden["value"] < 1.54  # computed apart: 1.417 (sd 0.067 over instances), range 1.28 to 1.54
    linear = found["ran-lds", None]
    assert linear["value"] == pytest.approx(2.6117240, abs=1e-7)
    assert linear["batch_deviation"] == pytest.approx(0.0094, abs=1e-4)
    assert linear["value"] * limits_printed.LEAST_SHARE == pytest.approx(2.5901, abs=1e-4)  # over 121 positions


def test_instances_of_seeds_are_different() -> None:
    both = [paper_floors(["ran-hmm"], seed, num_samples=20, backward=[], instances=2) for seed in (0, 1)]
    assert [row["instance"] for rows in both for row in rows] == [0, 1, 2, 3]
    assert len({row["value"] for rows in both for row in rows}) == 4


def test_the_printed_table_is_whole() -> None:
    assert sum(map(len, limits_printed.TABLE_3.values())) == 17
