"""Exact inference in a mixture of HMMs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int, Int64, Tensor
from hmmscope.inference.filtering import first_impossible, stacked
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.pools import run_mixture
from hmmscope.inference.ragged import blank, check_ragged, counted, given_again, integers_of, silent
from hmmscope.processes.capabilities import COMPONENTS
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Symbols
from hmmscope.processes.params import HMMParams, seeing, symbol_probs
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.seeds import numpy_generator
from hmmscope.system_info import free_on, require_memory, require_memory_on

#: Working memory of one chunk of sequences, about the cache size.
CHUNK_BYTES = 2**23


@dataclass(frozen=True, repr=False)
class MixtureResult(Shown):
    """Posterior and predictions of the Bayes-optimal in-context learner; entries in padding are zero.

    Attributes:
        component_posterior: P(component | o_0..o_t) (batch, time, component).
        next_observation: P(o_{t+1} | o_0..o_t) (batch, time, symbol).
        first_observation: P(o_0) (symbol,).
        log_likelihood: log P(o_0..o_{T-1}) (batch,), in nats; -inf if impossible.
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}) (batch, time).
        impossible_at: First t at which o_0..o_t has probability zero (batch,), or -1.
    """

    component_posterior: Float64[Tensor, "batch time component"]
    next_observation: Float64[Tensor, "batch time symbol"]
    first_observation: Float64[Tensor, " symbol"]
    log_likelihood: Float64[Tensor, " batch"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    impossible_at: Int64[Tensor, " batch"]


def filter_mixture(
    mixture: Process | str, observations: Symbols, *, reset_mask: object = None, lengths: object = None
) -> MixtureResult:
    """Compute the posterior over components and the Bayes-optimal prediction after each observation.

    P(m | o_0..o_t) ∝ weights[m] * P_m(o_0..o_t)
    P(o_{t+1} | o_0..o_t) = sum_m P(m | o_0..o_t) * P_m(o_{t+1} | o_0..o_t)

    Args:
        mixture: Mixture of M components with S states and V symbols.
        observations, lengths: See `filter_beliefs`.
        reset_mask: True where a new sequence of the same component starts, such as a demonstration in a prompt (time,).

    Raises:
        InputError: A symbol, `reset_mask` or `lengths` is invalid.
        ResourceError: The result does not fit in memory.

    Cost: O(batch * time * M * S^2).
    """
    mixture = as_process(mixture)
    mixture.require_capability(COMPONENTS)
    observations, mask, inside = check_ragged(observations, mixture.alphabet, reset_mask, lengths)
    batch, time = observations.shape
    num_components = len(mixture.component_weights)
    device = observations.device
    require_memory_on(device, "filter_mixture", 8 * batch * time * (num_components + mixture.num_symbols))
    params, weights_M = seeing(mixture.params_on(device), observations), mixture.component_weights.to(device)
    first = torch.einsum("m,ms,msv->v", weights_M, params.initial_MS, symbol_probs(params))
    if device.type == "cpu":
        found = run_mixture(params, weights_M, observations, mask, counted(inside), posterior=True)
        posterior, following, terms_BT = (torch.from_numpy(part) for part in found)
    else:
        posterior = params.initial_MS.new_zeros(batch, time, num_components)
        following = params.initial_MS.new_zeros(batch, time, mixture.num_symbols)
        terms_BT = params.initial_MS.new_zeros(batch, time)
        chunk = max(1, free_on(device) // 2 // (8 * 6 * num_components * mixture.num_states))
        for begin in range(0, batch, chunk):
            part = slice(begin, begin + chunk)
            _filter_chunk(params, weights_M, observations[part], mask, posterior[part], following[part], terms_BT[part])
        terms_BT = silent(terms_BT, observations, params.num_symbols)
        posterior, following, terms_BT = (blank(part, inside) for part in (posterior, following, terms_BT))
    return MixtureResult(posterior, following, first, terms_BT.sum(1), terms_BT, first_impossible(terms_BT))


def components_known(
    mixture: Process, observations: Symbols, *, reset_mask: object = None, lengths: object = None
) -> Float64[Tensor, "batch component"]:
    found = filter_mixture(mixture, observations, reset_mask=reset_mask, lengths=lengths)
    counts_B = found.component_posterior.any(2).sum(1)
    rows_B = torch.arange(len(counts_B), device=counts_B.device)
    last_BM = found.component_posterior[rows_B, counts_B - 1] if found.component_posterior.shape[1] else None
    weights_M = mixture.component_weights.to(counts_B.device)
    shares_BM = weights_M.expand(len(counts_B), -1) if last_BM is None else last_BM
    shares_BM = torch.where((counts_B == 0)[:, None], weights_M, shares_BM)
    return shares_BM * (found.impossible_at < 0)[:, None]


class PerComponentRequest(NamedTuple):
    """Sequences to evaluate under each component of a mixture.

    Attributes:
        mixture: Mixture of M components.
        observations: Symbols, with `MISSING` where missing (batch, time).
        options: `reset_mask` and `lengths` of `filter_beliefs`.
        weights: P(component | all observations) (batch, component).
    """

    mixture: Process
    observations: Int64[Tensor, "batch time"]
    options: dict[str, Any]
    weights: Float64[Tensor, "batch component"]

    @property
    def likely(self) -> list[int]:
        found: list[int] = self.weights.any(0).nonzero()[:, 0].tolist()
        return found

    def mean(self, answer: Callable[..., Tensor], width: int) -> Float64[Tensor, "batch time entry"]:
        """Average the answers (batch, time, `width`) for the components."""
        found = self.weights.new_zeros(*self.observations.shape, width)
        for number in self.likely:
            own = answer(self.mixture.component(number), self.observations, **self.options)
            found += self.weights[:, number, None, None] * own
        return found

    def draw(
        self,
        sample: Callable[..., Tensor],
        num_draws: int,
        seed: int,
        stream: str,
        numbers: Iterable[int] | None = None,
    ) -> Int64[Tensor, "draw batch time"]:
        """Draw components, then from the sampler of each; -1 in sequences of probability zero."""
        whose = torch.from_numpy(drawn_components(self.weights, num_draws, seed, stream, numbers))
        found = torch.full((num_draws, *self.observations.shape), -1)
        for number in self.likely:
            own = sample(self.mixture.component(number), self.observations, seed=seed, **self.options)
            found = torch.where((whose == number)[..., None], own, found)
        return found


def by_component(mixture: Process, observations: Symbols, reset_mask: object, lengths: object) -> PerComponentRequest:
    given, options, _ = given_again(observations, mixture.alphabet, reset_mask, lengths)
    return PerComponentRequest(mixture, given, options, components_known(mixture, given, **options))


def drawn_components(
    shares_BM: Float64[Tensor, "batch component"],
    num_draws: int,
    seed: int,
    stream: str,
    numbers: Iterable[int] | None = None,
) -> NDArray[np.int64]:
    require_memory("num_draws", 24 * num_draws * len(shares_BM))
    drawn = np.zeros((num_draws, len(shares_BM)), np.int64)
    rows = shares_BM.cpu().numpy().cumsum(1)
    for b, (number, cumulated) in enumerate(zip(numbers or range(len(rows)), rows, strict=True)):
        target = numpy_generator(seed, stream, number).random(num_draws) * cumulated[-1]
        drawn[:, b] = (cumulated > target[:, None]).argmax(1) if cumulated[-1] > 0 else -1
    return drawn


def _filter_chunk(
    params: HMMParams,
    weights_M: Tensor,
    observations: Tensor,
    mask: Tensor,
    posterior: Tensor,
    following: Tensor,
    terms_BT: Tensor,
) -> None:
    log_weight_MB = weights_M.log()[:, None].expand(-1, len(observations))
    symbols_MSV = symbol_probs(params)
    for t, step in enumerate(forward_steps(params, observations[None], mask)):
        log_weight_MB = log_weight_MB + step.log_norm
        total_B = torch.logsumexp(log_weight_MB, 0)
        terms_BT[:, t] = total_B
        possible_B = total_B > -torch.inf
        log_weight_MB = torch.where(possible_B, log_weight_MB - total_B.where(possible_B, 0.0), -torch.inf)
        posterior_MB = log_weight_MB.exp()
        posterior[:, t] = posterior_MB.T
        weighted_MBS = posterior_MB[..., None] * step.next_probs
        following[:, t] = torch.bmm(weighted_MBS, symbols_MSV).sum(0)


@dataclass(frozen=True, repr=False)
class KnownComponentResult(Shown):
    """Result of filtering each sequence under its known mixture component.

    Attributes:
        beliefs: P(state t | o_0..o_t, component) (batch, time, state).
        predicted_observation: P(o_t | o_0..o_{t-1}, component) (batch, time, symbol).
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}, component) (batch, time).
    """

    beliefs: Float64[Tensor, "batch time state"]
    predicted_observation: Float64[Tensor, "batch time symbol"]
    log_likelihood_terms: Float64[Tensor, "batch time"]


def filter_known_component(
    mixture: Process | str,
    observations: Symbols,
    components: Int[Tensor, " batch"],
    *,
    reset_mask: object = None,
    lengths: object = None,
) -> KnownComponentResult:
    """Filter each sequence under its true component; on average no in-context learner predicts better.

    Args:
        mixture: Mixture of M components.
        observations: Symbols (batch, time).
        components: Component of each sequence (batch,), in [0, M).
        reset_mask, lengths: See `filter_mixture`.
    """
    mixture = as_process(mixture)
    observations, mask, inside = check_ragged(observations, mixture.alphabet, reset_mask, lengths)
    num_components = len(mixture.component_weights)
    components = integers_of("components", components, len(observations), num_components).to(observations.device)
    params = seeing(mixture.params_on(observations.device).select(components), observations)
    steps = list(forward_steps(params, observations[:, None], mask))
    terms_BT = stacked([step.log_norm[:, 0] for step in steps], observations.shape, params)
    before_BTS = torch.stack([params.initial_MS, *(step.next_probs[:, 0] for step in steps)], 1)[:, :-1]
    return KnownComponentResult(
        beliefs=blank(
            stacked([step.belief[:, 0] for step in steps], (*observations.shape, mixture.num_states), params), inside
        ),
        predicted_observation=blank(torch.bmm(before_BTS, symbol_probs(params)), inside),
        log_likelihood_terms=blank(silent(terms_BT, observations, params.num_symbols), inside),
    )


def predicted_before(
    first_observation: Float64[Tensor, " symbol"], next_observation: Float64[Tensor, "batch time symbol"]
) -> Float64[Tensor, "batch time symbol"]:
    """Return P(o_t | o_0..o_{t-1}), the predictions `next_observation` shifted by one step."""
    first = first_observation.expand(len(next_observation), 1, -1)
    return torch.cat([first, next_observation], 1)[:, :-1]
