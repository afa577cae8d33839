"""Processes: what is refused and how, what is rounded, and files that come back bit by bit or are called damaged."""

import dataclasses
import io
import json
import pickle
import zipfile
from typing import Literal

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import hmmscope as hs
from hmmscope import registry
from hmmscope.errors import DamagedError, HmmscopeError, InputError, RefusedError
from hmmscope.kernels.quantise import UNIT
from hmmscope.processes.files import shipped_processes
from hmmscope.schema import parse_spec, parse_value, spec_to_data
from hmmscope.seeds import PURPOSES, check_seed, derived_seed, numpy_generator, philox_key, torch_generator
from strategies import KINDS, dense

HALF = [0.5, 0.5]
EYE = [[1.0, 0.0], [0.0, 1.0]]
NAN, INF = float("nan"), float("inf")


def one_line(error, *parts):
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message
    return message


def refuses(kind, call, *parts):
    with pytest.raises(kind) as caught:
        call()
    return one_line(caught, *parts)


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
    ("initial", [2**-33, 1 - 2**-33], "initial[0]: ", "below 2^-32; set it to 0 or pass allow_drop_tiny"),
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
    ("transition", [[1e-12, 1 - 1e-12], HALF], "transition[0][0]: 1e-12 is positive", "allow_drop_tiny"),
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


@pytest.mark.parametrize("field, value, beginning, part", BAD_MATRICES, ids=lambda x: str(x)[:40])
def test_bad_matrices_are_refused_by_name_and_row(field, value, beginning, part):
    matrices = {"initial": HALF, "transition": EYE, "emission": EYE} | {field: value}
    message = refuses(InputError, lambda: hs.HMM(**matrices), part)
    assert message.startswith(beginning), message


def test_bfloat16_is_refused_by_name():
    refuses(InputError, lambda: hs.HMM(HALF, EYE, torch.eye(2, dtype=torch.bfloat16)), "emission: ", "bfloat16")


@given(st.integers(0, 3), st.integers(0, 3), st.sampled_from([NAN, INF, -INF, -0.25, -1e-12, 2.0, 1.001]))
def test_any_bad_entry_is_found(row, column, value):
    transition = np.full((4, 4), 0.25)
    transition[row, column] = value
    place = f"transition[{row}]"
    message = refuses(InputError, lambda: hs.HMM([0.25] * 4, transition, [[1.0]] * 4))
    assert message.startswith(place)


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


@pytest.mark.parametrize("matrix", GOOD_TYPES, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'dtype', '')}")
def test_exact_numbers_of_any_type_are_read(matrix):
    hmm = hs.HMM(HALF, matrix, matrix)
    assert hmm.transition_SS.dtype == torch.float64
    assert torch.equal(hmm.emission_SV, torch.eye(2, dtype=torch.float64))
    assert not hmm.transition_SS.requires_grad


def test_the_caller_keeps_his_arrays():
    matrix = np.eye(2)
    hmm = hs.HMM(HALF, matrix, matrix)
    matrix[:] = 0.5
    assert torch.equal(hmm.transition_SS, torch.eye(2, dtype=torch.float64))


def test_rows_become_multiples_of_a_unit():
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 7, 64):
        matrices = [rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size), size), rng.dirichlet(np.ones(5), size)]
        hmm = hs.HMM(*matrices)
        stored = [hmm.initial_S, hmm.transition_SS, hmm.emission_SV]
        for given_rows, kept in zip(matrices, stored, strict=True):
            units = kept.numpy() * UNIT
            np.testing.assert_array_equal(units, np.floor(units))
            np.testing.assert_array_equal(units.sum(-1), UNIT)
            assert np.abs(kept.numpy() - given_rows).max() <= hmm.quantisation_change + 1e-16
        assert 0 <= hmm.quantisation_change < 2**-32


def test_zeros_stay_zero_and_dyadic_numbers_stay():
    rng = np.random.default_rng(1)
    for kind in KINDS:
        matrices = kind(rng, 4, 3)
        hmm = hs.HMM(*matrices)
        assert hmm.quantisation_change == 0
        kept = (hmm.initial_S, hmm.transition_SS, hmm.emission_SV)
        for given_rows, exact in zip(matrices, kept, strict=True):
            np.testing.assert_array_equal(exact.numpy(), given_rows)


