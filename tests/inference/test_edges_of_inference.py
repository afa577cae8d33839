"""Options of exact answers and fits at their edges, memory that is asked for before it is taken, and small laws by hand."""

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope import system_info
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference import (
    baum_welch,
    chains,
    continuations,
    counts,
    em,
    entropy,
    fast,
    floors,
    gibbs,
    memory,
    memory_error,
    minimal_automata,
    mixed_states,
    mixing,
    mixture_posterior,
    num_states,
    observability,
    optimal,
    paths,
    ragged,
    smoothing,
    spectral,
    window,
)
from hmmscope.inference.em import Model
from hmmscope.inference.linear_memory import linear_predictor
from hmmscope.inference.stationary_process import stationary_distribution
from hmmscope.processes import polya_urn
from hmmscope.processes.files import load_process
from hmmscope.processes.make import make_process
from hmmscope.sequences.data import SequenceData

HMM = load_process("umbrella")
LDS = make_process("ran-lds", dimension=2)
MIXTURE = hs.Mixture([0.5, 0.5], [HMM, HMM])
SEEN = torch.tensor([[0, 1, 0, 0, 1, 1]])
FIT: dict[str, Any] = {"num_restarts": 1, "num_tries": 1, "max_iterations": 1}


def law(words: torch.Tensor) -> torch.Tensor:
    return torch.full((len(words),), 0.5 ** words.shape[1], dtype=torch.float64)


