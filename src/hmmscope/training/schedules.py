"""Learning rate, samples and curriculum length as functions of the step."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hmmscope.seeds import numpy_generator
from hmmscope.training.spec import TrainingSpec


def learning_rate(spec: TrainingSpec, step: int) -> float:
    """Return the learning rate of a step (0-based); the peak is `spec.learning_rate`.

    cosine:   linear over the first `warmup_steps`, then a cosine to `final_fraction` * peak at the last step
    constant: linear over the first `warmup_steps`, then constant
    wsd:      linear over the first `warmup_steps`, constant up to `decay_step`, then linear to zero
    halving:  (warmup_from + (peak - warmup_from) * min(step / warmup_steps, 1)) / 2^floor(epoch / halve_every)

    Source: halving: [Limits] App. C; wsd: Hu et al. 2024 (arXiv 2404.06395), with the decay of arXiv 2405.18392.
    """
    if spec.schedule == "halving":
        risen = min(step / spec.warmup_steps, 1.0) if spec.warmup_steps else 1.0
        warm = spec.warmup_from + (spec.learning_rate - spec.warmup_from) * risen
        return warm * 0.5 ** (step // spec.steps_per_epoch // spec.halve_every)
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / spec.warmup_steps
    if spec.schedule == "constant":
        return spec.learning_rate
    if spec.schedule == "wsd":
        decay = spec.num_steps - spec.decay_step + 1
        return spec.learning_rate * min(1.0, (spec.num_steps - step) / decay)
    length = max(1, spec.num_steps - 1 - spec.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * (step - spec.warmup_steps) / length))
    return spec.learning_rate * (spec.final_fraction + (1 - spec.final_fraction) * cosine)


def sample_numbers(spec: TrainingSpec, seed: int, step: int) -> NDArray[np.int64]:
    if not spec.num_trajectories:
        return np.arange(step * spec.batch_size, (step + 1) * spec.batch_size)
    epoch, within = divmod(step, spec.steps_per_epoch)
    order = _epoch_order(spec.num_trajectories, seed, epoch)
    return order[within * spec.batch_size : (within + 1) * spec.batch_size].astype(np.int64)


@lru_cache(maxsize=1)
def _epoch_order(num_trajectories: int, seed: int, epoch: int) -> NDArray[np.int32]:
    return numpy_generator(seed, "epoch-order", epoch).permutation(np.arange(num_trajectories, dtype=np.int32))


def training_tokens(spec: TrainingSpec, num_columns: int, num_observations: int) -> int:
    if not spec.curriculum:
        return spec.num_steps * spec.batch_size * num_columns
    kept = sum(spec.stage_length(step, num_observations) for step in range(spec.num_steps))
    return spec.batch_size * (kept + spec.num_steps * (num_columns - num_observations))
