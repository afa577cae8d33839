"""How a model is trained: numbers only."""

from dataclasses import dataclass
from typing import Literal

from hmmscope.schema import require


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """AdamW with linear warm-up, cosine decay and gradient clipping, on fresh samples at every step.

    Step s trains on samples s * batch_size .. (s + 1) * batch_size - 1 of the corpus's "train" stream.

    Attributes:
        num_steps: optimiser steps.
        batch_size: samples a step.
        learning_rate: at the end of the warm-up.
        warmup_steps: linear from zero.
        final_fraction: of the learning rate, reached at the last step by a cosine.
        betas, weight_decay: of AdamW.
        gradient_clip: largest global norm of the gradient.
        evaluate_every: steps between evaluations on fixed samples of the "evaluate" stream; 0 for none.
        evaluate_samples: how many.
        checkpoint_every: steps between checkpoints (the last step always has one).
        num_threads: of the processor; part of what fixes the bits of a run.
        device: "cpu", "cuda", or "auto" for cuda where there is one.

    Source: [MultiTask] §5 gives 4096 steps of 32 prompts; what else it leaves open has these defaults.
    """

    num_steps: int = 4096
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    final_fraction: float = 0.05
    betas: tuple[float, ...] = (0.9, 0.98)
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    evaluate_every: int = 100
    evaluate_samples: int = 64
    checkpoint_every: int = 200
    num_threads: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        for field in ("num_steps", "batch_size", "checkpoint_every", "evaluate_samples", "num_threads"):
            require(1 <= getattr(self, field) < 2**31, field, "must be in [1, 2^31)", getattr(self, field))
        require(self.num_threads <= 1024, "num_threads", "must be at most 1024", self.num_threads)
        samples = self.num_steps * self.batch_size
        require(samples <= 2**40, "num_steps", "times batch_size must be at most 2^40 samples", samples)
        for field in ("warmup_steps", "evaluate_every", "weight_decay"):
            require(getattr(self, field) >= 0, field, "must be at least 0", getattr(self, field))
        require(self.learning_rate > 0, "learning_rate", "must be positive", self.learning_rate)
        require(self.gradient_clip > 0, "gradient_clip", "must be positive", self.gradient_clip)
        require(0 <= self.final_fraction <= 1, "final_fraction", "must be in [0, 1]", self.final_fraction)
        ok = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(ok, "betas", "must be two numbers in [0, 1)", self.betas)
