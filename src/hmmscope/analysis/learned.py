"""How far a network has gone from the best constant answer to the optimum."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from hmmscope.analysis.curves import evaluate
from hmmscope.analysis.intervals import bootstrap_ratio
from hmmscope.corpora.corpus import Corpus
from hmmscope.processes.hmm import HMM
from hmmscope.reprs import Shown

#: Samples in which the constant answer counts symbols.
_COUNTED = 4096
#: Nats between the constant answer and the optimum from which on there is something to learn.
LEAST_GAP = 1e-3
#: The share of the way below which a network is no better than the constant answer, and that from which on it has learned.
NOTHING, HALF = 0.02, 0.5


@dataclass(frozen=True, repr=False)
class Learned(Shown):
    """Losses on held-out samples, nats a symbol, and the share of the way from the constant answer to the optimum.

    Attributes:
        loss: of the network.
        constant: of the best answer that looks at nothing, the frequencies of the symbols in training samples.
        optimum: of the Bayes predictor.
        share, low, high: (constant - loss) / (constant - optimum) with its 95 % interval over samples; None where the
            constant answer is the optimum.
    """

    loss: float
    constant: float
    optimum: float
    share: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> Literal["nothing to learn", "nothing", "part", "most"]:
        """ "nothing": no better than the constant answer; "part": less than half of the way."""
        if self.share is None or self.low is None:
            return "nothing to learn"
        if self.low <= 0 or self.share < NOTHING:
            return "nothing"
        return "most" if self.share >= HALF else "part"

    def __str__(self) -> str:
        """``97 % [96, 98] of the way from the best constant answer to the optimum``."""
        if self.share is None or self.low is None or self.high is None:
            return "the best constant answer is the optimum"
        share, low, high = (f"{round(100 * x) + 0:d}" for x in (self.share, self.low, self.high))
        return f"{share} % [{low}, {high}] of the way from the best constant answer to the optimum"


def learned(model: nn.Module, held_out: Corpus, training: Corpus, *, num_samples: int = 256) -> Learned:
    """What a model that predicts the next observation has learned.

    Args:
        model: any module.
        held_out: samples of a process with an exact answer.
        training: samples in which the constant answer counts.
        num_samples: held-out samples.

    Raises:
        InputError: see `evaluate`.
    """
    layout = training.layout
    seen = training[0:_COUNTED].observations[:, torch.from_numpy(np.asarray(layout.predicted))]
    counts = torch.bincount(seen.flatten(), minlength=training.num_symbols).double() + 0.5
    constant = HMM([1.0], [[1.0]], (counts / counts.sum())[None])
    score = evaluate(model, held_out, num_samples=num_samples, baselines=False, observers={"constant": constant})
    losses = {name: np.nanmean(measured["loss"], 1) for name, measured in score.measures.items()}
    gap = losses["constant"] - losses["optimum"]
    share = low = high = None
    if gap.mean() >= LEAST_GAP:
        share, low, high = bootstrap_ratio(losses["constant"] - losses["model"], gap)
    loss, constant_loss, optimum = (float(losses[name].mean()) for name in ("model", "constant", "optimum"))
    return Learned(loss, constant_loss, optimum, share, low, high)
