"""Belief interventions on networks whose belief is where we put it, and on those that do not use what can be read."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hmmscope as hs
from hmmscope.analysis.belief_interventions import (
    _others,
    belief_interventions,
    divergence,
    exact_answers,
    total_variation,
    writing,
)
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.mixture_posterior import filter_known_component
from hmmscope.models.base import HookPoint
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope_papers.constructions.deterministic_rnn import limits_theorem5_1

WIDTH = 12


class Filter(nn.Module):
    """The exact filter as a network: its stream is a mixture of the belief and of noise, from which the belief is read back.

    With `deaf` the answer comes from the tokens: the belief can be read in the stream as before, and nothing listens.
    """

    def __init__(self, process: HMM, *, deaf: bool = False) -> None:
        super().__init__()
        self.process, self.deaf = process, deaf
        generator = torch.Generator().manual_seed(0)
        mixing, _ = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))
        self.mixing = nn.Parameter(mixing, requires_grad=False)
        self.residual = nn.ModuleList([HookPoint()])

    def forward(self, tokens: Tensor) -> Tensor:
        beliefs = filter_beliefs(self.process, tokens).beliefs
        noise = torch.sin(
            tokens.cumsum(1)[..., None] * torch.arange(1, WIDTH - beliefs.shape[-1] + 1) + beliefs[..., :1]
        )
        stream = self.residual[0](torch.cat([beliefs, noise], -1) @ self.mixing)
        heard = beliefs if self.deaf else (stream @ self.mixing.T)[..., : beliefs.shape[-1]]
        return exact_answers(self.process.params, heard).clamp_min(1e-300).log()


@pytest.fixture(scope="module")
def process() -> HMM:
    return make_process("random-hmm", num_states=3, num_symbols=3, seed=1)


def values(rows: list[dict[str, Any]], metric: str = "kl") -> dict[tuple[str, str], float]:
    return {(row["intervention"], row["subspace"]): row["value"] for row in rows if row["metric"] == metric}


def test_network_that_uses_its_belief_follows_it(process: HMM) -> None:
    rows = belief_interventions(Filter(process), ProcessDataset(process, 12), num_samples=256)
    found = values(rows)
    assert found["set", "belief"] == pytest.approx(1, abs=1e-6)  # the filter's law from the other belief
    assert found["swap", "belief"] == pytest.approx(1, abs=1e-6)
    assert found["swap", "whole"] == pytest.approx(1, abs=1e-9)
    assert found["set", "random"] < 0.5
    assert found["swap", "random"] < 0.6  # two of the ten directions in which this stream varies are shared by chance
    assert found["ablate", "belief"] > 0.8
    assert found["ablate", "random"] < found["ablate", "belief"] / 2
    (swap,) = (row for row in rows if (row["intervention"], row["subspace"], row["metric"]) == ("set", "belief", "kl"))
    assert swap["low"] <= swap["value"] <= swap["high"]
    assert (swap["layer"], swap["layer_name"], swap["samples"]) == (0, "residual.0", 64)


@pytest.mark.long
def test_vectors_of_a_generalised_hmm_are_moved_like_beliefs() -> None:
    walk = make_process("bloch-walk")
    found = values(belief_interventions(Filter(walk), ProcessDataset(walk, 12), num_samples=128))
    assert found["set", "belief"] == pytest.approx(1, abs=1e-6)
    assert found["swap", "belief"] == pytest.approx(1, abs=1e-6)
    assert found["set", "random"] < 0.5
    assert found["ablate", "belief"] > 0.8


def test_network_that_does_not_listen_is_not_moved(process: HMM) -> None:
    """The belief is read from its stream as well as from the other's; nothing follows from changing it."""
    for metric in ("kl", "total_variation"):
        found = values(
            belief_interventions(Filter(process, deaf=True), ProcessDataset(process, 12), num_samples=128), metric
        )
        assert found["set", "belief"] == pytest.approx(0, abs=1e-12)
        assert found["swap", "whole"] == pytest.approx(0, abs=1e-12)
        assert found["ablate", "belief"] == pytest.approx(0, abs=1e-12)


