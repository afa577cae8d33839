"""How a model is trained: numbers only."""

from dataclasses import dataclass, field
from typing import Literal

from hmmscope.schema import require, require_kinds


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """AdamW on samples of the "train" stream, fresh ones at every step or a fixed set in epochs.

    Step s trains on samples s * batch_size .. (s + 1) * batch_size - 1; with `num_trajectories` the samples of an epoch
    are 0 .. num_trajectories - 1 in an order of that epoch, and its last step takes what is left.

    Attributes:
        num_steps: optimiser steps.
        batch_size: samples a step.
        num_trajectories: size of a fixed training set, reshuffled at each epoch; 0 for fresh samples at every step.
        epoch_steps: steps that count as an epoch with fresh samples; 0 if the whole run is one epoch. With a fixed set
            an epoch is once through it.
        schedule: of the learning rate: "cosine" (linear warm-up, then a cosine to `final_fraction`), "halving" (linear
            warm-up from `warmup_from`, and half of it every `halve_every` epochs), "constant" (after the warm-up) or "wsd"
            (warm-up, stable, decay: constant after the warm-up, and linear to zero from `decay_step` on).
        learning_rate: at the end of the warm-up.
        warmup_steps: linear.
        warmup_from: learning rate at step 0 of the schedule "halving".
        halve_every: epochs.
        final_fraction: of the learning rate, reached at the last step by the cosine.
        betas, epsilon, weight_decay: of AdamW.
        gradient_clip: largest global norm of the gradient; 0 for no limit.
        curriculum: lengths, in observations, of the stages of a curriculum; samples are cut to prefixes of that length.
            Stages are equally many whole epochs (steps, if the run is one epoch), and the last takes what is left.
        block_length: of block chain-of-thought: after so many positions the model is told its own answer; 0 for none.
        block_algorithm: "two-phase" (answers first, then one ordinary step) or "naive" (one pass a block).
        accumulation_steps: equal parts of a batch whose gradients are computed apart and added in a fixed order: gradient
            accumulation, and the unit of work of several processes. Part of what fixes the bits of a run.
        parallel: what several processes do (torchrun): "exact" (the same bits as one process; accumulation_steps must be a
            multiple of their number), "ddp" or "fsdp".
        precision: of the forward and backward pass: "float32", or "bfloat16": by torch's autocast, or, of the compiled
            engine, maps whose numbers are rounded and whose sums are float32.
        compile: torch.compile the model.
        deterministic: refuse operations of the device that may give other bits when repeated.
        evaluate_every: steps between evaluations on fixed samples of the "evaluate" stream; 0 for none.
        evaluate_samples: how many.
        checkpoint_every: steps between checkpoints, of which the newest two stay (the last step always has one).
        num_log_checkpoints: checkpoints that stay, at so many steps from 1 to the last, evenly spaced in their logarithm; 0
            for none.
        num_threads: of the processor; part of what fixes the bits of a run.
        device: "cpu", "cuda", or "auto" for cuda where there is one and the engine is not "compiled".
        engine: what computes the steps: "torch", "compiled" (small decoders and RNNs on the processor, see
            `engines.uncovered`), or "auto" for the compiled one where it is covered and pays. Part of what fixes the bits.

    Source: [MultiTask] App. B.1 gives 4096 steps of 32 prompts; [Limits] App. C the recipe in `recipes.limits_recipe`.
    """

    num_steps: int = 4096
    batch_size: int = 32
    num_trajectories: int = 0
    epoch_steps: int = 0
    schedule: Literal["cosine", "halving", "constant", "wsd"] = "cosine"
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    warmup_from: float = 0.0
    halve_every: int = 20
    final_fraction: float = 0.05
    betas: tuple[float, ...] = (0.9, 0.98)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    curriculum: tuple[int, ...] = ()
    block_length: int = 0
    block_algorithm: Literal["two-phase", "naive"] = "two-phase"
    accumulation_steps: int = field(default=1, metadata={"stored": "num_grains"})
    parallel: Literal["exact", "ddp", "fsdp"] = "exact"
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    deterministic: bool = False
    evaluate_every: int = 100
    evaluate_samples: int = 64
    checkpoint_every: int = 200
    num_log_checkpoints: int = field(default=0, metadata={"stored": "milestones"})
    num_threads: int = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    engine: Literal["auto", "compiled", "torch"] = "auto"

    def __post_init__(self) -> None:
        require_kinds(self)
        for name in ("num_steps", "batch_size", "checkpoint_every", "evaluate_samples", "num_threads", "halve_every"):
            require(1 <= getattr(self, name) < 2**31, name, "must be in [1, 2^31)", getattr(self, name))
        require(self.num_threads <= 1024, "num_threads", "must be at most 1024", self.num_threads)
        samples = self.num_steps * self.batch_size
        require(samples <= 2**40, "num_steps", "times batch_size must be at most 2^40 samples", samples)
        for name in ("warmup_steps", "evaluate_every", "weight_decay", "warmup_from", "gradient_clip"):
            require(getattr(self, name) >= 0, name, "must be at least 0", getattr(self, name))
        for name in ("epoch_steps", "block_length"):
            require(0 <= getattr(self, name) < 2**31, name, "must be in [0, 2^31)", getattr(self, name))
        most = 2**27
        require(
            0 <= self.num_trajectories <= most, "num_trajectories", f"must be in [0, {most}]", self.num_trajectories
        )
        both = self.epoch_steps > 0 and self.num_trajectories > 0
        require(
            not both, "epoch_steps", "must be 0 with num_trajectories, which say how long an epoch is", self.epoch_steps
        )
        sensible = self.num_log_checkpoints == 0 or 2 <= self.num_log_checkpoints <= 1000
        require(sensible, "num_log_checkpoints", "must be 0, or in [2, 1000]", self.num_log_checkpoints)
        require(self.learning_rate > 0, "learning_rate", "must be positive", self.learning_rate)
        require(self.epsilon > 0, "epsilon", "must be positive", self.epsilon)
        require(0 <= self.final_fraction <= 1, "final_fraction", "must be in [0, 1]", self.final_fraction)
        ok = len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas)
        require(ok, "betas", "must be two numbers in [0, 1)", self.betas)
        require(all(length >= 1 for length in self.curriculum), "curriculum", "must be lengths >= 1", self.curriculum)
        stages, units = (
            len(self.curriculum),
            self.num_epochs if self.steps_per_epoch < self.num_steps else self.num_steps,
        )
        require(stages <= units, "curriculum", f"must have at most {units} stages in a run of that many", stages)
        divides = self.accumulation_steps >= 1 and self.batch_size % self.accumulation_steps == 0
        require(divides, "accumulation_steps", f"must divide batch_size = {self.batch_size}", self.accumulation_steps)

    def stage_length(self, step: int, full_length: int) -> int:
        """Observations that are kept of the samples of a step: a stage of the curriculum, or all of them."""
        if not self.curriculum:
            return full_length
        unit = self.steps_per_epoch if self.steps_per_epoch < self.num_steps else 1
        units = -(-self.num_steps // unit)
        stage = min(step // unit // (units // len(self.curriculum)), len(self.curriculum) - 1)
        return min(self.curriculum[stage], full_length)

    @property
    def log_checkpoint_steps(self) -> tuple[int, ...]:
        """Steps whose checkpoints stay, ascending and each once, `decay_step` of the schedule "wsd" among them."""
        last = max(1, self.num_log_checkpoints - 1)
        steps = {round(self.num_steps ** (k / last)) for k in range(self.num_log_checkpoints)}
        return tuple(sorted(steps | ({self.decay_step} if self.schedule == "wsd" else set())))

    @property
    def decay_step(self) -> int:
        """Steps before the decay of the schedule "wsd", which is a fifth of them, the last sixth of all."""
        return self.num_steps - self.num_steps // 6

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of an epoch."""
        if self.num_trajectories:
            return -(-self.num_trajectories // self.batch_size)
        return self.epoch_steps or self.num_steps

    @property
    def num_epochs(self) -> int:
        """Epochs begun."""
        return -(-self.num_steps // self.steps_per_epoch)
