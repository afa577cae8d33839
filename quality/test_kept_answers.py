"""Answers of the core are those in quality/kept_answers.json; run this file as a script to write them again.

They are numbers of small cases, one for each function or kind of model. A change of one is a change for users: list it in
the changelog with both values before you write the file again.
"""

import base64
import json
import math
import random
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope import registry
from hmmscope.analysis import calibration, decomposition, initialization, intervals, logistic, similarity
from hmmscope.analysis.autoregression import AutoRegression
from hmmscope.analysis.belief_interventions import InterventionOptions, belief_interventions
from hmmscope.analysis.curves import evaluate
from hmmscope.analysis.geometry import ExactBeliefs
from hmmscope.analysis.header import HeaderOptions
from hmmscope.analysis.learned import learned
from hmmscope.analysis.ngram_reach import ngram_reach
from hmmscope.analysis.ngrams import TunedNgrams
from hmmscope.analysis.strategy_weights import strategy_weights
from hmmscope.analysis.trained_ngrams import ngram_baselines
from hmmscope.analysis.untrained_controls import InstrumentOptions, draw_controls
from hmmscope.datasets.layouts import HeaderLayout, PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.inference import (
    chains,
    entropy,
    evidence,
    fit_durations,
    fit_inputs,
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
from hmmscope.inference.constrained_laws import ConstrainedRows
from hmmscope.inference.constraints import Constraints
from hmmscope.inference.continuations import forecast
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.inference.minimal_automata import extract_automaton
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.inference.mixture_posterior import filter_mixture
from hmmscope.inference.monte_carlo import student_quantile
from hmmscope.inference.window import window_errors
from hmmscope.lab.evidence import controls, panels, power, scaling_laws, scatter_data, verdicts
from hmmscope.lab.evidence import ledger as ledger_module
from hmmscope.lab.evidence.answers import effect_sentence, scope_of
from hmmscope.lab.evidence.claim import Claim, Measurement
from hmmscope.lab.evidence.effects import Effect, EstimateWithError, false_discovery
from hmmscope.lab.evidence.finding import Finding, TaskVerdict
from hmmscope.lab.evidence.ledger import LedgerRow, as_markdown, as_text, recorded_claim
from hmmscope.lab.evidence.power import Power
from hmmscope.lab.evidence.records import ClaimRecord
from hmmscope.lab.evidence.rows import Rows, identical_seeds
from hmmscope.lab.evidence.scatter_data import BeliefPlane
from hmmscope.lab.evidence.verdicts import Above, Always, Below, Gate, Printed, Within, all_of, at_budget
from hmmscope.models.base import make_model
from hmmscope.processes.make import make_process
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.runs import dry_run, page_export, pipeline, resources, row_values, state_answers, vector_sequences
from hmmscope.runs import given_rows as given_rows_module
from hmmscope.runs.config import RunConfig, config_from_data, configure
from hmmscope.runs.given_rows import GivenRows
from hmmscope.runs.table_order import from_one_hot, in_table_order
from kept_numbers import differing, digest
from test_edges_of_inference import ROOM

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
#: Concentrations of random HMMs whose observations leave the state unknown.
SOFT = {"transition_concentration": 1.0, "emission_concentration": 1.0}
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
    mixture = make_process("random-mixture", num_components=3, num_states=3, num_symbols=2, **SOFT)
    return {
        "filter": hs.filter_beliefs(hmm, seen, lengths=[12, 7]),
        "smooth": hs.smooth_beliefs(hmm, seen, lengths=[12, 7]),
        "counts": smoothing.expected_counts(hmm, seen),
        "paths": [paths.most_likely_states(hmm, seen), paths.sample_state_paths(hmm, seen, num_paths=3)],
        "gaps": [missing.missing_probs(hmm, gaps), missing.sample_missing(hmm, gaps.expand(2, -1), num_draws=40)],
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
    last = ("history", "num_iterations")  # the last iterations differ by rounding only
    kept = {name: {key: x for key, x in vars(fit.final).items() if key not in last} for name, fit in found.items()}
    return {name: [kept[name], fit.log_likelihood, fit.table()] for name, fit in found.items()} | {
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


@answers
def numbers_of_states() -> Mapping[str, Any]:
    """Log evidence by each of its ways: from the prior in three levels, from a fit, and by chains."""
    work, draws = flat_sequences(np.array(SEEN * 6), np.array([40, 32])), np.random.default_rng(2)
    ragged = flat_sequences(np.array([0, 1, 2, 1, 0, 0, 2]), np.array([4, 3]))  # 2 is a missing symbol
    models = [make_process("random-hmm", num_states=size, num_symbols=2) for size in (1, 2, 3)]
    found: dict[str, Any] = {"small": [evidence.evidence(ragged, hmm, 1) for hmm in models]}
    with mock.patch.multiple(evidence, LEAST=0, GROUPS=4, CHAINS=4, ROUNDS=2, STEPS=3, DENSITIES=32):
        for hard in (0, 99):
            with mock.patch.object(evidence, "HARD", hard):
                found[f"hard {hard}"] = [evidence.evidence(work, hmm, 1, seed=1) for hmm in models[1:]]
    three = (models[2].initial, models[2].transition, models[2].emission)
    fit = evidence.floored(tuple(part.numpy()[None] for part in three))
    symbols, laws = evidence.Symbols(work, 3, 2, 1), [draws.dirichlet(np.ones(3), shape) for shape in (20, (20, 3))]
    rows = (*laws, draws.dirichlet(np.ones(2), (20, 3)))
    swaps = np.array([[0, 1, 2], [2, 1, 0]])
    found["labels"] = [evidence.labels(symbols, rows, fit), evidence.labels(symbols, rows, fit, swaps)]
    found["steps"] = [evidence._step(scale * np.arange(20.0), 0.7) for scale in (0.0, 0.1, 1.0, 50.0)]
    logs = draws.normal(size=(2, 4, 30)) - 2
    found["bridges"] = [evidence.pseudo_values(logs), evidence.log_bridge(logs[0], logs[1] + 800)]
    found["means"] = [evidence.log_mean(one) for one in ([-3.0, -2.0, -2.5], [-np.inf, 0.0, 1.0], [0.0, -800.0], [0.0])]
    return found


@answers
def bytes_asked_for() -> Mapping[str, Any]:
    """Bytes that each function checks for before it takes them."""
    heard: list[tuple[str, int]] = []
    modules = [one for name, one in sys.modules.items() if name.startswith("hmmscope.")]
    found = {}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "get_num_threads", return_value=1))
        for one in modules:
            if hasattr(one, "require_memory"):
                stack.enter_context(mock.patch.object(one, "require_memory", lambda *given: heard.append(given[:2])))
        for ask, name, size in ROOM:
            heard.clear()
            ask()
            found[f"{name} {size}"] = max(number for what, number in heard if re.fullmatch(name, what))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Analysis


PROMPTS = PromptLayout(num_demonstrations=3, demonstration_length=4, test_length=6)
HEADERS = {"name": "told-hmms", "num_states": 2, "num_symbols": 3}


def _prompts(layout: Any = PROMPTS) -> ProcessDataset:
    return ProcessDataset(
        make_process("random-mixture", num_components=3, num_states=3, num_symbols=4, **SOFT), layout=layout
    )


def _recorded(kind: type = hs.SequenceData) -> ProcessDataset:
    """Windows of recorded sequences of unequal lengths, beside the process that wrote them."""
    process = make_process("random-hmm", num_states=3, num_symbols=3, seed=2)
    seen = ProcessDataset(process, length=12)[0:200].observations.numpy()
    rows = [row[: 6 + number % 7] for number, row in enumerate(seen)]
    return ProcessDataset(RecordedSequences(kind(rows, symbols=3), process), length=12, stream="test")


DATASETS: dict[str, Callable[[], ProcessDataset]] = {
    "prompts": _prompts,
    "single": lambda: ProcessDataset(
        make_process("random-hmm", num_states=3, num_symbols=3), layout=SequenceLayout(length=9, placeholder=True)
    ),
    "mixture": lambda: _prompts(SequenceLayout(length=9)),
    "header": lambda: ProcessDataset(
        registry.build_spec("process", HEADERS, "process").build(), layout=HeaderLayout(length=9)
    ),
    "recorded": _recorded,
    "factors": lambda: ProcessDataset(make_process("factored-mess3"), length=7),
    "clock": lambda: ProcessDataset(make_process("probability-clock"), length=9),
    "vectors": lambda: ProcessDataset(SENSORS, length=9),
}
OWN_DATASETS = {name: "single" for name in ("automaton", "constrained-updates")}
OWN_DATASETS |= {name: "header" for name in ("header", "header-edits", "header-memory")}


def _untrained(dataset: ProcessDataset, kind: str = "roformer", seed: int = 0, **given: Any) -> Any:
    options: dict[str, Any] = {"num_layers": 2, "width": 16} if kind == "roformer" else {"width": 16}
    sizes = {"num_symbols": dataset.num_symbols, "vocab_size": dataset.vocab_size, "max_length": 64}
    return make_model(kind, seed=seed, **sizes | options | given).eval()


def _of_instrument(name: str, num_samples: int = 24, source: str = "", **options: Any) -> dict[str, Any]:
    dataset = DATASETS[source or OWN_DATASETS.get(name, "prompts")]()
    feedback = dataset.vocab_size if options.get("block_length") else 0
    model = _untrained(dataset, feedback_width=feedback)
    rows = registry.lookup("instrument", name)(model, dataset, num_samples=num_samples, **options)
    return {column: [row[column] for row in rows] for column in rows[0]}


for _name in sorted(set(registry.entries("instrument")) - {"given"}):
    ANSWERS[f"instrument {_name}"] = partial(_of_instrument, _name, 64 if _name == "header-memory" else 24)

OTHER_HMM = make_process("random-hmm", num_states=2, num_symbols=3, seed=5)
FEW_EDITS = InterventionOptions(num_positions=2, num_random=1, ridge=0.1)
FEW_POOLS = HeaderOptions(num_hmms=8, num_pools=2, num_fits=2, positions=[1, 3], ngrams=False)
#: Instruments on other datasets, and with other options, than by default.
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("attention", "prompts", {"max_offset": 3}),
    ("attention", "recorded", {"max_offset": 0}),
    ("automaton", "single", {"length": 1, "tolerance": 0.3}),
    ("automaton", "single", {"length": 2, "tolerance": 0.02, "num_samples": 70}),
    ("belief-interventions", "single", {"interventions": ["swap"], "options": FEW_EDITS}),
    ("belief-interventions", "single", {"answer": "belief", "seed": 1}),
    ("belief-interventions", "header", {"options": FEW_EDITS}),
    ("belief-space", "factors", {"num_factors": 2}),
    ("belief-space", "clock", {"num_samples": 70}),
    ("constrained-updates", "single", {"num_distances": 3, "num_samples": 70}),
    ("curves", "single", {"target": "belief", "first": 5}),
    ("curves", "single", {"block_length": 3}),
    ("curves", "recorded", {"num_samples": 70}),
    ("dictionary", "clock", {"seed": 1}),
    ("dictionary", "single", {"methods": ["simplex", "principal"], "num_samples": 70}),
    ("evaluation-losses", "single", {"target": "belief", "first": 5, "num_samples": 8, "least_count": 20}),
    ("evaluation-losses", "recorded", {"num_samples": 9, "least_count": 12}),
    ("geometry", "single", {"ridge": 0.1, "seed": 1}),
    ("geometry", "recorded", {"options": InstrumentOptions(num_controls=0, observer=OTHER_HMM)}),
    ("geometry", "header", {"options": InstrumentOptions(num_controls=4)}),
    ("geometry", "mixture", {"num_samples": 70}),
    ("header", "header", {"target": "belief", "seed": 1}),
    ("header", "header", {"options": FEW_POOLS, "num_samples": 65}),
    ("header-memory", "header", {"num_controls": 0, "num_samples": 70}),
    ("header-edits", "header", {"seed": 1, "num_samples": 70}),
    ("mechanisms", "recorded", {}),
    ("mechanisms", "header", {"num_samples": 70, "seed": 1}),
    ("paths", "single", {"ablation": "resample", "num_samples": 70}),
    *(("probe", "single", {"target": name}) for name in ("state", "previous-0", "previous-2", "belief")),
    ("probe", "mixture", {"shuffled_labels": False, "seed": 1, "num_samples": 70}),
    ("probe", "recorded", {"target": "previous-1", "num_samples": 60}),
    ("probe", "header", {"target": "state"}),
    *(("shuffle", "prompts", {"mode": mode, "num_permutations": 3}) for mode in ("layer", "everywhere")),
    ("strategies", "single", {"max_order": 1, "num_samples": 70}),
    ("strategies", "recorded", {"max_order": 0}),
    ("task-patching", "prompts", {"columns": "all", "rank": 2, "num_random": 2, "seed": 1}),
]
for _at, (_name, _source, _options) in enumerate(OTHERS):
    ANSWERS[f"{_at} {_name} {_source}"] = partial(_of_instrument, _name, source=_source, **_options)


