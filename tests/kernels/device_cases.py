"""What the tests of devices share: processes of every form, awkward sample numbers, starts, and the plain bits."""

import functools

import numpy as np
import torch

import hmmscope as hs
from hmmscope.kernels.reference import sample_paths_reference
from hmmscope.processes.params import StateEmissionParams
from reference_samplers import sample_components_reference, sample_edges_reference

SAMPLES = np.array([0, 1, 2, 77, 5, 5, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40 - 1, *range(100, 130)])

STARTS = {"one": np.arange(1) == 0, "plain": np.arange(13) == 0, "prompts": np.isin(np.arange(33), [0, 5, 6, 17, 32])}


def edge_mixture():
    """A mixture whose transitions emit, with an initial law that is not the stationary one."""
    laws = [hs.make_process("mess3"), hs.make_process("mess3", switch=0.3)]
    initial = ([0.7, 0.2, 0.1], [0.0, 0.0, 1.0])
    return hs.Mixture([0.25, 0.75], [hs.LabelledHMM(i, law.labelled) for i, law in zip(initial, laws, strict=True)])


PROCESSES = {
    "1x1": lambda: hs.make_process("random-hmm", num_states=1, num_symbols=1),
    "7x3": lambda: hs.make_process("random-hmm", num_states=7, num_symbols=3),
    "300x4": lambda: hs.make_process("random-hmm", num_states=300, num_symbols=4),
    "1x40000": lambda: hs.HMM([1.0], [[1.0]], np.full((1, 40000), 1 / 40000)),
    "random-mixture": lambda: hs.make_process("random-mixture", num_components=5, num_states=32, num_symbols=8),
    "cyclic-hard": lambda: hs.make_process("cyclic-hard"),
    "mess3": lambda: hs.make_process("mess3"),
    "edge-mixture": edge_mixture,
}


@functools.cache
def process_of(name):
    return PROCESSES[name]()


@functools.cache
def plain_paths(name, starts, key):
    """Observations, states and components by the plain samplers."""
    process = process_of(name)
    component, *tables = process.alias_tables
    components = sample_components_reference(key, SAMPLES, component)
    if isinstance(process.params, StateEmissionParams):
        paths = sample_paths_reference(key, SAMPLES, components, STARTS[starts], *tables)
    else:
        paths = sample_edges_reference(key, SAMPLES, components, STARTS[starts], *tables, process.num_states)
    return *paths, components


def same_as_plain(sampler, name, starts, key, device="cpu"):
    """A device sampler gives the plain sampler's bits, in int64, contiguous."""
    found = sampler(key, torch.from_numpy(SAMPLES).to(device), STARTS[starts])
    for part, exact in zip(found, plain_paths(name, starts, key), strict=True):
        assert part.dtype == torch.int64
        assert part.is_contiguous()
        assert part.device == torch.device(device)
        np.testing.assert_array_equal(part.cpu().numpy(), exact)


def sizes_of(process):
    return {"num_states": process.num_states, "num_symbols": process.num_symbols}
