"""Measure sampling in tokens per second."""

import functools
import random

import numpy as np
import torch

from bench.contest import Contest, installed
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.kernels import gpu
from hmmscope.kernels.device_samplers import TorchSampler, fused_works
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.processes.process import Process
from hmmscope.processes.require_type import require_process_type
from hmmscope.seeds import philox_key

BATCH, LENGTH, STATES, SYMBOLS = 1024, 256, 128, 16

#: Batch sizes on a GPU: a training batch, and one that fills the chip.
BATCHES_ON_GPU, COMPONENTS_ON_GPU = (1024, 2**18), 8192


def contests(*, peers: bool, device: str = "cpu", components: int | None = None) -> list[Contest]:
    """Measure an HMM of 128 states and 16 symbols on 1024 sequences of 256, and a mixture.

    On a GPU, two batch sizes are measured for each of: int64 batches as for the trainer, the kernel alone with several block
    sizes, and the torch sampler.
    """
    if device != "cpu":
        count = COMPONENTS_ON_GPU if components is None else components
        sizes = {"num_states": STATES, "num_symbols": SYMBOLS}
        hmm, mixture = (
            make_process("random-hmm", **sizes),
            make_process("random-mixture", num_components=count, **sizes),
        )
        named = ((f"{STATES} states", hmm), (f"mixture of {count} x {STATES}", mixture))
        return [
            _on_device(f"{name} x {SYMBOLS}", process, torch.device(device), batch, LENGTH)
            for name, process in named
            for batch in BATCHES_ON_GPU
        ]
    components = 512 if components is None else components
    hmm = require_process_type(make_process("random-hmm", num_states=STATES, num_symbols=SYMBOLS), HMM)
    starts = np.arange(LENGTH) == 0
    indices = np.arange(BATCH)
    tokens = BATCH * LENGTH
    single = Contest(f"sampling, {STATES} states, {SYMBOLS} symbols, {BATCH} x {LENGTH}", "tokens")
    dataset = ProcessDataset(hmm, length=LENGTH)
    single.add("hmmscope", lambda: dataset[0:BATCH], tokens)
    single.add("hmmscope, without tokens", lambda: hmm.sample_paths(indices, starts, 0), tokens)
    copied = np.zeros((2, BATCH, LENGTH), np.int64)
    single.add("copying the result", lambda: copied.copy(), tokens, limit=True)
    if peers:
        _peers(single, hmm)
    mixture = make_process("random-mixture", num_components=components, num_states=STATES, num_symbols=SYMBOLS)
    mixed = Contest(f"sampling, mixture of {components} x {STATES} x {SYMBOLS}, {BATCH} x {LENGTH}", "tokens")
    pool = ProcessDataset(mixture, length=LENGTH)
    mixed.add("hmmscope", lambda: pool[0:BATCH], tokens)
    small = Contest(f"sampling, {STATES} states, {SYMBOLS} symbols, 32 x {LENGTH}", "tokens")
    small.add("hmmscope", lambda: dataset[0:32], 32 * LENGTH)
    return [single, small, mixed]


def _on_device(name: str, process: Process, device: torch.device, batch: int, length: int) -> Contest:
    contest = Contest(f"sampling on {device}, {name}, {batch} x {length}", "tokens")
    samples, starts = torch.arange(batch, device=device), np.arange(length) == 0
    contest.add("hmmscope", lambda: process.sample_paths_on(samples, starts, 0), batch * length)
    sizes = {"num_states": process.num_states, "num_symbols": process.num_symbols}
    key = philox_key(0, "corpus")
    if device.type == "cuda" and fused_works(device):
        for block in (64, 128, 256, 512):
            sampler = gpu.TritonSampler(process.alias_tables, **sizes, device=device, block=block)
            run = functools.partial(sampler.packed, key, samples, starts)
            contest.add(f"hmmscope, kernel alone, {block} samples a program", run, batch * length)
    plain = TorchSampler(process.alias_tables, **sizes, device=device)
    contest.add("hmmscope, torch operations", lambda: plain(key, samples, starts), batch * length)
    result = samples.expand(2, length, batch).clone()
    copied = torch.empty_like(result)
    contest.add("copying the result", lambda: copied.copy_(result), batch * length, limit=True)
    return contest


def _peers(contest: Contest, hmm: HMM) -> None:
    cumulative = [rows.cumsum(-1).float() for rows in (hmm.initial, hmm.transition, hmm.emission)]
    generator = torch.Generator().manual_seed(0)

    def searchsorted() -> torch.Tensor:
        observations = torch.empty(BATCH, LENGTH, dtype=torch.int64)
        uniform = torch.rand(2, LENGTH, BATCH, 1, generator=generator)
        state = torch.searchsorted(cumulative[0].expand(BATCH, -1).contiguous(), uniform[0, 0])[:, 0].clamp_max(
            STATES - 1
        )
        for t in range(LENGTH):
            if t:
                state = torch.searchsorted(cumulative[1][state], uniform[0, t])[:, 0].clamp_max(STATES - 1)
            observations[:, t] = torch.searchsorted(cumulative[2][state], uniform[1, t])[:, 0].clamp_max(SYMBOLS - 1)
        return observations

    contest.add("torch loop, searchsorted", searchsorted, BATCH * LENGTH)
    rows = [part.tolist() for part in (hmm.initial, hmm.transition, hmm.emission)]

    def python_loop() -> list[int]:
        state = random.choices(range(STATES), rows[0])[0]
        observations = []
        for _ in range(LENGTH):
            observations.append(random.choices(range(SYMBOLS), rows[2][state])[0])
            state = random.choices(range(STATES), rows[1][state])[0]
        return observations

    contest.add("Python loop, random.choices", lambda: [python_loop() for _ in range(8)], 8 * LENGTH)
    if installed("hmmlearn"):
        from hmmlearn.hmm import CategoricalHMM

        model = CategoricalHMM(n_components=STATES, n_features=SYMBOLS)
        model.startprob_, model.transmat_, model.emissionprob_ = (
            part.numpy() for part in (hmm.initial, hmm.transition, hmm.emission)
        )
        contest.add("hmmlearn", lambda: [model.sample(LENGTH) for _ in range(16)], 16 * LENGTH)
    if installed("dynamax"):
        _dynamax(contest, hmm)


def _dynamax(contest: Contest, hmm: HMM) -> None:
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import CategoricalHMM

    model = CategoricalHMM(STATES, 1, SYMBOLS)
    arrays = (hmm.initial, hmm.transition, hmm.emission[:, None])
    initial, transition, emission = (jnp.asarray(part.numpy()) for part in arrays)
    parameters, _ = model.initialize(
        jax.random.PRNGKey(0), initial_probs=initial, transition_matrix=transition, emission_probs=emission
    )
    keys = jax.random.split(jax.random.PRNGKey(1), BATCH)
    draw = jax.jit(jax.vmap(lambda key: model.sample(parameters, key, LENGTH)[1]))
    contest.add("dynamax (jit, vmap)", lambda: draw(keys).block_until_ready(), BATCH * LENGTH)
