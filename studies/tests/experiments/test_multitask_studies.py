"""The studies of [MultiTask] that vary one thing: their claims on made-up tables, their instruments on known answers."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from hmmscope.errors import InputError
from hmmscope.inference.memory_error import memory_error
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.evidence.verdicts import OF_QUESTIONS
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.lab.sweeps.grid import run_name
from hmmscope.processes.hmm import HMM
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import Run, untrained_model
from hmmscope.runs.training import train
from hmmscope_papers.multitask.models import multitask_config
from hmmscope_papers.multitask.predictors import pools_of
from hmmscope_studies.beyond_multitask import pool_size
from hmmscope_studies.beyond_multitask.studies import deepest, depth_matters, end_rows, prompt_config, window_config
from hmmscope_studies.beyond_multitask.trained_observability import exponent_of
from hmmscope_studies.beyond_multitask.windows import (
    decay_rate,
    divergence,
    exact_rate,
    exponential_rather,
    histories_of,
    window_rows,
)
from multitask_tables import judged

NAMES = ("context-length", "observability", "positions", "heads", "rank", "pool-size")


# ---------------------------------------------------------------------------------------------------------------------
# Memory


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
    rates = [{"seed": seed, "observability": 0.6, "rank": 3, "rate": 0.8, "mixing": 0.3} for seed in range(3)]
    return {"errors": Rows(rows), "rates": Rows(rates)}


DECAY = "multitask-memory-decay"


def test_exponential_decay_is_told_from_a_power_law() -> None:
    found = judged(DECAY, decay_tables(lambda seed, k: (0.1 + 0.01 * seed) * math.exp(-(0.8 + 0.01 * seed) * k)))
    assert found.verdict == "reproduced"
    assert "multiplied by 0.44" in found.text
    power = judged(DECAY, decay_tables(lambda seed, k: (0.1 + 0.01 * seed) * k ** -(2.0 + 0.01 * seed)))
    assert power.verdict == "not reproduced"
    assert power.value < 0


def test_growing_errors_are_no_decay() -> None:
    growing = decay_tables(lambda seed, k: 0.01 * math.exp((0.3 + 0.01 * seed) * k))
    assert judged(DECAY, growing).verdict == "not reproduced"


def test_seeds_that_disagree_leave_decay_open() -> None:
    mixed = decay_tables(lambda seed, k: 0.1 * (math.exp(-(0.8 + seed / 100) * k) if seed else k**-2.0))
    assert judged(DECAY, mixed).verdict == "inconclusive"


def test_decay_with_too_few_lengths_is_not_tested() -> None:
    found = judged(DECAY, decay_tables(lambda seed, k: math.exp(-k), lengths=(1, 2)))
    assert found.verdict == "not tested"
    assert "Fewer than three memory lengths" in found.text


def test_decay_of_a_known_sequence() -> None:
    halves = {k: 3 * 0.5**k for k in (1, 2, 4, 5)}
    assert decay_rate(halves) == pytest.approx(math.log(2))
    rather = exponential_rather(halves)
    assert rather > 0
    power = exponential_rather({k: k**-1.5 for k in (1, 2, 4, 5)})
    assert power < 0
    assert decay_rate({1: 0.5, 2: 1e-15}) is None
    assert exponential_rather({1: 0.5, 2: 0.2}) is None


# ---------------------------------------------------------------------------------------------------------------------
# Observability


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
    exact = [
        {"seed": seed, "observability": gamma, "rate": rate(gamma) + 0.01 * seed * gamma, "mixing": 0.5}
        for seed in range(3)
        for gamma in (0.2, 0.4, 0.8)
    ]
    return {"errors": Rows(rows), "rates": Rows(exact)}


@pytest.mark.parametrize(
    "rate, verdict",
    [
        (lambda gamma: 1 + gamma, "reproduced"),
        (lambda gamma: 2 - gamma, "not reproduced"),
        (lambda gamma: 1 + 0.01 * gamma, "not reproduced"),  # too little to matter
    ],
)
def test_exact_rate_by_observability(rate: Any, verdict: str) -> None:
    assert judged("multitask-observability-rate", observability_tables(rate, lambda gamma: 0.5)).verdict == verdict


def test_exponent_of_a_known_power() -> None:
    rows = Rows({"observability": g, "rate": 0.3 + 2 * g**2, "mixing": 0.3} for g in (0.1, 0.2, 0.4, 0.6))
    assert exponent_of(rows) == pytest.approx(2)
    assert exponent_of(Rows([*rows, {"observability": 0.9, "rate": 50.0, "mixing": 0.3}])) == pytest.approx(2)
    assert exponent_of(Rows(rows[:1])) is None


@pytest.mark.parametrize("rate", [0.2, None])
def test_a_point_without_a_logarithm_is_not_left_out_of_the_exponent(rate: float | None) -> None:
    """Of the others alone the power would be two."""
    rows = [{"seed": 0, "observability": g, "rate": 0.3 + 2 * g**2, "mixing": 0.3} for g in (0.2, 0.4, 0.6)]
    slow = {"seed": 0, "observability": 0.1, "rate": rate, "mixing": 0.3}
    assert exponent_of(Rows([slow, *rows])) is None
    others = [row | {"seed": seed} for seed in (1, 2) for row in [slow | {"rate": 0.32}, *rows]]
    tables = {"rates": Rows([slow, *rows, *others])}
    found = judged("multitask-observability-exponent", tables)
    assert "An exponent of gamma was fitted in 2 of 3 seeds" in found.text
    assert ("slow the forgetting of the chain at gamma = 0.1 in 1 of 3 seeds" in found.text) == (rate is not None)
    assert found.num_seeds == 2


# ---------------------------------------------------------------------------------------------------------------------
# Answers to open questions


def end_tables(key: str, excess: dict[Any, float], noise: float = 0.001, **more: Any) -> Tables:
    rows = []
    for seed in range(3):
        for setting, value in excess.items():
            wobble = noise * ((seed * 7 + len(str(setting)) * 3) % 5 - 2)
            row = {
                "seed": seed,
                key: setting,
                "predictor": "model",
                "metric": "excess",
                "value": value + wobble,
                "error": 1e-4,
            }
            rows.append(row | more)
    return {"end": Rows(rows)}


@pytest.mark.parametrize(
    "learned, noise, said",
    [
        (0.3, 0.001, "Rotary is better"),
        (0.05, 0.001, "Rotary is worse"),
        (0.2001, 0.05, "It is open whether rotary or the best other encoding (learned) is better."),
    ],
)
def test_rotary_is_compared_with_the_best_other(learned: float, noise: float, said: str) -> None:
    tables = end_tables("positions", {"rotary": 0.2, "learned": learned, "none": 0.5}, noise, layers=3)
    found = judged("multitask-rotary", tables)
    assert found.verdict in OF_QUESTIONS
    assert said in found.text
    assert "learned" in found.unit


def test_rotary_needs_something_to_compare() -> None:
    found = judged("multitask-rotary", end_tables("positions", {"learned": 0.3, "none": 0.5}, layers=3))
    assert found.value is None
    assert "Rotary positions and another encoding were not both measured" in found.text


@pytest.mark.parametrize("excess, said", [({1: 0.3, 4: 0.1}, "heads is better"), ({1: 0.1, 4: 0.3}, "heads is worse")])
def test_heads_are_compared(excess: dict[int, float], said: str) -> None:
    found = judged("multitask-more-heads", end_tables("heads", excess, layers=3, symbols=6))
    assert said in found.text
    assert "12 heads per layer for 6 symbols" in found.text
    assert found.value == pytest.approx(excess[1] - excess[4], abs=0.01)


@pytest.mark.parametrize("gain", [0.2, -0.05, 0.1])
def test_rank_is_about_what_depth_gains(gain: float) -> None:
    low = end_tables("layers", {1: 0.3, 3: 0.2}, rank=1)
    high = end_tables("layers", {1: 0.5, 3: 0.5 - gain}, noise=0.002, rank=4)
    found = judged("multitask-layers-by-rank", {"end": Rows([*low["end"], *high["end"]])})
    assert found.value == pytest.approx(gain - 0.1, abs=0.01)
    assert "at rank 4 and" in found.text


@pytest.mark.parametrize("alone, is_open", [(0.35, True), (0.25, False)])
def test_one_layer_must_be_clearly_worse(alone: float, is_open: bool) -> None:
    deep = end_tables("heads", {1: 0.1, 4: 0.2}, layers=3)["end"]
    shallow = end_tables("heads", {4: alone}, layers=1)["end"]
    assert depth_matters({"end": Rows([*deep, *shallow])}, "heads").is_open is is_open
    assert not depth_matters({"end": deep}, "heads").is_open
    assert deepest({"end": Rows([*deep, *shallow])})["end"] == deep


@pytest.mark.parametrize("study", ["positions", "heads", "rank"])
def test_without_training_the_untrained_answers_stand_there(study: str) -> None:
    rows = end_tables("setting", {1: 0.3}, untrained=False)["end"]
    rows += [row | {"predictor": "untrained", "value": 2.0} for row in rows]
    swapped = experiment_named(f"multitask-{study}").without_training({"end": rows})
    assert swapped["end"].where(predictor="model").values("value") == [2.0]
    assert len(swapped["end"]) == len(rows)


def phase_tables(gaps: dict[float, float], inference: float = 4.0, retrieval: float = 16.0) -> Tables:
    """Three seeds: the gap at the end by prompts per HMM, and steps at which both phases begin, one doubling sharp."""
    rows = Rows()
    for seed, (prompts, gap), step in itertools.product(range(3), gaps.items(), (1, 2, 4, 8, 16, 32, 64)):
        for effect, begins, least, most in (("retrieval", retrieval, 0.0, gap), ("inference", inference, -0.06, 0.1)):
            value = (least + most) / 2 if step == begins else most if step > begins else least
            row = {"seed": seed, "label": f"{prompts}", "prompts": prompts, "shown": prompts * step / 64, "step": step}
            rows.append(row | {"effect": effect, "value": value, "error": 0.01})
    runs = Rows({"label": f"{prompts}", "seed": seed, "tokens": 1} for prompts in gaps for seed in range(3))
    return {"phases": rows, "runs": runs}


def test_the_switch_is_located_between_pools() -> None:
    found = judged("multitask-switch", phase_tables({16.0: 0.0, 64.0: 0.0, 256.0: 0.2, 1024.0: 0.5}))
    assert found.value == pytest.approx(7.0)  # half way, on the logarithm, from 64 to 256
    assert found.low < 7.0
    assert "by seed: 128, 128, 128" in found.text
    never = judged("multitask-switch", phase_tables({16.0: 0.0, 64.0: 0.05}))
    assert never.value is None
    assert "none, none, none" in never.text


class Answers(torch.nn.Module):
    """Says what it was given, whatever it reads."""

    outputs = "law"

    def __init__(self, law: torch.Tensor) -> None:
        super().__init__()
        self.law = law

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.law


@pytest.mark.slow
def test_a_planted_mixture_of_strategies_is_found_in_every_place() -> None:
    config = config_from_data(multitask_config("smoke", 3))
    process, planted = config.process.build(), {"retrieval": 0.5, "inference": 0.3, "order-2": 0.2}
    run = Run(None, config, process, untrained_model(config, process), None)  # type: ignore[arg-type]
    dataset = pool_size._prompts(run, pools_of(run)["unseen"])
    laws = pool_size.strategy_laws(run, dataset, 8)
    mixed = sum(weight * laws[name] for name, weight in planted.items())
    model = torch.zeros(8, config.layout.context_length - 1, process.num_symbols).double()
    model[:, config.layout.token_positions[config.layout.predicted_observations] - 1] = mixed
    planted_run = Run(None, config, process, Answers(model), None)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_size, "pools_of", lambda run: {"unseen": pools_of(run)["unseen"]})
        tables = pool_size._strategies(planted_run, {"samples": 8, "first_position": 4})
    found = Rows(tables["weights"]).where(axis="demonstrations", x=3)
    assert {row["strategy"]: row["value"] for row in found if row["value"] > 1e-3} == pytest.approx(planted, abs=1e-3)
    assert max(row["value"] for row in tables["left"] if row["quantity"] == "left") < 1e-6


# ---------------------------------------------------------------------------------------------------------------------
# Instruments


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = window_config("smoke", 2, 0.6)
    return train(config_from_data(config), tmp_path_factory.mktemp("window") / "run")


@pytest.mark.long
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
    run = Run(None, config, process, untrained_model(config, process), None)  # type: ignore[arg-type]
    histories = histories_of(run, 4, 500)
    rate = exact_rate(histories, process, [1, 2, 3, 4])
    assert rate["rate"] is None
    eigenvalues = np.sort(np.abs(np.linalg.eigvals(process.transition.numpy())))
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


# ---------------------------------------------------------------------------------------------------------------------
# Plans


def names_of(study: str, scale: str = "small") -> set[str]:
    experiment = experiment_named(f"multitask-{study}")
    plan = experiment.plan(scale, **experiment.choices(scale))
    return {run_name(config_from_data(data)) for data in plan.values()}


def test_settings_that_coincide_are_one_run() -> None:
    shared = names_of("positions") & names_of("heads")
    assert len(shared) == 1
    assert names_of("fig1") == names_of("fig7") < names_of("pool-size")
    assert len(names_of("context-length") & names_of("observability")) == 3
    assert len(names_of("rank") & names_of("heads") & names_of("positions")) == 1


@pytest.mark.parametrize("gamma", [0.0, 1.5])
def test_observability_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(InputError, match=r"plan.observabilities: must be in \(0, 1\]"):
        experiment_named("multitask-observability").plan("smoke", observabilities=[gamma], lengths=[1])
