"""Compare the estimators of `hmmscope.sklearn` with both implementations of hmmlearn, from the same initial parameters."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import hmmscope.sklearn
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
#: Example of hmmlearn's documentation: a casino with two dice, fitted to half of the data in 10 iterations.
ROLLS, EXAMPLE_ITERATIONS = 15_000, 10
#: (states, coordinates, sequences, length) of vector observations.
VECTOR_SHAPES = ((2, 1, 1, 10**5), (4, 3, 1, 2 * 10**4), (8, 5, 64, 300), (16, 10, 1, 10**4))
#: Estimators of vector observations and their options.
VECTOR_ESTIMATORS: dict[str, dict[str, Any]] = {
    "GaussianHMM": {"covariance_type": "diag"},
    "PoissonHMM": {},
    "GMMHMM": {"covariance_type": "diag", "n_mix": 2},
}


def contests(*, peers: bool, device: str = "cpu") -> list[Contest]:
    """Compare fits, scores, paths and posteriors."""
    if device != "cpu":
        raise InputError("device: estimators run on the processor")
    found = [_example(peers)]
    for states, symbols, batch, length in SHAPES:
        process = make_process("random-hmm", num_states=states, num_symbols=symbols)
        found += _of(f"{states} states, {batch} x {length}", process, states, batch, length, peers)
    for name, given in VECTOR_ESTIMATORS.items():
        for shape in VECTOR_SHAPES:
            found += _of_vectors(name, given, *shape, peers)
    return found


def _of_vectors(
    name: str, given: dict[str, Any], states: int, coordinates: int, batch: int, length: int, peers: bool
) -> list[Contest]:
    """Return contests from the same means, chain and spread, without k-means, which both take from scikit-learn."""
    random = np.random.default_rng(0)
    centres = 2.0 * random.permuted(np.tile(np.arange(states), (coordinates, 1)), axis=1).T
    hidden = random.integers(0, states, -(-batch * length // 8)).repeat(8)[: batch * length]
    X = centres[hidden] + random.normal(size=(batch * length, coordinates))
    if name == "PoissonHMM":
        X = random.poisson(1 + centres[hidden]).astype(float)
    start: dict[str, Any] = {
        "startprob_": np.full(states, 1 / states),
        "transmat_": (np.eye(states) + 1 / states) / 2,
        "n_features": coordinates,
    }
    parts = np.ones((states, coordinates))
    if name == "GaussianHMM":
        start |= {"means_": centres, "covars_": parts}
    elif name == "PoissonHMM":
        start |= {"lambdas_": 1 + centres}
    else:
        pairs = centres[:, None] + np.array([-0.5, 0.5])[:, None]
        start |= {"weights_": np.full((states, 2), 0.5), "means_": pairs, "covars_": np.ones(pairs.shape)}

    def make(kind: Callable[..., Any], **options: Any) -> Any:
        model = kind(states, init_params="", n_iter=ITERATIONS, tol=-np.inf, random_state=0, **given, **options)
        for attribute, value in start.items():
            setattr(model, attribute, np.array(value) if isinstance(value, np.ndarray) else value)
        return model

    makers: dict[str, Callable[[], Any]] = {
        "hmmscope.sklearn": functools.partial(make, getattr(hmmscope.sklearn, name))
    }
    if peers and installed("hmmlearn"):
        import hmmlearn.hmm

        for way in ("log", "scaling"):
            theirs = functools.partial(make, getattr(hmmlearn.hmm, name), implementation=way)
            makers[f"hmmlearn, {way}"] = theirs
    shape = f"{states} states, {coordinates} coordinate{'s' * (coordinates > 1)}, {batch} x {length}"
    return _contests(name, shape, makers, X, [length] * batch, ITERATIONS)


def _example(peers: bool) -> Contest:
    casino = load_process("dishonest-casino")
    assert isinstance(casino, HMM)
    return _of("2 dice", casino, 2, 1, ROLLS, peers, EXAMPLE_ITERATIONS)[0]


def _of(
    name: str, process: Process, states: int, batch: int, length: int, peers: bool, iterations: int = ITERATIONS
) -> list[Contest]:
    from hmmscope.sklearn import CategoricalHMM

    X = ProcessDataset(process, length=length)[0:batch].observations.reshape(-1, 1).numpy()
    lengths = [length] * batch
    options: dict[str, Any] = {"n_iter": iterations, "tol": -np.inf, "random_state": 0}
    makers: dict[str, Callable[[], Any]] = {"hmmscope.sklearn": functools.partial(CategoricalHMM, states, **options)}
    if peers and installed("hmmlearn"):
        from hmmlearn.hmm import CategoricalHMM as Theirs

        for way in ("log", "scaling"):
            makers[f"hmmlearn, {way}"] = functools.partial(Theirs, states, implementation=way, **options)
    return _contests("CategoricalHMM", name, makers, X, lengths, iterations)


def _contests(
    estimator: str,
    name: str,
    makers: dict[str, Callable[[], Any]],
    X: np.ndarray,
    lengths: list[int],
    iterations: int,
) -> list[Contest]:
    tokens = len(X)
    fits = Contest(f"{estimator}.fit, {name}", "tokens")
    answers = {
        method: Contest(f"{estimator}.{method}, {name}", "tokens") for method in ("score", "predict", "predict_proba")
    }
    for who, make in makers.items():
        fits.add(who, functools.partial(_fitted, make, X, lengths), iterations * tokens)
        model = make().fit(X, lengths)
        for method, contest in answers.items():
            contest.add(who, functools.partial(getattr(model, method), X, lengths), tokens)
    return [fits, *answers.values()]


def _fitted(make: Callable[[], Any], X: np.ndarray, lengths: list[int]) -> Any:
    return make().fit(X, lengths)
