"""The verb `fit`: an HMM from sequences, by expectation maximisation."""

from pathlib import Path

from hmmscope.lab.verbs.endings import HMM_FILES, new_file
from hmmscope.lab.verbs.sources import named_gaps
from hmmscope.runs import fitting
from hmmscope.schema import parse_value
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.streaming import SequenceStream
from hmmscope.text import say


def fit(
    observations: str,
    states: str,
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
    axis: int | None = None,
    missing: str | None = None,
    stream: bool = False,
) -> None:
    """Fit an HMM to the sequences of a file and save it where every other verb finds it."""
    new_file(out, HMM_FILES)
    sizes = parse_value(tuple[int, ...], states, "states")
    data: SequenceData | SequenceStream
    if stream:
        data = SequenceStream(observations, symbols=symbols, unit=unit, missing=named_gaps(missing))
    else:
        data = SequenceData(
            observations, symbols=symbols, unit=unit, column=column, group=group, axis=axis, missing=named_gaps(missing)
        )
        if not quiet:
            say(data.describe())
    found = fitting.fit(
        data,
        sizes[0] if len(sizes) == 1 else sizes,
        num_restarts=restarts,
        max_iterations=iterations,
        pseudo_count=pseudo_count,
        seed=seed,
        stream=stream,
        quiet=quiet,
    )
    found.hmm.save(Path(out))
    for line in found.lines():
        say(line)
    total = found.num_observations
    about = f"{_counted(found.hmm.num_states, 'state')}, {found.hmm.num_symbols} symbols, {total} observations"
    if stream:
        say(f"{about} of a stream, each seen once")
    else:
        best = found.final
        ended = "converged" if found.converged else "not converged"
        say(
            f"{about} in {_sequences(len(data))}: log-likelihood {best.log_likelihood:.6f} nats "  # type: ignore[arg-type]
            f"({best.log_likelihood / total:.6f} per observation), {ended} in {_counted(best.num_iterations, 'iteration')}, "
            f"{fitting.searched(found.fits[found.hmm.num_states])}"
        )
    if not quiet:
        say(f"HMM: {out}")


def _sequences(count: int) -> str:
    return f"{count} sequence{'s' * (count != 1)}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
