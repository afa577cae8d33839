"""Trials of commands that write: killed at any time or disk operation, or stopped by a disk error, then run again."""

import contextlib
import errno
import hashlib
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sandbox
import sweeps_crash
from folder_trials import TINY
from hmmscope.errors import RefusedError, ResourceError
from hmmscope.lab import cli
from hmmscope.lab.tasks import local
from hmmscope.storage import disk
from rundir_cases import OPERATIONS, leftovers
from training_crash import fork, wait
from trials import Report, trial

SHORT_STUDY = [
    "--states",
    "1,2",
    "--restarts",
    "1",
    "--iterations",
    "2",
    "--networks",
    "rnn",
    "--max_steps",
    "2",
    "--order",
    "1",
]
#: Arguments of each command, in a folder with `text.txt`, a finished `run` and a finished `theorem`; it writes into `out`.
VERBS = {
    "train": ["train", "umbrella", *TINY, "--training.checkpoint_every", "1", "--out", "out/run", "--resume"],
    "sweep": ["sweep", "--vary", "training.learning_rate=1e-3,3e-3", "--jobs", "2", *TINY, "--out", "out/sweep"],
    "run": ["run", "multitask-theorem2", "--scale", "smoke", "--out", "out/run", "--resume"],
    "report": ["report", "run", "theorem", "--out", "out/page.html"],
    "figures": ["report", "theorem", "--style", "web", "--figures", "out/figures"],
    "claims": ["claims", "theorem", "--out", "out/ledger.json"],
    "fit": ["fit", "text.txt", "--states", "2", "--restarts", "1", "--iterations", "2", "--out", "out/hmm.json"],
    "export": ["analyse", "run", "--export", "out/model"],
    "sample": ["sample", "umbrella", "-n", "3", "--length", "5", "--out", "out/x.safetensors"],
    "oracle": ["infer", "letters-hmm", "text.txt", "--out", "out/beliefs.jsonl"],
    "study": ["study", "text.txt", *SHORT_STUDY, "--out", "out/study", "--resume"],
    "look": ["look", "run", "--out", "out/live.html"],
    "facts": ["infer", "umbrella", "--out", "out/facts.json"],
    "benchmark": ["benchmark", "rnn", "--tasks", "parity,told", "--steps", "2", "--out", "out/entry", "--resume"],
}
_CODES = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES)
Fault = Callable[[], None]


