"""Draw the pictures of the pages on processes: diagrams, the beliefs of Mess3, heat maps, groups.

Run from the root of the repository:

    OMP_NUM_THREADS=1 python scripts/draw_families.py --out docs/img

Everything is drawn from the processes themselves, with fixed seeds, so that a second run gives the same pictures.
"""

import argparse
import io
import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch
from numpy.typing import NDArray
from PIL import Image

import hmmscope as hs
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.scatter_data import BeliefPlane
from hmmscope.lab.report.plots import figure_files
from hmmscope.lab.report.series_style import GREY, INK
from hmmscope.processes.automata import multiplication_table

COLORS = ("#0072b2", "#d55e00", "#009e73", "#b5539a")
HEAT = "viridis"

#: An edge of a diagram: from, to, text.
Edge = tuple[int, int, str]


def turned(vector: NDArray, degrees: float) -> NDArray:
    """Rotate a vector anticlockwise."""
    angle = math.radians(degrees)
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]) @ vector


def diagram(
    axes: Axes,
    places: NDArray,
    names: list[str],
    edges: list[Edge],
    *,
    radius: float = 0.2,
    bends: dict[tuple[int, int], tuple[float, float]] | None = None,
) -> None:
    """Draw states as circles and edges as bent arrows with text; loops point away from the middle.

    Edges with a return edge bend right, others outwards; `bends` sets (bend, text position) of single edges.
    """
    middle = places.mean(0)
    both_ways = {(a, b) for a, b, _ in edges} & {(b, a) for a, b, _ in edges}
    for a, b, label in edges:
        if a == b:
            out = (places[a] - middle) / np.linalg.norm(places[a] - middle)
            ends = [places[a] + radius * turned(out, angle) for angle in (46, -46)]
            bend, at = -1.9, places[a] + out * (radius + 0.62)
        else:
            along = (places[b] - places[a]) / np.linalg.norm(places[b] - places[a])
            side = np.array([along[1], -along[0]])
            outwards = 1 if (places[a] + places[b]) @ side / 2 >= middle @ side else -1
            bend, share = (bends or {}).get((a, b), (0.32 if (a, b) in both_ways else 0.15 * outwards, 0.5))
            leave = math.copysign(min(60, 70 * abs(bend)), bend)
            ends = [places[a] + radius * turned(along, -leave), places[b] - radius * turned(along, leave)]
            chord = ends[1] - ends[0]
            control = (ends[0] + ends[1]) / 2 + bend * np.array([chord[1], -chord[0]])
            at = (1 - share) ** 2 * ends[0] + 2 * share * (1 - share) * control + share**2 * ends[1]
            at = at + side * (math.copysign(0.17 + 0.16 * abs(side[0]), bend if bend else 1.0))
        style = {"arrowstyle": "-|>", "mutation_scale": 11, "shrinkA": 0, "shrinkB": 0, "linewidth": 1.1}
        axes.add_patch(FancyArrowPatch(*ends, connectionstyle=f"arc3,rad={bend}", color=INK, **style))
        axes.text(*at, label, ha="center", va="center", fontsize=9, color=COLORS[0])
    for place, name in zip(places, names, strict=True):
        axes.add_patch(Circle(place, radius, facecolor="white", edgecolor=INK, linewidth=1.3, zorder=3))
        axes.text(*place, name, ha="center", va="center", fontsize=11, color=INK, zorder=4)


def chance(probability: float) -> str:
    fraction = Fraction(probability).limit_denominator(6)
    return str(fraction) if abs(float(fraction) - probability) < 1e-6 else f"{probability:.3g}"


def emitting_edges(process: hs.LabelledHMM) -> list[Edge]:
    """Return edges with symbols and probabilities, one line per symbol."""
    lines: dict[tuple[int, int], list[str]] = {}
    for v, i, j in (process.labelled > 0).nonzero().tolist():
        lines.setdefault((i, j), []).append(f"{v} : {chance(float(process.labelled[v, i, j]))}")
    return [(i, j, "\n".join(text)) for (i, j), text in lines.items()]


