"""The studies of [MultiTask] that vary one thing: their judges on made-up tables, their instruments on known answers."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from hmmscope.claims import multitask_memory, multitask_studies
from hmmscope.claims.old import Tables
from hmmscope.corpora.corpus import Corpus
from hmmscope.errors import InputError
from hmmscope.experiments import multitask_pool_size as pool_size
from hmmscope.experiments.experiment import experiment_named
from hmmscope.experiments.multitask_observability import exponent_of
from hmmscope.experiments.multitask_studies import end_rows, prompt_config, window_config
from hmmscope.experiments.multitask_windows import divergence, exact_rate, histories_of, window_rows
from hmmscope.inference.memory_error import memory_error
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import Run, fresh_model, train
from hmmscope.sweeps.grid import run_name

NAMES = ("context-length", "observability", "positions", "heads", "rank", "pool-size")


# ---------------------------------------------------------------------------------------------------------------------
# Judges: memory


def memory_row(seed: int, memory: int, predictor: str, metric: str, value: float, **more: Any) -> dict[str, Any]:
    return {"seed": seed, "memory": memory, "predictor": predictor, "metric": metric, "value": value} | more


def decay_tables(error: Any, lengths: tuple[int, ...] = (1, 2, 3, 4, 6), learning: float = 0.0) -> Tables:
    """Errors of three seeds: what `error` says of (seed, k), and of models the same with a learning part."""
    rows = []
    for seed in range(3):
        for k in lengths:
            value = error(seed, k)
            rows += [memory_row(seed, k, "memory", metric, value) for metric in ("excess", "total_variation")]
            rows.append(memory_row(seed, k, "model", "excess", value + learning))
            rows.append(memory_row(seed, k, "model", "learning", learning))
    return {"errors": rows}


MEMORY_JUDGES = (multitask_memory.memory_decay, multitask_memory.context_decay)


@pytest.mark.parametrize("claim", MEMORY_JUDGES, ids=lambda claim: claim.name)
def test_exponential_decay_is_told_from_a_power_law(claim: Any) -> None:
    exponential = claim.judge(decay_tables(lambda seed, k: (0.1 + 0.01 * seed) * math.exp(-0.8 * k)))
    assert exponential.verdict == "reproduced"
    assert exponential.value > 0
    assert "factor 0.45" in exponential.text
    power = claim.judge(decay_tables(lambda seed, k: (0.1 + 0.01 * seed) * k**-2.0))
    assert power.verdict == "not reproduced"
    assert power.value < 0


@pytest.mark.parametrize("claim", MEMORY_JUDGES, ids=lambda claim: claim.name)
def test_growing_errors_are_no_decay(claim: Any) -> None:
    assert claim.judge(decay_tables(lambda seed, k: 0.01 * math.exp(0.3 * k))).verdict == "not reproduced"


@pytest.mark.parametrize("claim", MEMORY_JUDGES, ids=lambda claim: claim.name)
def test_seeds_that_disagree_leave_decay_open(claim: Any) -> None:
    mixed = decay_tables(lambda seed, k: 0.1 * (math.exp(-0.8 * k) if seed else k**-2.0))
    assert claim.judge(mixed).verdict == "inconclusive"


def test_decay_with_too_few_lengths_is_inconclusive() -> None:
    tables = decay_tables(lambda seed, k: math.exp(-k), lengths=(1, 2))
    judged = multitask_memory.memory_decay.judge(tables)
    assert judged.verdict == "inconclusive"
    assert "2, 2, 2" in judged.text


def test_only_lengths_that_memory_limits_are_judged() -> None:
    """Beyond them the model's error is flat, which looks like a power law and is not what the lemma is about."""
    tables = decay_tables(lambda seed, k: math.exp(-k), lengths=(1, 2, 3, 4, 6, 8), learning=math.exp(-4.5))
    rows = [row for row in tables["errors"] if row["seed"] == 0]
    assert list(multitask_memory.limited_by_memory(rows)) == [1, 2, 3, 4]
    assert multitask_memory.context_decay.judge(tables).verdict == "reproduced"
    learned_little = decay_tables(lambda seed, k: math.exp(-k), learning=math.exp(-2.5))
    assert multitask_memory.context_decay.judge(learned_little).verdict == "inconclusive"


