"""Products of processes, and noisy channels."""

import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.kernels import fixed_order
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.probability_rows import stochastic_rows
from hmmscope.processes.process import Process


def product(first: HMM | LabelledHMM, second: HMM | LabelledHMM) -> HMM | LabelledHMM:
    """Return the process that emits pairs of symbols of two independent processes.

    The pair (v, w) is the symbol v * (number of symbols of `second`) + w; pairs of states are numbered likewise.
    """
    title = f"{first.title or 'process'} x {second.title or 'process'}"
    initial = torch.kron(first.initial, second.initial)
    if isinstance(first, HMM) and isinstance(second, HMM):
        transition = torch.kron(first.transition, second.transition)
        emission = torch.kron(first.emission, second.emission)
        return HMM(initial, transition, emission, title=title, allow_drop_tiny=True)
    a, b = as_labelled(first), as_labelled(second)
    labelled = a.labelled[:, None, :, None, :, None] * b.labelled[None, :, None, :, None, :]
    size = a.num_states * b.num_states
    labelled = labelled.reshape(a.num_symbols * b.num_symbols, size, size)
    return LabelledHMM(torch.kron(a.initial, b.initial), labelled, title=title, allow_drop_tiny=True)


def noisy(process: HMM | LabelledHMM, channel: object) -> HMM | LabelledHMM:
    """Return a process observed through a channel, where channel[v, w] = P(w is observed | v is emitted)."""
    channel_VW, _ = stochastic_rows("channel", channel, (process.num_symbols, None))
    title = f"{process.title or 'process'} through a noisy channel"
    if isinstance(process, HMM):
        emission = fixed_order.product(process.emission.numpy(), channel_VW.numpy())
        return HMM(process.initial, process.transition, emission, title=title, allow_drop_tiny=True)
    edges_EV = process.labelled.flatten(1).T
    labelled_EW = torch.from_numpy(fixed_order.product(edges_EV.numpy(), channel_VW.numpy()))
    labelled = labelled_EW.T.unflatten(1, (process.num_states, process.num_states))
    return LabelledHMM(process.initial, labelled, title=title, allow_drop_tiny=True)


def uniform_noise(num_symbols: int, probability: float) -> Float64[Tensor, "symbol symbol"]:
    """Return the channel that, with `probability`, replaces a symbol by a uniform random symbol."""
    if not 0 <= probability <= 1:
        raise InputError(f"probability: must be in [0, 1], got {probability!r}")
    return (1 - probability) * torch.eye(num_symbols, dtype=torch.float64) + probability / num_symbols


def as_labelled(process: Process) -> LabelledHMM:
    """Convert an HMM to edge emissions: labelled[v, i, j] = emission[i, v] * transition[i, j].

    The result's state at time t is the HMM's state at time t + 1.
    """
    if isinstance(process, LabelledHMM):
        return process
    return LabelledHMM(
        process.params.initial_MS[0],
        process.params.steps(),
        symbols=process.symbols,
        states=process.states,
        title=process.title,
        allow_drop_tiny=True,
    )