@pytest.mark.parametrize(
    ("ask", "field", "good", "bad"),
    [
        (lambda v: continuations.forecast(HMM, SEEN, v), "steps", [1], [0]),
        (lambda v: continuations.forecast(HMM, SEEN, 1, num_draws=v), "num_draws", [0], [-1]),
        (lambda v: entropy.block_entropies(HMM, v), "length", [1], [0, 21]),
        (lambda v: entropy.entropy_rate(HMM, num_samples=v, length=3), "num_samples", [2], [1]),
        (lambda v: entropy.entropy_rate(HMM, num_samples=2, length=v), "length", [3], [2]),
        (lambda v: floors.belief_floor(HMM, v, num_samples=2), "num_steps", [1], [0]),
        (lambda v: floors.belief_floor(HMM, 2, num_samples=v), "num_samples", [2], [1]),
        (lambda v: floors.cyclic_hard_floor(2, v, 3), "prediction_rate", [1e-6, 1.0], [0.0, 1.1]),
        (lambda v: floors.linear_floor(LDS, v), "num_steps", [1], [0]),
        (lambda v: floors.linear_floor(LDS, 1, first=v), "first", [0], [-1]),
        (lambda v: gibbs.DirichletPrior(initial=v), "initial", [0.01, 1000.0], [0.009, 1001.0]),
        (lambda v: gibbs.DirichletPrior(transition=v), "transition", [0.01, 1000.0], [0.009, 1001.0]),
        (lambda v: gibbs.DirichletPrior(emission=v), "emission", [0.01, 1000.0], [0.009, 1001.0]),
        (lambda v: gibbs.Chains(num_draws=v), "num_draws", [4], [3]),
        (lambda v: gibbs.Chains(num_chains=v), "num_chains", [1], [0]),
        (lambda v: gibbs.Chains(warm_up=v), "warm_up", [0], [-1]),
        (lambda v: gibbs.Chains(every=v), "every", [1], [0]),
        (lambda v: linear_predictor(HMM, v), "memory_length", [1], [0]),
        (lambda v: memory.memory_beliefs(HMM, SEEN, v), "memory_length", [1], [0]),
        (lambda v: memory.memory_table(HMM, v), "memory_length", [1], [0]),
        (lambda v: memory.all_sequences(2, v), "enumeration", [20], [21]),
        (lambda v: memory_error.memory_error(HMM, v, 3), "memory_length", [1, 3], [0, 4]),
        (lambda v: memory_error.sampled_memory_error(HMM, v, 3, num_samples=2), "memory_length", [1, 3], [0, 4]),
        (lambda v: memory_error.sampled_memory_error(HMM, 1, 3, num_samples=v), "num_samples", [2], [1]),
        (lambda v: memory_error.memory_certificate(HMM, v), "memory_length", [1], [0]),
        (lambda v: minimal_automata.extract_automaton(law, 2, futures=v), "futures", [1], [0]),
        (lambda v: minimal_automata.extract_automaton(law, 2, futures=1, tolerance=v), "tolerance", [0.1, 0.9], [0.0, 1.0]),
        (lambda v: minimal_automata.extract_automaton(law, 2, futures=1, rare=v), "rare", [0.0, 0.49], [-0.1, 0.5]),
        (lambda v: mixed_states.mixed_states(HMM, max_states=v, max_depth=1), "max_states", [1], [0]),
        (lambda v: mixed_states.mixed_states(HMM, max_states=9, max_depth=v), "max_depth", [0, 1], [-1]),
        (lambda v: mixed_states.mixed_states(HMM, max_states=9, max_depth=1, tolerance=v), "tolerance", [0, 0.9], [-0.1, 1]),
        (lambda v: mixing.mixing_time(HMM, threshold=v, max_time=1, num_samples=2), "threshold", [0.01, 0.99], [0.0, 1.0]),
        (lambda v: mixing.mixing_time(HMM, max_time=v, num_samples=2), "max_time", [1], [0]),
        (lambda v: mixing.forgetting_curve(HMM, v, num_samples=2), "num_steps", [0], [-1]),
        (lambda v: mixing.forgetting_curve(HMM, 1, num_samples=v), "num_samples", [2], [1]),
        (lambda v: observability.observability(HMM, v), "steps", [1], [0, 21]),
        (lambda v: observability.future_distribution(HMM, SEEN, v), "num_futures", [1], [0]),
        (lambda v: paths.sample_state_paths(HMM, SEEN, num_paths=v), "num_paths", [0], [-1]),
        (lambda v: spectral.learn_operators(law, 2, length=v), "length", [1], [0]),
        (lambda v: spectral.learn_operators(law, 2, length=1, rank=v), "rank", [1, 3], [4]),
        (lambda v: window.window_errors(HMM, [v], [2], num_samples=2), "windows", [0], [-1]),
        (lambda v: window.window_errors(HMM, [0], [v], num_samples=2), "times", [1], [0]),
        (lambda v: window.window_errors(HMM, [0], [1], num_samples=v), "num_samples", [2], [1]),
        (lambda v: baum_welch.fit_stream([SEEN], HMM, exponent=v), "exponent", [0.51, 1.0], [0.5, 1.1]),
        (lambda v: baum_welch.fit_stream([SEEN], HMM, pseudo_count=v), "pseudo_count", [0.0], [-0.1]),
        (lambda v: baum_welch.fit_stream([SEEN] * v, HMM), "batches", [1], [0]),
        (lambda v: baum_welch.baum_welch_predictions(SEEN, 2, 2, [v], **FIT), "positions", [0, 5], [-1, 6]),
        (lambda v: baum_welch.fit_baum_welch(SEEN, 2, 2, **FIT | {"num_restarts": v}), "num_restarts", [1], [0]),
        (lambda v: baum_welch.fit_baum_welch(SEEN, 2, 2, **FIT | {"num_tries": v}), "num_tries", [1], [0]),
        (lambda v: baum_welch.fit_baum_welch(SEEN, v, 2, **FIT), "num_states", [1], [0]),
        (lambda v: baum_welch.fit_baum_welch(SEEN, 2, 2, **FIT, fixed=v), "fixed", [()], [("initial",)]),
        (lambda v: baum_welch.fit_baum_welch(SEEN, 2, 2, **FIT, start=HMM, fixed=v), "fixed", [("initial",)], [("start",)]),
        (lambda v: baum_welch.fit_baum_welch(SEEN, v, 2, **FIT, start=HMM), "start", [2], [3]),
        (lambda v: baum_welch.fit_baum_welch(SEEN, 2, 2, **FIT, tied_emissions=v), "tied_emissions",
         [[0, 1], [1, 0]], [[0, 2], [-1, 0], [0], [0.0, 1.0]]),
        (lambda v: mixture_posterior.filter_known_component(MIXTURE, SEEN, torch.tensor([v])), "components",
         [0, 1], [-1, 2]),
        (lambda v: fast.mixture_predictions(MIXTURE, SEEN, dtype=v), "dtype", [torch.float32], [torch.float16]),
        (lambda v: polya_urn.dirichlet_chain_predictions(SEEN, 2, v), "concentration", [1e-9], [0.0]),
        (lambda v: ragged.check_ragged(SEEN, HMM.alphabet, None, [v]), "lengths", [0, 6], [-1, 7]),
    ],
)  # fmt: skip
def test_an_option_is_taken_up_to_its_edge(
    ask: Any, field: str, good: list[Any], bad: list[Any], unchecked: None
) -> None:
    for value in good:
        ask(value)
    for value in bad:
        with pytest.raises(InputError, match=rf"^{field}: "):
            ask(value)


