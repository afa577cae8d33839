"""dynamax: the parameters of a `CategoricalHMM`."""

from typing import Any

from hmmscope.errors import InputError
from hmmscope.interop.numbers import numbers, rescaled, source_of
from hmmscope.processes.hmm import HMM

_HINT = "give the parameters of a dynamax CategoricalHMM, the first of model.initialize(...) or model.fit_em(...)"

#: Rows in float32, as JAX makes them by default, sum to one within about this.
_TOLERANCE = 1e-5


def from_dynamax(params: Any, *, allow_drop_tiny: bool = False) -> HMM:
    """An HMM from the parameters of a dynamax `CategoricalHMM` with one emission a step.

    Args:
        params: anything with `initial.probs` (S,), `transitions.transition_matrix` (S, S) and `emissions.probs`
            (S, 1, V).
        allow_drop_tiny: round positive probabilities below 2^-32, most of them to zero; else they become 2^-32.

    Raises:
        InputError: other parameters, several emissions a step, or matrices that are not an HMM.
    """
    emission = numbers(params, "emissions.probs", 3, _HINT)
    if emission.shape[1] != 1:
        raise InputError(f"emissions.probs: must have one emission a step, got {emission.shape[1]}")
    return HMM(
        rescaled(numbers(params, "initial.probs", 1, _HINT), _TOLERANCE),
        rescaled(numbers(params, "transitions.transition_matrix", 2, _HINT), _TOLERANCE),
        rescaled(emission[:, 0], _TOLERANCE),
        source=source_of(params, "dynamax"),
        allow_drop_tiny=allow_drop_tiny,
    )
