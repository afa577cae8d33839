"""Trials of public functions with random arguments, and of command lines generated from the parsers."""

import argparse
import contextlib
import inspect
import io
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hmmscope as hs
from folder_trials import TINY
from hmmscope import registry
from hmmscope.errors import HmmscopeError
from hmmscope.lab import cli
from option_trials import VERBS, options_of, run_line
from trials import Report, bounded, place_of, trial
from typed_trials import FLOATS, INTS, TEXTS, scalar

#: Functions that train or write if their arguments are valid; every drawn call gets a wrong argument.
_LONG = {"train", "study", "look", "fit"}
#: Arguments appended to commands that could take long, to keep them short.
_BRIEF = {
    **{verb: ["--dry-run"] for verb in ("run", "study", "train", "sweep")},
    "fit": ["--restarts", "1", "--iterations", "2"],
    "benchmark": ["none"],
}
#: Options that start long computations; they are not drawn.
_LASTING = {"--measure", "--compile"}
_TEN_MEGABYTES = 10 * 2**20


def function_names() -> list[str]:
    return [name for name in hs.__all__ if inspect.isfunction(getattr(hs, name))]


class Values:
    """Random values for parameters: of the annotated type, or wrong ones of any type and shape."""

    def __init__(self, rng: random.Random, place: Path) -> None:
        self.rng, self.place = rng, place
        self.hmm = hs.make_process("random-hmm", num_states=3, num_symbols=3)
        self.pool = hs.make_process("mess3-mixture", num_components=3)
        self.dataset = hs.ProcessDataset(self.hmm, length=8)
        self.model = hs.make_model("rnn", num_symbols=3, vocab_size=4, width=8)
        self.run = hs.load_run(place / "run")

    def right(self, name: str, annotation: str) -> Any:
        """Return a value of the annotated type; for unknown annotations one from `scalar`."""
        rng = self.rng
        named: dict[str, Callable[[], Any]] = {
            "observations": self.sequences,
            "observed": self.sequences,
            "source": lambda: rng.choice([self.hmm, "umbrella", "text.txt", self.sequences()]),
            "out": lambda: "made",
            "path": lambda: rng.choice(["run", self.place / "run"]),
            "process": lambda: rng.choice([self.hmm, self.pool, "umbrella", "mess3", "even"]),
            "hmm": lambda: rng.choice([self.hmm, "umbrella", "rrxor"]),
            "mixture": lambda: self.pool,
            "dataset": lambda: self.dataset,
            "model": lambda: self.model,
            "run": lambda: self.run,
            "batch": lambda: self.dataset[0:4],
            "tokens": lambda: self.dataset[0:4].tokens,
        }
        if name in named:
            return named[name]()
        kinds: list[tuple[str, Callable[[], Any]]] = [
            ("bool", lambda: rng.random() < 0.5),
            ("int", lambda: rng.choice([0, 1, 2, 3, 4, 8])),
            ("float", lambda: rng.choice([0.0, 0.1, 0.5, 1.0])),
            ("str", lambda: rng.choice(["rnn", "umbrella", "observation", "belief", "auto", "mess3"])),
            ("Sequence", lambda: [rng.choice([0, 1, 2]) for _ in range(3)]),
            ("Mapping", dict),
        ]
        fitting = [make for kind, make in kinds if kind in annotation]
        return rng.choice(fitting)() if fitting else scalar(rng)

    def sequences(self) -> Any:
        rows = self.dataset[0:4].observations
        return self.rng.choice([rows, rows.numpy(), rows.tolist(), rows[0], hs.SequenceData(rows.tolist())])

    def wrong(self) -> Any:
        """Return an invalid or extreme value: of another type, empty, ragged, huge, negative or not a number."""
        rng = self.rng
        draws: list[Callable[[], Any]] = [
            lambda: scalar(rng),
            lambda: rng.choice(INTS),
            lambda: rng.choice(FLOATS),
            lambda: rng.choice(TEXTS),
            lambda: rng.choice([[], (), {}, set(), b"", [[]], [[1], [1, 2]], [None], ["a", 1], {"a": [1]}, [[[0]]]]),
            lambda: [scalar(rng) for _ in range(rng.randrange(4))],
            lambda: np.full((2, 3), rng.choice(FLOATS)),
            lambda: rng.choice([np.zeros((0, 3), int), np.array(3), np.array(["a"]), np.zeros((2, 2), complex)]),
            lambda: np.array([[1, 2], [3, rng.choice([-1, 2**40, 7])]]),
            lambda: torch.full((2, 3), rng.choice([float("nan"), float("inf"), -1.0, 0.5])),
            lambda: rng.choice([torch.zeros(0, 2), torch.tensor(1), torch.zeros(2, 2, dtype=torch.bool)]),
            lambda: rng.choice([object(), int, len, lambda: 1, Path("none"), self.place, 1j, range(3), iter([1])]),
            lambda: rng.choice([self.hmm, self.dataset, self.model, self.pool, self.run]),
        ]
        return rng.choice(draws)()


