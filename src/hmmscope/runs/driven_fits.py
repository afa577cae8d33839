"""Fits of HMMs with inputs (`InputOutputHMM`) or with durations of states (`SemiMarkovHMM`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hmmscope.emissions.families import family_name
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import BaumWelchFit
from hmmscope.inference.fit_durations import fit_durations
from hmmscope.inference.fit_inputs import fit_inputs
from hmmscope.inference.known_states import flat_allowed, with_known_states
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.inference.num_states import choice_of, fit_each
from hmmscope.inference.weights import as_weights
from hmmscope.processes.hmm import matched_by_name
from hmmscope.progress import StoppableProgress
from hmmscope.runs.fit_options import FitOptions
from hmmscope.runs.given_rows import read_inputs
from hmmscope.schema import require
from hmmscope.sequences.data import SequenceData

#: Options of `hmmscope.fit` that choose these models.
OWN_OPTIONS = ("durations", "duration_family")


def refuse_beside(options: FitOptions, inputs: Any, **given: Any) -> None:
    name = "durations" if inputs is None else "inputs"
    require(
        inputs is None or options.durations is None, "durations", "cannot be combined with inputs", options.durations
    )
    if given["emission"] != "symbols":
        raise InputError(f"{name}: needs symbols, but emission is {family_name(given['emission'])!r}")
    require(options.choose != "evidence", "choose", f"fits with {name} compute no evidence; use 'bic'", "evidence")
    for option, value in {"validation": given["validation"], "stream": given["stream"] or None}.items():
        require(value is None, option, f"cannot be combined with {name}; fit without {option}=", value)


def fit_driven(
    source: Any,
    data: SequenceData,
    sizes: Sequence[int],
    asked: Any,
    options: FitOptions,
    seed: int,
    reading: Mapping[str, Any],
    names: Sequence[str] | None,
) -> tuple[Any, float, Any, dict[str, Any]]:
    others = ("durations", "duration_family", "choose", "quiet")
    limits = {name: value for name, value in vars(options).items() if name not in others} | {"seed": seed}
    weights, known = as_weights(options.sequence_weights, len(data)), options.known_states
    require(known is None or len(sizes) == 1, "known_states", "needs one num_states", sizes)
    inputs = None if asked is None else read_inputs(asked, source, data.lengths.tolist(), reading)
    start = matched_by_name(options.start, data)
    start = limits["start"] = start if inputs is None else matched_by_name(start, inputs, "inputs")
    for size in sizes:
        require(start is None or len(start.initial) == size, "start", f"must have {size} states", repr(start))
    most = len(sizes) * options.num_restarts * options.max_iterations
    with StoppableProgress(most, "fit", quiet=options.quiet) as heard:
        limits["callback"] = heard
        fits = fit_each(sizes, _one_fit(data, inputs, options, limits), heard)
    choice = choice_of(fits, None, why="no evidence is computed with inputs or durations")
    hmm = _named(choice.chosen.hmm, data, inputs, asked, names)
    seen = data.flat != data.num_symbols
    total = data.num_observations if weights is None else float(np.repeat(weights, data.lengths.numpy()) @ seen)
    allowed = None if known is None else flat_allowed(known, sizes[0], data.lengths).numpy()
    fields = {"given": (inputs, allowed), "num_zeros": choice.chosen.num_zeros}
    return hmm, total, heard, choice.fields | fields


def _one_fit(
    data: SequenceData, inputs: SequenceData | None, options: FitOptions, limits: dict[str, Any]
) -> Callable[[int], BaumWelchFit]:
    limits = limits | {"num_symbols": data.num_symbols}
    if inputs is not None:
        (rows, lengths), given = data.padded(), inputs.padded()[0]
        return partial(fit_inputs, rows, given, num_inputs=inputs.num_symbols, lengths=lengths, **limits)
    longest = options.durations
    assert longest is not None
    work, own = flat_sequences(data.flat, data.lengths.numpy()), dict(limits)
    known, family = own.pop("known_states"), options.duration_family
    return lambda size: fit_durations(
        with_known_states(work, known, data.lengths, size), size, longest=longest, family=family, **own
    )


def _named(hmm: Any, data: SequenceData, inputs: SequenceData | None, asked: Any, names: Any) -> Any:
    texts = {"symbols": data.symbols, "states": names, "title": f"fit to {data.title}" if data.title else ""}
    if inputs is not None:
        texts["inputs"] = inputs.symbols
    found = type(hmm)(*hmm.file_tensors().values(), **texts)
    reading = data.read_options if data.read_options.to_data() else None
    column = asked if isinstance(asked, str) else inputs.read_options.column if inputs is not None else None
    if column is not None and data.read_options.column is not None:
        reading = replace(data.read_options, inputs=column)
    found.read_options = reading
    return found
