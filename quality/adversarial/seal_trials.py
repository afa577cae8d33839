"""Trials of seals: changed files through every command that reads them, files without a checksum, and refused commands."""

import contextlib
import hashlib
import io
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sweeps_crash
from folder_trials import RESULTS, TINY
from hmmscope.lab import cli
from hmmscope.lab.tasks import local
from hmmscope.storage import disk
from trials import Report, trial

SHORT = TINY[: TINY.index("--model.name")]
DECODER = ["--model.name", "decoder", "--model.width", "8", "--model.num_layers", "1", "--model.num_heads", "2"]
STUDY = ["--states", "1,2", "--restarts", "1", "--iterations", "2", "--networks", "rnn"]
STUDY += ["--max_steps", "2", "--order", "1"]

#: Commands that make each folder, in one working directory.
MADE = {
    "run": [
        ["train", "umbrella", *SHORT, *DECODER, "--training.checkpoint_every", "1", "--out", "run"],
        ["analyse", "run", "curves"],
        ["report", "run", "-o", "run/report.html"],
        ["look", "run", "-o", "run/live.html"],
        ["report", "run", "--figures", "run/drawn", "--style", "web"],
    ],
    "model": [["analyse", "run", "--export", "model"]],
    "sweep": [["sweep", "--vary", "training.learning_rate=1e-3,3e-3", "--jobs", "1", *TINY, "--out", "sweep"]],
    "theorem": [["run", "multitask-theorem2", "--scale", "smoke", "--out", "theorem"]],
    "seeded": [["run", "limits-fig6", "--scale", "smoke", "--out", "seeded", "--pool", "pool"]],
    "study": [["study", "text.txt", *STUDY, "--out", "study"]],
    "quick": [["run", "quickstart", "--scale", "smoke", "--out", "quick"]],
    "bench": [
        ["benchmark", "rnn", "--tasks", "parity,told", "--steps", "2", "--out", "bench/entry", "--copy-card", "bench"],
        ["benchmark", "--leaderboard", "bench"],
    ],
}
#: Commands that read each folder. They write next to it or, if they resume it, into it.
READ: dict[str, list[list[str]]] = {
    "run": [
        ["check", "run"],
        ["report", "run", "-o", "x.html"],
        ["report", "run", "--figures", "x-figures"],
        ["look", "run", "-o", "x.html"],
        ["analyse", "run", "probe"],
        ["analyse", "run", "--export", "x-model"],
        ["train", "umbrella", *SHORT, *DECODER, "--training.checkpoint_every", "1", "--out", "run", "--resume"],
        ["train", "umbrella", *SHORT, *DECODER, "--training.num_steps", "5", "--warm-start", "run", "--out", "x-run"],
    ],
    "model": [["check", "model"]],
    "sweep": [
        ["check", "sweep"],
        ["sweep", "--table", "sweep"],
        ["sweep", "--vary", "training.learning_rate=1e-3,3e-3", "--jobs", "1", *TINY, "--out", "sweep"],
    ],
    "theorem": [
        ["check", "theorem"],
        ["report", "theorem", "-o", "x.html"],
        ["report", "theorem", "--figures", "x-figures"],
        ["claims", "theorem"],
        ["run", "multitask-theorem2", "--scale", "smoke", "--out", "theorem", "--resume"],
    ],
    "seeded": [
        ["check", "seeded"],
        ["report", "seeded", "-o", "x.html"],
        ["claims", "seeded"],
        ["run", "limits-fig6", "--scale", "smoke", "--out", "seeded", "--pool", "pool", "--resume"],
        ["run", "limits-fig6", "--scale", "smoke", "--out", "x-again", "--reuse", "seeded", "--pool", "pool"],
    ],
    "study": [
        ["check", "study"],
        ["report", "study", "-o", "x.html"],
        ["report", "study", "--figures", "x-figures"],
        ["study", "text.txt", *STUDY, "--out", "study", "--resume"],
        *([verb, f"study/hmms/2.{ending}", *more] for verb, ending, more in [("infer", "json", ["text.txt"])]),
    ],
    "quick": [["check", "quick"], ["report", "quick", "-o", "x.html"], ["claims", "quick"]],
    "bench": [
        ["check", "bench"],
        ["check", "bench/entry"],
        ["benchmark", "--leaderboard", "bench", "--out", "x-board"],
    ],
    "kept": [
        ["check", "kept"],
        ["report", "kept", "-o", "x.html"],
        ["report", "kept", "--figures", "x-figures"],
        ["claims", "kept"],
    ],
}
#: Seconds after which a command counts as hanging, and the code that stands for it.
_LONGEST, _HANGS = 300, 99
_POPEN = subprocess.Popen
#: Lock files of running commands; they are not content of a folder.
_LOCKS = ("lock", "grid.lock")


