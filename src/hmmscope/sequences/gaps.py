"""Missing observations: their markers in sources, and their code in arrays of symbols."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import InputError
from hmmscope.schema import shown

#: Code of a missing observation in arrays of symbols; `SequenceData.flat` and checked batches have num_symbols instead.
MISSING = -(2**31)

#: Names that often mean a missing observation; they are read as symbols, with a note.
USUAL_GAPS = frozenset({"na", "n/a", "nan", "null", "none", "<na>", "nat", "missing"})

#: First words of the advice on an unknown symbol that may mark a missing observation, and advice on real numbers.
IF_MISSING = "if it marks a missing observation"
FOR_NUMBERS = "for real numbers use fit = hmmscope.fit(X, num_states, emission='gaussian'); train networks on fit.hmm"

#: Characters that often mean a missing letter.
_USUAL_LETTERS = frozenset("-.?*nN")

#: Name that stands for None and NaN in stored options.
_NO_VALUE = "<na>"

#: Names that declare all null values as missing.
_NOTHING = frozenset({"none", "null", "nan", "<na>", "nat"})


def is_nothing(value: object) -> bool:
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(value != value)


@dataclass(frozen=True)
class Missing:
    """The values that represent a missing observation.

    Attributes:
        names: these values as text; ``"nan"`` or ``"none"`` stands for any null value, ``""`` for an empty cell.
        nothing: True if None and NaN are missing without being listed in `names`.
    """

    names: tuple[str, ...] = ()
    nothing: bool = False

    @classmethod
    def of(cls, given: object) -> "Missing":
        if given is None:
            return cls()
        items = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
        names = []
        for item in items:
            if isinstance(item, bool) or not (isinstance(item, str | int | float | np.number) or is_nothing(item)):
                raise InputError(f"missing: must be names or numbers of missing observations, got {shown(item)}")
            names.append(
                _NO_VALUE if is_nothing(item) else f"{item:g}" if isinstance(item, float) else str(item).strip()
            )
        return cls(tuple(dict.fromkeys(names)))

    @property
    def takes_nothing(self) -> bool:
        """True if None and NaN represent missing observations."""
        return self.nothing or any(name.lower() in _NOTHING for name in self.names)

    def has(self, value: object) -> bool:
        if isinstance(value, str):
            return value.strip() in self.names
        if is_nothing(value):
            return self.takes_nothing or value is np.ma.masked
        if isinstance(value, int | np.integer):
            return value == MISSING or str(value) in self.names
        return isinstance(value, float | np.floating) and f"{value:g}" in self.names

    def marked(self, array: NDArray[Any]) -> NDArray[Any]:
        """Replace numbers that mark missing observations by `MISSING`; arrays of whole floats then become integers."""
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
        both = [name for name in names or () if name in self.names]
        if both:
            raise InputError(f"missing: {shown(both[0])} is also a symbol; rename the symbol or the marker")

    def advice(self, value: object) -> str:
        names = [*self.names, "none" if is_nothing(value) else str(value)]
        given = repr(names[0] if len(names) == 1 else names)
        return f"{IF_MISSING}, pass missing={given} (--missing {','.join(names) or shown('')})"

    def hint(self, name: object) -> str:
        usual = str(name).lower() in USUAL_GAPS or name in _USUAL_LETTERS
        return f"; {self.advice(name)}" if usual else ""

    def said(self) -> str:
        return ", ".join(name if name else "an empty cell" for name in self.names)


def _is_number(name: str) -> bool:
    try:
        return bool(np.isfinite(float(name)))
    except ValueError:
        return False