def ring(count: int, scale: float, start: float = 90.0) -> NDArray:
    angles = np.radians(start) - 2 * math.pi * np.arange(count) / count
    return scale * np.stack([np.cos(angles), np.sin(angles)], 1)


def draw_textbook(path: Path) -> None:
    """Draw the small processes of computational mechanics, with symbol and probability on each edge."""
    two = np.array([[-0.65, 0.0], [0.65, 0.0]])
    five = np.array([[-1.9, 0.0], [0.0, 0.75], [0.0, -0.75], [1.9, 0.75], [1.9, -0.75]])
    around = {(3, 0): (0.45, 0.5), (4, 0): (-0.45, 0.5), (1, 4): (0.0, 0.24), (2, 3): (0.0, 0.24)}
    around |= {(1, 3): (-0.05, 0.5), (2, 4): (0.05, 0.5), (0, 1): (0.05, 0.55), (0, 2): (-0.05, 0.55)}
    panels = [  # left, bottom, width, height, in units of the diagrams
        ("golden-mean", "golden mean: no two zeros", two, (0.0, 4.1, 3.6, 1.3), {}),
        ("even", "even: ones in pairs", two, (3.6, 4.1, 3.6, 1.3), {}),
        ("simple-nonunifilar", "simple non-unifilar", two, (7.2, 4.1, 3.6, 1.3), {}),
        ("z1r", "zero, one, random", ring(3, 0.8), (0.2, 0.2, 3.4, 3.3), {}),
        ("rrxor", "random, random, XOR", five, (4.4, 0.0, 5.8, 3.6), around),
    ]
    width, height = 10.8, 5.8
    figure = plt.figure(figsize=(0.85 * width, 0.85 * height))
    for name, title, places, (left, bottom, wide, high), bends in panels:
        process = hs.make_process(name)
        assert isinstance(process, hs.LabelledHMM)
        axes = figure.add_axes((left / width, bottom / height, wide / width, high / height))
        diagram(axes, places, list(process.states or ()), emitting_edges(process), bends=bends)
        axes.set(xlim=(-wide / 2, wide / 2), ylim=(-high / 2, high / 2), aspect="equal")
        axes.set_title(title, fontsize=11, color=INK)
        axes.axis("off")
    save(figure, path)


def draw_mess3(path: Path) -> None:
    """Draw beliefs of Mess3, one point per position."""
    panels = []
    for switch, emission in ((0.05, 0.85), (0.05, 0.7), (0.15, 0.6)):
        process = hs.make_process("mess3", switch=switch, emission=emission)
        observations = hs.ProcessDataset(process, length=60, seed=0)[0:400].observations
        beliefs = hs.filter_beliefs(process, observations).beliefs[:, 12:].flatten(0, 1).numpy()
        panels.append(BeliefPlane.triangle(f"switch {switch}, emission {emission}", beliefs, beliefs))
    drawn = figure_files(Figure(name="mess3", title="", caption="", panels=tuple(panels)), style="web")["png"]
    Image.open(io.BytesIO(drawn)).convert("RGB").quantize(128).save(path, "PNG", optimize=True)


def heat(axes: Axes, matrix: NDArray, title: str, *, top: float | None = None) -> None:
    picture = axes.imshow(matrix, cmap=HEAT, vmin=0, vmax=top or matrix.max(), interpolation="nearest")
    axes.set_title(title, fontsize=10, color=INK)
    axes.set_xlabel("next state", fontsize=9, color=GREY)
    axes.set_ylabel("state", fontsize=9, color=GREY)
    axes.tick_params(labelsize=8, colors=GREY, length=2)
    bar = axes.figure.colorbar(picture, ax=axes, fraction=0.046, pad=0.03)
    bar.ax.tick_params(labelsize=8, colors=GREY, length=2)
    bar.outline.set_visible(False)


