"""Switching linear systems: against the joint Gaussian of every path of modes, and what merging costs."""

import itertools
import math
from typing import Any

import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.processes.vector_process import following

MODES = {"mode_transition": [[0.9, 0.1], [0.25, 0.75]], "mode_initial": [0.3, 0.7], "initial": [1.0, -2.0]}
MATRICES: dict[str, Any] = {
    "transition": [[[0.9, 0.2], [0.0, 0.5]], [[-0.5, 0.0], [0.3, 0.8]]],
    "output": [[[1.0, 0.5], [0.0, 1.0]], [[2.0, 0.0], [0.5, -1.0]]],
    "state_noise": [[[0.3, 0.1], [0.1, 0.2]], [[0.5, 0.0], [0.0, 0.4]]],
    "output_noise": [[[0.2, 0.0], [0.0, 0.1]], [[0.4, 0.2], [0.2, 0.3]]],
}


def system(**changed: Any) -> hs.SwitchingLinearGaussian:
    return hs.SwitchingLinearGaussian(**{**MODES, **MATRICES, **changed})


def scalar(**changed: Any) -> hs.SwitchingLinearGaussian:
    options: dict[str, Any] = {"state_noise": [[[0.1]], [[0.4]]], "output_noise": [[[0.2]], [[0.3]]], "num_kept": 16}
    moves = [[0.9, 0.1], [0.2, 0.8]]
    return hs.SwitchingLinearGaussian(moves, [[[0.9]], [[-0.5]]], [[[1.0]], [[2.0]]], **{**options, **changed})


