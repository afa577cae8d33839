"""Streams of a corpus: the same bits in the same order, however they are shared out, with the exact answers beside them."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import hmmscope as hs
from hmmscope.errors import InputError

CORPUS = hs.ProcessDataset(hs.make_process("rrxor"), length=9, seed=3)


def some(stream: Any, count: int) -> list[dict[str, torch.Tensor]]:
    return [batch for batch, _ in zip(stream, range(count), strict=False)]


def same(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> None:
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert torch.equal(a[key], b[key]), key


def test_batches_are_the_samples_in_order_with_their_exact_answers() -> None:
    batches = some(CORPUS.stream(4), 3)
    for k, batch in enumerate(batches):
        expected = CORPUS[4 * k : 4 * k + 4]
        assert torch.equal(batch["tokens"], expected.tokens)
        found = hs.filter_beliefs(CORPUS.process, expected.observations)
        torch.testing.assert_close(batch["beliefs"], found.beliefs)
        torch.testing.assert_close(batch["optimum"], found.next_observation)
    same(batches, some(CORPUS.stream(4), 3))  # gone through again
    same(batches[1:], list(CORPUS.stream(4, first=4, num_samples=8)))
    assert set(next(iter(CORPUS.stream(4, exact=False)))) == {"tokens", "observations"}


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_processes_together_have_each_batch_once(world: int) -> None:
    whole = some(CORPUS.stream(6), 4)
    parts = [some(CORPUS.stream(6, rank, world), 4) for rank in range(world)]
    joined = [{key: torch.cat([part[k][key] for part in parts]) for key in whole[0]} for k in range(4)]
    same(whole, joined)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_workers_of_a_loader_change_nothing(workers: int) -> None:
    stream = CORPUS.stream(4, 1, 2, num_samples=18)  # the last batch is cut short
    how = {"multiprocessing_context": "fork"} if workers else {}
    same(list(stream), list(DataLoader(stream, batch_size=None, num_workers=workers, **how)))


def test_single_samples_are_collated_to_the_same_batches() -> None:
    loaded = some(DataLoader(CORPUS.stream(), batch_size=4), 3)
    same(loaded, some(CORPUS.stream(4), 3))
    two = [next(iter(CORPUS.stream(None, rank, 2))) for rank in range(2)]
    assert torch.equal(torch.stack([one["tokens"] for one in two]), CORPUS[0:2].tokens)


def test_a_mixture_has_the_posterior_of_its_components_and_sequences_have_tokens_alone() -> None:
    mixture = hs.make_process("random-mixture", num_components=3, num_states=2, num_symbols=4)
    dataset = hs.ProcessDataset(
        mixture, layout=hs.PromptLayout(num_demonstrations=2, demonstration_length=3, test_length=3)
    )
    batch = next(iter(dataset.stream(5)))
    assert batch["posterior"].shape == (5, 9, 3)
    starts = torch.from_numpy(dataset.layout.reset_mask)
    exact = hs.filter_mixture(mixture, dataset[0:5].observations, reset_mask=starts)
    torch.testing.assert_close(batch["optimum"], exact.next_observation)
    data = hs.SequenceData(CORPUS[0:20].observations)
    dataset = hs.ProcessDataset(data, 9, stream="evaluate")  # all different windows, and an end
    given = list(dataset.stream(4))
    assert set(given[0]) == {"tokens", "observations"}
    assert sum(len(one["tokens"]) for one in given) == dataset.different(10**6)


def test_a_loader_of_the_corpus_itself_says_what_to_take() -> None:
    with pytest.raises(TypeError, match=r"a process dataset is infinite; use DataLoader\(dataset.stream"):
        next(iter(DataLoader(CORPUS)))
    with pytest.raises(TypeError, match=r"a process dataset is infinite; use DataLoader\(dataset.stream"):
        DataLoader(CORPUS, batch_size=4, shuffle=True)
    assert CORPUS  # and it is something


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((4, 0, 3), "batch_size: must be a multiple of world = 3"),
        ((4, 2, 2), r"rank: must be in \[0, 2\)"),
        ((0,), "batch_size: must be at least 1"),
        ((4, 0, 0), "world: must be at least 1"),
    ],
)
def test_what_is_refused(arguments: tuple[int, ...], line: str) -> None:
    with pytest.raises(InputError, match=line):
        CORPUS.stream(*arguments)


def test_a_plain_loop_of_torch_comes_to_the_optimum_as_ours_does() -> None:
    """As docs/training.md has it."""
    dataset = hs.ProcessDataset("golden-mean", 16, stream="train")
    model = hs.make_model("rnn", num_symbols=2, width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for batch, _ in zip(DataLoader(dataset.stream(32), batch_size=None), range(120), strict=False):
        logits = model(batch["tokens"])[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    score = hs.evaluate(model, hs.ProcessDataset("golden-mean", 16, stream="evaluate"), baselines=False)
    assert 0 <= score.excess[0] < 0.01
