"""Measure the memory of a fit besides its data: ``python -m bench.memory 1e7 1e8 1e9``, in the root of a checkout.

For each number of tokens, a file with one byte per token is written and fitted in a new process, as one sequence and as
sequences of 1000. Prints the peak of memory (without file pages) minus the memory before the fit.
"""

import argparse
import multiprocessing
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from hmmscope import FitOptions
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.processes.require_type import require_process_type
from hmmscope.runs.fitting import fit
from hmmscope.text import say

#: Symbols per sequence, and sequences drawn at once.
LENGTH, TOGETHER = 1000, 10**4


def anonymous() -> int:
    """Return this process's resident bytes that belong to no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def draw(path: Path, tokens: int) -> None:
    """Write a file (sequence, time) of symbols of a random HMM of 4 states, one byte each."""
    hmm = require_process_type(make_process("random-hmm", num_states=4, num_symbols=8), HMM)
    dataset, rows = ProcessDataset(hmm, length=LENGTH), tokens // LENGTH
    out = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, LENGTH))
    for begin in range(0, rows, TOGETHER):
        out[begin : begin + TOGETHER] = dataset[begin : min(rows, begin + TOGETHER)].observations.numpy()
    out.flush()


def measure(path: Path, states: int, iterations: int, whole: bool, found: Any) -> None:
    """Fit, and put (bytes, processor seconds) into a queue."""
    start = make_process("random-hmm", num_states=states, num_symbols=8, seed=1)
    options = FitOptions(start=start, num_restarts=1, max_iterations=iterations, tolerance=0.0)
    tokens = np.load(path, mmap_mode="r")
    few = np.concatenate([tokens[:4], np.full((1, LENGTH), 7, np.uint8)])  # includes the largest symbol
    fit(few, states, axis=1, options=options)  # loads compiled code
    most, done, before = [anonymous()], threading.Event(), anonymous()

    def watch() -> None:
        while not done.wait(0.01):
            most.append(max(most.pop(), anonymous()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.process_time()
    fit(tokens.reshape(-1) if whole else tokens, states, axis=None if whole else 1, options=options)
    seconds = time.process_time() - begun
    done.set()
    watcher.join()
    found.put((most[0] - before, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__.splitlines()[0])
    parser.add_argument("tokens", type=float, nargs="+", help="numbers of tokens to measure")
    parser.add_argument("--states", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--folder", help="folder for the temporary file")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    say("|     tokens | sequences of | MB beyond the file | M tokens a second |\n|---|---|---|---|")
    for tokens in map(int, options.tokens):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            path = Path(folder) / "tokens.npy"
            draw(path, tokens)
            for whole in (True, False):
                found = context.Queue()
                asked = (path, options.states, options.iterations, whole, found)
                child = context.Process(target=measure, args=asked)
                child.start()
                most, seconds = found.get()
                child.join()
                rate = tokens * (options.iterations + 1) / seconds / 1e6
                say(f"| {tokens:10,} | {tokens if whole else LENGTH:,} | {most / 1e6:.0f} | {rate:.3g} |")


if __name__ == "__main__":
    main()
