"""Other libraries' HMMs: the same likelihoods; where a library is absent, an object with the same attributes."""

import functools
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hmmscope as hs
from comparing import refuses
from hmmscope.errors import DamagedError, ResourceError
from hmmscope.interop import (
    from_dynamax,
    from_hmmlearn,
    from_pomegranate,
    from_pyhmmer,
    load_hmmer,
    to_dynamax,
    to_hmmlearn,
)
from hmmscope.lab.cli import main
from strategies import Matrices, dense, likely, rows, small_hmm, with_zeros

HALF, EYE = [0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]]


def log_likelihood(hmm, sequence):
    return float(hs.filter_beliefs(hmm, torch.tensor([list(sequence)])).log_likelihood)


def random_matrices(seed):
    rng = np.random.default_rng(seed)
    make = dense if seed % 2 else with_zeros
    matrices = make(rng, int(rng.integers(1, 7)), int(rng.integers(2, 7)))
    return matrices, [likely(rng, matrices, 25) for _ in range(4)]


# hmmlearn -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_hmmlearn_gives_the_same_likelihoods(seed):
    matrices, sequences = random_matrices(seed)
    hmm = hs.HMM(*matrices)
    model = to_hmmlearn(hmm)
    for sequence in sequences:
        assert model.score(np.array(sequence)[:, None]) == pytest.approx(log_likelihood(hmm, sequence), abs=1e-9)


@given(st.integers(0, 2**32 - 1))
def test_hmmlearn_there_and_back_is_the_same_to_the_bit(seed):
    hmm = hs.HMM(*small_hmm(np.random.default_rng(seed)))
    back = from_hmmlearn(to_hmmlearn(hmm))
    assert back.digest == hmm.digest
    assert back.source == "imported from hmmlearn (CategoricalHMM)"


def test_a_model_that_hmmlearn_fitted():
    from hmmlearn.hmm import CategoricalHMM

    _, sequences = random_matrices(3)
    model = CategoricalHMM(n_components=3, n_features=6, n_iter=20, random_state=0)
    model.fit(np.concatenate(sequences)[:, None], [len(s) for s in sequences])
    hmm = from_hmmlearn(model, allow_drop_tiny=True)
    for sequence in sequences:  # 25 steps, each rounded by at most 2^-32 of entries that are about 0.1
        assert model.score(np.array(sequence)[:, None]) == pytest.approx(log_likelihood(hmm, sequence), abs=1e-6)


def test_hmmlearn_refusals():
    from hmmlearn.hmm import CategoricalHMM, GaussianHMM, MultinomialHMM

    refuses(lambda: from_hmmlearn(CategoricalHMM(2)), "CategoricalHMM: has no startprob_; fit the model")
    gaussian = GaussianHMM(2)
    gaussian.startprob_, gaussian.transmat_ = np.array(HALF), np.array(EYE)
    refuses(lambda: from_hmmlearn(gaussian), "GaussianHMM: has no emissionprob_", "CategoricalHMM")
    refuses(lambda: from_hmmlearn(MultinomialHMM(2, n_trials=3)), "n_trials must be 1 for symbols, got 3")
    refuses(lambda: from_hmmlearn(MultinomialHMM(2, n_trials=[5, 5, 3])), "n_trials must be 1 for symbols, got 3 to 5")
    model = SimpleNamespace(startprob_=HALF, transmat_=EYE, emissionprob_=[[0.5, 0.4], HALF])
    refuses(lambda: from_hmmlearn(model), "emission[0]: row sums to 0.9")
    model.emissionprob_ = [[1e-12, 1 - 1e-12], HALF]
    with pytest.warns(UserWarning, match="first emission"):
        assert from_hmmlearn(model).emission[0, 0] == 2**-32
    assert from_hmmlearn(model, allow_drop_tiny=True).emission[0, 0] == 0
    model.emissionprob_ = HALF
    refuses(lambda: from_hmmlearn(model), "emissionprob_: must have 2 axes")
    model.emissionprob_ = [["a", "b"]]
    refuses(lambda: from_hmmlearn(model), "emissionprob_: must be an array of numbers")
    refuses(lambda: to_hmmlearn(hs.make_process("even")), "hmm: must be a HMM", "LabelledHMM")


