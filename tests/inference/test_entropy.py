"""Entropy rates: closed forms, bounds from both sides, and mixed states of textbook processes."""

import itertools
import math

import numpy as np
import pytest
import torch

import hmmscope as hs
import oracles
from comparing import close
from hmmscope.errors import InputError
from hmmscope.inference.entropy import block_entropies
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.inference.stationary_process import state_transitions
from hmmscope.processes.stationary import closed_classes
from strategies import KINDS, as_labelled, dense, rows

THIRDS = {"golden-mean": 2 / 3, "even": 2 / 3, "z1r": 1 / 3, "rrxor": 2 / 3}


def golden_mean(start=(1, 0)):
    return hs.LabelledHMM(start, [[[0, 0.5], [0, 0]], [[0.5, 0], [1, 0]]])


def even_process():
    return hs.LabelledHMM([1, 0], [[[0.5, 0], [0, 0]], [[0, 0.5], [1, 0]]])


@pytest.mark.parametrize("process", [golden_mean(), even_process()], ids=["golden mean", "even"])
def test_entropy_rate_of_processes_built_by_hand(process):
    rate = hs.entropy_rate(process)
    assert rate.value == pytest.approx(2 / 3 * math.log(2), rel=1e-14)
    assert rate.exact
    assert rate.method == "unifilar"
    assert rate.value == rate.low == rate.high == rate.lower_bound == rate.upper_bound


@pytest.mark.parametrize("name", THIRDS)
def test_entropy_rate_of_textbook_processes(name):
    assert hs.entropy_rate(hs.make_process(name)).value == pytest.approx(THIRDS[name] * math.log(2), rel=1e-12)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.7])
def test_entropy_rate_of_the_golden_mean_with_any_bias(p):
    """In state A, a share 1 / (1 + p) of the time, a coin of bias p."""
    process = hs.make_process("golden-mean", zero_probability=p)
    coin = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert hs.entropy_rate(process).value == pytest.approx(coin / (1 + p), abs=1e-9)  # quantised


def test_a_visible_markov_chain():
    chain = hs.make_process("markov-chain", num_states=4, num_symbols=4)
    law = hs.stationary_distribution(chain)
    expected = float(law @ torch.special.entr(chain.transition).sum(1))
    rate = hs.entropy_rate(chain)
    assert rate.method == "unifilar"
    assert rate.value == pytest.approx(expected, rel=1e-14)


def test_independent_draws_have_their_entropy_whatever_the_hidden_states():
    """Three states that emit alike: not unifilar, but a single mixed state."""
    rng = np.random.default_rng(0)
    law = rows(rng, 1, 4)
    process = hs.HMM(rows(rng, 1, 3)[0], rows(rng, 3, 3), law.repeat(3, 0))
    rate = hs.entropy_rate(process)
    assert rate.method == "mixed states"
    assert rate.value == pytest.approx(-(law * np.log(law)).sum(), rel=1e-12)
    assert hs.entropy_rate(hs.HMM([1.0], [[1.0]], law)).value == pytest.approx(rate.value, rel=1e-12)  # M7


def test_the_rate_of_the_simple_nonunifilar_source():
    """Infinitely many mixed states; the bounds from both sides give 0.677867 bits."""
    rate = hs.entropy_rate(hs.make_process("simple-nonunifilar"))
    assert not rate.exact
    assert rate.upper_bound - rate.lower_bound < 1e-5
    assert rate.value / math.log(2) == pytest.approx(0.677867, abs=2e-6)


def test_unifilar_rates_are_covered_by_sampling_and_bounds():
    """N11: the estimate for the same process in a form that hides its being unifilar, within 4 standard errors."""
    rng = np.random.default_rng(1)
    covered = 0
    for number in range(6):
        chain = hs.HMM(rows(rng, 1, 3)[0], rows(rng, 3, 3), np.eye(3))
        exact = hs.entropy_rate(chain).value
        halves = np.repeat(np.arange(3), 2)  # each state twice, entered by chance: the symbol does not tell which
        share = rows(rng, 3, 2)[:, :].ravel()
        split = hs.HMM(
            chain.initial.numpy()[halves] * share,
            chain.transition.numpy()[np.ix_(halves, halves)] * share,
            np.eye(3)[halves],
            allow_drop_tiny=True,
        )
        estimate = hs.entropy_rate(split, max_mixed_states=1, seed=number)
        assert estimate.method == "sampling"
        assert estimate.lower_bound - 1e-9 <= exact <= estimate.upper_bound + 1e-9
        assert abs(estimate.value - exact) <= 2 * (estimate.high - estimate.low) + 1e-9
        again = hs.entropy_rate(split)  # three symbols: three mixed states and the root
        assert again.method == "mixed states"
        assert again.value == pytest.approx(exact, abs=1e-8)
        covered += estimate.low - 1e-9 <= exact <= estimate.high + 1e-9  # the two laws are rounded to 2^-32 apart
    assert covered >= 5


