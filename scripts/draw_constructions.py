"""Draw the pictures of docs/lecture-theorem1.md from the network, and copy those of experiment runs.

Run from the root of the repository:

    OMP_NUM_THREADS=1 python scripts/draw_constructions.py --out docs/img
    OMP_NUM_THREADS=1 python scripts/draw_constructions.py --out docs/img --runs FOLDER

Five pictures of one prompt: the layout of the residual stream with each layer's reads and writes; the stream while windows
are gathered; the stream while weights are learned; attention; and the error with its bound. FOLDER holds runs of
experiments, as written by `hmmscope run EXPERIMENT --out FOLDER/EXPERIMENT`.
"""

import argparse
from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from PIL import Image

import hmmscope as hs
from hmmscope.analysis.activations import capture_activations
from hmmscope.analysis.shuffle import attention_taps
from hmmscope.lab.report.series_style import GREY, INK, RULE
from hmmscope_papers import constructions
from hmmscope_papers.constructions.multitask_network import MultiTaskTransformer
from hmmscope_papers.constructions.regression import RegressionSamples

LETTERS = "ABC|"
#: Lecture sizes: prompt, memory, steps of the walk, steps of the error curve, step size.
NUMBER, LENGTH, TEST, MEMORY, STEPS, MANY_STEPS, RATE = 4, 6, 4, 3, 8, 120, 0.9
SEED = 5
COLORS = {
    "slot": "#0072b2",
    "position": "#d55e00",
    "future": "#56b4e9",
    "one": "#6b7280",
    "test": "#6b7280",
    "weights": "#009e73",
    "prediction": "#b5539a",
}
#: Width of pictures of two panels.
PAGE = 1536
#: One picture of each experiment for docs/constructions.md.
TAKEN = {
    "limits-theorem5.1": "error-by-scale",
    "limits-theorem5.2": "depth",
    "limits-theorem5.3": "error-in-floats",
    "limits-precision": "smallest-precision",
    "multitask-theorem1": "failures",
    "multitask-theorem2": "observability",
    "multitask-lemma1": "decay-rate",
    "multitask-decomposition": "early-stopping",
    "construction-vs-trained": "probes",
}


def process() -> hs.HMM:
    """Return a noisy cycle A -> B -> C -> A, observed through a symmetric channel."""
    cycle = [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]
    return hs.HMM([1 / 3, 1 / 3, 1 / 3], cycle, [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])


def prompt() -> torch.Tensor:
    """Return the lecture's prompt (1, position)."""
    layout = hs.PromptLayout(num_demonstrations=NUMBER, demonstration_length=LENGTH, test_length=TEST)
    tokens: torch.Tensor = hs.ProcessDataset(process(), layout=layout, seed=SEED)[0:1].tokens
    return tokens


def network(num_steps: int, learning_rate: float | None) -> MultiTaskTransformer:
    """Build the network of Theorem 1 for that prompt."""
    shape = {"num_demonstrations": NUMBER, "demonstration_length": LENGTH, "test_length": TEST}
    net: MultiTaskTransformer = constructions.multitask_theorem1(
        3, MEMORY, num_steps, options=constructions.MultiTaskOptions(learning_rate=learning_rate), **shape
    )
    return net


def kind(block: str) -> str:
    """Return "slot" for "slot-2"."""
    return block.partition("-")[0]


# ---------------------------------------------------------------------------------------------------------------------
# The layout


