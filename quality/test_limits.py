"""Numbers at the limit that the documentation states are accepted, and the next ones beyond it are refused by name."""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope import registry
from hmmscope.analysis import decomposition, geometry, interventions, ngrams, shuffle, strategies
from hmmscope.analysis.belief_interventions import InterventionOptions
from hmmscope.analysis.curves import EvaluateOptions
from hmmscope.analysis.discovery import model_words
from hmmscope.analysis.fit_length import crossing_length, fit_length
from hmmscope.analysis.header import HeaderOptions
from hmmscope.analysis.ngram_reach import ngram_reach
from hmmscope.analysis.similarity import linear_cka
from hmmscope.analysis.strategy_weights import strategy_weights
from hmmscope.analysis.untrained_controls import InstrumentOptions, draw_controls
from hmmscope.datasets.layouts import HeaderLayout, PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference import (
    baum_welch,
    continuations,
    entropy,
    floors,
    given_inputs,
    linear_memory,
    memory,
    memory_error,
    minimal_automata,
    mixed_states,
    mixing,
    observability,
    spectral,
    stationary_process,
    window,
)
from hmmscope.inference.constraints import Constraints
from hmmscope.inference.gibbs import Chains, DirichletPrior
from hmmscope.inference.weights import as_weights
from hmmscope.processes.make import make_process

HMM = make_process("random-hmm", num_states=3, num_symbols=3)
LAW = spectral.Operators.of(HMM).probabilities
FIXED = hs.InputOutputHMM([0.5, 0.5], [np.eye(2), [[0.5, 0.5]] * 2], [[0.9, 0.1], [0.2, 0.8]])
TINY = np.nextafter(0, 1)


@cache
def _dataset(kind: str = "single", length: int = 9, number: int = 2) -> ProcessDataset:
    if kind == "single":
        return ProcessDataset(HMM, layout=SequenceLayout(length=length, placeholder=True))
    if kind == "header":
        spec = registry.build_spec("process", {"name": "told-hmms", "num_states": 2, "num_symbols": 3}, "process")
        return ProcessDataset(spec.build(), layout=HeaderLayout(length=length))
    pool = {"num_components": 2, "num_states": 3, "num_symbols": 3, "emission_concentration": 1.0}
    layout = PromptLayout(num_demonstrations=number, demonstration_length=4, test_length=length)
    return ProcessDataset(make_process("random-mixture", **pool), layout=layout)


@cache
def _model(kind: str = "single") -> Any:
    return _model_of(_dataset(kind))


def _model_of(dataset: ProcessDataset) -> Any:
    sizes = {"num_symbols": dataset.num_symbols, "vocab_size": dataset.vocab_size, "max_length": 64}
    return hs.make_model("roformer", num_layers=1, num_heads=2, width=8, **sizes).eval()


def _instrument(name: str, kind: str, field: str, value: Any, **options: Any) -> Any:
    run = registry.lookup("instrument", name)
    return run(_model(kind), _dataset(kind), **{"num_samples": 16} | options | {field: value})


PLAIN = {"options": InstrumentOptions(num_controls=0)}
#: Instrument, kind of dataset, argument, least value and options.
LEAST: list[tuple[str, str, str, int, dict[str, Any]]] = [
    ("geometry", "single", "num_samples", 8, PLAIN),
    ("probe", "single", "num_samples", 8, PLAIN | {"target": "belief"}),
    ("probe", "prompts", "num_samples", 8, PLAIN),
    ("header-memory", "header", "num_samples", 8, {"num_controls": 0}),
    ("header", "header", "num_samples", 2, {"target": "belief"}),
    ("belief-interventions", "single", "num_samples", 16, {}),
    ("mechanisms", "single", "num_samples", 16, {}),
    ("paths", "single", "num_samples", 16, {}),
    ("task-patching", "prompts", "num_samples", 16, {}),
    ("task-patching", "prompts", "rank", 0, {}),
    ("attention", "single", "max_offset", 0, {}),
    ("constrained-updates", "single", "num_distances", 2, {}),
    ("evaluation-losses", "single", "least_count", 0, {}),
    ("strategies", "single", "num_samples", 2, {}),
    ("strategies", "single", "max_order", 0, {}),
    ("shuffle", "prompts", "num_samples", 1, {}),
    ("shuffle", "prompts", "num_permutations", 2, {}),
]
#: Function of a number, name of the argument, last number that it accepts, and first one that it refuses.
LIMITS: list[tuple[Callable[[Any], Any], str, Any, Any]] = [
    (partial(_instrument, name, kind, field, **options), field, least, least - 1)
    for name, kind, field, least, options in LEAST
]


