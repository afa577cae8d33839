"""What the tests of processes share."""

import dataclasses
import io
import json
import pickle
import zipfile
from typing import Literal

import numpy as np
import torch

import hmmscope as hs

HALF = [0.5, 0.5]
EYE = [[1.0, 0.0], [0.0, 1.0]]
NAN, INF = float("nan"), float("inf")


# ---------------------------------------------------------------------------------------------------------------------
# Matrices

BAD_MATRICES = [
    # field, value, beginning of the message, what else it says
    ("initial", [0.5, 0.4], "initial: row sums to 0.9;", "must sum to 1"),
    ("initial", [0.5, 0.5 + 2e-6], "initial: row sums to 1.000002;", "1e-06"),
    ("initial", [1.5, -0.5], "initial[1]: -0.5 is negative", ""),
    ("initial", [NAN, 1.0], "initial[0]: nan is not a finite number", ""),
    ("initial", [0.0, INF], "initial[1]: inf is not a finite number", ""),
    ("initial", [0.0, 0.0], "initial: row sums to 0;", ""),
    ("initial", [], "initial: is empty", ""),
    ("initial", 1.0, "initial: must have shape any, got a single number", ""),
    ("initial", EYE, "initial: must have shape any, got 2 x 2", ""),
    ("transition", [[0.5, 0.5], [1.8, 0.0]], "transition[1]: row sums to 1.8;", ""),
    ("transition", [[0.5, 0.5], [0.0, 0.0]], "transition[1]: row sums to 0;", ""),
    ("transition", [[1.2, -0.2], HALF], "transition[0][1]: -0.2 is negative", ""),
    ("transition", [HALF, [NAN, 0.5]], "transition[1][0]: nan is not", ""),
    ("transition", [HALF, [0.5, -INF]], "transition[1][1]: -inf is not", ""),
    ("transition", [HALF], "transition: must have shape 2 x 2, got 1 x 2", ""),
    ("transition", [HALF, HALF, HALF], "transition: must have shape 2 x 2, got 3 x 2", ""),
    ("transition", [[1.0], [1.0]], "transition: must have shape 2 x 2, got 2 x 1", ""),
    ("transition", HALF, "transition: must have shape 2 x 2, got 2", ""),
    ("transition", [EYE, EYE], "transition: must have shape 2 x 2, got 2 x 2 x 2", ""),
    ("transition", [HALF, [1.0]], "transition: rows have different lengths", ""),
    ("emission", [[0.5, 0.5], [0.3, 0.3]], "emission[1]: row sums to 0.6;", ""),
    ("emission", [HALF, [0.5, 0.5], HALF], "emission: must have shape 2 x any, got 3 x 2", ""),
    ("emission", [[], []], "emission: is empty", ""),
    ("emission", [HALF, [0.5, 0.25, 0.25]], "emission: rows have different lengths", ""),
    ("emission", HALF, "emission: must have shape 2 x any, got 2", ""),
    ("emission", None, "emission: must hold real numbers", "object"),
    ("emission", "0.5", "emission: must hold real numbers", ""),
    ("emission", [["0.5", "0.5"], ["1", "0"]], "emission: must hold real numbers", ""),
    ("emission", [[None, 1.0], HALF], "emission: must hold real numbers", "object"),
    ("emission", [[10**30, 0], [0, 1]], "emission: must hold real numbers", "object"),
    ("emission", np.eye(2, dtype=bool), "emission: must hold real numbers", "bool"),
    ("emission", np.eye(2, dtype=complex), "emission: must hold real numbers", "complex128"),
    ("emission", np.eye(2, dtype=np.float16), "emission: must hold real numbers", "float16"),
    ("emission", torch.eye(2, dtype=torch.float16), "emission: must hold real numbers", "float16"),
    ("emission", torch.eye(2, dtype=torch.bool), "emission: must hold real numbers", "bool"),
    ("emission", np.eye(2, dtype=object), "emission: must hold real numbers", "object"),
    ("emission", {"a": 1}, "emission: must hold real numbers", ""),
]


