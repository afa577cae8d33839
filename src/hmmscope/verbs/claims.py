"""The verb `claims`: what the papers claim, and what experiments found of it."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmmscope import registry
from hmmscope.evidence.ledger import Entry, ledger
from hmmscope.storage import store
from hmmscope.verbs.sources import new_file

_VERDICTS = ("reproduced", "not reproduced", "inconclusive", "found")


def claims(folders: list[str], out: str | None, quiet: bool) -> None:
    """Print the claims; or with folders of experiments the ledger, and write it if asked to."""
    if out is not None:
        new_file(out, (".md", ".json", ".jsonl"))
    if folders:
        entries = ledger([Path(folder) for folder in folders])
    else:
        entries = [Entry(claim=claim) for claim in registry.in_order("claim")]
    if out is not None:
        path, rows = Path(out), [as_row(entry) for entry in entries]
        match path.suffix:
            case ".md":
                store.write_text(path, "\n".join(as_markdown(entries)) + "\n")
            case ".json":
                store.write_json(path, rows)
            case _:
                store.write_table(path, rows)
    if not quiet:
        print("\n".join(as_text(entries)))
    if out is not None:
        print(f"ledger: {out}")


def as_row(entry: Entry) -> dict[str, Any]:
    """Plain data."""
    claim, finding = entry.claim, entry.finding
    row: dict[str, Any] = {"claim": claim.name, "source": claim.source, "statement": claim.statement}
    row["experiment"] = claim.experiment
    if finding is not None:
        row |= {"verdict": finding.verdict, "value": finding.value, "low": finding.low, "high": finding.high}
        row |= {"unit": finding.unit, "text": finding.text, "scale": entry.scale, "seeds": entry.num_seeds}
        row |= {"created": entry.created, "version": entry.version, "invalid": entry.invalid}
    return row


def as_text(entries: Sequence[Entry]) -> list[str]:
    """For a terminal: a claim, its verdict and effect, and what was seen."""
    lines = []
    for entry in entries:
        claim, finding = entry.claim, entry.finding
        lines.append(f"{claim.name}  {claim.source}  ({claim.experiment})")
        lines.append(f"  {claim.statement}")
        if finding is not None:
            invalid = f"  INVALID: {entry.invalid}" if entry.invalid else ""
            lines.append(f"  -> {finding.verdict}{effect(entry)}; {where(entry)}{invalid}")
            lines.append(f"     {finding.text}")
    return [*lines, summary(entries)]


def as_markdown(entries: Sequence[Entry]) -> list[str]:
    """A table for documentation."""
    lines = [
        "| claim | source | verdict | effect (95 % interval) | scale, seeds | what was seen |",
        "|---|---|---|---|---|---|",
    ]
    for entry in entries:
        claim, finding = entry.claim, entry.finding
        cells = [claim.statement, claim.source]
        if finding is None:
            cells += ["", "", claim.experiment, ""]
        else:
            verdict = f"INVALID ({entry.invalid})" if entry.invalid else f"**{finding.verdict}**"
            cells += [verdict, effect(entry).strip(" ,"), f"`{claim.experiment}`, {where(entry)}", finding.text]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, "", summary(entries)]


def effect(entry: Entry) -> str:
    """The number behind a verdict."""
    finding = entry.finding
    if finding is None or finding.value is None:
        return ""
    interval = "" if finding.low is None else f" [{finding.low:.3g}, {finding.high:.3g}]"
    return f", {finding.value:.3g}{interval} {finding.unit}".rstrip()


def where(entry: Entry) -> str:
    """At which scale, with how many seeds."""
    if entry.num_seeds is None:
        return entry.scale
    return f"{entry.scale}, {entry.num_seeds} {'seed' if entry.num_seeds == 1 else 'seeds'}"


def summary(entries: Sequence[Entry]) -> str:
    """How many of each verdict."""
    counts: Counter[str] = Counter(entry.finding.verdict for entry in entries if entry.finding is not None)
    if not counts:
        return f"{len(entries)} claims; hmmscope claims RUN... says what experiments found of them"
    return f"{len(entries)} claims: " + ", ".join(f"{counts[v]} {v}" for v in _VERDICTS if counts[v])
