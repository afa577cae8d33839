"""Base class of the HMM estimators whose observations are vectors of numbers."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import Tags

from hmmscope.emissions.chain import count_rows, log_likelihood_of, smooth_and_score, viterbi_states
from hmmscope.emissions.densities import require_range
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.states import MarkovChainParams, StateCounts
from hmmscope.errors import InputError
from hmmscope.inference.counts import Counts
from hmmscope.inference.weights import weighted_sum
from hmmscope.sequences.columns import writable
from hmmscope.sklearn.encoded import Array, EncodedObservations, lengths_of
from hmmscope.sklearn.estimator import HiddenMarkovModel


class RealValuedHMM(HiddenMarkovModel):
    """HMM estimator for rows of numbers; likelihoods integrate over missing entries (NaN or masked)."""

    #: Name of the fitted attribute for each emission array.
    arrays: dict[str, str]
    n_features: int

    @abstractmethod
    def process(self) -> EmissionHMM:
        """Return the `EmissionHMM` with the fitted parameters."""

    def _check_emissions(self) -> None:
        self._checked = self.process()

    def _checked_process(self) -> EmissionHMM:
        found: EmissionHMM | None = self.__dict__.pop("_checked", None)
        return self.process() if found is None else found

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _read(self, X: Any, *, fitting: bool) -> Array:
        found: Array = writable(self._validated(X, fitting=fitting, dtype=np.float64))
        if fitting:
            self.n_features = found.shape[1]
        return found

    def _log_likelihoods(self, process: EmissionHMM, vectors: torch.Tensor) -> torch.Tensor:
        if (width := vectors.shape[-1]) != (own := process.num_symbols):
            array = next(name for name in self.parts.values() if name not in HiddenMarkovModel.laws)
            raise InputError(f"X: must have {own} column{'s' * (own != 1)}, as the model's {array}, got {width}")
        return process.log_likelihoods(process.checked(vectors))

    def _known(self, X: NDArray[Any], allowed: NDArray[np.bool_]) -> Any:
        return torch.from_numpy(allowed)

    def _expect(
        self, X: NDArray[Any], lengths: NDArray[np.int64], weights: Array | None = None, known: Any = None
    ) -> tuple[Counts, float]:
        kept, weights = lengths[lengths > 0], None if weights is None else weights[lengths > 0]
        process = self._checked_process()
        logs = self._log_likelihoods(process, torch.from_numpy(X))
        logs = logs if known is None else logs.masked_fill(~known, -torch.inf)
        found: StateCounts = count_rows(process.chain, logs, torch.from_numpy(kept), weights)
        arrays = (found.initial, found.transitions, found.occupancy, found.log_likelihood)
        return Counts(*(part.numpy() for part in arrays)), float(weighted_sum(found.log_likelihood, weights))

    def _padded(
        self, X: Any, lengths: Any, known_states: Any = None
    ) -> tuple[MarkovChainParams, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        self._ready()
        X, lengths = self._split(X, lengths, fitting=False)
        counts = torch.from_numpy(lengths_of(lengths, len(X)))
        process, rows = self._checked_process(), torch.from_numpy(X)
        if len(counts) and bool((counts == counts[0]).all()) and len(X):
            vectors, inside = rows.view(len(counts), -1, X.shape[1]), None
        else:
            vectors = torch.nn.utils.rnn.pad_sequence(
                list(rows.split(counts.tolist())), batch_first=True, padding_value=torch.nan
            )
            inside = torch.arange(vectors.shape[1]) < counts[:, None]
        logs, allowed = self._log_likelihoods(process, vectors), self._allowed(known_states, len(X))
        if allowed is not None:
            places = torch.ones(logs.shape[:2], dtype=torch.bool) if inside is None else inside
            logs[places] = logs[places].masked_fill(~torch.from_numpy(allowed), -torch.inf)
        return process.chain, logs, None if inside is None else counts, inside

    def score_sequences(self, X: Any, lengths: Any = None, *, known_states: Any = None) -> Array:
        chain, logs, counts, _ = self._padded(X, lengths, known_states)
        found: Array = log_likelihood_of(chain, logs, lengths=counts).numpy()
        return found

    def score_samples(self, X: Any, lengths: Any = None, *, known_states: Any = None) -> tuple[float, Array]:
        chain, logs, counts, inside = self._padded(X, lengths, known_states)
        smoothed, totals = smooth_and_score(chain, logs, lengths=counts)
        return float(totals.sum()), _within(smoothed, inside).numpy()

    def decode(
        self, X: Any, lengths: Any = None, algorithm: str | None = None, *, known_states: Any = None
    ) -> tuple[float, NDArray[np.int64]]:
        if (algorithm or self.algorithm) != "viterbi":
            return super().decode(X, lengths, algorithm, known_states=known_states)
        chain, logs, counts, inside = self._padded(X, lengths, known_states)
        found = viterbi_states(chain, logs, lengths=counts)
        return float(found.log_probability.sum()), _within(found.states, inside).numpy()

    def _seen(self, X: NDArray[Any], lengths: NDArray[np.int64], known: Any = None) -> EncodedObservations:
        raise AssertionError("vectors have no symbols")

    def _emit(self, states: NDArray[np.int64], uniforms: Array) -> NDArray[Any]:
        process = self.process()
        more = np.random.RandomState(int(uniforms[0] * 2**32)).rand(len(states), process.num_draws)
        return process.emit(torch.from_numpy(states), torch.from_numpy(more)).numpy()

    def _num_free_emissions(self, positive: dict[str, NDArray[np.bool_]]) -> dict[str, int]:
        own = {name: torch.from_numpy(positive[key]) for name, key in self.arrays.items() if key in positive}
        free = self.process().num_free(own)
        return {self.arrays[name]: count for name, count in free.items()}


def _within(padded: torch.Tensor, inside: torch.Tensor | None) -> torch.Tensor:
    return padded.flatten(0, 1) if inside is None else padded[inside]


def without_gaps(X: Array, num_states: int) -> Array:
    if len(X) < max(2, num_states):
        raise InputError(
            f"X: must have at least {max(2, num_states)} rows (one per state, and no fewer than two), got "
            f"{len(X)} sample" + "s" * (len(X) != 1)
        )
    gaps = np.isnan(X)
    if gaps.all(0).any():
        raise InputError(f"X: column {int(gaps.all(0).argmax())} is missing in every row; drop it")
    for column, width in enumerate(np.nanmax(X, 0) - np.nanmin(X, 0)):
        require_range(f"X: column {column}", float(width))
    return np.where(gaps, np.nanmean(X, 0), X) if gaps.any() else X


def bounded_below(covars: Array, least: float, means: Array, shape: str) -> Array:
    """Raise variances, or eigenvalues of covariance matrices, to at least `least`; refuse singular ones if it is 0."""
    matrices = shape in ("full", "tied")
    if least <= 0 and np.isfinite(covars).all():
        variances = np.diagonal(covars, axis1=-2, axis2=-1) if matrices else covars
        _refuse_constant(variances, np.abs(means).max(-2) if shape == "tied" else means, shape)
        if matrices:
            _refuse_collinear(covars, np.sqrt(variances))
    if least <= 0 or not matrices:
        return np.maximum(covars, least) if least > 0 else covars
    values, vectors = np.linalg.eigh(covars)
    raised = np.einsum("...ij,...j,...kj->...ik", vectors, np.maximum(values, least), vectors)
    found: Array = np.where((values.min(-1) < least)[..., None, None], raised, covars)
    return found


def _refuse_constant(variances: Array, means: Array, shape: str) -> None:
    rounding = 2.0**-106 * np.square(means)  # variance of rounding errors of numbers of this size, at most
    bad = variances <= (rounding.mean(-1) if shape == "spherical" else rounding)
    for place in np.argwhere(bad)[:1].tolist():
        which = "every column" if shape == "spherical" else f"column {place.pop()}"
        state = f"state {place[0]}" if place else "every state"
        where = f"Gaussian {place[1]} of {state}" if len(place) > 1 else state
        raise InputError(
            f"X: {which} is constant in the rows of {where}, so that the variance is 0; drop the column, or set "
            "min_variance or fewer components"
        )


def _refuse_collinear(covars: Array, deviations: Array) -> None:
    correlations = covars / deviations[..., :, None] / deviations[..., None, :]
    for place, matrix in enumerate(correlations.reshape(-1, *covars.shape[-2:])):
        values, vectors = np.linalg.eigh(matrix)
        if values[0] <= 1e-14 * values[-1]:
            columns = np.flatnonzero(np.abs(vectors[:, 0]) > 0.05).tolist()
            raise InputError(
                f"X: columns {columns} are collinear in the rows of component {place}, so that its covariance matrix is "
                "singular; drop a column, or set min_variance, covariance_type='diag', or fewer components"
            )
