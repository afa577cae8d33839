"""Answers of inference in small cases are those that a short independent calculation gives."""

import math
from fractions import Fraction
from itertools import permutations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference import (
    chains,
    continuations,
    device,
    entropy,
    evidence,
    fit_durations,
    floors,
    forward,
    known_states,
    linear_programs,
    memory,
    memory_error,
    missing,
    mixing,
    monte_carlo,
    num_states,
    observability,
    pools,
    process_facts,
    ragged,
    restarts,
    spectral,
    stable_argmax,
    weights,
)
from hmmscope.inference.constraints import Constraints, RowConstraints
from hmmscope.inference.em import EMResult, Model, MStepSettings
from hmmscope.inference.evidence_emissions import share_of
from hmmscope.inference.filtering import first_impossible
from hmmscope.inference.loop_inputs import PackedSequences, StateSets, flat_sequences, in_blocks
from hmmscope.inference.num_states import StateCountPosterior
from hmmscope.inference.row_rules import check_fixed, check_rules
from hmmscope.inference.stationary_process import stationary_distribution
from hmmscope.processes.make import make_process
from hmmscope.processes.params import StateEmissionParams
from hmmscope.sequences.gaps import MISSING

DRAW = np.random.default_rng(0)
HMM = hs.HMM([0.6, 0.4], [[0.7, 0.3], [0.2, 0.8]], [[0.9, 0.1], [0.3, 0.7]])
T, E, INITIAL = (part.numpy() for part in (HMM.transition, HMM.emission, HMM.initial))


# ---------------------------------------------------------------------------------------------------------------------
# Intervals and means


@pytest.mark.parametrize("degrees", [1.0, 2.0, 3.5, 9.0, 98.0, 1e6])
def test_quantiles_are_students(degrees: float) -> None:
    assert monte_carlo.student_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-4)


def test_estimates_of_few_samples_are_students_and_of_many_percentiles() -> None:
    few, many = (torch.from_numpy(DRAW.normal(size=(count, 2)) + 1) for count in (99, 100))
    found = monte_carlo.estimate(few)
    ends = stats.t.interval(0.95, 98, few.numpy().mean(0), stats.sem(few.numpy(), 0))
    np.testing.assert_allclose([found.low, found.high], ends, rtol=1e-4)
    assert found.num_samples == 99
    found = monte_carlo.estimate(many)
    assert torch.allclose(found.mean, many.mean(0))
    half = 1.96 * many.numpy().std(0) / 10
    np.testing.assert_allclose(found.mean - found.low, half, rtol=0.25)
    np.testing.assert_allclose(found.high - found.mean, half, rtol=0.25)
    assert not np.allclose(found.mean - found.low, found.high - found.mean)  # percentiles are not symmetric
    one = monte_carlo.estimate(torch.tensor([2.0]).double())
    assert (float(one.low), float(one.mean), float(one.high)) == (2, 2, 2)


def test_a_mean_of_exponentials_has_its_jackknife() -> None:
    logs = [-3.0, -2.0, -2.5, 1.0]
    found, values = monte_carlo.log_mean(logs), np.exp(logs)
    without = [math.log(np.delete(values, i).mean()) for i in range(4)]
    assert found is not None
    assert found.log == pytest.approx(4 * math.log(values.mean()) - 3 * np.mean(without))
    assert found.variance == pytest.approx(3 * np.var(without))
    assert found.degrees == 3
    assert found.error == pytest.approx(stats.t.ppf(0.975, 3) * math.sqrt(found.variance), rel=1e-4)
    assert monte_carlo.log_mean([0.0]) is None
    assert monte_carlo.log_mean([0.0, -math.inf]) is None
    assert monte_carlo.log_mean([0.0, -5000.0]) is None
    assert monte_carlo.log_mean([-math.inf, -math.inf]) is None
    assert monte_carlo.log_mean([0.0, -1.0]) is not None


def test_a_bridge_measures_the_mass_of_a_density() -> None:
    """A normal density times e^2, from a wider normal proposal."""
    chain, draws = DRAW.normal(size=4000), 1.5 * DRAW.normal(size=2000)
    logs = [2 + stats.norm.logpdf(x) - stats.norm.logpdf(x, scale=1.5) for x in (chain, draws)]
    assert monte_carlo.log_bridge(*logs) == pytest.approx(2, abs=0.05)
    assert monte_carlo.log_bridge(logs[0] + 900, logs[1] + 900) == pytest.approx(902, abs=0.05)


def test_a_held_out_mean_is_a_ratio_with_its_error() -> None:
    logs, lengths = np.array([-3.0, -8.0, -2.0]), np.array([4, 8, 3])
    found = num_states.held_out_mean(logs, lengths)
    assert found.mean == pytest.approx(-13 / 15)
    rest = [-3 + 4 * 13 / 15, -8 + 8 * 13 / 15, -2 + 3 * 13 / 15]
    assert found.error == pytest.approx(math.sqrt(3 / 2 * sum(x * x for x in rest)) / 15)
    for own in (num_states.held_out_mean(logs[:1], lengths[:1]), num_states.held_out_mean(-np.inf + logs, lengths)):
        assert math.isnan(own.error)


