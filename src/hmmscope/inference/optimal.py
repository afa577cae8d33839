"""Bayes-optimal beliefs and predictions of any process with exact inference."""

from dataclasses import dataclass, replace

import torch

from hmmscope.axes import Float64, Int, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.fast import mixture_predictions
from hmmscope.inference.filtering import FilterResult, filter_beliefs
from hmmscope.inference.memory import memory_beliefs
from hmmscope.inference.mixture_posterior import filter_mixture, predicted_before
from hmmscope.inference.ragged import blank, given_again
from hmmscope.processes.capabilities import COMPONENTS, MEMORY, PREDICTIONS, ObserverOutput
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Observations, as_vectors, check_observations
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown

#: Largest number of components for which the posterior adds little cost.
_FEW_COMPONENTS = 512


def observe(
    process: Process | str, observations: Observations, *, reset_mask: object = None, lengths: object = None
) -> ObserverOutput:
    """Compute the beliefs, predictions and log-likelihoods of the Bayes-optimal observer.

    The result has the belief in `probs["belief"]` for an HMM and `vectors["vector"]` for a generalised HMM, and the
    component posterior in `probs["component"]` for a mixture. Other processes use other names.

    Args:
        process: Any process.
        observations: Symbols in [0, V) (batch, time), or vectors (batch, time, coordinate), NaN where missing.
        reset_mask, lengths: See `filter_beliefs`.

    Raises:
        InputError: The process has no exact inference.
    """
    process = as_process(process)
    if PREDICTIONS not in process.uses_hmm_inference:
        if lengths is not None:
            raise InputError(f"lengths: must be omitted for a {type(process).__name__}; pass sequences of equal length")
        if PREDICTIONS not in process.capabilities():
            raise process.missing_capability_error(PREDICTIONS)
        if process.real_valued:
            seen = as_vectors(observations, process.num_symbols, read_options=process.read_options)[0]
        else:
            gaps = process.observes_gaps
            seen, reset_mask = check_observations(observations, process.alphabet, reset_mask, gaps=gaps)
        return process.observe(seen, reset_mask=reset_mask)
    given, options, inside = given_again(observations, process.alphabet, reset_mask, lengths)
    if COMPONENTS in process.uses_hmm_inference:
        mixed = filter_mixture(process, given, **options)
        before = blank(predicted_before(mixed.first_observation, mixed.next_observation), inside)
        probs = {"component": mixed.component_posterior}
        return ObserverOutput(before, mixed.next_observation, mixed.log_likelihood_terms, probs)
    found = _observed(process, filter_beliefs(process, given, **options))
    return replace(found, predicted_observation=blank(found.predicted_observation, inside))


def observe_with_memory(process: Process, observations: Tensor, memory_length: int) -> ObserverOutput:
    """Run `observe` on only the last `memory_length` observations; see `memory_beliefs`."""
    if MEMORY not in process.uses_hmm_inference:
        return process.fixed_memory_predictions(observations, memory_length)
    return _observed(process, memory_beliefs(process, observations, memory_length))


def _observed(process: Process, found: FilterResult) -> ObserverOutput:
    before = predicted_before(found.first_observation, found.next_observation)
    laws, vectors = ({}, {"vector": found.beliefs}) if process.params.signed else ({"belief": found.beliefs}, {})
    return ObserverOutput(before, found.next_observation, found.log_likelihood_terms, laws, vectors)


@dataclass(frozen=True, repr=False)
class OptimalPredictions(Shown):
    """Bayes-optimal predictions.

    Attributes:
        predicted_observation: P(o_t | o_0..o_{t-1}) (batch, time, symbol).
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}), in nats.
        component_posterior: P(component | o_0..o_t) (batch, time, component); None for a single process.
    """

    predicted_observation: Float64[Tensor, "batch time symbol"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    component_posterior: Float64[Tensor, "batch time component"] | None


def optimal_predictions(
    process: Process | str, observations: Observations, *, reset_mask: object = None, lengths: object = None
) -> OptimalPredictions:
    """Predict with the Bayes-optimal predictor, which knows the process but not its hidden states.

    Args:
        process, observations, reset_mask, lengths: See `observe`.

    Raises:
        InputError: The process has no exact inference.
    """
    found = observe(process, observations, reset_mask=reset_mask, lengths=lengths)
    return OptimalPredictions(found.predicted_observation, found.log_likelihood_terms, found.probs.get("component"))


def optimal_probs(
    process: Process, observations: Int[Tensor, "batch time"], *, reset_mask: object = None
) -> Float64[Tensor, "batch time symbol"]:
    """Return the Bayes-optimal P(o_t | o_0..o_{t-1}) (batch, time, symbol), in O(batch * time) memory."""
    if COMPONENTS in process.uses_hmm_inference and len(process.component_weights) > _FEW_COMPONENTS:
        found = mixture_predictions(process, observations, reset_mask=reset_mask, dtype=torch.float64)
        return found.predicted_observation
    return optimal_predictions(process, observations, reset_mask=reset_mask).predicted_observation
