"""Draw the pictures of docs/speed.md from tables of `python -m bench curve --out FILE` and `bench people --out FILE`.

Run from the root of the repository:

    python scripts/draw_speed.py results/bench/curve-cpu.json --out docs/img
    python scripts/draw_speed.py results/bench/people-*.json.xz --out docs/img/experiments --page docs/static/speed-table.md

The second also prints the ranges that README and pages quote.

One picture has costs per token against tokens, states and symbols: level lines mean a cost linear in tokens, and dashed
lines rise with the square of the states. The other has common uses by machine: our speed divided by that of the fastest
peer, and fractions of the processor's peak.
"""

import argparse
import itertools
import json
import lzma
import re
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from hmmscope.lab.report.series_style import GREY, INK, RULE

LOOKS = {
    "filtering, float64": ("#d55e00", "s"),
    "filtering, float32": ("#0072b2", "o"),
    "sampling": ("#009e73", "^"),
}
PANELS = (
    (("length", "batch"), "tokens at once"),
    (("states",), "states"),
    (("symbols",), "symbols"),
)
STYLES = {"length": (4, 2), "batch": ()}
#: Colour and shape of the points of each machine.
MACHINES = (("#d55e00", "o"), ("#0072b2", "s"), ("#009e73", "^"))


#: Page, quoted words, and a pattern of the lines with the quoted range: rates in million per second, or ratios.
QUOTES = (
    ("README.md", "filters {rate} million symbols per second exactly (8 states", r"filtering, 8 states, .*, float64"),
    ("README.md", "{ratio} times as fast as with torch", r"step, decoder \d x 64\b(?!.*bfloat16).*"),
    ("docs/training.md", "{ratio} times as fast", r"step, (?!.*bfloat16).*"),
)


def size_of(row: dict) -> int:
    """Return the x value of a point: tokens for lengths and batches."""
    return row["batch"] * row["length"] if row["axis"] in ("length", "batch") else row[row["axis"]]