def test_few_sequences_are_cut_into_twenty_blocks() -> None:
    assert [one.tolist() for one in num_states.units_of(np.array([100, 40]))] == [
        [7, 6, 7, 7, 6, 7, 7, 6, 7, 7, 6, 7, 7, 6, 7],
        [7, 6, 7, 7, 6, 7],
    ]
    (same,) = num_states.units_of(np.full(10, 5))
    assert same.tolist() == [5] * 10
    assert [one.tolist() for one in num_states.units_of(np.full(9, 2))] == [[1, 1]] * 9
    assert num_states.summed(np.array([1.0, 2, 3, 4]), np.array([1, 3])).tolist() == [1, 9]
    assert num_states.summed(np.array([True, True, False]), np.array([2, 1])).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("logs", "errors", "chosen", "interval"),
    [
        ({1: 0.0, 2: 0.0}, 0.0, 1, (1, 2)),
        ({1: -3.6, 2: 0.0, 3: -3.7}, 0.0, 2, (1, 2)),
        ({1: -3.7, 2: 0.0, 3: -3.7}, 0.0, 2, (2, 2)),
        ({1: -3.7, 2: 0.0, 3: -3.7}, 0.2, 2, (1, 3)),
        ({1: -9.0, 2: 0.0, 3: -9.0}, 0.0, 3, (2, 3)),
        ({1: -9.0, 2: 0.0, 3: -math.inf}, 0.0, 1, (1, 2)),
        ({2: -9.0, 5: 0.0, 7: -0.1, 9: -9.0}, 0.0, 5, (5, 7)),
    ],
)
def test_an_interval_of_numbers_of_states_leaves_out_a_fortieth_at_each_end(
    logs: dict[int, float], errors: float, chosen: int, interval: tuple[int, int]
) -> None:
    found = StateCountPosterior(logs, dict.fromkeys(logs, errors))
    assert found.interval(chosen) == interval
    total = sum(math.exp(log) for log in logs.values())
    assert found.shares == pytest.approx({size: math.exp(log) / total for size, log in logs.items()})


def test_evidence_is_computed_outwards_until_it_is_negligible() -> None:
    logs, asked = {1: -30.0, 2: -20.0, 3: -1.0, 4: 0.0, 5: -11.9, 6: -12.1, 7: 0.0}, []

    def of(size: int) -> Any:
        asked.append(size)
        return evidence.Evidence(logs[size], 0.05)

    bics = dict.fromkeys(logs, 5.0) | {4: 1.0}
    found = num_states.support_of(bics, of)
    assert asked == [4, 5, 6, 3, 2]
    assert found.log_evidence == {size: logs[size] if size in asked else -math.inf for size in logs}
    assert found.errors == {size: 0.05 if size in asked else 0.0 for size in logs}
    assert found.why == ""
    bic = num_states.support_of(bics, of, "bic")
    assert bic.log_evidence == {size: -one / 2 for size, one in bics.items()}
    assert set(bic.errors.values()) == {0.0}
    assert "takes too long" in num_states.support_of(bics, lambda _: None).why
    assert num_states.support_of(bics, None, why="so").why == "so"
    with pytest.raises(InputError, match="choose: cannot be 'evidence', because so"):
        num_states.support_of(bics, None, "evidence", "so")


# ---------------------------------------------------------------------------------------------------------------------
# Restarts and EM


def _search(logs: list[float], most: int, beside: tuple[int, int], near: float = 0.1) -> tuple[Any, list[list[int]]]:
    waves: list[list[int]] = []

    def wave(numbers: Any) -> list[Any]:
        waves.append(list(numbers))
        return [SimpleNamespace(log_likelihood=logs[number]) for number in numbers]

    return restarts.RestartSearch(wave, most, beside, near), waves


def test_restarts_end_when_the_best_two_agree() -> None:
    logs = [-5.0, -3.0, -4.0, -2.95, -9.0, -2.94, 0.0]
    found, waves = _search(logs, 7, (1, 2))
    assert waves == [[0, 1, 2], [3, 4]]
    assert (len(found.ends), found.made) == (4, 5)
    assert found.best.log_likelihood == -2.95
    assert found.restart_gap == pytest.approx(0.05)
    assert found.restarts_agree
    found, waves = _search(logs, 7, (5, 2))
    assert (waves, len(found.ends), found.made) == ([[0, 1, 2, 3, 4]], 4, 5)
    found, waves = _search(logs, 2, (1, 1))
    assert (waves, len(found.ends), found.restarts_agree) == ([[0, 1]], 2, False)
    found, _ = _search([-5.0, -5.0, -5.0], 3, (1, 1))
    assert (len(found.ends), found.restart_gap) == (3, 0.0)
    found, _ = _search([-5.0, -5.1, -9.0, -9.0], 3, (1, 1), 0.1 - 1e-9)
    assert not found.restarts_agree
    assert _search([-5.0], 1, (1, 1))[0].restart_gap == math.inf
    stopped = restarts.RestartSearch(
        lambda ns: [SimpleNamespace(log_likelihood=-float(n)) for n in ns], 9, (1, 1), 0.1, lambda _: True
    )
    assert stopped.made == 3


def test_em_ends_after_a_step_that_gains_too_little() -> None:
    """Log-likelihoods -8, -4, -2, ... of ten observations: the gain falls below 0.1 nats per observation at -1."""

    class Steps:
        num_steps = 10.0

        def counts(self, model: float) -> tuple[float, float]:
            return model, -8.0 * 0.5**model

        def maximise(self, model: float, counts: float) -> float:
            return model + 1

        def log_prior(self, model: float) -> float:
            return 0.0

    end = restarts.climb(Steps(), 0.0, 99, 0.11)
    assert (end.model, end.num_iterations, end.converged, end.history) == (3.0, 3, True, (-8, -4, -2, -1))
    assert restarts.climb(Steps(), 0.0, 2, 0.11)[2:4] == (2, False)
    assert restarts.climb(Steps(), 0.0, 99, 0.11, lambda _: True)[2:4] == (1, False)
    begun = EMResult(0, -1.0, 2, True, (-9.0, -5.0))
    assert end.after(begun).history == (-9, -8, -4, -2, -1)
    assert end.after(None) is end


