"""Families of emissions: densities, missing entries, sampling, files and fits, beside hmmlearn and plain sums."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from emission_cases import close, enumerated
from hmmscope.emissions.fit_emissions_em import fit_emissions
from hmmscope.errors import InputError
from hmmscope.inference.process_facts import process_facts

hmmlearn = pytest.importorskip("hmmlearn.hmm")

MOVES = [[0.9, 0.1], [0.3, 0.7]]
POSITIVE = [[2.0, 0.6], [0.6, 1.0]]


def gaussian(shape: str = "diag") -> hs.GaussianHMM:
    covariances: dict[str, Any] = {"spherical": [1.0, 0.5], "diag": [[1.0, 0.5], [2.0, 0.3]], "tied": POSITIVE}
    covariances["full"] = [POSITIVE, [[0.5, -0.2], [-0.2, 0.4]]]
    return hs.GaussianHMM([0.6, 0.4], MOVES, [[-1.0, 2.0], [2.0, 0.0]], covariances[shape], shape)


def mixture(shape: str = "diag") -> hs.GaussianMixtureHMM:
    matrices = [[POSITIVE, np.eye(2)], [np.eye(2) / 2, POSITIVE]]
    covariances: dict[str, Any] = {"spherical": [[1.0, 0.5], [0.3, 2.0]], "diag": [[[1.0, 0.5]] * 2, [[2.0, 0.3]] * 2]}
    covariances |= {"full": matrices, "tied": [POSITIVE, np.eye(2)]}
    centres = [[[-1.0, 2.0], [-4.0, 2.0]], [[2.0, 0.0], [5.0, 5.0]]]
    return hs.GaussianMixtureHMM([0.6, 0.4], MOVES, [[0.3, 0.7], [0.5, 0.5]], centres, covariances[shape], shape)


def poisson() -> hs.PoissonHMM:
    return hs.PoissonHMM([0.6, 0.4], MOVES, [[2.0, 9.0], [6.0, 0.5]], states=["busy", "calm"])


def channels() -> hs.MultichannelHMM:
    return hs.MultichannelHMM([0.6, 0.4], MOVES, [[[0.1, 0.9], [0.8, 0.2]], [[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]]])


def mixed() -> hs.MixedHMM:
    return hs.MixedHMM([0.6, 0.4], MOVES, [[-1.0], [2.0]], [[1.0], [0.5]], [[[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]]])


FAMILIES = {
    **{f"gaussian, {shape}": (gaussian, shape) for shape in ("spherical", "diag", "full", "tied")},
    **{f"mixture, {shape}": (mixture, shape) for shape in ("spherical", "diag", "full", "tied")},
    **{"poisson": (poisson,), "channels": (channels,), "mixed": (mixed,)},
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> hs.EmissionHMM:
    make, *shape = FAMILIES[request.param]
    found: hs.EmissionHMM = make(*shape)
    return found


def drawn(process: hs.EmissionHMM, time: int, count: int = 1) -> torch.Tensor:
    found: torch.Tensor = hs.ProcessDataset(process, length=time, seed=3)[0:count].observations
    return found


def learned(process: hs.EmissionHMM) -> Any:
    """hmmlearn's model with the same numbers."""
    shape = getattr(process, "covariance_type", "diag")
    if isinstance(process, hs.PoissonHMM):
        model = hmmlearn.PoissonHMM(process.num_states)
        model.lambdas_ = process.rates.numpy()
    elif isinstance(process, hs.GaussianMixtureHMM):
        model = hmmlearn.GMMHMM(process.num_states, process.num_gaussians, covariance_type=shape)
        model.weights_, model.means_, model.covars_ = (
            part.numpy() for part in (process.weights, process.centres, process.covariances)
        )
    else:
        assert isinstance(process, hs.GaussianHMM)
        model = hmmlearn.GaussianHMM(process.num_states, shape)
        model.means_, model.covars_ = process.means.numpy(), process.covariances.numpy()
    model.startprob_, model.transmat_ = process.initial.numpy(), process.transition.numpy()
    model.n_features = process.num_coordinates
    return model


