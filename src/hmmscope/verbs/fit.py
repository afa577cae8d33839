"""The verb `fit`: an HMM from sequences, by expectation maximisation."""

from pathlib import Path

import torch

from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import fit_baum_welch
from hmmscope.machine import require_memory
from hmmscope.processes.hmm import HMM
from hmmscope.schema import require
from hmmscope.verbs.sources import HMM_FILES, new_file, read_lines


def fit(
    observations: str,
    states: int,
    symbols: int | None,
    restarts: int,
    iterations: int,
    pseudo_count: float,
    seed: int,
    out: str,
    quiet: bool,
) -> None:
    """Fit an HMM to the sequences of a text file and save it where every other verb finds it."""
    new_file(out, HMM_FILES)
    require(states >= 1, "states", "must be at least 1", states)
    sequences, names, num_symbols = read_words(Path(observations), symbols)
    longest, total = max(map(len, sequences)), sum(map(len, sequences))
    require_memory("fit", 8 * (2 * len(sequences) * longest + 6 * longest * states + 2 * total) + 8 * 4 * states**2)
    padded = torch.zeros(len(sequences), longest, dtype=torch.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    found = fit_baum_welch(
        padded,
        states,
        num_symbols,
        lengths=[len(sequence) for sequence in sequences],
        num_restarts=restarts,
        max_iterations=iterations,
        pseudo_count=pseudo_count,
        seed=seed,
    )
    matrices = (found.hmm.initial_S, found.hmm.transition_SS, found.hmm.emission_SV)
    HMM(*matrices, symbols=names, title=f"Baum-Welch fit to {Path(observations).name}").save(Path(out))
    ended = "converged" if found.converged else "not converged"
    print(
        f"{states} states, {num_symbols} symbols, {total} observations in {len(sequences)} sequences: log-likelihood "
        f"{found.log_likelihood:.6f} nats ({found.log_likelihood / total:.6f} per observation), {ended} in "
        f"{found.num_iterations} iterations"
    )
    if not quiet:
        print(f"HMM: {out}")


def read_words(path: Path, num_symbols: int | None) -> tuple[list[list[int]], list[str] | None, int]:
    """Sequences as symbol numbers, names of the symbols, and their number.

    Words are apart by spaces or commas. If all are whole numbers they are the symbols' numbers, without names, and there
    are `num_symbols` of them (one more than the largest, if not given). Else the names are the words in sorted order.
    """
    lines = [line.replace(",", " ").split() for line in read_lines(path)]
    lines = [words for words in lines if words]
    if not lines:
        raise InputError(f"{path}: holds no sequence")
    vocabulary = sorted({word for words in lines for word in words})
    if not all(word.isascii() and word.isdigit() for word in vocabulary):
        require(num_symbols is None, "symbols", "is for numbered symbols; these have names", num_symbols)
        codes = {word: code for code, word in enumerate(vocabulary)}
        return [[codes[word] for word in words] for words in lines], vocabulary, len(vocabulary)
    largest = max(vocabulary, key=lambda word: (len(word.lstrip("0")), word.lstrip("0")))
    require(len(largest) <= 9, "observations", "symbols must be below 10^9", largest)
    count = int(largest) + 1 if num_symbols is None else num_symbols
    require(count > int(largest), "symbols", f"must be above the largest symbol, {int(largest)}", count)
    return [[int(word) for word in words] for words in lines], None, count
