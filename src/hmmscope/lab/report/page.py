"""The HTML page of one or several experiments, in a single file that needs no network.

Its content security policy allows only its own scripts (by digest) and no network access.
"""

import base64
import functools
import hashlib
import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from hmmscope.errors import InputError
from hmmscope.lab.evidence.answers import MEANINGS, UNSETTLED
from hmmscope.lab.evidence.figure import Explorer, Figure, Lines
from hmmscope.lab.evidence.finding import UNJUDGED, asked_by
from hmmscope.lab.evidence.verdicts import DECIDED, OF_QUESTIONS, answer_of
from hmmscope.lab.report import formatting as text
from hmmscope.lab.report.compare import compare
from hmmscope.lab.report.differences import (
    MOST_ROWS,
    config_rows,
    finding_rows,
    finding_view,
    num_seeds,
    verdict_summary,
)
from hmmscope.lab.report.folder import ExperimentFolder, StoredTable, read_experiment
from hmmscope.lab.report.interactive import figure_data
from hmmscope.lab.report.state_diagram import picture
from hmmscope.storage import seals, store
from hmmscope.text import visible

#: Scripts of the interactive section, in loading order.
LIVE_SCRIPTS = tuple(
    f"live/{name}.js" for name in ("numbers", "network", "process", "session", "pictures", "timeline", "explore")
)
NUM_ROWS = 200
LONG = 12  # rows from which a table scrolls in its own box


def write_page(folders: list[Path], out: Path) -> Path:
    """Write the page of the experiments in `folders` to `out` atomically, and return `out`.

    If `out` is inside a folder with checksums (`hmmscope.storage.seals`), the page's checksum is added.
    """
    if not folders:
        raise InputError("report: no folder is given; give the folder of an experiment")
    return write_page_of([read_experiment(Path(folder)) for folder in folders], Path(out))


def write_page_of(experiments: list[ExperimentFolder], out: Path) -> Path:
    store.write_text(out, render_page(experiments))
    seals.cover(out)
    return out


def render_page(experiments: list[ExperimentFolder]) -> str:
    labels = _labels([experiment.path for experiment in experiments])
    figures: list[dict[str, Any]] = []
    compared = []
    if len(experiments) > 1:
        found = {label: list(one.figures) for label, one in zip(labels, experiments, strict=True)}
        compared = [figure_view(figure, figures, "compared", "compared") for figure in compare(found)]
    sections = [
        _section(one, label, figures, f"experiment-{number}")
        for number, (one, label) in enumerate(zip(experiments, labels, strict=True), 1)
    ]
    live = experiments[0].live if len(experiments) == 1 else None
    scripts = ["theme.js", "chart.js", "page.js", *((*LIVE_SCRIPTS, "live/start.js") if live else ())]
    texts = [resource(name) for name in scripts]
    styles = ["base.css", "page.css", *(["live/explore.css"] if live else [])]
    return template("page.html.j2").render(
        sections=sections,
        compared=compared,
        together=_together(experiments, labels),
        footers=list(dict.fromkeys((one.about.version, one.about.intervals) for one in experiments)),
        policy=policy(texts),
        scripts=[Markup(script) for script in texts],
        style=Markup("".join(map(resource, styles))),
        figures=Markup(json_element(figures)),
        unjudged=UNJUDGED,
        meanings=MEANINGS,
        live=live,
        live_data=Markup(json_element(live)),
        triangular=live is not None and is_triangular(live),
    )


def _together(experiments: list[ExperimentFolder], labels: list[str]) -> dict[str, Any] | None:
    if len(experiments) == 1 or len({one.about.experiment for one in experiments}) > 1:
        return None
    rows = config_rows(experiments)
    return {
        "labels": labels,
        "rows": rows[:MOST_ROWS],
        "left_out": len(rows) - len(rows[:MOST_ROWS]),
        "verdicts": [verdict_summary(one.findings) for one in experiments],
        "findings": finding_rows(experiments),
    }


