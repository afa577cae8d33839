"""Forward filter in O(log time) depth by an associative scan of step matrices.

A product of matrices is stored as rows that sum to 1 and the logarithm of each row's scale.

Source: Blelloch (1990) for the scan; Särkkä and García-Fernández (2021).
"""

import torch

from hmmscope.axes import Tensor
from hmmscope.inference.filtering import FilterResult, filter_beliefs, first_impossible
from hmmscope.inference.mixture_posterior import predicted_before
from hmmscope.inference.ragged import blank, check_ragged, seen_terms
from hmmscope.processes.capabilities import WORDS
from hmmscope.processes.observations import Symbols
from hmmscope.processes.params import seeing, symbol_probs
from hmmscope.processes.process import Process
from hmmscope.sequences.gaps import MISSING
from hmmscope.system_info import require_memory

#: Smaller positive entries of a product may underflow.
RISKY = 1e-100


def scan_beliefs(
    hmm: Process, observations: Symbols, *, reset_mask: object = None, lengths: object = None
) -> FilterResult:
    """Compute the beliefs of `filter_beliefs` in about 2 log2(time) batched matrix products.

    If a product has a positive entry below 1e-100, its sequence is filtered step by step instead.

    Args:
        hmm: HMM with S states and V symbols.
        observations, reset_mask, lengths: See `filter_beliefs`.

    Raises:
        InputError: A symbol, `reset_mask` or `lengths` is invalid.
        ResourceError: The products do not fit in memory.

    Cost: O(batch * time * S^3).
    """
    hmm.require_capability(WORDS)
    checked, mask, inside = check_ragged(observations, hmm.alphabet, reset_mask, lengths)
    batch, time = checked.shape
    size, params = hmm.num_states, seeing(hmm.params, checked)
    require_memory("scan_beliefs", 8 * 4 * batch * time * size**2)
    first_VS, step_VSS = params.tables(0)[0], params.arrivals()
    # The first step of a sequence forgets the past: its rows are equal. Time is the first axis of the scan.
    steps_TBSS = torch.where(mask[:, None, None, None], first_VS[checked.T][:, :, None], step_VSS[checked.T])
    rows, _, risky_TB = _scan(*_normalised(steps_TBSS), torch.zeros(time, batch, dtype=torch.bool))
    beliefs = rows[:, :, 0].transpose(0, 1)
    following = params.transition(beliefs).clone()
    begins = torch.cat([mask[1:], mask.new_zeros(1)])[:time]
    possible = beliefs.any(-1, keepdim=True)
    following = torch.where(begins[:, None], params.initial_MS * possible, following)
    symbols_SV = symbol_probs(params)[0]
    next_observation = following @ symbols_SV
    before = predicted_before(params.initial_MS[0] @ symbols_SV, next_observation)
    terms_BT = seen_terms(before, checked)
    values = [beliefs, next_observation, terms_BT]
    again = risky_TB.any(0).nonzero()[:, 0]
    if len(again):
        given = checked[again].masked_fill(checked[again] == hmm.num_symbols, MISSING)
        exact = filter_beliefs(hmm, given, reset_mask=mask)
        exact_values = exact.beliefs, exact.next_observation, exact.log_likelihood_terms
        for value, other in zip(values, exact_values, strict=True):
            value[again] = other
    beliefs, next_observation, terms_BT = (blank(value, inside) for value in values)
    return FilterResult(
        beliefs=beliefs,
        next_observation=next_observation,
        first_observation=params.initial_MS[0] @ symbols_SV,
        log_likelihood=terms_BT.sum(1),
        log_likelihood_terms=terms_BT,
        impossible_at=first_impossible(terms_BT),
    )


def _normalised(products: Tensor) -> tuple[Tensor, Tensor]:
    sums = products.sum(-1)
    rows = torch.where(sums[..., None] > 0, products / sums[..., None], 0.0)
    log_scale = sums.log()
    largest = log_scale.amax(-1, keepdim=True)
    return rows, torch.where(largest > -torch.inf, log_scale - largest, -torch.inf)


def _scan(rows: Tensor, log_scale: Tensor, risky: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if len(rows) <= 1:
        return rows, log_scale, risky
    even, odd = slice(0, len(rows) - 1, 2), slice(1, None, 2)
    pairs = _combine((rows[even], log_scale[even], risky[even]), (rows[odd], log_scale[odd], risky[odd]))
    scanned = _scan(*pairs)
    rest = slice(2, None, 2)  # elements 2, 4, .. multiply products 1, 3, ..
    count = len(rows[rest])
    filled = _combine(
        (scanned[0][:count], scanned[1][:count], scanned[2][:count]), (rows[rest], log_scale[rest], risky[rest])
    )
    merged = []
    for single, odd_part, even_part in zip((rows, log_scale, risky), scanned, filled, strict=True):
        whole = torch.empty_like(single)
        whole[0], whole[odd], whole[rest] = single[0], odd_part, even_part
        merged.append(whole)
    return merged[0], merged[1], merged[2]


def _combine(one: tuple[Tensor, Tensor, Tensor], two: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    weights = one[0].log() + two[1][..., None, :]  # log(row_ik * scale_k)
    largest = weights.amax(-1, keepdim=True)
    shares = torch.where(largest > -torch.inf, weights - largest, -torch.inf)
    product = shares.exp() @ two[0]
    sums = product.sum(-1)
    rows = torch.where(sums[..., None] > 0, product / sums[..., None], 0.0)
    log_scale = one[1] + largest[..., 0].where(sums > 0, 0.0) + sums.log()
    top = log_scale.amax(-1, keepdim=True)
    log_scale = torch.where(top > -torch.inf, log_scale - top, -torch.inf)
    tiny = ((rows > 0) & (rows < RISKY)).flatten(-2).any(-1)
    lost = ((shares > -torch.inf) & (shares.exp() < RISKY)).flatten(-2).any(-1)
    return rows, log_scale, one[2] | two[2] | tiny | lost
