"""Answers of the core are those in quality/kept_answers.json; run this file as a script to write them again.

They are numbers of small cases, one for each function or kind of model. A change of one is a change for users: list it in
the changelog with both values before you write the file again.
"""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope import registry
from hmmscope.analysis import calibration, decomposition, initialization, intervals, logistic, similarity
from hmmscope.analysis.curves import evaluate
from hmmscope.analysis.learned import learned
from hmmscope.analysis.ngram_reach import ngram_reach
from hmmscope.analysis.ngrams import TunedNgrams
from hmmscope.analysis.strategy_weights import strategy_weights
from hmmscope.analysis.trained_ngrams import ngram_baselines
from hmmscope.datasets.layouts import HeaderLayout, PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.inference import (
    chains,
    entropy,
    floors,
    memory_error,
    missing,
    mixing,
    observability,
    paths,
    process_facts,
    smoothing,
    spectral,
)
from hmmscope.inference.constraints import Constraints
from hmmscope.inference.continuations import forecast
from hmmscope.inference.minimal_automata import extract_automaton
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.inference.mixture_posterior import filter_mixture
from hmmscope.inference.monte_carlo import student_quantile
from hmmscope.inference.window import window_errors
from hmmscope.lab.evidence import power, scaling_laws
from hmmscope.lab.evidence.effects import Effect, EstimateWithError, false_discovery
from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.evidence.verdicts import Above, Always, Below, Gate, Printed, Within, all_of
from hmmscope.models.base import make_model
from hmmscope.processes.make import make_process
from hmmscope.runs import resources, row_values, state_answers
from kept_numbers import differing, digest

KEPT = Path(__file__).with_name("kept_answers.json")
SEEN = [0, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1]
ROWS = np.array(
    [[0.0, 1.0], [0.5, 1.5], [np.nan, np.nan], [5.0, 9.0], [6.0, 8.0], [5.5, np.nan], [0.1, 1.0], [0.3, 0.2]]
)
HALF, TURNS = [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]]
SENSORS = hs.GaussianHMM(HALF, TURNS, [[0.0, 1.0], [5.0, 9.0]], [[1.0, 1.0], [2.0, 1.0]], states=["low", "high"])
COUNTS = hs.PoissonHMM(HALF, TURNS, [[2.0], [9.0]])
DRIVEN = hs.InputOutputHMM(HALF, [np.eye(2), [HALF, HALF]], [[0.9, 0.1], [0.2, 0.8]], symbols=["h", "t"])
VISITS = hs.SemiMarkovHMM(HALF, [[0, 1], [1, 0]], [[0, 0.1, 0.1, 0.8], [0.9, 0.1, 0, 0]], [[0.9, 0.1], [0.1, 0.9]])
CASINO = hs.load_process("dishonest-casino")
FEW = hs.FitOptions(num_restarts=2, max_iterations=20)
ANSWERS: dict[str, Callable[[], Mapping[str, Any]]] = {}


def answers(function: Callable[[], Mapping[str, Any]]) -> Callable[[], Mapping[str, Any]]:
    ANSWERS[function.__name__] = function
    return function


# ---------------------------------------------------------------------------------------------------------------------
# Inference


def _of_process(name: str) -> dict[str, Any]:
    hmm = hs.load_process(name) if name == "umbrella" else make_process(name)
    mixed = mixed_states(hmm, max_states=12, max_depth=4)
    law = spectral.Operators.of(hmm)
    found = extract_automaton(law.probabilities, hmm.num_symbols, futures=2, max_states=6, max_depth=3)
    return {
        "facts": process_facts.process_facts(hmm),
        "mixed states": [mixed.beliefs, mixed.depth, mixed.successor, mixed.probability, mixed.largest_merge],
        "automaton": [found.prefixes, found.labelled, found.recurrent, found.complete],
        "entropy": entropy.entropy_rate(hmm),
        "blocks": entropy.block_entropies(hmm, 4),
        "observability": [observability.observability(hmm), observability.pair_bound(hmm)],
        "floors": [make(hmm, 5, num_samples=20) for make in (floors.next_observation_floor, floors.belief_floor)],
        "mixing": [
            mixing.mixing_time(hmm, num_samples=20, max_time=9),
            mixing.forgetting_curve(hmm, 5, num_samples=20),
        ],
        "memory": [memory_error.memory_error(hmm, 2, 5), memory_error.sampled_memory_error(hmm, 2, 5, num_samples=50)],
        "certificate": memory_error.memory_certificate(hmm, 2),
        "window": window_errors(hmm, [0, 1, 2], [2, 5], num_samples=20),
        "spectral": [(got := spectral.learn_operators(law.probabilities, hmm.num_symbols, length=2)).singular_values],
        "next": got.next_observation(torch.tensor([[0, 1, 1]])),
    }


