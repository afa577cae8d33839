"""Model files: the bytes that were read are those that run, whatever bytecode lies beside them; early ends are one line."""

import importlib.util
import os
import pickle
import py_compile
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from hmmscope.errors import InputError, ResourceError
from hmmscope.lab.cli import main
from hmmscope.lab.model_file import ModelFile
from hmmscope.lab.verbs.models import load_model
from hmmscope.models.base import ModelIO
from hmmscope_studies import benchmark as hmmbench
from hmmscope_studies.benchmark import recompute
from hmmscope_studies.benchmark.entries import entry_of

MODEL = """
from torch import nn

def build(num_tokens=2, num_outputs=2):
    return nn.Linear(2, 16)
"""
PORTS = ModelIO(vocab_size=2, num_outputs=2, max_length=4)


@pytest.fixture(autouse=True)
def bytecode(monkeypatch):
    """Bytecode is written, as it is by default; a variable of the caller may have turned it off."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


def _widths(path: Path) -> set[int]:
    """The width that each way to a model file finds."""
    entered = entry_of(path)
    assert entered.source == path.read_bytes()
    return {load_model(f"{path}:build")[0].out_features, entered.make(PORTS, 0).out_features}


def _stale(path: Path) -> None:
    """An import of the file wrote bytecode; then it was edited within the second, at equal size."""
    spec = importlib.util.spec_from_file_location("stale", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert Path(importlib.util.cache_from_source(path)).is_file()
    before = path.stat()
    path.write_text(MODEL.replace("16", "64"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _forged(path: Path) -> None:
    """Bytecode of other source, which says that nobody needs to compare it."""
    path.write_text(MODEL.replace("16", "64"))
    other = path.with_name("other.py")
    other.write_text(MODEL)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(other, importlib.util.cache_from_source(path), invalidation_mode=unchecked)


@pytest.mark.parametrize("spoil", [_stale, _forged])
def test_no_bytecode_runs_in_the_place_of_the_source(tmp_path, spoil):
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    spoil(path)
    spec = importlib.util.spec_from_file_location("imported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.build().out_features == 16, "an import takes the bytecode: this is the case to test"
    assert _widths(path) == {64}


def test_a_file_is_read_once_and_writes_no_bytecode(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    file = ModelFile.read(path)
    path.write_text("raise RuntimeError")
    assert file.run().build().out_features == 16
    assert [one.name for one in tmp_path.rglob("*")] == ["mine.py"]


POSTPONED = """
from __future__ import annotations
import argparse
import sys
from dataclasses import dataclass, KW_ONLY
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=16)
WIDTH = parser.parse_args().width
assert sys.argv == [__file__] or sys.argv[0].endswith("random.py"), sys.argv

@dataclass
class Sizes:
    _: KW_ONLY
    width: int = WIDTH

class Net(nn.Linear):
    def __init__(self, sizes: Sizes | None = None):
        super().__init__(2, (sizes or Sizes()).width)

def build(num_tokens=2, num_outputs=2):
    return Net()
"""


def test_postponed_annotations_and_scripts_with_arguments(tmp_path, monkeypatch):
    """Also under the name of a module that others need, which stays what it is."""
    import random

    monkeypatch.setattr(sys, "argv", ["hmmscope", "look", "--width", "7"])
    path = tmp_path / "random.py"
    path.write_text(POSTPONED)
    assert _widths(path) == {16}
    assert sys.modules["random"] is random
    assert sys.argv == ["hmmscope", "look", "--width", "7"]
    model = load_model(f"{path}:Net")[0]
    assert type(pickle.loads(pickle.dumps(model))) is type(model)
    again = tmp_path / "again" / "mine.py"
    again.parent.mkdir()
    again.write_text(POSTPONED)
    (tmp_path / "mine.py").write_text(MODEL)
    first = type(load_model(f"{again}:Net")[0])
    load_model(f"{tmp_path / 'mine.py'}:build")
    assert getattr(sys.modules[first.__module__], "Net", None) is first, "another file took the name"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit()", "(SystemExit: 0)"),
        ("raise SystemExit('bye\\nnow')", "(SystemExit: bye now)"),
        ("import os\nos._exit(0)", "(SystemExit: 0)"),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()",
            "(SystemExit: the following arguments are required: --data)",
        ),
        ("class End(BaseException): pass\nraise End('here')", "(End: here)"),
        ("def build(num_tokens=2):\n    import os\n    os._exit(0)", "(SystemExit: 0)"),
        ("def build(:", "SyntaxError"),
        ("x = '\0'", "null bytes"),
    ],
)
def test_a_file_that_ends_the_process_is_one_line(tmp_path, capfd, text, said):
    path, end = tmp_path / "mine.py", os._exit
    path.write_text(text)
    for words in (["look", f"{path}:build", "mess3", "-o", str(tmp_path / "x.html")],
                  ["benchmark", str(path), "--tasks", "parity", "--out", str(tmp_path / "out")]):  # fmt: skip
        assert main(words) == 2
        error = capfd.readouterr().err
        assert error.count("\n") == 1, error
        assert said in error or "SystemExit: 0" in error
    assert os._exit is end
    assert not {"x.html", "out"} & {one.name for one in tmp_path.iterdir()}


class Ends(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(nn.init.zeros_(nn.Linear(3, 4).weight))

    def forward(self, tokens):
        sys.exit(0)


class EndsAtOnce(Ends):
    def forward(self, tokens):
        os._exit(0)


class EndsInTraining(Ends):
    """Only where a loss needs a gradient, long after every rehearsal."""

    def forward(self, tokens):
        if self.training and torch.is_grad_enabled():
            os._exit(0)
        return self.weight[tokens]


def build(num_tokens):
    return EndsInTraining()


@pytest.mark.parametrize("name", ["Ends", "EndsAtOnce"])
def test_a_model_that_ends_the_process_when_it_is_called_is_one_line(tmp_path, capsys, name):
    path, end = tmp_path / "mine.py", os._exit
    path.write_text(f"from {__name__} import {name}")
    assert main(["look", f"{path}:{name}", "mess3", "--length", "8", "-o", str(tmp_path / "x.html")]) == 2
    assert "code called sys.exit (SystemExit: 0)" in capsys.readouterr().err
    assert os._exit is end


def test_a_model_that_ends_the_process_in_training_is_no_success(tmp_path, capsys):
    """Neither on the command line nor in Python, where SystemExit would end the caller's script with exit code 0."""
    path, end = tmp_path / "mine.py", os._exit
    path.write_text(f"from {__name__} import build")
    words = ["--tasks", "rrxor", "--steps", "1", "--out", str(tmp_path / "out")]
    assert main(["benchmark", str(path), *words]) == 2
    assert "code called sys.exit (SystemExit: 0)" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"model: the model's code called sys.exit"):
        hmmbench.benchmark(build, tmp_path / "again", tasks=("rrxor",), num_steps=1)
    assert os._exit is end


