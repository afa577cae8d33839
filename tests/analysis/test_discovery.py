"""Discovery on laws and networks where what is to be found is known."""

import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.discovery import automaton, dictionary, model_words
from hmmscope.errors import InputError
from hmmscope.inference.memory import all_sequences
from hmmscope.inference.minimal_automata import extract_automaton
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.inference.spectral import Operators
from hmmscope.models.base import HookPoint


@pytest.mark.parametrize("name, recurrent", [("golden-mean", 2), ("even", 2), ("rrxor", 5), ("z1r", 3)])
def test_recurrent_states_are_counted_exactly(name: str, recurrent: int) -> None:
    process = hs.make_process(name)
    law = Operators.of(process).probabilities
    found = extract_automaton(law, 2, futures=4, tolerance=1e-6, rare=0.0, max_depth=12)
    exact = mixed_states(process)
    assert found.complete
    assert exact.complete
    assert len(found.recurrent) == recurrent
    assert len(found.prefixes) == len(exact.depth)
    words = all_sequences(2, 6)
    state = torch.zeros(len(words), len(found.prefixes)).double()
    state[:, 0] = 1
    for t in range(6):
        state = torch.einsum("bn,bnm->bm", state, found.labelled[words[:, t]])
    assert (state.sum(1) - law(words)).abs().max() < 1e-6


def test_a_process_of_endless_states_is_said_to_be_incomplete() -> None:
    law = Operators.of(hs.make_process("mess3")).probabilities
    found = extract_automaton(law, 3, tolerance=1e-9, max_states=20, max_depth=3)
    assert not found.complete
    assert len(found.prefixes) == 20
    assert torch.allclose(found.labelled.sum((0, 2)), torch.ones(20).double())


class Knows(nn.Module):
    """The exact filter as a model: next laws after a placeholder, and a stream that holds the belief."""

    outputs = "law"

    def __init__(self, name: str, noise: float = 0.0) -> None:
        super().__init__()
        self.process = hs.make_process(name)
        self.residual, size = nn.ModuleList([HookPoint()]), self.process.num_states
        generator = torch.Generator().manual_seed(1)
        self.map_ = torch.randn(size, 16, generator=generator)
        self.noise = noise

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        told = hs.filter_beliefs(self.process, tokens[:, 1:])
        start = self.process.initial.expand(len(tokens), 1, -1)
        belief = torch.cat([start, told.beliefs], 1).float()
        shade = torch.sin(37 * belief.sum(-1, keepdim=True) + torch.arange(tokens.shape[1])[None, :, None])
        self.residual[0](belief @ self.map_ + self.noise * shade)
        first = told.first_observation.expand(len(tokens), 1, -1)
        return torch.cat([first, told.next_observation], 1)


def corpus_of(name: str, length: int = 12) -> hs.ProcessDataset:
    layout = hs.SequenceLayout(length=length, placeholder=True)
    return hs.ProcessDataset(hs.make_process(name), layout=layout, stream="probe")


@pytest.mark.parametrize("name, states", [("even", 2), ("golden-mean", 2), ("rrxor", 5)])
def test_a_model_that_knows_the_law_has_its_states(name: str, states: int) -> None:
    rows = {row["quantity"]: row for row in automaton(Knows(name), corpus_of(name), length=4, num_samples=32)}
    assert rows["rank"]["value"] == rows["rank"]["exact"] == states
    assert rows["recurrent"]["value"] == rows["recurrent"]["exact"]
    assert rows["distance"]["value"] < 1e-4
    words = all_sequences(2, 5)
    law = Operators.of(hs.make_process(name)).probabilities(words)
    assert (model_words(Knows(name), corpus_of(name))(words) - law).abs().max() < 1e-6


def test_a_network_that_knows_nothing_has_one_state() -> None:
    model = hs.make_model("roformer", num_symbols=2, vocab_size=3, num_layers=1, width=16, num_heads=2)
    rows = {row["quantity"]: row["value"] for row in automaton(model, corpus_of("even"), num_samples=32)}
    assert rows["recurrent"] == 1
    assert rows["distance"] > 0.05


def test_the_belief_is_found_without_labels() -> None:
    dataset = corpus_of("mess3", 20)
    rows = dictionary(Knows("mess3", noise=0.05), dataset, num_samples=200, methods=("principal", "simplex", "sparse"))
    found = {(row["method"], row["quantity"]): row["value"] for row in rows}
    assert found["principal", "read"] > 0.99
    assert found["simplex", "matched"] > 0.97
    assert found["simplex", "matched"] > found["principal", "matched"] + 0.1
    assert found["sparse", "matched"] > 0.8


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="methods: unknown 'umap'"):
        dictionary(Knows("mess3"), corpus_of("mess3"), methods=("umap",))
    plain = hs.ProcessDataset(hs.make_process("even"), length=12)
    with pytest.raises(InputError, match=r"layout: must be SequenceLayout\(\.\.\., placeholder=True\)"):
        model_words(Knows("even"), plain)
    with pytest.raises(InputError, match="tolerance: must be in"):
        extract_automaton(Operators.of(plain.process).probabilities, 2, tolerance=0.0)
