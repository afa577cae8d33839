"""Small tables for notebooks."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def html_table(title: str, facts: Mapping[str, Any]) -> str:
    """Names and values under a title."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(k)}</th><td>{_shown(v)}</td></tr>" for k, v in facts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def html_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with a header of all their keys."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    header = "".join(f"<th>{escape(column)}</th>" for column in columns)
    cells = "".join(
        "<tr>" + "".join(f"<td>{_shown(row[column]) if column in row else ''}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f"<table><caption>{escape(title)}</caption><tr>{header}</tr>{cells}</table>"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
