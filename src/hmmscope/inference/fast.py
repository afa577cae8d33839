"""Likelihoods and mixture predictions at full speed, streaming over time: nothing of size (batch, time, state) is kept.

Float64 throughout, or float32 laws with float64 sums where asked for. A sequence that underflows in these loops is gone
over again by the recursion of `forward`, so that -inf means probability zero here too.
"""

from dataclasses import dataclass

import numpy as np
import torch

from hmmscope.axes import Bool, Float64, Int, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.device import (
    FLOORS,
    again_in_logs,
    log_likelihood_there,
    mixture_predictions_there,
    require_memory_on,
)
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.forward import check_observations, forward_steps
from hmmscope.inference.mixture import filter_mixture
from hmmscope.kernels.beliefs import few_state_beliefs
from hmmscope.kernels.forward import absorb, accumulate, log_likelihood_few_states
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.laws import StateEmitting
from hmmscope.processes.mixture import Mixture

#: Up to this many states one compiled loop beats matrix products.
FEW_STATES = 16


def log_likelihood(
    hmm: HMM, observations: Int[Tensor, "batch time"], *, dtype: torch.dtype = torch.float64
) -> Float64[Tensor, "batch"]:
    """log P(o_0..o_{T-1}) in nats, -inf for an impossible sequence; the forward filter without its beliefs.

    It runs on the device of the observations.

    Args:
        hmm: S states, V symbols.
        observations: symbols in [0, V), shape (batch, time).
        dtype: of the laws; sums of logarithms are float64 in any case. With float32 the relative error is about 1e-7.

    Raises:
        InputError: a symbol outside [0, V), or another dtype.

    Cost: O(batch * time * S^2), memory O(batch * S).
    """
    _check_dtype(dtype)
    observations, starts = check_observations(observations, hmm.num_symbols)
    rows = [part.to(dtype) for part in (hmm.initial_S, hmm.transition_SS, hmm.emission_SV)]
    law = hmm.law_on(observations.device)
    assert isinstance(law, StateEmitting)
    if observations.device.type != "cpu":
        total, lost = log_likelihood_there(law, observations, starts, dtype)
    elif hmm.num_states <= FEW_STATES:
        initial, transition, emission = (part.numpy() for part in rows)
        result, doubtful = log_likelihood_few_states(
            initial, transition, emission, observations.numpy(), FLOORS[dtype], num_threads=torch.get_num_threads()
        )
        total, lost = torch.from_numpy(result), torch.from_numpy(doubtful)
    else:
        logs, doubtful, _ = _forward(rows, observations, starts)
        total, lost = torch.from_numpy(logs.sum(0)), torch.from_numpy(doubtful)
    again = lost.nonzero()[:, 0]
    if len(again):
        steps = forward_steps(law, observations[again][None], starts)
        total[again] = torch.stack([step.log_norm[0] for step in steps]).sum(0)
    return total


def belief_states(
    hmm: HMM | LabelledHMM, observations: Int[Tensor, "batch time"], *, starts: object = None
) -> Float64[Tensor, "batch time state"]:
    """The beliefs of `filter_beliefs` and nothing else, by one compiled loop where states are few.

    Zero from an impossible observation on. It runs on the device of the observations.
    """
    if torch.as_tensor(observations).device.type != "cpu" or hmm.num_states > FEW_STATES:
        return filter_beliefs(hmm, observations, starts=starts).beliefs
    observations, mask = check_observations(observations, hmm.num_symbols, starts)
    law = hmm.law
    if isinstance(law, StateEmitting):
        emission_VS = law.emission_MSV[0].T
        first_VS, step_VSS = law.initial_MS[0] * emission_VS, law.transition_MSS[0] * emission_VS[:, None]
    else:
        step_VSS = law.labelled_MVSS[0]
        first_VS = (law.initial_MS[0][:, None] * step_VSS).sum(1)
    first, step = (part.contiguous().numpy() for part in (first_VS, step_VSS))
    filled, doubtful = few_state_beliefs(first, step, observations.contiguous().numpy(), mask.numpy())
    beliefs = torch.from_numpy(filled)
    again = torch.from_numpy(doubtful).nonzero()[:, 0]
    if len(again):
        beliefs[again] = filter_beliefs(hmm, observations[again], starts=starts).beliefs
    return beliefs


@dataclass(frozen=True)
class MixturePredictions:
    """What the ideal in-context learner predicts, without its posterior over components.

    Attributes:
        predicted_observation: P(o_t | o_0..o_{t-1}) (batch, time, symbol).
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}) (batch, time), nats.
    """

    predicted_observation: Float64[Tensor, "batch time symbol"]
    log_likelihood_terms: Float64[Tensor, "batch time"]


