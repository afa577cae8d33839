"""Filtering: log-likelihoods, tokens a second, and the share of the machine's matrix-product rate."""

import functools

import numpy as np
import torch

from hmmscope.bench.contest import Contest, installed
from hmmscope.corpora.corpus import Corpus
from hmmscope.inference.fast import log_likelihood
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process

SHAPES = ((128, 16, 1024, 256), (8, 8, 4096, 128))


def contests(*, peers: bool) -> list[Contest]:
    """128 states, 1024 sequences of 256; and 8 states, 4096 sequences of 128; in float32 and float64."""
    return [contest for shape in SHAPES for contest in _shape(*shape, peers=peers)]


def _shape(states: int, symbols: int, batch: int, length: int, *, peers: bool) -> list[Contest]:
    hmm = make_process("random-hmm", num_states=states, num_symbols=symbols)
    assert isinstance(hmm, HMM)
    observations = Corpus(hmm, length=length)[0:batch].observations
    found = []
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        contest = Contest(f"filtering, {states} states, {batch} x {length}, {name}", "tokens")

        def ours(dtype: torch.dtype = dtype) -> torch.Tensor:
            return log_likelihood(hmm, observations, dtype=dtype)

        contest.add("hmmscope", ours, batch * length)
        _gemm(contest, batch, length, states, dtype)
        contest.add("torch loop", functools.partial(_plain, hmm, observations, dtype), batch * length)
        if peers and dtype == torch.float64:
            _peers(contest, hmm, observations)
        found.append(contest)
    return found


def _gemm(contest: Contest, batch: int, length: int, states: int, dtype: torch.dtype) -> None:
    """The matrix products of the filter and nothing else, a sixteenth of them."""
    left, right = torch.randn(batch, states, dtype=dtype), torch.randn(states, states, dtype=dtype)
    out = torch.empty_like(left)
    steps = length // 16

    def products() -> None:
        for _ in range(steps):
            torch.mm(left, right, out=out)

    contest.add("matrix products alone", products, batch * steps, limit=True)


def _plain(hmm: HMM, observations: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    initial, transition, emission = (part.to(dtype) for part in (hmm.initial_S, hmm.transition_SS, hmm.emission_SV))
    law = initial.expand(len(observations), -1)
    total = torch.zeros(len(observations), dtype=torch.float64)
    for t in range(observations.shape[1]):
        joint = law * emission[:, observations[:, t]].T
        norm = joint.sum(1)
        total += norm.log()
        law = (joint / norm[:, None]) @ transition
    return total


def _peers(contest: Contest, hmm: HMM, observations: torch.Tensor) -> None:
    arrays = [part.numpy() for part in (hmm.initial_S, hmm.transition_SS, hmm.emission_SV)]
    batch, length = observations.shape
    if installed("hmmlearn"):
        from hmmlearn.hmm import CategoricalHMM

        model = CategoricalHMM(n_components=hmm.num_states, n_features=hmm.num_symbols)
        model.startprob_, model.transmat_, model.emissionprob_ = arrays
        few = max(1, batch // (64 if hmm.num_states > 16 else 4))
        flat = observations[:few].reshape(-1, 1).numpy()
        contest.add("hmmlearn", lambda: model.score(flat, [length] * few), few * length)
    if installed("dynamax"):
        import jax
        import jax.numpy as jnp
        from dynamax.hidden_markov_model import hmm_filter

        initial, transition, emission = (jnp.asarray(part) for part in arrays)
        symbols = jnp.asarray(observations.numpy())
        score = jax.jit(jax.vmap(lambda o: hmm_filter(initial, transition, jnp.log(emission.T[o])).marginal_loglik))
        contest.add("dynamax (jit, vmap)", lambda: score(symbols).block_until_ready(), batch * length)
    if installed("pomegranate"):
        from pomegranate.distributions import Categorical
        from pomegranate.hmm import DenseHMM

        rows = [torch.from_numpy(np.asarray(part, np.float32)) for part in arrays]
        emissions = [Categorical(rows[2][s][None]) for s in range(hmm.num_states)]
        peer = DenseHMM(emissions, edges=rows[1], starts=rows[0], ends=torch.ones(hmm.num_states))
        few = max(1, batch // 8)
        inputs = observations[:few, :, None]
        contest.add("pomegranate", lambda: peer.log_probability(inputs), few * length)
