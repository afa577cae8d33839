"""The command line: every verb on good input, and one line with the right exit code on bad input."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from hmmscope import __version__, commands, registry, store
from hmmscope.cli import main
from hmmscope.corpora.corpus import Corpus
from hmmscope.processes.files import load_process, shipped_processes
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.rundir import RunDir, read_journal

VERBS = ("list", "show", "run", "train", "sample", "oracle", "analyse", "report", "doctor")
KINDS = ("process", "model", "layout", "instrument", "experiment")
TINY = [
    *("--training.num_steps", "4", "--training.batch_size", "2", "--training.warmup_steps=1", "--layout.length", "8"),
    *("--model.num_layers", "1", "--model.num-heads", "1", "--model.width", "4", "--training.device", "cpu"),
    *("--training.evaluate_samples", "4", "--training.checkpoint_every", "2"),
]


class Called:
    """What a command did."""

    def __init__(self, code: int, out: str, error: str) -> None:
        self.code, self.out, self.error = code, out, error


@pytest.fixture
def call(capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Called]:
    """Runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def called(*argv: object) -> Called:
        capsys.readouterr()
        code = main([str(word) for word in argv])
        captured = capsys.readouterr()
        return Called(code, captured.out, captured.err)

    return called


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a small HMM with prompts, so that every instrument has something to look at."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "prompts.yaml").write_text(
        "process: {name: random-mixture, num_components: 3, num_states: 3, num_symbols: 4}\n"
        "layout: {name: prompts, num_demonstrations: 2, demonstration_length: 3, test_length: 6}\n"
        "model: {name: roformer, num_layers: 1, num_heads: 2, width: 8}\n"
        "training: {num_steps: 3, batch_size: 4, evaluate_samples: 4, checkpoint_every: 2, device: cpu}\n"
    )
    assert main(["train", str(folder / "prompts.yaml"), "--out", str(folder / "run"), "-q"]) == 0
    return folder / "run"


def assert_one_line(called: Called, code: int) -> None:
    assert called.code == code, called.error
    assert re.fullmatch(rf"error\[{code}\] [^\n]+\n", called.error), called.error
    assert "Traceback" not in called.error
    assert "internal error" not in called.error
    assert len(called.error) < 1500


# --------------------------------------------------------------------------------------------------------------------
# Bad input

LONG = "x" * 300