def test_without_hmmlearn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "hmmlearn.hmm", None)
    refuses(lambda: to_hmmlearn(hs.load_process("umbrella")), "hmmscope[hmm]", kind=ResourceError)


# dynamax --------------------------------------------------------------------------------------------------------------


def dynamax_like(matrices, dtype=np.float64):
    initial, transition, emission = (np.asarray(part, dtype) for part in matrices)
    return SimpleNamespace(
        initial=SimpleNamespace(probs=initial),
        transitions=SimpleNamespace(transition_matrix=transition),
        emissions=SimpleNamespace(probs=emission[:, None]),
    )


@pytest.mark.parametrize("seed", range(5))
def test_dynamax_arrays_become_the_same_process(seed):
    matrices, _ = random_matrices(seed)
    assert from_dynamax(dynamax_like(matrices)).digest == hs.HMM(*matrices).digest


def test_dynamax_float32_rows_are_rescaled():
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.ones(200), 200)
    hmm = from_dynamax(dynamax_like((law[0], law * (1 + 4e-6), law), np.float32), allow_drop_tiny=True)
    assert np.abs(hmm.transition.numpy() - law).max() < 1e-6  # float32


def test_dynamax_refusals():
    refuses(lambda: from_dynamax(SimpleNamespace()), "has no emissions.probs", "CategoricalHMM")
    params = dynamax_like((HALF, EYE, EYE))
    params.emissions = SimpleNamespace(means=np.ones((2, 3)))
    refuses(lambda: from_dynamax(params), "must have one of covs, scale_diags, cov, scales with means")
    refuses(lambda: to_dynamax(hs.make_process("even")), "dynamax has no HMM for LabelledHMM")
    params = dynamax_like((HALF, [[0.5, 0.49], HALF], EYE))
    refuses(lambda: from_dynamax(params), "transition[0]: row sums to 0.99")


def test_dynamax_gives_the_same_likelihoods():
    jax = pytest.importorskip("jax")
    models = pytest.importorskip("dynamax.hidden_markov_model")
    with jax.enable_x64(True):
        for seed in range(5):
            matrices, sequences = random_matrices(seed)
            initial, transition, emission = (jax.numpy.asarray(part) for part in matrices)
            model = models.CategoricalHMM(len(initial), 1, emission.shape[1])
            params, _ = model.initialize(
                jax.random.PRNGKey(0),
                initial_probs=initial,
                transition_matrix=transition,
                emission_probs=emission[:, None],
            )
            hmm = from_dynamax(params)
            assert hmm.digest == hs.HMM(*matrices).digest
            for sequence in sequences:
                theirs = float(model.marginal_log_prob(params, jax.numpy.array(sequence)[:, None]))
                assert theirs == pytest.approx(log_likelihood(hmm, sequence), abs=1e-9)


def numbers_for_dynamax():
    """A process of each family, and the name and sizes of its model in dynamax."""
    random = np.random.default_rng(0)
    roots = random.normal(size=(3, 2, 2))
    chain, means = (random.dirichlet(np.ones(3)), random.dirichlet(np.ones(3), 3)), 3 * random.normal(size=(3, 2))
    full = roots @ roots.transpose(0, 2, 1) + 0.5 * np.eye(2)
    weights, centres = random.dirichlet(np.ones(2), 3), random.normal(size=(3, 2, 2))
    laws = [random.dirichlet(np.ones(4), 3) for _ in range(2)]
    diagonal = np.stack([np.diag(part) for part in full])
    return {
        "full": (hs.GaussianHMM(*chain, means, full, "full"), "GaussianHMM", (3, 2)),
        "diag": (hs.GaussianHMM(*chain, means, diagonal), "DiagonalGaussianHMM", (3, 2)),
        "tied": (hs.GaussianHMM(*chain, means, full[0], "tied"), "SharedCovarianceGaussianHMM", (3, 2)),
        "spherical": (hs.GaussianHMM(*chain, means, [1.0, 2.0, 3.0], "spherical"), "SphericalGaussianHMM", (3, 2)),
        "poisson": (hs.PoissonHMM(*chain, np.abs(means) + 1), "PoissonHMM", (3, 2)),
        "mixture, full": (
            hs.GaussianMixtureHMM(*chain, weights, centres, np.stack([full, full[::-1]], 1), "full"),
            "GaussianMixtureHMM",
            (3, 2, 2),
        ),
        "mixture, diag": (
            hs.GaussianMixtureHMM(*chain, weights, centres, np.abs(centres) + 0.3),
            "DiagonalGaussianMixtureHMM",
            (3, 2, 2),
        ),
        "channels": (hs.MultichannelHMM(*chain, laws), "CategoricalHMM", (3, 2, 4)),
    }