for _name in ("umbrella", "golden-mean", "mess3", "even"):
    ANSWERS[f"process {_name}"] = lambda name=_name: _of_process(name)  # type: ignore[misc]


@answers
def sequences() -> Mapping[str, Any]:
    seen, gaps = torch.tensor([SEEN, SEEN[::-1]]), torch.tensor([[0, hs.MISSING, 1, hs.MISSING, 0, 1]])
    hmm = hs.load_process("umbrella")
    mixture = make_process("random-mixture", num_components=3, num_states=3, num_symbols=2)
    return {
        "filter": hs.filter_beliefs(hmm, seen, lengths=[12, 7]),
        "smooth": hs.smooth_beliefs(hmm, seen, lengths=[12, 7]),
        "counts": smoothing.expected_counts(hmm, seen),
        "paths": [paths.most_likely_states(hmm, seen), paths.sample_state_paths(hmm, seen, num_paths=3)],
        "gaps": [missing.missing_probs(hmm, gaps), missing.sample_missing(hmm, gaps, num_draws=5)],
        "forecast": forecast(hmm, seen, 4, num_draws=3),
        "mixture": [filter_mixture(mixture, seen), forecast(mixture, seen, 3, num_draws=3)],
        "log-likelihood": [hs.log_likelihood(one, seen) for one in (hmm, mixture)],
        "visits": [hs.filter_beliefs(VISITS, seen), forecast(VISITS, seen, 5)],
    }


@answers
def fits() -> Mapping[str, Any]:
    x = CASINO.sample(150, seed=3).observations
    numbers = SENSORS.sample(90, seed=1).observations
    given = {
        "symbols": x,
        "several": x.reshape(3, 50),
        "numbers": numbers,
        "counts": COUNTS.sample(60, seed=1).observations,
    }
    found = {
        name: hs.fit(one, [1, 2], options=FEW, **({"lengths": [len(one)]} if name in ("numbers", "counts") else {}))
        for name, one in given.items()
    }
    left = Constraints.left_to_right(2)
    found["constrained"] = hs.fit(x, 2, options=hs.FitOptions(num_restarts=2, max_iterations=20, constraints=left))
    found["durations"] = hs.fit(SEEN * 4, 2, options=hs.FitOptions(num_restarts=1, max_iterations=9, durations=4))
    found["driven"] = hs.fit(SEEN, 2, inputs=[0, 1] * 6, options=FEW)
    return {name: [vars(fit.final), fit.log_likelihood, fit.table()] for name, fit in found.items()} | {
        f"{name} in words": [line for line in fit.lines() if not line.startswith("cost")] for name, fit in found.items()
    }


@answers
def sampled_parameters() -> Mapping[str, Any]:
    fit = hs.fit(SEEN * 5, 2, options=FEW)
    drawn = fit.posterior(num_draws=40, num_chains=2, warm_up=10)
    check = fit.check(20)
    return {
        "posterior": drawn.table(),
        "forecasts": drawn.forecast(SEEN, 3, num_models=10).table(),
        "check": [check.table(), check.adjusted, check.lines()],
    }


@answers
def chains_of_draws() -> Mapping[str, Any]:
    draws = np.random.default_rng(5).normal(size=(3, 20, 2)).cumsum(1)
    bulk, tail = chains.effective_sizes(draws)
    return {
        "r hat": chains.r_hat(draws),
        "sizes": [bulk, tail],
        "tails": [chains.equal_tails(draws, bulk), chains.equal_tails(draws, bulk, 0.5)],
        "matching": chains.matching(draws[:2, :4, 0].T @ draws[:2, :4, 1]),
        "quantiles": [student_quantile(degrees) for degrees in (1.0, 2.0, 5.0, 30.0)],
    }


# ---------------------------------------------------------------------------------------------------------------------
# Analysis


def _prompts() -> ProcessDataset:
    layout = PromptLayout(num_demonstrations=3, demonstration_length=4, test_length=6)
    return ProcessDataset(make_process("random-mixture", num_components=3, num_states=3, num_symbols=4), layout=layout)


def _untrained(dataset: ProcessDataset, kind: str = "roformer", seed: int = 0) -> Any:
    options: dict[str, Any] = {"num_layers": 2, "width": 16} if kind == "roformer" else {"width": 16}
    sizes = {"num_symbols": dataset.num_symbols, "vocab_size": dataset.vocab_size, "max_length": 64}
    return make_model(kind, seed=seed, **sizes, **options).eval()