def _limit(field: str, good: Any, bad: Any, call: Callable[[Any], Any]) -> None:
    LIMITS.append((call, field, good, bad))


for _options, _least in (
    (InstrumentOptions, {"num_points": 1}),
    (InterventionOptions, {"num_positions": 1, "num_random": 1}),
    (EvaluateOptions, {"first": 0, "block_length": 0, "ngram_order": 0}),
    (HeaderOptions, {"num_hmms": 1, "num_pools": 0, "num_fits": 0}),
    (Chains, {"num_draws": 4, "num_chains": 1, "warm_up": 0, "every": 1}),
):
    for _field, _number in _least.items():
        _limit(_field, _number, _number - 1, lambda n, make=_options, field=_field: make(**{field: n}))
_limit("ridge", 0, -TINY, lambda x: InterventionOptions(ridge=x))
for _field in ("initial", "transition", "emission"):
    _limit(_field, 0.01, 0.0099, lambda x, field=_field: DirichletPrior(**{field: x}))
    _limit(_field, 1000, 1000.1, lambda x, field=_field: DirichletPrior(**{field: x}))

# Analysis
_BELIEFS = decomposition.Histories.all(HMM, 3)
_SEEN = torch.arange(12).reshape(1, 4, 3).double()
_HALVES = torch.full((3, 2, 2), 0.5, dtype=torch.float64)
_limit("num_samples", 8, 7, lambda n: hs.belief_map(_model(), _dataset(), num_samples=n, **PLAIN))
_limit("num_distances", 9, 10, lambda n: _instrument("constrained-updates", "single", "num_distances", n - 1))
_limit("num_controls", 3, 2, lambda n: draw_controls(_model(), n))
_limit("num_controls", 0, -1, lambda n: draw_controls(_model(), n))
_limit("num_points", None, 1, lambda n: InstrumentOptions(num_points=n).without(num_points="is of no use"))
_limit("time", 1, 0, lambda n: decomposition.Histories.all(HMM, n))
_limit("time", 1, 0, lambda n: decomposition.Histories.sampled(HMM, n, 2))
_limit("num_samples", 1, 0, lambda n: decomposition.Histories.sampled(HMM, 2, n))
_limit("memory_length", 1, 0, lambda n: _BELIEFS.windows(n))
_limit("memory_length", 3, 4, lambda n: _BELIEFS.windows(n))
_limit("num_factors", 2, 3, lambda n: _instrument_on("belief-space", _factors(), num_factors=n))
_limit("words", 9, 10, lambda n: model_words(_model(), _dataset())(torch.zeros(1, n, dtype=torch.int64)))
_limit("first_position", 8, 9, lambda n: _reach(first_position=n))
_limit("num_samples", 2, 1, lambda n: _reach(num_samples=n))
_limit("orders", 0, -1, lambda n: ngrams.TunedNgrams.tuned(_dataset(), num_samples=2, orders=n))
_limit("orders", 8, 9, lambda n: ngrams.TunedNgrams.tuned(_dataset(), num_samples=2, orders=n))
_limit("num_samples", 1, 0, lambda n: ngrams.TunedNgrams.tuned(_dataset(), num_samples=n))
_limit("num_samples", 1, 0, lambda n: ngrams.evaluate_ngrams(ngrams.UNTUNED, _dataset(), n))
_limit("layout", 5, 4, lambda n: _instrument_on("probe", _dataset("single", n), target="previous-1", **PLAIN))
_limit("layout", 5, 4, lambda n: _instrument_on("mechanisms", _dataset("single", n)))
_limit("layout", 2, 1, lambda n: _instrument_on("shuffle", _dataset("prompts", 6, n)))
_limit("first_position", 0, -1, lambda n: _shuffled(first_position=n))
_limit("first_position", 3, 4, lambda n: _shuffled(first_position=n))
_limit("left", 2, 1, lambda n: linear_cka(_SEEN[:, :n], _SEEN[:, :n]))
_limit("right", 3, 4, lambda n: linear_cka(_SEEN[:, :3], _SEEN[:, :n]))
_limit("model", 2, 1, lambda n: strategy_weights(_HALVES[:n], {"a": _HALVES[:n]}))
_limit("model", torch.ones(3), torch.tensor(1.0), lambda x: strategy_weights(x.double(), {"a": x.double()}))
_limit("predictors", 1, 0, lambda n: strategy_weights(_HALVES, dict.fromkeys("ab"[:n], _HALVES)))
_limit("rows", 2, 1, lambda n: strategies.LevelCrossing.between(_steps(n), "a", "b"))
_limit("head", 0, -1, lambda n: interventions.ablate_head(n, 2))
_limit("head", 1, 2, lambda n: interventions.ablate_head(n, 2))
_limit("num_heads", 3, 2, lambda n: interventions.ablate_head(0, n)(torch.zeros(1, 1, 9)))
_limit("directions", 1.0, torch.inf, lambda x: interventions.span(torch.tensor([[x, 0.0]])))
_limit("device", "cpu", "nowhere", lambda x: hs.evaluate(_model(), _dataset(), num_samples=2, device=x))
_limit("device", "cpu", "meta", lambda x: hs.evaluate(_model(), _dataset(), num_samples=2, device=x))
_limit("layers", ["residual.0"], [], lambda x: _instrument("geometry", "single", "layers", x, **PLAIN))
_limit("dataset", 1.0, 0.0, lambda x: geometry.explained(np.ones((9, 1)), np.full(9, x)))
for _fit in (fit_length, crossing_length):
    _limit("error_rate", TINY, 0, lambda x, fit=_fit: fit([[0.1]], [1], x))
    _limit("last", 1, 0, lambda n, fit=_fit: fit([[0.1]], [1], 0.5, last=n))
    _limit("losses", [[0.1]], [], lambda x, fit=_fit: fit(x, [1], 0.5))
    _limit("losses", [[0.1]], [[0.1, 0.2]], lambda x, fit=_fit: fit(x, [1], 0.5))
    for _bad in ([0], [], [1.0]):
        _limit("positions", [1], _bad, lambda x, fit=_fit: fit([[0.1] * len(x)], x, 0.5))
    _limit("positions", [1, 2], [2, 2], lambda x, fit=_fit: fit([[0.1] * len(x)], x, 0.5))