BAD: dict[str, tuple[int, list[str], str]] = {
    "unknown verb": (2, ["trian"], "invalid choice: 'trian'"),
    "unknown option before the verb": (2, ["--fast"], "--fast"),
    "no process": (2, ["sample"], "required: process"),
    "unknown process": (2, ["sample", "random-hm"], "did you mean 'random-hmm'"),
    "unknown process, train": (2, ["train", "umbrela", "--out", "new"], "did you mean 'umbrella'"),
    "unknown process, oracle": (2, ["oracle", "umbrela", "good.txt"], "did you mean 'umbrella'"),
    "unknown field": (2, ["sample", "random-hmm", "--num_state", "3"], "did you mean 'num_states'"),
    "unknown kind": (2, ["list", "process"], "did you mean 'processes'"),
    "unknown name": (2, ["show", "quickstar"], "did you mean 'quickstart'"),
    "unknown experiment": (2, ["run", "quickstar", "--out", "new"], "did you mean 'quickstart'"),
    "unknown scale": (2, ["run", "quickstart", "--scale", "smal", "--out", "new"], "did you mean 'small'"),
    "unknown instrument": (2, ["analyse", "RUN", "prob"], "did you mean 'probe'"),
    "unknown option of an instrument": (2, ["analyse", "RUN", "probe", "--targt", "state"], "did you mean 'target'"),
    "unknown target": (2, ["analyse", "RUN", "probe", "--target", "stat"], "did you mean 'state'"),
    "unknown section": (2, ["train", "umbrella", "--out", "new", "--trainin.num_steps", "3"], "trainin"),
    "unknown number": (2, ["train", "umbrella", "--out", "new", "--training.num_step", "3"], "'num_steps'"),
    "unknown option": (2, ["oracle", "umbrella", "good.txt", "--fast", "1"], "--fast: unknown option"),
    "unknown option of report": (2, ["report", "RUN", "--fast"], "--fast: unknown option"),
    "unknown option of doctor": (2, ["doctor", "--fast"], "--fast: unknown option"),
    "option where there is none": (2, ["show", "umbrella", "--fast", "1"], "--fast: not an option here"),
    "option of a shipped process": (2, ["sample", "umbrella", "--num_states", "3"], "--num_states"),
    "no number": (2, ["sample", "umbrella", "-n", "many"], "invalid int value: 'many'"),
    "negative number": (2, ["sample", "umbrella", "-n", "-1"], "at least 0"),
    "huge number": (5, ["sample", "umbrella", "-n", "1" + 12 * "0"], "GiB"),
    "absurd number": (5, ["sample", "umbrella", "-n", "1" + 30 * "0"], "GiB"),
    "absurd first": (2, ["sample", "umbrella", "--first", "1" + 30 * "0"], "2^40"),
    "length zero": (2, ["sample", "umbrella", "--length", "0"], "length: must be in"),
    "length absurd": (2, ["sample", "umbrella", "--length", "1" + 30 * "0"], "length: must be in"),
    "seed negative": (2, ["sample", "umbrella", "--seed", "-1"], "seed: must be an integer in"),
    "seed too large": (2, ["sample", "umbrella", "--seed", "4294967296"], "seed: must be an integer in"),
    "seed a fraction": (2, ["sample", "umbrella", "--seed", "0.5"], "invalid int value"),
    "field out of range": (2, ["sample", "random-hmm", "--num_states", "0"], "process.num_states: must be in"),
    "field no number": (2, ["sample", "random-hmm", "--num_states", "a"], "process.num_states: must be an integer"),
    "steps out of range": (2, ["train", "umbrella", "--out", "new", "--training.num_steps", "0"], "num_steps"),
    "steps a fraction": (2, ["train", "umbrella", "--out", "new", "--training.num_steps", "2.5"], "an integer"),
    "rate NaN": (2, ["train", "umbrella", "--out", "new", "--training.learning_rate", "nan"], "must be finite"),
    "rate infinite": (2, ["train", "umbrella", "--out", "new", "--training.learning_rate", "inf"], "must be finite"),
    "rate underscored": (2, ["train", "umbrella", "--out", "new", "--training.learning_rate", "1_0"], "a number"),
    "width odd": (2, ["train", "umbrella", "--out", "new", "--model.width", "33"], "model.width: must be a multiple"),
    "width absurd": (2, ["train", "umbrella", "--out", "new", "--model.width", "1" + 30 * "0"], "model.width"),
    "threads absurd": (2, ["train", "umbrella", "--out", "new", "--training.num_threads", "9999"], "num_threads"),
    "device unknown": (2, ["train", "umbrella", "--out", "new", "--training.device", "tpu"], "training.device"),
    "layout too short": (2, ["train", "umbrella", "--out", "new", "--layout.length", "1"], "layout: must have"),
    "override without value": (2, ["train", "umbrella", "--out", "new", "--seed"], "--seed: needs a value"),
    "override twice": (2, ["train", "umbrella", "--out", "new", "--seed", "1", "--seed=2"], "--seed: given twice"),
    "surplus word": (2, ["train", "umbrella", "casino", "--out", "new"], "casino: unexpected"),
    "no out": (2, ["train", "umbrella"], "required: --out"),
    "no exact answer": (2, ["train", "fresh-hmms", "--out", "new"], "no exact"),
    "process of an experiment": (2, ["run", "quickstart", "--out", "new", "--process.name", "even"], "process.name"),
    "missing config": (2, ["train", "none.yaml", "--out", "new"], "none.yaml: cannot be read"),
    "missing process": (2, ["train", "none.json", "--out", "new"], "no file none.json"),
    "missing observations": (2, ["oracle", "umbrella", "none.txt"], "none.txt: cannot be read"),
    "missing run": (2, ["analyse", "none", "probe"], "none: no such run folder"),
    "missing report": (2, ["report", "none"], "none"),
    "no run": (2, ["analyse", ".", "probe"], "not a run folder"),
    "a folder as config": (2, ["train", "folder.yaml", "--out", "new"], "folder.yaml"),
    "a pipe as config": (2, ["train", "pipe.yaml", "--out", "new"], "not a regular file"),
    "a folder as observations": (2, ["oracle", "umbrella", "folder.yaml"], "cannot be read"),
    "binary config": (2, ["train", "binary.yaml", "--out", "new"], "not UTF-8"),
    "binary observations": (2, ["oracle", "umbrella", "binary.yaml"], "not UTF-8"),
    "list as config": (2, ["train", "list.yaml", "--out", "new"], "mapping of sections"),
    "hostile config": (2, ["train", "tag.yaml", "--out", "new"], "tags"),
    "empty observations": (2, ["oracle", "umbrella", "empty.txt"], "holds no sequence"),
    "unseen symbol": (2, ["oracle", "umbrella", "bad.txt"], "line 2, symbol 3: 'rain' is not one of"),
    "symbol out of range": (2, ["oracle", "random-hmm", "seven.txt"], "'7' is not one of"),
    "not a process": (2, ["sample", "rows.json"], "rows.json: transition[0]: row sums to 1.8"),
    "tiny probabilities": (2, ["oracle", "tiny.json", "good.txt"], "allow_drop_tiny"),
    "no JSON": (4, ["sample", "torn.json"], "not JSON"),
    "no NPZ": (4, ["sample", "torn.npz"], "not a readable NPZ"),
    "no safetensors": (4, ["sample", "torn.safetensors"], "not a whole safetensors file"),
    "existing file": (3, ["sample", "umbrella", "--out", "good.txt"], "good.txt: exists"),
    "existing table": (3, ["oracle", "umbrella", "good.txt", "--out", "bad.txt"], "bad.txt: exists"),
    "existing folder, train": (3, ["train", "umbrella", "--out", "folder.yaml"], "folder.yaml: exists"),
    "existing folder, run": (3, ["run", "quickstart", "--scale", "smoke", "--out", "folder.yaml"], "exists"),
    "no experiment": (
        3,
        ["run", "quickstart", "--scale", "smoke", "--out", "folder.yaml", "--resume"],
        "exists and is",
    ),
    "unknown ending": (2, ["sample", "umbrella", "--out", "new.csv"], "out: must end in"),
    "no folder": (2, ["sample", "umbrella", "--out", "none/new.txt"], "no folder none"),
    "no folder for a table": (2, ["oracle", "umbrella", "good.txt", "--out", "none/new.jsonl"], "no folder none"),
    "long name": (2, ["sample", LONG + ".json"], "no file"),
    "long name of a file": (5, ["sample", "umbrella", "--out", LONG + ".txt"], "name too long"),
    "long name of a folder": (5, ["train", "umbrella", "--out", LONG, *TINY], "name too long"),
    "zero byte": (2, ["sample", "a\0b.json"], r"a\x00b.json"),
    "line break": (2, ["show", "a\nb"], r"a\nb"),
    "terminal codes": (2, ["sample", "\x1b[2J.json"], r"\x1b[2J"),
    "wrong width of a layer": (2, ["analyse", "RUN", "probe", "--layers", "residual.9"], "no module named"),
    "no samples": (2, ["analyse", "RUN", "attention", "--num_samples", "0"], "num_samples: must be at least 1"),
    "instrument's seed": (2, ["analyse", "RUN", "shuffle", "--seed", "-3"], "seed: must be"),
    "resumed with other numbers": (3, ["train", "umbrella", "--out", "RUN", "--resume"], "another configuration"),
}


