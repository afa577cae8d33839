"""Fused GPU sampler (Triton), bit-identical to `reference`.

Each 64-bit register holds 8, 4 or 2 steps of a sample. With TRITON_INTERPRET=1 the sampler runs on the CPU.
"""

import functools
import importlib
import importlib.util
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Int64, Tensor
from hmmscope.kernels.alias import column_bits

#: Most samples per program, and samples per thread, whose table reads overlap.
MAX_BLOCK, SAMPLES_A_THREAD = 256, 2

_WIDTHS = ((2**8, torch.uint8), (2**15, torch.int16), (2**31, torch.int32))


def installed() -> bool:
    return importlib.util.find_spec("triton") is not None


class TritonSampler:
    """Path sampler of one process on one device.

    Args:
        tables: Result of `Process.alias_tables`: tables of components, initial states, and transitions and emissions
            (or edges).
        num_states: Number of states S.
        num_symbols: Number of symbols V.
        device: Device of the tables.
        block: Samples per GPU program, a power of two (default: chosen from the number of samples).
    """

    def __init__(
        self,
        tables: tuple[NDArray[np.uint32], ...],
        *,
        num_states: int,
        num_symbols: int,
        device: torch.device,
        block: int | None = None,
    ) -> None:
        component, initial, *rest = (torch.from_numpy(table.view(np.int32)) for table in tables)
        self.device, self.block = device, block
        self.num_components, self.num_states = len(initial), num_states
        self.edges = len(rest) == 1
        self.component = component.to(device)
        if self.edges:
            self.first, self.second = initial.to(device), rest[0].to(device)
        else:
            # The initial distribution is row S of the transition table.
            columns = initial.shape[1]
            self.first = torch.empty(len(initial), num_states + 1, columns, dtype=torch.int32, device=device)
            self.first[:, :num_states], self.first[:, num_states] = rest[0].to(device), initial.to(device)
            self.second = rest[1].to(device)
        self.dtype = next(dtype for size, dtype in _WIDTHS if max(num_states, num_symbols) <= size)
        self._words: dict[bytes, Tensor] = {}

    def __call__(
        self, key: tuple[int, int], samples: Int64[Tensor, " batch"], starts: NDArray[np.bool_]
    ) -> tuple[Int64[Tensor, "batch time"], Int64[Tensor, "batch time"], Int64[Tensor, " batch"]]:
        packed, components = self.packed(key, samples, starts)
        batch, steps = len(samples), 8 // self.dtype.itemsize
        wide = torch.empty(2, batch, packed.shape[1], steps, dtype=torch.int64, device=self.device)
        wide.copy_(packed[..., None].view(self.dtype).transpose(1, 2))
        observations, states = wide.flatten(2)[:, :, : len(starts)].contiguous()
        return observations, states, components.to(torch.int64)

    def packed(
        self, key: tuple[int, int], samples: Int64[Tensor, " batch"], starts: NDArray[np.bool_]
    ) -> tuple[Int64[Tensor, "two word batch"], Tensor]:
        """Return packed observations and states, and components (int32).

        With n = 8 / (bytes per symbol), 64-bit word g holds steps g n .. g n + n - 1, the first in the lowest bits.
        """
        steps = 8 // self.dtype.itemsize
        words = self._start_words(starts, steps)
        block = self.block or _block(len(samples), self.device)
        rows = -(-len(samples) // block) * block
        packed = torch.empty(2, len(words), rows, dtype=torch.int64, device=self.device)
        components = torch.zeros(rows, dtype=torch.int32, device=self.device)
        if packed.numel():
            with _on(self.device):
                _kernels().paths[(rows // block,)](
                    samples.contiguous(),
                    len(samples),
                    rows,
                    words,
                    len(words),
                    self.component,
                    self.first,
                    self.second,
                    components,
                    packed[0],
                    packed[1],
                    _signed(key[0]),
                    _signed(key[1]),
                    NUM_COMPONENTS=self.num_components,
                    NUM_STATES=self.num_states,
                    EDGES=self.edges,
                    COMPONENT_BITS=_bits(self.component),
                    FIRST_BITS=_bits(self.first),
                    SECOND_BITS=_bits(self.second),
                    FIRST_SIZE=self.first[0].numel(),
                    SECOND_SIZE=self.second[0].numel(),
                    STEPS=steps,
                    BLOCK=block,
                    num_warps=max(1, block // (32 * SAMPLES_A_THREAD)),
                )
        return packed[:, :, : len(samples)], components[: len(samples)]

    def _start_words(self, starts: NDArray[np.bool_], steps: int) -> Tensor:
        name = starts.tobytes()
        if name not in self._words:
            padded = np.zeros(-(-len(starts) // steps) * steps, np.int32)
            padded[: len(starts)] = starts
            words = padded.reshape(-1, steps) @ (1 << np.arange(steps, dtype=np.int32))
            self._words.clear()
            self._words[name] = torch.from_numpy(words.astype(np.int32)).to(self.device)
        return self._words[name]


def _bits(table: Tensor) -> int:
    return column_bits(table.shape[-1])


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def _on(device: torch.device) -> torch.cuda.device:
    return torch.cuda.device(device if device.type == "cuda" else -1)


def _block(num_samples: int, device: torch.device) -> int:
    if device.type != "cuda":
        return MAX_BLOCK
    programs = 4 * torch.cuda.get_device_properties(device).multi_processor_count
    return min(MAX_BLOCK, max(32, 1 << (num_samples // programs).bit_length()))


def _make_parts() -> None:
    global triton, tl, philox_block, draw_outcome, one_step
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")

    @triton.jit
    def philox_block(block, kind, low, high, key0, key1):  # type: ignore[no-untyped-def]
        c0, c1, c2, c3 = block, kind, low, high
        for _ in tl.static_range(10):
            high_0, low_0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
            high_1, low_1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
            c0, c1, c2, c3 = high_1 ^ c1 ^ key0, low_1, high_0 ^ c3 ^ key1, low_0
            key0, key1 = key0 + 0x9E3779B9, key1 + 0xBB67AE85
        return c0, c1, c2, c3

    @triton.jit
    def draw_outcome(table, row, word, BITS: tl.constexpr, wanted=None):  # type: ignore[no-untyped-def]
        column = word >> (32 - BITS)
        place = ((row << BITS) | column).to(tl.int64)
        if wanted is None:
            entry = tl.load(table + place).to(tl.uint32, bitcast=True)
        else:
            entry = tl.load(table + place, mask=wanted, other=0).to(tl.uint32, bitcast=True)
        remainder = word & ((1 << (32 - BITS)) - 1)
        return tl.where(remainder < (entry >> BITS), column, entry & ((1 << BITS) - 1))

    @triton.jit
    def one_step(  # type: ignore[no-untyped-def]
        begins,
        state,
        state_word,
        symbol_word,
        first,
        second,
        NUM_STATES: tl.constexpr,
        EDGES: tl.constexpr,
        FIRST_BITS: tl.constexpr,
        SECOND_BITS: tl.constexpr,
    ):
        anew = state * 0 + begins.to(tl.uint32) > 0
        if EDGES:
            state = tl.where(anew, draw_outcome(first, state * 0, state_word, FIRST_BITS, anew), state)
            outcome = draw_outcome(second, state, symbol_word, SECOND_BITS)
            return outcome % NUM_STATES, outcome // NUM_STATES
        else:
            state = draw_outcome(first, tl.where(anew, NUM_STATES, state), state_word, FIRST_BITS)
            return state, draw_outcome(second, state, symbol_word, SECOND_BITS)


@functools.cache
def _kernels() -> SimpleNamespace:
    _make_parts()

    @triton.jit(do_not_specialize=["num_samples", "num_words", "key0", "key1"])
    def paths(  # type: ignore[no-untyped-def]
        samples,
        num_samples,
        num_rows,
        words,
        num_words,
        component_table,
        first_tables,
        second_tables,
        components,
        observations,
        states,
        key0,
        key1,
        NUM_COMPONENTS: tl.constexpr,
        NUM_STATES: tl.constexpr,
        EDGES: tl.constexpr,
        COMPONENT_BITS: tl.constexpr,
        FIRST_BITS: tl.constexpr,
        SECOND_BITS: tl.constexpr,
        FIRST_SIZE: tl.constexpr,
        SECOND_SIZE: tl.constexpr,
        STEPS: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = row < num_samples
        sample = tl.load(samples + row, mask=inside, other=0)
        low, high = sample.to(tl.uint32), (sample >> 32).to(tl.uint32)
        key0, key1 = key0.to(tl.uint32, bitcast=True), key1.to(tl.uint32, bitcast=True)
        block, kind, state = key0 * 0, key0 * 0, low * 0  # path words have kind 0, component words kind 1
        if NUM_COMPONENTS > 1:
            word, _, _, _ = philox_block(block, kind + 1, low, high, key0, key1)
            component = draw_outcome(component_table, state, word, COMPONENT_BITS)
            tl.store(components + row, component.to(tl.int32))
            first_tables += component.to(tl.int64) * FIRST_SIZE
            second_tables += component.to(tl.int64) * SECOND_SIZE
        place = row
        for group in range(num_words):
            begins = tl.load(words + group)
            packed_states, packed_symbols = row * 0, row * 0
            for pair in tl.static_range(STEPS // 2):
                word0, word1, word2, word3 = philox_block(block, kind, low, high, key0, key1)
                block += 1
                state, symbol = one_step(
                    (begins >> (2 * pair)) & 1, state, word0, word1, first_tables, second_tables,
                    NUM_STATES, EDGES, FIRST_BITS, SECOND_BITS,
                )  # fmt: skip
                packed_states |= state.to(tl.int64) << (2 * pair * (64 // STEPS))
                packed_symbols |= symbol.to(tl.int64) << (2 * pair * (64 // STEPS))
                state, symbol = one_step(
                    (begins >> (2 * pair + 1)) & 1, state, word2, word3, first_tables, second_tables,
                    NUM_STATES, EDGES, FIRST_BITS, SECOND_BITS,
                )  # fmt: skip
                packed_states |= state.to(tl.int64) << ((2 * pair + 1) * (64 // STEPS))
                packed_symbols |= symbol.to(tl.int64) << ((2 * pair + 1) * (64 // STEPS))
            tl.store(states + place, packed_states)
            tl.store(observations + place, packed_symbols)
            place += num_rows

    return SimpleNamespace(paths=paths)