def _of_instrument(name: str) -> dict[str, Any]:
    dataset = _prompts()
    if name in ("automaton", "constrained-updates"):
        process = make_process("random-hmm", num_states=3, num_symbols=3)
        dataset = ProcessDataset(process, layout=SequenceLayout(length=9, placeholder=True))
    if name.startswith("header"):
        data = {"name": "told-hmms", "num_states": 2, "num_symbols": 3}
        dataset = ProcessDataset(registry.build_spec("process", data, "process").build(), layout=HeaderLayout(length=6))
    rows = registry.lookup("instrument", name)(_untrained(dataset), dataset, num_samples=24)
    return {column: [row[column] for row in rows] for column in rows[0]}


for _name in sorted(set(registry.entries("instrument")) - {"given"}):
    ANSWERS[f"instrument {_name}"] = lambda name=_name: _of_instrument(name)  # type: ignore[misc]


@answers
def scores() -> Mapping[str, Any]:
    prompts, single = _prompts(), ProcessDataset(make_process("mess3"), 12)
    found = {}
    for name, dataset in (("prompts", prompts), ("single", single)):
        observers = {"other": make_process("random-hmm", num_states=2, num_symbols=dataset.num_symbols)}
        model = _untrained(dataset, "rnn")
        found[name] = evaluate(
            model, dataset, num_samples=20, observers=observers if name == "single" else None
        ).table()
        found[f"{name} learned"] = learned(model, dataset, dataset, num_samples=16)
    tuned = TunedNgrams.tuned(prompts, num_samples=16)
    found["tuned"] = tuned
    found["baselines"] = ngram_baselines(hs.SequenceData([SEEN * 6, SEEN[::-1] * 4] * 5)).table()
    found["reach"] = ngram_reach(single.process, single.layout, num_samples=16, probe_samples=32).rows
    return found


@answers
def statistics() -> Mapping[str, Any]:
    draw = np.random.default_rng(3)
    values, other = draw.normal(size=(120, 3)), draw.normal(size=(120, 3)) + 2
    x = torch.from_numpy(draw.normal(size=(2, 60, 4)))
    labels = torch.from_numpy(draw.integers(0, 3, 60))
    law = torch.softmax(torch.from_numpy(draw.normal(size=(40, 5, 3))), -1)
    predictors = {name: torch.softmax(torch.from_numpy(draw.normal(size=(40, 5, 3))), -1) for name in "ab"}
    bets = calibration.bet(law, law.argmax(-1), np.arange(1, 6), predictors)
    drawn = [{"w": torch.from_numpy(draw.normal(size=(6, 6)))} for _ in range(3)]
    return {
        "means": [intervals.bootstrap_means(values), intervals.bootstrap_means(values[:9])],
        "ratio": [intervals.bootstrap_ratio(values[:n, 0], other[:n, 0]) for n in (9, 120)],
        "least z": [intervals.least_z(count, 1e-6) for count in (1, 2, 5, 40, 4000)],
        "logistic": logistic.fit_logistic(x, labels, 3),
        "similarity": [
            similarity.linear_cka(x, x * 2 + 1),
            similarity.explained_change(x[0], x[1], torch.arange(60) < 40),
        ],
        "weights": strategy_weights(law, predictors),
        "bets": [bets, calibration.miscalibrated(bets)],
        "initial": [
            initialization.other_law({"w": scale * drawn[0]["w"]}, drawn[1:], trained=trained)
            for scale in (0.2, 0.7, 1.0, 1.4, 3.0)
            for trained in (True, False)
        ],
    }


@answers
def histories() -> Mapping[str, Any]:
    hmm = make_process("random-hmm", num_states=3, num_symbols=2)
    found = {}
    for name, one in (
        ("all", decomposition.Histories.all(hmm, 4)),
        ("some", decomposition.Histories.sampled(hmm, 4, 30)),
    ):
        windows = decomposition.Windows.all(hmm, 2)
        parts = one.decompose(windows, torch.linspace(-1, 1, 2 * windows.features.shape[-1]).double().reshape(2, -1))
        distances = one.distances(2)
        found[name] = [one.remembered(2), vars(distances), vars(parts), parts.gap]
        found[f"{name} windows"] = [windows.linear_prediction, windows.misfit, windows.rank, windows.noise]
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Runs


@answers
def states() -> Mapping[str, Any]:
    models = {
        "casino": (CASINO, SEEN),
        "sensors": (SENSORS, ROWS),
        "visits": (VISITS, SEEN),
        "counts": (COUNTS, [[1], [8]]),
    }
    found = {}
    for name, (hmm, x) in models.items():
        found[name] = [
            state_answers.predict(hmm, x),
            state_answers.predict_proba(hmm, x),
            state_answers.score(hmm, x),
            state_answers.state_table(hmm, x),
            state_answers.dwell_rows(hmm),
            state_answers.sample(hmm, 6, 2, seed=1).columns(),
            state_answers.forecast(hmm, x, 3).table(),
        ]
    found["driven"] = [state_answers.predict_proba(DRIVEN, SEEN, inputs=[0, 1] * 6), state_answers.state_table(DRIVEN)]
    return found