def _ended(report: Report, what: str, act: Callable[[], Any]) -> bool:
    """Call `act` and return whether it was refused; another exception, or a message of several lines, is a violation."""
    try:
        act()
    except HmmscopeError as error:
        if not 0 < len(str(error)) <= 2000 or "\n" in str(error):
            report.found(f"{what}: {len(str(error))} characters, {str(error).count(chr(10)) + 1} lines")
        return True
    except Exception as error:
        report.found(f"{what}: {type(error).__name__}: {str(error)[:90]} at {place_of(error)}")
    return False


@contextlib.contextmanager
def _room(folder: Path) -> Iterator[Path]:
    """Make a folder with a run, a text file of sequences and a file of ten megabytes, and change into it."""
    place = folder / "room"
    place.mkdir(parents=True)
    said = io.StringIO()
    with contextlib.chdir(place), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert cli.main(["sample", "letters-hmm", "-n", "40", "--length", "12", "--out", "text.txt", "-q"]) == 0
        assert cli.main(["train", "umbrella", *TINY, "--out", "run", "-q"]) == 0
        with (place / "large.txt").open("w") as file:
            file.writelines(["abcdefghij" * 100 + "\n"] * (_TEN_MEGABYTES // 1001))
        yield place


def _listing(place: Path) -> set[tuple[str, int]]:
    return {(path.relative_to(place).as_posix(), path.stat().st_size) for path in place.rglob("*") if path.is_file()}


def _clear(place: Path, kept: set[tuple[str, int]]) -> None:
    names = {name.partition("/")[0] for name, _ in kept}
    for made in place.iterdir():
        if made.name not in names:
            shutil.rmtree(made) if made.is_dir() else made.unlink()


def _short(value: Any) -> str:
    shown = repr(value) if isinstance(value, int | float | str | list | tuple | dict | None) else type(value).__name__
    return shown[:40]


@trial("calls")
def calls(folder: Path, number: int, rng: random.Random) -> Report:
    """Call public functions with random arguments: each returns or raises a one-line error in time; errors write nothing."""
    report = Report("G32", "public functions with arguments of right and wrong types")
    refused = 0
    with _room(folder) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values, kept, names = Values(rng, place), _listing(place), function_names()
        for name in (name for name in names for _ in range(8)):  # so that no compilation is timed
            with contextlib.suppress(Exception):
                getattr(hs, name)(**_arguments(name, values, rng, wrong=name in _LONG))
        _clear(place, kept)
        for _ in range(number):
            name = rng.choice(names)
            given = _arguments(name, values, rng)
            what = f"{name}({', '.join(f'{key}={_short(value)}' for key, value in given.items())[:170]})"
            report.trials += 1
            no = False
            with bounded(report, what):
                no = _ended(report, what, partial(getattr(hs, name), **given))
            refused += no
            if (now := _listing(place)) != kept:
                if no:
                    report.found(f"{what}: refused, and wrote {sorted(now - kept)[:2]}")
                _clear(place, kept)
                kept = _listing(place)  # successful calls may add files to a run
    report.note = f"{refused} refused in one line, the others returned"
    return report


def _arguments(name: str, values: Values, rng: random.Random, *, wrong: bool = True) -> dict[str, Any]:
    """Return arguments of a public function by their annotations; if `wrong`, mostly one to three of them are invalid."""
    ours = [
        one
        for one in inspect.signature(getattr(hs, name)).parameters.values()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    given = {
        one.name: values.right(one.name, str(one.annotation))
        for one in ours
        if one.default is one.empty or rng.random() < 0.3
    }
    some = rng.sample(ours, min(len(ours), rng.randrange(1, 4))) if wrong else []
    if name not in _LONG and rng.random() < 0.3:
        some = []
    for one in some:
        given[one.name] = values.wrong()
    if name in _LONG:
        while isinstance(first := values.wrong(), hs.Process | hs.ProcessDataset):  # would train or fit for long
            continue
        given[ours[0].name] = first
        given |= {"out": "made"} if "out" in {one.name for one in ours} else {}
    return given


@trial("grammars")
def grammars(folder: Path, number: int, rng: random.Random) -> Report:
    """Run generated command lines: each must give a documented exit code and one line, and write nothing if refused."""
    report = Report("G32", "command lines generated from the parsers")
    codes: dict[int, int] = {}
    said = io.StringIO()
    with _room(folder) as place, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        kept, parsers = _listing(place), _parsers()
        for verb in parsers:  # once, so that no compilation is timed
            with contextlib.suppress(SystemExit):
                cli.main([verb, "umbrella", "--dry-run"])
        _clear(place, kept)
        for _ in range(number):
            words = _sentence(rng, parsers)
            report.trials += 1
            what = " ".join(words)[:200]
            said.seek(0)
            said.truncate()
            code = run_line(words, what, report, said, codes)
            if (now := _listing(place)) != kept:
                if code in (2, 3):
                    report.found(f"{what}: refused with {code}, and wrote {sorted(now - kept)[:2]}")
                _clear(place, kept)
                kept = _listing(place)  # successful calls may add files to a run
    report.note = "exit codes " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    return report


def _parsers() -> dict[str, list[argparse.Action]]:
    found = next(one for one in cli.build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    return {verb: options_of(verb) for verb in found.choices}


def _sentence(rng: random.Random, parsers: dict[str, list[argparse.Action]]) -> list[str]:
    """Return a command, its arguments, and up to four of its options, with valid, boundary or arbitrary values."""
    verb = rng.choice(sorted(parsers))
    known = verb in VERBS and rng.random() < 0.5  # a valid command line, to which options are added
    actions, words = parsers[verb], [verb, *(VERBS[verb] if known else [])]
    for action in (one for one in actions if not known and not one.option_strings):
        count = rng.choice([0, 1, 1, 1, 2]) if action.nargs in ("*", "+") else 1
        words += [_word(action, rng) for _ in range(count)]
    options = [one for one in actions if one.option_strings and not _LASTING & set(one.option_strings)]
    for action in rng.sample(options, min(len(options), rng.randrange(5))):
        words.append(rng.choice(action.option_strings))
        if action.nargs != 0:
            words.append(_word(action, rng))
    if rng.random() < 0.1:
        words.insert(rng.randrange(1, len(words) + 1), rng.choice(["--", "-q", "--debug=1", "--none", "-", ""]))
    if rng.random() < 0.2:
        words += [f"--{rng.choice(['training', 'model', 'process', 'layout'])}.{rng.choice(['width', 'length', 'x'])}"]
        words += [_value(rng)]
    return [*words, *_BRIEF.get(verb, [])]


def _word(action: argparse.Action, rng: random.Random) -> str:
    if action.choices and rng.random() < 0.7:
        return str(rng.choice(sorted(map(str, action.choices))))
    if action.type in (int, float) and rng.random() < 0.8:
        return str(rng.choice([*INTS, *FLOATS]))
    return _value(rng)


def _value(rng: random.Random) -> str:
    things = ["umbrella", "text.txt", "large.txt", "run", "run/config.json", "none", "made", "x.html", "x.json", "rnn"]
    texts = [one for one in TEXTS if one != "\ud800" and len(one) < 1000]
    kinds = [*registry.entries("process")][:20]
    return str(
        rng.choice([rng.choice(things), rng.choice(things), rng.choice(texts), rng.choice(INTS), rng.choice(kinds)])
    )
