"""Laws of the samples, plain sequences and prompts as documented, and what a corpus refuses."""

import math

import numpy as np
import pytest
import torch

import hmmscope as hs
from dataset_cases import (
    BAD_CORPORA,
    BAD_INDICES,
    FALSE_ALARM,
    LENIENT,
    PROMPTS,
    coin,
    cycle,
    follows,
    pair,
    random_mixture,
    refused,
    weather,
)


def test_components_follow_the_weights_and_choose_the_matrices():
    mixture = random_mixture(20, 6, 3, 4, zeros=0.4)
    weights = mixture.component_weights.numpy()
    assert (weights == 0).any()
    layout = hs.PromptLayout(num_demonstrations=2, demonstration_length=2, test_length=2)
    batch = hs.ProcessDataset(mixture, layout=layout, seed=4)[0:100_000]
    components = batch.components.numpy()
    assert follows(components, weights)
    for m in np.unique(components):
        hmm = mixture[int(m)]
        chosen = batch.states.numpy()[components == m]
        assert follows(chosen[:, layout.reset_mask].ravel(), hmm.initial.numpy())  # each sequence begins anew
        steps = chosen.reshape(-1, 3, 2)
        for state in range(3):
            after = steps[steps[:, :, 0] == state][:, 1]
            if len(after):
                assert follows(after, hmm.transition[state].numpy())


def test_neighbours_are_independent():
    """Two symbols of independent fair coins agree half of the time. Hoeffding, false alarm 1e-9 each; n = 10^5."""
    base = dict(length=100, seed=7, stream="corpus")
    symbols = hs.ProcessDataset(coin(), **base)[0:1001].observations
    others = {
        "next sample": symbols[1:],
        "next seed": hs.ProcessDataset(coin(), **{**base, "seed": 8})[0:1000].observations,
        "other stream": hs.ProcessDataset(coin(), **{**base, "stream": "train"})[0:1000].observations,
        "sample 2^32 on": hs.ProcessDataset(coin(), **base)[2**32 : 2**32 + 1000].observations,
        "next time": torch.roll(symbols[:-1], 1, 1),
        "time after next": torch.roll(symbols[:-1], 2, 1),
    }
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * symbols[:-1].numel()))
    for name, other in others.items():
        agreement = (symbols[:-1] == other).double().mean().item()
        assert abs(agreement - 0.5) < bound, name


def test_deterministic_processes_have_one_path():
    batch = hs.ProcessDataset(cycle(), length=12, seed=9)[0:50]
    expected = (torch.arange(12) + 2) % 5
    assert torch.equal(batch.observations, expected.expand(50, -1))
    assert torch.equal(batch.states, batch.observations)


def test_probability_2_to_the_minus_32_is_a_single_word():
    """The rarest event exists in the table, and the certain rest does not hide a zero."""
    hmm = hs.HMM([1.0], [[1.0]], [[1 - 2**-32, 2**-32, 0.0]])
    batch = hs.ProcessDataset(hmm, length=64)[0:5000]
    assert batch.observations.max() <= 1
    assert batch.observations.sum() <= 3  # 3.2e5 draws: four of probability 2^-32 happen once in 10^18


# ---------------------------------------------------------------------------------------------------------------------
# Layouts


def test_plain_layout_is_the_observations():
    dataset = hs.ProcessDataset(weather(), length=11, seed=0)
    batch = dataset[0:5]
    assert torch.equal(batch.tokens, batch.observations)
    assert dataset.vocab_size == dataset.num_symbols == 2
    assert dataset.layout.reset_mask.tolist() == [True] + [False] * 10
    assert dataset.layout.predicted_observations.tolist() == list(range(1, 11))


def test_prompt_columns_are_as_documented():
    dataset = hs.ProcessDataset(pair(), layout=PROMPTS, seed=0)
    layout, batch = dataset.layout, dataset[0:64]
    delimiter = 2
    assert dataset.vocab_size == 3
    assert layout.context_length == 1 + 2 * (3 + 1) + 4
    assert batch.tokens.shape == (64, 13)
    o = [batch.observations[:, t] for t in range(10)]
    d = torch.full((64,), delimiter)
    assert torch.equal(batch.tokens, torch.stack([d, *o[0:3], d, *o[3:6], d, *o[6:10]], 1))
    assert layout.reset_mask.tolist() == [True, False, False, True, False, False, True, False, False, False]
    assert layout.sequence_index.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert layout.position_in_sequence.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 3]
    assert layout.token_positions.tolist() == [1, 2, 3, 5, 6, 7, 9, 10, 11, 12]
    assert layout.predicted_observations.tolist() == list(range(10))
    assert layout.sequence_lengths == (3, 3, 4)


def test_a_prompt_without_demonstrations_is_a_delimiter_and_the_test():
    dataset = hs.ProcessDataset(weather(), layout=hs.PromptLayout(num_demonstrations=0, test_length=4))
    batch = dataset[0:8]
    assert torch.equal(batch.tokens[:, 0], torch.full((8,), 2))
    assert torch.equal(batch.tokens[:, 1:], batch.observations)


def test_prompts_restart_from_the_initial_law():
    """A cycle that begins in state 2 does so in every sequence of the prompt."""
    states = hs.ProcessDataset(cycle(), layout=PROMPTS)[0:4].states
    assert torch.equal(states, torch.tensor([2, 3, 4, 2, 3, 4, 2, 3, 4, 0]).expand(4, -1))


@pytest.mark.parametrize("index", LENIENT, ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_bad_slices_are_refused(index):
    dataset = hs.ProcessDataset(coin(), length=3)
    refused("ind", lambda: dataset[index])


@pytest.mark.parametrize("index", BAD_INDICES, ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_bad_indices_are_refused(index):
    dataset = hs.ProcessDataset(coin(), length=3)
    refused("ind", lambda: dataset[index])


@pytest.mark.parametrize(
    "field, options", [(field, options) for field, cases in BAD_CORPORA.items() for options in cases]
)
@pytest.mark.usefixtures("unchecked")
def test_bad_corpora_are_refused(field, options):
    refused(field, lambda: hs.ProcessDataset(coin(), **options))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "field, options",
    [
        ("num_demonstrations", dict(num_demonstrations=-1)),
        ("num_demonstrations", dict(num_demonstrations=10**12)),
        ("num_demonstrations", dict(test_length=10**12)),
        ("demonstration_length", dict(demonstration_length=0)),
        ("test_length", dict(test_length=0)),
        ("num_demonstrations", dict(num_demonstrations=1.5)),
        ("demonstration_length", dict(demonstration_length=[4])),
        ("test_length", dict(test_length=True)),
    ],
)
def test_bad_prompts_are_refused(field, options):
    refused(field, lambda: hs.PromptLayout(**options))


def test_a_corpus_has_no_end():
    dataset = hs.ProcessDataset(coin(), length=3)
    with pytest.raises(TypeError):
        iter(dataset)
    with pytest.raises(TypeError):
        len(dataset)
