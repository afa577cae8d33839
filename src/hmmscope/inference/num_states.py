"""Selection of the number of states by the Bayesian information criterion (BIC) or the evidence."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Int, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import BaumWelchFit, as_sequences, fit_baum_welch, held_out_log_likelihoods
from hmmscope.inference.constrained_laws import RowLaws
from hmmscope.inference.evidence import MOST, UNASKED, Evidence, EvidenceStopped, evidence
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.processes.hmm import HMM
from hmmscope.schema import require
from hmmscope.sequences.gaps import MISSING

#: Fewer than FEW held-out sequences are scored in about BLOCKS blocks.
FEW, BLOCKS = 10, 20
#: Rules that choose the number of states.
CHOICES = ("bic", "evidence")
#: The search stops at a log evidence this many nats below the best.
FAR = 12.0
#: Why an evidence is missing after Ctrl-C.
STOPPED = "the evidence was interrupted"

Fit = TypeVar("Fit")


@dataclass(frozen=True)
class HeldOutScore:
    """Held-out log-likelihood, in nats per observation.

    Attributes:
        mean: Sum of log P(sequence), divided by the number of observations.
        error: Standard error of `mean`, over sequences or blocks of them; NaN for only one, or if `mean` is infinite.
    """

    mean: float
    error: float


@dataclass(frozen=True)
class NumStatesChoice:
    """Fitted HMMs of several sizes, and the selected number of states.

    Attributes:
        num_states: Number of states that `choice_reason` selects.
        fits: Fit for each number of states.
        held_out: Held-out log-likelihood of each fit, in nats per observation.
        held_out_errors: Standard error of each value in `held_out`.
        reason: One-line explanation of the choice.
        support: Posterior over the number of states.
    """

    num_states: int
    fits: dict[int, Any]
    held_out: dict[int, float]
    held_out_errors: dict[int, float]
    reason: str
    support: "StateCountPosterior | None"

    @property
    def chosen(self) -> Any:
        return self.fits[self.num_states]

    @property
    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "num_states"}


@dataclass(frozen=True)
class StateCountPosterior:
    """Posterior over the number of states, with a uniform prior.

    Attributes:
        log_evidence: log P(observations | number of states), or -BIC / 2, in nats; -inf if not computed.
        errors: Half-widths of the 95 % intervals of `log_evidence`, in nats.
        why: Reason why BIC replaces the evidence, or empty.
        seconds: Time of computing the evidence.
    """

    log_evidence: dict[int, float]
    errors: dict[int, float]
    why: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def shares(self) -> dict[int, float]:
        most = max(self.log_evidence.values())
        weights = {size: math.exp(log - most) for size, log in self.log_evidence.items()}
        return {size: weight / sum(weights.values()) for size, weight in weights.items()}

    def interval(self, chosen: int) -> tuple[int, int]:
        """Return the central 95 % interval of the number of states.

        It is widened to include `chosen`, and numbers of states whose probability may exceed 2.5 %, given `errors`.
        """
        sizes, below = sorted(self.shares), 0.0
        low = high = sizes[0]
        for size in sizes:
            if below <= 0.025:
                low = size
            if below < 0.975:
                high = size
            below += self.shares[size]
        least = {
            size: math.exp(log - self.errors[size] - max(self.log_evidence.values())) for size, log in self._finite()
        }
        rivals = [
            size
            for size, log in self._finite()
            if (most := least[size] * math.exp(2 * self.errors[size]))
            > 0.025 * (sum(least.values()) - least[size] + most)
        ]
        return min(low, chosen, *rivals), max(high, chosen, *rivals)

    def _finite(self) -> list[tuple[int, float]]:
        return [(size, log) for size, log in self.log_evidence.items() if log > -math.inf]


def fit_each(
    sizes: Iterable[int], fit: Callable[[int], Fit], callback: Callable[[int], object] | None
) -> dict[int, Fit]:
    """Fit a model of each size; if the callback stops the search, omit the unfinished fit unless it is the first."""
    fits: dict[int, Fit] = {}
    for size in sizes:
        own = fit(size)
        stop = callback is not None and callback(0) is True
        if not (stop and fits):
            fits[size] = own
        if stop:
            break
    return fits


def support_of(
    bics: Mapping[int, float],
    evidence_of: Callable[[int], Evidence | None] | None,
    choose: str | None = None,
    why: str = "",
) -> StateCountPosterior:
    """Compute the posterior over the number of states.

    Evidence is computed upwards from the number of states with the smallest BIC, then downwards. Each direction
    ends at evidence below e^-12 times the largest.

    Args:
        bics: BIC of each number of states.
        evidence_of: Function from a number of states to its `Evidence`. BIC replaces the evidence if this function or
            its result is None.
        choose: "bic" uses only BIC; if the evidence cannot be computed, "evidence" raises an error and None uses BIC.
        why: Reason why `evidence_of` is None.
    """
    begun = time.monotonic()
    found = by_bic(bics, "choose is 'bic'") if choose == "bic" else _support(bics, evidence_of, why)
    if choose == "evidence" and found.why and found.why != STOPPED:
        raise InputError(f"choose: cannot be 'evidence', because {found.why}; use choose='bic'")
    return replace(found, seconds=time.monotonic() - begun)


def _support(
    bics: Mapping[int, float], evidence_of: Callable[[int], Evidence | None] | None, why: str
) -> StateCountPosterior:
    if evidence_of is None:
        return by_bic(bics, why)
    sizes, found = sorted(bics), {size: Evidence(-math.inf, 0.0) for size in sorted(bics)}
    start = sizes.index(min(sizes, key=bics.__getitem__))
    for way in (sizes[start:], sizes[:start][::-1]):
        for size in way:
            try:
                own = evidence_of(size)
            except EvidenceStopped:
                return by_bic(bics, STOPPED)
            except InputError as error:  # no conjugate prior
                return by_bic(bics, str(error).removeprefix("posterior: "))
            if own is None:
                return by_bic(
                    bics, f"computing the evidence for {_states(size)} from this many observations takes too long"
                )
            found[size] = own
            if own.log + own.error < max(one.log for one in found.values()) - FAR:
                break
    return StateCountPosterior(
        {size: one.log for size, one in found.items()}, {size: one.error for size, one in found.items()}
    )


def by_bic(bics: Mapping[int, float], why: str) -> StateCountPosterior:
    return StateCountPosterior({size: -bic / 2 for size, bic in bics.items()}, dict.fromkeys(bics, 0.0), why)


def choose_num_states(
    observations: Int[Tensor, "batch time"] | PackedSequences,
    held_out: Int[Tensor, "other other_time"] | PackedSequences,
    candidates: Sequence[int],
    num_symbols: int,
    *,
    lengths: object = None,
    held_out_lengths: object = None,
    whole: PackedSequences | None = None,
    choose: str | None = None,
    **options: Any,
) -> NumStatesChoice:
    """Fit an HMM with each candidate number of states, and select one by BIC or evidence.

    Source: Schwarz (1978); Celeux and Durand (2008) compare rules for HMMs.

    Args:
        observations, lengths: Training data.
        held_out, held_out_lengths: Held-out data; fewer than ten sequences are split into blocks for standard errors.
        whole: Data from which `support` is computed (default: `observations`).
        candidates: Numbers of states to try; of two with equal BIC the smaller is chosen.
        num_symbols: Number of symbols V.
        choose: See `support_of` and `choice_reason`.
        options: Further options of `fit_baum_welch`.
    """
    require(len(candidates) > 0, "candidates", "must contain at least one number of states", list(candidates))
    judged = as_sequences(held_out, num_symbols, held_out_lengths, "held_out").packed()
    units = units_of(judged.lengths)
    fit = partial(fit_baum_welch, observations, num_symbols=num_symbols, lengths=lengths, **options)
    fits = fit_each(sorted(set(candidates)), fit, options.get("callback"))
    logs = {size: _logs(one.hmm, judged, units) for size, one in fits.items()}
    of = as_sequences(observations, num_symbols, lengths) if whole is None else whole
    free = evidence_of_fits(of, fits, choose, options.get("callback"))
    return choice_of(fits, *free, logs=logs, lengths=_seen(judged, units, num_symbols))


def choice_of(
    fits: dict[int, Any],
    evidence_of: Callable[[int], Evidence | None] | None,
    choose: str | None = None,
    why: str = "",
    *,
    logs: Mapping[int, NDArray[np.float64]] | None = None,
    lengths: NDArray[np.int64] | None = None,
    each: str = "a symbol",
) -> NumStatesChoice:
    """Choose among fits of different numbers of states; `reason` is empty for a single fit without held-out data.

    Args:
        fits: Fit for each number of states.
        evidence_of, choose, why: See `support_of`.
        logs, lengths, each: See `choice_reason`.
    """
    logs, lengths = dict(logs or {}), np.empty(0, np.int64) if lengths is None else lengths
    if len(fits) == 1 and not logs:
        return NumStatesChoice(next(iter(fits)), fits, {}, {}, "", None)
    bics = {size: one.bic for size, one in fits.items()}
    support = support_of(bics, evidence_of, choose, why)
    chosen, reason = choice_reason(bics, logs, lengths, support, each, choose=choose)
    scores = {size: held_out_mean(own, lengths) for size, own in logs.items()}
    means, errors = ({size: getattr(one, name) for size, one in scores.items()} for name in ("mean", "error"))
    return NumStatesChoice(chosen, fits, means, errors, reason, support)


def evidence_of_fits(
    work: PackedSequences, fits: Mapping[int, BaumWelchFit], choose: str | None, callback: Any = None
) -> tuple[Callable[[int], Evidence | None] | None, str | None, str]:
    """Return the arguments `evidence_of`, `choose` and `why` of `support_of`."""
    if work.weights is not None or work.sets is not None:
        return None, choose, "the sequences have weights" if work.weights is not None else "states are known"
    if choose == "bic":
        return None, choose, ""
    laws = {size: one.laws({}) for size, one in fits.items()}
    if why := why_not(laws.values()):
        return None, choose, why
    most = MOST if choose else UNASKED
    hear = None if callback is None else lambda said: callback(0, said)
    return lambda size: evidence(work, fits[size].hmm, most=most, callback=hear, laws=laws[size]), choose, ""


def why_not(laws: Iterable[RowLaws]) -> str:
    closed = all(law.closed for own in laws for law in own.values())
    return "" if closed else "constraints tie entries of rows whose other entries are constrained differently"


def units_of(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    if len(lengths) >= FEW:
        return [lengths]
    size = -(-int(lengths.sum()) // BLOCKS)
    found = []
    for length in lengths.tolist():
        ends = np.linspace(0, length, -(-length // size) + 1).round().astype(np.int64)
        found.append(ends[1:] - ends[:-1])
    return found


def summed(terms: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    return np.add.reduceat(terms, lengths.cumsum() - lengths, dtype=np.int64 if terms.dtype == np.bool_ else None)


def _seen(judged: PackedSequences, units: list[NDArray[np.int64]], num_symbols: int) -> NDArray[np.int64]:
    return summed(judged.symbols < num_symbols, np.concatenate(units))


def _logs(hmm: HMM, judged: PackedSequences, units: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    if len(judged.lengths) >= FEW:
        return held_out_log_likelihoods(hmm, judged)
    found = []
    for offset, length, blocks in zip(judged.offsets, judged.lengths, units, strict=True):
        symbols = torch.from_numpy(judged.symbols[offset : offset + length])
        symbols = symbols.where(symbols < hmm.num_symbols, MISSING)
        terms = filter_beliefs(hmm, symbols[None]).log_likelihood_terms[0].numpy()
        found.append(summed(terms, blocks))
    return np.concatenate(found)


def held_out_mean(logs: NDArray[np.float64], lengths: NDArray[np.int64]) -> HeldOutScore:
    """Compute the mean held-out log-likelihood per observation, with its standard error.

    mean = sum_i logs_i / sum_i lengths_i;  error^2 = n / (n - 1) sum_i (logs_i - mean * lengths_i)^2 / (sum_i
    lengths_i)^2

    Source: Cochran (1977), ratio estimators.
    """
    mean, count = float(logs.sum() / lengths.sum()), len(logs)
    if count == 1 or not math.isfinite(mean):
        return HeldOutScore(mean, math.nan)
    rest = logs - mean * lengths
    return HeldOutScore(mean, math.sqrt(count / (count - 1) * float(rest @ rest)) / int(lengths.sum()))


def choice_reason(
    bics: dict[int, float],
    logs: dict[int, NDArray[np.float64]],
    lengths: NDArray[np.int64],
    support: StateCountPosterior | None = None,
    each: str = "a symbol",
    *,
    choose: str | None = None,
) -> tuple[int, str]:
    """Return the number of states with the smallest BIC, or the largest evidence, and a one-line explanation.

    Args:
        bics: BIC of each number of states.
        logs: Held-out log-likelihoods (n,) of the sequences or blocks under each fit, if any.
        lengths: Lengths of these sequences or blocks (n,).
        support: Posterior over the number of states; the explanation states its 95 % interval.
        each: Words after "nats" in the explanation.
        choose: "evidence" chooses by the evidence in `support`; otherwise BIC decides.
    """
    by_evidence = choose == "evidence" and support is not None and not support.why
    scores = {size: -2 * log for size, log in support.log_evidence.items()} if by_evidence and support else bics
    chosen, *others = sorted(bics, key=lambda size: scores[size])
    if not others:
        return chosen, f"{_states(chosen)}: the only number of states that was tried"
    second, ahead = others[0], scores[others[0]] - scores[chosen]
    between = f", 95 % [{', '.join(map(str, support.interval(chosen)))}]" if support else ""
    won = f"the largest evidence, {ahead / 2:.1f} nats above" if by_evidence else f"the smallest BIC, {ahead:.1f} below"
    by_bic = f"{_states(chosen)}{between}: {won} that of {_states(second)}"
    by_bic += f"; the interval uses BIC only, because {support.why}" if support and support.why else ""
    if support and replace(support, errors=dict.fromkeys(support.errors, 0.0)).interval(chosen) != support.interval(
        chosen
    ):
        by_bic += f"; the interval allows for an error of the evidence of up to {max(support.errors.values()):.1f} nats"
    if not logs:
        return chosen, by_bic
    best = max(logs, key=lambda size: float(logs[size].sum()))
    if best == chosen:
        return chosen, f"{by_bic}; this number of states also has the largest held-out likelihood"
    if not math.isfinite(logs[chosen].sum()):
        return (
            chosen,
            f"{by_bic}; the held-out likelihood is largest with {_states(best)}, and it is zero with {_states(chosen)}",
        )
    gain = held_out_mean(logs[best] - logs[chosen], lengths)
    beside = "" if math.isnan(gain.error) else f" ± {gain.error:.2g}"
    return (
        chosen,
        f"{by_bic}; the held-out likelihood is largest with {_states(best)}, by {gain.mean:.2g}{beside} nats {each}",
    )


def _states(size: int) -> str:
    return f"{size} state{'s' * (size != 1)}"
