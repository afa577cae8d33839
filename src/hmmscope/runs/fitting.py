"""Fit an HMM to sequences: `hmmscope.fit`."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.families import family_name
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import (
    BaumWelchFit,
    fit_baum_welch,
    fit_stream,
    held_out_log_likelihoods,
    seen_by_part,
)
from hmmscope.inference.counts import MOST_BYTES
from hmmscope.inference.em import PARTS, Model
from hmmscope.inference.gibbs import Chains, DirichletPrior
from hmmscope.inference.known_states import named_states, with_known_states
from hmmscope.inference.loop_inputs import PackedSequences, flat_sequences
from hmmscope.inference.num_states import StateCountPosterior, choice_of, choose_num_states, evidence_of_fits, fit_each
from hmmscope.inference.restarts import criterion
from hmmscope.inference.weights import as_weights, with_weights
from hmmscope.processes.hmm import HMM, check_start, matched_by_name
from hmmscope.progress import Progress, StoppableProgress
from hmmscope.reprs import ResultRows, html_rows
from hmmscope.runs.driven_fits import OWN_OPTIONS, fit_driven, refuse_beside
from hmmscope.runs.fit_answers import FitAnswers, ended, searched
from hmmscope.runs.fit_options import FitOptions
from hmmscope.runs.given_rows import column_names, labels_as_given
from hmmscope.runs.goodness import Goodness, goodness_of_fit
from hmmscope.runs.posterior import FitData, Posterior
from hmmscope.runs.stream_parts import parts_of
from hmmscope.runs.table_order import in_table_order
from hmmscope.runs.vector_sequences import READING, choose_vectors, emission_of, read_numbers, read_validation, refuse
from hmmscope.schema import items_of, options_of, require, require_bool
from hmmscope.sequences.columns import own_rows
from hmmscope.sequences.data import SequenceData, read_as
from hmmscope.sequences.streaming import SequenceStream
from hmmscope.system_info import require_memory


@dataclass(frozen=True, repr=False)
class FitResult(FitAnswers):
    """An HMM fitted to sequences.

    Attributes:
        hmm: The chosen model: an `HMM` for symbols, an `EmissionHMM` for numbers, an `InputOutputHMM` with `inputs=`,
            or a `SemiMarkovHMM` with `durations=`.
        num_observations: Number of fitted symbols or vectors, each counted with the weight of its sequence.
        fits: A `BaumWelchFit` or `EmissionFit` for each number of states; empty for a stream. If a part of the data is
            held out, `fits` used only the rest.
        whole: The chosen fit after further EM steps on all data; None if `fits` used all data.
        held_out: Mean held-out log-probability per observation (nats) by number of states; empty without held-out data.
        held_out_errors: Standard errors of `held_out`.
        reason: Why this number of states was chosen; empty if only one was given.
        num_fitted: Number of observations that `fits` used; 0 means all.
        support: Posterior probability of each number of states; None if only one was given.
        data: The fitted data; None for a stream.
        num_zeros: Number of zero probabilities in each array of `start`, by array name.
        cost: "restarts" (number), "seconds" of the fit, and "evidence_seconds" (time for the evidence).
    """

    hmm: Any
    num_observations: float
    fits: dict[int, Any] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)
    held_out_errors: dict[int, float] = field(default_factory=dict)
    reason: str = ""
    whole: BaumWelchFit | None = None
    num_fitted: int = 0
    support: StateCountPosterior | None = None
    data: FitData | None = field(default=None, compare=False)
    num_zeros: dict[str, int] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def final(self) -> Any:
        return self.fits[self.num_states] if self.whole is None else self.whole

    @property
    def log_likelihood(self) -> float:
        """Return log P(fitted data) in nats; NaN for a fit to a stream."""
        return self.final.log_likelihood if self.fits else np.nan

    @property
    def converged(self) -> bool:
        """Return whether the last iteration gained less log-likelihood than the tolerance."""
        return bool(self.fits) and self.final.converged

    @property
    def interval(self) -> tuple[int, int]:
        """Return the 95 % interval of the number of states.

        It uses the marginal likelihood under the default priors of `posterior`, or the BIC; `reason` states which.
        """
        size = self.num_states
        return (size, size) if self.support is None else self.support.interval(size)

    def posterior(
        self,
        num_draws: int = 500,
        *,
        num_chains: int = 4,
        warm_up: int = 250,
        every: int = 1,
        seed: int = 0,
        max_lengthening: int = 8,
        initial: float = 1.0,
        transition: float = 1.0,
        emission: float = 1.0,
        **laws: Any,
    ) -> Posterior:
        """Draw all parameters from their posterior by Gibbs sampling.

        Args:
            num_draws, num_chains, warm_up, every, seed: See `hmmscope.inference.gibbs.Chains`.
            max_lengthening: While an R-hat exceeds 1.05, chains are redrawn at twice their length, up to this factor.
            initial, transition, emission: Concentrations of the priors, see `hmmscope.inference.gibbs.DirichletPrior`.
            laws: Options of the emission prior: `prior_strength`; for Gaussians also `degrees` (of freedom) and `share`
                (prior variances / data variances); for a `SemiMarkovHMM`, `durations` (concentration).

        Raises:
            InputError: The fit used a stream, weights, vectors with known states, or negative-binomial durations; the
                emission family has no conjugate prior; or scipy is missing.
            ResourceError: The draws do not fit in memory.
        """
        prior = DirichletPrior(initial=initial, transition=transition, emission=emission)
        chains = Chains(num_draws=num_draws, num_chains=num_chains, warm_up=warm_up, every=every, seed=seed)
        whole = self._whole("posterior")
        return whole.posterior(self.hmm, prior, chains, laws, max_lengthening, self.final.laws(vars(prior)))

    def check(self, num_simulations: int = 200, *, seed: int = 0) -> Goodness:
        """Test goodness of fit against simulations of the fitted model.

        The p-values are too large, because the model was fitted to these data; `posterior().check()` reduces this bias.
        """
        return goodness_of_fit([self.hmm], self._whole("check").sequences, num_simulations, seed)

    def table(self) -> ResultRows:
        """Return a row for each number of states; its log-likelihoods are in nats per observation."""
        return ResultRows(
            {"num_states": size, "log_likelihood": fit.log_likelihood / (self.num_fitted or self.num_observations)}
            | {"bic": fit.bic}
            | ({} if self.support is None else {"share": self.support.shares[size]})
            | self._judged(size)
            | {
                "restarts": fit.num_restarts,
                "agreed": fit.restarts_agree,
                "iterations": fit.num_iterations,
                "converged": fit.converged,
                "chosen": size == self.num_states,
            }
            for size, fit in self.fits.items()
        )

    def _judged(self, size: int) -> dict[str, float]:
        if not self.held_out:
            return {}
        return {"held_out": self.held_out[size], "held_out_error": self.held_out_errors[size]}

    def __repr__(self) -> str:
        chosen = f", chosen from {', '.join(map(str, self.fits))}" if self.reason else ""
        zeros = sum(self.num_zeros.values())
        chosen += f", {zeros} {'probability' if zeros == 1 else 'probabilities'} fixed at zero" if zeros else ""
        if not self.fits:
            return f"Fit({self.hmm!r}{chosen}, {self.num_observations} observations from a stream)"
        each = f"{self.log_likelihood / self.num_observations:.4f} nats per observation"
        ended = "converged" if self.converged else "not converged"
        ended += self.data.times_in_words() if self.data is not None else ""
        return f"Fit({self.hmm!r}{chosen}, {each}, {searched(self.fits[self.num_states])}, {ended})"

    def _repr_html_(self) -> str:
        return html_rows(repr(self.hmm), self.table())


def fit(
    source: Any,
    num_states: int | Sequence[int],
    *,
    emission: str | type[EmissionHMM] | None = None,
    inputs: Any = None,
    validation: Any = None,
    seed: int = 0,
    stream: bool = False,
    options: FitOptions | None = None,
    **reading: Any,
) -> FitResult:
    """Fit an HMM to sequences by expectation maximization (Baum-Welch).

    If several numbers of states are given, the smallest Bayesian information criterion (BIC) chooses one by default.

    Args:
        source: `SequenceData` or data that it reads (lists, an array, a file path); for a stream also a
            `SequenceStream` or several sources.
        num_states: Number of states, or several numbers to choose from.
        emission: "symbols", or for numbers "gaussian", "gaussian-mixture", "poisson" (counts), "channels" (each
            coordinate is a symbol), or a registered name or class of `EmissionHMM`. Default: "gaussian" for fractional
            numbers, else symbols. With "gaussian", columns of names are channels of a `MixedHMM`. NaN marks a missing
            value; see `hmmscope.emissions.fit_emissions_em.fit_emissions`.
        inputs: An input for each observation, or the name of a column of inputs; the model is then an `InputOutputHMM`.
        validation: Held-out data to compare numbers of states. Default: a random part of `source`.
        seed: Seed of the initial parameters and of the order of a stream's parts.
        stream: True, for data larger than memory, fits the first part and takes an EM step per further part.
        options: Starting values, constraints, restarts and convergence.
        reading: Options of `SequenceData` or `SequenceStream`, such as `unit` or `lengths`; for numbers `axis`,
            `min_variance`, `covariance_type` (diag, full, tied, spherical), `num_gaussians`, `sizes` (of alphabets).

    Raises:
        InputError: The source or an option is invalid.
        ResourceError: The data do not fit in memory.
        Interrupted: Ctrl-C was pressed; `result` of the error is the fit so far.
    """
    sizes, begun, source = sizes_of(num_states), time.monotonic(), own_rows(source)[0]
    require_bool("stream", stream)
    options, names = _numbered(options_of(options, FitOptions, reading), sizes[-1], source, reading)
    settings = {name: value for name, value in vars(options).items() if name not in OWN_OPTIONS} | {"seed": seed}
    quiet, choose = settings.pop("quiet"), settings.pop("choose")
    asked, emission, tied = emission, emission_of(source, emission, reading), options.tied_emissions
    if inputs is not None or options.durations is not None:
        refuse_beside(options, inputs, emission=emission, validation=validation, stream=stream)
        data = read_as(source, reading, [*settings, "num_states"])
        hmm, total, heard, fields = fit_driven(source, data, sizes, inputs, options, seed, reading, names)
        free = options.sequence_weights is None and options.duration_family == "free"
        fields["data"] = FitData(data, not free, labels_as_given(data, source), (), *fields.pop("given"))
        return ended(FitResult(hmm, total, **fields), heard, begun)
    if emission != "symbols":
        refuse(emission, stream=stream, tied_emissions=tied)
        call = quiet, choose, begun, names, asked
        return _fit_numbers(source, sizes, emission, validation, settings, call, reading)
    if stream:
        require(len(sizes) == 1, "num_states", "must be a single number for a stream", num_states)
        return _fit_stream(source, sizes[0], settings, quiet, reading)
    data = read_as(source, reading, [*settings, "num_states", "emission", "validation", "stream", "options"])
    settings["start"] = matched_by_name(options.start, data)
    weights = as_weights(settings.pop("sequence_weights"), len(data))
    known = settings.pop("known_states")
    require(known is None or len(sizes) == 1, "known_states", "needs one num_states", num_states)
    apart, judges, how = data, None, ""
    if len(sizes) > 1 and (weights is None or validation is not None):
        apart, judges, how = _held_out(data, validation)
    work = with_weights(with_known_states(_work(apart, sizes[-1]), known, apart.lengths, sizes[-1]), weights)
    total = (len(sizes) * options.num_restarts + (judges is not None)) * options.max_iterations
    with StoppableProgress(total, "fit", quiet=quiet) as heard:
        settings["callback"] = heard
        if judges is None:
            found = _without_judges(data, work, sizes, settings, labels_as_given(data, source), choose)
            return ended(found, heard, begun, names)
        judged = flat_sequences(judges.flat, judges.lengths.numpy())
        every = work if apart is data else _work(data, sizes[-1])
        choice = choose_num_states(work, judged, sizes, data.num_symbols, whole=every, choose=choose, **settings)
        whole = None if apart is data else _on_to_all(data, choice.chosen, settings)
    hmm = _named((whole or choice.chosen).hmm, data, "Baum-Welch fit")
    fields = choice.fields | {"reason": choice.reason + how, "whole": whole, "num_fitted": apart.num_observations}
    fields["data"] = _material(data, work, settings, labels_as_given(data, source))
    return ended(FitResult(hmm, num_weighted(work, data), **fields), heard, begun, names)


def _numbered(options: FitOptions, size: int, source: Any, reading: dict[str, Any]) -> tuple[FitOptions, Any]:
    known = in_table_order("known_states", options.known_states, source, reading)
    visits = getattr(options.start, "visits", None)
    own = getattr(options.start, "states", None) if visits is None else visits.names
    known, names = named_states(known, size, own)
    return replace(options, known_states=known), names


def sizes_of(num_states: object) -> list[int]:
    listed = items_of(num_states)
    given = [num_states] if listed is None else listed
    good = all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 1 for size in given)
    require(bool(given) and good, "num_states", "must be at least 1 and whole", num_states)
    return sorted(set(map(int, given)))


def _fit_numbers(
    source: Any,
    sizes: Sequence[int],
    emission: str | type[EmissionHMM],
    validation: Any,
    options: dict[str, Any],
    call: tuple[bool | None, str | None, float, Any, Any],
    read_options: dict[str, Any],
) -> FitResult:
    (quiet, choose, begun, names, asked), judges = call, None
    more = dict(read_options)
    reading = {name: more.pop(name) for name in READING if name in more}
    refuse(emission, unit=more.pop("unit", None))
    data = read_numbers(source, asked, reading)
    if data.alphabets:
        rule = f"must be gaussian for columns of names ({', '.join(data.alphabets)}), or leave these out with column="
        require(family_name(emission) in ("gaussian", "mixed"), "emission", rule, family_name(emission))
        emission, more = "mixed", {"sizes": list(map(len, data.alphabets.values()))} | more
    del options["tied_emissions"]
    if validation is not None:
        judges = read_validation(validation, data, reading)
    total = (len(sizes) * options["num_restarts"] + 1) * options["max_iterations"]
    with StoppableProgress(total, "fit", quiet=quiet) as heard:
        options["callback"] = heard
        choice, about = choose_vectors(data, judges, list(sizes), emission, options, more, choose)
    hmm = (about["whole"] or choice.chosen).hmm.replaced()
    hmm.title, hmm.source = f"{family_name(emission)} fit", f"fitted to {data.how}" if data.how else ""
    hmm.read_options = data.read_options
    seen, weights = (~data.rows.isnan()).any(1), as_weights(options.get("sequence_weights"), len(data.lengths))
    made = int(seen.sum()) if weights is None else float(np.repeat(weights, data.lengths.numpy()) @ seen.numpy())
    columns = data.columns or column_names(source)
    material = _material(data, None, options, labels_as_given(data, source), columns)
    fields = choice.fields | about | {"data": material, "num_zeros": choice.chosen.num_zeros}
    return ended(FitResult(hmm, made, **fields), heard, begun, names)


def _without_judges(
    data: SequenceData,
    work: PackedSequences,
    sizes: Sequence[int],
    options: dict[str, Any],
    index: Any,
    choose: str | None,
) -> FitResult:
    fit = partial(fit_baum_welch, work, num_symbols=data.num_symbols, **options)
    fits = fit_each(sizes, fit, options["callback"])
    choice = choice_of(fits, *evidence_of_fits(work, fits, choose, options["callback"]))
    hmm = _named(choice.chosen.hmm, data, "Baum-Welch fit")
    why = "there are too few data for a held-out part" if work.weights is None else "with weights, no part is held out"
    fields = choice.fields | {"num_zeros": choice.chosen.num_zeros, "data": _material(data, work, options, index)}
    fields["reason"] = f"{choice.reason}; {why}" if choice.reason else ""
    return FitResult(hmm, num_weighted(work, data), **fields)


def num_weighted(work: PackedSequences, data: SequenceData) -> float:
    return data.num_observations if work.weights is None else work.total(work.lengths)


def _material(
    data: Any, work: PackedSequences | None, options: dict[str, Any], index: Any, columns: tuple[str, ...] = ()
) -> FitData:
    weighted = options.get("sequence_weights") is not None or not (work is None or work.weights is None)
    restricted = weighted or options.get("known_states") is not None
    known = None if work is None or work.sets is None else work.sets.allowed[work.symbols]
    return FitData(data, restricted, index, columns, known=known)


def _on_to_all(data: SequenceData, chosen: BaumWelchFit, options: dict[str, Any]) -> BaumWelchFit:
    size, work = chosen.hmm.num_states, _work(data, chosen.hmm.num_states)
    if (held_out_log_likelihoods(chosen.hmm, work) > -np.inf).all():
        options = options | {"start": chosen.hmm, "num_restarts": 1}
    found, free = fit_baum_welch(work, size, data.num_symbols, **options), chosen.num_free
    bic = criterion(
        found.log_likelihood, free, seen_by_part(work, data.num_symbols)
    )  # zeros that `chosen` was driven to are free
    return replace(found, bic=bic, num_free=free, num_zeros=chosen.num_zeros)


def _held_out(data: SequenceData, validation: Any) -> tuple[SequenceData, SequenceData | None, str]:
    if validation is not None:
        return data, _like(validation, data), ""
    pieces = data.in_blocks()
    try:
        train, judges = pieces.train, pieces.validation
    except InputError:  # too few distinct sequences
        return data, None, ""
    cut = "" if pieces is data else f"; held-out blocks of {pieces.longest} symbols"
    return train, judges, f"{cut}; the refit uses all data"


def _like(other: Any, data: SequenceData) -> SequenceData:
    found = other if isinstance(other, SequenceData) else SequenceData(other, symbols_from=data)
    if (found.symbols, found.num_symbols) != (data.symbols, data.num_symbols):
        raise InputError("validation: must have the same symbols as source; read both with the same symbols=")
    return found


def _work(data: SequenceData, num_states: int) -> PackedSequences:
    beliefs = min(2 * MOST_BYTES, 16 * data.longest * num_states)
    tables = 8 * num_states * (4 * num_states + 6 * data.num_symbols)
    require_memory("fit", torch.get_num_threads() * (beliefs + tables) + data.longest + 64 * len(data))
    return flat_sequences(data.flat, data.lengths.numpy())


def _named(hmm: HMM, data: SequenceData | SequenceStream, title: str) -> HMM:
    matrices = (hmm.initial, hmm.transition, hmm.emission)
    of = data.title if isinstance(data, SequenceData) else data.path.name
    found = HMM(*matrices, symbols=data.symbols, title=f"{title} to {of}" if of else title)
    found.read_options = data.read_options if data.read_options.to_data() else None
    return found


def _fit_stream(
    source: Any, num_states: int, options: dict[str, Any], quiet: bool | None, read_options: dict[str, Any]
) -> FitResult:
    for name in ("tied_emissions", "sequence_weights", "known_states", "constraints"):
        if options.pop(name) is not None:
            raise InputError(f"{name}: cannot be used with a stream; fit without stream=True")
    parts, whole = parts_of(source, options["seed"], read_options)
    iterator = iter(parts)
    head = next(iterator, None)
    if head is None:
        raise InputError("source: holds no sequence")
    start = matched_by_name(options["start"], head)
    check_start(start, num_states, head.num_symbols)
    zeros = {} if start is None else dict(zip(PARTS, (int((p == 0).sum()) for p in Model.of(start)), strict=True))
    if start is None:
        start = fit_baum_welch(_work(head, num_states), num_states, head.num_symbols, **options).hmm
    total = 0
    size = whole.size if isinstance(whole, SequenceStream) else whole.num_observations if whole is not None else 0

    with Progress(max(1, size), "fit", unit="bytes", per_step=1.0, quiet=quiet if size else True) as progress:

        def batches() -> Iterable[PackedSequences]:
            nonlocal total
            for part in chain([head], iterator):
                total += part.num_observations
                yield _work(_like(part, head), num_states)
                progress.update(whole.position if isinstance(whole, SequenceStream) else total)

        hmm = fit_stream(batches(), start, fixed=options["fixed"], pseudo_count=options["pseudo_count"])
    return FitResult(_named(hmm, head, "Baum-Welch fit"), total, num_zeros=zeros)
