"""Draw a small picture of every registered process: samples as rows of colours, and their exact beliefs.

    python scripts/draw_zoo.py [--out docs/img]     writes processes.png: a minute of one core

Beliefs are points in the triangle of three states, or on the two axes with the largest variance. A vector process shows one
coordinate of a few samples; a process without known beliefs shows samples only.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

import hmmscope as hs
from hmmscope import registry

ROWS, LENGTH, POINTS, COLUMNS = 14, 28, 2400, 5
#: Smaller sizes for processes with large defaults.
SIZES: dict[str, dict[str, Any]] = {
    "random-mixture": {"num_components": 8, "num_states": 6, "num_symbols": 4},
    "composed-cycles": {"num_parts": 6, "num_states": 8, "num_symbols": 4},
    "aliased-cycles-mixture": {"num_components": 8},
    "low-rank-mixture": {"num_components": 8},
    "word-problem": {"group": "S3"},
}
MADE_OF_FILES = ("data", "file", "given")
TRIANGLE = np.array([[0.5, np.sqrt(0.75)], [0.0, 0.0], [1.0, 0.0]])


def beliefs(process: Any, corpus: hs.ProcessDataset) -> np.ndarray | None:
    """Return exact beliefs, component posteriors or predictive vectors; None if none is known."""
    batch = corpus[0 : -(-POINTS // LENGTH)]
    try:
        laws = hs.observe(process, batch.observations).probs
    except hs.HmmscopeError:
        return None
    law = laws.get("belief", laws.get("component"))
    if law is None and hasattr(process, "labelled"):
        law = hs.filter_beliefs(process, batch.observations).beliefs
    return None if law is None else torch.as_tensor(law).reshape(-1, law.shape[-1]).double().numpy()


def places(points: np.ndarray) -> np.ndarray:
    """Project points to the plane."""
    if points.shape[1] == 3:
        return points @ TRIANGLE
    centred = points - points.mean(0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


def draw(name: str, left: Any, right: Any) -> None:
    """Draw samples to the left, beliefs to the right."""
    process = hs.make_process(name, **SIZES.get(name, {}))
    dataset = hs.ProcessDataset(process, length=LENGTH, seed=1)
    seen = dataset[0:ROWS].observations.numpy()
    if seen.ndim == 3:
        left.plot(seen[:3, :, 0].T, linewidth=0.8)
    else:
        left.imshow(
            seen, cmap="tab20" if seen.max() > 9 else "tab10", vmin=0, vmax=19 if seen.max() > 9 else 9, aspect="auto"
        )
    left.set_title(name, fontsize=8, loc="left", pad=3)
    found = beliefs(process, dataset) if seen.ndim == 2 else None
    if found is not None and found.shape[1] > 1 and np.ptp(found) > 1e-9:
        at, top = places(found), np.argsort(found.var(0))[::-1][:3]
        low = found[:, top].min(0)
        colours = np.zeros((len(found), 3))
        colours[:, : len(top)] = (found[:, top] - low) / np.maximum(np.ptp(found[:, top], axis=0), 1e-9)
        right.scatter(*at.T, s=1.2, c=0.85 * colours, linewidths=0)
        right.margins(0.08)
    else:
        right.text(
            0.5,
            0.5,
            "vectors" if seen.ndim == 3 else "no exact belief",
            ha="center",
            va="center",
            fontsize=6,
            color="grey",
        )
        right.set_frame_on(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "img")
    out = parser.parse_args().out
    names = [name for name in registry.entries("process") if name not in MADE_OF_FILES]
    rows = -(-len(names) // COLUMNS)
    figure, axes = plt.subplots(rows, 2 * COLUMNS, figsize=(2.0 * COLUMNS, 1.12 * rows), squeeze=False)
    for number, ax in enumerate(axes.reshape(-1, 2)):
        for one in ax:
            one.set_xticks([])
            one.set_yticks([])
            one.spines[:].set_color("#cccccc")
        if number < len(names):
            draw(names[number], *ax)
        else:
            for one in ax:
                one.set_axis_off()
    figure.subplots_adjust(0.01, 0.005, 0.99, 0.98, wspace=0.08, hspace=0.32)
    figure.savefig(out / "processes.png", dpi=110)
    print(out / "processes.png", len(names), "processes")


if __name__ == "__main__":
    main()
