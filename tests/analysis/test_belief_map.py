"""The belief map: what it reads where the belief is known to be, beside untrained twins, and over training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.belief_map import BeliefMap, belief_map
from hmmscope.analysis.untrained_controls import ExplainedFraction
from hmmscope.errors import InputError

RRXOR, MESS3 = hs.make_process("rrxor"), hs.make_process("mess3")
SMALL = {"length": 12, "num_samples": 64, "options": hs.InstrumentOptions(num_points=500)}


class Filter(nn.Module):
    """Holds a rotation of the exact belief in its one layer."""

    def __init__(self, process: hs.LabelledHMM | hs.HMM) -> None:
        super().__init__()
        self.process, self.residual = process, nn.ModuleList([nn.Identity()])
        generator = torch.Generator().manual_seed(0)
        self.turn_SD = torch.randn(process.num_states, 2 * process.num_states, generator=generator)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = hs.filter_beliefs(self.process, tokens)
        self.residual[0](found.beliefs.float() @ self.turn_SD + 1)
        return found.next_observation.log()


def test_a_layer_that_holds_the_belief_gives_it_back_point_by_point() -> None:
    found = belief_map(Filter(RRXOR), RRXOR, **SMALL)
    assert found.r2 == pytest.approx(1, abs=1e-6)
    assert found.layer == "residual.0"
    np.testing.assert_allclose(found.read, found.exact, atol=1e-4)
    assert len(found.exact) == 500
    assert np.allclose(found.exact.sum(1), 1)
    assert found.control is None
    assert "no weights" in str(found.share)
    assert found.from_prediction < 0.7
    assert found.note == ""


def test_where_the_prediction_holds_the_belief_the_map_says_so() -> None:
    found = belief_map(Filter(MESS3), "mess3", **SMALL)
    assert found.from_prediction > 0.999
    assert "affine function of the prediction" in repr(found)


def test_points_are_of_samples_that_the_map_was_not_fitted_to() -> None:
    dataset = hs.ProcessDataset(MESS3, 12, stream="probe")
    found = belief_map(Filter(MESS3), dataset, num_samples=64, options=hs.InstrumentOptions(num_points=36))
    expected = hs.filter_beliefs(MESS3, dataset[64:67].observations).beliefs.flatten(0, 1)
    np.testing.assert_allclose(found.exact, expected)


def test_an_untrained_network_has_nothing_beyond_its_twins() -> None:
    model = hs.make_model("rnn", num_symbols=3, width=8, seed=5)
    found = belief_map(model, MESS3, **SMALL)
    assert found.share.verdict in ("no more", "less")
    assert found.share.num_controls == 8
    assert found.control is not None
    assert found.control.shape == found.read.shape


@pytest.mark.parametrize(("name", "panels"), [("mess3", 3), ("golden-mean", 3), ("rrxor", 3)])
def test_the_picture_holds_exact_beliefs_twin_and_model(name: str, panels: int) -> None:
    process = hs.make_process(name)
    model = hs.make_model("rnn", num_symbols=process.num_symbols, width=4)
    found = belief_map(model, process, "residual.1", **SMALL)
    figure = found.plot()
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == panels
    assert titles[0] == "exact"
    assert "untrained control" in titles[1]
    assert "residual.1" in titles[2]
    drawn = figure.axes[2].collections[0].get_offsets()
    np.testing.assert_allclose(drawn, found.coordinates())
    assert found._repr_png_()[:4] == b"\x89PNG"


def test_places_of_beliefs_in_the_plane() -> None:
    three = BeliefMap("l", np.eye(3), np.eye(3), None, 1.0, 1.0, 1.0, ExplainedFraction(1.0), 0.0)
    np.testing.assert_allclose(three.coordinates(), [[0.5, 0.75**0.5], [0, 0], [1, 0]])
    along = np.array([[1, 0, 0, 0], [0, 1, 0, 0.0], [0.4, 0.6, 0, 0]])
    four = BeliefMap("l", along, along, None, 1.0, 1.0, 1.0, ExplainedFraction(1.0), 0.0)
    places = four.coordinates()
    assert np.abs(places[:, 1]).max() < 1e-12  # they lie on a line, the first principal axis
    np.testing.assert_allclose(np.abs(np.diff(places[:, 0])), np.sqrt([2, 2 * 0.4**2]))


def test_over_training_each_kept_step_has_its_map(tmp_path: Path) -> None:
    run = hs.train(MESS3, tmp_path / "run", model="rnn", length=12, num_steps=4, training={"milestones": 2})
    found = belief_map(
        run, layer="residual.1", num_samples=64, options=hs.InstrumentOptions(num_points=200), over_checkpoints=True
    )
    assert [row["step"] for row in found.table()] == run.checkpoint_steps()
    assert [one.step for one in found.earlier] == run.checkpoint_steps()[:-1]
    assert found.earlier[0].step == 0
    first = belief_map(
        run.untrained(),
        run.dataset("probe"),
        "residual.1",
        num_samples=64,
        options=hs.InstrumentOptions(num_points=200),
    )
    np.testing.assert_array_equal(found.earlier[0].read, first.read)
    titles = [axes.get_title() for axes in found.plot().axes]
    assert [title.partition("\n")[0] for title in titles[2:-1]] == [f"step {one.step}" for one in found.earlier]


def test_given_sequences_need_an_observer() -> None:
    data = hs.SequenceData([[0, 1, 1, 0, 1, 0, 0, 1]] * 12)
    dataset, model = hs.ProcessDataset(data, stream="evaluate"), hs.make_model("rnn", num_symbols=2, width=4)
    with pytest.raises(InputError, match="observer: is missing, and the process of recorded sequences is unknown"):
        belief_map(model, dataset)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, "process: is missing, and models do not store their training process"),
        ({"process": "mes3"}, "mess3"),
        ({"process": MESS3}, "length: Recurrent does not state its training length"),
        (
            {"process": MESS3, "length": 9, "layer": "residual.9"},
            "layers: no module named 'residual.9' in the model; did you mean",
        ),
        ({"process": MESS3, "over_checkpoints": True}, "over_checkpoints: needs a run"),
        ({"process": MESS3, "options": {"num_points": 9}}, "options: must be InstrumentOptions"),
        ({"process": hs.ProcessDataset(MESS3, 9), "length": 8}, "length: must be omitted for a dataset"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_refused(arguments: dict, line: str) -> None:
    with pytest.raises(InputError, match=line):
        belief_map(hs.make_model("rnn", num_symbols=3, width=4), **arguments)
