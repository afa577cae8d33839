"""Process files and plain data: bit by bit, or one line that says what is wrong; and seeds."""

import json
import pickle

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

import hmmscope as hs
from comparing import refuses
from hmmscope.errors import DamagedError, HmmscopeError, InputError
from hmmscope.processes.files import shipped_processes
from hmmscope.schema import parse_spec, parse_value, spec_to_data
from hmmscope.seeds import PURPOSES, check_seed, derived_seed, numpy_generator, philox_key, torch_generator
from processes_cases import (
    BAD_DATA,
    BAD_JSON,
    BAD_NPZ,
    ENDINGS,
    GOOD_DATA,
    HALF,
    NAN,
    Canary,
    Outer,
    full_hmm,
    hostile_files,
    json_file,
)


@pytest.mark.parametrize("name", ["hmm", "hmm.pkl", "hmm.yaml", "hmm.JSON", "hmm.npz.gz", ""])
def test_other_endings_are_refused(tmp_path, name):
    refuses(lambda: full_hmm().save(tmp_path / name), "path: must end in .json, .npz or .safetensors")
    refuses(lambda: hs.load_process(tmp_path / name), "process: unknown")
    assert not list(tmp_path.iterdir())


def test_missing_files_and_folders_are_refused(tmp_path):
    refuses(lambda: hs.load_process(tmp_path / "no.json"), "no file")
    (tmp_path / "folder.json").mkdir()
    refuses(lambda: hs.load_process(tmp_path / "folder.json"), "no file")


def test_shipped_processes_load():
    assert {"umbrella", "dishonest-casino"} <= set(shipped_processes())
    for name in shipped_processes():
        hmm = hs.load_process(name)
        assert hmm.title
        assert hmm.source
        assert len(hmm.symbols) == hmm.num_symbols
    refuses(lambda: hs.load_process("umbrell"), "did you mean 'umbrella'?")


@pytest.mark.parametrize("changes, parts", BAD_JSON, ids=lambda x: str(x)[:50])
@pytest.mark.usefixtures("unchecked")
def test_bad_json_fields_are_refused_by_name(tmp_path, changes, parts):
    refuses(lambda: hs.load_process(json_file(tmp_path, **changes)), *parts)


def test_minimal_json_is_enough(tmp_path):
    hmm = hs.load_process(json_file(tmp_path, format="hmmscope-hmm", version=1, symbols=["x", "y"], states=None))
    assert hmm.symbols == ("x", "y")
    assert hmm.states is None
    tiny = json_file(tmp_path, emission=[[1e-15, 1 - 1e-15], HALF])
    assert hs.load_process(tiny, allow_drop_tiny=True).emission[0].tolist() == [0.0, 1.0]


@pytest.mark.usefixtures("unchecked")
def test_names_in_a_file_that_are_no_list_are_refused(tmp_path):
    refuses(lambda: hs.load_process(json_file(tmp_path, symbols=5)), "hmm.json: symbols: must be a list")


def test_an_unknown_field_with_a_newline_is_one_line(tmp_path):
    refuses(lambda: hs.load_process(json_file(tmp_path, **{"a\nb": 1})))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("content", hostile_files("-"))
def test_hostile_files_are_refused_and_nothing_runs(tmp_path, content, ending):
    canary = tmp_path / "canary"
    path = tmp_path / f"hmm{ending}"
    path.write_bytes(hostile_files(canary)[content])
    refuses(lambda: hs.load_process(path), "hmm", kind=(InputError, DamagedError))
    assert not canary.exists()


def test_the_canary_sings(tmp_path):
    """The hostile pickles above would be noticed."""
    pickle.loads(pickle.dumps(Canary(tmp_path / "canary"))).close()
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize("make", [pytest.param(make, marks=mark, id=name) for name, (make, mark) in BAD_NPZ.items()])
def test_bad_archives_are_refused(tmp_path, make):
    path = tmp_path / "hmm.npz"
    path.write_bytes(make())
    refuses(lambda: hs.load_process(path), "hmm.npz", kind=(InputError, DamagedError))


def test_bfloat16_safetensors_are_refused(tmp_path):
    path = tmp_path / "hmm.safetensors"
    one = torch.ones(1, dtype=torch.bfloat16)
    safetensors.torch.save_file({"initial": one, "transition": one[None].clone(), "emission": one[None].clone()}, path)
    refuses(lambda: hs.load_process(path), "initial: ", "bfloat16", kind=(InputError, DamagedError))


@pytest.mark.parametrize("ending", ENDINGS)
def test_truncated_files_are_damaged(tmp_path, ending):
    whole = tmp_path / f"whole{ending}"
    full_hmm().save(whole)
    data = whole.read_bytes()
    path = tmp_path / f"hmm{ending}"
    lengths = range(0, len(data) - 1, 11)
    for length in lengths:
        path.write_bytes(data[:length])
        refuses(lambda: hs.load_process(path), "hmm", kind=DamagedError)


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


@pytest.mark.parametrize("data, spec", GOOD_DATA, ids=lambda x: str(x)[:50])
def test_plain_data_becomes_a_spec(data, spec):
    parsed = parse_spec(Outer, data, "config")
    assert parsed == spec
    assert type(parsed.inner.rate) is float
    assert parse_spec(Outer, json.loads(json.dumps(spec_to_data(parsed))), "") == spec


@pytest.mark.parametrize("data, beginning", BAD_DATA, ids=lambda x: repr(x)[:60])
def test_bad_data_is_refused_by_path(data, beginning):
    message = refuses(lambda: parse_spec(Outer, data, "config"))
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
    message = refuses(lambda: parse_spec(Outer, data, "config"))
    assert message.startswith(beginning), message


def test_a_missing_field_at_the_top_is_named_without_a_dot():
    assert refuses(lambda: parse_spec(Outer, {}, "")) == "steps: is required"


def test_a_wrong_field_at_the_top_is_named_without_a_dot():
    assert refuses(lambda: parse_spec(Outer, {"step": 3}, "")).startswith("step: unknown 'step'")


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
    refuses(lambda: parse_value(int, "x", "a.b"), "a.b: must be an integer, got 'x'")


# ---------------------------------------------------------------------------------------------------------------------
# Seeds


@pytest.mark.parametrize("seed", [-1, 2**32, 0.0, "0", True, None, np.float64(1), NAN], ids=repr)
def test_bad_seeds_are_refused(seed):
    assert refuses(lambda: check_seed(seed)).startswith("seed: must be an integer in [0, 4294967295]")
    assert refuses(lambda: check_seed(seed, "train.seed")).startswith("train.seed: ")


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
    refuses(lambda: philox_key(3, "trian"), "stream: unknown purpose 'trian'")
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