@answers
def belief_maps() -> Mapping[str, Any]:
    """Belief maps with their colours and places, of three and five states, of a mixture and of recorded sequences."""
    five = ProcessDataset(make_process("random-hmm", num_states=5, num_symbols=3), length=7)
    cases: dict[str, tuple[ProcessDataset, dict[str, Any]]] = {
        "three": (DATASETS["single"](), {"num_points": 50}),
        "five": (five, {"num_points": 20, "num_controls": 3}),
        "mixture": (DATASETS["mixture"](), {"num_points": 500, "num_controls": 0}),
        "recorded": (DATASETS["recorded"](), {"observer": OTHER_HMM, "num_controls": 3}),
    }
    found = {}
    for name, (dataset, options) in cases.items():
        model = _untrained(dataset)
        one = hs.belief_map(model, dataset, num_samples=24, options=InstrumentOptions(**options))
        found[name] = [one.exact, one.read, one.control, one.table(), one.colours(), one.coordinates()]
        found[f"{name} facts"] = [one.layer, one.length, one.about["samples"], one.note, one.share]
        exact = ExactBeliefs.of(dataset, 24, options.get("observer"))
        found[f"{name} exact"] = [exact.values, exact.inside, [exact.ceiling(target) for target in exact.values]]
        read = exact.read(exact.stream(model))
        found[f"{name} read"] = [read.by_layer(), read.by_layer(5), read.chosen, read.values, read.beyond([read] * 3)]
    return found


