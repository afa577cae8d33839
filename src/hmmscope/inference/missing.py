"""Missing observations: posterior distributions and samples."""

from functools import partial

import numpy as np
import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.inference.mixture_posterior import by_component
from hmmscope.inference.paths import sample_state_paths
from hmmscope.inference.ragged import blank, check_ragged, counted
from hmmscope.inference.smoothing import smooth_pairs
from hmmscope.processes.capabilities import COMPONENTS, GAPS
from hmmscope.processes.make import as_process
from hmmscope.processes.observations import Symbols
from hmmscope.processes.process import Process
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.gaps import MISSING


def missing_probs(
    hmm: Process | str, observations: Symbols, *, reset_mask: object = None, lengths: object = None
) -> Float64[Tensor, "batch time symbol"]:
    """Compute P(o_t = v | o), where o are all observed symbols; the result is one-hot if o_t is observed.

    State emissions:  P(o_t = v | o) = sum_i P(state t = i | o) emission[i, v]
    Edge emissions:   P(o_t = v | o) = sum_ij P(state t-1 = i, state t = j | o) labelled[v, i, j] / sum_u labelled[u, i,
    j]

    A mixture averages its components, weighted by P(component | all observations).

    Args:
        hmm, observations, reset_mask, lengths: See `hmmscope.smooth_beliefs`; `hmmscope.MISSING` marks missing symbols.

    Raises:
        InputError: As for `hmmscope.smooth_beliefs`.
        ResourceError: The edge-emission posteriors do not fit in memory.

    Returns:
        Probabilities (batch, time, symbol); zeros in padding and in sequences of probability zero.
    """
    hmm = as_process(hmm)
    hmm.require_capability(GAPS)
    if COMPONENTS in hmm.uses_hmm_inference:
        return by_component(hmm, observations, reset_mask, lengths).mean(missing_probs, hmm.num_symbols)
    checked, mask, inside = check_ragged(observations, hmm.alphabet, reset_mask, lengths)
    given = checked.masked_fill(checked == hmm.num_symbols, MISSING)
    found = smooth_pairs(hmm, given, reset_mask=mask, lengths=counted(inside))
    if hmm.params.states_emit:
        laws_BTV = found.beliefs @ hmm.params.symbols()[0]
    else:
        labelled_VSS = hmm.params.labelled_MVSS[0]
        first_VS = hmm.params.tables(0)[0]
        laws_BTV = found.beliefs @ _shares(first_VS).T
        after_VSS = _shares(labelled_VSS)
        moved_BTV = torch.einsum("btij,vij->btv", found.pairs, after_VSS)
        laws_BTV[:, 1:] = torch.where(mask[1:, None], laws_BTV[:, 1:], moved_BTV)
    seen_BTV = torch.nn.functional.one_hot(checked, hmm.num_symbols + 1)[..., : hmm.num_symbols].double()
    possible = (found.impossible_at < 0)[:, None, None]
    laws_BTV = torch.where((checked == hmm.num_symbols)[..., None], laws_BTV, seen_BTV * possible)
    return blank(laws_BTV, inside)


def _shares(joint: Float64[Tensor, " symbol *states"]) -> Float64[Tensor, " symbol *states"]:
    total = joint.sum(0)
    return torch.where(total > 0, joint / total.where(total > 0, 1.0), 0.0)


def sample_missing(
    hmm: Process | str,
    observations: Symbols,
    *,
    num_draws: int = 1,
    seed: int = 0,
    reset_mask: object = None,
    lengths: object = None,
) -> Int64[Tensor, "draw batch time"]:
    """Fill in missing observations with samples from their posterior given all observed symbols.

    states ~ P(states | o);  o_t ~ emission[state t], or labelled[:, state t-1, state t]

    Args:
        hmm, observations, reset_mask, lengths: See `missing_probs`.
        num_draws: Number of samples per sequence.
        seed: Seed in [0, 2^32).

    Returns:
        Symbols (draw, batch, time); -1 in padding and in sequences of probability zero.
    """
    hmm = as_process(hmm)
    hmm.require_capability(GAPS)
    if COMPONENTS in hmm.uses_hmm_inference:
        sample = partial(sample_missing, num_draws=num_draws)
        return by_component(hmm, observations, reset_mask, lengths).draw(sample, num_draws, seed, "component-of-gaps")
    checked, mask, inside = check_ragged(observations, hmm.alphabet, reset_mask, lengths)
    given = checked.masked_fill(checked == hmm.num_symbols, MISSING)
    states = sample_state_paths(
        hmm, given, num_paths=num_draws, seed=seed, reset_mask=mask, lengths=counted(inside)
    ).numpy()
    drawn = np.broadcast_to(checked.numpy(), states.shape).copy()
    drawn[states < 0] = -1
    for b, t in (checked == hmm.num_symbols).nonzero().tolist():
        alive = np.flatnonzero(states[:, b, t] >= 0)
        uniforms = numpy_generator(seed, "missing-observations", b * checked.shape[1] + t).random(num_draws)[alive]
        now = states[alive, b, t]
        if hmm.params.states_emit:
            laws = hmm.params.symbols()[0].numpy()[now]
        elif mask[t]:
            laws = hmm.params.tables(0)[0].numpy()[:, now].T
        else:
            laws = hmm.params.labelled_MVSS[0].numpy()[:, states[alive, b, t - 1], now].T
        cumulated = laws.cumsum(1)
        drawn[alive, b, t] = (cumulated <= uniforms[:, None] * cumulated[:, -1:]).sum(1)
    return torch.from_numpy(drawn)
