"""Samplers by torch operations, or by Triton on a GPU, bit-identical to `reference`."""

import functools
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Int64, Tensor
from hmmscope.kernels.philox import (
    KIND_COMPONENT,
    KIND_PATH,
    MULTIPLIER_0,
    MULTIPLIER_1,
    ROUNDS,
    WEYL_0,
    WEYL_1,
    philox_reference,
)

_LOW = 0xFFFFFFFF


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    lower = a * (b & 0xFFFF)
    upper = (lower >> 16) + a * (b >> 16)
    return upper >> 16, ((upper << 16) | (lower & 0xFFFF)) & _LOW


def philox_torch(
    block: int, kind: int, samples: Int64[Tensor, " batch"], key: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    c0, c1 = torch.full_like(samples, block), torch.full_like(samples, kind)
    c2, c3 = samples & _LOW, samples >> 32
    k0, k1 = key
    for _ in range(ROUNDS):
        high_0, low_0 = _multiply(c0, MULTIPLIER_0)
        high_1, low_1 = _multiply(c2, MULTIPLIER_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ k0, low_1, high_0 ^ c3 ^ k1, low_0
        k0, k1 = (k0 + WEYL_0) & _LOW, (k1 + WEYL_1) & _LOW
    return c0, c1, c2, c3


def _draw(table: Int64[Tensor, "*row column"], rows: tuple[Tensor, ...], words: Tensor) -> Tensor:
    bits = table.shape[-1].bit_length() - 1
    column, remainder = words >> (32 - bits), words & ((1 << (32 - bits)) - 1)
    entry = table[(*rows, column)]
    return torch.where(remainder < entry >> bits, column, entry & ((1 << bits) - 1))


def sample_components_torch(
    key: tuple[int, int], samples: Int64[Tensor, " batch"], table: Int64[Tensor, " column"]
) -> Int64[Tensor, " batch"]:
    return _draw(table, (), philox_torch(0, KIND_COMPONENT, samples, key)[0])


def sample_paths_torch(
    key: tuple[int, int],
    samples: Int64[Tensor, " batch"],
    components: Int64[Tensor, " batch"],
    starts: Bool[Tensor, " time"],
    initial: Int64[Tensor, "component column"],
    *tables: Int64[Tensor, "component state column"],
    num_states: int = 0,
) -> tuple[Int64[Tensor, "batch time"], Int64[Tensor, "batch time"]]:
    """Draw as in `reference`; `tables` are transition and emission, or edges alone."""
    observations = torch.empty(len(samples), len(starts), dtype=torch.int64, device=samples.device)
    states = torch.empty_like(observations)
    words: tuple[Tensor, ...] = ()
    state = torch.zeros_like(samples)
    for t, restart in enumerate(starts.tolist()):
        if t % 2 == 0:
            words = philox_torch(t // 2, KIND_PATH, samples, key)
        state_word, symbol_word = words[2 * (t % 2)], words[2 * (t % 2) + 1]
        if restart:
            state = _draw(initial, (components,), state_word)
        elif len(tables) == 2:
            state = _draw(tables[0], (components, state), state_word)
        outcome = _draw(tables[-1], (components, state), symbol_word)
        if len(tables) == 1:
            outcome, state = outcome // num_states, outcome % num_states
        observations[:, t], states[:, t] = outcome, state
    return observations, states


#: (key, sample numbers on the device (batch,), starts (time,)) -> observations, states (batch, time), components (batch,)
DeviceSampler = Callable[[tuple[int, int], Tensor, NDArray[np.bool_]], tuple[Tensor, Tensor, Tensor]]


class TorchSampler:
    """Sampler by torch operations, with the arguments of `TritonSampler`."""

    def __init__(
        self, tables: tuple[NDArray[np.uint32], ...], *, num_states: int, num_symbols: int, device: torch.device
    ) -> None:
        component, *rest = (torch.from_numpy(table.astype(np.int64)).to(device) for table in tables)
        self.component, self.tables, self.num_states = component, rest, num_states

    def __call__(
        self, key: tuple[int, int], samples: Int64[Tensor, " batch"], starts: NDArray[np.bool_]
    ) -> tuple[Int64[Tensor, "batch time"], Int64[Tensor, "batch time"], Int64[Tensor, " batch"]]:
        components = sample_components_torch(key, samples, self.component)
        mask = torch.from_numpy(starts)
        paths = sample_paths_torch(key, samples, components, mask, *self.tables, num_states=self.num_states)
        return *paths, components


def device_sampler(
    tables: tuple[NDArray[np.uint32], ...], *, num_states: int, num_symbols: int, device: torch.device
) -> DeviceSampler:
    if device.type == "cuda" and fused_works(device):
        from hmmscope.kernels.gpu import TritonSampler

        return TritonSampler(tables, num_states=num_states, num_symbols=num_symbols, device=device)
    return TorchSampler(tables, num_states=num_states, num_symbols=num_symbols, device=device)


@functools.cache
def fused_works(device: torch.device) -> bool:
    """Return whether the Triton sampler runs; warn if it fails, and raise an error if its samples are wrong."""
    from hmmscope.kernels import gpu

    if not gpu.installed():
        return False
    single = np.zeros((1, 2), np.uint32)  # one state: column 0 draws 0 below no threshold, so always the alias, 0
    fair = np.array([[[0, 1]]], np.uint32)  # both columns are their own: the first bit of the word is the symbol
    try:
        sampler = gpu.TritonSampler((single[0], single, single[None], fair), num_states=1, num_symbols=2, device=device)
        found = sampler((1, 2), torch.arange(2, device=device) + 2**32, np.array([True, False]))[0].tolist()
    except Exception as reason:  # a missing compiler, an unsuitable driver: each fails differently
        warnings.warn(f"the fused sampler does not run on {device} ({reason}); using torch operations", stacklevel=2)
        return False
    words = [philox_reference((0, KIND_PATH, sample, 1), (1, 2)) for sample in range(2)]
    if found != [[word[1] >> 31, word[3] >> 31] for word in words]:
        raise RuntimeError(f"the fused sampler draws wrong samples on {device}: {found}; use the CPU")
    return True
