"""The additions that CONTRIBUTING.md shows: each is one short file, and a package of a stranger's own may hold it."""

import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forking
import hmmscope as hs
from hmmscope import registry
from hmmscope.errors import InputError

ROOT = Path(__file__).parents[1]
#: Most lines of each.
BUDGETS = {
    "left_right.py": 40,
    "renewal.py": 40,
    "laplace.py": 95,
    "norms.py": 40,
    "leaky.py": 70,
    "noise_study.py": 75,
}


def files() -> dict[str, str]:
    """The files of the page by name."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.findall(r"in `(\w+\.py)`[.:].*?\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return dict(found)


#: Beside the files of the page: a layout, and a verb, whose entry point names the record of its options.
MORE = {
    "halves.py": """
from dataclasses import dataclass
from hmmscope import registry
from hmmscope.datasets.layouts import Layout

@registry.layout("halves")
@dataclass(frozen=True, kw_only=True)
class Halves(Layout):
    half: int = 4
    has_delimiter = property(lambda self: True)
    sequence_lengths = property(lambda self: (self.half, self.half))
""",
    "letters.py": """
from dataclasses import dataclass
from typing import ClassVar
from hmmscope.lab.verbs.options import Options, given

@dataclass(frozen=True, kw_only=True)
class LettersOptions(Options):
    \"\"\"count the letters of a word\"\"\"
    function: ClassVar[str] = "my_lab.letters:letters"
    word: str = given("the word")

def letters(options: LettersOptions) -> None:
    print(len(options.word), "letters")
""",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the package `my_lab`, which its entry point makes known."""
    site = tmp_path_factory.mktemp("site")
    package, info = site / "my_lab", site / "my_lab-1.dist-info"
    package.mkdir()
    info.mkdir()
    for name, text in (files() | MORE).items():
        (package / name).write_text(text)
    modules = ", ".join(name.removesuffix(".py") for name in files() | MORE)
    (package / "__init__.py").write_text(f"from my_lab import {modules}\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-lab\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[hmmscope]\nmy-lab = my_lab\n[hmmscope.verbs]\nletters = my_lab.letters:LettersOptions\n"
    )
    others = [part for part in (os.environ.get("PYTHONPATH"),) if part]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *others]), "SITE": str(site)}


