"""Symbols: each state has a law over them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.free_parameters import num_free
from hmmscope.sklearn.encoded import Array, EncodedObservations, unmasked, unrounded
from hmmscope.sklearn.estimator import HiddenMarkovModel, drawn, most_probable, rows_of


class CategoricalHMM(HiddenMarkovModel):
    """A hidden Markov model whose states emit symbols 0 to V - 1, in the place of `hmmlearn.hmm.CategoricalHMM`.

    X is one column of symbols (time, 1); NaN, or a masked entry of `numpy.ma`, is a missing observation, and what it may
    have been is summed over.

    Source: Rabiner (1989); the interface is that of hmmlearn 0.3.

    Args:
        n_components: number of states S.
        startprob_prior, transmat_prior, emissionprob_prior: of Dirichlet rows, numbers or arrays; 1 is no prior.
        n_features: number of symbols V; by default the largest that occurs and one.
        algorithm: of `decode` and `predict`: "viterbi" or "map".
        random_state: a seed, a generator of NumPy, or None for its global one.
        n_iter: iterations at most.
        tol: nats; a smaller gain of log-likelihood ends the fit.
        verbose: a line on standard error for each iteration.
        params: what is fitted: letters of "s" (start), "t" (transitions), "e" (emissions).
        init_params: what is drawn at random before; the rest stays as it was set.
        implementation: "log" and "scaling" are two ways to compute the same numbers; here they are one, exact in both.
        n_init: random starts, of which the likeliest end is kept. hmmlearn has one.

    Attributes:
        startprob_: law of the first state (S,).
        transmat_: `[i, j]` = P(next j given now i) (S, S).
        emissionprob_: `[i, v]` = P(symbol v given state i) (S, V).
        monitor_: how the last fit went.
        n_features: V, of the last fit if it was not given.
    """

    parts = HiddenMarkovModel.parts | {"e": "emissionprob_"}
    laws = (*HiddenMarkovModel.laws, "emissionprob_")
    emissionprob_: Array
    emissionprob_prior: Any

    def __init__(
        self,
        n_components: int = 1,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        *,
        emissionprob_prior: Any = 1.0,
        n_features: int | None = None,
        algorithm: str = "viterbi",
        random_state: Any = None,
        n_iter: int = 10,
        tol: float = 1e-2,
        verbose: bool = False,
        params: str = "ste",
        init_params: str = "ste",
        implementation: str = "log",
        n_init: int = 1,
    ) -> None:
        self._take(locals())

    @property
    def n_features(self) -> int | None:
        """The number of symbols: as given, or else of `emissionprob_`, or None before there are emissions."""
        given: int | None = self.__dict__["n_features"]
        emission = self.__dict__.get("emissionprob_")
        return np.shape(emission)[-1] if given is None and emission is not None else given

    @n_features.setter
    def n_features(self, value: int | None) -> None:
        self.__dict__["n_features"] = value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options as they were given."""
        return super().get_params(deep) | {"n_features": self.__dict__["n_features"]}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.positive_only = tags.input_tags.allow_nan = True
        return tags

    def _read(self, X: Any, *, fitting: bool) -> NDArray[np.int64]:
        """A column of symbols; a missing one is V, which every state emits with probability one."""
        X = unmasked(X)
        if not fitting and self._is_column(X):  # nothing that scikit-learn asks for can be wrong
            self._num_symbols = int(self.n_features or 0)
            self._check_largest(X)
            return X.astype(np.int64)
        found = validate_data(self, X, reset=fitting, ensure_non_negative=True, ensure_all_finite="allow-nan")
        if found.shape[1] != 1:
            raise InputError(
                f"X: must be one column of symbols (time, 1), got {found.shape[1]} features; "
                "sequences side by side become one column by X.reshape(-1, 1), with lengths="
            )
        gaps = np.isnan(found[:, 0])
        given = np.where(gaps, 0, found[:, 0])
        symbols = given.astype(np.int64)
        if (symbols != given).any() or symbols.min() < 0:
            raise InputError("X: must be symbols, whole numbers of at least 0; OrdinalEncoder makes them of names")
        drawn_anew = fitting and self.__dict__["n_features"] is None and "emissionprob_" in self._to_begin()
        self._num_symbols = int(symbols.max()) + 1 if drawn_anew else int(self.n_features or 0)
        self._check_largest(symbols)
        return np.where(gaps, self._num_symbols, symbols)[:, None]

    def _is_column(self, X: Any) -> bool:
        """Whether this is a plain column of whole numbers, none of them negative, and names of columns are not known."""
        plain = type(X) is np.ndarray and X.ndim == 2 and X.shape[1] == 1 and len(X) > 0 and X.dtype.kind in "iu"
        return plain and not hasattr(self, "feature_names_in_") and int(X.min()) >= 0

    def _check_largest(self, symbols: NDArray[Any]) -> None:
        if (largest := int(symbols.max())) >= self._num_symbols:
            raise InputError(f"X: must be symbols in [0, {self._num_symbols}), got {largest}")

    def _begin_emissions(self, X: NDArray[Any], random: np.random.RandomState) -> dict[str, Array]:
        weights = random.rand(self.n_components, self._num_symbols)
        return {"emissionprob_": weights / weights.sum(1, keepdims=True)}

    def _maximise_emissions(self, X: NDArray[Any], visits: Float64[Tensor, "symbol state"]) -> None:
        if "e" in self.params:
            counts = visits[: self._num_symbols].T.numpy()
            self.emissionprob_ = most_probable(self.emissionprob_prior, counts, self.emissionprob_)

    def _check_emissions(self) -> None:
        self.emissionprob_ = rows_of("emissionprob_", self.emissionprob_, (self.n_components, self.n_features))

    def _seen(self, X: NDArray[Any], lengths: NDArray[np.int64]) -> EncodedObservations:
        emission = self.emissionprob_
        if (emission.shape[1] == X).any():
            emission = np.column_stack([emission, np.ones(len(emission))])
        return EncodedObservations(unrounded(self.startprob_, self.transmat_, emission), X[:, 0], lengths)

    def _emit(self, states: NDArray[np.int64], uniforms: Array) -> NDArray[Any]:
        symbols = np.empty(len(states), np.int64)
        for state, law in enumerate(self.emissionprob_.cumsum(1)):
            here = states == state
            symbols[here] = drawn(law, uniforms[here])
        return symbols[:, None]

    def _num_free_emissions(self, positive: dict[str, NDArray[np.bool_]]) -> dict[str, int]:
        return {"emissionprob_": num_free(positive["emissionprob_"])}
