"""Calls that compile all kernels, for `check --compile` and `python -m bench.cold`."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import hmmscope as hs
from hmmscope.text import say


def _few(count: int = 8) -> tuple[Any, torch.Tensor]:
    return hs.load_process("dishonest-casino"), torch.arange(40 * count).view(count, 40) % 6


def _many(num_states: int = 128) -> tuple[Any, torch.Tensor]:
    even = [np.full(shape, 1 / shape[-1]) for shape in ((num_states,), (num_states, num_states), (num_states, 8))]
    return hs.HMM(*even), torch.ones(8, 40, dtype=torch.int64)


def _asked(name: str, some: Callable[[], tuple[Any, torch.Tensor]], *more: Any) -> Callable[[], object]:
    return lambda: getattr(hs, name)(*some(), *more)


def _mixed(count: int = 8) -> object:
    process, tokens = _few(count)
    return hs.filter_mixture(hs.Mixture([0.5, 0.5], [process, process]), tokens)


def _fitted(num_states: int, count: int = 8, **about: Any) -> object:
    tokens = _few(count)[1].numpy()
    options = hs.FitOptions(num_restarts=1, max_iterations=5)
    return hs.fit(np.sin(tokens)[..., None] if about else tokens, num_states, options=options, **about)


def _trained(**model: Any) -> Callable[[], object]:
    recipe = {"batch_size": 16, "engine": "compiled"}

    def run() -> object:
        with tempfile.TemporaryDirectory() as folder:
            return hs.train("mess3", f"{folder}/run", length=16, model=model, num_steps=20, training=recipe)

    return run


#: Functions that compile kernels when they are called, by name.
CALLS: dict[str, Callable[[], object]] = {
    "HMM": _many,
    "make_process": lambda: hs.make_process("random-hmm", num_states=8, num_symbols=8),
    "sample": lambda: hs.ProcessDataset(_few()[0], length=40)[0:8].observations,
    **{
        f"{name}, {states}": _asked(name, some)
        for name in ("log_likelihood", "filter_beliefs", "smooth_beliefs", "most_likely_states", "sample_state_paths")
        for states, some in (
            ("400 sequences", partial(_few, 400)),
            ("2 states", _few),
            ("16 states", partial(_many, 16)),
            ("128 states", _many),
        )
    },
    "memory_beliefs": _asked("memory_beliefs", _few, 4),
    "memory_beliefs, 16 states": _asked("memory_beliefs", partial(_many, 16), 4),
    "filter_mixture": _mixed,
    "filter_mixture, 1 sequence": partial(_mixed, 1),
    "fit, 2 states": partial(_fitted, 2),
    "fit, 4 states": partial(_fitted, 4),
    "fit, 4 states, 1 sequence": partial(_fitted, 4, 1),
    "fit, 64 states": partial(_fitted, 64),
    "fit, 4 states, Gaussian": partial(_fitted, 4, emission="gaussian"),
    "train, RNN": _trained(name="rnn"),
    "train, decoder": _trained(name="decoder", dropout=0.0),
}


def compile_all(*, quiet: bool = False) -> None:
    began = time.process_time()
    for name, call in CALLS.items():
        before = time.process_time()
        call()
        if not quiet:
            say(f"ok    {name:<32} {time.process_time() - before:.1f} seconds of processor time")
    say(f"compiled: {len(CALLS)} calls, {time.process_time() - began:.0f} seconds of processor time")