@pytest.mark.drawn(5)
def test_all_answers_equal_the_sum_over_all_paths(family: hs.EmissionHMM) -> None:
    seen = drawn(family, 6, 2)
    seen[0, 2], seen[1, 1, 0] = torch.nan, torch.nan
    logs = family.log_likelihoods(seen)
    exact = [enumerated(family.chain, own) for own in logs]
    found = hs.observe(family, seen)
    close(found.probs["belief"], torch.stack([own["beliefs"] for own in exact]))
    close(found.log_likelihood_terms, torch.stack([own["terms"] for own in exact]))
    close(hs.smooth_beliefs(family, seen), torch.stack([own["smoothed"] for own in exact]))
    close(hs.log_likelihood(family, seen), torch.stack([own["total"] for own in exact]))
    path = hs.most_likely_states(family, seen)
    assert torch.equal(path.states, torch.stack([own["best"] for own in exact]))
    close(path.log_probability, torch.stack([own["best_log"] for own in exact]))
    shares = torch.nn.functional.one_hot(hs.sample_state_paths(family, seen, num_paths=2000), 2).double().mean(0)
    assert (shares - hs.smooth_beliefs(family, seen)).abs().max() < 0.06  # 5 standard errors


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("channels", "mixed")])
def test_answers_are_those_of_hmmlearn(name: str) -> None:
    make, *shape = FAMILIES[name]
    process = make(*shape)
    seen = drawn(process, 10_000)
    x, model = seen[0].numpy(), learned(process)
    x = x.astype(int) if name == "poisson" else x
    assert float(hs.log_likelihood(process, seen)) == pytest.approx(model.score(x), rel=1e-9, abs=0)
    path = hs.most_likely_states(process, seen)
    assert float(path.log_probability) == pytest.approx(model.decode(x)[0], rel=1e-9, abs=0)
    assert np.abs(hs.smooth_beliefs(process, seen)[0].numpy() - model.predict_proba(x)).max() < 1e-9


def test_a_missing_entry_is_that_of_the_marginal(family: hs.EmissionHMM) -> None:
    seen = drawn(family, 8)
    gone = seen.clone()
    gone[0, 2:5, 0], gone[0, 6] = torch.nan, torch.nan
    if isinstance(family, hs.GaussianHMM):
        spread = family.spread[:, 1] if family.spread.ndim == 2 else family.spread[:, 1, 1]
        rest: hs.EmissionHMM = hs.GaussianHMM(family.initial, family.transition, family.means[:, 1:], spread[:, None])
    elif isinstance(family, hs.GaussianMixtureHMM):
        own = family.spread[:, 1] if family.spread.ndim == 2 else family.spread[:, 1, 1]
        laws = family.weights, family.centres[..., 1:], own.view(2, 2, 1)
        rest = hs.GaussianMixtureHMM(family.initial, family.transition, *laws)
    elif isinstance(family, hs.PoissonHMM):
        rest = hs.PoissonHMM(family.initial, family.transition, family.rates[:, 1:])
    else:
        assert isinstance(family, hs.MultichannelHMM)
        rest = hs.MultichannelHMM(family.initial, family.transition, family.channels[-1:])
    found, whole = family.log_likelihoods(gone), family.log_likelihoods(seen)
    close(found[0, 2:5], rest.log_likelihoods(seen[0, 2:5, 1:]))
    close(found[0, [0, 1, 5, 7]], whole[0, [0, 1, 5, 7]])
    assert not found[0, 6].any()


def test_samples_have_the_law_and_are_functions_of_their_number(family: hs.EmissionHMM) -> None:
    """Means and variances by state, to five standard errors."""
    batch = hs.ProcessDataset(family, length=50)[0:200]
    close(hs.ProcessDataset(family, length=50)[[7, 199]].observations, batch.observations[[7, 199]])
    for state in range(2):
        own = batch.observations[batch.states == state]
        error = (family.variances[state] / len(own)).sqrt()
        assert ((own.mean(0) - family.means[state]).abs() < 5 * error).all()
        fourth = (own - own.mean(0)).pow(4).mean(0)
        spread = ((fourth - own.var(0).square()) / len(own)).sqrt()
        assert ((own.var(0) - family.variances[state]).abs() < 5 * spread + 1e-9).all()
    if isinstance(family, hs.GaussianHMM) and family.spread.ndim == 3:
        own = batch.observations[batch.states == 0]
        assert float(own.T.cov()[0, 1]) == pytest.approx(float(family.spread[0, 0, 1]), abs=0.15)
    moved = torch.nn.functional.one_hot(batch.states[:, 1:][batch.states[:, :-1] == 0], 2).double().mean(0)
    assert (moved - family.transition[0]).abs().max() < 0.02


