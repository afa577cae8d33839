"""Seals: no changed byte passes, in a run or in what is kept of an experiment, and readers refuse what is damaged."""

import random
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import kept_results
import pytest

from hmmscope.errors import DamagedError
from hmmscope.lab.evidence.ledger import as_text, ledger
from hmmscope.lab.report.folder import UNSEALED, read_experiment
from hmmscope.storage import disk, seals, store
from hmmscope.storage.rundir import RunDir
from hmmscope.storage.seals import open_sealed, read_seal, remove_seal, write_seal
from hmmscope_studies.benchmark.board import check_board, is_board
from rundir_cases import run, small_tensors  # noqa: F401 - a fixture
from rundir_faults import flipped

ROOT = Path(__file__).parents[2]
RESULTS = kept_results.RESULTS / "small"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def alterations(path: Path, rng: random.Random) -> Iterator[bytes]:
    """The file with a bit turned, cut, lengthened, or, if it is text, with another space."""
    data = path.read_bytes()
    yield flipped(data, rng.randrange(8 * len(data)))
    yield data[: rng.randrange(len(data))]
    yield data + b" "
    if b" " in data:
        yield data.replace(b" ", b"\t", 1)


def assert_every_change_is_found(folder: Path) -> int:
    rng, count = random.Random(0), 0
    assert open_sealed(folder) is not None
    for path in files(folder):
        before = path.read_bytes()
        for data in alterations(path, rng) if before else [b" "]:
            path.write_bytes(data)
            with pytest.raises(DamagedError):
                open_sealed(folder)
            count += 1
        path.unlink()
        if path.name != seals.SEAL:
            with pytest.raises(DamagedError):
                open_sealed(folder)
        path.write_bytes(before)
    assert open_sealed(folder) is not None
    return count


@pytest.mark.parametrize("name", ["multitask-lemma1", "limits-fig6"])
def test_every_change_of_kept_results_is_found(tmp_path: Path, name: str) -> None:
    shutil.copytree(RESULTS / name, tmp_path / name)
    assert assert_every_change_is_found(tmp_path / name) > 20


def test_all_kept_results_are_as_they_were_sealed() -> None:
    folders = [path.parent for path in sorted(RESULTS.parent.glob("*/*/experiment.json"))]
    assert len(folders) > 20
    assert [folder.name for folder in folders if open_sealed(folder) is None] == []


def test_what_is_kept_is_bound_to_what_measured_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = runpy.run_path(str(ROOT / "scripts" / "write_pages.py"))["keep"]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(RESULTS / "limits-table1", tmp_path / "run")
    write_seal(tmp_path / "run", "experiment", {"measured_by": {"hmmscope": "x"}, "runs": {"a": "b"}})
    kept = tmp_path / "papers" / "results" / "small" / "limits-table1"
    keep(tmp_path / "run")
    seal = open_sealed(kept)
    assert seal.bound == {"measured_by": {"hmmscope": "x"}, "runs": {"a": "b"}}
    remove_seal(tmp_path / "run")  # as while it is at work
    keep(tmp_path / "run")
    seal = open_sealed(kept)
    assert seal.bound.keys() == {"sealed_by"}


def test_every_change_of_a_finished_run_is_found(run: RunDir) -> None:
    run.timing.append({"step": 2, "seconds": 0.5})
    run.mark_done({"loss": 0.5})
    for inside in [*(run.path / "checkpoints").rglob("*.safetensors"), *(run.path / "checkpoints").rglob("state.json")]:
        inside.unlink()  # their digests are in the manifests, which the seal names
    assert assert_every_change_is_found(run.path) > 20


def test_all_checkpoints_are_covered_and_the_last_one_is_enough_to_load(run: RunDir) -> None:
    run.mark_done({"loss": 0.5})
    (run.path / "analysis").mkdir()
    for name in ("analysis/probe.jsonl", "analysis/geometry.jsonl"):
        (run.path / name).write_text("{}\n")
        seals.add(run.path, [name])
    found = seals.seal_report(run.path)
    assert found.beyond == ()
    assert str(found) == f"{len(found.covered)} files, 0 not covered"
    for name in ("checkpoints/step-000000001/model.safetensors", "analysis/probe.jsonl"):
        before = (run.path / name).read_bytes()
        (run.path / name).write_bytes(flipped(before, 8 * len(before) - 1))
        with pytest.raises(DamagedError, match="altered"):
            seals.seal_report(run.path)
        (run.path / name).write_bytes(before)
    shutil.rmtree(run.path / "checkpoints" / "step-000000001")
    assert open_sealed(run.path, milestones=False) is not None
    with pytest.raises(DamagedError, match="step-000000001"):
        seals.seal_report(run.path)


