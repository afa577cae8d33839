"""Pages of runs that were made in Python, of registered models and of a module of one's own."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hmmscope as hs
from cli_cases import assert_one_line, call  # noqa: F401 - a fixture
from hmmscope.errors import InputError
from hmmscope.lab.verbs.pages import kept_results
from hmmscope.runs.pipeline import Run
from hmmscope.storage import seals, store
from hmmscope.storage.rundir import RunDir

ROOT = Path(__file__).parents[2]


class Net(nn.Module):
    """A module of one's own, which no configuration can build."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(3, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.embedding(tokens))[0])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Run]:
    monkeypatch.chdir(tmp_path)
    mess3 = hs.make_process("mess3")
    models = {"known": "rnn", "own": Net()}
    return {name: hs.train(mess3, name, model=model, length=8, num_steps=3) for name, model in models.items()}


@pytest.mark.long
@pytest.mark.drawn(2, of="pages")
def test_a_run_made_in_python_ends_in_one_page(runs: dict[str, Run], call: Callable) -> None:
    """The same by run.report(), by run.look and on the command line, from one measurement."""
    before = {path: path.read_bytes() for path in Path("known").rglob("*") if path.is_file()}
    assert call("report", "known", "-o", "known.html").out == "page: known.html\n"
    page = Path("known.html").read_text()
    assert {path: path.read_bytes() for path in Path("known").rglob("*") if path.is_file()} == before
    for shown in ("Loss over training", "Predictions and the optimum", "Loss above the optimum", "before training"):
        assert shown in page
    assert f"{runs['known'].summary['loss']:.4f}" in page
    assert "hmmscope train known --out NEW" in page
    assert "unsealed" not in page
    assert runs["known"].report() == Path("known/report.html")
    assert Path("known/report.html").read_text() == page
    told = call("check", "known")
    assert (told.code, told.error) == (0, "")
    assert told.out.endswith(" 0 not covered\n")
    assert call("look", "known", "-o", "look.html", "-q").code == 0
    assert Path("look.html").read_text() == page
    assert runs["own"].report("own.html") == Path("own.html")
    assert "<title>Net on Mess3" in Path("own.html").read_text()
    with pytest.raises(InputError, match=r"out: must end in \.html"):
        runs["known"].report("page.txt")


@pytest.mark.long
@pytest.mark.drawn(2, of="pages")
def test_runs_are_compared_and_drawn_from_their_files_alone(runs: dict[str, Run], call: Callable) -> None:
    assert call("report", "known", "own", "-o", "both.html").code == 0
    page = Path("both.html").read_text()
    assert "Compared" in page
    assert f"{runs['own'].summary['loss']:.4f}" in page
    for name in runs:
        assert call("report", name, "--figures", f"figures-{name}", "-q").code == 0
        assert {path.suffix for path in Path(f"figures-{name}").iterdir()} == {".pdf", ".png"}


@pytest.mark.long
@pytest.mark.drawn(2, of="pages")
def test_what_the_command_line_can_build_it_analyses_and_looks_at(runs: dict[str, Run], call: Callable) -> None:
    for words in (["analyse", "known", "geometry"], ["look", "known", "-o", "live.html"]):
        told = call(*words)
        assert (told.code, told.error) == (0, "")
    for words in (
        ["analyse", "own", "geometry"],
        ["look", "own", "-o", "live.html"],
        ["report", "own", "-o", "live.html"],
        ["analyse", "own", "--export", "x"],
    ):
        told = call(*words)
        assert_one_line(told, 2)
        assert "own: its model is a user module, Net; load it in Python" in told.error
        for advice in (
            "hs.load_run('own', model=Net(...))",
            "hs.probe(run.model,",
            "run.report()",
            "hmmscope look FILE.py:Net own",
        ):
            assert advice in told.error
    run = hs.load_run("own", model=Net())  # the advice, followed
    rows = hs.probe(run.model, run.dataset("probe"), target="belief", layers=["cell"], num_samples=16)
    assert rows[0]["layer_name"] == "cell"
    assert repr(run).startswith("Run(Net on Mess3, 3 steps")
    Path("mine.py").write_text(Path(__file__).read_text().partition("@pytest.fixture")[0])
    assert call("look", "mine.py:Net", "own", "-o", "again.html", "-q").code == 0
    assert "3 steps" in Path("again.html").read_text()


