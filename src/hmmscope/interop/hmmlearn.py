"""Conversion of models to and from hmmlearn."""

import functools
from typing import Any

import numpy as np

from hmmscope.emissions.gaussian import GaussianHMM
from hmmscope.emissions.gaussian_mixture import GaussianMixtureHMM
from hmmscope.emissions.poisson import PoissonHMM
from hmmscope.errors import InputError, ResourceError
from hmmscope.interop.numbers import numbers, source_of
from hmmscope.processes.hmm import HMM
from hmmscope.processes.process import Process
from hmmscope.processes.require_type import require_process_type

_HINT = "fit the model, or set startprob_, transmat_ and the emission parameters; for symbols, use CategoricalHMM"


def from_hmmlearn(model: Any, *, allow_drop_tiny: bool = False) -> Any:
    """Convert a fitted model of hmmlearn, or of `hmmscope.sklearn`, to a process.

    Args:
        model: model with `startprob_` (state,), `transmat_` (state, state), and emission parameters: `emissionprob_`
            (state, symbol); `means_` and covariances, with `weights_` for mixtures; or `lambdas_`.
        allow_drop_tiny: see `hmmscope.HMM`.

    Raises:
        InputError: `model` has another type, is not fitted, or has invalid arrays.
    """
    for field, made in (("lambdas_", _poisson), ("weights_", _mixture), ("means_", _gaussian)):
        if getattr(model, field, None) is not None:
            chain = numbers(model, "startprob_", 1, _HINT), numbers(model, "transmat_", 2, _HINT)
            return made(model, *chain, source=source_of(model, "hmmlearn"))
    trials = np.unique(np.asarray(1 if (given := getattr(model, "n_trials", 1)) is None else given))
    if trials.tolist() != [1]:
        said = " to ".join(str(number) for number in dict.fromkeys((trials[0], trials[-1])))
        raise InputError(f"{type(model).__name__}: n_trials must be 1 for symbols, got {said}")
    return HMM(
        numbers(model, "startprob_", 1, _HINT),
        numbers(model, "transmat_", 2, _HINT),
        numbers(model, "emissionprob_", 2, _HINT),
        source=source_of(model, "hmmlearn"),
        allow_drop_tiny=allow_drop_tiny,
    )


def _poisson(model: Any, initial: Any, transition: Any, **texts: Any) -> PoissonHMM:
    return PoissonHMM(initial, transition, numbers(model, "lambdas_", 2, _HINT), **texts)


def _gaussian(model: Any, initial: Any, transition: Any, **texts: Any) -> GaussianHMM:
    shape, covariances = (
        model.covariance_type,
        np.asarray(model._covars_ if hasattr(model, "_covars_") else model.covars_),
    )
    if shape == "spherical":
        covariances = covariances.reshape(len(initial), -1)[:, 0]  # hmmlearn repeats a variance for each feature
    return GaussianHMM(initial, transition, numbers(model, "means_", 2, _HINT), covariances, shape, **texts)


def _mixture(model: Any, initial: Any, transition: Any, **texts: Any) -> GaussianMixtureHMM:
    weights, centres = numbers(model, "weights_", 2, _HINT), numbers(model, "means_", 3, _HINT)
    return GaussianMixtureHMM(
        initial, transition, weights, centres, np.asarray(model.covars_), model.covariance_type, **texts
    )


def to_hmmlearn(hmm: Process) -> Any:
    """Convert a process to a fitted hmmlearn model with bit-identical parameters.

    Args:
        hmm: `HMM`, `GaussianHMM`, `GaussianMixtureHMM`, `PoissonHMM`, or a class registered with `hmmlearn_model`.

    Raises:
        InputError: the process has another type.
        ResourceError: hmmlearn is not installed.
    """
    try:
        import hmmlearn.hmm as theirs
    except ImportError:
        raise ResourceError("to_hmmlearn: needs hmmlearn; pip install 'hmmscope[hmm]'") from None
    arrays = {name: tensor.numpy().copy() for name, tensor in hmm.file_tensors().items()}
    model = hmmlearn_model(hmm, theirs, arrays)
    model.n_features = hmm.num_symbols
    model.startprob_, model.transmat_ = arrays["initial"], arrays["transition"]
    return model


@functools.singledispatch
def hmmlearn_model(hmm: Process, theirs: Any, arrays: dict[str, Any]) -> Any:
    require_process_type(hmm, HMM, "hmm")
    model = theirs.CategoricalHMM(hmm.num_states, n_features=hmm.num_symbols)
    model.emissionprob_ = arrays["emission"]
    return model


@hmmlearn_model.register
def _their_poisson(hmm: PoissonHMM, theirs: Any, arrays: dict[str, Any]) -> Any:
    model = theirs.PoissonHMM(hmm.num_states)
    model.lambdas_ = arrays["rates"]
    return model


@hmmlearn_model.register
def _their_gaussian(hmm: GaussianHMM, theirs: Any, arrays: dict[str, Any]) -> Any:
    model = theirs.GaussianHMM(hmm.num_states, hmm.file_texts()["covariance_type"])
    model.means_, model.covars_ = arrays["means"], arrays["covariances"]
    return model


@hmmlearn_model.register
def _their_mixture(hmm: GaussianMixtureHMM, theirs: Any, arrays: dict[str, Any]) -> Any:
    shape = hmm.file_texts()["covariance_type"]
    model = theirs.GMMHMM(hmm.num_states, arrays["weights"].shape[1], covariance_type=shape)
    model.weights_, model.means_, model.covars_ = (arrays[name] for name in ("weights", "centres", "covariances"))
    return model
