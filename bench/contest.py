"""Time contenders on one piece of work in turns; report the fastest rounds, ratios, and fractions of limit and peak.

The limit is the rate of torch's matrix product, or of copying the result. If the work consists of matrix products, the
processor's peak (`bench.peak`) is measured in the same rounds.

One thread of a processor is timed by processor time, which other programs disturb far less than wall time; all else is timed
by wall time. A short call is repeated until all repetitions take `LEAST` seconds, because the clock is coarse.
"""

import cProfile
import importlib.util
import math
import pstats
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.peak import burst

#: Shortest timing of a contender in a round, in seconds.
LEAST = 0.05


@dataclass(frozen=True)
class Contender:
    """One implementation of the work.

    Attributes:
        name: Library or routine.
        run: Does the work once.
        amount: Units of work in one call.
        limit: Whether it measures the machine's limit.
    """

    name: str
    run: Callable[[], Any]
    amount: float
    limit: bool = False


@dataclass
class Contest:
    """One piece of work with its contenders, ours first.

    Attributes:
        work: Description.
        unit: Unit of `amount` (tokens, FLOP).
        flops: Operations of matrix products per unit of work; zero without such products.
        dtype: Data type of the products.
        by_clock: Always use wall time, for work in other processes.
    """

    work: str
    unit: str
    flops: float = 0.0
    dtype: torch.dtype = torch.float64
    by_clock: bool = False
    contenders: list[Contender] = field(default_factory=list)

    def add(self, name: str, run: Callable[[], Any], amount: float, *, limit: bool = False) -> None:
        """Add a contender, called once before timing."""
        self.contenders.append(Contender(name, run, amount, limit))

    def rows(self, *, repeats: int, threads: int) -> list[dict]:
        """Return rates of the fastest of `repeats` rounds, in which contenders take turns."""
        torch.set_num_threads(threads)
        on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        found = burst(self.dtype, threads) if self.flops and not on_gpu else None
        contenders = list(self.contenders)
        if found is not None:
            contenders.append(Contender(f"{str(self.dtype)[6:]} peak", found[0], found[1] / self.flops, limit=True))
        for contender in contenders:
            contender.run()
        alone = threads == 1 and not on_gpu and not self.by_clock
        clock = time.process_time if alone else time.perf_counter
        calls = [max(1, math.ceil(LEAST / max(_timed(c, 1, clock), 1e-6))) for c in contenders]
        seconds: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        for _ in range(repeats):
            for contender, number in zip(contenders, calls, strict=True):
                seconds[contender.name].append(_timed(contender, number, clock))
        rates = {c.name: c.amount / min(seconds[c.name]) for c in contenders}
        peak = None if found is None else rates[contenders[-1].name]
        ours = rates[self.contenders[0].name]
        limit = next((rates[c.name] for c in self.contenders if c.limit), None)
        best = max(
            (c for c in self.contenders[1:] if _is_peer(c.name, c.limit)), key=lambda c: rates[c.name], default=None
        )
        reason = ""
        if best is not None and rates[best.name] > ours and not on_gpu:
            reason = where_time_goes(self.contenders[0], calls[0], min(seconds[self.contenders[0].name]))
            reason += f"; {best.name} takes {best.amount / rates[best.name] * 1e3:.3g} ms"
        return [
            {
                "work": self.work,
                "who": c.name,
                "threads": threads,
                "rate": rates[c.name],
                "unit": f"{self.unit}/s",
                "median": c.amount / statistics.median(seconds[c.name]),
                "slowest": c.amount / max(seconds[c.name]),
                "ours_over_this": ours / rates[c.name],
                "share_of_limit": None if limit is None or c.limit else rates[c.name] / limit,
                "share_of_peak": None if peak is None else rates[c.name] / peak,
                "repeats": repeats,
                "timed_by": "processor" if clock is time.process_time else "clock",
                "limit": c.limit,
                "reason": reason if number == 0 else "",
            }
            for number, c in enumerate(contenders)
        ]


def summary(contests: Sequence[tuple[Contest, list[dict]]]) -> list[dict]:
    """Return a line for each piece of work: our rate as such and as fractions of limit and peak, and the fastest peer.

    Rows of our other routines (their names start with "hmmscope") are not peers.
    """
    lines = []
    for _, rows in contests:
        peers = [row for row in rows[1:] if _is_peer(row["who"], row["limit"])]
        best = max(peers, key=lambda row: row["rate"], default=None)
        ratio = None if best is None else best["ours_over_this"]
        lines.append(
            {key: rows[0][key] for key in ("work", "threads", "rate", "unit", "share_of_limit", "share_of_peak")}
            | {"peer": None if best is None else best["who"], "ratio": ratio}
            | {"reason": rows[0].get("reason", "")}
        )
    return lines


def _is_peer(name: str, limit: bool) -> bool:
    return not limit and not name.startswith("hmmscope")


def where_time_goes(contender: Contender, calls: int, seconds: float) -> str:
    """Say how many of the `seconds` of a call are spent in compiled loops, in torch and NumPy, and in Python.

    A profile gives the first two, whose functions it does not slow down; Python is the rest.
    """
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(calls):
        contender.run()
    profile.disable()
    parts, loops = {"compiled loops": 0.0, "torch and NumPy": 0.0}, dict[str, float]()
    for (file, _, name), (_, _, own, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if Path(file).parent.name == "kernels":
            parts["compiled loops"] += own / calls
            loops[name] = loops.get(name, 0.0) + own / calls
        elif file == "~":
            parts["torch and NumPy"] += own / calls
    parts["Python"] = max(0.0, seconds - sum(parts.values()))
    told = ", ".join(f"{own / seconds:.0%} in {part}" for part, own in parts.items())
    longest = "".join(
        f" (longest loop: {name}, {loops[name] * 1e3:.3g} ms)"
        for name in sorted(loops, key=lambda one: loops[one])[-1:]
    )
    return f"of {seconds * 1e3:.3g} ms, {told}{longest}"


def _timed(contender: Contender, calls: int, clock: Callable[[], float]) -> float:
    _finish()
    begun = clock()
    for _ in range(calls):
        contender.run()
    _finish()
    return (clock() - begun) / calls


def _finish() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def noise(*shape: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return random numbers in [-1, 1] for timed products; some chips are faster on zeros or ones."""
    count = torch.arange(1.0, 1 + math.prod(shape), dtype=torch.float64, device=device)
    return (count * count * 0.6180339887498949).sin().to(dtype).view(shape)


def installed(module: str) -> bool:
    """Return whether a peer can be imported."""
    return importlib.util.find_spec(module) is not None