GOOD_TYPES = [
    EYE,
    ((1, 0), (0, 1)),
    np.eye(2),
    np.eye(2, dtype=np.float32),
    np.eye(2, dtype=np.int8),
    np.eye(2, dtype=np.uint64),
    np.eye(2, dtype=np.longdouble),
    np.asfortranarray(np.eye(2)),
    np.eye(4)[::2, ::2],
    torch.eye(2),
    torch.eye(2, dtype=torch.int64),
    torch.eye(2, requires_grad=True),
]


BAD_NAMES = [
    ("symbols", ["a"], "symbols: must be 2 different names"),
    ("symbols", ["a", "b", "c"], "symbols: must be 2 different names"),
    ("symbols", ["a", "a"], "symbols: must be 2 different names, got 2 (1 different)"),
    ("symbols", ["a", ""], "symbols: must be a list of non-empty texts"),
    ("symbols", ["a", 1], "symbols: must be a list of non-empty texts"),
    ("symbols", "ab", "symbols: must be a list of non-empty texts"),
    ("states", [None, "x"], "states: must be a list of non-empty texts"),
    ("states", [], "states: must be 2 different names"),
]


# ---------------------------------------------------------------------------------------------------------------------
# Mixtures


def coin(heads=0.5):
    return hs.HMM([1.0], [[1.0]], [[heads, 1 - heads]])


BAD_MIXTURES = [
    ([], [], "components: a mixture needs at least one HMM"),
    ([0.5, 0.5], [coin()], "weights: must have shape 1, got 2"),
    ([0.5, 0.4], [coin(), coin()], "weights: row sums to 0.9"),
    ([1.5, -0.5], [coin(), coin()], "weights[1]: -0.5 is negative"),
    ([NAN, 1.0], [coin(), coin()], "weights[0]: nan is not"),
    (
        [0.5, 0.5],
        [coin(), hs.HMM(HALF, EYE, EYE)],
        "components: must have the same (kind, states, symbols), got [('HMM', 1, 2), ('HMM', 2, 2)]",
    ),
    ([0.5, 0.5], [coin(), hs.HMM([1.0], [[1.0]], [[1.0]])], "components: must have the same (kind, states, symbols)"),
]


# name, fields, parts of the message
BAD_PROCESSES = [
    ("random-hm", {}, ["process.name: unknown 'random-hm'; did you mean 'random-hmm'?", "random-mixture"]),
    ("", {}, ["process.name: unknown ''"]),
    ("os.system", {}, ["process.name: unknown 'os.system'"]),
    ("hmmscope.processes.hmm.HMM", {}, ["process.name: unknown"]),
    ("random-hmm", {"num_state": 3}, ["process.num_state: unknown 'num_state'; did you mean 'num_states'?"]),
    ("random-hmm", {"num_components": 3}, ["process.num_components: unknown 'num_components'"]),
    ("random-hmm", {"num_states": 0}, ["process.num_states: must be in [1, 65536], got 0"]),
    ("random-hmm", {"num_states": 65537}, ["process.num_states: must be in [1, 65536], got 65537"]),
    ("random-hmm", {"num_states": 2.0}, ["process.num_states: must be an integer, got 2.0"]),
    ("random-hmm", {"num_states": True}, ["process.num_states: must be an integer, got True"]),
    ("random-hmm", {"num_states": None}, ["process.num_states: must be an integer, got None"]),
    ("random-hmm", {"num_states": "many"}, ["process.num_states: must be an integer, got 'many'"]),
    ("random-hmm", {"num_symbols": -1}, ["process.num_symbols: must be in [1, 65536], got -1"]),
    ("random-hmm", {"seed": -1}, ["process.seed: must be an integer in [0, 4294967295], got -1"]),
    ("random-hmm", {"seed": 2**32}, ["process.seed: must be an integer in [0, 4294967295]"]),
    (
        "random-hmm",
        {"transition_concentration": 0},
        ["process.transition_concentration: must be in [1e-9, 1e6], got 0"],
    ),
    ("random-hmm", {"transition_concentration": 1e-310}, ["process.transition_concentration: must be in [1e-9, 1e6]"]),
    ("random-hmm", {"emission_concentration": 2e6}, ["process.emission_concentration: must be in [1e-9, 1e6]"]),
    ("random-hmm", {"emission_concentration": NAN}, ["process.emission_concentration: must be finite, got nan"]),
    ("random-mixture", {"num_components": 0}, ["process.num_components: must be in [1, 65536], got 0"]),
    ("random-mixture", {"first_component": -1}, ["process.first_component: must be in [0, 2^40), got -1"]),
    ("random-mixture", {"first_component": 2**40}, ["process.first_component: must be in [0, 2^40)"]),
    ("file", {}, ["process.path: is required"]),
    ("file", {"path": 3}, ["process.path: must be text, got 3"]),
    ("file", {"path": "umbrela"}, ["unknown 'umbrela'; did you mean 'umbrella'?"]),
    ("file", {"path": "/no/such/file.json"}, ["process: no file /no/such/file.json"]),
    ("file", {"path": "/etc/passwd"}, ["process: unknown '/etc/passwd'"]),
]


