"""Counting at its best: equal to the enumeration of all trees, tuned on other prompts, and never better than the optimum."""

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from analysis_cases import Oracle, all_trees, mixed_trees, place_in_tree, plain_trees, random_hmm, tree_prior
from hmmscope.analysis import trained_ngrams
from hmmscope.analysis.measures import Measures
from hmmscope.analysis.ngrams import TREE, TunedNgrams, evaluate_ngrams, gain_over_ngrams, is_ngram, plain_ngrams
from hmmscope.analysis.trained_ngrams import TrainedNgrams
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.kernels.context_counts import context_tree_laws
from hmmscope.processes.recorded_sequences import RecordedSequences

PROMPTS = PromptLayout(num_demonstrations=3, demonstration_length=5, test_length=4)


@pytest.mark.parametrize("num_symbols, depth", [(2, 3), (3, 2), (2, 0)])
@pytest.mark.parametrize("pseudo_count, weight", [(0.5, 0.5), (0.05, 0.1)])
@pytest.mark.parametrize("reaches", [False, True])
def test_context_trees_are_the_mixture_of_all_trees(
    num_symbols: int, depth: int, pseudo_count: float, weight: float, reaches: bool
) -> None:
    dataset = ProcessDataset(random_hmm(4, num_symbols=num_symbols), layout=PROMPTS)
    samples = dataset[0:3].observations.numpy()
    reach = np.arange(samples.shape[1]) if reaches else PROMPTS.position_in_sequence
    found = context_tree_laws(samples, reach, num_symbols, depth, pseudo_count, weight)
    seen = context_tree_laws(samples, reach, num_symbols, depth, pseudo_count, weight, of_seen=True)
    assert np.array_equal(seen, np.take_along_axis(found, samples[..., None], 2))
    for law, sample in zip(found, samples.tolist(), strict=True):
        expected = mixed_trees(sample, reach.tolist(), num_symbols, depth, pseudo_count, weight)
        np.testing.assert_allclose(law, expected, rtol=1e-12)


