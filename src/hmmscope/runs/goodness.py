"""Goodness of fit: compare statistics of the data with simulations of a fitted model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.reprs import Tabular, html_rows
from hmmscope.schema import require_count
from hmmscope.sequences.gaps import MISSING

Array = NDArray[np.float64]
#: Values of a family of statistics by place: the length of a run, an n-gram, or a lag.
Shares = dict[tuple[int, ...], float]
Family = tuple[str, Callable[[Sequence[torch.Tensor]], Shares]]

#: Numbers of run lengths (the last one includes all longer runs), of lags, and of the most frequent n-grams.
RUNS, LAGS, GRAMS = 12, 16, 16
#: Number of quantile bins that numbers are put into before their runs and n-grams are counted.
BINS = 3
#: Prefix of the names of n-gram families.
GRAM = "n-grams of "


@dataclass(frozen=True, repr=False)
class Goodness(Tabular):
    """Statistics of the data, and 95 % bands of the same statistics over simulated data sets.

    The families of statistics are "runs" (of equal symbols; fraction of each length), "n-grams of 2", "n-grams of 3"
    (fractions of the most frequent n-grams) and "autocorrelation" (for symbols, the fraction of equal pairs at a lag).
    Each coordinate of vectors has its own statistics, with runs and n-grams of terciles.

    A family's p-value is the fraction of data sets, simulated and real, whose largest |standardized statistic| reaches
    that of the real data. `adjusted` is p times the number of families (Bonferroni).

    Source: Gelman, Meng and Stern (1996), posterior predictive checks; Davison and Hinkley (1997), section 4.2.

    Attributes:
        rows: Each statistic: `family`, `place` (such as an n-gram), `value`; `mean`, `low`, `high` over simulations.
        p_values: p-value of each family.
        num_simulations: Number of simulated data sets.
        drawn: True if posterior draws were simulated, False for the fitted model.
    """

    rows: tuple[dict[str, Any], ...]
    p_values: dict[str, float]
    num_simulations: int
    drawn: bool

    def table(self) -> list[dict[str, Any]]:
        return list(self.rows)

    @property
    def adjusted(self) -> dict[str, float]:
        return {family: min(1.0, len(self.p_values) * p) for family, p in self.p_values.items()}

    def lines(self) -> list[str]:
        of = "draws from the posterior" if self.drawn else "the fitted model"
        found = [f"goodness of fit against {self.num_simulations} simulations of {of}:"]
        for family, p in self.p_values.items():
            own = [row for row in self.rows if row["family"] == family]
            outside = [row["place"] for row in own if not row["low"] <= row["value"] <= row["high"]]
            where = f"; outside the band at {', '.join(outside[:6])}" + ", ..." * (len(outside) > 6) if outside else ""
            adjusted = f"adjusted {self.adjusted[family]:.3f} for {len(self.p_values)} families"
            found.append(f"  {family:<16} p {p:.3f}, {adjusted}{where}")
        return found

    def plot(self) -> Any:
        from matplotlib.figure import Figure

        families = list(self.p_values)
        figure = Figure(figsize=(3.6 * len(families), 3.0), layout="constrained")
        for axes, family in zip(figure.subplots(1, len(families), squeeze=False)[0], families, strict=True):
            own = [row for row in self.rows if row["family"] == family]
            x = np.arange(len(own))
            axes.fill_between(x, [row["low"] for row in own], [row["high"] for row in own], alpha=0.3, linewidth=0)
            axes.plot(x, [row["mean"] for row in own], linewidth=1)
            axes.plot(x, [row["value"] for row in own], "k.")
            axes.set_xticks(x, [row["place"] for row in own], rotation=90, fontsize="x-small")
            axes.set_title(f"{family}, p {self.adjusted[family]:.2g}", fontsize="small")
        return figure

    def __repr__(self) -> str:
        each = ", ".join(f"{family} {p:.3f}" for family, p in self.adjusted.items())
        return f"Goodness({self.num_simulations} simulations; adjusted p: {each})"

    def _repr_html_(self) -> str:
        return html_rows(repr(self), self.rows)


def goodness_of_fit(
    models: Sequence[Any], sequences: Sequence[torch.Tensor], num_simulations: int = 200, seed: int = 0
) -> Goodness:
    """Compare statistics of sequences with those of simulated sequences of equal lengths.

    Args:
        models: Models that are simulated in turn: the fitted model alone, or posterior draws.
        sequences: Symbols (time,) or numbers (time, coordinate).
        num_simulations, seed: Number of simulated data sets, at least 20, and their seed.

    Raises:
        InputError: Fewer than 20 simulations.
    """
    require_count("num_simulations", num_simulations, 20, most=2**20)
    gaps, longest = [_missing(one) for one in sequences], max(map(len, sequences))
    families = _families(sequences)
    counted = [[count(sequences)] for _, count in families]
    for number in range(num_simulations):
        model, begin = models[number % len(models)], number * len(sequences)
        dataset = ProcessDataset(model, length=max(2, longest), seed=seed, stream="test")
        drawn = dataset[begin : begin + len(sequences)].observations
        alike = [_without(row[: len(gap)], gap) for row, gap in zip(drawn, gaps, strict=True)]
        for own, (_, count) in zip(counted, families, strict=True):
            own.append(count(alike))
    rows: list[dict[str, Any]] = []
    p_values = {}
    for (name, _), shares in zip(families, counted, strict=True):
        places = _most(shares) if name.startswith(GRAM) else sorted(shares[0])
        if not places:  # sequences too short for n-grams
            continue
        table = np.array([[one.get(place, 0.0) for place in places] for one in shares])
        low, high = np.quantile(table[1:], (0.025, 0.975), axis=0).tolist()
        p_values[name] = _p_value(table)
        for k, place in enumerate(places):
            about = {"family": name, "place": _called(place), "value": float(table[0, k])}
            rows.append(about | {"mean": float(table[1:, k].mean()), "low": low[k], "high": high[k]})
    return Goodness(tuple(rows), p_values, num_simulations, len(models) > 1)


def _most(shares: Sequence[Shares]) -> list[tuple[int, ...]]:
    most: dict[tuple[int, ...], float] = {}
    for one in shares:
        for gram, share in one.items():
            most[gram] = max(share, most.get(gram, 0.0))
    return sorted(most, key=lambda gram: (-most[gram], gram))[:GRAMS]


def _called(place: tuple[int, ...]) -> str:
    return f"{RUNS}+" if place == (RUNS, 0) else " ".join(map(str, place))


def _p_value(table: Array) -> float:
    spread = table.std(0)
    away = np.abs(table - table.mean(0))[:, spread > 0] / spread[spread > 0]
    largest = away.max(1, initial=0.0)
    return float((largest >= largest[0]).mean())


def _families(sequences: Sequence[torch.Tensor]) -> list[Family]:
    if sequences[0].ndim == 1:
        return [*_of_symbols(lambda one: one, ""), ("autocorrelation", _equal)]
    found: list[Family] = []
    for y in range(sequences[0].shape[1]):
        values = torch.cat([one[:, y] for one in sequences])
        edges = torch.quantile(values[~values.isnan()], torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1])
        suffix = f" {y}" if sequences[0].shape[1] > 1 else ""
        found += _of_symbols(partial(_binned, y=y, edges=edges), suffix)
        found.append((f"autocorrelation{suffix}", partial(_correlations, y=y)))
    return found


def _of_symbols(read: Callable[[torch.Tensor], torch.Tensor], suffix: str) -> list[Family]:
    found: list[Family] = [(f"runs{suffix}", lambda given: _runs([read(one) for one in given]))]
    for n, name in ((2, f"{GRAM}2"), (3, f"{GRAM}3")):
        found.append((f"{name}{suffix}", partial(_grams, read=read, n=n)))
    return found


def _missing(one: torch.Tensor) -> torch.Tensor:
    return one.isnan() if one.is_floating_point() else one == MISSING


def _without(one: torch.Tensor, gap: torch.Tensor) -> torch.Tensor:
    return one.masked_fill(gap, torch.nan if one.is_floating_point() else MISSING)


def _binned(one: torch.Tensor, y: int, edges: torch.Tensor) -> torch.Tensor:
    found = torch.searchsorted(edges, one[:, y].contiguous(), right=True)
    return found.masked_fill(one[:, y].isnan(), MISSING)


def _apart(sequences: Sequence[torch.Tensor], gap: int) -> NDArray[np.int64]:
    between = torch.full((gap,), MISSING)
    return torch.cat([part for one in sequences for part in (one, between)]).numpy()


def _runs(sequences: Sequence[torch.Tensor]) -> Shares:
    symbols = _apart(sequences, 1)
    ends = np.flatnonzero(np.concatenate([symbols[1:] != symbols[:-1], [True]]))
    lengths = np.diff(ends, prepend=-1)[symbols[ends] != MISSING]
    counts = np.bincount(np.minimum(lengths, RUNS) - 1, minlength=RUNS)
    shares = (counts / max(1, int(counts.sum()))).tolist()
    return {(k + 1, 0) if k + 1 == RUNS else (k + 1,): share for k, share in enumerate(shares)}


def _grams(sequences: Sequence[torch.Tensor], read: Callable[[torch.Tensor], torch.Tensor], n: int) -> Shares:
    symbols = _apart([read(one) for one in sequences], n)
    every = np.lib.stride_tricks.sliding_window_view(symbols, n)
    weights = (1 + max(0, int(symbols.max()))) ** np.arange(n)[::-1]  # a code for each n-gram, in order
    codes, counts = np.unique((every @ weights)[(every != MISSING).all(1)], return_counts=True)
    grams, total = codes[:, None] // weights % weights[-2], max(1, int(counts.sum()))
    return {tuple(gram): count / total for gram, count in zip(grams.tolist(), counts.tolist(), strict=True)}


def _equal(sequences: Sequence[torch.Tensor]) -> Shares:
    symbols = _apart(sequences, LAGS)
    known, found = symbols != MISSING, Shares()
    for lag in range(1, LAGS + 1):
        both = known[:-lag] & known[lag:]
        equal = int(np.count_nonzero(both & (symbols[:-lag] == symbols[lag:])))
        found[lag,] = equal / max(1, int(np.count_nonzero(both)))
    return found


def _correlations(sequences: Sequence[torch.Tensor], y: int) -> Shares:
    parts = [one[:, y] for one in sequences]
    every = torch.cat(parts)
    centre, variance = float(every.nanmean()), float((every - every.nanmean()).square().nanmean())
    found: Shares = {}
    for lag in range(1, LAGS + 1):
        products = [(one[:-lag] - centre) * (one[lag:] - centre) for one in parts if len(one) > lag]
        mean = float(torch.cat(products).nanmean()) if products else 0.0
        found[lag,] = mean / variance if variance > 0 and not np.isnan(mean) else 0.0
    return found
