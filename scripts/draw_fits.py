"""Draw the fits of the gallery: of two simulated sensors, and of the durations of states in the shipped letters.

python scripts/draw_fits.py
"""

from importlib.resources import files
from pathlib import Path

import matplotlib.pyplot
import numpy as np

import hmmscope as hs

OUT = Path(__file__).resolve().parents[1] / "docs" / "img"
#: Temperature and rain of three kinds of weather, and the chance to stay in each for another ten minutes.
WEATHER = hs.GaussianHMM(
    [0.4, 0.3, 0.3],
    [[0.95, 0.04, 0.01], [0.03, 0.95, 0.02], [0.02, 0.05, 0.93]],
    means=[[18.0, 1.0], [13.0, 6.0], [25.0, 3.0]],
    covariances=[[4.0, 1.0], [9.0, 4.0], [3.0, 2.0]],
)


def durations() -> None:
    """Draw docs/img/fit-durations.png."""
    text = (files("hmmscope") / "data/letters/alice.txt").read_text().lower()
    words = " ".join("".join(c if c.isalpha() else " " for c in text).split()[:1500])
    options = hs.FitOptions(durations=6, num_restarts=3, max_iterations=60)
    fit = hs.fit([words], 2, unit="characters", options=options)
    figure = matplotlib.pyplot.figure(figsize=(10, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    fit.plot("emissions", ax=left)
    fit.plot("durations", [words], ax=right)
    figure.savefig(OUT / "fit-durations.png", dpi=100, metadata={"Software": None})


def main() -> None:
    matplotlib.use("Agg")
    durations()
    sensors = np.asarray(WEATHER.sample(600, seed=3).observations)
    fit = hs.fit(sensors, [2, 3], lengths=[600])
    fit.plot().savefig(OUT / "fit-overview.png", dpi=100, metadata={"Software": None})
    figure = matplotlib.pyplot.figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    fit.plot("convergence", ax=left)
    fit.plot("num_states", ax=right)
    figure.savefig(OUT / "fit-states.png", dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    main()
