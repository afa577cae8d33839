"""How many states: HMMs of several sizes by the Bayesian information criterion, and by held-out likelihood."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Int, Tensor
from hmmscope.inference.baum_welch import BaumWelchFit, as_sequences, fit_baum_welch, held_out_log_likelihoods
from hmmscope.inference.evidence import Evidence, evidence
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.loop_inputs import PackedSequences
from hmmscope.processes.hmm import HMM
from hmmscope.schema import require
from hmmscope.sequences.gaps import MISSING

#: So few held-out sequences are judged in blocks, of which there are about so many.
FEW, BLOCKS = 10, 20
#: A number of states whose log evidence is so many nats below the best ends the search for others beyond it.
FAR = 12.0


@dataclass(frozen=True)
class HeldOutScore:
    """Mean log-likelihood of an observation in sequences that a model was not fitted to, nats.

    Attributes:
        mean: sum of log P(sequence) / number of observations.
        error: standard error of that ratio over independent parts; NaN if there is one.
    """

    mean: float
    error: float


@dataclass(frozen=True)
class NumStatesChoice:
    """Models of several sizes.

    Attributes:
        num_states: of the model with the smallest `bic`.
        fits: the fit of each candidate.
        held_out: mean log-probability of a held-out observation under each, nats.
        held_out_errors: standard errors of these means over sequences, or over blocks of few sequences.
        reason: why this number, in one line, and what the held-out sequences say of it.
        support: what else the observations leave possible.
    """

    num_states: int
    fits: dict[int, BaumWelchFit]
    held_out: dict[int, float]
    held_out_errors: dict[int, float]
    reason: str
    support: "StateCountPosterior"


@dataclass(frozen=True)
class StateCountPosterior:
    """How far observations speak for each number of states, if all that were tried were equally likely before.

    Attributes:
        log_evidence: log P(observations | number of states), nats; -inf of what was not looked at.
        errors: how far that may be off, nats.
        why: no evidence was computed (`hmmscope.inference.evidence`), so that it is -BIC / 2, which is coarser; else empty.
    """

    log_evidence: dict[int, float]
    errors: dict[int, float]
    why: str = ""

    @property
    def shares(self) -> dict[int, float]:
        """P(number of states | observations)."""
        most = max(self.log_evidence.values())
        weights = {size: math.exp(log - most) for size, log in self.log_evidence.items()}
        return {size: weight / sum(weights.values()) for size, weight in weights.items()}

    def interval(self, chosen: int) -> tuple[int, int]:
        """The least number and the largest that are left when up to 2.5 % are cut off at each end.

        Between them are `chosen`, and whatever would have more than 2.5 % were its evidence larger by its error, and that of
        the others smaller by theirs.
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


def support_of(bics: Mapping[int, float], evidence_of: Callable[[int], Evidence | None] | None) -> StateCountPosterior:
    """Of some numbers of states, by their evidence.

    One looks from the smallest BIC upwards and downwards until a number is e^`FAR` times less likely than the best.

    Args:
        bics: criterion of each.
        evidence_of: a number of states; None where parts are not free, and then it goes by BIC, as where one evidence is
            None, because `hmmscope.inference.evidence` does not go so far.
    """
    if evidence_of is None:
        return by_bic(bics, "parts of the model are not free")
    sizes, found = sorted(bics), {size: Evidence(-math.inf, 0.0) for size in sorted(bics)}
    start = sizes.index(min(sizes, key=bics.__getitem__))
    for way in (sizes[start:], sizes[:start][::-1]):
        for size in way:
            own = evidence_of(size)
            if own is None:
                return by_bic(bics, f"evidence of {_states(size)} and so many observations takes too long")
            found[size] = own
            if own.log + own.error < max(one.log for one in found.values()) - FAR:
                break
    return StateCountPosterior(
        {size: one.log for size, one in found.items()}, {size: one.error for size, one in found.items()}
    )


def by_bic(bics: Mapping[int, float], why: str) -> StateCountPosterior:
    """With exp(-BIC / 2) for the evidence of each number of states, and why."""
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
    **options: Any,
) -> NumStatesChoice:
    """Fit each number of states to `observations` and take the one with the smallest Bayesian information criterion.

    The largest held-out likelihood is no such rule: states too many cost next to nothing there, so that noise decides.

    Source: Schwarz (1978); Celeux and Durand (2008) compare rules for HMMs.

    Args:
        observations, lengths: to fit.
        held_out, held_out_lengths: what each fit is also judged by; symbols that a fit forbids make its mean -inf. Fewer
            than ten sequences are judged in about twenty blocks, each given all that comes before it in its sequence.
        whole: what `NumStatesChoice.support` is of, packed; by default `observations`.
        candidates: numbers of states, the smaller preferred among equals.
        num_symbols: V.
        options: of `fit_baum_welch`.

    Raises:
        InputError: as `fit_baum_welch`; no candidates.
    """
    require(len(candidates) > 0, "candidates", "must hold at least one number of states", list(candidates))
    judged = as_sequences(held_out, num_symbols, held_out_lengths, "held_out").packed()
    units = units_of(judged.lengths)
    fits, logs = {}, {}
    for size in sorted(set(candidates)):
        fits[size] = fit_baum_welch(observations, size, num_symbols, lengths=lengths, **options)
        logs[size] = _logs(fits[size].hmm, judged, units)
    restricted = any(options.get(name) for name in ("fixed", "start", "tied_emissions"))
    of = as_sequences(observations, num_symbols, lengths) if whole is None else whole
    bics = {size: one.bic for size, one in fits.items()}
    support = support_of(bics, None if restricted else lambda size: evidence(of, fits[size].hmm))
    seen = _seen(judged, units, num_symbols)
    chosen, reason = choice_reason(bics, logs, seen, support)
    scores = {size: held_out_mean(own, seen) for size, own in logs.items()}
    means, errors = ({size: getattr(one, name) for size, one in scores.items()} for name in ("mean", "error"))
    return NumStatesChoice(chosen, fits, means, errors, reason, support)


