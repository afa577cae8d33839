"""The corpus is a function of (process, layout, seed): the same bits by every road, pinned, and of the right law."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.corpora.layouts import MAX_COLUMNS
from hmmscope.errors import InputError
from hmmscope.kernels import cpu
from hmmscope.kernels.philox import KIND_COMPONENT, KIND_PATH
from hmmscope.kernels.reference import sample_components_reference, sample_paths_reference
from hmmscope.seeds import philox_key
from strategies import rows

# ---------------------------------------------------------------------------------------------------------------------
# A third sampler, in NumPy: as simple as the plain one and fast enough for a million tokens


def numpy_philox(c0, c1, c2, c3, key):
    words = [np.asarray(c, np.uint64) for c in np.broadcast_arrays(c0, c1, c2, c3)]
    k0, k1 = key
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        left, right = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (right >> half) ^ words[1] ^ np.uint64(k0),
            right & low,
            (left >> half) ^ words[3] ^ np.uint64(k1),
            left & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return words


def numpy_draw(tables, words):
    """One draw from each table (n, 2^c) with each word (n,)."""
    bits = tables.shape[1].bit_length() - 1
    column = (words >> np.uint64(32 - bits)).astype(np.int64)
    remainder = words & np.uint64(2 ** (32 - bits) - 1)
    entry = tables[np.arange(len(words)), column].astype(np.uint64)
    alias = (entry & np.uint64(2**bits - 1)).astype(np.int64)
    return np.where(remainder < entry >> np.uint64(bits), column, alias)


def numpy_components(key, samples, table):
    words = numpy_philox(0, KIND_COMPONENT, samples & 0xFFFFFFFF, samples >> 32, key)
    return numpy_draw(np.broadcast_to(table, (len(samples), len(table))), words[0])


def numpy_paths(key, samples, components, starts, initial, transition, emission):
    observations, states = [], []
    for t, start in enumerate(starts):
        words = numpy_philox(t // 2, KIND_PATH, samples & 0xFFFFFFFF, samples >> 32, key)
        tables = initial[components] if start else transition[components, states[-1]]
        states.append(numpy_draw(tables, words[2 * (t % 2)]))
        observations.append(numpy_draw(emission[components, states[-1]], words[2 * (t % 2) + 1]))
    return np.stack(observations, 1), np.stack(states, 1)


# ---------------------------------------------------------------------------------------------------------------------
# Processes


def random_hmm(seed, num_states, num_symbols, zeros=0.0):
    rng = np.random.default_rng(seed)
    return hs.HMM(
        rows(rng, 1, num_states, zeros)[0],
        rows(rng, num_states, num_states, zeros),
        rows(rng, num_states, num_symbols, zeros),
    )


def random_mixture(seed, num_components, num_states, num_symbols, zeros=0.0):
    weights = rows(np.random.default_rng(seed), 1, num_components, zeros)[0]
    return hs.Mixture(weights, [random_hmm(seed + m, num_states, num_symbols, zeros) for m in range(num_components)])


PROCESSES = {
    "1x1": lambda: random_hmm(0, 1, 1),
    "1x5": lambda: random_hmm(1, 1, 5),
    "2x1": lambda: random_hmm(2, 2, 1),
    "3x4-zeros": lambda: random_hmm(3, 3, 4, 0.5),
    "5x3": lambda: random_hmm(4, 5, 3),
    "17x16": lambda: random_hmm(5, 17, 16, 0.3),
    "128x16": lambda: random_hmm(6, 128, 16),
    "mixture-1x2x2": lambda: random_mixture(7, 1, 2, 2),
    "mixture-3x4x3": lambda: random_mixture(8, 3, 4, 3, 0.4),
    "mixture-50x9x7": lambda: random_mixture(100, 50, 9, 7),
}

LAYOUTS = {
    "one": hs.Sequences(length=1),
    "odd": hs.Sequences(length=7),
    "even": hs.Sequences(length=64),
    "no-demonstration": hs.Prompts(num_demonstrations=0, demonstration_length=1, test_length=3),
    "prompts": hs.Prompts(num_demonstrations=3, demonstration_length=4, test_length=5),
    "short-prompts": hs.Prompts(num_demonstrations=5, demonstration_length=1, test_length=1),
}


@pytest.fixture(scope="module", params=PROCESSES)
def process(request):
    return PROCESSES[request.param]()


def tables_of(process):
    return process.alias_tables[1:]


def same_paths(one, other):
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(one[1], other[1])


#: Lanes are eight samples, thread blocks are made of lanes, and sample numbers go beyond 32 bits.
SAMPLES = np.array([0, 1, 2, 8, 5, 5, 2**32 - 1, 2**32, 2**32 + 1, 2**40 - 1, 77])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_sampler_equals_plain(process, layout):
    """About 10^4 tokens over all cases; the NumPy sampler too, which then stands in for the plain one."""
    starts = LAYOUTS[layout].starts
    for key in (philox_key(0, "corpus"), philox_key(2**32 - 1, "train")):
        components = sample_components_reference(key, SAMPLES, process.alias_tables[0])
        np.testing.assert_array_equal(cpu.sample_components(key, SAMPLES, process.alias_tables[0]), components)
        np.testing.assert_array_equal(numpy_components(key, SAMPLES, process.alias_tables[0]), components)
        plain = sample_paths_reference(key, SAMPLES, components, starts, *tables_of(process))
        same_paths(cpu.sample_paths(key, SAMPLES, components, starts, *tables_of(process)), plain)
        same_paths(numpy_paths(key, SAMPLES, components, starts, *tables_of(process)), plain)


@pytest.mark.parametrize("layout, num_samples", [("even", 1301), ("prompts", 1303)])
def test_compiled_sampler_equals_numpy_on_a_million_tokens(process, layout, num_samples):
    """Over ten processes 10^6 tokens, with one and two threads."""
    starts, key = LAYOUTS[layout].starts, philox_key(11, "corpus")
    samples = np.arange(10**6, 10**6 + num_samples)
    components = numpy_components(key, samples, process.alias_tables[0])
    expected = numpy_paths(key, samples, components, starts, *tables_of(process))
    for num_threads in (1, 2, 3):
        same_paths(
            cpu.sample_paths(key, samples, components, starts, *tables_of(process), num_threads=num_threads), expected
        )


def test_a_million_tokens_are_compared():
    per_process = 1301 * LAYOUTS["even"].num_observations + 1303 * LAYOUTS["prompts"].num_observations
    assert per_process * len(PROCESSES) >= 10**6


def test_narrow_integers_hold_the_same_samples():
    process = PROCESSES["17x16"]()
    samples, starts = np.arange(20), LAYOUTS["odd"].starts
    wide = cpu.sample_paths((1, 16), samples, np.zeros(20, np.int64), starts, *tables_of(process))
    narrow = cpu.sample_paths((1, 16), samples, np.zeros(20, np.int64), starts, *tables_of(process), dtype=np.int32)
    assert narrow[0].dtype == np.int32
    same_paths(narrow, wide)


# ---------------------------------------------------------------------------------------------------------------------
# Any part equals the whole


def same_batch(batch, whole, chosen):
    for field in ("tokens", "observations", "states", "components"):
        part, full = getattr(batch, field), getattr(whole, field)
        assert (part is None) == (full is None)
        if part is not None:
            assert part.dtype == torch.int64
            assert torch.equal(part, full[chosen])


@pytest.mark.parametrize("name", ["5x3", "mixture-3x4x3"])
@pytest.mark.parametrize("layout", ["odd", "prompts"])
def test_any_part_equals_the_whole(name, layout):
    corpus = hs.Corpus(PROCESSES[name](), seed=3, layout=LAYOUTS[layout])
    whole = corpus[0:200]
    assert (whole.components is None) == (name == "5x3")
    for part in (slice(0, 1), slice(7, 8), slice(13, 200), slice(None, 50), slice(3, 199, 7), slice(5, 5), slice(9, 2)):
        same_batch(corpus[part], whole, list(range(200))[part])
    reverse = list(range(199, -1, -1))
    same_batch(corpus[reverse], whole, reverse)
    rng = np.random.default_rng(0)
    for _ in range(20):
        chosen = rng.integers(0, 200, rng.integers(1, 30))
        same_batch(corpus[chosen], whole, chosen)
        same_batch(corpus[torch.from_numpy(chosen)], whole, chosen)
        same_batch(corpus[chosen.tolist()], whole, chosen)
    same_batch(corpus[17], whole, [17])
    same_batch(corpus[[]], whole, [])


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_number_of_threads_changes_nothing(num_threads):
    corpus = hs.Corpus(PROCESSES["mixture-50x9x7"](), length=33, seed=1)
    expected = corpus[0:501]
    torch.set_num_threads(num_threads)
    try:
        same_batch(corpus[0:501], expected, list(range(501)))
    finally:
        torch.set_num_threads(1)


def test_a_longer_sequence_begins_with_the_shorter():
    process = PROCESSES["5x3"]()
    short, long = hs.Corpus(process, length=5, seed=2)[0:20], hs.Corpus(process, length=40, seed=2)[0:20]
    assert torch.equal(long.observations[:, :5], short.observations)
    assert torch.equal(long.states[:, :5], short.states)


def test_the_first_and_the_last_sample_exist():
    corpus = hs.Corpus(PROCESSES["5x3"](), length=8)
    last = corpus[2**40 - 1 : 2**40]
    assert last.tokens.shape == (1, 8)
    assert torch.equal(corpus[2**40 - 1].tokens, last.tokens)
    assert not torch.equal(last.tokens, corpus[2**32 - 1].tokens)


# ---------------------------------------------------------------------------------------------------------------------
# Pinned bits: a change of any of these is a new CORPUS_VERSION. All numbers are dyadic, so no library function enters


def coin():
    return hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])


def weather():
    return hs.HMM(
        [0.5, 0.25, 0.25], [[0.5, 0.5, 0], [0, 0.75, 0.25], [0.125, 0, 0.875]], [[0.75, 0.25], [0, 1], [0.5, 0.5]]
    )


def cycle():
    matrix = np.roll(np.eye(5), 1, axis=1)
    return hs.HMM(np.eye(5)[2], matrix, np.eye(5))


def pair():
    other = hs.HMM([0, 0, 1], [[0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]], [[0.0625, 0.9375], [1, 0], [0.5, 0.5]])
    return hs.Mixture([0.75, 0.25], [weather(), other])


PROMPTS = hs.Prompts(num_demonstrations=2, demonstration_length=3, test_length=4)

GOLDEN = {
    "coin": (
        lambda: hs.Corpus(coin(), length=16, seed=0),
        "1100010100100011 0101110101111010 1110001011110100",
        "bd07f59c3f003f9c19651aa6aa90d666d20fba2d4d9bb748dc59f19fbc228fa3",
    ),
    "weather": (
        lambda: hs.Corpus(weather(), length=9, seed=2**32 - 1, stream="train"),
        "111110100 000001000 111110110",
        "4a9b21ec5a87fff057b2e52e4a635ecbd4cf6642381ce2be16d97a8b2b7b5c3c",
    ),
    "cycle": (
        lambda: hs.Corpus(cycle(), length=7, seed=5),
        "2340123 2340123 2340123",
        "2284b110b7c3f7be8489531dc87a95e470b41944b80d9decb95d917082d6c034",
    ),
    "pair": (
        lambda: hs.Corpus(pair(), seed=1, layout=PROMPTS),
        "2011200121110 2010201020111 2111211020011",
        "aeef2b813391ea433131de4620bf674e5c5eada34bb7617b1681bafcb5fc295c",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_pinned_bits(name):
    make, tokens, digest = GOLDEN[name]
    corpus = make()
    assert ["".join(map(str, row)) for row in corpus[0:3].tokens.tolist()] == tokens.split()
    assert corpus.digest(100) == digest


def test_pinned_process_digest():
    assert weather().digest == "c1514ad455a35b0f8bbbdbf18ea497a4eff1c2bcebfa94b1f37b4d4bafb196d4"


def test_digest_depends_on_everything():
    base = hs.Corpus(weather(), length=9, seed=1)
    emission = weather().emission_SV + torch.tensor([[0, 0], [0, 0], [2**-32, -(2**-32)]], dtype=torch.float64)
    one_unit_off = hs.HMM(weather().initial_S, weather().transition_SS, emission)
    others = [
        hs.Corpus(weather(), length=10, seed=1),
        hs.Corpus(weather(), length=9, seed=2),
        hs.Corpus(weather(), length=9, seed=1, stream="train"),
        hs.Corpus(one_unit_off, length=9, seed=1),
        hs.Corpus(weather(), layout=hs.Prompts(num_demonstrations=0, test_length=9), seed=1),
        hs.Corpus(pair(), length=9, seed=1),
        hs.Corpus(hs.HMM([0.25, 0.5, 0.25], weather().transition_SS, weather().emission_SV), length=9, seed=1),
    ]
    digests = [corpus.digest(10) for corpus in others]
    assert base.digest(10) not in digests
    assert base.digest(11) != base.digest(10)
    assert base.digest(10) == hs.Corpus(weather(), length=9, seed=1).digest(10)


# ---------------------------------------------------------------------------------------------------------------------
# Law of the samples

FALSE_ALARM = 1e-9


def follows(draws, law) -> bool:
    """Whether independent draws follow `law`, by the DKW bound on the distribution function and by exact zeros.

    False alarm at most 1e-9 (2 exp(-2 n e^2)). With n = 10^5 draws e = 0.0104, with 2 * 10^4 draws 0.0232: a
    distribution function that is wrong by twice that somewhere is missed with the same small probability.
    """
    counts = np.bincount(draws, minlength=len(law))
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * len(draws)))
    law = np.asarray(law, dtype=float)
    return not counts[law == 0].any() and np.abs(np.cumsum(counts / len(draws) - law)).max() < bound


def test_the_law_check_can_fail():
    rng = np.random.default_rng(0)
    draws = rng.choice(3, 100_000, p=[0.5, 0.5, 0])
    assert follows(draws, [0.5, 0.5, 0])
    assert not follows(draws, [0.52, 0.48, 0])
    assert not follows(np.append(draws, 2), [0.5, 0.5, 0])


def test_samples_follow_the_matrices():
    """Each use of a row has fresh words, so that its first n draws are independent for an n fixed beforehand."""
    hmm = hs.HMM(
        [0.25, 0, 0.625, 0.125],
        [[0, 0.5, 0.375, 0.125], [0.0625, 0, 0.9375, 0], [0.25, 0.25, 0.25, 0.25], [0, 0.75, 0, 0.25]],
        [[0.5, 0, 0, 0.375, 0.125], [0, 0.25, 0.25, 0.25, 0.25], [0.9375, 0, 0, 0, 0.0625], [0.2, 0.2, 0.2, 0.2, 0.2]],
    )
    initial, transition, emission = (matrix.numpy() for matrix in (hmm.initial_S, hmm.transition_SS, hmm.emission_SV))
    batch = hs.Corpus(hmm, length=8, seed=0)[0:100_000]
    states, observations = batch.states.numpy(), batch.observations.numpy()
    assert follows(states[:, 0], initial)
    before, after = states[:, :-1].ravel(), states[:, 1:].ravel()
    for state in range(4):
        draws = after[before == state]
        assert len(draws) >= 20_000
        assert follows(draws[:20_000], transition[state])
        assert not np.isin(draws, np.flatnonzero(transition[state] == 0)).any()
    for state in np.unique(states):
        assert follows(observations[states == state], emission[state])


def test_components_follow_the_weights_and_choose_the_matrices():
    mixture = random_mixture(20, 6, 3, 4, zeros=0.4)
    weights = mixture.weights_M.numpy()
    assert (weights == 0).any()
    layout = hs.Prompts(num_demonstrations=2, demonstration_length=2, test_length=2)
    batch = hs.Corpus(mixture, layout=layout, seed=4)[0:100_000]
    components = batch.components.numpy()
    assert follows(components, weights)
    for m in np.unique(components):
        hmm = mixture[int(m)]
        chosen = batch.states.numpy()[components == m]
        assert follows(chosen[:, layout.starts].ravel(), hmm.initial_S.numpy())  # each sequence begins anew
        steps = chosen.reshape(-1, 3, 2)
        for state in range(3):
            after = steps[steps[:, :, 0] == state][:, 1]
            if len(after):
                assert follows(after, hmm.transition_SS[state].numpy())


def test_neighbours_are_independent():
    """Two symbols of independent fair coins agree half of the time. Hoeffding, false alarm 1e-9 each; n = 10^5."""
    base = dict(length=100, seed=7, stream="corpus")
    symbols = hs.Corpus(coin(), **base)[0:1001].observations
    others = {
        "next sample": symbols[1:],
        "next seed": hs.Corpus(coin(), **{**base, "seed": 8})[0:1000].observations,
        "other stream": hs.Corpus(coin(), **{**base, "stream": "train"})[0:1000].observations,
        "sample 2^32 on": hs.Corpus(coin(), **base)[2**32 : 2**32 + 1000].observations,
        "next time": torch.roll(symbols[:-1], 1, 1),
        "time after next": torch.roll(symbols[:-1], 2, 1),
    }
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * symbols[:-1].numel()))
    for name, other in others.items():
        agreement = (symbols[:-1] == other).double().mean().item()
        assert abs(agreement - 0.5) < bound, name


def test_deterministic_processes_have_one_path():
    batch = hs.Corpus(cycle(), length=12, seed=9)[0:50]
    expected = (torch.arange(12) + 2) % 5
    assert torch.equal(batch.observations, expected.expand(50, -1))
    assert torch.equal(batch.states, batch.observations)


def test_probability_2_to_the_minus_32_is_a_single_word():
    """The rarest event exists in the table, and the certain rest does not hide a zero."""
    hmm = hs.HMM([1.0], [[1.0]], [[1 - 2**-32, 2**-32, 0.0]])
    batch = hs.Corpus(hmm, length=64)[0:5000]
    assert batch.observations.max() <= 1
    assert batch.observations.sum() <= 3  # 3.2e5 draws: four of probability 2^-32 happen once in 10^18


# ---------------------------------------------------------------------------------------------------------------------
# Layouts


def test_plain_layout_is_the_observations():
    corpus = hs.Corpus(weather(), length=11, seed=0)
    batch = corpus[0:5]
    assert torch.equal(batch.tokens, batch.observations)
    assert corpus.num_tokens == corpus.num_symbols == 2
    assert corpus.layout.starts.tolist() == [True] + [False] * 10
    assert corpus.layout.predicted.tolist() == list(range(1, 11))


def test_prompt_columns_are_as_documented():
    corpus = hs.Corpus(pair(), layout=PROMPTS, seed=0)
    layout, batch = corpus.layout, corpus[0:64]
    delimiter = 2
    assert corpus.num_tokens == 3
    assert layout.num_columns == 1 + 2 * (3 + 1) + 4
    assert batch.tokens.shape == (64, 13)
    o = [batch.observations[:, t] for t in range(10)]
    d = torch.full((64,), delimiter)
    assert torch.equal(batch.tokens, torch.stack([d, *o[0:3], d, *o[3:6], d, *o[6:10]], 1))
    assert layout.starts.tolist() == [True, False, False, True, False, False, True, False, False, False]
    assert layout.sequence_index.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert layout.position_in_sequence.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3]
    assert layout.columns.tolist() == [1, 2, 3, 5, 6, 7, 9, 10, 11, 12]
    assert layout.predicted.tolist() == list(range(10))
    assert layout.sequence_lengths == (3, 3, 4)


def test_a_prompt_without_demonstrations_is_a_delimiter_and_the_test():
    corpus = hs.Corpus(weather(), layout=hs.Prompts(num_demonstrations=0, test_length=4))
    batch = corpus[0:8]
    assert torch.equal(batch.tokens[:, 0], torch.full((8,), 2))
    assert torch.equal(batch.tokens[:, 1:], batch.observations)


def test_prompts_restart_from_the_initial_law():
    """A cycle that begins in state 2 does so in every sequence of the prompt."""
    states = hs.Corpus(cycle(), layout=PROMPTS)[0:4].states
    assert torch.equal(states, torch.tensor([2, 3, 4, 2, 3, 4, 2, 3, 4, 0]).expand(4, -1))


# ---------------------------------------------------------------------------------------------------------------------
# Refusals: one line that begins with the field


def refused(field, call):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(field), message
    assert "\n" not in message


BAD_INDICES = [
    -1,
    2**40,
    slice(0, None),
    slice(-3, 5),
    slice(0, -1),
    slice(5, 0, -1),
    slice(2**40 - 1, 2**40 + 1),
    slice(0, 2**62),
    0.5,
]
BAD_INDICES += [
    "a",
    True,
    None,
    [0, -1],
    [0.5],
    [[0, 1]],
    [0, 10**30],
    [True, False],
    np.array([0.0]),
    torch.tensor([-2]),
]


LENIENT = [slice(0.5, 3), slice(0, 2.5), slice("a", 3)]


@pytest.mark.parametrize("index", LENIENT, ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_bad_slices_are_refused(index):
    corpus = hs.Corpus(coin(), length=3)
    refused("ind", lambda: corpus[index])


@pytest.mark.parametrize("index", BAD_INDICES, ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_bad_indices_are_refused(index):
    corpus = hs.Corpus(coin(), length=3)
    refused("ind", lambda: corpus[index])


BAD_CORPORA = {
    "length": [
        dict(),
        dict(length=0),
        dict(length=-1),
        dict(length=MAX_COLUMNS + 1),
        dict(length=3, layout=hs.Sequences()),
    ],
    "seed": [dict(length=3, seed=-1), dict(length=3, seed=2**32), dict(length=3, seed=0.5), dict(length=3, seed=True)],
    "stream": [dict(length=3, stream="Corpus"), dict(length=3, stream="")],
}


@pytest.mark.parametrize(
    "field, options", [(field, options) for field, cases in BAD_CORPORA.items() for options in cases]
)
@pytest.mark.usefixtures("unchecked")
def test_bad_corpora_are_refused(field, options):
    refused(field, lambda: hs.Corpus(coin(), **options))


@pytest.mark.parametrize(
    "field, options",
    [
        ("num_demonstrations", dict(num_demonstrations=-1)),
        ("num_demonstrations", dict(num_demonstrations=10**12)),
        ("num_demonstrations", dict(test_length=10**12)),
        ("demonstration_length", dict(demonstration_length=0)),
        ("test_length", dict(test_length=0)),
    ],
)
def test_bad_prompts_are_refused(field, options):
    refused(field, lambda: hs.Prompts(**options))


def test_a_corpus_has_no_end():
    corpus = hs.Corpus(coin(), length=3)
    with pytest.raises(TypeError):
        iter(corpus)
    with pytest.raises(TypeError):
        len(corpus)