@answers
def vectors() -> Mapping[str, Any]:
    """Scores of a network on vectors, and edits of its beliefs."""
    dataset = ProcessDataset(SENSORS, length=9)
    asked = hs.make_target("density", SENSORS, dataset.layout)
    model = make_model("rnn", width=16, seed=0, num_symbols=asked.num_outputs, input_width=2).eval()
    score = evaluate(model, dataset, num_samples=20, target="density")
    edits = belief_interventions(model, dataset, answer="density", num_samples=24, options=FEW_EDITS)
    return {
        "score": [score.table(), score.rows("positions"), score.invalid, score.baseline, score.excess],
        "edits": [list(row.values()) for row in edits],
    }


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


@answers
def least_samples() -> Mapping[str, Any]:
    """The least number of samples that each instrument takes, and its words below."""
    found: dict[str, Any] = {}
    for name in sorted(set(registry.entries("instrument")) - {"given"}):
        said = [_error(partial(_of_instrument, name, number)) for number in (0, 1, 3, 7)]
        found[name] = [one if one[0].endswith("Error") else "taken" for one in said]
    return found


@answers
def densities() -> Mapping[str, Any]:
    """Baselines for vectors: autoregressions of each order, with missing rows, and their numbers of parameters."""
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 40, 2, generator=draw, dtype=torch.float64) * torch.tensor([1.0, 3.0]).double()
    walk = 5 + noise.cumsum(1) * 0.3 + noise
    walk[0, 7], walk[2, 30:] = torch.nan, torch.nan
    made = AutoRegression(walk, 3, torch.full((2,), 1e-3).double())
    few = AutoRegression(walk[:, :6], 4, torch.full((2,), 0.5).double())
    return {
        "all": [made.num_parameters, made.predictions(walk[:2])],
        "few": [few.num_parameters, few.predictions(walk)],
    }


@answers
def starts() -> Mapping[str, Any]:
    """Random parameters from which each restart of a fit begins."""
    shapes = ((2,), (2, 2), (2, 4), (2, 3))
    return {
        "inputs": [fit_inputs._random(number, 0, 2, 3, 2) for number in range(5)],
        "durations": [fit_durations._random(number, 0, *shapes) for number in range(3)],
    }


@answers
def constrained() -> Mapping[str, Any]:
    """Constraints on probabilities, and fits, draws and log evidence under them."""
    x, draw = CASINO.sample(90, seed=2).observations.tolist(), np.random.default_rng(4)
    rules: dict[str, Any] = {
        "left": Constraints.left_to_right(3, 2),
        "band": Constraints.banded(3),
        "fixed": Constraints(transition=[[0.8, None], [None, 0.5]]),
        "tied": Constraints(transition=[["a", None], [None, "a"]], emission=[["b", *[None] * 5], ["b", *["c"] * 5]]),
    }
    found: dict[str, Any] = {}
    for name, rule in rules.items():
        size = 2 if name in ("fixed", "tied") else 3
        fit = hs.fit(x, size, options=replace(FEW, constraints=rule))
        found[name] = [fit.hmm, fit.final.num_free, fit.log_likelihood, fit.table()]
        for part, rows in rule.parts(size, 6).items():
            counts = draw.integers(0, 5, (2, *rows.shape)).astype(float)
            found[f"{name} {part}"] = [
                rows.maximise(counts[0]),
                rows.maximise(counts[1], 0.5),
                rows.num_free,
                rows.is_mask,
            ]
            for alpha in (0.5, 2.0):
                law = ConstrainedRows(rows, alpha)
                some = counts if law.closed else counts[:1]
                drawn = law.draw(some, draw, rows.maximise(counts[0] + 1))
                known = (
                    [law.log_density(drawn, some), law.log_mean(some), law.log_marginal(some[0])] if law.closed else []
                )
                found[f"{name} {part} {alpha}"] = [drawn, law.closed, known]
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


