"""Fitting HMMs by expectation maximization (the Baum-Welch algorithm)."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.constrained_laws import ConstrainedRows
from hmmscope.inference.constraints import Constraints, RowConstraints, as_constraints
from hmmscope.inference.counts import Counts
from hmmscope.inference.em import PARTS, EMRunner, Model, MStepSettings, can_run_side_by_side, counts_of, expect
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.known_states import as_allowed, paired
from hmmscope.inference.loop_inputs import PackedSequences, sequences
from hmmscope.inference.ragged import check_ragged, counted
from hmmscope.inference.restarts import check_limits, criterion, search
from hmmscope.inference.row_rules import check_rules
from hmmscope.inference.weights import as_weights, with_weights
from hmmscope.processes.hmm import HMM, check_start
from hmmscope.processes.observations import Symbols, whole_batch
from hmmscope.schema import require
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.encoding import Alphabet
from hmmscope.sequences.large import num_equal


@dataclass(frozen=True)
class BaumWelchFit:
    """A fitted HMM with diagnostics.

    Attributes:
        hmm: Model with the largest log-likelihood.
        log_likelihood: log P(all observations), in nats.
        num_iterations: Number of iterations of the best restart.
        converged: True if the last log-posterior gain of the best restart was below the tolerance.
        num_restarts: Number of restarts in `history`.
        restart_gap: Log-likelihood difference between the best two restarts, in nats; infinite for one restart.
        restarts_agree: True if `restart_gap` is small enough to end the search.
        bic: Bayesian information criterion; smaller is better.
        num_free: Number of free probabilities of each parameter array: 0 if the array is fixed; tied rows count once.
        num_zeros: Number of zeros in each array of the starting HMM; EM keeps them.
        history: Log-likelihood, in nats, by restart and iteration.
        lists_free: True if the property `remarks` lists the numbers of free parameters.
        rules: Constraints of each parameter array, or an `MStepSettings` object with these constraints.
    """

    hmm: Any
    log_likelihood: float
    num_iterations: int
    converged: bool
    num_restarts: int
    restart_gap: float
    restarts_agree: bool
    bic: float
    num_free: dict[str, int] = field(default_factory=dict)
    num_zeros: dict[str, int] = field(default_factory=dict)
    history: tuple[tuple[float, ...], ...] = field(default=(), repr=False, compare=False)
    lists_free: bool = False
    rules: Any = field(default_factory=dict, repr=False, compare=False)

    @property
    def remarks(self) -> list[str]:
        free = ", ".join(f"{count} {part}" for part, count in self.num_free.items())
        return [f"free parameters: {free}"] if self.lists_free else []

    def laws(self, concentrations: Mapping[str, float]) -> dict[str, ConstrainedRows]:
        own = self.rules
        rules = own.row_constraints(Model.of(self.hmm)) if isinstance(own, MStepSettings) else own
        return {part: ConstrainedRows(one, concentrations.get(part, 1.0)) for part, one in rules.items()}


def fit_baum_welch(
    observations: Symbols | PackedSequences,
    num_states: int,
    num_symbols: int,
    *,
    lengths: object = None,
    start: Any = None,
    fixed: Collection[str] = (),
    tied_emissions: Sequence[int] | None = None,
    constraints: Constraints | Callable[[int], Constraints] | None = None,
    sequence_weights: Any = None,
    known_states: Any = None,
    num_restarts: int = 12,
    num_tries: int = 4,
    agreement: float = 1e-5,
    max_iterations: int = 200,
    tolerance: float = 1e-7,
    pseudo_count: float = 0.1,
    seed: int = 0,
    callback: Callable[[int], object] | None = None,
) -> BaumWelchFit:
    """Fit an HMM to independent sequences by expectation maximization (EM).

    transition_ij ∝ E[transitions i -> j];  emission_iv ∝ E[symbols v emitted by i]

    With `pseudo_count` c the fit is the posterior mode under Dirichlet(1 + c) priors of rows of probabilities. Zeros in
    `start` stay zero.

    From the third restart on, the search ends when the log-likelihoods of the best two restarts differ by less than
    0.1 nats, or less than `agreement` nats per observation. Each restart runs ten iterations from each of `num_tries`
    random starts (short runs), and continues the best short run. Every second random start favours self-transitions.

    Source: Baum et al. (1970); short runs: Biernacki, Celeux and Govaert (2003).

    Args:
        observations: Symbols in [0, V) or `hmmscope.MISSING` (batch, time); or `PackedSequences`, in which the symbol V
            marks a missing observation.
        num_states, num_symbols: Numbers S and V of states and symbols.
        lengths: Number of observations of each sequence (batch,).
        start, fixed, tied_emissions, constraints: See `FitOptions`; the pseudo-count is added once per tied group.
        known_states: Known states, or sets of allowed states, see `filter_beliefs`.
        sequence_weights: Weights (batch,) of log-likelihoods and counts; a weight of 2 equals two copies.
        num_restarts: Maximum number of restarts, which run on torch's threads.
        num_tries: Number of random starts per restart; 1 disables the short runs.
        agreement: Difference in nats per observation between the best two restarts, below which the search ends.
        max_iterations: Maximum number of iterations per restart.
        tolerance: Gain per iteration, in nats per observation, below which a restart has converged.
        pseudo_count: Number added to each expected count; at least 0.
        seed: Seed in [0, 2^32).
        callback: Function called from several threads with the number of iterations since its last call, also in
            restarts that are then discarded; the search stops if it returns True.

    Raises:
        InputError: There are no observations, an option is out of range, or `start` gives a sequence probability zero.
    """
    least = {"agreement": agreement, "pseudo_count": pseudo_count, "tolerance": tolerance}
    check_limits(num_restarts, max_iterations, least, num_states=num_states, num_tries=num_tries)
    work = as_sequences(observations, num_symbols, lengths, weights=sequence_weights, known=(known_states, num_states))
    parts = as_constraints(constraints, num_states).parts(num_states, num_symbols)
    rules = _rules(num_states, num_symbols, start, fixed, tied_emissions, pseudo_count, parts)
    together = not parts and num_restarts > 1 and can_run_side_by_side(num_states, work)
    threads = torch.get_num_threads()
    width = min(threads, num_restarts)
    climb = EMRunner(work, rules, threads if together else max(1, threads // width))

    def begins(number: int) -> list[Model]:
        if number == 0 and start is not None:
            return [rules.kept(rules.constrained(rules.tied(Model.of(start))), start)]
        drawn = (_random(number, attempt, seed, num_states, num_symbols, rules) for attempt in range(num_tries))
        return [rules.kept(rules.constrained(rules.restricted(model)), start) for model in drawn]

    how: dict[str, Any] = {"agreement": agreement, "side_by_side": climb.side_by_side if together else None}
    model, about = search(climb, begins, num_restarts, max_iterations, tolerance, callback, **how)
    hmm, free = HMM(*model, title="Baum-Welch fit", allow_drop_tiny=True), rules.num_free(model)
    bic = criterion(about["log_likelihood"], free, seen_by_part(work, num_symbols))
    about |= {"num_zeros": rules.num_zeros, "lists_free": bool(rules.constraints), "rules": rules}
    return BaumWelchFit(hmm, bic=bic, num_free=free, **about)


def seen_by_part(work: PackedSequences, num_symbols: int) -> dict[str, float]:
    num_sequences, num_steps = work.total(np.ones(len(work.rows))), work.total(work.lengths)
    num_observations = num_steps - _num_missing(work, num_symbols)
    return dict(zip(PARTS, (num_sequences, num_steps - num_sequences, num_observations), strict=True))


def _num_missing(work: PackedSequences, num_symbols: int) -> float:
    if work.weights is None and work.sets is None:
        return float(num_equal(work.symbols, num_symbols))
    own = work.packed()
    symbols = own.symbols if own.sets is None else own.sets.symbols[own.symbols]
    return own.total(np.add.reduceat(symbols == num_symbols, own.offsets, dtype=np.int64))


def as_sequences(
    observations: Symbols | PackedSequences,
    num_symbols: int,
    lengths: object = None,
    name: str = "observations",
    weights: Any = None,
    known: tuple[Any, int] = (None, 0),
) -> PackedSequences:
    if isinstance(observations, PackedSequences):
        observations = with_weights(observations, as_weights(weights, len(observations.rows)))
        return observations._replace(rows=np.arange(len(observations.rows)))
    checked, mask, inside = check_ragged(observations, Alphabet(None, num_symbols), None, lengths)
    work = sequences(checked.cpu(), mask, counted(inside).cpu())
    if known[0] is not None:
        allowed = as_allowed(known[0], known[1], inside.cpu()).numpy()
        symbols, sets = paired(work.symbols.astype(np.int64), allowed.reshape(-1, known[1]))
        work = work._replace(symbols=symbols, sets=sets)
    work = with_weights(work, as_weights(weights, len(checked))).packed()
    require(len(work.rows) > 0, name, "must contain at least one observation", tuple(checked.shape))
    seen = work.symbols if work.sets is None else work.sets.symbols
    require(
        bool((seen < num_symbols).any()), name, "must contain an observation that is not missing", tuple(checked.shape)
    )
    return work._replace(rows=np.arange(len(work.rows)))


def _rules(
    num_states: int,
    num_symbols: int,
    start: Any,
    fixed: Collection[str],
    tied: Sequence[int] | None,
    pseudo_count: float,
    constraints: Mapping[str, RowConstraints] | None = None,
) -> MStepSettings:
    constraints = dict(constraints or {})
    classes = check_rules(PARTS, num_states, start, fixed, tied, constraints)
    check_start(start, num_states, num_symbols)
    if start is not None:
        parts = zip(PARTS, Model.of(start), strict=True)
        constraints |= {part: constraints[part].with_zeros(own == 0) for part, own in parts if part in constraints}
    rules = MStepSettings(pseudo_count, frozenset(fixed), classes, constraints=constraints)
    if start is None:
        return rules
    support = tuple(part > 0 for part in rules.tied(Model.of(start)))
    if classes is not None and not support[2].any(-1).all():
        name = classes[support[2].any(-1).argmin()]
        raise InputError(f"start: no symbol has positive probability in all states of class {name} of tied_emissions")
    return replace(rules, support=support)


def _random(number: int, attempt: int, seed: int, num_states: int, num_symbols: int, rules: MStepSettings) -> Model:
    rng = numpy_generator(seed, f"baum-welch-{attempt}" if attempt else "baum-welch", number)
    initial = rng.dirichlet(np.ones(num_states))
    transition = rng.dirichlet(np.ones(num_states), num_states)
    emission = rng.dirichlet(np.ones(num_symbols), num_states)
    if attempt % 2:
        transition = (np.eye(num_states) + transition) / 2
    return rules.tied(Model(initial, transition, emission))


def held_out_log_likelihoods(hmm: HMM, work: PackedSequences) -> NDArray[np.float64]:
    return counts_of(Model.of(hmm), work, torch.get_num_threads()).logs


def fit_stream(
    batches: Iterable[Int[Tensor, "batch time"] | PackedSequences],
    start: HMM,
    *,
    fixed: Collection[str] = (),
    exponent: float = 0.6,
    pseudo_count: float = 0.1,
) -> HMM:
    """Fit an HMM to a stream of batches by online EM.

    average_k = (1 - rate_k) average_{k-1} + rate_k E[counts of batch k] / (sequences in batch k),  rate_k = k^-exponent

    Each update adds `pseudo_count` / (number of sequences seen so far) to the averages.

    Source: Cappé and Moulines (2009).

    Args:
        batches: Batches of symbols in [0, V), each (batch, time), or `PackedSequences`.
        start: Initial model; its zeros stay zero.
        fixed, pseudo_count: See `fit_baum_welch`.
        exponent: Exponent of the decay of rate_k, in (1/2, 1].
    """
    require(0.5 < exponent <= 1, "exponent", "must be in (1/2, 1]", exponent)
    require(pseudo_count >= 0, "pseudo_count", "must be at least 0", pseudo_count)
    model, average, seen = Model.of(start), None, 0
    for number, batch in enumerate(batches, 1):
        work = as_sequences(batch, start.num_symbols)
        counts, seen = expect(model, work, torch.get_num_threads()), seen + len(work.rows)
        each, rate = [part / len(work.rows) for part in counts[:3]], number**-exponent
        average = [o + rate * (n - o) for o, n in zip(average, each, strict=True)] if average else each
        rules = _rules(start.num_states, start.num_symbols, start, fixed, None, pseudo_count / seen)
        model = rules.maximise(model, Counts(average[0], average[1], average[2], counts.logs))
    require(seen > 0, "batches", "must contain at least one observation", seen)
    return HMM(*model, title="Baum-Welch fit to a stream", allow_drop_tiny=True)


def baum_welch_predictions(
    observations: Int[Tensor, "batch time"], num_states: int, num_symbols: int, positions: Sequence[int], **options: Any
) -> Float64[Tensor, "batch position symbol"]:
    """Predict o_{t+1} at each t of `positions` with an HMM fitted to o_0..o_t alone.

    Args:
        observations: Symbols (batch, time).
        num_states, num_symbols: Numbers of states and symbols of the HMM.
        positions: Times in [0, time).
        options: Options of `fit_baum_welch`, except `lengths`.
    """
    observations = whole_batch(observations, Alphabet(None, num_symbols))
    time = observations.shape[1]
    if not all(0 <= t < time for t in positions):
        raise InputError(f"positions: must be in [0, {time}), got {list(positions)}")
    predicted = torch.zeros(len(observations), len(positions), num_symbols, dtype=torch.float64)
    for b in range(len(observations)):
        for p, t in enumerate(positions):
            seen = observations[b : b + 1, : t + 1]
            fitted = fit_baum_welch(seen, num_states, num_symbols, **options)
            predicted[b, p] = filter_beliefs(fitted.hmm, seen).next_observation[0, -1]
    return predicted
