"""What instruments refuse, each in a line that names the argument; and numbers at the edge of it."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.activations import capture_activations, check_layers
from hmmscope.analysis.belief_interventions import belief_interventions
from hmmscope.analysis.constrained_updates import constrained_updates
from hmmscope.analysis.decomposition import stationary_start
from hmmscope.analysis.fit_length import _by_position
from hmmscope.analysis.geometry import belief_targets
from hmmscope.analysis.header import behind_headers
from hmmscope.analysis.interventions import ablate_head, intervene, span
from hmmscope.analysis.similarity import linear_cka
from hmmscope.analysis.trained_ngrams import ngram_baselines
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError, NonFiniteError
from hmmscope.models.base import make_model
from hmmscope.processes.files import load_process
from hmmscope.processes.make import make_process

CORPUS = ProcessDataset(load_process("umbrella"), layout=SequenceLayout(length=4))
PROMPTS = PromptLayout(num_demonstrations=2, demonstration_length=2, test_length=2)


def rnn() -> nn.Module:
    return make_model("rnn", num_symbols=2, vocab_size=2, width=4, max_length=5)


class Idle(nn.Module):
    """Has a module that it never calls, and one that gives no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.told = nn.Linear(1, 1), Telling()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.told(tokens)
        return tokens


class Telling(nn.Module):
    def forward(self, tokens: torch.Tensor) -> str:
        return "told"


def edited_in_vain() -> None:
    with intervene(model := Idle(), {"told": lambda x: x}):
        model(torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda: check_layers(5, ["x"]), r"model: must be a torch module, got 5"),  # type: ignore[arg-type]
        (lambda: check_layers(rnn(), ["blocks.0.attention.logits"]), "layers: found no softmax attention in Recurrent"),
        (lambda: check_layers(rnn(), ["x"], field="edits"), r"edits: no module named 'x' in the model"),
        (
            lambda: capture_activations(Idle(), ["unused"], torch.zeros(1, 2)),
            r"layers: module unused did not run on tokens \(1, 2\)",
        ),
        (edited_in_vain, r"edits: told must return a tensor"),
        (lambda: ablate_head(2, 2), r"head: must be in \[0, 2\), got 2"),
        (lambda: ablate_head(0, 3)(torch.zeros(1, 1, 4)), r"num_heads: must divide the width 4, got 3"),
        (lambda: span(torch.tensor([[1.0, float("nan")]])), r"directions: must be finite"),
        (lambda: linear_cka(x := torch.zeros(1, 3, 2), x[:, 1:]), "right: must have the 3 examples of left, got 2"),
        (lambda: linear_cka(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2)), r"left: must have at least 2 examples"),
        (lambda: behind_headers(CORPUS), r"dataset: must have a header layout"),
        (lambda: belief_interventions(rnn(), CORPUS, interventions=["pul"]), r"interventions: unknown 'pul'"),
        (lambda: belief_interventions(rnn(), CORPUS, num_samples=15), r"num_samples: must be at least 16"),
        (
            lambda: belief_targets(CORPUS, np.arange(2), 2, observer=load_process("letters-hmm")),
            r"observer: must have 2 symbols",
        ),
        (lambda: ngram_baselines(CORPUS, CORPUS, missing="NA"), "missing: applies to .*only, but train is a dataset"),
        (
            lambda: constrained_updates(rnn(), ProcessDataset(load_process("umbrella"), layout=PROMPTS)),
            r"dataset: must have one sequence per sample, all from one HMM",
        ),
    ],
)
def test_what_instruments_refuse(ask: Callable[[], object], error: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=error):
        ask()


def test_one_term_at_a_position_is_its_mean_and_none_is_no_number() -> None:
    terms, judged = np.array([[1.0, np.nan, np.nan, 5.0, 2.0]]), np.array([0, 0, 1, 2, 2])
    assert np.array_equal(_by_position(terms, judged, np.arange(3)), [[1.0, np.nan, 3.5]], equal_nan=True)


def test_features_of_other_widths_are_compared() -> None:
    rng = np.random.default_rng(0)
    left = torch.from_numpy(rng.normal(size=(1, 5, 2)))
    wide = torch.cat([left, torch.zeros(1, 5, 1, dtype=torch.float64)], 2)
    assert float(linear_cka(left, wide)) == pytest.approx(1)
    assert linear_cka(left[:, :2], wide[:, :2]).shape == (1, 1)


def test_a_process_that_starts_from_its_stationary_law_up_to_the_grid_is_the_same() -> None:
    law = hs.stationary_distribution(make_process("golden-mean"))
    begun = make_process("golden-mean").with_initial(law)
    assert stationary_start(begun) is begun
    assert stationary_start(begun.with_initial([1.0, 0.0])) is not begun


def test_a_basis_spans_what_rows_span(unchecked: None) -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 2.0, 0.0]])
    basis = span(rows)
    assert basis.shape == (3, 2)
    assert torch.allclose(basis.T @ basis, torch.eye(2, dtype=torch.float64))
    assert span(rows[0]).shape == (3, 1)