def test_network_of_a_theorem_takes_the_belief_that_is_written_into_it() -> None:
    """[Limits] Theorem 5.1: the hidden state holds the belief, and the decoder reads it."""
    process = make_process("cyclic-det", seed=3)
    net = limits_theorem5_1(process, placeholder=False)
    options = {"answer": "belief", "layers": ["residual.1"], "options": hs.InterventionOptions(ridge=1e-12)}
    rows = belief_interventions(net, ProcessDataset(process, 10), num_samples=128, **options)
    found = values(rows, "total_variation")
    assert found["set", "belief"] == pytest.approx(1, abs=1e-5)
    assert found["swap", "belief"] == pytest.approx(1, abs=1e-5)


def test_untrained_network_is_moved_by_no_belief(process: HMM) -> None:
    model = hs.make_model("roformer", num_symbols=3, num_layers=2, num_heads=2, width=16, seed=0)
    found = values(belief_interventions(model, ProcessDataset(process, 12), num_samples=128))
    assert max(value for (kind, _), value in found.items() if kind != "ablate") < 0.3


def test_what_is_written_is_read_again() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    covariance = x.T @ x / 200
    read = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    read[:, 2] = -read[:, 0] - read[:, 1]  # as of laws, whose coordinates sum to one
    write = writing(read, covariance)
    wanted = torch.randn(4, 6, generator=generator, dtype=torch.float64) @ read
    assert torch.allclose(wanted @ write @ read, wanted)
    least = wanted @ write
    other = least + 0.1 * torch.linalg.svd(read.T).Vh[-1]  # reads the same
    assert torch.allclose(other @ read, wanted)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    assert ((least @ inverse) * least).sum() < ((other @ inverse) * other).sum()


def test_exact_answers_and_distances(process: HMM) -> None:
    observations = ProcessDataset(process, 6)[0:5].observations
    exact = filter_beliefs(process, observations)
    assert torch.allclose(exact_answers(process.params, exact.beliefs), exact.next_observation)
    edges = make_process("even")
    observations = ProcessDataset(edges, 6)[0:5].observations
    found = filter_beliefs(edges, observations)
    assert torch.allclose(exact_answers(edges.params, found.beliefs), found.next_observation)
    one, two = (torch.tensor(law, dtype=torch.float64) for law in ([0.5, 0.5, 0.0], [0.25, 0.5, 0.25]))
    assert divergence(one, two).item() == pytest.approx(0.5 * math.log(2))
    assert divergence(two, one).item() == float("inf")
    assert total_variation(one, two).item() == 0.25


def test_refused(process: HMM) -> None:
    model = Filter(process)
    with pytest.raises(InputError, match="num_samples: must be at least 16"):
        belief_interventions(model, ProcessDataset(process, 6), num_samples=8)
    with pytest.raises(InputError, match="answer: unknown 'beleif'"):
        belief_interventions(model, ProcessDataset(process, 6), answer="beleif")
    with pytest.raises(InputError, match="density needs vectors, but HMM emits symbols"):
        belief_interventions(model, ProcessDataset(process, 6), answer="density", num_samples=16)


def test_samples_take_the_belief_of_another_one_of_their_component() -> None:
    donor, kept = _others(torch.tensor([2, 0, 2, 1, 0, 2]))
    assert kept.tolist() == [0, 1, 2, 4, 5]  # the only sample of component 1 has no other
    assert [int(kept[place]) for place in donor] == [2, 4, 5, 1, 0]
    mixture = make_process("random-mixture", num_components=3, num_states=3, num_symbols=3, seed=0)
    batch = ProcessDataset(mixture, 7, seed=0)[0:40]
    exact = filter_known_component(mixture, batch.observations, batch.components)
    following = exact_answers(mixture.params, exact.beliefs, batch.components)
    assert torch.allclose(following[:, :-1], exact.predicted_observation[:, 1:])
