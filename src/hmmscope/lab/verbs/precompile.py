"""Calls that compile all kernels, for `check --compile` and `python -m bench.cold`."""

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import hmmscope as hs
from hmmscope.text import say


def _few() -> tuple[Any, torch.Tensor]:
    return hs.load_process("dishonest-casino"), torch.arange(320).view(8, 40) % 6


def _many() -> tuple[Any, torch.Tensor]:
    even = np.full(128, 1 / 128), np.full((128, 128), 1 / 128), np.full((128, 8), 1 / 8)
    return hs.HMM(*even), torch.ones(8, 40, dtype=torch.int64)


def _asked(name: str, some: Callable[[], tuple[Any, torch.Tensor]], *more: Any) -> Callable[[], object]:
    return lambda: getattr(hs, name)(*some(), *more)


def _sampled() -> object:
    return hs.ProcessDataset(_few()[0], length=40)[0:8].observations


def _mixed() -> object:
    process, tokens = _few()
    return hs.filter_mixture(hs.Mixture([0.5, 0.5], [process, process]), tokens)


def _fitted(num_states: int) -> Callable[[], object]:
    return lambda: hs.fit(_few()[1].numpy(), num_states, options=hs.FitOptions(num_restarts=1, max_iterations=5))


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
    "sample": _sampled,
    **{
        f"{name}, {states} states": _asked(name, some)
        for name in ("log_likelihood", "filter_beliefs", "smooth_beliefs", "most_likely_states", "sample_state_paths")
        for states, some in ((2, _few), (128, _many))
    },
    "memory_beliefs": _asked("memory_beliefs", _few, 4),
    "filter_mixture": _mixed,
    "fit, 4 states": _fitted(4),
    "fit, 64 states": _fitted(64),
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