def _error(call: Callable[[], object]) -> list[str]:
    """Return the words of the error that a call raises, or of its answer."""
    try:
        return _words(call())
    except Exception as error:
        return [type(error).__name__, *_words(error)]


@answers
def costs() -> Mapping[str, Any]:
    """Samples, checkpoints, bytes and words of the cost of trainings, for recipes that differ in one field each."""
    usual = {"device": "cpu", "engine": "torch", "num_steps": 9, "batch_size": 4}
    recipes: list[dict[str, Any]] = [{}, {"checkpoint_every": 3}, {"checkpoint_every": 10}, {"num_log_checkpoints": 3}]
    recipes += [{"num_steps": 11, "checkpoint_every": 10}, {"accumulation_steps": 2}, {"num_trajectories": 10}]
    recipes += [{"curriculum": (2, 4, 8)}, {"curriculum": (2, 4), "epoch_steps": 3}, {"num_threads": 2}]
    few = registry.build_spec("process", {"name": "random-mixture", "num_components": 3, "num_states": 2}, "process")
    found: dict[str, Any] = {}
    heard: list[Any] = []
    large = SimpleNamespace(parameters=10**8, step_bytes=lambda samples: samples * 2**30)
    for number, recipe in enumerate(recipes):
        for kind, process, model in (
            ("single", "mess3", "rnn"),
            ("mixture", few, {"name": "roformer", "num_layers": 1, "width": 8}),
        ):
            config = configure(process, model=model, length=8, training=usual | recipe)
            ports = pipeline.model_io_of(config, hs.make_target("observation", config.process.build(), config.layout))
            found[f"{number} {kind} disk"] = [
                resources.disk_bytes(config, ports),
                dry_run.budget(config, ports),
            ]
            cost = replace(dry_run.estimate(config), free_bytes=2**31)
            found[f"{number} {kind} cost"] = [cost, _words(*dry_run.as_text(cost, config))]
            timed = replace(cost, steps_measured=1 + number % 2, samples_measured=number, seconds=9.0)
            timed = replace(timed, other_precision="bfloat16", other_seconds=6.0)
            found[f"{number} {kind} timed"] = _words(*dry_run.as_text(timed, config))
            with mock.patch.multiple(resources, LARGE=10, require_memory=lambda *given: heard.append(given[:2])):
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    with mock.patch.multiple(
                        resources, torch_seconds=lambda *_: 7200.0, cost_of=lambda *_, **__: large
                    ):
                        resources.warn_if_large(config, ports)
                resources.require_memory_for(config, ports)
            found[f"{number} {kind} large"] = [_words(*(one.message for one in said)), heard[-1]]
    return found


@answers
def pages() -> Mapping[str, Any]:
    """Data of model pages: of networks of several kinds, on a process with names, on a mixture and with delimiters."""

    class Own(torch.nn.Module):
        def __init__(self, cell: type, **options: Any) -> None:
            super().__init__()
            self.embed, self.cell = torch.nn.Embedding(4, 6), cell(6, 8, batch_first=True, **options)
            self.head = torch.nn.Linear(options.get("proj_size", 8), 3)
            generator = torch.Generator().manual_seed(0)
            for one in self.parameters():
                torch.nn.init.uniform_(one, -0.5, 0.5, generator=generator)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.head(self.cell(self.embed(tokens))[0])
            return answer

    def numbers(data: Any) -> Any:
        if isinstance(data, dict) and data.keys() == {"type", "shape", "data"}:
            return np.frombuffer(base64.b64decode(data["data"]), data["type"]).reshape(data["shape"])
        return (
            {key: numbers(one) for key, one in data.items()}
            if isinstance(data, dict)
            else ([numbers(one) for one in data] if isinstance(data, list) else data)
        )

    single, several = (
        make_process("mess3"),
        make_process("random-mixture", num_components=2, num_states=2, num_symbols=3),
    )
    plain, prompts = (
        SequenceLayout(length=6, placeholder=True),
        PromptLayout(num_demonstrations=2, demonstration_length=2, test_length=3),
    )
    found: dict[str, Any] = {}
    with mock.patch.multiple(page_export, EXAMPLES=96, NGRAM_SAMPLES=32, MOST_CONTEXTS=9):
        for name, process, layout, kind in (
            ("decoder", single, plain, "roformer"),
            ("mixture", several, prompts, "gru"),
            ("named", hs.load_process("umbrella"), SequenceLayout(length=5), "rnn"),
            ("lstm", single, plain, torch.nn.LSTM),
        ):
            sets = [ProcessDataset(process, layout=layout, seed=seed) for seed in range(3)]
            model = _untrained(sets[0], kind) if isinstance(kind, str) else Own(kind)
            twins = draw_controls(model, num_controls=3)
            found[name] = numbers(page_export.live_model_data(model, *sets, twins=twins))
        for kind, options in (
            (torch.nn.GRU, {"num_layers": 2}),
            (torch.nn.RNN, {"bias": False}),
            (torch.nn.LSTM, {"proj_size": 7}),
        ):
            seen = page_export.in_browser(Own(kind, **options), sets[0])
            found[f"{kind.__name__} {options}"] = seen
        hmm = {"MOST_WEIGHTS": 10, "MOST_PROBABILITIES": 5, "MOST_COLUMNS": 3}
        for what, most in hmm.items():
            with mock.patch.object(page_export, what, most):
                found[what] = _error(lambda: page_export._check(model, single, 7))
    return found


