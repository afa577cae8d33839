"""Every kind of process is saved, loaded and found again, to the bit; tiny probabilities have one rule."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import DamagedError, InputError
from hmmscope.processes.input_output import InputOutputHMM
from hmmscope.processes.process import Process, kinds
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.processes.recorded_vectors import RecordedVectors
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.storage.mapped import map_tensors

HALF, EYE = [0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]]


def named() -> hs.HMM:
    return hs.HMM(HALF, [[0.9, 0.1], HALF], EYE, symbols=["h", "t"], states=["x", "y"], title="a coin", source="me")


MAKERS: dict[str, Callable[[], Process]] = {
    "HMM": named,
    "labelled": lambda: hs.make_process("cyclic-hard"),
    "mixture": lambda: hs.make_process("random-mixture", num_components=3, num_states=4, num_symbols=5),
    "mixture of named": lambda: hs.Mixture([0.25, 0.75], [named(), named()], title="two", source="us"),
    "mixture of labelled": lambda: hs.Mixture(HALF, [hs.make_process("z1r"), hs.make_process("z1r")]),  # type: ignore[list-item]
    "linear": lambda: hs.LinearGaussian(EYE, [[1.0, 2.0]], initial=[3.0, 1 / 3], state_noise=[[2, 1], [1, 3]]),
    "switching": lambda: hs.SwitchingLinearGaussian(
        [[0.9, 0.1], [0.3, 0.7]], [EYE, [[0, 1], [-1, 0]]], [[[1.0, 1 / 3]]] * 2, initial=[3.0, 1 / 3], num_kept=16
    ),
    "generalised": lambda: hs.make_process("probability-clock"),
    "matrices": lambda: hs.make_process("matmul"),
    "fresh": lambda: hs.make_process("fresh-hmms", num_states=3, seed=4),
    "told": lambda: hs.make_process("told-hmms"),
    "pairs": lambda: hs.make_process(
        "composed-cycles", num_parts=4, num_states=6, num_symbols=3, pool="held-out", seed=4
    ),
    "Gaussian": lambda: hs.make_process("random-gaussian"),
    "Gaussian mixtures": lambda: hs.GaussianMixtureHMM(HALF, EYE, [HALF, HALF], [[[1.0], [2]]] * 2, [[[1.0], [2]]] * 2),
    "counts": lambda: hs.PoissonHMM(HALF, EYE, [1 / 3, 2.0], states=["x", "y"]),
    "channels": lambda: hs.MultichannelHMM(HALF, EYE, [EYE, [[0.2, 0.3, 0.5], [1, 0, 0]]], title="two"),
    "mixed": lambda: hs.MixedHMM(HALF, EYE, [0.5, 2.0], [[1.0], [2.0]], [[[0.2, 0.3, 0.5], [1, 0, 0]]], title="both"),
    "inputs": lambda: InputOutputHMM(HALF, [EYE, [HALF, HALF]], [[1.0, 0], [0, 1]], symbols=["h", "t"]),
    "durations": lambda: hs.SemiMarkovHMM(HALF, EYE[::-1], [[0.2, 0.8], [1, 0]], EYE, states=["x", "y"]),
    "numbers": lambda: RecordedVectors(
        hs.read_vectors([[1.5, 2.0], [0.5], [1 / 3]]), split_seed=3, title="lengths", min_variance=0.25
    ),
    "sequences": lambda: RecordedSequences(hs.SequenceData(["abba", "ab", "ba", "aa"], seed=3, title="words")),
}


def test_every_kind_has_a_case() -> None:
    assert {type(make()) for make in MAKERS.values()} == {
        kind for kind in kinds().values() if kind.__module__.startswith("hmmscope")
    }


def drawn(process: Process) -> tuple[torch.Tensor, torch.Tensor]:
    """Nine sequences and their states."""
    if isinstance(process, InputOutputHMM):
        with pytest.raises(InputError, match="pass inputs=, or call `with_policy` to give the inputs a distribution"):
            hs.ProcessDataset(process, 6)[0:9]
        paths = process.sample_given([[0, 1, 1, 0]] * 9)
        return paths.observations, paths.states
    batch = hs.ProcessDataset(process, 6)[0:9]
    return batch.observations, batch.states


@pytest.mark.parametrize("ending", [".json", ".npz", ".safetensors"])
@pytest.mark.parametrize("case", MAKERS)
def test_saved_and_loaded(case: str, ending: str, tmp_path: Path) -> None:
    process, path = MAKERS[case](), tmp_path / f"p{ending}"
    process.save(path)
    found = hs.load_process(path)
    assert type(found) is type(process)
    assert found.digest == process.digest
    for field in ("title", "symbols", "states", "evaluated_after", "num_components", "num_states", "num_symbols"):
        assert getattr(found, field) == getattr(process, field), field
    for one, other in zip(drawn(found), drawn(process), strict=True):
        assert torch.equal(one.nan_to_num(9), other.nan_to_num(9))
    config = RunConfig(process=str(path))
    assert config_from_data(config.to_data()).process.build().digest == process.digest
    found.save(tmp_path / f"again{ending}")
    if ending != ".npz":
        assert (tmp_path / f"again{ending}").read_bytes() == path.read_bytes()


def test_a_mixture_in_safetensors_stays_in_its_file(tmp_path: Path) -> None:
    mixture = MAKERS["mixture"]()
    mixture.save(tmp_path / "m.safetensors")
    tensors, texts = map_tensors(tmp_path / "m.safetensors")
    assert json.loads(texts["hmm"])["format"] == "hmmscope-mixture"
    assert torch.equal(tensors["transition"], mixture.params.transition_MSS)  # type: ignore[union-attr]
    tensors["transition"].zero_()  # a private copy of the page: the file is as it was
    loaded = hs.load_process(tmp_path / "m.safetensors")
    assert loaded.digest == mixture.digest
    lines = Path("/proc/self/maps").read_text().splitlines()
    assert any(line.endswith("m.safetensors") for line in lines)


def test_a_mixture_whose_rows_are_not_exact_is_quantised(tmp_path: Path) -> None:
    data = {"format": "hmmscope-mixture", "version": 1, "weights": [0.5, 0.5], "initial": [[1.0], [1.0]]}
    data |= {"transition": [[[1.0]], [[1.0]]], "emission": [[[1 / 3, 2 / 3]], [[0.1, 0.9]]]}
    (tmp_path / "m.json").write_text(json.dumps(data))
    loaded = hs.load_process(tmp_path / "m.json")
    assert isinstance(loaded, hs.Mixture)
    assert (
        loaded.digest
        == hs.Mixture(HALF, [hs.HMM([1.0], [[1.0]], [row]) for row in ([1 / 3, 2 / 3], [0.1, 0.9])]).digest
    )


@pytest.mark.parametrize(
    "changes, part",
    [
        (
            {"format": "hmmscope-mixtur"},
            "m.json: format is 'hmmscope-mixtur' version 1; this release reads hmmscope-channels-hmm",
        ),
        ({"format": ["x"]}, "m.json: format is ['x']"),
        ({"weights": [0.5, 0.6]}, "m.json: weights: row sums to 1.1"),
        ({"emission": None}, "m.json: emission: must hold real numbers"),
        ({"emission": [[[1.0, 0.1]], [[0.5, 0.5]]]}, "m.json: emission[0][0]: row sums to 1.1"),
        ({"transition": [[[1.0]]]}, "m.json: transition: must have shape 2 x 1 x 1, got 1 x 1 x 1"),
        ({"extra": 1}, "m.json: extra: unknown 'extra'"),
        ({"weights": ...}, "m.json: weights is missing"),
        ({"emission": ...}, "m.json: emission is missing"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_files_are_one_line(changes: dict, part: str, tmp_path: Path) -> None:
    data = {"format": "hmmscope-mixture", "version": 1, "weights": [0.5, 0.5], "initial": [[1.0], [1.0]]}
    data |= {"transition": [[[1.0]], [[1.0]]], "emission": [[[0.5, 0.5]], [[0.1, 0.9]]], **changes}
    (tmp_path / "m.json").write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))
    with pytest.raises(InputError) as caught:
        hs.load_process(tmp_path / "m.json")
    assert part in str(caught.value)


@pytest.mark.parametrize("cut", [0, 4, 9, 100, -1])
def test_torn_safetensors_are_damaged(cut: int, tmp_path: Path) -> None:
    named().save(tmp_path / "p.safetensors")
    data = (tmp_path / "p.safetensors").read_bytes()
    (tmp_path / "p.safetensors").write_bytes(data[:cut])
    with pytest.raises(DamagedError, match="not a complete safetensors file"):
        hs.load_process(tmp_path / "p.safetensors")


def test_a_header_that_points_elsewhere_is_damaged(tmp_path: Path) -> None:
    entry = {"dtype": "F64", "shape": [2**40], "data_offsets": [0, 8]}
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "p.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(DamagedError, match="its size differs from its shape"):
        map_tensors(tmp_path / "p.safetensors")


def test_components_must_name_their_symbols_alike() -> None:
    other = hs.HMM(HALF, EYE, EYE, symbols=["t", "h"])
    with pytest.raises(InputError, match="must have the same symbol names, got h, t and t, h"):
        hs.Mixture(HALF, [named(), other])
    mixture = hs.Mixture(HALF, [named(), hs.HMM(HALF, EYE, EYE, symbols=["h", "t"])])
    assert (mixture.symbols, mixture.states) == (("h", "t"), None)
    assert mixture[0].symbols == ("h", "t")
    assert mixture.first(1).symbols == ("h", "t")


def test_a_process_that_has_changed_is_not_the_one_of_the_configuration(tmp_path: Path) -> None:
    named().save(tmp_path / "p.json")
    config = config_from_data({"process": {"name": "file", "path": str(tmp_path / "p.json"), "digest": named().digest}})
    assert config.process.build().digest == named().digest
    (tmp_path / "p.json").unlink()
    hs.HMM(HALF, EYE, EYE).save(tmp_path / "p.json")
    with pytest.raises(DamagedError, match="the process in this file has changed"):
        config.process.build()


# --------------------------------------------------------------------------------------------------------------------
# Probabilities below 2^-32


@pytest.mark.parametrize("seed", range(5))
def test_tiny_entries_become_the_smallest_possible_with_one_warning(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrices = [rng.dirichlet([0.02] * 128, size) for size in ((), 128, 128)]
    zeros = [rng.random(m.shape) < 0.1 for m in matrices]
    matrices = [np.where(zero, 0.0, m) for zero, m in zip(zeros, matrices, strict=True)]
    matrices = [m / m.sum(-1, keepdims=True) for m in matrices]
    with pytest.warns(UserWarning, match=r"HMM: \d+ positive entries below 2\^-32 were raised to 2\^-32") as caught:
        hmm = hs.HMM(*matrices)
    coarse = r"HMM: rounding to multiples of 2\^-32 .* by a KL divergence of up to \S+ nats per step, more than 1e-06"
    assert [bool(re.match(coarse, str(one.message))) for one in caught] == [
        False,
        True,
    ]  # and how far that moves the law
    for given, kept in zip(matrices, (hmm.initial, hmm.transition, hmm.emission), strict=True):
        kept = kept.numpy()
        assert ((kept > 0) == (given > 0)).all()  # zeros and possibilities are as they were
        assert (kept.sum(-1) == 1).all()
        assert (kept * 2**32 == np.round(kept * 2**32)).all()
        assert np.abs(kept - given).sum(-1).max() < 130 * 2 * 2**-32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hs.HMM(hmm.initial, hmm.transition, hmm.emission).digest == hmm.digest


def test_too_many_tiny_entries_are_refused() -> None:
    row = np.full(5001, 1e-15)
    row[0] = 1 - row[1:].sum()
    with pytest.raises(InputError, match=r"emission\[0\]: 5000 positive entries are below 2\^-32; raising them"):
        hs.HMM([1.0], [[1.0]], row[None])
    assert hs.HMM([1.0], [[1.0]], row[None], allow_drop_tiny=True).emission[0, 0] == 1
