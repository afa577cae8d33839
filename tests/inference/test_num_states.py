"""How many states: planted numbers are found, a die has one, and the table says what each rule says."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.inference.num_states import StateCountPosterior, by_bic, choice_reason, choose_num_states, held_out_mean
from hmmscope.lab.study.study_tables import best_predictor
from inference_cases import planted

#: As many sequences as in the first column, of so many observations; a fifth of them is held out.
SHAPES = {"several": (10, 125), "many short": (125, 10), "two long": (2, 1000)}


def choice(flat, lengths, num_symbols, sizes=(1, 2, 3, 4, 5, 6), **options):
    cut = len(lengths) - max(1, len(lengths) // 5)
    begin = lengths[:cut].sum()
    fitted, judged = flat_sequences(flat[:begin], lengths[:cut]), flat_sequences(flat[begin:], lengths[cut:])
    return choose_num_states(fitted, judged, sizes, num_symbols, **options)


def of_planted(num_states, shape, seed, **options):
    count, length = SHAPES[shape]
    return choice(*planted(num_states, 6, count=count, length=length, seed=seed), 6, **options).num_states


def of_die(seed, **options):
    rolls = np.random.default_rng(seed).integers(0, 6, 1250)
    return choice(rolls, np.full(10, 125), 6, **options).num_states


@pytest.mark.slow
@pytest.mark.parametrize("num_states", [1, 2, 3, 4, 5])
def test_the_planted_number_of_states_is_found(num_states):
    """In each of five times twenty data sets, of three shapes; at most two may go wrong of these."""
    shapes = list(SHAPES)
    found = [of_planted(num_states, shapes[seed % 3], seed) for seed in range(20)]
    print(num_states, found)
    assert found.count(num_states) >= 18


@pytest.mark.slow
def test_a_fair_die_has_one_state():
    found = [of_die(seed, sizes=(1, 2, 3, 4)) for seed in range(20)]
    print(found)
    assert found == [1] * 20


@pytest.mark.long
def test_a_few_planted_numbers_and_a_die():
    quick = {"num_restarts": 3, "max_iterations": 40}
    assert of_planted(4, "several", 0, sizes=(3, 4, 5), **quick) == 4
    assert of_planted(3, "many short", 0, sizes=(2, 3), **quick) == 3
    assert of_die(0, sizes=(1, 2), **quick) == 1


def test_both_rules_stand_beside_each_other():
    flat, _ = planted(2, 3, count=12, length=60)
    rows = torch.from_numpy(flat.reshape(12, 60))
    options = {"num_restarts": 3, "max_iterations": 40}
    found = choose_num_states(rows[:8], rows[8:], [3, 1, 2, 2], 3, **options)
    assert list(found.fits) == list(found.held_out) == [1, 2, 3]
    assert found.num_states == min(found.fits, key=lambda size: found.fits[size].bic)
    for size, fit in found.fits.items():
        logs = hs.filter_beliefs(fit.hmm, rows[8:]).log_likelihood.numpy()
        assert found.held_out[size] == pytest.approx(logs.mean() / 60, rel=1e-9)
        terms = hs.filter_beliefs(fit.hmm, rows[8:]).log_likelihood_terms.numpy()  # four sequences, in blocks of twelve
        blocks = terms.reshape(20, 12).sum(1)
        assert found.held_out_errors[size] == pytest.approx(blocks.std(ddof=1) / 12 / 20**0.5, rel=1e-9)
    by_bic = found.fits[3].bic - found.fits[2].bic
    low, high = found.support.interval(2)
    start = f"2 states, 95 % [{low}, {high}]: the smallest BIC, {by_bic:.1f} below that of 3 states; "
    assert found.reason.startswith(start)
    assert "held-out likelihood" in found.reason
    alone = choose_num_states(rows[:8], rows[8:9], [2], 3, **options)
    assert alone.reason == "2 states: the only number of states that was tried"
    assert 0 < alone.held_out_errors[2] < 0.5  # one sequence, in blocks
    (many,) = choose_num_states(rows[:2], rows[2:], [2], 3, **options).held_out_errors.values()
    logs = hs.filter_beliefs(
        choose_num_states(rows[:2], rows[2:], [2], 3, **options).fits[2].hmm, rows[2:]
    ).log_likelihood
    assert many == pytest.approx(logs.numpy().std(ddof=1) / 60 / 10**0.5, rel=1e-9)  # ten are judged one by one


def test_the_reason_says_where_the_held_out_likelihood_is_larger():
    flat, lengths = planted(2, 3, count=12, length=60)
    train, seen = flat_sequences(flat[:480], lengths[:8]), torch.from_numpy(flat[:480].reshape(8, 60))
    found = choose_num_states(train, seen, [2, 3], 3, num_restarts=3)  # held out is what was fitted: more is better
    assert found.num_states == 2
    assert "; the held-out likelihood is largest with 3 states, by 0." in found.reason
    assert " ± 0." in found.reason
    never = torch.full((2, 4), 3)
    impossible = choose_num_states(train, never, [1, 2], 4, num_restarts=2, pseudo_count=0.0)
    assert set(impossible.held_out.values()) == {-math.inf}
    assert all(map(math.isnan, impossible.held_out_errors.values()))


def test_the_standard_error_is_that_of_a_ratio():
    """Sequences of unequal lengths: against the spread of the ratio over resampled sets of sequences."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, 400)
    logs = -1.2 * lengths + rng.normal(0, 0.4 * np.sqrt(lengths))
    drawn = rng.integers(0, 400, (4000, 400))
    spread = (logs[drawn].sum(1) / lengths[drawn].sum(1)).std()
    found = held_out_mean(logs, lengths)
    assert found.mean == logs.sum() / lengths.sum()
    assert found.error == pytest.approx(spread, rel=0.05)


