"""Methods that apply a model with hidden states to rows of observations: prediction, score, samples, tables."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC
from html import escape
from typing import Any, NamedTuple

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.continuations import MAX_STEPS
from hmmscope.inference.fast import log_likelihood
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.given_inputs import GivenInputs
from hmmscope.inference.paths import most_likely_states
from hmmscope.inference.smoothing import smooth_beliefs
from hmmscope.inference.weights import as_weights, weighted_sum
from hmmscope.processes.capabilities import PATHS, SMOOTHING, STATES
from hmmscope.processes.process import Process
from hmmscope.processes.stationary import stationary_law
from hmmscope.reprs import ResultRows
from hmmscope.runs.forecasts import Forecasts, forecast_with
from hmmscope.runs.given_rows import GivenRows, given_rows, read_inputs, with_known_states
from hmmscope.runs.row_values import RowValues, duration_text, multiple_of, stamps_of, time_step
from hmmscope.schema import require, require_count, require_known
from hmmscope.sequences.time_stamps import local_of, on_months, utc_of, zoned

#: Largest number of symbols for which the table of states has a column for each symbol.
FEW_SYMBOLS = 12


class SampledRows(NamedTuple):
    """Sampled observations and states, row by row.

    Attributes:
        observations: Symbols (row,) or numbers (row, coordinate).
        states: Hidden states (row,).
    """

    observations: RowValues
    states: RowValues

    def columns(self) -> dict[str, Any]:
        return self.observations.columns() | {"state": np.asarray(self.states)}

    def to_pandas(self) -> Any:
        found = self.observations.to_pandas()
        return (found.to_frame() if found.ndim == 1 else found).assign(state=np.asarray(self.states))


class StateTable(ResultRows):
    def __repr__(self) -> str:
        names = list(self.columns())
        cells = [names, *([_cell(row.get(name)) for name in names] for row in self)]
        wide = [max(len(line[place]) for line in cells) for place in range(len(names))]
        aligned = ("  ".join(cell.rjust(size) for cell, size in zip(line, wide, strict=True)) for line in cells)
        return "\n".join(aligned)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns())
        body = ("".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) for row in self)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{cells}</tr>' for cells in body)}</table>"


def state_names(hmm: Process) -> tuple[str, ...]:
    if hmm.visits is not None:
        return hmm.visits.names
    return hmm.states or tuple(f"state {state}" for state in range(hmm.num_states))


def num_shown(hmm: Process) -> int:
    return len(state_names(hmm))


def constant_inputs(hmm: Any) -> list[tuple[str, Any]]:
    if hmm.num_inputs is None:
        return [("", hmm)]
    return [(name, hmm.given_input(number)) for number, name in enumerate(hmm.input_names)]


def coordinate_names(hmm: Process, given: GivenRows | None = None) -> tuple[str, ...]:
    count = hmm.num_symbols
    if given is not None and len(given.columns) == count:
        return given.columns
    kept = hmm.read_options.column.split(",") if hmm.read_options and hmm.read_options.column else []
    return tuple(kept) if len(kept) == count else tuple(f"x{place}" for place in range(count)) if count > 1 else ("x",)


def channels_of(hmm: Any, coordinates: Sequence[str]) -> list[tuple[str, Sequence[str], Tensor]]:
    """Return the name, symbols and emission matrix of each channel."""
    count = len(hmm.sizes)
    return list(zip(coordinates[-count:], hmm.alphabets.values(), hmm.channels, strict=True)) if count else []


def outcome_names(hmm: Any, coordinates: Sequence[str]) -> tuple[str, ...]:
    channels = channels_of(hmm, coordinates)
    numbers = coordinates[: len(coordinates) - len(channels)]
    return *numbers, *(f"{name}={symbol}" for name, symbols, _ in channels for symbol in symbols)


def chosen_coordinates(hmm: Process, given: GivenRows | None, wanted: Any) -> list[int]:
    """Return the indices of the coordinates in `wanted` (names or indices; None for all)."""
    names = coordinate_names(hmm, given)
    if wanted is None:
        return list(range(hmm.num_symbols))
    found = []
    for one in [wanted] if isinstance(wanted, str | int) else wanted:
        if isinstance(one, str):
            require_known("coordinates", one, names)
            found.append(names.index(one))
        else:
            require(0 <= one < len(names), "coordinates", f"must be in [0, {len(names)})", one)
            found.append(int(one))
    return found


def predict(hmm: Process, x: Any, *, names: bool = False, known_states: Any = None, **reading: Any) -> RowValues:
    _require(hmm, PATHS)
    given = with_known_states(hmm, x, known_states, reading)
    given = given if given is x else given.with_warning()
    states = _by_row(given, lambda rows, options: most_likely_states(hmm, rows, **options).states)
    if hmm.visits is not None:
        states = np.append(hmm.visits.of.numpy(), -1)[states]
    if names:
        states = np.array([*state_names(hmm), "?"])[states]  # ? for a sequence of probability zero
    return given.values(states, ("state",))


def predict_proba(hmm: Process, x: Any, *, known_states: Any = None, **reading: Any) -> RowValues:
    _require(hmm, SMOOTHING)
    given = with_known_states(hmm, x, known_states, reading)
    given = given if given is x else given.with_warning()
    found = _by_row(given, lambda rows, options: smooth_beliefs(hmm, rows, **options))
    if hmm.visits is not None:
        found = found @ np.eye(num_shown(hmm))[hmm.visits.of.numpy()]
    return given.values(found, state_names(hmm))


def _require(hmm: Process, capability: str) -> None:
    if hmm.num_inputs is None:  # else inference needs inputs, which `given_rows` requires
        hmm.require_capability(capability)


def score(
    hmm: Process,
    x: Any,
    *,
    per_sequence: bool = False,
    known_states: Any = None,
    sequence_weights: Any = None,
    **reading: Any,
) -> Any:
    given = with_known_states(hmm, x, known_states, reading)
    weights = as_weights(sequence_weights, len(given.sequences))
    require(weights is None or not per_sequence, "sequence_weights", "cannot be combined with per_sequence", "both")
    found = np.zeros(len(given.sequences))
    for rows, options, numbers in given.batches():
        if hmm.real_valued:
            found[numbers] = filter_beliefs(hmm, rows, **options).log_likelihood.numpy()
        else:
            found[numbers] = log_likelihood(hmm, rows, **options).numpy()
    if weights is not None:
        return float(weighted_sum(torch.from_numpy(found), weights))
    return found if per_sequence else float(found.sum())


def sample(hmm: Any, length: int, num_sequences: int = 1, *, seed: int = 0, inputs: Any = None) -> SampledRows:
    require_count("length", length)
    require_count("num_sequences", num_sequences)
    if hmm.num_inputs is not None:
        if inputs is None:
            raise InputError("inputs: is missing; the model needs the input of each step")
        named = isinstance(inputs, list | tuple) and all(isinstance(one, str) for one in inputs)
        checked = hmm.checked_inputs([list(inputs)] if named else inputs, (num_sequences, length))
        drawn = hmm.sample_given(checked, seed=seed)
    else:
        require(inputs is None, "inputs", "applies to models with inputs", type(hmm).__name__)
        drawn = hmm.sample_paths(np.arange(num_sequences), np.arange(length) == 0, seed)
    lengths = [length] * num_sequences
    names = coordinate_names(hmm) if hmm.real_valued else ("symbol",)
    observations, states = (part.flatten(0, 1).numpy() for part in drawn[:2])
    states = states if hmm.visits is None else hmm.visits.of.numpy()[states]
    return SampledRows(RowValues.of(observations, lengths, names), RowValues.of(states, lengths, ("state",)))


def forecast(
    hmm: Any, observed: Any, steps: int = 1, *, seed: int = 0, next_inputs: Any = None, **reading: Any
) -> Forecasts:
    given = given_rows(hmm, observed, **reading)
    count = len(given.sequences)
    if count != 1:
        rule = "pass the past of one, such as the rows after the last gap, with forecast(past, steps)"
        raise InputError(f"observed: must be a single sequence, got {count} sequences; {rule}")
    names = outcome_names(hmm, coordinate_names(hmm, given)) if hmm.real_valued else hmm.symbols or ()
    if given.inputs is not None:
        if next_inputs is None:
            raise InputError(f"next_inputs: is missing; the model needs the inputs of the next {steps} steps")
        read = read_inputs(next_inputs, None, [steps], {}, hmm.input_alphabet)
        found = _given_next_inputs(hmm, given.sequences[0], torch.cat([given.inputs[0], read[0]]), steps)
    else:
        require(next_inputs is None, "next_inputs", "applies to models with inputs", type(hmm).__name__)
        found = forecast_with([hmm], given.sequences[0], steps, seed)
    return replace(found, names=tuple(names), index=_ahead(given.index, steps))


def _given_next_inputs(hmm: Any, past: Tensor, inputs: Tensor, steps: int) -> Forecasts:
    require_count("steps", steps, most=MAX_STEPS)
    filter_beliefs(hmm, past[None], inputs=inputs[None, : len(past)], strict=True)
    laws = GivenInputs(hmm, inputs[: len(past)]).ahead(past[None], inputs[len(past) :]).observations[0]
    return Forecasts(laws, laws, laws)


def state_table(hmm: Process, x: Any = None, **reading: Any) -> StateTable:
    if hmm.num_inputs is not None:
        return _table_by_input(hmm, None if x is None else given_rows(hmm, x, **reading))
    hmm.require_capability(PATHS if hmm.real_valued else STATES)
    given = None if x is None else given_rows(hmm, x, **reading)
    rows: list[dict[str, Any]] = [{"state": name} for name in state_names(hmm)]
    if given is not None:
        shares = np.asarray(predict_proba(hmm, given)).mean(0)
        path = predict(hmm, given).per_sequence()
        begun = (one[np.append(True, one[1:] != one[:-1]) & (one >= 0)] for one in path if len(one))
        visits = sum(np.bincount(states, minlength=len(rows)) for states in begun)
        for row, share, count in zip(rows, shares.tolist(), np.asarray(visits).tolist(), strict=True):
            row |= {"share": share, "visits": count}
    else:
        for row, share in zip(rows, _stationary(hmm), strict=True):
            row["share"] = share
    step = None if given is None else time_step(given.index)
    for row, dwell in zip(rows, dwell_rows(hmm), strict=True):
        row["dwell_rows"] = dwell
        if step is not None:
            row["dwell_time"] = multiple_of(step, dwell)
    for row, emitted in zip(rows, _emitted(hmm, given), strict=True):
        row |= emitted
    return StateTable(rows)


def _table_by_input(hmm: Any, given: GivenRows | None) -> StateTable:
    found: list[dict[str, Any]] = []
    if given is not None:
        shares, inputs = np.asarray(predict_proba(hmm, given)), torch.cat(list(given.inputs or ())).numpy()
    for number, (name, part) in enumerate(constant_inputs(hmm)):
        rows: list[dict[str, Any]] = [{"input": name} | row for row in state_table(part)]
        if given is not None:
            own = inputs == number
            means = shares[own].mean(0) if own.any() else np.full(hmm.num_states, np.nan)
            rows = [row | {"share": share} for row, share in zip(rows, means.tolist(), strict=True)]
        found += rows
    return StateTable(found)


def dwell_rows(hmm: Process) -> list[float]:
    if hmm.visits is not None:
        durations = hmm.visits.durations
        return (durations @ torch.arange(1, durations.shape[1] + 1).double()).tolist()
    return [1 / (1 - stay) if stay < 1 else np.inf for stay in transitions_of(hmm).diagonal().tolist()]


def transitions_of(hmm: Process) -> Float64[Tensor, "state state"]:
    """Return P(next state | state); for a semi-Markov model, P(state of the next visit | state)."""
    if hmm.visits is not None:
        return hmm.visits.transition
    found: Tensor = hmm.transition if hmm.real_valued else hmm.params.transitions()[0]  # type: ignore[attr-defined]
    return found


def _stationary(hmm: Any) -> list[float]:
    transition = hmm.params.transitions()[0] if hmm.visits is not None else transitions_of(hmm)
    try:
        law = stationary_law(transition)
    except InputError:  # several closed classes
        return [np.nan] * num_shown(hmm)
    if hmm.visits is not None:
        law = torch.zeros(num_shown(hmm)).double().index_add(0, hmm.visits.of, law)
    return law.tolist()


def emission_rows(hmm: Any) -> Float64[Tensor, "state symbol"]:
    if hmm.visits is not None:
        return hmm.visits.emission
    return hmm.params.symbols()[0] if hmm.params.states_emit else hmm.params.predictive()[0]


def _emitted(hmm: Any, given: GivenRows | None) -> list[dict[str, Any]]:
    if not hmm.real_valued:
        return _symbol_columns(emission_rows(hmm), hmm.symbols or tuple(map(str, range(hmm.num_symbols))), "")
    found: list[dict[str, Any]] = [{} for _ in range(hmm.num_states)]
    names = coordinate_names(hmm, given)
    for place, name in enumerate(names[: len(names) - len(hmm.sizes)]):
        own = "" if hmm.num_symbols == 1 else f" {name}"
        for row, mean, variance in zip(
            found, hmm.means[:, place].tolist(), hmm.variances[:, place].tolist(), strict=True
        ):
            row |= {f"mean{own}": mean, f"std{own}": variance**0.5}
    for name, symbols, law in channels_of(hmm, names):
        found = [row | own for row, own in zip(found, _symbol_columns(law, symbols, name), strict=True)]
    return found


def _symbol_columns(law: Tensor, symbols: Sequence[str], channel: str) -> list[dict[str, Any]]:
    if len(symbols) <= FEW_SYMBOLS:
        names = [f"P({channel}{'=' * bool(channel)}{symbol})" for symbol in symbols]
        return [dict(zip(names, row, strict=True)) for row in law.tolist()]
    places = law.argsort(dim=1, descending=True, stable=True)[:, :4].tolist()
    return [
        {channel or "emits": ", ".join(f"{symbols[v]} {float(law[state, v]):.3f}" for v in own)}
        for state, own in enumerate(places)
    ]


def _by_row(given: GivenRows, answer: Callable[[Tensor, dict[str, Any]], Tensor]) -> Any:
    parts: list[Any] = [None] * len(given.sequences)
    for rows, options, numbers in given.batches():
        found = answer(rows, options).numpy()
        for place, number in enumerate(numbers):
            parts[number] = found[place, : given.lengths[number]]
    return np.concatenate(parts)


def _ahead(index: Any, steps: int) -> Any:
    step, stamps = time_step(index), stamps_of(index)
    if step is None or stamps is None:
        return None
    months, zone = stamps.astype("datetime64[M]").astype(np.int64), getattr(index[-1], "tzinfo", None)
    each, ahead = months[1] - months[0], np.arange(1, steps + 1)
    if each > 0 and (np.diff(months) == each).all() and (on_months(stamps, months) == stamps).all():
        found = on_months(stamps, months[-1] + each * ahead)
    elif zone is None:
        return np.asarray(index)[-1] + step * ahead
    elif step >= np.timedelta64(1, "D") and (np.diff(stamps) == step).all():
        found = stamps[-1] + step * ahead
    else:
        return zoned(local_of([index[-1].astimezone(UTC)]) + step * ahead, zone)
    return found if zone is None else zoned(utc_of(found, zone), zone)


def _cell(value: Any) -> str:
    if isinstance(value, np.timedelta64):
        return duration_text(value)
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
