"""Fit a hidden Markov model to the letters of an English text and write it in the library's JSON format.

After R. L. Cave and L. P. Neuwirth, "Hidden Markov models for English", in J. D. Ferguson (ed.), *Hidden Markov
Models for Speech*, IDA-CRD, Princeton, 1980: letters and the space between words as 27 symbols, Baum-Welch from random
starts, 2 to 12 states. They report that two states separate the vowels from the consonants.

Run from the root of the repository:

    OMP_NUM_THREADS=1 python scripts/fit_letters.py --out src/hmmscope/data/letters-hmm.json

Needs hmmlearn (`pip install "hmmscope[hmm]"`). Seeds are fixed: the same versions of hmmlearn and numpy on the same
type of machine give the same file; elsewhere the last digits may differ.
"""

import argparse
import datetime
import json
import re
import string
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from hmmlearn.hmm import CategoricalHMM
from numpy.typing import NDArray

SPACE = "_"  # the space, as a visible symbol
SYMBOLS = (SPACE, *string.ascii_lowercase)
SMALLEST_PROBABILITY = 1e-6  # smaller entries become exactly 0; probabilities have a grid of 2**-32
VOWELS = frozenset("aeiou")


def encode(text: str) -> NDArray[np.int64]:
    """Convert a text to symbols: a-z in lower case, runs of other characters as one space, none at the ends."""
    normalised = re.sub("[^a-z]+", SPACE, text.lower()).strip(SPACE)
    index = {symbol: v for v, symbol in enumerate(SYMBOLS)}
    return np.array([index[symbol] for symbol in normalised])


def fit(train: NDArray[np.int64], num_states: int, seed: int, num_iterations: int, tolerance: float) -> CategoricalHMM:
    """Run Baum-Welch from a random start, until an iteration gains less than `tolerance` nats.

    The initial distribution stays uniform, because one long sequence does not determine it; `finish` replaces it.
    """
    model = CategoricalHMM(
        num_states,
        n_features=len(SYMBOLS),
        n_iter=num_iterations,
        tol=tolerance,
        random_state=seed,
        params="te",
        init_params="te",
        implementation="scaling",
    )
    model.startprob_ = np.full(num_states, 1 / num_states)
    return model.fit(train[:, None])


def fit_best(train: NDArray[np.int64], num_states: int, args: argparse.Namespace) -> tuple[CategoricalHMM, int]:
    """Return the run with the largest log-likelihood of `train` over seeds 0 .. restarts - 1, and its seed."""
    best: tuple[float, int, CategoricalHMM] | None = None
    for seed in range(args.restarts):
        model = fit(train, num_states, seed, args.iterations, args.tolerance)
        log_likelihood = model.score(train[:, None])
        iterations = len(model.monitor_.history)
        print(f"  states {num_states:2}  seed {seed}  iterations {iterations:4}  {per_letter(log_likelihood, train)}")
        if best is None or log_likelihood > best[0]:
            best = (log_likelihood, seed, model)
    assert best is not None
    return best[2], best[1]


