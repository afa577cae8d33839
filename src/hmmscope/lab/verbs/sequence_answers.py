"""Output of the command `infer` for sequences: results of exact inference."""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.inference.continuations import Forecast
from hmmscope.inference.continuations import forecast as forecast_of
from hmmscope.inference.given_inputs import GivenInputs
from hmmscope.inference.missing import missing_probs
from hmmscope.inference.optimal import observe, observe_with_memory
from hmmscope.inference.paths import most_likely_states, sample_state_paths
from hmmscope.inference.smoothing import smooth_beliefs
from hmmscope.inference.stable_argmax import stable_argmax as likeliest_choice
from hmmscope.kernels.context_counts import context_counts, ngram_laws
from hmmscope.lab.verbs.options import InferOptions
from hmmscope.lab.verbs.output_paths import new_file
from hmmscope.lab.verbs.sources import Observations, find_process, likeliest, read_observations
from hmmscope.processes.capabilities import FORECASTS, GAPS, MEMORY, PATHS, PREDICTIONS, SMOOTHING
from hmmscope.processes.process import Process
from hmmscope.runs.given_rows import read_inputs
from hmmscope.runs.row_values import stamps_of
from hmmscope.schema import require
from hmmscope.seeds import check_seed
from hmmscope.sequences.gaps import MISSING
from hmmscope.storage import store
from hmmscope.system_info import require_memory
from hmmscope.text import in_a_line, in_brief, say
from hmmscope.ties import steady

#: Most positions of a path, and most sequences, that are printed.
_SHOWN, _SHOWN_SEQUENCES = 30, 10
#: Most missing observations of a sequence that are printed.
_SHOWN_GAPS = 5
#: Bytes of memory for each number in the output table.
_NUMBER_BYTES = 40


#: The capability that a process needs for each option.
_ASKED = {"smooth": SMOOTHING, "viterbi": PATHS, "paths": PATHS, "memory": MEMORY, "forecast": FORECASTS}


@dataclass(frozen=True)
class SequenceQuestions:
    """Results to compute besides those of the filter; zero or False leaves a result out.

    Attributes:
        smooth, viterbi: Whether to add the posterior of each state, and the most likely path, given all observations.
        paths: Number of state paths drawn from the posterior.
        memory: Number of past observations from which the next one is predicted; 0 for all.
        ngrams: Largest n of the n-gram baselines (n - 1 symbols of context).
        seed: Seed of the draws.
        forecast: Number of future steps.
    """

    smooth: bool
    viterbi: bool
    paths: int
    memory: int
    ngrams: int
    seed: int
    forecast: int = 0


def oracle(asked: InferOptions) -> None:
    for name in ("paths", "memory", "ngrams", "forecast"):
        require(getattr(asked, name) >= 0, name, "must be at least 0", getattr(asked, name))
    check_seed(asked.seed)
    wanted, out, quiet = (
        SequenceQuestions(**{one.name: getattr(asked, one.name) for one in fields(SequenceQuestions)}),
        asked.out,
        asked.quiet,
    )
    assert asked.observations is not None
    if out is not None:
        new_file(out, (".jsonl",))
    built = find_process(asked.process, asked.overrides, allow_drop_tiny=asked.allow_drop_tiny)
    able = type(built) if built.num_inputs is None else GivenInputs
    for name, question in {"": PREDICTIONS, **_ASKED}.items():
        given = built.num_inputs is not None and name == "forecast"
        if (not name or getattr(wanted, name)) and question not in able.capabilities() and not given:
            raise built.missing_capability_error(question, f"--{name}" if name else "")
    next_inputs = _next_inputs(built, asked)
    if asked.ngrams and built.real_valued:
        raise InputError("process: --ngrams needs symbols, but this process emits vectors")
    read = read_observations(Path(asked.observations), built, inputs=asked.inputs, **asked.reading())
    sequences = read.sequences
    if not quiet:
        say(read.about)
    _require_rows(built, sequences, wanted, kept=out is not None)
    table: list[dict] = []
    lines: list[str] = []
    total, impossible = 0.0, 0
    for number, sequence in enumerate(sequences):
        process: Any = built if read.inputs is None else GivenInputs(built, read.inputs[number])
        rows, said = _filtered(process, sequence)
        said += _extras(process, sequence, rows, wanted, number)
        if asked.forecast and rows[-1]["log_likelihood"] > -torch.inf:
            if next_inputs is not None:
                ahead = process.ahead(sequence, next_inputs)
            else:
                ahead = forecast_of(process, sequence, asked.forecast)
            said += _forecast(process, sequence, rows, ahead)
        own = math.fsum(row.get("log_likelihood", 0.0) for row in rows)
        total, impossible = total + own, impossible + (own == -math.inf)
        if number < _SHOWN_SEQUENCES:
            gaps = sequence.shape[1] - _made(sequence)
            also = f" and {gaps} missing" if gaps else ""
            name = f" ({in_a_line(str(read.names[number]))})" if read.names else ""
            lines.append(f"sequence {number + 1}{name}: {_made(sequence)} observations{also}, {said[0]}")
            lines += [f"  {line}" for line in said[1:]]
        if out is not None:
            table += _labelled(rows, number, read)
    _say_all(built, sequences, total, impossible)
    for line in lines:
        say(line)
    if len(sequences) > _SHOWN_SEQUENCES:
        more = "" if out is not None else "; --out TABLE.jsonl writes all"
        say(f"and {len(sequences) - _SHOWN_SEQUENCES} more sequences{more}")
    if out is not None:
        for row in table:
            for key in ("log_likelihood", "memory_log_likelihood"):
                if row.get(key) == -torch.inf:
                    row[key] = None
        store.write_table(Path(out), table)
        if not quiet:
            say(f"table: {out} (log_likelihood null means -inf)")