def _started(*words: Any, **options: Any) -> Any:
    """Fork workers of sweeps; start all other processes as usual."""
    return sweeps_crash.Forked(*words, **options) if {"stdin", "env"} <= options.keys() else _POPEN(*words, **options)


class _HangError(BaseException):
    pass


def rooms(place: Path) -> list[str]:
    """Make a finished folder of every kind in `place` and return their names."""
    with contextlib.chdir(place), pytest.MonkeyPatch.context() as patch:
        patch.setattr(local.subprocess, "Popen", _started)
        for words in (
            ["sample", "letters-hmm", "-n", "40", "--length", "12", "--out", "text.txt"],
            *(words for commands in MADE.values() for words in commands),
        ):
            code, said, _ = called(words)
            assert code == 0, (words, code, said)
        shutil.copytree(RESULTS / "limits-fig6", "kept")
    return [*MADE, "kept"]


def called(words: list[str]) -> tuple[int, str, set[Path]]:
    """Run a command in this process; return its exit code, its output, and the files that it read."""
    read: set[Path] = set()
    real, said = disk.reading, io.StringIO()

    @contextlib.contextmanager
    def noted(path: Path, **options: Any) -> Iterator[Any]:
        read.add(Path(os.path.abspath(path)))
        with real(path, **options) as file:
            yield file

    def ring(*_: Any) -> None:
        raise _HangError

    disk.reading, before = noted, signal.signal(signal.SIGALRM, ring)
    signal.alarm(_LONGEST)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = cli.main([*words, "-q"] if words[0] not in ("sweep", "claims") else words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except _HangError:
        code = _HANGS
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        disk.reading = real
    return code, said.getvalue(), read


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in _LOCKS)


def tree(place: Path) -> dict[str, str]:
    """Return the digest of every file, and "folder" for every folder, by path."""
    return {
        path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(place.rglob("*"))
        if path.name not in _LOCKS
    }


@trial("folders")
def folders(folder: Path, number: int, rng: random.Random) -> Report:
    """Check every folder that a command makes: `check` must give 0 and report that all files have checksums."""
    report = Report("G28", "every kind of folder that a command writes, with pools and submissions: report of `check`")
    place = folder / "room"
    place.mkdir()
    rooms(place)
    made = sorted(path for path in place.iterdir() if path.is_dir())
    inside = [place / "bench" / "entry", *sorted((place / "sweep" / "runs").iterdir())[:1]]
    files = 0
    for path in [*made, *inside][:number]:
        name = path.relative_to(place).as_posix()
        with contextlib.chdir(place):
            code, *_ = called(["check", name])
        said = _verified(place, name)
        report.trials += 1
        counts = re.search(r"(\d+) files?, 0 not covered", said)
        files += int(counts[1]) if counts else 0
        if code or not counts:
            report.found(f"check {name}: {code}: {said}")
    report.note = (
        f"{files} files in {', '.join(path.relative_to(place).as_posix() for path in made)} and folders in them"
    )
    return report


@trial("uncovered")
def uncovered(folder: Path, number: int, rng: random.Random) -> Report:
    """Change a byte of a file in a finished folder: no command that reads it may give 0 without a warning."""
    report = Report(
        "G28", "a changed byte in each kind of file, through each command that reads it; and files without a checksum"
    )
    place = folder / "room"
    place.mkdir()
    names = rooms(place)
    for name in names:
        with contextlib.chdir(place):
            code, said, _ = called(["check", name])
        report.trials += 1
        if code or "0 not covered" not in _verified(place, name):
            report.found(f"check {name}: {code}: {_verified(place, name)}")
    whole = place.with_name("whole")
    shutil.copytree(place, whole, symlinks=True)
    pairs = [(path.relative_to(place), words) for one in names for path in files_of(place / one) for words in READ[one]]
    rng.shuffle(pairs)
    codes: dict[int, int] = {}
    for path, words in pairs[:number]:
        data = (place / path).read_bytes()
        at = rng.randrange(len(data)) if data else 0
        (place / path).write_bytes(
            data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :] if data else b"x"
        )
        before = tree(place)
        with contextlib.chdir(place), pytest.MonkeyPatch.context() as patch:
            patch.setattr(local.subprocess, "Popen", _started)
            code, said, read = called(words)
        report.trials += 1
        codes[code] = codes.get(code, 0) + 1
        what = f"{' '.join(words[:2])} ... of {path}: {code}"
        if (
            code == 0
            and place / path in read
            and not any(word in said for word in ("damaged", "unsealed", "no seal", "no checksums"))
        ):
            report.found(f"{what}: silent")
        elif code == 70 or "Traceback" in said:
            report.found(f"{what}: {said[-200:]}")
        elif code and tree(place) != before:
            other = {name for name, _ in tree(place).items() ^ before.items()}
            report.found(f"{what}: refused, and changed {sorted(other)[:3]}")
        shutil.rmtree(place)
        shutil.copytree(whole, place, symlinks=True)
    report.note = f"of {len(pairs)} pairs; exit codes " + ", ".join(f"{k}: {v}" for k, v in sorted(codes.items()))
    return report


