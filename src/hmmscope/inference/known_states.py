"""Observations with a known state, or with a set of allowed states.

An observation o with allowed states A becomes a symbol with the emission probabilities emission[:, o] * A.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.loop_inputs import PackedSequences, StateSets
from hmmscope.inference.ragged import check_own, check_ragged, counted
from hmmscope.processes.capabilities import COMPONENTS, OF_STATES, STATES
from hmmscope.processes.params import EdgeEmissionParams, StateEmissionParams
from hmmscope.processes.process import Process
from hmmscope.schema import refuse_masked, require, shown, unknown_name
from hmmscope.sequences.columns import is_indices, to_plain
from hmmscope.sequences.encoding import warn_of_numbers
from hmmscope.sequences.gaps import MISSING

#: Entries for an unknown state.
UNKNOWN = (-1, MISSING)


class ConditionedProcess(Process):
    """HMM with one symbol for each pair of an observation and its allowed states."""

    stored_name = "ConditionedProcess"
    uses_hmm_inference = OF_STATES

    def __init__(self, hmm: Process, sets: StateSets) -> None:
        params, chosen = hmm.params, torch.from_numpy(sets.symbols)
        allowed_US = torch.from_numpy(sets.allowed).double()
        if params.states_emit:
            emission_MSV = torch.cat([params.emission_MSV, torch.ones_like(params.emission_MSV[..., :1])], 2)
            self.params = StateEmissionParams(
                params.initial_MS, params.transition_MSS, emission_MSV[..., chosen] * allowed_US.T
            )
        else:
            labelled_MVSS = torch.cat([params.labelled_MVSS, params.labelled_MVSS.sum(1, keepdim=True)], 1)
            self.params = EdgeEmissionParams(params.initial_MS, labelled_MVSS[:, chosen] * allowed_US[:, None])
        self.num_states, self.num_symbols = hmm.num_states, len(chosen)


class Conditioned(NamedTuple):
    """A process and observations, conditioned on known states.

    Attributes:
        process: Process with one symbol for each pair (observation, allowed states), or an `EmissionHMM`.
        observations: Symbols of `process` (batch, time), or vectors.
        options: Arguments `reset_mask` and `lengths` of `filter_beliefs`.
        sets: The pair (observation, allowed states) of each symbol.
    """

    process: Any
    observations: Tensor
    options: dict[str, Any]
    sets: StateSets | None


def condition(
    hmm: Any,
    observations: object,
    known_states: object,
    *,
    inputs: object = None,
    reset_mask: object = None,
    lengths: object = None,
) -> Conditioned:
    """Condition a process on inputs, and on known states (see `as_allowed`).

    Raises:
        InputError: Observations or known states are invalid, or the process has no hidden states.
    """
    require(COMPONENTS not in hmm.uses_hmm_inference, "known_states", "cannot be used with a mixture", repr(hmm))
    if hmm.real_valued:
        vectors, inside = check_own(hmm, observations, lengths)
        given_states = getattr(hmm, "given_states", None)
        require(given_states is not None, "known_states", "needs an HMM whose states emit vectors", type(hmm).__name__)
        assert given_states is not None
        given = given_states(as_allowed(known_states, hmm.num_states, inside, hmm.states))
        return Conditioned(given, vectors, {"reset_mask": reset_mask, "lengths": inside.sum(1)}, None)
    checked, mask, inside = check_ragged(observations, hmm.alphabet, reset_mask, lengths)
    if inputs is not None:
        given_inputs = getattr(hmm, "given_inputs", None)
        require(given_inputs is not None, "inputs", "needs an InputOutputHMM", type(hmm).__name__)
        assert given_inputs is not None
        hmm, checked = given_inputs(checked, inputs, mask)
        if known_states is None:
            return Conditioned(hmm, checked, {"reset_mask": mask, "lengths": counted(inside)}, None)
    hmm.require_capability(STATES)
    require(checked.device.type == "cpu", "known_states", "needs observations on the CPU", checked.device)
    if hmm.visits is None:
        allowed = as_allowed(known_states, hmm.num_states, inside, hmm.states)
    else:  # each known state allows all its remaining steps
        allowed = as_allowed(known_states, len(hmm.visits.names), inside, hmm.visits.names)[..., hmm.visits.of]
    process, pairs, sets = conditioned(hmm, checked, allowed)
    return Conditioned(process, pairs, {"reset_mask": mask, "lengths": counted(inside)}, sets)


def conditioned(
    hmm: Process, observations_BT: Tensor, allowed_BTS: Bool[Tensor, "batch time state"]
) -> tuple[ConditionedProcess, Tensor, StateSets]:
    symbols, sets = paired(observations_BT.numpy().ravel(), allowed_BTS.numpy().reshape(-1, hmm.num_states))
    return ConditionedProcess(hmm, sets), torch.from_numpy(symbols).view(observations_BT.shape), sets


def paired(symbols: NDArray[np.int64], allowed: NDArray[np.bool_]) -> tuple[NDArray[np.int64], StateSets]:
    distinct, which = np.unique(allowed, axis=0, return_inverse=True)
    codes, numbers = np.unique(symbols * len(distinct) + which.ravel(), return_inverse=True)
    sets = StateSets(codes // max(1, len(distinct)), distinct[codes % max(1, len(distinct))])
    return numbers.ravel().astype(np.int64), sets


def with_known_states(
    work: PackedSequences, known_states: Any, lengths: Int64[Tensor, " sequence"], num_states: int
) -> PackedSequences:
    """Replace symbols by numbers of pairs (symbol, allowed states), unless `known_states` is None."""
    if known_states is None:
        return work
    symbols, sets = paired(work.symbols.astype(np.int64), flat_allowed(known_states, num_states, lengths).numpy())
    return work._replace(symbols=symbols, sets=sets)


def flat_allowed(
    known_states: Any, num_states: int, lengths: Int64[Tensor, " sequence"]
) -> Bool[Tensor, "observation state"]:
    inside = torch.arange(int(lengths.max())) < lengths[:, None]
    return as_allowed(known_states, num_states, inside)[inside]


def as_allowed(
    known_states: Any, num_states: int, inside_BT: Bool[Tensor, "batch time"], names: Sequence[str] | None = None
) -> Bool[Tensor, "batch time state"]:
    """Return the allowed states at each time; in padding all states are allowed.

    Args:
        known_states: State of each observation (batch, time), or a list of sequences, with -1 or `hmmscope.MISSING`
            where the state is unknown. Entries of lists may also be None or a set of states. Booleans (batch, time,
            state) mark allowed states.
        num_states: Number of states S.
        inside_BT: True for observations, False in padding.
        names: Names of the states, which may replace numbers.

    Raises:
        InputError: The shape is wrong, a state is outside [0, S), or no state is allowed at some time.
    """
    (batch, time), counts = inside_BT.shape, inside_BT.sum(1).tolist()
    refuse_masked("known_states", known_states)
    _warn_of_numbers(known_states, names)
    rows = numbered(known_states, names) if names else known_states
    rows = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    if isinstance(rows, list | tuple) and not _are_rows(rows):
        rows = [rows]
    if isinstance(rows, Tensor | np.ndarray):
        array: Any = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else rows
        if array.dtype == np.bool_:
            array = array[None] if array.ndim == 2 and batch == 1 else array
            rows = list(array) if array.ndim == 3 and array.shape[2] == num_states else ()
        elif array.ndim:
            array = array.ravel() if array.shape == (sum(counts), 1) and time > 1 else array
            array = np.split(array, np.cumsum(counts)[:-1]) if array.ndim == 1 and len(array) == sum(counts) else array
            rows = list(array) if np.ndim(array[0] if len(array) else array) == 1 else ()
    if not isinstance(rows, list | tuple) or len(rows) != batch:
        shape = getattr(known_states, "shape", None)
        rule = f"must have {batch} sequences of states, or booleans of shape ({batch}, {time}, {num_states})"
        raise InputError(f"known_states: {rule}, got {shown(known_states) if shape is None else tuple(shape)}")
    allowed = np.ones((batch, time, num_states), np.bool_)
    for b, (row, count) in enumerate(zip(rows, counts, strict=True)):
        if len(row) != count and not (len(row) == time and hasattr(row, "shape")):
            raise InputError(f"known_states[{b}]: must have {count} entries, one per observation, got {len(row)}")
        allowed[b, :count] = _allowed_row(row, count, num_states, b, names)
    return torch.from_numpy(allowed)


def numbered(known_states: Any, names: Sequence[str]) -> Any:
    if isinstance(known_states, str):
        return names.index(known_states) if known_states in names else known_states
    found = _values(known_states)
    if isinstance(found, np.ndarray):
        return np.frompyfunc(lambda one: numbered(one, names), 1, 1)(found)
    return known_states if found is None else type(found)(numbered(one, names) for one in found)


def named_states(known_states: Any, num_states: int, names: Sequence[str] | None) -> tuple[Any, tuple[str, ...] | None]:
    """Return known states as numbers, and state names (by default sorted) if `known_states` has names."""
    refuse_masked("known_states", known_states)
    found = set(_texts(known_states))
    if not found:
        _warn_of_numbers(known_states, names)
        return known_states, None
    plain = tuple(f"state {s}" for s in range(num_states))
    own = tuple(names or (plain if found <= set(plain) else sorted(found)))
    for unknown in sorted(found - set(own)):
        raise unknown_name("known_states", unknown, own)
    require(len(own) <= num_states, "known_states", f"must name at most {num_states} states", ", ".join(own))
    own += plain[len(own) :]
    return numbered(known_states, own), tuple(one if one in found else plain[s] for s, one in enumerate(own))


def _warn_of_numbers(known_states: Any, names: Sequence[str] | None) -> None:
    if names and not is_indices(known_states) and _has_numbers(to_plain(known_states)):
        warn_of_numbers(tuple(names), "known_states", "states")


def _has_numbers(values: Any) -> bool:
    if isinstance(values, list | tuple | set | frozenset):
        return any(map(_has_numbers, values))
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    return kind in ("i", "u", "f") or (isinstance(values, int) and not isinstance(values, bool) and values >= 0)


def _texts(known_states: Any) -> Iterator[str]:
    if isinstance(known_states, str):
        yield known_states
    else:
        for one in () if (found := _values(known_states)) is None else found:
            yield from _texts(one)


def _values(known_states: Any) -> Any:
    found = known_states.to_numpy() if hasattr(known_states, "to_numpy") else known_states
    may = (
        found.dtype.kind in "OUT"
        if isinstance(found, np.ndarray)
        else isinstance(found, list | tuple | set | frozenset)
    )
    return found if may else None


def _are_rows(rows: Collection[Any]) -> bool:
    return any(isinstance(row, list | tuple | Tensor) or np.ndim(row) > 0 for row in rows if not isinstance(row, set))


def _allowed_row(row: Any, count: int, num_states: int, number: int, names: Sequence[str] | None) -> NDArray[np.bool_]:
    array = row.detach().cpu().numpy() if isinstance(row, Tensor) else row if isinstance(row, np.ndarray) else None
    if array is not None and array.dtype == np.bool_ and array.ndim == 2:
        found = array[:count]
    else:
        found = np.zeros((count, num_states), np.bool_)
        for t, entry in enumerate((row if array is None else array.tolist())[:count]):
            states = (
                [] if _is_unknown(entry) else [entry] if np.ndim(entry) == 0 and not _is_set(entry) else list(entry)
            )
            for state in states:
                whole = isinstance(state, int | np.integer) or (isinstance(state, float) and state.is_integer())
                if not whole or isinstance(state, bool) or not 0 <= state < num_states:
                    known = f" ({', '.join(names[:20])})" if names else ""
                    rule = f"must be a state in [0, {num_states}){known}, a set of states, or -1 where unknown"
                    raise InputError(f"known_states[{number}, {t}]: {rule}, got {shown(state)}")
            found[t, [*map(int, states)] if states else slice(None)] = not _is_set(entry) or len(entry) > 0
    if not found.any(1).all():
        raise InputError(f"known_states[{number}, {int(found.any(1).argmin())}]: must allow at least one state")
    return found


def _is_set(entry: object) -> bool:
    return isinstance(entry, Iterable) and not isinstance(entry, str)


def _is_unknown(entry: Any) -> bool:
    if entry is None or (isinstance(entry, float) and np.isnan(entry)) or type(entry).__name__ == "NAType":
        return True
    return isinstance(entry, int | float | np.integer) and not isinstance(entry, bool) and int(entry) in UNKNOWN
