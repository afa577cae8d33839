"""The filter and the smoother for many states: one matrix product a step, one compiled pass between two of them."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Int64, Tensor
from hmmscope.inference.loop_inputs import Sequences, Tables
from hmmscope.kernels.filter_passes import absorb

#: (least sum, least positive entry) of a law that is in no doubt. In float32 only what vanishes in one step is noticed.
FLOORS = {np.dtype(np.float64): (0.0, 1e-100), np.dtype(np.float32): (1e-25, 0.0)}


def products_forward(
    process: Tables,
    observations_BT: Int64[Tensor, "batch time"],
    starts: NDArray[np.bool_],
    norms: NDArray[np.float64],
    doubtful: NDArray[np.bool_],
    beliefs: NDArray[np.floating] | None = None,
) -> Iterator[tuple[int, NDArray[np.floating]]]:
    """Each t with the beliefs (batch, state) after it, valid until the next step, zeros where impossible.

    Writes P(o_t | past) to norms (time, batch), marks the sequences that are in doubt, and keeps all beliefs (batch, time,
    state) if given the array.
    """
    floor, smallest = FLOORS[process.first.dtype]
    doubtful |= any(bool(((part > 0) & (part < smallest)).any()) for part in (process.step, process.emission))
    symbols_TB = observations_BT.T.contiguous()
    first_VS, transition_SS = torch.from_numpy(process.first), torch.from_numpy(process.step[0])
    certain_VS = np.ones_like(process.first)
    following_BS = first_VS.new_empty(len(observations_BT), process.num_states)
    belief_BS = torch.empty_like(following_BS)
    for t, begins in enumerate(starts.tolist()):
        if begins:
            torch.index_select(first_VS, 0, symbols_TB[t], out=following_BS)
            if t:
                following_BS *= torch.from_numpy(norms[t - 1] > 0)[:, None]
        else:
            torch.mm(belief_BS, transition_SS, out=following_BS)
        likelihood_VS = certain_VS if begins else process.emission
        after = belief_BS.numpy() if beliefs is None else beliefs[:, t]
        absorb(following_BS.numpy(), likelihood_VS, symbols_TB[t].numpy(), floor, smallest, after, norms[t], doubtful)
        belief_BS = torch.from_numpy(after)
        yield t, after


def products_backward(
    process: Tables,
    work: Sequences,
    beliefs: NDArray[np.float64],
    norms: NDArray[np.float64],
    smoothed: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
) -> None:
    """As `hmmscope.kernels.lanes.backward` on a batch: smoothed beliefs and weights (batch, time, state)."""
    batch, time, size = beliefs.shape
    backward_SS, emission_VS = torch.from_numpy(process.transposed()[0]), torch.from_numpy(process.emission)
    symbols_TB = torch.from_numpy(work.symbols).view(batch, time).T.contiguous()
    lengths_B = torch.zeros(batch, dtype=torch.int64)
    lengths_B[torch.from_numpy(work.rows)] = torch.from_numpy(work.lengths)
    shortest = int(lengths_B.min())
    ahead_BS, weight_BS, now_BS = (emission_VS.new_empty(batch, size) for _ in range(3))
    for t in reversed(range(time)):
        if t + 1 == time or work.starts[t + 1]:
            ahead_BS.fill_(1.0)
        else:
            torch.mm(weight_BS, backward_SS, out=ahead_BS)
            if t + 1 >= shortest:
                ahead_BS[lengths_B == t + 1] = 1.0
        now_BS.copy_(torch.from_numpy(beliefs[:, t]))
        ahead_BS.masked_fill_(now_BS == 0, 0.0)
        now_BS *= ahead_BS
        total_B = now_BS.sum(1)
        scale_B1 = torch.where(total_B > 0, 1 / total_B, 0.0)[:, None]
        scale_B1[lengths_B <= t + 1] = 1.0
        if t + 1 < time and work.starts[t + 1]:
            scale_B1.fill_(1.0)
        now_BS *= scale_B1
        smoothed[:, t] = now_BS.numpy()
        norm_B1 = torch.from_numpy(norms[:, t, None])
        torch.index_select(emission_VS, 0, symbols_TB[t], out=weight_BS)
        weight_BS *= ahead_BS
        weight_BS *= torch.where(norm_B1 > 0, scale_B1 / norm_B1, 0.0)
        if weights is not None:
            weights[:, t] = weight_BS.numpy()
