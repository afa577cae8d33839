"""Pools in which counting symbols is useless: exact laws, parts that are disjoint and complete, fresh samples."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError, ResourceError
from hmmscope.processes.aliased_cycles import AliasedCyclesMixtureSpec, mostly
from hmmscope.processes.composed_cycles import ComposedCycles, ComposedCyclesSpec
from hmmscope.processes.mixture import Mixture
from oracles import exact, first_law

UNIT = 2**32
SIZES = [(16, 8), (24, 4), (6, 3), (5, 5), (7, 1), (2, 2)]
POOLS = ("train", "held-out", "all", "new-cycles", "new-emissions", "new")


def aliased(num_states: int = 6, num_symbols: int = 3, **fields: object) -> Mixture:
    sizes = {"num_components": 4, "num_states": num_states, "num_symbols": num_symbols}
    pool = hs.make_process("aliased-cycles-mixture", **sizes | fields)
    assert isinstance(pool, Mixture)
    return pool


def composed(pool: str = "train", num_parts: int = 6, **fields: object) -> ComposedCycles:
    found = hs.make_process(
        "composed-cycles", **{"num_parts": num_parts, "pool": pool, "num_states": 6, "num_symbols": 3} | fields
    )
    assert isinstance(found, ComposedCycles)
    return found


def units(rows: torch.Tensor) -> np.ndarray:
    weights = rows.numpy() * UNIT
    assert np.array_equal(weights, np.round(weights))
    return weights.astype(np.int64)


# Aliased cycles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_states, num_symbols", SIZES)
@pytest.mark.parametrize("follow, show", [(0.9, 0.95), (1.0, 1.0), (0.0, 0.0), (1 / 3, 0.7)])
def test_uniform_laws_are_stationary_in_the_integers(
    num_states: int, num_symbols: int, follow: float, show: float
) -> None:
    for pool in (
        aliased(num_states, num_symbols, follow=follow, show=show),
        composed("all", 3, num_states=num_states, num_symbols=num_symbols, follow=follow, show=show),
    ):
        transition, emission = units(pool.params.transition_MSS), units(pool.params.emission_MSV)
        assert (transition.sum(2) == UNIT).all()
        assert (transition.sum(1) == UNIT).all()  # the uniform law stays, exactly
        assert (emission.sum(2) == UNIT).all()
        assert (emission.sum(1) == UNIT * (num_states // num_symbols)).all()  # and shows every symbol equally often
        assert np.abs(transition.max(2) - UNIT * (follow + (1 - follow) / num_states)).max() <= num_states / 2
        assert np.abs(emission.max(2) - UNIT * (show + (1 - show) / num_symbols)).max() <= num_symbols / 2


def test_every_component_has_the_same_law_of_a_symbol_at_every_time() -> None:
    for hmm in (*aliased(8, 4), *composed("all", 2, num_states=8, num_symbols=4)):
        initial, transition, emission = exact((hmm.initial, hmm.transition, hmm.emission))
        law = initial
        for _ in range(4):
            assert first_law((law, transition, emission)) == [Fraction(1, 4)] * 4
            law = [sum(law[i] * transition[i][j] for i in range(8)) for j in range(8)]


@pytest.mark.parametrize("num_states, num_symbols", SIZES)
def test_each_component_follows_one_cycle_and_shows_its_symbols(num_states: int, num_symbols: int) -> None:
    pool = aliased(num_states, num_symbols)
    for following, shown in zip(pool.params.transition_MSS.argmax(2), pool.params.emission_MSV.argmax(2), strict=True):
        visited, state = [], 0
        for _ in range(num_states):
            visited.append(state)
            state = int(following[state])
        assert sorted(visited) == list(range(num_states))
        assert state == 0
        assert shown.tolist() == [s % num_symbols for s in range(num_states)]


def test_components_depend_on_their_number_alone() -> None:
    pool, tail = aliased(seed=3), aliased(num_components=2, first_component=2, seed=3)
    assert torch.equal(pool.params.transition_MSS[2:], tail.params.transition_MSS)
    one = hs.make_process("aliased-cycles", num_states=6, num_symbols=3, seed=3)
    assert one.digest == pool[0].digest
    assert len({component.digest for component in aliased(16, 8, num_components=40)}) == 40
    assert pool.digest == aliased(seed=3).digest != aliased(seed=4).digest


def test_cycles_are_uniform() -> None:
    """Of 4 states there are 6 cycles: chi-square with 5 degrees of freedom, 1e-5 beyond 30.9."""
    cycles = AliasedCyclesMixtureSpec(num_states=4, num_symbols=2).cycles(np.arange(6000))
    _, counts = np.unique(cycles.numpy(), axis=0, return_counts=True)
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 30.9


def test_refused_sizes() -> None:
    for name, fields, message in (
        ("aliased-cycles", {"num_states": 10, "num_symbols": 4}, "num_states: must be a multiple of num_symbols = 4"),
        ("aliased-cycles", {"num_states": 1, "num_symbols": 1}, r"num_states: must be in \[2, 1024\]"),
        ("aliased-cycles", {"follow": 1.5}, r"follow: must be in \[0, 1\]"),
        ("aliased-cycles", {"show": float("nan")}, "show"),
        ("aliased-cycles-mixture", {"num_components": 0}, "num_components"),
        ("composed-cycles", {"num_parts": 1}, r"num_parts: must be in \[2, 256\]"),
        ("composed-cycles", {"pool": "hold-out"}, "pool"),
    ):
        with pytest.raises(InputError, match=message):
            hs.make_process(name, **fields)
    with pytest.raises(ResourceError, match="process \\(65536 components\\)"):
        hs.make_process("aliased-cycles-mixture", num_components=65536, num_states=1024, num_symbols=2)


def test_mostly_of_one_outcome_is_certain() -> None:
    assert mostly(torch.zeros(3, dtype=torch.int64), 1, 0.4).tolist() == [[1.0]] * 3


# Composed cycles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_parts", [2, 5, 32])
def test_the_two_halves_are_disjoint_and_complete(num_parts: int) -> None:
    pairs = {pool: {tuple(pair) for pair in composed(pool, num_parts).pairs_M.tolist()} for pool in POOLS}
    assert pairs["train"] | pairs["held-out"] == pairs["all"]
    assert not pairs["train"] & pairs["held-out"]
    assert abs(len(pairs["train"]) - len(pairs["held-out"])) == num_parts % 2
    old, new = set(range(num_parts)), set(range(num_parts, 2 * num_parts))
    for pool, cycles, emissions in (
        ("all", old, old),
        ("new-cycles", new, old),
        ("new-emissions", old, new),
        ("new", new, new),
    ):
        assert pairs[pool] == {(a, b) for a in cycles for b in emissions}
        assert len(composed(pool, num_parts)) == num_parts**2


def test_the_halves_are_the_same_hmms_as_the_whole() -> None:
    digests = {pool: [hmm.digest for hmm in composed(pool)] for pool in POOLS}
    assert len(set(digests["all"])) == 36
    assert sorted(digests["train"] + digests["held-out"]) == sorted(digests["all"])
    assert not set(digests["new"]) & set(digests["all"])


def test_a_pair_is_its_cycle_and_its_emission() -> None:
    for pool in POOLS:
        found = composed(pool)
        cycles, emissions = found.pairs_M.T.numpy()
        assert torch.equal(found.params.transition_MSS, found.spec.transitions(cycles))
        assert torch.equal(found.params.emission_MSV, found.spec.emissions(emissions))
    shown = composed("all", 6).spec.emissions(np.arange(40)).argmax(2)
    assert (torch.nn.functional.one_hot(shown).sum(1) == 2).all()
    assert len({tuple(row) for row in shown.tolist()}) > 20


def test_halves_differ_by_seed_and_parts_are_those_of_larger_pools() -> None:
    assert not torch.equal(composed(seed=0).pairs_M, composed(seed=1).pairs_M)
    assert composed(seed=1).digest == composed(seed=1).digest
    small, large = composed("all", 3), composed("all", 6)
    places = [6 * (m // 3) + m % 3 for m in range(9)]
    assert torch.equal(small.params.transition_MSS, large.params.transition_MSS[places])
    assert torch.equal(small.params.emission_MSV, large.params.emission_MSV[places])


def test_only_held_out_pairs_have_a_prior() -> None:
    for pool in POOLS:
        prior = composed(pool).prior
        assert (prior is None) == (pool != "held-out")
    prior = composed("held-out", 5).prior
    assert prior.process.digest == composed("all", 5).digest
    assert prior.weight == 13 / 25
    assert composed("held-out").first(3).prior is None


@pytest.mark.parametrize("ending", ["json", "npz", "safetensors"])
def test_files_keep_the_prior(ending: str, tmp_path: Path) -> None:
    pool = composed("held-out", 4, seed=3)
    pool.save(tmp_path / f"pool.{ending}")
    again = hs.load_process(tmp_path / f"pool.{ending}")
    assert isinstance(again, ComposedCycles)
    assert again.digest == pool.digest
    assert torch.equal(again.pairs_M, pool.pairs_M)
    assert again.prior.process.digest == composed("all", 4, seed=3).digest
    pool.first(2).save(tmp_path / f"few.{ending}")
    assert type(hs.load_process(tmp_path / f"few.{ending}")) is Mixture


# Fresh pools ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fresh-aliased-cycles", "fresh-markov-chains", "fresh-hmms"])
def test_fresh_components_are_those_of_the_family(name: str) -> None:
    fresh = hs.make_process(name, num_states=4, num_symbols=4, seed=2)
    batch = hs.ProcessDataset(fresh, length=9, seed=5, stream="evaluate")[3:80]
    assert len(set(batch.components.tolist())) == 77
    own = fresh.mixture(batch.components.numpy())
    initial, transition, emission = fresh.spec.components(batch.components.numpy())
    for part, rows in zip(own.params.rows(), (initial, transition, emission), strict=True):
        assert torch.equal(part, rows)
    first = Mixture.from_law([1.0], own.params.select(torch.tensor([0])))
    alone = first.sample_paths(np.array([3]), np.arange(9) == 0, 5, "evaluate")
    assert torch.equal(alone.observations[0], batch.observations[0])
    assert torch.equal(alone.states[0], batch.states[0])


def test_many_fresh_samples_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from hmmscope.processes import hmm_per_sample as module

    pool = hs.make_process("fresh-aliased-cycles", num_states=4, num_symbols=2)
    whole = hs.ProcessDataset(pool, length=6)[0:50]
    monkeypatch.setattr(module, "_ENTRIES", 100)
    assert torch.equal(hs.ProcessDataset(pool, length=6)[0:50].observations, whole.observations)


def test_fresh_chains_are_seen_and_start_anywhere() -> None:
    batch = hs.ProcessDataset(hs.make_process("fresh-markov-chains", num_states=3, num_symbols=3), length=5)[0:3000]
    assert torch.equal(batch.observations, batch.states)
    shares = batch.observations[:, 0].bincount() / 3000
    assert (shares - 1 / 3).abs().max() < 0.04  # 4.6 standard errors
    with pytest.raises(InputError, match="num_symbols"):
        hs.make_process("fresh-markov-chains", num_states=3, num_symbols=4)


def test_spec_fields() -> None:
    assert ComposedCyclesSpec().build().num_components == 512
    assert ComposedCyclesSpec().num_states == 16