def test_one_seed_of_several_decides_nothing() -> None:
    """It has no interval; a table of one seed only is decided by its value."""
    tables = decay_tables(lambda seed, k: math.exp(-k), learning=1e-3)
    for row in tables["errors"]:
        if row["seed"] and row["metric"] == "learning":
            row["value"] = 1.0
    assert multitask_memory.context_decay.judge(tables).verdict == "inconclusive"
    alone = {"errors": [row for row in tables["errors"] if row["seed"] == 0]}
    assert multitask_memory.context_decay.judge(alone).verdict == "reproduced"


def test_decay_of_a_known_sequence() -> None:
    found = multitask_memory.decay_of({k: 3 * 0.5**k for k in (1, 2, 4, 5)})
    assert found is not None
    assert found[0] == pytest.approx(math.log(0.5))
    power = multitask_memory.decay_of({k: k**-1.5 for k in (1, 2, 4, 5)})
    assert power is not None
    assert power[1] < 0


# ---------------------------------------------------------------------------------------------------------------------
# Judges: observability


def observability_tables(rate: Any, share: Any, learning: float = 1e-6) -> Tables:
    """Excess 0.1 exp(-rate * k) by observability; nothing seen costs what makes the longest memory miss `share`."""
    rows = []
    for seed in range(3):
        for gamma in (0.2, 0.4, 0.8):
            for k in (1, 2, 3):
                here = {"observability": gamma}
                excess = 0.1 * math.exp(-(rate(gamma) + 0.01 * seed) * k)
                rows.append(memory_row(seed, k, "memory", "excess", excess - learning, **here))
                rows.append(memory_row(seed, k, "model", "excess", excess, **here))
                rows.append(memory_row(seed, k, "model", "learning", learning, **here))
                rows.append(memory_row(seed, k, "model", "total_variation", math.sqrt(excess), **here))
                longest = 0.1 * math.exp(-(rate(gamma) + 0.01 * seed) * 3)
                nothing = longest / (share(gamma) + 0.01 * seed)
                rows.append(memory_row(seed, k, "stationary", "excess", nothing, **here))
    return {"errors": rows}


@pytest.mark.parametrize(
    "rate, verdict", [(lambda gamma: 1 + gamma, "reproduced"), (lambda gamma: 2 - gamma, "not reproduced")]
)
def test_rate_by_observability(rate: Any, verdict: str) -> None:
    tables = observability_tables(rate, lambda gamma: 0.5)
    assert multitask_memory.observability_rate.judge(tables).verdict == verdict


def test_rate_is_open_where_training_limits() -> None:
    tables = observability_tables(lambda gamma: 1.0, lambda gamma: 0.5, learning=0.09)
    judged = multitask_memory.observability_rate.judge(tables)
    assert judged.verdict == "inconclusive"
    assert judged.value is None


@pytest.mark.parametrize(
    "share, verdict",
    [(lambda gamma: 0.9 - gamma, "reproduced"), (lambda gamma: 0.1 + gamma, "not reproduced")],
)
def test_share_missed_by_observability(share: Any, verdict: str) -> None:
    tables = observability_tables(lambda gamma: 1.0, share)
    assert multitask_memory.observability_error.judge(tables).verdict == verdict


def test_share_missed_is_open_if_seeds_disagree() -> None:
    tables = observability_tables(lambda gamma: 1.0, lambda gamma: 0.9 - gamma)
    for row in tables["errors"]:
        if row["predictor"] == "stationary" and row["seed"] == 0 and row["observability"] == 0.8:
            row["value"] /= 12
    assert multitask_memory.observability_error.judge(tables).verdict == "inconclusive"
    alone = {"errors": [row for row in tables["errors"] if row["observability"] == 0.2]}
    assert multitask_memory.observability_error.judge(alone).verdict == "inconclusive"


def test_nothing_to_know_is_no_share() -> None:
    tables = observability_tables(lambda gamma: 1.0, lambda gamma: 0.9 - gamma)
    for row in tables["errors"]:
        if row["predictor"] == "stationary":
            row["value"] = 1e-7
    assert multitask_memory.observability_error.judge(tables).verdict == "inconclusive"


