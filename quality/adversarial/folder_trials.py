"""Trials with changed bytes and fields in finished folders of every kind, with and without a seal."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kept_results
import pytest

import sweeps_crash
from hmmscope.errors import DamagedError
from hmmscope.lab import cli
from hmmscope.lab.tasks import local
from hmmscope.storage.seals import SEAL, open_sealed
from trials import Report, trial

RESULTS = kept_results.RESULTS / "small"
TINY = ["--layout.length", "4", "--training.num_steps", "3", "--training.batch_size", "2", "--training.device", "cpu"]
TINY += ["--model.name", "rnn", "--model.width", "4", "--training.evaluate_samples", "4"]


def folders(place: Path) -> dict[str, Path]:
    """Make a finished folder of every kind: a run, a sweep, an experiment, and two stored results."""
    commands = {
        "theorem": ["run", "multitask-theorem2", "--scale", "smoke"],
        "run": ["train", "umbrella", *TINY],
        "sweep": ["sweep", "--vary", "training.learning_rate=1e-3,3e-3", "--jobs", "1", *TINY],
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, words in commands.items():
            if (
                name == "sweep"
            ):  # workers are forked, which is faster than new interpreters; drawing figures needs the real Popen
                patch.setattr(local.subprocess, "Popen", sweeps_crash.Forked)
            code = cli.main([*words, "--out", str(place / name), "-q"])
            assert code == 0, (name, code)
    for name in ("limits-fig6", "limits-table1"):
        shutil.copytree(RESULTS / name, place / name)
    return {path.name: path for path in sorted(place.iterdir()) if (path / SEAL).is_file()}


def altered(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with a few bytes changed, cut, doubled, moved or added; it always differs from `data`."""
    while True:
        at, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
        few = rng.randbytes(rng.choice((1, 1, 2, 8)))
        changed = rng.choice(
            (
                data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
                if at < len(data)
                else data + few,
                data[:at],
                data[at:],
                data + few,
                data[:at] + few + data[at:],
                data[: min(at, other)] + data[max(at, other) :],
                data[:at] + data[at : at + 40] + data[at:],
                data.replace(b" ", b"\t", 1),
                b"",
            )
        )
        if changed != data:
            return changed


def altered_field(data: bytes, rng: random.Random) -> bytes | None:
    """Return a JSON document with one value changed or removed; None if `data` is no JSON or has no values."""
    try:
        document = json.loads(data)
    except ValueError:
        return None
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            places.append((node, key))
            walk(value)

    walk(document)
    if not places:
        return None
    node, key = rng.choice(places)
    value = node[key]
    if rng.random() < 0.2:
        del node[key]
    elif isinstance(value, bool) or value is None:
        node[key] = 1
    elif isinstance(value, int | float):
        node[key] = rng.choice((value + 1, -value - 1, value * 100 + 1, value + 1e-9, str(value)))
    elif isinstance(value, str):
        node[key] = rng.choice((value + "x", "done", value[:-1] + "\u202e"))
    else:
        node[key] = "nothing"
    changed = json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
    return changed if changed != data else None


@trial("mutations")
def mutations(folder: Path, number: int, rng: random.Random) -> Report:
    """Change, swap or remove a file of a sealed folder: opening the seal must raise DamagedError."""
    report = Report("G6", "a changed byte or field, or a swapped or missing file, in every kind of folder")
    kinds = folders(folder)
    files = {name: _named(path) for name, path in kinds.items()}
    assert all(open_sealed(path) is not None for path in kinds.values())
    counts = dict.fromkeys(kinds, 0)
    for _ in range(number):
        name = rng.choice(list(kinds))
        path = rng.choice(files[name])
        before = path.read_bytes()
        other = rng.choice([one for one in files[name] if one.parent == path.parent] or [path])
        change = rng.choice((altered, altered, altered_field, None))
        data = other.read_bytes() if change is None else change(before, rng)
        if data is None or data == before:
            data = altered(before, rng)
        path.unlink()
        if rng.random() < 0.95:
            path.write_bytes(data)
        elif path.name == SEAL:  # a folder without a seal is reported as unsealed, not as damaged
            path.write_bytes(before)
            continue
        report.trials += 1
        counts[name] += 1
        try:
            open_sealed(kinds[name])
            report.found(f"{name}: {path.relative_to(kinds[name])}")
        except DamagedError:
            pass
        except Exception as error:
            report.found(f"{name}: {path.relative_to(kinds[name])}: {type(error).__name__}: {error}")
        path.unlink(missing_ok=True)
        path.write_bytes(before)
    report.note = ", ".join(f"{count} {name}" for name, count in counts.items())
    return report


def _named(folder: Path) -> list[Path]:
    return [folder / name for name in [*json.loads((folder / SEAL).read_bytes())["files"], SEAL]]


@trial("bytes")
def bytes_of_results(folder: Path, number: int, rng: random.Random) -> Report:
    """Change `number` bytes of every stored result, one at a time: `hmmscope check` must refuse the folder."""
    report = Report("G6", "one changed byte at a time of every file of results/small, through `hmmscope check`")
    files = 0
    for kept in sorted(RESULTS.iterdir()):
        shutil.copytree(kept, place := folder / kept.name)
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            before, files = path.read_bytes(), files + 1
            for _ in range(number):
                at = rng.randrange(len(before))
                path.write_bytes(before[:at] + bytes([before[at] ^ rng.randrange(1, 256)]) + before[at + 1 :])
                report.trials += 1
                if (code := cli.main(["check", str(place), "-q"])) != DamagedError.exit_code:
                    report.found(f"{code}: byte {at} of {path.relative_to(folder)}")
            path.write_bytes(before)
        open_sealed(place)
        shutil.rmtree(place)
    report.note = f"{files} files in {len(list(RESULTS.iterdir()))} folders"
    return report


@trial("readings")
def readings(folder: Path, number: int, rng: random.Random) -> Report:
    """Read altered folders without a seal: commands must succeed, or print one line and give an exit code other than 70."""
    report = Report("G9", "altered folders without a seal, through every command that reads them")
    kinds = folders(folder)
    verbs: dict[str, list[Callable[[Path], list[str]]]] = {
        "run": [lambda p: ["report", str(p), "-o", "x.html"], lambda p: ["check", str(p)]],
        "sweep": [lambda p: ["sweep", "--table", str(p)], lambda p: ["check", str(p)]],
    }
    about: list[Callable[[Path], list[str]]] = [
        lambda p: ["claims", str(p)],
        lambda p: ["report", str(p), "-o", "x.html"],
    ]
    codes: dict[int, int] = {}
    for _ in range(number):
        name = rng.choice(list(kinds))
        path = rng.choice([one for one in _named(kinds[name]) if one.name != SEAL and one.stat().st_size < 200_000])
        before, seal = path.read_bytes(), (kinds[name] / SEAL).read_bytes()
        data = (altered_field(before, rng) if rng.random() < 0.7 else None) or altered(before, rng)
        (kinds[name] / SEAL).unlink()
        path.write_bytes(data)
        words = rng.choice(verbs.get(name, about))(kinds[name])
        code = cli.main([*words, "-q"])
        report.trials += 1
        codes[code] = codes.get(code, 0) + 1
        if code == 70:
            report.found(f"{words[0]} {name}: {path.relative_to(kinds[name])}")
        path.write_bytes(before)
        (kinds[name] / SEAL).write_bytes(seal)
    report.note = "exit codes " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    return report