@pytest.mark.parametrize("ending", [".json", ".npz", ".safetensors"])
def test_files_keep_the_bits(family: hs.EmissionHMM, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"kept{ending}"
    family.save(path)
    found = hs.load_process(path)
    assert type(found) is type(family)
    for name, tensor in family.file_tensors().items():
        assert torch.equal(found.file_tensors()[name], tensor)
    assert (found.digest, found.states) == (family.digest, family.states)
    moved = family.replaced(transition=family.transition.flip(0))
    assert moved.digest != family.digest


def test_what_is_said_of_it(family: hs.EmissionHMM) -> None:
    assert "±" in str(family) or "channel 0" in str(family)
    assert len(family.card()) == 2
    assert family.describe() == "2 states, 2 coordinates"
    assert dict(process_facts(family)).keys() == {"stationary law", "2nd eigenvalue", "entropy rate"}
    rate = hs.entropy_rate(family, num_samples=50, length=60)
    longer = hs.entropy_rate(family, num_samples=200, length=300, seed=1)
    assert rate.low - 0.02 < longer.value < rate.high + 0.02


@pytest.mark.drawn(4)
@pytest.mark.parametrize("shape", ["spherical", "diag", "full", "tied"])
@pytest.mark.parametrize("make", [gaussian, mixture])
def test_the_likelihood_never_falls_with_missing_entries_too(make: Any, shape: str) -> None:
    process = make(shape)
    rows = drawn(process, 300)[0]
    rows[torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)) < 0.2] = torch.nan
    start = make(shape)
    field = "means" if make is gaussian else "centres"
    start = start.replaced(**{field: getattr(start, field) + 0.7})
    scores = []
    for steps in range(1, 7):
        options = {"start": start, "num_restarts": 1, "max_iterations": steps, "pseudo_count": 0.0, "tolerance": 0.0}
        found = fit_emissions(type(process), rows, torch.tensor([200, 100]), 2, **options)  # type: ignore[arg-type]
        scores.append(found.log_likelihood)
    assert all(after > before for before, after in itertools.pairwise(scores))


@pytest.mark.parametrize(
    "name", ["gaussian, diag", "gaussian, full", "gaussian, tied", "gaussian, spherical", "poisson"]
)
def test_the_same_optimum_as_hmmlearn_from_the_same_start(name: str) -> None:
    make, *shape = FAMILIES[name]
    process = make(*shape)
    rows = drawn(process, 400)[0]
    start = process.replaced(transition=[[0.8, 0.2], [0.2, 0.8]])
    model = learned(start)
    model.n_iter, model.init_params = 12, ""
    model.monitor_.n_iter, model.monitor_.tol = 12, -math.inf
    if name != "poisson":
        model.covars_prior, model.covars_weight = 0.0, {"full": 2, "tied": 2}.get(shape[0], 1)
    model.fit(rows.numpy().astype(int) if name == "poisson" else rows.numpy())
    options: dict[str, Any] = {"num_restarts": 1, "max_iterations": 12, "pseudo_count": 0.0, "tolerance": 0.0}
    found = fit_emissions(type(process), rows, torch.tensor([400]), 2, start=start, min_variance=1e-9, **options).hmm
    assert np.abs(found.means.numpy() - (model.lambdas_ if name == "poisson" else model.means_)).max() < 1e-8
    assert np.abs(found.transition.numpy() - model.transmat_).max() < 1e-8
    if name != "poisson":
        spread: Any = found.spread  # type: ignore[attr-defined]
        covariances = model.covars_ if spread.ndim == 3 else model._covars_
        assert np.abs(spread.numpy() - covariances).max() < 1e-8


SLOW = ("mixture, spherical", "mixture, full", "mixture, tied")


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in FAMILIES])
def test_fits_find_what_was_planted(name: str) -> None:
    """At least as likely as the truth, whose states are matched by their means."""
    make, *shape = FAMILIES[name]
    family = make(*shape)
    seen = drawn(family, 1200)
    name = family.file_format.removeprefix("hmmscope-").removesuffix("-hmm")
    found = hs.fit(seen, 2, emission=name, options=hs.FitOptions(max_iterations=200, num_restarts=4), **family.options)
    assert found.log_likelihood > float(hs.log_likelihood(family, seen))
    order = (
        [0, 1]
        if (found.hmm.means[0] - family.means[0]).norm() < (found.hmm.means[1] - family.means[0]).norm()
        else [1, 0]
    )
    assert (found.hmm.means[order] - family.means).abs().max() < 0.3
    assert (found.hmm.transition[order][:, order] - family.transition).abs().max() < 0.06
    assert (found.hmm.num_coordinates, len(found.final.min_variance)) == (2, 2)