def prune(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Set entries below SMALLEST_PROBABILITY to exactly 0 and divide each row by its sum."""
    rows = np.where(rows < SMALLEST_PROBABILITY, 0.0, rows)
    return rows / rows.sum(-1, keepdims=True)


def stationary_law(transition_SS: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distribution pi with pi = pi @ transition, by least squares."""
    num_states = len(transition_SS)
    equations = np.vstack([transition_SS.T - np.eye(num_states), np.ones(num_states)])
    law_S = np.linalg.lstsq(equations, np.append(np.zeros(num_states), 1.0), rcond=None)[0]
    return prune(law_S)


def finish(model: CategoricalHMM) -> CategoricalHMM:
    """Return the model to ship: pruned, stationary initial distribution, states by decreasing probability."""
    transition_SS, emission_SV = prune(model.transmat_), prune(model.emissionprob_)
    initial_S = stationary_law(transition_SS)
    order = np.argsort(-initial_S, kind="stable")
    shipped = CategoricalHMM(model.n_components, n_features=len(SYMBOLS), implementation="scaling")
    shipped.startprob_ = initial_S[order]
    shipped.transmat_ = transition_SS[order][:, order]
    shipped.emissionprob_ = emission_SV[order]
    return shipped


def state_name(state: int, emission_V: NDArray[np.float64]) -> str:
    """Return `S3:aeiou`: the number and up to five most likely symbols, covering 90 % of the probability."""
    order = np.argsort(-emission_V, kind="stable")
    held = np.cumsum(emission_V[order])
    count = min(5, int(np.searchsorted(held, 0.9)) + 1)
    return f"S{state}:" + "".join(SYMBOLS[v] for v in order[:count])


def per_letter(log_likelihood: float, symbols: NDArray[np.int64]) -> str:
    nats = log_likelihood / len(symbols)
    return f"{nats:.4f} nats/symbol ({-nats / np.log(2):.4f} bits/symbol)"


def unigram_log_likelihood(train: NDArray[np.int64], symbols: NDArray[np.int64]) -> float:
    """Return the log-likelihood of `symbols` under the symbol frequencies of `train`."""
    frequency_V = np.bincount(train, minlength=len(SYMBOLS)) / len(train)
    return float(np.log(frequency_V[symbols]).sum())


def print_split(model: CategoricalHMM) -> None:
    """Print the letters that each state of a two-state model emits with more probability than the other."""
    for state in range(2):
        own = [SYMBOLS[v] for v in np.flatnonzero(model.emissionprob_[state] > model.emissionprob_[1 - state])]
        print(f"  state {state}: {' '.join(own)}")
    vowel_states = {int(model.emissionprob_[:, SYMBOLS.index(vowel)].argmax()) for vowel in VOWELS}
    print(f"  a e i o u in one state: {len(vowel_states) == 1}")


def print_table(model: CategoricalHMM, names: list[str]) -> None:
    """Print stationary probability, symbols of 0.02 or more, and successors of 0.05 or more for each state."""
    for state, name in enumerate(names):
        emission_V, transition_S = model.emissionprob_[state], model.transmat_[state]
        letters = np.argsort(-emission_V, kind="stable")[: (emission_V >= 0.02).sum()]
        successors = np.argsort(-transition_S, kind="stable")[: (transition_S >= 0.05).sum()]
        shown = " ".join(f"{SYMBOLS[v]} {emission_V[v]:.2f}" for v in letters)
        followed = " ".join(f"{names[s]} {transition_S[s]:.2f}" for s in successors)
        print(f"  {name:9} {model.startprob_[state]:.3f} | {shown} | {followed}")


def record(model: CategoricalHMM, names: list[str], source: str) -> dict[str, Any]:
    return {
        "format": "hmmscope-hmm",
        "version": 1,
        "title": f"English letters, {model.n_components} states",
        "source": source,
        "symbols": list(SYMBOLS),
        "states": names,
        "initial": model.startprob_.tolist(),
        "transition": model.transmat_.tolist(),
        "emission": model.emissionprob_.tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=Path("src/hmmscope/data/letters/alice.txt"))
    parser.add_argument("--out", type=Path, required=True, help="path of the JSON file; must not exist")
    parser.add_argument("--states", type=int, default=12, help="number of states of the model written")
    parser.add_argument("--restarts", type=int, default=10, help="number of restarts, seeds 0, 1, ...")
    parser.add_argument(
        "--iterations", type=int, default=500, help="largest number of Baum-Welch iterations of a restart"
    )
    parser.add_argument(
        "--tolerance", type=float, default=1.0, help="stop below this gain of the log-likelihood, in nats"
    )
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="date recorded in the file")
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"--out: {args.out} exists; nothing is overwritten")

    symbols = encode(args.text.read_text(encoding="utf-8"))
    num_train = len(symbols) * 9 // 10
    train, held_out = symbols[:num_train], symbols[num_train:]
    num_letters = int((symbols != 0).sum())
    print(
        f"{args.text.name}: {len(symbols)} symbols, {num_letters} letters; train {len(train)}, held-out {len(held_out)}"
    )
    for part, observed in (("train", train), ("held-out", held_out)):
        print(f"unigram   {part:8}  {per_letter(unigram_log_likelihood(train, observed), observed)}")

    print("two states, all restarts:")
    two_states, _ = fit_best(train, 2, args)
    print_split(two_states)

    print(f"{args.states} states, all restarts:")
    fitted, seed = fit_best(train, args.states, args)
    model = finish(fitted)
    names = [state_name(state, emission_V) for state, emission_V in enumerate(model.emissionprob_)]
    print(f"kept seed {seed}; after pruning, from the stationary law:")
    print(f"{args.states} states train     {per_letter(model.score(train[:, None]), train)}")
    print(f"{args.states} states held-out  {per_letter(model.score(held_out[:, None]), held_out)}")
    print_table(model, names)

    source = (
        f"Made by scripts/fit_letters.py on {args.date}: Baum-Welch (hmmlearn {version('hmmlearn')} CategoricalHMM) on "
        f"the first {len(train)} symbols of {args.text.name} (Lewis Carroll, Alice's Adventures in Wonderland, 1865; "
        f"public domain), a-z and '{SPACE}' for the space between words; best of {args.restarts} random starts, seeds "
        f"0 to {args.restarts - 1}, kept {seed}; at most {args.iterations} iterations, stopped at a gain below "
        f"{args.tolerance:g} nats. Entries below {SMALLEST_PROBABILITY:g} set to 0 and rows divided by their sums; "
        "initial = stationary law; states by falling stationary probability, named by their likeliest symbols. "
        "After R. L. Cave and L. P. Neuwirth (1980), Hidden Markov models for English."
    )
    args.out.write_text(json.dumps(record(model, names, source), indent=1) + "\n", encoding="utf-8")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
