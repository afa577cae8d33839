"""Draw the fits of the gallery: two simulated sensors, and the shipped letters with constraints, labels, weights, inputs
and durations.

python scripts/draw_fits.py
"""

from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib.pyplot
import numpy as np

import hmmscope as hs

OUT = Path(__file__).resolve().parents[1] / "docs" / "img"
#: Temperature and rain in three states of the weather, and the probability to stay in each for another ten minutes.
WEATHER = hs.GaussianHMM(
    [0.4, 0.3, 0.3],
    [[0.95, 0.04, 0.01], [0.03, 0.95, 0.02], [0.02, 0.05, 0.93]],
    means=[[18.0, 1.0], [13.0, 6.0], [25.0, 3.0]],
    covariances=[[4.0, 1.0], [9.0, 4.0], [3.0, 2.0]],
)


LIMITS = {"num_restarts": 3, "max_iterations": 60}


def words(count: int) -> list[str]:
    """Return the first words of the shipped text, in small letters."""
    text = (files("hmmscope") / "data/letters/alice.txt").read_text().lower()
    return "".join(c if c.isalpha() else " " for c in text).split()[:count]


def save(name: str, *plots: tuple[str, Any, str, tuple[object, ...]]) -> None:
    """Draw plots next to each other, each with a title, into docs/img."""
    figure = matplotlib.pyplot.figure(figsize=(10, 3.4), layout="constrained")
    for ax, (title, fit, kind, given) in zip(np.atleast_1d(figure.subplots(1, len(plots))), plots, strict=True):
        fit.plot(kind, *given, ax=ax)
        ax.set_title(title)
    figure.savefig(OUT / f"{name}.png", dpi=100, metadata={"Software": None})


def durations() -> None:
    text = [" ".join(words(1500))]
    fit = hs.fit(text, 2, unit="characters", options=hs.FitOptions(durations=6, **LIMITS))
    figure = matplotlib.pyplot.figure(figsize=(10, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    fit.plot("emissions", ax=left)
    fit.plot("durations", text, ax=right)
    figure.savefig(OUT / "fit-durations.png", dpi=100, metadata={"Software": None})


def constraints() -> None:
    """Draw docs/img/fit-constraints.png: words fitted with states that are visited in order."""
    options = hs.FitOptions(constraints=hs.Constraints.left_to_right(3), **LIMITS)
    fit = hs.fit(words(1500), 3, unit="characters", options=options)
    plots = (("states in order", fit, "transitions", ()), ("letters of each state", fit, "emissions", ()))
    save("fit-constraints", *plots)


def labels() -> None:
    """Draw docs/img/fit-labels.png: a fit with known states of ten words."""
    given = words(400)
    kinds = [["vowel" if c in "aeiou" else "consonant" for c in word] for word in given]
    known = [own if n < 10 else [None] * len(own) for n, own in enumerate(kinds)]
    fits = [
        hs.fit(given, 2, unit="characters", options=hs.FitOptions(known_states=own, **LIMITS)) for own in (None, known)
    ]
    titles = "without labels", "with ten labelled words"
    save("fit-labels", *((title, fit, "emissions", ()) for title, fit in zip(titles, fits, strict=True)))


def weights() -> None:
    """Draw docs/img/fit-weights.png: distinct words with equal weights, or weighted by their frequency."""
    counts = Counter(words(3000))
    each = {"each word once": None, "weighted by frequency": [float(n) for n in counts.values()]}
    fits = [
        hs.fit([*counts], 2, unit="characters", options=hs.FitOptions(sequence_weights=own, **LIMITS))
        for own in each.values()
    ]
    save("fit-weights", *((title, fit, "emissions", ()) for title, fit in zip(each, fits, strict=True)))


def inputs() -> None:
    """Draw docs/img/fit-inputs.png: the input is whether a letter begins a word."""
    given = words(1500)
    first = [["begins" if n == 0 else "goes on" for n, _ in enumerate(word)] for word in given]
    fit = hs.fit(given, 2, inputs=first, unit="characters", options=hs.FitOptions(**LIMITS))
    titles = {f"letters where a word {name}": fit.hmm.given_input(n) for n, name in enumerate(fit.hmm.inputs)}
    save("fit-inputs", *((title, hmm, "emissions", ()) for title, hmm in titles.items()))


def main() -> None:
    matplotlib.use("Agg")
    for draw in (durations, constraints, labels, weights, inputs):
        draw()
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
