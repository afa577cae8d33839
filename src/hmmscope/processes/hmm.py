"""The state-emitting hidden Markov model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.processes.capabilities import OF_STATES
from hmmscope.processes.matrices import FEW_COLUMNS, as_html, as_text, brief_names, probability_text
from hmmscope.processes.params import StateEmissionParams
from hmmscope.processes.probability_rows import Quantiser
from hmmscope.processes.process import Process
from hmmscope.schema import shown
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.encoding import check_text, warn_of_numbers
from hmmscope.sequences.read_options import ReadOptions
from hmmscope.text import in_a_line, in_brief
from hmmscope.ties import descending

#: Number of states whose most likely symbols are listed.
_LISTED = 40


class HMM(Process):
    """A state-emitting hidden Markov model with probabilities rounded to multiples of 2^-32.

    state_0 ~ initial;  state_{t+1} ~ transition[state_t];  observation_t ~ emission[state_t]

    Attributes:
        initial, transition, emission: float64; `emission[i, v]` = P(symbol v given state i).
        quantisation_change: largest change of a probability by rounding.
        quantisation_distance: upper bound of KL(rounded||given process), nats per symbol.
        symbols, states, title, source: see the arguments.
        read_options: options with which the data of a fitted HMM were read.

    Args:
        initial, transition, emission: arrays (S,), (S, S) and (S, V) with rows that sum to 1.
        symbols, states: names of the V symbols and S states, or None.
        title, source: free text.
        allow_drop_tiny: True rounds positive probabilities below 2^-32 to the nearer of 0 and 2^-32, False to 2^-32.

    Raises:
        InputError: a name or a row is invalid (see `Quantiser`).
    """

    stored_name = "HMM"

    uses_hmm_inference = OF_STATES
    file_format = "hmmscope-hmm"
    file_arrays = ("initial", "transition", "emission")
    file_fields = (*Process.file_fields, "reading")

    def __init__(
        self,
        initial: object,
        transition: object,
        emission: object,
        *,
        symbols: Sequence[str] | None = None,
        states: Sequence[str] | None = None,
        title: str = "",
        source: str = "",
        allow_drop_tiny: bool = False,
    ) -> None:
        quantiser = Quantiser("HMM", allow_drop_tiny=allow_drop_tiny)
        self.initial = quantiser.rows("initial", initial, (None,))
        size = len(self.initial)
        self.transition = quantiser.rows("transition", transition, (size, size))
        self.emission = quantiser.rows("emission", emission, (size, None))
        self.quantisation_change, self.quantisation_distance = quantiser.finish(), quantiser.distance
        self.num_states, self.num_symbols = self.emission.shape
        self.params = StateEmissionParams(self.initial[None], self.transition[None], self.emission[None])
        self.symbols = check_names("symbols", symbols, self.num_symbols)
        self.states = check_names("states", states, self.num_states)
        self.title, self.source = title, source

    def with_initial(self, initial: object) -> "HMM":
        """Return the process with another initial distribution, without names of states and symbols."""
        return HMM(initial, self.transition, self.emission, allow_drop_tiny=True)

    def replaced(self, **arrays: Any) -> "HMM":
        """Return a copy with new `arrays`."""
        return HMM(**self.file_tensors() | arrays, symbols=self.symbols, states=self.states, allow_drop_tiny=True)

    def card(self) -> list[str]:
        states = tuple(map(in_brief, self.states or (f"state {s}" for s in range(self.num_states))))
        symbols = tuple(map(in_brief, self.symbols or map(str, range(self.num_symbols))))
        rows = zip(states, self.initial.tolist(), self.emission.tolist(), self.transition.tolist(), strict=True)
        return [
            f"  {state:<16} starts {probability_text(start)}; emits {_likeliest(emitted, symbols, 6)}; "
            f"then {_likeliest(following, states, 3)}"
            for state, start, emitted, following in rows
        ]

    def __repr__(self) -> str:
        title = f", title={self.title!r}" if self.title else ""
        return f"HMM(num_states={self.num_states}, num_symbols={self.num_symbols}{title})"

    def __str__(self) -> str:
        *chain, emission = self._tables()
        lines = [line for table in chain for line in as_text(*table)]
        if self.num_symbols <= FEW_COLUMNS:
            return "\n".join([in_a_line(repr(self)), *lines, *as_text(*emission)])
        title, states, symbols, law_SV = emission
        left = max(map(len, (title, *states)))
        rows = zip(states[:_LISTED], law_SV[:_LISTED].tolist(), strict=True)
        listed = [f"  {state:<{left}}  {_likeliest(law, symbols, 6)}" for state, law in rows]
        more = [f"  and {self.num_states - _LISTED} more states"] * (self.num_states > _LISTED)
        return "\n".join([in_a_line(repr(self)), *lines, f"  {title}", *listed, *more])

    def _repr_html_(self) -> str:
        return "".join([super()._repr_html_(), *(as_html(*table) for table in self._tables())])

    def _tables(self) -> Iterator[tuple[str, list[str], list[str], Tensor]]:
        states = brief_names(self.states, self.num_states, "state ")
        symbols = brief_names(self.symbols, self.num_symbols, "")
        yield "starts in", [""], states, self.initial[None]
        yield "from, to", states, states, self.transition
        yield "emits", states, symbols, self.emission

    def file_tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.file_arrays, (self.initial, self.transition, self.emission), strict=True))

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "HMM":
        hmm = cls(*(data[name] for name in cls.file_arrays), **texts(data), allow_drop_tiny=allow_drop_tiny)
        hmm.evaluated_after = asked_after(data, hmm.num_symbols)
        hmm.read_options = ReadOptions.of_file(data)
        return hmm


def _likeliest(law: list[float], names: Sequence[str], count: int) -> str:
    return ", ".join(f"{names[i]} {probability_text(law[i])}" for i in descending(law)[:count] if law[i] > 0)


def texts(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: data[key] for key in ("symbols", "states", "title", "source") if data.get(key) is not None}


def matched_by_name(start: Any, data: SequenceData, field: str = "symbols") -> Any:
    """Return the HMM `start` with symbols (or inputs) in the order of `data`; raise InputError if it has others."""
    own, names = getattr(start, field, None), data.symbols
    if own is not None and names is None and data.of_numbers:
        warn_of_numbers(tuple(own), "source" if field == "symbols" else field)
    if own is None or names is None or tuple(own) == tuple(names) or "emission" not in start.file_arrays:
        return start
    if sorted(own) != sorted(names):
        ours, theirs = (", ".join(map(in_brief, some[:6])) + ", ..." * (len(some) > 6) for some in (own, names))
        remedy = "; pass the same symbols= for the source as for start" if field == "symbols" else ""
        raise InputError(f"start: has the {field} {ours}, but the source has {theirs}{remedy}")
    order, arrays = [own.index(one) for one in names], start.file_tensors()
    if field == "symbols":
        found = start.replaced(emission=arrays["emission"][..., order])
    else:
        found = start.replaced(transition=arrays["transition"][order], emission=arrays["emission"][order])
    setattr(found, field, tuple(names))
    found.title, found.source = start.title, start.source
    return found


def check_start(start: Any, num_states: int, num_symbols: int) -> None:
    good = start is None or (
        isinstance(start, HMM) and (start.num_states, start.num_symbols) == (num_states, num_symbols)
    )
    if not good:
        raise InputError(f"start: must be an HMM of {num_states} states and {num_symbols} symbols, got {start!r}")


def asked_after(data: Mapping[str, Any], num_symbols: int) -> int | None:
    symbol = data.get("evaluated_after")
    if symbol is not None and not (isinstance(symbol, int) and 0 <= symbol < num_symbols):
        raise InputError(f"evaluated_after: must be a symbol in [0, {num_symbols}), got {shown(symbol)}")
    return symbol


def check_names(field: str, names: Sequence[str] | None, count: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{field}: must be a list of non-empty texts, got {shown(names)}")
    if len(names) != count or len(set(names)) != count:
        raise InputError(f"{field}: must be {count} different names, got {len(names)} ({len(set(names))} different)")
    check_text(names, field)
    return tuple(names)
