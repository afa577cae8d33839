"""Trials with untrusted input: configurations, corrupt files, HTML in text, random command lines, and oversized requests."""

import contextlib
import importlib
import io
import json
import random
import re
import resource
import shutil
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import sandbox
import test_supply_chain as supply
from config_cases import fuzzed
from folder_trials import altered, altered_field
from hmmscope import registry
from hmmscope.errors import HmmscopeError, InputError
from hmmscope.lab import cli
from hmmscope.lab.report import page
from hmmscope.lab.sweeps.grid import load_points, read_grid
from hmmscope.processes.files import load_process
from hmmscope.runs.config import config_from_data, load_config
from hmmscope.sequences.data import SequenceData
from hmmscope.storage import store
from hmmscope.storage.journal import read_journal
from hmmscope.storage.seals import read_seal
from hmmscope.text import visible
from report_cases import HOSTILE, Tree, hostile_folder
from trials import Report, trial

#: Longest time of an attempt, in seconds, and largest growth of memory in a trial, in bytes.
_LONGEST, _MEMORY = 5, 200 << 20
#: Largest number of required packages.
_MOST_REQUIRED = 6
_FIELD = re.compile(r"[^:\s].*: ")


@trial("configurations")
def configurations(folder: Path, number: int, rng: random.Random) -> Report:
    """Parse configurations with random errors: each must be accepted, or refused in one line that names the field."""
    report = Report("G8", "configurations with wrong keys, types, numbers and strings")
    accepted, slowest = 0, 0.0
    for _ in range(number):
        data, overrides = fuzzed(rng)
        report.trials += 1
        begun = time.process_time()
        try:
            config = config_from_data(data, overrides)
            accepted += 1
            if config_from_data(json.loads(json.dumps(config.to_data()))) != config:
                report.found("accepted, but differs after it is written and read")
        except InputError as error:
            line = str(error)
            if not line.isprintable() or len(line) > 900 or not _FIELD.match(line):
                report.found(f"no field is named: {line}")
        except Exception as error:
            report.found(f"{type(error).__name__}: {error}")
        slowest = max(slowest, time.process_time() - begun)
    report.note = f"{accepted} accepted; the slowest took {1000 * slowest:.0f} ms"
    return report


_READERS: dict[str, list[Any]] = {
    ".json": [store.read_json, load_process, read_seal],
    ".jsonl": [lambda p: store.read_table(p, managed=False), read_journal, SequenceData],
    ".safetensors": [store.read_tensors, load_process, SequenceData],
    ".npz": [load_process, SequenceData],
    ".npy": [SequenceData],
    ".yaml": [load_config, read_grid],
    ".txt": [SequenceData],
    ".fasta": [SequenceData],
    ".csv": [SequenceData],
    "grid": [lambda p: load_points(p.parent)],
}


def seeds(place: Path) -> dict[str, list[bytes]]:
    """Return the bytes of valid files by suffix, to be corrupted."""
    place.mkdir()
    made: dict[str, list[bytes]] = {}
    for ending in (".json", ".npz", ".safetensors"):
        load_process("letters-hmm").save(place / f"hmm{ending}")
    for ending in (".txt", ".jsonl", ".npz", ".safetensors"):
        assert (
            cli.main(["sample", "letters-hmm", "-n", "5", "--length", "9", "--out", str(place / f"x{ending}"), "-q"])
            == 0
        )
    (place / "c.yaml").write_text("process: {name: random-hmm, num_states: 3}\ntraining:\n  num_steps: 5\nseed: 1\n")
    (place / "g.yaml").write_text("base: limits-rnn\nvary:\n  model.width: [8, 16]\nseeds: 2\n")
    (place / "a.fasta").write_text(">one\nACGT\nAC\n>two\nGG\n")
    (place / "a.csv").write_text("group,observations\na,1\na,0\nb,2\n")
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }".ljust(127) + b"\n"
    (place / "a.npy").write_bytes(header + bytes(48))
    assert cli.main(["sweep", "--vary", "training.num_steps=1,2", "--dry-run"]) == 0
    for path in sorted(place.iterdir()):
        made.setdefault(path.suffix, []).append(path.read_bytes())
    made["grid"] = [
        b'{"format": "hmmscope-grid/1", "kind": "sweep", "points": [{"name": "a", "varied": {}, "config": {}}]}'
    ]
    shutil.rmtree(place)
    return made