def test_tiny_probabilities_are_dropped_only_on_request():
    tiny = [[2**-40, 1 - 2**-40], [0.0, 1.0]]
    refuses(InputError, lambda: hs.HMM(HALF, EYE, tiny), "emission[0][0]", "allow_drop_tiny")
    hmm = hs.HMM(HALF, EYE, tiny, allow_drop_tiny=True)
    assert hmm.emission_SV.tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert hmm.quantisation_change == 2**-40
    assert hs.HMM(HALF, EYE, [[2**-32, 1 - 2**-32], HALF]).emission_SV[0, 0] == 2**-32


def test_sums_within_the_tolerance_are_normalised():
    hmm = hs.HMM([0.5 + 4e-7, 0.5 + 4e-7], EYE, EYE)
    assert hmm.initial_S.tolist() == HALF


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


@pytest.mark.parametrize("field, names, beginning", BAD_NAMES, ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_bad_names_are_refused(field, names, beginning):
    message = refuses(InputError, lambda: hs.HMM(HALF, EYE, EYE, **{field: names}))
    assert message.startswith(beginning)


@pytest.mark.usefixtures("unchecked")
def test_names_that_are_no_list_are_refused():
    refuses(InputError, lambda: hs.HMM(HALF, EYE, EYE, symbols=5), "symbols: must be a list")


# ---------------------------------------------------------------------------------------------------------------------
# Mixtures


def coin(heads=0.5):
    return hs.HMM([1.0], [[1.0]], [[heads, 1 - heads]])


def test_mixture_keeps_its_components():
    parts = [hs.HMM(*dense(np.random.default_rng(m), 3, 2)) for m in range(4)]
    mixture = hs.Mixture([0.25] * 4, parts)
    assert len(mixture) == mixture.num_components == 4
    assert (mixture.num_states, mixture.num_symbols) == (3, 2)
    for m, part in enumerate(parts):
        assert mixture[m].digest == part.digest
    assert len(list(mixture)) == 4
    for m in (-1, 4):
        with pytest.raises(IndexError, match=r"\[0, 4\)"):
            mixture[m]
    stacked = hs.Mixture.from_law([0.25] * 4, mixture.law)
    assert stacked.digest == mixture.digest
    assert coin().num_components is None


BAD_MIXTURES = [
    ([], [], "components: a mixture needs at least one HMM"),
    ([0.5, 0.5], [coin()], "weights: must have shape 1, got 2"),
    ([0.5, 0.4], [coin(), coin()], "weights: row sums to 0.9"),
    ([1.5, -0.5], [coin(), coin()], "weights[1]: -0.5 is negative"),
    ([NAN, 1.0], [coin(), coin()], "weights[0]: nan is not"),
    ([2**-40, 1 - 2**-40], [coin(), coin()], "weights[0]: "),
    (
        [0.5, 0.5],
        [coin(), hs.HMM(HALF, EYE, EYE)],
        "components: must have equal (kind, states, symbols), got [('HMM', 1, 2), ('HMM', 2, 2)]",
    ),
    ([0.5, 0.5], [coin(), hs.HMM([1.0], [[1.0]], [[1.0]])], "components: must have equal (kind, states, symbols)"),
]


@pytest.mark.parametrize("weights, components, beginning", BAD_MIXTURES, ids=lambda x: str(x)[:50])
def test_bad_mixtures_are_refused(weights, components, beginning):
    message = refuses(InputError, lambda: hs.Mixture(weights, components))
    assert message.startswith(beginning), message


def test_digests_tell_processes_apart():
    moved = hs.HMM([1.0], [[1.0]], [[0.5 + 2**-32, 0.5 - 2**-32]])
    digests = {
        p.digest
        for p in (
            coin(),
            coin(0.25),
            moved,
            hs.HMM([1.0], [[1.0]], [[0.5, 0.5, 0.0]]),
            hs.HMM([1.0, 0.0], EYE, [HALF, HALF]),
            hs.Mixture([1.0, 0.0], [coin(), coin()]),
            hs.Mixture([0.5, 0.5], [coin(), coin()]),
        )
    }
    assert len(digests) == 7
    assert hs.HMM([1.0], [[1.0]], [HALF], title="named", symbols=["h", "t"]).digest == coin().digest


# ---------------------------------------------------------------------------------------------------------------------
# Families


def test_random_hmm_is_a_function_of_its_fields():
    base = hs.make_process("random-hmm", num_states=4, num_symbols=3, seed=1)
    assert (base.num_states, base.num_symbols) == (4, 3)
    assert hs.make_process("random-hmm", num_states=4, num_symbols=3, seed=1).digest == base.digest
    assert hs.make_process("random-hmm", num_states=4, num_symbols=3, seed=2).digest != base.digest
    sharper = hs.make_process("random-hmm", num_states=4, num_symbols=3, seed=1, transition_concentration=0.01)
    assert not torch.equal(sharper.transition_SS, base.transition_SS)
    assert torch.equal(sharper.emission_SV, base.emission_SV)


def test_components_depend_on_their_number_alone():
    def pool(first, count):
        return hs.make_process(
            "random-mixture", num_components=count, num_states=5, num_symbols=4, seed=3, first_component=first
        )

    whole, later, far = pool(0, 12), pool(8, 10), pool(2**40 - 3, 2)
    for m in range(4):
        assert torch.equal(whole.law.transition_MSS[8 + m], later.law.transition_MSS[m])
        assert torch.equal(whole.law.emission_MSV[8 + m], later.law.emission_MSV[m])
    digests = [pool[m].digest for pool in (whole, later, far) for m in range(len(pool))]
    assert len(set(digests)) == 12 + 10 + 2 - 4


def test_held_out_components_are_disjoint_from_the_pool():
    train = hs.make_process("random-mixture", num_components=64, num_states=6, num_symbols=4, seed=0)
    test = hs.make_process("random-mixture", num_components=64, num_states=6, num_symbols=4, seed=0, first_component=64)
    assert not {train[m].digest for m in range(64)} & {test[m].digest for m in range(64)}


def test_random_rows_are_exact_laws_at_every_concentration():
    for concentration in (1e-9, 1e-3, 0.01, 1.0, 1e6):
        mixture = hs.make_process(
            "random-mixture",
            num_components=5,
            num_states=7,
            num_symbols=9,
            transition_concentration=concentration,
            emission_concentration=concentration,
        )
        for matrix in (mixture.weights_M, *mixture.law.rows()):
            units = matrix.numpy() * UNIT
            assert (units >= 0).all()
            np.testing.assert_array_equal(units, np.floor(units))
            np.testing.assert_array_equal(units.sum(-1), UNIT)


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


@pytest.mark.parametrize("name, fields, parts", BAD_PROCESSES, ids=lambda x: str(x)[:45])
def test_bad_process_requests_are_refused_by_field(name, fields, parts):
    refuses(InputError, lambda: hs.make_process(name, **fields), *parts)


def test_every_registered_process_but_files_is_built_from_its_defaults_or_refused():
    assert {"random-hmm", "random-mixture", "file"} <= set(registry.entries("process"))
    assert registry.entries("process")["random-hmm"].name == "random-hmm"
    for data in (None, {}, {"name": 5}, [], "random-hmm"):
        refuses(
            InputError, lambda data=data: registry.build_spec("process", data, "config.process"), "config.process.name"
        )


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
    assert torch.equal(one.initial_S, other.initial_S)
    assert torch.equal(one.transition_SS, other.transition_SS)
    assert torch.equal(one.emission_SV, other.emission_SV)
    assert (one.symbols, one.states, one.title, one.source) == (other.symbols, other.states, other.title, other.source)


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_come_back_bit_by_bit(tmp_path, ending):
    rng = np.random.default_rng(1)
    rare = hs.HMM([1 - 2**-32, 2**-32], [[2**-32, 1 - 2**-32], [0, 1]], [[1.0], [1.0]])
    hmms = [full_hmm(), coin(1 / 3), rare, *(hs.HMM(*kind(rng, 3, 2)) for kind in KINDS)]
    for number, hmm in enumerate(hmms):
        path = tmp_path / f"{number}{ending}"
        hmm.save(path)
        for source in (path, str(path)):
            same_hmm(hs.load_process(source), hmm)
        same_hmm(hs.make_process("file", path=str(path)), hmm)


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_existing_file_is_never_overwritten(tmp_path, ending):
    path = tmp_path / f"hmm{ending}"
    path.write_bytes(b"precious")
    refuses(RefusedError, lambda: full_hmm().save(path), "exists")
    assert path.read_bytes() == b"precious"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["hmm", "hmm.pkl", "hmm.yaml", "hmm.JSON", "hmm.npz.gz", ""])
