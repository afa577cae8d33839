"""Short forms of the trials of the laboratory: they find nothing in the present code and find planted faults."""

import ast
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

QUALITY = Path(__file__).resolve().parent
TESTS = QUALITY.parent / "tests"
FOLDERS = ("analysis", "storage", "runs", "report", "training", "sweeps")
for folder in (QUALITY / "adversarial", *(TESTS / name for name in FOLDERS)):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

import call_trials  # noqa: E402, F401 - the import registers its trials
import folder_trials  # noqa: E402
import fresh_seeds  # noqa: E402
import hmmscope as hs  # noqa: E402
import hostile_trials  # noqa: E402
import input_trials  # noqa: E402
import interval_trials  # noqa: E402
import mutant_trials  # noqa: E402
import option_trials  # noqa: E402, F401 - its trial
import random_tenth  # noqa: E402
import return_trials  # noqa: E402
import run_trials  # noqa: E402
import source_mutants  # noqa: E402
import storage_trials  # noqa: E402
import table  # noqa: E402
import typed_trials  # noqa: E402
from hmmscope.analysis import curves, intervals  # noqa: E402
from hmmscope.errors import HmmscopeError, InputError  # noqa: E402
from hmmscope.inference import monte_carlo  # noqa: E402
from hmmscope.lab import cli  # noqa: E402
from hmmscope.processes.files import load_process  # noqa: E402
from hmmscope.seeds import derived_seed, philox_key  # noqa: E402
from hmmscope.sequences.data import SequenceData  # noqa: E402
from hmmscope.storage import disk, seals  # noqa: E402
from hmmscope.storage.rundir import RunDir  # noqa: E402
from hmmscope_studies.benchmark.board import read_cards  # noqa: E402
from trials import conduct  # noqa: E402

SHORT = {"power-losses": 150, "errors": 10, "races": 2, "configurations": 150, "alarms": 150, "leaks": 20}
SHORT |= {"typed": 400, "round-trips": 150}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", SHORT)
def test_nothing_is_found(name: str, tmp_path: Path, unchecked: None) -> None:
    report = conduct(name, tmp_path / "room", SHORT[name], 7)
    assert report.broken == []
    assert report.trials == SHORT[name]
    assert report.goal in table.GOALS


def test_a_store_that_does_not_sync_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_trials.train_under_record", _without_syncs(storage_trials.train_under_record))
    assert conduct("power-losses", tmp_path / "room", 100, 7).violations > 0


def _without_syncs(record):  # type: ignore[no-untyped-def]
    return lambda *given: [entry for entry in record(*given) if entry[0] != "sync"]


def test_an_error_that_is_swallowed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "writing", lambda *_: suppress(OSError))
    assert conduct("errors", tmp_path / "room", 10, 7).violations > 0


def test_a_configuration_that_names_no_field_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise InputError("something is wrong")

    monkeypatch.setattr("input_trials.config_from_data", refuse)
    report = conduct("configurations", tmp_path / "room", 3, 7)
    assert (report.violations, report.broken[0]) == (3, "no field is named: something is wrong")


def test_intervals_cover_in_short_and_one_that_is_too_narrow_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [np.random.default_rng(seed).standard_t(5, 4000) for seed in range(3)]
    monkeypatch.setattr(interval_trials, "residuals", lambda: [law - law.mean() for law in some])
    few = {name: (law, sizes[1:2]) for name, (law, sizes) in interval_trials.LAWS.items()}
    monkeypatch.setattr(interval_trials, "LAWS", few)
    report = conduct("coverage", tmp_path / "good", 150, 7)
    assert report.broken == []
    assert report.trials > 150 * 5
    monkeypatch.setattr(monte_carlo, "student_half", lambda values: values.std(0) / len(values) ** 0.5)
    monkeypatch.setattr(intervals, "student_half", monte_carlo.student_half)
    assert conduct("coverage", tmp_path / "bad", 150, 7).violations > 0


def test_the_residuals_are_those_of_kept_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").symlink_to(interval_trials.RESULTS / "multitask-fig3b")
    monkeypatch.setattr(interval_trials, "RESULTS", tmp_path)
    found = interval_trials.residuals()
    assert found
    assert all(len(one) >= 60 and abs(one.mean()) < 1e-9 for one in found)