def draw_panel(axes: Axes, rows: list[dict], names: tuple[str, ...], label: str) -> None:
    """Draw nanoseconds per token, a line for each work and axis."""
    for work, (color, marker) in LOOKS.items():
        for name in names:
            curve = [row for row in rows if (row["work"], row["axis"]) == (work, name)]
            line = axes.plot(
                [size_of(row) for row in curve],
                [row["nanoseconds_per_token"] for row in curve],
                color=color,
                marker=marker,
                markersize=4,
                linewidth=1.5,
                label=work,
            )[0]
            if STYLES.get(name):
                line.set_dashes(STYLES[name])
            if name == "states" and work != "sampling":
                most, cost = curve[-1]["states"], curve[-1]["nanoseconds_per_token"]
                axes.plot([most / 8, most], [cost / 64, cost], color=GREY, linewidth=1, dashes=(2, 2))
    axes.set(xscale="log", yscale="log", xlabel=label)
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value:g}" if value < 1e4 else f"{value / 1e3:g}k" if value < 1e6 else f"{value / 1e6:g}M"
    )
    axes.grid(color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def name_of(line: dict) -> str:
    threads = f", {line['threads']} threads" if line["threads"] > 1 else ""
    return f"{line['work'].partition(' (')[0]}{threads}"


def machine_of(table: dict) -> str:
    machine = table["machine"]
    maker, model = machine["processor"].partition("(R)")[0], machine["processor_model"].partition(" step")[0]
    return f"{maker}, {model}, {machine['date']}"


def shown_by_machine(tables: list[dict]) -> dict[str, dict[str, dict]]:
    """Group lines with a peer or a fraction of peak by work and machine."""
    found: dict[str, dict[str, dict]] = {}
    for table in tables:
        for line in table["summary"]:
            if line["ratio"] is not None or line["share_of_peak"] is not None:
                found.setdefault(name_of(line), {})[machine_of(table)] = line
    return found


def draw_people(tables: list[dict], path: Path) -> None:
    """Draw, by machine, our speed divided by the fastest peer's, and the fraction of the processor's peak."""
    shown, machines = shown_by_machine(tables), [machine_of(table) for table in tables]
    figure, both = plt.subplots(1, 2, figsize=(10.5, 1.2 + 0.17 * len(shown)), sharey=True, layout="constrained")
    for (key, factor), axes in zip((("ratio", 1), ("share_of_peak", 100)), both, strict=True):
        for machine, (colour, marker) in zip(machines, itertools.cycle(MACHINES), strict=False):
            of = {name: lines[machine][key] for name, lines in shown.items() if machine in lines}
            points = [
                (factor * value, -place) for place, name in enumerate(shown) if (value := of.get(name)) is not None
            ]
            axes.scatter(*zip(*points, strict=True), s=14, color=colour, marker=marker, label=machine, zorder=3)
        axes.grid(color=RULE, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.margins(y=0.01)
        axes.tick_params(labelsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    both[0].axvline(1, color=INK, linewidth=1)
    both[0].set(
        xscale="log", xlabel="our speed / fastest peer", yticks=range(0, -len(shown), -1), yticklabels=list(shown)
    )
    both[1].set(xlim=(0, 105), xlabel="% of the processor's peak")
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside upper left", frameon=False, fontsize=8, ncols=2)
    figure.savefig(path, dpi=130, facecolor="white")


def people(tables: list[dict]) -> list[str]:
    """Return the table in Markdown: million per second, fraction of peak, fastest peer, and our speed divided by it."""
    machines = [machine_of(table) for table in tables]
    lines = [
        "| work | " + " | ".join(f"{machine}: million a second | over the fastest peer" for machine in machines) + " |",
        "|---" * (1 + 2 * len(machines)) + "|",
    ]
    for name, by_machine in shown_by_machine(tables).items():
        cells = []
        for line in (by_machine.get(machine) for machine in machines):
            rate = "" if line is None else f"{line['rate'] / 1e6:.3g}"
            if line is not None and line["share_of_peak"] is not None:
                rate += f" ({100 * line['share_of_peak']:.0f} % of peak)"
            ratio = "" if line is None or line["ratio"] is None else f"{line['ratio']:.3g}"
            ratio = f"**{ratio}**" if ratio and line is not None and line["ratio"] < 1 else ratio
            cells += [rate, f"{ratio} ({line['peer']})" if ratio and line is not None else ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def quoted(tables: list[dict]) -> list[tuple[str, str]]:
    """Return page and words of each quote, with ranges over machines and shapes."""
    found = []
    for page, words, pattern in QUOTES:
        of_work = (by.values() for name, by in shown_by_machine(tables).items() if re.fullmatch(pattern, name))
        lines = [line for by in of_work for line in by]
        ranges = {"rate": [line["rate"] / 1e6 for line in lines], "ratio": [line["ratio"] for line in lines]}
        found.append((page, words.format(**{key: f"{min(v):.2g} to {max(v):.2g}" for key, v in ranges.items()})))
    return found


def read(path: Path) -> dict:
    """Read a table of the benchmark, as .json or .xz."""
    written = path.read_bytes()
    found: dict = json.loads(lzma.decompress(written) if path.suffix == ".xz" else written)
    return found


def put_table(page: Path, tables: list[dict]) -> None:
    """Write the table into its place in a page."""
    begin, end = "<!-- people: made by scripts/draw_speed.py -->", "<!-- end -->"
    before, _, rest = page.read_text("utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text("\n".join([before + begin, "", *people(tables), "", end + after]), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "tables",
        type=Path,
        nargs="+",
        help="table from `python -m bench curve --out` or `people --out`, or the same as .xz",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the picture")
    parser.add_argument("--page", type=Path, help="page with the table of common uses to replace")
    arguments = parser.parse_args()
    tables = [read(path) for path in arguments.tables]
    table = tables[0]
    if "summary" in table:
        draw_people(tables, arguments.out / "speed-people.png")
        if arguments.page is not None:
            put_table(arguments.page, tables)
        print("\n".join(f"{page}: {words}" for page, words in quoted(tables)))
        return
    rows = [row for row in table["rows"] if row["threads"] == table["rows"][0]["threads"]]
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.6), sharey=True, layout="constrained")
    for axes, (names, label) in zip(panels, PANELS, strict=True):
        draw_panel(axes, rows, names, label)
    panels[0].set_ylabel("nanoseconds per token", color=INK)
    panels[1].set_title("dashed: states squared", fontsize=9, color=GREY)
    panels[0].set_title("dashed: longer; solid: more sequences", fontsize=9, color=GREY)
    handles = [panels[2].get_lines()[i] for i in range(len(LOOKS))]
    panels[2].legend(handles=handles, frameon=False, fontsize=8, loc="upper left")
    path = arguments.out / "cost-curve.png"
    figure.savefig(path, dpi=130, facecolor="white")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