class _HangError(BaseException):
    pass


def _ring(signum: int, frame: FrameType | None) -> None:
    raise _HangError


@trial("files")
def files(folder: Path, number: int, rng: random.Random) -> Report:
    """Read corrupt files: each is read or refused in one line, in bounded time and memory, and makes no other file."""
    report = Report("G9", "corrupt files of every format, through every reader")
    with contextlib.redirect_stdout(io.StringIO()):
        good = seeds(folder / "seeds")
    signal.signal(signal.SIGALRM, _ring)
    before, read, slowest = _memory(), 0, 0.0
    for _ in range(number):
        ending = rng.choice(list(_READERS))
        data = rng.choice(good[ending])
        for _ in range(rng.randrange(1, 4)):
            data = (altered_field(data, rng) if rng.random() < 0.3 else None) or altered(data, rng)
        path = folder / ("grid.json" if ending == "grid" else f"spoilt{ending}")
        path.write_bytes(data)
        report.trials += 1
        begun = time.monotonic()
        signal.alarm(_LONGEST)
        try:
            rng.choice(_READERS[ending])(path)
            read += 1
        except HmmscopeError as error:
            if not visible(str(error), keep="").isprintable():
                report.found(f"{ending}: {error!r}")
        except _HangError:
            report.found(f"{ending}: hangs: {data[:100]!r}")
        except Exception as error:
            report.found(f"{ending}: {type(error).__name__}: {error}: {data[:150]!r}")
        finally:
            signal.alarm(0)
        slowest = max(slowest, time.monotonic() - begun)
    grown = _memory() - before
    if grown > _MEMORY:
        report.found(f"{grown >> 20} MiB of memory")
    if {path.name for path in folder.iterdir()} - {f"spoilt{ending}" for ending in _READERS} - {"grid.json"}:
        report.found("reading made another file")
    report.note = f"{read} read, the others refused; slowest {slowest:.2f} s, memory grew by {max(0, grown) >> 20} MiB"
    return report


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_WORDS = [
    *("run", "train", "sweep", "sample", "ask", "fit", "study", "analyse", "claims", "report"),
    *("look", "check", "show", "--out", "--scale", "smoke", "--seeds", "-n", "--length"),
    *(
        "--training.num_steps",
        "--model.width",
        "--resume",
        "--dry-run",
        "--table",
        "--only_first",
        "--states",
        "--paths",
    ),
    *(
        "umbrella",
        "limits-rnn",
        "quickstart",
        "multitask-fig1",
        "0",
        "-1",
        "1e999",
        "nan",
        "",
        "\0",
        "../..",
        "/dev/zero",
    ),
    *(
        "/dev/null",
        "x.json",
        "x.html",
        "~",
        "\u202e",
        "\x1b[2J",
        "a" * 5000,
        "--",
        "-q",
        "--debug=1",
        "1,2",
        "9" * 400,
        "/",
    ),
]
#: Commands that may take long, or belong to other trials.
_LONG = {"run", "look", "study"}


@trial("commands")
def commands(folder: Path, number: int, rng: random.Random) -> Report:
    """Run random words as command lines: each must give a documented exit code and at most one line of error."""
    report = Report("G8", "random words on the command line")
    signal.signal(signal.SIGALRM, _ring)
    codes: dict[int, int] = {}
    for _ in range(number):
        words = [rng.choice(_WORDS) for _ in range(rng.randrange(1, 6))]
        if (_LONG | {"run", "train"}) & set(words):
            words = [rng.choice(_WORDS[12:]) for _ in words]
        error, out = io.StringIO(), io.StringIO()
        report.trials += 1
        signal.alarm(_LONGEST * 4)
        try:
            with contextlib.redirect_stderr(error), contextlib.redirect_stdout(out), contextlib.chdir(folder):
                code = cli.main(words)
        except _HangError:
            report.found(f"hangs: {words}")
            continue
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception as ended:
            report.found(f"{type(ended).__name__}: {ended}: {words}")
            continue
        finally:
            signal.alarm(0)
        codes[code] = codes.get(code, 0) + 1
        lines = [line for line in error.getvalue().splitlines() if line.startswith("error[")]
        if code in (1, 70) or "Traceback" in error.getvalue() or (code and code != 2 and len(lines) != 1):
            report.found(f"{code}: {words}: {error.getvalue()}")
    report.note = "exit codes " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    return report