def test_several_starting_models_run_ten_iterations_and_the_likeliest_goes_on() -> None:
    """The likelihood of a model rises up to its own limit; iterations count up."""
    heard: list[int] = []

    class Steps:
        num_steps = 1.0

        def counts(self, model: tuple[float, int]) -> tuple[Any, float]:
            return model, model[0] - 2.0 ** -model[1]

        def maximise(self, model: tuple[float, int], counts: Any) -> tuple[float, int]:
            return model[0], model[1] + 1

        def log_prior(self, model: Any) -> float:
            return 0.0

    for models in ([(-5.0, 0), (-3.0, 0)], [(-5.0, 0), (-3.0, 0), (-4.0, 0)]):
        model, about = restarts.search(Steps(), lambda _: models, 1, 5, 0.0, heard.append)  # noqa: B023
        assert model == (-3.0, 15)
        assert (about["num_iterations"], len(about["history"][0])) == (5, 16)
    model, about = restarts.search(Steps(), lambda _: [(-5.0, 0)], 1, 5, 0.0)
    assert (model, len(about["history"][0])) == ((-5.0, 5), 6)
    assert sum(heard) == 10


def test_the_information_criterion_counts_each_array_by_what_was_seen() -> None:
    found = restarts.criterion(-10.0, {"a": 2, "b": 3}, {"a": 1.0, "b": 20.0})
    assert found == pytest.approx(3 * math.log(20) + 20)
    assert restarts.criterion(-10.0, {"a": 2}, {"a": 0.5}) == 20


def test_the_prior_counts_each_free_probability_once() -> None:
    model = Model(INITIAL, T, np.array([[0.9, 0.1], [0.9, 0.1]]))
    parts = [np.log(part).sum() for part in model]
    for fixed, kept in (((), [0, 1, 2]), (("initial",), [1, 2]), (("initial", "emission"), [1])):
        plain = MStepSettings(0.5, frozenset(fixed), None)
        assert float(plain.log_prior(model)) == pytest.approx(0.5 * sum(parts[at] for at in kept))
    tied = MStepSettings(0.5, frozenset(), np.array([0, 0]))
    assert float(tied.log_prior(model)) == pytest.approx(0.5 * (parts[0] + parts[1] + parts[2] / 2))
    assert float(MStepSettings(0.0, frozenset(), None).log_prior(model)) == 0
    assert tied.num_free(model) == {"initial": 1, "transition": 2, "emission": 1}
    assert MStepSettings(0.5, frozenset({"transition"}), None).num_free(model) == {
        "initial": 1,
        "transition": 0,
        "emission": 2,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Constraints


def _rows(given: Any) -> RowConstraints:
    return RowConstraints.of("x", given, np.shape(given))


def test_constrained_rows_share_what_the_fixed_entries_leave() -> None:
    rule = _rows([[0.4, None, None], [False, True, 0.25]])
    assert rule.left.tolist() == pytest.approx([0.6, 0.75])
    counts = np.array([[9.0, 1, 3], [5, 2, 7]])
    assert rule.maximise(counts).tolist() == [pytest.approx([0.4, 0.15, 0.45]), pytest.approx([0, 0.75, 0.25])]
    assert rule.maximise(counts, 1.0)[0].tolist() == pytest.approx([0.4, 0.2, 0.4])
    assert rule.maximise(np.zeros((2, 3)))[0].tolist() == pytest.approx([0.4, 0.3, 0.3])
    before = np.array([[0.4, 0.5, 0.1], [0, 0.75, 0.25]])
    assert rule.maximise(np.zeros((2, 3)), 0.0, before).tolist() == before.tolist()
    assert (rule.num_free, rule.is_mask) == (1, False)
    assert rule.allowed.tolist() == [[True] * 3, [False, True, True]]
    assert rule.log_prior(before) == pytest.approx(math.log(0.5) + math.log(0.1) + math.log(0.75))
    mask = _rows([[True, False, True], [None, None, False]])
    assert (mask.num_free, mask.is_mask) == (2, True)
    gone = mask.with_zeros(np.array([[True, False, False], [False] * 3]))
    assert gone.allowed.tolist() == [[False, False, True], [True, True, False]]
    assert mask.with_zeros(np.zeros((2, 3), bool)) is mask
    whole = _rows([[0.5, 0.5]])
    assert (whole.num_free, whole.maximise(np.ones((1, 2))).tolist()) == (0, [[0.5, 0.5]])


def test_tied_entries_are_equal_and_share_their_counts() -> None:
    one = _rows([["a", "a", None]])
    assert one.maximise(np.array([[3.0, 1, 4]]))[0].tolist() == pytest.approx([0.25, 0.25, 0.5])
    assert (one.num_free, one.is_mask) == (1, False)
    both = _rows([["a", None], [None, "a"]])
    found = both.maximise(np.array([[3.0, 1], [2, 4]]))
    assert found.tolist() == [pytest.approx([0.7, 0.3]), pytest.approx([0.3, 0.7])]
    assert both.num_free == 1
    linked = _rows([["a", "a", None], ["a", None, None]])
    counts = np.array([[2.0, 3, 4], [1, 5, 2]])
    a = linked.maximise(counts)[0, 0]

    def score(x: float) -> float:
        return 6 * math.log(x) + 4 * math.log(1 - 2 * x) + 7 * math.log(1 - x)

    grid = np.linspace(0.001, 0.499, 100_000)
    assert a == pytest.approx(grid[np.argmax([score(x) for x in grid])], abs=1e-5)
    assert linked.maximise(counts)[1].tolist() == pytest.approx([a, (1 - a) * 5 / 7, (1 - a) * 2 / 7])
    for given, said in (
        ([[0.5, 0.5, None]], "row 0: the fixed entries sum to 1 or more"),
        ([[0.5, 0.4]], "row 0: all entries are fixed, but do not sum to 1"),
        ([["a", "a"], ["a", 0.9]], "the rows cannot sum to 1 with positive tied entries"),
        ([[1.5, None]], r"x\[0, 0\]: must be a probability"),
        ([[-0.5, None]], r"x\[0, 0\]: must be a probability"),
    ):
        with pytest.raises(InputError, match=said):
            _rows(given)


def test_shapes_of_constraints_are_those_of_their_moves() -> None:
    left = Constraints.left_to_right(4, 2)
    assert np.array(left.initial).tolist() == [True, False, False, False]
    assert [[j - i in (0, 1, 2) for j in range(4)] for i in range(4)] == np.array(left.transition).tolist()
    band = Constraints.banded(4, 2)
    assert [[abs(j - i) <= 2 for j in range(4)] for i in range(4)] == np.array(band.transition).tolist()


def test_a_state_follows_itself_only_where_nothing_else_is_free_or_its_probability_is_tied() -> None:
    rule = fit_durations._without_repeats(_rows([[True, None, True], ["a", "a", None], [False, False, True]]))
    assert rule.allowed.tolist() == [[False, True, True], [True, True, True], [False, False, True]]


def test_rules_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match="fixed: must be among a, b"):
        check_fixed(("a", "b"), object(), ("c",))
    with pytest.raises(InputError, match="fixed: must be empty if start is None"):
        check_fixed(("a", "b"), None, ("a",))
    check_fixed(("a", "b"), None, ())
    parts, given = ("transition", "emission"), Constraints.banded(2).parts(2, 2)
    check_rules(parts, 2, HMM, ("emission",), None, given)
    with pytest.raises(InputError, match=r"constraints\.transition: cannot be used with fixed"):
        check_rules(parts, 2, HMM, ("transition",), None, given)
    for tied in ([0], [0, 2], [0, -1]):
        with pytest.raises(InputError, match=r"tied_emissions: must be 2 class numbers in .0, 2\)"):
            check_rules(parts, 2, None, (), tied, {})
    assert check_rules(parts, 2, None, (), [0, 1], {}).tolist() == [0, 1]
    emission = Constraints(emission=[[True, True]] * 2).parts(2, 2)
    with pytest.raises(InputError, match=r"constraints\.emission: cannot be used with tied_emissions"):
        check_rules(parts, 2, None, (), [0, 0], emission)


