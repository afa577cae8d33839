"""Measure the bias of the log evidence and the coverage of its stated error, on small problems with a known answer.

    python scripts/check_evidence.py --repetitions 100 --out quality/evidence_checks.json

The answer is a sum over all paths of the states, or the mean of 16 longer estimates: 1024 particles per run, or twice the
chains and steps where Markov chains give the estimate. Each row has the mean error in nats with its standard
error (including that of the answer), the share of repetitions with an error within the stated one (half of a 95 %
interval), and processor seconds per repetition.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from datetime import date
from itertools import product
from math import lgamma
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

import hmmscope as hs
from hmmscope.emissions.vector_evidence import vector_evidence
from hmmscope.inference import evidence as module
from hmmscope.inference.evidence import Evidence, evidence
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.system_info import machine_line

#: Settings of a long estimate, and the number of these estimates.
LONG = {"MOST_PARTICLES": 1024, "WORK": 2**60, "DENSITIES": 512, "CHAINS": 64, "STEPS": 40}
ESTIMATES = 16


class Problem(NamedTuple):
    """A problem with its name, the estimate as a function of a seed, and the exact answer if paths can be enumerated."""

    name: str
    estimate: Callable[[int], Evidence | None]
    exact: float | None


def problems() -> Iterator[Problem]:
    random = np.random.default_rng(0)
    for size, length in ((2, 14), (3, 9)):
        symbols = random.integers(0, 3, length)
        yield symbolic(f"{length} symbols, {size} states", symbols, size, 3, by_paths(symbols, size, 3))
    for stay, own, length, states, sizes in (
        (0.9, 0.88, 1000, 2, (2, 3)),
        (0.9, 0.88, 2000, 3, (3,)),
    ):
        symbols = drawn(stay, own, states, length)
        for size in sizes:
            yield symbolic(f"{length} symbols of {states} states, {size} states", symbols, size, 6)
    for emission, size in (("gaussian", 2), ("gaussian", 3), ("poisson", 2)):
        states = drawn(0.9, 1.0, 2, 400)
        values = random.poisson(2.0 + 6 * states) if emission == "poisson" else random.normal(3.0 * states, 1.0)
        yield numeric(f"400 numbers of 2 states, {emission}, {size} states", values.astype(float), size, emission)


def drawn(stay: float, own: float, size: int, length: int) -> np.ndarray:
    """Return symbols of an HMM with persistent states that each prefer one of six symbols."""
    hmm = hs.HMM(
        np.full(size, 1 / size),
        np.full((size, size), (1 - stay) / (size - 1)) + (stay - (1 - stay) / (size - 1)) * np.eye(size),
        np.full((size, 6), (1 - own) / 5) + (own - (1 - own) / 5) * np.eye(size, 6),
    )
    return hs.ProcessDataset(hmm, length=length)[0:1].observations[0].numpy()


def symbolic(name: str, symbols: np.ndarray, size: int, num_symbols: int, exact: float | None = None) -> Problem:
    work = flat_sequences(symbols, np.array([len(symbols)]))
    hmm = hs.fit([symbols.tolist()], size, symbols=num_symbols).hmm
    return Problem(name, lambda seed: evidence(work, hmm, 1, seed, most=10**9), exact)


def numeric(name: str, values: np.ndarray, size: int, emission: str) -> Problem:
    rows = torch.from_numpy(values)[:, None]
    hmm = hs.fit(values[:, None], size, emission=emission).hmm
    laws = type(hmm).conjugate(rows, **hmm.options)
    lengths = torch.tensor([len(values)])
    return Problem(name, lambda seed: vector_evidence(hmm, rows, lengths, laws, 1, seed, most=10**9), None)


def by_paths(symbols: np.ndarray, size: int, num_symbols: int) -> float:
    """Return log P(symbols), where P sums products of Dirichlet-multinomials of a path's counts over all paths."""
    total = []
    for path in product(range(size), repeat=len(symbols)):
        first, moves, seen = np.zeros((1, size)), np.zeros((size, size)), np.zeros((size, num_symbols))
        first[0, path[0]] = 1
        np.add.at(moves, (path[:-1], path[1:]), 1)
        np.add.at(seen, (path, symbols), 1)
        total.append(sum(map(dirichlet_multinomial, (*first, *moves, *seen))))
    return float(np.logaddexp.reduce(total))


def dirichlet_multinomial(counts: np.ndarray) -> float:
    return lgamma(len(counts)) + sum(map(lgamma, counts + 1)) - lgamma(counts.sum() + len(counts))


def measured(problem: Problem, repetitions: int) -> dict[str, Any]:
    """Return bias, coverage and seconds of one problem."""
    begun = time.process_time()
    found = [problem.estimate(seed) for seed in range(repetitions)]
    seconds = (time.process_time() - begun) / repetitions
    reference, uncertain = problem.exact, 0.0
    if reference is None:
        with mock.patch.multiple(module, **LONG):
            logs = np.array([problem.estimate(10**6 + number).log for number in range(ESTIMATES)])
        reference, uncertain = float(logs.mean()), float(logs.std(ddof=1) / ESTIMATES**0.5)
    away = np.array([one.log - reference for one in found])
    held = np.abs(away) <= np.array([one.error for one in found])
    return {
        "bias": round(float(away.mean()), 4),
        "bias_error": round(float((away.var(ddof=1) / len(away) + uncertain**2) ** 0.5), 4),
        "spread": round(float(away.std(ddof=1)), 4),
        "stated": round(float(np.median([one.error for one in found])), 4),
        "held": round(float(held.mean()), 4),
        "reference": "sum over all paths"
        if problem.exact is not None
        else f"{ESTIMATES} long estimates, standard error {uncertain:.4f}",
        "seconds": round(seconds, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=100, metavar="N")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="measure only problems with TEXT in their name, and keep the file's others",
    )
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = options.out is not None and options.only and options.out.exists()
    rows = json.loads(options.out.read_text())["problems"] if kept else {}
    for problem in problems():
        if options.only in problem.name:
            rows[problem.name] = measured(problem, options.repetitions)
            print(problem.name, rows[problem.name], flush=True)
            if options.out:
                about = {
                    "repetitions": options.repetitions,
                    "date": date.today().isoformat(),
                    "machine": machine_line(),
                }
                options.out.write_text(json.dumps(about | {"problems": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