def _labelled(rows: list[dict], number: int, read: Observations) -> list[dict]:
    about = {"sequence": number + 1} | ({"name": read.names[number]} if read.names else {})
    if read.labels is None or len(read.labels[number]) != len(rows):
        return [about | row for row in rows]
    key = "time" if stamps_of(read.labels[number]) is not None else "label"
    labels = [str(one).removesuffix(".000000") for one in read.labels[number]]
    return [about | {key: label} | row for label, row in zip(labels, rows, strict=True)]


def _say_all(process: Process, sequences: list[Tensor], total: float, impossible: int) -> None:
    if len(sequences) > 1:
        count = sum(map(_made, sequences))
        noun = "log-density" if process.real_valued else "log-likelihood"
        each = f"impossible sequences: {impossible}" if impossible else f"{steady(total / count):.6f} per observation"
        say(f"{len(sequences)} sequences, {count} observations: {noun} {steady(total):.6f} nats ({each})")


def _made(sequence: Tensor) -> int:
    gone = sequence.isnan().all(2) if sequence.ndim == 3 else sequence == MISSING
    return sequence.shape[1] - int(gone.sum())


def _require_rows(process: Process, sequences: list[Tensor], wanted: SequenceQuestions, *, kept: bool) -> None:
    lengths = [sequence.shape[1] for sequence in sequences]
    size = process.num_components or process.num_states
    beliefs = 1 + wanted.smooth + (2 if wanted.memory else 0)
    numbers = beliefs * size + (2 if wanted.memory else 1) * process.num_symbols + wanted.paths
    numbers += wanted.ngrams * process.num_symbols
    ahead = wanted.forecast * (process.num_symbols + process.num_states) * (len(lengths) if kept else 1)
    if process.real_valued:
        numbers += size**2 + process.num_symbols
    positions = sum(lengths) if kept else max(lengths)
    advice = "give fewer or shorter sequences, or fewer options"
    require_memory(
        f"oracle: {positions} positions", _NUMBER_BYTES * (numbers * positions + wanted.paths * size + ahead), advice
    )