@pytest.mark.parametrize("reaches", [False, True])
def test_context_trees_are_the_recursion_in_fractions(reaches: bool) -> None:
    """A fourth of the way to certainty that no tree is deeper, and long runs of one symbol: shares near zero and one."""
    sample = [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    reach = list(range(6)) * 2 if not reaches else list(range(12))
    found = context_tree_laws(np.array([sample]), np.array(reach), 2, 4, 1 / 64, 1 / 4)[0]
    np.testing.assert_allclose(found, plain_trees(sample, reach, 2, 4, 1 / 64, 1 / 4), rtol=1e-12)


def test_nothing_underflows_in_a_long_sample() -> None:
    """After 20 000 symbols in turn a block has probability below 10^-300, and the next symbol is nearly certain."""
    sample = np.resize([0, 1, 2], 20_000)[None].astype(np.int64)
    law = context_tree_laws(sample, np.arange(20_000), 3, 6, 0.5, 0.5)
    assert np.isfinite(law).all()
    np.testing.assert_allclose(law.sum(-1), 1, rtol=1e-12)
    assert law[0, -1, sample[0, -1]] > 0.999
    noise = np.random.default_rng(0).integers(0, 3, (1, 20_000))
    np.testing.assert_allclose(context_tree_laws(noise, np.arange(20_000), 3, 6, 0.5, 0.5)[0, -1], 1 / 3, atol=0.02)


def test_tuning_finds_what_was_planted() -> None:
    """A chain of order 2 that the symbol before alone says nothing of, and coins."""
    law = np.full((2, 2, 2), 0.1)
    for a in range(2):
        for b in range(2):
            law[a, b, a ^ b] = 0.9
    states = [(a, b) for a in range(2) for b in range(2)]
    transition = [[law[a, b, d] * (c == b) for c, d in states] for a, b in states]
    emission = np.eye(2)[[b for _, b in states]]
    chain = hs.HMM([0.25] * 4, transition, emission)
    counting = TunedNgrams.tuned(ProcessDataset(chain, 200, stream="counting"))
    assert (counting.order, counting.depth) == (2, 2)
    assert counting.strengths[2][1] > 10 * counting.strengths[2][2]  # the symbol before says nothing
    coins = hs.HMM([1.0], [[1.0]], [[0.5, 0.5]])
    counting = TunedNgrams.tuned(ProcessDataset(coins, 50, stream="counting"))
    assert (counting.order, counting.depth) == (0, 0)
    assert counting.strengths[0][0] > 100
    assert counting.pseudo_count > 8


def test_contexts_reach_back_over_a_beginning_where_that_helps() -> None:
    """Sequences of one chain that goes on, cut into pieces of two; and pieces that begin anew."""
    rng = np.random.default_rng(0)
    layout = PromptLayout(num_demonstrations=15, demonstration_length=2, test_length=2)

    class Cut(ProcessDataset):
        def __getitem__(self, index: Any) -> Any:
            batch = super().__getitem__(index)
            whole = (np.arange(32) + rng.integers(0, 4, (len(batch.observations), 1))) % 4
            return replace(batch, observations=torch.from_numpy(whole))

    process = random_hmm(3, num_symbols=4)
    reaching = TunedNgrams.tuned(Cut(process, layout=layout, stream="counting"))
    assert (reaching.ngram_reaches, reaching.tree_reaches) == (True, True)
    cycle = hs.HMM([0.25] * 4, np.roll(np.eye(4), 1, 1), np.eye(4))
    anew = TunedNgrams.tuned(ProcessDataset(cycle, layout=layout, stream="counting"))
    assert (anew.ngram_reaches, anew.tree_reaches) == (False, False)


def test_tuned_counting_does_better_than_one_strength_and_not_better_than_the_optimum() -> None:
    layout = PromptLayout(num_demonstrations=5, demonstration_length=8, test_length=8)
    pool = hs.make_process("composed-cycles", num_states=12, num_symbols=6, num_parts=8)
    train, test = (ProcessDataset(pool, layout=layout, stream=stream) for stream in ("counting", "evaluate"))
    counted = hs.ngram_baselines(train, test, num_samples=128)
    labels = test[0:128].observations
    for name, law in plain_ngrams(test, test[0:128], 3).items():
        loss = -law.gather(2, labels[..., None])[..., 0].log().mean()
        assert counted.measures[name]["loss"].mean() < loss - 0.01, name
    score = hs.evaluate(Oracle(test), test, num_samples=128, options=hs.EvaluateOptions(ngrams=counted.ngrams))
    for name in (*counted.measures,):
        np.testing.assert_array_equal(score.measures[name]["loss"], counted.measures[name]["loss"])
    gains = gain_over_ngrams(score)
    assert gains["loss"].mean() > 0.3  # the pool is known to it
    assert gains["accuracy"].mean() > 0.1
    nothing = gain_over_ngrams(score, TREE)
    assert nothing["loss"].mean() <= 0 <= gain_over_ngrams(score, "optimum")["loss"].mean()
    assert {row["predictor"] for row in counted.rows("positions")} == set(counted.measures)
    assert f"n-gram of order {counted.ngrams.order} " in repr(counted)
    assert "context trees" in repr(counted)


def test_beyond_counting_is_beyond_the_better_in_nats_and_in_accuracy() -> None:
    zeros, index = np.zeros(2), np.zeros(1, np.int64)

    def metrics(loss: float, accuracy: float) -> dict[str, np.ndarray]:
        return {"loss": zeros[:, None] + loss, "accuracy": zeros[:, None] + accuracy}

    measures = {
        "model": metrics(1.0, 0.6),
        "order-1": metrics(1.2, 0.7),
        TREE: metrics(1.1, 0.5),
        "optimum": metrics(0, 1),
    }
    gains = gain_over_ngrams(Measures(measures, index, index))
    assert gains["loss"].tolist() == pytest.approx([0.1, 0.1])  # the trees have the least loss
    assert gains["accuracy"].tolist() == pytest.approx([-0.1, -0.1])  # the n-gram is right most often


def test_names_of_what_counts() -> None:
    counts = ["order-0", "order-12", TREE, "trained-order-1", f"trained-{TREE}"]
    assert all(map(is_ngram, counts))
    assert not any(map(is_ngram, ["model", "optimum", "retrieval", "border-1"]))
    assert TunedNgrams.best({"model": [0.0], "order-1": [2.0], TREE: [1.0]}) == TREE
    assert TunedNgrams.best({"model": [9.0], "order-1": [2.0], TREE: [1.0]}, "accuracy") == "order-1"
    with pytest.raises(InputError, match="must include an n-gram baseline"):
        TunedNgrams.best({"model": [0.0]})


def test_counting_is_not_tuned_on_what_is_judged() -> None:
    hmm = random_hmm(3)
    dataset = ProcessDataset(hmm, layout=PROMPTS, stream="evaluate")
    with pytest.raises(InputError, match="train: has the same samples as test"):
        hs.ngram_baselines(dataset, ProcessDataset(hmm, layout=PROMPTS, stream="evaluate"))
    with pytest.raises(InputError, match="train: must have the same layout as test"):
        hs.ngram_baselines(ProcessDataset(hmm, 6, stream="counting"), dataset)
    with pytest.raises(InputError, match="train: must have"):
        hs.ngram_baselines(ProcessDataset(random_hmm(3, num_symbols=2), layout=PROMPTS), dataset)
    with pytest.raises(InputError, match="observations are vectors"):
        TunedNgrams.tuned(ProcessDataset(hs.make_process("ran-lds"), 8))
    own = hs.evaluate(Oracle(dataset), dataset, num_samples=8)
    given = TunedNgrams.tuned(ProcessDataset(hmm, layout=PROMPTS, stream="counting"))
    other = hs.evaluate(Oracle(dataset), dataset, num_samples=8, options=hs.EvaluateOptions(ngrams=given))
    np.testing.assert_array_equal(own.measures[TREE]["loss"], other.measures[TREE]["loss"])


def test_counting_in_given_sequences_leaves_out_what_is_beyond_their_end() -> None:
    data = hs.SequenceData([[0, 1, 2] * n for n in range(2, 40)])
    dataset = ProcessDataset(data, 30, stream="evaluate")
    counted = evaluate_ngrams(TunedNgrams.tuned(ProcessDataset(data, 30, stream="counting")), dataset, 100)
    losses = counted.measures[TREE]["loss"]
    states = dataset[0 : len(losses)].states[:, 1:].numpy()
    assert np.array_equal(np.isnan(losses), states < 0)
    assert (states < 0).any()


def test_trained_trees_are_the_mixture_of_all_trees() -> None:
    """Each tree by the probability of the training part, in which contexts that are too short come last."""
    rng = np.random.default_rng(2)
    data = hs.SequenceData([rng.integers(0, 2, rng.integers(3, 9)).tolist() for _ in range(30)], symbols=2)
    found, depth, pseudo, odds = TrainedNgrams(RecordedSequences(data), 3), 3, 0.25, -1.0
    found.depth, found.pseudo_count, found.shares = depth, pseudo, found.posterior(depth, pseudo, odds)
    train = [sequence.tolist() for sequence in data.train]
    batch = ProcessDataset(data, 6, stream="evaluate")[0:4].observations
    trees, weight = all_trees(2, depth), 1 / (1 + math.exp(-odds))
    logs = [math.log(tree_prior(tree, 2, depth, weight)) + _log_probability(tree, train, pseudo) for tree in trees]
    weights = np.exp(np.array(logs) - max(logs))
    laws = found.predictions(batch, np.arange(6))[f"trained-{TREE}"]
    for b, row in enumerate(batch.tolist()):
        for t in range(6):
            each = [_estimate(place_in_tree(tree, row[:t]), train, pseudo) for tree in trees]
            np.testing.assert_allclose(laws[b, t], weights @ np.array(each) / weights.sum(), rtol=1e-10)


def test_strengths_are_tuned_on_every_observation_of_a_part_that_is_not_long(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    data = hs.SequenceData([rng.integers(0, 2, 60).tolist() for _ in range(20)], symbols=2)
    one = TrainedNgrams(RecordedSequences(data), 2)
    monkeypatch.setattr(trained_ngrams, "_TUNED_ON", 10**9)
    other = TrainedNgrams(RecordedSequences(data), 2)
    assert (one.strengths, one.pseudo_count, one.order) == (other.strengths, other.pseudo_count, other.order)


def _after(node: tuple[int, ...], train: list[list[int]]) -> list[int]:
    k = len(node)
    return [row[t] for row in train for t in range(k, len(row)) if tuple(row[t - k : t][::-1]) == node]


def _estimate(node: tuple[int, ...], train: list[list[int]], pseudo: float) -> list[float]:
    seen = _after(node, train)
    return [(seen.count(v) + pseudo) / (len(seen) + 2 * pseudo) for v in range(2)]


def _log_probability(tree: Any, train: list[list[int]], pseudo: float) -> float:
    """Symbols one by one, those with the longest contexts first, each at the node where its context ends."""
    total, counts = 0.0, defaultdict(lambda: [0, 0])
    for t, row in sorted(((t, own) for own in train for t in range(len(own))), key=lambda place: -place[0]):
        own = counts[place_in_tree(tree, row[:t])]
        total += math.log((own[row[t]] + pseudo) / (sum(own) + 2 * pseudo))
        for k in range(t + 1):
            counts[tuple(row[:t][::-1][:k])][row[t]] += 1
    return total


def test_sequences_of_one_sequence_have_no_beginning_to_reach_over() -> None:
    counting = TunedNgrams.tuned(
        ProcessDataset(random_hmm(3), layout=SequenceLayout(length=30)), num_samples=4, orders=0
    )
    assert not counting.ngram_reaches
    assert not counting.tree_reaches
