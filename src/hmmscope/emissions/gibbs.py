"""Draws of the parameters of an HMM whose states emit numbers: exact Gibbs sampling under conjugate priors."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.emissions.chain import likeliest_states
from hmmscope.emissions.conjugate import Conjugate, members
from hmmscope.emissions.emitting import EmittingHMM
from hmmscope.inference.gibbs import SPREAD, Array, Chains, Draws, Prior, dirichlet_rows, matched
from hmmscope.kernels.gibbs import draw_paths


def number_draws(
    start: EmittingHMM,
    observations: Float64[Tensor, "row coordinate"],
    lengths: Int64[Tensor, "sequence"],
    laws: Conjugate,
    prior: Prior,
    chains: Chains,
    *,
    match: bool = True,
) -> Draws:
    """Draws of the initial law, the transitions and the laws of the states, given sequences of vectors.

    path ~ P(path | parameters, o), by forward filtering and backward sampling
    row of the chain ~ Dirichlet(concentration + counts of the row along the path)
    laws ~ their law given the observations along the path

    The first chain begins at `start`, the others from draws given a path of `start` of which a tenth counts.

    Source: as of `hmmscope.inference.gibbs.symbol_draws`; Frühwirth-Schnatter (2006), section 11.5.

    Args:
        start: what the labels are of.
        observations: one sequence after the other; NaN where an entry is missing.
        lengths: of the sequences.
        laws: prior of what states emit, see `EmittingHMM.conjugate`.
        prior: of initial law and transitions.
        chains: how many draws.
        match: whether the labels of each draw become those of `start`.

    Raises:
        InputError: scipy, which matches labels, is not there.

    Cost: chains * (warm_up + every * draws) * observations * (S^2 + S Y^2).
    """
    size, number = start.num_states, len(observations)
    ends = lengths.cumsum(0)
    offsets = (ends - lengths).numpy()
    reference = torch.cat(
        [
            likeliest_states(start.chain, logs[None]).states[0]
            for logs in start.log_likelihoods(observations).split(lengths.tolist())
        ]
    )
    seen, counts = np.arange(number), lengths.numpy()
    priors = np.full(size, prior.initial), np.full((size, size), prior.transition)
    names = [name for name in start.file_arrays if name in start.file_tensors()]

    def chain(place: int, random: np.random.Generator) -> Sequence[Array]:
        model, first, moves = start, np.zeros(size), np.zeros((size, size))
        beliefs, states = np.empty((number, size)), np.empty(number, np.int64)
        if place and match:
            table, _ = _table(model, observations)
            chain_of = model.initial.numpy(), model.transition.numpy()
            draw_paths(*chain_of, table, seen, offsets, counts, random, beliefs, states, first, moves)
            few = torch.from_numpy(random.random(number) < SPREAD)
            model = _drawn(
                model,
                priors,
                SPREAD * first,
                SPREAD * moves,
                laws,
                observations[few],
                torch.from_numpy(states)[few],
                random,
            )
        kept: list[list[Array]] = [[] for _ in range(len(names) + 2)]
        for sweep in range(chains.warm_up + chains.every * (chains.num_draws - 1) + 1):
            table, scale = _table(model, observations)
            chain_of = model.initial.numpy(), model.transition.numpy()
            log = draw_paths(*chain_of, table, seen, offsets, counts, random, beliefs, states, first, moves)
            path = torch.from_numpy(states)
            if sweep >= chains.warm_up and (sweep - chains.warm_up) % chains.every == 0:
                parts = [model.file_tensors()[name].numpy() for name in names]
                agreement = (members(path, size).T @ members(reference, size)).numpy()
                for own, value in zip(kept, (*parts, np.asarray(log + scale), agreement), strict=True):
                    own.append(value)
            model = _drawn(model, priors, first, moves, laws, observations, path, random)
        return [np.stack(values) for values in kept]

    *found, logs, agreement = chains.run(chain)
    return matched(dict(zip(names, found, strict=True)), logs, agreement if match else None, laws.shared)


def _table(model: EmittingHMM, observations: Tensor) -> tuple[NDArray[np.float64], float]:
    """Likelihoods of each row, the largest one, and the logarithm of what they were divided by, of all rows."""
    logs = model.log_likelihoods(observations)
    largest = logs.amax(1, keepdim=True)
    return (logs - largest).exp().contiguous().numpy(), float(largest.sum())


def _drawn(
    model: EmittingHMM,
    priors: tuple[Array, Array],
    first: Array,
    moves: Array,
    laws: Conjugate,
    observations: Tensor,
    states: Tensor,
    random: np.random.Generator,
) -> EmittingHMM:
    """Parameters given a path."""
    initial, transition = dirichlet_rows(priors[0] + first, random), dirichlet_rows(priors[1] + moves, random)
    arrays = laws.draw(observations, states, model.num_states, random)
    return model.replaced(initial=initial, transition=transition, **arrays)
