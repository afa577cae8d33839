"""What the tests of cli share."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hmmscope.lab.cli import main

VERBS = ("show", "run", "train", "sample", "infer", "fit", "study", "analyse", "report", "check")
KINDS = ("process", "model", "layout", "instrument", "experiment", "claim")
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
    assert len(called.error) <= len("error[70] ") + 400 + 1


# --------------------------------------------------------------------------------------------------------------------
# Bad input

LONG = "x" * 300

BAD: dict[str, tuple[int, list[str], str]] = {
    "unknown verb": (2, ["trian"], "verb: unknown 'trian'; did you mean 'train'?"),
    "unknown option before the verb": (2, ["--fast"], "--fast"),
    "varied twice": (
        2,
        ["sweep", "--vary", "model.width=4", "--vary", "model.width=8", "--dry-run"],
        "width is given twice",
    ),
    "no process": (2, ["sample"], "required: process"),
    "unknown process": (2, ["sample", "random-hm"], "did you mean 'random-hmm'"),
    "unknown process, train": (2, ["train", "umbrela", "--out", "new"], "did you mean 'umbrella'"),
    "unknown process, oracle": (2, ["infer", "umbrela", "good.txt"], "did you mean 'umbrella'"),
    "unknown field": (2, ["sample", "random-hmm", "--num_state", "3"], "did you mean '--num_states'"),
    "unknown kind": (2, ["show", "process"], "did you mean 'processes'"),
    "unknown name": (2, ["show", "quickstar"], "did you mean 'quickstart'"),
    "unknown experiment": (2, ["run", "quickstar", "--out", "new"], "did you mean 'quickstart'"),
    "unknown scale": (2, ["run", "quickstart", "--scale", "smal", "--out", "new"], "did you mean 'small'"),
    "unknown instrument": (2, ["analyse", "RUN", "prob"], "did you mean 'probe'"),
    "unknown option of an instrument": (2, ["analyse", "RUN", "probe", "--targt", "state"], "did you mean '--target'"),
    "unknown target": (2, ["analyse", "RUN", "probe", "--target", "stat"], "did you mean 'state'"),
    "unknown section": (2, ["train", "umbrella", "--out", "new", "--trainin.num_steps", "3"], "trainin"),
    "unknown number": (2, ["train", "umbrella", "--out", "new", "--training.num_step", "3"], "'num_steps'"),
    "unknown option": (2, ["infer", "umbrella", "good.txt", "--fast", "1"], "--fast: unknown option"),
    "unknown option of report": (2, ["report", "RUN", "--fast"], "unknown '--fast'"),
    "option that is nearly known": (2, ["check", "--quit"], "unknown '--quit'; did you mean '--quiet'?"),
    "option of sequences": (2, ["infer", "umbrella", "--viterbi"], "--viterbi: applies to sequences"),
    "option of a process": (2, ["infer", "umbrella", "good.txt", "--mixing"], "--mixing: applies to the process"),
    "override that is nearly an option": (2, ["train", "umbrella", "--resum"], "did you mean '--resume'?"),
    "nothing to analyse with": (2, ["analyse", "RUN"], "instrument: missing; give a name that"),
    "style without figures": (2, ["report", "RUN", "--style", "web"], "add --figures FOLDER"),
    "option where there is none": (2, ["show", "umbrella", "--fast", "1"], "hmmscope show: unknown '--fast'"),
    "option of a shipped process": (2, ["sample", "umbrella", "--num_states", "3"], "--num_states"),
    "no number": (2, ["sample", "umbrella", "-n", "many"], "invalid int value: 'many'"),
    "negative number": (2, ["sample", "umbrella", "-n", "-1"], "at least 0"),
    "huge number": (5, ["sample", "umbrella", "-n", "1" + 12 * "0"], "GiB"),
    "absurd number": (5, ["sample", "umbrella", "-n", "1" + 30 * "0"], "GiB"),
    "absurd first": (2, ["sample", "umbrella", "--first", "1" + 30 * "0"], "2^40"),
    "length zero": (2, ["sample", "umbrella", "--length", "0"], "length: must be at least 1, got 0"),
    "length absurd": (2, ["sample", "umbrella", "--length", "1" + 30 * "0"], "length: must be at most 1048576, got 1"),
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
    "override twice": (2, ["train", "umbrella", "--out", "new", "--seed", "1", "--seed=2"], "--seed: is given twice"),
    "surplus word": (2, ["train", "umbrella", "casino", "--out", "new"], "casino: unexpected"),
    "no out": (2, ["train", "umbrella"], "out: missing; give a new folder"),
    "facts of nothing": (2, ["infer", "umbrela"], "did you mean 'umbrella'"),
    "study of nothing": (2, ["study", "none.txt", "--out", "new"], "none.txt: cannot be read"),
    "fit of nothing": (2, ["fit", "none.txt", "--states", "2", "--out", "new.json"], "none.txt: cannot be read"),
    "export of nothing": (2, ["analyse", "none", "--export", "new"], "none: no such run folder"),
    "no exact answer": (2, ["train", "matmul", "--out", "new"], "no exact"),
    "process of an experiment": (2, ["run", "quickstart", "--out", "new", "--process.name", "even"], "process.name"),
    "missing config": (2, ["train", "none.yaml", "--out", "new"], "none.yaml: cannot be read"),
    "missing process": (2, ["train", "none.json", "--out", "new"], "no file none.json"),
    "missing observations": (2, ["infer", "umbrella", "none.txt"], "none.txt: cannot be read"),
    "missing run": (2, ["analyse", "none", "probe"], "none: no such run folder"),
    "verify nothing": (2, ["check", "none"], "none: is not the folder of a run"),
    "report over what is no page": (2, ["report", "RUN", "-o", "page.txt"], "out: must end in .html, got 'page.txt'"),
    "report over a folder": (
        3,
        ["report", "RUN", "-o", "folder.html"],
        "folder.html: exists and is not a regular file",
    ),
    "report over a pipe": (3, ["report", "RUN", "-o", "pipe.html"], "pipe.html: exists and is not a regular file"),
    "missing report": (2, ["report", "none"], "none"),
    "no run": (2, ["analyse", ".", "probe"], "not a run folder"),
    "a folder as config": (2, ["train", "folder.yaml", "--out", "new"], "folder.yaml"),
    "a pipe as config": (2, ["train", "pipe.yaml", "--out", "new"], "not a regular file"),
    "a folder as observations": (2, ["infer", "umbrella", "folder.yaml"], "cannot be read"),
    "binary config": (2, ["train", "binary.yaml", "--out", "new"], "not UTF-8"),
    "binary observations": (2, ["infer", "umbrella", "binary.txt"], "binary.txt: is not UTF-8"),
    "list as config": (2, ["train", "list.yaml", "--out", "new"], "mapping of sections"),
    "hostile config": (2, ["train", "tag.yaml", "--out", "new"], "tags"),
    "empty observations": (2, ["infer", "umbrella", "empty.txt"], "holds no sequence"),
    "unseen symbol": (2, ["infer", "umbrella", "bad.txt"], "line 2, symbol 3: 'rain' is not one of"),
    "symbol out of range": (2, ["infer", "random-hmm", "seven.txt"], "'7' is not one of"),
    "not a process": (2, ["sample", "rows.json"], "rows.json: transition[0]: row sums to 1.8"),
    "no JSON": (4, ["sample", "torn.json"], "not JSON"),
    "no NPZ": (4, ["sample", "torn.npz"], "not a readable NPZ"),
    "no safetensors": (4, ["sample", "torn.safetensors"], "not a complete safetensors file"),
    "existing file": (3, ["sample", "umbrella", "--out", "good.txt"], "good.txt: exists"),
    "existing table": (3, ["infer", "umbrella", "good.txt", "--out", "old.jsonl"], "old.jsonl: exists"),
    "existing folder, train": (3, ["train", "umbrella", "--out", "folder.yaml"], "folder.yaml: exists"),
    "existing folder, run": (3, ["run", "quickstart", "--scale", "smoke", "--out", "folder.yaml"], "exists"),
    "no experiment": (
        3,
        ["run", "quickstart", "--scale", "smoke", "--out", "folder.yaml", "--resume"],
        "exists and is",
    ),
    "unknown ending": (2, ["sample", "umbrella", "--out", "new.csv"], "out: must end in"),
    "no folder": (2, ["sample", "umbrella", "--out", "none/new.txt"], "folder none does not exist"),
    "no folder for a table": (
        2,
        ["infer", "umbrella", "good.txt", "--out", "none/new.jsonl"],
        "folder none does not exist",
    ),
    "few draws": (2, ["fit", "good.txt", "--states", "2", "--out", "n.json", "--posterior", "2"], "posterior: must"),
    "long name": (2, ["sample", LONG + ".json"], "no file"),
    "long name of a file": (2, ["sample", "umbrella", "--out", LONG + ".txt"], "name in it is too long"),
    "long name of a folder": (2, ["train", "umbrella", "--out", LONG, *TINY], "name in it is too long"),
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
    (tmp_path / "old.jsonl").write_text("{}\n")
    (tmp_path / "good.txt").write_text("umbrella umbrella\n")
    (tmp_path / "bad.txt").write_text("umbrella no-umbrella\numbrella umbrella rain\n")
    (tmp_path / "seven.txt").write_text("0 1 7\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00seed: 1")
    (tmp_path / "binary.txt").write_bytes(b"umbrella \x80\xff")
    (tmp_path / "list.yaml").write_text("- seed\n")
    (tmp_path / "tag.yaml").write_text("!!python/object/apply:os.mkdir [canary]\n")
    rows = {"initial": [0.5, 0.5], "transition": [[0.9, 0.9], [0, 1]], "emission": [[0.5, 0.5], [0.5, 0.5]]}
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    tiny = {"initial": [1], "transition": [[1]], "emission": [[1 - 1e-12, 1e-12]]}
    (tmp_path / "tiny.json").write_text(json.dumps(tiny | {"symbols": ["umbrella", "none"]}))
    for ending in ("json", "npz", "safetensors"):
        (tmp_path / f"torn.{ending}").write_bytes(b'{"initial": [0.5')


SMALL = {"num_components": 3, "num_states": 4, "num_symbols": 4, "num_properties": 2, "num_entities": 3}


#: Processes that the filters of symbols refuse, so that they are neither judged nor trained on.
WITHOUT_EXACT_ANSWER = {"fresh-aliased-cycles", "fresh-hmms", "fresh-lazy-chains", "matmul"}
WITHOUT_EXACT_ANSWER |= {
    "told-hmms",
    "told-sparse-hmms",
    "told-cycles",
    "told-sharp-hmms",
    "told-slow-hmms",
}  # but behind headers


# --------------------------------------------------------------------------------------------------------------------
# Real processes


#: Output that is held back until the end, as on most machines, so that it can fail there.
BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