# ---------------------------------------------------------------------------------------------------------------------
# Markov chains of draws


def test_diagnostics_of_chains_are_those_of_their_definition() -> None:
    draws = DRAW.normal(size=(4, 50, 1)).cumsum(1) * 0.1 + DRAW.normal(size=(4, 50, 1))
    halves = np.concatenate([draws[:, :25], draws[:, 25:]])[..., 0]

    def ratio(values: np.ndarray) -> float:
        ranks = stats.rankdata(values).reshape(values.shape)
        scores = stats.norm.ppf((ranks - 0.375) / (values.size + 0.25))
        within, between = scores.var(1, ddof=1).mean(), scores.mean(1).var(ddof=1)
        return float(np.sqrt((within * 24 / 25 + between) / within))

    away = np.abs(draws[..., 0] - np.median(draws))
    folded = np.concatenate([away[:, :25], away[:, 25:]])
    assert chains.r_hat(draws)[0] == pytest.approx(max(ratio(halves), ratio(folded)))
    still = np.ones((4, 50, 1))
    assert np.isnan(chains.r_hat(still)).all()
    assert all(np.isnan(one).all() for one in chains.effective_sizes(still))
    independent = DRAW.normal(size=(4, 2000, 1))
    bulk, tail = chains.effective_sizes(independent)
    assert 7000 < bulk[0] < 9000
    assert 6500 < tail[0] < 9500
    slow, noise = np.zeros((4, 2000, 1)), DRAW.normal(size=(4, 2000, 1))
    for t in range(1, 2000):
        slow[:, t] = 0.9 * slow[:, t - 1] + noise[:, t]
    assert chains.effective_sizes(slow)[0][0] == pytest.approx(8000 * 0.1 / 1.9, rel=0.25)


def test_equal_tails_are_quantiles_of_weibull() -> None:
    draws = np.arange(1.0, 101.0)[DRAW.permutation(100)].reshape(2, 50, 1)
    low, high = chains.equal_tails(draws, np.array([np.nan]), 0.8)
    assert [low[0], high[0]] == pytest.approx(np.quantile(np.arange(1, 101), [0.1, 0.9], method="weibull"))
    low, high = chains.equal_tails(draws, np.array([100.0]), 0.5)
    assert [low[0], high[0]] == pytest.approx(np.quantile(np.arange(1, 101), [0.25, 0.75], method="weibull"))
    low, high = chains.equal_tails(draws, np.array([5.0]))
    assert [low[0], high[0]] == [1, 100]
    low, high = chains.equal_tails(draws, np.array([50.0]), 0.8)
    assert low[0] < np.quantile(np.arange(1, 101), 0.1, method="weibull")
    assert low[0] + high[0] == pytest.approx(101)


def test_labels_are_matched_to_agree_as_often_as_they_can() -> None:
    agreement = DRAW.integers(0, 9, (3, 4, 4)).astype(float)
    found = chains.matching(agreement)
    for own, table in zip(found, agreement, strict=True):
        scores = {one: sum(table[one[j], j] for j in range(4)) for one in permutations(range(4))}
        assert scores[tuple(own.tolist())] == max(scores.values())
    orders = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    for own, table in zip(chains.matching(agreement, orders), agreement, strict=True):
        scores = [sum(table[one[j], j] for j in range(4)) for one in orders]
        assert own.tolist() == orders[int(np.argmax(scores))].tolist()
    assert chains.matching(np.ones((2, 1, 1))).tolist() == [[0], [0]]
    values, own = DRAW.normal(size=(3, 4, 4)), np.array([3, 0, 1, 2])[None].repeat(3, 0)
    assert chains.relabelled(values, own, 2)[1].tolist() == values[1][np.ix_(own[0], own[0])].tolist()
    assert chains.relabelled(values, own, 1)[1].tolist() == values[1][own[0]].tolist()


# ---------------------------------------------------------------------------------------------------------------------
# Exact answers against enumeration


def _joint(x: list[int]) -> dict[tuple[int, ...], float]:
    """Return the joint probability of each path with observations, where -1 is missing."""
    found = {}
    for path in product(range(2), repeat=len(x)):
        p = INITIAL[path[0]]
        for t, state in enumerate(path):
            p *= (T[path[t - 1], state] if t else 1) * (E[state, x[t]] if x[t] >= 0 else 1)
        found[path] = p
    return found


