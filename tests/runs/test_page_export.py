"""A run as data of a live page: what it holds, and what it refuses."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.analysis.activations import capture_activations
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.lab.cli import main
from hmmscope.lab.model_page.model_page import look
from hmmscope.processes.make import make_process
from hmmscope.runs import page_export
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import Run
from hmmscope.runs.training import train

MESS3 = {"name": "mess3", "emission": 0.7}


def tiny_run(path: Path, process: dict[str, Any], model: dict[str, Any], **layout: Any) -> Run:
    """A run of one step."""
    layout = {"name": "sequences", "length": 12} | layout
    training = {"num_steps": 1, "batch_size": 2}
    data = {"process": process, "layout": layout, "model": model, "training": training}
    return train(config_from_data(data), path, options=hs.TrainOptions(num_samples=8))


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["data"]), packed["type"]).reshape(packed["shape"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    model = {"name": "roformer", "num_layers": 1, "num_heads": 2, "width": 8}
    return tiny_run(tmp_path_factory.mktemp("live") / "run", MESS3, model)


@pytest.fixture(scope="module")
def data(run: Run) -> dict[str, Any]:
    return page_export.live_data(run)


@pytest.mark.long
def test_weights_and_process_are_those_of_the_run(run: Run, data: dict[str, Any]) -> None:
    for name, tensor in run.model.state_dict().items():
        np.testing.assert_array_equal(unpacked(data["tensors"][name]), tensor.numpy())
    np.testing.assert_array_equal(unpacked(data["process"]["labelled"])[0], run.process.labelled)
    assert data["process"]["states"] == ["A", "B", "C"]
    assert data["process"]["symbols"] == ["0", "1", "2"]
    assert data["excess"] == run.summary["excess"]
    assert page_export.live_data(run, run.process)["excess"] is None  # of other HMMs


def test_a_map_reads_the_belief_and_its_inverse_changes_what_is_read(run: Run, data: dict[str, Any]) -> None:
    batch = run.dataset("evaluate")[0:200]
    belief = filter_beliefs(run.process, batch.observations).beliefs.numpy()
    for readout in data["readouts"]:
        stream = capture_activations(run.model, [f"residual.{readout['layer']}"], batch.tokens)[
            f"residual.{readout['layer']}"
        ]
        packed = readout["belief"]
        weights, offset, write = (unpacked(packed[name]) for name in ("read", "offset", "write"))
        read = stream.detach().double().numpy() @ weights + offset
        left, spread = ((belief - other) ** 2 for other in (read, belief.mean((0, 1))))
        assert 1 - left.sum() / spread.sum() == pytest.approx(packed["r2"], abs=0.03)
        change = np.array([0.2, -0.5, 0.3])
        np.testing.assert_allclose(change @ write @ weights, change, atol=1e-6)


ROFORMER = {"name": "roformer", "num_layers": 2, "num_heads": 2, "width": 16}


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("model", "steps", "said"),
    [
        (
            {"name": "rnn"},
            1,
            (
                "The network predicts the next symbol no better than the best prediction given the last symbol: ",
                "whether training made it hold the belief (R² 0.9",
            ),
        ),
        (
            ROFORMER,
            1,
            (
                "no better than the best prediction given the last symbol: 1.1",
                "Its layers hold no more of the belief than untrained networks do: ",
            ),
        ),
        (
            {"name": "rnn", "width": 8},
            400,
            (
                "The network learned to predict the next symbol: ",
                "From its layers the same belief can be decoded, more than from untrained networks: ",
            ),
        ),
    ],
    ids=["rnn after one step", "roformer after one step", "trained rnn"],
)
def test_the_sentence_on_learning_is_chosen_by_what_training_added(
    model: dict[str, Any], steps: int, said: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_export, "EXAMPLES", 6000)
    config = {"process": {"name": "mess3"}, "layout": {"name": "sequences", "length": 16}, "model": model}
    training = {"num_steps": steps, "batch_size": 32, "learning_rate": 0.01 if steps > 1 else 1e-3}
    run = train(
        config_from_data(config | {"training": training}), tmp_path / "run", options=hs.TrainOptions(num_samples=8)
    )
    page = look(run, num_samples=64, options=hs.InstrumentOptions(num_points=200)).html()
    for words in said:
        assert words in page
    assert f"Trained for {'1 step' if steps == 1 else '400 steps'}." in page
    assert f", {'1 step' if steps == 1 else '400 steps'}, loss" in repr(run)
    assert ("The network learned" in page) == (steps > 1)
    assert ("can be decoded, more than from untrained" in page) == (steps > 1)


def test_the_twins_of_each_layer_stand_beside_it(data: dict[str, Any]) -> None:
    for readout in data["readouts"]:
        assert abs(readout["belief"]["twins"] - readout["belief"]["r2"]) < 0.2  # of one step


def test_ngrams_are_those_of_the_training_samples(run: Run, data: dict[str, Any]) -> None:
    tables = [unpacked(table) for table in data["ngram"]["tables"]]
    seen = run.dataset("train")[0 : page_export.NGRAM_SAMPLES].observations
    assert [table.shape for table in tables] == [(1, 3), (3, 3), (9, 3)]
    context = (seen[:, :-2] == 2) & (seen[:, 1:-1] == 0)
    assert tables[2][6, 1] == (context & (seen[:, 2:] == 1)).sum()
    assert tables[0].sum() == seen.numel()


def test_a_mixture_has_a_map_to_its_posterior_and_no_table(tmp_path: Path) -> None:
    mixture = {"name": "random-mixture", "num_components": 3, "num_states": 4, "num_symbols": 4}
    layout = {"name": "prompts", "num_demonstrations": 2, "demonstration_length": 4, "test_length": 4}
    config = config_from_data(
        {"process": mixture, "layout": layout, "model": {"name": "rnn", "width": 8},
         "training": {"num_steps": 1, "batch_size": 2}}
    )  # fmt: skip
    found = page_export.live_data(train(config, tmp_path / "run", options=hs.TrainOptions(num_samples=8)))
    assert found["ngram"] is None
    assert found["layout"] == {"delimiter": True, "lengths": [4, 4, 4]}
    assert unpacked(found["readouts"][1]["component"]["read"]).shape == (8, 3)
    assert found["model"]["cell"] == "relu"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda run: replace(run, model=torch.nn.Linear(2, 2)),
            "the interactive page supports causal decoders, rnn, lstm and gru",
        ),
        (lambda run: replace(run, config=replace(run.config, target="belief")), "needs target = observation"),
        (lambda run: replace(run, process=make_process("matmul")), "process: the interactive page supports HMMs"),
    ],
)
def test_what_a_page_cannot_compute_is_refused(run: Run, change: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        page_export.live_data(change(run))


def test_what_is_too_large_for_a_page_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_export, "MOST_WEIGHTS", 10)
    with pytest.raises(InputError, match=r"at most 10 parameters, but this run has [0-9,]+"):
        page_export.live_data(run)


def test_the_verb_writes_one_file_whose_scripts_alone_may_run(run: Run, tmp_path: Path) -> None:
    assert main(["look", str(run.path), "-o", str(tmp_path / "live.html"), "-q"]) == 0
    source = (tmp_path / "live.html").read_text()
    scripts = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 11
    assert f"script-src {' '.join(f'&#39;sha256-{digest}&#39;' for digest in digests)};" in source
    assert "default-src &#39;none&#39;" in source
    assert not re.search(r"(src|href)=(?!\"#)", source.replace("default-src", ""))


def test_text_of_a_process_cannot_leave_its_place() -> None:
    hostile = "</script><script>alert(1)</script>"
    process = hs.HMM([1.0], [[1.0]], [[0.5, 0.3, 0.2]], title=hostile, states=[hostile], symbols=[hostile, "b", "c"])
    model = hs.make_model("rnn", num_symbols=3, width=4)
    page = hs.look(model, process, length=8, num_samples=8, options=hs.InstrumentOptions(num_points=100)).html()
    assert hostile not in page
    assert "alert(1)" in page


def test_the_verb_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["look", str(tmp_path / "none")]) == 2
    assert main(["look", str(tmp_path / "none"), "-o", str(tmp_path / "page.json")]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()][1] == "error[2] out"
