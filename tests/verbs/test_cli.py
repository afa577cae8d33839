"""The command line: every verb on good input, and one line with the right exit code on bad input."""

import argparse
import gc
import json
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hmmscope as hs
from cli_cases import BAD, KINDS, SMALL, TINY, VERBS, WITHOUT_EXACT_ANSWER, assert_one_line, call, rubbish, trained  # noqa: F401 - fixtures
from hmmscope import __version__, registry
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.inference.entropy import entropy_rate
from hmmscope.lab import cli
from hmmscope.lab.cli import main
from hmmscope.lab.verbs import catalogue
from hmmscope.lab.verbs.options import verbs
from hmmscope.processes.files import load_process, shipped_processes
from hmmscope.processes.make import make_process
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.presets import PRESETS
from hmmscope.sequences.data import SequenceData
from hmmscope.storage import seals, store
from hmmscope.storage.rundir import RunDir
from hmmscope.system_info import source_digest


def tree(place: Path) -> dict[str, str]:
    """The digest of every file, the name of everything else."""
    return {str(p): sha256(p.read_bytes()).hexdigest() if p.is_file() else "" for p in sorted(place.rglob("*"))}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, call: Callable, rubbish: None, trained: Path, tmp_path: Path) -> None:
    code, argv, text = BAD[case]
    before = tree(tmp_path), tree(trained)
    called = call(*(str(trained) if word == "RUN" else word for word in argv))
    assert_one_line(called, code)
    assert text in called.error
    assert (tree(tmp_path), tree(trained)) == before  # nothing made, nothing half made, no byte another


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

    monkeypatch.setattr("hmmscope.lab.verbs.show.listed", broken)
    called = call("show")
    assert called.code == 70
    assert called.error.startswith("error[70] internal error, please report it: ZeroDivisionError: line one line two")
    assert called.error.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        main(["show", "--debug"])


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

    monkeypatch.setattr("hmmscope.lab.verbs.show.listed", broken)
    called = call("show")
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


def test_help_lists_every_verb_once_by_whom_it_is_for(call: Callable) -> None:
    told = call().out
    groups = ["your data:", "your model:", "the papers:", "general:", "options:"]
    assert sorted(groups, key=told.index) == groups
    for verb in VERBS:
        assert len(re.findall(rf"^  {verb} ", told, re.MULTILINE)) == 1


@pytest.mark.parametrize("verb", VERBS)
def test_examples_of_help_are_commands(verb: str) -> None:
    first, second = verbs()[verb].examples  # type: ignore[attr-defined]
    for line in (first, second):
        dotted, words = cli._split_overrides(line.split()[1:])
        arguments, rest = cli.build_parser().parse_known_args(words)
        assert arguments.verb == verb
        assert vars(arguments).get("process") in {None, *registry.entries("process"), *shipped_processes()}
        assert verb != "run" or arguments.out or arguments.dry_run
        assert cli.parse_overrides(dotted + rest).keys() <= {"model.width", "target"}


def test_a_line_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """argcomplete gets the parser of all verbs, and no verb runs."""
    asked: list[argparse.ArgumentParser] = []

    def complete(parser: argparse.ArgumentParser) -> None:
        asked.append(parser)
        raise SystemExit(0)

    monkeypatch.setenv("_ARGCOMPLETE", "1")
    files = SimpleNamespace(autocomplete=complete, FilesCompleter=lambda: lambda prefix: [f"{prefix}.yaml"])
    monkeypatch.setitem(sys.modules, "argcomplete", files)
    with pytest.raises(SystemExit):
        main(["show"])
    assert asked[0].parse_args(["show", "processes"]).name == "processes"
    verbs_of = next(one for one in asked[0]._actions if isinstance(one, argparse._SubParsersAction)).choices
    config = next(one for one in verbs_of["train"]._actions if one.dest == "config")
    completed = config.completer("mess")  # type: ignore[attr-defined]
    assert {"mess3", "limits-rnn", "mess.yaml"} <= set(completed)
    assert "roformer" not in completed
    assert "--training.num_steps" in verbs_of["train"].format_help()


