"""Likelihoods and mixture predictions, computed without storing a (batch, time, state) array."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.inference.compiled import Outputs, filter_underflow_safe, forward, run_filter
from hmmscope.inference.device import (
    FLOORS,
    beliefs_there,
    fits_there,
    log_likelihood_there,
    mixture_predictions_there,
    underflow_safe_log_likelihood,
)
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.known_states import condition
from hmmscope.inference.loop_inputs import sequences, tables
from hmmscope.inference.mixture_posterior import filter_mixture, predicted_before
from hmmscope.inference.pools import run_mixture
from hmmscope.inference.ragged import blank, check_own, check_ragged, counted
from hmmscope.processes.capabilities import COMPONENTS, WORDS
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Observations, Symbols, check_observations
from hmmscope.processes.params import seeing, symbol_probs
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require
from hmmscope.sequences.gaps import MISSING
from hmmscope.system_info import require_memory_on


def log_likelihood(
    hmm: Process | str,
    observations: Observations,
    *,
    lengths: object = None,
    dtype: torch.dtype = torch.float64,
    known_states: Any = None,
    inputs: Any = None,
) -> Float64[Tensor, " batch"]:
    """Compute log P(o_0..o_{T-1}) in nats, on the device of the observations.

    Args:
        hmm: HMM with S states and V symbols, or a mixture of HMMs.
        observations: Symbols in [0, V), shape (batch, time), or vectors.
        lengths, known_states, inputs: See `filter_beliefs`.
        dtype: Number type of the parameters; float32 gives a relative error of about 1e-7.

    Raises:
        InputError: A symbol, `lengths` or `dtype` is invalid, or the process has no exact predictions.
    """
    hmm = as_process(hmm)
    _check_dtype(dtype)
    if known_states is not None or inputs is not None:
        known = condition(hmm, observations, known_states, inputs=inputs, lengths=lengths)
        return log_likelihood(known.process, known.observations, lengths=known.options["lengths"], dtype=dtype)
    if COMPONENTS in hmm.uses_hmm_inference:
        return mixture_predictions(hmm, observations, lengths=lengths, dtype=dtype).log_likelihood_terms.sum(1)
    if WORDS not in hmm.uses_hmm_inference:  # not the distribution of one HMM
        return hmm.observe(check_own(hmm, observations, lengths)[0]).log_likelihood_terms.sum(1)
    observations, reset_mask, inside = check_ragged(observations, hmm.alphabet, None, lengths)
    counts = counted(inside)
    is_ragged = bool((counts < observations.shape[1]).any())
    if observations.device.type != "cpu":
        if is_ragged:
            given = observations.masked_fill(observations == hmm.num_symbols, MISSING)
            return filter_beliefs(hmm, given, lengths=counts).log_likelihood
        params = seeing(hmm.params_on(observations.device), observations)
        if params.signed or not fits_there(params, len(observations)):
            return filter_beliefs(hmm, observations).log_likelihood
        total, lost = log_likelihood_there(params, observations, reset_mask, dtype)
        again = lost.nonzero()[:, 0]
        if len(again):
            total[again] = underflow_safe_log_likelihood(params, observations[again], reset_mask)
        return total
    process = tables(seeing(hmm.params, observations), dtype=np.float64 if dtype == torch.float64 else np.float32)
    work = sequences(observations, reset_mask, counts)
    totals, doubtful = np.zeros(len(observations)), np.zeros(len(work.rows), np.bool_)
    found = np.zeros(len(work.rows))
    forward(process, work, doubtful, Outputs(totals=found))
    totals[work.rows] = found
    for row in work.rows[doubtful].tolist():
        terms = np.empty(int(counts[row]))
        filter_underflow_safe(process, observations[row, : len(terms)], work.starts[: len(terms)], terms)
        totals[row] = terms.sum()
    return torch.from_numpy(totals)


def belief_states(
    hmm: Process, observations: Symbols, *, reset_mask: object = None
) -> Float64[Tensor, "batch time state"]:
    batch, mask = check_observations(observations, hmm.alphabet, reset_mask, gaps=True)
    if batch.device.type != "cpu":
        params = hmm.params_on(batch.device)
        if params.signed or not fits_there(params, len(batch)):
            return filter_beliefs(hmm, batch, reset_mask=mask).beliefs
        beliefs, doubtful = beliefs_there(seeing(params, batch), batch, mask)
        again = doubtful.nonzero()[:, 0]
        if len(again):
            beliefs[again] = filter_beliefs(hmm, batch[again], reset_mask=mask).beliefs
        return beliefs
    lengths = torch.full(batch.shape[:1], batch.shape[1])
    return torch.from_numpy(run_filter(seeing(hmm.params, batch), batch, mask, lengths).beliefs)


@dataclass(frozen=True, repr=False)
class MixturePredictions(Shown):
    """Predictions of the exact filter of a mixture, which is the Bayes-optimal in-context learner.

    Attributes:
        predicted_observation: P(o_t | o_0..o_{t-1}) (batch, time, symbol).
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}), in nats.
    """

    predicted_observation: Float64[Tensor, "batch time symbol"]
    log_likelihood_terms: Float64[Tensor, "batch time"]


def mixture_predictions(
    mixture: Process | str,
    observations: Symbols,
    *,
    reset_mask: object = None,
    lengths: object = None,
    dtype: torch.dtype = torch.float32,
) -> MixturePredictions:
    """Compute the predictions of `filter_mixture` without the posterior over components.

    P(o_t | o_0..o_{t-1}) = sum_m w_m P_m(o_0..o_t) / sum_m w_m P_m(o_0..o_{t-1})

    Args:
        mixture: Mixture of M components.
        observations: Symbols in [0, V), shape (batch, time).
        reset_mask, lengths: See `filter_mixture`; results are zero in padding.
        dtype: Number type of filters on GPUs or with over 32 states, if states emit; all else is float64.

    Raises:
        InputError: A symbol or `dtype` is invalid.
        ResourceError: The result does not fit in memory.

    Cost: O(batch * time * M * S^2), memory O(batch * time * V).
    """
    mixture = as_process(mixture)
    _check_dtype(dtype)
    given = observations
    observations, mask, inside = check_ragged(given, mixture.alphabet, reset_mask, lengths)
    batch, time = observations.shape
    require_memory_on(observations.device, "mixture_predictions", 8 * batch * time * (3 * mixture.num_symbols + 6))
    params = seeing(mixture.params_on(observations.device), observations)
    if observations.device.type == "cpu":
        _, following, terms = run_mixture(
            params, mixture.component_weights, observations, mask, counted(inside), dtype=dtype
        )
        first = torch.einsum("m,ms,msv->v", mixture.component_weights, params.initial_MS, symbol_probs(params))
        before, terms_BT = predicted_before(first, torch.from_numpy(following)), torch.from_numpy(terms)
    elif params.states_emit:
        before, terms_BT = mixture_predictions_there(params, mixture.component_weights, observations, mask, dtype)
    else:
        found = filter_mixture(mixture, given, reset_mask=reset_mask, lengths=lengths)
        before = predicted_before(found.first_observation, found.next_observation)
        terms_BT = found.log_likelihood_terms
    return MixturePredictions(blank(before, inside), blank(terms_BT, inside))


def _check_dtype(dtype: torch.dtype) -> None:
    good = isinstance(dtype, torch.dtype) and dtype in FLOORS
    require(good, "dtype", "must be torch.float64 or torch.float32", dtype)