#: What asks for memory, by whom it is said, and the bytes of its answer, which are the least that it takes.
ROOM: list[tuple[Any, str, int]] = [
    (lambda: smoothing.smooth_pairs(HMM, SEEN), "smooth_pairs", 8 * 5 * 4),
    (lambda: mixing.forgetting_curve(HMM, 3, num_samples=50), "mixing_time", 8 * 50 * 4),
    (lambda: continuations.forecast(HMM, SEEN, 3, num_draws=20), "forecast", 8 * 20 * 3),
    (lambda: entropy.block_entropies(HMM, 5), "block_entropies", 8 * 2**5),
    (lambda: entropy.entropy_rate(HMM, num_samples=2**14, length=9), "entropy_rate", 8 * 9 * 2**14),
    (lambda: entropy.entropy_rate(LDS, num_samples=9, length=30), "entropy_rate", 8 * 9 * 30 * 2),
    (lambda: paths.sample_state_paths(HMM, SEEN, num_paths=9), "sample_state_paths", 8 * 9 * 6),
    (lambda: continuations.forecast(HMM, SEEN, 30), "forecast", 8 * 30 * 2),
    (lambda: hs.make_model("rnn", num_symbols=3), "make_model", 4 * 3 * 8),
    (lambda: mixture_posterior.drawn_components(torch.eye(2).double(), 9, 0, "draws"), "num_draws", 8 * 9 * 2),
    (lambda: observability.observability(HMM, 3), "observability", 8 * 2 * 2**3),
    (lambda: observability.future_distribution(HMM, SEEN, 3), "future_law|observability", 8 * 6 * 2**3),
    (lambda: observability.coefficient(HMM.emission), "observability", 8 * 2**3),
    (lambda: observability.pair_bound(HMM), "observability", 8 * 2**2),
    (lambda: memory.filter_windows(HMM.params, SEEN.T.contiguous()), "windows", 8 * 6 * 2 * 2),
    (lambda: memory_error.sampled_memory_error(HMM, 1, 4, num_samples=9), "memory_error", 8 * 9 * 4),
    (lambda: mixed_states.mixed_states(HMM, max_states=30), "mixed_states", 8 * 30 * 4),
    (lambda: mixture_posterior.filter_mixture(MIXTURE, SEEN), "filter_mixture", 8 * 6 * 2),
    (lambda: fast.mixture_predictions(MIXTURE, SEEN), "mixture_predictions", 8 * 6 * 2),
    (lambda: polya_urn.dirichlet_chain_predictions(SEEN, 2, 1.0), "dirichlet_chain_predictions", 8 * 6 * 2),
    (lambda: HMM.params.steps(), "steps", 8 * 2 * 4),
    (lambda: make_process("random-mixture", num_components=3), r"process \(3 components\)", 8 * 3 * 128 * 145),
    (lambda: make_process("aliased-cycles-mixture", num_components=3), r"process \(3 components\)", 8 * 3 * 16 * 24),
    (lambda: gibbs.symbol_draws(
        baum_welch.as_sequences(SEEN, 2), Model.of(HMM), np.empty(0, np.int64), gibbs.DirichletPrior(),
        gibbs.Chains(num_draws=4, num_chains=2, warm_up=0), Model.of(HMM)), "posterior", 8 * 4 * 2 * (2 + 4 + 4)),
    (lambda: hs.fit(SequenceData([[0, 1, 0, 1, 1, 0] * 4]), 2, options=hs.FitOptions(num_restarts=1, max_iterations=1)),
     "fit", 8 * 24 * 2),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "name", "size"), ROOM)
def test_what_fits_no_memory_is_refused_before_it_is_made(
    ask: Any, name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_info, "free_memory", lambda: size - 1)
    with pytest.raises(ResourceError, match=f"^({name}): needs .* GiB"):
        ask()
    monkeypatch.setattr(system_info, "free_memory", lambda: 1 << 26)
    ask()