def mixture_predictions(
    mixture: Mixture,
    observations: Int[Tensor, "batch time"],
    *,
    starts: object = None,
    dtype: torch.dtype = torch.float32,
) -> MixturePredictions:
    """The predictions of `filter_mixture`, for mixtures of any size: one component after another, O(batch * time) memory.

    P(o_t | o_0..o_{t-1}) = sum_m w_m P_m(o_0..o_{t-1}) P_m(o_t | o_0..o_{t-1}) / sum_m w_m P_m(o_0..o_{t-1})

    is kept as a running sum relative to its largest term, so no posterior over components is stored. It runs on the device
    of the observations; on a GPU, as many components together as fit half its free memory.

    Args:
        mixture: M components whose states emit.
        observations: symbols in [0, V), shape (batch, time).
        starts: as in `filter_mixture`.
        dtype: of the laws; weights and sums are float64 in any case.

    Raises:
        InputError: a symbol outside [0, V), another dtype, or components whose transitions emit.
        ResourceError: the result would not fit in memory.

    Cost: O(batch * time * M * S^2) in matrix products, memory O(batch * time * V).
    """
    _check_dtype(dtype)
    observations, mask = check_observations(observations, mixture.num_symbols, starts)
    law = mixture.law
    if not isinstance(law, StateEmitting):
        found = filter_mixture(mixture, observations, starts=starts)
        before = torch.cat(
            [found.first_observation.expand(len(observations), 1, -1), found.next_observation[:, :-1]], 1
        )
        return MixturePredictions(before, found.log_likelihood_terms)
    batch, time = observations.shape
    require_memory_on(observations.device, "mixture_predictions", 8 * batch * time * (3 * mixture.num_symbols + 6))
    if observations.device.type != "cpu":
        there = mixture.law_on(observations.device)
        assert isinstance(there, StateEmitting)
        return MixturePredictions(*mixture_predictions_there(there, mixture.weights_M, observations, mask, dtype))
    largest = np.full((time + 1, batch), -np.inf)
    total = np.zeros((time + 1, batch))
    mixed = np.zeros((time + 1, batch, mixture.num_symbols))
    for m in mixture.weights_M.nonzero()[:, 0].tolist():
        rows = [part[m].to(dtype) for part in law.rows()]
        logs_TB, doubtful, predicted_TBV = _forward(rows, observations, mask, predictions=True)
        again = np.flatnonzero(doubtful)
        if len(again):
            _again(mixture, m, observations[again], mask, again, logs_TB, predicted_TBV)
        log_weight = np.concatenate([np.zeros((1, batch)), logs_TB.cumsum(0)]) + float(mixture.weights_M[m].log())
        ahead = np.concatenate([predicted_TBV, predicted_TBV[-1:]]).reshape(-1, mixture.num_symbols)
        accumulate(
            log_weight.reshape(-1),
            ahead,
            largest.reshape(-1),
            total.reshape(-1),
            mixed.reshape(-1, mixture.num_symbols),
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        joint = largest + np.log(total)
        predicted = np.where(total[:-1, :, None] > 0, mixed[:-1] / total[:-1, :, None], 0.0)
        terms_TB = np.where(joint[1:] > -np.inf, joint[1:] - joint[:-1], -np.inf)
    return MixturePredictions(
        torch.from_numpy(predicted).transpose(0, 1).contiguous(), torch.from_numpy(terms_TB).T.contiguous()
    )


def _forward(
    rows: list[Tensor],
    observations: Int64[Tensor, "batch time"],
    starts: Bool[Tensor, "time"],
    *,
    predictions: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log norms (time, batch), doubtful sequences (batch,), and P(o_t | past) (time, batch, symbol) if asked for."""
    initial_S, transition_SS, emission_SV = rows
    batch, time = observations.shape
    symbols_TB = observations.T.contiguous().numpy()
    emission_VS = emission_SV.T.contiguous().numpy()
    logs = np.zeros((time, batch))
    doubtful = np.zeros(batch, np.bool_)
    predicted = np.zeros((time if predictions else 0, batch, emission_SV.shape[1]), emission_VS.dtype)
    floor = FLOORS[transition_SS.dtype]
    belief = torch.empty(batch, len(initial_S), dtype=initial_S.dtype)
    following = torch.empty_like(belief)
    for t in range(time):
        if starts[t]:
            following.copy_(initial_S.expand_as(following))
        else:
            torch.mm(belief, transition_SS, out=following)
        if predictions:
            torch.mm(following, emission_SV, out=torch.from_numpy(predicted[t]))
        absorb(following.numpy(), emission_VS, symbols_TB[t], floor, logs[t], doubtful)
        belief, following = following, belief
    return logs, doubtful, predicted


def _again(
    mixture: Mixture,
    m: int,
    observations: Tensor,
    mask: Tensor,
    rows: np.ndarray,
    logs_TB: np.ndarray,
    predicted_TBV: np.ndarray,
) -> None:
    """Overwrite the doubtful sequences of one component with what the safe recursion finds."""
    law = mixture.law.select(torch.tensor([m]))
    assert isinstance(law, StateEmitting)
    again_TB, again_TBV = again_in_logs(law, observations, mask)
    logs_TB[:, rows], predicted_TBV[:, rows] = again_TB.numpy(), again_TBV.numpy()


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in FLOORS:
        raise InputError(f"dtype: must be torch.float64 or torch.float32, got {dtype}")
