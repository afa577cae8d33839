"""Packing of the points and colours of dense scatter plots into text: three bytes per point, in base64."""

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hmmscope.lab.evidence.figure import DenseScatter
from hmmscope.lab.evidence.rows import Rows

#: Number of values that a coordinate in the unit interval is rounded to.
STEPS = 4096


#: Corners of the triangle of beliefs over three states, inside the unit square.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]]) / 1.28 + [0.14 / 1.28, (1 - 0.75**0.5 / 1.28) / 2]
#: Colour of the belief that is certain of each of three states; colour-blind readers can tell the colours apart.
CERTAIN = np.array([[216, 27, 96], [30, 136, 229], [224, 161, 0]]) / 255


def over_three_states(values: ArrayLike) -> bool:
    """Return whether vectors (point, coordinate) are distributions over three states."""
    probs = np.asarray(values, np.float64)
    return probs.shape[1] == 3 and bool((probs >= 0).all() and (np.abs(probs.sum(1) - 1) < 1e-9).all())


def belief_colours(beliefs: ArrayLike) -> NDArray[np.float64]:
    """Return RGB colours (point, 3) of beliefs (point, 3) over three states."""
    return np.clip(np.asarray(beliefs, np.float64) @ CERTAIN, 0, 1)


class BeliefPlane:
    """Projection of beliefs to the unit square: a triangle for three states, else two principal directions.

    Args:
        beliefs: Beliefs (point, state) that determine the directions and the scale.
    """

    def __init__(self, beliefs: ArrayLike) -> None:
        self.beliefs = np.asarray(beliefs, np.float64)
        self.onto = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]])
        if self.beliefs.shape[1] != 3:
            self.onto = np.linalg.svd(self.beliefs - self.beliefs.mean(0), full_matrices=False)[2][:2].T
        places = self.beliefs @ self.onto
        low, high = places.min(0), places.max(0)
        self.middle, self.size = (low + high) / 2, 1.15 * float((high - low).max())

    def places(self, values: ArrayLike, most: int | None = None) -> str:
        """Return the packed positions of the first `most` vectors (point, state)."""
        return pack_places((((np.asarray(values, np.float64) @ self.onto) - self.middle) / self.size + 0.5)[:most])

    def corners(self) -> str:
        """Return the packed corners of the triangle; empty if the beliefs do not have three states."""
        return self.places(np.eye(3)) if over_three_states(self.beliefs) else ""

    def colours(self, most: int | None = None) -> str:
        """Return packed colours from three state probabilities, else from ranks of the first three coordinates."""
        if over_three_states(self.beliefs):
            return pack_colours(belief_colours(self.beliefs)[:most])
        ranks = self.beliefs[:, :3].argsort(0, kind="stable").argsort(0) / max(1, len(self.beliefs) - 1)
        return pack_colours((0.1 + 0.75 * ranks)[:most])

    @staticmethod
    def panel(rows: Rows, side: str, title: str, slider: str = "") -> DenseScatter:
        """Return a panel with a slider, made from a table of packed points.

        Args:
            rows: rows with `side` (name of a set of points), `at` (position of the slider) and `points` (packed);
                where `side` is "colours" or "corners", `points` holds colours or corners of the triangle.
            side: name of the set of points.
            title: title of the panel.
            slider: label of the slider.
        """
        own, corners = sorted(rows.where(side=side), key=lambda row: row["at"]), rows.where(side="corners")
        return DenseScatter(
            title=title,
            slider=slider,
            frames=tuple(f"{row['at']:g}" for row in own),
            places=tuple(row["points"] for row in own),
            colours=rows.one(side="colours")["points"],
            corners=("A", "B", "C") if corners else (),
            outline=corners[0]["points"] if corners else "",
        )

    @staticmethod
    def triangle(title: str, beliefs: ArrayLike, exact: ArrayLike, states: Sequence[str] = "ABC") -> DenseScatter:
        """Return a panel of beliefs in the triangle of three states.

        Args:
            title: title of the panel.
            beliefs: vectors (point, 3), possibly outside the triangle.
            exact: exact beliefs (point, 3), which set the colours.
            states: names of the three states.
        """
        return DenseScatter(
            title=title,
            slider="",
            frames=("",),
            places=(pack_places(np.asarray(beliefs, np.float64) @ CORNERS),),
            colours=pack_colours(belief_colours(exact)),
            corners=tuple(states),
            outline=pack_places(CORNERS),
        )


def pack_places(places: ArrayLike) -> str:
    """Pack points (point, 2), clipped to the unit square, in 12 bits per coordinate."""
    steps = np.clip(np.asarray(places, np.float64) * STEPS, 0, STEPS - 1).astype(np.uint32)
    joint = steps[:, 0] << 12 | steps[:, 1]
    return _text(np.stack([joint >> 16, joint >> 8, joint], 1))


def unpack_places(text: str) -> NDArray[np.float64]:
    high, middle, low = _bytes(text).T.astype(np.uint32)
    steps = np.stack([high << 4 | middle >> 4, (middle & 15) << 8 | low], 1)
    return (steps + 0.5) / STEPS


def pack_colours(colours: ArrayLike) -> str:
    """Pack RGB colours (point, 3) in [0, 1]."""
    return _text(np.clip(np.asarray(colours, np.float64) * 255 + 0.5, 0, 255))


def unpack_colours(text: str) -> NDArray[np.float64]:
    return _bytes(text) / 255


def _text(values: NDArray) -> str:
    return base64.b64encode(values.astype(np.uint8).tobytes()).decode()


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(base64.b64decode(text, validate=True), np.uint8).reshape(-1, 3)
