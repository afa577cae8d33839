"""Conversion of HMM parameters to and from dynamax."""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.emissions.gaussian import GaussianHMM
from hmmscope.emissions.gaussian_mixture import GaussianMixtureHMM
from hmmscope.emissions.multichannel import MultichannelHMM
from hmmscope.emissions.poisson import PoissonHMM
from hmmscope.errors import InputError
from hmmscope.interop.numbers import numbers, rescaled, source_of
from hmmscope.processes.hmm import HMM
from hmmscope.processes.process import Process

_HINT = "pass the first result of initialize(...) or fit_em(...) of a dynamax CategoricalHMM, PoissonHMM or GaussianHMM"

#: Rounding of row sums in float32, JAX's default.
_TOLERANCE = 1e-5

#: Covariances: name in dynamax, our covariance type, axes besides states and components, and whether it is a standard
#: deviation.
_SPREADS = (
    ("covs", "full", 2, False),
    ("scale_diags", "diag", 1, True),
    ("cov", "tied", 2, False),
    ("scales", "spherical", 0, True),
)


def from_dynamax(params: Any, *, allow_drop_tiny: bool = False) -> Any:
    """Convert the parameters of a dynamax HMM to a process.

    Args:
        params: object (S states, C channels, V symbols, Y coordinates, K Gaussians) with `initial.probs` (S,),
            `transitions.transition_matrix` (S, S), and `emissions`, which has
            `probs` (S, C, V), `rates` (S, Y), or `means` (S, Y) with `covs`, `scale_diags`, `cov` or `scales`; mixtures
            also have `weights` (S, K), and `means` (S, K, Y).
        allow_drop_tiny: see `hmmscope.HMM`.

    Raises:
        InputError: parameters are missing, or arrays are invalid.
    """
    emissions, source = getattr(params, "emissions", None), source_of(params, "dynamax")

    def chain() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        initial, moves = numbers(params, "initial.probs", 1, _HINT), "transitions.transition_matrix"
        return rescaled(initial, _TOLERANCE), rescaled(numbers(params, moves, 2, _HINT), _TOLERANCE)

    if getattr(emissions, "rates", None) is not None:
        return PoissonHMM(*chain(), numbers(params, "emissions.rates", 2, _HINT), source=source)
    if getattr(emissions, "means", None) is not None:
        mixed = getattr(emissions, "weights", None) is not None
        means = numbers(params, "emissions.means", 2 + mixed, _HINT)
        covariances, shape = _covariances(params, mixed)
        if not mixed:
            return GaussianHMM(*chain(), means, covariances, shape, source=source)
        weights = rescaled(numbers(params, "emissions.weights", 2, _HINT), _TOLERANCE)
        return GaussianMixtureHMM(*chain(), weights, means, covariances, shape, source=source)
    probs = rescaled(numbers(params, "emissions.probs", 3, _HINT), _TOLERANCE)
    if probs.shape[1] > 1:
        return MultichannelHMM(*chain(), list(probs.swapaxes(0, 1)), source=source)
    return HMM(*chain(), probs[:, 0], source=source, allow_drop_tiny=allow_drop_tiny)


def _covariances(params: Any, mixed: bool) -> tuple[NDArray[np.float64], str]:
    for name, shape, axes, root in _SPREADS:
        if getattr(params.emissions, name, None) is not None:
            found = numbers(params, f"emissions.{name}", axes + (mixed + 1) * (shape != "tied"), _HINT)
            return (found**2 if root else found), shape
    known = ", ".join(name for name, *_ in _SPREADS)
    raise InputError(f"emissions: must have one of {known} with means; {_HINT}")


def to_dynamax(process: Process) -> dict[str, NDArray[np.float64]]:
    """Return arguments for ``model.initialize(key, **to_dynamax(process))`` in dynamax.

    Args:
        process: `HMM` (dynamax's `CategoricalHMM(S, 1, V)`); `MultichannelHMM` with channels of equal size
            (`CategoricalHMM(S, C, V)`); `PoissonHMM`; `GaussianHMM`; `GaussianMixtureHMM`; or a class registered with
            `dynamax_emissions`. Gaussian classes of the same name in dynamax have covariances "full"; for "diag" use
            `DiagonalGaussianHMM` or `DiagonalGaussianMixtureHMM`, for "tied" `SharedCovarianceGaussianHMM`, for
            "spherical" `SphericalGaussianHMM`. With `jax_enable_x64` the numbers stay bit-identical.

    Raises:
        InputError: dynamax has no HMM for the process.
    """
    arrays = {name: tensor.numpy().copy() for name, tensor in process.file_tensors().items()}
    shape = process.file_texts().get("covariance_type", "")
    emissions = dynamax_emissions(process, arrays)
    if emissions is None:
        raise InputError(f"process: dynamax has no HMM for {type(process).__name__}" + f", {shape}" * bool(shape))
    chain = {"initial_probs": arrays["initial"], "transition_matrix": arrays["transition"]}
    return chain | {f"emission_{name}": array for name, array in emissions.items()}


_Arrays = dict[str, NDArray[np.float64]]


@functools.singledispatch
def dynamax_emissions(process: Process, arrays: _Arrays) -> _Arrays | None:
    """Return dynamax's emission arguments, or None for an unsupported class of processes."""
    return None


@dynamax_emissions.register
def _symbols(process: HMM, arrays: _Arrays) -> _Arrays | None:
    return {"probs": arrays["emission"][:, None]}


@dynamax_emissions.register
def _rates(process: PoissonHMM, arrays: _Arrays) -> _Arrays | None:
    return {"rates": arrays["rates"]}


@dynamax_emissions.register
def _channels(process: MultichannelHMM, arrays: _Arrays) -> _Arrays | None:
    sizes = arrays["sizes"].tolist()
    good = len(set(sizes)) == 1 and len(sizes) == process.num_symbols
    return {"probs": np.stack(np.split(arrays["emissions"], len(sizes), 1), 1)} if good else None


@dynamax_emissions.register
def _gaussians(process: GaussianHMM, arrays: _Arrays) -> _Arrays | None:
    return _spread(arrays, process.covariance_type)


@dynamax_emissions.register
def _mixtures(process: GaussianMixtureHMM, arrays: _Arrays) -> _Arrays | None:
    shape = process.covariance_type
    if shape not in ("full", "diag"):
        return None
    return _spread(arrays | {"means": arrays["centres"]}, shape) | {"weights": arrays["weights"]}


def _spread(arrays: _Arrays, shape: str) -> _Arrays:
    name, root = next((name, root) for name, known, _, root in _SPREADS if known == shape)
    theirs = {"covs": "covariances", "cov": "covariance"}.get(name, name)
    return {"means": arrays["means"], theirs: np.sqrt(arrays["covariances"]) if root else arrays["covariances"]}
