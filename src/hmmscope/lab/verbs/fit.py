"""The verb `fit`."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmmscope.errors import InputError
from hmmscope.lab.verbs.options import FitCommandOptions
from hmmscope.lab.verbs.output_paths import HMM_FILES, new_file
from hmmscope.processes.process import Process
from hmmscope.runs import fitting
from hmmscope.runs.fit_answers import searched
from hmmscope.runs.fit_options import FitOptions
from hmmscope.runs.given_rows import read_inputs
from hmmscope.runs.vector_sequences import emission_of, read_numbers
from hmmscope.schema import parse_value, require_count
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.streaming import SequenceStream
from hmmscope.sequences.vector_data import VectorData
from hmmscope.text import say
from hmmscope.training.signals import Interrupted


def fit(options: FitCommandOptions) -> None:
    """Fit an HMM to a file of sequences, and save the HMM for other commands."""
    new_file(options.out, HMM_FILES)
    if options.forecast and not options.posterior:
        raise InputError("--forecast: needs draws from the posterior for its intervals; add --posterior 500")
    if options.posterior:
        require_count("--posterior", options.posterior, 4)
    if options.goodness_of_fit:
        require_count("--goodness-of-fit", options.goodness_of_fit, 20, most=2**20)
    sizes = parse_value(tuple[int, ...], options.states, "states")
    reading, quiet, stream = options.reading(), options.quiet, options.stream
    data: SequenceData | SequenceStream | VectorData
    more: dict[str, Any] = {}
    emission: Any = options.emission
    if emission is None and options.symbols is None and not stream:
        emission = emission_of(options.observations, None, reading)
    if emission not in (None, "symbols"):
        if options.symbols is not None:
            raise InputError(f"--symbols: applies to symbols, but emission is {emission!r}; leave it out")
        if reading.pop("unit") is not None:
            raise InputError(f"--unit: applies to symbols, but emission is {emission!r}; leave it out")
        emission_of(None, emission, {})  # known names only
        data, more = read_numbers(options.observations, options.emission, reading), {"emission": emission}
        if not quiet:
            say(data.describe())
    elif stream:
        reading = {key: value for key, value in reading.items() if key in ("unit", "missing")}
        data = SequenceStream(options.observations, symbols=options.symbols, **reading)
    else:
        data = SequenceData(options.observations, symbols=options.symbols, **reading)
        if not quiet:
            say(data.describe())
    if options.inputs is not None:
        more["inputs"] = options.inputs
        if isinstance(data, SequenceData):
            more["inputs"] = read_inputs(options.inputs, options.observations, data.lengths.tolist(), reading)
    stopped: Interrupted | None = None
    try:
        found = fitting.fit(
            data,
            sizes[0] if len(sizes) == 1 else sizes,
            options=FitOptions(
                num_restarts=options.restarts,
                max_iterations=options.iterations,
                pseudo_count=options.pseudo_count,
                durations=options.durations,
                duration_family=options.duration_family,
                choose=options.choose,
                quiet=quiet,
            ),
            seed=options.seed,
            stream=stream,
            **more,
        )
    except Interrupted as error:
        if error.result is None:
            raise
        found, stopped = error.result, error
    found.hmm.save(Path(options.out))
    for line in found.lines():
        say(line)
    total = found.num_observations
    kind = "coordinate" if found.hmm.real_valued else "symbol"
    about = f"{_counted(found.num_states, 'state')}, {_counted(found.hmm.num_symbols, kind)}, {total} observations"
    if stream:
        say(f"{about} of a stream; each observation is read once")
    else:
        best = found.final
        ended = "converged" if found.converged else "not converged"
        say(
            f"{about} {_place(found.hmm, data)}: log-likelihood {best.log_likelihood:.6f} nats "
            f"({best.log_likelihood / total:.6f} per observation), {ended} in {_counted(best.num_iterations, 'iteration')}, "
            f"{searched(found.fits[found.num_states])}"
        )
    if stopped is not None:
        raise Interrupted(f"fit: stopped by SIGINT; saved the best fit so far in {options.out}", signal.SIGINT, found)
    said_of(found, options)
    if not quiet:
        say(f"HMM: {options.out}")


def said_of(found: fitting.FitResult, options: FitCommandOptions) -> None:
    distance = getattr(found.final.hmm, "quantisation_distance", None) if found.fits else None
    if distance is not None:  # HMMs of symbols are quantized
        say(f"rounding probabilities to multiples of 2^-32: KL divergence at most {distance:.1e} nats per symbol")
    posterior, stopped = None, False
    try:
        posterior = found.posterior(options.posterior, seed=options.seed) if options.posterior else None
    except Interrupted as error:
        posterior, stopped = error.result, True
    for line in posterior.lines() if posterior else ():
        say(line)
    if stopped:
        raise Interrupted(f"posterior: stopped by SIGINT; the fitted HMM is in {options.out}", signal.SIGINT)
    if options.goodness_of_fit:
        for line in (posterior or found).check(options.goodness_of_fit, seed=options.seed).lines():
            say(line)
    if posterior and options.forecast:
        numbers = found.hmm.real_valued
        what = "the next value with its 95 % interval" if numbers else "probability of each symbol with 95 % interval"
        names = _outcomes(found.hmm, options)
        say(f"after the last sequence, {what}:")
        for row in posterior.forecast(posterior.sequences[-1], options.forecast).table():
            say(f"  +{row['step']}  {names[row['outcome']]}  {row['mean']:.4f} [{row['low']:.4f}, {row['high']:.4f}]")


def _outcomes(hmm: Process, options: FitCommandOptions) -> Sequence[str]:
    if not hmm.real_valued:
        return hmm.symbols or [str(v) for v in range(hmm.num_symbols)]
    columns = [name.strip() for name in options.column.split(",")] if options.column else []
    return columns if len(columns) == hmm.num_symbols else [f"coordinate {y}" for y in range(hmm.num_symbols)]


def _place(hmm: Process, data: SequenceData | SequenceStream | VectorData) -> str:
    if isinstance(data, VectorData):
        return f"({hmm.file_texts()['source']})"
    return f"in {_counted(len(data), 'sequence')}"  # type: ignore[arg-type]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