class Verb:
    """A command in its own folder; it runs in forked children that need no imports.

    Args:
        folder: Folder of its inputs.
        name: Key of `VERBS`.

    Attributes:
        operations: Number of disk operations of a complete call.
        seconds: Processor time of a complete call.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._out = folder / "out"
        self._whole = self._made()
        again = self._made()
        #: Files that are equal in two calls; others contain times. Logs are left out, because they record errors, and so
        #: are files with rounded times: a benchmark's card as text (its scores are in other files) and costs of a run.
        alike = {file for file in self._whole if again.get(file) == self._whole[file]}
        self._alike = {file for file in alike if not file.endswith((".log", "card.txt", "timing/facts.json"))}
        assert self._alike, name

    def _made(self) -> dict[str, str]:
        self.clear()
        read, write = os.pipe()

        def counted() -> None:
            count = [0]
            every_operation(lambda: count.__setitem__(0, count[0] + 1))
            code = self._call()
            os.write(write, f"{count[0]} {os.times().user + os.times().system}".encode())
            os._exit(code)

        code = wait(fork(counted))
        assert code == 0, (self.name, code, self.said())
        operations, seconds = os.read(read, 100).split()
        self.operations, self.seconds = int(operations), float(seconds)
        os.close(read)
        os.close(write)
        return self._files()

    def clear(self) -> None:
        shutil.rmtree(self._out, ignore_errors=True)
        self._out.mkdir()

    def said(self) -> str:
        """Return the end of its standard error."""
        return (self.folder / "stderr").read_text()[-300:]

    def _call(self) -> int:
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(self.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        os.chdir(self.folder)
        if self.name == "sweep":
            local.subprocess.Popen = sweeps_crash.Forked  # type: ignore[misc, assignment]
        try:
            return cli.main([*VERBS[self.name], *["-q"] * (self.name != "facts")])
        except SystemExit as ended:
            return int(ended.code or 0)

    def end(self, fault: Fault) -> int:
        """Run the command with a fault and return its exit code."""

        def work() -> int:
            fault()
            return self._call()

        return wait(fork(work))

    def again(self, first: int) -> str | None:
        """Run the command again to its end; return a description of the failure, or None."""
        code = wait(fork(self._call))
        if self.name == "sweep":  # alone now, so it removes leftovers of killed workers
            code = wait(fork(self._call))
        if code not in (0, RefusedError.exit_code) or (code and not self._out_is_there()):
            return f"ended with {first}, then with {code}: {self.said()}"
        found = self._files()
        if wrong := [file for file in self._alike if found.get(file) != self._whole[file]]:
            return f"ended with {first}, then {wrong[0]} differs"
        return f"left {left[0].name}" if (left := leftovers(self._out)) else None

    def _out_is_there(self) -> bool:
        return any(self._out.iterdir())

    def _files(self) -> dict[str, str]:
        paths = sorted(path for path in self._out.rglob("*") if path.is_file())
        return {str(path.relative_to(self._out)): hashlib.sha256(without_times(path)).hexdigest() for path in paths}


def without_times(path: Path) -> bytes:
    """Return the contents of a file; of a page without the rounded seconds of each part, which are sorted by size."""
    return re.sub(rb"<dd>[^<]* by the clock</dd>", b"", path.read_bytes())


def every_operation(act: Fault) -> None:
    """Call `act` before each disk operation of this process."""

    def hooked(real: Callable) -> Callable:
        def operation(*args: Any) -> Any:
            act()
            return real(*args)

        return operation

    for name in OPERATIONS:
        setattr(disk, name, hooked(getattr(disk, name)))


def at_operation(number: int, act: Fault, *, lasting: bool = False) -> None:
    """Call `act` before the disk operation with this number; if `lasting`, also before all later ones."""
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == -1 or (lasting and left < 0):
            act()

    every_operation(count)


def prepared(folder: Path, names: list[str]) -> list[Verb]:
    """Make the inputs of all commands and run each command once completely."""
    with contextlib.chdir(folder):
        decoder = ["--model.name", "decoder", "--model.width", "8", "--model.num_layers", "1", "--model.num_heads", "2"]
        short = TINY[: TINY.index("--model.name")]
        for words in (
            ["sample", "letters-hmm", "-n", "30", "--length", "9", "--out", "text.txt"],
            ["train", "umbrella", *short, *decoder, "--out", "run"],
            ["run", "multitask-theorem2", "--scale", "smoke", "--out", "theorem"],
        ):
            assert cli.main([*words, "-q"]) == 0, words
    verbs = []
    for name in names:
        place = folder / f"of-{name}"
        place.mkdir()
        shutil.copyfile(folder / "text.txt", place / "text.txt")
        for given in ("run", "theorem"):
            shutil.copytree(folder / given, place / given)
        verbs.append(Verb(place, name))
    return verbs


@trial("verb-kills")
def verb_kills(folder: Path, number: int, rng: random.Random) -> Report:
    """Kill each command before a random disk operation or after a random processor time, then run it again."""
    report = Report(
        "G1", "every command that writes, killed at a random disk operation or processor time, then run again"
    )
    return _killed(folder, number, rng, report, list(VERBS))


#: Commands that take long; a second call resumes or repeats unfinished work.
LONG = ["train", "sweep", "run", "study", "look", "fit", "benchmark"]


@trial("long-kills")
def long_kills(folder: Path, number: int, rng: random.Random) -> Report:
    """Kill the commands that take long in the same way: the bytes must be equal at the end."""
    report = Report(
        "G3",
        "each command that takes long, killed at a random disk operation or processor time, then run again: bytes of files",
    )
    return _killed(folder, number, rng, report, LONG)


def _killed(folder: Path, number: int, rng: random.Random, report: Report, names: list[str]) -> Report:
    struck: dict[str, int] = {}
    for at, verb in enumerate(_turns(folder, number, names)):
        verb.clear()
        when = rng.randrange(verb.operations)
        seconds = rng.uniform(0.01, verb.seconds)

        def fault(at: int = at, when: int = when, seconds: float = seconds) -> None:
            if at // len(names) % 2:
                at_operation(when, lambda: os.kill(os.getpid(), signal.SIGKILL))
            else:
                signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF has no handler and kills the process

        code = verb.end(fault)
        report.trials += code < 0 or verb.name == "sweep"  # in a sweep, a worker may have been killed
        struck[verb.name] = struck.get(verb.name, 0) + (code < 0)
        if code > 0 and verb.name != "sweep":
            report.found(f"{verb.name}: {code}: {verb.said()}")
        elif wrong := verb.again(code):
            report.found(f"{verb.name}: {wrong}")
    report.note = ", ".join(f"{count} {name}" for name, count in struck.items())
    return report


@trial("verb-errors")
def verb_errors(folder: Path, number: int, rng: random.Random) -> Report:
    """Let a random disk operation (or all from there on) of a command fail: one line, exit 5, and success when run again."""
    report = Report("G7", "every command that writes, with an error at a random disk operation, then run again")
    codes: dict[int, int] = {}
    for verb in _turns(folder, number):
        verb.clear()
        when, code, lasting = rng.randrange(verb.operations), rng.choice(_CODES), rng.random() < 0.5

        def fail(code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        ended = verb.end(lambda when=when, fail=fail, lasting=lasting: at_operation(when, fail, lasting=lasting))  # type: ignore[misc]
        report.trials += 1
        codes[ended] = codes.get(ended, 0) + 1
        what = f"{verb.name}: {errno.errorcode[code]} at {when} of {verb.operations}"
        if ended not in (0, ResourceError.exit_code) or "Traceback" in verb.said():
            report.found(f"{what}: {ended}: {verb.said()}")
        elif wrong := verb.again(ended):
            report.found(f"{what}: {wrong}")
    report.note = "exit codes " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    return report


@trial("mounts")
def mounts(folder: Path, number: int, rng: random.Random) -> Report:
    """Run each command on a read-only file system or with few bytes or inodes left; then again with enough space."""
    report = Report(
        "G7",
        "every command that writes, on a file system that is read-only or has few bytes or inodes left, then with space",
    )
    codes: dict[int, int] = {}
    kinds: dict[str, int] = {}
    place, filler = sandbox.FULL / "out", sandbox.FULL / "filler"
    for verb in _turns(folder, number):
        real = verb.folder / "out"
        shutil.rmtree(real)
        read_only, no_inode = rng.random() < 0.2, rng.random() < 0.4
        free = rng.choice((0, 4096, rng.randrange(512 << 10)))
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        if no_inode:
            free %= 40
            filler.mkdir()
            for name in range(os.statvfs(sandbox.FULL).f_favail - free):
                (filler / str(name)).touch()
        else:
            filler.write_bytes(bytes(max(0, shutil.disk_usage(sandbox.FULL).free - free)))
        real.symlink_to(sandbox.READ_ONLY if read_only else place)
        ended = verb.end(lambda: None)
        report.trials += 1
        codes[ended] = codes.get(ended, 0) + 1
        shutil.rmtree(filler) if no_inode else filler.unlink()
        kind = "read-only" if read_only else "inodes" if no_inode else "bytes"
        kinds[kind] = kinds.get(kind, 0) + 1
        what = f"{verb.name}: {'read-only' if read_only else f'{free} {kind} free'}"
        if ended not in (0, ResourceError.exit_code) or "Traceback" in verb.said() or (read_only and not ended):
            report.found(f"{what}: {ended}: {verb.said()}")
        elif not read_only and (wrong := verb.again(ended)):
            report.found(f"{what}: {wrong}")
        real.unlink()
        real.mkdir()
    report.note = "exit codes " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    report.note += "; out of " + ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items()))
    return report


def _turns(folder: Path, number: int, names: list[str] | None = None) -> list[Verb]:
    verbs = prepared(folder, names or list(VERBS))
    return [verbs[at % len(verbs)] for at in range(number)]