def _filtered(process: Process, sequence: Tensor) -> tuple[list[dict], list[str]]:
    found = observe(process, sequence)
    known = {**found.probs, **found.vectors}
    columns = {
        "observation": sequence,
        "log_likelihood": found.log_likelihood_terms,
        **known,
        "next_observation": found.next_observation,
    }
    values = zip(*(column[0].tolist() for column in columns.values()), strict=True)
    rows = [{"position": t, **dict(zip(columns, row, strict=True))} for t, row in enumerate(values)]
    for row in rows:
        row["observation"] = _plain(row["observation"])
    total = math.fsum(row["log_likelihood"] for row in rows)
    first = f"{'log-density' if process.real_valued else 'log-likelihood'} {_nats(total)}"
    symbols = tuple(map(in_brief, process.symbols or map(str, range(process.num_symbols))))
    impossible = [t for t, row in enumerate(rows) if row["log_likelihood"] == -math.inf]
    if impossible:
        seen = rows[impossible[0]]["observation"]
        name = _coordinates(seen) if process.real_valued else symbols[seen]
        return rows, [f"{first}; the sequence is impossible from observation {impossible[0]} ({name}) on"]
    last = rows[-1]
    said = [f"{first} ({_digits(total / max(1, _made(sequence)))} per observation)"]
    said += [f"{name}: {likeliest(last[name], process.states if name == 'belief' else None)}" for name in found.probs]
    said += [f"{name}: {_coordinates(last[name])}" for name in found.vectors if found.vectors[name].ndim == 3]
    ahead = last["next_observation"]
    if not any(ahead):  # the next input is unknown
        return rows, said
    return rows, [*said, f"next: {_coordinates(ahead) if process.real_valued else likeliest(ahead, symbols)}"]


def _plain(observation: Any) -> Any:
    if isinstance(observation, list):
        return [None if math.isnan(value) else value for value in observation]
    return None if observation == MISSING else observation


def _coordinates(vector: list[float], count: int = 8) -> str:
    return ", ".join(map(_digits, vector[:count])) + (", ..." if len(vector) > count else "")


def _digits(value: float) -> str:
    return f"{steady(value):z.6f}"


def _nats(value: float) -> str:
    return f"{_digits(value)} nats"


def _extras(process: Process, tokens: Tensor, rows: list[dict], wanted: SequenceQuestions, number: int) -> list[str]:
    lines = []
    possible = rows[-1]["log_likelihood"] > -torch.inf
    names = tuple(map(in_brief, process.states or map(str, range(process.num_states))))
    has_gaps = not process.real_valued and GAPS in process.capabilities() and _made(tokens) < tokens.shape[1]
    for add, asked in ((_gaps, has_gaps), (_smooth, wanted.smooth), (_viterbi, wanted.viterbi), (_paths, wanted.paths)):
        said = add(process, tokens, rows, names, wanted, number) if asked else []
        lines += said if possible else []  # rows of an impossible sequence contain zeros and -1
    if wanted.memory:
        lines += _memory(process, tokens, rows, wanted.memory)
    if wanted.ngrams:
        lines += _ngrams(process, tokens, rows, wanted.ngrams)
    return lines


def _gaps(
    process: Process, tokens: Tensor, rows: list[dict], names: tuple[str, ...], wanted: SequenceQuestions, number: int
) -> list[str]:
    laws, places = missing_probs(process, tokens)[0], (tokens[0] == MISSING).nonzero()[:, 0].tolist()
    symbols = tuple(map(in_brief, process.symbols or map(str, range(process.num_symbols))))
    for t in places:
        rows[t]["missing_law"] = laws[t].tolist()
    said = [f"missing observation {t}: {likeliest(laws[t].tolist(), symbols)}" for t in places[:_SHOWN_GAPS]]
    return said + [f"and {len(places) - _SHOWN_GAPS} more missing observations"] * (len(places) > _SHOWN_GAPS)


def _dots(rows: list[dict]) -> str:
    return " ..." if len(rows) > _SHOWN else ""


def _smooth(
    process: Process, tokens: Tensor, rows: list[dict], names: tuple[str, ...], wanted: SequenceQuestions, number: int
) -> list[str]:
    beliefs = smooth_beliefs(process, tokens)[0]
    for row, belief in zip(rows, beliefs.tolist(), strict=True):
        row["smoothed"] = belief
    best = likeliest_choice(beliefs[:_SHOWN]).tolist()
    said = (f"{names[s]} {steady(float(beliefs[t, s])):.3f}" for t, s in enumerate(best))
    return [f"smoothed: {', '.join(said)}{_dots(rows)}"]


def _viterbi(
    process: Process, tokens: Tensor, rows: list[dict], names: tuple[str, ...], wanted: SequenceQuestions, number: int
) -> list[str]:
    path = most_likely_states(process, tokens)
    states = path.states[0].tolist()
    for row, state in zip(rows, states, strict=True):
        row["viterbi"] = state
    said = " ".join(names[s] for s in states[:_SHOWN])
    of = "" if path.component is None else f" of component {int(path.component[0])}"
    return [f"most likely path{of}: {said}{_dots(rows)} (log-probability {_digits(float(path.log_probability[0]))})"]