def draw_random(path: Path) -> None:
    """Draw transition matrices: the paper's concentration, a milder one, and rank two."""
    sizes = {"num_components": 1, "num_states": 32, "num_symbols": 16}
    sharp = hs.make_process("random-mixture", transition_concentration=0.01, **sizes)
    mild = hs.make_process("random-mixture", transition_concentration=1.0, **sizes)
    low = hs.make_process("low-rank-hmm", num_states=32, num_symbols=16, rank=2, transition_concentration=0.3)
    assert isinstance(sharp, hs.Mixture) and isinstance(mild, hs.Mixture) and isinstance(low, hs.HMM)  # noqa: PT018
    figure, parts = plt.subplots(1, 3, figsize=(11.0, 3.3), layout="constrained")
    heat(parts[0], sharp[0].transition.numpy(), "random-mixture, concentration 0.01", top=1)
    heat(parts[1], mild[0].transition.numpy(), "random-mixture, concentration 1")
    heat(parts[2], low.transition.numpy(), "low-rank-hmm, rank 2, concentration 0.3")
    save(figure, path)


def draw_ginc(path: Path) -> None:
    """Draw property transitions of two concepts, and all states of one."""
    mixture = hs.make_process("ginc", num_components=2)
    assert isinstance(mixture, hs.Mixture)
    figure, parts = plt.subplots(1, 3, figsize=(11.0, 3.3), layout="constrained")
    for m in range(2):
        transition = mixture[m].transition.view(10, 10, 10, 10)
        heat(parts[m], transition.sum(3).mean(1).numpy(), f"concept {m}: properties")
        parts[m].set(xlabel="next property", ylabel="property")
    heat(parts[2], mixture[0].transition.numpy(), "concept 0: (property, entity)")
    save(figure, path)


def orders(table: NDArray) -> list[int]:
    """Return the order of each element of a group."""
    found = []
    for element in range(len(table)):
        power, count = element, 1
        while power:
            power, count = int(table[element, power]), count + 1
        found.append(count)
    return found