def test_list(call: Callable) -> None:
    called = call("show")
    assert (called.code, called.error) == (0, "")
    names = [line.split()[0] for line in called.out.splitlines() if line.startswith("  ")]
    registered = [name for kind in KINDS for name in registry.entries(kind)]
    assert sorted(names) == sorted([*registered, *registry.sizes(), *shipped_processes(), *PRESETS])
    assert call("show", "models").out.splitlines()[0] == "models"
    assert "umbrella" not in call("show", "models").out
    for line in called.out.splitlines():
        assert not line.startswith("  ") or len(line.split()) >= 3, line  # every name is explained


def test_the_catalogue_holds_what_is_registered() -> None:
    """python scripts/write_pages.py makes it again."""
    assert json.loads(catalogue.CATALOGUE.read_text()) == catalogue.make_catalogue()


def test_without_the_catalogue_all_is_imported_and_said_alike(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [["show", "layouts"], ["show", "rnn"], ["claims"]]
    kept = [call(*words).out for words in lines]
    monkeypatch.setattr(registry, "digest", lambda: "another line registers something")
    assert catalogue.catalogue() is None
    assert [call(*words).out for words in lines] == kept


def sealed(folder: Path, experiment: str) -> Path:
    """A finished folder of an experiment that this code has sealed."""
    claims = [one for one in json.loads(catalogue.CATALOGUE.read_text())["stated"] if one["experiment"] == experiment]
    findings = [{"title": one["says"], "text": "Seen.", "verdict": "open", "claim": one["name"]} for one in claims]
    folder.mkdir()
    store.write_json(folder / "experiment.json", {"experiment": experiment, "scale": "smoke"})
    store.write_json(folder / "findings.json", findings)
    seals.write_seal(folder, "experiment", {"measured_by": {"source_sha256": source_digest()}})
    return folder


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "words", ["show", "show claims", "show roformer", "show multitask-fig3b", "show umbrella", "claims", "claims FIG2"]
)
def test_verbs_that_need_no_tensor_load_no_torch(words: str, tmp_path: Path) -> None:
    if "FIG2" in words:
        words = words.replace("FIG2", str(sealed(tmp_path / "fig2", "multitask-fig2")))
    code = "import sys; from hmmscope.lab.cli import main; code = main(sys.argv[1:]); assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; sys.exit(code)", *words.split()], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) > 5


#: Looked up once for all names: it is the same for each, and takes most of the time.
LOOKED_UP = cache(catalogue.catalogue)


@pytest.mark.drawn(80)
@pytest.mark.parametrize("name", [name for kind in KINDS for name in registry.entries(kind)])
def test_show_what_is_registered(name: str, call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "catalogue", LOOKED_UP)
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


@pytest.mark.long
def test_show_what_a_mixture_is(call: Callable, tmp_path: Path) -> None:
    mixture = Mixture([1 / 9] * 9, [make_process("random-hmm", num_states=3, num_symbols=4, seed=k) for k in range(9)])
    mixture.save(tmp_path / "pool.safetensors")
    called = call("show", "pool.safetensors")
    assert (called.code, called.error) == (0, "")
    assert "9 components, 3 states, 4 symbols" in called.out.splitlines()[0]
    rates = [entropy_rate(mixture[m]).value for m in range(8)]
    told = re.search(r"entropy rate +([\d.]+) to ([\d.]+) nats \(of the first 8 components\)", called.out)
    assert told
    assert [float(told[1]), float(told[2])] == pytest.approx([min(rates), max(rates)], abs=0.05)  # of 50 samples
    assert "0.111111 each; entropy of the weights 2.197225 nats" in called.out
    assert "2nd eigenvalue" in called.out
    assert mixture.digest in called.out
    two = Mixture([0.25, 0.75], [load_process("umbrella")] * 2)
    two.save(tmp_path / "two.json")
    shown = call("show", "two.json").out
    assert "0.25 to 0.75; entropy of the weights 0.562335 nats" in shown
    assert re.search(r"2nd eigenvalue +0\.400000 to 0\.400000", shown)
    assert re.search(r"symbols +umbrella, no-umbrella", shown)


