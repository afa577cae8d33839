"""Every number of a registered process at its least and its most, and just beyond; matrices as they are shown; refusals."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope import registry
from hmmscope.errors import DamagedError, InputError
from hmmscope.processes import matrices
from hmmscope.processes.files import load_process
from hmmscope.processes.generalised import GeneralisedHMM
from hmmscope.processes.hmm import asked_after, check_names
from hmmscope.processes.hmm_per_sample import HMMPerSample
from hmmscope.processes.make import make_process
from hmmscope.processes.observations import as_vectors, check_observations
from hmmscope.processes.probability_rows import laws_of, numbers_of, stochastic_rows
from hmmscope.processes.process import Process
from hmmscope.processes.switching import SwitchingLinearGaussian
from hmmscope.processes.vector_process import following
from hmmscope.sequences.encoding import Alphabet

SHARE = ([0.0, 1.0], [-0.01, 1.01])
INSIDE = ([0.01, 0.99], [0.0, 1.0])
CONCENTRATION = ([1e-9, 1e6], [0.9e-9, 1.1e6])
#: Process, other fields, field, values that are taken, values that are not.
FIELDS: list[tuple[str, dict[str, Any], str, list[Any], list[Any]]] = [
    ("aliased-cycles", {"num_states": 1024}, "num_symbols", [1, 1024], [0, 1025, 3]),
    ("aliased-cycles", {"num_symbols": 1}, "num_states", [2, 1024], [1, 1025]),
    ("aliased-cycles", {"num_symbols": 8}, "num_states", [8, 16], [12]),
    *(("aliased-cycles", {}, field, *SHARE) for field in ("follow", "show")),
    ("random-automaton", {"num_symbols": 1}, "num_states", [1, 4096], [0, 4097]),
    ("random-automaton", {"num_states": 1}, "num_symbols", [1, 4096], [0, 4097]),
    ("random-automaton", {"num_states": 256}, "num_symbols", [256], [257]),
    ("word-problem", {}, "num_generators", [0, 59], [-1, 60]),
    ("word-problem", {"group": "Z2"}, "num_generators", [1], [2]),
    ("word-problem", {"group": "Z60"}, "num_generators", [59], [60]),
    ("word-problem", {"group": "S5"}, "num_generators", [119], [120]),
    ("word-problem", {"group": "S3"}, "num_generators", [5], [6]),
    ("composed-cycles", {}, "num_parts", [2, 256], [1, 257]),
    ("cyclic-det", {}, "group_order", [0, 100_000], [-1, 100_001]),
    ("cyclic-det", {"num_symbols": 1}, "num_states", [2, 1024], [1, 1025]),
    ("cyclic-det", {"num_states": 2}, "num_symbols", [1, 4096], [0, 4097]),
    ("cyclic-det", {"num_states": 1024}, "num_symbols", [64], [65]),
    ("cyclic-det", {"distinct": True, "num_states": 4}, "num_symbols", [6], [7]),
    ("cyclic-det", {"distinct": True, "num_states": 8}, "num_symbols", [4096], [4097]),
    ("cyclic-hard", {}, "prediction_rate", [1e-9, 1.0], [0.0, 1.01]),
    ("cyclic-hard", {"num_symbols": 1}, "num_states", [146], [147]),
    ("cyclic-rnd", {}, "backward_probability", *SHARE),
    ("factored-mess3", {}, "num_factors", [1, 4], [0, 5]),
    ("factored-mess3", {}, "driven", [0.0, 0.5], [-0.01, 0.51]),
    ("factored-mess3", {}, "switch", [0.0, 0.5], [-0.01, 0.51]),
    ("bloch-walk", {}, "alpha", [1e-9], [0.0]),
    ("bloch-walk", {}, "beta", [1e-9], [0.0]),
    ("post-quantum", {}, "grow", [1.01, 100.0], [1.0, 100.1]),
    ("post-quantum", {}, "shrink", [0.01, 0.99], [0.009, 1.0]),
    ("probability-clock", {"height": 1e-3}, "damping", *INSIDE),
    ("probability-clock", {"angle": 0.0}, "height", [1e-9, 1.0], [0.0, 1.001]),
    *(("ginc", {}, field, [1], [0]) for field in ("num_components", "num_properties", "num_entities", "num_permutations")),
    ("ginc", {}, "num_symbols", [2, 65536], [1, 65537]),
    ("ginc", {"num_properties": 32}, "num_entities", [32], [33]),
    ("ginc", {}, "temperature", [1e-9], [0.0]),
    ("ginc", {}, "stay", *SHARE),
    ("lazy-chain", {}, "num_states", [1, 65536], [0, 65537]),
    *(("lazy-chain", {}, field, *SHARE) for field in ("stay", "noise")),
    ("fresh-lazy-chains", {}, "num_states", [1, 65536], [0, 65537]),
    *(("fresh-lazy-chains", {}, f"least_{field}", *SHARE) for field in ("stay", "noise")),
    *(("fresh-lazy-chains", {f"least_{field}": 0.5}, f"most_{field}", [0.5, 1.0], [0.49, 1.01])
      for field in ("stay", "noise")),
    ("ran-lds", {}, "dimension", [1, 1024], [0, 1025]),
    ("low-rank-hmm", {}, "rank", [1, 8], [0, 9]),
    ("low-rank-hmm", {}, "observability", *SHARE),
    ("matmul", {"num_symbols": 64}, "dimension", [1, 1024], [0, 1025]),
    ("matmul", {"dimension": 1}, "num_symbols", [1, 4096], [0, 4097]),
    ("matmul", {"num_symbols": 256}, "dimension", [512], [513]),
    ("mess3-mixture", {}, "num_components", [1, 65536], [0, 65537]),
    ("mess3-mixture", {}, "least_switch", [1e-9, 0.25], [0.0, 0.26]),
    ("mess3-mixture", {}, "most_switch", [0.5], [0.51]),
    ("mess3-mixture", {}, "least_emission", [1e-9, 0.95], [0.0, 0.96]),
    ("mess3-mixture", {}, "most_emission", [1.0], [1.01]),
    *(("ran-hmm", {}, field, [1, 4096], [0, 4097]) for field in ("num_states", "num_symbols")),
    *(("random-hmm", {}, field, [1, 65536], [0, 65537]) for field in ("num_states", "num_symbols")),
    *(("random-hmm", {}, f"{kind}_concentration", *CONCENTRATION) for kind in ("transition", "emission")),
    *((name, {}, "num_symbols", [5], [4, 6]) for name in ("markov-chain", "markov-mixture", "fresh-markov-chains")),
    ("random-mixture", {}, "num_components", [1, 65536], [0, 65537]),
    ("random-mixture", {}, "first_component", [0, 2**40 - 1], [-1, 2**40]),
    ("semi-markov", {"longest": 4}, "num_states", [2, 1024], [1, 1025]),
    ("semi-markov", {"num_states": 2}, "longest", [1, 2048], [0, 2049]),
    ("semi-markov", {}, "noise", *SHARE),
    ("mess3", {}, "switch", [0.0, 0.5], [-0.01, 0.51]),
    ("mess3", {}, "emission", *SHARE),
    *((name, {}, "zero_probability", *INSIDE) for name in ("golden-mean", "even")),
    *(("simple-nonunifilar", {}, field, *INSIDE) for field in ("leave", "reset")),
    *(("told-hmms", {"denominator": 2**16}, field, [2, 64], [1, 65]) for field in ("num_states", "num_symbols")),
    ("told-hmms", {}, "denominator", [2, 2**16], [1, 3, 12, 2**17]),
    ("told-hmms", {}, "least", [0, 8], [-1, 9]),
    *(("told-hmms", {}, f"{kind}_concentration", *CONCENTRATION) for kind in ("transition", "emission")),
    *(("told-cycles", {}, field, *SHARE) for field in ("follow", "show")),
    ("told-sharp-hmms", {}, "sharp", *SHARE),
    ("told-slow-hmms", {}, "stay", *SHARE),
    ("told-slow-hmms", {}, "emission_concentration", *CONCENTRATION),
    ("told-sparse-hmms", {"num_symbols": 3}, "support", [1, 2], [0, 3]),
    ("told-sparse-hmms", {}, "least", [0], [1]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "beside", "field", "good", "bad"), FIELDS, ids=lambda one: one if isinstance(one, str) else ""
)
def test_a_field_is_taken_up_to_its_edge(
    name: str, beside: dict[str, Any], field: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        made = registry.build_spec("process", {"name": name, **beside, field: value}, "process")
        assert getattr(made, field) == value
    for value in bad:
        with pytest.raises(InputError, match=rf"^process\.({field}|num_|least)"):
            registry.build_spec("process", {"name": name, **beside, field: value}, "process")


def bases(name: str) -> set[type]:
    return {*registry.entries("process")[name].__mro__[1:-1]}


def test_kinds_of_one_family_share_its_edges() -> None:
    """What a kind refuses of a field that its family has, the others of the family refuse."""
    seen, alone = 0, {("cyclic-hard", "num_states"), ("told-sparse-hmms", "least")}  # which have rules of their own
    for name, beside, field, _, bad in FIELDS:
        for base in bases(name):
            if "markov" in name or (name, field) in alone:
                continue
            if {field, *beside} <= {one.name for one in fields(base)}:
                for other in (one for one in registry.entries("process") if base in bases(one)):
                    for value in bad:
                        seen += 1
                        with pytest.raises(InputError):
                            registry.build_spec("process", {"name": other, **beside, field: value}, "process")
    assert seen > 100


def test_seeds_of_every_kind_have_32_bits() -> None:
    kinds = registry.entries("process").items()
    seeded = [name for name, kind in kinds if any(one.name == "seed" for one in fields(kind))]
    assert len(seeded) > 20
    for name in seeded:
        assert registry.build_spec("process", {"name": name, "seed": 2**32 - 1}, "process").seed == 2**32 - 1
        for seed in (-1, 2**32):
            with pytest.raises(InputError, match=r"seed: must be"):
                registry.build_spec("process", {"name": name, "seed": seed}, "process")


def test_a_process_that_has_changed_is_told_by_twelve_digits(tmp_path: Path) -> None:
    process = load_process("umbrella")
    process.save(tmp_path / "a.json")
    spec = {"name": "file", "path": str(tmp_path / "a.json")}
    assert registry.build_spec("process", spec | {"digest": process.digest}, "process").build().digest == process.digest
    other = "0123456789abcdef" * 4
    said = rf"the process in this file has changed \(its digest is now {process.digest[:12]}, not {other[:12]}\)"
    with pytest.raises(DamagedError, match=said):
        registry.build_spec("process", spec | {"digest": other}, "process").build()
    given = registry.build_spec("process", {"name": "given", "kind": "HMM", "digest": other}, "process")
    with pytest.raises(
        InputError, match=rf"the HMM object with digest {other[:12]} is not in this configuration; pass it again"
    ):
        given.build()


def test_a_group_and_its_table() -> None:
    """Identity first, each row and column a permutation, as many elements as the group has; A5 is not abelian."""
    from hmmscope.processes.automata import multiplication_table

    for group, size, abelian in (("Z2", 2, True), ("Z60", 60, True), ("A5", 60, False), ("S3", 6, False)):
        table = multiplication_table(group)
        assert table.shape == (size, size)
        assert table[0].tolist() == table[:, 0].tolist() == list(range(size))
        assert (np.sort(table, 0) == np.arange(size)[:, None]).all()
        assert bool((table == table.T).all()) is abelian
        assert (table[table[3 % size, 1], 2 % size] == table[3 % size, table[1, 2 % size]]).all()


def test_few_numbers_are_written_and_many_drawn() -> None:
    """10 rows and 12 columns at most; then blocks, by their largest entry, in shades from 0.02, 0.1, 0.3 and 0.6 on."""
    rows, columns = [f"r{number}" for number in range(11)], [f"c{number}" for number in range(13)]
    law = torch.zeros(11, 13, dtype=torch.float64)
    law[0, :6] = torch.tensor([0.6, 0.3, 0.1, 0.02, 0.019, 1.0], dtype=torch.float64)
    few = matrices.as_text("t", rows[:10], columns[:12], law[:10, :12])
    assert few[0] == "  t      c0     c1     c2     c3     c4     c5     c6     c7     c8     c9    c10    c11"
    assert few[1].split() == ["r0", "0.600", "0.300", "0.100", "0.020", "0.019", "1.000", *["0.000"] * 6]
    for size in ((11, 12), (10, 13)):
        many = matrices.as_text("t", rows[: size[0]], columns[: size[1]], law[: size[0], : size[1]])
        assert many[0] == f"  t ({size[0]} × {size[1]}; ░ from 0.02, ▒ from 0.1, ▓ from 0.3, █ from 0.6)"
        assert many[1] == f"  {'r0':<{len(rows[size[0] - 1])}}  |█▓▒░ █" + " " * (size[1] - 6) + "|"
        assert len(many) == 1 + size[0]
        assert matrices.as_html("t", rows[: size[0]], columns[: size[1]], law[: size[0], : size[1]]).startswith(
            "<figure"
        )
    assert matrices.as_html("t", rows[:10], columns[:12], law[:10, :12]).startswith("<table")
    wide = torch.zeros(41, 145, dtype=torch.float64)
    wide[40, 144] = 1
    drawn = matrices.as_text("t", ["a"] * 41, ["b"] * 145, wide)
    assert (len(drawn), drawn[1], drawn[-1]) == (1 + 21, f"    |{' ' * 49}|", f"    |{' ' * 48}█|")
    page = matrices.as_html("<t>", ["a"] * 41, ["b"] * 97, wide[:, 48:])
    assert "&lt;t&gt; (41 × 97)" in page
    assert "viewBox='0 0 49 41' width='392' height='328'" in page
    assert page.count("<path") == 1
    assert "<path fill-opacity='1' d='M48 40h1v1h-1z'/>" in page
    faint = torch.full((13, 13), 0.0049, dtype=torch.float64)
    faint[0, 1], faint[1, 0], faint[2, 0] = 0.005, 0.25, 0.25
    page = matrices.as_html("t", ["a"] * 13, ["b"] * 13, faint)
    assert (
        "<path fill-opacity='0.125' d='M1 0h1v1h-1z'/><path fill-opacity='0.5' d='M0 1h1v1h-1zM0 2h1v1h-1z'/>" in page
    )
    assert "width='104'" in page
    assert matrices.brief_names(None, 2, "s") == ["s0", "s1"]


VECTORS = np.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize(
    ("given", "coordinates", "lengths", "said"),
    [
        ([VECTORS, VECTORS[:1]], 2, [3, 1], "lengths: must be omitted, because each array of the list is one sequence"),
        ("text", 2, None, r"^text: cannot read numbers from a file without ending; use one of .csv, .tsv"),
        (b"text", 2, None, r"observations: must be numbers \(batch, time, coordinate\), got b'text'"),
        (VECTORS > 1, 3, None, r"must have shape \(batch, time, 3\), or \(time, 3\) for one sequence, got \(3, 2\)$"),
        (VECTORS * 1j, 2, None, "observations: must be numbers, got torch.complex128"),
        (VECTORS, 3, None, r"must have shape \(batch, time, 3\), or \(time, 3\) for one sequence, got \(3, 2\)$"),
        (VECTORS, 1, None, r"got \(3, 2\); pass X\[..., None\] if X is \(sequence, time\)"),
        (VECTORS[0], 2, None, r"got \(2,\)$"),
        (VECTORS[None, None], 2, None, r"got \(1, 1, 3, 2\)$"),
        (
            np.where(VECTORS == 3, np.inf, VECTORS),
            2,
            None,
            r"observations\[1\]: must be finite; use NaN for a missing entry",
        ),
        (VECTORS, 2, [1, 1], "lengths: must be integers >= 0 that sum to the 3 rows"),
        (VECTORS, 2, [4, -1], "lengths: must be integers >= 0 that sum to the 3 rows"),
        (VECTORS, 2, [1.5, 1.5], "lengths: must be integers >= 0 that sum to the 3 rows"),
        (VECTORS[None], 2, [4], r"lengths: must be 1 integers in \[0, 3\]"),
        (VECTORS[None], 2, [1, 2], r"lengths: must be 1 integers in \[0, 3\]"),
        (VECTORS[None], 2, [1.5], r"lengths: must be 1 integers in \[0, 3\]"),
    ],
)
def test_vectors_that_are_none_are_refused(given: Any, coordinates: int, lengths: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        as_vectors(given, coordinates, lengths)


def test_vectors_are_padded_with_what_is_missing() -> None:
    for given, lengths, counts in (
        ([VECTORS, VECTORS[:1]], None, [3, 1]),
        (np.concatenate([VECTORS, VECTORS[:1]]), [3, 1], [3, 1]),
        (np.stack([VECTORS, VECTORS]), [3, 1], [3, 1]),
    ):
        found, known = as_vectors(given, 2, lengths)
        assert known.tolist() == counts
        assert found[0].tolist() == VECTORS.tolist()
        assert torch.equal(found[1].nan_to_num(-1), torch.tensor([[0.0, 1.0], [-1, -1], [-1, -1]], dtype=torch.float64))
    masked = np.ma.masked_equal(VECTORS, 3.0)
    assert as_vectors(masked, 2)[0].isnan().nonzero().tolist() == [[0, 1, 1]]
    assert as_vectors(VECTORS[:, 0], 1)[0].shape == (1, 3, 1)
    assert as_vectors(VECTORS[None], 2, [0])[0].isnan().all()


def test_what_a_kind_does_not_know_is_said() -> None:
    """For each question that a process may be asked."""
    bare = type("Bare", (Process,), {"num_states": 2, "num_symbols": 2, "symbols": None, "states": None})
    process, none = bare.__new__(bare), torch.zeros(1, 1, dtype=torch.int64)
    for ask in (
        lambda: process.observe(none),
        lambda: process.smooth(none),
        lambda: process.viterbi(none),
        lambda: process.sample_posterior_paths(none, num_paths=1, seed=0),
        lambda: process.fixed_memory_predictions(none, 1),
        process.mixing_time,
        lambda: process.vectors(none),
        process.driving_matrices,
        lambda: process.component(0),
        lambda: process.encode_header(none),
        lambda: process.decode_header(none),
    ):
        with pytest.raises(InputError, match="process: Bare has no "):
            ask()
    with pytest.raises(InputError, match="Bare has no finite state matrices"):
        _ = process.params
    with pytest.raises(InputError, match="path: Bare has no file format and cannot be saved"):
        process.file_tensors()
    with pytest.raises(InputError, match="Bare has no predictions from beliefs"):
        following(process, torch.ones(1, 2, dtype=torch.float64))
    assert (process.window, process.num_components, process.part("x"), process.subsample_components(2)) == (
        None,
        None,
        None,
        None,
    )
    assert (process.card(), process.facts(), process.facts_data()) == ([], [], {})


ROW = [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: stochastic_rows("a", np.zeros((0, 2)), (None, 2)), "a: is empty; a process has at least one state"),
        (lambda: laws_of("a", np.zeros((0, 2)), (None, 2)), "a: is empty; a process has at least one state"),
        (lambda: laws_of("a", [[1.1, -0.1]], (1, 2)), "a: must not be negative, got -0.1"),
        (lambda: laws_of("a", [[0.5, 0.5 + 2e-6]], (1, 2)), r"a: must have rows that sum to 1 within 1e-06, got 1\.00000"),
        (lambda: laws_of("a", ROW, (1, 3)), "a: must have shape 1 x 3, got 1 x 2"),
        (lambda: laws_of("a", 1.0, (None,)), "a: must have shape any, got a single number"),
        (lambda: numbers_of("a", [np.inf], (None,)), "a: must be finite"),
        (lambda: numbers_of("a", [[1.0], [1.0, 2.0]], (None, None)), "a: rows have different lengths"),
        (lambda: numbers_of("a", ["x"], (None,)), "a: must hold real numbers in 32 bits or more, got <U1"),
        (lambda: numbers_of("a", np.ones(2, np.float16), (None,)), "in 32 bits or more, got float16"),
        (lambda: numbers_of("a", torch.ones(2).bfloat16(), (None,)), "got torch.bfloat16"),
        (lambda: hs.Mixture([1.0], [load_process("umbrella")]).first(0), r"count: must be in \[1, 1\], got 0"),
        (lambda: hs.Mixture([1.0], [load_process("umbrella")]).first(2), r"count: must be in \[1, 1\], got 2"),
        (lambda: asked_after({"evaluated_after": 2}, 2), r"evaluated_after: must be a symbol in \[0, 2\), got 2"),
        (lambda: asked_after({"evaluated_after": -1}, 2), r"evaluated_after: must be a symbol in \[0, 2\), got -1"),
        (lambda: check_names("states", ["a", ""], 2), "states: must be a list of non-empty texts"),
        (lambda: check_names("states", "ab", 2), "states: must be a list of non-empty texts"),
        (lambda: check_names("states", ["a", "a"], 2), r"states: must be 2 different names, got 2 \(1 different\)"),
        (lambda: check_names("states", ["a"], 2), r"states: must be 2 different names, got 1 \(1 different\)"),
        (lambda: GeneralisedHMM([1.0], [[[np.nan]]]), "labelled: must be finite numbers for at least one symbol"),
        (lambda: GeneralisedHMM([1.0], np.zeros((0, 1, 1))), "labelled: must be finite numbers for at least one symbol"),
        (lambda: GeneralisedHMM([1.0 + 2e-9], [[[1.0]]]), "initial: must sum to 1 within 1e-09"),
        (lambda: HMMPerSample.from_file({"spec": {"name": "mess3"}}), "spec: must describe an unbounded pool of HMMs, got"),
        (lambda: SwitchingLinearGaussian.from_file({"num_kept": "4"}), "num_kept: must be an integer, got '4'"),
        (lambda: check_observations([[0, 1], [1]], Alphabet(None, 2)), "must have sequences of equal length here"),
        (lambda: check_observations(torch.zeros(1, 0), Alphabet(None, 2)), "observations: must not be empty"),
        (lambda: check_observations(torch.zeros(1, 2, 3), Alphabet(None, 2)), r"shape \(batch, time\), got \(1, 2, 3\)"),
        (lambda: check_observations("01", Alphabet(None, 2)), "observations: 01: cannot be read .*; pass symbols"),
        (lambda: check_observations([[0], [1]], Alphabet(None, 2)), "2 lists of one symbol can be read in two ways"),
        (lambda: check_observations(["c"], Alphabet(("a", "b"), 2)), "observations: sequence 1, symbol 1: 'c' is not"),
        (lambda: make_process("mess4"), r"process\.name: unknown 'mess4'"),
        (lambda: load_process("mess4"), "mess4"),
    ],
)  # fmt: skip
def test_what_is_no_process_or_observation_is_refused(call: Any, said: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=said):
        call()


def test_what_is_at_the_edge_is_taken() -> None:
    assert asked_after({"evaluated_after": 1}, 2) == 1
    assert asked_after({"evaluated_after": 0}, 2) == 0
    assert asked_after({}, 2) is None
    assert laws_of("a", [[0.5, 0.5 + 9e-7]], (1, 2)).sum() == pytest.approx(1, abs=1e-15)
    exact = [[0.1, 0.9 + 9e-14]]
    assert laws_of("a", exact, (1, 2)).tolist() == exact  # as they are, so that what is read back has the same bits
    assert GeneralisedHMM([1.0 + 9e-10], [[[1.0]]]).num_states == 1
    assert SwitchingLinearGaussian.from_file  # its default is in the table of defaults
    one = hs.Mixture([0.5, 0.5], [load_process("umbrella")] * 2)
    assert (one.first(1).num_components, one.subsample_components(9).num_components) == (1, 2)


def test_many_numbers_are_no_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hmmscope.processes import formats

    size = sum(one.numel() for one in load_process("umbrella").file_tensors().values())
    monkeypatch.setattr(formats, "_MOST_IN_JSON", size)
    load_process("umbrella").save(tmp_path / "a.json")
    monkeypatch.setattr(formats, "_MOST_IN_JSON", size - 1)
    with pytest.raises(InputError, match=f"path: {size} numbers are too many for a .json file; use .safetensors"):
        load_process("umbrella").save(tmp_path / "b.json")
    load_process("umbrella").save(tmp_path / "b.npz")
    with pytest.raises(InputError, match=r"path: must end in \.json, \.npz or \.safetensors"):
        load_process("umbrella").save(tmp_path / "b.txt")
