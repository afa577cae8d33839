"""Filter of mixtures on a CPU."""

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Float64, Int64, Tensor
from hmmscope.inference.compiled import SMALLEST, NextStepProbs, Outputs, filter_underflow_safe, forward_in_products
from hmmscope.inference.loop_inputs import FEW_STATES, PackedSequences, Tables, in_blocks, sequences, tables
from hmmscope.inference.ragged import silent
from hmmscope.kernels import mixtures, underflow_safe
from hmmscope.kernels.mixtures import accumulate
from hmmscope.processes.params import HMMParams, symbol_probs

Found = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def run_mixture(
    law: HMMParams,
    weights_M: Float64[Tensor, " component"],
    observations_BT: Int64[Tensor, "batch time"],
    starts_T: Bool[Tensor, " time"],
    lengths_B: Int64[Tensor, " batch"],
    *,
    posterior: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Found:
    """Return P(o_{t+1} | o_0..o_t), log P(o_t | o_0..o_{t-1}) and, if requested, P(component | o_0..o_t)."""
    (batch, time), (components, size) = observations_BT.shape, law.initial_MS.shape
    num_symbols = symbol_probs(law).shape[2]
    work = sequences(observations_BT, starts_T, lengths_B)
    kept = np.zeros((batch if posterior else 0, time, components))
    following, terms = np.zeros((batch, time, num_symbols)), np.zeros((batch, time))
    if size <= FEW_STATES or not law.states_emit:
        _few_states(law, weights_M, work, kept, following, terms)
        return kept, following, silent(torch.from_numpy(terms), observations_BT, num_symbols).numpy()
    running = _Running(batch, time, num_symbols)
    for m in weights_M.nonzero()[:, 0].tolist():
        process = tables(law, m, np.float64 if dtype == torch.float64 else np.float32)
        logs_BT, ahead_BTV = _component(process, law.initial_MS[m].numpy(), num_symbols, observations_BT, work)
        log_joint_BT = logs_BT.cumsum(1) + float(weights_M[m].log())
        if posterior:
            kept[:, :, m] = log_joint_BT
        running.add(log_joint_BT, ahead_BTV)
    inside = np.arange(time) < lengths_B.numpy()[:, None]
    if posterior:
        kept[:, :, (weights_M == 0).numpy()] = -np.inf
    running.write(kept, following, terms)
    for part in (kept, following, terms):
        part[~inside[: len(part)]] = 0.0
    return kept, following, silent(torch.from_numpy(terms), observations_BT, num_symbols).numpy()


def _few_states(
    params: HMMParams,
    weights_M: Tensor,
    work: PackedSequences,
    posterior: NDArray[np.float64],
    following: NDArray[np.float64],
    terms: NDArray[np.float64],
) -> None:
    first, step, emission = (np.ascontiguousarray(part.numpy(), np.float64) for part in params.all_tables())
    first, emission = (part.reshape(len(part), -1) for part in (first, emission))
    symbols_MSV = symbol_probs(params)
    opening = torch.einsum("ms,msv->mv", params.initial_MS, symbols_MSV).numpy()
    prediction = params.predictive().contiguous().numpy()
    components, num_symbols = opening.shape
    flat = posterior.reshape(-1, components), following.reshape(-1, num_symbols), terms.reshape(-1)
    doubtful = np.zeros(len(work.rows), np.bool_)

    def run(part: slice) -> None:
        own = work.part(part)
        mixtures.mixed(
            *(work.width, weights_M.numpy(), first, step, emission, opening, prediction),
            *(*own[:3], own.starts, *SMALLEST[np.dtype(np.float64)], *flat, doubtful[part]),
        )

    in_blocks(work, len(work.rows), run)
    for row, offset, length in zip(
        *(part[doubtful].tolist() for part in (work.rows, work.offsets, work.lengths)), strict=True
    ):
        symbols = torch.from_numpy(work.symbols[offset : offset + length])
        running = _Running(1, length, num_symbols)
        joint = np.full((1, length, components), -np.inf)
        for m in weights_M.nonzero()[:, 0].tolist():
            logs_T = np.empty(length)
            beliefs = np.empty((length, params.initial_MS.shape[1]))
            underflow_safe.plain(*filter_underflow_safe(tables(params, m), symbols, work.starts, logs_T), beliefs)
            joint[0, :, m] = logs_T.cumsum() + float(weights_M[m].log())
            ahead = beliefs @ prediction[m]
            begins = np.flatnonzero(work.starts[1 : length + 1])
            ahead[begins] = opening[m] * beliefs[begins].any(1, keepdims=True)
            running.add(joint[:, :, m], ahead[None])
        own = slice(row, row + 1), slice(0, length)
        running.write(joint[: len(posterior)], following[own], terms[own])
        if len(posterior):
            posterior[own] = joint


def _component(
    process: Tables,
    initial_S: NDArray[np.float64],
    num_symbols: int,
    observations_BT: Int64[Tensor, "batch time"],
    work: PackedSequences,
) -> tuple[NDArray[np.float64], NDArray[np.floating]]:
    (batch, time), dtype = observations_BT.shape, process.first.dtype
    emission_SV = process.emission.T[:, :num_symbols]  # without the missing symbol
    probs = NextStepProbs(initial_S.astype(dtype) @ emission_SV, process.step[0] @ emission_SV)
    norms_BT, doubtful = np.ones((batch, time)), np.zeros(len(work.rows), np.bool_)
    ahead_BTV = np.zeros((batch, time, emission_SV.shape[1]), dtype)
    forward_in_products(process, work, doubtful, Outputs(norms=norms_BT, laws=probs, ahead=ahead_BTV))
    with np.errstate(divide="ignore"):
        logs_BT = np.log(norms_BT)
    for row, length in zip(work.rows[doubtful].tolist(), work.lengths[doubtful].tolist(), strict=True):
        terms, beliefs = np.empty(length), np.empty((length, process.num_states))
        underflow_safe.plain(
            *filter_underflow_safe(process, observations_BT[row, :length], work.starts, terms), beliefs
        )
        logs_BT[row, :length] = terms
        probs.predict(beliefs[None], work.starts[:length], ahead_BTV[row : row + 1, :length])
    return logs_BT, ahead_BTV


class _Running:
    def __init__(self, batch: int, time: int, num_symbols: int) -> None:
        self.largest = np.full((batch, time), -np.inf)
        self.total = np.zeros((batch, time))
        self.mixed = np.zeros((batch, time, num_symbols))

    def add(self, log_joint_BT: NDArray[np.float64], ahead_BTV: NDArray[np.floating]) -> None:
        num_symbols = self.mixed.shape[2]
        accumulate(
            *(np.ascontiguousarray(log_joint_BT).reshape(-1), ahead_BTV.reshape(-1, num_symbols)),
            *(self.largest.reshape(-1), self.total.reshape(-1), self.mixed.reshape(-1, num_symbols)),
        )

    def write(self, posterior: NDArray[np.float64], following: NDArray[np.float64], terms: NDArray[np.float64]) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            joint = self.largest + np.log(self.total)
            possible = joint > -np.inf
            following[:] = np.where(possible[..., None], self.mixed / self.total[..., None], 0.0)
            before = np.concatenate([np.zeros((len(joint), 1)), joint[:, :-1]], 1)
            terms[:] = np.where(possible, joint - before, -np.inf)
            if len(posterior):
                posterior -= joint[..., None]
                np.exp(posterior, out=posterior)
                posterior[~possible] = 0.0