def draw_layout(net: MultiTaskTransformer, tokens: torch.Tensor, path: Path) -> None:
    """Draw blocks as a strip, and a line for each layer with what it reads (outlined) and writes (filled)."""
    embedded = net.stream(tokens)[0]
    at_start = tuple(name for name in net.subspaces if bool(embedded[..., net.subspaces[name]].any()))
    lines: list[tuple[str, tuple[str, ...], tuple[str, ...], str]] = [("embedding", (), at_start, "")]
    notes = net.notes()
    for note, heads in zip(notes, net.heads_per_layer, strict=True):
        label = f"layer {note.layer}: {note.stage}"
        activation = "softmax" if note.stage.startswith("gather") else "ReLU"
        if note.stage == "gradient step":
            same = [other.layer for other in notes if other.stage == note.stage]
            if note.layer > same[0]:
                continue
            label = f"layers {same[0]} to {same[-1]}: {note.stage}"
        reads = ("position", *note.reads) if note.stage.startswith("gather") else ("one", *note.reads)
        if note.stage == "gradient step":
            reads = ("test", *reads)
        lines.append((label, reads, note.writes, f"{heads} head{'s' * (heads > 1)}, {activation}"))

    figure, axes = plt.subplots(figsize=(10.5, 4.4))
    for row in net.subspaces.rows():
        left, size, name = row["first"], row["size"], row["subspace"]
        axes.add_patch(Rectangle((left, 0), size, 1, facecolor=COLORS[kind(name)], edgecolor="white", linewidth=1.5))
        middle = left + size / 2
        axes.text(middle, 0.5, str(size), ha="center", va="center", color="white", fontsize=8 if size == 1 else 9)
        nudge = {"future-1": -0.8, "one": -0.3, "test": 0.5}.get(name, 0.0)
        if size >= 8:
            axes.text(middle, 1.15, name, ha="center", va="bottom", color=INK, fontsize=9)
        else:
            axes.text(middle + nudge - 0.4, 1.15, name, ha="left", va="bottom", rotation=38, color=INK, fontsize=9)
    for number, (label, reads, writes, heads) in enumerate(lines):
        top = -1.0 - 0.95 * number
        axes.text(-0.6, top + 0.3, label, ha="right", va="center", fontsize=9, color=INK)
        axes.text(net.width + 0.6, top + 0.3, heads, ha="left", va="center", fontsize=9, color=GREY)
        axes.plot([0, net.width], [top + 0.3] * 2, color=RULE, linewidth=1, zorder=0)
        for name in dict.fromkeys((*reads, *writes)):
            where, color = net.subspaces[name], COLORS[kind(name)]
            place = (where.start + 0.08, top)
            size = where.stop - where.start - 0.16
            if name in reads:
                axes.add_patch(Rectangle(place, size, 0.6, facecolor="white", edgecolor=color, linewidth=1.4))
            if name in writes:
                inset = 0.14 if name in reads else 0.0
                axes.add_patch(
                    Rectangle((place[0] + inset, top + inset), size - 2 * inset, 0.6 - 2 * inset, facecolor=color)
                )
    bottom = -1.0 - 0.95 * len(lines)
    axes.add_patch(Rectangle((13, bottom), 1.6, 0.6, facecolor="white", edgecolor=INK, linewidth=1.4))
    axes.text(15.2, bottom + 0.3, "reads", va="center", fontsize=9, color=GREY)
    axes.add_patch(Rectangle((21, bottom), 1.6, 0.6, facecolor=INK))
    axes.text(23.2, bottom + 0.3, "writes", va="center", fontsize=9, color=GREY)
    axes.set(xlim=(-14.5, net.width + 9), ylim=(bottom - 0.2, 3.2))
    axes.axis("off")
    _save(figure, path)


# ---------------------------------------------------------------------------------------------------------------------
# The stream


def _letters(axes: Axes, tokens: torch.Tensor) -> None:
    text = [LETTERS[int(token)] for token in tokens[0]]
    axes.set_xticks(range(len(text)), text, fontsize=8, color=INK)
    axes.tick_params(length=0, pad=2)
    for side in axes.spines.values():
        side.set_color(RULE)