def test_the_folder_of_a_run_trains_it_again(runs: dict[str, Run], call: Callable) -> None:
    """As its page says: on the process that was handed over, of which the folder has a copy."""
    assert call("train", "known", "--out", "again", "-q").code == 0
    assert Path("again/metrics.jsonl").read_bytes() == Path("known/metrics.jsonl").read_bytes()
    told = call("train", "own", "--out", "more", "-q")
    assert_one_line(told, 2)
    assert not Path("more").exists()
    Path("mine.py").write_text(Path(__file__).read_text().partition("@pytest.fixture")[0])
    told = call("train", "mess3", "--model", "mine.py:Net", "--out", "new", "-q", "--training.num_steps", 1)
    advice = told.out.split("page: hmmscope ")[1].split()
    assert call(*advice, "-q").code == 0


@pytest.mark.drawn(2, of="pages")
def test_what_was_added_stays_covered_when_a_run_is_resumed(runs: dict[str, Run], call: Callable) -> None:
    runs["known"].report()
    assert call("train", "known", "--out", "known", "--resume", "-q").code == 0
    assert seals.seal_report(Path("known")).beyond == ()
    assert call("report", "known", "-o", "known.html").code == 0


def test_a_run_that_is_not_finished_has_no_page_yet(runs: dict[str, Run], call: Callable) -> None:
    for name, advice in (("known", "hmmscope train known --out known --resume"), ("own", "model=..., resume=True)")):
        seals.remove_seal(Path(name))
        (Path(name) / "done.json").unlink()
        told = call("report", name, "-o", "x.html")
        assert_one_line(told, 2)
        assert "the run is not finished" in told.error
        assert advice in told.error
    assert call("train", "known", "--out", "known", "--resume", "-q").code == 0


@pytest.mark.drawn(2, of="pages")
def test_a_run_without_its_seal_is_marked_wherever_it_is_read(runs: dict[str, Run], call: Callable) -> None:
    path = Path("known")
    seals.remove_seal(path)
    summary = RunDir.open(path).done
    store.write_json(path / "done.json", summary | {"loss": 0.125})
    assert "there is no file of checksums (seal.json), so these files" in runs["known"].report().read_text()
    for words in (["analyse", "known", "curves"], ["look", "known", "-o", "live.html"]):
        assert "warning: known: has no checksums (seal.json)" in call(*words).error
    assert call("check", "known").code == 4


@pytest.mark.drawn(2, of="pages")
def test_a_file_that_is_no_page_of_ours_stays(runs: dict[str, Run], call: Callable) -> None:
    Path("mine.html").write_text("<!doctype html><title>mine</title>")
    for words in (["look", "known"], ["report", "known"], ["report", "known", "own"]):
        told = call(*words, "-o", "mine.html")
        assert_one_line(told, 3)
        assert "mine.html: exists, and hmmscope did not write it; choose another name" in told.error
        assert call(*words, "-o", "ours.html").code == 0  # in place of the one before
    assert Path("mine.html").read_text() == "<!doctype html><title>mine</title>"


def test_the_name_of_an_experiment_stands_for_its_kept_results(call: Callable, tmp_path: Path) -> None:
    """The largest scale with several seeds; in ten seconds, without training."""
    told = call("report", "limits-table1", "--out", str(tmp_path / "one.html"))
    assert (told.code, told.error) == (0, "")
    assert "limits-table1" in (tmp_path / "one.html").read_text()
    assert kept_results("limits-fig3").relative_to(ROOT) == Path("papers/results/medium/limits-fig3")
    assert kept_results("multitask-fig1@16-8").name == "multitask-fig1@16-8"
    for wrong, near in (
        ("limits-fgi3", "limits-fig3"),
        ("table4", "limits-table4"),
        ("fig2", "limits-fig2 or multitask-fig2"),
    ):
        refused = call("report", wrong, "--out", str(tmp_path / "two.html")).error
        assert refused.endswith(f"{wrong}: not a folder of an experiment; did you mean the experiment {near}?\n")
    none = call("report", "quickstart", "--out", str(tmp_path / "two.html"))
    assert none.error.startswith("error[2] quickstart: this checkout has no results of it; run hmmscope run quickstart")
