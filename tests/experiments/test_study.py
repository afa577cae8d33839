"""The study of given sequences: one small one, gone through whole, stopped, resumed and refused."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.analysis.autoregression import AutoRegression
from hmmscope.analysis.curves import evaluate
from hmmscope.analysis.trained_ngrams import TrainedNgrams
from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.errors import DamagedError, InputError, RefusedError, ResourceError
from hmmscope.lab.cli import main
from hmmscope.lab.report.drawing import draw_folder
from hmmscope.lab.report.page import template, write_page
from hmmscope.lab.report.state_diagram import picture, read_fitted
from hmmscope.lab.study import run_study as studies
from hmmscope.lab.study.fit_summary import figures_of_fit
from hmmscope.lab.study.fitted_hmm import fitted_hmm
from hmmscope.lab.study.study_data import prepare
from hmmscope.lab.study.study_tables import entropies, grams
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.processes.recorded_vectors import RecordedVectors, successive
from hmmscope.storage.seals import remove_seal, seal_report

SMALL = {
    "length": 12,
    "states": (1, 2),
    "restarts": 1,
    "iterations": 5,
    "order": 2,
    "networks": ("rnn",),
    "max_steps": 30,
}


@pytest.fixture(scope="module")
def data() -> hs.SequenceData:
    """Two kinds of runs, with pieces of unequal lengths."""
    rng = np.random.default_rng(0)
    rows = ["".join("ab" if rng.random() < 0.5 else "cc" for _ in range(6 + k % 7)) for k in range(80)]
    return hs.SequenceData(rows, unit="characters", title="pairs")


@pytest.fixture(scope="module")
def study(data: hs.SequenceData, tmp_path_factory: pytest.TempPathFactory) -> studies.StudyResult:
    return hs.study(data, tmp_path_factory.mktemp("studies") / "pairs", **SMALL)


@pytest.mark.drawn(1, of="studies")
def test_all_predictors_stand_on_the_test_part(study: studies.StudyResult, data: hs.SequenceData) -> None:
    rows = {row["name"]: row for row in study.table()}
    families = [row["family"] for row in rows.values()]
    assert [families.count(family) for family in ("n-gram", "context trees", "HMM", "network")] == [3, 1, 2, 1]
    assert [sum(row["chosen"] for row in rows.values() if row["family"] == f) for f in set(families)] == [1, 1, 1, 1]
    test = data.cut(12).test
    counts = np.bincount(data.cut(12).train.flat, minlength=3)
    (strength,) = TrainedNgrams(RecordedSequences(data.cut(12)), 0).strengths[0]
    share = (counts + strength / 3) / (counts.sum() + strength)
    expected = -np.log(share)[test.flat].mean()
    assert rows["n-gram-0"]["value"] == pytest.approx(expected, rel=1e-9)
    assert rows["context-tree"]["value"] < rows["n-gram-0"]["value"]
    hmm = hs.load_process(study.path / "hmms" / "2.json")
    padded, lengths = test.padded()
    whole = -hs.filter_beliefs(hmm, padded, lengths=lengths).log_likelihood.sum().item() / test.num_observations
    assert rows["HMM-2"]["value"] == pytest.approx(whole, rel=1e-9)
    assert rows["HMM-2"]["bits"] == pytest.approx(whole / math.log(2), rel=1e-9)
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows.values())


def study_table(study: studies.StudyResult, name: str) -> list[dict]:
    return [json.loads(line) for line in (study.path / "tables" / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.drawn(1, of="studies")
def test_what_the_network_gains_adds_up(study: studies.StudyResult) -> None:
    rows = {row["name"]: row for row in study.table()}
    (best,) = (json.loads(line) for line in (study.path / "tables" / "chosen.jsonl").read_text().splitlines())
    assert best["value"] == pytest.approx(
        rows[f"HMM-{best['states']}"]["value"] - rows[best["run"]]["value"], abs=1e-12
    )
    counting = {
        name: row["value"]
        for name, row in rows.items()
        if row["family"] in ("n-gram", "context trees") and row["chosen"]
    }
    assert counting[best["counting"]] == min(
        counting.values()
    )  # the better of the two, whichever the validation part says
    gain = counting[best["counting"]] - rows[best["run"]]["value"]
    assert best["over_counting_value"] == pytest.approx(gain, abs=1e-12)
    states = [json.loads(line) for line in (study.path / "tables" / "states.jsonl").read_text().splitlines()]
    chosen = next(row for row in states if row["chosen"])
    if best["states"] != chosen["num_states"]:  # only where the validation part is sure
        assert rows[f"HMM-{best['states']}"]["validation"] < rows[f"HMM-{chosen['num_states']}"]["validation"]
    assert ", 95 % [" in chosen["reason"]
    said = {name: study_table(study, name) for name in ("goodness", "entries", "forecast")}
    assert {row["family"] for row in said["goodness"]} == {"runs", "n-grams of 2", "n-grams of 3", "autocorrelation"}
    assert len(said["entries"]) == chosen["num_states"] * (1 + chosen["num_states"] + 3)
    assert sum(row["mean"] for row in said["forecast"] if row["step"] == 1) == pytest.approx(1)
    contexts = [json.loads(line) for line in (study.path / "tables" / "contexts.jsonl").read_text().splitlines()]
    assert {row["symbols_before"] for row in contexts} == {1, 2, 3}
    assert {row["context"] for row in contexts if row["symbols_before"] == 1} <= set("abc")
    for row in contexts:
        assert row["low"] <= row["value"] <= row["high"]


@pytest.mark.drawn(1, of="studies")
def test_its_page_and_findings(study: studies.StudyResult) -> None:
    assert "study" in study._repr_html_().lower()
    about = json.loads((study.path / "experiment.json").read_text())
    assert about["command"].startswith("hmmscope study pairs --out pairs --length 12 --states 1,2")
    findings = json.loads((study.path / "findings.json").read_text())
    assert "the best HMM" in findings[0]["title"]
    assert findings[1]["title"].endswith("n-gram baselines")
    assert any("belief" in one["title"] for one in findings) == (study.hmm.num_states > 1)
    draw_folder(study.path)
    page = write_page([study.path], study.path / "report.html").read_text()
    assert "A study of pairs" in page
    assert all(
        title in page for title in ("Loss of all predictors of the next symbol", "Loss by the number of symbols seen")
    )


@pytest.mark.drawn(1, of="studies")
def test_every_changed_byte_of_what_it_fitted_and_trained_is_found(
    study: studies.StudyResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(study.path, copy)
    draw_folder(copy)
    write_page([copy], copy / "report.html")
    assert main(["check", str(copy)]) == 0
    assert re.search(r"; also those of 1 run inside; .* \d+ files, 0 not covered\n", capsys.readouterr().out)
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.name not in ("lock", "grid.lock")]
    kinds = {"hmms/2.json", "report.html", "figures/01-predictors.png", "tables/chosen.jsonl"}
    assert kinds <= {path.relative_to(copy).as_posix() for path in files}
    for path in files:
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]) if before else b" ")
        with pytest.raises(DamagedError):
            seal_report(copy)
        path.write_bytes(before)
    hmm = copy / "hmms" / "2.json"
    hmm.write_text(hmm.read_text().replace("0.", "1.", 1))
    assert main(["check", str(copy)]) == 4
    assert "hmms/2.json: altered" in capsys.readouterr().err


@pytest.mark.drawn(1, of="studies")
def test_a_refused_resume_changes_no_byte(study: studies.StudyResult, data: hs.SequenceData, tmp_path: Path) -> None:
    copy = tmp_path / "pairs"
    shutil.copytree(study.path, copy)
    weights = next(copy.rglob("model.safetensors"))
    weights.write_bytes(bytes([weights.read_bytes()[0] ^ 1]) + weights.read_bytes()[1:])
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(DamagedError, match="none of 1 checkpoints"):
        hs.study(data, copy, resume=True, **SMALL)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    remove_seal(copy)
    with pytest.raises(DamagedError, match="altered"):  # the run inside has a seal of its own
        seal_report(copy)


@pytest.mark.drawn(1, of="studies")
def test_it_goes_on_where_it_was(
    study: studies.StudyResult, data: hs.SequenceData, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (study.path / "tables" / "predictors.jsonl").read_bytes()
    remove_seal(study.path)
    (study.path / "tables" / "chosen.jsonl").unlink()
    monkeypatch.setattr(studies, "fit", None)  # what is there is not made again
    again = hs.study(data, study.path, resume=True, **SMALL)
    assert (again.path / "tables" / "predictors.jsonl").read_bytes() == before
    assert torch.equal(again.hmm.transition, study.hmm.transition)
    with pytest.raises(RefusedError, match="exists"):
        hs.study(data, study.path, **SMALL)
    with pytest.raises(RefusedError, match=r"contains another study \(study\.order"):
        hs.study(data, study.path, resume=True, **SMALL | {"order": 1})
    with pytest.raises(RefusedError, match="contains another study"):
        hs.study(data[:40], study.path, resume=True, **SMALL)


@pytest.mark.drawn(1, of="studies")
def test_a_study_that_was_begun_before_searches_were_noted_goes_on(
    study: studies.StudyResult, data: hs.SequenceData, tmp_path: Path
) -> None:
    copy = tmp_path / "pairs"
    shutil.copytree(study.path, copy)
    remove_seal(copy)
    for name in ("hmms/2-search.json", "tables/states.jsonl", "tables/chosen.jsonl", "fitted.json"):
        (copy / name).unlink()
    kept = (copy / "hmms" / "2.json").read_bytes()
    again = hs.study(data, copy, resume=True, **SMALL)
    assert (copy / "hmms" / "2.json").read_bytes() == kept
    rows = map(json.loads, (copy / "tables" / "states.jsonl").read_text().splitlines())
    assert [row["num_states"] for row in rows] == [1, 2]
    assert again.table() == study.table()
    size = again.hmm.num_states
    assert fitted_hmm({size: again.hmm}, data.cut(12).test, [], size)["why"].endswith("the best predictor.")


@pytest.mark.parametrize("part", ["_fit_all", "_train_all", "_measure_all"])
def test_a_folder_that_is_moved_away_is_one_line(
    data: hs.SequenceData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Before each part: what comes next finds no file, or none that is whole."""
    monkeypatch.setattr(studies, "_fit_all", lambda *args: {})
    monkeypatch.setattr(studies, "_train_all", lambda *args: [])

    def moved(*args: Any) -> None:
        (tmp_path / "out").rename(tmp_path / "elsewhere")
        raise DamagedError("out/x: is no JSON") if part == "_fit_all" else FileNotFoundError("out/x")

    monkeypatch.setattr(studies, part, moved)
    with pytest.raises(
        ResourceError, match="out: was moved or removed while hmmscope was writing; leave it in place until hmmscope"
    ):
        hs.study(data, tmp_path / "out")


