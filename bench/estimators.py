"""`hmmscope.sklearn.CategoricalHMM` compared with both implementations of hmmlearn's, from the same start."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.contest import Contest, installed
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.processes.files import load_process
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.processes.process import Process

#: Iterations of a fit.
ITERATIONS = 3
#: (states, symbols, sequences, length) of random HMMs.
SHAPES = ((2, 6, 1, 10**4), (4, 8, 1, 10**5), (8, 8, 256, 128), (16, 16, 1, 3 * 10**4))
#: Example of hmmlearn's documentation: a casino with two dice, fitted to one half, 10 iterations.
ROLLS, EXAMPLE_ITERATIONS = 15_000, 10


def contests(*, peers: bool, device: str = "cpu") -> list[Contest]:
    """Compare fits, scores, paths and posteriors."""
    if device != "cpu":
        raise InputError("device: estimators run on the processor")
    found = [_example(peers)]
    for states, symbols, batch, length in SHAPES:
        process = make_process("random-hmm", num_states=states, num_symbols=symbols)
        found += _of(f"{states} states, {batch} x {length}", process, states, batch, length, peers)
    return found


def _example(peers: bool) -> Contest:
    casino = load_process("dishonest-casino")
    assert isinstance(casino, HMM)
    return _of("2 dice", casino, 2, 1, ROLLS, peers, EXAMPLE_ITERATIONS)[0]


def _of(
    name: str, process: Process, states: int, batch: int, length: int, peers: bool, iterations: int = ITERATIONS
) -> list[Contest]:
    from hmmscope.sklearn import CategoricalHMM

    X = ProcessDataset(process, length=length)[0:batch].observations.reshape(-1, 1).numpy()
    lengths, tokens = [length] * batch, batch * length
    options: dict[str, Any] = {"n_iter": iterations, "tol": -np.inf, "random_state": 0}
    makers: dict[str, Callable[[], Any]] = {"hmmscope.sklearn": functools.partial(CategoricalHMM, states, **options)}
    if peers and installed("hmmlearn"):
        from hmmlearn.hmm import CategoricalHMM as Theirs

        for way in ("log", "scaling"):
            makers[f"hmmlearn, {way}"] = functools.partial(Theirs, states, implementation=way, **options)
    fits = Contest(f"CategoricalHMM.fit, {name}", "tokens")
    answers = {
        method: Contest(
            f"CategoricalHMM.{method}, {name}", "tokens", "a call of half a millisecond, of which checks are part"
        )
        for method in ("score", "predict", "predict_proba")
    }
    for who, make in makers.items():
        fits.add(who, functools.partial(_fitted, make, X, lengths), iterations * tokens)
        model = make().fit(X, lengths)
        for method, contest in answers.items():
            contest.add(who, functools.partial(getattr(model, method), X, lengths), tokens)
    return [fits, *answers.values()]


def _fitted(make: Callable[[], Any], X: np.ndarray, lengths: list[int]) -> Any:
    return make().fit(X, lengths)