@pytest.mark.parametrize("process", ["umbrella", "letters-hmm", "random-hmm"])
def test_sample_to_every_format(process: str, call: Callable, tmp_path: Path) -> None:
    hmm = make_process(process) if process == "random-hmm" else load_process(process)
    batch = ProcessDataset(hmm, length=12, seed=5)[3:10]
    options = ["-n", 7, "--length", 12, "--seed", 5, "--first", 3]
    printed = call("sample", process, *options)
    assert (printed.code, printed.error) == (0, "")
    (tmp_path / "printed.txt").write_text(printed.out)
    alphabet = {"symbols": hmm.symbols or hmm.num_symbols}
    read = SequenceData(tmp_path / "printed.txt", **alphabet)
    assert torch.equal(read.padded()[0], batch.observations)
    for ending in ("txt", "jsonl", "npz", "safetensors"):
        called = call("sample", process, *options, "--out", f"s.{ending}")
        assert called.code == 0
        assert "7 sequences of 12" in called.out
        assert call("sample", process, *options, "--out", f"quiet.{ending}", "-q").out == ""
        assert (tmp_path / f"quiet.{ending}").read_bytes() == (tmp_path / f"s.{ending}").read_bytes() or ending == "npz"
        options_of = alphabet if ending == "txt" else {}
        assert SequenceData(tmp_path / f"s.{ending}", **options_of).digest == read.digest
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
    batch = ProcessDataset(mixture, length=6)[0:20]
    assert [row["components"] for row in store.read_table(tmp_path / "m.jsonl")] == batch.components.tolist()


def test_sample_nothing(call: Callable, tmp_path: Path) -> None:
    assert call("sample", "umbrella", "-n", 0, "--out", "none.jsonl").code == 0
    assert (tmp_path / "none.jsonl").read_bytes() == b""


@pytest.mark.drawn(10)
@pytest.mark.parametrize("name", sorted(set(registry.entries("process")) - {"file", "data", "given"}))
def test_every_process_can_be_sampled_and_judged(name: str, call: Callable, tmp_path: Path, unchecked: None) -> None:
    fields = {field.name for field in registry.entries("process")[name].__dataclass_fields__.values()}
    mixed = "num_components" in fields
    options = [word for key, value in SMALL.items() if mixed and key in fields for word in (f"--{key}", value)]
    file = "s.jsonl" if name in ("ran-lds", "random-gaussian", "matmul") else "s.txt"  # vectors are not text
    sampled = call("sample", name, *options, "-n", 3, "--length", 5, "--out", file)
    assert (sampled.code, sampled.error) == (0, "")
    assert len((tmp_path / file).read_text().splitlines()) == 3
    if mixed:  # their default sizes are those of experiments
        return
    judged = call("infer", name, file, "--out", "o.jsonl")
    if name in WITHOUT_EXACT_ANSWER:
        assert_one_line(judged, 2)
        if name != "matmul":  # vectors are not read from text; a fresh pool can be trained on without an exact answer
            assert call("train", name, "--out", "run", "-q", *TINY).code == 0
            return
        assert_one_line(call("train", name, "--out", "run", *TINY), 2)
        assert not (tmp_path / "run").exists()
        return
    assert (judged.code, judged.error) == (0, "")
    assert len(store.read_table(tmp_path / "o.jsonl")) == 15