def test_a_source_that_fits_no_memory_is_refused_before_it_is_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("abba\n" * 20)
    monkeypatch.setattr(system_info, "free_memory", lambda: 99)
    with pytest.raises(ResourceError, match=r"a\.txt: needs"):
        SequenceData(tmp_path / "a.txt")


def test_the_floor_of_cyclic_hard_by_hand() -> None:
    """Always asked: star, name, then a symbol of m; never: uniform in the actions."""
    m, a = 3, 0.25
    after = -(0.75 * math.log(0.75 / m) + a * math.log(a))
    first = after
    second = 0.75 * after
    third = (0.75**2) * after + a * math.log(m)
    assert floors.cyclic_hard_floor(m, a, 3) == pytest.approx((first + second + third) / 3, rel=1e-14)
    assert floors.cyclic_hard_floor(m, 1.0, 3) == pytest.approx(math.log(m) / 3, rel=1e-14)


def test_variances_of_an_orthogonal_system_are_those_of_fibonacci() -> None:
    assert floors.linear_variances(LDS, 4).tolist() == pytest.approx([2, 5 / 2, 13 / 5, 34 / 13], rel=1e-12)
    assert floors.linear_floor(LDS, 2, first=1) == pytest.approx((5 / 2 + 13 / 5) / 2, rel=1e-12)


def test_a_stationary_law_is_one_or_none() -> None:
    assert stationary_distribution(HMM).tolist() == pytest.approx([0.5, 0.5])
    assert stationary_distribution(
        torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64)
    ).tolist() == pytest.approx([0.75, 0.25])
    with pytest.raises(InputError, match="process: a mixture has no single stationary distribution"):
        stationary_distribution(MIXTURE)
    with pytest.raises(InputError, match="pass the argument prior"):
        stationary_distribution(hs.HMM([0.5, 0.5], np.eye(2), np.eye(2)))


@pytest.mark.parametrize("prior", [[0.5, 0.6], [1.5, -0.5], [1.0], [0.5, float("nan")]])
def test_a_prior_is_a_law(prior: list[float]) -> None:
    with pytest.raises(InputError, match="prior: must be 2 probabilities with sum 1"):
        memory.with_prior(HMM, prior)
    with pytest.raises(InputError, match=r"prior: has a positive entry below .*, which could underflow"):
        memory.with_prior(HMM, [1.0, 1e-300])
    assert memory.with_prior(HMM, [1.0, 0.0]).initial_MS.tolist() == [[1.0, 0.0]]


def test_a_decay_is_fitted_where_errors_are_positive() -> None:
    """By default from the second length on: what halves has rate 1/2."""
    found = memory_error.fit_decay([1, 2, 3, 4], [9.0, 4.0, 2.0, 1.0])
    assert (found.first, found.last) == (2, 4)
    assert found.residual < 1e-14
    assert memory_error.fit_decay([1, 2], [4.0, 2.0], first=1).first == 1
    for first, last, errors in ((3, 3, [4.0, 2.0]), (2, 3, [4.0, 0.0]), (2, 3, [4.0, math.inf])):
        with pytest.raises(
            InputError, match=f"errors: must have at least two positive values at lengths {first} to {last}"
        ):
            memory_error.fit_decay([2, 3], errors, first=first, last=last)


def test_probabilities_of_operators_are_those_of_the_process() -> None:
    operators = spectral.learn_operators(spectral.Operators.of(HMM).probabilities, 2)
    words = memory.all_sequences(2, 5)
    exact = hs.log_likelihood(HMM, words).exp()
    assert operators.probabilities(words).tolist() == pytest.approx(exact.tolist(), abs=1e-9)
    assert float(operators.probabilities(words).sum()) == pytest.approx(1)
    ahead = hs.filter_beliefs(HMM, SEEN).next_observation
    assert torch.allclose(operators.next_observation(SEEN), ahead, atol=1e-9)