def units_of(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Lengths of the blocks of each sequence, which stand for independent ones in standard errors; of many, their own."""
    if len(lengths) >= FEW:
        return [lengths]
    size = -(-int(lengths.sum()) // BLOCKS)
    found = []
    for length in lengths.tolist():
        ends = np.linspace(0, length, -(-length // size) + 1).round().astype(np.int64)
        found.append(ends[1:] - ends[:-1])
    return found


def summed(terms: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Sums over blocks of these lengths, which stand one behind the other."""
    return np.add.reduceat(terms, lengths.cumsum() - lengths, dtype=np.int64 if terms.dtype == np.bool_ else None)


def _seen(judged: PackedSequences, units: list[NDArray[np.int64]], num_symbols: int) -> NDArray[np.int64]:
    """Observations of each block that are not missing."""
    return summed(judged.symbols < num_symbols, np.concatenate(units))


def _logs(hmm: HMM, judged: PackedSequences, units: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    """log P(block | what comes before it in its sequence) of all blocks, nats; -inf from an impossible symbol on."""
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
    """Mean log-likelihood of an observation, from those of sequences (n,) of these lengths.

    mean = sum_i logs_i / sum_i lengths_i;  error^2 = n / (n - 1) sum_i (logs_i - mean lengths_i)^2 / (sum_i lengths_i)^2

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
) -> tuple[int, str]:
    """The number of states with the smallest BIC, and that it is, with what held-out sequences say, in one line.

    Args:
        bics: of each number of states.
        logs: log-likelihoods of held-out sequences (n,) under each; empty if there are none.
        lengths: of those sequences (n,).
        support: what the interval is of.
        each: what likelihoods are told of.
    """
    chosen, *others = sorted(bics, key=lambda size: bics[size])
    if not others:
        return chosen, f"{_states(chosen)}: no other number was tried"
    second, ahead = others[0], bics[others[0]] - bics[chosen]
    between = f", 95 % [{', '.join(map(str, support.interval(chosen)))}]" if support else ""
    by_bic = f"{_states(chosen)}{between}: the smallest BIC, {ahead:.1f} below that of {_states(second)}"
    by_bic += f"; the interval goes by BIC alone: {support.why}" if support and support.why else ""
    if support and replace(support, errors=dict.fromkeys(support.errors, 0.0)).interval(chosen) != support.interval(
        chosen
    ):
        by_bic += (
            f"; the interval allows for estimates of the evidence up to {max(support.errors.values()):.1f} nats apart"
        )
    if not logs:
        return chosen, by_bic
    best = max(logs, key=lambda size: float(logs[size].sum()))
    if best == chosen:
        return chosen, f"{by_bic}; the held-out likelihood is largest there too"
    if not math.isfinite(logs[chosen].sum()):
        return chosen, f"{by_bic}; the held-out likelihood is largest with {_states(best)}, and zero here"
    gain = held_out_mean(logs[best] - logs[chosen], lengths)
    beside = "" if math.isnan(gain.error) else f" ± {gain.error:.2g}"
    return (
        chosen,
        f"{by_bic}; the held-out likelihood is largest with {_states(best)}, by {gain.mean:.2g}{beside} nats {each}",
    )


def best_predictor(bics: dict[int, float], logs: dict[int, NDArray[np.float64]], lengths: NDArray[np.int64]) -> int:
    """The number of states whose HMM is taken to predict best: that of BIC, or the one with the largest held-out likelihood
    if that is larger by more than a standard error of the difference. Of few sequences the largest alone is noise.

    Args:
        bics, logs, lengths: as for `choice_reason`.
    """
    chosen, _ = choice_reason(bics, {}, lengths)
    best = max(logs, key=lambda size: float(logs[size].sum()), default=chosen)
    if best == chosen or not math.isfinite(logs[best].sum()):
        return chosen
    if not math.isfinite(logs[chosen].sum()):
        return best
    gain = held_out_mean(logs[best] - logs[chosen], lengths)
    return best if gain.mean > gain.error else chosen


def _states(size: int) -> str:
    return f"{size} state{'s' * (size != 1)}"