def test_the_package_is_the_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["hmmscope"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("hmmscope", run_name="__main__", alter_sys=True)
    assert ended.value.code == 2
    assert "usage: hmmscope" in capsys.readouterr().out
    gc.enable()


def test_garbage_is_not_looked_for_in_what_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hmmscope", "show", "layouts"])
    gc.unfreeze()
    try:
        assert main(["show", "layouts"]) == 0
        assert gc.get_freeze_count() == 0  # this process is not its own
        assert runpy.run_module("hmmscope", run_name="started")["start"]() == 0
        assert gc.isenabled()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.freeze()
        gc.enable()


_INTERRUPTED = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as a terminal has it
class At:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, At())
{before}
sys.argv = ["hmmscope", "show", "models"]
from hmmscope.__main__ import start
sys.exit(start())
"""


@pytest.mark.parametrize(
    ("module", "before", "code", "said"),
    [
        ("hmmscope.lab.cli", "", -signal.SIGINT, ""),  # while modules are imported
        ("hmmscope.lab.verbs.catalogue", "", 130, "error[130] interrupted\n"),
        ("", "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))", 0, ""),  # after the work
        ("hmmscope.lab.cli", "signal.signal(signal.SIGINT, signal.SIG_IGN)", 0, ""),  # as nohup has it
    ],
)
def test_ctrl_c_at_any_instant_is_no_traceback(module: str, before: str, code: int, said: str) -> None:
    words = [sys.executable, "-c", _INTERRUPTED.format(module=module, before=before)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize(
    "words, said",
    [
        ("shw", "did you mean 'show'?"),
        ("verifi x", "did you mean 'check'?"),
        ("list", "did you mean 'show'?"),
        ("train mess3 --ouy x", "did you mean '--out'?"),
        ("train mess3 --out x --length 3", "length: is a field of layout; write --layout.length"),
        ("train mess3 --out x --num_steps 3", "num_steps: is a field of training; write --training.num_steps"),
        ("train mess3 --out x --model.nam rnn", "model.nam: unknown 'nam'; did you mean 'name'?"),
        ("sample mess3 --seet 3", "hmmscope sample: unknown '--seet'; did you mean '--seed'?"),
        ("sample mess3 --emision 3", "hmmscope sample: unknown '--emision'; did you mean '--emission'?"),
        ("infer mess3 --mixin", "did you mean '--mixing'?"),
        ("fit x.txt --num-state 3", "hmmscope fit: unknown '--num-state'"),  # and not that --states is missing
        ("study x.csv --stats 3 --out x", "hmmscope study: unknown '--stats'; did you mean '--states'?"),
    ],
)
def test_unknown_words_are_told_with_what_is_near(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("a\n" * 40)
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("x").exists()


def test_unknown_words_of_python_are_told_with_what_is_near() -> None:
    process = hs.make_process("mess3")
    for asked, said in (
        (lambda: hs.train(process, "x", learning_rate=1), "give training={'learning_rate': ...}"),
        (lambda: hs.train(process, "x", num_step=1), "did you mean 'num_steps'?"),
        (lambda: hs.fit([[0, 1]], 2, restarts=3), "did you mean 'num_restarts'?"),
        (
            lambda: hs.look(hs.make_model("rnn", num_symbols=3), process, length=9, layers=["residul.1"]),
            "did you mean residual.1?",
        ),
    ):
        with pytest.raises(hs.HmmscopeError) as found:
            asked()
        assert said in str(found.value)
    with pytest.raises(AttributeError, match=r"did you mean 'fit'\?"):
        hs.fitt  # noqa: B018 - the look-up is what fails


def test_what_a_package_lacks_is_an_error_that_names_the_package_with_it(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(registry, "SEPARATE", ("hmmscope-absent", "hmmscope-papers"))
    for words in (["bencmark"], ["run", "limits-fig99", "--out", str(tmp_path / "out")]):
        assert main(words) == 2
        assert capsys.readouterr().err.rstrip().endswith("install hmmscope-absent for more names")
    with pytest.raises(AttributeError, match=r"use hmmscope_papers\.constructions, in the package hmmscope-papers"):
        _ = hs.constructions
