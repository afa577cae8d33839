"""All experiments of a paper in one command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_cases import call  # noqa: F401 - fixture
from hmmscope.errors import FullDiskError, ResourceError
from hmmscope.lab.verbs import paper


@pytest.mark.long
def test_one_that_fails_is_named_and_made_up_for(
    call: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["limits-theorem5.2", "limits-theorem5.1"]
    monkeypatch.setattr(paper, "experiments_of", lambda *_: names)
    real, ran = paper.run_experiment, []

    def failing(name: str, *rest: Any, **more: Any) -> Path:
        ran.append(name)
        if len(ran) == 1:
            raise ResourceError("no space")
        return real(name, *rest, **more)

    monkeypatch.setattr(paper, "run_experiment", failing)
    called = call("run", "limits", "--scale", "smoke", "--out", "all", "-q")
    assert called.code == 5
    failed = "limits-theorem5.2: failed, but the other experiments are complete; limits-theorem5.2: no space"
    assert called.error == f"error[5] {failed}\n"
    index = (tmp_path / "all" / "index.html").read_text()
    assert 'href="limits-theorem5.1/report.html#limits-theorem5.1-exact"' in index
    assert "limits-theorem5.2: no space" in index
    assert call("run", "all", "--scale", "smoke", "--out", "all", "-q").code == 3
    assert call("run", "all", "--scale", "smoke", "--out", "all", "-q", "--resume").code == 0
    assert ran == [*names, names[0]]
    index = (tmp_path / "all" / "index.html").read_text()
    assert "not run yet" not in index
    assert "no space" not in index
    told = call("check", "all")
    assert told.code == 0, told.error
    assert told.out.endswith(" files, 0 not covered\n")
    (tmp_path / "all" / "index.html").write_text(index + " ")
    assert call("check", "all").code == 4


def test_a_full_disk_ends_all(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "experiments_of", lambda *_: ["limits-theorem5.2", "limits-theorem5.1"])
    ran = []

    def full(name: str, *_: Any, **__: Any) -> None:
        ran.append(name)
        raise FullDiskError("no space")

    monkeypatch.setattr(paper, "run_experiment", full)
    called = call("run", "limits", "--scale", "smoke", "--out", "all", "-q")
    assert (called.code, called.error, ran) == (5, "error[5] no space\n", ["limits-theorem5.2"])


def test_experiments_of_a_paper() -> None:
    limits = paper.experiments_of("limits", "smoke")
    assert all(name.startswith("limits-") for name in limits)
    assert limits.index("limits-theorem5.1") < limits.index("limits-fig3")
    assert set(limits) < set(paper.experiments_of("all", "smoke"))


@pytest.mark.parametrize(
    "words, line",
    [
        (("run", "limit", "--out", "x"), "error[2] experiment: unknown 'limit'"),
        (("run", "limits", "--out", "x", "--scale", "huge"), "error[2] scale: unknown 'huge'"),
        (
            ("run", "all", "--out", "x", "--seeds", "2"),
            "error[2] run all: takes only --scale, --out, --resume and --jobs",
        ),
    ],
)
def test_bad_input(words: tuple[str, ...], line: str, call: Callable) -> None:
    called = call(*words)
    assert called.code == 2
    assert called.error.startswith(line)
