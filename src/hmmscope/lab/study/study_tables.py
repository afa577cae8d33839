"""Tables of a study: losses by predictor, position and context, entropies, and numbers of states."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.analysis.intervals import bootstrap_ratio
from hmmscope.analysis.ngrams import TREE
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.inference.baum_welch import BaumWelchFit
from hmmscope.inference.evidence import Evidence
from hmmscope.inference.num_states import choice_reason, held_out_mean, support_of
from hmmscope.sequences.data import SequenceData
from hmmscope.ties import smallest

#: Edges of the bins of positions.
EDGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
#: Fewest occurrences of a context in the test part, most symbols of a context, and most contexts of each length.
_OFTEN, _CONTEXT, _KEPT = 10, 3, 200

Curves = NDArray[np.float64]


def per_symbol(losses: Curves) -> tuple[float, float, float]:
    asked = np.logical_not(np.isnan(losses))
    return bootstrap_ratio(np.where(asked, losses, 0.0).sum(1), asked.sum(1).astype(np.float64))


def grams(data: SequenceData, size: int) -> NDArray[np.int64]:
    flat, place = data.flat.astype(np.int64), data.steps_since_gap
    code = np.zeros(len(flat), np.int64)
    for back in range(size):
        code[back:] += flat[: len(flat) - back] * data.num_symbols**back
    return code[place >= size - 1]


def counters(data: SequenceData, orders: Iterable[int]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for order in orders:
        seen = len(np.unique(grams(data, order + 1)))
        found[f"n-gram-{order}"] = {"family": "n-gram", "size": order, "parameters": seen}
        found[TREE] = {"family": "context trees", "size": order, "parameters": seen}
    return found


def predictor_rows(
    known: Mapping[str, dict[str, Any]], validation: dict[str, Curves], test: dict[str, Curves], against: int
) -> list[dict[str, Any]]:
    means = {name: float(np.nanmean(validation[name])) for name in known}
    families = {about["family"] for about in known.values()} - {"HMM"}
    best = {smallest((n for n in known if known[n]["family"] == family), means.__getitem__) for family in families}
    rows = []
    for name, about in known.items():
        value, low, high = per_symbol(test[name])
        numbers = {"value": value, "low": low, "high": high, "bits": value / math.log(2), "validation": means[name]}
        chosen = name in best or name == f"HMM-{against}"
        rows.append({"name": name} | about | numbers | {"pieces": len(test[name]), "chosen": chosen})
    return rows


def over_counting(rows: Sequence[dict[str, Any]], test: dict[str, Curves], network: str) -> dict[str, Any]:
    name = smallest(rows, lambda row: row["value"])["name"]
    numbers = zip(("value", "low", "high"), per_symbol(test[name] - test[network]), strict=True)
    return {"counting": name} | {f"over_counting_{part}": number for part, number in numbers}


def entropies(data: SequenceData, order: int) -> list[dict[str, Any]]:
    """Estimate the entropy in nats of the next symbol after 0 to `order` symbols; rare contexts bias results down."""
    rows, before = [{"context": -1, "value": math.log(data.num_symbols), "distinct": 1}], 0.0
    for k in range(order + 1):
        if data.num_symbols ** (k + 1) >= 2**62:
            break
        counts = np.unique(grams(data, k + 1), return_counts=True)[1]
        share = counts / counts.sum()
        block = float(-(share * np.log(share)).sum()) + (len(counts) - 1) / (2 * counts.sum())  # Miller and Madow
        rows.append({"context": k, "value": max(0.0, block - before), "distinct": len(counts)})
        before = block
    return rows


def num_states(
    searches: dict[int, dict[str, Any]], validation: dict[str, Curves], evidence_of: Callable[[int], Evidence | None]
) -> list[dict[str, Any]]:
    """Return a row for each number of states, with its fit, BIC, validation loss and, if it is chosen, the reason.

    Args:
        searches: Statistics of each fit, such as its BIC, by number of states.
        validation: Validation losses of each HMM, by name.
        evidence_of: Function that returns the evidence (marginal likelihood) for a number of states, or None.
    """
    bics, logs, lengths = _judged(searches, validation)
    support = support_of(bics, evidence_of)
    chosen, reason = choice_reason(bics, logs, lengths, support)
    rows = []
    for size, about in searches.items():
        judged = held_out_mean(logs[size], lengths)
        error = None if math.isnan(judged.error) else judged.error
        row = {"num_states": size, "held_out": judged.mean, "held_out_error": error} | about
        row["share"] = support.shares[size]
        rows.append(row | {"chosen": size == chosen, "reason": reason if size == chosen else None})
    return rows


def searched(one: BaumWelchFit) -> dict[str, Any]:
    about = {"bic": one.bic, "log_likelihood": one.log_likelihood, "restarts": one.num_restarts}
    return about | {"agreed": one.restarts_agree, "iterations": one.num_iterations, "converged": one.converged}


def best_predictor(bics: dict[int, float], logs: dict[int, NDArray[np.float64]], lengths: NDArray[np.int64]) -> int:
    """Return the number of states with the best held-out likelihood, or BIC's if the gain is within its standard error.

    Args:
        bics, logs, lengths: See `hmmscope.inference.num_states.choice_reason`.
    """
    chosen, _ = choice_reason(bics, {}, lengths)
    best = max(logs, key=lambda size: float(logs[size].sum()), default=chosen)
    if best == chosen or not math.isfinite(logs[best].sum()):
        return chosen
    if not math.isfinite(logs[chosen].sum()):
        return best
    gain = held_out_mean(logs[best] - logs[chosen], lengths)
    return best if gain.mean > gain.error else chosen


def opponent(searches: dict[int, dict[str, Any]], validation: dict[str, Curves]) -> int:
    return best_predictor(*_judged(searches, validation))


def _judged(
    searches: dict[int, dict[str, Any]], validation: dict[str, Curves]
) -> tuple[dict[int, float], dict[int, Curves], NDArray[np.int64]]:
    losses = {size: validation[f"HMM-{size}"] for size in searches}
    lengths = np.asarray(np.logical_not(np.isnan(next(iter(losses.values()))))).sum(1)
    logs = {size: -np.nansum(loss, 1) for size, loss in losses.items()}
    return {size: about["bic"] for size, about in searches.items()}, logs, lengths


def positions(losses: dict[str, Curves]) -> Iterator[dict[str, Any]]:
    for name, values in losses.items():
        edges = [edge for edge in EDGES if edge < values.shape[1]] + [values.shape[1]]
        for begin, end in pairwise(edges):
            part = values[:, begin:end]
            reached = np.logical_not(np.isnan(part)).any(1)
            if reached.sum() >= 2:
                value, low, high = per_symbol(part[reached])
                about = {"name": name, "seen": (begin + end - 1) / 2, "value": value, "low": low, "high": high}
                yield about | {"pieces": int(reached.sum())}


def contexts(dataset: ProcessDataset, gain: Curves) -> list[dict[str, Any]]:
    data, num_symbols = dataset.process.data, dataset.num_symbols
    seen = dataset[0 : len(gain)].observations.numpy().astype(np.int64)
    rows = []
    for k in range(1, _CONTEXT + 1):
        if seen.shape[1] <= k or num_symbols**k >= 2**62:
            break
        code = np.zeros((len(seen), seen.shape[1] - k), np.int64)
        for back in range(1, k + 1):
            code += seen[:, k - back : seen.shape[1] - back] * num_symbols ** (back - 1)
        own, after = gain[:, k:], seen[:, k:]
        asked = np.logical_not(np.isnan(own))
        for back in range(1, k + 1):
            asked &= seen[:, k - back : seen.shape[1] - back] >= 0  # no context with a gap
        codes, where, counts = np.unique(code[asked], return_inverse=True, return_counts=True)
        sums = np.bincount(where, own[asked])
        piece = np.nonzero(asked)[0]
        often = np.flatnonzero(counts >= _OFTEN)
        order = often[np.argsort(-np.abs(sums[often]), kind="stable")][:_KEPT]
        for place in order.tolist():
            inside = where == place
            by_piece = np.bincount(piece[inside], own[asked][inside], len(seen)).astype(np.float64)
            number = np.bincount(piece[inside], minlength=len(seen)).astype(np.float64)
            value, low, high = _ratio(by_piece, number)
            symbols = np.bincount(after[asked][inside], own[asked][inside], num_symbols)
            digits = [int(codes[place]) // num_symbols**back % num_symbols for back in range(k - 1, -1, -1)]
            rows.append(
                {
                    "symbols_before": k,
                    "context": data.as_text(digits),
                    "next": data.as_text([int(symbols.argmax() if sums[place] > 0 else symbols.argmin())]),
                    "count": int(counts[place]),
                    "value": value,
                    "low": low,
                    "high": high,
                    "share": float(sums[place] / np.nansum(gain)),
                }
            )
    return rows


def _ratio(top: Curves, bottom: Curves) -> tuple[float, float, float]:
    has = bottom > 0
    if has.sum() < 2:
        value = float(top.sum() / bottom.sum())
        return value, value, value
    return bootstrap_ratio(top[has], bottom[has])
