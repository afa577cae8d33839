"""Typeset the reproduction report: docs/article/article.tex with numbers, tables and figures from the ledger and results/.

    python scripts/article.py [--out build/article]       what `make article` runs

Needs pdflatex (Debian: texlive-latex-recommended, texlive-fonts-recommended and lmodern). Generated files are next to the
PDF.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import kept_results

from hmmscope.lab.evidence.derived import figures_of
from hmmscope.lab.evidence.ledger import read_tables
from hmmscope.lab.evidence.verdicts import DECIDED, answer_of
from hmmscope.lab.experiments.experiment import experiment_named
from hmmscope.lab.report.explorer import without_choices
from hmmscope.lab.report.latex import as_latex
from hmmscope.lab.report.plots import figure_files
from hmmscope.lab.report.series_style import columns

ROOT = Path(__file__).parents[1]
SOURCE, LEDGER = ROOT / "docs" / "article" / "article.tex", ROOT / "results" / "ledger" / "ledger.json"
HEADLINES = ROOT / "tests" / "evidence" / "headlines.txt"
PLANS = ROOT / "protocols" / "undecided.toml"

#: Folders of the experiments whose first figure is shown.
FIGURES = {
    "limits": ("medium/limits-fig2", "medium/limits-fig3", "medium/limits-fig6", "small/limits-law"),
    "multitask": (
        "medium/multitask-fig1",
        "medium/multitask-pool-size@16-8",
        "medium/multitask-fig3b",
        "small/multitask-theorem1",
    ),
}


def markdown(text: str) -> str:
    """Convert a Markdown table cell to LaTeX."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("**", "")
    parts = text.split("`")
    return "".join(code(part) if number % 2 else as_latex(part) for number, part in enumerate(parts))


def code(text: str) -> str:
    return r"\texttt{" + re.sub(r"(?<=\w)-", r"-\\allowbreak{}", as_latex(text)).replace("--", "-{}-") + "}"


