"""Measure on simulated data how often fits find the number of states, and how often intervals contain the truth.

    python scripts/fit_statistics.py --sets 1000    measure up to 1000 data sets of each kind: first the missing ones, then
                                                    those of an earlier version; it can be stopped and restarted
    python scripts/fit_statistics.py                print the table of the existing ones

A data set is one sequence of 1,000 to 20,000 symbols (uniform in the logarithm) of an HMM of 1 to 5 states and 6 symbols.
States persist with one probability and emit their preferred symbol with another: .9 and .88 ("separated"), or one of .7,
.8, .9 and one of .6, .7 ("weaker"). Or all rows are drawn from uniform distributions ("drawn"), the prior of the
evidence; only for these is a coverage of .95 guaranteed. Each set is fitted by `hs.fit(symbols, [1, ..., 6])`. The first
two kinds are also fitted with the true number of states, to get intervals of entries from the posterior (2 chains of 250
draws); `tests/inference/calibration.py` checks such intervals for drawn models. Rows are in results/fit-statistics/. Rows
without a version come from earlier code for evidence and intervals, so only their BIC and held-out results are used.
"""

import argparse
import json
import lzma
import math
import time
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hmmscope as hs
from hmmscope.inference.chains import effective_sizes, equal_tails, matching
from hmmscope.inference.gibbs import dirichlet_rows
from hmmscope.runs.fitting import FitResult
from hmmscope.storage import seals, store
from hmmscope.system_info import machine_line

KEPT = Path(__file__).resolve().parents[1] / "results" / "fit-statistics" / "fit-statistics.jsonl.xz"
SIZES, NUM_SYMBOLS = range(1, 7), 6
KINDS = ("separated", "weaker", "drawn")
PARTS = ("initial", "transition", "emission")
#: Version of rows with the current evidence and intervals.
VERSION = 3


def planted(num_states: int, stay: float, own: float) -> hs.HMM:
    """Return an HMM with persistent states and one preferred symbol each."""
    transition = np.full((num_states, num_states), (1 - stay) / max(1, num_states - 1))
    np.fill_diagonal(transition, stay if num_states > 1 else 1.0)
    emission = np.full((num_states, NUM_SYMBOLS), (1 - own) / (NUM_SYMBOLS - 1))
    np.fill_diagonal(emission, own)
    return hs.HMM(np.full(num_states, 1 / num_states), transition, emission)


def measured(kind: str, number: int) -> dict[str, Any]:
    """Fit one data set; return planted values, estimates and seconds."""
    random = np.random.default_rng((KINDS.index(kind), number))
    size, length = 1 + number % 5, round(math.exp(random.uniform(math.log(1000), math.log(20_000))))
    row: dict[str, Any] = {"kind": kind, "set": number, "states": size, "length": length}
    if kind == "drawn":
        shapes = (size,), (size, size), (size, NUM_SYMBOLS)
        truth = hs.HMM(*(dirichlet_rows(np.ones(shape), random) for shape in shapes), allow_drop_tiny=True)
    else:
        stay, own = (0.9, 0.88)
        if kind == "weaker":
            stay, own = float(random.choice([0.7, 0.8, 0.9])), float(random.choice([0.6, 0.7]))
        truth = planted(size, stay, own)
        row |= {"stay": stay, "own": own}
    symbols = hs.ProcessDataset(truth, length=length, seed=number)[0:1].observations
    begun = time.process_time()
    fit = hs.fit(symbols.tolist(), list(SIZES), symbols=NUM_SYMBOLS)
    row["fit_seconds"] = round(time.process_time() - begun, 3)
    best = max(fit.held_out, key=lambda one: fit.held_out[one])
    near = [one for one, mean in fit.held_out.items() if mean >= fit.held_out[best] - fit.held_out_errors[best]]
    row |= {"bic": fit.hmm.num_states, "largest_held_out": best, "one_error": min(near), "interval": list(fit.interval)}
    row["shares"] = [round(share, 4) for share in fit.support.shares.values()] if fit.support else []
    if fit.support:
        row["errors"] = [round(error, 2) for error in fit.support.errors.values()]
    row["version"] = VERSION
    return row if kind == "drawn" else row | entries(truth, symbols, fit)


