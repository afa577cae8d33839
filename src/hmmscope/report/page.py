"""One HTML page of one experiment or several: whole in a single file, and for any reader, without a network.

The content policy lets two scripts run, by their digests, and lets nothing be fetched. Text from the folders reaches
the page in two ways only: through Jinja's escaping, and as JSON in which no character can end the element around it.
"""

import base64
import hashlib
import json
import os
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from hmmscope.errors import InputError, ResourceError
from hmmscope.evidence.figures import Explorer, Figure, Lines, Panel
from hmmscope.report import look, text
from hmmscope.report.compare import compare
from hmmscope.report.differences import (
    MOST_ROWS,
    config_rows,
    finding_rows,
    finding_view,
    num_seeds,
    verdict_summary,
)
from hmmscope.report.explorer import first_text, first_values
from hmmscope.report.folder import Experiment, Table, read_experiment
from hmmscope.report.interactive import panel_plot
from hmmscope.storage import store
from hmmscope.text import visible

NUM_ROWS = 200
LONG = 12  # rows of a table that scrolls in a box of its own


def write_page(folders: list[Path], out: Path) -> Path:
    """Write the page of the experiments in `folders` to `out`, replacing it at once and whole; returns `out`.

    Of several experiments each has a section, after the figures they have in common drawn together.

    Raises:
        InputError: no folder, one given twice, or a file missing.
        DamagedError: a file that is not what it should be.
        ResourceError: Plotly is not installed, or the disk does not allow it.
    """
    if not folders:
        raise InputError("report: needs the folder of an experiment")
    bundle = _plotly()
    experiments = [read_experiment(Path(folder)) for folder in folders]
    store.write_text(Path(out), render_page(experiments, bundle))
    return Path(out)


def render_page(experiments: list[Experiment], bundle: str) -> str:
    """The page as text, with the script `bundle` that defines Plotly."""
    labels = _labels([experiment.path for experiment in experiments])
    plots: list[dict[str, Any]] = []
    compared = []
    if len(experiments) > 1:
        from hmmscope.report.plots import figure_png

        figures = compare(
            {
                label: [drawn.figure for drawn in experiment.figures]
                for label, experiment in zip(labels, experiments, strict=True)
            }
        )
        compared = [_figure(figure, figure_png(figure), plots) for figure in figures]
    together = _together(experiments, labels)
    sections = [_section(one, label, plots) for one, label in zip(experiments, labels, strict=True)]
    script, style = resource("page.js"), resource("page.css")
    return template("page.html.j2").render(
        sections=sections,
        compared=compared,
        together=together,
        footers=list(dict.fromkeys((one.about.version, one.about.intervals) for one in experiments)),
        policy=policy([bundle, script]),
        bundle=Markup(bundle),
        script=Markup(script),
        style=Markup(style),
        plots=Markup(json_element(plots)),
    )


def _together(experiments: list[Experiment], labels: list[str]) -> dict[str, Any] | None:
    """What the page says of several runs of one experiment; None where there is one run, or they are of several."""
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


def _section(experiment: Experiment, label: str, plots: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "label": label,
        "about": experiment.about,
        "config": json.dumps(experiment.config, indent=2, ensure_ascii=False),
        "seeds": num_seeds(experiment),
        "verdicts": verdict_summary(experiment.findings),
        "findings": [finding_view(finding) for finding in experiment.findings],
        "figures": [_figure(drawn.figure, drawn.png, plots) for drawn in experiment.figures],
        "tables": [_table(table, label) for table in experiment.tables],
    }


def _figure(figure: Figure, png: bytes, plots: list[dict[str, Any]]) -> dict[str, Any]:
    """What the template shows of a figure; its panels are added to `plots`, where the script finds them by number."""
    found = look.looks(figure)
    bars = not any(isinstance(panel, Lines) for panel in figure.panels)
    columns = {1: 1, 2: 2, 4: 2}.get(len(figure.panels), 3)
    panels = []
    for panel in figure.panels:
        panels.append({"title": panel.title, "number": len(plots), "choices": _choices(panel)})
        plots.append(panel_plot(panel, found, columns))
    return {
        "title": figure.title,
        "caption": figure.caption,
        "hidden": sum(panel.num_hidden for panel in figure.panels if isinstance(panel, Lines | Explorer)),
        "cut": sum(panel.num_cut for panel in figure.panels if isinstance(panel, Lines | Explorer)),
        "picture": [words for panel in figure.panels if isinstance(panel, Explorer) for words in _picture(panel)],
        "png": base64.b64encode(png).decode(),
        "panels": panels,
        "columns": columns,
        "legend": [
            {
                "name": name,
                "look": how,
                "path": look.MARKER_PATHS.get(how.marker, ""),
                "dash": " ".join(f"{1.5 * part:g}" for part in how.dash),
                "bar": bars and role not in look.MARKS,
            }
            for (role, name), how in found.items()
        ],
    }


def _choices(panel: Panel) -> list[dict[str, Any]]:
    """The lists of an explorer; other panels have none."""
    if not isinstance(panel, Explorer):
        return []
    return [
        {
            "name": name,
            "options": panel.options(name),
            "all": name == panel.overlay and len(panel.options(name)) > 1,
            "first": panel.first(name),
        }
        for name in panel.choices
    ]


def _picture(panel: Explorer) -> list[str]:
    """What the picture of an explorer shows, for those who have the page on paper; nothing where that is all of it."""
    if not first_text(panel):
        return []
    overlaid = f"every {panel.overlay} at " if len(panel.options(panel.overlay)) > 1 else ""
    chosen = ", ".join(f"{choice} {value}" for choice, value in first_values(panel).items())
    return [f"{panel.title}: {overlaid}{chosen}" if panel.title else f"{overlaid}{chosen}"]


def _table(table: Table, label: str) -> dict[str, Any]:
    columns = list(dict.fromkeys(column for row in table.rows for column in row))
    shown = table.rows[:NUM_ROWS]
    numeric = {column: all(isinstance(row.get(column), int | float | None) for row in shown) for column in columns}
    return {
        "name": table.name,
        "columns": [(column, numeric[column]) for column in columns],
        "rows": [[(text.format_cell(row.get(column)), numeric[column]) for column in columns] for row in shown],
        "long": len(shown) > LONG,
        "count": len(table.rows),
        "place": f"{label}/tables/{table.name}.jsonl",
    }


def _labels(paths: list[Path]) -> list[str]:
    """The last parts of each path, as many as it takes to tell them apart."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    if len(set(parts)) < len(parts):
        raise InputError("report: the same folder is given twice")
    count = 1
    while len({part[-count:] for part in parts}) < len(parts):
        count += 1
    return ["/".join(part[-count:]).strip("/") or "experiment" for part in parts]


def json_element(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or a line of script."""
    dumped = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII, so U+2028 and U+2029 are escaped
    for char in "<>&":
        dumped = dumped.replace(char, f"\\u{ord(char):04x}")
    return dumped


def template(name: str) -> jinja2.Template:
    """A template of this folder, which escapes what it is given and shows what could act instead of being read."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hmmscope.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def policy(scripts: list[str]) -> str:
    """The content policy: these scripts, images inside the file, and nothing fetched from anywhere.

    Plotly places its labels by style attributes, so styles inside the page are allowed; they cannot fetch either.
    """
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def resource(name: str) -> str:
    return "\n" + resources.files("hmmscope.report").joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    """The script of Plotly, as it may stand inside an element."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ResourceError("the page needs plotly: pip install 'hmmscope[report]'") from None
    return "\n" + get_plotlyjs().replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")