def test_a_forecast_is_a_sum_over_paths() -> None:
    x, found = [0, 1, 1], continuations.forecast(HMM, torch.tensor([[0, 1, 1]]), 3, num_draws=2000, seed=1)
    whole = sum(_joint(x).values())
    for step in range(3):
        for symbol in range(2):
            p = sum(_joint([*x, *([-1] * step), symbol]).values()) / whole
            assert float(found.observations[0, step, symbol]) == pytest.approx(p)
    drawn = found.drawn_observations[:, 0].numpy()
    assert (drawn == 1).mean(0) == pytest.approx(found.observations[0, :, 1].numpy(), abs=0.04)


def test_missing_symbols_have_their_posterior() -> None:
    x = [0, -1, 1, -1]
    found = missing.missing_probs(HMM, torch.tensor([[0, MISSING, 1, MISSING]]))
    whole = sum(_joint(x).values())
    for t, symbol in product((1, 3), range(2)):
        own = [*x]
        own[t] = symbol
        assert float(found[0, t, symbol]) == pytest.approx(sum(_joint(own).values()) / whole)


def test_entropies_of_blocks_are_sums_over_words() -> None:
    pi = stationary_distribution(HMM).numpy()
    assert pi == pytest.approx([0.4, 0.6])
    found = entropy.block_entropies(HMM, 4)
    words = {}
    for length in range(1, 5):
        probs = []
        for word in product(range(2), repeat=length):
            v = pi * E[:, word[0]]
            for symbol in word[1:]:
                v = v @ T * E[:, symbol]
            probs.append(v.sum())
        words[length] = -sum(p * math.log(p) for p in probs)
    assert [float(one) for one in found.block] == pytest.approx([words[n] for n in range(1, 5)])
    rate = entropy.entropy_rate(HMM)
    assert rate.low - 1e-9 <= words[4] - words[3]


def test_memory_counts_the_worst_of_what_is_forgotten() -> None:
    decay = memory_error.fit_decay([1, 2, 3, 4], [9.0, 0.5, 0.25, 0.125])
    assert [decay.ratio, decay.rate, decay.first, decay.last] == pytest.approx([0.5, math.log(2), 2, 4])
    bent = memory_error.fit_decay([1, 2, 3], [1.0, 0.5, 0.125], first=1, last=3)
    logs = np.log([1.0, 0.5, 0.125])
    slope, level = np.polyfit([1, 2, 3], logs, 1)
    assert bent.residual == pytest.approx(np.abs(logs - slope * np.arange(1, 4) - level).max())
    diameter = math.log(0.7 * 0.8 / (0.3 * 0.2))
    for length in (1, 2, 5):
        bound = math.tanh(diameter * math.tanh(diameter / 4) ** length / 4)
        assert memory_error.memory_certificate(HMM, length) == pytest.approx(bound)
    assert memory_error.memory_certificate(make_process("golden-mean"), 3) == 1
    pi = torch.tensor([0.4, 0.6]).double()
    table = memory.memory_table(HMM, 2)
    for word, p, following in zip(table.windows.tolist(), table.probability, table.next_observation, strict=True):
        v = (pi.numpy() * E[:, word[0]]) @ T * E[:, word[1]]
        assert float(p) == pytest.approx(v.sum())
        assert following.tolist() == pytest.approx((v @ T @ E / v.sum()).tolist())


def test_floors_average_the_entropy_of_exact_predictions() -> None:
    after = -0.75 * math.log(0.75 / 2) - 0.25 * math.log(0.25)  # with an action, or with `*`
    expected = (after * (1 + 0.75 + 0.5625) + 0.25 * math.log(2)) / 3
    assert floors.cyclic_hard_floor(2, 0.25, 3) == pytest.approx(expected)
    assert floors.cyclic_hard_floor(2, 1.0, 3) == pytest.approx(math.log(2) / 3)
    still = hs.HMM([1.0, 0.0], np.eye(2), [[0.25, 0.75], [0.5, 0.5]])
    found = floors.next_observation_floor(still, 3, num_samples=4)
    assert np.allclose(found.mean, -0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    assert np.allclose(floors.belief_floor(still, 3, num_samples=4).mean, 0)


def test_distances_from_each_state_shrink_with_observations() -> None:
    found = mixing.forgetting_curve(HMM, 2, num_samples=400, seed=3)
    assert float(found.mean[0]) == 1
    expected = 0.0
    for symbol in range(2):
        rows = T * E[:, symbol]
        rows = rows / rows.sum(1, keepdims=True)
        expected += float(INITIAL @ E[:, symbol]) * np.abs(rows[0] - rows[1]).sum() / 2
    assert float(found.mean[1]) == pytest.approx(expected, abs=0.05)
    assert float(found.mean[2]) < float(found.mean[1])
    times = {
        threshold: mixing.mixing_time(HMM, threshold=threshold, num_samples=400, seed=3).time
        for threshold in (0.9, 0.3)
    }
    assert times == {0.9: 1, 0.3: 2}
    assert mixing.mixing_time(HMM, threshold=0.3, num_samples=400, max_time=1, seed=3).time is None
    one = hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])
    assert mixing.mixing_time(one, num_samples=2).time == 0