def _sequence_names(axes: Axes) -> None:
    places = [(LENGTH + 1) * number + (LENGTH + 1) / 2 for number in range(NUMBER)]
    places.append((LENGTH + 1) * NUMBER + (TEST + 1) / 2)
    names = [*(f"{number + 1}" for number in range(NUMBER)), "test"]
    axes.set_xticks(places, names, fontsize=8.5, color=INK)
    axes.set_yticks(places, names, fontsize=8.5, color=INK)
    axes.tick_params(length=0, pad=2)
    for side in axes.spines.values():
        side.set_color(RULE)


def _sequence_lines(axes: Axes, tokens: torch.Tensor, *, vertical: bool = False) -> None:
    for column in range(1, tokens.shape[1]):
        if int(tokens[0, column]) == 3:
            axes.axvline(column - 0.5, color=GREY, linewidth=0.5)
            if vertical:
                axes.axhline(column - 0.5, color=GREY, linewidth=0.5)


def _stream_panel(
    axes: Axes,
    net: MultiTaskTransformer,
    tokens: torch.Tensor,
    layer: int,
    blocks: list[str],
    labels: dict[str, str],
    title: str,
    limit: float,
):  # type: ignore[no-untyped-def]
    """Draw rows of `blocks` after a layer, with written blocks framed."""
    stream = net.stream(tokens)
    rows = [row for name in blocks for row in net.layout.rows(name)]
    image = axes.imshow(stream[layer][0, :, rows].T.numpy(), cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    written = net.notes()[layer - 1].writes if layer else ()
    top, ticks = 0, []
    for name in blocks:
        size = net.subspaces.size(name)
        if top:
            axes.axhline(top - 0.5, color=GREY, linewidth=0.5)
        if name in labels:
            ticks.append((top + (size - 1) / 2, labels[name]))
        if name in written:
            frame = Rectangle(
                (-0.5, top - 0.5), tokens.shape[1], size, fill=False, edgecolor=COLORS[kind(name)], linewidth=2.5
            )
            axes.add_patch(frame)
            frame.set_clip_on(False)
            frame.set_zorder(5)
        top += size
    _sequence_lines(axes, tokens)
    _letters(axes, tokens)
    axes.set_yticks([place for place, _ in ticks], [name for _, name in ticks], fontsize=8, color=INK)
    axes.set_title(title, fontsize=9.5, loc="left", color=INK)
    return image


def _bar(figure, image, panels, shrink: float) -> None:  # type: ignore[no-untyped-def]
    bar = figure.colorbar(image, ax=panels, shrink=shrink, pad=0.01, extend="both" if image.get_clim()[1] < 1 else None)
    bar.ax.tick_params(labelsize=8)
    bar.set_label("entry of the residual stream", fontsize=8.5, color=INK)


def draw_gathering(net: MultiTaskTransformer, tokens: torch.Tensor, path: Path) -> None:
    """Draw the first twenty rows after the embedding and each softmax layer."""
    blocks = [name for name in net.subspaces if name not in ("weights", "prediction")]
    labels = {name: name for name in blocks if name not in ("one", "test")} | {"one": "one, test"}
    titles = [
        "Embedding: each position has its token and its place",
        "Layer 1: the token one position to the left",
        "Layer 2: the token two positions to the left",
        "Layer 3: the token one position to the right, the label",
    ]
    figure, panels = plt.subplots(4, 1, figsize=(9.5, 12.0), layout="constrained")
    for layer, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        image = _stream_panel(axes, net, tokens, layer, blocks, labels, title, 1.0)
    _bar(figure, image, panels, 0.25)
    _save(figure, path)


def draw_learning(net: MultiTaskTransformer, tokens: torch.Tensor, path: Path) -> None:
    """Draw rows of weights and prediction after the first and last gradient layer, and the last layer."""
    last = net.num_layers - 1
    titles = {
        last - net.num_steps + 1: f"Layer {last - net.num_steps + 1}: one gradient step, the same at every position",
        last: f"Layer {last}: {net.num_steps} gradient steps",
        last + 1: f"Layer {last + 1}: each position multiplies its window; the test sequence is right of the last line",
    }
    figure, panels = plt.subplots(3, 1, figsize=(9.5, 11.0), layout="constrained")
    for axes, (layer, title) in zip(panels, titles.items(), strict=True):
        image = _stream_panel(axes, net, tokens, layer, ["weights", "prediction"], {}, title, 0.8)
        names = [f"{LETTERS[a]} from slot-{slot}" for a in range(3) for slot in range(MEMORY)]
        places = [3 * index + 1 for index in range(len(names))]
        axes.set_yticks([*places, 28], [*names, "prediction"], fontsize=8, color=INK)
        for edge in (8.5, 17.5):
            axes.axhline(edge, color=GREY, linewidth=0.5)
    _bar(figure, image, panels, 0.3)
    _save(figure, path)


# ---------------------------------------------------------------------------------------------------------------------
# Attention


def draw_attention(net: MultiTaskTransformer, tokens: torch.Tensor, path: Path) -> None:
    """Draw softmax patterns; ReLU layers need one line per head, because all queries or all keys are equal."""
    names = attention_taps(net, "pattern")
    patterns = [found[0].double() for found in capture_activations(net, names, tokens, lambda x: x).values()]
    figure = plt.figure(figsize=(10.5, 8.6), layout="constrained")
    grid = figure.add_gridspec(4, 3, height_ratios=(3.3, 1, 1, 1))
    titles = ("Layer 1: one to the left", "Layer 2: two to the left", "Layer 3: one to the right")
    for layer, title in enumerate(titles):
        axes = figure.add_subplot(grid[0, layer])
        axes.imshow(patterns[layer][0].numpy(), cmap="Blues", vmin=0, vmax=1)
        _sequence_lines(axes, tokens, vertical=True)
        _sequence_names(axes)
        axes.set_title(title, fontsize=9.5, loc="left", color=INK)
        axes.set_xlabel("key position, by demonstration", fontsize=8.5, color=GREY)
        if layer == 0:
            axes.set_ylabel("query position", fontsize=8.5, color=GREY)
    last = net.num_layers - 1
    first = last - net.num_steps
    strips = [
        (
            first,
            f"Layer {first + 1}, first gradient step: ReLU score of each key position, the same for every query",
            0,
        ),
        (last - 1, f"Layer {last}, step {net.num_steps}: the same scores, now residuals", 0),
        (last, f"Layer {last + 1}, prediction: ReLU score of each query position, the same for every key", 1),
    ]
    heads = [f"{LETTERS[head % 3]} {'−' if head < 3 else '+'}" for head in range(6)]
    for row, (layer, title, axis) in enumerate(strips, start=1):
        pattern_HTU = patterns[layer]
        alike = pattern_HTU.narrow(1 + axis, 0, 1)
        assert float((pattern_HTU - alike).abs().max()) < 1e-12  # all lines are equal
        shown = alike.squeeze(1 + axis).numpy() * (tokens.shape[1] if axis else 1)
        axes = figure.add_subplot(grid[row, :])
        image = axes.imshow(shown, cmap="Blues", vmin=0, aspect="auto")
        _sequence_lines(axes, tokens)
        _letters(axes, tokens)
        axes.set_yticks(range(6), heads, fontsize=8, color=INK)
        axes.set_title(title, fontsize=9.5, loc="left", color=INK)
        bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=8)
        bar.ax.tick_params(labelsize=7)
    _save(figure, path)