@answers
def words() -> Mapping[str, Any]:
    steps = [np.timedelta64(count, unit) for count in (1, 7) for unit in ("s", "m", "h", "D")]
    return {
        "durations": [resources.duration(seconds) for seconds in (0.01, 0.9, 5, 100, 4000, 90_000, 1e7)],
        "steps": [row_values.duration_text(row_values.multiple_of(step, 2.5)) for step in steps],
    }


# ---------------------------------------------------------------------------------------------------------------------
# Evidence

VALUES = {"three": [0.3, 0.1, 0.2], "five": [1.0, 9.0, -5.0, 2.0, 0.0], "many": [0.1 * k for k in range(12)]}
RULES = (Above(0.0, smallest_effect=0.1), Below(1.0, smallest_effect=0.2), Within(0.3), Printed(0.2, 0.1), Above(0.5))


@answers
def effects() -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name, values in VALUES.items():
        noisy = [EstimateWithError(value, 0.1 * k) for k, value in enumerate(values)]
        made = [Effect.pooled(values), Effect.pooled(noisy), Effect.pooled([*values, None], resolution=0.5)]
        made += [Effect.predicted(values), Effect.share([value > 0.15 for value in values])]
        made += [made[0].mirrored(1.0), made[0].shifted(2.0), made[0].with_seeds(9)]
        found[name] = [[one, str(one), one.short(), one.p_value(0.1), one.one_sided(0.1, -1)] for one in made]
        found[f"{name} signs"] = [[one.sign_low, one.sign_high, one.bimodal] for one in made]
        found[f"{name} rules"] = [[rule.verdict(one), rule.p_value(one)] for rule in RULES for one in made]
        found[f"{name} seeds"] = [[rule.seeds_needed(one) for one in made if one.values] for rule in RULES]
        together = {"a": made[0], "b": made[6]}
        found[f"{name} together"] = [all_of(rule, together) for rule in RULES]
        found[f"{name} power"] = [power.power_of(rule, {"": made[0]}, 0.9, 0.0) for rule in RULES[:3]]
        found[f"{name} chances"] = [power.chances(rule, {"": made[0]}, 0.9, 0.0) for rule in RULES[:2]]
    found["always"] = power.power_of(Always(0.5), {"": Effect.share([True] * 4)})
    found["rates"] = false_discovery({"a": 0.01, "b": 0.04, "c": None, "d": 0.03, "e": 0.9})
    found["gates"] = [
        Gate.regime(0.2, 0.1, 0.3, "x"),
        Gate.headroom(1.0, 2.0, "x"),
        Gate.matched({"a": {"x": 1.0, "y": 1.2}}),
    ]
    return found


@answers
def laws() -> Mapping[str, Any]:
    draw, points = random.Random(5), []
    for instance in range(4):
        for x in range(15, 21):
            y = 3 + 2 - 2 * 2 ** (-0.3 * (x - 15)) + draw.gauss(0, 0.05) + 0.1 * instance
            points.append(scaling_laws.ScalingLaw.BudgetPoint(float(x), instance, min(y, 4.6), y >= 4.6))
    law = scaling_laws.ScalingLaw.of(points)
    assert law is not None
    return {
        "mean": [law.mean_at(x) for x in (18.5, 25.0)],
        "next": law.next_at(25.0, 2),
        "effect": [law.effect(25.0, "u"), law.resampled(25.0, 4.5, random.Random(1), "u")],
        "held out": scaling_laws.ScalingLaw.held_out(points),
        "doubling": scaling_laws.ScalingLaw.last_doubling(points),
    }


@answers
def tables() -> Mapping[str, Any]:
    rows = Rows(
        {"seed": seed, "x": x, "value": seed * 0.1 + x, "low": x - 0.1, "high": x + 0.3}
        for seed in range(4)
        for x in (1, 2)
    )
    one = rows.where(x=1)
    return {
        "estimates": [one.estimates(), one.effect(), one.mean(), one.less(rows.where(x=2)), one.effect(resolution=0.4)],
        "pools": [rows.pool("seed"), rows.pool("x"), rows.by("x"), rows.seeds()],
    }


def kept_of(name: str) -> dict[str, Any]:
    return {part: digest(value) for part, value in ANSWERS[name]().items()}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_those_that_were(name: str) -> None:
    assert differing(kept_of(name), json.loads(KEPT.read_text())[name], rel=1e-5) == []


if __name__ == "__main__":
    KEPT.write_text(json.dumps({name: kept_of(name) for name in ANSWERS}, separators=(",", ":")) + "\n")
