"""Each plot of a fit or a model returns Axes or a Figure, draws on `ax`, and says what it lacks."""

from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

CASINO = hs.load_process("dishonest-casino")
SENSORS = hs.GaussianHMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.0, 1.0], [5.0, 9.0]], [[1.0, 1.0], [2.0, 1.0]])
COUNTS = hs.PoissonHMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[2.0], [9.0]])
CHANNELS = hs.MultichannelHMM(
    [0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[[0.8, 0.2], [0.1, 0.9]], [[0.5, 0.2, 0.3], [0.1, 0.8, 0.1]]]
)
MIXED = hs.MixedHMM(**(SENSORS.file_tensors() | CHANNELS.file_tensors()))


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    plt.close("all")


@pytest.mark.long
@pytest.mark.parametrize(
    "hmm", [CASINO, SENSORS, COUNTS, CHANNELS, MIXED], ids=["symbols", "numbers", "counts", "channels", "mixed"]
)
def test_every_kind_draws_on_given_axes(hmm: Any) -> None:
    x = hmm.sample(40, seed=1).observations
    for kind in ("observations", "probabilities", "transitions", "emissions"):
        _, ax = plt.subplots()
        assert hmm.plot(kind, x, ax=ax) is ax
        ax.figure.canvas.draw()
    figure = hmm.plot(x=x)
    assert isinstance(figure, Figure)
    assert len(figure.axes) >= 4
    assert isinstance(hmm.plot(), Figure)
    assert isinstance(hmm.plot("emissions"), Axes)


def test_background_and_points_follow_the_most_likely_states() -> None:
    x = np.repeat([[0.0, 1.0], [5.0, 9.0]], [5, 7], axis=0)
    ax = SENSORS.plot("observations", x, coordinates=1)
    first, second = ax.collections[:2]
    assert [round(float(one.get_paths()[0].get_extents().width), 1) for one in (first, second)] == [4.5, 6.5]
    with pytest.raises(InputError, match="coordinates: must name one coordinate if ax is given"):
        SENSORS.plot("observations", x, coordinates=[0, 1], ax=ax)
    assert len(SENSORS.plot("observations", x).axes) == 2


def test_plots_of_a_fit() -> None:
    x = np.asarray(SENSORS.sample(200, seed=1).observations)
    fit = hs.fit(x, [1, 2], lengths=[120, 80])
    _, ax = plt.subplots()
    assert fit.plot("convergence", ax=ax) is ax
    assert len(ax.lines) == 2 * fit.fits[2].num_restarts
    bars = fit.plot("num_states")
    heights = [bar.get_height() for bar in bars.patches]
    assert heights == pytest.approx([fit.support.shares[1], fit.support.shares[2]])
    assert isinstance(fit.plot(), Figure)
    second = fit.plot("observations", sequence=1, coordinates=0)
    assert len(second.lines[0].get_xdata()) == 80
    assert second.get_title("left") == "sequence 1"
    with pytest.raises(InputError, match="sequence: unknown 'b'"):
        fit.plot("observations", sequence="b")
    grouped = hs.fit({"id": [*"bbaaa"], "x": [0.5, 1.0, 2.0, 1.5, 1.0]}, 1, column="x", group="id")
    for chosen in ("a", 1):
        drawn = grouped.plot("observations", sequence=chosen)
        assert (len(drawn.lines[0].get_xdata()), drawn.get_title("left")) == (3, "sequence a")
        assert grouped.plot("probabilities", sequence=chosen).get_title("left") == "sequence a"
    numbered = hs.fit({"id": [2, 2, 7, 7, 7], "x": [0.5, 1.0, 2.0, 1.5, 1.0]}, 1, column="x", group="id")
    assert numbered.plot("observations", sequence="7", ax=drawn).get_title("left") == "sequence 7"
    assert [ax.get_title("left") for ax in grouped.plot(sequence="a").axes[:2]] == ["sequence a", ""]
    assert hs.fit(x, 1, lengths=[200]).plot("observations", coordinates=0).get_title("left") == ""
    single = hs.fit(x[:, 0], 2)
    with pytest.raises(InputError, match=r"'num_states' needs several numbers of states; fit with .*=\[1, 2, 3\]"):
        single.plot("num_states")
    with pytest.raises(InputError, match=r"kind: unknown 'transition'; did you mean 'transitions'.*num_states"):
        single.plot("transition")
    with pytest.raises(InputError, match="x: 'probabilities' needs observations; pass x="):
        single.hmm.plot("probabilities")


def test_restarts_keep_their_history() -> None:
    symbols = CASINO.sample(400, seed=3).observations
    for found in (
        hs.fit(symbols, 3, options=hs.FitOptions(num_restarts=4)).final,
        hs.fit(SENSORS.sample(100).observations, 3, lengths=[100]).final,
    ):
        assert len(found.history) == found.num_restarts
        assert max(history[-1] for history in found.history) == pytest.approx(found.log_likelihood, abs=1e-9)
        assert all(np.diff(history).min() > -1.0 for history in found.history if len(history) > 1)


def test_many_states_are_a_matrix_and_a_heat_map() -> None:
    big = hs.HMM(np.ones(12) / 12, torch.ones(12, 12).double() / 12, torch.ones(12, 30).double() / 30)
    assert len(big.plot("transitions").images) == 1
    assert len(big.plot("emissions").images) == 1


def test_missing_matplotlib_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"^plot: needs matplotlib; pip install matplotlib$"):
        CASINO.plot("transitions")