def test_a_false_alarm_is_found_and_a_leak_that_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(curves, "FALSE_ALARM", 0.9)
        assert conduct("alarms", tmp_path / "bad", 60, 7).violations > 0
    monkeypatch.setattr(curves, "FALSE_ALARM", 1e-200)
    assert conduct("leaks", tmp_path / "missed", 5, 7).broken == ["5 of 5 were not noticed"]


def test_an_internal_error_is_found_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_trials, "SOURCES", ["own_spec"])
    monkeypatch.setattr(typed_trials, "StudySpec", typed_trials.TrainingSpec)
    monkeypatch.setattr(typed_trials, "parse_spec", lambda *_: [][1])
    report = conduct("typed", tmp_path / "room", 3, 7)
    assert (report.violations, report.broken[0]) == (3, "TrainingSpec: IndexError: list index out of range at")


def test_a_watch_that_goes_by_the_wall_clock_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conduct("jumps", tmp_path / "good", 6, 7).broken == []
    silent = lambda watch: watch._task.heartbeat().age  # noqa: E731 - a watch that uses the dates of files
    monkeypatch.setattr("hmmscope.lab.tasks.local.StallTimer.silent", silent)
    assert conduct("jumps", tmp_path / "bad", 6, 7).violations > 0


def test_two_drivers_that_meet_in_the_locked_section_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conduct("drivers", tmp_path / "good", 2, 7).broken == []
    monkeypatch.setattr(run_trials.grid, "changing_grid", lambda out: nullcontext())
    report = conduct("drivers", tmp_path / "bad", 2, 7)
    assert "two were inside" in report.broken[0]


def test_what_comes_back_different_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(return_trials, "BACK", [return_trials.back_hmm])
    monkeypatch.setattr(return_trials, "load_process", lambda path: load_process("umbrella"))
    assert conduct("round-trips", tmp_path / "room", 3, 7).violations == 3


@pytest.mark.slow
def test_a_call_that_ends_in_a_traceback_or_writes_before_its_refusal_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(source: str) -> None:
        raise KeyError(source)

    def writes(source: str) -> None:
        Path("left").write_text("x")
        raise InputError("source: is wrong")

    monkeypatch.setattr("call_trials.function_names", lambda: ["stable_argmax"])
    for number, act in enumerate((fails, writes)):
        monkeypatch.setattr(hs, "stable_argmax", act)
        report = conduct("calls", tmp_path / str(number), 2, 7)
        assert report.violations == 2, report
        assert ("KeyError" if act is fails else "refused, and wrote") in report.broken[0]


#: Input found by the trial `typed` that ended in an internal error, or differed after saving and loading.
CASES: dict[str, Callable[[Path], object]] = {
    "gaps of numbers in JSON lines": lambda path: _saved(SequenceData([[0, -1, 1], [1]], missing=-1), path / "x.jsonl"),
    "a column of lists": lambda path: _refused(
        lambda: SequenceData(typed_trials.Table(s=["a", "b"], u=[[1], [1]]), group="u")
    ),
    "lengths of text": lambda path: _refused(lambda: SequenceData([[0, 1]], lengths="ab")),
    "a version that is an array": lambda path: _refused(lambda: _arrays(path / "x.npz", version=np.zeros(0))),
    "a shape beyond all memory": lambda path: _refused(lambda: _tensor(path / "x.safetensors", [0, 10**30])),
    "a symbol that is half a pair": lambda path: _called(2, "show", "\ud800"),
    "a name of three hundred letters": lambda path: _called(
        2, "sample", "umbrella", "-n", "1", "-o", str(path / ("x" * 300))
    ),
    "bfloat16 in a file of sequences": lambda path: _refused(lambda: _tensor(path / "x.safetensors", [2, 2], "BF16")),
    "ragged sequences in JSON": lambda path: _refused(lambda: _document(path / "x.json", [[0, 1], [0]], [[1], [1, 2]])),
    "lengths that are no numbers": lambda path: _refused(lambda: _document(path / "x.json", [0, 1], ["1", "1"])),
    "a key of a million letters": lambda path: _short(lambda: _lines(path / "x.jsonl", {"k" * 10**6: ["a", None]})),
    "a symbol of a million letters": lambda path: _short(
        lambda: SequenceData([["x" * 10**6, "b"]], symbols=["a", "b"])
    ),
    "a board with a zero byte": lambda path: _called(2, "benchmark", "--leaderboard", "\0"),
    "a board that is no folder": lambda path: _called(2, "benchmark", "--leaderboard", str(path / "none")),
    "a card that is a list": lambda path: _refused(lambda: _card(path, [1])),
}


