"""Answers of an input-output HMM given a row of inputs, from the library and from the command line."""

import json
import re

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.inference.given_inputs import GivenInputs
from hmmscope.inference.optimal import observe_with_memory
from hmmscope.lab.cli import main

HMM = hs.InputOutputHMM(
    [0.25, 0.75],
    [[[0.75, 0.25], [0.5, 0.5]], [[0, 1], [0.125, 0.875]]],
    [[[0.5, 0.25, 0.25], [0, 0.5, 0.5]], [[1, 0, 0], [0.25, 0.25, 0.5]]],
    inputs=["left", "right"],
)
X, U = torch.tensor([[0, hs.MISSING, 2, 1, 0, 2]]), torch.tensor([1, 0, 0, 1, 1, 0])


def test_predictions_are_ratios_of_likelihoods_given_the_inputs_so_far():
    process = GivenInputs(HMM, U)
    found = hs.observe(process, X)
    for t in range(6):
        logs = [
            hs.log_likelihood(HMM, torch.cat([X[0, :t], torch.tensor([v])])[None], inputs=U[: t + 1]) for v in range(3)
        ]
        before = hs.log_likelihood(HMM, X[:, :t], inputs=U[:t]) if t else torch.zeros(1)
        expected = torch.cat(logs).sub(before).exp()
        torch.testing.assert_close(found.predicted_observation[0, t], expected.double(), atol=1e-9, rtol=0)
    assert torch.equal(found.next_observation[0, :-1], found.predicted_observation[0, 1:])
    assert not found.next_observation[0, -1].any()
    torch.testing.assert_close(found.belief, hs.filter_beliefs(HMM, X, inputs=U).beliefs)
    torch.testing.assert_close(hs.smooth_beliefs(process, X), hs.smooth_beliefs(HMM, X, inputs=U))
    assert hs.most_likely_states(process, X).states.tolist() == hs.most_likely_states(HMM, X, inputs=U).states.tolist()
    again = hs.observe(process, X, reset_mask=[True, False, True, False, False, False]).predicted_observation[0, 2]
    torch.testing.assert_close(again, HMM.initial @ HMM.emission[0])


def test_infer_reads_the_column_of_inputs(tmp_path, capsys):
    HMM.save(tmp_path / "hmm.json")
    random = np.random.default_rng(0)
    rows = "".join(
        f"{n},{x},{u}\n"
        for n in "ab"
        for x, u in zip(random.integers(0, 3, 4), random.choice(HMM.inputs, 4), strict=True)
    )
    (tmp_path / "data.csv").write_text("id,x,u\n" + rows.replace("a,0", "a,", 1))
    data = ["infer", str(tmp_path / "hmm.json"), str(tmp_path / "data.csv")]
    reading = ["--column", "x", "--group", "id", "--missing", ""]
    asked = ["--inputs", "u", "--viterbi", "--smooth", "--paths", "1", "--out"]
    assert main([*data, *reading, *asked, str(tmp_path / "t.jsonl")]) == 0
    table = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    score = HMM.score(tmp_path / "data.csv", inputs="u", column="x", group="id", missing="")
    assert abs(sum(row["log_likelihood"] for row in table) - score) < 1e-9
    assert len(table) == 8
    assert "most likely path" in capsys.readouterr().out
    assert main([*data, *reading]) != 0
    assert "inputs: is missing; the model needs the input of each row" in capsys.readouterr().err
    assert main(["infer", "mess3", *data[2:], *reading, "--inputs", "u"]) != 0
    assert "inputs: needs a model with inputs" in capsys.readouterr().err


@pytest.mark.parametrize("length", [1, 2, 4, 9])
def test_a_short_memory_equals_missing_earlier_observations(length):
    process = GivenInputs(HMM, U)
    found = observe_with_memory(process, X, length)
    for t in range(6):
        window = X.clone()
        window[:, : max(0, t - length + 1)] = hs.MISSING
        exact = hs.observe(process, window)
        torch.testing.assert_close(found.belief[:, t], exact.belief[:, t])
        torch.testing.assert_close(found.next_observation[:, t], exact.next_observation[:, t])
    assert found.log_likelihood_terms[0, 1] == 0  # missing


def test_sample_and_infer_with_files_of_inputs(tmp_path, capsys):
    hmm, out, table = tmp_path / "hmm.json", tmp_path / "samples.jsonl", tmp_path / "table.jsonl"
    hs.InputOutputHMM(**HMM.file_tensors(), inputs=HMM.inputs, symbols=list("xyz")).save(hmm)
    (tmp_path / "inputs.txt").write_text("left right right\nright left left\n")
    sample, inputs = ["sample", str(hmm), "--inputs"], ["--inputs", "inputs", "--out", str(table)]
    assert main([*sample, str(tmp_path / "inputs.txt"), "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows[1]["inputs"] == ["right", "left", "left"]
    drawn = HMM.sample_given([[0, 1, 1], [1, 0, 0]])
    assert [row["observations"] for row in rows] == drawn.observations.tolist()
    infer = ["infer", str(hmm), str(out), *inputs]
    assert main([*infer, "--memory", "2", "--forecast", "2", "--next-inputs", "right,left"]) == 0
    found = [json.loads(line) for line in table.read_text().splitlines()]
    ahead = HMM.forecast(drawn.observations[0], 2, inputs=[0, 1, 1], next_inputs=[1, 0]).mean
    np.testing.assert_allclose([row["forecast"] for row in found[3:5]], ahead, atol=1e-12)
    assert "memory_log_likelihood" in found[0]
    for options, said in (
        ([*infer[:-1], "t.jsonl", "--forecast", "2", "--next-inputs", "up"], "--next-inputs: .*'up' is not one of"),
        ([*infer[:-1], "t.jsonl", "--forecast", "3", "--next-inputs", "left,left"], "each of the 3 next steps"),
        (["sample", str(hmm)], "--inputs: must be a file of inputs"),
        (["sample", "mess3", *sample[2:], "u.txt"], "--inputs: needs a model with inputs"),
    ):
        capsys.readouterr()
        assert main(options) == 2
        assert re.search(said, capsys.readouterr().err)
