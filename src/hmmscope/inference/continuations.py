"""Forecasts: exact distributions of future observations, and sampled continuations."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.filtering import FilterResult, filter_beliefs
from hmmscope.inference.mixture_posterior import components_known, drawn_components
from hmmscope.processes.capabilities import COMPONENTS, FORECASTS
from hmmscope.processes.generalised import without_rounding
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Observations
from hmmscope.processes.params import HMMParams, symbol_probs
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require_count
from hmmscope.seeds import numpy_generator
from hmmscope.system_info import require_memory

#: Longest continuation.
MAX_STEPS = 2**20


@dataclass(frozen=True, repr=False)
class Forecast(Shown):
    """Forecast after a past of T observations; distributions are zero if the past has probability zero.

    Attributes:
        observations: P(o_{T+k} | o_0..o_{T-1}) (batch, step, symbol).
        states: P(state T+k | o_0..o_{T-1}) (batch, step, state).
        drawn_observations: Joint samples (draw, batch, step); -1 after a past of probability zero.
        drawn_states: Hidden path of each sample (draw, batch, step).
    """

    observations: Float64[Tensor, "batch step symbol"]
    states: Float64[Tensor, "batch step state"]
    drawn_observations: Int64[Tensor, "draw batch step"]
    drawn_states: Int64[Tensor, "draw batch step"]


def forecast(
    hmm: Process | str, observed: Observations, steps: int, *, lengths: object = None, num_draws: int = 0, seed: int = 0
) -> Forecast:
    """Compute the distribution of each of the next `steps` observations and states, and sample continuations.

    P(state T+k | past) = belief_{T-1} @ transition^(k+1);  P(o_{T+k} | past) = P(state T+k | past) @ emission;  k >= 0

    Distributions are marginals of one step; samples are joint over all steps. In a labelled HMM, state t follows
    observation t. A mixture's forecast averages the components by their probabilities given the past.

    Args:
        hmm: HMM with S states and V symbols, or a mixture.
        observed: Past observations, see `filter_beliefs`; may be empty.
        steps: Number of future steps, 1 to 2^20.
        lengths: See `filter_beliefs`.
        num_draws: Number of sampled continuations per sequence.
        seed: Seed in [0, 2^32); the samples of a sequence do not depend on other sequences.

    Raises:
        InputError: As for `filter_beliefs`; or samples of a `GeneralisedHMM` are requested.
        ResourceError: The results do not fit in memory.
    """
    hmm = as_process(hmm)
    hmm.require_capability(FORECASTS)
    require_count("steps", steps, most=MAX_STEPS)
    require_count("num_draws", num_draws, 0)
    if COMPONENTS in hmm.uses_hmm_inference:
        return _of_mixture(hmm, observed, steps, lengths, num_draws, seed)
    if num_draws and hmm.params.signed:
        raise InputError("num_draws: must be 0 for a generalised HMM, which has no hidden states to sample")
    found = filter_beliefs(hmm, observed, lengths=lengths)
    require_memory("forecast", 16 * steps * len(found.beliefs) * (hmm.num_states + hmm.num_symbols))
    emitters_BS = _emitters(hmm.params_on(found.beliefs.device), found)
    laws = list(_ahead(hmm.params_on(found.beliefs.device), emitters_BS, steps))
    observations, states = (torch.stack(part, 1) for part in zip(*laws, strict=True))
    batch = len(emitters_BS)
    require_memory("forecast", 16 * num_draws * steps * (batch + 2 + hmm.num_symbols))
    drawn = np.full((2, num_draws, batch, steps), -1)
    for b, emitter_S in enumerate(emitters_BS.cpu().numpy()):
        if num_draws and emitter_S.any():
            uniforms = numpy_generator(seed, "continuations", b).random((num_draws, steps, 2))
            drawn[:, :, b] = _drawn(hmm.params, emitter_S, uniforms.transpose(1, 2, 0))
    return Forecast(observations, states, *torch.from_numpy(drawn))


def _of_mixture(
    mixture: Process, observed: Observations, steps: int, lengths: object, num_draws: int, seed: int
) -> Forecast:
    shares_BM = components_known(mixture, observed, lengths=lengths)
    chosen = drawn_components(shares_BM, num_draws, seed, "component-continued")
    sizes = (len(shares_BM), steps)
    observations = shares_BM.new_zeros(*sizes, mixture.num_symbols)
    states, drawn = shares_BM.new_zeros(*sizes, mixture.num_states), torch.full((2, num_draws, *sizes), -1)
    for number in shares_BM.any(0).nonzero()[:, 0].tolist():
        mine = torch.from_numpy(chosen == number)
        count = num_draws if bool(mine.any()) else 0
        part = forecast(mixture.component(number), observed, steps, lengths=lengths, num_draws=count, seed=seed)
        share_B11 = shares_BM[:, number, None, None]
        observations += share_B11 * part.observations
        states += share_B11 * part.states
        if count:
            drawn = torch.where(mine[..., None], torch.stack([part.drawn_observations, part.drawn_states]), drawn)
    return Forecast(observations, states, *drawn)


def _emitters(params: HMMParams, found: FilterResult) -> Float64[Tensor, "batch state"]:
    counts_B = found.beliefs.any(2).sum(1)
    rows_B = torch.arange(len(counts_B), device=counts_B.device)
    after_BS = (
        params.transition(found.beliefs[rows_B, counts_B - 1]) if found.beliefs.shape[1] else found.beliefs.sum(1)
    )
    after_BS = torch.where((counts_B == 0)[:, None], params.initial_MS[0], after_BS)
    return after_BS * (found.impossible_at < 0)[:, None]


def _ahead(params: HMMParams, emitters_BS: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(steps):
        observed_BV = emitters_BS @ symbol_probs(params)[0]
        states_BS = emitters_BS if params.states_emit else emitters_BS @ params.transitions()[0]
        yield without_rounding(observed_BV) if params.signed else observed_BV, states_BS
        emitters_BS = params.transition(states_BS)


def _drawn(params: HMMParams, emitter_S: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    steps, _, count = uniforms.shape
    found = np.empty((2, count, steps), np.int64)
    moves, *emission = (rows[0].numpy().cumsum(-1) for rows in params.rows()[1:])
    emitters = _outcomes(np.broadcast_to(emitter_S.cumsum(), (count, len(emitter_S))), uniforms[0, 0])
    for t in range(steps):
        if params.states_emit:
            states = emitters
            symbols = _outcomes(emission[0][states], uniforms[t, 1])
            emitters = _outcomes(moves[states], uniforms[t + 1, 0]) if t + 1 < steps else states
        else:
            symbols, states = divmod(_outcomes(moves[emitters], uniforms[t, 1]), len(emitter_S))
            emitters = states
        found[:, :, t] = symbols, states
    return found


def _outcomes(cumulated: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    target = uniforms * cumulated[:, -1]
    return (cumulated > target[:, None]).argmax(1)