def test_bad_studies_are_refused(data: hs.SequenceData, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for fields, message in (
        ({"states": ()}, "states: must be one or several"),
        ({"networks": ("rn",)}, "did you mean 'rnn'"),
        ({"length": 1}, "length: must be at least 2"),
    ):
        with pytest.raises(InputError, match=message):
            hs.study(data, tmp_path / "new", **SMALL | fields)
    with pytest.raises(InputError, match="cannot be split"):
        hs.study(["abab"], tmp_path / "new", **SMALL)
    assert not (tmp_path / "new").exists()
    (tmp_path / "a.txt").write_text("ab\nba\nbb\naab\n")
    assert main(["study", str(tmp_path / "a.txt")]) == 2
    assert "--dry-run" in capsys.readouterr().err
    assert main(["study", str(tmp_path / "a.txt"), "--stats", "3"]) == 2
    assert "did you mean '--states'" in capsys.readouterr().err


#: The least that a study is asked for on the command line.
SHORT = ["--states", "1", "--restarts", "1", "--iterations", "2"]
SHORT += ["--order", "1", "--networks", "rnn", "--max_steps", "5"]


@pytest.mark.long
@pytest.mark.drawn(1, of="studies")
def test_one_long_sequence_goes_through_to_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A symbol a row, 800 rows: cut by itself so that some can be held out, and said what intervals are over."""
    rng = np.random.default_rng(1)
    (tmp_path / "w.csv").write_text(
        "day,sky\n" + "".join(f"{k},{'sun' if rng.random() < 0.7 else 'rain'}\n" for k in range(800))
    )
    line = ["study", str(tmp_path / "w.csv"), "--column", "sky", "--unit", "lines", "--out", str(tmp_path / "w")]
    assert main(line + SHORT) == 0
    out = capsys.readouterr().out
    assert "w.csv: 800 observations in 50 sequences of 16" in out
    assert "column sky: each line is one symbol" in out
    assert "cut into 50 pieces of at most 16" in out
    assert (tmp_path / "w" / "report.html").is_file()
    about = json.loads((tmp_path / "w" / "experiment.json").read_text())
    assert "over the test part (5 of 50 pieces cut from 1 sequence" in about["intervals"]
    hmm = hs.load_process(tmp_path / "w" / "hmms" / "1.json")
    assert hs.SequenceData(tmp_path / "w.csv", symbols_from=hmm).lengths.tolist() == [800]


@pytest.mark.drawn(1, of="studies")
def test_one_piece_of_a_test_part_decides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("abcabbacbabcbb\nacbbabcbaccbab\nbacbabcbabcacb\n")
    line = ["study", str(tmp_path / "a.txt"), "--out", str(tmp_path / "a"), "-q"]
    assert main(line + SHORT) == 0
    out = capsys.readouterr().out
    assert "* With one test piece it is undecided whether the best network beats the best HMM" in out
    assert "[" not in out
    assert "(HMM of 1 state)" in out
    about = json.loads((tmp_path / "a" / "experiment.json").read_text())
    assert about["intervals"] == "There are no intervals: the test part has only one of 3 sequences."


def test_entropies_by_counting() -> None:
    """A period of two: nothing is left once a symbol is known; n-grams do not cross sequences."""
    data = hs.SequenceData(["abab"] * 50 + ["baba"] * 50, unit="characters")
    rows = {row["context"]: row["value"] for row in entropies(data, 2)}
    assert rows[-1] == pytest.approx(math.log(2))
    assert rows[0] == pytest.approx(math.log(2), abs=0.01)
    assert rows[1] == pytest.approx(0, abs=0.01)
    assert len(np.unique(grams(data, 2))) == 2
    assert len(grams(data, 4)) == 100


def test_an_hmm_stands_beside_a_network_on_given_sequences(data: hs.SequenceData) -> None:
    """The observers of `evaluate`, on every part."""
    hmm = hs.fit(data.train, 2, options=hs.FitOptions(num_restarts=1, max_iterations=3)).hmm
    model = hs.make_model("rnn", num_symbols=4, width=8)
    for stream, part in (("test", data.test), ("evaluate", data.validation)):
        dataset = hs.ProcessDataset(data, layout=SequenceLayout(length=data.longest, placeholder=True), stream=stream)
        score = evaluate(
            model, dataset, num_samples=99, observers={"mine": hmm}, options=hs.EvaluateOptions(ngram_order=1)
        )
        padded, lengths = part.padded()
        expected = -hs.filter_beliefs(hmm, padded, lengths=lengths).log_likelihood.sum().item() / int(lengths.sum())
        assert np.nanmean(score.measures["mine"]["loss"]) == pytest.approx(expected, rel=1e-9)
        assert "trained-order-1" in score.measures
        assert "trained-order-2" not in score.measures


def test_the_belief_of_an_hmm_is_read_where_it_is_held(data: hs.SequenceData) -> None:
    """A network that computes the HMM's belief gives R² one; padding counts for nothing."""
    hmm = hs.HMM([0.5, 0.5], [[0.8, 0.2], [0.3, 0.7]], [[0.4, 0.4, 0.2], [0.1, 0.1, 0.8]])

    class Holds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.belief, self.noise = torch.nn.Identity(), torch.nn.Identity()

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            beliefs = hs.filter_beliefs(hmm, tokens).beliefs.float()
            self.noise(torch.randn(beliefs.shape, generator=torch.Generator().manual_seed(0)))
            return self.belief(beliefs)[..., [0, 0, 1]]

    dataset = hs.ProcessDataset(data, length=data.longest, stream="test")
    options = hs.InstrumentOptions(observer=hmm)
    layers = ["belief", "noise"]
    rows = hs.probe(Holds(), dataset, target="belief", options=options, layers=layers, num_samples=64)
    found = {(row["layer_name"], row["labels"]): row["r2"] for row in rows}
    assert found["belief", "true"] == pytest.approx(1, abs=1e-4)
    assert found["noise", "true"] < 0.3
    assert found["belief", "shuffled"] < 0.3
    with pytest.raises(InputError, match="observer: needs the target belief"):
        hs.probe(Holds(), dataset, target="previous-1", options=options, layers=layers)
    options = hs.InstrumentOptions(observer=hs.load_process("umbrella"))
    with pytest.raises(InputError, match="observer: must have 3 symbols"):
        hs.probe(Holds(), dataset, target="belief", options=options, layers=layers)


@pytest.mark.long
def test_tables_and_pictures_of_scores_runs_probes_and_studies(study: studies.StudyResult) -> None:
    run = study.run
    score = evaluate(run.model, run.dataset(), num_samples=20)
    probed = hs.probe(run.model, run.dataset(), target="previous-1", layers=["residual.1"], num_samples=20)
    for thing, curves in ((score, len(score.measures)), (probed, 2), (run, 2), (study, 4)):
        assert isinstance(thing.table(), list)
        assert isinstance(thing.table()[0], dict)
        assert "<table>" in thing._repr_html_()
        (axes,) = thing.plot().axes
        assert len(axes.lines) == curves
    row = next(row for row in probed if row["labels"] == "true")
    assert probed.plot().axes[0].lines[0].get_ydata()[0] == row["accuracy"]


def test_the_page_shows_the_states_and_the_decoded_path(study: studies.StudyResult, tmp_path: Path) -> None:
    fitted = json.loads((study.path / "fitted.json").read_text())
    chosen = next(
        row
        for row in map(json.loads, (study.path / "tables" / "states.jsonl").read_text().splitlines())
        if row["chosen"]
    )
    assert len(fitted["states"]) == chosen["num_states"]
    assert sum(state["share"] for state in fitted["states"]) == pytest.approx(1)
    hmm = hs.load_process(study.path / "hmms" / f"{chosen['num_states']}.json")
    symbols = torch.tensor([[hmm.symbols.index(name) for name in fitted["symbols"]]])
    assert fitted["path"] == hs.most_likely_states(hmm, symbols).states[0].tolist()
    assert np.allclose(fitted["beliefs"], hs.smooth_beliefs(hmm, symbols)[0], rtol=0, atol=6e-4)
    assert np.allclose(fitted["moves"], hmm.transition, rtol=0, atol=1e-9)
    page = write_page([study.path], tmp_path / "page.html").read_text()
    assert page.count('<rect class="state"') == chosen["num_states"]
    assert page.count('<rect class="over"') == len(fitted["symbols"])


@pytest.mark.drawn(1, of="studies")
def test_the_picture_of_a_fitted_hmm_escapes_names_and_leaves_rare_moves_out() -> None:
    hmm = hs.HMM([0.5, 0.5], [[0.97, 0.03], [0.5, 0.5]], np.eye(2), symbols=["<i>", "b"], states=["a<script>", "c"])
    data = hs.SequenceData([["<i>", "<i>", "b"]], symbols=hmm.symbols)
    one = picture(fitted_hmm({2: hmm}, data, [{"num_states": 2, "chosen": True}], 2))
    assert [arrow["chance"] for arrow in one["arrows"]] == [".50"]
    assert sorted(loop["chance"] for loop in one["loops"]) == [".50", ".97"]
    drawn = str(template("fitted.html.j2").module.fitted(one))  # type: ignore[attr-defined]
    assert "a&lt;script&gt;" in drawn
    assert "<i>" not in drawn
    ring = [[0.9 if j == (i + 1) % 30 else 0.1 / 29 for j in range(30)] for i in range(30)]
    many = hs.HMM(np.full(30, 1 / 30), ring, np.eye(30))
    drawn_of = picture(
        fitted_hmm({30: many}, hs.SequenceData([list(range(30))]), [{"num_states": 30, "chosen": True}], 30)
    )
    assert len(drawn_of["boxes"]) == 8
    assert drawn_of["left_out"] == 22
    assert len(drawn_of["arrows"]) == 7


@pytest.mark.parametrize("change", [{"moves": [[1.0]]}, {"path": [7]}, {"states": []}, {"why": 3}, {"beliefs": None}])
def test_a_fitted_json_that_no_study_wrote_is_damaged(study: studies.StudyResult, tmp_path: Path, change: dict) -> None:
    data = json.loads((study.path / "fitted.json").read_text())
    (tmp_path / "fitted.json").write_text(json.dumps(data | change))
    with pytest.raises(DamagedError, match=r"fitted\.json: must have the keys states, moves and path"):
        read_fitted(tmp_path / "fitted.json")


def test_a_study_of_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two states with a gap, from a file with time stamps to the page."""
    monkeypatch.setattr("hmmscope.lab.study.fit_summary.SIMULATIONS", 20)
    rng, path, out = np.random.default_rng(0), tmp_path / "sensor.csv", tmp_path / "out"
    rows = [20 + 4 * (k // 40 % 2) + rng.normal() for k in range(500)]
    path.write_text("t,x\n" + "".join(f"{k},{row:.3f}\n" for k, row in enumerate(rows) if not 100 <= k < 110))
    asked = SMALL | {"length": 20, "iterations": 9, "max_steps": 4, "order": 1}
    study = hs.study(path, out, time="t", every=1, **asked)
    rows_of = {row["name"]: row for row in study.table()}
    assert rows_of["HMM-1"]["value"] == pytest.approx(rows_of["autoregression-0"]["value"], abs=1e-3)
    assert rows_of["HMM-2"]["value"] < rows_of["autoregression-1"]["value"] < rows_of["autoregression-0"]["value"] - 0.2
    test = RecordedVectors(hs.read_vectors(path, time="t", every=1)).in_pieces(20).parts[2].padded()
    each = hs.load_process(out / "hmms/2.json").observe(test).log_likelihood_terms[~test[..., 0].isnan()]
    assert rows_of["HMM-2"]["value"] == pytest.approx(-float(each.mean()), rel=1e-9)
    assert rows_of["HMM-2"]["parameters"] == 1 + 2 + 4
    assert {row["array"] for row in study_table(study, "entries")} == {"initial", "transition", "means", "covariances"}
    titles = [one["title"] for one in json.loads((out / "findings.json").read_text())]
    assert "By BIC, 2 hidden states fit best" in titles
    fractions = [row | {"mean": 0.5, "low": 0.4, "high": 0.6} for row in study_table(study, "forecast")]
    drawn = figures_of_fit({"entries": study_table(study, "entries"), "forecast": fractions})
    assert [panel.y_label for panel in drawn[-1].panels] == ["value"]  # numbers in [0, 1] are no probabilities
    page = write_page([out], tmp_path / "report.html").read_text()
    assert all(
        text in page for text in ("Gaussian autoregressions", "state 1", "Loss by the number of observations seen")
    )
    assert hs.study(path, out, time="t", every=1, resume=True, **asked).table() == study.table()
    assert (
        main(["study", str(path), "--time", "t", "--every", "1", "--dry-run", "--states", "1", "--networks", "rnn"])
        == 0
    )
    assert "10 missing steps in 1 gap" in capsys.readouterr().out
    rounded, whole = np.round(rows), prepare(path, studies.StudySpec(min_variance=0.25), time="t", every=1)
    assert whole.fit_options["min_variance"] == 0.25
    least = prepare(rounded, studies.StudySpec(emission="gaussian")).fit_options["min_variance"]
    assert least == pytest.approx(1 / 12 / rounded.var(), rel=0.1)  # the variance of rounding
    with pytest.raises(InputError, match="unit: applies to symbols"):
        hs.study(np.array(rows), tmp_path / "new", unit="words")
    with pytest.raises(InputError, match="emission: must be symbols or gaussian"):
        hs.study(path, tmp_path / "new", time="t", every=1, emission="poisson")


def test_a_study_of_numbers_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmmscope.lab.study.fit_summary.SIMULATIONS", 20)
    rng = np.random.default_rng(0)
    modes = [None if k % 50 == 9 else "on" if k // 40 % 2 and k % 9 else "off" for k in range(500)]
    table = {"mode": modes, "x": 20 + 4.0 * (np.arange(500) // 40 % 2) + rng.normal(size=500)}
    study = hs.study(table, tmp_path / "out", **SMALL | {"length": 20, "max_steps": 4, "order": 1, "states": (2,)})
    rows = {row["name"]: row for row in study.table()}
    process = RecordedVectors(hs.read_vectors(table)).in_pieces(20)
    train, _, test = (part.padded() for part in process.parts)
    before, now = successive(test[..., 1], 2)
    numbers = AutoRegression(train[..., :1], 1, process.least_variances[:1]).predictions(test[..., :1])
    for order, logs in enumerate((process.chains[0][-1, now], process.chains[0][before, now])):
        logs = (numbers[f"autoregression-{order}"][..., 0] + logs)[~test.isnan().any(-1)]
        assert rows[f"autoregression-{order}"]["value"] == pytest.approx(-float(logs.mean()), rel=1e-9)
    assert rows["HMM-2"]["value"] < rows["autoregression-1"]["value"] - 0.2
    assert rows["HMM-2"]["parameters"] == 1 + 2 + 4 + 2
    assert np.isfinite([row["value"] for row in rows.values()]).all()
    page = write_page([tmp_path / "out"], tmp_path / "report.html").read_text()
    assert all(text in page for text in ("Columns of names (mode) are channels", "mode off", "x, mode (2 names)"))
