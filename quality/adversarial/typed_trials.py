"""Trials with values of any type and structure in every field of files and in-memory sources."""

import contextlib
import copy
import io
import json
import random
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hmmscope as hs
from folder_trials import RESULTS, TINY, altered
from hmmscope import registry
from hmmscope.errors import HmmscopeError
from hmmscope.lab import cli
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.protocol import read_protocol
from hmmscope.lab.report.folder import read_experiment
from hmmscope.lab.study.run_study import StudySpec
from hmmscope.lab.sweeps.grid import load_points
from hmmscope.processes.files import load_process
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import read_run
from hmmscope.schema import parse_spec, spec_to_data
from hmmscope.sequences.data import SequenceData
from hmmscope.storage import packed, store
from hmmscope.storage.journal import read_journal
from hmmscope.training.spec import TrainingSpec
from trials import Report, bounded, place_of, trial

#: Longest error message of a function, in characters; the command line cuts messages to 400.
_LONGEST_LINE = 2000

INTS = [0, 1, -1, 2, 3, 7, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30]
FLOATS = [0.0, -0.0, 0.5, 1.0, 1e-12, -1.5, 2.5, 1e308, 5e-324, 2.0**53, float("nan"), float("inf"), -float("inf")]
TEXTS = [
    "",
    " ",
    "a",
    "b",
    "0",
    "1",
    "nan",
    "None",
    "NA",
    "-",
    "a\nb",
    "\t",
    "\0",
    "\ud800",
    "\u202e",
    "😀",
    "é",
    "e\u0301",
    "\ufeff",
]
TEXTS += [
    "x" * 300,
    "y" * 20_000,
    "../..",
    "/dev/null",
    "--help",
    "true",
    "1e999",
    "٣",
    "\\",
    '"',
    "<b>",
    "umbrella",
    "a,b",
    ".json",
]


def scalar(rng: random.Random) -> Any:
    """Return a scalar of any type, often a boundary value."""
    pool = rng.choice((INTS, FLOATS, TEXTS, [True, False, None]))
    return rng.choice(pool)


def like(value: Any, rng: random.Random) -> Any:
    """Return another value of the same type, often a boundary value; a container gets another length or shape."""
    if isinstance(value, bool) or value is None:
        return rng.choice([True, False, None])
    if isinstance(value, int):
        return rng.choice([*INTS, value + 1, -value])
    if isinstance(value, float):
        return rng.choice([*FLOATS, value + 1e-9, -value, value * 1e6])
    if isinstance(value, str):
        return rng.choice([*TEXTS, value + "x", value[:-1], value.upper(), value * 50])
    if isinstance(value, list):
        changes: list[Callable[[], list[Any]]] = [
            list,
            lambda: value[:-1],
            lambda: [*value, *value],
            lambda: [*value, scalar(rng)],
            lambda: [value],
            lambda: value[::-1],
            lambda: [*value[:1], value],
            lambda: [like(one, rng) for one in value[:50]],
        ]
        return rng.choice(changes)()
    if isinstance(value, dict):
        kept = dict(value)
        if kept and rng.random() < 0.5:
            kept.pop(rng.choice(list(kept)))
        if rng.random() < 0.5:
            kept[rng.choice(TEXTS)] = scalar(rng)
        return kept
    return scalar(rng)


def document(value: Any, rng: random.Random, changes: int = 3) -> Any:
    """Return a copy of a JSON document in which some nodes have another value, type or structure."""
    root = [copy.deepcopy(value)]
    for _ in range(rng.randrange(1, changes + 1)):
        places: list[tuple[Any, Any]] = [(root, 0)]

        def walk(node: Any, places: list[tuple[Any, Any]] = places) -> None:
            keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
            for key in list(keys)[:200]:
                places.append((node, key))
                walk(node[key])

        walk(root[0])
        node, key = rng.choice(places)
        draw = rng.random()
        if draw < 0.6:
            node[key] = like(node[key], rng)
        elif draw < 0.85:
            node[key] = rng.choice(
                [scalar(rng), [scalar(rng)], {rng.choice(TEXTS): scalar(rng)}, [[1], [1, 2]], [], {}]
            )
        elif isinstance(node, list) and len(node) > 1 and node is not root:
            del node[key]
        else:
            other, there = rng.choice(places)
            node[key] = copy.deepcopy(other[there])
    return root[0]


