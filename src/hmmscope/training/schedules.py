"""Learning rates as functions of the step."""

import math

from hmmscope.training.spec import TrainingSpec


def learning_rate(spec: TrainingSpec, step: int) -> float:
    """Linear warm-up over the first `warmup_steps`, then a cosine to `final_fraction` at the last step (0-based)."""
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / spec.warmup_steps
    length = max(1, spec.num_steps - 1 - spec.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * (step - spec.warmup_steps) / length))
    return spec.learning_rate * (spec.final_fraction + (1 - spec.final_fraction) * cosine)
