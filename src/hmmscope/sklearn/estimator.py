"""Base class of the HMM estimators for scikit-learn."""

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Collection
from numbers import Real
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, check_random_state, validate_data

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.compiled import filter_batch
from hmmscope.inference.compiled_backward import run_smoother
from hmmscope.inference.constraints import Constraints, RowConstraints, as_constraints
from hmmscope.inference.counts import Counts, add_counts
from hmmscope.inference.fast import log_likelihood
from hmmscope.inference.free_parameters import num_free
from hmmscope.inference.known_states import as_allowed
from hmmscope.inference.loop_inputs import flat_sequences, paths_side_by_side, sequences, tables
from hmmscope.inference.paths import viterbi_paths
from hmmscope.inference.weights import as_weights, weighted_sum, with_weights
from hmmscope.processes.stationary import stationary_law
from hmmscope.schema import refuse_masked, require_known, unknown_name
from hmmscope.sklearn.encoded import (
    Array,
    EncodedObservations,
    as_rows,
    lengths_of,
    rows_of,
    weighted_parts,
    with_lengths,
)
from hmmscope.sklearn.monitor import ConvergenceMonitor

#: Decoders: the Viterbi path, or the most probable state at each time.
ALGORITHMS = ("viterbi", "map")
#: Values of hmmlearn's option `implementation`, which has no effect here.
IMPLEMENTATIONS = ("log", "scaling")


class _Sample(NamedTuple):
    observations: NDArray[Any]
    states: NDArray[np.int64]