@pytest.fixture
def rubbish(tmp_path: Path) -> None:
    """The files that the bad commands name."""
    (tmp_path / "good.txt").write_text("umbrella umbrella\n")
    (tmp_path / "bad.txt").write_text("umbrella no-umbrella\numbrella umbrella rain\n")
    (tmp_path / "seven.txt").write_text("0 1 7\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00seed: 1")
    (tmp_path / "list.yaml").write_text("- seed\n")
    (tmp_path / "tag.yaml").write_text("!!python/object/apply:os.mkdir [canary]\n")
    rows = {"initial": [0.5, 0.5], "transition": [[0.9, 0.9], [0, 1]], "emission": [[0.5, 0.5], [0.5, 0.5]]}
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    tiny = {"initial": [1], "transition": [[1]], "emission": [[1 - 1e-12, 1e-12]]}
    (tmp_path / "tiny.json").write_text(json.dumps(tiny | {"symbols": ["umbrella", "none"]}))
    for ending in ("json", "npz", "safetensors"):
        (tmp_path / f"torn.{ending}").write_bytes(b'{"initial": [0.5')


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, call: Callable, rubbish: None, trained: Path, tmp_path: Path) -> None:
    code, argv, text = BAD[case]
    before = sorted(tmp_path.iterdir()), sorted(trained.rglob("*"))
    called = call(*(str(trained) if word == "RUN" else word for word in argv))
    assert_one_line(called, code)
    assert text in called.error
    assert (sorted(tmp_path.iterdir()), sorted(trained.rglob("*"))) == before  # nothing made, nothing half made


