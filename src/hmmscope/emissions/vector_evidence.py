"""Evidence P(observations | number of states) of vector emissions under conjugate priors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor, Vectors
from hmmscope.emissions.conjugate import Conjugate
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.inference.constrained_laws import RowLaws
from hmmscope.inference.em import Model, can_run_side_by_side, counter_of_several
from hmmscope.inference.evidence import Evidence, sampled
from hmmscope.inference.evidence_emissions import Array, Law, Rows, floored, no_moves, share_of
from hmmscope.inference.loop_inputs import PackedSequences, flat_sequences
from hmmscope.reprs import Shown
from hmmscope.seeds import numpy_generator

#: Limits on observations times states times max(features, states): MOST, about a minute on one core, if the evidence is
#: requested, else UNASKED.
MOST, UNASKED = 1_000_000, 60_000
#: Least log-likelihood relative to the best state; smaller ones are negligible, because transitions are at least 1e-12.
_LEAST = -180.0

#: Likelihood table entries computed at a time, or those of eight models.
_ROOM = 2**16


def vector_evidence(
    model: EmissionHMM,
    observations: Vectors,
    lengths: Int64[Tensor, " sequence"],
    laws: Conjugate,
    num_threads: int | None = None,
    seed: int = 0,
    *,
    most: int = MOST,
    callback: Callable[[str], object] | None = None,
    chain: RowLaws | None = None,
) -> Evidence | None:
    """Estimate the log evidence of a number of states, in nats.

    The evidence of one state has a closed form; for more states see `hmmscope.inference.evidence.sampled`.

    Args:
        model: Model fitted to all or most of the data.
        observations, lengths: See `fit_emissions`.
        laws: Emission prior, see `EmissionHMM.conjugate`.
        num_threads: Number of threads (default: torch's).
        seed: Random seed.
        most, callback: See `hmmscope.inference.evidence.evidence`.
        chain: Priors of the initial distribution and transition matrix, if they have constraints.

    Returns:
        The evidence; None for over eight states, or if T S max(S, F) > `most` for T observations, S > 1 states and
            F features, see `Conjugate.features`.
    """
    size, features = model.num_states, laws.features(observations)
    if size == 1:
        return Evidence(float(laws.log_marginal(features.sum(0, keepdim=True))), 0.0)
    work = flat_sequences(np.arange(len(features)), lengths.numpy())
    if not can_run_side_by_side(size, work) or len(features) * size * max(size, features.shape[1]) > most:
        return None
    arrays = {name: value.numpy()[None] for name, value in model.file_tensors().items()}
    fit = *floored((arrays["initial"], arrays["transition"])), *(arrays[name] for name in laws.names)
    numbers = VectorEmissions(work, features, laws, size, num_threads)
    return sampled(numbers, fit, numpy_generator(seed, "evidence", size), callback, chain)


@dataclass(frozen=True, eq=False, repr=False)
class VectorEmissions(Shown):
    """Vector emissions for `hmmscope.inference.evidence`.

    Attributes:
        work: `PackedSequences` whose symbols are row indices of `features`.
        features: Result of `Conjugate.features` (row, F).
        laws: Emission prior.
    """

    work: PackedSequences
    features: Float64[Tensor, "row feature"]
    laws: Conjugate
    size: int
    num_threads: int | None

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.work.lengths

    @property
    def cost(self) -> int:
        return 4 * len(self.features) * self.size * max(self.size, self.features.shape[1])

    def nothing(self, count: int) -> Rows:
        return *no_moves(count, self.size), np.zeros((count, self.size, self.features.shape[1]))

    def likelihood(self, share: int) -> Law:
        part = share_of(self.work, share).packed()
        own = self.features[torch.from_numpy(part.symbols)]
        work = part._replace(symbols=np.arange(len(own)))

        count = counter_of_several(work, self.size, len(own), self.num_threads)
        beside = 8 * max(1, _ROOM // (8 * own.shape[0] * self.size))

        def some(rows: Rows) -> tuple[Array, ...]:
            logs_NSR = self._natural(rows[2:]) @ own.T
            largest_NR = logs_NSR.amax(1, keepdim=True)
            table = (logs_NSR - largest_NR).clamp_min_(_LEAST).exp_().numpy()
            found = count(Model(rows[0], rows[1], table))
            statistics = torch.from_numpy(found.emissions.swapaxes(1, 2)) @ own
            return found.logs + largest_NR.sum((1, 2)).numpy(), found.initial, found.transitions, statistics.numpy()

        def law(rows: Rows) -> tuple[Array, Rows]:
            begins = range(0, len(rows[0]), beside)
            parts = [some(tuple(part[begin : begin + beside] for part in rows)) for begin in begins]
            logs, *counts = map(np.concatenate, zip(*parts, strict=True))
            return logs, tuple(counts)

        return law

    def draw(self, counts: Rows, random: np.random.Generator) -> Rows:
        found = self.laws.draw(torch.from_numpy(counts[0]), random)
        return tuple(found[name].numpy() for name in self.laws.names)

    def natural(self, laws: Rows) -> Array:
        found: Array = self._natural(laws).numpy()
        return found

    def log_marginal(self, counts: Rows) -> Array:
        found: Array = self.laws.log_marginal(torch.from_numpy(counts[0])).numpy()
        return found

    def likeness(self, laws: Rows, fit: Rows) -> Array:
        found: Array = (self.laws.moments(self._named(laws)) @ self._natural(fit)[0].T).numpy()
        return found

    def _named(self, laws: Rows) -> Mapping[str, Tensor]:
        return {
            name: torch.from_numpy(np.ascontiguousarray(own)) for name, own in zip(self.laws.names, laws, strict=True)
        }

    def _natural(self, laws: Rows) -> Tensor:
        return self.laws.natural(self._named(laws))