@answers
def configurations() -> Mapping[str, Any]:
    """Configurations from each kind of source, with each argument; and the words that refuse wrong ones."""
    data = hs.SequenceData([SEEN * 6, SEEN[::-1] * 4] * 5)
    sources: dict[str, Any] = {"name": "mess3", "process": CASINO, "data": data, "lists": [SEEN, SEEN[::-1]]}
    sources |= {
        "dataset": ProcessDataset(CASINO, 7, seed=3),
        "config": RunConfig(seed=5),
        "numbers": SENSORS.sample(40, seed=1).observations,
    }
    changes: list[dict[str, Any]] = [
        {},
        {"length": 9},
        {"num_steps": 7, "seed": 2},
        {"training": {"batch_size": 3}},
        {"model": "rnn"},
    ]
    found: dict[str, Any] = {
        name: [_error(lambda: configure(source, **change).to_data()) for change in changes]  # noqa: B023
        for name, source in sources.items()
    }
    wrong: list[dict[str, Any]] = [
        {"layout": "sequences", "length": 4},
        {"target": "x"},
        {"seed": -1},
        {"length": 1},
        {"model": RunConfig},
    ]
    wrong += [
        {"model": {"w": torch.zeros(1)}},
        {"training": {"x": 1}},
        {"model": 3},
        {"read_options": {"batch_size": 3}},
    ]
    wrong += [{"read_options": {"unit": "characters"}}, {"layout": "prompts", "training": {"curriculum": (2, 4)}}]
    found["refused"] = [_error(lambda: configure("mess3", **change)) for change in wrong]  # noqa: B023
    plain = RunConfig().to_data()
    texts: list[dict[str, str]] = [
        {"seed": "3"},
        {"model.name": "rnn"},
        {"model.name": "rnn", "model.width": "8"},
        {"seed.x": "1"},
    ]
    texts += [
        {"layout.length": "9"},
        {"num_steps": "3"},
        {"length": "3"},
        {"x": "3"},
        {"training.num_steps": "5"},
        {"model": "gru"},
    ]
    texts += [{"model.name": "roformer", "model.num_layers": "1"}, {"process.name": "even"}, {"training.steps": "5"}]
    whole: list[Any] = [plain, {}, {"model": "rnn", "layout": "sequences"}, {"process": "mess3"}, [1], {"seed": "x"}]
    found["overrides"] = [_error(lambda: config_from_data(given, text).to_data()) for given in whole for text in texts]  # noqa: B023
    return found


@answers
def readings() -> Mapping[str, Any]:
    """Rows, inputs and tables as a fitted model reads them, in order of their sequences."""
    table = {"id": [1, 0, 1, 0, 1], "time": [3, 2, 1, 1, 2], "x": ["0", "1", "1", "0", "1"]}
    moved = {"group": "id", "time": "time", "sort": True}
    one_hot = np.eye(3)[[0, 2, 1, 1]]
    rows = [torch.tensor(SEEN[:size]) for size in (3, 12, 1, 7, 2, 2)]
    given = GivenRows(rows, inputs=rows, allowed=[one[:, None] == torch.arange(2) for one in rows])
    vectors = GivenRows([one[:, None].double() for one in rows])
    found: dict[str, Any] = {
        "order": [
            in_table_order("n", values, table, reading)
            for values in ([5, 6, 7, 8, 9], [1, 2])
            for reading in (moved, {})
        ],
        "orders": [in_table_order("n", None, table, moved), in_table_order("n", [[1], [2]], table, moved)],
        "one hot": [
            from_one_hot(inputs, lengths)
            for inputs in (
                one_hot,
                [one_hot, one_hot[:2]],
                one_hot[None],
                one_hot * 2,
                one_hot[:, :1],
                np.eye(4)[:3],
                [0, 1, 2],
            )
            for lengths in ([4], [3, 3, 3, 3], [4, 2])
        ],
    }
    for limit, most in ((2**21, 4096), (14, 4096), (2**21, 2)):
        with mock.patch.multiple(given_rows_module, MOST_ENTRIES=limit, MOST_SEQUENCES=most):
            found[f"batches {limit} {most}"] = [list(one.batches()) for one in (given, vectors)]
    inputs = [0, 1] * 6
    asked: list[tuple[Any, Any, dict[str, Any]]] = [
        (DRIVEN, SEEN, {}),
        (DRIVEN, SEEN, {"inputs": inputs}),
        (CASINO, SEEN, {"inputs": inputs}),
    ]
    asked += [(DRIVEN, [SEEN, SEEN[:3]], {"inputs": [inputs, inputs[:2]]}), (DRIVEN, SEEN, {"inputs": inputs[:5]})]
    asked += [
        (DRIVEN, SEEN, {"inputs": np.eye(2)[inputs]}),
        (DRIVEN, SEEN, {"inputs": [0, None] * 6}),
        (SENSORS, ROWS, {"lengths": [3, 5]}),
    ]
    asked += [
        (DRIVEN, SEEN, {"inputs": "x"}),
        (DRIVEN, {"s": list("hthth"), **table}, {"inputs": "x", "column": "s"}),
        (DRIVEN, SEEN, {"inputs": np.eye(3)[inputs]}),
    ]
    asked += [
        (DRIVEN, ["h", "t"] * 3, {"inputs": inputs[:6]}),
        (SENSORS, {"a": [0.5, 1.0], "b": [2.0, 3.0]}, {}),
        (CASINO, np.array(SEEN), {}),
    ]
    for number, (hmm, x, options) in enumerate(asked):
        try:
            read = given_rows_module.given_rows(hmm, x, **options)
            found[f"read {number}"] = [
                list(read.sequences),
                read.index,
                read.columns,
                read.inputs and list(read.inputs),
                read.names,
            ]
        except hs.HmmscopeError as error:
            found[f"read {number}"] = _words(error)
    known = [None, ["low", None] * 4, np.array([[True, False]] * 8), [3] * 8]
    read = partial(given_rows_module.with_known_states, SENSORS, ROWS, reading={})
    found["known"] = [_error(lambda: read(one).allowed) for one in known]  # noqa: B023
    data = hs.read_vectors(np.arange(900.0).reshape(-1, 1) % 7)
    pieces = hs.read_vectors(np.arange(100.0).reshape(-1, 1), lengths=[5] * 20)
    for name, source in (("blocks", data), ("parts", pieces), ("few", hs.read_vectors(np.arange(9.0).reshape(-1, 1)))):
        rest, judges, words = vector_sequences.held_out(source, 3)
        found[name] = [rest.rows, rest.lengths, judges and [judges.rows, judges.lengths], _words(words)]
    return found