def _saved(data: SequenceData, path: Path) -> None:
    data.save(path)
    assert SequenceData(path).digest == data.digest


def _called(code: int, *words: str) -> None:
    assert cli.main(list(words)) == code


def _refused(act: Callable[[], object]) -> None:
    with pytest.raises(HmmscopeError):
        act()


def _arrays(path: Path, **more: np.ndarray) -> object:
    np.savez(path, initial=np.full(2, 0.5), transition=np.full((2, 2), 0.5), emission=np.eye(2), **more)
    return load_process(path)


def _tensor(path: Path, shape: list[int], kind: str = "I64") -> object:
    size = 8 if kind == "BF16" else 0
    text = json.dumps({"observations": {"dtype": kind, "shape": shape, "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return SequenceData(path)


def _document(path: Path, tokens: object, lengths: object) -> object:
    data = {"format": "hmmscope-sequences", "version": 1, "num_symbols": 2, "tokens": tokens, "lengths": lengths}
    path.write_text(json.dumps(data))
    return load_process(path)


def _lines(path: Path, row: dict[str, object]) -> object:
    path.write_text(json.dumps(row) + "\n")
    return SequenceData(path)


def _card(path: Path, card: object) -> object:
    (path / "x-light-0123456789ab.json").write_text(json.dumps(card))
    return read_cards(path)


def _short(act: Callable[[], object]) -> None:
    """Check that `act` is refused in a message of less than 400 characters."""
    with pytest.raises(HmmscopeError) as refused:
        act()
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("case", CASES)
def test_what_was_found_by_typed_values_stays_mended(case: str, tmp_path: Path, unchecked: None) -> None:
    CASES[case](tmp_path)


def test_mutations_are_counted_and_one_that_passes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(place: Path) -> dict[str, Path]:
        with RunDir.create(place / "run", {"seed": 1}) as run:
            run.metrics.append({"step": 1})
            run.mark_done({"loss": 0.5})
        return {"run": place / "run"}

    monkeypatch.setattr(folder_trials, "folders", one)
    report = conduct("mutations", tmp_path / "good", 60, 7)
    assert report.broken == []
    assert report.trials > 40
    monkeypatch.setattr(folder_trials, "open_sealed", seals.read_seal)  # reads no file of the folder
    assert conduct("mutations", tmp_path / "bad", 60, 7).violations > 20


def test_a_resumption_that_costs_too_much_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_trials, "_DEAREST", -1.0)
    monkeypatch.setitem(run_trials._HEAVY, "model", {"name": "rnn", "width": 8})
    report = conduct("resumptions", tmp_path / "room", 1, 7)
    assert (report.goal, report.trials, report.violations) == ("G21", 1, 1)
    assert report.broken[0].endswith("s of processor time")


def test_fresh_seeds_change_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = philox_key(3, "corpus"), derived_seed(3, "shuffle")
    drawn = set()
    for salt in ("7 first", "7 second"):
        with monkeypatch.context() as patch:
            fresh_seeds.mix(patch, salt)
            drawn.add((philox_key(3, "corpus"), derived_seed(3, "shuffle")))
            assert philox_key(3, "corpus") != philox_key(4, "corpus")
            with pytest.raises(InputError, match="seed: must be"):
                philox_key(-1, "corpus")
    assert len({key for keys in (fixed, *drawn) for key in keys}) == 6
    assert (philox_key(3, "corpus"), derived_seed(3, "shuffle")) == fixed


def test_branches_that_no_test_takes_are_listed() -> None:
    files = {"/a/src/hmmscope/storage/disk.py": {"missing_branches": [[4, 6], [9, -1]]}, "b": {"missing_branches": []}}
    assert table.branches({"files": files, "totals": {"num_branches": 12, "missing_branches": 2}}) == (
        12,
        2,
        ["storage/disk.py never goes from line 4 to 6, 9 to the end"],
    )


def test_a_package_without_a_digest_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = conduct("packages", tmp_path / "good", 1000, 7)
    assert (report.goal, report.broken) == ("G25", [])
    assert report.trials > 50
    monkeypatch.setattr(input_trials.supply, "LOCKED", "a==1 \\\n    --hash=sha256:" + "0" * 64 + "\nb==1 \\\n")
    monkeypatch.setitem(input_trials.supply.PROJECT["project"], "dependencies", ["torch>=2", "a", "b>=1", "c"])
    report = conduct("packages", tmp_path / "bad", 1000, 7)
    assert (report.trials, report.broken) == (2, ["b has no digest", "c is required and not locked"])


def test_what_grows_without_end_and_is_read_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile_trials, "_SIZES", (4 << 20,))  # below the limit of every reader
    report = conduct("bombs", tmp_path / "room", 5, 7)
    assert report.trials == 5
    assert any("read, or ended" in line for line in report.broken)


def test_another_answer_from_a_thread_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_turn = itertools.count()
    monkeypatch.setattr(hostile_trials, "answers", lambda seed: str(next(in_turn)))
    monkeypatch.setattr(hostile_trials.concurrent.futures, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(2))
    report = conduct("callers", tmp_path / "room", 1, 7)
    assert report.violations > 16


def test_a_file_that_is_not_of_the_tree_is_found_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(where: Path, out: Path) -> Path:
        out.mkdir()
        with ZipFile(out / "x.whl", "w") as wheel:
            wheel.writestr("a/left.pyc", "x")
            wheel.writestr("x.dist-info/RECORD", "a/left.pyc,sha256=x,1\n")
        return out / "x.whl"

    monkeypatch.setattr(hostile_trials, "_wheel", built)
    report = conduct("wheels", tmp_path / "room", 9000, 7)
    assert any("a/left.pyc: is not as in the tree" in line for line in report.broken)


def test_a_tenth_of_the_tests_is_another_for_each_seed() -> None:
    items = [f"{file}{number}" for file in "abcdefgh" for number in range(10)]
    found = [random_tenth.drawn(items, lambda item: item[0], seed) for seed in "12345"]
    assert len({tuple(one) for one in found}) == 5
    assert random_tenth.drawn(items, lambda item: item[0], "1") == found[0]
    for one in found:
        assert len(set(one)) == 8
        assert len({item[0] for item in one}) == 1  # tests of a file stay together
        assert one != sorted(one)


def test_changes_are_changes() -> None:
    rng = random.Random(3)
    for data in (b"", b"a", b'{"a": [1, {"b": null}], "c": "x"}'):
        assert all(folder_trials.altered(data, rng) != data for _ in range(50))
    assert folder_trials.altered_field(b"no JSON", rng) is None


def test_no_trial_runs_outside_of_the_sandbox(tmp_path: Path) -> None:
    words = [sys.executable, str(QUALITY / "adversarial"), "--inside", "races", "1"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "a trial runs only in the sandbox" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_mutant_is_one_change_and_its_tests_are_those_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_mutants._line_then("a\nb\nc", "x\na\nb\nc", 3) == 2
    assert source_mutants._line_then("a\nb\nc", "x\na\nb\nc", 1) is None
    tree = ast.parse("A = 1\n\n\ndef f(n=2):\n    if n > (\n        3\n    ):\n        return n\n    return A\n")
    where = [source_mutants._place_of(tree, line) for line in (1, 4, 6, 8, 9)]
    assert where == [((1, 1), True), ((4, 4), True), ((5, 7), False), ((8, 8), False), ((9, 9), False)]
    one, other = (source_mutants.drawn("sequences", 1, random.Random(3))[0] for _ in range(2))
    assert one == other
    then = (source_mutants.SRC / one.file).read_text()
    assert ast.dump(ast.parse(one.source)) != ast.dump(ast.parse(then))
    lines = {str(one.line): ["slow", "quick"], "0": ["other"]}
    about = {
        "lines": {one.file: lines},
        "texts": {one.file: then},
        "seconds": {"slow": 50.0, "quick": 0.1, "other": 0.0},
    }
    monkeypatch.setattr(source_mutants, "_maps", lambda: [about])
    found = source_mutants.tests_of(one)
    assert list(found) == ["quick", "slow", "other"]  # the last one is another test of the same file
    assert list(mutant_trials.rounds(found)) == [["quick", "other"], ["slow"]]
    assert list(mutant_trials.rounds({"slow": 50.0})) == [["slow"]]
    assert list(mutant_trials.rounds(dict.fromkeys("abcdef", 20.0))) == [["a"], ["b", "c", "d"]]
    for file, line in source_mutants.EQUIVALENT:
        assert line in [text.strip() for text in (source_mutants.SRC / file).read_text().splitlines()]


_NOTICED = """
import sys
from pathlib import Path
sys.path[:0] = {paths}
from mutant_trials import Room
from source_mutants import SRC, Mutant
room, file, test = Room(Path(sys.argv[1])), "storage/store.py", "quality/test_surviving_mutants.py::{test}"
text = (SRC / file).read_text()
changed = text.replace("**header}}, ensure_ascii=False", "**header}}, ensure_ascii=True")
for source, asked in ((changed, test), (text + "\\nunused = 1\\n", test), (changed, "tests/test_none.py::none")):
    print(room.noticed(Mutant(file, 1, "", source, (1, 1), False), [asked]).partition("::")[2] or "nobody")
"""


@pytest.mark.slow
def test_a_mutant_that_a_test_notices_is_told_from_one_that_none_does(tmp_path: Path) -> None:
    """A test that also fails without the mutant does not detect it."""
    test = "test_texts_beside_tensors_are_written_as_they_are"
    script = _NOTICED.format(paths=[str(QUALITY / "adversarial"), str(TESTS)], test=test)
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [test, "nobody", "nobody"]


def test_kill_rates_are_of_all_records() -> None:
    records = [
        {"trials": 6, "violations": 2, "note": ""},
        {"trials": 4, "violations": 0, "note": "4 noticed, 1 equivalent"},
    ]
    said = "8 of 10 detected when drawn: 80% [49%, 94%]; last of 2 draws: 4 of 4; 1 more are equivalent"
    assert table.rates(records) == said


def test_the_table_adds_up_what_was_measured() -> None:
    record = {"goal": "G1", "attack": "kills", "trials": 1000, "violations": 0, "broken": [], "note": "a|b"}
    about = {"date": "2026-01-02", "source": "0123abcd"}
    lines = table.markdown(
        [record | about, record | about | {"violations": 2, "date": "2026-02-03", "broken": ["lost"]}]
    )
    row = next(line for line in lines if line.startswith("| G1 |"))
    assert "| 2,000 | **2** | 2026-01-02, 0123abcd to 2026-02-03, 0123abcd | a\\|b |" in row
    assert all(any(line.startswith(f"| {goal} |") for line in lines) for goal in table.GOALS)
    assert len(table.GOALS) == 34
    assert table.found([record | about | {"broken": ["`lo\0st`"]}]) == [r"- G1, 2026-01-02: `'lo\x00st'`"]
    assert table.found([record | about | {"broken": ["lost"], "left": "a tie"}]) == [
        "- G1, 2026-01-02: `lost`; remaining: a tie"
    ]
    two = table.found([record | about | {"goal": "G10", "broken": ["a", "b"]}, record | about | {"broken": ["lost"]}])
    assert two == ["- G1, 2026-01-02: `lost`", "- G10, 2026-01-02: `a`, `b`"]
    assert sum("not measured yet; needs ray" in line for line in lines) == 1
    lines = table.markdown([record | about | {"violations": 3, "broken": ["lost"], "mended": "synced"}, record | about])
    assert "| 1,000 | **0** |" in next(line for line in lines if line.startswith("| G1 |"))
    assert table.found([record | about | {"broken": ["lost"], "mended": "synced"}])[0].endswith("`lost`; fixed: synced")