def test_exponent_of_a_known_power() -> None:
    rows = [{"observability": g, "rate": 0.3 + 2 * g**2, "mixing": 0.3} for g in (0.1, 0.2, 0.4, 0.6)]
    assert exponent_of(rows) == pytest.approx(2)
    rows += [{"observability": 0.9, "rate": 50.0, "mixing": 0.3}, {"observability": 0.5, "rate": None, "mixing": 0.3}]
    assert exponent_of(rows) == pytest.approx(2)
    assert exponent_of(rows[:1]) is None


# ---------------------------------------------------------------------------------------------------------------------
# Answers to open questions


def end_tables(key: str, excess: dict[Any, float], noise: float = 0.001, **more: Any) -> Tables:
    rows = []
    for seed in range(3):
        for setting, value in excess.items():
            wobble = noise * ((seed * 7 + len(str(setting)) * 3) % 5 - 2)
            row = {"seed": seed, key: setting, "predictor": "model", "metric": "excess", "value": value + wobble}
            rows.append(row | more)
    return {"end": rows}


@pytest.mark.parametrize(
    "learned, noise, said",
    [(0.3, 0.001, "Rotary is better"), (0.05, 0.001, "Rotary is worse"), (0.2001, 0.05, "not told apart")],
)
def test_rotary_is_compared_with_the_best_other(learned: float, noise: float, said: str) -> None:
    tables = end_tables("positions", {"rotary": 0.2, "learned": learned, "none": 0.5}, noise)
    judged = multitask_studies.rotary.judge(tables)
    assert judged.verdict == "found"
    assert said in judged.text
    assert "learned" in judged.unit


def test_rotary_needs_something_to_compare() -> None:
    judged = multitask_studies.rotary.judge(end_tables("positions", {"learned": 0.3, "none": 0.5}))
    assert judged.value is None
    assert "nothing to compare" in judged.text


@pytest.mark.parametrize("excess, said", [({1: 0.3, 4: 0.1}, "4 is better"), ({1: 0.1, 4: 0.3}, "4 is worse")])
def test_heads_are_compared(excess: dict[int, float], said: str) -> None:
    judged = multitask_studies.more_heads.judge(end_tables("heads", excess, symbols=6))
    assert said in judged.text
    assert "12 for 6 symbols" in judged.text
    assert judged.value == pytest.approx(excess[1] - excess[4], abs=0.01)


@pytest.mark.parametrize(
    "gain, said", [(0.2, "more at the highest"), (-0.05, "more at the lowest"), (0.1, "not told apart")]
)
def test_rank_is_about_what_depth_gains(gain: float, said: str) -> None:
    low = end_tables("layers", {1: 0.3, 3: 0.2}, rank=1)
    high = end_tables("layers", {1: 0.5, 3: 0.5 - gain}, noise=0.002, rank=4)
    judged = multitask_studies.layers_by_rank.judge({"end": low["end"] + high["end"]})
    assert said in judged.text
    assert judged.value == pytest.approx(gain - 0.1, abs=0.01)


def pool_tables(nearer: dict[int, float]) -> Tables:
    rows = []
    for seed in range(3):
        for size, value in nearer.items():
            here = {"seed": seed, "components": size, "on": "unseen", "metric": "total_variation"}
            rows.append(here | {"of": "model, pool", "value": 0.3 + value + 0.001 * seed})
            rows.append(here | {"of": "model, prior", "value": 0.3})
            rows.append(here | {"on": "pool", "of": "model, pool", "value": 9.0})
    prior = [{"seed": seed, "components": n, "value": 1.5 - n / 100} for seed in range(3) for n in (1, 16)]
    return {"end": rows, "prior": prior}


@pytest.mark.parametrize(
    "nearer, first",
    [
        ({1: -0.2, 4: -0.1, 16: 0.1, 64: 0.2}, 16),
        ({1: 0.2, 4: -0.1, 16: 0.1, 64: 0.2}, 16),
        ({1: -0.2, 4: -0.1, 16: 0.1, 64: -0.2}, None),
        ({1: 0.2, 4: 0.1}, 1),
    ],
)
def test_switch_is_where_the_model_stays_nearer_to_the_prior(nearer: dict[int, float], first: int | None) -> None:
    tables = pool_tables(nearer)
    assert multitask_studies.switch_size([row for row in tables["end"] if row["seed"] == 0]) == first
    judged = multitask_studies.switch.judge(tables)
    assert f"by seed: {', '.join(['none' if first is None else str(first)] * 3)}." in judged.text
    assert judged.value == pytest.approx(nearer[max(nearer)], abs=0.01)