@pytest.mark.parametrize("name", numbers_for_dynamax())
def test_numbers_go_to_dynamax_and_back(name):
    """By attributes alone; the next test does it with dynamax itself."""
    process = numbers_for_dynamax()[name][0]
    given = {key.removeprefix("emission_"): value for key, value in to_dynamax(process).items()}
    given |= {"covs": given.pop("covariances", None), "cov": given.pop("covariance", None)}
    params = SimpleNamespace(
        initial=SimpleNamespace(probs=given.pop("initial_probs")),
        transitions=SimpleNamespace(transition_matrix=given.pop("transition_matrix")),
        emissions=SimpleNamespace(**given),
    )
    back, seen = from_dynamax(params), hs.ProcessDataset(process, length=20)[0:2].observations
    assert type(back) is type(process)
    assert np.allclose(hs.log_likelihood(back, seen), hs.log_likelihood(process, seen), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", numbers_for_dynamax())
def test_numbers_have_the_likelihood_of_dynamax(name):
    jax = pytest.importorskip("jax")
    models = pytest.importorskip("dynamax.hidden_markov_model")
    process, model_name, sizes = numbers_for_dynamax()[name]
    seen = hs.ProcessDataset(process, length=200)[0:1].observations
    with jax.enable_x64(True):
        model = getattr(models, model_name)(*sizes)
        given = {key: jax.numpy.asarray(value) for key, value in to_dynamax(process).items()}
        params, _ = model.initialize(jax.random.PRNGKey(0), **given)
        x = seen[0].numpy().astype(int if name in ("poisson", "channels") else float)
        theirs = float(model.marginal_log_prob(params, jax.numpy.asarray(x)))
        assert float(hs.log_likelihood(process, seen)) == pytest.approx(theirs, rel=1e-9)
        again = from_dynamax(params)
    assert float(hs.log_likelihood(again, seen)) == pytest.approx(theirs, rel=1e-9)


# pomegranate ----------------------------------------------------------------------------------------------------------


def pomegranate_like(matrices, ends=None, *, sparse=False, dtype=torch.float64):
    """The attributes of a DenseHMM or SparseHMM: logarithms, parameters that refuse `numpy()`."""
    initial, transition, emission = (torch.tensor(np.array(part), dtype=dtype) for part in matrices)
    model = SimpleNamespace(
        distributions=[SimpleNamespace(probs=torch.nn.Parameter(row[None])) for row in emission],
        starts=torch.nn.Parameter(initial.log()),
        edges=torch.nn.Parameter(transition.log()),
        ends=None if ends is None else torch.tensor(np.array(ends), dtype=dtype).log(),
    )
    if sparse:
        model._edge_idx_starts, model._edge_idx_ends = transition.nonzero().unbind(1)
        model._edge_log_probs = transition[transition > 0].log()
        model.edges = model._edge_log_probs
    return model


def pomegranate_score(model, sequence):
    """log of sum over paths: starts, edges and emissions, and the end probability of the last state."""
    transition = np.zeros((len(model.starts),) * 2)
    if hasattr(model, "_edge_log_probs"):
        transition[model._edge_idx_starts, model._edge_idx_ends] = model._edge_log_probs.detach().exp()
    else:
        transition = model.edges.detach().exp().numpy()
    emission = torch.cat([law.probs for law in model.distributions]).detach().numpy()
    joint = model.starts.detach().exp().numpy() * emission[:, sequence[0]]
    for symbol in sequence[1:]:
        joint = (joint @ transition) * emission[:, symbol]
    return math.log(joint @ model.ends.exp().numpy())


ENDS = ["none", "uniform", "ones", "equal"]


def with_ends(matrices, case):
    """(matrices, ends, what pomegranate's log-likelihood of 25 observations has more than ours)."""
    size = len(matrices.initial)
    if case == "equal":
        scaled = matrices._replace(transition=matrices.transition * 0.75)
        return scaled, [0.25] * size, math.log(0.25) + 24 * math.log(0.75)
    if case == "uniform":
        return matrices, [1 / size] * size, -math.log(size)
    return matrices, None if case == "none" else [1.0] * size, 0.0


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_pomegranate_ends_that_are_no_law_are_left_out(case, sparse):
    for seed in range(6):
        matrices, sequences = random_matrices(seed)
        changed, ends, more = with_ends(matrices, case)
        model = pomegranate_like(changed, ends, sparse=sparse)
        hmm = from_pomegranate(model)
        assert hmm.digest == hs.HMM(*matrices).digest
        for sequence in sequences if ends else []:
            assert pomegranate_score(model, sequence) == pytest.approx(log_likelihood(hmm, sequence) + more, abs=1e-9)


def unequal_ends(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 5))
    edges = rows(rng, size, size + 1)
    matrices = Matrices(rows(rng, 1, size)[0], edges[:, :size], rows(rng, size, 3))
    return pomegranate_like(matrices, edges[:, size]), rng.integers(3, size=(5, 8)).tolist()