def test_other_endings_are_refused(tmp_path, name):
    refuses(InputError, lambda: full_hmm().save(tmp_path / name), "path: must end in .json, .npz or .safetensors")
    refuses(InputError, lambda: hs.load_process(tmp_path / name), "process: unknown")
    assert not list(tmp_path.iterdir())


def test_missing_files_and_folders_are_refused(tmp_path):
    refuses(InputError, lambda: hs.load_process(tmp_path / "no.json"), "no file")
    (tmp_path / "folder.json").mkdir()
    refuses(InputError, lambda: hs.load_process(tmp_path / "folder.json"), "no file")


def test_shipped_processes_load():
    assert {"umbrella", "dishonest-casino"} <= set(shipped_processes())
    for name in shipped_processes():
        hmm = hs.load_process(name)
        assert hmm.title
        assert hmm.source
        assert len(hmm.symbols) == hmm.num_symbols
    refuses(InputError, lambda: hs.load_process("umbrell"), "did you mean 'umbrella'?")


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
    ({"emission": [[1e-15, 1 - 1e-15], HALF]}, ["hmm.json: emission[0][0]", "allow_drop_tiny"]),
]


@pytest.mark.parametrize("changes, parts", BAD_JSON, ids=lambda x: str(x)[:50])
@pytest.mark.usefixtures("unchecked")
def test_bad_json_fields_are_refused_by_name(tmp_path, changes, parts):
    refuses(InputError, lambda: hs.load_process(json_file(tmp_path, **changes)), *parts)


