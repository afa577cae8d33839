"""Draw the animation of the first page: an affine map's readings from a layer of a Transformer during training.

    python scripts/draw_first_picture.py [FOLDER]     about two minutes of one core; writes docs/img/first-picture.gif

Each frame is a stored step, including the initial weights. Beliefs belong to samples unseen by training and map. FOLDER
stores the run; a second call draws it again.
"""

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import hmmscope as hs

OUT = Path(__file__).parents[1] / "docs" / "img" / "first-picture.gif"
LAYER, POINTS, COLOURS = "residual.2", 20_000, 48
#: Milliseconds of a frame, and of the first and the last.
SHOWN, ENDS = 450, 2600


def main() -> None:
    with tempfile.TemporaryDirectory() as aside:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(aside) / "run"
        run = hs.train(
            hs.make_process("mess3", switch=0.05, emission=0.7),
            folder,
            model={"name": "roformer", "num_layers": 2, "width": 64, "num_heads": 2},
            length=32,
            num_steps=800,
            training={"learning_rate": 2e-3, "milestones": 10},
            seed=0,
            resume=folder.exists(),
        )
        options = hs.InstrumentOptions(num_points=POINTS, num_controls=3)
        last = hs.belief_map(run, layer=LAYER, options=options, over_checkpoints=True)
    maps = [*last.earlier, last]
    frames = [frame(one, last) for one in maps]
    palette = frames[-1].quantize(COLOURS)
    drawn = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    times = [ENDS, *[SHOWN] * (len(maps) - 2), ENDS]
    drawn[0].save(OUT, save_all=True, append_images=drawn[1:], duration=times, loop=0, optimize=True)
    print(f"{OUT.name}: {len(drawn)} frames, {OUT.stat().st_size / 1e3:.0f} kB; {last.layer}, {last.share}")


def frame(one: "hs.analysis.BeliefMap", last: "hs.analysis.BeliefMap") -> Image.Image:
    """Draw the exact beliefs and those read at one step."""
    figure = Figure(figsize=(7.2, 3.3), dpi=100, layout="constrained", facecolor="white")
    learned = f"step {one.step} of {last.step}" if one.step else "before training"
    panels = {
        "exact beliefs\n": one.exact,
        f"read from layer 2, {learned}\nR² {one.r2:.2f}": one.read,
    }
    for axes, (title, values) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        axes.set(aspect="equal", xlim=(-0.05, 1.05), ylim=(-0.06, 0.93))
        axes.axis("off")
        axes.fill([0, 1, 0.5], [0, 0, np.sqrt(3) / 2], fill=False, edgecolor="0.7", linewidth=0.8)
        axes.scatter(*one.coordinates(values).T, s=0.7, c=one.colours(), linewidths=0)
        axes.set_title(title, fontsize=10)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return Image.open(data).convert("RGB")


if __name__ == "__main__":
    main()
