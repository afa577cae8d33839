"""Measure exact inference at common shapes: one sequence, batches, ragged batches, hundreds of small models."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.contest import Contest, installed
from bench.exact import ITERATIONS, hmmlearn_of
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import fit_baum_welch
from hmmscope.inference.fast import log_likelihood
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.paths import most_likely_states
from hmmscope.inference.smoothing import smooth_beliefs
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.processes.require_type import require_process_type

#: (states, sequences, length) of one sequence and of batches; 8 symbols.
ONE, BATCHES = (
    ((4, 1, 10**6), (64, 1, 20_000), (256, 1, 2000)),
    ((8, 1024, 128), (64, 256, 128), (256, 64, 128), (1024, 16, 64)),
)
#: Longest sequence and number of states of ragged batches; lengths start at 1.
RAGGED = (2000, 500, 8)
#: Number of states of each small model; each model has one sequence.
MODELS, SMALL, OWN = 300, 4, 500

CALLS: dict[str, Callable[..., Any]] = {
    "filter_beliefs": filter_beliefs,
    "smooth_beliefs": smooth_beliefs,
    "most_likely_states": most_likely_states,
}


def contests(*, peers: bool, device: str = "cpu") -> list[Contest]:
    """Compare float64 answers with hmmlearn, dynamax (jit, vmap) and a JAX scan.

    Raises:
        InputError: The device is not a processor.
    """
    if device != "cpu":
        raise InputError("device: bench answers measures the processor; use cpu")
    found = [contest for shape in (*ONE, *BATCHES) for contest in _answers(*shape, peers=peers)]
    return [*found, *_ragged(peers), *_small(peers)]


def _random(states: int, seed: int = 0) -> HMM:
    return require_process_type(make_process("random-hmm", num_states=states, num_symbols=8, seed=seed), HMM)


def _answers(states: int, batch: int, length: int, *, peers: bool) -> list[Contest]:
    hmm = _random(states)
    observations = ProcessDataset(hmm, length=length)[0:batch].observations
    tokens, product = observations.numel(), 2.0 * states**2 if states > 64 else 0.0
    found = {}
    for (name, call), products in zip(CALLS.items(), (product, 2 * product, 0.0), strict=True):
        found[name] = Contest(f"{name}, {states} states, {batch} x {length}", "tokens", flops=products)
        found[name].add("hmmscope", functools.partial(call, hmm, observations), tokens)
    if peers and installed("hmmlearn"):
        few = max(1, batch // max(1, states // 4))
        flat, lengths = observations[:few].reshape(-1, 1).numpy(), [length] * few
        model = hmmlearn_of(hmm)
        for name, method in (
            ("filter_beliefs", "score"),
            ("smooth_beliefs", "predict_proba"),
            ("most_likely_states", "decode"),
        ):
            who = "hmmlearn" if method != "score" else "hmmlearn, score"
            found[name].add(who, functools.partial(getattr(model, method), flat, lengths), few * length)
    if peers and installed("dynamax"):
        for name, run in _jax(hmm, observations).items():
            found[name.partition(" by ")[0]].add(name.partition(" by ")[2], run, tokens)
    return list(found.values())


def _jax(hmm: HMM, observations: torch.Tensor) -> dict[str, Callable[[], Any]]:
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import hmm_filter, hmm_posterior_mode, hmm_smoother

    with jax.enable_x64(True):
        initial, transition, emission = (
            jnp.asarray(part.numpy()) for part in (hmm.initial, hmm.transition, hmm.emission)
        )
        symbols = jnp.asarray(observations.numpy())

    def step(law: Any, seen: Any) -> Any:
        joint = law * emission.T[seen]
        norm = joint.sum(-1, keepdims=True)
        return joint / norm @ transition, (joint / norm, jnp.log(norm))

    def scan(symbols: Any) -> Any:
        return jax.lax.scan(step, jnp.broadcast_to(initial, (len(symbols), len(initial))), symbols.T)

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(lambda own: function(initial, transition, jnp.log(emission.T[own])))

    asked = {"filter_beliefs": hmm_filter, "smooth_beliefs": hmm_smoother, "most_likely_states": hmm_posterior_mode}
    made = {f"{name} by dynamax (jit, vmap)": jax.jit(of(function)) for name, function in asked.items()}
    made["filter_beliefs by JAX scan"] = jax.jit(scan)

    def run(compiled: Callable[..., Any]) -> Any:
        with jax.enable_x64(True):
            return jax.block_until_ready(compiled(symbols))

    return {name: functools.partial(run, compiled) for name, compiled in made.items()}


def _ragged(peers: bool) -> list[Contest]:
    count, longest, states = RAGGED
    hmm, lengths = _random(states), np.random.default_rng(0).integers(1, longest + 1, count)
    observations, tokens = ProcessDataset(hmm, length=longest)[0:count].observations, int(lengths.sum())
    flat = np.concatenate([row[:length] for row, length in zip(observations.numpy(), lengths, strict=True)])
    scoring, fitting = (
        Contest(f"{name}, {count} sequences of 1 to {longest}", "tokens") for name in ("score", "Baum-Welch, a step")
    )
    scoring.add("hmmscope", lambda: log_likelihood(hmm, observations, lengths=lengths), tokens)
    fitting.add("hmmscope", lambda: _fit(_random(states, 1), observations, lengths), ITERATIONS * tokens)
    if peers and installed("hmmlearn"):
        model, rows = hmmlearn_of(hmm), flat[:, None]
        scoring.add("hmmlearn", lambda: model.score(rows, lengths), tokens)
        fitting.add("hmmlearn", lambda: hmmlearn_of(_random(states, 1)).fit(rows, lengths), ITERATIONS * tokens)
    return [scoring, fitting]


def _small(peers: bool) -> list[Contest]:
    hmms = [_random(SMALL, seed) for seed in range(MODELS)]
    starts = [_random(SMALL, MODELS + seed) for seed in range(MODELS)]
    seen = [ProcessDataset(hmm, length=OWN)[0:1].observations for hmm in hmms]
    tokens = MODELS * OWN
    scoring, fitting = (
        Contest(f"{name}, {MODELS} models of {SMALL} states, 1 x {OWN} each", "tokens")
        for name in ("score", "Baum-Welch, a step")
    )
    scoring.add("hmmscope", lambda: [log_likelihood(*pair) for pair in zip(hmms, seen, strict=True)], tokens)
    fitting.add("hmmscope", lambda: [_fit(*pair) for pair in zip(starts, seen, strict=True)], ITERATIONS * tokens)
    if peers and installed("hmmlearn"):
        models, rows = [hmmlearn_of(hmm) for hmm in hmms], [own.reshape(-1, 1).numpy() for own in seen]
        scoring.add("hmmlearn", lambda: [m.score(own) for m, own in zip(models, rows, strict=True)], tokens)
        fitting.add(
            "hmmlearn",
            lambda: [hmmlearn_of(start).fit(own) for start, own in zip(starts, rows, strict=True)],
            ITERATIONS * tokens,
        )
    return [scoring, fitting]


def _fit(start: HMM, observations: torch.Tensor, lengths: Any = None) -> Any:
    options: dict[str, Any] = {"num_restarts": 1, "max_iterations": ITERATIONS, "tolerance": 0.0, "pseudo_count": 0.0}
    return fit_baum_welch(observations, start.num_states, start.num_symbols, lengths=lengths, start=start, **options)