@answers
def more_fits() -> Mapping[str, Any]:
    """Fits to streams, with weights, validation, known states and few data: models, reasons, tables and words."""
    x, numbers = CASINO.sample(120, seed=3).observations.tolist(), SENSORS.sample(90, seed=1).observations
    parts = [hs.SequenceData([x[:40]]), hs.SequenceData([x[40:]])]
    calls: dict[str, Callable[[], Any]] = {
        "stream": lambda: hs.fit(parts, 2, stream=True, options=FEW),
        "stream of several": lambda: hs.fit(parts, [1, 2], stream=True, options=FEW),
        "weights": lambda: hs.fit([x[:50], x[50:]], [1, 2], options=replace(FEW, sequence_weights=[1.0, 0.5])),
        "validation": lambda: hs.fit([x[:60]], [1, 2], validation=[x[60:]], options=FEW),
        "other validation": lambda: hs.fit([x[:60]], [1, 2], validation=hs.SequenceData([[0, 1]]), options=FEW),
        "known": lambda: hs.fit(x[:6], 2, options=replace(FEW, known_states=[0, None, 1, None, None, 0])),
        "known of several": lambda: hs.fit(x[:6], [1, 2], options=replace(FEW, known_states=[0] * 6)),
        "start": lambda: hs.fit(x, 2, options=replace(FEW, start=CASINO, fixed=("emission",))),
        "bic": lambda: hs.fit(x, [1, 2], options=replace(FEW, choose="bic")),
        "numbers": lambda: hs.fit(numbers, [1, 2, 3], validation=numbers[:30] + 0.1, options=FEW),
        "numbers with weights": lambda: hs.fit(
            [numbers[:40], numbers[40:]], [1, 2], options=replace(FEW, sequence_weights=[1.0, 2.0])
        ),
        "narrow": lambda: hs.fit(numbers, [1, 2], validation=numbers[:, :1], options=FEW),
        "numbers with ties": lambda: hs.fit(numbers, 2, options=replace(FEW, tied_emissions=[0, 1])),
        "unknown": lambda: hs.fit(numbers, 2, options=FEW, emission="poisson", num_gaussians=2),
        "no state": lambda: hs.fit(x, 0),
        "nothing": lambda: hs.fit([], 2, stream=True, options=FEW),
    }
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            fit = call()
        except hs.HmmscopeError as error:
            found[name] = _words(error)
            continue
        words = [line for line in fit.lines() if not line.startswith("cost")]
        found[name] = [
            fit.hmm,
            fit.table(),
            fit.num_observations,
            fit.num_fitted,
            fit.held_out,
            fit.num_zeros,
            fit.interval,
        ]
        held = fit.support and [fit.support.log_evidence, fit.support.errors, _words(fit.support.why)]
        found[f"{name} support"] = held
        found[f"{name} in words"] = _words(*words, fit.reason, fit.hmm.title, fit.converged)
    return found


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


def _record(**given: Any) -> ClaimRecord:
    usual = {"name": "c", "experiment": "e", "source": "[Test] 1", "claim_text": "It is.", "operationalization": "So."}
    return ClaimRecord(**usual | {"rule": Above(0.0, smallest_effect=0.1), "more_budget_could_help": True} | given)


def _constant(value: Any) -> Callable[[object], Any]:
    return lambda tables: value


def _words(*said: object) -> list[str]:
    """Return all words of texts, with rounded numbers, so that each counts."""
    return re.sub(r"\d+\.\d+(e-\d+)?", lambda one: f"{float(one[0]):.4g}", " ".join(map(str, said))).split()


