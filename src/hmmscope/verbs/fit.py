"""The verb `fit`: an HMM from sequences, by expectation maximisation."""

from pathlib import Path

from hmmscope.inference.baum_welch import fit_baum_welch
from hmmscope.machine import require_memory
from hmmscope.processes.hmm import HMM
from hmmscope.schema import require
from hmmscope.sequences.data import SequenceData
from hmmscope.verbs.sources import HMM_FILES, new_file


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
    unit: str | None = None,
    column: str | None = None,
    group: str | None = None,
) -> None:
    """Fit an HMM to the sequences of a file and save it where every other verb finds it."""
    new_file(out, HMM_FILES)
    require(states >= 1, "states", "must be at least 1", states)
    data = SequenceData(observations, symbols=symbols, unit=unit, column=column, group=group)
    if not quiet:
        print(data.describe())
    total, longest = data.num_observations, data.longest
    require_memory("fit", 8 * (2 * len(data) * longest + 6 * longest * states + 2 * total) + 8 * 4 * states**2)
    padded, lengths = data.padded()
    found = fit_baum_welch(
        padded,
        states,
        data.num_symbols,
        lengths=lengths.tolist(),
        num_restarts=restarts,
        max_iterations=iterations,
        pseudo_count=pseudo_count,
        seed=seed,
    )
    matrices = (found.hmm.initial_S, found.hmm.transition_SS, found.hmm.emission_SV)
    HMM(*matrices, symbols=data.symbols, title=f"Baum-Welch fit to {Path(observations).name}").save(Path(out))
    ended = "converged" if found.converged else "not converged"
    print(
        f"{states} states, {data.num_symbols} symbols, {total} observations in {len(data)} sequences: log-likelihood "
        f"{found.log_likelihood:.6f} nats ({found.log_likelihood / total:.6f} per observation), {ended} in "
        f"{found.num_iterations} iterations"
    )
    if not quiet:
        print(f"HMM: {out}")
