"""Gibbs sampling of vector-emission HMMs under conjugate priors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.emissions.chain import viterbi_states
from hmmscope.emissions.conjugate import Conjugate, members
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.inference.gibbs import SPREAD, Array, Chains, DirichletPrior, Draws, dirichlet_rows, matched
from hmmscope.kernels.state_draws import draw_paths


def vector_draws(
    start: EmissionHMM,
    observations: Float64[Tensor, "row coordinate"],
    lengths: Int64[Tensor, " sequence"],
    laws: Conjugate,
    prior: DirichletPrior,
    chains: Chains,
    *,
    match: bool = True,
) -> Draws:
    """Sample initial, transition and emission parameters given vector sequences.

    All chains but the first start from parameters drawn given a tenth of a sampled path's counts.

    Source: `hmmscope.inference.gibbs.symbol_draws`; Frühwirth-Schnatter (2006), section 11.5.

    Args:
        start: Start, which defines the labels.
        observations: Consecutive sequences; NaN where missing.
        lengths: Sequence lengths.
        laws: Emission prior, see `EmissionHMM.conjugate`.
        prior: Row prior.
        chains: Settings.
        match: Match labels to `start`.

    Raises:
        InputError: SciPy is missing.
    """
    size, number = start.num_states, len(observations)
    logs = start.log_likelihoods(observations).split(lengths.tolist())
    reference = torch.cat([viterbi_states(start.chain, own[None]).states[0] for own in logs])
    where = np.arange(number), (lengths.cumsum(0) - lengths).numpy(), lengths.numpy()
    priors = np.full(size, prior.initial), np.full((size, size), prior.transition)
    names, features = ["initial", "transition", *laws.names], laws.features(observations)

    def chain(place: int, random: np.random.Generator) -> Sequence[Array]:
        model = start
        kept: list[list[Array]] = [[] for _ in range(len(names) + 2)]
        room = np.empty((number, size)), np.empty(number, np.int64), np.zeros(size), np.zeros((size, size))
        path, counts = torch.from_numpy(room[1]), room[2:]
        if place and match:
            _walk(model, observations, where, random, room)
            few = torch.from_numpy(random.random(number) < SPREAD)
            begun = laws.draw(members(path[few], size).T @ features[few], random)
            model = _drawn(model, priors, [SPREAD * part for part in counts], begun, random)
        for sweep in range(chains.warm_up + chains.every * (chains.num_draws - 1) + 1):
            log = _walk(model, observations, where, random, room)
            if sweep >= chains.warm_up and (sweep - chains.warm_up) % chains.every == 0:
                agreement = (members(path, size).T @ members(reference, size)).numpy()
                tensors = model.file_tensors()
                arrays = [tensors[name].numpy() for name in names]
                for own, value in zip(kept, (*arrays, np.asarray(log), agreement), strict=True):
                    own.append(value)
            model = _drawn(model, priors, counts, laws.draw(members(path, size).T @ features, random), random)
            if chains.callback(1) is True:
                break
        return [np.stack(values) if values else np.empty(0) for values in kept]

    *found, log_likelihoods, agreement = chains.run(chain)
    return matched(dict(zip(names, found, strict=True)), log_likelihoods, agreement if match else None, laws.shared)


def _walk(
    model: EmissionHMM,
    observations: Tensor,
    where: tuple[NDArray[np.int64], ...],
    random: np.random.Generator,
    room: tuple[NDArray[Any], ...],
) -> float:
    logs = model.log_likelihoods(observations)
    largest = logs.amax(1, keepdim=True)
    table = (logs - largest).exp().contiguous().numpy()
    chain = model.initial.numpy(), model.transition.numpy()
    return draw_paths(*chain, table, *where, random, *room) + float(largest.sum())


def _drawn(
    model: EmissionHMM,
    priors: tuple[Array, Array],
    counts: Sequence[Array],
    probs: dict[str, Tensor],
    random: np.random.Generator,
) -> EmissionHMM:
    initial, transition = (dirichlet_rows(own + count, random) for own, count in zip(priors, counts, strict=True))
    return model.replaced(initial=initial, transition=transition, **probs)