def entries(truth: hs.HMM, symbols: torch.Tensor, chosen: FitResult) -> dict[str, Any]:
    """Count entries of each array inside their intervals, after matching states by their emissions."""
    same = chosen.hmm.num_states == truth.num_states
    fit = chosen if same else hs.fit(symbols.tolist(), truth.num_states, symbols=NUM_SYMBOLS)
    begun = time.process_time()
    posterior = fit.posterior(250, num_chains=2, warm_up=125, max_lengthening=1)
    seconds = round(time.process_time() - begun, 3)
    own = matching((fit.hmm.emission @ truth.emission.T).numpy())
    planted_arrays = truth.file_tensors()
    found: dict[str, Any] = {"posterior_seconds": seconds}
    for name in PARTS:
        drawn = posterior.arrays[name][:, :, own].numpy()
        drawn = drawn[..., own] if name == "transition" else drawn
        low, high = equal_tails(drawn, np.fmin(*effective_sizes(drawn)))
        held = (low <= planted_arrays[name].numpy()) & (planted_arrays[name].numpy() <= high)
        sure = truth.num_states == 1 and name != "emission"
        found[name] = [0, 0] if sure else [int(held.sum()), held.size]
    return found


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Yield lines with fractions of correct numbers of states, of intervals with the true number, and of covered entries."""
    lines = [
        "| | sets | BIC right | one-error rule right | largest held-out right | sets | interval holds | its width | "
    ]
    lines[0] += " | ".join(PARTS) + " | seconds: fit, posterior |"
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    groups = [(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS]
    groups += [
        (f"{kind}, {least:,} to {most:,}", [row for row in own if least <= row["length"] < most])
        for kind, own in groups
        for least, most in ((1000, 3000), (3000, 20_001))
    ]
    for name, own in groups:
        now = [row for row in own if row.get("version") == VERSION]
        right = [_share(row[rule] == row["states"] for row in own) for rule in ("bic", "one_error", "largest_held_out")]
        said = [name, str(len(own)), *right, str(len(now))]
        said.append(_share(row["interval"][0] <= row["states"] <= row["interval"][1] for row in now))
        said.append(_mean([row["interval"][1] - row["interval"][0] + 1 for row in now]))
        for part in PARTS:
            asked = [row for row in now if part in row]
            held, total = (sum(row[part][place] for row in asked) for place in (0, 1))
            said.append(f"{held / total:.3f} ± {_error(asked, part):.3f} of {total:,}" if total else "")
        seconds = [
            _mean([row[f"{what}_seconds"] for row in now if f"{what}_seconds" in row]) for what in ("fit", "posterior")
        ]
        lines.append(f"| {' | '.join([*said, ', '.join(seconds)])} |")
    return lines


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else ""


def _share(right: Iterable[bool]) -> str:
    """Format a fraction with its 95 % interval (Wilson)."""
    found = list(right)
    if not found:
        return ""
    share, count, z = sum(found) / len(found), len(found), 1.96
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return f"{share:.3f} [{centre - half:.3f}, {min(1.0, centre + half):.3f}]"


def _error(rows: Sequence[dict[str, Any]], part: str) -> float:
    counts = np.array([row[part] for row in rows if row[part][1]], np.float64).reshape(-1, 2)
    if len(counts) < 2:
        return math.nan
    away = counts[:, 0] - counts[:, 0].sum() / counts[:, 1].sum() * counts[:, 1]
    return float(math.sqrt(len(away) / (len(away) - 1) * (away @ away)) / counts[:, 1].sum())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read compressed rows, one per line; none if the file is missing."""
    return [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()] if path.exists() else []


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write all rows, replacing the file."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    store.write_bytes(path, lzma.compress(text.encode(), preset=3))
    seals.cover(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=0, metavar="N", help="number of data sets of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="NAMES", help="kinds of data sets to measure")
    parser.add_argument("--out", type=Path, default=KEPT, metavar="FILE")
    options = parser.parse_args()
    kept = read_rows(options.out)
    kinds = options.kinds.split(",")
    wanted = [(kind, number) for number in range(options.sets) for kind in kinds]
    for again in (False, True):
        have = {(row["kind"], row["set"]) for row in kept if not again or row.get("version") == VERSION}
        for kind, number in wanted:
            if (kind, number) in have:
                continue
            row = measured(kind, number) | {"date": date.today().isoformat(), "machine": machine_line()}
            kept = [one for one in kept if (one["kind"], one["set"]) != (kind, number)] + [row]
            write_rows(options.out, kept)
    print("\n".join(table(kept)))


if __name__ == "__main__":
    main()