@answers
def findings() -> Mapping[str, Any]:
    """Findings and powers of claims, with one condition at a time changed."""
    high, low, wide, one = (
        Effect.pooled(x, "accuracy") for x in ([0.5, 0.52, 0.49], [-0.3, -0.31], [0.9, -0.2], [0.5])
    )
    some = Effect.pooled([0.5, 0.51, None], "accuracy")
    learned, shut = Gate.learned(high, 0.1, "the control"), Gate.regime(3.0, 0.1, 2.0, "x")
    seen = {name: {"effects": effect} for name, effect in zip("hlwos", (high, low, wide, one, some), strict=True)}
    seen |= {
        "both": {"effects": {"a": high, "b": low}},
        "each": {"effects": {"a": high, "b": wide, "c": some}, "required": ("a", "b", "d")},
        "missing": {"effects": {"a": high}, "required": ("a", "b")},
        "gone": {"effects": {"a": low}, "required": ("a", "b", "d")},
        "none": {"effects": None},
        "shut": {"effects": high, "gates": (shut,)},
        "one shut": {"effects": {"a": high, "b": high}, "gates": (shut.about("b"), learned)},
        "all shut": {"effects": {"a": low, "b": high}, "gates": (shut.about("b"), learned, shut.about("a"))},
        "spent": {"effects": low, "gates": (learned,), "compute_used": {"tokens": 5.0}},
        "turns": {"effects": high, "last_doubling_change": -0.6, "gates": (learned,)},
        "stays": {"effects": {"a": high, "b": high}, "last_doubling_change": {"a": 0.1, "b": -0.01}},
        "unknown": {"effects": {"a": high, "b": low}, "last_doubling_change": {"a": 0.1}},
        "parts": {"effects": high, "parts": {"p": low, "q": wide}, "gates": (learned,)},
    }
    runs = {"runs": [{"seed": seed, "tokens": 7.0 + seed, "sequences": None, "x": 0.5 * seed} for seed in (0, 1)]}
    same = {"runs": [{"seed": seed, "loss": 0.5} for seed in (0, 1)]}
    records = {
        "training": _record(budget={"tokens": 9.0}),
        "above": _record(about="process"),
        "below": _record(about="construction", rule=Below(1.0, smallest_effect=0.2), more_budget_could_help=None),
        "within": _record(about="process", rule=Within(0.1, 0.5), printed=0.5, printed_in="Fig. 1"),
        "printed": _record(about="process", rule=Printed(0.5, 0.1)),
        "always": _record(about="process", rule=Always(0.5)),
        "question": _record(rule=None),
        "question of a process": _record(rule=None, about="process"),
        "weak": _record(about="process", least_power=0.9, effect_if_true=0.12, effect_if_false=-0.1),
    }
    found: dict[str, Any] = {}
    for name, record in records.items():
        for case, given in seen.items() if name in ("training", "above") else list(seen.items())[:7]:
            measured = Measurement(text="Text.", **given)
            claim = Claim(**vars(record), measure=_constant(measured))
            taken = claim.measured(same if case == "o" else runs)
            for mirrored in (False, True):
                data = claim.finding(taken, mirrored=mirrored).to_data()
                found[f"{name} {case} {mirrored}"] = [data, _words(data, claim.finding(taken, power=False).to_data())]
            found[f"{name} {case} power"] = [claim.power(taken), taken.compute_used, _words(claim.power(taken))]
    return found


@answers
def ledgers() -> Mapping[str, Any]:
    """Rows of a ledger as text, as a table for pages, and as data, with one field at a time changed."""
    gate = Gate.headroom(1.0, 2.0, "x")
    known: dict[str, Any] = {
        "title": "t",
        "text": "Text.",
        "verdict": "reproduced",
        "value": 0.5,
        "low": 0.4,
        "high": 0.6,
    }
    finding = Finding(**known, p=0.03, q=0.04, unit="nats", num_seeds=3, gates=(gate,), rule_version=2)
    parts = (TaskVerdict("a", "reproduced", "0.5", "room"), TaskVerdict("b", "not tested"))
    other = {"verdict": "inconclusive", "budget": "at 5 tokens", "sign_low": 0.1, "sign_high": 0.9, "seeds_needed": 7}
    plain = recorded_claim(Claim(**vars(_record()), measure=len))
    question = replace(plain, rule=None, source="ours")
    base: dict[str, Any] = {"claim": plain, "finding": finding, "folder": "f", "scale": "small", "seeds": 3}
    changes: list[dict[str, Any]] = [
        {},
        {"finding": None},
        {"seeds": 1},
        {"seeds": None},
        {"sealed": False},
        {"scope": "here"},
    ]
    changes += [{"exploratory": "late"}, {"invalid": "wrong"}, {"one_of_several": True}, {"claim": question}]
    changes += [
        {"sensitivity": ()},
        {"sensitivity": ("margin",), "power": Power(0.9, 0.01, 0.02)},
        {"differs": ("x|y",)},
    ]
    changes += [{"finding": replace(finding, **other)}, {"finding": replace(finding, parts=parts, bimodal=True)}]
    changes += [{"finding": replace(finding, **other), "scope": "here"}, {"claim": question, "sensitivity": ("a",)}]
    changes += [{"finding": replace(finding, budget="at 5 tokens"), "scope": "here"}]
    found: dict[str, Any] = {}
    for number, change in enumerate(changes):
        row = LedgerRow(**base | change)
        found[str(number)] = [_words(*as_text([row])), _words(*as_markdown([row])), _words(row.row())]
    rows = [LedgerRow(**base | change) for change in changes]
    found["all"] = [_words(*as_text(rows)), _words(*as_markdown(rows))]
    sizes = [
        replace(rows[0], scale=scale, finished=done) for scale in ("smoke", "gpu", "own") for done in (True, False)
    ]
    known_claims = {"process": _record(about="process"), "training": _record()}
    with mock.patch.object(registry, "entries", return_value=known_claims):
        asked = [
            {"claim": one, "scale": "small", "scope": scope} for one in (*known_claims, "x") for scope in ("", "here")
        ]
        found["scopes"] = _words(*map(scope_of, asked))
    found["sizes"] = [ledger_module._size(one) for one in sizes]
    units = ("accuracy", "fraction of cases", "", "nats", "x, task")
    sentences = [("0.5", unit, count, case) for unit in units for count in (None, 1, 3, 9) for case in ("", "c")]
    found["sentences"] = [_words(effect_sentence(*one, seeds=seeds)) for one in sentences for seeds in (None, 3)]
    return found


