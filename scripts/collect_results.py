"""Keep the results of finished experiments: small files for the repository, and the measured part of their pages.

Run from the root of the repository, with the folders of finished experiments:

    python scripts/collect_results.py runs/small/*

    results/<scale>/<experiment>/               experiment.json, findings.json, tables/, figures/*.json
    docs/img/experiments/<experiment>-*.png     the figures
    docs/experiments/measured/<experiment>.md   verdicts, figures, and how to make them again
    docs/experiments/measured/ledger.md         all claims that results/ decides, as `hmmscope claims` says them

Weights stay where they are. What was there for the same experiment and scale is replaced.
"""

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image

from hmmscope.evidence.ledger import ledger
from hmmscope.machine import machine
from hmmscope.report.text import format_interval
from hmmscope.storage import store
from hmmscope.verbs.claims import as_markdown

SCALES = ("paper", "gpu", "small")
MEASURED, PICTURES = Path("docs/experiments/measured"), Path("docs/img/experiments")


def keep(folder: Path) -> Path:
    """Copy the small files of an experiment; the folder that has them."""
    about = store.read_json(folder / "experiment.json")
    out = Path("results") / about["scale"] / about["experiment"]
    if out.exists():
        shutil.rmtree(out)
    for name in ("experiment.json", "findings.json"):
        store.make_folder(out)
        shutil.copyfile(folder / name, out / name)
    for part, pattern in (("tables", "*.jsonl"), ("figures", "*.json")):
        store.make_folder(out / part)
        for path in sorted((folder / part).glob(pattern)):
            shutil.copyfile(path, out / part / path.name)
    if not (out / "machine.json").exists():
        facts = {key: value for key, value in machine().items() if value is not None}
        store.write_json(out / "machine.json", facts)
    return out


def picture(source: Path, target: Path) -> None:
    """A PNG with a palette, a third of the size."""
    buffer = io.BytesIO()
    Image.open(source).convert("RGB").quantize(128).save(buffer, "PNG", optimize=True)
    store.make_folder(target.parent)
    store.write_bytes(target, buffer.getvalue())


def page(folder: Path, kept: Path) -> list[str]:
    """The measured part of an experiment's page."""
    about, facts = store.read_json(kept / "experiment.json"), store.read_json(kept / "machine.json")
    name = about["experiment"]
    seeds = about["config"].get("seeds")
    counted = "" if seeds is None else f", {len(seeds)} {'seed' if len(seeds) == 1 else 'seeds'}"
    lines = [
        "## What was found",
        "",
        f"`{about['command']}`, {about['created']}, scale {about['scale']}{counted}, on {facts['processor']}"
        + (f" with {facts['gpu']}" if "gpu" in facts else f" ({facts['cores']} cores)")
        + f", torch {facts['torch']}. The tables are in `{kept}`. {about['intervals']}",
        "",
        *(["**INVALID: " + about["invalid"] + "**", ""] if about["invalid"] else []),
        "| finding | verdict | number (95 % interval) | what was seen |",
        "|---|---|---|---|",
    ]
    for finding in store.read_json(kept / "findings.json"):
        number = ""
        if finding["value"] is not None:
            value, interval = format_interval(finding["value"], finding["low"], finding["high"])
            number = f"{value} {f'({interval})' if interval else ''} {finding['unit']}".strip()
        cells = [finding["title"], f"**{finding['verdict']}**", number, finding["text"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for path in sorted((kept / "figures").glob("*.json")):
        figure = store.read_json(path)
        target = PICTURES / f"{name}-{path.stem.partition('-')[2]}.png"
        picture(folder / "figures" / f"{path.stem}.png", target)
        lines += ["", f"### {figure['title']}", "", f"![{figure['title']}](../img/experiments/{target.name})", ""]
        lines.append(figure["caption"])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    for folder in parser.parse_args().folders:
        kept = keep(folder)
        lines = page(folder, kept)
        store.make_folder(MEASURED)
        path = MEASURED / f"{kept.name}.md"
        store.write_text(path, "\n".join(lines) + "\n")
        print(f"{kept}  {path}")
    found = [path.parent for scale in SCALES for path in sorted(Path("results", scale).glob("*/experiment.json"))]
    decided = [folder for folder in found if store.read_json(folder / "findings.json") and _decides(folder)]
    store.write_text(MEASURED / "ledger.md", "\n".join(as_markdown(ledger(decided))) + "\n")


def _decides(folder: Path) -> bool:
    from hmmscope.evidence.ledger import claims_of

    return bool(claims_of(store.read_json(folder / "experiment.json")["experiment"]))


if __name__ == "__main__":
    main()
