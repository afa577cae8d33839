"""Processes: what is refused and how, what is rounded, and files that come back bit by bit or are called damaged."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hmmscope as hs
from comparing import refuses
from hmmscope import registry
from hmmscope.errors import RefusedError
from hmmscope.kernels.quantise import UNIT
from processes_cases import (
    BAD_MATRICES,
    BAD_MIXTURES,
    BAD_NAMES,
    BAD_PROCESSES,
    ENDINGS,
    EYE,
    GOOD_TYPES,
    HALF,
    INF,
    NAN,
    coin,
    full_hmm,
    same_hmm,
)
from strategies import KINDS, dense


@pytest.mark.parametrize("field, value, beginning, part", BAD_MATRICES, ids=lambda x: str(x)[:40])
def test_bad_matrices_are_refused_by_name_and_row(field, value, beginning, part):
    matrices = {"initial": HALF, "transition": EYE, "emission": EYE} | {field: value}
    message = refuses(lambda: hs.HMM(**matrices), part)
    assert message.startswith(beginning), message


def test_bfloat16_is_refused_by_name():
    refuses(lambda: hs.HMM(HALF, EYE, torch.eye(2, dtype=torch.bfloat16)), "emission: ", "bfloat16")


@given(st.integers(0, 3), st.integers(0, 3), st.sampled_from([NAN, INF, -INF, -0.25, -1e-12, 2.0, 1.001]))
def test_any_bad_entry_is_found(row, column, value):
    transition = np.full((4, 4), 0.25)
    transition[row, column] = value
    place = f"transition[{row}]"
    message = refuses(lambda: hs.HMM([0.25] * 4, transition, [[1.0]] * 4))
    assert message.startswith(place)


@pytest.mark.parametrize("matrix", GOOD_TYPES, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'dtype', '')}")
def test_exact_numbers_of_any_type_are_read(matrix):
    hmm = hs.HMM(HALF, matrix, matrix)
    assert hmm.transition.dtype == torch.float64
    assert torch.equal(hmm.emission, torch.eye(2, dtype=torch.float64))
    assert not hmm.transition.requires_grad


def test_the_caller_keeps_his_arrays():
    matrix = np.eye(2)
    hmm = hs.HMM(HALF, matrix, matrix)
    matrix[:] = 0.5
    assert torch.equal(hmm.transition, torch.eye(2, dtype=torch.float64))


def test_rows_become_multiples_of_a_unit():
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 7, 64):
        matrices = [rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size), size), rng.dirichlet(np.ones(5), size)]
        hmm = hs.HMM(*matrices)
        stored = [hmm.initial, hmm.transition, hmm.emission]
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
        kept = (hmm.initial, hmm.transition, hmm.emission)
        for given_rows, exact in zip(matrices, kept, strict=True):
            np.testing.assert_array_equal(exact.numpy(), given_rows)


def test_tiny_probabilities_are_dropped_only_on_request():
    tiny = [[2**-40, 1 - 2**-40], [0.0, 1.0]]
    with pytest.warns(
        UserWarning, match=r"1 positive entry below 2\^-32 was raised to 2\^-32 \(first emission\[0\]\[0\] = 9"
    ):
        kept = hs.HMM(HALF, EYE, tiny)
    assert kept.emission.tolist() == [[2**-32, 1 - 2**-32], [0.0, 1.0]]
    hmm = hs.HMM(HALF, EYE, tiny, allow_drop_tiny=True)
    assert hmm.emission.tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert hmm.quantisation_change == 2**-40
    assert hs.HMM(HALF, EYE, [[2**-32, 1 - 2**-32], HALF]).emission[0, 0] == 2**-32


def test_sums_within_the_tolerance_are_normalised():
    hmm = hs.HMM([0.5 + 4e-7, 0.5 + 4e-7], EYE, EYE)
    assert hmm.initial.tolist() == HALF


@pytest.mark.parametrize("field, names, beginning", BAD_NAMES, ids=repr)
@pytest.mark.usefixtures("unchecked")
def test_bad_names_are_refused(field, names, beginning):
    message = refuses(lambda: hs.HMM(HALF, EYE, EYE, **{field: names}))
    assert message.startswith(beginning)


@pytest.mark.usefixtures("unchecked")
def test_names_that_are_no_list_are_refused():
    refuses(lambda: hs.HMM(HALF, EYE, EYE, symbols=5), "symbols: must be a list")


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
    stacked = hs.Mixture.from_law([0.25] * 4, mixture.params)
    assert stacked.digest == mixture.digest
    assert coin().num_components is None


@pytest.mark.parametrize("weights, components, beginning", BAD_MIXTURES, ids=lambda x: str(x)[:50])
def test_bad_mixtures_are_refused(weights, components, beginning):
    message = refuses(lambda: hs.Mixture(weights, components))
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
    assert hs.HMM([1.0], [[1.0]], [HALF], title="titled").digest == coin().digest


def test_names_are_part_of_the_digest_and_not_of_the_law():
    plain, named = coin(), hs.HMM([1.0], [[1.0]], [HALF], symbols=["h", "t"])
    turned = hs.HMM([1.0], [[1.0]], [HALF], symbols=["t", "h"])
    stated = hs.HMM([1.0], [[1.0]], [HALF], states=["h"])
    assert len({p.digest for p in (plain, named, turned, stated)}) == 4
    assert len({p.params_digest for p in (plain, named, turned, stated)}) == 1
    assert plain.digest == plain.params_digest
    assert hs.ProcessDataset(named, 5).digest(9) == hs.ProcessDataset(plain, 5).digest(9)


# ---------------------------------------------------------------------------------------------------------------------
# Families


def test_random_hmm_is_a_function_of_its_fields():
    base = hs.make_process("random-hmm", num_states=4, num_symbols=3, seed=1)
    assert (base.num_states, base.num_symbols) == (4, 3)
    assert hs.make_process("random-hmm", num_states=4, num_symbols=3, seed=1).digest == base.digest
    assert hs.make_process("random-hmm", num_states=4, num_symbols=3, seed=2).digest != base.digest
    sharper = hs.make_process("random-hmm", num_states=4, num_symbols=3, seed=1, transition_concentration=0.01)
    assert not torch.equal(sharper.transition, base.transition)
    assert torch.equal(sharper.emission, base.emission)


def test_components_depend_on_their_number_alone():
    def pool(first, count):
        return hs.make_process(
            "random-mixture", num_components=count, num_states=5, num_symbols=4, seed=3, first_component=first
        )

    whole, later, far = pool(0, 12), pool(8, 10), pool(2**40 - 3, 2)
    for m in range(4):
        assert torch.equal(whole.params.transition_MSS[8 + m], later.params.transition_MSS[m])
        assert torch.equal(whole.params.emission_MSV[8 + m], later.params.emission_MSV[m])
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
        for matrix in (mixture.component_weights, *mixture.params.rows()):
            units = matrix.numpy() * UNIT
            assert (units >= 0).all()
            np.testing.assert_array_equal(units, np.floor(units))
            np.testing.assert_array_equal(units.sum(-1), UNIT)


@pytest.mark.parametrize("name, fields, parts", BAD_PROCESSES, ids=lambda x: str(x)[:45])
def test_bad_process_requests_are_refused_by_field(name, fields, parts):
    refuses(lambda: hs.make_process(name, **fields), *parts)


def test_every_registered_process_but_files_is_built_from_its_defaults_or_refused():
    assert {"random-hmm", "random-mixture", "file"} <= set(registry.entries("process"))
    assert registry.entries("process")["random-hmm"].name == "random-hmm"
    for data in (None, {}, {"name": 5}, [], "random-hmm"):
        refuses(lambda data=data: registry.build_spec("process", data, "config.process"), "config.process.name")


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
    refuses(lambda: full_hmm().save(path), "exists", kind=RefusedError)
    assert path.read_bytes() == b"precious"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_the_distance_from_the_given_law_is_its_divergence_and_a_far_one_is_said():
    """The sum over matrices of the largest KL of a row; tiny entries cost by their logarithm."""
    emission = np.array([[0.3, 0.7 - 1e-12, 1e-12]])
    with pytest.warns(UserWarning, match="1 positive entry below"):
        hmm = hs.HMM([1.0], [[1.0]], emission)
    q, p = hmm.emission.numpy()[0], emission[0]
    assert hmm.quantisation_distance == pytest.approx(float((q * np.log(q / p)).sum()), rel=1e-3)
    assert hs.HMM([1.0], [[1.0]], hmm.emission).quantisation_distance == 0
    assert hs.HMM([1.0], [[1.0]], emission, allow_drop_tiny=True).quantisation_distance == pytest.approx(1e-12, rel=0.5)
    far = np.full((1, 60), 1e-300)
    far[0, 0] = 1 - far[0, 1:].sum()
    with pytest.warns(UserWarning, match=r"nats per step, more than 1e-06; set entries of"):
        assert hs.HMM([1.0], [[1.0]], far).quantisation_distance > 1e-6