@pytest.mark.parametrize("target", ["previous-1", "belief"])
def test_of_activations_that_are_not_finite_nothing_is_read(target: str) -> None:
    model = rnn()
    with torch.no_grad():
        next(iter(model.parameters())).fill_(torch.nan)
    dataset = ProcessDataset(load_process("umbrella"), layout=SequenceLayout(length=8))
    with pytest.raises(NonFiniteError, match=r": the model's activations are NaN or infinite"):
        hs.probe(model, dataset, target=target, num_samples=16)


MODEL = hs.make_model("rnn", num_symbols=3, vocab_size=4, width=8)
BATCH = hs.ProcessDataset("mess3", length=4)[0:2]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: hs.mechanisms(model=MODEL, dataset=np.zeros(3)), "dataset"),
        (lambda: hs.constrained_updates(model=MODEL, dataset=-1), "dataset"),
        (lambda: hs.target_loss(MODEL, BATCH, 0.5), "target"),
        (lambda: hs.target_loss(MODEL, 0.5, "observation"), "batch"),
        (lambda: hs.strategy_weights(np.zeros((2, 2)), {"a": torch.zeros(2, 2)}), "model"),
        (lambda: hs.strategy_weights(torch.zeros(2, 2), "rnn"), "predictors"),
        (lambda: hs.strategy_weights(torch.zeros(2, 2), {"a": 3}), "a"),
        (lambda: hs.fit_length(0.1, [1, 2], 0.5), "losses"),
        (lambda: hs.fit_length([1.0], [1], 0.5), "losses"),
        (lambda: hs.fit_length([[1.0]], 2, 0.5), "positions"),
        (lambda: hs.symmetric_channel(np.zeros(2), 0.5), "size"),
        (lambda: hs.symmetric_channel(2, "a"), "observability"),
        (lambda: hs.constrained_updates(MODEL, CORPUS, num_distances=1j), "num_distances"),
        (lambda: hs.belief_space(rnn(), CORPUS, layers=[]), "layers"),
        (lambda: hs.fit_length([[1.0]], [1], ()), "error_rate"),
        (lambda: hs.stationary_distribution(torch.tensor(0.5)), "process"),
        (lambda: hs.stationary_distribution(torch.zeros(2, 2, dtype=torch.complex64)), "process"),
        (lambda: hs.read_vectors([[0.5]], column=1.0), "column"),
        (lambda: hs.study([[0, 1]], "none", spec=0.5), "spec"),
        (lambda: hs.untrained_model(2, None), "config"),
        (lambda: hs.sample_state_paths("even", [[0, 1]], indices="a"), "indices"),
        (lambda: hs.sample_state_paths("even", [[0, 1]], num_paths=np.ones(2)), "num_paths"),
        (lambda: hs.filter_known_component("mess3-mixture", [[0, 1]], 2**63), "components"),
        (lambda: hs.evaluate(rnn(), CORPUS, target=len), "target"),
        (lambda: hs.evaluate(rnn(), CORPUS, observers="belief"), "observers"),
        (lambda: hs.train(torch.tensor(1), "made"), "sequences"),
        (lambda: hs.capture_activations(rnn(), np.ones((2, 2)), torch.zeros(1, 2)), "layers"),
        (lambda: hs.capture_activations(rnn(), [], 0), "tokens"),
        (lambda: belief_interventions(rnn(), CORPUS, interventions=b""), "interventions"),
        (lambda: hs.read_vectors([[0.5]], width={}), "width"),
        (lambda: hs.read_vectors([[0.5]], axis=np.ones(2)), "axis"),
        (lambda: hs.read_vectors([[0.5]], column=torch.tensor(1)), "column"),
        (lambda: hs.fit([[0, 1]], np.array(3)), "num_states"),
        (lambda: hs.filter_beliefs("even", [[0, 1]], strict=np.ones(2)), "strict"),
        (lambda: hs.train("even", "made", resume=np.ones(2)), "resume"),
        (lambda: hs.HMM([1.0], [[1.0]], [[1.0]], allow_drop_tiny=np.ones(2)), "allow_drop_tiny"),
        (lambda: hs.config_from_data({}, [None]), "overrides"),
        (lambda: hs.memory_beliefs("even", [[0, 1]], 1, prior="a"), "prior"),
        (lambda: hs.filter_beliefs("even", [[0, 1]], known_states=np.array(1)), "known_states"),
        (lambda: hs.evaluate(rnn(), CORPUS, num_samples=2**31), "num_samples"),
        (lambda: hs.read_vectors([[0.5]], symbols_from="text"), "symbols_from"),
        (lambda: hs.SequenceData([[0, 1]], symbols_from="text"), "symbols_from"),
        (lambda: hs.make_model("rnn", num_symbols=3, max_length=np.ones(2)), "max_length"),
        (lambda: hs.fit_length([[1.0]], "\0", 0.5), "positions"),
        (lambda: hs.fit_length(np.array(0.5), [1], 0.5), "losses"),
        (lambda: hs.fit_length([["a"]], [1], 0.5), "losses"),
    ],
)
def test_arguments_of_another_type_are_named(call: Callable[[], object], field: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=rf"^{field}: must (be|have|hold) "):
        call()