def test_the_observability_of_two_states_is_the_distance_of_their_emissions() -> None:
    assert observability.observability(HMM).lower == pytest.approx(0.6)
    assert observability.observability(HMM).upper == pytest.approx(0.6)
    bound = observability.pair_bound(HMM)
    assert (bound.lower, bound.upper) == (0, pytest.approx(0.6))
    words = observability.step_emission(HMM, 2).numpy()
    assert words == pytest.approx(
        np.array([[E[i, a] * (T @ E)[i, b] for a in range(2) for b in range(2)] for i in range(2)])
    )
    future = observability.future_distribution(HMM, torch.tensor([[0, 1]]), 2)[0, -1].numpy()
    v = (INITIAL * E[:, 0]) @ T * E[:, 1]
    assert future == pytest.approx((v / v.sum()) @ T @ words)
    assert observability.numerical_rank(torch.diag(torch.tensor([1.0, 1e-3, 0])).double()) == 2
    assert observability.numerical_rank(torch.diag(torch.tensor([1.0, 1e-3, 0])).double(), 1e-2) == 1
    three = torch.from_numpy(DRAW.dirichlet(np.ones(4), 3))
    exact = observability.coefficient(three, method="enumeration")
    grid = np.array(
        [[a, b, -a - b] for a, b in product(np.linspace(-1, 1, 81), repeat=2) if abs(a) + abs(b) + abs(a + b) > 0]
    )
    ratios = np.abs(grid @ three.numpy()).sum(1) / np.abs(grid).sum(1)
    assert exact.upper <= ratios.min() + 1e-9
    assert exact.upper == pytest.approx(ratios.min(), abs=0.03)
    for method in ("bounds", "certificate", "auto"):
        other = observability.coefficient(three, method=method)
        assert other.lower - 1e-9 <= exact.lower <= other.upper + 1e-9


def test_operators_predict_like_the_process_that_they_were_learned_from() -> None:
    exact = spectral.Operators.of(HMM)
    learned = spectral.learn_operators(exact.probabilities, 2, length=2)
    words = memory.all_sequences(2, 4)
    np.testing.assert_allclose(learned.probabilities(words), exact.probabilities(words), atol=1e-10)
    assert len(learned.start) == 2
    assert len(spectral.learn_operators(exact.probabilities, 2, length=2, rank=1).start) == 1
    p = [sum(_joint(word).values()) for word in words.tolist()]
    np.testing.assert_allclose(exact.probabilities(words), p)


def _far_apart(copies: int) -> StateEmissionParams:
    """Two states that never change, each of `copies` copies; the symbol of the other has probability 2^-32."""
    size, rare = 2 * copies, 2.0**-32
    initial = torch.full((1, size), 1 / size, dtype=torch.float64)
    block = torch.full((copies, copies), 1 / copies, dtype=torch.float64)
    emission = torch.tensor([[1 - rare, rare], [rare, 1 - rare]], dtype=torch.float64).repeat_interleave(copies, 0)
    return StateEmissionParams(initial, torch.block_diag(block, block)[None], emission[None])


@pytest.mark.parametrize("copies", [1, 20])
def test_beliefs_come_back_after_they_were_too_small_for_a_number(copies: int) -> None:
    """After 40 symbols of one state, the other has probability 2^-1280."""
    law, x = _far_apart(copies), torch.tensor([[0] * 40 + [1] * 60, [0] * 100])
    starts, lengths = torch.arange(100) == 0, torch.tensor([100, 100])
    _, following, terms = pools.run_mixture(law, torch.ones(1).double(), x, starts, lengths)
    assert following[0, [39, 79, 99]] == pytest.approx(np.array([[1, 0], [0.5, 0.5], [0, 1]]), abs=1e-9)
    assert following[1, 99] == pytest.approx([1, 0], abs=1e-9)
    assert terms[:, :80].sum(1) == pytest.approx([40 * math.log(2.0**-32), math.log(0.5)])
    found, again = device.mixture_predictions_there(law, torch.ones(1).double(), x, starts, torch.float64)
    np.testing.assert_allclose(found[:, 1:], following[:, :-1], atol=1e-12)
    np.testing.assert_allclose(again, terms, rtol=1e-12, atol=1e-12)


def test_beliefs_that_were_too_small_are_forgotten_at_a_restart() -> None:
    law, starts = _far_apart(1), torch.tensor([t in (0, 50) for t in range(60)])
    x = torch.tensor([[[0] * 50 + [1, 1, 0, 1, 1, 1, 0, 1, 1, 1]]])
    steps = list(forward.forward_steps(law, x, starts))
    again = list(forward.forward_steps(law, x[:, :, 50:], starts[50:]))
    for one, other in zip(steps[50:], again, strict=True):
        np.testing.assert_allclose(one.log_norm, other.log_norm)
        np.testing.assert_allclose(one.belief, other.belief, atol=1e-15)


def test_missing_symbols_are_drawn_independently() -> None:
    coin = hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])
    drawn = missing.sample_missing(coin, torch.full((3, 4), MISSING), num_draws=400).reshape(400, 12).double()
    correlations = torch.corrcoef(drawn.T) - torch.eye(12)
    assert correlations.abs().max() < 0.25
    assert drawn.mean() == pytest.approx(0.5, abs=0.05)


def test_long_sequences_are_normalised_on_their_way() -> None:
    x = torch.from_numpy(DRAW.integers(0, 2, (2, 3000)))
    starts = torch.arange(3000) == 0
    found, doubtful = device._log_likelihood_64(HMM.params, x, starts)
    assert not doubtful.any()
    v, exact = INITIAL.copy(), np.zeros(2)
    for row in range(2):
        for t, symbol in enumerate(x[row].tolist()):
            v = (v @ T if t else INITIAL) * E[:, symbol]
            exact[row] += math.log(v.sum())
            v = v / v.sum()
    assert found.numpy() == pytest.approx(exact)
    beliefs, doubtful = device.beliefs_there(HMM.params, x[1:], starts)
    assert not doubtful.any()
    assert beliefs[0, -1].numpy() == pytest.approx(v)