@pytest.mark.parametrize("seed", range(6))
def test_pomegranate_unequal_ends_are_exact_with_an_end_symbol(seed):
    model, sequences = unequal_ends(seed)
    refuses(lambda: from_pomegranate(model), "ends: end probabilities differ", "'symbol'", "'continue'")
    hmm = from_pomegranate(model, ends="symbol")
    assert hmm.symbols == ("0", "1", "2", "end")
    for sequence in sequences:
        ours = log_likelihood(hmm, [*sequence, 3])
        assert pomegranate_score(model, sequence) == pytest.approx(ours, abs=1e-9)
        assert log_likelihood(hmm, [*sequence, 3, 3, 3]) == ours
        assert log_likelihood(hmm, [*sequence, 3, 0]) == -math.inf
    total = sum(  # P(the sequence has ended after two symbols) by our filter and by the law of ends
        math.exp(log_likelihood(hmm, [*word, 3]))
        for length in (1, 2)
        for word in itertools.product(range(3), repeat=length)
    )
    start, edges, ends = (part.detach().exp().numpy() for part in (model.starts, model.edges, model.ends))
    assert total == pytest.approx(start @ ends + start @ edges @ ends, abs=1e-9)


def test_pomegranate_continued_rows_are_laws_given_that_it_goes_on():
    model, _ = unequal_ends(0)
    hmm = from_pomegranate(model, ends="continue")
    edges = model.edges.detach().exp()
    assert torch.allclose(hmm.transition, edges / edges.sum(1, keepdim=True), atol=1e-9)


def test_pomegranate_in_float32():
    matrices, _ = random_matrices(5)
    hmm = from_pomegranate(pomegranate_like(matrices, dtype=torch.float32), allow_drop_tiny=True)
    assert np.abs(hmm.transition.numpy() - matrices.transition).max() < 1e-6  # float32 logarithms


