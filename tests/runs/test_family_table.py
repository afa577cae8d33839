"""The table of docs/inputs.md of what each family can do."""

from pathlib import Path

import pytest

import hmmscope
from hmmscope.errors import InputError
from script_modules import script

PAGE = Path(__file__).parents[2] / "docs" / "inputs.md"
families = script("write_families")


def test_the_page_has_a_row_for_each_family_and_a_column_for_each_option() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    assert rows[0] == ["family", *families.OPTIONS]
    names = [row[0].strip("`") for row in rows[2:]]
    assert set(names) == {"symbols", "inputs", "durations", *hmmscope.registry.entries("emission")}
    families.fitted("symbols", "constraints")
    families.fitted("gaussian", "labels")
    with pytest.raises(InputError, match="choose: fits with inputs compute no evidence"):
        families.fitted("inputs", "evidence")


@pytest.mark.slow
def test_the_table_is_that_of_todays_code() -> None:
    """`python scripts/write_families.py` writes it."""
    assert families.written(PAGE.read_text("utf-8")) == PAGE.read_text("utf-8")
