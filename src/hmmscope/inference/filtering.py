"""Forward filter: belief states and predictions of one HMM."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.compiled import run_filter
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.known_states import condition
from hmmscope.inference.ragged import blank, check_own, check_ragged, counted, silent
from hmmscope.processes.capabilities import BELIEFS, WORDS
from hmmscope.processes.generalised import without_rounding
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Observations
from hmmscope.processes.params import ROUNDING, HMMParams, seeing, symbol_probs
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require_bool


@dataclass(frozen=True, repr=False)
class FilterResult(Shown):
    """Result of the forward filter; entries in padding are zero.

    Attributes:
        beliefs: P(state t | o_0..o_t) (batch, time, state).
        next_observation: P(o_{t+1} | o_0..o_t) (batch, time, symbol).
        first_observation: P(o_0) (symbol,).
        log_likelihood: log P(o_0..o_{T-1}) (batch,), in nats; -inf if impossible.
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}) (batch, time); -inf from `impossible_at` on.
        impossible_at: First t at which o_0..o_t has probability zero (batch,), or -1; beliefs from t on are zero.
    """

    beliefs: Float64[Tensor, "batch time state"]
    next_observation: Float64[Tensor, "batch time symbol"]
    first_observation: Float64[Tensor, " symbol"]
    log_likelihood: Float64[Tensor, " batch"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    impossible_at: Int64[Tensor, " batch"]


def filter_beliefs(
    hmm: Process | str,
    observations: Observations,
    *,
    reset_mask: object = None,
    strict: bool = False,
    lengths: object = None,
    known_states: Any = None,
    inputs: Any = None,
) -> FilterResult:
    """Compute the belief state (filtered posterior) after each observation, in float64.

    belief_0 ∝ emission[:, o_0] * initial;  belief_t ∝ emission[:, o_t] * (belief_{t-1} @ transition)

    In a labelled HMM, state t follows observation t:

    belief_0 ∝ initial @ labelled[o_0];  belief_t ∝ belief_{t-1} @ labelled[o_t]

    The belief of a `GeneralisedHMM` is a predictive vector: its entries sum to one, but may be negative. Observation
    probabilities below 1e-12 count as zero.

    Source: [Limits] Eq. (A.3), transposed to row-stochastic matrices.

    Args:
        hmm: HMM with S states and V symbols; states or transitions emit.
        observations: Symbols in [0, V), shape (batch, time); or vectors (batch, time, coordinate), NaN where missing.
        reset_mask: True where a new sequence starts (time,); the first entry is true.
        strict: True raises InputError for a sequence of probability zero.
        lengths: Number of observations of each sequence (batch,). A single column (time, 1) is cut into sequences of
            these lengths, as in hmmlearn.
        known_states: Known states, or sets of allowed states, see `hmmscope.inference.known_states.as_allowed`.
            Beliefs at t are conditional on the known states up to t; the likelihood is joint with all of them.
        inputs: Inputs of an `InputOutputHMM` (batch, time); predictions are NaN, because the next input is unknown.

    Raises:
        InputError: A symbol, `reset_mask` or `lengths` is invalid, or with `strict` a prefix has probability zero.

    Cost: O(batch * time * S^2).
    """
    hmm = as_process(hmm)
    if known_states is not None or inputs is not None:
        given = condition(hmm, observations, known_states, inputs=inputs, reset_mask=reset_mask, lengths=lengths)
        found = filter_beliefs(given.process, given.observations, strict=strict, **given.options)
        if inputs is not None:
            unknown = torch.full((*found.beliefs.shape[:2], hmm.num_symbols), torch.nan, dtype=torch.float64)
            return replace(
                found, next_observation=unknown, first_observation=unknown.new_full((hmm.num_symbols,), torch.nan)
            )
        return found if hmm.real_valued else _predicting(found, hmm, given.options["reset_mask"])
    if hmm.real_valued:
        return _of_vectors(hmm, observations, reset_mask, lengths)
    hmm.require_capability(WORDS)
    observations, mask, inside = check_ragged(observations, hmm.alphabet, reset_mask, lengths)
    params = seeing(hmm.params_on(observations.device), observations)
    symbols_SV = symbol_probs(params)[0]
    if observations.device.type == "cpu":
        filtered = run_filter(params, observations, mask, counted(inside), predict=True)
        beliefs, following, terms_BT = (
            torch.from_numpy(part) for part in (filtered.beliefs, filtered.predictive, filtered.terms)
        )
    else:
        steps = list(forward_steps(params, observations[None], mask))
        terms_BT = blank(stacked([step.log_norm[0] for step in steps], observations.shape, params), inside)
        terms_BT = silent(terms_BT, observations, params.num_symbols)
        shape = (*observations.shape, hmm.num_states)
        beliefs = blank(stacked([step.belief[0] for step in steps], shape, params), inside)
        predicted = [step.next_probs[0] @ symbols_SV for step in steps]
        following = blank(stacked(predicted, (*observations.shape, hmm.num_symbols), params), inside)
    if params.signed:
        never_BT = ~(terms_BT >= math.log(ROUNDING)).cummin(1).values
        terms_BT = terms_BT.masked_fill(never_BT & inside, -torch.inf)
        beliefs, following = (x.masked_fill(never_BT[..., None], 0.0) for x in (beliefs, following))
        following = without_rounding(following)
    impossible_at = first_impossible(terms_BT)
    require_bool("strict", strict)
    if strict and (impossible_at >= 0).any():
        b = int((impossible_at >= 0).nonzero()[0])
        raise InputError(f"observations[{b}, {int(impossible_at[b])}]: the sequence up to here has probability zero")
    first_V = params.initial_MS[0] @ symbols_SV
    return FilterResult(beliefs, following, first_V, terms_BT.sum(1), terms_BT, impossible_at)


def _predicting(found: FilterResult, hmm: Process, mask_T: Tensor) -> FilterResult:
    params = hmm.params
    first_V = params.initial_MS[0] @ symbol_probs(params)[0]
    following = found.beliefs @ params.predictive_in(0)
    anew_T = torch.cat([mask_T[1:], mask_T.new_zeros(1)])
    following[:, anew_T] = first_V * found.beliefs[:, anew_T].any(-1, keepdim=True)
    return replace(found, next_observation=following, first_observation=first_V)


def _of_vectors(hmm: Process, observations: object, reset_mask: object, lengths: object) -> FilterResult:
    vectors, inside = check_own(hmm, observations, lengths)
    found = hmm.observe(vectors, reset_mask=reset_mask)
    if found.belief is None:
        raise hmm.missing_capability_error(BELIEFS)
    parts = found.belief, found.next_observation, found.log_likelihood_terms
    beliefs, ahead, terms = (blank(part, inside) for part in parts)
    first = found if vectors.numel() else hmm.observe(vectors.new_zeros(1, 1, vectors.shape[-1]))
    return FilterResult(beliefs, ahead, first.predicted_observation[0, 0], terms.sum(1), terms, first_impossible(terms))


def first_impossible(log_likelihood_terms: Float64[Tensor, "batch time"]) -> Int64[Tensor, " batch"]:
    if not log_likelihood_terms.numel() or bool(log_likelihood_terms.amin() > -torch.inf):
        return log_likelihood_terms.new_full(log_likelihood_terms.shape[:1], -1, dtype=torch.int64)
    impossible = log_likelihood_terms == -torch.inf
    found = impossible.any(1)
    return torch.where(found, impossible.to(torch.int8).argmax(1), -1)


def stacked(steps: list[Tensor], shape: tuple[int, ...], law: HMMParams) -> Tensor:
    return torch.stack(steps, 1) if steps else law.initial_MS.new_zeros(shape)