def test_pomegranate_refusals():
    model = pomegranate_like((HALF, EYE, EYE))
    refuses(lambda: from_pomegranate(model, ends="drop"), "ends: unknown 'drop'", "symbol")
    refuses(lambda: from_pomegranate(SimpleNamespace()), "has no starts")
    model.distributions[0] = SimpleNamespace(means=[0.0])
    refuses(lambda: from_pomegranate(model), "has no probs", "Categorical")
    model.distributions[0] = SimpleNamespace(probs=np.ones((1, 3)) / 3)
    refuses(lambda: from_pomegranate(model), "distributions: probs must all have one shape", "(1, 2), (1, 3)")
    refuses(
        lambda: from_pomegranate(pomegranate_like((HALF, [[0.5, 0.3], HALF], EYE))), "transition[0]: row sums to 0.8"
    )
    always = pomegranate_like((HALF, [[0.0, 0.0], HALF], EYE), [1.0, 0.0])
    refuses(lambda: from_pomegranate(always, ends="continue"), "edges[0]: the sequence always ends after this state")
    assert from_pomegranate(always, ends="symbol").transition[0].tolist() == [0, 0, 1]


def test_pomegranate_gives_the_same_likelihoods():
    hmm_module = pytest.importorskip("pomegranate.hmm")
    from pomegranate.distributions import Categorical

    torch.set_default_dtype(torch.float64)  # pomegranate makes its buffers in the default type
    try:
        for seed, case in itertools.product(range(4), ENDS):
            matrices, sequences = random_matrices(seed)
            changed, ends, more = with_ends(matrices, case)
            initial, transition, emission = (torch.tensor(part) for part in changed)
            model = hmm_module.DenseHMM(
                [Categorical(row[None]) for row in emission],
                edges=transition,
                starts=initial,
                ends=None if ends is None else torch.tensor(ends),
            )
            inputs = torch.tensor(sequences)[:, :, None]
            if ends is None:  # fitting is what gives 1/S to each
                model._initialize(inputs)
                more = -math.log(len(initial))
            hmm = from_pomegranate(model)
            assert hmm.digest == hs.HMM(*matrices).digest
            for theirs, sequence in zip(model.log_probability(inputs).tolist(), sequences, strict=True):
                assert theirs == pytest.approx(log_likelihood(hmm, sequence) + more, abs=1e-9)
    finally:
        torch.set_default_dtype(torch.float32)


# HMMER ----------------------------------------------------------------------------------------------------------------


def profile_like(seed, nodes, *, letters="ACGT", bits=8):
    """The attributes of a pyhmmer profile with random tables; bits of a probability: deletes multiply them."""
    rng = np.random.default_rng(seed)
    steps = np.concatenate([rows(rng, nodes + 1, size, bits=bits) for size in (3, 2, 2)], 1)
    steps[0, 5:] = steps[nodes, 5:] = [1, 0]
    steps[nodes, :3] = [*rows(rng, 1, 2, bits=bits)[0], 0]
    match = rows(rng, nodes + 1, len(letters), bits=bits)
    match[0] = np.eye(len(letters))[0]
    return SimpleNamespace(
        M=nodes,
        name=b"toy",
        accession=None,
        description="a toy",
        alphabet=SimpleNamespace(symbols=letters + "-NX*~", K=len(letters)),
        match_emissions=match.astype(np.float32),
        insert_emissions=rows(rng, nodes + 1, len(letters), bits=bits).astype(np.float32),
        transition_probabilities=steps.astype(np.float32),
    )


def core_probability(profile, word):
    """P(word) under the core model, with its silent states, by recursion over what remains to be emitted."""
    steps, match, insert = (
        np.array(getattr(profile, name), float)
        for name in ("transition_probabilities", "match_emissions", "insert_emissions")
    )

    @functools.cache
    def rest(kind, node, t):
        ways = {
            "M": [("M", node + 1, 0), ("I", node, 1), ("D", node + 1, 2)],
            "I": [("M", node + 1, 3), ("I", node, 4)],
            "D": [("M", node + 1, 5), ("D", node + 1, 6)],
        }
        total = 0.0
        for there, number, column in ways[kind]:
            step = steps[node, column]
            if step == 0:
                continue
            if number > profile.M:
                total += step * (t == len(word))
            elif there == "D":
                total += step * rest("D", number, t)
            elif t < len(word):
                total += step * (match if there == "M" else insert)[number, word[t]] * rest(there, number, t + 1)
        return total

    return rest("M", 0, 0)


