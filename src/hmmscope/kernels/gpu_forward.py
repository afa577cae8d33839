"""Forward recursion of many components in one Triton kernel.

Tensor cores keep 11 bits of a factor. For nearly float32 accuracy, factors are split into 11-bit heads and the rest:

    x @ y = head(x) @ head(y) + rest(x) @ head(y) + head(x) @ rest(y) + an error below 2^-19 of the product
"""

import functools
import importlib
from types import SimpleNamespace

import torch

from hmmscope.axes import Bool, Float, Int64, Tensor

#: Most states and symbols that fit in shared memory.
MAX_STATES, MAX_SYMBOLS = 128, 128
_SEQUENCES = 64  # per program


def fits(num_states: int, num_symbols: int, dtype: torch.dtype) -> bool:
    return dtype == torch.float32 and num_states <= MAX_STATES and num_symbols <= MAX_SYMBOLS


def forward_norms(
    rows: tuple[Tensor, ...],
    observations_BT: Int64[Tensor, "batch time"],
    starts_T: Bool[Tensor, " time"],
    floor: float,
    *,
    predictions: bool,
) -> tuple[Float[Tensor, "time component batch"], Bool[Tensor, "component batch"], Tensor]:
    """Return P(o_t | past), a mask of underflow risk and, if requested, predictions (time, component, batch, symbol).

    Args:
        rows: Initial (component, state), transition and emission probabilities, float32.
        observations_BT: Symbols, shared by all components.
        starts_T: True where a sequence starts.
        floor: Sequences with a smaller P(o_t | past) are marked as an underflow risk.
        predictions: Whether to return predictions.
    """
    initial_MS, transition_MSS, emission_MSV = rows
    device = observations_BT.device
    (batch, time), (components, states, symbols) = observations_BT.shape, emission_MSV.shape
    size, width = (max(16, 1 << (number - 1).bit_length()) for number in (states, symbols))
    more, wider = size - states, width - symbols
    pad = torch.nn.functional.pad
    norms_TMB = initial_MS.new_empty(time, components, batch)
    predicted_TMBV = initial_MS.new_empty(time if predictions else 0, components, batch, symbols)
    doubtful_MB = torch.zeros(components, batch, dtype=torch.int32, device=device)
    if norms_TMB.numel():
        grid = (-(-batch // _SEQUENCES), components)
        with torch.cuda.device(device if device.type == "cuda" else -1):
            _kernels().forward[grid](
                observations_BT.T.to(torch.int32).contiguous(),
                starts_T.to(device=device, dtype=torch.int32),
                pad(initial_MS, (0, more)),
                *split(pad(transition_MSS, (0, more, 0, more))),
                *split(pad(emission_MSV, (0, wider, 0, more))),
                pad(emission_MSV, (0, wider, 0, more)).transpose(1, 2).contiguous(),
                norms_TMB,
                predicted_TMBV,
                doubtful_MB,
                components,
                batch,
                time,
                floor,
                STATES=size,
                SYMBOLS=symbols,
                WIDTH=width,
                PREDICT=predictions,
                BLOCK=_SEQUENCES,
                num_warps=4,
                num_stages=1,
            )
    return norms_TMB, doubtful_MB > 0, predicted_TMBV


def split(values: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
    head = (values.contiguous().view(torch.int32) & -0x2000).view(torch.float32)
    return head, values - head


@functools.cache
def _kernels() -> SimpleNamespace:
    global triton, tl, product
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")

    @triton.jit
    def product(left, right_head, right_rest):  # type: ignore[no-untyped-def]
        head = (left.to(tl.int32, bitcast=True) & -0x2000).to(tl.float32, bitcast=True)
        rest = left - head
        small = tl.dot(rest, right_head, input_precision="tf32")
        small = tl.dot(head, right_rest, small, input_precision="tf32")
        return tl.dot(head, right_head, small, input_precision="tf32")

    @triton.jit(do_not_specialize=["components", "batch", "time"])
    def forward(  # type: ignore[no-untyped-def]
        symbols,
        starts,
        initial,
        transition_head,
        transition_rest,
        emission_head,
        emission_rest,
        emission_rows,
        norms,
        predicted,
        doubtful,
        components,
        batch,
        time,
        floor,
        STATES: tl.constexpr,
        SYMBOLS: tl.constexpr,
        WIDTH: tl.constexpr,
        PREDICT: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        m = tl.program_id(1).to(tl.int64)
        b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = b < batch
        i, v = tl.arange(0, STATES), tl.arange(0, WIDTH)
        square = m * STATES * STATES + i[:, None] * STATES + i[None, :]
        to_state_head, to_state_rest = tl.load(transition_head + square), tl.load(transition_rest + square)
        tall = m * STATES * WIDTH + i[:, None] * WIDTH + v[None, :]
        to_symbol_head, to_symbol_rest = tl.load(emission_head + tall), tl.load(emission_rest + tall)
        start = tl.load(initial + m * STATES + i)[None, :]
        belief = tl.zeros([BLOCK, STATES], tl.float32)
        lost = tl.zeros([BLOCK], tl.int32)
        place, seen = m * batch + b, b
        for t in range(time):
            following = product(belief, to_state_head, to_state_rest)
            begins = tl.load(starts + t)
            following = tl.where(begins > 0, start, following)
            if PREDICT:
                ahead = product(following, to_symbol_head, to_symbol_rest)
                wanted = inside[:, None] & (v[None, :] < SYMBOLS)
                tl.store(predicted + place[:, None] * SYMBOLS + v[None, :], ahead, mask=wanted)
            symbol = tl.load(symbols + seen, mask=inside, other=0)
            likelihood = tl.load(emission_rows + m * STATES * WIDTH + symbol[:, None] * STATES + i[None, :])
            joint = following * likelihood
            norm = tl.sum(joint, 1)
            tl.store(norms + place, norm, mask=inside)
            below = norm < floor
            lost = tl.where(below, 1, lost)
            belief = (
                joint * (1.0 / tl.where(below, float("inf"), norm))[:, None]
            )  # an underflowing sequence continues as zeros
            place += components.to(tl.int64) * batch
            seen += batch
        tl.store(doubtful + m * batch + b, lost, mask=inside)

    return SimpleNamespace(forward=forward)