def test_a_seal_that_was_taken_off_is_on_again_only_if_nothing_changed(run: RunDir) -> None:
    run.mark_done({"loss": 0.5})
    before = {path: path.read_bytes() for path in files(run.path)}

    def interrupted(change: Callable[[], object]) -> None:
        with seals.unsealed(run.path):
            assert read_seal(run.path) is None
            change()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: None)
    assert {path: path.read_bytes() for path in files(run.path)} == before
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: (run.path / "more.json").write_text("{}"))
    assert read_seal(run.path) is None
    seals.add(run.path, ["more.json"])  # what is not sealed has no second seal
    assert not (run.path / seals.ADDED).exists()


def test_what_was_added_and_is_altered_gets_no_new_seal(run: RunDir) -> None:
    run.mark_done({"loss": 0.5})
    (run.path / "drawing.png").write_bytes(b"drawn")
    seals.cover(run.path / "drawing.png")
    assert seals.seal_report(run.path).beyond == ()
    (run.path / "drawing.png").write_bytes(b"drown")
    seals.add(run.path, [], ["drawing.png"])  # it stayed as it was, says who did not look
    with pytest.raises(DamagedError, match=r"drawing\.png: altered"):
        seals.seal_report(run.path)
    before = {path: path.read_bytes() for path in files(run.path)}
    with pytest.raises(DamagedError, match=r"drawing\.png: altered"), seals.unsealed(run.path):
        pass
    assert {path: path.read_bytes() for path in files(run.path)} == before
    (run.path / seals.ADDED).write_text("{}")
    with pytest.raises(DamagedError, match="not a seal"):
        open_sealed(run.path)  # before anything is made that it would have to name


def test_what_is_made_in_a_sealed_folder_is_covered(run: RunDir, tmp_path: Path) -> None:
    run.mark_done({"loss": 0.5})
    for name in ("page.html", "drawn/a.png", "drawn/deeper/b.png"):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_bytes(name.encode())
    assert len(seals.seal_report(run.path).beyond) == 3
    seals.cover(run.path / "page.html")
    seals.cover(run.path / "drawn")
    assert seals.seal_report(run.path).beyond == ()
    (tmp_path / "page.html").write_text("elsewhere")
    seals.cover(tmp_path / "page.html")
    seals.cover(run.path / "none.html")  # of a verb that wrote nothing
    shutil.copytree(run.path, run.path / "inside")  # a folder with a seal of its own
    seals.cover(run.path / "inside")
    assert seals.seal_report(run.path).beyond == ()
    (run.path / "inside" / "metrics.jsonl").write_bytes(b"{}\n")
    with pytest.raises(DamagedError, match="inside/metrics"):
        seals.seal_report(run.path)
    other = tmp_path / seals.SEAL
    other.write_text("what somebody else calls a seal")
    seals.cover(tmp_path / "page.html")
    assert other.read_text() == "what somebody else calls a seal"


