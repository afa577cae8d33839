"""Draw the pictures of docs/speed.md from what `python -m bench curve --out FILE` and `bench people --out FILE` wrote.

Run from the root of the repository:

    python scripts/draw_speed.py results/bench/curve-cpu.json --out docs/img
    python scripts/draw_speed.py results/bench/people-cpu-2026-11-26.json.xz --out docs/img

Cost of a token against tokens, states and symbols: level lines are costs linear in tokens, the dashed lines rise with the
square of the states. Of what people do: ours over the fastest peer, and the shares of the processor's peak; the table of
the page is printed.
"""

import argparse
import json
import lzma
from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from hmmscope.lab.report.series_look import GREY, INK, RULE

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


def size_of(row: dict) -> int:
    """What a point stands above: tokens for lengths and batches."""
    return row["batch"] * row["length"] if row["axis"] in ("length", "batch") else row[row["axis"]]


def draw_panel(axes: Axes, rows: list[dict], names: tuple[str, ...], label: str) -> None:
    """One line for each work and axis, nanoseconds a token."""
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


def draw_people(lines: list[dict], path: Path) -> None:
    """A bar for each work with a peer, and beside it the share of peak where the work is a product; the table is printed."""
    shown = [line for line in lines if line["ratio"] is not None or line["share_of_peak"] is not None]
    figure, (ratios, shares) = plt.subplots(
        1, 2, figsize=(10.5, 1 + 0.24 * len(shown)), sharey=True, layout="constrained"
    )
    names = [
        line["work"].partition(" (")[0] + (f", {line['threads']} threads" if line["threads"] > 1 else "")
        for line in shown
    ]
    places = range(len(shown) - 1, -1, -1)
    over = [line["ratio"] or 1.0 for line in shown]
    ratios.barh(places, [value - 1 for value in over], left=1, color=["#009e73" if x >= 1 else "#d55e00" for x in over])
    ratios.set(xscale="log", xlabel="ours over the fastest peer", yticks=places, yticklabels=names)
    shares.barh(places, [100 * (line["share_of_peak"] or 0) for line in shown], color="#0072b2")
    shares.set(xlim=(0, 100), xlabel="% of the processor's peak")
    for axes in (ratios, shares):
        axes.grid(axis="x", color=RULE, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.margins(y=0.01)
        axes.tick_params(labelsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130, facecolor="white")
    percent = lambda value: "" if value is None else f"{100 * value:.0f} %"  # noqa: E731 - one line, used twice
    print(
        "| work | M/s | share of the limit | share of peak | fastest peer | ours over it |\n|---|---|---|---|---|---|"
    )
    for name, line in zip(names, shown, strict=True):
        ratio = "" if line["ratio"] is None else f"{line['ratio']:.3g}"
        print(
            f"| {name} | {line['rate'] / 1e6:.3g} | {percent(line['share_of_limit'])} "
            f"| {percent(line['share_of_peak'])} | {line['peer'] or ''} | {ratio} |"
        )


def main() -> None:
    """Draw the picture of what the file holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, help="what python -m bench curve or people --out wrote, or that as .xz")
    parser.add_argument("--out", type=Path, required=True, help="folder for the picture")
    arguments = parser.parse_args()
    written = arguments.table.read_bytes()
    table = json.loads(lzma.decompress(written) if arguments.table.suffix == ".xz" else written)
    if "summary" in table:
        draw_people(table["summary"], arguments.out / "speed-people.png")
        return
    rows = [row for row in table["rows"] if row["threads"] == table["rows"][0]["threads"]]
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.6), sharey=True, layout="constrained")
    for axes, (names, label) in zip(panels, PANELS, strict=True):
        draw_panel(axes, rows, names, label)
    panels[0].set_ylabel("nanoseconds a token", color=INK)
    panels[1].set_title("dashed: states squared", fontsize=9, color=GREY)
    panels[0].set_title("dashed: longer; whole: more sequences", fontsize=9, color=GREY)
    handles = [panels[2].get_lines()[i] for i in range(len(LOOKS))]
    panels[2].legend(handles=handles, frameon=False, fontsize=8, loc="upper left")
    path = arguments.out / "cost-curve.png"
    figure.savefig(path, dpi=130, facecolor="white")
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
