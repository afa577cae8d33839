"""Networks on vectors: density heads, the exact density beside them, and instruments on beliefs and Kalman means."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.autoregression import AutoRegression
from hmmscope.analysis.geometry import geometry
from hmmscope.analysis.strategies import strategies
from hmmscope.datasets.density_heads import head_of
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.errors import InputError
from hmmscope.models.base import HookPoint
from hmmscope.processes.recorded_vectors import RecordedVectors
from hmmscope.runs.config import configure

MOVES = [[0.9, 0.1], [0.3, 0.7]]


def gaussian() -> hs.GaussianHMM:
    covariances = [[[2.0, 0.6], [0.6, 1.0]], [[0.5, -0.2], [-0.2, 0.4]]]
    return hs.GaussianHMM([0.6, 0.4], MOVES, [[10.0, 2.0], [13.0, 0.0]], covariances)


class ExactFilter(nn.Module):
    """The filter of a Gaussian HMM as a network: its belief passes a tap, and a mixture of the states' laws is said.

    Args:
        process: what it knows.
        sharper: what the weights' logarithms are multiplied by.
        sees: how many observations ahead it looks.
    """

    def __init__(self, process: hs.GaussianHMM, sharper: float = 1.0, sees: int = 0) -> None:
        super().__init__()
        self.process, self.sharper, self.sees = process, sharper, sees
        self.residual = nn.ModuleList([HookPoint()])
        centre, width = process.scale
        roots = torch.linalg.inv(torch.linalg.cholesky(process.spread)) * width  # noqa: TID251 - two small matrices
        rows, columns = torch.tril_indices(2, 2, -1)
        laws = torch.cat(
            [(process.means - centre) / width, roots.diagonal(dim1=1, dim2=2).log(), roots[:, rows, columns]], 1
        )
        self.laws = nn.Parameter(laws)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        centre, width = self.process.scale
        beliefs = hs.observe(self.process, inputs.detach() * width + centre).probs["belief"]
        beliefs = self.residual[0](torch.cat([beliefs[:, self.sees :], beliefs[:, -1:].expand(-1, self.sees, -1)], 1))
        weights = self.sharper * (beliefs @ self.process.transition).clamp_min(1e-30).log()
        laws = self.laws.expand(*weights.shape, -1)
        return torch.cat([weights[..., None], laws], -1).flatten(-2)


class Torn(hs.GaussianHMM):
    """Every tenth number is missing."""

    def emit(self, states: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        return super().emit(states, uniforms).masked_fill(uniforms < 0.1, torch.nan)


@pytest.mark.parametrize("target", ["density", "observation", "belief"])
def test_gaps_in_numbers_are_refused_where_networks_meet_them(target: str, tmp_path: Path) -> None:
    torn = Torn([0.6, 0.4], MOVES, [[10.0], [13.0]], [[2.0], [1.0]])
    options: dict[str, Any] = {"model": {"name": "rnn", "num_layers": 1, "width": 4}, "length": 40}
    options["options"] = hs.TrainOptions(target=target)
    with pytest.raises(
        InputError, match=r"^observations: entries are missing \(NaN\), which networks .* hmmscope.fit, which"
    ):
        hs.train(torn, tmp_path / "torn", num_steps=1, **options)


def test_a_head_is_a_mixture() -> None:
    process = gaussian()
    head, x = head_of(process, 3), hs.ProcessDataset(process, length=4)[0:5].observations
    outputs = torch.randn(5, 4, head.num_outputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = outputs.unflatten(-1, (3, 6))
    centre, width = process.scale
    precise = torch.zeros(5, 4, 3, 2, 2, dtype=torch.float64)
    precise[..., 0, 0], precise[..., 1, 1], precise[..., 1, 0] = parts[..., 3].exp(), parts[..., 4].exp(), parts[..., 5]
    precise = precise / width
    laws = torch.distributions.MultivariateNormal(
        centre + width * parts[..., 1:3], precision_matrix=precise.transpose(-1, -2) @ precise
    )
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=parts[..., 0]), laws)
    torch.testing.assert_close(head.log_density(outputs, x), mixture.log_prob(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(head.mean(outputs), mixture.mean, rtol=1e-10, atol=1e-10)


def test_a_head_of_counts_is_a_mixture() -> None:
    process = hs.PoissonHMM([0.5, 0.5], MOVES, [[2.0, 5.0], [9.0, 1.0]])
    head, x = head_of(process), hs.ProcessDataset(process, length=4)[0:5].observations
    assert head.num_mixture_components == 2
    outputs = torch.randn(5, 4, head.num_outputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = outputs.unflatten(-1, (2, 3))
    rates = process.scale[0] * parts[..., 1:].exp()
    each = torch.distributions.Independent(torch.distributions.Poisson(rates), 1)
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=parts[..., 0]), each)
    torch.testing.assert_close(head.log_density(outputs, x), mixture.log_prob(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(head.mean(outputs), mixture.mean, rtol=1e-10, atol=1e-10)


def test_a_head_of_symbols_is_a_mixture(tmp_path: Path) -> None:
    """Two channels of three and two symbols; outputs of zero are the shares of all observations."""
    channels = [[[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]], [[0.7, 0.3], [0.2, 0.8]]]
    process = hs.MultichannelHMM([0.5, 0.5], MOVES, channels)
    head, x = head_of(process), hs.ProcessDataset(process, length=4)[0:5].observations
    outputs = torch.randn(5, 4, head.num_outputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = outputs.unflatten(-1, (2, 6))
    first, second = (
        torch.distributions.Categorical(logits=parts[..., own] + share.log())
        for own, share in zip((slice(1, 4), slice(4, 6)), process.shares, strict=True)
    )
    each = first.log_prob(x[..., :1]) + second.log_prob(x[..., 1:])
    expected = torch.logsumexp(parts[..., 0].log_softmax(-1) + each, -1)
    torch.testing.assert_close(head.log_density(outputs, x), expected, rtol=1e-10, atol=1e-10)
    means = torch.stack([first.probs @ torch.arange(3.0).double(), second.probs[..., 1]], -1)
    mixed = (parts[..., 0].softmax(-1)[..., None] * means).sum(-2)
    torch.testing.assert_close(head.mean(outputs), mixed, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(head.mean(torch.zeros_like(outputs))[0, 0], process.scale[0], rtol=1e-10, atol=1e-10)
    run = hs.train(process, tmp_path / "run", model={"name": "rnn", "width": 8}, length=6, num_steps=3)
    assert run.config.target == "density"
    with pytest.raises(InputError, match="dataset: must have symbols"):
        strategies(run.model, run.dataset("probe"), num_samples=4)


def test_a_mixed_head_is_a_gaussian_and_symbols() -> None:
    gaussian = hs.GaussianHMM([0.5, 0.5], MOVES, [[0.0, 3.0], [1.0, 5.0]], [[1.0, 2.0], [4.0, 1.0]])
    symbols = hs.MultichannelHMM([0.5, 0.5], MOVES, [[[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]])
    process = hs.MixedHMM(**(gaussian.file_tensors() | symbols.file_tensors()))
    parts, x = [head_of(one, 1) for one in (gaussian, symbols)], hs.ProcessDataset(process, length=4)[0:5].observations
    outputs = [torch.randn(5, 4, head.num_outputs, dtype=torch.float64) for head in parts]
    head, joint = head_of(process, 1), torch.cat([outputs[0], outputs[1][..., 1:]], -1)
    first, second = (part.log_density(*own) for part, *own in zip(parts, outputs, x.split([2, 1], -1), strict=True))
    torch.testing.assert_close(head.log_density(joint, x), first + second, rtol=1e-10, atol=1e-10)
    means = torch.cat([part.mean(own) for part, own in zip(parts, outputs, strict=True)], -1)
    torch.testing.assert_close(head.mean(joint), means, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "layout", [SequenceLayout(length=20), PromptLayout(num_demonstrations=2, demonstration_length=5, test_length=6)]
)
def test_the_exact_filter_as_a_network_has_no_excess(layout: Any) -> None:
    process = gaussian()
    dataset = hs.ProcessDataset(process, layout=layout, stream="evaluate")
    if isinstance(layout, SequenceLayout):
        score = hs.evaluate(ExactFilter(process), dataset, target="density", num_samples=64)
        assert score.invalid is None
        assert score.loss == pytest.approx(score.bayes_loss, abs=1e-10)
        assert max(map(abs, score.excess or (1.0,))) < 1e-10
    asked = hs.make_target("density", process, layout)
    batch = dataset[0:8]
    observed = hs.observe(process, batch.observations, reset_mask=torch.from_numpy(layout.reset_mask))
    kept = layout.predicted_observations
    torch.testing.assert_close(asked.lower_bound_terms(batch), -observed.log_likelihood_terms[:, kept])


def test_a_wrong_density_has_excess_and_a_leak_is_invalid() -> None:
    process = gaussian()
    dataset = hs.ProcessDataset(process, length=20, stream="evaluate")
    bolder = hs.evaluate(ExactFilter(process, sharper=3.0), dataset, target="density", num_samples=200)
    assert bolder.invalid is None
    assert bolder.excess[1] > 0
    leaking = hs.evaluate(ExactFilter(process, sharper=3.0, sees=1), dataset, target="density", num_samples=200)
    assert leaking.invalid is not None
    assert "below the loss of the Bayes optimum by" in leaking.invalid


def test_the_belief_is_read_and_used_where_it_is_known_to_be() -> None:
    process = gaussian()
    dataset = hs.ProcessDataset(process, length=12, stream="probe")
    rows = geometry(ExactFilter(process), dataset, num_samples=64, options=hs.InstrumentOptions(num_controls=0))
    assert next(row["r2"] for row in rows if row["target"] == "belief" and row["targets"] == "true") > 0.999999
    rows = hs.belief_interventions(
        ExactFilter(process).double(),
        dataset,
        num_samples=64,
        answer="density",
        options=hs.InterventionOptions(num_positions=2),
    )
    found = {(row["intervention"], row["subspace"]): row["value"] for row in rows}
    assert {row["metric"] for row in rows} == {"squared"}
    assert found["set", "belief"] > 0.99
    assert found["ablate", "belief"] == pytest.approx(1.0, abs=0.02)


def test_a_gaussian_hmm_becomes_a_trained_network(tmp_path: Path) -> None:
    """Arrays, five lines: a network beside its optimum, and its belief read from its layers."""
    process = hs.GaussianHMM([0.5, 0.5], MOVES, [50.0, 80.0], [36.0, 25.0], "spherical")
    run = hs.train(
        process, tmp_path / "run", model={"name": "rnn", "num_layers": 1, "width": 16}, length=12, num_steps=80
    )
    rows = hs.probe(run.model, run.dataset("probe"), num_samples=64)
    assert run.config.target == "density"
    assert 0 < run.summary["excess"] < 0.7
    assert run.summary["invalid"] is None
    assert run.summary["loss"] - run.summary["bayes_loss"] == pytest.approx(run.summary["excess"], abs=1e-9)
    assert max(row["r2"] for row in rows if row["labels"] == "true") > 0.8
    assert hs.load_run(tmp_path / "run").process.digest == process.digest
    assert run.report().read_text()


@pytest.mark.long
@pytest.mark.parametrize("target", ["observation", "density"])
def test_a_linear_system_goes_through_the_instruments(target: str, tmp_path: Path) -> None:
    process = hs.make_process("ran-lds", dimension=2)
    training = {"learning_rate": 5e-3, "warmup_steps": 10}
    model = {"name": "rnn", "num_layers": 1, "width": 16}
    run = hs.train(
        process,
        tmp_path / "run",
        options=hs.TrainOptions(target=target),
        model=model,
        length=8,
        num_steps=200,
        training=training,
    )
    rows = geometry(run.model, run.dataset("probe"), num_samples=64, options=hs.InstrumentOptions(num_controls=0))
    assert max(row["r2"] for row in rows if row["target"] == "belief") > 0.9
    changed = hs.belief_interventions(
        run.model, run.dataset("probe"), num_samples=64, answer=target, options=hs.InterventionOptions(num_positions=2)
    )
    last = {(row["intervention"], row["subspace"]): row["value"] for row in changed if row["layer"] == 1}
    assert last["set", "belief"] > 0.5 > last["set", "random"]


def test_what_cannot_be_asked_is_said_in_a_line(tmp_path: Path) -> None:
    channels = hs.MultichannelHMM([1.0, 0.0], MOVES, [[[0.5, 0.5], [0.5, 0.5]]])
    odd = type("Odd", (hs.GaussianHMM,), {"density": "odd"})([1.0], [[1.0]], [[0.0]], [[1.0]])
    layout, umbrella = SequenceLayout(length=5), hs.load_process("umbrella")
    refused: list[tuple[Any, str]] = [
        (lambda: hs.make_target("density", umbrella, layout), "density needs vectors, but HMM emits symbols"),
        (lambda: hs.make_target("density-x", gaussian(), layout), "density-K for K mixture components"),
        (lambda: hs.make_target("density-0", gaussian(), layout), "must have 1 to 1024 mixture components"),
        (lambda: hs.make_target("densty", gaussian(), layout), "did you mean 'density'"),
        (lambda: hs.make_target("density", odd, layout), "Odd has no density target; use target='belief'"),
        (
            lambda: hs.train(gaussian(), tmp_path / "a", length=5, training={"engine": "compiled"}),
            "does not support densities",
        ),
    ]
    for attempt, said in refused:
        with pytest.raises(InputError, match=said):
            attempt()
    assert hs.make_target("belief", channels, layout).num_outputs == 2
    assert configure("random-gaussian").target == "density"


def test_a_network_learns_the_density_of_recorded_numbers(tmp_path: Path) -> None:
    """Against the process that drew them, with gaps, and with an autoregression by conditional densities."""
    law = hs.GaussianHMM([0.5, 0.5], [[0.95, 0.05], [0.1, 0.9]], [[0.0], [3.0]], torch.ones(2, 1))
    rows = np.array(law.sample(1600, seed=0).observations)[:, 0]
    rows[100:130] = np.nan
    path = tmp_path / "x.csv"
    path.write_text("t,x\n" + "".join(f"{k},{'' if row != row else float(row)}\n" for k, row in enumerate(rows)))
    settings: dict[str, Any] = {"model": {"name": "rnn", "width": 16}, "num_steps": 100, "length": 32}
    run = hs.train(path, tmp_path / "run", time="t", every=1, training={"learning_rate": 0.02}, **settings)
    assert run.process.digest == hs.load_run(tmp_path / "run").process.digest
    score = hs.evaluate(run.model, run.dataset("test"), target="density", observers={"law": law}, num_samples=99)
    loss = {row["predictor"]: row["loss"] for row in score.table()}
    assert loss["law"] < loss["model"] < loss["autoregression-0"] - 0.1
    assert score.baseline == min(
        (("autoregression-" + k, loss["autoregression-" + k]) for k in "0123"), key=lambda x: x[1]
    )
    test = run.dataset("test")[0 : run.dataset("test").different(99)].observations
    each = law.observe(test).log_likelihood_terms.where(~test.isnan().any(-1), torch.nan)[:, 1:]
    assert loss["law"] == pytest.approx(-float(each.nanmean()), rel=1e-9)
    regression = AutoRegression(run.process.part("train").padded(), 2, run.process.least_variances)  # type: ignore[attr-defined]
    values = torch.tensor([[[0.5], [1.0], [torch.nan], [2.0], [3.0], [2.5]]], dtype=torch.float64)
    found = regression.predictions(values)
    of = {k: found[f"autoregression-{k}"][0, :, 0] for k in range(3)}
    assert of[2][0] == of[0][0]  # no past
    assert of[2][[1, 4]].equal(of[1][[1, 4]])  # a past of one
    assert of[2][5] != of[1][5]
    run = hs.train(rows, tmp_path / "again", num_steps=1, model={"name": "rnn", "width": 4})
    assert run.config.target == "density"
    with pytest.raises(InputError, match="target: must be density for recorded numbers, got 'belief'"):
        hs.train(rows, tmp_path / "belief", num_steps=1, options=hs.TrainOptions(target="belief"))


def test_no_density_of_rounded_numbers_is_narrower_than_their_rounding() -> None:
    """A density on the values of a grid is otherwise unbounded, of a network and of an autoregression."""
    ramps = hs.read_vectors([[[0.1 * k, 7.0] for k in range(first, 40)] for first in range(9)])
    process = RecordedVectors(ramps)
    width = float(process.scale[1][0])
    assert process.least_variances.tolist() == pytest.approx([0.01 / 12 / width**2, 1e-6])  # the second is constant
    least = torch.tensor([0.01 / 12, 1e-6], dtype=torch.float64)
    head = hs.make_target("density-1", process, SequenceLayout(length=5)).head
    for output in (30.0, 100.0, 1000.0):
        outputs = torch.tensor([0.0, 0.0, 0.0, output, output, 0.0], dtype=torch.float64)
        found = head.log_density(outputs, process.scale[0])
        assert float(found) == pytest.approx(-0.5 * float((2 * torch.pi * least).log().sum()), abs=1e-7)
    wide = torch.tensor([0.0, 0.0, 0.0, -1.0, -1.0, 0.0], dtype=torch.float64)
    sigma = (torch.e**2 * torch.tensor([width**2, 1.0]).double() + least).sqrt()
    assert float(head.log_density(wide, process.scale[0])) == pytest.approx(
        -float((sigma * (2 * torch.pi) ** 0.5).log().sum())
    )
    one = RecordedVectors(hs.read_vectors([[0.1 * k for k in range(first, 40)] for first in range(9)]))
    regression = AutoRegression(one.part("train").padded(), 1, one.least_variances)
    exact = regression.predictions(one.part("test").padded())["autoregression-1"][0, 1, 0]
    assert float(exact) == pytest.approx(-0.5 * math.log(2 * math.pi * 0.01 / 12), abs=1e-3)
    asked = RecordedVectors(ramps, min_variance=0.25)
    assert asked.in_pieces(20).least_variances.tolist() == [0.25, 0.25]
    assert asked.digest != process.digest
    rare = RecordedVectors(hs.read_vectors([[0.0] * k + [1.0] for k in range(100, 110)]))
    assert rare.least_variances.tolist() == [0.5]  # the variance of the data is below that of a rounding to 1
    for wrong in (0.0, 1.0, -1.0):
        with pytest.raises(InputError, match=r"min_variance: must be in \(0, 1\), a fraction of the variance"):
            RecordedVectors(ramps, min_variance=wrong)