def test_the_mean_of_what_is_held_out_and_its_error() -> None:
    """Cochran's ratio: residuals of logs from mean times lengths."""
    logs, lengths = np.array([-1.0, -4.0, -2.0]), np.array([1, 2, 2])
    found = num_states.held_out_mean(logs, lengths)
    rest = [-1 + 7 / 5, -4 + 14 / 5, -2 + 14 / 5]
    assert found.mean == pytest.approx(-7 / 5)
    assert found.error == pytest.approx(math.sqrt(3 / 2 * sum(one**2 for one in rest)) / 5)
    assert math.isnan(num_states.held_out_mean(logs[:1], lengths[:1]).error)
    assert math.isnan(num_states.held_out_mean(np.array([-1.0, -np.inf]), lengths[:2]).error)
    assert [num_states._states(size) for size in (1, 2)] == ["1 state", "2 states"]


def test_what_has_no_such_answer_says_so(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    gaussian, signed = make_process("random-gaussian"), make_process("probability-clock")
    for ask, said in (
        (
            lambda: continuations.forecast(signed, torch.zeros(1, 1, dtype=torch.int64), 1, num_draws=1),
            "num_draws: must be 0",
        ),
        (lambda: ragged.check_own(HMM, SEEN, [6]), "lengths: must be omitted for a HMM; pass sequences of equal"),
        (lambda: hs.observe(gaussian, np.zeros((1, 2, 2)), lengths=[2]), "lengths: must be omitted for a "),
        (lambda: optimal.observe_with_memory(gaussian, torch.zeros(1, 2, 2, dtype=torch.float64), 1), "has no "),
        (lambda: hs.smooth_beliefs(signed, SEEN), "smooth"),
    ):
        with pytest.raises(InputError, match=said):
            ask()
    assert continuations.forecast(signed, SEEN[:, :1], 1).observations.shape == (1, 1, 2)
    assert ragged.check_own(HMM, SEEN)[1].all()
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert chains.matching(np.ones((2, 1, 1))).tolist() == [[0], [0]]
    with pytest.raises(
        InputError, match=r"posterior: matching state labels needs SciPy; run pip install 'hmmscope\[hmm\]'"
    ):
        chains.matching(np.ones((2, 2, 2)))


def test_chains_whose_start_forbids_what_was_seen_are_refused() -> None:
    start = Model(np.array([1.0, 0.0]), np.eye(2), np.eye(2))
    work = baum_welch.as_sequences(torch.tensor([[0, 1]]), 2)
    few = gibbs.Chains(num_draws=4, num_chains=1, warm_up=0)
    with pytest.raises(InputError, match="start: a sequence has probability zero under this model"):
        gibbs.symbol_draws(work, start, np.empty(0, np.int64), gibbs.DirichletPrior(), few)
    with pytest.raises(InputError, match=r"^observations\[1\]: has probability zero under start"):
        em.expect(start, baum_welch.as_sequences(torch.tensor([[0, 0], [0, 1]]), 2), 1)


def test_several_models_beside_each_other_count_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they go side by side or one after the other."""
    rng = np.random.default_rng(0)
    models = Model(*(rng.dirichlet(np.ones(2), size) for size in ((3,), (3, 2), (3, 2))))
    work = baum_welch.as_sequences(torch.from_numpy(rng.integers(0, 2, (4, 9))), 2)
    beside = em.counter_of_several(work, 2, 2, 1)(models)
    monkeypatch.setattr(em, "can_run_side_by_side", lambda *_: False)
    apart = em.counter_of_several(work, 2, 2, 1)(models)
    for one, other in zip(beside, apart, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
    alone = em.expect(models.chosen(1), work, 1)
    np.testing.assert_allclose(apart.transitions[1], alone.transitions)
    assert float(apart.logs[1]) == pytest.approx(float(alone.logs.sum()))


@pytest.mark.long
def test_blocks_of_a_mebibyte_are_a_part_of_the_last_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    process = make_process("random-hmm", num_states=20, num_symbols=8)
    observations = hs.ProcessDataset(process, length=200)[0:300].observations
    own = smoothing.expected_counts(process, observations)
    monkeypatch.setattr(counts, "BLOCK_BYTES", 1 << 20)
    same = smoothing.expected_counts(process, observations)
    monkeypatch.setattr(counts, "BLOCK_BYTES", 1 << 30)
    other = smoothing.expected_counts(process, observations)
    assert torch.equal(own.transitions, same.transitions)
    torch.testing.assert_close(own.transitions, other.transitions, rtol=1e-12, atol=0)
