"""The sampler in torch operations: the same bits as `reference` on whatever device the tables are."""

import torch

from hmmscope.axes import Bool, Int64, Tensor
from hmmscope.kernels.philox import (
    KIND_COMPONENT,
    KIND_PATH,
    MULTIPLIER_0,
    MULTIPLIER_1,
    ROUNDS,
    WEYL_0,
    WEYL_1,
)

_LOW = 0xFFFFFFFF


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low words of a * b, by 16-bit limbs of b: every product stays below 2^48, far from the sign."""
    lower = a * (b & 0xFFFF)
    upper = (lower >> 16) + a * (b >> 16)
    return upper >> 16, ((upper << 16) | (lower & 0xFFFF)) & _LOW


def philox_torch(
    block: int, kind: int, samples: Int64[Tensor, "batch"], key: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words (batch,) of counter (block, kind, sample mod 2^32, sample div 2^32), as int64."""
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
    key: tuple[int, int], samples: Int64[Tensor, "batch"], table: Int64[Tensor, "column"]
) -> Int64[Tensor, "batch"]:
    """As `sample_components_reference`."""
    return _draw(table, (), philox_torch(0, KIND_COMPONENT, samples, key)[0])


def sample_paths_torch(
    key: tuple[int, int],
    samples: Int64[Tensor, "batch"],
    components: Int64[Tensor, "batch"],
    starts: Bool[Tensor, "time"],
    initial: Int64[Tensor, "component column"],
    transition: Int64[Tensor, "component state column"],
    emission: Int64[Tensor, "component state column"],
) -> tuple[Int64[Tensor, "batch time"], Int64[Tensor, "batch time"]]:
    """As `sample_paths_reference`, with tables as int64 tensors on the device of `samples`."""
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
        else:
            state = _draw(transition, (components, state), state_word)
        states[:, t] = state
        observations[:, t] = _draw(emission, (components, state), symbol_word)
    return observations, states
