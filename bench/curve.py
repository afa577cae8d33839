"""Measure the cost of filtering and sampling against batch, length, states and symbols: medians and fitted exponents.

    seconds ~ constant * size^exponent        expected: 1 in tokens, 2 in states for filters, 0 in symbols

The exponent is the least-squares slope of the logarithms, over sizes with a working set that fits the last cache; a filter's
cost in states is fitted where it uses matrix products. Fixed costs dominate small sizes, so an exponent below the expected
one is fine, and one above it is an error.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.inference.fast import log_likelihood
from hmmscope.inference.loop_inputs import FEW_STATES
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.processes.require_type import require_process_type

BASE = {"batch": 512, "length": 64, "states": 64, "symbols": 16}
AXES = {
    "length": [16, 32, 64, 128, 256, 512, 1024, 2048],
    "batch": [64, 128, 256, 512, 1024, 2048, 4096, 8192],
    "states": [4, 8, 16, 32, 64, 128, 256, 512],
    "symbols": [2, 8, 32, 128, 512],
}
WORK = ("filtering, float32", "filtering, float64", "sampling")
EXPECTED = {"filtering": {"length": 1, "batch": 1, "states": 2, "symbols": 0}}
EXPECTED["sampling"] = EXPECTED["filtering"] | {"states": 0}

#: Shortest round, in seconds; calls are repeated.
SHORTEST = 0.01


@dataclass(frozen=True)
class Point:
    """One measurement.

    Attributes:
        work: One of `WORK`.
        axis: Varied size.
        sizes: All sizes.
        working_set: Bytes that every step reads or writes.
        run: Does the work once.
    """

    work: str
    axis: str
    sizes: dict[str, int]
    working_set: int
    run: Callable[[], Any]

    @property
    def tokens(self) -> int:
        return self.sizes["batch"] * self.sizes["length"]


def points(axes: dict[str, list[int]] | None = None, base: dict[str, int] | None = None) -> Iterator[Point]:
    """Return all measurements: each axis with the other sizes at `base`."""
    base = base or BASE
    for axis, values in (axes or AXES).items():
        for value in values:
            sizes = base | {axis: value}
            hmm = require_process_type(
                make_process("random-hmm", num_states=sizes["states"], num_symbols=sizes["symbols"]), HMM
            )
            for work in WORK:
                yield Point(work, axis, sizes, _working_set(work, sizes), _work(work, hmm, sizes))


def _working_set(work: str, sizes: dict[str, int]) -> int:
    batch, states, symbols = sizes["batch"], sizes["states"], sizes["symbols"]
    matrices = states * (states + symbols)
    if work == "sampling":
        return 4 * states * sum(2 ** math.ceil(math.log2(max(2, outcomes))) for outcomes in (states, symbols))
    return (4 if work.endswith("32") else 8) * (matrices + 2 * batch * states)


def _work(work: str, hmm: HMM, sizes: dict[str, int]) -> Callable[[], Any]:
    if work == "sampling":
        indices, starts = np.arange(sizes["batch"]), np.arange(sizes["length"]) == 0
        return lambda: hmm.sample_paths(indices, starts, 0)
    dtype = torch.float32 if work.endswith("32") else torch.float64
    observations = ProcessDataset(hmm, length=sizes["length"])[0 : sizes["batch"]].observations
    return lambda: log_likelihood(hmm, observations, dtype=dtype)


def measure(found: list[Point], *, repeats: int, threads: int) -> list[dict]:
    """Return a row for each point: the median over rounds that run every point once."""
    torch.set_num_threads(threads)
    calls = [_calls(point.run) for point in found]
    seconds: list[list[float]] = [[] for _ in found]
    for _ in range(repeats):
        for point, count, own in zip(found, calls, seconds, strict=True):
            begun = time.perf_counter()
            for _ in range(count):
                point.run()
            own.append((time.perf_counter() - begun) / count)
    return [
        {
            "work": point.work,
            "axis": point.axis,
            **point.sizes,
            "threads": threads,
            "seconds": statistics.median(own),
            "fastest": min(own),
            "slowest": max(own),
            "nanoseconds_per_token": statistics.median(own) / point.tokens * 1e9,
            "nanoseconds_per_token_per_square": statistics.median(own)
            / point.tokens
            / point.sizes["states"] ** 2
            * 1e9,
            "working_set": point.working_set,
            "repeats": repeats,
        }
        for point, own in zip(found, seconds, strict=True)
    ]


def _calls(run: Callable[[], Any]) -> int:
    """Return the calls per round; the first call, which may compile, is not timed."""
    run()
    begun = time.perf_counter()
    run()
    return max(1, math.ceil(SHORTEST / max(time.perf_counter() - begun, 1e-6)))


def exponents(rows: list[dict], last_cache: int | None) -> list[dict]:
    """Return the fitted exponent of each work and axis, over sizes with a working set that fits `last_cache` bytes."""
    found = []
    for work in dict.fromkeys(row["work"] for row in rows):
        for axis in dict.fromkeys(row["axis"] for row in rows):
            curve = [row for row in rows if (row["work"], row["axis"]) == (work, axis)]
            kept = [row for row in curve if last_cache is None or row["working_set"] <= last_cache]
            if axis == "states" and work != "sampling":
                kept = [row for row in kept if row[axis] > FEW_STATES]
            if len(kept) < 2:
                continue
            x = np.log([row[axis] for row in kept])
            y = np.log([row["seconds"] for row in kept])
            slope = float((x - x.mean()) @ (y - y.mean()) / ((x - x.mean()) @ (x - x.mean())))
            residual = float(np.abs(y - y.mean() - slope * (x - x.mean())).max())
            steps = (np.diff(y) / np.diff(x)).tolist()
            found.append(
                {
                    "work": work,
                    "axis": axis,
                    "exponent": slope,
                    "expected": EXPECTED[work.partition(",")[0]][axis],
                    "first": kept[0][axis],
                    "last": kept[-1][axis],
                    "residual": residual,
                    "steps": steps,
                }
            )
    return found


def last_cache() -> int | None:
    """Return the bytes of the processor's largest cache; None if unknown."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text().strip()
            sizes.append(int(text[:-1]) * units[text[-1]])
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return max(sizes, default=None)


def in_words(rows: list[dict], fits: list[dict]) -> list[str]:
    lines = []
    for work, axis in dict.fromkeys((row["work"], row["axis"]) for row in rows):
        lines += [f"\n{work}, by {axis}, threads {rows[0]['threads']}"]
        lines += [f"  {axis:>8} {'ms':>10} {'ns/token':>10} {'ns/token/states^2':>18} {'working set':>12}"]
        for row in rows:
            if (row["work"], row["axis"]) == (work, axis):
                lines.append(
                    f"  {row[axis]:>8} {1e3 * row['seconds']:10.3f} {row['nanoseconds_per_token']:10.2f} "
                    f"{row['nanoseconds_per_token_per_square']:18.5f} {row['working_set'] / 1024:8.0f} KiB"
                )
        for fit in fits:
            if (fit["work"], fit["axis"]) == (work, axis):
                steps = ", ".join(f"{step:.2f}" for step in fit["steps"])
                lines.append(
                    f"  exponent {fit['exponent']:.2f} (expected {fit['expected']}) from {fit['first']} to {fit['last']}; "
                    f"from size to size {steps}"
                )
    return lines
