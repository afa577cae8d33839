"""Edge-emitting HMMs as state-emitting HMMs."""

from typing import Literal

import torch

from hmmscope.errors import InputError
from hmmscope.kernels.fixed_order import product, total
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM


def augment(process: LabelledHMM, pairing: Literal["post", "pre"] = "post") -> HMM:
    """Convert a process to an HMM in which state (s, v), numbered v * num_states + s, emits symbol v.

    post: transition[(s, v), (s', v')] = labelled[v', s, s'];  initial[(s', v')] = sum_s initial[s] * labelled[v', s, s']
    pre:  transition[(s, v), (s', v')] = P(s' | s, v) * P(v' | s');  initial[(s, v)] = initial[s] * P(v | s)

    At time t, s is the state after (`post`) or before (`pre`) observation t. Observations keep their distribution.

    Source: [Limits] Proposition A.1, which gives the states of `post` the transition of `pre`.

    Raises:
        InputError: the pairing is neither `post` nor `pre`.
    """
    num_symbols, num_states = process.num_symbols, process.num_states
    labelled_VSS = process.labelled
    symbol_VS = torch.from_numpy(total(labelled_VSS.permute(2, 0, 1).numpy()))
    if pairing == "post":
        block = labelled_VSS.transpose(0, 1).flatten(1)
        initial = torch.from_numpy(product(process.initial[None].numpy(), block.numpy()))[0]
        transition = block.repeat(num_symbols, 1)
    elif pairing == "pre":
        # A pair of probability zero is never entered; its row only has to be a valid distribution.
        own = torch.eye(num_states, dtype=torch.float64)
        arrive_VSS = torch.where(symbol_VS[:, :, None] > 0, labelled_VSS / symbol_VS[:, :, None], own)
        transition = (arrive_VSS[:, :, None, :] * symbol_VS[None, None]).flatten(2).flatten(0, 1)
        initial = (symbol_VS * process.initial).flatten()
    else:
        raise InputError(f"pairing: must be post or pre, got {pairing!r}")
    return HMM(
        initial,
        transition,
        torch.eye(num_symbols, dtype=torch.float64).repeat_interleave(num_states, 0),
        symbols=process.symbols,
        states=_pairs(process),
        title=f"{process.title or 'process'}, states paired with symbols ({pairing})",
        source=process.source,
        allow_drop_tiny=True,
    )


def _pairs(process: LabelledHMM) -> list[str] | None:
    if process.states is None or process.symbols is None:
        return None
    return [f"{state},{symbol}" for symbol in process.symbols for state in process.states]
