"""What the ideal observer knows and predicts, for any process that has an exact answer."""

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

#: Up to this many components the posterior costs little beside the prediction.
_FEW_COMPONENTS = 512


def observe(
    process: Process | str, observations: Observations, *, reset_mask: object = None, lengths: object = None
) -> ObserverOutput:
    """What the observer knows who knows the process, but not what is hidden: beliefs, predictions, log-likelihoods.

    Of one HMM the law "belief" of its states, of a generalised one its "vector", of a mixture the law "component"; a kind
    without such a law answers itself, by its method `observe`.

    Args:
        process: of any kind.
        observations: symbols in [0, V) (batch, time), or vectors (batch, time, coordinate), in which NaN is missing.
        reset_mask: optional mask (time,), true where a new sequence begins; the first is true.
        lengths: optional, as for `filter_beliefs`; beyond the end of a shorter sequence everything is zero. Of processes
            that answer from a law of finitely many states.

    Raises:
        InputError: a process without an exact answer; the message says why there is none, and which kinds have one.
    """
    process = as_process(process)
    if PREDICTIONS not in process.uses_hmm_inference:
        if lengths is not None:
            raise InputError(f"lengths: a {type(process).__name__} is observed in sequences of one length here")
        if PREDICTIONS not in process.capabilities():
            raise process.missing_capability_error(PREDICTIONS)
        if process.real_valued:
            seen = as_vectors(observations, process.num_symbols)[0]
        else:
            seen, reset_mask = check_observations(observations, process.alphabet, reset_mask)
        return process.observe(seen, reset_mask=reset_mask)
    given, options, inside = given_again(observations, process.alphabet, reset_mask, lengths)
    if COMPONENTS in process.uses_hmm_inference:
        mixed = filter_mixture(process, given, **options)
        before = blank(predicted_before(mixed.first_observation, mixed.next_observation), inside)
        laws = {"component": mixed.component_posterior}
        return ObserverOutput(before, mixed.next_observation, mixed.log_likelihood_terms, laws)
    found = _observed(process, filter_beliefs(process, given, **options))
    return replace(found, predicted_observation=blank(found.predicted_observation, inside))


def observe_with_memory(process: Process, observations: Tensor, memory_length: int) -> ObserverOutput:
    """`observe` by an observer who keeps the last `memory_length` observations, see `memory_beliefs`.

    Raises:
        InputError: as `memory_beliefs`; a kind of process that has no such answer.
    """
    if MEMORY not in process.uses_hmm_inference:
        return process.fixed_memory_predictions(observations, memory_length)
    return _observed(process, memory_beliefs(process, observations, memory_length))


def _observed(process: Process, found: FilterResult) -> ObserverOutput:
    before = predicted_before(found.first_observation, found.next_observation)
    laws, vectors = ({}, {"vector": found.beliefs}) if process.params.signed else ({"belief": found.beliefs}, {})
    return ObserverOutput(before, found.next_observation, found.log_likelihood_terms, laws, vectors)


@dataclass(frozen=True, repr=False)
class OptimalPredictions(Shown):
    """The best that any predictor can do.

    Attributes:
        predicted_observation: P(o_t | o_0..o_{t-1}) (batch, time, symbol).
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}) (batch, time), nats.
        component_posterior: P(component | o_0..o_t) (batch, time, component); None for a single process.
    """

    predicted_observation: Float64[Tensor, "batch time symbol"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    component_posterior: Float64[Tensor, "batch time component"] | None


def optimal_predictions(
    process: Process | str, observations: Observations, *, reset_mask: object = None, lengths: object = None
) -> OptimalPredictions:
    """What the observer predicts who knows the process, but not the hidden path or component.

    Of a fresh pool of Markov chains the observer knows the law of the rows.

    Args:
        process, observations, reset_mask, lengths: as for `observe`.

    Raises:
        InputError: a process without an exact answer; the message says why there is none.
    """
    found = observe(process, observations, reset_mask=reset_mask, lengths=lengths)
    return OptimalPredictions(found.predicted_observation, found.log_likelihood_terms, found.probs.get("component"))


def optimal_probs(
    process: Process, observations: Int[Tensor, "batch time"], *, reset_mask: object = None
) -> Float64[Tensor, "batch time symbol"]:
    """`optimal_predictions(...).predicted_observation`; of large mixtures without a posterior, in O(batch * time) memory."""
    if COMPONENTS in process.uses_hmm_inference and len(process.component_weights) > _FEW_COMPONENTS:
        found = mixture_predictions(process, observations, reset_mask=reset_mask, dtype=torch.float64)
        return found.predicted_observation
    return optimal_predictions(process, observations, reset_mask=reset_mask).predicted_observation