@trial("refusals")
def refusals(folder: Path, number: int, rng: random.Random) -> Report:
    """Refuse each command on folders of every kind for each reason: no file may change."""
    report = Report(
        "G30", "each command, refused for each reason, on finished folders: digests of all files before and after"
    )
    place = folder / "room"
    place.mkdir()
    names = rooms(place)
    (place / "exists").mkdir()
    (place / "exists.html").mkdir()
    whole = place.with_name("whole")
    shutil.copytree(place, whole, symlinks=True)
    commands = [(name, words) for name in names for words in READ[name]]
    cases = [(reason, name, words) for reason in REASONS for name, words in commands]
    rng.shuffle(cases)
    refused: dict[str, int] = {}
    for reason, name, words in cases[:number]:
        before = tree(place)
        with contextlib.chdir(place), contextlib.ExitStack() as stack:
            given = REASONS[reason](list(words), name, stack)
            expected = tree(place)
            code, said, _ = called(given)
            now = tree(place)
        what = f"{reason}: {' '.join(given)[:120]}: {code}"
        if code in (70, _HANGS) or "Traceback" in said:
            report.found(f"{what}: {said[-200:]}")
        elif code and now != expected:
            other = {one for one, _ in now.items() ^ expected.items()}
            report.found(f"{what}: changed {sorted(other)[:3]}")
        report.trials += code != 0
        refused[reason] = refused.get(reason, 0) + (code != 0)
        for made in place.glob("x*"):
            shutil.rmtree(made) if made.is_dir() else made.unlink()
        if tree(place) != before:  # it was not refused and continued a folder
            shutil.rmtree(place)
            shutil.copytree(whole, place, symlinks=True)
    report.note = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
    return report


def _option(words: list[str], option: str, value: str) -> list[str]:
    """Return the command with another value of an option; the option is added if it is missing."""
    where = [at for at, word in enumerate(words) if word in ("--out", "-o")] if option == "--out" else []
    return [*words[: where[0]], words[where[0]], value, *words[where[0] + 2 :]] if where else [*words, option, value]


def _locked(words: list[str], name: str, stack: contextlib.ExitStack) -> list[str]:
    stack.enter_context(disk.holding(Path(name) / "lock"))
    return words


def _without(words: list[str], name: str, stack: contextlib.ExitStack) -> list[str]:
    """Remove a required file of the folder while the command runs."""
    known = (Path(name) / one for one in ("config.json", "experiment.json", "grid.json"))
    file = next((one for one in known if one.exists()), files_of(Path(name))[0])
    file.rename("gone")
    stack.callback(os.rename, "gone", file)
    return words


#: Changes of a command, or of its folder, because of which it is refused.
REASONS: dict[str, Callable[[list[str], str, contextlib.ExitStack], list[str]]] = {
    "an unknown option": lambda words, *_: [*words, "--no-such-option", "1"],
    "an unknown section": lambda words, *_: [*words, "--nosuch.field", "1"],
    "a surplus word": lambda words, *_: [*words[:1], *words[1:], "surplus\0word"],
    "a number out of range": lambda words, *_: [*words, "--training.num_steps", "-1"],
    "other numbers": lambda words, *_: [*words, "--training.num_steps", "9", "--seed", "5"],
    "not resumed": lambda words, *_: [word for word in words if word != "--resume"],
    "a folder in the way": lambda words, *_: _option(words, "--out", "exists"),
    "a folder in the way of a page": lambda words, *_: _option(words, "--out", "exists.html"),
    "no such folder": lambda words, *_: _option(words, "--out", "no/such/folder/x.html"),
    "another kind of folder": lambda words, name, _: ["model" if word == name != "model" else word for word in words],
    "in use": _locked,
    "a file is missing": _without,
}


def _verified(place: Path, name: str) -> str:
    """Return the output of `check` on a folder without --quiet."""
    said = io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        cli.main(["check", name])
    return said.getvalue().strip()
