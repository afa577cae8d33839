"""Packed points: what comes out is what went in, to a step of the grid."""

import numpy as np
import pytest

from hmmscope.lab.evidence.scatter_data import STEPS, pack_colours, pack_places, unpack_colours, unpack_places


def test_places_and_colours_come_back() -> None:
    rng = np.random.default_rng(0)
    places, colours = rng.random((500, 2)), rng.random((500, 3))
    assert np.abs(unpack_places(pack_places(places)) - places).max() <= 0.5 / STEPS
    assert np.abs(unpack_colours(pack_colours(colours)) - colours).max() <= 0.5 / 255 + 1e-12
    assert len(pack_places(places)) == len(pack_colours(colours)) == 2000


def test_what_lies_outside_is_put_on_the_edge() -> None:
    edge = unpack_places(pack_places([[-3.0, 0.25], [0.5, 7.0], [1.0, 0.0]]))
    assert edge[:, 0] == pytest.approx([0, 0.5, 1], abs=1 / STEPS)
    assert edge[:, 1] == pytest.approx([0.25, 1, 0], abs=1 / STEPS)