def test_the_rate_is_the_loss_of_the_filter_in_the_long_run():
    process = hs.make_process("mess3")
    rate = hs.entropy_rate(process)
    batch = hs.ProcessDataset(process, length=4000, seed=9)[0:20]
    losses = -hs.filter_beliefs(process, batch.observations).log_likelihood_terms[:, 100:].mean(1)
    error = float(losses.std()) / math.sqrt(20)
    assert abs(float(losses.mean()) - rate.value) < 4 * error
    assert rate.upper_bound - rate.lower_bound < 1e-4


# ---------------------------------------------------------------------------------------------------------------------
# Blocks


def test_block_entropies_equal_enumeration():
    rng = np.random.default_rng(2)
    for _ in range(8):
        matrices = dense(rng, 3, 2)
        hmm = hs.HMM(*matrices)
        stationary = hs.stationary_distribution(hmm)
        exact = oracles.exact((stationary, *matrices[1:]))
        blocks = block_entropies(hmm, 4)
        for length in range(1, 5):
            words = itertools.product(range(2), repeat=length)
            laws = [float(oracles.by_enumeration(exact, list(word)).prefix[-1]) for word in words]
            assert blocks.block[length - 1].item() == pytest.approx(-sum(p * math.log(p) for p in laws), rel=1e-12)
        assert blocks.block.dtype == torch.float64


def test_myopic_entropies_fall_and_informed_ones_rise():
    rng = np.random.default_rng(3)
    for number in range(40):
        if number % 4:
            process = hs.HMM(*KINDS[number % 6](rng, 3, 3))
        else:
            process = hs.LabelledHMM(*as_labelled(dense(rng, 2, 3)))
        if len(closed_classes(state_transitions(process.params))) > 1:
            with pytest.raises(InputError, match="not unique"):
                block_entropies(process, 6)
            continue
        blocks = block_entropies(process, 6)
        assert (blocks.myopic.diff() <= 1e-12).all()
        assert (blocks.informed.diff() >= -1e-12).all()
        assert (blocks.informed <= blocks.myopic + 1e-12).all()
        assert (blocks.excess.diff() >= -1e-12).all()
        rate = hs.entropy_rate(process, num_samples=10, length=60)
        assert blocks.informed[-1] - 1e-9 <= rate.upper_bound
        assert rate.lower_bound <= blocks.myopic[-1] + 1e-9


def test_excess_entropy_of_a_periodic_process_is_its_phase():
    process = hs.make_process("z1r")
    blocks = block_entropies(process, 12)
    # 0 1 R: phase (ln 3 nats) is nearly known from 12 symbols; the rate is (1/3) ln 2.
    assert blocks.excess[-1].item() == pytest.approx(math.log(3), abs=0.05)
    assert (blocks.informed[:3] >= 0).all()


def test_too_many_words_are_refused():
    with pytest.raises(InputError, match=r"^length: 2\^21 words exceed the limit of 1048576; use a smaller length$"):
        block_entropies(golden_mean(), 21)
    with pytest.raises(InputError, match=r"^length: 2\^1000000000000 words exceed the limit of"):
        block_entropies(golden_mean(), 10**12)
    with pytest.raises(InputError, match=r"^stationary distribution: is not unique"):
        hs.entropy_rate(hs.HMM([0.5, 0.5], np.eye(2), np.eye(2)))
    for options in ({"num_samples": 1}, {"length": 2}):
        with pytest.raises(InputError, match=r"must be at least"):
            hs.entropy_rate(golden_mean(), **options)


# ---------------------------------------------------------------------------------------------------------------------
# Mixed states


#: The root is the stationary law. RRXOR: 36 (Shai et al., 2024); the even process has two transient ones.
COUNTS = {"golden-mean": 3, "even": 4, "z1r": 7, "rrxor": 36}


@pytest.mark.parametrize("name", COUNTS)
def test_number_and_position_of_mixed_states(name):
    process = hs.make_process(name)
    found = mixed_states(process)
    assert len(found.depth) == COUNTS[name]
    assert found.complete
    assert found.stopped_by == ""
    assert found.largest_merge < 1e-14
    exact_root = {"golden-mean": (2, 1), "even": (2, 1), "z1r": (1, 1, 1), "rrxor": (2, 1, 1, 1, 1)}[name]
    root = [oracles.Fraction(part, sum(exact_root)) for part in exact_root]
    exact = oracles.mixed_states_of(root, oracles.exact(process.labelled))
    assert len(exact) == COUNTS[name]
    ordered = sorted(tuple(map(float, belief)) for belief in exact)
    distances = torch.cdist(torch.tensor(ordered, dtype=torch.float64), found.beliefs, p=1)
    assert distances.min(1).values.max() < 1e-12
    assert distances.min(0).values.max() < 1e-12