# Inference
_SEQUENCE = torch.tensor([[0, 1, 1, 0, 2, 1]])
_limit("length", 1, 0, lambda n: entropy.block_entropies(HMM, n))
_limit("num_samples", 2, 1, lambda n: entropy.entropy_rate(HMM, num_samples=n, length=9, max_mixed_states=1))
_limit("length", 3, 2, lambda n: entropy.entropy_rate(HMM, num_samples=9, length=n, max_mixed_states=1))
_limit("steps", 1, 0, lambda n: continuations.forecast(HMM, _SEQUENCE, n))
_limit("steps", 9, 2**20 + 1, lambda n: continuations.forecast(HMM, _SEQUENCE, n))
_limit("num_draws", 0, -1, lambda n: continuations.forecast(HMM, _SEQUENCE, 1, num_draws=n))
for _shape in (Constraints.left_to_right, Constraints.banded):
    _limit("width", 1, 0, lambda n, shape=_shape: shape(3, n))
    _limit("num_states", 1, 0, lambda n, shape=_shape: shape(n))
_limit("exponent", 0.51, 0.5, lambda x: baum_welch.fit_stream([_SEQUENCE], HMM, exponent=x))
_limit("exponent", 1, 1.01, lambda x: baum_welch.fit_stream([_SEQUENCE], HMM, exponent=x))
_limit("pseudo_count", 0, -TINY, lambda x: baum_welch.fit_stream([_SEQUENCE], HMM, pseudo_count=x))
_limit("batches", 1, 0, lambda n: baum_welch.fit_stream([_SEQUENCE] * n, HMM))
_FEW = {"num_restarts": 1, "max_iterations": 1}
_limit("positions", 0, -1, lambda n: baum_welch.baum_welch_predictions(_SEQUENCE, 2, 3, [n], **_FEW))
_limit("positions", 5, 6, lambda n: baum_welch.baum_welch_predictions(_SEQUENCE, 2, 3, [n], **_FEW))
for _floor in (floors.next_observation_floor, floors.belief_floor):
    _limit("num_steps", 1, 0, lambda n, floor=_floor: floor(HMM, n, num_samples=2))
    _limit("num_samples", 2, 1, lambda n, floor=_floor: floor(HMM, 2, num_samples=n))