def draw_groups(path: Path) -> None:
    """Draw state transitions of word problems with two generators: S3 (prism), A5 (truncated icosahedron)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 4.4))
    table = multiplication_table("S3")
    order = orders(table)
    swap, turn = order.index(2), order.index(3)
    inner = [0, turn, int(table[turn, turn])]
    outer = [int(table[swap, g]) for g in inner]
    places = np.zeros((6, 2))
    places[inner], places[outer] = ring(3, 0.55), ring(3, 1.25)
    for g in range(6):
        for colour, generator in enumerate((swap, turn)):
            target = int(table[generator, g])
            style = {"arrowstyle": ("-", "-|>")[colour], "mutation_scale": 13, "shrinkA": 13, "shrinkB": 13}
            left.add_patch(FancyArrowPatch(places[g], places[target], color=COLORS[colour], linewidth=1.5, **style))
        left.add_patch(Circle(places[g], 0.13, facecolor="white", edgecolor=INK, linewidth=1.2, zorder=3))
        left.text(*places[g], str(g), ha="center", va="center", fontsize=10, color=INK, zorder=4)
    left.set(xlim=(-1.4, 1.4), ylim=(-0.95, 1.5), aspect="equal")
    left.set_title("S3: a swap, a turn of order 3", fontsize=11, color=INK)
    _draw_a5(right)
    for axes, names in ((left, ("swap", "turn")), (right, ("order 2", "order 5"))):
        for colour, name in enumerate(names):
            axes.plot([], [], color=COLORS[colour], label=name)
        axes.legend(frameon=False, loc="lower center", ncols=2, bbox_to_anchor=(0.5, -0.1), fontsize=10)
        axes.axis("off")
    save(figure, path)


def _draw_a5(axes: Axes) -> None:
    """Draw generators a of order 5 and b of order 2 with (ab)^3 = 1, placed by eigenvectors."""
    table = multiplication_table("A5")
    order = orders(table)
    pairs = itertools.product((a for a in range(60) if order[a] == 5), (b for b in range(60) if order[b] == 2))
    turn, swap = next((a, b) for a, b in pairs if order[table[a, b]] == 3)
    edges = [(g, int(table[swap, g]), 0) for g in range(60)] + [(g, int(table[turn, g]), 1) for g in range(60)]
    adjacency = np.zeros((60, 60))
    for a, b, kind in edges:
        adjacency[a, b] = adjacency[b, a] = 1.2 if kind == 0 else 1.0
    vectors = np.linalg.eigh(adjacency)[1][:, -4:-1]  # the three after the constant one
    frame, _ = np.linalg.qr(vectors[[0, 7, 23]].T)  # a view independent of signs and order of eigenvectors
    solid = vectors @ frame * np.sign(vectors[0] @ frame)
    tilt = np.radians(17)
    solid = solid @ np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    solid /= np.linalg.norm(solid, axis=1).max()
    for a, b, kind in sorted(edges, key=lambda e: solid[e[0], 2] + solid[e[1], 2]):
        depth = (solid[a, 2] + solid[b, 2]) / 4 + 0.5
        axes.plot(*solid[[a, b], :2].T, color=COLORS[kind], linewidth=0.8 + 1.4 * depth, alpha=0.18 + 0.82 * depth)
    axes.scatter(*solid[:, :2].T, s=8, c=INK, alpha=0.3 + 0.35 * (solid[:, 2] + 1), zorder=3, linewidths=0)
    axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal")
    axes.set_title("A5: order 2 and order 5, 60 states", fontsize=11, color=INK)


def draw_shipped(path: Path) -> None:
    """Draw umbrella and casino, transitions above emissions."""
    figure, parts = plt.subplots(2, 2, figsize=(8.6, 4.6), height_ratios=[1.5, 1])
    places = np.array([[-0.85, 0.0], [0.85, 0.0]])
    for column, name in enumerate(("umbrella", "dishonest-casino")):
        hmm = hs.load_process(name)
        states, symbols = hmm.states or (), hmm.symbols or ()
        pairs = itertools.product(range(2), repeat=2)
        edges = [(i, j, chance(float(hmm.transition[i, j]))) for i, j in pairs]
        above, below = parts[:, column]
        diagram(above, places, list(states), edges, radius=0.34)
        above.set(xlim=(-2.1, 2.1), ylim=(-0.8, 0.8), aspect="equal")
        above.set_title(name, fontsize=11, color=INK)
        above.axis("off")
        at = np.arange(hmm.num_symbols)
        for state, row in enumerate(hmm.emission.tolist()):
            below.bar(at + 0.36 * (state - 0.5), row, 0.34, color=COLORS[state], label=states[state])
        below.set_xticks(at, symbols)
        below.tick_params(labelsize=9, colors=INK, length=0)
        below.set_ylim(0, 1)
        below.set_yticks([0, 0.5, 1])
        below.spines[["top", "right"]].set_visible(False)
        below.legend(frameon=False, fontsize=9, ncols=2)
        if column == 0:
            below.set_ylabel("P(symbol | state)", fontsize=9, color=GREY)
    figure.tight_layout()
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    """Write the picture without a date."""
    figure.savefig(path, dpi=110, bbox_inches="tight", facecolor="white", metadata={"Software": None})
    plt.close(figure)
    print(f"{path}: {path.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    draw_textbook(out / "textbook.png")
    draw_mess3(out / "mess3-beliefs.png")
    draw_random(out / "random-transitions.png")
    draw_ginc(out / "ginc-transitions.png")
    draw_groups(out / "groups.png")
    draw_shipped(out / "shipped.png")


if __name__ == "__main__":
    main()
