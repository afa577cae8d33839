"""Instruments count what is asked and nothing else: of sequences that end and have gaps, of models that answer NaN, of laws
that are impossible; and they leave models as they were."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope import registry
from hmmscope.analysis import evaluation_losses
from hmmscope.analysis.activations import capture_activations
from hmmscope.analysis.belief_interventions import belief_interventions
from hmmscope.analysis.header import HeaderOptions, header
from hmmscope.analysis.interventions import project_out
from hmmscope.analysis.mechanisms import components, mechanisms
from hmmscope.analysis.strategies import strategies
from hmmscope.analysis.task_patching import task_patching
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError, NonFiniteError
from hmmscope.processes.recorded_sequences import RecordedSequences

PROCESS = hs.make_process("random-hmm", num_states=3, num_symbols=4, seed=0)
LENGTH = 16


def net(corpus: hs.ProcessDataset, **options: Any) -> nn.Module:
    sizes = {"num_symbols": corpus.num_symbols, "vocab_size": corpus.vocab_size}
    return hs.make_model("roformer", num_layers=1, num_heads=2, width=16, **sizes, **options).eval()


def unequal(count: int = 300) -> hs.ProcessDataset:
    """Sequences of 6 to 16 symbols, beside the process that wrote them."""
    draw, whole = np.random.default_rng(0), hs.ProcessDataset(PROCESS, length=LENGTH)[0:count].observations.numpy()
    data = hs.SequenceData([row[: draw.integers(6, LENGTH + 1)] for row in whole], symbols=4)
    return hs.ProcessDataset(RecordedSequences(data, PROCESS), length=LENGTH, stream="test")


def test_padding_counts_nowhere() -> None:
    dataset = unequal()
    many, model = dataset.different(1000), net(dataset)
    assert many < 1000
    batch = dataset[0:many]
    law = model(batch.tokens).softmax(-1).double().detach()[:, :-1]
    optimum = hs.filter_beliefs(PROCESS, batch.observations).next_observation[:, :-1]
    asked = batch.states[:, 1:] >= 0
    assert not asked.all()

    by_sample = [
        one[own].mean() for one, own in zip(torch.special.xlogy(optimum, optimum / law).sum(-1), asked, strict=True)
    ]
    rows = {(row["predictor"], row["metric"]): row for row in strategies(model, dataset, num_samples=1000)}
    assert rows["optimum", "kl"]["value"] == pytest.approx(float(torch.stack(by_sample).mean()), rel=1e-5)
    assert rows["optimum", "kl"]["samples"] == many

    apart = 0.5 * (law - optimum).abs().sum(-1)
    losses = [row for row in evaluation_losses(model, dataset, num_samples=1000) if row["predictor"] == "model"]
    for row in losses:
        own = asked[:, row["position"] - 1]
        assert row["samples"] == int(own.sum())
        assert row["value"] == pytest.approx(float(apart[own, row["position"] - 1].mean()), rel=1e-5)

    loss = -law.gather(2, batch.observations[:, 1:, None].clamp_min(0))[..., 0].log()
    by_sample = [one[own].mean() for one, own in zip(loss, asked, strict=True)]
    row = next(row for row in mechanisms(model, dataset, num_samples=1000) if row["quantity"] == "loss")
    assert row["before"] == pytest.approx(float(torch.stack(by_sample).mean()), rel=1e-5)
    assert row["samples"] == many

    probed = hs.probe(
        model, dataset, target="previous-0", num_samples=1000, options=hs.InstrumentOptions(num_controls=0)
    )[0]
    seen, known = batch.observations[3 * many // 4 :, 4:], batch.states[3 * many // 4 :, 4:] >= 0
    assert probed["chance"] == pytest.approx(float(seen[known].bincount().max() / known.sum()))


def test_excess_is_what_the_loss_is_above_its_floor() -> None:
    """Nats an observation, whatever the lengths; an infinite one is said to be."""
    dataset = unequal()
    score = hs.evaluate(net(dataset), dataset, num_samples=1000, baselines=False)
    assert score.excess is not None
    assert score.excess[0] == pytest.approx(np.nanmean(score.measures["model"]["excess"]))
    found = {row["predictor"]: row["excess"] for row in score.table() if "excess" in row}["model"]
    assert score.excess[0] == pytest.approx(found, rel=1e-12)  # the two sums have different orders
    assert score.excess[1] < score.excess[0] < score.excess[2]


def test_one_sample_has_no_interval() -> None:
    dataset = hs.ProcessDataset(PROCESS, length=4)
    one, two = (hs.evaluate(net(dataset), dataset, num_samples=count, baselines=False) for count in (1, 2))
    assert one.excess is not None
    assert one.excess[1:] == (None, None)
    assert one.excess[0] == pytest.approx(one.measures["model"]["excess"].mean())
    assert two.excess is not None
    assert two.excess[1] is not None
    assert {(row["low"], row["high"]) for row in one.rows("positions")} == {(None, None)}
    assert all(row["low"] <= row["value"] <= row["high"] for row in two.rows("positions"))
    assert one.plot().axes


def test_attention_is_that_of_the_last_token_of_each_sequence() -> None:
    dataset = unequal()
    many, model = dataset.different(1000), net(dataset)
    rows = [row for row in hs.attention_map(model, dataset, num_samples=1000, max_offset=LENGTH) if row["layer"] == 1]
    assert {row["samples"] for row in rows} == {many}

    expected, name = torch.zeros(2, LENGTH, dtype=torch.float64), "blocks.0.attention.pattern"
    for n in range(many):  # each by itself, cut off where it ends
        batch = dataset[n : n + 1]
        length = int((batch.states >= 0).sum())
        pattern = capture_activations(model, [name], batch.tokens[:, :length])[name][0, :, -1]
        expected[:, : pattern.shape[-1]] += pattern.flip(-1) / many
    for row in rows:
        if row["kind"] == "offset":
            assert row["value"] == pytest.approx(float(expected[row["head"], row["key"]]), abs=1e-6)


def test_gaps_count_nowhere() -> None:
    """What is missing is no class of the symbols before, and nothing that `mechanisms` reads."""
    draw = np.random.default_rng(0)
    seen = draw.integers(0, 4, (400, LENGTH))
    seen[draw.random(seen.shape) < 0.1] = hs.MISSING
    dataset = hs.ProcessDataset(hs.SequenceData(list(seen), symbols=4), length=LENGTH, stream="probe")
    model, many = net(dataset), dataset.different(40)
    rows = hs.probe(model, dataset, target="previous-1", num_samples=40)
    assert all(0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in rows if row["labels"] == "true")
    tested = dataset[3 * many // 4 : many].observations[:, 3:-1]
    kept = tested[tested != hs.MISSING]
    assert rows[0]["chance"] == pytest.approx(float(kept.bincount().max() / len(kept)))
    assert all(np.isfinite(row["value"]) for row in mechanisms(model, dataset, num_samples=40))


def test_a_model_that_answers_nan_is_refused() -> None:
    dataset = hs.ProcessDataset(PROCESS, length=12, stream="probe")
    model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))
    assert hs.evaluate(model, dataset, num_samples=8).loss > 0
    model[0].weight.data[3] = torch.nan  # type: ignore[index,operator]
    first = int((dataset[0:8].observations[:, :-1] == 3).any(1).nonzero()[0])
    for ask in (hs.evaluate, strategies, evaluation_losses):
        with pytest.raises(NonFiniteError, match=rf"outputs are NaN, first in sample {first} of the batch"):
            ask(model, dataset, num_samples=8)

    class Law(nn.Module):
        outputs = "law"

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.full((*tokens.shape, 4), torch.nan)

    with pytest.raises(NonFiniteError, match="sample 0 of the batch, at evaluated position 0"):
        hs.evaluate(Law(), dataset, num_samples=8)


def test_what_another_component_cannot_have_written_has_no_answer() -> None:
    """Of two components with a symbol of their own each, only what both write is compared."""
    one = hs.HMM([0.5, 0.5], [[0.8, 0.2], [0.3, 0.7]], [[0.8, 0.2, 0], [0.4, 0.6, 0]])
    two = hs.HMM([0.5, 0.5], [[0.6, 0.4], [0.3, 0.7]], [[0, 0.7, 0.3], [0, 0.4, 0.6]])
    layout = hs.PromptLayout(num_demonstrations=2, demonstration_length=4, test_length=4)
    dataset = hs.ProcessDataset(hs.Mixture([0.5, 0.5], [one, two]), layout=layout, stream="probe")
    model, count = net(dataset), 128
    batch = dataset[0:count]
    laws, answers = [], model(batch.tokens)[:, -4:, :3].detach().double().softmax(-1)
    for sample in range(96, count):
        assert batch.components is not None
        other = (two, one)[int(batch.components[sample])]
        laws.append(hs.filter_beliefs(other, batch.observations[sample : sample + 1, -4:]).next_observation[0])
    law, said = torch.stack(laws), answers[96:]
    possible = law.sum(-1) > 0.5
    assert 0 < possible.double().mean() < 0.5
    kept = [pair for pair in range(32) if possible[pair].any()]
    apart = torch.special.xlogy(law, law / said).sum(-1)
    wanted = torch.stack([apart[pair][possible[pair]].mean() for pair in kept]).mean()
    row = next(
        row
        for row in task_patching(model, dataset, num_samples=count)
        if (row["layer"], row["subspace"], row["reference"], row["metric"]) == (1, "whole", "filter", "kl")
    )
    assert (row["samples"], row["before"]) == (len(kept), pytest.approx(float(wanted), rel=1e-5))


def test_no_share_of_an_infinite_worth_and_none_of_nothing() -> None:
    """On Cyclic-HARD the mean belief holds what happens impossible; of one symbol nothing is to be lost."""
    for name, options in (("cyclic-hard", {}), ("random-hmm", {"num_states": 2, "num_symbols": 1})):
        dataset = hs.ProcessDataset(hs.make_process(name, **options), length=12, stream="probe")
        model = hs.make_model("roformer", num_symbols=dataset.num_symbols, num_layers=1, num_heads=2, width=8)
        rows = belief_interventions(model, dataset, num_samples=512, layers=["residual.1"])
        assert all(np.isfinite([row["value"], row["low"], row["high"], row["error"]]).all() for row in rows)
        kinds = {(row["intervention"], row["metric"]) for row in rows}
        assert (("ablate", "kl") in kinds) == (name != "cyclic-hard")


def test_a_belief_that_varies_is_read_where_the_next_law_does_not() -> None:
    dataset = hs.ProcessDataset(hs.make_process("cyclic-det"), length=12, stream="probe")
    model = hs.make_model("gru", num_symbols=dataset.num_symbols, width=16)
    rows = hs.probe(model, dataset, num_samples=64)
    assert {row["target"] for row in rows} == {"belief"}
    assert all(row["from_prediction"] == 0 for row in rows)


@pytest.mark.long
@pytest.mark.drawn(1)
@pytest.mark.parametrize("heads", [2, 4])
def test_heads_of_attention_of_another_make_are_ablated(heads: int) -> None:
    dataset = hs.ProcessDataset(PROCESS, length=12, stream="probe")
    model = hs.make_model("llama", num_symbols=4, num_layers=2, num_heads=heads, width=16)
    named = [part.name for part in components(model) if part.head is not None]
    assert named == [f"head {layer}.{head}" for layer in (1, 2) for head in range(heads)]
    rows = mechanisms(model, dataset, num_samples=16)
    assert {row["component"] for row in rows} >= {"head 1.0", "attention 2"}
    loss = hs.evaluate(model, dataset, num_samples=16).loss
    assert rows[0]["before"] == pytest.approx(loss, rel=1e-5)


def test_modes_of_parts_are_put_back() -> None:
    dataset = hs.ProcessDataset(PROCESS, length=12)
    for outer in (True, False):
        model = nn.Sequential(nn.Embedding(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)).train(outer)
        model[1].train(not outer)
        modes = [part.training for part in model.modules()]
        hs.evaluate(model, dataset, num_samples=2)
        hs.capture_activations(model, ["0"], dataset[0:2].tokens)
        assert [part.training for part in model.modules()] == modes


class Named(nn.Module):
    """A layer that gives a dictionary."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": x}


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.named, self.head = nn.Embedding(60, 8), Named(), nn.Linear(8, 60)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.named(self.embed(tokens))["hidden"])  # type: ignore[no-any-return]


