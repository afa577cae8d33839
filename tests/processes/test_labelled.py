"""Noise, Markov chains, GINC, pools of fresh HMMs, and labelled HMMs: what definitions say of each."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch

import hmmscope as hs
from comparing import refuses
from families_cases import (
    HALVES,
    UNIT,
    edge_enumeration,
    probability,
    random_labelled,
    rank_of,
    sampled,
    words,
)
from hmmscope.errors import InputError
from hmmscope.processes.combine import as_labelled
from hmmscope.processes.low_rank import symmetric_channel
from hmmscope.processes.params import EdgeEmissionParams, StateEmissionParams, stack, symbol_probs
from hmmscope.seeds import PURPOSES, philox_key
from oracles import by_enumeration, exact
from reference_samplers import sample_edges_reference
from strategies import KINDS, rows


@pytest.mark.parametrize("gamma", [0.0, 0.25, 0.5, 1.0])
def test_symmetric_channel(gamma):
    channel = symmetric_channel(4, gamma)
    assert torch.allclose(channel.sum(1), torch.ones(4, dtype=torch.float64))
    for direction in torch.eye(4, dtype=torch.float64)[1:] - torch.eye(4, dtype=torch.float64)[0]:
        assert float((direction @ channel).abs().sum() / direction.abs().sum()) == pytest.approx(gamma)
    if gamma:
        hmm = hs.make_process("low-rank-hmm", num_states=4, num_symbols=4, observability=gamma)
        assert torch.allclose(hmm.emission, channel, atol=UNIT, rtol=0)
    refuses(
        lambda: hs.make_process("low-rank-hmm", num_states=4, num_symbols=3, observability=0.5),
        "num_symbols: must equal num_states = 4",
    )


def test_weakly_revealing_has_more_states_than_symbols():
    hmm = hs.make_process("low-rank-hmm", num_states=8, num_symbols=3)
    assert hmm.emission.shape == (8, 3)
    assert rank_of(hmm.emission.T @ hmm.emission) <= 3


def test_markov_chains_are_seen():
    chain = hs.make_process("markov-chain", num_states=6, num_symbols=6, seed=2)
    batch = sampled(chain, 10)
    assert torch.equal(batch.observations, batch.states)
    assert torch.allclose(chain.initial @ chain.transition, chain.initial, atol=6 * UNIT, rtol=0)
    word = batch.observations[0, :5].tolist()
    expected = chain.initial[word[0]] * math.prod(float(chain.transition[a, b]) for a, b in itertools.pairwise(word))
    assert probability(chain, word) == pytest.approx(float(expected), rel=1e-12)
    pool = hs.make_process("markov-mixture", num_components=3, num_states=4, num_symbols=4)
    assert torch.equal(pool[1].emission, torch.eye(4).double())
    assert pool[0].initial.tolist() == [0.25] * 4
    assert len({pool[m].digest for m in range(3)}) == 3
    batch = sampled(pool, 10)
    assert torch.equal(batch.observations, batch.states)
    refuses(lambda: hs.make_process("markov-chain", num_states=3, num_symbols=4), "must equal num_states = 3")


# GINC -----------------------------------------------------------------------------------------------------------------


def test_ginc_symbols_and_concepts():
    properties, entities = 6, 4
    mixture = hs.make_process(
        "ginc", num_components=3, num_properties=properties, num_entities=entities, num_symbols=9, seed=2
    )
    assert mixture.num_states == properties * entities
    emission = mixture[0].emission
    assert ((emission == 0) | (emission == 1)).all()  # the memory names its symbol without noise
    assert (emission[:entities].argmax(1) == 0).all()  # property 0 gives symbol 0
    assert (emission[entities:].argmax(1) > 0).all()
    for m in range(3):
        assert torch.equal(mixture[m].emission, emission)  # shared by the concepts
        blocks = mixture[m].transition.view(properties, entities, properties, entities)
        moves = blocks.sum(3).mean(1)  # of properties
        stays = blocks.sum(2)  # of entities, by property
        assert torch.allclose(stays, stays[:1].expand_as(stays), atol=1e-7)
        joint = torch.einsum("pq,ef->peqf", moves, stays[0])
        assert torch.allclose(blocks, joint, atol=1e-7)  # independent of each other
        assert torch.allclose(moves.sum(0), torch.ones(properties).double(), atol=1e-6)  # of permutations
        assert (stays[0].diagonal() >= 0.9 - 1e-8).all()
    first, second = (mixture[m].transition.view(6, 4, 6, 4) for m in (0, 1))
    assert not torch.allclose(first.sum(3).mean(1), second.sum(3).mean(1), atol=1e-3)  # own property moves
    assert torch.allclose(first.sum(2)[0], second.sum(2)[0], atol=1e-7)  # shared entity moves


def test_ginc_fields():
    frozen = hs.make_process("ginc", stay=1.0, num_components=1, num_properties=3, num_entities=3)
    batch = sampled(frozen, 10, 20)
    assert (batch.states % 3 == batch.states[:, :1] % 3).all()  # entities keep their place
    refuses(
        lambda: hs.make_process("ginc", num_properties=40, num_entities=40), "num_entities: num_properties * num_en"
    )
    refuses(lambda: hs.make_process("ginc", num_symbols=1), "num_symbols: must be in [2, 65536]")
    refuses(lambda: hs.make_process("ginc", temperature=0), "temperature: must be positive")


# The fresh pool -------------------------------------------------------------------------------------------------------


def test_each_sample_has_an_hmm_of_its_own():
    fresh = hs.make_process("fresh-hmms", num_states=3, num_symbols=4, seed=6)
    starts = np.arange(12) == 0
    paths = fresh.sample_paths(np.arange(5), starts, 9)
    assert paths.components.tolist() == [i + (PURPOSES["corpus"] << 40) for i in range(5)]
    for i in range(5):
        own = fresh.mixture(paths.components[i : i + 1].numpy())
        again = own.sample_paths(np.array([i]), starts, 9)
        assert torch.equal(again.observations[0], paths.observations[i])
        assert float(hs.filter_mixture(own, paths.observations[i : i + 1]).log_likelihood[0]) > -math.inf
    assert len({fresh.mixture(np.array([c]))[0].digest for c in paths.components.tolist()}) == 5


def test_fresh_samples_do_not_depend_on_order_or_batch():
    fresh = hs.make_process("fresh-hmms", num_states=3, num_symbols=4)
    starts = np.arange(10) == 0
    indices = np.array([5, 2, 9, 2**35, 0])
    together = fresh.sample_paths(indices, starts, 1)
    for row, index in enumerate(indices):
        alone = fresh.sample_paths(np.array([index]), starts, 1)
        assert torch.equal(alone.observations[0], together.observations[row])
        assert torch.equal(alone.states[0], together.states[row])
        assert alone.components[0] == together.components[row]


def test_fresh_streams_share_no_component():
    fresh = hs.make_process("fresh-hmms", num_states=2, num_symbols=2)
    starts = np.array([True])
    last = np.array([0, 2**40 - 1])
    ranges = []
    for stream in ("corpus", "train", "evaluate", "probe", "shuffle"):
        low, high = fresh.sample_paths(last, starts, 0, stream).components.tolist()
        ranges.append((low, high))
    ranges.sort()
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))
    with pytest.raises(InputError):
        fresh.sample_paths(np.array([2**40]), starts, 0)
    with pytest.raises(InputError):
        fresh.sample_paths(np.array([-1]), starts, 0)
    refuses(lambda: fresh.sample_paths(np.arange(2), starts, 0, "nowhere"), "nowhere", "corpus")


def test_a_fresh_pool_is_not_its_first_component():
    sizes = {"num_states": 2, "num_symbols": 3}
    digests = {
        hs.make_process(name, seed=seed, **sizes).digest for name in ("fresh-hmms", "random-hmm") for seed in (0, 1)
    }
    assert len(digests) == 4


def test_no_samples_of_a_fresh_pool():
    fresh = hs.make_process("fresh-hmms", num_states=2, num_symbols=2)
    none = fresh.sample_paths(np.arange(0), np.array([True, False]), 0)
    assert none.observations.shape == (0, 2)
    assert none.components.shape == (0,)


@pytest.mark.parametrize(
    "initial, labelled, part",
    [
        ([0.5, 0.4], HALVES, "initial: row sums to 0.9"),
        ([0.5, 0.5], HALVES[0], "labelled: must have shape any x 2 x 2, got 2 x 2"),
        ([1.0], HALVES, "labelled: must have shape any x 1 x 1"),
        ([0.5, 0.5], [[[0.5, 0], [0, 0.5]], [[0, 0.4], [0.5, 0]]], "labelled"),
        ([0.5, 0.5], [[[1.5, 0], [0, 0.5]], [[0, -0.5], [0.5, 0]]], "is negative"),
        ([0.5, 0.5], [[[math.nan, 0], [0, 0.5]], [[0, 0.5], [0.5, 0]]], "is not a finite number"),
        ([0.5, 0.5], [[[0.5], [0, 0.5]], [[0, 0.5], [0.5, 0]]], "labelled"),
        ([0.5, 0.5], "text", "labelled"),
        ([0.5, 0.5], None, "labelled"),
        ([0.5, 0.5], [], "labelled"),
        ([0.5, 0.5], np.zeros((0, 2, 2)), "labelled"),
        ([0.5, 0.5], np.array(HALVES, dtype=np.float16), "float16"),
        ([0.5, 0.5], np.array(HALVES, dtype=complex), "complex"),
    ],
)
def test_bad_labelled_matrices_are_refused_in_one_line(unchecked, initial, labelled, part):
    refuses(lambda: hs.LabelledHMM(initial, labelled), part)


def test_labelled_names_and_tiny_entries():
    refuses(lambda: hs.LabelledHMM([1.0], [[[1.0]]], symbols=["a", "b"]), "symbols: must be 1 different names, got 2")
    refuses(lambda: hs.LabelledHMM([0.5, 0.5], HALVES, states=["a", "a"]), "states: must be 2 different names")
    tiny = [[[1e-12, 1 - 1e-12], [0, 1.0]]]
    with pytest.warns(UserWarning, match=r"LabelledHMM: 1 positive entry below 2\^-32"):
        assert hs.LabelledHMM([1, 0], tiny).labelled[0, 0].tolist() == [2**-32, 1 - 2**-32]
    assert hs.LabelledHMM([1, 0], tiny, allow_drop_tiny=True).labelled[0, 0].tolist() == [0.0, 1.0]
    assert (
        repr(hs.LabelledHMM([1.0], [[[1.0]]], title="one")) == "LabelledHMM(num_states=1, num_symbols=1, title='one')"
    )


@pytest.mark.drawn(8)
@pytest.mark.parametrize("seed", range(25))
def test_labelled_filter_equals_enumeration(seed):
    process, rng = random_labelled(seed)
    word = rng.integers(process.num_symbols, size=5).tolist()
    result = hs.filter_beliefs(process, torch.tensor([word]))
    for t in range(5):
        mass, belief = edge_enumeration(process.labelled, process.initial, word[: t + 1])
        prefix = float(result.log_likelihood_terms[0, : t + 1].sum())
        if mass == 0:
            assert prefix == -math.inf
            assert int(result.impossible_at[0]) <= t
            assert result.beliefs[0, t].tolist() == [0.0] * process.num_states
            continue
        assert prefix == pytest.approx(math.log(mass), abs=1e-12)
        assert result.beliefs[0, t].tolist() == pytest.approx([float(b) for b in belief], abs=1e-12)
        longer = [
            edge_enumeration(process.labelled, process.initial, [*word[: t + 1], v])[0]
            for v in range(process.num_symbols)
        ]
        following = [float(p / mass) for p in longer]
        assert result.next_observation[0, t].tolist() == pytest.approx(following, abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_mixtures_of_labelled_hmms(seed):
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(3):
        flat = rows(rng, 2, 6, 0.5)
        parts.append(hs.LabelledHMM(rows(rng, 1, 2)[0], flat.reshape(2, 3, 2).transpose(1, 0, 2)))
    weights = rows(rng, 1, 3)[0]
    mixture = hs.Mixture(weights, parts)
    assert [mixture[m].digest for m in range(3)] == [part.digest for part in parts]
    word = rng.integers(3, size=4).tolist()
    masses = [
        Fraction(w) * edge_enumeration(p.labelled, p.initial, word)[0] for w, p in zip(weights, parts, strict=True)
    ]
    result = hs.filter_mixture(mixture, torch.tensor([word]))
    total = sum(masses)
    if total == 0:
        assert float(result.log_likelihood[0]) == -math.inf
    else:
        assert float(result.log_likelihood[0]) == pytest.approx(math.log(total), abs=1e-12)
        assert result.component_posterior[0, -1].tolist() == pytest.approx(
            [float(x / total) for x in masses], abs=1e-12
        )
    refuses(
        lambda: hs.Mixture([0.5, 0.5], [parts[0], hs.HMM([0.5, 0.5], np.eye(2), np.full((2, 3), 1 / 3))]), "components"
    )


@pytest.mark.parametrize("seed", range(10))
def test_sampled_edges_equal_the_plain_sampler(seed):
    rng = np.random.default_rng(seed)
    parts = []
    states, symbols = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    for _ in range(3):
        flat = rows(rng, states, symbols * states, 0.4)
        labelled = flat.reshape(states, symbols, states).transpose(1, 0, 2)
        parts.append(hs.LabelledHMM(rows(rng, 1, states)[0], labelled))
    mixture = hs.Mixture([0.25, 0.25, 0.5], parts)
    indices = rng.integers(2**40, size=11)
    starts = np.array([True, *(rng.random(8) < 0.3)])
    fast = mixture.sample_paths(indices, starts, seed, "probe")
    plain = sample_edges_reference(
        philox_key(seed, "probe"), indices, fast.components.numpy(), starts, *mixture.alias_tables[1:], states
    )
    assert np.array_equal(fast.observations.numpy(), plain[0])
    assert np.array_equal(fast.states.numpy(), plain[1])


def test_sampled_words_have_their_probabilities():
    process = hs.make_process("mess3")
    count = 20000
    batch = hs.ProcessDataset(process, length=3, seed=1)[0:count]
    seen = Counter(map(tuple, batch.observations.tolist()))
    expected = np.array([probability(process, word) for word in words(3, 3)])
    observed = np.array([seen[word] for word in words(3, 3)])
    chi_square = ((observed - count * expected) ** 2 / (count * expected)).sum()
    assert chi_square < 26 + 5 * math.sqrt(52)  # 26 degrees of freedom, five deviations


# Laws -----------------------------------------------------------------------------------------------------------------


def test_laws_are_stacked_and_chosen():
    rng = np.random.default_rng(0)
    hmms = [hs.HMM(*KINDS[0](rng, 2, 3)) for _ in range(3)]
    law = stack([hmm.params for hmm in hmms])
    assert isinstance(law, StateEmissionParams)
    assert torch.equal(law.select(torch.tensor([2, 0])).transition_MSS[1], hmms[0].transition)
    assert torch.equal(symbol_probs(law)[1], hmms[1].emission)
    edges = stack([as_labelled(hmm).params for hmm in hmms])
    assert isinstance(edges, EdgeEmissionParams)
    assert edges.labelled_MVSS.shape == (3, 3, 2, 2)
    assert torch.allclose(symbol_probs(edges), symbol_probs(law), atol=1e-8)
    initial, flat = edges.rows()
    assert initial.shape == (3, 2)
    assert torch.equal(flat.sum(-1), torch.ones(3, 2).double())
    assert float(flat[1, 0, 2 * 2 + 1]) == float(edges.labelled_MVSS[1, 2, 0, 1])  # symbol-major
    assert torch.equal(edges.select(torch.tensor([1])).initial_MS[0], hmms[1].initial)


def test_the_oracle_of_this_file_agrees_with_the_shared_one():
    """Enumeration over edges and over states, for the same HMM."""
    rng = np.random.default_rng(1)
    matrices = KINDS[0](rng, 2, 2)
    hmm = hs.HMM(*matrices)
    labelled = torch.einsum("iv,ij->vij", hmm.emission, hmm.transition)
    for word in words(2, 4):
        assert edge_enumeration(labelled, hmm.initial, word)[0] == by_enumeration(exact(matrices), word).prefix[-1]