def test_minimal_json_is_enough(tmp_path):
    hmm = hs.load_process(json_file(tmp_path, format="hmmscope-hmm", version=1, symbols=["x", "y"], states=None))
    assert hmm.symbols == ("x", "y")
    assert hmm.states is None
    tiny = json_file(tmp_path, emission=[[1e-15, 1 - 1e-15], HALF])
    assert hs.load_process(tiny, allow_drop_tiny=True).emission_SV[0].tolist() == [0.0, 1.0]


@pytest.mark.usefixtures("unchecked")
def test_names_in_a_file_that_are_no_list_are_refused(tmp_path):
    refuses(InputError, lambda: hs.load_process(json_file(tmp_path, symbols=5)), "hmm.json: symbols: must be a list")


def test_an_unknown_field_with_a_newline_is_one_line(tmp_path):
    refuses(InputError, lambda: hs.load_process(json_file(tmp_path, **{"a\nb": 1})))


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


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("content", hostile_files("-"))
def test_hostile_files_are_refused_and_nothing_runs(tmp_path, content, ending):
    canary = tmp_path / "canary"
    path = tmp_path / f"hmm{ending}"
    path.write_bytes(hostile_files(canary)[content])
    refuses((InputError, DamagedError), lambda: hs.load_process(path), "hmm")
    assert not canary.exists()


def test_the_canary_sings(tmp_path):
    """The hostile pickles above would be noticed."""
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary"))).close()
    assert (tmp_path / "canary").exists()


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


@pytest.mark.parametrize("make", [pytest.param(make, marks=mark, id=name) for name, (make, mark) in BAD_NPZ.items()])
def test_bad_archives_are_refused(tmp_path, make):
    path = tmp_path / "hmm.npz"
    path.write_bytes(make())
    refuses((InputError, DamagedError), lambda: hs.load_process(path), "hmm.npz")


def test_bfloat16_safetensors_are_refused(tmp_path):
    path = tmp_path / "hmm.safetensors"
    one = torch.ones(1, dtype=torch.bfloat16)
    safetensors.torch.save_file({"initial": one, "transition": one[None].clone(), "emission": one[None].clone()}, path)
    refuses((InputError, DamagedError), lambda: hs.load_process(path), "initial: ", "bfloat16")


@pytest.mark.parametrize("ending", ENDINGS)
def test_truncated_files_are_damaged(tmp_path, ending):
    whole = tmp_path / f"whole{ending}"
    full_hmm().save(whole)
    data = whole.read_bytes()
    path = tmp_path / f"hmm{ending}"
    lengths = range(0, len(data) - 1, 11)
    for length in lengths:
        path.write_bytes(data[:length])
        refuses(DamagedError, lambda: hs.load_process(path), "hmm")


