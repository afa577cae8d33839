"""Likelihoods and mixture predictions in torch operations, for GPUs.

Results mark pairs (component, sequence) with underflow risk: a tiny belief in float64, or a tiny P(o_t | past) in
float32. The caller recomputes these pairs.
"""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.ragged import silent
from hmmscope.kernels import gpu, gpu_forward
from hmmscope.processes.params import HMMParams
from hmmscope.system_info import free_on

#: A smaller P(o_t | past) marks underflow risk; float64 checks belief entries instead.
FLOORS = {torch.float64: 0.0, torch.float32: 1e-25}

#: Belief entries below RISKY may underflow before the next check, EVERY steps later.
RISKY, EVERY = 1e-100, 8

#: Size of a chunk of gathered step matrices.
CHUNK_BYTES = 2**26

#: Device types that run the fused kernel.
KINDS = ("cuda",)


@contextmanager
def full_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def forward_logs(
    rows: tuple[Tensor, ...],
    observations_BT: Int64[Tensor, "batch time"],
    starts_T: Bool[Tensor, " time"],
    *,
    predictions: bool = False,
) -> tuple[Float64[Tensor, "time component batch"], Bool[Tensor, "component batch"], Tensor]:
    initial_MS, _, emission_MSV = rows
    if not fused_works(initial_MS.device, initial_MS.dtype, *emission_MSV.shape[1:]):
        return forward_logs_torch(rows, observations_BT, starts_T, predictions=predictions)
    norms_TMB, doubtful_MB, predicted_TMBV = gpu_forward.forward_norms(
        rows, observations_BT, starts_T, FLOORS[torch.float32], predictions=predictions
    )
    return norms_TMB.double().log_(), doubtful_MB, predicted_TMBV


@functools.cache
def fused_works(device: torch.device, dtype: torch.dtype, states: int, symbols: int) -> bool:
    """Return whether the fused kernel runs on a device; raise RuntimeError if its results are wrong."""
    if device.type not in KINDS or not gpu.installed() or not gpu_forward.fits(states, symbols, dtype):
        return False
    parts = [torch.arange(1.0, 1 + size, device=device) for size in (states, states**2, states * symbols)]
    shapes = ((1, states), (1, states, states), (1, states, symbols))
    rows = tuple(part.sin().abs().view(shape) for part, shape in zip(parts, shapes, strict=True))
    rows = tuple(part / part.sum(-1, keepdim=True) for part in rows)
    observations_BT = (torch.arange(12, device=device) % symbols).view(2, 6)
    starts_T = torch.arange(6) % 4 == 0
    try:
        norms, _, _ = gpu_forward.forward_norms(
            rows, observations_BT, starts_T, FLOORS[torch.float32], predictions=True
        )
        found = norms.double().log_().cpu()
    except Exception as reason:  # each cause, such as too little shared memory or no compiler, has its own error
        warnings.warn(f"fused filter: cannot run on {device} ({reason}); using slower torch operations", stacklevel=2)
        return False
    exact, _, _ = forward_logs_torch(tuple(part.double() for part in rows), observations_BT, starts_T)
    if not torch.allclose(found, exact.cpu(), rtol=0, atol=1e-4):
        raise RuntimeError(
            f"fused filter: results on {device} are wrong by {(found - exact.cpu()).abs().max()} nats; use the CPU"
        )
    return True


