"""Gibbs sampling of vector-emission HMMs under conjugate priors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Int64, Tensor, Vectors
from hmmscope.emissions.chain import viterbi_states
from hmmscope.emissions.conjugate import Conjugate, members
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.inference.constrained_laws import RowLaws, symmetries
from hmmscope.inference.gibbs import SPREAD, Array, Chains, DirichletPrior, Draws, dirichlet_rows, matched
from hmmscope.kernels.state_draws import draw_paths


def vector_draws(
    start: EmissionHMM,
    observations: Vectors,
    lengths: Int64[Tensor, " sequence"],
    conjugate: Conjugate,
    prior: DirichletPrior,
    chains: Chains,
    *,
    match: bool = True,
    laws: RowLaws | None = None,
) -> Draws:
    """Sample initial, transition and emission parameters given vector sequences.

    Source: `hmmscope.inference.gibbs.symbol_draws`; Frühwirth-Schnatter (2006), section 11.5.

    Args:
        start: Model that starts the chains and defines the state labels.
        observations, lengths: See `fit_emissions`.
        conjugate: Emission prior, see `EmissionHMM.conjugate`.
        prior: Concentrations of the Dirichlet priors of rows.
        chains: Settings of the Gibbs sampler's chains.
        match: True matches state labels of samples to `start`.
        laws: Priors of constrained rows, by array name.

    Raises:
        InputError: SciPy is missing.
    """
    size, number = start.num_states, len(observations)
    logs, rules = start.log_likelihoods(observations).split(lengths.tolist()), laws or {}
    reference = torch.cat([viterbi_states(start.chain, own[None]).states[0] for own in logs])
    where = np.arange(number), (lengths.cumsum(0) - lengths).numpy(), lengths.numpy()
    priors = np.full(size, prior.initial), np.full((size, size), prior.transition)
    names, features = ["initial", "transition", *conjugate.names], conjugate.features(observations)

    def chain(place: int, random: np.random.Generator) -> Sequence[Array]:
        model = start
        kept: list[list[Array]] = [[] for _ in range(len(names) + 2)]
        room = np.empty((number, size)), np.empty(number, np.int64), np.zeros(size), np.zeros((size, size))
        path, counts = torch.from_numpy(room[1]), room[2:]
        if place and match:
            _walk(model, observations, where, random, room)
            few = torch.from_numpy(random.random(number) < SPREAD)
            begun = conjugate.draw(members(path[few], size).T @ features[few], random)
            model = _drawn(model, priors, [SPREAD * part for part in counts], begun, random, rules)
        for sweep in range(chains.warm_up + chains.every * (chains.num_draws - 1) + 1):
            log = _walk(model, observations, where, random, room)
            if sweep >= chains.warm_up and (sweep - chains.warm_up) % chains.every == 0:
                agreement = (members(path, size).T @ members(reference, size)).numpy()
                tensors = model.file_tensors()
                arrays = [tensors[name].numpy() for name in names]
                for own, value in zip(kept, (*arrays, np.asarray(log), agreement), strict=True):
                    own.append(value)
            model = _drawn(
                model, priors, counts, conjugate.draw(members(path, size).T @ features, random), random, rules
            )
            if chains.callback(1) is True:
                break
        return [np.stack(values) if values else np.empty(0) for values in kept]

    *found, log_likelihoods, agreement = chains.run(chain)
    orders = symmetries(rules, size)
    match = match and (orders is None or len(orders) > 1)
    return matched(
        dict(zip(names, found, strict=True)), log_likelihoods, agreement if match else None, conjugate.shared, orders
    )


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
    laws: RowLaws,
) -> EmissionHMM:
    drawn = {}
    for name, own, count in zip(("initial", "transition"), priors, counts, strict=True):
        law, before = laws.get(name), getattr(model, name).numpy()
        drawn[name] = dirichlet_rows(own + count, random) if law is None else law.draw(count[None], random, before)[0]
    return model.replaced(**drawn, **probs)
