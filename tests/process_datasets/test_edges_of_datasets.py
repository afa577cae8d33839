"""Layouts column by column, fields at their edges, what targets ask and count by hand, and devices that are not there."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.datasets import density_heads, process_dataset
from hmmscope.datasets.batches import ProcessStream
from hmmscope.datasets.layouts import HeaderLayout, Layout, PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.target_base import PADDING, complete
from hmmscope.datasets.targets import check_target, dataset_of, make_target
from hmmscope.datasets.tokenized import TextLayout
from hmmscope.errors import InputError, ResourceError
from hmmscope.processes.files import load_process
from hmmscope.processes.make import make_process
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import MISSING
from tokenizer_cases import tokenizer

UMBRELLA = load_process("umbrella")
MOST = 2**20


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        (SequenceLayout(length=3), "012"),
        (SequenceLayout(length=3, placeholder=True), "*012"),
        (PromptLayout(num_demonstrations=0, test_length=2), "*01"),
        (PromptLayout(num_demonstrations=2, demonstration_length=1, test_length=2), "*0*1*23"),
    ],
)
def test_a_layout_column_by_column(layout: Layout, row: str) -> None:
    """Symbols in their order, the delimiter V where a star is; what some column precedes is predicted."""
    count = layout.num_observations
    tokens = layout.tokens(torch.arange(count)[None], 9)[0].tolist()
    assert tokens == [9 if one == "*" else int(one) for one in row]
    assert layout.token_positions.tolist() == [row.index(str(t)) for t in range(count)]
    assert layout.context_length == len(row)
    assert layout.vocab_size(9) == 9 + ("*" in row)
    assert layout.has_prefix is row.startswith("*")
    assert layout.predicted_observations.tolist() == [t for t in range(count) if row.index(str(t)) > 0]
    runs = [part for part in row.split("*") if part]
    assert layout.sequence_lengths == tuple(map(len, runs))
    assert layout.sequence_index.tolist() == [k for k, run in enumerate(runs) for _ in run]
    assert layout.position_in_sequence.tolist() == [k for run in runs for k in range(len(run))]
    assert layout.reset_mask.tolist() == [k == 0 for run in runs for k in range(len(run))]
    vectors = layout.tokens(torch.ones(1, count, 2, dtype=torch.float64), 2)
    assert vectors.shape == (1, len(row), 2)
    assert vectors.sum().item() == 2 * count


@pytest.mark.parametrize(
    ("kind", "field", "good", "bad", "beside"),
    [
        (SequenceLayout, "length", [1, MOST], [0, MOST + 1], {}),
        (HeaderLayout, "length", [1, MOST], [0, MOST + 1], {}),
        (PromptLayout, "num_demonstrations", [0], [-1], {}),
        (PromptLayout, "demonstration_length", [1], [0], {}),
        (PromptLayout, "test_length", [1], [0], {}),
        (PromptLayout, "num_demonstrations", [MOST // 2 - 1], [MOST // 2], {"demonstration_length": 1, "test_length": 1}),
        (lambda **given: TextLayout(tokenizer=tokenizer("bytes"), names=2, **given), "length", [1], [0], {}),
        (lambda **given: TextLayout(tokenizer=tokenizer("bytes"), length=2, **given), "names", [1, 2], [0], {}),
        (lambda **given: ProcessStream(ProcessDataset(UMBRELLA, 3), **given), "first", [0], [-1], {}),
        (lambda **given: ProcessStream(ProcessDataset(UMBRELLA, 3), **given), "num_samples", [1, None], [0], {}),
        (lambda **given: ProcessStream(ProcessDataset(UMBRELLA, 3), **given), "batch_size", [1, 2, None], [0], {}),
        (lambda **given: ProcessStream(ProcessDataset(UMBRELLA, 3), **given), "rank", [0, 1], [-1, 2], {"world": 2}),
        (lambda **given: ProcessStream(ProcessDataset(UMBRELLA, 3), **given), "world", [1], [0], {}),
        (lambda **given: density_heads.GaussianHead(make_process("random-gaussian"), given["target"]), "target",
         [1, 1024], [0, 1025], {}),
    ],
)  # fmt: skip
def test_a_field_is_taken_up_to_its_edge(
    kind: Any, field: str, good: list[Any], bad: list[Any], beside: dict[str, Any]
) -> None:
    for value in good:
        kind(**beside, **{field: value})
    for value in bad:
        with pytest.raises(InputError, match=rf"^{field}: "):
            kind(**beside, **{field: value})


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: ProcessDataset(UMBRELLA), "length: is missing; pass a length or a layout"),
        (lambda: ProcessDataset(UMBRELLA, 3, layout=SequenceLayout()), "length: cannot be combined with layout"),
        (lambda: ProcessDataset(UMBRELLA, 3).stream()[5], "stream: can be iterated but not indexed"),
        (lambda: ProcessDataset(UMBRELLA, 3, device="gpu"), "device: must be cpu, cuda or cuda:NUMBER, got 'gpu'"),
        (lambda: ProcessDataset(UMBRELLA, 3)[2**40 - 1 : 2**40 + 1], r"index: must be in 0 to 2\^40 - 1"),
        (lambda: process_dataset.check_dataset(5), "dataset: must be a ProcessDataset, got 5; use"),
        (lambda: HeaderLayout(length=3).context_length, "layout: the size of the header depends on"),
        (lambda: HeaderLayout(length=3).of(UMBRELLA), "process: layout header needs"),
        (lambda: HeaderLayout(length=3).tokens(torch.zeros(1, 3, dtype=torch.int64), 2), "header entries are missing"),
        (lambda: TextLayout(tokenizer=tokenizer("bytes"), names=2, length=2).tokens(torch.zeros(1, 2).double(), 1),
         "process: must have symbols for a text layout"),
        (lambda: check_target("beliefs"), "target: unknown 'beliefs'"),
        (lambda: check_target("density-x", "answer"), "target: must be density, or density-K for K"),
        (lambda: make_target("belief", RecordedSequences(SequenceData([[0, 1]])), SequenceLayout()), "must be observation"),
        (lambda: make_target("observation", make_process("ran-lds"), PromptLayout()), "must be SequenceLayout for a linear"),
        (lambda: dataset_of([[0, 1]], UMBRELLA, PromptLayout()), "sequences: need a process of symbols and one sequence"),
        (lambda: dataset_of(SequenceData(["ab"]), UMBRELLA, SequenceLayout(length=2)), "must have the process.s symbols"),
        (lambda: density_heads.laws_asked("density-1.5"), "target: must be density"),
        (lambda: density_heads.laws_asked("dense"), "target: must be density"),
        (lambda: complete(torch.tensor([[[1.0, math.nan]]])), r"observations: entries are missing \(NaN\)"),
    ],
)  # fmt: skip
def test_what_is_no_corpus_or_target_is_refused(ask: Any, said: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=said):
        ask()


def test_densities_are_asked_by_name() -> None:
    assert (density_heads.laws_asked("density"), density_heads.laws_asked("density-12")) == (None, 12)
    process = make_process("random-gaussian")
    assert density_heads.head_of(process).num_mixture_components == 3
    assert density_heads.head_of(process, 5).num_outputs == 5 * (1 + 2 * 5 // 2)
    assert (
        density_heads.head_of(make_process("random-gaussian", num_states=20)).num_mixture_components
        == density_heads.MOST_LAWS
        == 16
    )


def test_a_gpu_has_its_number_or_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert [str(process_dataset._device(name)) for name in ("cpu", "cuda:0", "cuda")] == ["cpu", "cuda:0", "cuda:1"]
    with pytest.raises(ResourceError, match=r"device: cuda:2 is not available \(number of CUDA devices: 2\); use cpu"):
        process_dataset._device("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ResourceError, match=r"device: cuda is not available \(number of CUDA devices: 0\)"):
        process_dataset._device("cuda")
    assert process_dataset._indices_on(slice(2, 9, 3), torch.device("cpu")).tolist() == [2, 5, 8]
    assert process_dataset._indices_on(slice(9, 2), torch.device("cpu")).tolist() == []
    assert process_dataset._indices_on([3, 1], torch.device("cpu")).tolist() == [3, 1]


def test_losses_and_distances_by_hand() -> None:
    """Cross-entropy with a symbol or a law, zero times the logarithm of zero left out; squares; half the L1 distance."""
    asked = make_target("observation", UMBRELLA, SequenceLayout(length=3))
    law = torch.tensor([[[0.25, 0.75], [1.0, 0.0]]], dtype=torch.float64)
    assert asked.loss_terms(law, torch.tensor([[1, 0]]))[0].tolist() == pytest.approx([-math.log(0.75), 0])
    other = torch.tensor([[[0.5, 0.5], [1.0, 0.0]]], dtype=torch.float64)
    assert asked.loss_terms(law, other)[0].tolist() == pytest.approx([-0.5 * math.log(0.25 * 0.75), 0])
    assert asked.distance_terms(law, other)[0].tolist() == [0.25, 0]
    logits = law.clamp_min(1e-30).log()
    assert float(asked.loss(logits, torch.tensor([[1, 0]]))) == pytest.approx(-math.log(0.75) / 2, rel=1e-5)
    assert asked.answer(logits, other)[0, 0].tolist() == pytest.approx([0.25, 0.75])
    assert (asked.unit, asked.num_outputs, asked.token_positions.tolist(), asked.positions.tolist()) == (
        "nats",
        2,
        [0, 1],
        [1, 2],
    )
    linear = make_target("observation", make_process("ran-lds", dimension=2), SequenceLayout(length=2))
    far, near = torch.tensor([[[3.0, 4.0]]], dtype=torch.float64), torch.tensor([[[0.3, 0.4]]], dtype=torch.float64)
    zero = torch.zeros_like(far)
    assert linear.unit == "mean squared error"
    assert linear.distance_terms(zero, far).item() == pytest.approx(1.0)
    assert linear.distance_terms(zero, near).item() == pytest.approx(0.5)
    assert linear.loss_terms(zero, far).item() == 12.5
    assert float(linear.loss(zero, far)) == 12.5


def test_beliefs_are_asked_after_every_observation_and_at_delimiters() -> None:
    """At a delimiter the law is the initial one, and what happens the first state of the sequence that follows."""
    layout = PromptLayout(num_demonstrations=1, demonstration_length=2, test_length=1)
    samples = ProcessDataset(UMBRELLA, layout=layout)
    asked, batch = make_target("belief", UMBRELLA, layout), samples[0:3]
    assert asked.token_positions.tolist() == [0, 1, 2, 3, 4]
    assert asked.positions.tolist() == [0, 1, 2, 0, 1]
    assert asked.sequences.tolist() == [0, 0, 0, 1, 1]
    law = asked.optimum(batch)
    assert law[:, 0].tolist() == law[:, 3].tolist() == [UMBRELLA.initial.tolist()] * 3
    happened = asked.happened(batch)
    assert happened is not None
    assert torch.equal(happened, batch.states[:, [0, 0, 1, 2, 2]])
    assert make_target("belief", UMBRELLA, SequenceLayout(length=3)).token_positions.tolist() == [0, 1, 2]


def test_what_is_given_is_asked_as_far_as_it_goes() -> None:
    """Padding and gaps have no label, no loss and no part in the mean; without a law there is no floor."""
    given = RecordedSequences(SequenceData([[0, MISSING, 1], [1]], symbols=2))
    layout = SequenceLayout(length=3, placeholder=True)
    samples = ProcessDataset(given, layout=layout, stream="corpus")
    asked = make_target("observation", given, layout)
    batch = samples[0 : samples.different(9)]
    labels = asked.labels(batch)
    rows = sorted(labels.tolist())
    assert rows == [[0, PADDING, 1], [1, PADDING, PADDING]]
    even = torch.full((2, 3, 2), 0.5, dtype=torch.float64)
    terms = asked.loss_terms(even, labels)
    assert torch.equal(terms.isnan(), labels == PADDING)
    assert float(asked.loss(even.log(), labels)) == pytest.approx(math.log(2), rel=1e-6)
    assert float(asked.loss(even[:1].log(), torch.full((1, 3), PADDING))) == 0
    assert asked.lower_bound(samples, 2) is None
    with pytest.raises(InputError, match="recorded sequences have no Bayes optimum, because their process is unknown"):
        asked.optimum(batch)
    known = RecordedSequences(SequenceData([[0, 1, 1], [1]], symbols=2), UMBRELLA)
    beside = make_target("observation", known, layout)
    samples = ProcessDataset(known, layout=layout, stream="corpus")
    seen = samples[0:2]
    found = beside.lower_bound_terms(seen)
    exact = (
        -hs.log_likelihood(UMBRELLA, torch.tensor([[0, 1, 1]])).item()
        - hs.log_likelihood(UMBRELLA, torch.tensor([[1]])).item()
    )
    assert float(found.nansum()) == pytest.approx(exact)
    assert beside.lower_bound(samples, 2) == pytest.approx(exact / 4)
    assert beside.optimum(seen)[beside.labels(seen) == PADDING].tolist() == [[1.0, 0.0]] * 2


def test_the_digest_says_what_was_digested() -> None:
    """Number, layout with switches that are on, seed and stream; in parts of 4096 as in one."""
    one = ProcessDataset(UMBRELLA, 2)
    assert one._layout_data == {"length": 2}
    assert ProcessDataset(UMBRELLA, layout=SequenceLayout(length=2, placeholder=True))._layout_data == {
        "length": 2,
        "placeholder": True,
    }
    digests = {
        one.digest(5),
        one.digest(6),
        ProcessDataset(UMBRELLA, 2, seed=1).digest(5),
        ProcessDataset(UMBRELLA, 2, stream="train").digest(5),
    }
    assert len(digests) == 4
    assert one.on("cpu").digest(5) == one.digest(5)
    assert one.vocab_size == 2
    assert np.array_equal(one[4095:4098].observations, one[[4095, 4096, 4097]].observations)
