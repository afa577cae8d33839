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
from hmmscope.processes.answers import COMPONENTS, MEMORY, PREDICTIONS, Observed
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Observations, as_vectors, check_observations
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown

#: Up to this many components the posterior costs little beside the prediction.
_FEW_COMPONENTS = 512


def observe(
    process: Process | str, observations: Observations, *, starts: object = None, lengths: object = None
) -> Observed:
    """What the observer knows who knows the process, but not what is hidden: beliefs, predictions, log-likelihoods.

    Of one HMM the law "belief" of its states, of a generalised one its "vector", of a mixture the law "component"; a kind
    without such a law answers itself, by its method `observe`.

    Args:
        process: of any kind.
        observations: symbols in [0, V) (batch, time), or vectors (batch, time, coordinate), in which NaN is missing.
        starts: optional mask (time,), true where a new sequence begins; the first is true.
        lengths: optional, as for `filter_beliefs`; beyond the end of a shorter sequence everything is zero. Of processes
            that answer from a law of finitely many states.

    Raises:
        InputError: a process without an exact answer; the message says why there is none, and which kinds have one.
    """
    process = as_process(process)
    if PREDICTIONS not in process.by_law:
        if lengths is not None:
            raise InputError(f"lengths: a {type(process).__name__} is observed in sequences of one length here")
        if PREDICTIONS not in process.answered():
            raise process.lacks(PREDICTIONS)
        if process.real_valued:
            seen = as_vectors(observations, process.num_symbols)[0]
        else:
            seen, starts = check_observations(observations, process.alphabet, starts)
        return process.observe(seen, starts=starts)
    given, options, inside = given_again(observations, process.alphabet, starts, lengths)
    if COMPONENTS in process.by_law:
        mixed = filter_mixture(process, given, **options)
        before = blank(predicted_before(mixed.first_observation, mixed.next_observation), inside)
        laws = {"component": mixed.component_posterior}
        return Observed(before, mixed.next_observation, mixed.log_likelihood_terms, laws)
    found = _observed(process, filter_beliefs(process, given, **options))
    return replace(found, predicted_observation=blank(found.predicted_observation, inside))


def observe_with_memory(process: Process, observations: Tensor, memory_length: int) -> Observed:
    """`observe` by an observer who keeps the last `memory_length` observations, see `memory_beliefs`.

    Raises:
        InputError: as `memory_beliefs`; a kind of process that has no such answer.
    """
    if MEMORY not in process.by_law:
        return process.remember(observations, memory_length)
    return _observed(process, memory_beliefs(process, observations, memory_length))


def _observed(process: Process, found: FilterResult) -> Observed:
    before = predicted_before(found.first_observation, found.next_observation)
    laws, vectors = ({}, {"vector": found.beliefs}) if process.law.signed else ({"belief": found.beliefs}, {})
    return Observed(before, found.next_observation, found.log_likelihood_terms, laws, vectors)


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
    process: Process | str, observations: Observations, *, starts: object = None, lengths: object = None
) -> OptimalPredictions:
    """What the observer predicts who knows the process, but not the hidden path or component.

    Of a fresh pool of Markov chains the observer knows the law of the rows.

    Args:
        process, observations, starts, lengths: as for `observe`.

    Raises:
        InputError: a process without an exact answer; the message says why there is none.
    """
    found = observe(process, observations, starts=starts, lengths=lengths)
    return OptimalPredictions(found.predicted_observation, found.log_likelihood_terms, found.laws.get("component"))


def optimal_law(
    process: Process, observations: Int[Tensor, "batch time"], *, starts: object = None
) -> Float64[Tensor, "batch time symbol"]:
    """`optimal_predictions(...).predicted_observation`; of large mixtures without a posterior, in O(batch * time) memory."""
    if COMPONENTS in process.by_law and len(process.weights_M) > _FEW_COMPONENTS:
        found = mixture_predictions(process, observations, starts=starts, dtype=torch.float64)
        return found.predicted_observation
    return optimal_predictions(process, observations, starts=starts).predicted_observation