@pytest.mark.long
def test_numbers_of_states_are_chosen_by_bic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmmscope.runs.vector_sequences.UNASKED", 5000)
    monkeypatch.setattr("hmmscope.inference.evidence.PARTICLES", 24)
    seen = drawn(gaussian("full"), 1500)
    found = hs.fit(seen, [1, 2, 3], covariance_type="full", options=hs.FitOptions(num_restarts=3, max_iterations=40))
    assert found.hmm.num_states == 2
    assert found.reason.startswith("2 states, 95 % [2, 2]: the smallest BIC")
    assert (
        "the interval uses BIC only, because computing the evidence for 2 states from this many observations takes too long"
        in found.reason
    )
    assert [row["chosen"] for row in found.table()] == [False, True, False]
    assert len(found.lines()) >= 5
    assert found.lines()[0].endswith("held-out log-likelihood, nats an observation")
    assert found.reason.endswith("; held-out blocks of 30 observations; the refit uses all data")
    held, error = found.held_out, found.held_out_errors
    assert held[1] < held[2] - 0.1
    assert abs(held[3] - held[2]) < 0.1
    assert 0 < error[2] < 0.2
    assert found.num_fitted == 1200
    assert found.hmm.num_states == found.whole.hmm.num_states
    exact = float(hs.log_likelihood(found.hmm, seen))
    assert found.log_likelihood == pytest.approx(exact, rel=1e-9)
    judged = hs.fit(
        seen[:, :600], [1, 2], validation=seen[:, 600:], options=hs.FitOptions(num_restarts=1, max_iterations=10)
    )
    own = judged.fits[2].hmm
    mean = float(hs.log_likelihood(own, seen[:, 600:])) / 900
    assert judged.held_out[2] == pytest.approx(mean, rel=1e-9)
    assert judged.num_fitted == 600
    few = hs.fit(seen[0, :100], [1, 2], lengths=[100], options=hs.FitOptions(num_restarts=1, max_iterations=5))
    assert few.reason.endswith("there are too few data for a held-out part")
    assert not few.support.why
    torn = seen[0, :100].where(torch.arange(100)[:, None] != 7, torch.nan)
    for options, why in (
        (
            {"emission": "gaussian-mixture"},
            "GaussianMixtureHMM has no conjugate prior; GaussianHMM, MultichannelHMM and PoissonHMM have one",
        ),
        (
            {"covariance_type": "full"},
            'observations with missing entries require covariance_type "diag" or "spherical"',
        ),
    ):
        rough = hs.fit(torn, [1, 2], lengths=[100], options=hs.FitOptions(num_restarts=1, max_iterations=2), **options)
        assert f"; the interval uses BIC only, because {why}; " in rough.reason
    with pytest.raises(InputError, match=r"^validation: must have 2 coordinates, got 1"):
        hs.fit(seen, [1, 2], validation=seen[0, :, :1])


def test_long_and_far_apart() -> None:
    """10,000 observations whose likelihoods no float holds, and states so far apart that rows do not fit either."""
    process = gaussian().replaced(means=[[-1e4, 2.0], [2e4, 0.0]])
    batch = hs.ProcessDataset(process, length=10_000)[0:1]
    total = float(hs.log_likelihood(process, batch.observations))
    own = process.log_likelihoods(batch.observations)[0].gather(1, batch.states[0][:, None]).sum()
    moves = (
        process.transition[batch.states[0, :-1], batch.states[0, 1:]].log().sum()
        + process.initial[batch.states[0, 0]].log()
    )
    assert total == pytest.approx(float(own + moves), rel=1e-12)
    assert torch.equal(hs.most_likely_states(process, batch.observations).states, batch.states)
    found = fit_emissions(
        hs.GaussianHMM,
        batch.observations[0],
        torch.tensor([10_000]),
        2,
        num_restarts=1,
        max_iterations=5,
        min_variance=1e-9,
    )
    assert found.log_likelihood > total - 1


def test_floors_hold() -> None:
    """On repeated values a state would narrow without end."""
    rows = torch.tensor([0.0, 0.0, 0.0, 5.0, 9.0, 4.0, 6.0] * 20, dtype=torch.float64)[:, None]
    for shape in ("spherical", "diag", "full"):
        found = fit_emissions(hs.GaussianHMM, rows, torch.tensor([140]), 2, covariance_type=shape, min_variance=0.01)
        assert float(found.hmm.variances.min()) >= 0.01 * float(rows.var(correction=0)) * (1 - 1e-12)
        assert found.min_variance == pytest.approx([0.01 * float(rows.var(correction=0))])
        assert found.at_min_variance
    said = hs.fit(rows, 2, emission="gaussian", covariance_type="full", min_variance=0.01).lines()
    assert said == [
        f"variances at their lower bound: state {found.at_min_variance[0][0]} coordinate 0; pass a smaller min_variance= "
        "to lower the bound"
    ]