def _section(experiment: ExperimentFolder, label: str, data: list[dict[str, Any]], anchor: str) -> dict[str, Any]:
    findings = [finding_view(finding, num_seeds(experiment)) for finding in experiment.findings]
    figures = [figure_view(figure, data, anchor, experiment.about.experiment) for figure in experiment.figures]
    findings.sort(key=lambda finding: answer_of(finding["verdict"]) in UNSETTLED)
    return {
        "anchor": anchor,
        "label": label,
        "about": experiment.about,
        "config": json.dumps(experiment.config, indent=2, ensure_ascii=False),
        "seeds": num_seeds(experiment),
        "verdicts": verdict_summary(experiment.findings),
        "lead": _lead(findings[0]) if findings else None,
        "findings": findings,
        "figures": figures,
        "fitted": None if experiment.fitted is None else picture(experiment.fitted),
        "tables": [_table(table, label) for table in experiment.tables],
    }


def _lead(finding: dict[str, Any]) -> dict[str, Any]:
    asks = finding["verdict"] in OF_QUESTIONS or finding["verdict"] not in DECIDED
    return finding | {"text": _first_sentence(finding["text"]) if asks and finding["verdict"] != "not tested" else ""}


def _first_sentence(words: str) -> str:
    found = re.match(r".*?[.!?](?=\s+[A-Z]|\s*$)", words, re.DOTALL)
    return found.group() if found else words


def figure_view(figure: Figure, data: list[dict[str, Any]], section: str, experiment: str) -> dict[str, Any]:
    data.append(figure_data(figure) | {"name": visible(f"{experiment}-{figure.name}")})
    axes = [panel for panel in figure.panels if isinstance(panel, Lines | Explorer)]
    return {
        "number": len(data) - 1,
        "anchor": f"{section}-{figure.name}",
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "columns": data[-1]["columns"],
        "hidden": sum(panel.num_hidden for panel in axes),
        "cut": sum(panel.num_cut for panel in axes),
    }


def _table(table: StoredTable, label: str) -> dict[str, Any]:
    columns = list(dict.fromkeys(column for row in table.rows for column in row))
    shown = table.rows[:NUM_ROWS]
    numeric = {column: all(isinstance(row.get(column), int | float | None) for row in shown) for column in columns}
    return {
        "name": table.name,
        "columns": [(column, numeric[column]) for column in columns],
        "rows": [[_cell(row.get(column), numeric[column]) for column in columns] for row in shown],
        "long": len(shown) > LONG,
        "count": len(table.rows),
        "place": f"{label}/tables/{table.name}.jsonl",
    }


def _cell(value: Any, right: bool) -> tuple[str, bool, str | None]:
    shown = text.format_cell(value)
    return shown, right, repr(value) if isinstance(value, float) and repr(value) != shown else None


def _labels(paths: list[Path]) -> list[str]:
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    if len(set(parts)) < len(parts):
        raise InputError("report: the same folder is given twice; give each folder once")
    count = 1
    while len({part[-count:] for part in parts}) < len(parts):
        count += 1
    return ["/".join(part[-count:]).strip("/") or "experiment" for part in parts]


def json_element(value: Any) -> str:
    dumped = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII escapes U+2028 and U+2029
    for char in "<>&":
        dumped = dumped.replace(char, f"\\u{ord(char):04x}")
    return dumped


@functools.cache
def template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hmmscope.lab.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"asked_by": asked_by, "answer": answer_of}
    return environment.get_template(name)


def policy(scripts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    own = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {own}"


def resource(name: str) -> str:
    return "\n" + resources.files("hmmscope.lab.report").joinpath(name).read_text(encoding="utf-8")


def is_triangular(live: dict[str, Any]) -> bool:
    return len(live["process"]["states"]) == 3 and not live["process"]["mixture"]