def test_what_lies_beside_a_file_is_for_look_alone(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    (tmp_path / "beside_it.py").write_text("WIDTH = 16")
    for line in ("import beside_it", "from beside_it import WIDTH", "from .beside_it import WIDTH"):
        path.write_text(f"def later():\n    {line}\n{MODEL}")
        with pytest.raises(InputError, match=r"imports .*beside_it from its own folder"):
            entry_of(path)
    inner, installed = tmp_path / "inner", tmp_path / "lib"
    for folder, name in ((inner, "within_it"), (installed, "installed_there")):
        folder.mkdir()
        (folder / f"{name}.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed), str(tmp_path)])
    path.write_text(f"import importlib, installed_there\nimportlib.import_module('beside_' + 'it')\n{MODEL}")
    for _ in range(2):
        with pytest.raises(InputError, match=r"imports beside_it from its own folder"):
            entry_of(path)
    path.write_text(f"import sys\nsys.path += [{str(inner)!r}]\nimport within_it\n{MODEL}")
    with pytest.raises(InputError, match=r"imports within_it from its own folder"):
        entry_of(path)
    sys.path.remove(str(tmp_path))
    (tmp_path / "json.py").write_text("")  # which no import takes: the installed one comes first
    path.write_text(f"import json\nimport torch.nn\n{MODEL}")
    assert entry_of(path)
    path.write_text(f"import beside_it\n{MODEL.replace('16', 'beside_it.WIDTH')}")
    assert load_model(f"{path}:build")[0].out_features == 16


@pytest.mark.long
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("text", "limit", "error", "said"),
    [
        ("x = bytearray(2**36)", {}, ResourceError, "out of memory"),
        ("while True: pass", {"SECONDS": 4}, ResourceError, "was stopped; a model file may use 4 seconds"),
        ("open('large', 'wb').write(bytes(2**21))", {"FILE": 2**20}, ResourceError, "File too large"),
        ("import ctypes\nctypes.CDLL(None)._exit(0)", {}, InputError, "ended its process (exit code 0) before"),
        ("import sys\nsys.exit(0)", {}, InputError, "(SystemExit: 0)"),
        ("raise ValueError('bad')", {}, InputError, "fails (ValueError: bad)"),
    ],
)
def test_the_process_of_a_model_file_has_limits(tmp_path, monkeypatch, text, limit, error, said):
    monkeypatch.chdir(tmp_path)
    for name, value in limit.items():
        monkeypatch.setattr(recompute, name, value)
    (tmp_path / "entry.json").write_text('{"name": "mine"}')
    file = ModelFile(tmp_path / "mine.py", f"{text}\n{MODEL}".encode())
    (tmp_path / "out").mkdir()
    with pytest.raises(error) as caught:
        recompute.in_child(tmp_path, file, tmp_path / "out", ["parity-0"])
    assert said in str(caught.value)


NAMED = """
import hmmscope as hs
from torch import nn

class Net(nn.Module):
    def __init__(self, vocab_size, num_outputs):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab_size, 4), nn.Linear(4, num_outputs)

    def forward(self, batch):
        return {"scores": self.head(self.embedding(batch["tokens"]))}

def adapted(vocab_size, num_outputs):
    call = lambda model, tokens: model({"tokens": tokens})
    return hs.adapt(Net(vocab_size, num_outputs), call, output="scores")

one = adapted(64, 64)
"""


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["adapted", "one"])
def test_a_name_in_a_file_is_entered_and_checked(tmp_path, capsys, name):
    path, out = tmp_path / "mine.py", tmp_path / "out"
    path.write_text(NAMED)
    assert main(["benchmark", f"{path}:{name}", "--out", str(out), "--tasks", "told", "--steps", "1", "-q"]) == 0
    capsys.readouterr()
    assert main(["check", str(out), "--run", str(path)]) == 0
    assert f"{name}, light track: 1 scores recomputed from stored predictions, which" in capsys.readouterr().out
    assert main(["benchmark", f"{path}:none", "--tasks", "told"]) == 2
    assert "must define a function none(vocab_size, num_outputs, max_length)" in capsys.readouterr().err
