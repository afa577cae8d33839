"""The exact Bayes predictor of Markov chains with Dirichlet rows (Pólya urns)."""

import torch

from hmmscope.axes import Float64, Int, Tensor
from hmmscope.processes.observations import check_observations
from hmmscope.schema import require
from hmmscope.sequences.encoding import Alphabet
from hmmscope.system_info import require_memory_on


def dirichlet_chain_predictions(
    observations: Int[Tensor, "batch time"], num_symbols: int, concentration: float, *, reset_mask: object = None
) -> Float64[Tensor, "batch time symbol"]:
    """Compute P(o_t | o_0..o_{t-1}) for a chain with independent Dirichlet(concentration, ..., concentration) rows.

    P(o_t = j | o_0..o_{t-1}) = (concentration + n_ij) / (V * concentration + sum_j n_ij),  i = o_{t-1}

    n_ij is the number of earlier transitions i -> j in the chain. At a sequence start the probability is 1/V.

    Source: the Pólya urn scheme; for in-context learning Edelman et al. 2024.

    Args:
        observations: symbols in [0, V), shape (batch, time), one chain for each row.
        num_symbols: number of symbols V.
        concentration: concentration of the Dirichlet rows, positive.
        reset_mask: (time,), True where a new sequence of the chain starts, or None.
    """
    require(concentration > 0, "concentration", "must be positive", concentration)
    observations, mask = check_observations(observations, Alphabet(None, num_symbols), reset_mask)
    batch, time = observations.shape
    require_memory_on(
        observations.device, "dirichlet_chain_predictions", 8 * batch * num_symbols * (time + num_symbols)
    )
    counts_BVV = torch.full(
        (batch, num_symbols, num_symbols), float(concentration), dtype=torch.float64, device=observations.device
    )
    predicted = counts_BVV.new_empty(batch, time, num_symbols)
    rows = torch.arange(batch, device=observations.device)
    for t in range(time):
        if mask[t]:
            predicted[:, t] = 1 / num_symbols
            continue
        before = observations[:, t - 1]
        urn_BV = counts_BVV[rows, before]
        predicted[:, t] = urn_BV / urn_BV.sum(1, keepdim=True)
        counts_BVV[rows, before, observations[:, t]] += 1
    return predicted
