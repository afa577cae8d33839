"""Write the table of docs/inputs.md: which options `hmmscope.fit` supports for each model family, found by short fits.

python scripts/write_families.py
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hmmscope as hs
from hmmscope.emissions.families import family_of

PAGE = Path(__file__).parents[1] / "docs" / "inputs.md"
_PART = re.compile(r"(?<=<!-- families: made by scripts/write_families.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
LENGTHS = [12, 9, 7]
#: Options of `hmmscope.fit` by column of the table.
OPTIONS: dict[str, dict[str, Any]] = {
    "constraints": {"constraints": hs.Constraints.left_to_right(2)},
    "labels": {"known_states": [[0] + [-1] * (length - 1) for length in LENGTHS]},
    "weights": {"sequence_weights": [1.0, 2.0, 0.5]},
    "start": {},
    "missing": {},
    "posterior": {},
    "evidence": {"choose": "evidence"},
    "forecast": {},
}


def given(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Return ragged data of a family, and the arguments of its fit."""
    random = np.random.default_rng(0)
    symbols = [random.integers(0, 3, length) for length in LENGTHS]
    if name == "inputs":
        return symbols, {"inputs": [random.integers(0, 2, length).tolist() for length in LENGTHS]}
    if name in ("symbols", "durations"):
        return symbols, {"durations": 2} if name == "durations" else {}
    counts = family_of(name).density != "gaussian"
    width = getattr(family_of(name), "num_symbols", 2)  # some families fix this number
    rows = [random.integers(0, 3, (length, width)).astype(float) for length in LENGTHS]
    more = {"emission": name} | ({"sizes": [3]} if name == "mixed" else {})
    return (rows if counts else [row + random.normal(size=row.shape) for row in rows]), more


def fitted(name: str, column: str) -> None:
    """Fit a family with one option; raise InputError if the family does not support it."""
    data, more = given(name)
    more |= OPTIONS[column]
    options = {key: more.pop(key) for key in [*more] if key not in ("emission", "inputs", "sizes")}
    if column == "start":
        options["start"] = _fit(
            name, data, 2, more, {"durations": options["durations"]} if "durations" in options else {}
        ).hmm
    if column == "missing":
        data = [np.where(np.arange(len(row)) == 2, np.nan, row.T).T if row.ndim == 2 else _gap(row) for row in data]
    fit = _fit(name, data, [1, 2] if column == "evidence" else 2, more, options)
    if column == "posterior":
        fit.posterior(4, num_chains=1, warm_up=1, max_lengthening=1)
    if column == "forecast":
        inputs = {"inputs": more["inputs"][0], "next_inputs": [0]} if "inputs" in more else {}
        fit.forecast(data[0], 1, **inputs)


def _gap(row: Any) -> Any:
    return np.where(np.arange(len(row)) == 2, hs.MISSING, row)


def _fit(name: str, data: list[Any], sizes: Any, more: dict[str, Any], options: dict[str, Any]) -> Any:
    settings = hs.FitOptions(num_restarts=1, max_iterations=2, quiet=True, **options)
    source = data if "emission" in more else hs.SequenceData([row.tolist() for row in data], symbols=3)
    return hs.fit(source, sizes, options=settings, **more)


def able(run: Callable[[], object]) -> bool:
    """Return whether a call succeeds."""
    try:
        run()
    except hs.HmmscopeError:
        return False
    return True


def table() -> str:
    """Return the table; registered families of other packages also have rows."""
    names = ["symbols", *sorted(hs.registry.entries("emission")), "inputs", "durations"]
    head = ["family", *OPTIONS]
    rows = [[f"`{name}`", *("yes" if able(lambda: fitted(name, one)) else "–" for one in OPTIONS)] for name in names]  # noqa: B023
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def written(page: str) -> str:
    """Return the text of the page with its table made again."""
    return _PART.sub(lambda _: f"\n{table()}\n", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