def array(rng: random.Random) -> np.ndarray:
    """Return an array of any type and shape with boundary values."""
    shape = rng.choice([(), (0,), (1,), (3,), (12,), (1, 1), (3, 0), (0, 3), (4, 3), (3, 4), (2, 2, 2), (1, 1, 0)])
    kind = rng.choice(
        ["<i8", "<i4", "<u1", "<u8", "<f8", "<f4", "<f2", "?", "<c16", "<U3", "S2", "<M8[s]", ">i4", "<i2"]
    )
    size = int(np.prod(shape))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind in ("<U3", "S2"):
            return np.array([rng.choice(["a", "b", "", "-1", "nan"]) for _ in range(size)], dtype=kind).reshape(shape)
        values = [rng.choice([0, 1, 2, 1, 0, -1, 127, 255, rng.random()]) for _ in range(size)]
        found = np.array(values, dtype="<f8").astype("<i8" if kind.startswith("<M") else kind)
        return found.astype(kind).reshape(shape)


def safetensors(arrays: dict[str, Any], metadata: Any, rng: random.Random) -> bytes:
    """Return a safetensors file with a changed header: other types, shapes, offsets or names."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, value in arrays.items():
        raw = np.ascontiguousarray(value).tobytes()
        kinds = {"<i8": "I64", "<f8": "F64", "<f4": "F32", "<i4": "I32", "<u1": "U8", "|u1": "U8"}
        kind = kinds.get(
            np.asarray(value).dtype.str, rng.choice(["BF16", "F16", "I16", "BOOL", "F8_E4M3", "U64", "C64"])
        )
        header[name] = {
            "dtype": kind,
            "shape": list(np.shape(value)),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    if rng.random() < 0.6:
        header = document(header, rng, 2)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# ---------------------------------------------------------------------------------------------------------------------
# Sources


class Attempts:
    """Attempts to read random input; each method returns a description and a function that reads it."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        folder.mkdir(parents=True, exist_ok=True)
        self._good: dict[str, list[Any]] = {"hmm": [], "tables": []}
        for name in ("umbrella", "letters-hmm"):
            load_process(name).save(folder / f"{name}.json")
            self._good["hmm"].append(json.loads((folder / f"{name}.json").read_bytes()))
        self._figures = [
            json.loads(path.read_bytes()) for path in sorted((RESULTS.parent).glob("small/*/figures/*.json"))[:8]
        ]
        self._findings = [
            one for path in sorted(RESULTS.glob("*/findings.json"))[:6] for one in json.loads(path.read_bytes())[:3]
        ]
        self._about = json.loads(next(RESULTS.glob("*/experiment.json")).read_bytes())
        self._kinds = [
            (kind, name) for kind in ("process", "layout", "model") for name in sorted(registry.entries(kind))
        ]
        self._run = folder / "run"
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli.main(["train", "umbrella", *TINY, "--out", str(self._run), "-q"]) == 0
            grid = ["sweep", "--vary", "training.num_steps=1,2", *TINY, "--dry-run"]
            assert cli.main(grid) == 0
        for name in ("seal.json", "added.json"):
            (self._run / name).unlink(missing_ok=True)
        (folder / "sweep").mkdir()
        config = json.loads((self._run / "config.json").read_bytes())
        self._grid = {
            "format": store.FORMATS["grid"],
            "kind": "sweep",
            "points": [{"name": "a", "varied": {"training.num_steps": 1}, "config": config}],
        }

    def file(self, ending: str, data: bytes) -> Path:
        path = self.folder / f"x{ending}"
        path.write_bytes(data)
        return path

    def json_file(self, value: Any, ending: str = ".json") -> Path:
        return self.file(ending, json.dumps(value).encode())

    # Each method below is an attempt: it returns a description and a function.

    def hmm_file(self) -> tuple[str, Callable[[], Any]]:
        path = self.json_file(document(self.rng.choice(self._good["hmm"]), self.rng))
        return "HMM, JSON", lambda: load_process(path)

    def hmm_arrays(self) -> tuple[str, Callable[[], Any]]:
        arrays: dict[str, Any] = {"initial": np.full(2, 0.5), "transition": np.full((2, 2), 0.5), "emission": np.eye(2)}
        for name in self.rng.sample(sorted(arrays), self.rng.randrange(3)):
            arrays[name] = array(self.rng)
        if self.rng.random() < 0.2:
            arrays[self.rng.choice(["title", "symbols", "x", "format", "version", "states"])] = array(self.rng)
        if self.rng.random() < 0.5:
            buffer = io.BytesIO()
            np.savez(buffer, **arrays)
            path = self.file(".npz", buffer.getvalue())
        else:
            path = self.file(
                ".safetensors", safetensors(arrays, self.rng.choice([None, {"a": "b"}, {"a": 1}]), self.rng)
            )
        return "HMM, arrays", lambda: load_process(path)

    def hmm_in_memory(self) -> tuple[str, Callable[[], Any]]:
        good: list[Any] = [[0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]]
        for place in self.rng.sample(range(3), self.rng.randrange(1, 3)):
            good[place] = self.rng.choice([document(good[place], self.rng), array(self.rng), torch.zeros(2, 2)])
        symbols = self.rng.choice([None, None, ["a", "b"], ["a", "a"], "ab", 3, [scalar(self.rng), scalar(self.rng)]])
        return "HMM, in memory", lambda: hs.HMM(*good, symbols=symbols)

    def reading_options(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        choices: dict[str, list[Any]] = {
            "unit": ["characters", "words", "numbers", "lines", scalar(self.rng)],
            "column": ["observations", "s", "tokens", scalar(self.rng)],
            "group": ["u", "s", scalar(self.rng)],
            "axis": [0, 1, scalar(self.rng)],
            "missing": ["NA", -1, float("nan"), [None], [], scalar(self.rng), [scalar(self.rng), scalar(self.rng)]],
            "lengths": [[3, 3], [2.5, 3.5], [-1, 7], ["3", "3"], [], scalar(self.rng), array(self.rng)],
            "symbols": [2, 3, ["a", "b", "c"], ["0", "1"], scalar(self.rng), [scalar(self.rng)] * 2],
            "seed": [0, scalar(self.rng)],
            "title": ["t", scalar(self.rng)],
        }
        for name in self.rng.sample(sorted(choices), self.rng.choice((0, 0, 1, 1, 2, 3))):
            given[name] = self.rng.choice(choices[name])
        return given

    def sequences_in_memory(self) -> tuple[str, Callable[[], Any]]:
        rows: list[Any] = [["a", "b", "c"], ["a", "b"]] if self.rng.random() < 0.5 else [[0, 1, 2], [1, 0, 1]]
        source = self.rng.choice(
            [
                document(rows, self.rng),
                array(self.rng),
                [array(self.rng), array(self.rng)],
                np.ma.masked_equal([[0, 1], [1, 0]], self.rng.choice([0, 1, 7])),
                Table({"s": document(rows[0], self.rng, 2), "u": document(rows[1], self.rng, 2)}),
                torch.tensor(self.rng.choice([[[0, 1]], [[0.5]], [[1 + 1j]], [], [[True]]])),
                scalar(self.rng),
            ]
        )
        options = self.reading_options()
        return "sequences, in memory", lambda: SequenceData(source, **options)

    def sequences_in_text(self) -> tuple[str, Callable[[], Any]]:
        words = [self.rng.choice([*TEXTS[:22], "0", "1", "a", "b"]) for _ in range(self.rng.randrange(30))]
        glue, between = self.rng.choice(
            [(" ", "\n"), ("", "\n"), ("\n", "\n\n"), (",", "\n"), ("\t", "\r\n"), (",", "\r")]
        )
        rows = [glue.join(words[at : at + 4]) for at in range(0, len(words), 4)]
        ending = self.rng.choice([".txt", ".csv", ".tsv", ".fa", ".fq", ".jsonl", ".json"])
        if ending == ".fa":
            rows = [line for row in rows for line in (self.rng.choice([">a", ">", ";", ""]), row)]
        elif ending == ".fq":
            rows = [line for row in rows for line in (self.rng.choice(["@a", "@", ""]), row, "+", "I" * len(row))]
        elif ending in (".csv", ".tsv"):
            rows = [self.rng.choice(["s,u", "s", "s,s", ",", '"s', "s;u"]), *rows]
        elif ending == ".jsonl":
            rows = [
                json.dumps(
                    {
                        self.rng.choice(["observations", "s", "u", *TEXTS]): document([["a"], "b", 1], self.rng)
                        for _ in range(self.rng.randrange(3))
                    }
                )
                for _ in range(self.rng.randrange(4))
            ]
        elif ending == ".json":
            rows = [json.dumps(document([["a", "b"], ["b"]], self.rng))]
        path = self.file(ending, between.join(rows).encode("utf-8", "surrogatepass"))
        options = self.reading_options()
        return f"sequences, {ending}", lambda: SequenceData(path, **options)

    def sequences_in_arrays(self) -> tuple[str, Callable[[], Any]]:
        header = {"format": "hmmscope-sequences", "version": 1, "num_symbols": 3, "symbols": ["a", "b", "c"]}
        changed = document(header, self.rng, 2) if self.rng.random() < 0.6 else header
        arrays: dict[str, Any] = {"tokens": np.array([0, 1, 2, 0, 1]), "lengths": np.array([3, 2])}
        for name in self.rng.sample(sorted(arrays), self.rng.randrange(3)):
            arrays[name] = array(self.rng)
        if self.rng.random() < 0.3:
            arrays[self.rng.choice(["observations", "x", "tokens2"])] = array(self.rng)
        if self.rng.random() < 0.5:
            buffer = io.BytesIO()
            np.savez(buffer, header=np.array(json.dumps(changed)), **arrays)
            path = self.file(".npz", buffer.getvalue())
        else:
            path = self.file(".safetensors", safetensors(arrays, {"sequences": json.dumps(changed)}, self.rng))
        options = self.reading_options()
        return "sequences, arrays", lambda: SequenceData(path, **options)

    def spec(self) -> tuple[str, Callable[[], Any]]:
        kind, name = self.rng.choice(self._kinds)
        data: dict[str, Any] = {"name": name}
        with contextlib.suppress(HmmscopeError):
            data |= spec_to_data(registry.build_spec(kind, {"name": name}, kind))
        changed = document(data, self.rng)
        return f"spec of {name}", lambda: registry.build_spec(kind, changed, kind)

    def own_spec(self) -> tuple[str, Callable[[], Any]]:
        cls = self.rng.choice([TrainingSpec, StudySpec])
        changed = document(spec_to_data(cls()), self.rng)
        return cls.__name__, lambda: parse_spec(cls, changed, "spec")

    def configuration(self) -> tuple[str, Callable[[], Any]]:
        changed = document(self._grid["points"][0]["config"], self.rng)
        return "configuration", lambda: config_from_data(changed)

    def grid(self) -> tuple[str, Callable[[], Any]]:
        (self.folder / "sweep" / "grid.json").write_text(json.dumps(document(self._grid, self.rng)))
        return "grid", lambda: load_points(self.folder / "sweep")

    def figure(self) -> tuple[str, Callable[[], Any]]:
        if not self._figures:
            return self.finding()
        changed = document(self.rng.choice(self._figures), self.rng)
        return "figure", lambda: Figure.from_data(changed)

    def finding(self) -> tuple[str, Callable[[], Any]]:
        changed = document(self.rng.choice(self._findings), self.rng)
        return "finding", lambda: Finding.from_data(changed)

    def experiment(self) -> tuple[str, Callable[[], Any]]:
        place = self.folder / "experiment"
        place.mkdir(exist_ok=True)
        for name, value in (("experiment", self._about), ("findings", self._findings[:2])):
            changed = document(value, self.rng) if self.rng.random() < 0.6 else value
            (place / f"{name}.json").write_text(json.dumps(changed))
        return "experiment", lambda: read_experiment(place)

    def run(self) -> tuple[str, Callable[[], Any]]:
        name = self.rng.choice(["config.json", "seeds.json", "done.json", "manifest.json", "environment.json"])
        before = (self._run / name).read_bytes()
        changed = json.dumps(document(json.loads(before), self.rng)).encode()

        def read() -> None:
            (self._run / name).write_bytes(changed)
            try:
                read_run(self._run)
            finally:
                (self._run / name).write_bytes(before)

        return f"run, {name}", read

    def journal(self) -> tuple[str, Callable[[], Any]]:
        rows = [json.dumps(document({"step": 1, "loss": 0.5}, self.rng)) for _ in range(3)]
        path = self.file(".jsonl", "\n".join(rows).encode())
        reader = self.rng.choice([read_journal, lambda p: store.read_table(p, managed=False)])
        return "journal", lambda: reader(path)

    def protocol(self) -> tuple[str, Callable[[], Any]]:
        about = {"experiment": "a", "scale": "small", "plan": {}, "measurement": 1, "rules": {"a": {"b": 1}}}
        path = self.json_file(document({"format": store.FORMATS.get("protocol", "x")} | about, self.rng))
        return "protocol", lambda: read_protocol(path)

    def packed_table(self) -> tuple[str, Callable[[], Any]]:
        kept = self.rng.choice([path for path in sorted(RESULTS.glob("*/packed/*.xz"))[:6]] or [None])
        if kept is None:
            return self.grid()
        data = altered(kept.read_bytes(), self.rng)
        path = self.file(".xz", data)
        return "packed seed", lambda: list(packed.seed_parts(path))


class Table(dict):
    """Minimal data frame: `columns`, and columns by name."""

    @property
    def columns(self) -> list[Any]:
        return list(self)


SOURCES = [name for name, one in vars(Attempts).items() if callable(one) and not name.startswith("_")]
SOURCES = [name for name in SOURCES if name not in ("file", "json_file", "reading_options")]


@trial("typed")
def typed(folder: Path, number: int, rng: random.Random) -> Report:
    """Read values of any type and structure in every field: each must be accepted or refused in one line."""
    report = Report("G32", "values of any type and structure in files, in-memory sources, specs, figures and folders")
    attempts, accepted = Attempts(folder / "room", rng), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(number):
            name = rng.choice(SOURCES)
            state = rng.getstate()
            what, act = getattr(attempts, name)()
            report.trials += 1
            with bounded(report, what):
                try:
                    act()
                    accepted += 1
                except HmmscopeError as error:
                    if not 0 < len(str(error)) <= _LONGEST_LINE:
                        report.found(f"{what}: a line of {len(str(error))} characters")
                except Exception as error:
                    report.found(f"{what}: {type(error).__name__}: {str(error)[:120]} at {place_of(error)}")
            del state
    report.note = f"{accepted} accepted, the others refused in one line"
    return report