def run(environment: dict[str, str], *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return forking.run([*words], env=environment, cwd=cwd)


#: Runs command lines one after the other in a process, with a zero before what each prints.
COMMANDS = """
import sys
from hmmscope.lab.cli import main
for line in sys.argv[1:]:
    print(end="\\0", flush=True)
    if code := main(line.split()):
        sys.exit(code)
"""

#: Runs command lines that are refused, with a zero before what each prints to stderr.
REFUSED = """
import sys
from hmmscope.lab.cli import main
for line in sys.argv[1:]:
    print(end="\\0", file=sys.stderr, flush=True)
    assert main(line.split()) == 2, line
"""


def hmmscope(environment: dict[str, str], *lines: str) -> list[str]:
    """What each command line prints."""
    done = run(environment, "-c", COMMANDS, *lines)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[1:]


def test_each_is_one_short_file() -> None:
    lines = {name: len(text.splitlines()) for name, text in files().items()}
    assert lines.keys() == BUDGETS.keys()
    assert [name for name in lines if lines[name] > BUDGETS[name]] == []


@pytest.mark.drawn(1, of="every verb")
def test_command_line_knows_them(installed: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "noise-study"
    listed, printed, judged = hmmscope(
        installed, "show", f"run noise-study --scale smoke --out {out} -q", f"claims {out}"
    )
    assert all(name in listed for name in ("left-right", "norms", "leaky", "noise-study", "noise-study-learns"))
    assert "renewal" in listed
    assert "Training brings the network nearer to the optimum at every noise." in printed
    assert "noise-study-learns" in judged
    folder = next((tmp_path / "trained" / "runs").iterdir())
    assert "residual.1" in hmmscope(installed, f"analyse {folder} norms")[0]


@pytest.mark.long
@pytest.mark.drawn(1, of="every verb")
def test_a_kind_of_its_own_is_known_to_every_verb(installed: dict[str, str], tmp_path: Path) -> None:
    words, run_folder, page = tmp_path / "words.npz", tmp_path / "run", tmp_path / "page.html"
    training = "--training.num_steps 30 --training.batch_size 16 --layout.length 12 --model.width 16"
    shown, _, told, trained, belief, probed, looked = hmmscope(
        installed,
        "show renewal",
        f"sample renewal -n 3 --length 10 --out {words}",
        f"infer renewal {words}",
        f"train renewal {training} --out {run_folder}",
        f"analyse {run_folder} geometry --num_samples 64",
        f"analyse {run_folder} probe --target previous-1 --num_samples 64",
        f"look {run_folder} --out {page} --samples 16",
    )
    assert "all equally likely" in shown
    assert re.search(r"3 sequences, 30 observations: log-likelihood -\d+\.\d+ nats", told)
    assert re.search(r"belief: \d 1\.000000", told)
    assert "optimum" in trained
    assert "residual.1" in belief
    assert "residual.1" in probed
    assert "the exact optimum" in looked
    lacking = {
        f"infer renewal {words} --smooth": "--smooth needs smoothing, but Renewal has none; supported by",
        f"infer renewal {words} --memory 2": "--memory needs finite memory, but Renewal has none; supported by",
        "infer renewal": "Renewal has no properties to compute",
        "infer renewal --mixing": "--mixing needs mixing time, but Renewal has none; supported by",
    }
    done = run(installed, "-c", REFUSED, *lacking)
    assert done.returncode == 0, done.stderr
    for refusal, said in zip(done.stderr.split("\0")[1:], lacking.values(), strict=True):
        assert refusal.count("\n") == 1, refusal
        assert said in refusal


@pytest.mark.long
@pytest.mark.drawn(1, of="every verb")
def test_an_emission_family_of_its_own_is_known_to_every_verb(installed: dict[str, str], tmp_path: Path) -> None:
    table, model, run_folder = tmp_path / "x.csv", tmp_path / "x.json", tmp_path / "run"
    values = np.random.default_rng(0).laplace(np.repeat([-3, 2, -3, 2], 25), 0.5)
    table.write_text("x\n" + "\n".join(map(str, values)) + "\n")
    training = "--training.num_steps 20 --training.batch_size 4 --layout.length 12 --model.name rnn --model.width 8"
    fitted, shown, told, trained, belief, looked = hmmscope(
        installed,
        f"fit {table} --states 1,2 --emission laplace --posterior 50 --restarts 3 --out {model}",
        f"show {model}",
        f"infer {model} {table}",
        f"train {model} {training} --out {run_folder}",
        f"analyse {run_folder} geometry --num_samples 64",
        f"look {run_folder} --out {tmp_path / 'page.html'} --samples 16",
    )
    assert "2 states, 95 % [2, 2]" in fitted
    assert "posterior of 4 chains of 50 draws" in fitted
    assert "LaplaceHMM: laplace fit, 2 states, 1 coordinate" in shown
    assert "100 observations, log-density" in told
    assert "optimum" in trained
    assert "residual.1" in belief
    assert "the exact optimum" in looked


def test_a_layout_and_a_verb_of_its_own_are_known(installed: dict[str, str], tmp_path: Path) -> None:
    training = "--training.num_steps 5 --training.batch_size 4 --model.name rnn --model.width 8 --layout.name halves"
    counted, trained = hmmscope(
        installed, "letters filter", f"train mess3 {training} --layout.half 3 --out {tmp_path / 'run'}"
    )
    assert counted == "6 letters\n"
    assert "optimum" in trained
    assert json.loads((tmp_path / "run" / "config.json").read_text())["layout"] == {"name": "halves", "half": 3}


_SAVED = """
import torch
import hmmscope as hs
from my_lab.renewal import Renewal
kept = Renewal(torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64))
for ending in ("json", "npz", "safetensors"):
    kept.save(f"kept.{ending}")
    found = hs.load_process(f"kept.{ending}")
    assert type(found) is Renewal and found.digest == kept.digest and torch.equal(found.waits, kept.waits)
assert Renewal(kept.waits.flip(0)).digest != kept.digest
words = torch.tensor([[int(bit) for bit in f"{code:06b}"] for code in range(64)])
total = hs.observe(kept, words).log_likelihood_terms.sum(1).exp().sum()
assert abs(float(total) - 1) < 1e-12
run = hs.train(kept, out="run", length=8, num_steps=5)
assert hs.load_run("run").process.digest == kept.digest
"""


def test_a_kind_of_its_own_is_saved_loaded_and_exact(installed: dict[str, str], tmp_path: Path) -> None:
    done = run(installed, "-c", _SAVED, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@dataclasses.dataclass(frozen=True)
class Mine:
    """A process."""

    def build(self) -> Any:
        return hs.make_process("mess3")


@pytest.mark.parametrize(
    "kind, name, entry, said",
    [
        (
            "process",
            "",
            Mine,
            "process '': must consist of letters, digits, - and _, so that it cannot be taken for a file name",
        ),
        ("process", 5, Mine, "process 5: must consist of letters"),
        ("process", "mine.json", Mine, "process 'mine.json': must consist of letters"),
        ("process", "umbrella", Mine, "process 'umbrella': is the name of a process of hmmscope; choose another name"),
        (
            "process",
            "mess3",
            Mine,
            "process 'mess3': is already registered by hmmscope.processes.textbook; choose another name",
        ),
        ("process", "mine", int, "process 'mine': must be a dataclass with build(), got <class 'int'>"),
        (
            "model",
            "lstm",
            Mine,
            "model 'lstm': is already registered by hmmscope.models.recurrent; choose another name",
        ),
        ("layout", "mine", int, "layout 'mine': must be a dataclass, got <class 'int'>"),
        ("emission", "mine", int, "emission 'mine': must be a subclass of hmmscope.EmissionHMM, got <class 'int'>"),
        ("emission", "symbols", int, "emission 'symbols': is reserved for HMMs with symbols; choose another name"),
        ("emission", "poisson", hs.GaussianHMM, "emission 'poisson': is already registered by hmmscope.emissions."),
    ],
)
def test_what_cannot_be_registered_is_one_clear_line(kind: str, name: Any, entry: Any, said: str) -> None:
    registry.entries(kind)
    with pytest.raises(InputError) as caught:
        getattr(registry, kind)(name)(entry)
    assert str(caught.value).startswith(said)


def test_what_is_defined_again_takes_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._found, "process", dict(registry.entries("process")))
    for _ in range(2):
        registry.process("mine-again")(Mine)
    assert registry.entries("process")["mine-again"] is Mine


@pytest.mark.long
def test_contracts_hold_for_them(installed: dict[str, str]) -> None:
    """The tests over everything that is registered find them too."""
    chosen = ["-k", "left-right or renewal or leaky or norms", "-n", "0", "-p", "no:cacheprovider"]
    done = run(installed, "-m", "pytest", "tests/contracts/test_registered.py", *chosen)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 20  # or they would not be found


def test_module_that_does_not_import_is_one_clear_line(installed: dict[str, str]) -> None:
    broken = Path(installed["SITE"]) / "broken-1.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (broken / "entry_points.txt").write_text("[hmmscope]\nbroken = not_there_at_all\n")
    code = "import sys; from hmmscope.lab.cli import main; sys.exit(main(['show', 'models']))"
    done = run(installed, "-c", code)
    assert done.returncode == 2
    assert done.stderr.startswith("error[2] plugin broken (not_there_at_all): ModuleNotFoundError")
    assert len(done.stderr.splitlines()) == 1