_limit("prediction_rate", 1e-9, 0, lambda x: floors.cyclic_hard_floor(3, x, 4))
_limit("prediction_rate", 1, 1.1, lambda x: floors.cyclic_hard_floor(3, x, 4))
_limit("num_steps", 1, 0, lambda n: floors.linear_floor(make_process("ran-lds"), n))
_limit("first", 0, -1, lambda n: floors.linear_floor(make_process("ran-lds"), 3, first=n))
_limit("memory_length", 1, 0, lambda n: memory.memory_beliefs(HMM, _SEQUENCE, n))
_limit("memory_length", 1, 0, lambda n: memory.memory_table(HMM, n))
_limit("memory_length", 1, 0, lambda n: linear_memory.linear_predictor(HMM, n))
_limit("memory_length", 1, 0, lambda n: memory_error.memory_certificate(HMM, n))
_limit("memory_length", 1, 0, lambda n: _given().fixed_memory_predictions(_SEQUENCE.clamp_max(1), n))
_limit("enumeration", 20, 21, lambda n: memory.all_sequences(2, n))
_limit("prior", 1.0, 1 + 2e-9, lambda x: memory.with_prior(HMM, [x, 0.0, 0.0]))
_limit("prior", 1.01e-150, 0.99e-150, lambda x: memory.with_prior(HMM, [1.0, x, 0.0]))
for _error in (memory_error.memory_error, partial(memory_error.sampled_memory_error, num_samples=2)):
    _limit("memory_length", 1, 0, lambda n, error=_error: error(HMM, n, 3))
    _limit("memory_length", 3, 4, lambda n, error=_error: error(HMM, n, 3))
_limit("num_samples", 2, 1, lambda n: memory_error.sampled_memory_error(HMM, 1, 3, num_samples=n))
_limit("errors", TINY, 0.0, lambda x: memory_error.fit_decay([1, 2, 3], [1.0, 0.5, x]))
_limit("errors", 2, 3, lambda n: memory_error.fit_decay([1, 2, 3], [1.0, 0.5, 0.2], first=n))
_limit("futures", 1, 0, lambda n: minimal_automata.extract_automaton(LAW, 3, futures=n, max_depth=2))
for _good, _bad in ((TINY, 0), (0.999, 1)):
    _limit("tolerance", _good, _bad, lambda x: _automaton(tolerance=x))
for _good, _bad in ((0, -TINY), (0.333, 1 / 3)):
    _limit("rare", _good, _bad, lambda x: _automaton(rare=x))
_limit("max_states", 1, 0, lambda n: mixed_states.mixed_states(HMM, max_states=n, max_depth=1))
_limit("max_depth", 0, -1, lambda n: mixed_states.mixed_states(HMM, max_depth=n))
_limit("tolerance", 0, -TINY, lambda x: mixed_states.mixed_states(HMM, tolerance=x, max_depth=1))
_limit("tolerance", 0.999, 1, lambda x: mixed_states.mixed_states(HMM, tolerance=x, max_depth=1))
for _good, _bad in ((TINY, 0), (0.999, 1)):
    _limit("threshold", _good, _bad, lambda x: mixing.mixing_time(HMM, threshold=x, num_samples=2, max_time=2))
_limit("max_time", 1, 0, lambda n: mixing.mixing_time(HMM, num_samples=2, max_time=n))
_limit("num_steps", 0, -1, lambda n: mixing.forgetting_curve(HMM, n, num_samples=2))
_limit("num_samples", 2, 1, lambda n: mixing.forgetting_curve(HMM, 1, num_samples=n))
_limit("steps", 1, 0, lambda n: observability.step_emission(HMM, n))
_limit("steps", 12, 13, lambda n: observability.step_emission(HMM, n))
_limit("num_futures", 1, 0, lambda n: observability.future_distribution(HMM, _SEQUENCE, n))
_limit("method", 14, 15, lambda n: _enumerated(n))
_limit("num_paths", 0, -1, lambda n: hs.sample_state_paths(HMM, _SEQUENCE, num_paths=n))
_limit("length", 1, 0, lambda n: spectral.learn_operators(LAW, 3, length=n))
_limit("rank", 3, 14, lambda n: spectral.learn_operators(LAW, 3, length=2, rank=n))
_limit("windows", [0], [-1], lambda x: window.window_errors(HMM, x, [2], num_samples=2))
_limit("windows", [1], [], lambda x: window.window_errors(HMM, x, [2], num_samples=2))
_limit("times", [1], [0], lambda x: window.window_errors(HMM, [1], x, num_samples=2))
_limit("times", [1], [], lambda x: window.window_errors(HMM, [1], x, num_samples=2))
_limit("num_samples", 2, 1, lambda n: window.window_errors(HMM, [1], [2], num_samples=n))
_limit("windows", [1], [0], lambda x: window.linear_window_errors(make_process("ran-lds"), x, 3, start="oldest"))
_limit("windows", [3], [4], lambda x: window.linear_window_errors(make_process("ran-lds"), x, 3))
_limit("sequence_weights", [0.0, TINY], [0.0, 0.0], lambda x: as_weights(x, 2))
_limit("sequence_weights", [1.0, 0.0], [1.0, -TINY], lambda x: as_weights(x, 2))
for _field in ("num_restarts", "max_iterations"):
    _limit(_field, 1, 0, lambda n, field=_field: hs.fit([0, 1] * 9, 1, options=hs.FitOptions(**{field: n})))


