"""Trials of every command-line option with boundary values of its type."""

import argparse
import contextlib
import dataclasses
import io
import random
from pathlib import Path

from folder_trials import RESULTS, TINY
from hmmscope.lab import cli
from hmmscope.training.spec import TrainingSpec
from trials import Report, bounded, trial
from typed_trials import TEXTS

#: Arguments with which each command is short, by command.
VERBS: dict[str, list[str]] = {
    "show": ["umbrella"],
    "sample": ["umbrella", "-n", "2", "--length", "4"],
    "infer": ["letters-hmm", "text.txt"],
    "fit": ["text.txt", "--states", "2", "--restarts", "1", "--iterations", "2", "--out", "x.json"],
    "train": ["umbrella", "--dry-run"],
    "sweep": ["umbrella", "--vary", "training.num_steps=1,2", "--dry-run"],
    "study": ["text.txt", "--dry-run"],
    "run": ["limits-fig6", "--scale", "smoke", "--dry-run"],
    "claims": ["kept"],
    "report": ["kept", "-o", "x.html"],
    "check": ["kept"],
    "analyse": ["run", "curves"],
    "look": ["run", "-o", "x.html"],
    "benchmark": ["--leaderboard", "cards"],
}
_SIZES = [
    "0",
    "1",
    "2",
    "3",
    "-1",
    "8",
    "64",
    "2147483648",
    "9223372036854775808",
    "1" + "0" * 30,
    "1.5",
    "nan",
    "",
    "٣",
    "1_0",
]


def options_of(verb: str) -> list[argparse.Action]:
    """Return the options and positional arguments of a command from its parser."""
    parsers = next(one for one in cli.build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return [one for one in parsers.choices[verb]._actions if one.dest not in ("help", "quiet")]


def given(action: argparse.Action, rng: random.Random) -> list[str]:
    """Return an option with boundary values of its type."""
    if action.nargs == 0:
        return [action.option_strings[-1]]
    if action.choices and rng.random() < 0.5:
        return [action.option_strings[-1], rng.choice(sorted(action.choices))] if action.option_strings else []
    pool = [*_SIZES, *(one for one in TEXTS if one != "\ud800" and len(one) < 1000)]
    values = _SIZES if action.type in (int, float) and rng.random() < 0.9 else pool
    several = 1 if action.nargs is None else rng.randrange(3)
    words = [rng.choice(values) for _ in range(several)]
    return [action.option_strings[-1], *words] if action.option_strings else words


def run_line(words: list[str], what: str, report: Report, said: io.StringIO, codes: dict[int, int]) -> int:
    """Run a command line, count its exit code, and report a traceback or more than one line of error."""
    code = 0
    with bounded(report, what):
        try:
            code = cli.main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        except Exception as error:
            code = 70
            said.write(f"{type(error).__name__}: {error}")
        codes[code] = codes.get(code, 0) + 1
        lines = [line for line in said.getvalue().splitlines() if line.startswith("error")]
        if code == 70 or "Traceback" in said.getvalue():
            report.found(f"{what}: {said.getvalue()[-200:]}")
        elif code and (len(lines) != 1 or len(lines[0]) > 412):
            report.found(f"{what}: {code}: {len(lines)} lines of errors")
    return code


@trial("options")
def options(folder: Path, number: int, rng: random.Random) -> Report:
    """Run commands with random options: each must succeed, or print one line and give an exit code, in bounded time."""
    report = Report("G32", "every option and field on the command line, with boundary values of its type")
    place = folder / "room"
    place.mkdir()
    fields = {name: [one.name for one in dataclasses.fields(TrainingSpec)] for name in ("train", "sweep", "run")}
    codes: dict[int, int] = {}
    said = io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert cli.main(["sample", "letters-hmm", "-n", "40", "--length", "12", "--out", "text.txt", "-q"]) == 0
        assert cli.main(["train", "umbrella", *TINY, "--out", "run", "-q"]) == 0
        Path("kept").symlink_to(RESULTS / "limits-table1")
        entry = ["benchmark", "rnn", "--tasks", "parity", "--steps", "1", "--out", "cards/entry", "-q"]
        assert cli.main(entry) == 0
        for verb, words in VERBS.items():  # once, so that no compilation is timed
            assert cli.main([verb, *words]) in (0, 4, 5), verb
            for made in place.glob("x*"):
                made.unlink()
        for _ in range(number):
            verb = rng.choice(sorted(VERBS))
            words = list(VERBS[verb])
            for _ in range(rng.randrange(1, 3)):
                if verb in fields and rng.random() < 0.5:
                    words += [
                        f"--training.{rng.choice(fields[verb])}",
                        rng.choice([*_SIZES, *TEXTS[:3], "true", "auto"]),
                    ]
                elif found := options_of(verb):
                    words += given(rng.choice(found), rng)
            said.seek(0)
            said.truncate()
            report.trials += 1
            what = f"{verb} {' '.join(words)[:150]!r}"
            run_line([verb, *words], what, report, said, codes)
            for made in place.glob("x*"):
                if made.is_file():
                    made.unlink()
    report.note = "exit codes " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    return report