@trial("pages")
def pages(folder: Path, number: int, rng: random.Random) -> Report:
    """Put HTML and scripts into every text of a report: the page must have the same elements as with plain text."""
    report = Report("G10", "HTML and scripts in every text field of a report: same page elements as with plain text")
    plain = Tree(_page_of(folder / "plain", "harmless"))
    for at in range(number):
        payload = HOSTILE[at] if at < len(HOSTILE) else rng.choice(HOSTILE) + rng.choice(HOSTILE)
        report.trials += 1
        try:
            tree = Tree(_page_of(folder / str(at), payload))
            if tree.tags != plain.tags or tree.scripts[2:] != plain.scripts[2:]:
                report.found(f"another element: {payload!r}")
        except Exception as error:
            report.found(f"{type(error).__name__}: {error}: {payload!r}")
        shutil.rmtree(folder / str(at))
    return report


def _page_of(path: Path, payload: str) -> str:
    out = path.parent / f"{path.name}.html"
    page.write_page([hostile_folder(path, payload)], out)
    text = out.read_text()
    out.unlink()
    return text


_OVERSIZE = [
    ["sample", "umbrella", "-n", "{}", "--length", "100000", "--out", "x.npz"],
    ["train", "random-hmm", "--out", "x", "--training.batch_size", "{}"],
    ["train", "random-hmm", "--out", "x", "--model.width", "{}", "--model.name", "rnn"],
    ["train", "random-hmm", "--out", "x", "--process.num_states", "{}"],
    ["train", "random-mixture", "--out", "x", "--process.num_components", "{}", "--process.num_states", "512"],
    ["infer", "umbrella", "--block-entropies", "{}"],
    ["run", "multitask-fig1", "--scale", "smoke", "--out", "x", "--measurements.samples", "{}"],
    ["sweep", "--vary", "training.learning_rate=1e-3,1e-2", "--training.batch_size", "{}", "--out", "x"],
]


@trial("sizes")
def sizes(folder: Path, number: int, rng: random.Random) -> Report:
    """Make oversized requests: each must be refused within a second, before anything is compiled, allocated or written."""
    report = Report("G22", "requests larger than any memory or disk, before kernels are compiled")
    for verb in ("infer", "run", "sample", "sweep", "train"):  # imported once
        importlib.import_module(f"hmmscope.lab.verbs.{verb}")
    registry.entries("experiment")
    shutil.rmtree(sandbox.ROOM / "numba")
    signal.signal(signal.SIGALRM, _ring)
    slowest, before = 0.0, _memory()
    for at in range(number):
        size = rng.choice((10**8, 10**9, 10**12, 2**31, 2**53))
        words = [word.format(size) for word in _OVERSIZE[at % len(_OVERSIZE)]]
        report.trials += 1
        begun = time.process_time()
        error = io.StringIO()
        signal.alarm(30)
        try:
            with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()), contextlib.chdir(folder):
                code = cli.main([*words, "-q"] if words[0] not in ("infer",) else words)
        except (_HangError, SystemExit):
            code = -1
        finally:
            signal.alarm(0)
        taken = time.process_time() - begun
        slowest = max(slowest, taken)
        if code not in (2, 5) or taken > 1.0 or list(folder.iterdir()):
            report.found(f"{code} after {taken:.2f} s: {' '.join(words)}: {error.getvalue()}")
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    grown = _memory() - before
    if grown > _MEMORY:
        report.found(f"{grown >> 20} MiB of memory")
    report.note = f"slowest {slowest:.2f} s of processor time, memory grew by {max(0, grown) >> 20} MiB"
    return report


@trial("packages")
def packages(folder: Path, number: int, rng: random.Random) -> Report:
    """Check the packages that the README's commands install: few are required, and each has a version and file digests."""
    report = Report("G25", "installed packages: one version each, and a SHA-256 digest of every file")
    found, required = supply.locked(supply.LOCKED), supply.names(supply.PROJECT["project"]["dependencies"])
    for name in list(found)[:number]:
        report.trials += 1
        if not found[name]:
            report.found(f"{name} has no digest")
    for name in sorted(required - found.keys() - {"torch"}):
        report.found(f"{name} is required and not locked")
    if len(required) > _MOST_REQUIRED:
        report.found(f"{len(required)} packages are required: {', '.join(sorted(required))}")
    report.note = f"{len(required)} are required; torch has a version and no digest, see constraints/README.md"
    return report