def _reach(**options: Any) -> Any:
    return ngram_reach(HMM, SequenceLayout(length=9), **{"num_samples": 4, "probe_samples": 16} | options)


def _instrument_on(name: str, dataset: ProcessDataset, **options: Any) -> Any:
    return registry.lookup("instrument", name)(_model_of(dataset), dataset, num_samples=16, **options)


def _shuffled(**options: Any) -> Any:
    return shuffle.ShuffleValues.of(_model("prompts"), _dataset("prompts"), num_samples=2, **options)


def _steps(count: int) -> list[dict[str, Any]]:
    row = {"metric": "kl", "value": 0.5, "low": 0.4, "high": 0.6}
    return [row | {"predictor": name, "step": step} for name in "ab" for step in range(count)]


def _given() -> Any:
    return given_inputs.GivenInputs(FIXED, torch.tensor([0, 1, 0, 1, 1, 0]))


def _automaton(**options: Any) -> Any:
    return minimal_automata.extract_automaton(LAW, 3, futures=1, max_depth=2, max_states=9, **options)


def _factors() -> ProcessDataset:
    return ProcessDataset(make_process("factored-mess3"), length=5)


def _enumerated(num_states: int) -> Any:
    emission = torch.eye(num_states, dtype=torch.float64) * 0.5 + 0.5 / num_states
    with mock.patch.object(observability, "enumerate_signs", lambda rows: (0.0, np.zeros(len(rows)))):
        return observability.coefficient(emission, method="enumeration")


@pytest.mark.parametrize(("call", "field", "good", "bad"), LIMITS, ids=lambda one: one if type(one) is str else "")
def test_a_number_at_its_limit_is_taken_and_the_next_is_refused(
    call: Callable[[Any], Any], field: str, good: Any, bad: Any, unchecked: None
) -> None:
    call(good)
    with pytest.raises(InputError, match=rf"^(\w+\.)?{re.escape(field)}\b"):
        call(bad)


def _edited(**edits: Any) -> None:
    with hs.intervene(_model(), edits):
        _model()(_dataset()[0:2].tokens)


