"""hmmlearn: `CategoricalHMM`, both ways."""

from typing import Any

from hmmscope.errors import InputError, ResourceError
from hmmscope.interop.numbers import numbers, source_of
from hmmscope.processes.hmm import HMM
from hmmscope.processes.narrow import as_kind

_HINT = "fit it, or set startprob_, transmat_ and emissionprob_; only CategoricalHMM emits symbols"


def from_hmmlearn(model: Any, *, allow_drop_tiny: bool = False) -> HMM:
    """An HMM from a fitted `hmmlearn.hmm.CategoricalHMM`.

    Args:
        model: anything with `startprob_` (S,), `transmat_` (S, S) and `emissionprob_` (S, V).
        allow_drop_tiny: round positive probabilities below 2^-32, most of them to zero; else they become 2^-32.

    Raises:
        InputError: another kind of model, one that is not fitted, or matrices that are not an HMM.
    """
    if getattr(model, "n_trials", 1) != 1:
        raise InputError(
            f"{type(model).__name__}: emits counts of {model.n_trials} trials; only n_trials = 1 is a symbol"
        )
    return HMM(
        numbers(model, "startprob_", 1, _HINT),
        numbers(model, "transmat_", 2, _HINT),
        numbers(model, "emissionprob_", 2, _HINT),
        source=source_of(model, "hmmlearn"),
        allow_drop_tiny=allow_drop_tiny,
    )


def to_hmmlearn(hmm: HMM) -> Any:
    """A `hmmlearn.hmm.CategoricalHMM` that looks fitted, with the same bits.

    Raises:
        InputError: not an HMM whose states emit.
        ResourceError: hmmlearn is not installed.
    """
    hmm = as_kind(hmm, HMM, "hmm")
    try:
        from hmmlearn.hmm import CategoricalHMM
    except ImportError:
        raise ResourceError("to_hmmlearn: needs hmmlearn; pip install 'hmmscope[hmm]'") from None
    model = CategoricalHMM(n_components=hmm.num_states, n_features=hmm.num_symbols)
    model.startprob_ = hmm.initial_S.numpy().copy()
    model.transmat_ = hmm.transition_SS.numpy().copy()
    model.emissionprob_ = hmm.emission_SV.numpy().copy()
    return model
