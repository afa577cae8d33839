"""Error, by position, of beliefs from a short context window."""

from collections.abc import Sequence

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.memory import filter_windows, with_prior
from hmmscope.inference.mixture_posterior import CHUNK_BYTES
from hmmscope.inference.monte_carlo import MonteCarloEstimate, estimate
from hmmscope.processes.kalman import kalman_filter, steady_step
from hmmscope.processes.linear_gaussian import LinearGaussian
from hmmscope.processes.process import Process
from hmmscope.processes.require_type import require_process_type
from hmmscope.schema import require, require_count


def window_errors(
    hmm: Process, windows: Sequence[int], times: Sequence[int], *, num_samples: int = 1000, seed: int = 0
) -> MonteCarloEstimate:
    """Estimate E TV(belief, belief from the last w observations) after t observations, by window and time.

    Window beliefs start from the stationary distribution, which is uniform in [Limits] Fig. 4 (left).

    Source: [Limits] §4 (half the L1 distance, averaged over sequences).

    Args:
        hmm: The process.
        windows: Window lengths w >= 0.
        times: Numbers of observations t >= 1.
        num_samples: Number of sampled sequences.
        seed: Random seed.
    """
    require(len(windows) > 0 and min(windows) >= 0, "windows", "must be one or more numbers of at least 0", windows)
    require(len(times) > 0 and min(times) >= 1, "times", "must be one or more numbers of at least 1", times)
    require_count("num_samples", num_samples, 2)
    if hmm.real_valued:
        linear = require_process_type(hmm, LinearGaussian, "hmm")
        each = [
            linear_window_errors(linear, [min(w, t) for w in windows], t, num_samples=num_samples, seed=seed)
            for t in times
        ]
        mean, low, high = (torch.stack(part, 1) for part in zip(*((e.mean, e.low, e.high) for e in each), strict=True))
        return MonteCarloEstimate(mean, low, high, num_samples)
    params = with_prior(hmm)
    starts = np.arange(max(times)) == 0
    errors = torch.empty(num_samples, len(windows), len(times), dtype=torch.float64)
    chunk = max(1, CHUNK_BYTES // (8 * max(times) * (hmm.num_states + hmm.num_symbols)))
    for first in range(0, num_samples, chunk):
        numbers = np.arange(first, min(first + chunk, num_samples))
        observations = hmm.sample_paths(numbers, starts, seed, "monte-carlo").observations
        beliefs = filter_beliefs(hmm, observations).beliefs
        for k, time in enumerate(times):
            for j, window in enumerate(windows):
                kept = observations[:, max(0, time - window) : time]
                limited = filter_windows(params, kept)[0] if window else params.initial_MS
                errors[numbers, j, k] = (beliefs[:, time - 1] - limited).abs().sum(-1) / 2
    return estimate(errors, seed)


def linear_window_errors(
    process: LinearGaussian,
    windows: Sequence[int],
    time: int,
    *,
    start: str = "zero",
    num_samples: int = 1000,
    seed: int = 0,
) -> MonteCarloEstimate:
    """Estimate E |window mean - mean| / max(1, |mean|) for Kalman means after `time` observations, by window.

    The window mean is the Kalman mean computed from the last w observations only. Its filter starts from the mean zero
    ("zero"), or from pinv(B) @ o with the output matrix B and the window's oldest observation o ("oldest").

    Args:
        process: Linear system with a steady gain.
        windows: Window lengths w <= time; at least 1 if `start` is "oldest".
        time: Number of observations.
        start: "zero" or "oldest", see above.
        num_samples, seed: Number of sampled sequences, and random seed.
    """
    if start not in ("zero", "oldest"):
        raise InputError(f"start: must be 'zero' or 'oldest', got {start!r}")
    least = 0 if start == "zero" else 1
    good = len(windows) > 0 and least <= min(windows) <= max(windows) <= time
    require(good, "windows", f"must be one or more numbers in [{least}, {time}]", windows)
    observations = process.sample_paths(np.arange(num_samples), np.arange(time) == 0, seed, "monte-carlo").observations
    exact = kalman_filter(process, observations).means[:, -1]
    gain = steady_step(process).gain
    errors = []
    for window in windows:
        kept = observations[:, time - window :]
        mean = torch.zeros_like(exact)
        if start == "oldest":
            mean, kept = kept[:, 0] @ torch.linalg.pinv(process.output).T, kept[:, 1:]
        errors.append(_relative(_steady_mean(process, gain, mean, kept), exact))
    return estimate(torch.stack(errors, 1), seed)


def _steady_mean(process: LinearGaussian, gain: Tensor, mean: Tensor, observations: Tensor) -> Tensor:
    for t in range(observations.shape[1]):
        predicted = mean @ process.transition.T
        mean = predicted + (observations[:, t] - predicted @ process.output.T) @ gain.T
    return mean


def _relative(mean: Tensor, exact: Float64[Tensor, "sample state"]) -> Float64[Tensor, " sample"]:
    return (mean - exact).norm(dim=1) / exact.norm(dim=1).clamp_min(1)
