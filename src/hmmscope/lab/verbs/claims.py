"""The verb `claims`."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.lab.evidence.ledger import LedgerRow, RecordedClaim, as_markdown, as_text, ledger
from hmmscope.lab.verbs.catalogue import catalogue
from hmmscope.lab.verbs.options import ClaimsOptions
from hmmscope.lab.verbs.output_paths import new_file
from hmmscope.schema import by_field
from hmmscope.storage import store
from hmmscope.system_info import source_digest
from hmmscope.text import say


def claims(options: ClaimsOptions) -> None:
    folders, out, quiet = options.folders, options.out, options.quiet
    if options.audit:
        from hmmscope.lab.verbs.audit import audit

        if not folders or out is not None:
            raise InputError("claims --audit: give folders of experiments, and leave out --out")
        there = _measured(folders)
        say("\n".join(audit(ledger(there), there)))
        return
    if options.sensitivity and not folders:
        raise InputError("claims --sensitivity: give folders of experiments")
    if out is not None:
        new_file(out, (".md", ".html", ".json", ".jsonl"))
    kept = catalogue()
    if kept and not folders and not out:
        say(kept["claims"], end="")
        return
    if folders:
        known = [RecordedClaim(**by_field(RecordedClaim, one)) for one in kept["stated"]] if kept else []
        there, source = _measured(folders), source_digest() if known else ""
        entries = ledger(there, examined=True) if options.sensitivity else ledger(there, known, source)
    else:
        entries = [LedgerRow(claim=claim) for claim in registry.in_order("claim")]
    if out is not None:
        path, rows = Path(out), [entry.row() for entry in entries]
        match path.suffix:
            case ".md":
                store.write_text(path, "\n".join(as_markdown(entries)) + "\n")
            case ".html":
                from hmmscope.lab.report.ledger_page import render_ledger

                store.write_text(path, render_ledger(entries))
            case ".json":
                store.write_json(path, rows)
            case _:
                store.write_table(path, rows)
    if not quiet or out is None:
        say("\n".join(as_text(entries)))
    if out is not None:
        say(f"ledger: {out}")


def _measured(names: Sequence[str]) -> list[Path]:
    from hmmscope.lab.verbs.pages import kept_results

    folders = [Path(one) if os.path.lexists(one) or "/" in one else kept_results(one) for one in names]
    begun = [one for one in folders if (one / "parts.jsonl").is_file() and not (one / "findings.json").exists()]
    if len(begun) == len(folders):
        return folders
    for one in begun:
        warnings.warn(f"{one}: left out, because no seed is complete yet", stacklevel=2)
    return [one for one in folders if one not in begun]