# ---------------------------------------------------------------------------------------------------------------------
# Files

ENDINGS = (".json", ".npz", ".safetensors")


def full_hmm(seed=0):
    rng = np.random.default_rng(seed)
    return hs.HMM(
        rng.dirichlet(np.ones(3)),
        rng.dirichlet(np.ones(3), 3),
        rng.dirichlet(np.ones(4), 3),
        symbols=["a", "é", "\u202e\u0000\n\"'<b>", "🌂"],
        states=["rain", "sun", "fog"],
        title='Title "quoted" <script>',
        source="a\nsource",
    )


def same_hmm(one, other):
    assert one.digest == other.digest
    assert torch.equal(one.initial, other.initial)
    assert torch.equal(one.transition, other.transition)
    assert torch.equal(one.emission, other.emission)
    assert (one.symbols, one.states, one.title, one.source) == (other.symbols, other.states, other.title, other.source)


def json_file(tmp_path, **changes):
    data = {"initial": HALF, "transition": EYE, "emission": EYE} | changes
    path = tmp_path / "hmm.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))
    return path


BAD_JSON = [
    ({"emision": EYE, "emission": ...}, ["hmm.json: emision: unknown 'emision'; did you mean 'emission'?"]),
    ({"initial": ...}, ["hmm.json: initial is missing"]),
    ({"emission": ...}, ["hmm.json: emission is missing"]),
    ({"version": 2}, ["hmm.json: format is", "version 2", "this release reads", "version 1"]),
    ({"version": "1"}, ["version '1'"]),
    ({"format": "other"}, ["hmm.json: format is 'other'"]),
    ({"title": 3}, ["hmm.json: title must be text, got 3"]),
    ({"source": ["x"]}, ["hmm.json: source must be text"]),
    ({"symbols": ["a"]}, ["hmm.json: symbols: must be 2 different names"]),
    ({"states": "ab"}, ["hmm.json: states: must be a list"]),
    ({"transition": [HALF, [0.5, 0.6]]}, ["hmm.json: transition[1]: row sums to 1.1"]),
    ({"transition": [HALF, [1.0]]}, ["hmm.json: transition: rows have different lengths"]),
    ({"transition": [["1/2", "1/2"], HALF]}, ["hmm.json: transition: must hold real numbers"]),
    ({"transition": {"0": HALF}}, ["hmm.json: transition: must hold real numbers"]),
    ({"initial": [True, False]}, ["hmm.json: initial: must hold real numbers", "bool"]),
    ({"initial": None}, ["hmm.json: initial"]),
]


