"""What the tests of analysis share."""

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from hmmscope.analysis.logistic import fit_logistic
from hmmscope.analysis.probes import ProbeData
from hmmscope.datasets.layouts import Layout, PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.models.base import HookPoint
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.process import Process

PROMPTS = PromptLayout(num_demonstrations=3, demonstration_length=5, test_length=6)


class Oracle(nn.Module):
    """The Bayes predictor as a module from tokens to log-probabilities, and what may be done to them."""

    def __init__(
        self, corpus: ProcessDataset, change: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits
    ) -> None:
        super().__init__()
        self.process, self.layout, self.change = corpus.process, corpus.layout, change

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # What the last tokens are that were cut off makes no difference to the predictions of those before.
        whole = torch.zeros(len(tokens), self.layout.context_length, dtype=torch.int64)
        whole[:, : tokens.shape[1]] = tokens
        observations = whole[:, self.layout.token_positions]
        optimum = optimal_predictions(self.process, observations, reset_mask=torch.from_numpy(self.layout.reset_mask))
        logits = torch.zeros(*whole.shape, self.process.num_symbols, dtype=torch.float64)
        kept = self.layout.predicted_observations
        logits[:, self.layout.token_positions[kept] - 1] = optimum.predicted_observation[:, kept].log()
        return self.change(logits[:, : tokens.shape[1]])


class Function(nn.Module):
    """A module that is a function of the tokens."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.function(tokens)


def random_hmm(seed: int, num_states: int = 3, num_symbols: int = 4, concentration: float = 0.5) -> HMM:
    rng = np.random.default_rng(seed)
    return HMM(
        rng.dirichlet(np.ones(num_states)),
        rng.dirichlet(np.full(num_states, concentration), num_states),
        rng.dirichlet(np.full(num_symbols, concentration), num_states),
        allow_drop_tiny=True,
    )


def mixture(seed: int = 0, num_components: int = 3) -> Mixture:
    weights = np.arange(1, num_components + 1) / (num_components * (num_components + 1) / 2)
    return Mixture(weights, [random_hmm(10 * seed + i) for i in range(num_components)])


PROCESSES: dict[str, Callable[[], Process]] = {
    "hmm": lambda: random_hmm(1),
    "mixture": mixture,
    "deterministic": lambda: HMM([1, 0, 0], np.roll(np.eye(3), 1, 1), np.eye(3)),
}
LAYOUTS: dict[str, Layout] = {"sequences": SequenceLayout(length=12), "prompts": PROMPTS}


def known_component_losses(corpus: ProcessDataset, batch: Batch) -> np.ndarray:
    """-log P(o_t | o_0..o_{t-1}, component), by each component's own filter."""
    assert isinstance(corpus.process, Mixture)
    assert batch.components is not None
    starts = torch.from_numpy(corpus.layout.reset_mask)
    filters = [corpus.process[m] for m in range(len(corpus.process))]
    laws = [optimal_predictions(hmm, batch.observations, reset_mask=starts).log_likelihood_terms for hmm in filters]
    return np.stack([-laws[int(m)][b].numpy() for b, m in enumerate(batch.components)])


# A leak


def leaking(corpus: ProcessDataset, strength: float) -> nn.Module:
    """Sees the next token where it is not cut off."""

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        following = tokens.roll(-1, 1).clamp_max(corpus.num_symbols - 1)
        leak = strength * nn.functional.one_hot(following, corpus.num_symbols).double()
        leak[:, -1] = 0
        return leak

    return Oracle(corpus, lambda x: x) if strength == 0 else Function(logits)


class WrongOracle(ProcessDataset):
    """Samples of one process that are judged by the optimum of another."""

    def __init__(self, true: Process, judged_by: Process, layout: Layout) -> None:
        super().__init__(judged_by, layout=layout)
        self.true = ProcessDataset(true, layout=layout)

    def __getitem__(self, index: Any) -> Batch:
        return self.true[index]


HONEST: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "optimum": lambda logits: logits,
    "float32": lambda logits: logits.float(),
    "blunt": lambda logits: 0.9 * logits.clamp_min(-30),
    "sharp": lambda logits: 1.1 * logits.clamp_min(-30),
    "uniform": torch.zeros_like,
    "noisy": lambda logits: logits + 0.05 * torch.sin(1000 * logits.clamp_min(-30)),
}


# --------------------------------------------------------------------------------------------------------------------
# In-context n-grams