def forward_logs_torch(
    rows: tuple[Tensor, ...],
    observations_BT: Int64[Tensor, "batch time"],
    starts_T: Bool[Tensor, " time"],
    *,
    predictions: bool = False,
) -> tuple[Float64[Tensor, "time component batch"], Bool[Tensor, "component batch"], Tensor]:
    """Compute log P(o_t | past), a mask of underflow risk, and predictions (time, component, batch, symbol)."""
    initial_MS, transition_MSS, emission_MSV = rows
    emission_MVS = emission_MSV.transpose(1, 2).contiguous()
    (batch, time), (components, states, symbols) = observations_BT.shape, emission_MSV.shape
    floor, tiny = FLOORS[initial_MS.dtype], torch.finfo(initial_MS.dtype).tiny
    norms_TMB = initial_MS.new_empty(time, components, batch)
    predicted_TMBV = initial_MS.new_empty(time if predictions else 0, components, batch, symbols)
    doubtful_MB = torch.zeros(components, batch, dtype=torch.bool, device=initial_MS.device)
    belief_MBS, following_MBS = initial_MS.new_empty(2, components, batch, states)
    likelihood_MBS = torch.empty_like(belief_MBS)
    start_MBS = initial_MS[:, None].expand_as(belief_MBS)
    for t, begins in enumerate(starts_T.tolist()):
        if begins:
            following_MBS.copy_(start_MBS)
        else:
            torch.bmm(belief_MBS, transition_MSS, out=following_MBS)
        if predictions:
            torch.bmm(following_MBS, emission_MSV, out=predicted_TMBV[t])
        torch.index_select(emission_MVS, 1, observations_BT[:, t], out=likelihood_MBS)
        torch.mul(following_MBS, likelihood_MBS, out=belief_MBS)
        norm_MB = torch.sum(belief_MBS, -1, out=norms_TMB[t])
        belief_MBS /= norm_MB.masked_fill(norm_MB < tiny, torch.inf)[..., None]  # a lost belief continues as zeros
        if not floor and t % EVERY == EVERY - 1:
            doubtful_MB |= ((belief_MBS > 0) & (belief_MBS < RISKY)).any(-1)
    doubtful_MB |= (norms_TMB < floor).any(0)
    return norms_TMB.double().log_(), doubtful_MB, predicted_TMBV


def log_likelihood_there(
    law: HMMParams, observations_BT: Int64[Tensor, "batch time"], starts_T: Bool[Tensor, " time"], dtype: torch.dtype
) -> tuple[Float64[Tensor, " batch"], Bool[Tensor, " batch"]]:
    lean = dtype == torch.float64 or not law.states_emit
    if lean and _stays_representable(law):
        return _log_likelihood_64(law, observations_BT, starts_T)
    if not law.states_emit:
        total_B = underflow_safe_log_likelihood(law, observations_BT, starts_T)
        return total_B, torch.zeros_like(total_B, dtype=torch.bool)
    with full_precision():
        logs_TMB, doubtful_MB, _ = forward_logs(_rows(law, dtype), observations_BT, starts_T)
    return logs_TMB[:, 0].sum(0), doubtful_MB[0]


def underflow_safe_log_likelihood(
    law: HMMParams, observations_BT: Int64[Tensor, "batch time"], starts_T: Bool[Tensor, " time"]
) -> Float64[Tensor, " batch"]:
    return torch.stack([step.log_norm[0] for step in forward_steps(law, observations_BT[None], starts_T)]).sum(0)


def _stays_representable(params: HMMParams) -> bool:
    first, step, emission = (part.where(part > 0, 1.0).flatten() for part in params.tables(0))
    factor = emission.amin() if params.states_emit else 1.0
    return float(torch.minimum(first.amin(), step.amin() * factor)) > (1e-300 / RISKY) ** (1 / EVERY)


