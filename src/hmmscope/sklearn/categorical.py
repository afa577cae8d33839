"""HMM estimator with categorical emissions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Tags
from sklearn.utils.validation import check_non_negative

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.constraints import Constraints
from hmmscope.inference.free_parameters import num_free
from hmmscope.inference.known_states import paired
from hmmscope.sequences.columns import categories_of, is_frame
from hmmscope.sequences.gaps import MISSING
from hmmscope.sklearn.encoded import Array, EncodedObservations, as_rows, rows_of, unrounded
from hmmscope.sklearn.estimator import HiddenMarkovModel, drawn


class CategoricalHMM(HiddenMarkovModel):
    """HMM with symbols 0 to V - 1, a replacement for `hmmlearn.hmm.CategoricalHMM`.

    X is a column of symbols (time, 1); NaN, masked entries and `hmmscope.MISSING` are missing observations.

    Source: Rabiner (1989); the interface is that of hmmlearn 0.3.

    Args:
        n_components: Number of states S.
        startprob_prior, transmat_prior, emissionprob_prior: Concentrations of Dirichlet priors; 1 means no prior.
        n_features: Number of symbols V (default: largest symbol + 1).
        algorithm: Decoder, "viterbi" or "map" (most probable state at each time).
        random_state: Seed or generator; None uses NumPy's global generator.
        n_iter: Maximum number of iterations.
        tol: The fit ends when an iteration gains less than this log-likelihood, in nats.
        verbose: Whether to print each iteration to standard error.
        params: Parts to fit: letters of "s" (start), "t" (transitions), "e" (emissions).
        init_params: Parts to initialize when a fit begins, with the letters of `params`.
        implementation: "log" or "scaling", for compatibility with hmmlearn; it has no effect.
        n_init: Number of random starts, of which the fit keeps the best; 1 in hmmlearn.
        constraints: Forbidden, fixed and tied probabilities, see `hmmscope.Constraints`.

    Attributes:
        startprob_: Initial distribution (S,).
        transmat_: `[i, j]` = P(next state j given state i) (S, S).
        emissionprob_: `[i, v]` = P(symbol v given state i) (S, V).
        monitor_: Convergence monitor of the last fit.
        n_features: Number of symbols V.
    """

    symbolic = True
    parts = HiddenMarkovModel.parts | {"e": "emissionprob_"}
    laws = (*HiddenMarkovModel.laws, "emissionprob_")
    constrained = HiddenMarkovModel.constrained | {"emission": "emissionprob_"}
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
        constraints: Constraints | None = None,
    ) -> None:
        self._take(locals())

    @property
    def n_features(self) -> int | None:
        """Number of symbols; None before a fit infers it."""
        given: int | None = self.__dict__["n_features"]
        emission = self.__dict__.get("emissionprob_")
        return np.shape(emission)[-1] if given is None and emission is not None else given

    @n_features.setter
    def n_features(self, value: int | None) -> None:
        self.__dict__["n_features"] = value

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return super().get_params(deep) | {"n_features": self.__dict__["n_features"]}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = tags.input_tags.positive_only = tags.input_tags.allow_nan = True
        return tags

    def _read(self, X: Any, *, fitting: bool) -> NDArray[np.int64]:
        categories = [] if is_frame(X) else categories_of(X) or []
        X = as_rows(X)
        if not fitting and self._is_column(X):  # passes all of scikit-learn's checks
            self._num_symbols = int(self.n_features or 0)
            self._check_largest(X)
            return X.astype(np.int64)
        found = self._validated(X, fitting=fitting)
        check_non_negative(np.where(np.isnan(found) | (found == MISSING), 0, found), "X in CategoricalHMM")
        if found.shape[1] != 1:
            raise InputError(
                f"X: must be one column of symbols (time, 1), got {found.shape[1]} features; "
                "reshape a batch with X.reshape(-1, 1) and pass lengths="
            )
        gaps = np.isnan(found[:, 0]) | (found[:, 0] == MISSING)
        given = np.where(gaps, 0, found[:, 0])
        with np.errstate(invalid="ignore"):  # numbers beyond int64 are refused below
            symbols = given.astype(np.int64)
        if (symbols != given).any() or symbols.min() < 0:
            raise InputError("X: must be symbols (nonnegative integers); encode names with OrdinalEncoder")
        drawn_anew = fitting and self.__dict__["n_features"] is None and "emissionprob_" in self._to_begin()
        count = (fitting and self._alphabet is not None and self._alphabet.count) or 0
        largest = max([int(symbols.max()), count - 1, *(int(one) for one in categories if str(one).isdigit())])
        self._num_symbols = largest + 1 if drawn_anew else int(self.n_features or 0)
        self._check_largest(symbols)
        return np.where(gaps, self._num_symbols, symbols)[:, None]

    def _is_column(self, X: Any) -> bool:
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
            self.emissionprob_ = self._most_probable("emissionprob_", self.emissionprob_prior, counts)

    def _check_emissions(self) -> None:
        self.emissionprob_ = rows_of("emissionprob_", self.emissionprob_, (self.n_components, self.n_features))

    def _known(self, X: NDArray[Any], allowed: NDArray[np.bool_]) -> Any:
        return paired(X[:, 0], allowed)

    def _seen(self, X: NDArray[Any], lengths: NDArray[np.int64], known: Any = None) -> EncodedObservations:
        emission, (symbols, sets) = self.emissionprob_, (X[:, 0], None) if known is None else known
        if (emission.shape[1] == X).any():
            emission = np.column_stack([emission, np.ones(len(emission))])
        if sets is not None:
            emission = emission[:, sets.symbols] * sets.allowed.T
        return EncodedObservations(unrounded(self.startprob_, self.transmat_, emission), symbols, lengths, sets)

    def _emit(self, states: NDArray[np.int64], uniforms: Array) -> NDArray[Any]:
        symbols = np.empty(len(states), np.int64)
        for state, probs in enumerate(self.emissionprob_.cumsum(1)):
            here = states == state
            symbols[here] = drawn(probs, uniforms[here])
        return symbols[:, None]

    def _num_free_emissions(self, positive: dict[str, NDArray[np.bool_]]) -> dict[str, int]:
        return {"emissionprob_": num_free(positive["emissionprob_"])}
