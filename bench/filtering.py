"""Measure filtering (log-likelihoods): tokens per second, and the fraction of the machine's matrix-product rate."""

import functools
from typing import Any

import torch

from bench.contest import Contest, installed, noise
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.inference.fast import log_likelihood
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.processes.require_type import require_process_type

SHAPES = (
    *((128, 16, 1024, 256), (8, 8, 4096, 128)),
    *((32, 8, 512, 128), (64, 8, 256, 128), (256, 8, 64, 128), (1024, 8, 16, 64)),
)
SHAPES_ON_GPU = (*SHAPES[:2], (128, 16, 65536, 256), (8, 8, 262144, 128))


def contests(*, peers: bool, device: str = "cpu") -> list[Contest]:
    """Measure 128 states (1024 x 256), 8 states (4096 x 128), and smaller batches of 32 to 1024 states, in both dtypes.

    On a GPU the first two, also with larger batches; of the peers, only the plain torch loop runs there.
    """
    shapes = SHAPES if device == "cpu" else SHAPES_ON_GPU
    return [contest for shape in shapes for contest in _shape(*shape, peers=peers, device=device)]


def _shape(states: int, symbols: int, batch: int, length: int, *, peers: bool, device: str = "cpu") -> list[Contest]:
    hmm = require_process_type(make_process("random-hmm", num_states=states, num_symbols=symbols), HMM)
    observations = ProcessDataset(hmm, length=length, device=device)[0:batch].observations
    where = "" if device == "cpu" else f" on {device}"
    found = []
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):
        contest = Contest(
            f"filtering{where}, {states} states, {batch} x {length}, {name}",
            "tokens",
            flops=2.0 * states**2,
            dtype=dtype,
        )

        def ours(dtype: torch.dtype = dtype) -> torch.Tensor:
            return log_likelihood(hmm, observations, dtype=dtype)

        contest.add("hmmscope", ours, batch * length)
        _gemm(contest, batch, length, states, dtype, device)
        contest.add("torch loop", functools.partial(_plain, hmm, observations, dtype), batch * length)
        if peers and device == "cpu":
            _peers(contest, hmm, observations, dtype)
        found.append(contest)
    return found


def _gemm(contest: Contest, batch: int, length: int, states: int, dtype: torch.dtype, device: str) -> None:
    left, right = (noise(rows, states, dtype=dtype, device=device) for rows in (batch, states))
    out = torch.empty_like(left)
    steps = length // 16

    def products() -> None:
        for _ in range(steps):
            torch.mm(left, right, out=out)

    contest.add("matrix products alone", products, batch * steps, limit=True)


def _plain(hmm: HMM, observations: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    parts = (hmm.initial, hmm.transition, hmm.emission)
    initial, transition, emission = (part.to(observations.device, dtype) for part in parts)
    law, likelihood = initial.expand(len(observations), -1), emission.T.contiguous()
    total = torch.zeros(len(observations), dtype=torch.float64, device=observations.device)
    for t in range(observations.shape[1]):
        joint = law * likelihood[observations[:, t]]
        norm = joint.sum(1)
        total += norm.log()
        law = (joint / norm[:, None]) @ transition
    return total


def _peers(contest: Contest, hmm: HMM, observations: torch.Tensor, dtype: torch.dtype) -> None:
    """Add hmmlearn (float64), pomegranate (float32), dynamax and a JAX scan; slow ones get fewer sequences."""
    batch, length = observations.shape
    double = dtype == torch.float64
    if double and installed("hmmlearn"):
        from hmmlearn.hmm import CategoricalHMM

        model = CategoricalHMM(n_components=hmm.num_states, n_features=hmm.num_symbols)
        model.startprob_, model.transmat_, model.emissionprob_ = (
            part.numpy() for part in (hmm.initial, hmm.transition, hmm.emission)
        )
        few = max(1, batch // (64 if hmm.num_states > 16 else 4))
        flat, lengths = observations[:few].reshape(-1, 1).numpy(), [length] * few
        contest.add("hmmlearn", lambda: model.score(flat, lengths), few * length)
    if installed("dynamax"):
        _dynamax(contest, hmm, observations, double)
    if not double and installed("pomegranate"):
        _pomegranate(contest, hmm, observations[: max(1, batch // 8)])


def _dynamax(contest: Contest, hmm: HMM, observations: torch.Tensor, double: bool) -> None:
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import hmm_filter

    with jax.enable_x64(double):
        initial, transition, emission = (
            jnp.asarray(part.numpy()) for part in (hmm.initial, hmm.transition, hmm.emission)
        )
        symbols = jnp.asarray(observations.numpy())

    def step(law: Any, now: Any) -> Any:
        joint = law * emission.T[now]
        norm = joint.sum(1, keepdims=True)
        return joint / norm @ transition, jnp.log(norm[:, 0])

    def scan(own: Any) -> Any:
        begun = jnp.broadcast_to(initial, (len(own), len(initial)))
        return jax.lax.scan(step, begun, own.T)[1].sum(0)

    def one(own: Any) -> Any:
        return hmm_filter(initial, transition, jnp.log(emission.T[own])).marginal_loglik

    for name, function in (("dynamax (jit, vmap)", jax.vmap(one)), ("JAX scan", scan)):
        contest.add(name, functools.partial(_run, jax, double, jax.jit(function), symbols), observations.numel())


def _run(jax: Any, double: bool, compiled: Any, symbols: Any) -> Any:
    with jax.enable_x64(double):
        return jax.block_until_ready(compiled(symbols))


def _pomegranate(contest: Contest, hmm: HMM, observations: torch.Tensor) -> None:
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    initial, transition, emission = (part.float() for part in (hmm.initial, hmm.transition, hmm.emission))
    ends = torch.ones(hmm.num_states)  # the default 1/S would lower every log-likelihood by log S
    model = DenseHMM([Categorical(row[None]) for row in emission], edges=transition, starts=initial, ends=ends)
    inputs = observations[:, :, None]
    contest.add("pomegranate", lambda: model.log_probability(inputs), observations.numel())
