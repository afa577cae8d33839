"""Draw the animation of the first page and write its numbers: beliefs that an affine map reads from Transformers.

    python scripts/draw_first_picture.py [FOLDER]     about three minutes of one core; FOLDER stores the runs

It writes docs/img/first-picture.gif for the first training, and first-picture.json with means and 95 % intervals over all
trainings. Each frame is a stored step. The beliefs are those of samples that neither training nor map has seen.
"""

import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

import hmmscope as hs

OUT = Path(__file__).parents[1] / "docs" / "img" / "first-picture.gif"
SEEDS, CONTROLS, LAYER, POINTS, COLOURS = range(5), 3, "residual.2", 8_000, 48
#: Milliseconds of an inner frame, and of the first and last; number of groups of histories with similar predictions.
SHOWN, ENDS, ALIKE = 450, 2600, 64


def main() -> None:
    with tempfile.TemporaryDirectory() as aside:
        runs = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(aside)
        maps = [read(runs / f"seed{seed}", seed) for seed in SEEDS]
    steps = [*maps[0].earlier, maps[0]]
    frames = [frame(one, maps[0]) for one in steps]
    palette = frames[-1].quantize(COLOURS)
    drawn = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    times = [ENDS, *[SHOWN] * (len(steps) - 2), ENDS]
    drawn[0].save(OUT, save_all=True, append_images=drawn[1:], duration=times, loop=0, optimize=True)
    numbers = json.dumps(measured(maps), indent=1) + "\n"
    OUT.with_suffix(".json").write_text(numbers, "utf-8")
    print(f"{OUT.name}: {len(drawn)} frames, {OUT.stat().st_size / 1e3:.0f} kB\n{numbers}", end="")


def read(folder: Path, seed: int) -> "hs.analysis.BeliefMap":
    """Train a Transformer and read its beliefs, and those of untrained controls."""
    run = hs.train(
        "clock",
        folder,
        model={"name": "roformer", "num_layers": 2, "width": 64, "num_heads": 2},
        length=32,
        num_steps=1000,
        training={"learning_rate": 3e-3, "milestones": 10},
        seed=seed,
        resume=folder.exists(),
    )
    options = hs.InstrumentOptions(num_points=POINTS, num_controls=CONTROLS)
    return hs.belief_map(run, layer=LAYER, options=options, over_checkpoints=seed == SEEDS[0])


def measured(maps: "list[hs.analysis.BeliefMap]") -> dict[str, Any]:
    """Return means over trainings, with 95 % intervals by Student's t, and the R² of `from_prediction`."""
    values = {
        "trained": [one.r2 for one in maps],
        "controls": [one.share.controls for one in maps],
        "beyond controls": [one.share.value for one in maps],
    }
    found: dict[str, Any] = {"trainings": len(maps), "controls of each": CONTROLS}
    for name, own in values.items():
        half = stats.sem(own) * stats.t.ppf(0.975, len(own) - 1)
        found[name] = [round(float(one), 3) for one in (np.mean(own), np.mean(own) - half, np.mean(own) + half)]
    return found | {"prediction alone": round(float(np.mean([from_prediction(one.exact) for one in maps])), 3)}


def from_prediction(exact: np.ndarray) -> float:
    """Return the R² of predicting the belief by its mean over histories that give a gong similar probabilities."""
    clock = hs.load_process("clock")
    gong = exact @ (clock.transition @ clock.emission).numpy()[:, 1]
    groups = np.array_split(exact[gong.argsort()], ALIKE)
    left = sum(((group - group.mean(0)) ** 2).sum() for group in groups)
    return float(1 - left / ((exact - exact.mean(0)) ** 2).sum())


def frame(one: "hs.analysis.BeliefMap", last: "hs.analysis.BeliefMap") -> Image.Image:
    """Draw the exact beliefs, those read from an untrained control, and those read from the network at one step."""
    figure = Figure(figsize=(8.4, 3.0), dpi=100, layout="constrained", facecolor="white")
    learned = f"step {one.step} of {last.step}" if one.step else "before training"
    panels = {
        "exact belief states\n": one.exact,
        f"read from an untrained network\nR² {last.share.controls:.2f}": last.control,
        f"read, {learned}\nR² {one.r2:.2f}": one.read,
    }
    for axes, (title, values) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        axes.set(aspect="equal", xlim=(-0.12, 1.12), ylim=(-0.12, 0.99))
        axes.axis("off")
        axes.fill([0, 1, 0.5], [0, 0, np.sqrt(3) / 2], fill=False, edgecolor="0.7", linewidth=0.8)
        axes.scatter(*one.coordinates(values).T, s=0.9, c=one.colours(), linewidths=0)
        for name, x, y, side in (
            ("twelve", 0.5, 0.89, "center"),
            ("four", 0, -0.09, "left"),
            ("eight", 1, -0.09, "right"),
        ):
            axes.text(x, y, name, fontsize=8, color="0.35", ha=side)
        axes.set_title(title, fontsize=10)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return Image.open(data).convert("RGB")


if __name__ == "__main__":
    main()
