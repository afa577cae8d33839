"""How far a network has gone to the optimum from the best that needs no memory: a constant answer, or the last symbol."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from hmmscope.analysis.curves import evaluate
from hmmscope.analysis.intervals import bootstrap_ratio
from hmmscope.axes import Int64, Tensor
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.processes.hmm import HMM
from hmmscope.reprs import Shown
from hmmscope.text import in_digits

#: Samples in which symbols are counted.
_COUNTED = 4096
#: Nats between a predictor without memory and the optimum from which on there is something to learn beyond it.
LEAST_GAP = 1e-3
#: The share of the way below which a network is no better than such a predictor, and that from which on it has learned.
NOTHING, HALF = 0.02, 0.5
#: What needs no memory, by the name that a page has for it.
CONSTANT, LAST = "the best constant answer", "the law given the last symbol"


@dataclass(frozen=True, repr=False)
class Learned(Shown):
    """Losses on held-out samples, nats a symbol, and the share of the way from what needs no memory to the optimum.

    Attributes:
        loss: of the network.
        bar: `LAST`; `CONSTANT` where that is better, or where the law given the last symbol is the optimum.
        at_bar: loss of `bar`, whose frequencies are those of training samples.
        optimum: of the Bayes predictor.
        share, low, high: (at_bar - loss) / (at_bar - optimum) with its 95 % interval over samples; None where `bar` is the
            optimum.
    """

    loss: float
    bar: str
    at_bar: float
    optimum: float
    share: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> Literal["nothing to learn", "nothing", "part", "most"]:
        """ "nothing": no better than `bar`; "part": less than half of the way."""
        if self.share is None or self.low is None:
            return "nothing to learn"
        if self.low <= 0 or self.share < NOTHING:
            return "nothing"
        return "most" if self.share >= HALF else "part"

    def __str__(self) -> str:
        """``97 % [96, 98] of the way from the law given the last symbol to the optimum``; of no way the three losses."""
        if self.share is None or self.low is None or self.high is None:
            return f"{self.bar} is the optimum"
        if self.verdict == "nothing":
            return f"{self.loss:.3f} nats a symbol against {self.at_bar:.3f}, where the optimum has {self.optimum:.3f}"
        share = in_digits(100 * self.share, 100 * self.low, 100 * self.high, least=0, unit=" %")
        return f"{share} of the way from {self.bar} to the optimum"


def learned(model: nn.Module, held_out: ProcessDataset, training: ProcessDataset, *, num_samples: int = 256) -> Learned:
    """What a model that predicts the next observation has learned.

    A step or two give a network the symbols' frequencies, and those of their pairs where its last layer sees the last
    symbol. So these are where learning begins.

    Args:
        model: any module.
        held_out: samples of a process with an exact answer.
        training: samples in which symbols are counted.
        num_samples: held-out samples.

    Raises:
        InputError: see `evaluate`.
    """
    observers = {CONSTANT: _constant(training), LAST: _chain(training)}
    score = evaluate(model, held_out, num_samples=num_samples, baselines=False, observers=observers)
    losses = {name: np.nanmean(measured["loss"], 1) for name, measured in score.measures.items()}
    loss, constant, last, optimum = (float(losses[name].mean()) for name in ("model", CONSTANT, LAST, "optimum"))
    bar = CONSTANT if last - optimum < LEAST_GAP or constant <= last else LAST
    gap = losses[bar] - losses["optimum"]
    share = low = high = None
    if gap.mean() >= LEAST_GAP:
        share, low, high = bootstrap_ratio(losses[bar] - losses["model"], gap)
    return Learned(loss, bar, float(losses[bar].mean()), optimum, share, low, high)


def _constant(training: ProcessDataset) -> HMM:
    """One state that emits symbols as often as the samples have them."""
    return HMM([1.0], [[1.0]], _law(_counted(training)[0])[None])


def _chain(training: ProcessDataset) -> HMM:
    """A chain over symbols, by the frequencies of pairs within sequences."""
    singles, pairs = _counted(training)
    return HMM(_law(singles), _law(pairs), torch.eye(training.num_symbols, dtype=torch.float64))


def _counted(training: ProcessDataset) -> tuple[Int64[Tensor, "symbol"], Int64[Tensor, "symbol symbol"]]:
    layout, size = training.layout, training.num_symbols
    seen_BT = training[0:_COUNTED].observations
    predicted = torch.from_numpy(np.asarray(layout.predicted_observations))
    inside = predicted[~torch.from_numpy(layout.reset_mask)[predicted]]  # not where a sequence begins
    numbers = size * seen_BT[:, inside - 1] + seen_BT[:, inside]
    pairs = torch.bincount(numbers.flatten(), minlength=size * size).unflatten(0, (size, size))
    return torch.bincount(seen_BT[:, predicted].flatten(), minlength=size), pairs


def _law(counts: Tensor) -> Tensor:
    counts = counts.double() + 0.5
    return counts / counts.sum(-1, keepdim=True)
