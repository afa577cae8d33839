"""Lower bounds on losses of predictors: entropies of beliefs and of next observations, and variances.

At position t, a predictor has seen t observations.
"""

import math

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.mixture_posterior import CHUNK_BYTES, predicted_before
from hmmscope.inference.monte_carlo import MonteCarloEstimate, estimate
from hmmscope.processes.kalman import kalman_steps
from hmmscope.processes.linear_gaussian import LinearGaussian
from hmmscope.processes.process import Process
from hmmscope.processes.require_type import require_process_type
from hmmscope.schema import require, require_count


def belief_floor(hmm: Process, num_steps: int, *, num_samples: int = 1000, seed: int = 0) -> MonteCarloEstimate:
    """Estimate the belief entropy, averaged over positions 1 .. num_steps, in nats."""
    return estimate(_entropies(hmm, num_steps, num_samples, seed)[0], seed)


def next_observation_floor(
    hmm: Process, num_steps: int, *, num_samples: int = 1000, seed: int = 0
) -> MonteCarloEstimate:
    """Estimate the entropy of the next observation, averaged over positions 0 .. num_steps - 1, in nats."""
    return estimate(_entropies(hmm, num_steps, num_samples, seed)[1], seed)


def _entropies(hmm: Process, num_steps: int, num_samples: int, seed: int) -> tuple[Tensor, Tensor]:
    require_count("num_steps", num_steps)
    require_count("num_samples", num_samples, 2)
    starts = np.arange(num_steps) == 0
    chunk = max(1, CHUNK_BYTES // (8 * num_steps * (hmm.num_states + hmm.num_symbols)))
    beliefs, predictions = [], []
    for first in range(0, num_samples, chunk):
        numbers = np.arange(first, min(first + chunk, num_samples))
        filtered = filter_beliefs(hmm, hmm.sample_paths(numbers, starts, seed, "monte-carlo").observations)
        before = predicted_before(filtered.first_observation, filtered.next_observation)
        beliefs.append(torch.special.entr(filtered.beliefs).sum(-1).mean(1))
        predictions.append(torch.special.entr(before).sum(-1).mean(1))
    return torch.cat(beliefs), torch.cat(predictions)


def cyclic_hard_floor(num_actions: int, prediction_rate: float, num_steps: int) -> float:
    """Compute the exact entropy of the next Cyclic-HARD symbol, averaged over positions, in nats.

    after an action: -(1 - a) ln((1 - a) / m) - a ln a;  after `*`, which asks for the state's name: 0;
    after a state's name: ln m;  with a = prediction_rate and m = num_actions
    """
    require(0 < prediction_rate <= 1, "prediction_rate", "must be in (0, 1]", prediction_rate)
    keep = 1 - prediction_rate
    asked = -prediction_rate * math.log(prediction_rate)
    after_action = asked - (keep * math.log(keep / num_actions) if keep else 0.0)
    action, star, told, total = 1.0, 0.0, 0.0, 0.0
    for _ in range(num_steps):
        total += action * after_action + told * math.log(num_actions)
        action, star, told = keep * action + told, prediction_rate * action, star
    return total / num_steps


def linear_variances(process: Process, num_steps: int) -> Float64[Tensor, " time"]:
    """Compute the exact variance of the next observation, averaged over coordinates, by position."""
    process = require_process_type(process, LinearGaussian)
    known = torch.zeros(process.num_states, process.num_states, dtype=torch.float64)
    steps = zip(kalman_steps(process, known), range(num_steps), strict=False)
    return torch.stack([step.innovation_covariance.diagonal().mean() for step, _ in steps])


def linear_floor(process: Process, num_steps: int, *, first: int = 0) -> float:
    """Average `linear_variances` over `num_steps` positions, from position `first` on."""
    require_count("num_steps", num_steps)
    require_count("first", first, 0)
    return float(linear_variances(process, first + num_steps)[first:].mean())