def by_paths(process: hs.SwitchingLinearGaussian, seen: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    """log density of the numbers of a sequence that are not NaN, P(last mode) and E[last state]: the law of all states and
    observations given a path of modes is one Gaussian, written as a linear map of the noise."""
    time, size = len(seen), len(process.initial)
    kept = ~seen.flatten().isnan()
    total, modes, mean = [], [], []
    for path in itertools.product(range(2), repeat=time):
        chance = process.mode_initial[path[0]].log()
        chance = chance + sum(process.mode_transition[i, j].log() for i, j in itertools.pairwise(path))
        start, maps = process.initial, torch.zeros(0, 0, dtype=torch.float64)
        states = []
        for t, mode in enumerate(path):  # state_t = constant + map @ (noise_0 .. noise_t)
            start = process.transition[mode] @ start
            before = maps if t else torch.zeros(size, 0, dtype=torch.float64)
            maps = torch.cat([process.transition[mode] @ before, torch.linalg.cholesky(process.state_noise[mode])], 1)
            states.append((start, torch.cat([maps, torch.zeros(size, (time - t - 1) * size, dtype=torch.float64)], 1)))
        outputs = [process.output[mode] for mode in path]
        centre = torch.cat([b @ s for b, (s, _) in zip(outputs, states, strict=True)])
        joint = torch.cat([b @ m for b, (_, m) in zip(outputs, states, strict=True)])
        covariance = joint @ joint.T + torch.block_diag(*(process.output_noise[mode] for mode in path))
        own = torch.distributions.MultivariateNormal(centre[kept], covariance[kept][:, kept])
        total.append(chance + own.log_prob(seen.flatten()[kept]))
        modes.append(path[-1])
        constant, last = states[-1]
        off = (seen.flatten()[kept] - centre[kept])[:, None]
        solved = torch.cholesky_solve(off, torch.linalg.cholesky(covariance[kept][:, kept]))[:, 0]
        mean.append(constant + last @ joint[kept].T @ solved)
    weights = torch.stack(total)
    share = weights.softmax(0)
    last_mode = torch.stack([share[torch.tensor(modes) == mode].sum() for mode in range(2)])
    return float(weights.logsumexp(0)), last_mode, (share[:, None] * torch.stack(mean)).sum(0)


@pytest.mark.parametrize("gaps", [False, True], ids=["all seen", "gaps"])
@pytest.mark.parametrize("changed", [{}, {"output_noise": [[[0.0, 0.0], [0.0, 0.0]], [[0.4, 0.2], [0.2, 0.1]]]}])
def test_the_filter_is_the_sum_over_paths_of_modes(gaps: bool, changed: dict) -> None:
    process = system(**changed)
    observations = hs.ProcessDataset(process, length=5)[0:2].observations
    if gaps:
        observations[0, 1, 0] = observations[0, 3] = observations[1, 0] = math.nan
    found = hs.switching_filter(process, observations)
    assert found.num_exact == 5
    assert not found.error.any()
    for row, seen in enumerate(observations):
        log, modes, mean = by_paths(process, seen)
        assert float(found.log_likelihood[row]) == pytest.approx(log, abs=1e-10)
        torch.testing.assert_close(found.mode_beliefs[row, -1], modes, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.means[row, -1], mean, rtol=0, atol=1e-10)
        if not seen[-1].isnan().any():
            before, _, _ = by_paths(process, seen[:-1])
            assert float(found.log_likelihood_terms[row, -1]) == pytest.approx(log - before, abs=1e-10)


def test_merging_costs_less_than_is_said() -> None:
    process = scalar()
    observations = hs.ProcessDataset(process, length=24)[0:16].observations
    exact = hs.switching_filter(process, observations, num_kept=2**10, error=False)
    errors = []
    for kept in (4, 16, 64):
        found = hs.switching_filter(process, observations, num_kept=kept)
        apart = int(math.log2(kept))
        assert found.num_exact == apart + 1
        head = (slice(None), slice(apart + 1))
        torch.testing.assert_close(
            found.log_likelihood_terms[head], exact.log_likelihood_terms[head], rtol=0, atol=1e-12
        )
        true = (found.log_likelihood - exact.log_likelihood).abs()
        assert 0 < true.mean() < found.error.mean()
        errors.append(float(true.mean()))
    assert errors[0] > 20 * errors[1] > 400 * errors[2]


@pytest.mark.parametrize("modes", [1, 2], ids=["one mode", "and an impossible mode without noise"])
def test_one_mode_is_a_linear_system(modes: int) -> None:
    same = {name: values[0] for name, values in MATRICES.items()}
    plain = hs.LinearGaussian(**same, initial=MODES["initial"])
    both = {name: [value, torch.zeros_like(torch.tensor(value))][:modes] for name, value in same.items()}
    process = system(**both, mode_transition=torch.eye(modes), mode_initial=torch.eye(modes)[0])
    observations = hs.ProcessDataset(plain, length=9)[0:3].observations
    observations[1, 4, 1] = math.nan
    ours, theirs = hs.observe(process, observations), hs.observe(plain, observations)
    for name in ("predicted_observation", "next_observation", "log_likelihood_terms"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-10)
    for name in ("mean", "covariance"):
        torch.testing.assert_close(ours.vectors[name], theirs.vectors[name], rtol=0, atol=1e-10)
    assert process.num_exact == (None if modes == 1 else 9)


def test_samples_have_the_law_that_the_filter_takes_for_granted() -> None:
    """Errors of the prediction have no mean, and modes are as often as they are believed."""
    process = scalar()
    batch = hs.ProcessDataset(process, length=12)[0:4000]
    found = hs.observe(process, batch.observations)
    error = (batch.observations - found.predicted_observation)[..., 0]
    assert (error.mean(0).abs() < 4.5 * error.std(0) / math.sqrt(4000)).all()
    assert batch.states is not None
    off = (batch.states == 1).double() - found.probs["belief"][..., 1]
    assert (off.mean(0).abs() < 4.5 * off.std(0) / math.sqrt(4000)).all()
    assert torch.equal(hs.ProcessDataset(process, length=12)[1234:1236].observations, batch.observations[1234:1236])
    begins = torch.tensor([True, *[False] * 5, True, *[False] * 5])
    apart = process.observe(batch.observations, reset_mask=begins).log_likelihood_terms[:, 6:]
    torch.testing.assert_close(apart, process.observe(batch.observations[:, 6:]).log_likelihood_terms)


def test_what_is_kept_is_a_part_of_what_it_is(tmp_path: Any) -> None:
    process = system(num_kept=16)
    process.save(tmp_path / "process.npz")
    again = hs.load_process(tmp_path / "process.npz")
    assert isinstance(again, hs.SwitchingLinearGaussian)
    assert (again.num_kept, again.num_exact) == (16, 5)
    assert system(num_kept=64).digest != process.digest == again.digest


def test_a_network_is_trained_beside_it_and_its_mode_is_read(tmp_path: Any) -> None:
    run = hs.train(
        scalar(),
        tmp_path / "run",
        model={"name": "rnn", "width": 8},
        length=6,
        num_steps=2,
        options=hs.TrainOptions(target="density"),
    )
    assert run.summary["excess"] > 0
    rows = hs.probe(run.model, run.dataset("probe"), num_samples=40, options=hs.InstrumentOptions(num_controls=3))
    assert {row["layer_name"] for row in rows} >= {"residual.0", "residual.1"}


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"mode_transition": [[0.9, 0.2], [0.5, 0.5]]}, "mode_transition: must have rows that sum to 1"),
        ({"mode_initial": [1.0]}, "mode_initial: must have shape"),
        ({"transition": [[[1.0, 0.0]]] * 2}, "transition: must have shape"),
        ({"output": [[[1.0]]] * 2}, "output: must have shape"),
        ({"state_noise": [[[1.0, 0.0], [0.0, -1.0]]] * 2}, "state_noise: must be a symmetric positive semidefinite"),
        ({"num_kept": 3}, "num_kept: must be at least 4, the square of the number of modes, got 3"),
    ],
)
def test_what_is_none_is_refused(changed: dict, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        system(**changed)
    assert "\n" not in str(error.value)


def test_what_it_does_not_know_is_said() -> None:
    with pytest.raises(InputError, match="process: SwitchingLinearGaussian has no smoothing"):
        scalar().smooth(torch.zeros(1, 2, 1, dtype=torch.float64))
    with pytest.raises(InputError, match="process: predictions of a switching system need its continuous state"):
        following(scalar(), torch.ones(1, 2, dtype=torch.float64))
    with pytest.raises(InputError, match="observations: must have shape"):
        hs.switching_filter(scalar(), torch.zeros(1, 2, 3, dtype=torch.float64))
