"""One filter for any emission: a Gaussian family in few lines, missing observations, and the categorical one."""

import math
from dataclasses import replace

import pytest
import torch

import hmmscope as hs
from emission_cases import close, enumerated
from hmmscope.emissions import log_space_chain
from hmmscope.emissions.chain import (
    MarkovChainParams,
    count_rows,
    draw_states,
    filter_states,
    smooth_states,
    viterbi_states,
    where_seen,
)
from hmmscope.emissions.states import StateCounts
from hmmscope.errors import InputError

Tensor = torch.Tensor


def gaussian(spread: float = 1.5) -> hs.GaussianHMM:
    def rows(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    transition = rows([[0.7, 0.3, 0.0], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])
    means = spread * rows([[-1.0, 0.5], [0.0, 1.0], [1.0, -1.0]])
    return hs.GaussianHMM(rows([0.5, 0.5, 0.0]), transition, means, rows([[1.0, 0.5], [0.7, 2.0], [1.5, 1.0]]))


def count_states(chain: MarkovChainParams, logs: Tensor, lengths: object = None) -> StateCounts:
    counts = torch.as_tensor([logs.shape[1]] * len(logs) if lengths is None else lengths)
    inside = torch.arange(logs.shape[1]) < counts[:, None]
    found = count_rows(chain, logs[inside], counts)
    return replace(found, occupancy=torch.zeros_like(logs).masked_scatter(inside[..., None], found.occupancy))


def all_agree(chain: MarkovChainParams, logs: Tensor) -> None:
    filtered, smoothed = filter_states(chain, logs), smooth_states(chain, logs)
    best, counts = viterbi_states(chain, logs), count_states(chain, logs)
    exact = [enumerated(chain, own) for own in logs]
    close(filtered.beliefs, torch.stack([own["beliefs"] for own in exact]))
    close(filtered.log_likelihood_terms, torch.stack([own["terms"] for own in exact]))
    close(filtered.predicted[:, 1:], filtered.beliefs[:, :-1] @ chain.transition)
    close(smoothed, torch.stack([own["smoothed"] for own in exact]))
    close(counts.occupancy, smoothed)
    close(counts.initial, smoothed[:, 0].sum(0))
    close(counts.transitions, torch.stack([own["pairs"] for own in exact]).sum(0))
    close(counts.log_likelihood, torch.stack([own["total"] for own in exact]))
    assert torch.equal(best.states, torch.stack([own["best"] for own in exact]))
    close(best.log_probability, torch.stack([own["best_log"] for own in exact]))


@pytest.mark.drawn(1)
@pytest.mark.parametrize("spread", [1.5, 60.0], ids=["in floats", "in logarithms"])
def test_a_gaussian_family_equals_the_sum_over_all_paths(spread: float) -> None:
    process = gaussian(spread)
    seen = hs.ProcessDataset(process, length=6)[0:4].observations
    seen[1, 2], seen[2, :3, 0], seen[3] = torch.nan, torch.nan, seen[0] + 0.3 * spread
    logs = process.log_likelihoods(seen)
    if (
        spread > 10
    ):  # where the chain begins, only the states that say least can be; then the other one gains step by step
        logs[0, 0], logs[0, 1:4] = torch.tensor([-900.0, -1000.0, 0.0]), torch.tensor([-500.0, -450.0, -20.0])
    assert ((logs.amax(2) - logs.amin(2)).max() > 600) == (spread > 10)
    all_agree(process.chain, logs)


def test_what_is_missing_says_nothing() -> None:
    process = gaussian()
    seen = hs.ProcessDataset(process, length=7)[0:3].observations
    gap = torch.ones(3, 7, dtype=torch.bool)
    gap[:, 3:5] = False
    logs = where_seen(process.log_likelihoods(seen), gap)
    assert torch.equal(logs, process.log_likelihoods(seen.masked_fill(~gap[..., None], torch.nan)))
    found = filter_states(process.chain, logs)
    assert torch.equal(found.log_likelihood_terms[:, 3:5].abs() < 1e-14, torch.ones(3, 2, dtype=torch.bool))
    close(found.beliefs[:, 4], found.beliefs[:, 2] @ process.transition @ process.transition)
    all_agree(process.chain, logs[:, 1:])


@pytest.mark.long
@pytest.mark.drawn(1)
@pytest.mark.parametrize("offset", [0.0, -5000.0], ids=["as they are", "of a tiny density"])
def test_categorical_emissions_are_a_family_too(offset: float) -> None:
    """All answers are those of the filter of symbols, of ragged sequences with restarts too, and so are the draws."""
    hmm = hs.make_process("random-hmm", num_states=4, num_symbols=5)
    seen, lengths = hs.ProcessDataset(hmm, length=9)[0:6].observations, [9, 4, 9, 1, 7, 0]
    starts = torch.tensor([True, False, False, True, *[False] * 5])
    chain, logs = MarkovChainParams(hmm.initial, hmm.transition), hmm.emission.T.log()[seen] + offset
    given = {"reset_mask": starts, "lengths": lengths}
    counted, inside = torch.tensor(lengths), torch.arange(9) < torch.tensor(lengths)[:, None]
    one, other = filter_states(chain, logs, **given), hs.filter_beliefs(hmm, seen, **given)
    close(one.beliefs, other.beliefs)
    close(one.log_likelihood_terms - offset * inside, other.log_likelihood_terms)
    close(smooth_states(chain, logs, **given), hs.smooth_beliefs(hmm, seen, **given))
    best, path = viterbi_states(chain, logs, **given), hs.most_likely_states(hmm, seen, **given)
    assert torch.equal(best.states, path.states)
    torch.testing.assert_close(best.log_probability - offset * counted, path.log_probability, rtol=0, atol=1e-9)
    drawn = draw_states(chain, logs, num_paths=3, seed=5, **given)
    assert torch.equal(drawn, hs.sample_state_paths(hmm, seen, num_paths=3, seed=5, **given))
    some, lengths = torch.tensor(lengths) > 0, [length for length in lengths if length]
    counts, exact = count_states(chain, logs[some], lengths), hs.expected_counts(hmm, seen[some], lengths=lengths)
    close(counts.initial, exact.initial)
    close(counts.transitions, exact.transitions)
    symbols = torch.nn.functional.one_hot(seen[some], 5).double()
    close(torch.einsum("bts,btv->sv", counts.occupancy, symbols), exact.emissions)


def test_draws_in_logarithms_have_the_law_of_smoothing() -> None:
    """Binomial: a share of 4000 draws is off by more than .04 with a probability below 1e-6."""
    process = gaussian(60.0)
    seen = hs.ProcessDataset(process, length=5)[0:1].observations
    logs = process.log_likelihoods(seen)
    logs[0, 3] = torch.tensor([0.0, -0.4, -900.0])
    drawn = draw_states(process.chain, logs, num_paths=4000)
    shares = torch.nn.functional.one_hot(drawn[:, 0], 3).double().mean(0)
    assert (shares - smooth_states(process.chain, logs)[0]).abs().max() < 0.04
    assert torch.equal(draw_states(process.chain, logs, num_paths=2), drawn[:2])


@pytest.mark.parametrize("wide", [0.0, -2000.0], ids=["in floats", "in logarithms"])
def test_what_cannot_be_is_impossible_and_bad_numbers_are_refused(wide: float) -> None:
    chain = MarkovChainParams(torch.tensor([1.0, 0.0]).double(), torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double())
    logs = torch.zeros(2, 4, 2, dtype=torch.float64)
    logs[0, 1, 1], logs[0, 2, 0] = wide, -torch.inf  # the only state that can be there cannot emit the third
    found = filter_states(chain, logs)
    assert found.impossible_at.tolist() == [2, -1]
    assert found.log_likelihood.tolist() == [-torch.inf, 0.0]
    assert not found.beliefs[0, 2:].any()
    assert not smooth_states(chain, logs)[0].any()
    assert viterbi_states(chain, logs).states.tolist() == [[-1] * 4, [0] * 4]
    assert draw_states(chain, logs)[0].tolist() == [[-1] * 4, [0] * 4]
    for bad, said in ((torch.nan, "must be finite numbers or -inf"), (torch.inf, "must be finite numbers or -inf")):
        with pytest.raises(InputError, match=said):
            filter_states(chain, torch.full((1, 1, 2), bad, dtype=torch.float64))
    with pytest.raises(InputError, match="must have 2 states, got 3"):
        filter_states(chain, torch.zeros(1, 1, 3, dtype=torch.float64))


def test_rows_one_after_the_other_count_as_sequences_side_by_side() -> None:
    """Sequences that fit in floats and one that does not; a sequence that cannot be is named."""
    process, lengths = gaussian(), torch.tensor([7, 3, 1, 5])
    logs = process.log_likelihoods(hs.ProcessDataset(process, length=7)[0:4].observations)
    logs[3, 2] = torch.tensor([-900.0, 0.0, -1.0])
    every = [own[:count] for own, count in zip(logs, lengths.tolist(), strict=True)]
    rows = torch.cat(every)
    one = count_rows(process.chain, rows, lengths)
    visits, pairs, totals = zip(*(log_space_chain.smoothed(process.chain, own) for own in every), strict=True)
    close(one.occupancy, torch.cat(visits))
    close(one.initial, sum(own[0] for own in visits))
    close(one.transitions, sum(pairs))
    close(one.log_likelihood, torch.tensor(totals, dtype=torch.float64))
    rows[10] = -torch.inf
    assert count_rows(process.chain, rows, lengths).log_likelihood.isinf().nonzero().flatten().tolist() == [2]


def test_many_states_and_few_have_one_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with restarts, padding, an impossible prefix, and what floats lose."""
    chain = gaussian().chain
    logs = 30 * torch.randn(5, 12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logs[1, 4:] -= torch.tensor([0.0, 900.0, 500.0])
    logs[1, 8], logs[2, 5] = torch.tensor([-3000.0, 0.0, 0.0]), -torch.inf
    starts = torch.zeros(12, dtype=torch.bool)
    starts[[0, 7]] = True
    given = {"reset_mask": starts, "lengths": [12, 12, 12, 3, 0]}
    one = filter_states(chain, logs, **given)
    monkeypatch.setattr("hmmscope.emissions.chain.MOST", 1)
    other = filter_states(chain, logs, **given)
    assert torch.equal(one.impossible_at, other.impossible_at)
    for part in ("beliefs", "predicted", "log_likelihood_terms"):
        close(getattr(one, part)[[0, 1, 3, 4]], getattr(other, part)[[0, 1, 3, 4]])
    close(one.log_likelihood_terms[2, :5], other.log_likelihood_terms[2, :5])


@pytest.mark.parametrize("range_of", [35.0, 250.0, 500.0])
def test_what_only_one_state_explains_is_not_lost_between_two_looks(range_of: float) -> None:
    """States that never change, and observations that speak for each in turn: nothing is left of either in floats."""
    chain = MarkovChainParams(torch.full((2,), 0.5, dtype=torch.float64), torch.eye(2, dtype=torch.float64))
    logs = torch.tensor([[0.0, -range_of], [-range_of, 0.0]], dtype=torch.float64).repeat(12, 1)[None]
    found = filter_states(chain, logs)
    assert float(found.log_likelihood) == pytest.approx(-12 * range_of, rel=1e-12)
    assert found.beliefs[0, -1].tolist() == pytest.approx([0.5, 0.5], abs=1e-9)
    assert count_states(chain, logs).occupancy[0, 0].tolist() == pytest.approx([0.5, 0.5], abs=1e-9)


def test_products_that_underflow_are_not_impossible() -> None:
    """Two moves of probability 1e-99 to the only state that can emit the last observation, with density e^-800."""
    rare, never = 1e-99, -torch.inf
    rows = [[1 - rare, rare, 0.0, 0.0], [0.0, 1 - rare, rare, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    chain = MarkovChainParams(torch.eye(4, dtype=torch.float64)[0], torch.tensor(rows, dtype=torch.float64))
    logs = torch.tensor([[0.0] * 4, [0.0] * 4, [never, never, -800.0, 0.0]], dtype=torch.float64)[None]
    assert float(filter_states(chain, logs).log_likelihood) == pytest.approx(2 * math.log(rare) - 800, rel=1e-14)


def test_states_far_apart_need_no_logarithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that only negligible probabilities reach is no reason to repeat a sequence in log space."""
    rows = [[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.1, 0.0, 0.9]]
    chain = MarkovChainParams(torch.full((3,), 1 / 3, dtype=torch.float64), torch.tensor(rows, dtype=torch.float64))
    logs = torch.full((30, 3), -600.0, dtype=torch.float64)
    logs[range(30), [0] * 10 + [1] * 10 + [2] * 10] = 0.0
    smoothed, _, total = log_space_chain.smoothed(chain, logs)
    monkeypatch.setattr(log_space_chain, "_forward", None)
    close(smooth_states(chain, logs[None])[0], smoothed)
    assert float(filter_states(chain, logs[None]).log_likelihood) == pytest.approx(total, rel=1e-13)


STAYS = [[1.0, 0.0, 0.0], [0.0, 0.9, 0.1], [0.2, 0.0, 0.8]]
DENSE = [[0.98, 0.01, 0.01], [0.3, 0.4, 0.3], [0.1, 0.1, 0.8]]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("range_of", [3.0, 90.0, 1500.0])
@pytest.mark.parametrize(
    "rows",
    [DENSE, STAYS, [[1 - 2e-150, 1e-150, 1e-150], *DENSE[1:]], [[1 - 1e-150, 1e-150, 0.0], *STAYS[1:]]],
    ids=["dense", "sparse", "dense with tiny ones", "sparse with a tiny one"],
)
def test_what_floats_hold_is_what_logarithms_hold(rows: list, range_of: float) -> None:
    """200 observations of any width, by transitions of every kind: with what is never lost, and with what may be."""
    chain = MarkovChainParams(torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor(rows, dtype=torch.float64))
    random = torch.Generator().manual_seed(3)
    logs = range_of * torch.randn(4, 50, 3, generator=random, dtype=torch.float64)
    logs[0, 20, 1], logs[1, 7] = -torch.inf, 0.0
    found, counts, best = filter_states(chain, logs), count_states(chain, logs), viterbi_states(chain, logs)
    moves = torch.zeros(3, 3, dtype=torch.float64)
    for b, own in enumerate(logs):
        beliefs, terms = log_space_chain.filtered(chain, own)
        torch.testing.assert_close(found.beliefs[b], beliefs, rtol=0, atol=1e-11)  # sums of up to 10^5 nats
        torch.testing.assert_close(found.log_likelihood_terms[b], terms, rtol=1e-12, atol=1e-9)
        smoothed, pairs, _ = log_space_chain.smoothed(chain, own)
        moves += pairs
        torch.testing.assert_close(counts.occupancy[b], smoothed, rtol=0, atol=1e-9)
        states, total = log_space_chain.likeliest(chain, own)
        assert torch.equal(best.states[b], states)
        torch.testing.assert_close(float(best.log_probability[b]), total, rtol=1e-12, atol=0)
    torch.testing.assert_close(counts.transitions, moves, rtol=0, atol=1e-8)
    close(smooth_states(chain, logs), counts.occupancy)


def test_any_number_of_threads_gives_the_same_digits() -> None:
    """Sums over sequences too, whose blocks do not go by the number of threads."""
    process = gaussian()
    logs = process.log_likelihoods(hs.ProcessDataset(process, length=300)[0:60].observations)
    answers = {}
    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            counts, filtered = count_states(process.chain, logs), filter_states(process.chain, logs)
            best = viterbi_states(process.chain, logs)
            answers[count] = [*vars(counts).values(), *vars(filtered).values(), best.states, best.log_probability]
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, answers[1], answers[3]))
