"""Learning progress: the fraction of the gap from a simple baseline to the optimum that a network closes."""

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

#: Samples for symbol frequencies.
_COUNTED = 4096
#: Least gap in nats between a memoryless baseline and the optimum.
LEAST_GAP = 1e-3
#: Fractions of the gap: below the first a network has learned nothing, from the second on most.
NOTHING, HALF = 0.02, 0.5
#: Memoryless baselines, as named on pages.
CONSTANT, LAST = "the best constant answer", "the best prediction given the last symbol"


@dataclass(frozen=True, repr=False)
class Learned(Shown):
    """Held-out losses in nats per symbol, and the closed fraction of the gap from baseline to optimum.

    Attributes:
        loss: loss of the network.
        bar: name of the baseline: `LAST` (bigram); `CONSTANT` (unigram) if the bigram is no better, or is optimal.
        at_bar: loss of the baseline.
        optimum: Bayes loss.
        share, low, high: (at_bar - loss) / (at_bar - optimum) with its 95 % interval; None for gaps below `LEAST_GAP`.
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
        if self.share is None or self.low is None:
            return "nothing to learn"
        if self.low <= 0 or self.share < NOTHING:
            return "nothing"
        return "most" if self.share >= HALF else "part"

    def __str__(self) -> str:
        if self.share is None or self.low is None or self.high is None:
            return f"{self.bar} is the optimum"
        if self.verdict == "nothing":
            return f"{self.loss:.3f} nats per symbol, the baseline {self.at_bar:.3f}, the optimum {self.optimum:.3f}"
        share = in_digits(100 * self.share, 100 * self.low, 100 * self.high, least=0, unit=" %")
        return f"{share} of the way from {self.bar} to the optimum"


def learned(model: nn.Module, held_out: ProcessDataset, training: ProcessDataset, *, num_samples: int = 256) -> Learned:
    """Measure how much of the gap from a unigram or bigram baseline to the optimum a model closes.

    Args:
        model: any module.
        held_out: held-out samples of a process with exact inference.
        training: samples to which the baselines are fitted.
        num_samples: number of held-out samples.

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
    return HMM([1.0], [[1.0]], _law(_counted(training)[0])[None])


def _chain(training: ProcessDataset) -> HMM:
    singles, pairs = _counted(training)
    return HMM(_law(singles), _law(pairs), torch.eye(training.num_symbols, dtype=torch.float64))


def _counted(training: ProcessDataset) -> tuple[Int64[Tensor, " symbol"], Int64[Tensor, "symbol symbol"]]:
    layout, size = training.layout, training.num_symbols
    seen_BT = training[0:_COUNTED].observations
    predicted = torch.from_numpy(np.asarray(layout.predicted_observations))
    inside = predicted[~torch.from_numpy(layout.reset_mask)[predicted]]  # not at sequence starts
    numbers = size * seen_BT[:, inside - 1] + seen_BT[:, inside]
    pairs = torch.bincount(numbers.flatten(), minlength=size * size).unflatten(0, (size, size))
    return torch.bincount(seen_BT[:, predicted].flatten(), minlength=size), pairs


def _law(counts: Tensor) -> Tensor:
    counts = counts.double() + 0.5
    return counts / counts.sum(-1, keepdim=True)