# ---------------------------------------------------------------------------------------------------------------------
# The error


def draw_error(tokens: torch.Tensor, path: Path) -> None:
    """Draw the learned weights, and their distance from the least-squares solution with its bound."""
    starts = 1 + (LENGTH + 1) * torch.arange(NUMBER)
    demonstrations = tokens[0, starts[:, None] + torch.arange(LENGTH)]
    samples = RegressionSamples.of(demonstrations, 3, MEMORY)
    problem, x_NF = samples.problem(), samples.features().unique(dim=0)
    figure = plt.figure(figsize=(10.5, 5.2), layout="constrained")
    grid = figure.add_gridspec(4, 2, width_ratios=(1.2, 1), wspace=0.06)
    axes = figure.add_subplot(grid[:, 1])
    for rate, color, name in ((1 / MEMORY, "#d55e00", "η = 1/L"), (RATE, "#0072b2", f"η = {RATE}")):
        weights = network(MANY_STEPS, rate).learned_weights(tokens)[:, 0]
        error = ((problem.solution() - weights) @ x_NF.T).norm(dim=1).amax(1)
        bound = [float(problem.optimisation_bound(MEMORY, step, rate)) for step in range(len(weights))]
        axes.plot(error.numpy(), color=color, linewidth=1.8, label=f"network, {name}")
        axes.plot(bound, color=color, linewidth=1.2, linestyle=(0, (2, 2)), label=f"bound, {name}")
    axes.set(yscale="log", xlim=(0, MANY_STEPS))
    axes.set_xlabel("gradient layers T", color=INK)
    axes.set_ylabel("largest |(Ŵ − W) x| over the windows", color=INK)
    axes.grid(color=RULE, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=8.5)
    shown = [(f"after {step} step{'s' * (step > 1)}", weights[step]) for step in (1, STEPS, MANY_STEPS)]
    for row, (name, matrix) in enumerate([*shown, ("least squares", problem.solution())]):
        panel = figure.add_subplot(grid[row, 0])
        panel.imshow(matrix.numpy(), cmap="RdBu", vmin=-0.7, vmax=0.7, aspect="auto")
        panel.set_yticks(range(3), LETTERS[:3], fontsize=8)
        panel.set_xticks(range(9), LETTERS[:3] * 3, fontsize=8)
        panel.tick_params(length=0, pad=2)
        for edge in (2.5, 5.5):
            panel.axvline(edge, color=GREY, linewidth=0.7)
        panel.set_title(name, fontsize=9, loc="left", color=INK)
        for column in range(9):
            for a in range(3):
                value = float(matrix[a, column])
                color = "white" if abs(value) > 0.45 else INK
                panel.text(
                    column, a, f"{value:.2f}".replace("-", "−"), ha="center", va="center", fontsize=7.5, color=color
                )
        if row == 3:
            for slot in range(MEMORY):
                panel.text(3 * slot + 1, 3.9, f"slot-{slot}", ha="center", va="top", fontsize=8, color=GREY)
        for side in panel.spines.values():
            side.set_color(RULE)
    _save(figure, path)