@answers
def gates() -> Mapping[str, Any]:
    """Gates at and beside their thresholds, with their words and numbers."""
    sure, unsure = Effect(value=0.5, low=0.1, high=0.9, error=0.2), Effect(value=0.5)
    runs = [
        {"label": label, "seed": 0, "excess": excess, "last_quarter": 0.02, "tokens": 5.0 + len(label)}
        for label, excess in (("a", 0.0), ("b", 0.01), ("c", None), ("dd", -0.1))
    ]
    made = [Gate.learned(one, margin, "c") for one in (sure, unsure, None) for margin in (0.5, 0.6)]
    made += [
        Gate.regime(value, *ends, "x") for value in (0.5, 3.0) for ends in ((0.0, 2.0), (1.0, math.inf), (0.5, 2.0))
    ]
    made += [Gate.flat({"runs": Rows(runs[:number])}) for number in range(5)]
    made += [
        Gate.converged({name: 0.1 * k for k, name in enumerate("abcde")}, margin, "y") for margin in (0.0, 0.2, 1.0)
    ]
    made += [Gate.converged({"a": None, "b": 1.0}, 0.1, "y"), Gate.equal_tokens({"runs": Rows(runs)})]
    made += [Gate.equal_tokens({"runs": Rows(runs[:3])}), Gate.matched({"a": {"x": 1.0}, "b": {"y": 1.0}})]
    made += [Gate.matched({"a": {"x": 0.0, "y": 1.0}, "b": {"x": 2.0, "y": 1.5}}, 0.4), Gate.matched({})]
    effects = {"a": sure, "b": sure}
    for drift in (0.0, -0.2, -0.6):
        made.append(Gate.converged_by_rule(RULES[0], effects, {"a": drift, "b": 0.01}))
    made += [Gate.converged_by_rule(RULES[0], {"": sure}, {"": 0.1}), Gate.converged_by_rule(RULES[0], {}, {})]
    spent = [{}, {"tokens": 5.0}, {"sequences": 2.0, "tokens": 9.0}]
    return {
        "gates": [[one.name, one.is_open, one.seen, one.of, _words(one.text)] for one in made],
        "concerns": [
            Gate.headroom(1.0, 2.0, "x").about(*of).concerns(names) for of in ((), "a") for names in ("", "ab", [""])
        ],
        "budgets": [
            [verdict, _words(words)]
            for own in spent
            for paper in spent
            for helps in (True, False, None)
            for verdict, words in [at_budget("not reproduced", own, paper, helps)]
        ],
        "rules": [_words(rule) for rule in (*RULES, Below(0.5), Always(0.5))],
        "needed": [Always(least).seeds_needed(Effect.share([True] * 5)) for least in (0.5, 0.9)],
        "targets": [
            power.targets(rule, *aim)
            for rule in (*RULES, Below(-0.5), Above(), Always(0.5))
            for aim in ((), (0.3,), (0.3, 0.1))
        ],
        "severest": verdicts.severest(["reproduced", "inconclusive"]),
    }


@answers
def networks_in_tables() -> Mapping[str, Any]:
    """Tables with other networks in place of trained ones, panels of their rows, and colours of beliefs."""
    rows = Rows(
        {
            "seed": seed,
            "network": network,
            "layer": layer,
            "accuracy": 0.1 * layer + 0.05 * seed,
            "twins": twins,
            "share": share,
        }
        | {"share_low": 0.1, "share_high": 0.5, "value": 0.2 * seed + layer, "low": 0.1, "high": 3.0}
        for seed in (0, 1)
        for network, twins, share in (
            ("trained", 0.3, 0.4),
            ("untrained", None, None),
            ("trained - untrained", 0.1, None),
        )
        for layer in (2, 1)
    )
    scores = Rows(
        {"seed": seed, "predictor": name, "metric": metric, "value": value + 0.01 * seed, "low": None, "high": 1.0}
        for seed in (0, 1)
        for metric in ("accuracy", "loss")
        for name, value in (("model", 0.9), ("order-1", 0.4), ("order-2", 0.6), ("context-tree", 0.5))
    )
    gains = Rows({"quantity": name, "value": 0.4, "low": 0.3, "high": None} for name in ("gain over x", "loss"))
    alone = scores.where(predictor="model")
    all_ = {
        "a": rows,
        "scores": scores,
        "alone": alone,
        "counts": scores.where(predictor="order-1"),
        "gains": gains,
        "learned": Rows([{"effect": "x", "value": 2.0}]),
    }
    noise = [{"seed": seed, "x": x} for seed in (0, 1, 2) for x in (0.5, 0.25 * (seed == 1))]
    plane = BeliefPlane(np.random.default_rng(0).dirichlet(np.ones(3), 9))
    trained = rows.where(network="trained")
    packed = Rows({"side": "s", "at": at, "points": "AAAAAAAA"} for at in (2, 1))
    packed += [{"side": "colours", "points": "AAAAAAAA"}, {"side": "corners", "points": "A" * 12}]
    return {
        "others": [made(all_) for made in (controls.untrained, controls.constructed, controls.counting)],
        "gainless": controls.gaining_nothing(all_),
        "twins": [
            rows.as_twins(),
            _words(trained.beyond_twins("accuracy")),
            rows.where(network="x").beyond_twins("r2"),
        ],
        "same": [
            identical_seeds({"a": noise}),
            identical_seeds({"a": noise[:4]}),
            identical_seeds({"a": [{"seed": 0, "x": 1}]}),
        ],
        "pooled": [
            trained.pool("layer"),
            trained.pool("layer", "seed", value="accuracy"),
            trained.mean(),
            gains.mean(),
        ],
        "differences": [
            trained.less(rows.where(network="untrained")),
            trained.estimates() - Rows(trained[:2]).estimates(),
        ],
        "panels": [
            panels.curve(trained, "layer", "n", y="accuracy"),
            panels.curve(trained, "layer", "n", pool=False, bands=False),
            panels.curve(Rows(trained[:2]), "layer", "n", pool=False),
            panels.bar(trained, "layer", [1, 2], "n"),
            panels.level(0.5, [1, 2], "n"),
            panels.heatmap("t", trained, "layer", "seed", x_label="", y_label="", z_label="", order=[1, 0, 7]),
        ],
        "colours": [scatter_data.CERTAIN, scatter_data.CORNERS, scatter_data.STEPS, plane.colours(4), plane.corners()],
        "clouds": [plane.panel(packed, "s", "t"), plane.triangle("t", np.eye(3), np.eye(3))],
    }


def kept_of(name: str) -> dict[str, Any]:
    return {part: digest(value) for part, value in ANSWERS[name]().items()}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_those_that_were(name: str) -> None:
    assert differing(kept_of(name), json.loads(KEPT.read_text())[name], rel=1e-5) == []


if __name__ == "__main__":
    KEPT.write_text(json.dumps({name: kept_of(name) for name in ANSWERS}, separators=(",", ":")) + "\n")