def test_the_presentation_is_the_process():
    """The same likelihoods from the presentation, which needs no filter: its nodes are the beliefs."""
    process = hs.make_process("rrxor")
    found = mixed_states(process)
    labelled = found.labelled()
    close(labelled.sum((0, 2)), torch.ones(36, dtype=torch.float64))
    assert ((labelled > 0).sum(2) <= 1).all()
    words = hs.ProcessDataset(process, length=12)[0:50].observations
    filtered = hs.filter_beliefs(process, words)
    node = torch.zeros(50, dtype=torch.int64)
    for t in range(12):
        node = found.successor[node, words[:, t]]
        predicted = filtered.next_observation[:, t]  # from the start law, which is stationary up to 2^-32
        np.testing.assert_allclose(found.probability[node], predicted, rtol=0, atol=1e-9)
        assert (found.depth[node] <= t + 1).all()


def test_limits_are_told():
    mess3 = hs.make_process("mess3")
    by_count = mixed_states(mess3, max_states=100)
    assert len(by_count.depth) == 100
    assert (by_count.complete, by_count.stopped_by) == (False, "max_states")
    by_depth = mixed_states(mess3, max_depth=3)
    assert len(by_depth.depth) == 1 + 3 + 9 + 27
    assert (by_depth.complete, by_depth.stopped_by) == (False, "max_depth")
    assert by_depth.expanded.sum() == 13
    assert int(by_depth.depth.max()) == 3
    with pytest.raises(
        InputError, match=r"^mixed states: the list is not complete \(stopped by max_depth\); increase max_depth$"
    ):
        by_depth.labelled()
    merged = mixed_states(mess3, tolerance=0.05)
    assert merged.complete
    assert 0 < merged.largest_merge <= 0.05
    assert mixed_states(mess3, max_depth=0).depth.tolist() == [0]
    # Exactly as many as there are is enough.
    assert mixed_states(hs.make_process("rrxor"), max_states=36).complete
    assert not mixed_states(hs.make_process("rrxor"), max_states=35).complete
    for options in ({"max_states": 0}, {"max_depth": -1}, {"tolerance": 1.0}):
        with pytest.raises(InputError, match=r"must be"):
            mixed_states(mess3, **options)


def test_mixed_states_of_states_that_emit_are_predicted_states():
    rng = np.random.default_rng(4)
    matrices = dense(rng, 3, 2)
    hmm = hs.HMM(*matrices)
    found = mixed_states(hmm, prior=matrices.initial, max_depth=4)
    words = torch.tensor(list(itertools.product(range(2), repeat=4)))
    filtered = hs.filter_beliefs(hmm, words)
    predicted = filtered.beliefs[:, -1] @ hmm.transition
    node = torch.zeros(16, dtype=torch.int64)
    for t in range(4):
        node = found.successor[node, words[:, t]]
    close(found.beliefs[node], predicted, relative=1e-11)
    close(found.probability[node], filtered.next_observation[:, -1], relative=1e-11)


def test_the_estimated_rate_is_that_of_the_stationary_process() -> None:
    """Two states that are hardly ever left have rates of their own; of a chain of period two each half sees one of them."""
    emission = torch.full((2, 16), 0.2 / 16, dtype=torch.float64)
    emission[0] = 1 / 16 + torch.linspace(-0.01, 0.01, 16)
    emission[1, 0] += 0.8
    emission /= emission.sum(1, keepdim=True)
    rows = [[0.999, 0.001], [0.001, 0.999]]
    hmms = [hs.HMM(start, rows, emission, allow_drop_tiny=True) for start in ([1, 0], [0, 1])]
    slow = [hs.entropy_rate(hmm, num_samples=400) for hmm in hmms]
    assert slow[0] == slow[1]
    first = slow[0]
    assert first.high - first.low > 0.8 * (first.upper_bound - first.lower_bound)  # so few sequences hardly tell more
    draw = np.random.default_rng(0)
    transition, told = np.zeros((16, 16)), np.zeros((16, 4))
    transition[:8, 8:], transition[8:, :8] = draw.dirichlet(np.ones(8), 8), draw.dirichlet(np.ones(8), 8)
    told[:8], told[8:] = draw.dirichlet(50 * np.ones(4), 8), 0.02 / 4
    told[8:, 0] += 0.98
    told[8:] += draw.uniform(0, 1e-3, (8, 4))
    told /= told.sum(1, keepdims=True)
    period = hs.HMM(np.eye(16)[0], transition, told, allow_drop_tiny=True)
    rates = [hs.entropy_rate(period, length=length).value for length in (400, 401, 402)]
    assert max(rates) - min(rates) < 1e-3
