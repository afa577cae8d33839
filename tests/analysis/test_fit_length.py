"""Fit lengths on known curves, and the evaluation loss of predictors whose distance is known."""

import math

import pytest
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.curves import evaluate
from hmmscope.analysis.fit_length import crossing_length, evaluation_losses, fit_length, fit_start, fitted_positions
from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError

POSITIONS = [1, 2, 3, 4]
LAYOUT = SequenceLayout(length=9, placeholder=True)


def corpus_of(name: str, **fields: object) -> ProcessDataset:
    process = registry.build_spec("process", {"name": name, **fields}, "process").build()
    return ProcessDataset(process, layout=LAYOUT, stream="probe")


class Exact(nn.Module):
    """Gives the exact answers of a target, as logits if they are laws, after a change."""

    def __init__(self, corpus: ProcessDataset, target: str, mix: float = 0.0) -> None:
        super().__init__()
        self.asked, self.corpus, self.mix = make_target(target, corpus.process, corpus.layout), corpus, mix

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        missing = tokens.new_zeros(len(tokens), LAYOUT.context_length - tokens.shape[1], *tokens.shape[2:])
        whole = torch.cat([tokens, missing], 1)
        observations = whole[:, LAYOUT.token_positions]
        blank = torch.zeros(len(tokens), LAYOUT.length, dtype=torch.int64)
        answer = self.asked.optimum(Batch(whole, observations, blank, None))
        if self.asked.kind == "law":
            answer = (1 - self.mix) * answer + self.mix / answer.shape[-1]
            answer = answer.clamp_min(1e-300).log()
        outputs = answer.new_zeros(*tokens.shape[:2], answer.shape[-1])
        outputs[:, self.asked.token_positions] = answer
        return outputs


def column(rows: list[dict], predictor: str) -> dict[int, float]:
    return {row["position"]: row["value"] for row in rows if row["predictor"] == predictor}


def test_prefix_and_max_differ_where_the_end_is_easy() -> None:
    losses = [[0.01, 0.2, 0.04, 0.01]]
    assert fit_length(losses, POSITIONS, 0.05) == 1
    assert fit_length(losses, POSITIONS, 0.05, definition="max") == 4
    assert fit_start(losses, POSITIONS, 0.05) == 3
    assert fit_length(losses, POSITIONS, 0.3) == 4


def test_all_of_the_last_epochs_count() -> None:
    losses = [[0.9] * 4, [0.01, 0.01, 0.2, 0.01], [0.01, 0.01, 0.01, 0.2], [0.01] * 4]
    assert [fit_length(losses, POSITIONS, 0.05, last=last) for last in (1, 2, 3, 4)] == [4, 3, 2, 0]
    assert fit_start(losses, POSITIONS, 0.05, last=2) is None
    assert fit_start(losses, POSITIONS, 0.05, last=1) == 1


def test_the_error_rate_itself_is_not_below() -> None:
    assert fit_length([[0.05] * 4], POSITIONS, 0.05) == 0
    assert fit_length([[math.nextafter(0.05, 0)] * 4], POSITIONS, 0.05) == 4


def test_positions_where_nothing_counts() -> None:
    assert fitted_positions([[0.01, None, 0.01, None], [0.01, 0.01, None, None]], POSITIONS, 0.05) == [
        True,
        True,
        True,
        False,
    ]
    assert fit_length([[0.01, None, 0.01, 0.01]], POSITIONS, 0.05) == 1


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"error_rate": 0.0}, "error_rate"),
        ({"last": 0}, "last"),
        ({"losses": []}, "losses"),
        ({"losses": [[0.1]]}, "losses"),
        ({"positions": [0, 1, 2, 3]}, "positions"),
        ({"positions": [1, 3, 2, 4]}, "positions"),
        ({"definition": "best"}, "definition"),
    ],
)
def test_fit_length_refuses(changes: dict, named: str) -> None:
    good: dict = {"losses": [[0.1] * 4], "positions": POSITIONS, "error_rate": 0.05}
    with pytest.raises(InputError, match=f"^{named}: "):
        fit_length(**(good | changes))


@pytest.mark.parametrize(
    "name, target", [("ran-hmm", "belief"), ("cyclic-det", "belief"), ("matmul", "belief"), ("ran-lds", "observation")]
)
def test_the_exact_answer_loses_nothing(name: str, target: str) -> None:
    dataset = corpus_of(name)
    rows = evaluation_losses(Exact(dataset, target), dataset, num_samples=300, target=target)
    losses = column(rows, "model")
    assert list(losses) == list(range(1, LAYOUT.length + (target == "belief")))
    assert max(losses.values()) < 1e-6
    assert {row["samples"] for row in rows} == {300}