@pytest.mark.parametrize("ending", [".json", ".npz", ".safetensors"])
def test_altered_bytes_give_an_hmm_or_one_line(tmp_path, ending):
    """No digest guards a single file, so that some changes pass; none may end in a traceback."""
    whole = tmp_path / f"whole{ending}"
    full_hmm().save(whole)
    data = whole.read_bytes()
    rng = np.random.default_rng(2)
    path = tmp_path / f"hmm{ending}"
    messages = []
    for _ in range(400):
        altered = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            altered[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(altered)
        try:
            hs.load_process(path)
        except HmmscopeError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert not any("\n" in message for message in messages)


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


@pytest.mark.parametrize("data, spec", GOOD_DATA, ids=lambda x: str(x)[:50])
def test_plain_data_becomes_a_spec(data, spec):
    parsed = parse_spec(Outer, data, "config")
    assert parsed == spec
    assert type(parsed.inner.rate) is float
    assert parse_spec(Outer, json.loads(json.dumps(spec_to_data(parsed))), "") == spec


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


@pytest.mark.parametrize("data, beginning", BAD_DATA, ids=lambda x: repr(x)[:60])
def test_bad_data_is_refused_by_path(data, beginning):
    message = refuses(InputError, lambda: parse_spec(Outer, data, "config"))
    assert message.startswith(beginning), message


@pytest.mark.parametrize(
    "data, beginning",
    [
        ({"steps": np.eye(2)}, "config.steps: must be an integer"),
        ({"steps": 3, "limit": np.eye(2)}, "config.limit: must be an integer"),
        ({"steps": 3, "fast": np.eye(2)}, "config.fast: must be true or false"),
    ],
    ids=lambda x: repr(x)[:40],
)
def test_bad_data_that_slips_through(data, beginning):
    message = refuses(InputError, lambda: parse_spec(Outer, data, "config"))
    assert message.startswith(beginning), message


def test_a_missing_field_at_the_top_is_named_without_a_dot():
    assert refuses(InputError, lambda: parse_spec(Outer, {}, "")) == "steps: is required"


def test_a_wrong_field_at_the_top_is_named_without_a_dot():
    assert refuses(InputError, lambda: parse_spec(Outer, {"step": 3}, "")).startswith("step: unknown 'step'")


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
        ),
        max_leaves=5,
    ),
    st.sampled_from(["steps", "name", "fast", "limit", "sizes", "inner"]),
)
def test_any_value_is_read_or_refused_by_its_field(value, field):
    """Nothing else than InputError, and what is read survives the way to JSON and back."""
    try:
        spec = parse_spec(Outer, {"steps": 1} | {field: value}, "config")
    except InputError as error:
        message = str(error)
    else:
        assert parse_spec(Outer, json.loads(json.dumps(spec_to_data(spec))), "config") == spec
        return
    assert message.startswith(f"config.{field}")
    assert "\n" not in message


def test_parse_value_names_the_place():
    assert parse_value(float, "0.25", "x") == 0.25
    assert parse_value(tuple[float, ...], (1, 2), "x") == (1.0, 2.0)
    refuses(InputError, lambda: parse_value(int, "x", "a.b"), "a.b: must be an integer, got 'x'")


# ---------------------------------------------------------------------------------------------------------------------
# Seeds


@pytest.mark.parametrize("seed", [-1, 2**32, 0.0, "0", True, None, np.float64(1), NAN], ids=repr)
def test_bad_seeds_are_refused(seed):
    assert refuses(InputError, lambda: check_seed(seed)).startswith("seed: must be an integer in [0, 4294967295]")
    assert refuses(InputError, lambda: check_seed(seed, "train.seed")).startswith("train.seed: ")


def test_streams_are_apart():
    assert check_seed(np.int64(5)) == 5
    assert len(set(PURPOSES.values())) == len(PURPOSES)
    # Part of the corpus format: these may not be renumbered.
    assert {name: PURPOSES[name] for name in ("initial", "transition", "emission", "corpus", "train", "evaluate")} == {
        "initial": 1,
        "transition": 2,
        "emission": 3,
        "corpus": 16,
        "train": 17,
        "evaluate": 18,
    }
    assert philox_key(3, "train") == (3, 17)
    refuses(InputError, lambda: philox_key(3, "trian"), "stream: unknown purpose 'trian'")
    seeds = {derived_seed(seed, purpose, i) for seed in range(5) for purpose in ("a", "b") for i in range(5)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derived_seed(0, "model") == derived_seed(0, "model", 0)


def test_derived_seeds_are_pinned():
    assert derived_seed(0, "model") == 3722007867194410669
    assert torch_generator(1, "x").initial_seed() == derived_seed(1, "x")
    one, two = (numpy_generator(1, "x").integers(0, 2**60, 4) for _ in range(2))
    assert one.tolist() == two.tolist()
    assert numpy_generator(2, "x").integers(0, 2**60) != one[0]