def plain_ngrams(sample: list[int], positions: list[int], num_symbols: int, strengths: list[Fraction]) -> list:
    """One table of counts for each context of each order; contexts do not reach beyond the start of their sequence."""
    counts: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    predictions = []
    for t, symbol in enumerate(sample):
        law = [Fraction(1, num_symbols)] * num_symbols
        by_order = []
        for order, strength in enumerate(strengths):
            if order <= positions[t]:
                seen = counts[tuple(sample[t - order : t])] if order else counts[()]
                total = sum(seen.values())
                law = [(seen[v] + strength * p) / (total + strength) for v, p in enumerate(law)]
            by_order.append([float(p) for p in law])
        predictions.append(by_order)
        for order in range(min(len(strengths) - 1, positions[t]) + 1):
            counts[tuple(sample[t - order : t])][symbol] += 1
    return predictions


# --------------------------------------------------------------------------------------------------------------------
# Context trees

#: A tree by its inner nodes: contexts, the latest symbol first, each with those that it continues.
Tree = frozenset[tuple[int, ...]]


def all_trees(num_symbols: int, depth: int, node: tuple[int, ...] = ()) -> list[Tree]:
    """Every tree of a depth, from a node on."""
    if len(node) == depth:
        return [frozenset()]
    below = [all_trees(num_symbols, depth, (*node, v)) for v in range(num_symbols)]
    return [frozenset(), *(frozenset({node}).union(*parts) for parts in itertools.product(*below))]


def tree_prior(tree: Tree, num_symbols: int, depth: int, weight: float) -> float:
    """weight for each leaf that could have been an inner node, 1 - weight for each inner node."""
    nodes = {(), *((*node, v) for node in tree for v in range(num_symbols))}
    leaves = [node for node in nodes - tree if len(node) < depth]
    return weight ** len(leaves) * (1 - weight) ** len(tree)


def place_in_tree(tree: Tree, context: list[int]) -> tuple[int, ...]:
    """Where a context, the oldest symbol first, ends: at a leaf, or at an inner node where it has no more symbols."""
    node: tuple[int, ...] = ()
    while node in tree and len(node) < len(context):
        node = (*node, context[-1 - len(node)])
    return node


def mixed_trees(
    sample: list[int], reach: list[int], num_symbols: int, depth: int, pseudo_count: float, weight: float
) -> list[list[float]]:
    """P(observation t | those before) by the mixture of all trees, each written down and weighted by what it said so far."""
    trees = all_trees(num_symbols, depth)
    weights = [tree_prior(tree, num_symbols, depth, weight) for tree in trees]
    assert sum(weights) == pytest.approx(1, abs=1e-12)
    found = []
    for t, symbol in enumerate(sample):
        law = [0.0] * num_symbols
        for number, tree in enumerate(trees):
            node = place_in_tree(tree, sample[t - reach[t] : t])
            passed = [
                sample[u] for u in range(t) if reach[u] >= len(node) and tuple(sample[u - len(node) : u][::-1]) == node
            ]
            total = len(passed) + pseudo_count * num_symbols
            own = [(passed.count(v) + pseudo_count) / total for v in range(num_symbols)]
            law = [p + weights[number] * q for p, q in zip(law, own, strict=True)]
            weights[number] *= own[symbol]
        found.append([p / sum(law) for p in law])
    return found


def plain_trees(
    sample: list[int], reach: list[int], num_symbols: int, depth: int, pseudo_count: float, weight: float
) -> list[list[float]]:
    """The same by the recursion over one tree of dictionaries, with probabilities of blocks and no logarithms."""
    counts: dict[tuple[int, ...], list[int]] = defaultdict(lambda: [0] * num_symbols)
    leaf: dict[tuple[int, ...], Fraction] = defaultdict(lambda: Fraction(1))  # of all that passed, were it a leaf
    ended: dict[tuple[int, ...], Fraction] = defaultdict(lambda: Fraction(1))  # of those whose context ended here
    a, w = Fraction(pseudo_count), Fraction(weight)

    def estimate(node: tuple[int, ...], v: int) -> Fraction:
        return (counts[node][v] + a) / (sum(counts[node]) + a * num_symbols)

    def block(node: tuple[int, ...]) -> Fraction:
        if len(node) == depth or leaf[node] == 1:
            return leaf[node]
        return w * leaf[node] + (1 - w) * ended[node] * math.prod(block((*node, v)) for v in range(num_symbols))

    def update(context: list[int], symbol: int) -> None:
        path = [tuple(context[::-1][:k]) for k in range(min(depth, len(context)) + 1)]
        for node in path:
            leaf[node] *= estimate(node, symbol)
        if len(path[-1]) < depth:
            ended[path[-1]] *= estimate(path[-1], symbol)
        for node in path:
            counts[node][symbol] += 1

    found = []
    for t, symbol in enumerate(sample):
        context, before, kept = sample[t - reach[t] : t], block(()), (counts.copy(), leaf.copy(), ended.copy())
        law = []
        for v in range(num_symbols):
            counts, leaf, ended = (copy.deepcopy(one) for one in kept)
            update(context, v)
            law.append(float(block(()) / before))
        counts, leaf, ended = kept
        update(context, symbol)
        found.append(law)
    return found