def table(widths: Iterable[float], head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Format a table over pages; `widths` are fractions of the line, cells are LaTeX."""
    wide = "".join(rf"L{{{width}\linewidth}}" for width in widths)
    lines = ["{}" + " & ".join(row) + r" \tabularnewline" for row in rows]
    first = " & ".join(rf"\textbf{{{name}}}" for name in head)
    if not lines:
        return "None.\n"
    begin = r"{\footnotesize\setlength{\tabcolsep}{5pt}\begin{longtable}" + f"{{{wide}}}" + r"\toprule"
    return "\n".join([begin, first + r" \tabularnewline\midrule\endhead", *lines, r"\bottomrule\end{longtable}}", ""])


def number(value: float) -> str:
    shown = f"{value:.3g}"
    return as_latex(shown if "e" not in shown else f"{value:.1e}").replace("-", "$-$")


def effect(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return "none"
    return f"{number(row['value'])} [{number(row['low'])}, {number(row['high'])}] {as_latex(row['unit'] or '')}"


def where(row: dict[str, Any]) -> str:
    seeds = f", {row['seeds']} seeds" if row["seeds"] else ""
    return f"{code(row['experiment'])}, {row['scale']}{seeds}"


def short(text: str) -> str:
    """Return the first sentence of a finding."""
    return re.split(r"(?<=[a-z0-9)\]%])\. (?=[A-Z])", text.removeprefix("Undecided: "))[0].rstrip(".") + "."


def decided(rows: list[dict[str, Any]]) -> str:
    """Tabulate decided headlines, the strongest first."""
    order = ("reproduced", "reproduced in sign", "not reproduced", "not at this budget")
    found = sorted((row for row in rows if row["verdict"] in order), key=lambda row: order.index(row["verdict"]))
    cells = (
        (
            as_latex(row["says"]),
            verdict(row),
            effect(row),
            where(row) + (f"; {as_latex(row['budget'])}" if row["budget"] else ""),
        )
        for row in found
    )
    return table((0.33, 0.17, 0.2, 0.22), ("headline", "answer", "effect", "where"), cells)


def verdict(row: dict[str, Any]) -> str:
    marks = [mark for mark, has in (("exploratory", row["exploratory"]), ("fragile", row["fragile"])) if has]
    return rf"\textbf{{{answer_of(row['verdict'])}}}" + (f" ({', '.join(marks)})" if marks else "")


def undecided(rows: list[dict[str, Any]]) -> str:
    found = [row for row in rows if row["verdict"] not in DECIDED]
    cells = (
        (as_latex(row["says"]), answer_of(row["verdict"]), as_latex(short(row["text"])), where(row)) for row in found
    )
    return table((0.31, 0.1, 0.34, 0.19), ("headline", "answer", "why", "where"), cells)


def hours_a_seed(folder: str, rows: list[dict[str, Any]]) -> float:
    """Return core-hours per seed of a stored folder."""
    seeds = next(row["seeds"] for row in rows if row["folder"].partition("results/")[2] == folder)
    found = core_hours(read_tables(kept_results.RESULTS / folder)[1])
    if not found:
        raise SystemExit(f"article: {PLANS.name}: results/{folder} has no core-hours; give hours in the plan")
    return sum(found.values()) / seeds


def what_decides(plan: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Return what to run, and the machine and cost."""
    begin = "" if plan.get("sure", True) else "This test may leave the claim undecided: "
    if "cost" in plan:
        return begin + plan["what"] + ".", plan["cost"]
    if "hours" not in plan and "folder" not in plan:
        return plan["what"], "none"
    hours = plan.get("hours") or hours_a_seed(plan["folder"], rows) * plan.get("times", 1) * plan["seeds"]
    return begin + plan[
        "what"
    ] + ".", f"one core for {hours:.2g} hours" if hours < 99.5 else f"one core for {hours:.0f} hours"


def deciding(rows: list[dict[str, Any]]) -> str:
    """Tabulate plans for undecided headlines; raise SystemExit if a headline has no plan."""
    plans = tomllib.loads(PLANS.read_text())["plans"].values()
    told = {name: plan for plan in plans for name in plan["headlines"]}
    open_rows = [row for row in rows if row["verdict"] not in DECIDED]
    if missing := [row["claim"] for row in open_rows if row["claim"] not in told]:
        raise SystemExit(f"article: {PLANS.name} has no plan that would decide {', '.join(missing)}")
    cells = []
    for plan in plans:
        own = [row["claim"] for row in open_rows if row["claim"] in plan["headlines"]]
        what, cost = what_decides(plan, rows)
        if own:
            cells.append((", ".join(map(code, own)), as_latex(what), as_latex(cost)))
    return table((0.35, 0.38, 0.17), ("undecided headlines", "next test", "machine and cost"), cells)


def sensitivity(rows: list[dict[str, Any]]) -> str:
    """Tabulate power, and the changes that alter a verdict."""
    cells = (
        (
            code(row["claim"]),
            as_latex(row["rule"]),
            "by construction" if row["power"] is None else f"{row['power'][0]:.2f}, {row['power'][1]:.2f}",
            as_latex(", ".join(row["fragile"])) or "nothing that was tried",
        )
        for row in rows
        if row["verdict"] in DECIDED
    )
    return table((0.36, 0.22, 0.13, 0.23), ("claim", "rule", "power", "changes with"), cells)


def appendix(rows: list[dict[str, Any]]) -> str:
    plans = tomllib.loads(PLANS.read_text())["plans"].values()
    told = {name: what_decides(plan, rows) for plan in plans for name in plan["headlines"]}
    return "\n".join(headline(row, told.get(row["claim"])) for row in rows)


def headline(row: dict[str, Any], told: tuple[str, str] | None) -> str:
    """Return a headline's paragraph: verdict first; if undecided, the deciding plan last."""
    parts = [
        rf"\paragraph{{\texttt{{{as_latex(row['claim'])}}}}} {verdict(row)}. {as_latex(row['source'])}.",
        as_latex(row["says"]),
        rf"\emph{{Measured:}} {as_latex(row['reading'])} \emph{{Rule:}} {as_latex(row['rule'])}.",
        rf"\emph{{Effect:}} {effect(row).rstrip()}; {where(row)}.",
        rf"\emph{{Differs:}} {as_latex('; '.join(row['differs']) or 'nothing is trained')}.",
        as_latex(row["text"]),
    ]
    if row["power"] is not None:
        parts.insert(4, rf"\emph{{Power:}} {row['power'][0]:.2f}, {row['power'][1]:.2f}.")
    if row["fragile"]:
        parts.insert(-2, rf"\emph{{Changes with:}} {as_latex(', '.join(row['fragile']))}.")
    if row["verdict"] not in DECIDED and told is not None:
        parts.append(rf"\emph{{Would be decided by:}} {as_latex(told[0])} Machine: {as_latex(told[1])}.")
    return " ".join(parts) + "\n"


def folders(rows: list[dict[str, Any]]) -> list[Path]:
    return sorted({ROOT / row["folder"] for row in rows})


def core_hours(tables: dict[str, Any]) -> dict[str, float]:
    """Return core-hours of each training of a folder by the name of its run; experiments may share runs."""
    runs = ((row["run"], row.get("processor_seconds")) for row in tables.get("runs", ()))
    return {name: seconds / 3600 for name, seconds in runs if seconds is not None}


def runs(rows: list[dict[str, Any]]) -> tuple[str, str, float]:
    """Return tables of runs and of core-hours by paper and scale, and the total; each training counts once."""
    seeds = {row["folder"]: row["seeds"] for row in rows}
    cells, trained, parts = [], dict[str, float](), dict[tuple[str, str], dict[str, float]]()
    for folder in folders(rows):
        about, tables = read_tables(folder)
        own = core_hours(tables)
        part = ("[Limits]" if folder.name.startswith("limits") else "[MultiTask]", about["scale"])
        parts.setdefault(part, {}).update({name: hours for name, hours in own.items() if name not in trained})
        trained |= own
        machine = json.loads((folder / "machine.json").read_text()) if (folder / "machine.json").is_file() else {}
        cells.append(
            (
                code(folder.name),
                as_latex(experiment_named(about["experiment"]).title),
                about["scale"],
                str(seeds[str(folder.relative_to(ROOT))] or "--"),
                number(sum(own.values())) if own else "--",
                as_latex(machine.get("date", "")),
            )
        )
    head = ("experiment", "title", "scale", "seeds", "core-hours", "stored")
    by_part = [
        (paper, scale, str(len(own)), number(sum(own.values()))) for (paper, scale), own in sorted(parts.items()) if own
    ]
    short_table = table((0.2, 0.2, 0.2, 0.2), ("part", "scale", "trainings", "core-hours"), by_part)
    return table((0.25, 0.32, 0.08, 0.06, 0.09, 0.1), head, cells), short_table, sum(trained.values())


def figures(paper: str, out: Path) -> str:
    """Draw the lead figures of a paper from stored tables."""
    parts = []
    for name in FIGURES[paper]:
        folder = kept_results.RESULTS / name
        if not (folder / "findings.json").is_file():
            continue
        about, tables = read_tables(folder)
        drawn = figures_of(about["experiment"], tables)
        if not drawn:
            continue
        width = r"\linewidth" if columns(without_choices(drawn[0])) > 1 else r".5\linewidth"  # at its drawn size
        file = f"{name.replace('/', '-').replace('@', '-')}.pdf"
        (out / file).write_bytes(next(data for path, data in pdf_of(drawn[0])))
        caption = (
            f"{code(folder.name)}, scale {about['scale']}: {as_latex(drawn[0].title)}. {as_latex(drawn[0].caption)}"
        )
        parts.append(
            rf"\begin{{figure}}[htbp]\centering\includegraphics[width={width},height=.8\textheight,keepaspectratio]{{{file}}}"
            rf"\caption{{{caption}}}\end{{figure}}"
        )
    return "\n".join(parts) + "\n"


def pdf_of(figure: Any) -> Iterator[tuple[str, bytes]]:
    return ((name, data) for name, data in figure_files(figure).items() if name.endswith("pdf"))


def table_in(page: Path, heading: str, widths: tuple[float, ...]) -> str:
    """Return the first table under a heading of a page."""
    lines = page.read_text().split(heading + "\n", 1)[1].splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("|"))
    end = next((i for i in range(begin, len(lines)) if not lines[i].startswith("|")), len(lines))
    head, _, *rows = ([markdown(cell.strip()) for cell in line.strip("|").split("|")] for line in lines[begin:end])
    return table(widths, head, rows)


