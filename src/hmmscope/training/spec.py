"""Training hyperparameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hmmscope.schema import require, require_kinds


def option_texts(options: Any) -> Any:
    if not isinstance(options, Mapping):
        return options
    return tuple(sorted(f"{name}={_text(value)}" for name, value in options.items()))


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value).lower()


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """Hyperparameters of training on new samples at every step, or on epochs of a fixed set (stream "train").

    Attributes:
        num_steps: Number of optimiser steps.
        batch_size: Number of samples per step.
        num_trajectories: Number of samples in a fixed training set; 0 for new samples at every step.
        epoch_steps: Steps per epoch if `num_trajectories` is 0; 0 for a single epoch.
        schedule: Learning-rate schedule: "cosine" (decays to `final_fraction`), "halving" (every `halve_every`
            epochs), "constant" or "wsd" (constant, then linear to zero).
        learning_rate: Peak learning rate.
        warmup_steps: Steps of linear warm-up.
        warmup_from: Learning rate at the first step of "halving".
        halve_every: Number of epochs between halvings of the learning rate.
        final_fraction: Learning rate at the last step of "cosine", as a fraction of the peak.
        optimizer: Lower-case name in torch.optim, such as "sgd", or full name of the function `TrainOptions.optimizer`.
        optimizer_options: Further options of the optimizer, such as "momentum=0.9".
        betas, epsilon: Parameters of optimizers of the Adam family.
        weight_decay: Weight decay, as the optimizer defines it.
        weight_decay_on: Parameters with weight decay: "all", or "matrices" (all but norms and biases).
        auxiliary_losses: Names of the auxiliary losses in `TrainOptions`.
        gradient_clip: Largest global gradient norm; 0 for no limit.
        curriculum: Length of the samples in each stage; the stages divide the training equally.
        block_length: Number of positions after which the model reads its own prediction (block chain-of-thought); 0
            for never.
        block_algorithm: "two-phase" or "naive"; see `hmmscope.models.block_cot.block_outputs`.
        accumulation_steps: Number of parts of a batch, with gradients added in order; the number changes the rounding.
        parallel: Method for several processes: "exact" (bit-identical to one process), "ddp" or "fsdp".
        precision: "float32", "tf32" (on a GPU) or "bfloat16" (torch autocast; in the compiled engine, linear maps of
            bfloat16 numbers with float32 sums).
        compile: True uses torch.compile.
        deterministic: True raises an error for nondeterministic operations.
        evaluate_every: Number of steps between evaluations on held-out samples (stream "evaluate"); 0 for none.
        evaluate_samples: Number of samples per evaluation.
        checkpoint_every: Number of steps between checkpoints; only the newest two are kept.
        num_log_checkpoints: Number of permanent checkpoints, log-spaced from step 1 to the last step; 0 for none.
        num_threads: Number of CPU threads; it changes the rounding.
        device: "cpu", "cuda" or "auto".
        engine: "torch", "compiled" (small decoders and RNNs on the CPU), or "auto"; engines differ in rounding.

    Source: [MultiTask] App. B.1; [Limits] App. C, see `recipes.limits_recipe`.
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
    optimizer: str = field(default="adamw", metadata={"absent": True})
    optimizer_options: tuple[str, ...] = field(default=(), metadata={"absent": True, "read": option_texts})
    weight_decay_on: Literal["all", "matrices"] = field(default="all", metadata={"absent": True})
    auxiliary_losses: tuple[str, ...] = field(default=(), metadata={"absent": True})
    gradient_clip: float = 1.0
    curriculum: tuple[int, ...] = ()
    block_length: int = 0
    block_algorithm: Literal["two-phase", "naive"] = "two-phase"
    accumulation_steps: int = field(default=1, metadata={"stored": "num_grains"})
    parallel: Literal["exact", "ddp", "fsdp"] = "exact"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
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
        object.__setattr__(self, "optimizer_options", option_texts(self.optimizer_options))
        require_kinds(self)
        if "." not in self.optimizer:
            object.__setattr__(self, "optimizer", self.optimizer.lower())
        for name in ("num_steps", "batch_size", "checkpoint_every", "evaluate_samples", "num_threads", "halve_every"):
            require(1 <= getattr(self, name) < 2**31, name, "must be in [1, 2^31)", getattr(self, name))
        require(self.num_threads <= 1024, "num_threads", "must be at most 1024", self.num_threads)
        samples = self.num_steps * self.batch_size
        require(samples <= 2**40, "num_steps", "must be at most 2^40 divided by batch_size", self.num_steps)
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
            not both,
            "epoch_steps",
            "must be 0 if num_trajectories is set, because num_trajectories fixes the length of an epoch",
            self.epoch_steps,
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
        require(stages <= units, "curriculum", f"must have at most {units} stages, one per epoch or step", stages)
        divides = self.accumulation_steps >= 1 and self.batch_size % self.accumulation_steps == 0
        require(divides, "accumulation_steps", f"must divide batch_size = {self.batch_size}", self.accumulation_steps)
        alone = not (self.auxiliary_losses and (self.compile or self.block_length))
        require(alone, "auxiliary_losses", "need compile = false and block_length = 0", self.auxiliary_losses)
        if self.optimizer != "adamw" or self.optimizer_options:
            from hmmscope.training.optimizers import check_optimizer  # imports torch

            check_optimizer(self)

    def stage_length(self, step: int, full_length: int) -> int:
        if not self.curriculum:
            return full_length
        unit = self.steps_per_epoch if self.steps_per_epoch < self.num_steps else 1
        units = -(-self.num_steps // unit)
        stage = min(step // unit // (units // len(self.curriculum)), len(self.curriculum) - 1)
        return min(self.curriculum[stage], full_length)

    @property
    def log_checkpoint_steps(self) -> tuple[int, ...]:
        """Steps of permanent checkpoints in ascending order, including `decay_step` of the schedule "wsd"."""
        last = max(1, self.num_log_checkpoints - 1)
        steps = {round(self.num_steps ** (k / last)) for k in range(self.num_log_checkpoints)}
        return tuple(sorted(steps | ({self.decay_step} if self.schedule == "wsd" else set())))

    @property
    def decay_step(self) -> int:
        return self.num_steps - self.num_steps // 6

    @property
    def steps_per_epoch(self) -> int:
        if self.num_trajectories:
            return -(-self.num_trajectories // self.batch_size)
        return self.epoch_steps or self.num_steps

    @property
    def num_epochs(self) -> int:
        return -(-self.num_steps // self.steps_per_epoch)
