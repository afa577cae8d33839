"""Missing observations: what a person says stands for one, and where it stands."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.schema import shown

#: A missing observation in an array or tensor of symbols. Within `SequenceData.flat` and a checked batch it is V.
MISSING = -(2**31)

#: Names that often stand for a missing observation: they are symbols unless somebody says so, and that is said.
USUAL_GAPS = frozenset({"na", "n/a", "nan", "null", "none", "<na>", "nat", "missing"})

#: What is said where symbols are wanted and numbers are given.
FOR_NUMBERS = "hmmscope.fit(X, num_states, emission='gaussian') is for numbers, and networks train on its .hmm"

#: Letters that do in sequences of letters.
_USUAL_LETTERS = frozenset("-.?*nN")

#: What None and NaN themselves are kept as: the name of no value that is least likely to be a symbol's too.
_NO_VALUE = "<na>"

#: One name of these says that None, NaN, and what pandas and polars have in their place, are missing observations.
_NOTHING = frozenset({"none", "null", "nan", "<na>", "nat"})


def is_nothing(value: object) -> bool:
    """Whether it is None, NaN, a masked entry, or the NA or NaT of pandas."""
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(value != value)


@dataclass(frozen=True)
class Missing:
    """What stands for a missing observation.

    Attributes:
        names: texts, numbers as texts, ``"nan"`` or ``"none"`` for whatever is no value; ``""`` for an empty cell.
        nothing: None and NaN are missing whatever the names are, as in files of this library.
    """

    names: tuple[str, ...] = ()
    nothing: bool = False

    @classmethod
    def of(cls, given: object) -> "Missing":
        """From a name, a number, or a list of such; None is nothing that was said, and [None] is None in the data."""
        if given is None:
            return cls()
        items = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
        names = []
        for item in items:
            if isinstance(item, bool) or not (isinstance(item, str | int | float | np.number) or is_nothing(item)):
                raise InputError(f"missing: must be names or numbers that stand for a gap, got {shown(item)}")
            names.append(
                _NO_VALUE if is_nothing(item) else f"{item:g}" if isinstance(item, float) else str(item).strip()
            )
        return cls(tuple(dict.fromkeys(names)))

    @property
    def takes_nothing(self) -> bool:
        """Whether None and NaN are missing observations."""
        return self.nothing or any(name.lower() in _NOTHING for name in self.names)

    def has(self, value: object) -> bool:
        """Whether a value of a row stands for a missing observation."""
        if isinstance(value, str):
            return value.strip() in self.names
        if is_nothing(value):
            return self.takes_nothing or value is np.ma.masked
        if isinstance(value, int | np.integer):
            return value == MISSING or str(value) in self.names
        return isinstance(value, float | np.floating) and f"{value:g}" in self.names

    def marked(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array of numbers with `MISSING` in the place of what is missing; floats that are whole become integers."""
        if isinstance(array, np.ma.MaskedArray):
            mask, array = np.ma.getmaskarray(array), array.data
        else:
            mask = np.zeros(array.shape, np.bool_)
        if array.dtype.kind == "b" and mask.any():
            array = array.astype(np.int64)
        if array.dtype.kind not in "iuf":
            return array
        numbers = [float(name) for name in self.names if _is_number(name)]
        if numbers:
            mask = mask | np.isin(array, numbers)
        if array.dtype.kind == "f" and self.takes_nothing:
            mask = mask | np.isnan(array)
        if not mask.any():
            return array
        if array.dtype.kind == "f" and not bool((np.floor(array) == array)[~mask].all()):
            return array
        return np.where(mask, MISSING, np.where(mask, 0, array).astype(np.int64))

    def check(self, names: Iterable[str] | None) -> None:
        """InputError if a symbol has the name of a missing observation."""
        both = [name for name in names or () if name in self.names]
        if both:
            raise InputError(f"missing: {shown(both[0])} is one of the symbols, and cannot stand for a gap as well")

    def advice(self, value: object) -> str:
        """How to say that this value is missing, beside what was named already: for an error."""
        names = [*self.names, "none" if is_nothing(value) else str(value)]
        given = repr(names[0] if len(names) == 1 else names)
        return f"if nothing was observed there, say missing={given} (--missing {','.join(names) or shown('')})"

    def hint(self, name: object) -> str:
        """`advice`, behind what is said of a name that is no symbol; nothing where the name seldom stands for a gap."""
        usual = str(name).lower() in USUAL_GAPS or name in _USUAL_LETTERS
        return f"; {self.advice(name)}" if usual else ""

    def said(self) -> str:
        """The names, for readers."""
        return ", ".join(name if name else "an empty cell" for name in self.names)


def _is_number(name: str) -> bool:
    try:
        return bool(np.isfinite(float(name)))
    except ValueError:
        return False