def _paths(
    process: Process, tokens: Tensor, rows: list[dict], names: tuple[str, ...], wanted: SequenceQuestions, number: int
) -> list[str]:
    drawn = sample_state_paths(process, tokens, num_paths=wanted.paths, seed=wanted.seed, indices=[number])[:, 0]
    for row, states in zip(rows, drawn.T.tolist(), strict=True):
        row["paths"] = states
    return [
        f"path {k}: {' '.join(names[s] for s in states[:_SHOWN])}{_dots(rows)}"
        for k, states in enumerate(drawn.tolist())
    ]


def _memory(process: Process, tokens: Tensor, rows: list[dict], length: int) -> list[str]:
    kept = observe_with_memory(process, tokens, length)
    columns = {"log_likelihood": kept.log_likelihood_terms, **kept.probs, **kept.vectors}
    columns["next_observation"] = kept.next_observation
    for name, column in columns.items():
        for row, value in zip(rows, column[0].tolist(), strict=True):
            row[f"memory_{name}"] = value
    total = float(kept.log_likelihood_terms.sum())
    symbols = tuple(map(in_brief, process.symbols or map(str, range(process.num_symbols))))
    ahead = likeliest(rows[-1]["memory_next_observation"], symbols)
    following = "" if getattr(process, "inputs", None) is not None else f", next: {ahead or 'none (impossible memory)'}"
    return [
        f"with {length} observations of memory: log-likelihood {_nats(total)} "
        f"({_digits(total / max(1, _made(tokens)))} per observation){following}"
    ]


def _next_inputs(process: Process, asked: InferOptions) -> Tensor | None:
    given = asked.next_inputs
    if process.num_inputs is None or not asked.forecast:
        require(given is None, "--next-inputs", "needs a model with inputs and the option --forecast", given)
        return None
    rule = f"must name the input of each of the {asked.forecast} next steps, as A,B,..., or one input for all steps"
    entries: list[Any] = [] if given is None else given.split(",")
    entries = entries * asked.forecast if len(entries) == 1 else entries
    require(len(entries) == asked.forecast, "--next-inputs", rule, given)
    alphabet = process.input_alphabet  # type: ignore[attr-defined]
    if alphabet.names is None and all(entry.isdecimal() for entry in entries):
        entries = list(map(int, entries))
    try:
        return read_inputs(entries, None, [asked.forecast], {}, alphabet)[0]
    except InputError as error:
        raise InputError(f"--next-{error}") from None


def _forecast(process: Process, tokens: Tensor, rows: list[dict], ahead: Forecast) -> list[str]:
    steps = ahead.observations.shape[1]
    symbols = tuple(map(in_brief, process.symbols or map(str, range(process.num_symbols))))
    lines = []
    for k, (law, states) in enumerate(zip(ahead.observations[0].tolist(), ahead.states[0].tolist(), strict=True)):
        rows.append({"position": tokens.shape[1] + k, "forecast": law, "forecast_state": states})
        if k < _SHOWN:
            lines.append(f"in {k + 1} step{'s' * (k > 0)}: {likeliest(law, symbols)}")
    return [*lines, *["..."] * (steps > _SHOWN)]


def _ngrams(process: Process, tokens: Tensor, rows: list[dict], count: int) -> list[str]:
    counts = context_counts(tokens.numpy(), np.arange(tokens.shape[1]), process.num_symbols, count - 1)
    predicted = torch.from_numpy(ngram_laws(counts, [1.0] * count))[0]
    terms_TK = predicted.gather(2, tokens[0].clamp_min(0)[:, None, None].expand(-1, count, 1))[..., 0].log()
    terms_TK = terms_TK.masked_fill((tokens[0] == MISSING)[:, None], 0.0)
    for row, terms in zip(rows, terms_TK.tolist(), strict=True):
        row["ngram_log_likelihood"] = terms
    said = ", ".join(map(_digits, (terms_TK.sum(0) / max(1, _made(tokens))).tolist()))
    return [f"n-grams, n = 1 to {count}: log-likelihood {said} nats per observation"]