# ---------------------------------------------------------------------------------------------------------------------
# Instruments


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = window_config("smoke", 2, 0.6)
    return train(config_from_data(config), tmp_path_factory.mktemp("window") / "run")


def test_window_errors_are_those_of_the_memory(windowed: Run) -> None:
    """The exact part is that of enumeration, and excess = memory + learning up to what the sample leaves."""
    assert isinstance(windowed.process, HMM)
    histories = histories_of(windowed, 3, 20000)
    rows = window_rows(windowed, histories, 2)
    found = {(row["predictor"], row["metric"]): row for row in rows}
    memory = found["memory", "total_variation"]
    exact = memory_error(windowed.process, 2, 9).total_variation
    assert memory["low"] <= exact <= memory["high"]
    for who in ("model", "untrained"):
        parts = found["memory", "excess"]["value"] + found[who, "learning"]["value"]
        assert found[who, "excess"]["value"] == pytest.approx(parts, rel=0.05)  # 20000 histories
    assert found["memory", "excess"]["value"] < found["stationary", "excess"]["value"]


def test_a_markov_chain_has_no_rate() -> None:
    """At observability one the last symbol is the state: one observation tells all."""
    config = config_from_data(window_config("smoke", 1, 1.0))
    process = config.process.build()
    run = Run(None, config, process, fresh_model(config, process), None)  # type: ignore[arg-type]
    histories = histories_of(run, 4, 500)
    rate = exact_rate(histories, process, [1, 2, 3, 4])
    assert rate["rate"] is None
    eigenvalues = np.sort(np.abs(np.linalg.eigvals(process.transition_SS.numpy())))
    assert math.exp(-rate["mixing"]) == pytest.approx(eigenvalues[-2])


def test_divergence_of_known_laws() -> None:
    one, other = torch.tensor([[0.5, 0.5, 0.0]]).double(), torch.tensor([[0.25, 0.5, 0.25]]).double()
    assert divergence(one, other).item() == pytest.approx(0.5 * math.log(2))
    assert divergence(one, one).item() == 0


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = prompt_config("smoke")
    return train(config_from_data(config), tmp_path_factory.mktemp("prompt") / "run")


def test_end_rows_have_the_optimum_and_the_controls(prompted: Run) -> None:
    rows = {(row["predictor"], row["metric"]): row["value"] for row in end_rows(prompted, 64)}
    assert rows["known-component", "loss"] < rows["optimum", "loss"] < rows["model", "loss"]
    assert rows["model", "excess"] > 0
    assert ("untrained", "excess") in rows
    assert ("order-1", "loss") in rows


def test_pool_rows_on_a_pool_that_is_its_own_prior(prompted: Run) -> None:
    """The mixture over the pool is at distance zero from itself, and the ceiling is below it."""
    assert isinstance(prompted.process, Mixture)
    batch = Corpus(prompted.process, layout=prompted.config.layout, seed=0, stream="evaluate")[0:100]
    same = pool_size._predictions(prompted.process, batch, prompted)
    rows = {
        (row["metric"], row["of"]): row["value"] for row in pool_size._rows(prompted, batch, prompted.process, same)
    }
    assert rows["total_variation", "pool, prior"] == 0
    assert rows["total_variation", "model, pool"] == rows["total_variation", "model, prior"] > 0
    assert rows["loss", "known"] < rows["loss", "pool"] == rows["loss", "prior"]
    assert rows["excess", "model"] > 0


# ---------------------------------------------------------------------------------------------------------------------
# Plans


def names_of(study: str, scale: str = "small") -> set[str]:
    experiment = experiment_named(f"multitask-{study}")
    plan = experiment.plan(scale, **experiment.choices(scale))
    return {run_name(config_from_data(data)) for data in plan.values()}


def test_settings_that_coincide_are_one_run() -> None:
    shared = names_of("positions") & names_of("heads") & names_of("pool-size")
    assert len(shared) == 1
    assert len(names_of("context-length") & names_of("observability")) == 3
    assert not names_of("rank") & names_of("heads")


@pytest.mark.parametrize("gamma", [0.0, 1.5])
def test_observability_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(InputError, match=r"plan.observabilities: must be in \(0, 1\]"):
        experiment_named("multitask-observability").plan("smoke", observabilities=[gamma], lengths=[1])