def test_what_cannot_be_read_is_refused_in_a_line() -> None:
    dataset = hs.ProcessDataset(
        hs.make_process("random-hmm", num_states=2, num_symbols=60, seed=0), length=8, stream="probe"
    )
    with pytest.raises(
        InputError, match=r"^layers: module 'named' must return a tensor, got dict; name a module inside it"
    ):
        hs.probe(Blocks(), dataset, layers=["named"], num_samples=16)
    for layers in ([], "embed"):
        with pytest.raises(InputError, match=r"^layers: must be a list of (names|at least one name)"):
            hs.probe(Blocks(), dataset, layers=layers, num_samples=16)
    assert project_out(torch.zeros(0, 6))(torch.ones(2, 3, 6)).equal(torch.ones(2, 3, 6))


@pytest.mark.long
def test_the_automaton_of_many_symbols() -> None:
    """Sixty symbols: the least probability that is followed is below that of a uniform law."""
    process = hs.make_process("random-hmm", num_states=2, num_symbols=60, seed=0)
    dataset = hs.ProcessDataset(process, layout=hs.SequenceLayout(length=8, placeholder=True))
    found = registry.lookup("instrument", "automaton")(net(dataset), dataset, num_samples=4)
    assert {row["quantity"] for row in found} == {"rank", "states", "recurrent", "distance"}


def test_no_sample_reads_its_own_header_as_a_wrong_one() -> None:
    family = hs.make_process("told-hmms", num_states=2, num_symbols=2, least=1)
    dataset = hs.ProcessDataset(family, layout=hs.HeaderLayout(length=4))
    rows = header(net(dataset), dataset, num_samples=65, options=HeaderOptions(num_pools=0, num_fits=0, ngrams=False))
    found = [
        row for row in rows if (row["predictor"], row["position"], row["quantity"]) == ("wrong-header", None, "excess")
    ]
    batch, asked = dataset[0:65], make_target("observation", family, dataset.layout)
    told = dataset.layout.context_length - dataset.layout.num_observations
    tokens = torch.cat([batch.tokens[:, :told].roll(1, 0), batch.tokens[:, told:]], 1)
    exact, wrong = asked.optimum(batch), asked.optimum(replace(batch, tokens=tokens))
    apart = (torch.special.xlogy(exact, exact) - torch.special.xlogy(exact, wrong)).sum(-1)
    assert [row["value"] for row in found] == [pytest.approx(float(apart.mean()))]
