"""The Bayes-optimal prediction of each observation, for any process that has an exact answer."""

from dataclasses import dataclass

import torch

from hmmscope.axes import Float64, Int, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.fast import mixture_predictions
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.mixture import filter_mixture, predicted_before
from hmmscope.inference.urns import dirichlet_chain_predictions
from hmmscope.processes.base import Process
from hmmscope.processes.fresh import FreshHMMs, FreshMarkovChains
from hmmscope.processes.generalised import GeneralisedHMM
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.mixture import Mixture
from hmmscope.reprs import Shown

#: Up to this many components the posterior costs little beside the prediction.
_FEW_COMPONENTS = 512


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
    process: Process, observations: Int[Tensor, "batch time"], *, starts: object = None
) -> OptimalPredictions:
    """What the observer predicts who knows the process, but not the hidden path or component.

    Of a fresh pool of Markov chains the observer knows the law of the rows.

    Raises:
        InputError: a process without an exact answer; the message says why there is none.
    """
    if isinstance(process, HMM | LabelledHMM | GeneralisedHMM):
        single = filter_beliefs(process, observations, starts=starts)
        before = predicted_before(single.first_observation, single.next_observation)
        return OptimalPredictions(before, single.log_likelihood_terms, None)
    if isinstance(process, Mixture):
        mixed = filter_mixture(process, observations, starts=starts)
        before = predicted_before(mixed.first_observation, mixed.next_observation)
        return OptimalPredictions(before, mixed.log_likelihood_terms, mixed.component_posterior)
    if isinstance(process, FreshMarkovChains):
        before = dirichlet_chain_predictions(observations, process.num_symbols, process.concentration, starts=starts)
        seen = before.gather(2, torch.as_tensor(observations).long()[..., None])[..., 0]
        return OptimalPredictions(before, seen.log(), None)
    reason = f": {process.why_not}" if isinstance(process, FreshHMMs) else ""
    raise InputError(f"process: no exact filter for {type(process).__name__}{reason}")


def optimal_law(
    process: Process, observations: Int[Tensor, "batch time"], *, starts: object = None
) -> Float64[Tensor, "batch time symbol"]:
    """`optimal_predictions(...).predicted_observation`; of large mixtures without a posterior, in O(batch * time) memory."""
    if isinstance(process, Mixture) and len(process) > _FEW_COMPONENTS:
        found = mixture_predictions(process, observations, starts=starts, dtype=torch.float64)
        return found.predicted_observation
    return optimal_predictions(process, observations, starts=starts).predicted_observation