def test_bad_requests_are_refused():
    observations = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(InputError, match=r"^candidates: must contain at least one"):
        choose_num_states(observations, observations, [], 2)
    with pytest.raises(InputError, match=r"^held_out: must contain at least one observation"):
        choose_num_states(observations, observations[:0], [1], 2)


def test_the_best_predictor_is_that_of_bic_unless_another_is_surely_better() -> None:
    """Five held-out sequences: noise around a difference does not decide, a difference of two errors does."""
    lengths = np.full(5, 30)
    noise = np.array([1.0, -1.0, 0.5, -0.5, 0.0])
    logs = {1: -20 + noise, 2: np.full(5, -20.0), 4: np.full(5, -25.0)}
    bics = {1: 130.0, 2: 100.0, 4: 120.0}
    assert best_predictor(bics, {**logs, 1: logs[1] + 0.1}, lengths) == 2
    assert best_predictor(bics, {**logs, 1: logs[1] + 1.0}, lengths) == 1
    assert best_predictor(bics, {**logs, 4: logs[2]}, lengths) == 2
    assert best_predictor(bics, {**logs, 2: np.array([-np.inf, *logs[2][1:]])}, lengths) == 1
    assert best_predictor(bics, {size: log[:1] for size, log in logs.items()}, lengths[:1]) == 2  # one has no error
    assert best_predictor(bics, {}, lengths) == 2


def test_the_interval_holds_what_is_chosen_and_leaves_out_what_is_hardly_possible():
    """Shares .97, .02 and .01, of which 2.5 % may be left out at each end."""
    logs = {1: -100.0, 2: math.log(0.97), 3: math.log(0.02), 4: math.log(0.01)}
    support = StateCountPosterior(logs, dict.fromkeys(logs, 0.0))
    assert support.shares[2] == pytest.approx(0.97)
    assert support.interval(2) == (2, 3)
    assert support.interval(1) == (1, 3)
    assert StateCountPosterior(logs, dict.fromkeys(logs, 0.0) | {1: 98.0}).interval(2) == (1, 3)  # so unsure is one
    assert StateCountPosterior(logs, dict.fromkeys(logs, 0.0) | {2: 3.0}).interval(2) == (2, 4)
    assert by_bic({2: 0.0, 3: 0.0}, "").interval(2) == (2, 3)


def test_the_line_says_where_the_interval_is_wider_for_errors():
    support = StateCountPosterior({2: 0.0, 3: -6.0}, {2: 0.5, 3: 4.0})
    _, reason = choice_reason({2: 10.0, 3: 30.0}, {}, np.empty(0, np.int64), support)
    assert reason.startswith(
        "2 states, 95 % [2, 3]: the smallest BIC, 20.0 below that of 3 states; the interval allows for"
    )
    assert reason.endswith("an error of the evidence of up to 4.0 nats")


def test_the_evidence_is_of_every_number_and_goes_by_bic_where_parts_are_fixed():
    flat, lengths = planted(2, 3, count=12, length=60)
    work, options = flat_sequences(flat, lengths), {"num_restarts": 2, "max_iterations": 30}
    found = choose_num_states(work, torch.from_numpy(flat[:120].reshape(2, 60)), [1, 2, 3], 3, **options)
    assert not found.support.why
    assert max(found.support.log_evidence, key=found.support.log_evidence.get) == 2
    start = found.fits[2].hmm.replaced(transition=[[1.0, 0.0], [0.5, 0.5]])
    fixed = choose_num_states(work, torch.from_numpy(flat[:120].reshape(2, 60)), [2], 3, start=start, **options)
    assert not fixed.support.why
    weighted = work._replace(weights=np.ones(len(work.rows)))
    fixed = choose_num_states(weighted, torch.from_numpy(flat[:120].reshape(2, 60)), [2], 3, **options)
    assert fixed.support.why == "the sequences have weights"
    assert fixed.support.log_evidence == {2: -fixed.fits[2].bic / 2}
