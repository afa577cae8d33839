"""The claims on the grid of [Limits], each judged on made-up tables in which it comes out each way."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from hmmscope import registry
from hmmscope.claims import limits_fig2, limits_fig3, limits_fig6, limits_losses, limits_numbers, limits_printed
from hmmscope.claims.limits_effects import everywhere, in_all, is_below, worst
from hmmscope.claims.old import Tables
from hmmscope.evidence.pooling import Pooled
from hmmscope.experiments.experiment import experiment_named
from hmmscope.experiments.limits_floors import paper_floors

SEEDS = (0, 1, 2)
FOUR = ("cyclic-hard", "cyclic-det", "matmul", "ran-hmm")
REMEMBERING = ("cyclic-det", "cyclic-rnd", "matmul")
NOISE = {0: -0.01, 1: 0.0, 2: 0.01}


def judged(name: str, tables: Tables) -> Any:
    return registry.lookup("claim", name).judge(tables)


def verdict(name: str, tables: Tables) -> str:
    found = judged(name, tables)
    assert found.text
    if found.value is not None and found.low is not None:
        assert math.isfinite(found.value)
        assert found.low <= found.value <= found.high
    return str(found.verdict)


# --------------------------------------------------------------------------------------------------------------------
# What verdicts are made of


def test_one_task_that_fails_decides() -> None:
    up, open_, down = Pooled(1.0, 0.5, 1.5), Pooled(0.5, -1.0, 2.0), Pooled(-1.0, -1.5, -0.5)
    assert everywhere({"matmul": up, "cyclic-det": up}, "", "").verdict == "reproduced"
    assert everywhere({"matmul": up, "cyclic-det": open_}, "", "").verdict == "inconclusive"
    assert everywhere({"matmul": open_, "cyclic-det": down}, "", "").verdict == "not reproduced"
    assert everywhere({"matmul": up, "cyclic-det": down}, "", "").value == -1.0
    assert everywhere({}, "", "").verdict == "inconclusive"
    partly = everywhere({"matmul": up}, "Seen.", "", wanted=("matmul", "ran-hmm"))
    assert (partly.verdict, partly.text) == ("inconclusive", "Seen. Not measured: RanHMM.")
    assert worst([]) == "inconclusive"


def test_shares_need_every_seed() -> None:
    assert in_all({"matmul": [1.0, 1.0], "ran-hmm": [1.0, 1.0]}, "").verdict == "reproduced"
    assert in_all({"matmul": [1.0, 0.9], "ran-hmm": [1.0, 1.0]}, "").verdict == "inconclusive"
    assert in_all({"matmul": [0.9, 0.9], "ran-hmm": [1.0, 1.0]}, "").verdict == "not reproduced"
    assert in_all({"matmul": [1.0]}, "", wanted=("ran-hmm",)).verdict == "inconclusive"
    assert in_all({"matmul": []}, "").verdict == "inconclusive"


def test_below_is_decided_by_the_interval() -> None:
    assert is_below(Pooled(1.0, 0.5, 1.5), "", "", below=2).verdict == "reproduced"
    assert is_below(Pooled(3.0, 2.5, 3.5), "", "", below=2).verdict == "not reproduced"
    assert is_below(Pooled(2.0, 1.5, 2.5), "", "", below=2).verdict == "inconclusive"


# --------------------------------------------------------------------------------------------------------------------
# Figure 2


def curves(final: Callable[[int], float], converged_at: Callable[[int], int], tasks: tuple[str, ...] = FOUR) -> Tables:
    """Ten epochs of 100 sequences; the loss is 0.8 before an epoch, `final` of the number of layers from it on."""
    rows = [
        {"task": task, "layers": n, "seed": seed, "epoch": epoch, "sequences": 100 * epoch}
        | {"value": final(n) + 0.001 * NOISE[seed] if epoch >= converged_at(n) else 0.8}
        for task in tasks
        for n in (0, 1, 2)
        for seed in SEEDS
        for epoch in range(1, 11)
    ]
    return {"epochs": rows}


def test_crossings_are_intervals() -> None:
    def rows(*values: float | None) -> list[dict]:
        return [{"sequences": 100 * (i + 1), "value": value} for i, value in enumerate(values)]

    assert limits_fig2.crossing(rows(0.8, 0.05, 0.04)) == (100, 200)
    assert limits_fig2.crossing(rows(0.05, 0.04)) == (0, 100)
    assert limits_fig2.crossing(rows(0.05, 0.2, 0.04)) == (200, 300)  # it has to stay below
    assert limits_fig2.crossing(rows(0.8, 0.1)) == (200, None)
    assert limits_fig2.crossing(rows(None, 0.8, 0.01)) == (200, 300)
    assert limits_fig2.crossing(rows(None)) is None


def test_the_rnn_converges_faster() -> None:
    name = "limits-rnn-converges-faster"
    faster = judged(name, curves(lambda n: 0.01, lambda n: 2 if n == 0 else 9))
    assert faster.verdict == "reproduced"
    assert faster.value == pytest.approx(math.log2(800 / 200))  # after 800 at least, against 200 at most
    assert verdict(name, curves(lambda n: 0.01, lambda n: 9 if n == 0 else 2)) == "not reproduced"
    assert verdict(name, curves(lambda n: 0.01, lambda n: 4)) == "inconclusive"  # within the same epoch
    never = curves(lambda n: 0.01 if n == 0 else 0.5, lambda n: 2)  # no Transformer arrives: later than the last epoch
    assert judged(name, never).value == pytest.approx(math.log2(1000 / 200))
    assert verdict(name, curves(lambda n: 0.5, lambda n: 2)) == "inconclusive"
    assert verdict(name, curves(lambda n: 0.01, lambda n: 2 if n == 0 else 9, FOUR[:3])) == "inconclusive"
    only = {"epochs": [row for row in never["epochs"] if row["layers"] > 0]}
    assert verdict(name, only) == "inconclusive"
    mixed = curves(lambda n: 0.01, lambda n: 2 if n == 0 else 9, FOUR[:3])["epochs"]
    mixed += curves(lambda n: 0.01, lambda n: 9 if n == 0 else 2, FOUR[3:])["epochs"]
    assert verdict(name, {"epochs": mixed}) == "not reproduced"


def test_the_rnn_ends_as_accurate() -> None:
    name = "limits-rnn-final-accuracy"
    assert verdict(name, curves(lambda n: 0.02 if n == 0 else 0.015, lambda n: 2)) == "reproduced"  # within the margin
    assert verdict(name, curves(lambda n: 0.05 if n == 0 else 0.01, lambda n: 2)) == "not reproduced"
    # the best Transformer counts, not their mean
    assert verdict(name, curves(lambda n: {0: 0.05, 1: 0.5, 2: 0.01}[n], lambda n: 2)) == "not reproduced"
    noisy = curves(lambda n: 0.02, lambda n: 2)
    for row in noisy["epochs"]:
        if row["layers"] == 0:
            row["value"] += 5 * (NOISE[row["seed"]] + 0.01)
    assert verdict(name, noisy) == "inconclusive"


# --------------------------------------------------------------------------------------------------------------------
# Figure 3


def fits(length: Callable[[str, int, int], float], longest: int = 16) -> Tables:
    """Fit lengths by task, number of layers and seed, the same at both error rates."""
    rows = [
        {"predictor": "model", "by": "epochs", "error_rate": rate, "task": task, "layers": n, "seed": seed}
        | {"value": min(length(task, n, seed), longest), "longest": longest, "fits_from": None}
        for task in (*REMEMBERING, "ran-hmm", "ran-lds", "cyclic-hard")
        for n in (0, 1, 2, 3, 4)
        for seed in SEEDS
        for rate in (0.05, 0.1)
    ]
    others = [row | {"predictor": "constant", "by": "final", "value": 16} for row in rows]  # must not count
    return {"fit-lengths": rows + others}


def test_growth_stops_counting_at_the_whole_length() -> None:
    rows = [{"layers": n, "value": value, "longest": 16} for n, value in ((0, 16), (1, 4), (2, 16), (3, 16))]
    assert limits_fig3.growth(rows) == pytest.approx(2.0)
    assert limits_fig3.growth(rows[:2]) is None
    assert limits_fig3.growth([{"layers": 1, "value": 16, "longest": 16}, rows[2]]) is None
    flat = [{"layers": n, "value": 0, "longest": 16} for n in (1, 2)]
    assert limits_fig3.growth(flat) == 0.0


@pytest.mark.parametrize(
    "name, good, bad, unclear",
    [
        ("limits-rnn-fits", lambda t, n, s: 16, lambda t, n, s: 15 if t == "matmul" else 16, lambda t, n, s: 14 + s),
        ("limits-fit-length-grows", lambda t, n, s: 2**n, lambda t, n, s: 4, lambda t, n, s: 4 + n * (s - 1)),
        (
            "limits-fit-length-doubles",
            lambda t, n, s: 2**n,
            lambda t, n, s: 4 + n,
            lambda t, n, s: 2 ** (n * (s + 1) // 2),
        ),
        ("limits-fit-length-power", lambda t, n, s: 2**n, lambda t, n, s: 2**n - 1, lambda t, n, s: 2**n - (s == 0)),
        ("limits-constant-depth", lambda t, n, s: 16, lambda t, n, s: 8 if n < 3 else 16, lambda t, n, s: 14 + s),
        (
            "limits-hard-no-depth",
            lambda t, n, s: 2 if n else 16,
            lambda t, n, s: 8,
            lambda t, n, s: 2,  # nor does the RNN learn it
        ),
        (
            "limits-hard-below-det",
            lambda t, n, s: 4 if t == "cyclic-hard" else 8,
            lambda t, n, s: 8,
            lambda t, n, s: 4 + 4 * s if t == "cyclic-hard" else 8,
        ),
        (
            "limits-hard-plateau",
            lambda t, n, s: 4 if t == "cyclic-hard" else 2 * n,
            lambda t, n, s: 2 * n,
            lambda t, n, s: 4 * max(1, (n - 2) * s) if t == "cyclic-hard" else 2 * n,
        ),
    ],
)
def test_claims_on_fit_lengths(name: str, good: Callable, bad: Callable, unclear: Callable) -> None:
    assert verdict(name, fits(good)) == "reproduced"
    assert verdict(name, fits(bad)) == "not reproduced"
    assert verdict(name, fits(unclear)) == "inconclusive"
    assert verdict(name, {"fit-lengths": []}) == "inconclusive"


def test_error_rates_are_close() -> None:
    def tables(share: Callable[[int], float]) -> Tables:
        made = fits(lambda task, n, seed: 10)
        for row in made["fit-lengths"]:
            row["value"] = 10 * share(row["seed"]) if row["error_rate"] == 0.05 else row["value"]
        return made

    name = "limits-error-rates-close"
    assert verdict(name, tables(lambda seed: 0.9)) == "reproduced"
    assert verdict(name, tables(lambda seed: 0.5)) == "not reproduced"
    assert verdict(name, tables(lambda seed: (0.5, 0.8, 1.0)[seed])) == "inconclusive"
    assert verdict(name, fits(lambda task, n, seed: 0)) == "inconclusive"


# --------------------------------------------------------------------------------------------------------------------
# Figure 6


def test_a_fit_without_room_to_double_says_nothing_of_doubling() -> None:
    """From more than half of the sequence on; the claim is left open if that is so on a task."""
    name = "limits-fit-length-doubles"
    assert verdict(name, fits(lambda t, n, s: 9 + n if t == "cyclic-det" else 2**n)) == "inconclusive"
    assert verdict(name, fits(lambda t, n, s: 9 + n if t == "cyclic-det" else 4 + n)) == "not reproduced"
    assert limits_fig3.growth(fits(lambda t, n, s: 9 + n)["fit-lengths"][:8], 0.5) is None


def test_what_no_depth_fits_is_not_short_of_depth() -> None:
    name = "limits-constant-depth"
    assert verdict(name, fits(lambda t, n, s: 8)) == "inconclusive"
    assert verdict(name, fits(lambda t, n, s: 16 if n > 2 else 8)) == "not reproduced"


def test_one_seed_decides_nothing() -> None:
    def first(tables: Tables) -> Tables:
        return {key: [row for row in rows if row["seed"] == 0] for key, rows in tables.items()}

    for name, value in (("limits-rnn-fits", 8), ("limits-rnn-fits", 16), ("limits-constant-depth", 16)):
        assert verdict(name, first(fits(lambda t, n, s, value=value: value))) == "inconclusive"


def curricula(difference: Callable[[int], float], tasks: tuple[str, ...] = ("cyclic-det", "matmul")) -> Tables:
    rows = [
        {"task": task, "layers": n, "seed": seed, "curriculum": kept, "stages": 3 if kept and n < 3 else 1}
        | {"longest": 16, "value": 8 + (difference(seed) if kept and n < 3 else 0)}
        for task in tasks
        for n in (1, 2, 3)
        for seed in SEEDS
        for kept in (True, False)
    ]
    rows = [row | {"tokens": 100 if row["curriculum"] else 200} for row in rows]
    epochs = [row | {"epoch": epoch, "tokens": row["tokens"] * epoch // 2} for row in rows for epoch in (1, 2)]
    return {"fit-lengths": rows, "epochs": epochs}


@pytest.mark.parametrize(
    "name, good, bad",
    [
        ("limits-curriculum-det", 0.0, -4.0),
        ("limits-curriculum-matmul", 2.0, -1.0),
        ("limits-curriculum-faster", 2.0, -1.0),
        ("limits-curriculum-shortens", 2.0, -1.0),
    ],
)
def test_claims_on_the_curriculum(name: str, good: float, bad: float) -> None:
    assert judged(name, curricula(lambda seed: good)).value == pytest.approx(good / 16)  # one stage does not count
    assert verdict(name, curricula(lambda seed: good)) == "reproduced"
    assert verdict(name, curricula(lambda seed: bad)) == "not reproduced"
    assert verdict(name, curricula(lambda seed: 4.0 * (seed - 1))) == "inconclusive"
    without = {key: [r for r in rows if not r["curriculum"]] for key, rows in curricula(lambda seed: good).items()}
    assert verdict(name, without) == "inconclusive"


# --------------------------------------------------------------------------------------------------------------------
# Tables 3 and 4


def losses(excess: Callable[[int, int], float], tasks: tuple[str, ...]) -> Tables:
    return {
        "losses": [
            {"task": task, "layers": n, "seed": seed, "length": 16, "excess": excess(n, seed)}
            | {"loss": 1 + excess(n, seed)}
            for task in tasks
            for n in (0, 1, 2, 3, 4)
            for seed in SEEDS
        ]
    }


def test_short_depths_are_those_of_the_paper() -> None:
    assert limits_losses.short_depths(120) == (5, 6)
    assert limits_losses.short_depths(16) == (2, 3)
    assert limits_losses.short_depths(4) == (1, 1)


def test_remembering_tasks_are_worse() -> None:
    name = "limits-remembering-worse"
    assert verdict(name, losses(lambda n, s: 0.1 if n in (2, 3) else 1e-4, REMEMBERING)) == "reproduced"
    assert verdict(name, losses(lambda n, s: 1e-4 if n == 3 else 0.1, REMEMBERING)) == "not reproduced"
    assert verdict(name, losses(lambda n, s: 10.0 ** -(s + 2) if n else 1e-4, REMEMBERING)) == "inconclusive"
    assert verdict(name, losses(lambda n, s: 0.1 if n else 1e-4, REMEMBERING[:2])) == "inconclusive"


def test_forgetting_tasks_are_comparable() -> None:
    name, tasks = "limits-forgetting-comparable", ("ran-hmm", "ran-lds")
    assert verdict(name, losses(lambda n, s: 0.01 * n + NOISE[s] / 10, tasks)) == "reproduced"
    assert verdict(name, losses(lambda n, s: -0.01 * n, tasks)) == "reproduced"
    assert verdict(name, losses(lambda n, s: 0.05 * n, tasks)) == "not reproduced"
    assert verdict(name, losses(lambda n, s: -0.05 * n, tasks)) == "not reproduced"
    assert verdict(name, losses(lambda n, s: n * 3 * NOISE[s], tasks)) == "inconclusive"


def training(at: Callable[[str, float, int], float], tasks: tuple[str, ...] = REMEMBERING) -> Tables:
    """Losses at ten shares of the training; the trivial loss is 1."""
    rows = [
        {"task": task, "layers": 4, "long": False, "seed": seed, "epoch": epoch, "share": epoch / 10}
        | {"training_loss": at(task, epoch / 10, seed), "step": 100 * epoch}
        for task in tasks
        for seed in SEEDS
        for epoch in range(1, 11)
    ]
    long = [row | {"long": True, "training_loss": 0.0} for row in rows]  # must not count
    references = [{"task": t, "long": False, "seed": s, "trivial": 1.0} for t in tasks for s in SEEDS]
    return {"losses": rows + long, "references": references}


def slope(of_matmul: float, of_cycles: float) -> Callable[[str, float, int], float]:
    """Losses that fall evenly, at these rates."""
    return lambda task, share, seed: 0.5 + (of_matmul if task == "matmul" else of_cycles) * (1 - share)


def test_matmul_converges_slower() -> None:
    name = "limits-matmul-slower"
    assert verdict(name, training(slope(0.5, 0.01))) == "reproduced"
    assert verdict(name, training(slope(0.01, 0.5))) == "not reproduced"
    assert verdict(name, training(slope(0.1, 0.1))) == "not reproduced"
    noisy = training(lambda task, share, seed: 0.5 + (seed * 0.2 if task == "matmul" else 0.2) * (1 - share))
    assert verdict(name, noisy) == "inconclusive"
    assert verdict(name, training(lambda task, share, seed: 1 - 0.01 * share)) == "inconclusive"  # nothing is learned
    longer = training(lambda task, share, seed: 0.5 + (0.9 if task == "cyclic-det" else 0.1) * (1 - share))
    for row in longer["losses"]:
        row["step"] *= 2 if row["task"] == "cyclic-det" else 1
    assert judged(name, longer).value == pytest.approx(0.0)  # Cyclic-DET, trained for longer, is left out
    assert "Cyclic-DET (2,000 steps)" in judged(name, longer).text


def test_cycles_have_converged() -> None:
    name = "limits-cycles-converged"
    assert verdict(name, training(slope(0.5, 0.01))) == "reproduced"
    assert verdict(name, training(slope(0.0, 0.2))) == "not reproduced"
    assert verdict(name, training(lambda task, share, seed: 0.05 * seed * (1 - share))) == "inconclusive"
    assert verdict(name, training(slope(0.5, 0.01), ("cyclic-det",))) == "inconclusive"


def test_matmul_fails() -> None:
    name = "limits-matmul-fails"
    assert verdict(name, training(lambda task, share, seed: 0.5 if task == "matmul" else 0.0)) == "reproduced"
    assert verdict(name, training(lambda task, share, seed: 0.01)) == "not reproduced"
    assert verdict(name, training(lambda task, share, seed: 0.1 * seed if task == "matmul" else 0.0)) == "inconclusive"
    assert verdict(name, training(lambda task, share, seed: 0.5)) == "inconclusive"  # nor is Cyclic-DET learned


def floors(task: str, *values: float) -> Tables:
    return {
        "paper-floors": [
            {"task": task, "backward": 0.01 if task == "cyclic-rnd" else None, "seed": seed, "value": value}
            | {"low": value, "high": value, "batch_deviation": 0.01, "samples": 100}
            for seed, value in enumerate(values)
        ]
    }


@pytest.mark.parametrize(
    "name, task, printed",
    [
        ("limits-printed-rnd-rnn", "cyclic-rnd", 3.7769e-6),
        ("limits-printed-rnd-transformers", "cyclic-rnd", 1.1377),
        ("limits-printed-lds-rnn", "ran-lds", 2.58242),
    ],
)
def test_printed_losses_are_judged_by_the_floor(name: str, task: str, printed: float) -> None:
    assert verdict(name, floors(task, printed - 0.1, printed - 0.11)) == "reproduced"
    assert verdict(name, floors(task, printed + 0.1, printed + 0.11)) == "not reproduced"
    assert verdict(name, floors(task, printed - 0.1, printed + 0.1)) == "inconclusive"
    assert verdict(name, floors("other", 1.0)) == "inconclusive"
    assert judged(name, floors(task, printed + 0.1)).value == pytest.approx(-0.1)


def test_the_printed_loss_of_seven_layers() -> None:
    name = "limits-printed-rnd-converged"
    assert verdict(name, floors("cyclic-rnd", 1.50, 1.501)) == "reproduced"
    assert verdict(name, floors("cyclic-rnd", 1.12, 1.13)) == "not reproduced"
    assert verdict(name, floors("cyclic-rnd", 1.40, 1.50)) == "inconclusive"
    assert verdict(name, floors("other", 1.0)) == "inconclusive"
    for as_printed, expected in (((1.40, 1.45, 1.50), "inconclusive"), ((1.20, 1.21, 1.22), "not reproduced")):
        hidden = [
            row | {"backward": 0.01} for row in floors("cyclic-rnd, first action hidden", *as_printed)["paper-floors"]
        ]
        both = {"paper-floors": floors("cyclic-rnd", 1.12, 1.13, 1.125)["paper-floors"] + hidden}
        assert verdict(name, both) == expected  # read as printed the floor may explain the loss


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
    tables = {"paper-floors": [row | {"seed": 0} for row in rows]}
    assert verdict("limits-printed-rnd-rnn", tables) == "not reproduced"
    assert verdict("limits-printed-rnd-converged", tables) == "not reproduced"  # whichever way this instance is read
    assert verdict("limits-printed-lds-rnn", tables) == "not reproduced"


def test_printed_tables_are_whole() -> None:
    assert sum(map(len, limits_numbers.TABLE_3.values())) == 17
    assert sum(map(len, limits_numbers.TABLE_4.values())) == 19


# --------------------------------------------------------------------------------------------------------------------
# Plans


def test_plans_share_the_grid() -> None:
    """The figures ask for the same configurations, so that the pool trains each once."""
    plans = {
        name: plan_of(name) for name in ("limits-fig2", "limits-fig3", "limits-fig6", "limits-table3", "limits-table4")
    }
    whole = plans["limits-fig3"]
    assert len(whole) == 6 * 5
    for name, plan in plans.items():
        for label, data in plan.items():
            if not label.endswith("no curriculum"):
                assert data == whole[label], (name, label)
    without = {label for label in plans["limits-fig6"] if label.endswith("no curriculum")}
    depths = ("1 layer", "2 layers", "3 layers")
    assert without == {f"{task}, {n}, no curriculum" for task in ("cyclic-det", "matmul") for n in depths}


def plan_of(name: str, scale: str = "small", **changes: Any) -> dict[str, dict[str, Any]]:
    experiment = experiment_named(name)
    return experiment.plan(scale, **(experiment.choices(scale) | changes))


def test_the_long_run_is_twice_as_long() -> None:
    plan = plan_of("limits-table4", "paper")
    short, long = plan["matmul, 7 layers"], plan["long, matmul, 7 layers"]
    assert long["training"]["num_steps"] == 2 * short["training"]["num_steps"]
    assert "long, matmul, 4 layers" in plan_of("limits-table4", long_factor=2)
    assert len(plan_of("limits-table4")) == 3


def test_modules_name_their_claims() -> None:
    modules = (limits_fig2, limits_fig3, limits_fig6, limits_losses, limits_printed)
    claims = [one for one in registry.in_order("claim") if one.judge.__module__ in {m.__name__ for m in modules}]
    assert len(claims) == 3 + 9 + 4 + 5 + 4
    assert all(one.source.startswith("[Limits]") for one in claims)