MIXTURE = make_process("random-mixture", num_components=2, num_states=2, num_symbols=3)
SENSORS = hs.GaussianHMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.0], [5.0]], [[1.0], [1.0]])
CHAIN, ONE = ProcessDataset(make_process("mess3"), length=9), torch.nn.Linear(2, 2)
GRU = hs.make_model("gru", num_symbols=3, width=4).eval()
#: Calls that are refused, and how the error begins.
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: _instrument_on("constrained-updates", _dataset("prompts")), "process: Mixture has no hidden states"),
    (lambda: _instrument_on("constrained-updates", _pairs()), "dataset: must have one sequence per sample"),
    (lambda: registry.lookup("instrument", "constrained-updates")(GRU, CHAIN), "model: must have the activations"),
    (lambda: registry.lookup("instrument", "mechanisms")(GRU, CHAIN), "model: has no activations blocks"),
    (lambda: registry.lookup("instrument", "paths")(GRU, CHAIN), "model: must be a Decoder"),
    (lambda: _strategies(), "dataset: must have symbols"),
    (lambda: registry.lookup("instrument", "shuffle")(GRU, _dataset("prompts")), "model: found no softmax attention"),
    (lambda: _instrument("task-patching", "prompts", "columns", "x"), "columns: unknown 'x'"),
    (lambda: _instrument("task-patching", "single", "columns", "all"), "dataset: must be prompts of a mixture"),
    (lambda: _instrument("probe", "single", "target", "component"), "target: component needs a mixture"),
    (lambda: _instrument("probe", "prompts", "target", "state"), "target: state needs a single HMM"),
    (lambda: _instrument("shuffle", "single", "num_permutations", 2), "layout: the shuffle test needs prompts"),
    (lambda: _instrument("automaton", "prompts", "length", 1), "process: Mixture has no probabilities"),
    (
        lambda: hs.evaluate(_model(), _dataset(), device="cpu", observers={"x": MIXTURE[0]}, target="belief"),
        "observers",
    ),
    (lambda: hs.evaluate(_model(), _dataset(), observers={"order-1": HMM}), "observers: must not have the name"),
    (lambda: hs.evaluate(_model(), _dataset(), observers={"x": CASINO}), r"observers\.x: must have 3 symbols"),
    (lambda: hs.belief_map(_model(), None), "process: is missing"),
    (lambda: hs.belief_map(_model(), "mess3"), "length: .*does not state its training length"),
    (lambda: hs.belief_map(_model(), _dataset(), length=4), "length: must be omitted for a dataset"),
    (lambda: hs.belief_map(_model(), _dataset(), over_checkpoints=True), "over_checkpoints: needs a run"),
    (lambda: hs.belief_map(len, "mess3", length=5, device="cpu"), "device: needs a module or a run"),
    (lambda: draw_controls(torch.nn.Identity(), controls=ONE), "controls: must be a function"),
    (lambda: draw_controls(ONE, controls=lambda: 3), "controls: must be a function .*; it returned 3"),
    (lambda: draw_controls(ONE, controls=lambda: ONE), "controls: must draw new weights"),
    (lambda: draw_controls(ONE, controls=lambda: torch.nn.Linear(2, 3)), "controls: must return the model's architect"),
    (
        lambda: draw_controls(ONE, controls=lambda: torch.nn.Linear(2, 2, bias=False)),
        "controls: must return a module of",
    ),
    (lambda: draw_controls(ONE, controls=lambda: 1 / 0), "controls: the function fails .ZeroDivisionError"),
    (lambda: _edited(**{"residual.0": 3}), "edits: residual.0 must be a function"),
    (lambda: _edited(**{"residual.0": lambda x: 3}), "edits: the edit of residual.0 must return a tensor, got 3"),
    (lambda: _edited(**{"residual.0": lambda x: x[:1]}), "edits: the edit of residual.0 must keep its shape"),
    (
        lambda: Constraints(durations=[[True]]).parts(1, 2),
        "constraints.durations: must be omitted, because this fit has no",
    ),
    (
        lambda: Constraints(emission=[[True]]).parts(1, None),
        "constraints.emission: must be omitted for vector emissions",
    ),
    (lambda: spectral.Operators.of(MIXTURE), "process: Mixture has no probabilities of words"),
    (lambda: floors.belief_floor(MIXTURE, 2, num_samples=2), "process: Mixture has no"),
    (lambda: mixing.forgetting_curve(MIXTURE, 2), "process: Mixture has no hidden states"),
    (lambda: memory_error.memory_certificate(MIXTURE, 2), "process: Mixture has no hidden states"),
    (lambda: observability.step_emission(MIXTURE, 1), "process: Mixture has no probabilities of words"),
    (lambda: entropy.block_entropies(MIXTURE, 1), "process: Mixture has no probabilities of words"),
    (lambda: continuations.forecast(make_process("bloch-walk"), _SEQUENCE, 2, num_draws=1), "num_draws: must be 0"),
    (
        lambda: window.linear_window_errors(make_process("ran-lds"), [1], 2, start="x"),
        "start: must be 'zero' or 'oldest'",
    ),
    (lambda: stationary_process.stationary_distribution(MIXTURE), "process: a mixture has no single stationary"),
    (lambda: stationary_process.stationary_distribution(_two()), "stationary distribution: is not unique"),
    (
        lambda: stationary_process.stationary_distribution(torch.full((2, 4), 0.25).double()),
        "process: must be a process or a sq",
    ),
]


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_a_function_cannot_use_is_refused(call: Callable[[], Any], said: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=f"^({said})"):
        call()


CASINO = hs.load_process("dishonest-casino")


def _strategies() -> None:
    dataset = ProcessDataset(SENSORS, length=4)
    strategies.strategies(hs.make_model("rnn", num_symbols=6, input_width=1, width=4), dataset)


def _pairs() -> ProcessDataset:
    return ProcessDataset(HMM, layout=PromptLayout(num_demonstrations=1, demonstration_length=4, test_length=4))


def _two() -> hs.HMM:
    return hs.HMM([0.5, 0.5], np.eye(2), np.eye(2))
