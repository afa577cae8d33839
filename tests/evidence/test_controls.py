"""Networks that learned nothing decide no claim: as drawn, after one step, and trained on the answers of other prompts.

They were measured as trained ones are, by ``make controls``; what is kept of it is read here.
"""

import json
import lzma
from pathlib import Path

import pytest

from attacks import DECIDED, judged, on_training
from hmmscope.lab.evidence.rows import Rows, Tables

KEPT = Path(__file__).parents[2] / "results" / "controls"
CONTROLS = ("untrained", "one-step", "mispaired")
FOLDERS = sorted(path.relative_to(KEPT) for path in KEPT.glob("*/*.json.xz"))
#: Claims that networks decide that learned nothing: what is left to be mended. A claim that stands comes off the list.
FALLEN: dict[str, tuple[str, ...]] = {}


def tables_of(path: Path) -> Tables:
    """The tables of a control, by rows."""
    data = json.loads(lzma.decompress((KEPT / path).read_bytes()))
    return {name: Rows(map(dict, rows_of(columns))) for name, columns in data.items()}


def rows_of(columns: dict[str, list]) -> list[list[tuple]]:
    """The cells of each row with their columns."""
    return [list(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("path", FOLDERS, ids=str)
def test_what_learned_nothing_decides_nothing(path: Path) -> None:
    claims = on_training(path.name.removesuffix(".json.xz"))
    found = {claim.name: judged(claim, tables_of(path)).verdict for claim in claims}
    assert [name for name, verdict in found.items() if verdict.startswith("broken")] == []
    assert {name for name, verdict in found.items() if verdict in DECIDED} == set(
        FALLEN.get(str(path).removesuffix(".json.xz"), ())
    )


def test_all_controls_are_kept() -> None:
    assert {path.parts[0] for path in FOLDERS} == set(CONTROLS)