class HiddenMarkovModel(BaseEstimator):
    """HMM estimator; X is (time, feature), and `lengths` gives the number of rows of each sequence.

    Subclasses define the abstract methods. Results agree with those of hmmlearn to about 1e-10.
    """

    #: Name of the fitted attribute for each letter of `params` and `init_params`.
    parts: dict[str, str] = {"s": "startprob_", "t": "transmat_"}
    #: Attributes whose rows are probability distributions; zeros in them stay zero in a fit.
    laws: tuple[str, ...] = ("startprob_", "transmat_")
    #: Whether observations are symbols.
    symbolic = False
    #: Name of the fitted attribute for each part that `constraints` may name.
    constrained: dict[str, str] = {"initial": "startprob_", "transition": "transmat_"}

    n_components: int
    startprob_prior: Any
    transmat_prior: Any
    algorithm: str
    random_state: Any
    n_iter: int
    tol: float
    verbose: bool
    params: str
    init_params: str
    implementation: str
    n_init: int
    constraints: Constraints | None

    def _take(self, arguments: dict[str, Any]) -> None:
        self.__dict__.update({name: value for name, value in arguments.items() if name not in ("self", "__class__")})

    # -- emission family

    @abstractmethod
    def _read(self, X: Any, *, fitting: bool) -> NDArray[Any]:
        """Return checked observations (N, feature); if `fitting`, also infer the number of symbols or features."""

    @abstractmethod
    def _begin_emissions(self, X: NDArray[Any], random: np.random.RandomState) -> dict[str, Array]:
        """Draw initial values of the emission attributes, as hmmlearn does."""

    @abstractmethod
    def _maximise_emissions(self, X: NDArray[Any], visits: Float64[Tensor, "symbol state"]) -> None:
        """Set the emission attributes that maximize the expected log-likelihood (M-step)."""

    @abstractmethod
    def _check_emissions(self) -> None:
        """Raise InputError unless the emission attributes are valid."""

    @abstractmethod
    def _known(self, X: NDArray[Any], allowed: NDArray[np.bool_]) -> Any:
        """Encode each observation together with its allowed states (N, S)."""

    @abstractmethod
    def _seen(self, X: NDArray[Any], lengths: NDArray[np.int64], known: Any = None) -> EncodedObservations:
        """Encode the observations for the compiled loops."""

    @abstractmethod
    def _emit(self, states: NDArray[np.int64], uniforms: Array) -> NDArray[Any]:
        """Sample one observation for each state in `states`; return an array (N, feature)."""

    @abstractmethod
    def _num_free_emissions(self, positive: dict[str, NDArray[np.bool_]]) -> dict[str, int]:
        """Count the free parameters of each emission attribute."""

    # -- fitting

    def fit(self, X: Any, lengths: Any = None, *, sequence_weights: Any = None, known_states: Any = None) -> Self:
        """Fit by expectation maximization (Baum-Welch).

        transmat_ij ∝ max(0, transmat_prior - 1 + E[transitions i -> j]); zeros stay zero

        Args:
            X: Sequences in consecutive rows (time, feature), a column, a table, a path, `SequenceData`, `VectorData`, or
                a list of sequences that are tables or differ in length; a list of equal rows is one sequence.
            lengths: Number of rows of each sequence; None for a single sequence.
            sequence_weights: Weight of each sequence; a weight of 2 equals two copies, and 0 omits the sequence.
            known_states: State of each row, -1 where unknown, or allowed states as booleans (time, state).

        Raises:
            InputError: X or an option is invalid, or a sequence has probability zero under the initial parameters.
        """
        self._check_options()
        X, lengths = self._split(X, lengths, fitting=True)
        lengths, allowed = lengths_of(lengths, len(X)), self._allowed(known_states, len(X))
        X, lengths, weights, allowed = weighted_parts(X, lengths, sequence_weights, allowed)
        known = None if allowed is None else self._known(X, allowed)
        generator = check_random_state(self.random_state)
        self._warn_of_what_is_lost()
        given = {name: getattr(self, name) for name in self.parts.values() if hasattr(self, name)}
        begun = self._positive(set(given) - self._to_begin())
        monitor, best = self.__dict__.get("_own_monitor"), None
        emitting = check_random_state(self.random_state)  # an integer seed restarts, as in hmmlearn
        for _ in range(self.n_init):
            self.__dict__.update(given)
            self._begin(X, generator, emitting)
            emitting, last = generator, emitting
            climbing = ConvergenceMonitor(self.tol, self.n_iter, self.verbose) if monitor is None else monitor
            reached = self._climb(X, lengths, climbing, weights, known)
            if best is None or reached > best[0]:
                best = reached, {name: getattr(self, name) for name in self.parts.values()}, copy.deepcopy(climbing)
        assert best is not None
        self.__dict__.update(best[1])
        self._begun = begun
        self._made, self._ran = best[1], best[2]
        self._drawn = self.random_state, last
        return self

    def _begin(self, X: NDArray[Any], chain: np.random.RandomState, emitting: np.random.RandomState) -> None:
        share, wanted = np.full(self.n_components, 1.0 / self.n_components), self._to_begin()
        if "startprob_" in wanted:
            self.startprob_ = chain.dirichlet(share)
        if "transmat_" in wanted:
            self.transmat_ = chain.dirichlet(share, size=self.n_components)
        for name, value in self._begin_emissions(X, emitting).items():
            if name in wanted:
                setattr(self, name, value)
        self._rules = self._constraints()
        for name, own in self._rules.items():
            if name not in wanted:  # zeros stay
                self._rules[name] = own = own.with_zeros(np.asarray(getattr(self, name)) == 0)
            setattr(self, name, own.maximise(np.asarray(getattr(self, name), np.float64)))
        self._check()

    def _constraints(self) -> dict[str, RowConstraints]:
        size, num_symbols = self.n_components, self.__dict__.get("_num_symbols")
        parts = as_constraints(self.constraints, size).parts(size, num_symbols)
        found = {self.constrained[part]: own for part, own in parts.items()}
        for letter, name in self.parts.items():
            if name in found and letter not in self.params:
                raise InputError(f"constraints: needs {letter!r} in params, which fits {name}")
        return found

    def _to_begin(self) -> set[str]:
        return {name for letter, name in self.parts.items() if letter in self.init_params or not hasattr(self, name)}

    def _warn_of_what_is_lost(self) -> None:
        made = self.__dict__.get("_made", {})
        for letter, name in self.parts.items():
            if letter in self.init_params and hasattr(self, name) and getattr(self, name) is not made.get(name):
                warnings.warn(
                    f"{name}: will be overwritten; to keep it, leave {letter!r} out of init_params", stacklevel=3
                )

    def _climb(
        self, X: NDArray[Any], lengths: NDArray[np.int64], monitor: Any, weights: Array | None, known: Any
    ) -> float:
        monitor._reset()
        for _ in range(self.n_iter):
            counts, total = self._expect(X, lengths, weights, known)
            if (counts.logs == -np.inf).any():
                given = " and known_states" if known is not None else ""
                rule = f"X: a sequence has probability zero under the initial parameters{given}"
                raise InputError(f"{rule}; make zero parameters positive, because EM keeps zeros")
            self._maximise(X, counts)
            monitor.report(total)
            if monitor.converged:
                break
        return self._expect(X, lengths, weights, known)[1] if self.n_init > 1 else math.nan

    def _expect(
        self, X: NDArray[Any], lengths: NDArray[np.int64], weights: Array | None = None, known: Any = None
    ) -> tuple[Counts, float]:
        seen = self._seen(X, lengths, known)
        work = with_weights(flat_sequences(seen.symbols, seen.lengths), weights)
        work = work._replace(rows=np.arange(len(work.rows)))
        size, num_symbols = self.n_components, seen.process.num_symbols
        counts = Counts(np.zeros(size), np.zeros((size, size)), np.zeros((num_symbols, size)), np.zeros(len(work.rows)))
        add_counts(tables(seen.process.params), work, counts)
        if seen.sets is not None:
            counts = counts._replace(emissions=seen.sets.by_symbol(counts.emissions, self._num_symbols))
        return counts, work.total(counts.logs)

    def _maximise(self, X: NDArray[Any], counts: Counts) -> None:
        if "s" in self.params:
            self.startprob_ = self._most_probable("startprob_", self.startprob_prior, counts.initial)
        if "t" in self.params:
            self.transmat_ = self._most_probable("transmat_", self.transmat_prior, counts.transitions)
        self._maximise_emissions(X, torch.from_numpy(counts.emissions))

    def _most_probable(self, name: str, prior: Any, counts: Array) -> Array:
        before, own = getattr(self, name), self._rules.get(name)
        if own is None:
            return most_probable(prior, counts, before)
        return own.maximise(np.maximum(prior - 1 + counts, 0), 0.0, np.asarray(before, np.float64))

    # -- inference

    def score(self, X: Any, lengths: Any = None, *, sequence_weights: Any = None, known_states: Any = None) -> float:
        """Compute log P(X, known states) in nats, weighted and summed over sequences; -inf if X is impossible."""
        logs = torch.from_numpy(self.score_sequences(X, lengths, known_states=known_states))
        return float(weighted_sum(logs, as_weights(sequence_weights, len(logs))))

    def score_sequences(self, X: Any, lengths: Any = None, *, known_states: Any = None) -> Array:
        """Compute log P of each sequence in nats (sequence,); -inf for an impossible sequence."""
        seen = self._asked(X, lengths, known_states)
        found = np.zeros(len(seen.lengths))
        for batch in seen.batches():
            found[batch.numbers] = log_likelihood(seen.process, batch.observations, lengths=batch.padded()).numpy()
        return found

    def score_samples(self, X: Any, lengths: Any = None, *, known_states: Any = None) -> tuple[float, Array]:
        """Compute log P(X) in nats, and P(state at time t | its whole sequence) for each row (time, state)."""
        seen = self._asked(X, lengths, known_states)
        posteriors, total = np.zeros((len(seen.symbols), self.n_components)), 0.0
        for batch in seen.batches():
            filtered = filter_batch(seen.process, batch.observations, None, batch.padded())
            smoothed = np.zeros_like(filtered.beliefs)
            run_smoother(filtered, smoothed)
            posteriors[batch.places] = batch.within(smoothed)
            total += float(filtered.terms.sum())
        return total, posteriors

    def decode(
        self, X: Any, lengths: Any = None, algorithm: str | None = None, *, known_states: Any = None
    ) -> tuple[float, NDArray[np.int64]]:
        """Return a score and the decoded states (time,).

        The score of "viterbi" is log P(path, X); that of "map" is the sum of the states' posterior probabilities.
        """
        name = algorithm or self.algorithm
        require_known("algorithm", name, ALGORITHMS)
        if name == "map":
            _, posteriors = self.score_samples(X, lengths, known_states=known_states)
            dead = posteriors.sum(1) == 0
            return float(posteriors.max(1).sum()), np.where(dead, -1, posteriors.argmax(1))
        seen = self._asked(X, lengths, known_states)
        states, total = np.full(len(seen.symbols), -1), 0.0
        logs = seen.process.logarithms
        for batch in seen.batches():
            shape = batch.observations.shape
            work = sequences(batch.observations, torch.arange(shape[1]) == 0, batch.lengths)
            narrow = paths_side_by_side(tables(seen.process.params), work)
            found = viterbi_paths(logs, logs, work, shape, narrow=narrow, highest_end=True)
            backward = batch.within(found.states.numpy())
            states[batch.places] = np.where(backward < 0, -1, self.n_components - 1 - backward)
            total += float(found.log_probability.sum())
        return total, states

    def predict(self, X: Any, lengths: Any = None, *, known_states: Any = None) -> NDArray[np.int64]:
        """Return the decoded states (time,); the option `algorithm` chooses the decoder."""
        return self.decode(X, lengths, known_states=known_states)[1]

    def predict_proba(self, X: Any, lengths: Any = None, *, known_states: Any = None) -> Array:
        """Compute P(state at time t | its whole sequence) for each row (time, state)."""
        return self.score_samples(X, lengths, known_states=known_states)[1]

    def sample(
        self, n_samples: int = 1, random_state: Any = None, currstate: int | None = None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Sample observations and states; with the same seed, `CategoricalHMM` draws what hmmlearn draws.

        Args:
            n_samples: Number of observations, at least 1.
            random_state: Seed or generator (default: that of the last fit, or the estimator's `random_state` if newer).
            currstate: First state (default: drawn from the initial distribution).
        """
        self._ready()
        if n_samples < 1:
            raise InputError(f"n_samples: must be at least 1, got {n_samples}")
        if random_state is None:
            owner, generator = self.__dict__.get("_drawn", (None, None))
            random_state = generator if generator is not None and owner is self.random_state else self.random_state
        if currstate is not None and not 0 <= currstate < self.n_components:
            raise InputError(f"currstate: must be in [0, {self.n_components}), got {currstate}")
        uniforms = check_random_state(random_state).rand(2 * n_samples - (currstate is not None))
        uniforms = uniforms if currstate is None else np.concatenate([[0.0], uniforms])
        moves = self.transmat_.cumsum(1)
        state = int(drawn(self.startprob_.cumsum(), uniforms[0])) if currstate is None else int(currstate)
        states = np.empty(n_samples, np.int64)
        states[0] = state
        for t, uniform in enumerate(uniforms[2::2].tolist(), 1):
            states[t] = state = drawn(moves[state], uniform)
        return _Sample(self._emit(states, uniforms[1::2]), states)

    def get_stationary_distribution(self) -> Array:
        """Compute the stationary distribution; raise InputError if it is not unique."""
        self._ready()
        return stationary_law(torch.from_numpy(np.array(self.transmat_, np.float64))).numpy()

    def aic(self, X: Any, lengths: Any = None) -> float:
        """Compute the AIC: -2 log P(X) + 2 (number of free parameters)."""
        return 2 * self._num_parameters() - 2 * self.score(X, lengths)

    def bic(self, X: Any, lengths: Any = None) -> float:
        """Compute the BIC: -2 log P(X) + (number of free parameters) log(number of observed rows).

        Parameters that `params` does not name, and probabilities that are zero, are not free.
        """
        rows, _ = self._split(X, lengths, fitting=False)
        return self._num_parameters() * math.log(max(1, self._num_seen(rows))) - 2 * self.score(X, lengths)

    # -- checks

    @property
    def monitor_(self) -> Any:
        for name in ("_ran", "_own_monitor"):
            if name in self.__dict__:
                return self.__dict__[name]
        return ConvergenceMonitor(self.tol, self.n_iter, self.verbose)

    @monitor_.setter
    def monitor_(self, monitor: Any) -> None:
        self._own_monitor = monitor
        self.__dict__.pop("_ran", None)

    def _num_seen(self, X: NDArray[Any]) -> int:
        return int((self._num_symbols != X).sum() if self.symbolic else (~np.isnan(X)).any(1).sum())

    def _num_parameters(self) -> int:
        positive = self._positive(self.laws)
        free = {name: num_free(positive[name]) for name in ("startprob_", "transmat_")}
        free |= self._num_free_emissions(positive)
        free |= {name: own.with_zeros(~positive[name]).num_free for name, own in self._constraints().items()}
        return sum(free[name] for letter, name in self.parts.items() if letter in self.params)

    def _positive(self, names: Collection[str]) -> dict[str, NDArray[np.bool_]]:
        made, begun, found = self.__dict__.get("_made", {}), self.__dict__.get("_begun", {}), {}
        for name in set(names) & set(self.laws):
            law = np.asarray(getattr(self, name))
            fitted = getattr(self, name) is made.get(name)
            found[name] = begun.get(name, np.ones(law.shape, np.bool_)) if fitted else law > 0
        return found

    def _asked(self, X: Any, lengths: Any, known_states: Any = None) -> EncodedObservations:
        self._ready()
        X, lengths = self._split(X, lengths, fitting=False)
        allowed = self._allowed(known_states, len(X))
        return self._seen(X, lengths_of(lengths, len(X)), None if allowed is None else self._known(X, allowed))

    def _split(self, X: Any, lengths: Any, *, fitting: bool) -> tuple[NDArray[Any], Any]:
        known = None if fitting else self.__dict__.get("_alphabet")
        X, lengths, alphabet = with_lengths(X, lengths, symbols=self.symbolic, alphabet=known)
        if fitting:
            self._alphabet = alphabet
        return self._read(X, fitting=fitting), lengths

    def _validated(self, X: Any, *, fitting: bool, **options: Any) -> Any:
        X, options = as_rows(X), options | {"ensure_all_finite": "allow-nan"}
        if not fitting and not hasattr(self, "n_features_in_"):  # parameters set by hand have no names of features
            return check_array(X, estimator=self, input_name="X", **options)
        return validate_data(self, X, reset=fitting, **options)

    def _allowed(self, known_states: Any, count: int) -> NDArray[np.bool_] | None:
        if known_states is None:
            return None
        refuse_masked("known_states", known_states)
        given = known_states.to_numpy() if hasattr(known_states, "to_numpy") else known_states
        if np.ndim(given) == 0 or len(given) != count:
            raise InputError(f"known_states: must have an entry for each of the {count} rows of X (-1: unknown)")
        return as_allowed(given, self.n_components, torch.ones(1, count, dtype=torch.bool))[0].numpy()

    def _ready(self) -> None:
        check_is_fitted(self, list(self.parts.values()))
        self._check_options()
        self._check()

    def _check(self) -> None:
        size = self.n_components
        self.startprob_ = rows_of("startprob_", self.startprob_, (size,))
        self.transmat_ = rows_of("transmat_", self.transmat_, (size, size))
        self._check_emissions()

    def _check_options(self) -> None:
        for name, least in (("n_components", 1), ("n_init", 1), ("n_iter", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name}: must be a whole number of at least {least}, got {value!r}")
        if isinstance(self.tol, bool) or not isinstance(self.tol, Real) or math.isnan(self.tol):
            raise InputError(f"tol: must be a number of nats, or -inf to run all iterations, got {self.tol!r}")
        for name, known in (("algorithm", ALGORITHMS), ("implementation", IMPLEMENTATIONS)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name in ("params", "init_params"):
            value = getattr(self, name)
            if not isinstance(value, str) or set(value) - set(self.parts):
                raise InputError(f"{name}: must be letters of {''.join(self.parts)!r}, got {value!r}")


def most_probable(prior: Any, counts: Array, before: Array) -> Array:
    """Return rows ∝ max(0, prior - 1 + counts), zero where `before` is zero; all-zero rows keep their `before`."""
    weight = np.where(before == 0, 0.0, np.maximum(prior - 1 + counts, 0))
    total = weight.sum(-1, keepdims=True)
    return np.divide(weight, total, where=total > 0, out=np.array(before, np.float64))


def drawn(cumulated: Array, uniforms: Any) -> Any:
    last = np.searchsorted(cumulated, cumulated[-1])
    return np.minimum(np.searchsorted(cumulated, uniforms, side="right"), last)
