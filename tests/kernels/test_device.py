"""The sampler in torch operations gives the bits of the plain one, on the processor and, where there is one, on a GPU."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.kernels.device_samplers import philox_torch, sample_components_torch, sample_paths_torch
from hmmscope.kernels.philox import KIND_PATH, philox_reference
from hmmscope.seeds import philox_key

SAMPLES = np.array([0, 1, 2, 77, 5, 5, 2**32 - 1, 2**32, 2**32 + 1, 2**40 - 1, *range(100, 400)])


@pytest.mark.parametrize("key", [(0, 0), (2**32 - 1, 2**32 - 1), (0xA4093822, 17)])
def test_philox_words(key):
    found = torch.stack(philox_torch(12345, KIND_PATH, torch.from_numpy(SAMPLES), key), 1).tolist()
    for sample, words in zip(SAMPLES.tolist(), found, strict=True):
        assert tuple(words) == philox_reference((12345, KIND_PATH, sample & 0xFFFFFFFF, sample >> 32), key)


def same_bits(device):
    for name, fields in (
        ("random-hmm", {"num_states": 1, "num_symbols": 1}),
        ("random-hmm", {"num_states": 7, "num_symbols": 3}),
        ("random-mixture", {"num_components": 5, "num_states": 32, "num_symbols": 8}),
    ):
        process = hs.make_process(name, **fields)
        starts = np.arange(33) % 11 == 0
        expected = process.sample_paths(SAMPLES, starts, 3, "train")
        tables = [torch.from_numpy(table.astype(np.int64)).to(device) for table in process.alias_tables]
        key, samples = philox_key(3, "train"), torch.from_numpy(SAMPLES).to(device)
        components = sample_components_torch(key, samples, tables[0])
        found = sample_paths_torch(key, samples, components, torch.from_numpy(starts), *tables[1:])
        assert torch.equal(found[0].cpu(), expected.observations)
        assert torch.equal(found[1].cpu(), expected.states)
        if expected.components is not None:
            assert torch.equal(components.cpu(), expected.components)


def test_same_bits_on_the_processor():
    same_bits("cpu")


@pytest.mark.gpu
def test_same_bits_on_a_gpu():
    same_bits("cuda")
