"""The verb `claims`: what the papers claim, and what experiments found of it."""

from pathlib import Path

from hmmscope import registry
from hmmscope.evidence.ledger import Entry, Stated, as_markdown, as_text, ledger
from hmmscope.machine import source_digest
from hmmscope.storage import store
from hmmscope.text import say
from hmmscope.verbs.catalogue import catalogue
from hmmscope.verbs.endings import new_file


def claims(folders: list[str], out: str | None, quiet: bool) -> None:
    """Print the claims; or with folders of experiments the ledger, and write it if asked to."""
    if out is not None:
        new_file(out, (".md", ".html", ".json", ".jsonl"))
    kept = catalogue()
    if kept and not folders and not out:
        say("" if quiet else kept["claims"], end="")
        return
    if folders:
        known = [Stated(**one) for one in kept["stated"]] if kept else []
        entries = ledger([Path(folder) for folder in folders], known, source_digest() if known else "")
    else:
        entries = [Entry(claim=claim) for claim in registry.in_order("claim")]
    if out is not None:
        path, rows = Path(out), [entry.row() for entry in entries]
        match path.suffix:
            case ".md":
                store.write_text(path, "\n".join(as_markdown(entries)) + "\n")
            case ".html":
                from hmmscope.report.ledger import render_ledger

                store.write_text(path, render_ledger(entries))
            case ".json":
                store.write_json(path, rows)
            case _:
                store.write_table(path, rows)
    if not quiet:
        say("\n".join(as_text(entries)))
    if out is not None:
        say(f"ledger: {out}")