def _log_likelihood_64(
    params: HMMParams, observations_BT: Int64[Tensor, "batch time"], starts_T: Bool[Tensor, " time"]
) -> tuple[Float64[Tensor, " batch"], Bool[Tensor, " batch"]]:
    (batch, time), states = observations_BT.shape, params.initial_MS.shape[1]
    first_VS, step_KSS, emission_VS = (part.to(observations_BT.device) for part in params.tables(0))
    begins, symbols_TB = [*starts_T.tolist(), True], observations_BT.T.contiguous()
    ends = [t % EVERY == EVERY - 1 or begins[t + 1] for t in range(time)]  # steps that are normalised
    per_step = 8 * max(1, batch) * states * (1 if params.states_emit else states)
    chunk = max(1, CHUNK_BYTES // (EVERY * per_step)) * EVERY
    total_B, tiny = first_VS.new_zeros(batch), torch.finfo(torch.float64).tiny
    doubtful_B = torch.zeros_like(total_B, dtype=torch.bool)
    belief_B1S = ahead_B1S = first_VS.new_empty(batch, 1, states)
    unscaled_B1S = torch.empty_like(ahead_B1S)
    for begin in range(0, time, chunk):
        symbols = symbols_TB[begin : begin + chunk]
        factors = (emission_VS[symbols][:, :, None] if params.states_emit else step_KSS[symbols]).unbind()
        count = sum(ends[begin : begin + chunk])
        norms_N, scaled_N = first_VS.new_empty(count, batch, 1, 1), first_VS.new_empty(count, batch, 1, states)
        slots = iter(zip(norms_N.unbind(), scaled_N.unbind(), strict=True))
        for t, factor in enumerate(factors, begin):
            other = ahead_B1S if belief_B1S is unscaled_B1S and not params.states_emit else unscaled_B1S
            norm, out = next(slots) if ends[t] else (None, other)
            if begins[t]:
                torch.index_select(first_VS, 0, symbols[t - begin], out=out[:, 0])
            elif params.states_emit:
                torch.mm(belief_B1S[:, 0], step_KSS[0], out=ahead_B1S[:, 0])
                torch.mul(ahead_B1S, factor, out=out)
            else:
                torch.bmm(belief_B1S, factor, out=out)
            if norm is not None:
                torch.sum(out, -1, keepdim=True, out=norm)
                out /= norm.clamp_min(tiny)  # zeros stay
            belief_B1S = out
        doubtful_B |= ((scaled_N > 0) & (scaled_N < RISKY)).flatten(2).any(2).any(0)
        total_B += norms_N[:, :, 0, 0].log().sum(0)
    return total_B, doubtful_B


class RunningMixture:
    """Running sums over mixture components m, with weights w_m P_m(o_0..o_{t-1}) before observation t.

    Attributes:
        largest: Largest log weight (time + 1, batch).
        total: Sum of weights / exp(largest).
        mixed: Sum of weights * predictions / exp(largest) (time, batch, symbol).
    """

    def __init__(self, batch: int, time: int, symbols: int, like: Float64[Tensor, "any"]) -> None:
        self.largest = like.new_full((time + 1, batch), -torch.inf)
        self.total = like.new_zeros(time + 1, batch)
        self.mixed = like.new_zeros(time, batch, symbols)

    def add(self, log_weight_M: Tensor, logs_TMB: Tensor, predicted_TMBV: Tensor) -> None:
        log_weight_MB = log_weight_M[:, None].expand(logs_TMB.shape[1:])
        for t in range(len(self.total)):
            top_B = torch.maximum(self.largest[t], log_weight_MB.amax(0))
            possible_B = top_B > -torch.inf
            scale_B = torch.where(possible_B, self.largest[t] - top_B, 0.0).exp()
            share_MB = torch.where(possible_B, log_weight_MB - top_B, -torch.inf).exp()
            self.largest[t] = top_B
            self.total[t] = self.total[t] * scale_B + share_MB.sum(0)
            if t < len(self.mixed):
                mixed_BV = torch.einsum("mb,mbv->bv", share_MB, predicted_TMBV[t].double())
                self.mixed[t] = self.mixed[t] * scale_B[:, None] + mixed_BV
                log_weight_MB = log_weight_MB + logs_TMB[t]

    def result(self) -> tuple[Float64[Tensor, "batch time symbol"], Float64[Tensor, "batch time"]]:
        """Return the mixture's predictions (zeros after a prefix of probability zero) and log P(o_t | past)."""
        joint_TB = self.largest + self.total.log()
        total_TB1 = self.total[:-1, :, None]
        predicted = torch.where(total_TB1 > 0, self.mixed / total_TB1, 0.0)
        terms = torch.where(joint_TB[1:] > -torch.inf, joint_TB[1:] - joint_TB[:-1], -torch.inf)
        return predicted.transpose(0, 1).contiguous(), terms.T.contiguous()


def mixture_predictions_there(
    law: HMMParams,
    weights_M: Float64[Tensor, " component"],
    observations_BT: Int64[Tensor, "batch time"],
    starts_T: Bool[Tensor, " time"],
    dtype: torch.dtype,
    *,
    chunk_bytes: int | None = None,
) -> tuple[Float64[Tensor, "batch time symbol"], Float64[Tensor, "batch time"]]:
    """Return the predictions and log P(o_t | past) of a mixture."""
    device, (batch, time), (_, states, symbols) = observations_BT.device, observations_BT.shape, law.emission_MSV.shape
    size = dtype.itemsize
    a_component = batch * (4 * size * states + time * (8 + size + size * symbols) + 8 * 4 + 16 * symbols)
    a_component += (8 + size) * states * (states + 2 * symbols)
    chunk = max(1, (free_on(device) // 2 if chunk_bytes is None else chunk_bytes) // a_component)
    log_weights_M = weights_M.to(device).log()
    running = RunningMixture(batch, time, symbols, log_weights_M)
    with full_precision():
        for numbers in weights_M.nonzero()[:, 0].to(device).split(chunk):
            part = law.select(numbers)
            logs_TMB, doubtful_MB, predicted_TMBV = forward_logs(
                _rows(part, dtype), observations_BT, starts_T, predictions=True
            )
            for m in doubtful_MB.any(1).nonzero()[:, 0].tolist():
                rows = doubtful_MB[m].nonzero()[:, 0]
                one = part.select(torch.tensor([m], device=device))
                logs_TMB[:, m, rows], again = again_in_logs(one, observations_BT[rows], starts_T)
                predicted_TMBV[:, m, rows] = again.to(dtype)
            running.add(log_weights_M[numbers], logs_TMB, predicted_TMBV)
            del logs_TMB, predicted_TMBV  # free before the next chunk
    predicted_BTV, terms_BT = running.result()
    return predicted_BTV[..., : law.num_symbols], silent(terms_BT, observations_BT, law.num_symbols)


def again_in_logs(
    law: HMMParams, observations_BT: Int64[Tensor, "batch time"], starts_T: Bool[Tensor, " time"]
) -> tuple[Float64[Tensor, "time batch"], Float64[Tensor, "time batch symbol"]]:
    symbols_SV = law.emission_MSV[0]
    steps = list(forward_steps(law, observations_BT[None], starts_T))
    before = [law.initial_MS.expand(len(observations_BT), -1), *(step.next_probs[0] for step in steps[:-1])]
    predicted = torch.stack([state @ symbols_SV for state in before])
    return torch.stack([step.log_norm[0] for step in steps]), predicted


def _rows(params: HMMParams, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(rows.to(dtype) for rows in params.rows())


def fits_there(law: HMMParams, batch: int) -> bool:
    return law.states_emit or 8 * batch * law.initial_MS.shape[1] ** 2 <= CHUNK_BYTES


def beliefs_there(
    law: HMMParams, observations_BT: Int64[Tensor, "batch time"], starts_T: Bool[Tensor, " time"]
) -> tuple[Float64[Tensor, "batch time state"], Bool[Tensor, " batch"]]:
    (batch, time), device = observations_BT.shape, observations_BT.device
    first_VS, step_KSS, emission_VS = (part.to(device) for part in law.tables(0))
    symbols_TB = observations_BT.T.contiguous()
    found_TBS = first_VS.new_empty(time, batch, first_VS.shape[1])
    tiny, begins = torch.finfo(found_TBS.dtype).tiny, starts_T.tolist()
    together = max(1, CHUNK_BYTES // (8 * max(1, batch) * first_VS.shape[1] ** 2))
    states_emit, first_TBS = law.states_emit, first_VS[symbols_TB[[t for t, starts in enumerate(begins) if starts]]]
    factors = (emission_VS[symbols_TB] if states_emit else symbols_TB).unbind()
    step_SS = step_KSS[0]
    opened, probs, rows = iter(first_TBS.unbind()), found_TBS.unbind(), found_TBS[:, :, None].unbind()
    for t in range(time):
        if not states_emit and t % together == 0:
            steps = step_KSS[symbols_TB[t : t + together]].unbind()
        if begins[t]:
            torch.mul(next(opened), probs[t - 1].any(1, keepdim=True) if t else 1.0, out=probs[t])
        elif states_emit:
            torch.mul(probs[t - 1] @ step_SS, factors[t], out=probs[t])
        else:
            torch.bmm(rows[t - 1], steps[t % together], out=rows[t])
        if t % EVERY == EVERY - 1:
            probs[t].div_(probs[t].sum(1, keepdim=True).clamp_min_(tiny))
    seen_TBS = found_TBS[EVERY - 1 :: EVERY]
    doubtful_B = ((seen_TBS > 0) & (seen_TBS < RISKY)).any(2).any(0)
    found_TBS /= found_TBS.sum(2, keepdim=True).clamp_min_(tiny)
    return found_TBS.transpose(0, 1), doubtful_B