def test_there_are_enough_bad_cases() -> None:
    assert len(BAD) >= 40
    assert {argv[0] for _, argv, _ in BAD.values()} >= set(VERBS)
    assert {code for code, _, _ in BAD.values()} == {2, 3, 4, 5}


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "seeds.json"])
def test_damaged_run_folder(name: str, call: Callable, trained: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(trained, tmp_path / "copy")
    (tmp_path / "copy" / name).write_bytes((trained / name).read_bytes()[:-3])
    assert_one_line(call("analyse", "copy", "probe"), 4)
    shutil.rmtree(tmp_path / "copy" / "checkpoints")
    (tmp_path / "copy" / name).write_bytes((trained / name).read_bytes())
    assert_one_line(call("analyse", "copy", "probe"), 4)


def test_a_run_without_a_checkpoint(call: Callable, tmp_path: Path, trained: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    seeds = json.loads((trained / "seeds.json").read_text())
    RunDir.create(tmp_path / "begun", config, seeds=seeds).unlock()
    called = call("analyse", "begun", "probe")
    assert_one_line(called, 2)
    assert "no checkpoint yet" in called.error


def test_internal_errors_are_ours(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(kind: str | None) -> None:
        raise ZeroDivisionError("line one\nline two")

    monkeypatch.setattr(commands, "list_names", broken)
    called = call("list")
    assert called.code == 70
    assert called.error.startswith("error[70] internal error, please report it: ZeroDivisionError: line one line two")
    assert called.error.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        main(["list", "--debug"])


@pytest.mark.parametrize(
    "error, code",
    [
        (KeyboardInterrupt(), 130),
        (MemoryError(), 5),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 5),
        (RuntimeError("CUDA out of memory. Tried to allocate"), 5),
        (OSError(24, "Too many open files"), 5),
        (OSError(2, "No such file"), 70),
        (RuntimeError("something else"), 70),
    ],
)
def test_what_happens_to_anybody(
    error: BaseException, code: int, call: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(kind: str | None) -> None:
        raise error

    monkeypatch.setattr("hmmscope.cli._silence_stdout", lambda: None)
    monkeypatch.setattr(commands, "list_names", broken)
    called = call("list")
    assert called.code == code
    assert re.fullmatch(rf"error\[{code}\] [^\n]+\n", called.error)


# --------------------------------------------------------------------------------------------------------------------
# Good input


def test_version_and_no_verb(call: Callable) -> None:
    assert call("--version").out == f"hmmscope {__version__}\n"
    called = call()
    assert called.code == 2
    assert called.out.startswith("usage: hmmscope")


@pytest.mark.parametrize("verb", VERBS)
def test_help(verb: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"usage: hmmscope {verb}" in capsys.readouterr().out


def test_list(call: Callable) -> None:
    called = call("list")
    assert (called.code, called.error) == (0, "")
    names = [line.split()[0] for line in called.out.splitlines() if line.startswith("  ")]
    assert sorted(names) == sorted([name for kind in KINDS for name in registry.entries(kind)] + [*shipped_processes()])
    assert call("list", "models").out.splitlines()[0] == "models"
    assert "umbrella" not in call("list", "models").out
    for line in called.out.splitlines():
        assert not line.startswith("  ") or len(line.split()) >= 3, line  # every name is explained


@pytest.mark.parametrize("name", [name for kind in KINDS for name in registry.entries(kind)])
def test_show_what_is_registered(name: str, call: Callable) -> None:
    called = call("show", name)
    assert (called.code, called.error) == (0, "")
    assert name in called.out.splitlines()[0]
    assert len(called.out.splitlines()) > 3


@pytest.mark.parametrize("name", shipped_processes())
def test_show_what_is_shipped(name: str, call: Callable, tmp_path: Path) -> None:
    called = call("show", name)
    assert (called.code, called.error) == (0, "")
    hmm = load_process(name)
    assert f"{hmm.num_states} states, {hmm.num_symbols} symbols" in called.out
    hmm.save(tmp_path / "copy.npz")
    assert call("show", "copy.npz").out == called.out


@pytest.mark.parametrize("process", ["umbrella", "letters-hmm", "random-hmm"])
def test_sample_to_every_format(process: str, call: Callable, tmp_path: Path) -> None:
    hmm = make_process(process) if process == "random-hmm" else load_process(process)
    batch = Corpus(hmm, length=12, seed=5)[3:10]
    options = ["-n", 7, "--length", 12, "--seed", 5, "--first", 3]
    printed = call("sample", process, *options)
    assert (printed.code, printed.error) == (0, "")
    (tmp_path / "printed.txt").write_text(printed.out)
    assert commands.read_sequences(tmp_path / "printed.txt", hmm) == batch.observations.tolist()
    for ending in ("txt", "jsonl", "npz", "safetensors"):
        called = call("sample", process, *options, "--out", f"s.{ending}")
        assert called.code == 0
        assert "7 sequences of 12" in called.out
        assert call("sample", process, *options, "--out", f"quiet.{ending}", "-q").out == ""
        assert (tmp_path / f"quiet.{ending}").read_bytes() == (tmp_path / f"s.{ending}").read_bytes() or ending == "npz"
    assert commands.read_sequences(tmp_path / "s.txt", hmm) == batch.observations.tolist()
    rows = store.read_table(tmp_path / "s.jsonl")
    assert [row["sample"] for row in rows] == list(range(3, 10))
    assert [row["observations"] for row in rows] == batch.observations.tolist()
    assert [row["states"] for row in rows] == batch.states.tolist()
    with np.load(tmp_path / "s.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["observations"], batch.observations)
        assert np.array_equal(arrays["states"], batch.states)
    tensors = store.read_tensors(tmp_path / "s.safetensors")
    assert tensors["observations"].tolist() == batch.observations.tolist()
    assert tensors["states"].tolist() == batch.states.tolist()


def test_sample_a_mixture_with_its_components(call: Callable, tmp_path: Path) -> None:
    sizes = ["--num_components", 3, "--process.num_states", 4, "--num-symbols=5"]
    assert call("sample", "random-mixture", *sizes, "-n", 20, "--length", 6, "--out", "m.jsonl").code == 0
    mixture = make_process("random-mixture", num_components=3, num_states=4, num_symbols=5)
    batch = Corpus(mixture, length=6)[0:20]
    assert batch.components is not None
    assert [row["components"] for row in store.read_table(tmp_path / "m.jsonl")] == batch.components.tolist()


def test_sample_nothing(call: Callable, tmp_path: Path) -> None:
    assert call("sample", "umbrella", "-n", 0, "--out", "none.jsonl").code == 0
    assert (tmp_path / "none.jsonl").read_bytes() == b""


SMALL = {"num_components": 3, "num_states": 4, "num_symbols": 4, "num_properties": 2, "num_entities": 3}


#: Processes that the filters of symbols refuse, so that they are neither judged nor trained on.
WITHOUT_EXACT_ANSWER = {"fresh-hmms", "matmul", "ran-lds"}


@pytest.mark.parametrize("name", sorted(set(registry.entries("process")) - {"file"}))
def test_every_process_can_be_sampled_and_judged(name: str, call: Callable, tmp_path: Path, unchecked: None) -> None:
    fields = {field.name for field in registry.entries("process")[name].__dataclass_fields__.values()}
    mixed = "num_components" in fields
    options = [word for key, value in SMALL.items() if mixed and key in fields for word in (f"--{key}", value)]
    sampled = call("sample", name, *options, "-n", 3, "--length", 5, "--out", "s.txt")
    assert (sampled.code, sampled.error) == (0, "")
    assert len((tmp_path / "s.txt").read_text().splitlines()) == 3
    if mixed:  # their default sizes are those of experiments
        return
    judged = call("oracle", name, "s.txt", "--out", "o.jsonl")
    if name in WITHOUT_EXACT_ANSWER:
        assert_one_line(judged, 2)
        assert_one_line(call("train", name, "--out", "run", *TINY), 2)
        assert not (tmp_path / "run").exists()
        return
    assert (judged.code, judged.error) == (0, "")
    assert len(store.read_table(tmp_path / "o.jsonl")) == 15


def test_oracle_of_the_textbook(call: Callable, tmp_path: Path) -> None:
    """Russell and Norvig: two umbrellas, and the rain is believed in with 0.883."""
    (tmp_path / "o.txt").write_text("umbrella umbrella\n\numbrella,no-umbrella,umbrella\n")
    called = call("oracle", "umbrella", "o.txt", "--out", "o.jsonl")
    assert (called.code, called.error) == (0, "")
    assert "sequence 1: 2 observations, log-likelihood -1.045546 nats (-0.522773 per observation)" in called.out
    assert "belief: rain 0.883357, " in called.out
    rows = store.read_table(tmp_path / "o.jsonl")
    assert [(row["sequence"], row["position"]) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert rows[1]["belief"] == pytest.approx([0.883357041251778, 0.116642958748222], abs=1e-9)
    assert sum(rows[1]["next_observation"]) == pytest.approx(1)
    assert np.exp(rows[0]["log_likelihood"] + rows[1]["log_likelihood"]) == pytest.approx(0.3515, abs=1e-8)


def test_oracle_of_letters(call: Callable, tmp_path: Path) -> None:
    hmm = load_process("letters-hmm")
    assert hmm.symbols is not None
    assert call("sample", "letters-hmm", "-n", 2, "--length", 30, "--out", "l.txt").code == 0
    assert len((tmp_path / "l.txt").read_text().splitlines()[0]) == 30  # characters, without spaces between
    called = call("oracle", "letters-hmm", "l.txt", "--out", "l.jsonl", "-q")
    assert (called.code, called.error) == (0, "")
    assert "table:" not in called.out
    rows = store.read_table(tmp_path / "l.jsonl")
    assert len(rows) == 60
    assert all(abs(sum(row["belief"]) - 1) < 1e-9 for row in rows)


def test_oracle_of_the_impossible(call: Callable, tmp_path: Path) -> None:
    HMM([1, 0], [[0, 1], [1, 0]], np.eye(2), symbols=["a", "b"]).save(tmp_path / "turns.json")
    (tmp_path / "o.txt").write_text("abab\nabba\n")
    called = call("oracle", "turns.json", "o.txt", "--out", "o.jsonl")
    assert (called.code, called.error) == (0, "")
    assert "sequence 1: 4 observations, log-likelihood 0.000000 nats" in called.out
    assert "sequence 2: 4 observations, log-likelihood -inf nats; impossible from observation 2 (b) on" in called.out
    assert [row["log_likelihood"] for row in store.read_table(tmp_path / "o.jsonl")[4:]] == [0, 0, None, None]


def test_oracle_drops_tiny_probabilities_if_told_to(call: Callable, rubbish: None) -> None:
    assert call("oracle", "tiny.json", "good.txt", "--allow-drop-tiny").code == 0


def test_train_analyse_report(call: Callable, tmp_path: Path) -> None:
    emission = [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]
    HMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], emission, title="mine <b>&").save(tmp_path / "mine.json")
    called = call("train", "mine.json", "--out", "run", "-q", *TINY)
    assert (called.code, called.error) == (0, "")
    assert re.search(r"\* How far from the optimum \(found\): .* nats", called.out)
    assert "95 %" in called.out
    assert "INVALID" not in called.out
    assert len(read_journal(tmp_path / "run" / "metrics.jsonl")) == 4
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["training"]["num_steps"], config["model"]["width"], config["layout"]["length"]) == (4, 4, 8)
    again = call("train", "mine.json", "--out", "run", "-q", "--resume", *TINY)
    assert (again.code, again.out) == (0, called.out)
    options = ["--target", "previous-1", "--num_samples", 8, "--shuffled_labels", "false"]
    analysed = call("analyse", "run", "probe", *options)
    assert (analysed.code, analysed.error) == (0, "")
    (table,) = (tmp_path / "run" / "analysis").iterdir()
    assert table.name == "probe-target-previous-1-num_samples-8-shuffled_labels-false.jsonl"
    rows = store.read_table(table)
    assert [row["layer_name"] for row in rows] == ["residual.0", "residual.1"]
    assert len(analysed.out.splitlines()) == 4
    assert call("analyse", "run", "probe", "--target", "previous-1", "--seed", 8, "-q").out.count("\n") == 1
    assert len([*(tmp_path / "run" / "analysis").iterdir()]) == 2  # another option, another table
    pytest.importorskip("plotly")
    reported = call("report", "run", "-o", "page.html")
    assert (reported.code, reported.error, reported.out) == (0, "", "page: page.html\n")
    page = (tmp_path / "page.html").read_text()
    assert "How far from the optimum" in page
    assert "mine <b>" not in page
    assert "mine &lt;b&gt;&amp;" in page


@pytest.mark.parametrize(
    "instrument, options",
    [
        ("probe", ["--target", "component"]),
        ("probe", ["--target", "previous-0", "--layers", "residual.0,blocks.0.attention"]),
        ("shuffle", ["--num_permutations", "3"]),
        ("attention", ["--max_offset", "2"]),
    ],
)
def test_instruments(instrument: str, options: list[str], call: Callable, trained: Path) -> None:
    called = call("analyse", trained, instrument, "--num_samples", 12, *options)
    assert (called.code, called.error) == (0, "")
    table = Path(called.out.splitlines()[-1].removeprefix("table: "))
    rows = store.read_table(table)
    assert len(called.out.splitlines()) == len(rows) + 2
    table.unlink()


def test_train_with_other_defaults_by_name(call: Callable, tmp_path: Path) -> None:
    """The name of a section comes first, wherever it stands: fields given before it are not forgotten."""
    sizes = ["--process.num_states", 3, "--process.num_symbols", 3, "--process.name", "markov-chain"]
    called = call("train", "random-hmm", "--out", "run", "-q", *sizes, *TINY)
    assert called.code == 0, called.error
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["process"]["name"], config["process"]["num_states"]) == ("markov-chain", 3)


def test_progress_is_lines_without_a_terminal(call: Callable, tmp_path: Path) -> None:
    called = call("train", "umbrella", "--out", "run", *TINY)
    assert called.code == 0
    assert re.fullmatch(r"training 4/4 .* loss .* \(Bayes floor .*\)\n", called.error)
    assert "\x1b" not in called.error + called.out


def test_doctor(call: Callable) -> None:
    called = call("doctor")
    assert (called.code, called.error) == (0, "")
    assert all(line.startswith("ok  ") for line in called.out.splitlines())
    assert "Philox4x32-10 gives its known answer" in called.out


def test_doctor_finds_what_is_wrong(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmmscope.doctor._PHILOX_ZERO", (1, 2, 3, 4))
    called = call("doctor")
    assert called.code == 5
    assert "FAIL  random numbers" in called.out


def test_a_config_file_is_what_show_says(call: Callable, tmp_path: Path) -> None:
    data = {"process": {"name": "even"}, "training": {"num_steps": 2, "device": "cpu"}, "seed": 3}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(data))
    assert call("train", "c.yaml", "--out", "run", "-q", *TINY[2:]).code == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["process"]["name"], config["training"]["num_steps"], config["seed"]) == ("even", 2, 3)


# --------------------------------------------------------------------------------------------------------------------
# Real processes


#: Output that is held back until the end, as on most machines, so that it can fail there.
BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}


def test_module_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "hmmscope.cli", "--help"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "exit codes" in done.stdout


def test_a_reader_that_has_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "hmmscope.cli", "list"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=100, env=BUFFERED)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_behind_the_output() -> None:
    command = [sys.executable, "-m", "hmmscope.cli", "list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100, env=BUFFERED)
    assert done.returncode == 5
    assert done.stderr.startswith("error[5] No space left on device")
    assert done.stderr.count("\n") == 1