@pytest.mark.parametrize(("room", "chunks"), [(2, 3), (5, 2), (6, 1)])
def test_half_of_the_free_memory_holds_the_components_of_a_chunk(
    room: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`room` is the free memory, in units of what a component needs."""
    mixture = make_process("random-mixture", num_components=3, num_states=4, num_symbols=2)
    x, calls = torch.zeros(2, 5, dtype=torch.int64), []
    each = 2 * (4 * 8 * 4 + 5 * (8 + 8 + 8 * 2) + 8 * 4 + 16 * 2) + (8 + 8) * 4 * (4 + 2 * 2)
    run = device.forward_logs
    monkeypatch.setattr(device, "free_on", lambda _: room * each)
    monkeypatch.setattr(device, "forward_logs", lambda *given, **more: calls.append(1) or run(*given, **more))
    given = mixture.params, mixture.component_weights, x, torch.arange(5) == 0, torch.float64
    device.mixture_predictions_there(*given)
    assert len(calls) == chunks


# ---------------------------------------------------------------------------------------------------------------------
# Sequences, gaps and known states


def test_sequences_are_packed_longest_first() -> None:
    work = flat_sequences(np.arange(9), np.array([2, 0, 4, 3]))
    assert [work.rows.tolist(), work.lengths.tolist(), work.offsets.tolist()] == [[2, 3, 0], [4, 3, 2], [2, 6, 0]]
    assert work.starts.tolist() == [True, False, False, False]
    packed = work.packed()
    assert packed.symbols.tolist() == [2, 3, 4, 5, 6, 7, 8, 0, 1]
    assert packed.offsets.tolist() == [0, 4, 7]
    last = work.part(slice(1, 3)).packed()
    assert [last.symbols.tolist(), last.rows.tolist()] == [[6, 7, 8, 0, 1], [3, 0]]
    assert work.total(np.array([1.0, 2, 3])) == 6
    weighted = weights.with_weights(work, np.array([0.5, 9.0, 0.0, 2.0]))
    assert [weighted.rows.tolist(), weighted.weights.tolist()] == [[3, 0], [2.0, 0.5]]
    assert weighted.total(np.array([1.0, 2.0])) == 3
    assert float(weights.weighted_sum(torch.tensor([1.0, -torch.inf]).double(), np.array([2.0, 0.0]))) == 2
    assert float(weights.weighted_sum(torch.tensor([1.0, 2.0]), None)) == 3
    sets = StateSets(np.array([0, 2, 0]), np.eye(2, dtype=bool)[[0, 1, 1]])
    assert sets.by_symbol(np.arange(6.0).reshape(3, 2), 2).tolist() == [[4, 6], [0, 0]]


def test_a_share_of_sequences_is_whole_if_there_are_enough() -> None:
    lengths = np.array([9, 7, 5, 3])
    work = flat_sequences(np.arange(24), lengths)
    one = share_of(work, 4)
    assert [one.rows.tolist(), one.lengths.tolist(), one.offsets.tolist()] == [[0], [9], [0]]
    two = share_of(work, 2)
    assert [two.rows.tolist(), two.lengths.tolist(), two.offsets.tolist()] == [[0, 1], [9, 5], [0, 16]]
    short = share_of(work, 5)
    assert [short.rows.tolist(), short.lengths.tolist()] == [[0, 1, 2, 3], [1, 1, 1, 1]]
    assert share_of(flat_sequences(np.arange(20), np.array([20])), 4).lengths.tolist() == [5]


@pytest.mark.parametrize(
    ("count", "size", "threads", "together", "shares"),
    [(10, 3, 1, 1, None), (10, 3, 1, 4, None), (7, 100, 2, 1, None), (7, 100, 1, 1, 3)],
)
def test_blocks_cover_all_sequences_once(
    count: int, size: int, threads: int, together: int, shares: int | None
) -> None:
    seen: list[slice] = []
    rows = np.arange(count)
    work = PackedSequences(rows, rows, np.ones(count, int), rows, np.ones(1, bool))
    in_blocks(work, size, seen.append, threads, together=together, shares=shares)
    parts = sorted(seen, key=lambda one: one.start)
    assert [number for part in parts for number in rows[part]] == rows.tolist()
    block = max(1, -(-min(-(-count // (shares or 1)) if threads == 1 else size, size) // together)) * together
    if threads == 1:
        assert {part.stop - part.start for part in parts[:-1]} <= {block}


def test_symbols_and_allowed_states_are_paired() -> None:
    allowed = np.array([[True, False], [True, True], [True, False], [False, True]])
    numbers, sets = known_states.paired(np.array([1, 1, 1, 0]), allowed)
    assert sets.symbols[numbers].tolist() == [1, 1, 1, 0]
    assert sets.allowed[numbers].tolist() == allowed.tolist()
    assert len(sets.symbols) == 3


@pytest.mark.parametrize(
    "given",
    [
        [[0, -1, 1], [1, None]],
        [[0, MISSING, 1], [1, {0, 1}]],
        [[0.0, math.nan, 1.0], [1.0, -1.0]],
        [np.array([0, -1, 1]), np.array([1, -1, 0])],
        np.array([[0, -1, 1], [1, -1, 0]]),
        np.array([0, -1, 1, 1, -1]),
        torch.tensor([[0, -1, 1], [1, -1, 1]]),
        np.array([[[1, 0], [1, 1], [0, 1]], [[0, 1], [1, 1], [1, 1]]], dtype=bool),
        [["a", None, "b"], ["b", ["a", "b"]]],
    ],
)
def test_known_states_may_be_given_in_many_forms(given: Any, unchecked: None) -> None:
    inside = torch.tensor([[True, True, True], [True, True, False]])
    found = known_states.as_allowed(given, 2, inside, ("a", "b"))
    assert found[inside].int().tolist() == [[1, 0], [1, 1], [0, 1], [0, 1], [1, 1]]
    assert found[1, 2].tolist() == [True, True]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[0, 2, 1], [1, 0]], r"known_states\[0, 1\]: must be a state in \[0, 2\)"),
        ([[0, -2, 1], [1, 0]], r"known_states\[0, 1\]"),
        ([[0, 0.5, 1], [1, 0]], r"known_states\[0, 1\]"),
        ([[0, True, 1], [1, 0]], r"known_states\[0, 1\]"),
        ([[0, set(), 1], [1, 0]], r"known_states\[0, 1\]: must allow at least one state"),
        ([[0, 1], [1, 0]], r"known_states\[0\]: must have 3 entries, one per observation, got 2"),
        ([[0, 1, 1]], "known_states: must have 2 sequences of states"),
        (np.zeros((2, 3, 3), bool), r"known_states: must have 2 sequences .*got \(2, 3, 3\)"),
        (5, "known_states: must have 2 sequences"),
    ],
)
def test_known_states_outside_of_the_model_are_refused(given: Any, said: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=said):
        known_states.as_allowed(given, 2, torch.tensor([[True, True, True], [True, True, False]]))


def test_names_of_known_states_come_before_plain_ones() -> None:
    assert known_states.named_states([["b", None], ["a"]], 3, None) == ([[1, None], [0]], ("a", "b", "state 2"))
    assert known_states.named_states([[0, 1]], 3, None) == ([[0, 1]], None)
    assert known_states.named_states([["state 2"]], 3, None) == ([[2]], ("state 0", "state 1", "state 2"))
    with pytest.raises(InputError, match="known_states: must name at most 1 states, got 'a, b'"):
        known_states.named_states([["a", "b"]], 1, None)
    with pytest.raises(InputError, match="c"):
        known_states.named_states([["c"]], 2, ("a", "b"))


def test_padding_is_blank_and_gaps_are_silent() -> None:
    inside = torch.tensor([[True, True], [True, False]])
    assert ragged.counted(inside).tolist() == [2, 1]
    assert ragged.counted(inside[:1]).tolist() == [2]
    values = torch.arange(8.0).reshape(2, 2, 2)
    assert ragged.blank(values, inside, -7.0).tolist() == [[[0, 1], [2, 3]], [[4, 5], [-7, -7]]]
    assert ragged.blank(values, inside[:1].expand(2, 2)) is values
    probs = torch.tensor([[[0.25, 0.75], [0.5, 0.5], [0.0, 0.0]]]).double()
    terms = ragged.seen_terms(probs, torch.tensor([[1, 2, 2]]))
    assert terms[0].tolist() == pytest.approx([math.log(0.75), 0, -math.inf])
    quiet = ragged.silent(torch.tensor([[1.0, 2.0, -math.inf]]).double(), torch.tensor([[0, 2, 2]]), 2)
    assert quiet.tolist() == [[1, 0, -math.inf]]
    assert first_impossible(torch.tensor([[0.0, -math.inf, -math.inf], [0.0, 0.0, 0.0]]).double()).tolist() == [1, -1]
    for values, below in (([0, 2], None), ([0, 2], 3)):
        assert ragged.integers_of("n", values, 2, below).tolist() == values
    for values, below in (
        ([0, 3], 3),
        ([-1, 0], None),
        ([0], None),
        ([0.5, 1], None),
        ([True, True], None),
        ("ab", None),
    ):
        with pytest.raises(InputError, match="n: must be 2 "):
            ragged.integers_of("n", values, 2, below)


def test_of_values_that_are_equal_up_to_rounding_the_first_is_the_largest() -> None:
    values = torch.tensor([[0.2, 0.4, 0.4 + 1e-15], [0.5, 0.1, 0.4], [0.1, 0.1, 0.2]]).double()
    assert stable_argmax.stable_argmax(values).tolist() == [1, 0, 2]


def test_signs_of_a_linear_program_give_the_least_ratio() -> None:
    """Two states: the only direction is (1, -1)."""
    gamma, witness = linear_programs.enumerate_signs(E)
    assert gamma == pytest.approx(0.6)
    assert np.abs(witness / witness[0]) == pytest.approx([1, 1])


def test_evidence_is_computed_up_to_its_limit() -> None:
    work, hmm = (
        flat_sequences(np.array([0, 1] * 20), np.array([40])),
        make_process("random-hmm", num_states=2, num_symbols=2),
    )
    assert evidence.evidence(work, hmm, 1, most=40 * 4) is not None
    assert evidence.evidence(work, hmm, 1, most=40 * 4 - 1) is None


def test_facts_of_a_mixture_name_the_components_that_they_are_about(monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = make_process("random-mixture", num_components=3, num_states=2, num_symbols=2)
    whole = dict(process_facts.process_facts(mixture))
    eigenvalues = [float(np.abs(np.linalg.eigvals(mixture.component(m).transition.numpy())).min()) for m in range(3)]
    assert whole["weights"] == f"{1 / 3:.6g} each; entropy of the weights {math.log(3):.6f} nats"
    assert whole["2nd eigenvalue"].startswith(f"{min(eigenvalues):.6f} to {max(eigenvalues):.6f}, second-largest")
    assert "of the first" not in str(whole)
    monkeypatch.setattr(process_facts, "MAX_COMPONENTS", 2)
    few = dict(process_facts.process_facts(mixture))
    assert few["2nd eigenvalue"].endswith("second-largest modulus (of the first 2 components)")
    monkeypatch.setattr(process_facts, "MAX_MIXED_STATES", 1)
    assert list(dict(process_facts.mixture_facts(mixture))) == ["weights"]


@pytest.mark.parametrize("values", [[0], [None, [2]], {1}, [np.array([1])], [np.array([0.5])]])
def test_numbers_among_known_states_are_found(values: Any) -> None:
    assert known_states._has_numbers(values)


@pytest.mark.parametrize("values", [[True], [-1, None], ["a"], [np.array([True])], []])
def test_other_known_states_have_no_numbers(values: Any) -> None:
    assert not known_states._has_numbers(values)


def test_the_evidence_of_one_state_is_a_dirichlet_integral() -> None:
    """One state: the integral of p^2 (1 - p)^3 under the prior on p, exactly 2! 3! / 6!."""
    work = flat_sequences(np.array([0, 1, 1, 0, 1]), np.array([5]))
    found = evidence.evidence(work, make_process("random-hmm", num_states=1, num_symbols=2), 1)
    assert found is not None
    assert found.log == pytest.approx(math.log(Fraction(2 * 6, 720)))
    assert found.log == pytest.approx(math.log(integrate.quad(lambda p: p**2 * (1 - p) ** 3, 0, 1)[0]))