def test_what_cannot_be_is_refused_in_a_line() -> None:
    x = np.random.default_rng(0).normal(size=(50, 2))
    constant = x.copy()
    constant[:, 1] = 3.0
    lost = x.copy()
    lost[:, 0] = np.nan
    infinite = x.copy()
    infinite[3, 1] = np.inf
    once = hs.FitOptions(sequence_weights=[1])
    refused: list[tuple[Any, str]] = [
        (lambda: hs.fit(x, 2), r"three ways: pass lengths=\[50\] to read 50 observations of 2 coordinates, axis=0"),
        (lambda: hs.fit(constant[None], 2), r"coordinate 1 is constant \(3\); remove the coordinate"),
        (lambda: hs.fit(constant[None] * 1e-200, 2), r"coordinate 0: .*\(multiply it by 2e\+199\)"),
        (lambda: hs.fit(constant[None] * 1e13, 2, options=once), r"is constant \(3e\+13\); remove"),
        (lambda: hs.fit(lost[None], 2), "coordinate 0 is missing in every row"),
        (lambda: hs.fit(infinite[None], 2), "is not finite; mark a missing entry with NaN"),
        (lambda: hs.fit(x[None], 2, emission="poisson"), r"must be counts \(nonnegative integers\)"),
        (lambda: hs.fit(x[None], 2, emission="gausian"), "did you mean 'gaussian'"),
        (lambda: hs.fit(x[None], 2, stream=True), "stream: applies to symbols, but emission is 'gaussian'"),
        (lambda: hs.fit(x[None], 2, unit="words"), "unit: applies to symbols, but emission is 'gaussian'"),
        (lambda: hs.fit([["a", "b"], "c"], 2), "sequence 2: must be a list of symbols or a text, got 'c'"),
        (lambda: hs.fit([[[1], [2, 3]]], 2), "sequence 1: must be a list of whole numbers"),
        (lambda: hs.fit([5, [1, 2]], 2), "sequence 1: must be a list of symbols or a text, got 5"),
        (lambda: hs.fit(x, 2, lengths=[20, 20]), "must sum to the 50 rows, got 40"),
        (lambda: hs.GaussianHMM([1.0], [[1.0]], [[0.0]], [[0.0]]), "the variance of coordinate 0 must be positive"),
        (lambda: hs.GaussianHMM([1.0], [[1.0]], [[0.0, 1.0]], [[[1, 2], [2, 1.0]]]), "symmetric positive definite"),
        (lambda: hs.GaussianHMM([0.5, 0.6], MOVES, [0.0, 1.0], [1.0, 1.0]), "rows that sum to 1 within 1e-06"),
        (lambda: hs.PoissonHMM([1.0], [[1.0]], [[0.0]]), "rates: must be positive"),
        (lambda: hs.observe(channels(), torch.tensor([[[1.0, 3.0]]])), r"channel 1 must be in \[0, 3\), got 3"),
        (lambda: hs.observe(gaussian(), torch.zeros(1, 4, 3)), r"must have shape \(batch, time, 2\)"),
        (lambda: hs.SequenceData([[0.5, 1.5]]), "emission='gaussian'"),
        (lambda: hs.SequenceData(x), "emission='gaussian'"),
    ]
    for attempt, said in refused:
        with pytest.raises(InputError, match=said) as error:
            attempt()
        assert "\n" not in str(error.value)


def test_arrays_lists_and_lengths_are_read_alike() -> None:
    process = gaussian()
    x = drawn(process, 30)[0]
    parts = [x[:10], x[10:]]
    one = hs.smooth_beliefs(process, parts)
    assert torch.equal(one, hs.smooth_beliefs(process, x, lengths=[10, 20]))
    close(one[0, :10], hs.smooth_beliefs(process, x[:10])[0])
    assert not one[0, 10:].any()
    options: dict[str, Any] = {"options": hs.FitOptions(num_restarts=1, max_iterations=3)}
    fits = [hs.fit(parts, 2, **options), hs.fit(x, 2, emission="gaussian", lengths=[10, 20], **options)]
    fits.append(hs.fit(np.stack([x[:10], x[10:20], x[20:]]), 2, emission="gaussian", **options))
    assert fits[0].log_likelihood == fits[1].log_likelihood != fits[2].log_likelihood
    assert torch.equal(hs.smooth_beliefs(process, x.tolist()), hs.smooth_beliefs(process, x))  # not rounded to float32
    column = hs.fit(x[:, 0], 2, **options)
    assert column.log_likelihood == hs.fit(x[:, :1], 2, **options).log_likelihood
    assert column.log_likelihood == hs.fit(x[:, :1], 2, axis=0, **options).log_likelihood