def address(repository: str) -> str:
    return rf"at \url{{{repository}}}" if repository else "in the source distribution of this version"


def generate(out: Path) -> None:
    """Write all files that the LaTeX source includes."""
    names = HEADLINES.read_text().split()
    ledger = {row["claim"]: row for row in json.loads(LEDGER.read_text())}
    rows = [ledger[name] for name in names]
    verdicts = Counter(row["verdict"] for row in rows)
    told, parts, hours = runs(rows)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    counted = {
        "Headlines": len(rows),
        "Reproduced": verdicts["reproduced"],
        "InSign": verdicts["reproduced in sign"],
        "Denied": verdicts["not reproduced"],
        "Budget": verdicts["not at this budget"],
        "NotTested": verdicts["not tested"],
        "Inconclusive": verdicts["inconclusive"],
        "Undecided": sum(row["verdict"] not in DECIDED for row in rows),
        "Decided": sum(row["verdict"] in DECIDED for row in rows),
        "Fragile": sum(bool(row["fragile"]) for row in rows if row["verdict"] in DECIDED),
        "ByConstruction": sum(row["verdict"] in DECIDED and not row["budget"] for row in rows),
        "OnTraining": sum(row["verdict"] in DECIDED and bool(row["budget"]) for row in rows),
        "Exploratory": sum(bool(row["exploratory"]) for row in rows),
        "CoreHours": number(hours),
        "Version": project["version"] if "version" in project else rows[0]["version"],
        "Generated": date.today().isoformat(),
        "Address": address(
            tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hmmscope"]["owner"]["repository"]
        ),
        "Authors": ", ".join(
            as_latex(one["name"]) for one in project.get("authors", [{"name": "the authors of hmmscope"}])
        ),
    }
    written = {
        "numbers": "".join(rf"\newcommand{{\{name}}}{{{value}}}" + "\n" for name, value in counted.items()),
        "runs": told,
        "parts": parts,
        "rows": "".join(
            rf"\row{{{row['claim']}}}{{{row['verdict']}}}{{{effect(row).rstrip()}}}{{{as_latex(row['text'])}}}" + "\n"
            for row in ledger.values()
        ),
        "deciding": deciding(rows),
        "sensitivity": sensitivity(rows),
        "costs": table_in(ROOT / "protocols" / "README.md", "### What has not run", (0.3, 0.14, 0.5)),
        "errata": table_in(ROOT / "docs" / "constructions.md", "## Corrections", (0.17, 0.36, 0.41)),
        "appendix": appendix(rows),
    }
    for paper in FIGURES:
        own = [row for row in rows if row["source"].lower().startswith(f"[{paper}")]
        written |= {
            f"{paper}-decided": decided(own),
            f"{paper}-open": undecided(own),
            f"{paper}-figures": figures(paper, out),
        }
    for name, text in written.items():
        (out / f"{name}.tex").write_text(text)
    shutil.copy(SOURCE, out / SOURCE.name)


def typeset(out: Path) -> None:
    """Run pdflatex until references are stable; report its first error on one line."""
    for _ in range(3):
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", SOURCE.name],
            *(),
            cwd=out,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
        if done.returncode:
            wrong = [line for line in done.stdout.splitlines() if line.startswith(("!", "l."))]
            raise SystemExit(f"article: pdflatex: {' '.join(wrong[:2])} (all of it in {out / 'article.log'})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "article")
    out = parser.parse_args().out
    if shutil.which("pdflatex") is None:
        raise SystemExit(
            "article: needs pdflatex; on Debian: apt install texlive-latex-recommended texlive-fonts-recommended lmodern"
        )
    out.mkdir(parents=True, exist_ok=True)
    generate(out)
    typeset(out)
    print(out / "article.pdf", file=sys.stdout)


if __name__ == "__main__":
    main()
