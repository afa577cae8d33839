"""What is required is little, and what the README's commands install is fixed by digests."""

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hmmscope.errors import code_and_line
from hmmscope.lab.cli import build_parser
from hmmscope.progress import live_console

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKED = (ROOT / "constraints" / "locked.txt").read_text()


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~[ ;]", one)[0].lower().replace("_", "-") for one in requirements}


def locked(text: str) -> dict[str, list[str]]:
    """Digests by package; a line that is neither a version, a digest nor a comment is an error."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if version := re.fullmatch(r"([A-Za-z0-9._-]+)==[^ ]+ \\", line):
            package = found.setdefault(version[1].lower().replace("_", "-"), [])
        elif digest := re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})( \\)?", line):
            package.append(digest[1])
        else:
            assert line.startswith("#"), line
    return found


def test_few_packages_are_required() -> None:
    required = PROJECT["project"]["dependencies"]
    assert names(required) == {"torch", "numpy", "numba", "safetensors", "pyyaml", "jaxtyping"}
    assert "torch>=2.10" in required


def test_everything_that_the_readme_installs_is_locked() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    asked = names(PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"])
    asked |= {name for extra in ("pages", "hmm", "models", "test") for name in names(extras[extra])}
    found = locked(LOCKED)
    assert asked - found.keys() == {"torch"}
    assert all(found.values())
    makefile = (ROOT / "Makefile").read_text()
    assert "--no-deps --only-binary :all: --require-hashes -r constraints/locked.txt" in makefile
    assert "--no-deps --no-build-isolation -e ." in makefile


def test_pip_itself_is_fetched_by_its_digest_before_anything_else() -> None:
    recipe = (ROOT / "Makefile").read_text().partition(".venv/.installed: ")[2].splitlines()
    calls = [line.partition("$(PIP) ")[2] for line in recipe if "$(PIP) " in line]
    assert calls[0] == "--no-deps --only-binary :all: --require-hashes -r constraints/pip.txt"
    assert all("--only-binary :all:" in line or line.endswith("-e . -e papers -e studies") for line in calls)
    assert [len(digests) for digests in locked((ROOT / "constraints" / "pip.txt").read_text()).values()] == [1]


def test_what_is_no_lock_is_found() -> None:
    assert locked("a==1 \\\n    --hash=sha256:" + "0" * 64) == {"a": ["0" * 64]}
    for line in ("a>=1", "a==1", "-e .", "--index-url x"):
        try:
            locked(line)
        except AssertionError:
            continue
        raise AssertionError(line)


@pytest.mark.parametrize("name", ["tools", "maintenance"])
def test_what_other_commands_install_is_locked(name: str) -> None:
    found = locked((ROOT / "constraints" / f"{name}.txt").read_text())
    assert all(found.values())
    hashed = r"--require-hashes -r constraints/\w+\.txt|\$\(CONSTRAINT\) torch|--no-deps --no-build-isolation -e \."
    makefile = (ROOT / "Makefile").read_text()
    commands = makefile[makefile.index("demo:") : makefile.index("test-extras:")]
    commands += makefile[makefile.index("check-package:") :]
    assert "pip-audit --strict " in commands  # a package that could not be looked up is an error
    for recipe in re.findall(r"pip install.*|\$\(PIP\) .*", commands):
        assert re.search(hashed, recipe), recipe
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {"tools": ("pages", "hmm", "models", "test", "docs", "e2e", "slurm", "package"), "maintenance": ()}[name]
    assert {one for extra in wanted for one in names(extras[extra])} <= found.keys() | {"torch"}


def test_workflows_name_actions_by_their_commit() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (.*)", path.read_text())
        assert used
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one) for one in used), used


def test_a_new_lock_keeps_its_head(tmp_path: Path) -> None:
    """`make lock` with a stand-in for the program that asks the index."""
    bin_ = tmp_path / ".venv-lock" / "bin"
    bin_.mkdir(parents=True)
    shutil.copytree(ROOT / "constraints", tmp_path / "constraints")
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")
    line = "a==1 \\\n    --hash=sha256:" + "0" * 64
    asks = f"""#!{sys.executable}
import sys
open(sys.argv[sys.argv.index("-o") + 1], "w").write({line!r} + "\\n\\n# WARNING: not pinned: torch\\n")
"""
    for name, text in (("python", "#!/bin/sh\n"), ("pip-compile", asks)):
        (bin_ / name).write_text(text)
        (bin_ / name).chmod(0o755)
    subprocess.run(["make", "lock"], cwd=tmp_path, check=True, capture_output=True)
    for name in ("locked", "tools", "maintenance"):
        before = (ROOT / "constraints" / f"{name}.txt").read_text()
        head = "".join(line for line in before.splitlines(keepends=True) if line.startswith("#"))
        assert len(head.splitlines()) >= 2
        assert (tmp_path / "constraints" / f"{name}.txt").read_text() == f"{head}{line}\n"


def test_the_bill_of_materials_names_no_place(tmp_path: Path) -> None:
    """`make sbom` with a stand-in for the tool, which takes an editable install from its metadata unless it is told."""
    writes = f"""#!{sys.executable}
import sys
told = sys.argv[sys.argv.index("--pyproject") + 1] == "pyproject.toml" if "--pyproject" in sys.argv else False
open(sys.argv[sys.argv.index("--output-file") + 1], "w").write("hmmscope" if told else "file://{tmp_path}")
"""
    for name, text in {
        ".venv-lock/bin/python": "#!/bin/sh\n",
        ".venv-lock/bin/cyclonedx-py": writes,
        "constraints/locked.txt": "",
        "constraints/torch.txt": "",
        "constraints/pip.txt": "",
        "pyproject.toml": "",
        "papers/pyproject.toml": "",
        "studies/pyproject.toml": "",
        ".venv/.installed": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")
    subprocess.run(["make", "sbom"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "sbom.json").read_text() == "hmmscope"


def test_pages_and_bars_are_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    code, line = code_and_line(ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib"))
    assert (code, line.partition("; ")[2]) == (2, "run pip install 'hmmscope[pages]'")
    assert code_and_line(ModuleNotFoundError("No module named 'numpy'", name="numpy"))[0] == 70
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert live_console() is None


def test_the_check_of_the_package_tries_every_verb() -> None:
    check = runpy.run_path(str(ROOT / "scripts" / "check_package.py"))
    assert check["untried"](build_parser().format_help()) == []
    assert check["untried"]("usage:\n  show    what there is\n  dance   is none\n") == ["dance"]
    assert check["untried"]("no verbs") == ["all"]


@pytest.mark.long
def test_the_ledger_of_the_documentation_is_of_what_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished experiments alone, and of each and scale one, though results of a grid and of other plans lie beside them."""
    (said,) = re.findall(r"hmmscope claims \$\$\((\S+)python (.*)\) -q", (ROOT / "Makefile").read_text())
    monkeypatch.chdir(ROOT)
    folders = subprocess.run(
        [sys.executable, *said[1].split()], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(folders) > 30
    assert all((ROOT / folder / "findings.json").is_file() for folder in folders)
    known = [folder.partition("@")[0] for folder in folders]
    assert len(set(known)) == len(known)