class Canary:
    """A pickle that leaves a file behind if it is ever read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def npz_bytes(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def npy_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def hostile_files(canary):
    pickled = pickle.dumps(Canary(canary))
    objects = np.array([Canary(canary)], dtype=object)
    foreign_zip = io.BytesIO()
    with zipfile.ZipFile(foreign_zip, "w") as archive:
        archive.writestr("data.pkl", pickled)
        archive.writestr("initial", b"text")
    torch_file = io.BytesIO()
    torch.save({"initial": torch.ones(1)}, torch_file)
    return {
        "empty": b"",
        "zeros": bytes(100),
        "text": b"not a file of any kind\n",
        "noise": np.random.default_rng(0).bytes(3000),
        "pickle": pickled,
        "object-array": npz_bytes(initial=objects, transition=np.eye(1), emission=np.eye(1)),
        "object-header": npz_bytes(initial=np.ones(1), transition=np.eye(1), emission=np.eye(1), header=objects),
        "foreign-zip": foreign_zip.getvalue(),
        "torch": torch_file.getvalue(),
        "json-nan": b'{"initial": [NaN], "transition": [[1]], "emission": [[1]]}',
        "json-list": b"[1, 2, 3]",
        "json-null": b"null",
        "json-twice": b'{"initial": [1], "initial": [1], "transition": [[1]], "emission": [[1]]}',
        "json-deep": b"[" * 100_000,
        "json-infinity": b'{"initial": [1e999], "transition": [[1]], "emission": [[1]]}',
        "json-latin": b'{"title": "\xe9"}',
        "safetensors-long-header": (2**62).to_bytes(8, "little") + b"{}",
        "header-no-json": npz_bytes(initial=np.ones(1), transition=np.eye(1), emission=np.eye(1), header=np.array("{")),
        "header-a-list": npz_bytes(initial=np.ones(1), transition=np.eye(1), emission=np.eye(1), header=np.array("[]")),
    }


def npy_with_header(header):
    """The bytes of an .npy file whose header is this text."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)


def npz_with_initial(member):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("initial.npy", member)
        archive.writestr("transition.npy", npy_bytes(np.ones((1, 1))))
        archive.writestr("emission.npy", npy_bytes(np.ones((1, 1))))
    return buffer.getvalue()


