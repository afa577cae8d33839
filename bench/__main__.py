"""Speed compared with peers and the machine's limit: ``python -m bench [WORK] --peers``, in the root of a checkout."""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import (
    answers,
    curve,
    engine,
    estimators,
    exact,
    filtering,
    mixture,
    probes,
    roads,
    sampling,
    training,
    workers,
)
from bench.contest import Contest, summary
from hmmscope.errors import InputError, ResourceError
from hmmscope.lab.cli import answered
from hmmscope.lab.verbs.output_paths import new_file
from hmmscope.schema import unknown_name
from hmmscope.storage import seals, store
from hmmscope.system_info import machine
from hmmscope.text import say

#: Modules measured by `all`.
WORKS = (
    "sampling",
    "filtering",
    "exact",
    "answers",
    "estimators",
    "mixture",
    "probes",
    "training",
    "engine",
    "workers",
    "roads",
)
#: Modules measured by `people`, at common shapes; `scripts/draw_speed.py` shows the resulting file on a page.
PEOPLE = ("filtering", "exact", "answers", "estimators", "mixture", "training", "engine", "workers")
_ON_PROCESSORS = ("exact", "answers", "estimators", "probes", "engine", "workers", "roads")


def bench(
    work: str,
    peers: bool,
    threads: list[int],
    repeats: int,
    out: str | None,
    device: str = "cpu",
    precision: str = "float32",
    compile: bool = False,
    shapes: list[str] | None = None,
) -> None:
    """Measure, print a table, and write it on request."""
    for field, value, known in (
        ("work", work, (*WORKS, "curve", "people", "all")),
        ("precision", precision, ("float32", "bfloat16")),
        ("device", device, ("cpu", "cuda")),
        *(("shapes", shape, training.SHAPES) for shape in shapes or ()),
    ):
        if value not in known:
            raise unknown_name(field, value, known)
    if shapes and work != "training":
        raise InputError(f"shapes: bench {work} has no shapes to choose; training has")
    if repeats < 1 or min(threads) < 1:
        raise InputError(f"repeats: and threads must be at least 1, got {repeats} and {threads}")
    if work == "curve" and (device != "cpu" or peers):
        raise InputError("work: curve measures our own routines on the processor, without --peers or --device")
    if out is not None:
        new_file(out, (".json",))
    if device == "cuda" and not torch.cuda.is_available():
        raise ResourceError("device: cuda was requested but no CUDA device is present; use cpu")
    facts = machine()
    say(", ".join(f"{key} {value}" for key, value in facts.items() if value is not None))
    if work == "curve":
        found = _curve(threads, repeats)
    else:
        trained = partial(training.contests, precision=precision, compiled=compile, shapes=tuple(shapes or ()))
        makers: tuple[Callable[..., list[Contest]], ...] = (
            sampling.contests,
            filtering.contests,
            exact.contests,
            answers.contests,
            estimators.contests,
            mixture.contests,
            probes.contests,
            trained,
            engine.contests,
            workers.contests,
            roads.contests,
        )
        every = [name for name in WORKS if device == "cpu" or name not in _ON_PROCESSORS]
        asked = {"all": every, "people": [name for name in PEOPLE if name in every]}.get(work, [work])
        chosen = [make for name, make in zip(WORKS, makers, strict=True) if name in asked]
        contests = (contest for make in chosen for contest in make(peers=peers, device=device))
        measured = [(contest, _rows(contest, repeats, count)) for contest in contests for count in threads]
        lines = summary(measured)
        _print_summary(lines)
        found = {"rows": [row for _, rows in measured for row in rows], "summary": lines}
    if out is not None:
        store.write_json(Path(out), {"machine": facts, **found})
        seals.cover(Path(out))


def _curve(threads: list[int], repeats: int) -> dict[str, Any]:
    points, cache = list(curve.points()), curve.last_cache()
    rows: list[dict] = []
    fits: list[dict] = []
    for count in threads:
        measured = curve.measure(points, repeats=repeats, threads=count)
        fitted = curve.exponents(measured, cache)
        say("\n".join(curve.in_words(measured, fitted)))
        rows, fits = rows + measured, fits + [{"threads": count} | fit for fit in fitted]
    return {"last_cache": cache, "rows": rows, "exponents": fits}


def _rows(contest: Contest, repeats: int, threads: int) -> list[dict]:
    found = contest.rows(repeats=repeats, threads=threads)
    say(f"\n{contest.work}, threads {threads}")
    for row in found:
        shares = ", ".join(
            f"{100 * row[f'share_of_{name}']:.0f} % of the {name}"
            for name in ("limit", "peak")
            if row[f"share_of_{name}"] is not None
        )
        ratio = f"x {row['ours_over_this']:.3g}"
        say(f"  {row['who']:<30} {row['rate'] / 1e6:12.4g} M{row['unit']:<12} ours {ratio:<10}  {shares}")
    return found


def _print_summary(lines: list[dict]) -> None:
    """Print one Markdown table of everything, with reasons where a peer is faster."""
    say(
        "\n| work | M/s | share of the limit | share of peak | fastest peer | our rate divided by it | |\n"
        "|---|---|---|---|---|---|---|"
    )
    for line in lines:
        limit, peak = (
            "" if line[key] is None else f"{100 * line[key]:.0f} %" for key in ("share_of_limit", "share_of_peak")
        )
        ratio = "" if line["ratio"] is None else f"{line['ratio']:.3g}"
        behind = f"behind: {line['reason'] or 'unexplained'}" if line["ratio"] is not None and line["ratio"] < 1 else ""
        threads = "" if line["threads"] == 1 else f", {line['threads']} threads"
        say(
            f"| {line['work']}{threads} | {line['rate'] / 1e6:.3g} {line['unit']} | {limit} | {peak} "
            f"| {line['peer'] or ''} "
            f"| {ratio} | {behind} |"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="measure our speed, installed peers and the machine's limit in one run"
    )
    parser.add_argument(
        "work",
        nargs="?",
        default="all",
        help=f"{', '.join(WORKS)}; people (common shapes); curve (cost against size) (default: all)",
    )
    parser.add_argument("--peers", action="store_true", help="also measure hmmlearn, dynamax, pomegranate, plain loops")
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1], metavar="N", help="numbers of threads to measure with"
    )
    parser.add_argument("--device", default="cpu", help="device: cpu or cuda")
    parser.add_argument("--precision", default="float32", help="training only: float32 or bfloat16")
    parser.add_argument(
        "--compile", action="store_true", help="training only: also measure our step with torch.compile"
    )
    parser.add_argument("--shapes", nargs="+", metavar="NAME", help="training only: names of the shapes to measure")
    parser.add_argument(
        "--repeats", type=int, default=5, help="number of rounds; the fastest is reported, for curves the median"
    )
    parser.add_argument("--out", metavar="FILE", help="write the table as .json, with date and machine")
    options = vars(parser.parse_args(argv))

    def measure() -> int:
        bench(**options)
        return 0

    return answered(measure)


if __name__ == "__main__":
    sys.exit(main())
