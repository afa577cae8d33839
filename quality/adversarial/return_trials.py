"""Trials of saving and loading: the loaded object must equal the saved one."""

import json
import math
import random
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hmmscope as hs
from hmmscope import registry
from hmmscope.errors import HmmscopeError
from hmmscope.processes.files import load_process
from hmmscope.schema import spec_to_data
from hmmscope.sequences.data import SequenceData
from hmmscope.storage import store
from trials import Report, place_of, trial
from typed_trials import document


def name(rng: random.Random) -> str:
    """Return a random name of a symbol."""
    letters = string.ascii_letters + string.digits + "éß漢字😀 _-.,;:'\"\\/<>&|٣"
    return "".join(rng.choice(letters) for _ in range(rng.choice((1, 1, 2, 5, 30)))).strip() or "x"


def _laws(rows: int, columns: int, drawn: np.random.Generator) -> np.ndarray:
    weights = drawn.random((rows, columns)) * (drawn.random((rows, columns)) < 0.7) + 1e-3 * (np.arange(columns) == 0)
    return weights / weights.sum(1, keepdims=True)


def back_hmm(folder: Path, rng: random.Random) -> str | None:
    drawn = np.random.default_rng(rng.randrange(2**32))
    states, symbols = rng.randrange(1, 6), rng.randrange(1, 7)
    names = rng.choice([None, sorted({name(rng) for _ in range(3 * symbols)})[:symbols]])
    if names is not None and len(names) < symbols:
        names = None
    made = hs.HMM(
        _laws(1, states, drawn)[0], _laws(states, states, drawn), _laws(states, symbols, drawn), symbols=names
    )
    path = folder / f"x{rng.choice(('.json', '.npz', '.safetensors'))}"
    made.save(path)
    found = load_process(path)
    same = found.digest == made.digest and found.symbols == made.symbols and torch.equal(found.emission, made.emission)
    return None if same and type(found) is type(made) else f"{path.suffix}: {names}"


def back_process(folder: Path, rng: random.Random) -> str | None:
    """Save and load a registered process; processes that cannot be made or saved are skipped."""
    kind = rng.choice(sorted(registry.entries("process")))
    try:
        made = hs.make_process(kind, **({"seed": rng.randrange(100)} if rng.random() < 0.5 else {}))
    except HmmscopeError:
        return None
    path = folder / f"x{rng.choice(('.json', '.npz', '.safetensors'))}"
    try:
        made.save(path)
    except HmmscopeError:
        return None
    return None if load_process(path).digest == made.digest else kind


def back_sequences(folder: Path, rng: random.Random) -> str | None:
    size = rng.randrange(1, 8)
    names = list(dict.fromkeys(name(rng) for _ in range(size)))
    size = len(names)
    used = range(rng.randrange(1, size + 1))  # the last symbols may not occur
    gaps = rng.random() < 0.4
    rows: list[list[Any]] = [
        [None if gaps and rng.random() < 0.2 else rng.choice(used) for _ in range(rng.choice((1, 1, 2, 3, 9, 40)))]
        for _ in range(rng.randrange(1, 9))
    ]
    if all(v is None for row in rows for v in row):
        return None
    if rng.random() < 0.7:
        rows, symbols = [[None if v is None else names[v] for v in row] for row in rows], names
    else:
        rows, symbols = [[-1 if v is None else v for v in row] for row in rows], size
    try:
        made = SequenceData(rows, symbols=symbols, missing=[None] if symbols is names else -1)
    except HmmscopeError:  # rows of one symbol are ambiguous, and a name may stand for a missing value
        return None
    path = folder / f"x{rng.choice(('.npz', '.safetensors', '.jsonl'))}"
    made.save(path)
    found = SequenceData(path)
    same = found.symbols == made.symbols and found.num_symbols == made.num_symbols and found.digest == made.digest
    same = same and found.lengths.tolist() == made.lengths.tolist() and np.array_equal(found.flat, made.flat)
    return None if same else f"{path.suffix}: {rows[:3]} of {symbols}"


def back_json(folder: Path, rng: random.Random) -> str | None:
    """Write and read a document, a table or tensors with `hmmscope.storage.store`."""

    def clean(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return 0.5
        if isinstance(value, str):
            return value.replace("\ud800", "")
        if isinstance(value, list):
            return [clean(one) for one in value]
        return {clean(key): clean(one) for key, one in value.items()} if isinstance(value, dict) else value

    made = clean(document({"a": [1, 2.5, {"b": None}], "c": "text", "d": {"e": [True]}}, rng, 5))
    kind = rng.randrange(3)
    if kind == 0:
        store.write_json(folder / "x.json", made)
        found = store.read_json(folder / "x.json")
    elif kind == 1:
        made = [made, {"a": made}] if isinstance(made, dict) else [{"a": made}]
        store.write_table(folder / "x.jsonl", made)
        found = store.read_table(folder / "x.jsonl")
    else:
        drawn = np.random.default_rng(rng.randrange(2**32))
        kinds = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float16)
        shape = rng.choice([(), (0,), (3,), (2, 0), (2, 3)])
        made = {name(rng): torch.from_numpy(np.asarray(drawn.integers(0, 9, shape))).to(rng.choice(kinds))}
        store.write_tensors(folder / "x.safetensors", made)
        found = store.read_tensors(folder / "x.safetensors")
        same = (
            all(torch.equal(found[k], v) and found[k].dtype == v.dtype for k, v in made.items())
            and found.keys() == made.keys()
        )
        return None if same else f"tensors {shape}"
    return None if repr(found) == repr(made) else f"{str(made)[:100]}, then {str(found)[:100]}"


def back_spec(folder: Path, rng: random.Random) -> str | None:
    """Convert a spec of a process, layout or model to JSON and back."""
    kind = rng.choice(("process", "layout", "model"))
    try:
        made = registry.build_spec(kind, {"name": rng.choice(sorted(registry.entries(kind)))}, kind)
    except HmmscopeError:
        return None
    data = json.loads(json.dumps({"name": made.name, **spec_to_data(made)}))
    return None if registry.build_spec(kind, data, kind) == made else str(data)


#: Checks to draw from. A hundredth of them are processes, because processes are few and slow to make.
BACK = [back_process, *[back_hmm, back_sequences, back_sequences, back_json, back_spec] * 20]


@trial("round-trips")
def round_trips(folder: Path, number: int, rng: random.Random) -> Report:
    """Save and load random objects of every kind, in each format; the loaded object must be equal."""
    report = Report(
        "G33", "saved and loaded HMMs, processes, sequences, documents, tables, tensors and specs, in each format"
    )
    place = folder / "room"
    place.mkdir()
    counts: dict[str, int] = {}
    for _ in range(number):
        back = rng.choice(BACK)
        for made in place.iterdir():
            made.unlink()
        report.trials += 1
        counts[back.__name__[5:]] = counts.get(back.__name__[5:], 0) + 1
        try:
            if wrong := back(place, rng):
                report.found(f"{back.__name__[5:]}: {wrong}")
        except Exception as error:
            report.found(f"{back.__name__[5:]}: {type(error).__name__}: {error} at {place_of(error)}")
    report.note = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    return report