def encrypted_npz():
    data = bytearray(npz_with_initial(npy_bytes(np.ones(1))))
    data[6] |= 1
    data[data.find(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def npz_with_shape(shape):
    return npz_with_initial(npy_with_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"))


BAD_NPZ = {
    "wrong-length": (lambda: npz_with_shape("(2,)"), ()),
    "negative-length": (lambda: npz_with_shape("(-1,)"), ()),
    "no-header": (lambda: npz_with_initial(npy_with_header("[]")), ()),
    "dates": (lambda: npz_with_initial(npy_bytes(np.array(["2020-01-01"], "M8[D]"))), ()),
    "records": (lambda: npz_with_initial(npy_bytes(np.zeros(1, [("a", "<f8")]))), ()),
    "a-single-array": (lambda: npy_bytes(np.eye(2)), ()),
    "encrypted": (encrypted_npz, ()),
    "8-TiB": (lambda: npz_with_shape(f"({2**40},)"), ()),
    "endless": (lambda: npz_with_shape("(99999999999999999999999,)"), ()),
    "true-length": (lambda: npz_with_shape("(True,)"), ()),
    "open-bracket": (lambda: npz_with_initial(npy_with_header("(")), ()),
    "deep-header": (
        lambda: npz_bytes(initial=np.ones(1), transition=np.eye(1), emission=np.eye(1), header=np.array("[" * 10**5)),
        (),
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# Specs from plain data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.5
    kind: Literal["plain", "fancy"] = "plain"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    steps: int
    name: str = "x"
    fast: bool = False
    limit: int | None = None
    sizes: tuple[int, ...] = ()
    inner: Inner = dataclasses.field(default_factory=Inner)


GOOD_DATA = [
    ({"steps": 3}, Outer(steps=3)),
    ({"steps": "3"}, Outer(steps=3)),
    ({"steps": -7}, Outer(steps=-7)),
    ({"steps": 3, "limit": None}, Outer(steps=3)),
    ({"steps": 3, "limit": "none"}, Outer(steps=3)),
    ({"steps": 3, "limit": "4"}, Outer(steps=3, limit=4)),
    ({"steps": 3, "fast": "true"}, Outer(steps=3, fast=True)),
    ({"steps": 3, "fast": False}, Outer(steps=3)),
    ({"steps": 3, "sizes": [1, 2]}, Outer(steps=3, sizes=(1, 2))),
    ({"steps": 3, "sizes": "1,2"}, Outer(steps=3, sizes=(1, 2))),
    ({"steps": 3, "sizes": []}, Outer(steps=3)),
    ({"steps": 3, "inner": {"rate": 1}}, Outer(steps=3, inner=Inner(rate=1.0))),
    ({"steps": 3, "inner": {"rate": "1e-3"}}, Outer(steps=3, inner=Inner(rate=1e-3))),
    ({"steps": 3, "inner": {"kind": "fancy"}}, Outer(steps=3, inner=Inner(kind="fancy"))),
    ({"steps": 3, "inner": Inner(rate=2.0)}, Outer(steps=3, inner=Inner(rate=2.0))),
    ({"steps": 3, "name": "no"}, Outer(steps=3, name="no")),
    ({"steps": 3, "name": ""}, Outer(steps=3, name="")),
]


BAD_DATA = [
    # unknown, missing, no mapping
    ({"step": 3}, "config.step: unknown 'step'; did you mean 'steps'?"),
    ({"steps": 3, "STEPS": 3}, "config.STEPS: unknown 'STEPS'"),
    ({"steps": 3, "inner": {"rat": 1}}, "config.inner.rat: unknown 'rat'; did you mean 'rate'?"),
    ({"steps": 3, "inner.rate": 1}, "config.inner.rate: unknown 'inner.rate'"),
    ({"steps": 3, "st\u200beps": 3}, "config.'st\\u200beps': unknown"),
    ({"steps": 3, 5: 3}, "config.5: unknown 5"),
    ({"steps": 3, None: 3}, "config.None: unknown None"),
    ({"steps": 3, "__class__": 3}, "config.__class__: unknown"),
    ({}, "config.steps: is required"),
    (None, "config: must be a mapping of fields, got None"),
    ([], "config: must be a mapping of fields, got []"),
    ("steps", "config: must be a mapping of fields, got 'steps'"),
    (3, "config: must be a mapping of fields, got 3"),
    ({"steps": 3, "inner": None}, "config.inner: must be a mapping of fields, got None"),
    ({"steps": 3, "inner": []}, "config.inner: must be a mapping"),
    # integers
    ({"steps": 3.0}, "config.steps: must be an integer, got 3.0"),
    ({"steps": "3.0"}, "config.steps: must be an integer, got '3.0'"),
    ({"steps": "1e3"}, "config.steps: must be an integer, got '1e3'"),
    ({"steps": 1e3}, "config.steps: must be an integer, got 1000.0"),
    ({"steps": True}, "config.steps: must be an integer, got True"),
    ({"steps": "true"}, "config.steps: must be an integer, got 'true'"),
    ({"steps": "no"}, "config.steps: must be an integer, got 'no'"),
    ({"steps": "0o17"}, "config.steps: must be an integer, got '0o17'"),
    ({"steps": "0x1F"}, "config.steps: must be an integer, got '0x1F'"),
    ({"steps": "12:30:45"}, "config.steps: must be an integer, got '12:30:45'"),
    ({"steps": "2024-01-01"}, "config.steps: must be an integer"),
    ({"steps": "1,000"}, "config.steps: must be an integer, got '1,000'"),
    ({"steps": "3\u200b"}, "config.steps: must be an integer"),
    ({"steps": ""}, "config.steps: must be an integer, got ''"),
    ({"steps": None}, "config.steps: must be an integer, got None"),
    ({"steps": [3]}, "config.steps: must be an integer, got [3]"),
    ({"steps": {"value": 3}}, "config.steps: must be an integer"),
    ({"steps": 3j}, "config.steps: must be an integer"),
    ({"steps": NAN}, "config.steps: must be an integer, got nan"),
    ({"steps": "9" * 5000}, "config.steps: must be an integer"),
    ({"steps": 3, "inner": {"rate": 10**400}}, "config.inner.rate: "),
    ({"steps": 3, "a\nb": 3}, "config."),
    ({"steps": "1_000"}, "config.steps: must be an integer"),
    ({"steps": " 3"}, "config.steps: must be an integer"),
    ({"steps": "٣"}, "config.steps: must be an integer"),
    # numbers
    ({"steps": 3, "inner": {"rate": NAN}}, "config.inner.rate: must be finite, got nan"),
    ({"steps": 3, "inner": {"rate": INF}}, "config.inner.rate: must be finite, got inf"),
    ({"steps": 3, "inner": {"rate": "nan"}}, "config.inner.rate: must be finite, got 'nan'"),
    ({"steps": 3, "inner": {"rate": "inf"}}, "config.inner.rate: must be finite, got 'inf'"),
    ({"steps": 3, "inner": {"rate": "1e999"}}, "config.inner.rate: must be finite, got '1e999'"),
    ({"steps": 3, "inner": {"rate": "0,5"}}, "config.inner.rate: must be a number, got '0,5'"),
    ({"steps": 3, "inner": {"rate": "1e-3x"}}, "config.inner.rate: must be a number"),
    ({"steps": 3, "inner": {"rate": "50%"}}, "config.inner.rate: must be a number"),
    ({"steps": 3, "inner": {"rate": "1/2"}}, "config.inner.rate: must be a number"),
    ({"steps": 3, "inner": {"rate": False}}, "config.inner.rate: must be a number, got False"),
    ({"steps": 3, "inner": {"rate": None}}, "config.inner.rate: must be a number, got None"),
    # truth values
    ({"steps": 3, "fast": 1}, "config.fast: must be true or false, got 1"),
    ({"steps": 3, "fast": 0}, "config.fast: must be true or false, got 0"),
    ({"steps": 3, "fast": "no"}, "config.fast: must be true or false, got 'no'"),
    ({"steps": 3, "fast": "yes"}, "config.fast: must be true or false, got 'yes'"),
    ({"steps": 3, "fast": "on"}, "config.fast: must be true or false, got 'on'"),
    ({"steps": 3, "fast": "True"}, "config.fast: must be true or false, got 'True'"),
    ({"steps": 3, "fast": "0"}, "config.fast: must be true or false, got '0'"),
    ({"steps": 3, "fast": ""}, "config.fast: must be true or false, got ''"),
    ({"steps": 3, "fast": None}, "config.fast: must be true or false, got None"),
    # text, choices, lists
    ({"steps": 3, "name": 5}, "config.name: must be text, got 5"),
    ({"steps": 3, "name": False}, "config.name: must be text, got False"),
    ({"steps": 3, "name": None}, "config.name: must be text, got None"),
    ({"steps": 3, "name": b"x"}, "config.name: must be text, got b'x'"),
    ({"steps": 3, "name": ["x"]}, "config.name: must be text"),
    ({"steps": 3, "inner": {"kind": "fany"}}, "config.inner.kind: unknown 'fany'; did you mean 'fancy'?"),
    ({"steps": 3, "inner": {"kind": None}}, "config.inner.kind: unknown None"),
    ({"steps": 3, "inner": {"kind": ["plain"]}}, "config.inner.kind: unknown ['plain']"),
    ({"steps": 3, "limit": "None"}, "config.limit: must be an integer, got 'None'"),
    ({"steps": 3, "limit": "null"}, "config.limit: must be an integer, got 'null'"),
    ({"steps": 3, "limit": False}, "config.limit: must be an integer, got False"),
    ({"steps": 3, "sizes": 3}, "config.sizes: must be a list, got 3"),
    ({"steps": 3, "sizes": None}, "config.sizes: must be a list, got None"),
    ({"steps": 3, "sizes": {"0": 1}}, "config.sizes: must be a list"),
    ({"steps": 3, "sizes": [1, "x"]}, "config.sizes[1]: must be an integer, got 'x'"),
    ({"steps": 3, "sizes": "1,,2"}, "config.sizes[1]: must be an integer, got ''"),
    ({"steps": 3, "sizes": [[1]]}, "config.sizes[0]: must be an integer, got [1]"),
]