# ---------------------------------------------------------------------------------------------------------------------


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=120, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    print(f"{path}: {path.stat().st_size} bytes")


def take_over(runs: Path, out: Path) -> None:
    """Copy one picture of each run; narrow pictures are centred on the page's width."""
    for experiment, name in TAKEN.items():
        found = sorted((runs / experiment / "figures").glob(f"*-{name}.png"))
        if not found:
            print(f"{experiment}: no picture {name}")
            continue
        target, picture = out / f"{experiment}.png", Image.open(found[0]).convert("RGB")
        canvas = Image.new("RGB", (max(PAGE, picture.width), picture.height), "white")
        canvas.paste(picture, ((canvas.width - picture.width) // 2, 0))
        canvas.save(target, optimize=True)
        print(f"{target}: {target.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--runs", type=Path, help="folder of experiments' runs")
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    matplotlib.rcParams["font.family"] = "DejaVu Sans"
    tokens, net = prompt(), network(STEPS, RATE)
    draw_layout(net, tokens, out / "theorem1-layout.png")
    draw_gathering(net, tokens, out / "theorem1-gathering.png")
    draw_learning(net, tokens, out / "theorem1-learning.png")
    draw_attention(net, tokens, out / "theorem1-attention.png")
    draw_error(tokens, out / "theorem1-error.png")
    if arguments.runs:
        take_over(arguments.runs, out)


if __name__ == "__main__":
    main()
