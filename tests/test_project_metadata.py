"""What only the owner knows stands in one place, and what GitHub reads fits the project."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECTS = ("pyproject.toml", "papers/pyproject.toml", "studies/pyproject.toml")
FILES = (*PROJECTS, "CITATION.cff", "README.md", "CODE_OF_CONDUCT.md", "docs/index.md")


def run(root: Path, *words: str) -> tuple[int, str]:
    script = [sys.executable, str(ROOT / "scripts" / "project_metadata.py"), "--root", str(root), *words]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_what_is_filled_in_reaches_every_file(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    before = {name: (tmp_path / name).read_text() for name in FILES}
    code, told = run(tmp_path)
    assert code == 0, told  # the files of the project are as the table says
    table = {
        "authors": '["Ada Lovelace <ada@x.org>", "Émile Borel"]', "repository": '"https://x.org/r"',
        "documentation": '"https://x.org/d"', "doi": '"10.5281/zenodo.1"', "contact": '"mail@x.org"',
    }  # fmt: skip
    text = before["pyproject.toml"]
    head, mark, rest = text.partition("[tool.hmmscope.owner]\n")
    rest = rest[rest.index("\n\n") :]
    (tmp_path / "pyproject.toml").write_text(head + mark + "\n".join(f"{k} = {v}" for k, v in table.items()) + rest)
    code, told = run(tmp_path)
    assert code == 1
    assert told.count("differs from the owner table") == len(FILES)
    assert run(tmp_path, "--write")[0] == 0
    assert run(tmp_path) == (0, "all is filled in\n")
    for name in PROJECTS:
        project = tomllib.loads((tmp_path / name).read_text())["project"]
        assert project["authors"] == [{"name": "Ada Lovelace", "email": "ada@x.org"}, {"name": "Émile Borel"}]
        assert project["urls"]["Repository"] == "https://x.org/r"
    cited = yaml.safe_load((tmp_path / "CITATION.cff").read_text())
    assert [one["name"] for one in cited["authors"]] == ["Ada Lovelace", "Émile Borel"]
    assert (cited["doi"], cited["repository-code"]) == ("10.5281/zenodo.1", "https://x.org/r")
    for name in ("README.md", "docs/index.md"):
        assert "[Repository](https://x.org/r) · [Documentation](https://x.org/d)" in (tmp_path / name).read_text()
    assert "mail@x.org" in (tmp_path / "CODE_OF_CONDUCT.md").read_text()
    (tmp_path / "pyproject.toml").write_text(head + mark + "\n".join(f'{k} = ""' for k in table) + rest)
    code, told = run(tmp_path)
    assert [line.split(":")[1].strip() for line in told.splitlines() if "not filled in" in line] == [
        f"tool.hmmscope.owner.{name}" for name in table
    ]
    (tmp_path / "pyproject.toml").write_text(head + mark + 'doi = "mine"\n' + rest)
    assert "tool.hmmscope.owner.authors" in run(tmp_path)[1]


def test_what_github_reads_fits_the_project() -> None:
    flows = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    assert set(flows) == {"tests", "docs"}
    (job,) = flows["tests"]["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert any(step.get("run") == "make docs" for step in flows["docs"]["jobs"]["build"]["steps"])
    for flow in flows.values():
        assert flow["permissions"] == {"contents": "read"}
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = {match[1] for one in classifiers if (match := re.search(r"Python :: (3\.\d+)$", one))}
    assert versions <= set(job["strategy"]["matrix"]["python"])
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        data = yaml.safe_load(form.read_text())
        assert {"name", "description", "body"} <= set(data), form.name
        asked = [one for one in data["body"] if one["type"] != "markdown"]
        assert len({one["id"] for one in asked}) == len(asked)
        assert any(one.get("validations", {}).get("required") for one in asked), form.name


def test_heavy_tests_exist() -> None:
    for line in (ROOT / "tests" / "heavy.txt").read_text().split():
        path, _, name = line.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), f"tests/heavy.txt: {line} does not exist; remove the line"