def test_a_mixture_with_the_uniform_law_loses_its_share() -> None:
    """Of cycles the exact answer is a corner: the distance of (1 - mix) corner + mix uniform is mix (1 - 1/n)."""
    dataset = corpus_of("cyclic-det")
    rows = evaluation_losses(Exact(dataset, "belief", mix=0.25), dataset, num_samples=300, target="belief")
    for value in column(rows, "model").values():
        assert value == pytest.approx(0.25 * 0.8)
    for row in rows:
        if row["predictor"] == "constant":
            assert row["value"] == pytest.approx(0.8, abs=0.06)  # the mean answer of 256 samples is not quite uniform


def test_it_agrees_with_the_score() -> None:
    dataset = corpus_of("ran-hmm")
    model = Exact(dataset, "belief", mix=0.3)
    score = evaluate(model, dataset, num_samples=128, target="belief", baselines=False)
    rows = evaluation_losses(model, dataset, num_samples=128, target="belief")
    expected = score.measures["model"]["total_variation"].mean(0)[score.positions > 0]
    assert list(column(rows, "model").values()) == pytest.approx(expected.tolist())


def test_of_cyclic_hard_only_questions_count() -> None:
    """Samples are drawn until every position has its count; a model that knows no state loses 1 - 1/n."""
    dataset = corpus_of("cyclic-hard", num_symbols=2, prediction_rate=0.2)
    rows = evaluation_losses(Exact(dataset, "observation"), dataset, num_samples=100, least_count=60)
    exact = [row for row in rows if row["predictor"] == "model"]
    assert [row["position"] for row in exact] == list(range(1, LAYOUT.length))
    assert all(60 <= row["samples"] < 300 for row in exact)
    assert max(row["value"] for row in exact) < 1e-9
    few = evaluation_losses(Exact(dataset, "observation"), dataset, num_samples=100, least_count=0)
    assert max(row["samples"] for row in few) < 60
    later = [row["value"] for row in rows if row["predictor"] == "constant" and row["position"] >= 5]
    assert sum(later) / len(later) == pytest.approx(0.8, abs=0.08)


def test_evaluation_losses_refuse() -> None:
    dataset = corpus_of("ran-hmm")
    with pytest.raises(InputError, match=r"^least_count: "):
        evaluation_losses(Exact(dataset, "belief"), dataset, least_count=-1, target="belief")
    one = ProcessDataset(dataset.process, layout=SequenceLayout(length=1, placeholder=True))
    with pytest.raises(InputError, match=r"^layout: "):
        evaluation_losses(nn.Embedding(one.vocab_size, one.num_symbols), one, target="observation")


def test_the_crossing_lies_between_positions() -> None:
    """Beside the integer, which it never is below and never a position above."""
    losses: list[float | None] = [0.0, 0.05, 0.25, 0.0]
    assert crossing_length([losses], [1, 2, 3, 4], 0.1) == pytest.approx(2.25)
    assert crossing_length([losses], [1, 2, 3, 4], 0.3) == 4.0
    assert crossing_length([losses], [2, 4, 6, 8], 0.1) == pytest.approx(4.5)
    assert crossing_length([[0.4, 0.0]], [1, 2], 0.1) == pytest.approx(0.25)  # nothing is asked at position 0
    assert crossing_length([[0.0, None, 0.9]], [1, 2, 3], 0.1) == 1.0  # where nothing counts nothing is known
    assert crossing_length([[0.0, 0.1]], [1, 2], 0.1) == 2.0
    assert crossing_length([[0.0, 0.2, 0.0, 0.1]], [1, 2, 3, 4], 0.05, definition="max") == pytest.approx(3.5)
    assert crossing_length([[0.4, 0.0]], [1, 2], 0.1, definition="max") == 2.0
    assert crossing_length([[0.4, 0.4]], [1, 2], 0.1, definition="max") == pytest.approx(0.25)
    with pytest.raises(InputError, match="definition"):
        crossing_length([[0.4]], [1], 0.1, definition="last")
    worst = crossing_length([[0.0, 0.2], [0.05, 0.1]], [1, 2], 0.15, last=2)
    assert worst == pytest.approx(1 + 0.1 / 0.15)  # of each position the largest loss
    for rate in (0.01, 0.1, 0.2):
        whole = fit_length([losses], [1, 2, 3, 4], rate)
        assert whole <= crossing_length([losses], [1, 2, 3, 4], rate) <= whole + 1
    with pytest.raises(InputError, match="error_rate"):
        crossing_length([losses], [1, 2, 3, 4], 0.0)