def words(num_symbols, longest):
    return [w for n in range(longest + 1) for w in itertools.product(range(num_symbols), repeat=n)]


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_profiles_sum_over_silent_states_exactly(nodes):
    profile = profile_like(nodes, nodes, letters="AC")
    hmm = from_pyhmmer(profile, allow_drop_tiny=True)
    assert hmm.symbols == ("A", "C", "*")
    assert hmm.states == (*(f"M{k}" for k in range(1, nodes + 1)), *(f"I{k}" for k in range(nodes + 1)), "end")
    assert hmm.source == "imported from HMMER (toy, a toy)"
    for word in words(2, 5):
        expected = core_probability(profile, word)
        found = log_likelihood(hmm, [*word, 2])
        assert math.exp(found) == pytest.approx(expected, rel=1e-6, abs=1e-9)  # entries are rounded to 2^-32
        # the end repeats with certainty; norms are taken every few steps, which rounds the last bit otherwise
        assert log_likelihood(hmm, [*word, 2, 2]) == pytest.approx(found, rel=1e-14)
        assert log_likelihood(hmm, [*word, 2, 0]) == -math.inf


@pytest.mark.parametrize("nodes", [1, 3])
def test_profiles_may_begin_anew(nodes):
    """P(word) of an endless row of copies: the word is cut into whole copies and a beginning of one."""
    profile = profile_like(nodes, nodes, letters="AC")
    once = from_pyhmmer(profile, allow_drop_tiny=True)
    endless = from_pyhmmer(profile, end="repeat", allow_drop_tiny=True)
    assert endless.symbols == ("A", "C")
    nothing = math.exp(log_likelihood(once, [2]))

    @functools.cache
    def probability(word):
        begun = math.exp(log_likelihood(once, word))  # one copy emits it, and ends here or goes on
        cuts = range(1, len(word))
        whole = sum(math.exp(log_likelihood(once, [*word[:cut], 2])) * probability(word[cut:]) for cut in cuts)
        return (begun + whole) / (1 - nothing)

    for word in words(2, 4)[1:]:
        assert math.exp(log_likelihood(endless, word)) == pytest.approx(probability(word), rel=1e-6, abs=1e-9)


def test_profiles_without_deletes_are_read_without_rounding():
    profile = profile_like(0, 3)
    profile.transition_probabilities[:, 2] = 0
    profile.transition_probabilities[:, :2] = [0.75, 0.25]
    hmm = from_pyhmmer(profile)
    assert hmm.initial[0] == 0.75
    assert hmm.initial[3] == 0.25  # I0
    assert hmm.quantisation_change == 0


def test_amino_acids_are_symbols():
    profile = profile_like(1, 2, letters="ACDEFGHIKLMNPQRSTVWY")
    assert from_pyhmmer(profile, allow_drop_tiny=True).symbols == (*"ACDEFGHIKLMNPQRSTVWY", "*")


def test_profile_refusals():
    profile = profile_like(0, 40)
    profile.transition_probabilities[1:40, 5:] = 0.5
    profile.transition_probabilities[0, :3] = [0.5, 0.0, 0.5]
    with pytest.warns(UserWarning, match=r"first initial\["):
        assert from_pyhmmer(profile).num_states == 82
    assert from_pyhmmer(profile, allow_drop_tiny=True).num_states == 82
    refuses(lambda: from_pyhmmer(profile, end="stop"), "end: unknown 'stop'", "repeat")
    refuses(lambda: from_pyhmmer(SimpleNamespace()), "has no M; pass a pyhmmer.plan7.HMM")
    profile.M = 39
    refuses(lambda: from_pyhmmer(profile), "39 nodes need transitions (40, 7)")
    profile = profile_like(0, 2)
    profile.insert_emissions[1] *= 1.001
    refuses(lambda: from_pyhmmer(profile), "profile: insert row 1 sums to 1.001")
    profile = profile_like(0, 2)
    profile.transition_probabilities[1, 5] = np.nan
    refuses(lambda: from_pyhmmer(profile), "profile: delete transitions row 1 sums to nan")
    silent = profile_like(0, 1)
    silent.transition_probabilities[0, :3] = [0, 0, 1]
    refuses(lambda: from_pyhmmer(silent, end="repeat"), "never emits")
    assert log_likelihood(from_pyhmmer(silent), [4]) == 0