def test_the_summary_of_a_damaged_run_is_not_read(run: RunDir) -> None:
    run.mark_done({"loss": 0.5})
    assert RunDir.open(run.path).done == {"loss": 0.5}
    lines = (run.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run.path / "metrics.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(DamagedError, match=r"metrics\.jsonl: has .* bytes, but seal\.json"):
        _ = RunDir.open(run.path).done


def test_a_seal_before_the_done_mark_says_nothing(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped between the two goes on as if neither were there."""
    with monkeypatch.context() as patch:
        patch.setattr("hmmscope.storage.rundir.write_bytes", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.mark_done({"loss": 0.5})
    assert run.done is None
    run.metrics.append({"step": 3})
    run.save_checkpoint(3, small_tensors(3), {})
    run.mark_done({"loss": 0.25})
    assert RunDir.open(run.path).done == {"loss": 0.25}


def test_names_that_leave_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.json").write_text("{}\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path)
    with pytest.raises(DamagedError, match=r"folder/link: is a link; replace it"):
        disk.refuse_links(tmp_path)
    entry = store.file_entries(tmp_path, ["outside.json"])["outside.json"]
    for name in ("../outside.json", str(tmp_path / "outside.json"), "link/outside.json", "", "a\0b"):
        with pytest.raises(DamagedError):
            store.check_entries(folder, {name: entry}, "seal.json")


def test_a_figure_that_the_seal_does_not_name_is_refused(tmp_path: Path) -> None:
    shutil.copytree(RESULTS / "limits-fig6", tmp_path / "kept")
    (tmp_path / "kept" / "figures").mkdir()
    (tmp_path / "kept" / "figures" / "99-more.json").write_text("{}\n")
    with pytest.raises(DamagedError, match=r"99-more\.json: is not listed in the seal"):
        open_sealed(tmp_path / "kept")


def test_claims_and_report_refuse_what_is_damaged_and_mark_what_is_unsealed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(RESULTS / "limits-table1", kept)
    assert "unsealed" not in "\n".join(as_text(ledger([kept])))
    assert UNSEALED not in [fact.value for fact in read_experiment(kept).about.facts]
    table = next((kept / "tables").glob("*.jsonl.xz"))
    before = table.read_bytes()
    table.write_bytes(before[:-20] + bytes([before[-20] ^ 1]) + before[-19:])
    for reader in (lambda: ledger([kept]), lambda: read_experiment(kept)):
        with pytest.raises(DamagedError, match=f"{table.name}: altered"):
            reader()
    table.write_bytes(before)
    remove_seal(kept)
    assert "unsealed" in "\n".join(as_text(ledger([kept])))
    assert ledger([kept])[0].row()["sealed"] is False
    assert UNSEALED in [fact.value for fact in read_experiment(kept).about.facts]


def test_a_seal_of_another_version_or_shape_is_damage(tmp_path: Path) -> None:
    write_seal(tmp_path, "pool", {})
    document = store.read_json(tmp_path / seals.SEAL)
    for change in ({"version": 2}, {"kind": "folder"}, {"more": 1}, {"format": "x"}, {"files": {"a": 1}}):
        store.write_json(tmp_path / seals.SEAL, document | change)
        with pytest.raises(DamagedError, match=r"seal\.json"):
            read_seal(tmp_path)
    remove_seal(tmp_path)
    remove_seal(tmp_path)
    assert read_seal(tmp_path) is None


def test_every_file_of_results_is_under_a_seal() -> None:
    """Beside the experiments, which others here open: the ledger, speeds, controls, what the laboratory found."""
    for place in kept_results.RESULTS.iterdir():
        if experiments := {path.parent for path in place.glob("*/experiment.json")}:
            assert experiments == {*place.iterdir()}
            assert all((one / seals.SEAL).is_file() for one in experiments)
        elif is_board(place):  # whose cards have their digests in their names
            assert check_board(place)[1].beyond == ()
        else:
            assert seals.seal_report(place).beyond == (), place


def test_a_file_that_joins_kept_ones_comes_under_their_seal_and_foreign_ones_do_not(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("one.json", "inner/two.xz"):
        store.write_bytes(tmp_path / name, b"1")
        seals.keep(tmp_path, [name])
    store.write_bytes(tmp_path / "three.json", b"3")
    seals.cover(tmp_path / "three.json")
    store.write_bytes(tmp_path / "notes.txt", b"of a user")
    found = seals.seal_report(tmp_path)
    assert (found.kind, found.covered, found.beyond) == (
        "kept",
        ("one.json", "three.json", "inner/two.xz"),
        ("notes.txt",),
    )
    (tmp_path / "inner" / "two.xz").write_bytes(b"2")
    seals.keep(tmp_path, ["one.json"])  # does not launder what was altered beside it
    with pytest.raises(DamagedError, match="two"):
        seals.seal_report(tmp_path)