# --------------------------------------------------------------------------------------------------------------------
# Logistic regression


def problem(seed: int, num_examples: int = 120, num_features: int = 5, num_classes: int = 4) -> tuple:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_examples, num_features))
    logits = 1.5 * x @ rng.normal(size=(num_features, num_classes)) + rng.normal(size=num_classes)
    y = np.array([rng.choice(num_classes, p=p) for p in np.exp(logits) / np.exp(logits).sum(1, keepdims=True)])
    y[:num_classes] = np.arange(num_classes)
    return x, y


def referee(x: np.ndarray, y: np.ndarray, ridge: float) -> LogisticRegression:
    """Its loss is a sum over examples and its penalty |W|^2 / (2 C), so that C = 1 / (ridge * N)."""
    return LogisticRegression(C=1 / (ridge * len(y)), tol=1e-10, max_iter=20_000).fit(x, y)


def fitted(x: np.ndarray, y: np.ndarray, num_classes: int, ridge: float) -> torch.Tensor:
    features = torch.from_numpy(x if x.ndim == 3 else x[None])
    return fit_logistic(features, torch.from_numpy(y), num_classes, ridge=ridge, tolerance=1e-8, max_steps=5000)


def assert_same_weights(ours: torch.Tensor, theirs: LogisticRegression, tolerance: float) -> None:
    """Up to a shift of the biases."""
    assert ours[:-1].numpy() == pytest.approx(theirs.coef_.T, abs=tolerance)
    bias = ours[-1].numpy() - ours[-1].mean().item()
    assert bias == pytest.approx(theirs.intercept_ - theirs.intercept_.mean(), abs=tolerance)


# --------------------------------------------------------------------------------------------------------------------
# Probes


def data_of(features: np.ndarray, labels: np.ndarray, samples: np.ndarray, num_classes: int) -> ProbeData:
    return ProbeData(
        torch.from_numpy(features).float(), torch.from_numpy(labels), torch.from_numpy(samples), num_classes, 1.0
    )


class Held(nn.Module):
    """Its layer ``memory`` holds the tokens of the last few columns, one-hot; its layer ``nothing`` holds noise."""

    def __init__(self, num_tokens: int, num_symbols: int, columns: int, width: int = 0) -> None:
        super().__init__()
        self.vocab_size, self.num_symbols, self.held = num_tokens, num_symbols, columns
        self.width = width or num_tokens * columns
        self.memory, self.nothing = HookPoint(), HookPoint()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hot = nn.functional.one_hot(tokens, self.vocab_size).float()
        shifted = [torch.cat([torch.zeros_like(hot[:, :k]), hot[:, : hot.shape[1] - k]], 1) for k in range(self.held)]
        self.memory(torch.cat(shifted, -1))
        self.nothing(torch.sin(1e4 * (1 + tokens.cumsum(1)[..., None]) * torch.arange(1.0, self.width + 1)))
        return torch.zeros(*tokens.shape, self.num_symbols)


def enumerated_posterior(process: Mixture, sequences: list[list[int]]) -> list[float]:
    """weights[m] * P_m(all sequences), by summing over all hidden paths."""
    joint = []
    for m in range(len(process)):
        hmm = process[m]
        a, b, start = hmm.transition.numpy(), hmm.emission.numpy(), hmm.initial.numpy()
        probability = float(process.component_weights[m])
        for symbols in sequences:
            paths = itertools.product(range(hmm.num_states), repeat=len(symbols))
            probability *= sum(
                start[path[0]]
                * math.prod(b[s, v] for s, v in zip(path, symbols, strict=True))
                * math.prod(a[i, j] for i, j in itertools.pairwise(path))
                for path in paths
            )
        joint.append(probability)
    return joint


# --------------------------------------------------------------------------------------------------------------------
# Attention


class Attends(nn.Module):
    """One head whose logits are given by a function of the tokens; named as in models of this library."""

    def __init__(self, logits: Callable[[torch.Tensor], torch.Tensor], num_symbols: int) -> None:
        super().__init__()
        self.function, self.num_symbols = logits, num_symbols
        attention = nn.ModuleDict({"logits": HookPoint(), "pattern": HookPoint()})
        self.blocks = nn.ModuleList([nn.ModuleDict({"attention": attention})])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        time = tokens.shape[1]
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        logits = self.function(tokens)[:, None, None].expand(-1, 1, time, -1).masked_fill(future, -torch.inf)
        taps = self.blocks[0]["attention"]
        taps["pattern"](taps["logits"](logits).softmax(-1))
        return torch.zeros(*tokens.shape, self.num_symbols)


def by_metric(rows: list[dict]) -> dict[str, dict]:
    return {row["metric"]: row for row in rows}