def test_without_pyhmmer_the_extra_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(__import__("sys").modules, "pyhmmer.plan7", None)
    refuses(lambda: load_hmmer("x.hmm"), "x.hmm: reading HMMER files", "hmmscope[hmmer]", kind=ResourceError)
    assert main(["infer", "x.hmm", str(tmp_path / "none.txt")]) == 5
    assert capsys.readouterr().err.startswith("error[5] x.hmm: reading HMMER files needs pyhmmer")


def fake_pyhmmer(monkeypatch, profiles):
    class HMMFile:
        def __init__(self, file):
            if file.read() != b"HMMER":
                raise ValueError("format not recognized\nby HMMER")

        def __enter__(self):
            return iter(profiles)

        def __exit__(self, *error):
            return None

    monkeypatch.setitem(__import__("sys").modules, "pyhmmer", SimpleNamespace())
    monkeypatch.setitem(__import__("sys").modules, "pyhmmer.plan7", SimpleNamespace(HMMFile=HMMFile))


def test_profile_files(monkeypatch, tmp_path, capsys):
    path = tmp_path / "toy.hmm"
    path.write_text("HMMER")
    profile = profile_like(2, 3)
    fake_pyhmmer(monkeypatch, [profile])
    assert load_hmmer(path, allow_drop_tiny=True).title == "profile toy"
    (tmp_path / "words.txt").write_text("ACG*\nA C\n")
    assert main(["infer", str(path), str(tmp_path / "words.txt"), "--allow-drop-tiny"]) == 0
    shown = capsys.readouterr().out
    expected = math.log(core_probability(profile, (0, 1, 2)))
    assert f"sequence 1: 4 observations, log-likelihood {expected:.4f}"[:-1] in shown
    refuses(lambda: load_hmmer(tmp_path / "none.hmm"), "No such file")
    fake_pyhmmer(monkeypatch, [])
    refuses(lambda: load_hmmer(path), "holds no profile")
    fake_pyhmmer(monkeypatch, [profile, profile])
    refuses(lambda: load_hmmer(path), "holds more than one profile")
    path.write_text("junk")
    refuses(lambda: load_hmmer(path), "must be a HMMER file (format not recognized by HMMER)", kind=DamagedError)


def test_real_profiles_give_the_core_probability(tmp_path):
    plan7 = pytest.importorskip("pyhmmer.plan7")
    from pyhmmer.easel import Alphabet, Randomness

    random = Randomness(7)
    for nodes, alphabet in ((1, Alphabet.dna()), (4, Alphabet.amino()), (9, Alphabet.rna())):
        profile = plan7.HMM.sample(alphabet, nodes, random)
        path = tmp_path / f"{nodes}.hmm"
        with path.open("wb") as file:
            profile.write(file)
        with plan7.HMMFile(str(path)) as file:
            read = file.read()
        hmm = load_hmmer(path, allow_drop_tiny=True)
        assert "".join(hmm.symbols) == alphabet.symbols[: alphabet.K] + "*"
        for _ in range(20):
            word = tuple(np.asarray(profile.emit_sequence(random).sequence).tolist())[:40]
            expected = core_probability(read, word)
            # the file keeps five decimals of logarithms, so that its rows, rescaled here, are 5e-6 from one
            assert math.exp(log_likelihood(hmm, [*word, alphabet.K])) == pytest.approx(expected, rel=1e-3, abs=1e-12)
