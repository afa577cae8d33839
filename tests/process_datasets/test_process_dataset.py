"""The corpus is a function of (process, layout, seed): the same bits by every road, pinned, and of the right law."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from dataset_cases import (
    GOLDEN,
    LAYOUTS,
    PROCESSES,
    SAMPLES,
    follows,
    numpy_components,
    numpy_paths,
    pair,
    process,  # noqa: F401 - fixtures
    same_batch,
    same_paths,
    tables_of,
    weather,
)
from hmmscope.kernels import cpu
from hmmscope.kernels.reference import sample_paths_reference
from hmmscope.seeds import philox_key
from reference_samplers import sample_components_reference


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_sampler_equals_plain(process, layout):
    """About 10^4 tokens over all cases; the NumPy sampler too, which then stands in for the plain one."""
    starts = LAYOUTS[layout].reset_mask
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
    starts, key = LAYOUTS[layout].reset_mask, philox_key(11, "corpus")
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


@pytest.mark.long
def test_narrow_integers_hold_the_same_samples():
    process = PROCESSES["17x16"]()
    samples, starts = np.arange(20), LAYOUTS["odd"].reset_mask
    wide = cpu.sample_paths((1, 16), samples, np.zeros(20, np.int64), starts, *tables_of(process))
    narrow = cpu.sample_paths((1, 16), samples, np.zeros(20, np.int64), starts, *tables_of(process), dtype=np.int32)
    assert narrow[0].dtype == np.int32
    same_paths(narrow, wide)


@pytest.mark.parametrize("name", ["5x3", "mixture-3x4x3"])
@pytest.mark.parametrize("layout", ["odd", "prompts"])
def test_any_part_equals_the_whole(name, layout):
    dataset = hs.ProcessDataset(PROCESSES[name](), seed=3, layout=LAYOUTS[layout])
    whole = dataset[0:200]
    assert (whole.components is None) == (name == "5x3")
    for part in (slice(0, 1), slice(7, 8), slice(13, 200), slice(None, 50), slice(3, 199, 7), slice(5, 5), slice(9, 2)):
        same_batch(dataset[part], whole, list(range(200))[part])
    reverse = list(range(199, -1, -1))
    same_batch(dataset[reverse], whole, reverse)
    rng = np.random.default_rng(0)
    for _ in range(20):
        chosen = rng.integers(0, 200, rng.integers(1, 30))
        same_batch(dataset[chosen], whole, chosen)
        same_batch(dataset[torch.from_numpy(chosen)], whole, chosen)
        same_batch(dataset[chosen.tolist()], whole, chosen)
    same_batch(dataset[17], whole, [17])
    same_batch(dataset[[]], whole, [])


@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_number_of_threads_changes_nothing(num_threads):
    dataset = hs.ProcessDataset(PROCESSES["mixture-50x9x7"](), length=33, seed=1)
    expected = dataset[0:501]
    torch.set_num_threads(num_threads)
    try:
        same_batch(dataset[0:501], expected, list(range(501)))
    finally:
        torch.set_num_threads(1)


def test_a_longer_sequence_begins_with_the_shorter():
    process = PROCESSES["5x3"]()
    short, long = (
        hs.ProcessDataset(process, length=5, seed=2)[0:20],
        hs.ProcessDataset(process, length=40, seed=2)[0:20],
    )
    assert torch.equal(long.observations[:, :5], short.observations)
    assert torch.equal(long.states[:, :5], short.states)


def test_the_first_and_the_last_sample_exist():
    dataset = hs.ProcessDataset(PROCESSES["5x3"](), length=8)
    last = dataset[2**40 - 1 : 2**40]
    assert last.tokens.shape == (1, 8)
    assert torch.equal(dataset[2**40 - 1].tokens, last.tokens)
    assert not torch.equal(last.tokens, dataset[2**32 - 1].tokens)


@pytest.mark.parametrize("name", GOLDEN)
def test_pinned_bits(name):
    make, tokens, digest = GOLDEN[name]
    dataset = make()
    assert ["".join(map(str, row)) for row in dataset[0:3].tokens.tolist()] == tokens.split()
    assert dataset.digest(100) == digest


def test_pinned_process_digest():
    assert weather().digest == "c1514ad455a35b0f8bbbdbf18ea497a4eff1c2bcebfa94b1f37b4d4bafb196d4"


def test_digest_depends_on_everything():
    base = hs.ProcessDataset(weather(), length=9, seed=1)
    emission = weather().emission + torch.tensor([[0, 0], [0, 0], [2**-32, -(2**-32)]], dtype=torch.float64)
    one_unit_off = hs.HMM(weather().initial, weather().transition, emission)
    others = [
        hs.ProcessDataset(weather(), length=10, seed=1),
        hs.ProcessDataset(weather(), length=9, seed=2),
        hs.ProcessDataset(weather(), length=9, seed=1, stream="train"),
        hs.ProcessDataset(one_unit_off, length=9, seed=1),
        hs.ProcessDataset(weather(), layout=hs.PromptLayout(num_demonstrations=0, test_length=9), seed=1),
        hs.ProcessDataset(pair(), length=9, seed=1),
        hs.ProcessDataset(hs.HMM([0.25, 0.5, 0.25], weather().transition, weather().emission), length=9, seed=1),
    ]
    digests = [dataset.digest(10) for dataset in others]
    assert base.digest(10) not in digests
    assert base.digest(11) != base.digest(10)
    assert base.digest(10) == hs.ProcessDataset(weather(), length=9, seed=1).digest(10)


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
    initial, transition, emission = (matrix.numpy() for matrix in (hmm.initial, hmm.transition, hmm.emission))
    batch = hs.ProcessDataset(hmm, length=8, seed=0)[0:100_000]
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
