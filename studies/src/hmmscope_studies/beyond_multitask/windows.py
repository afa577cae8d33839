"""Models that see a few observations of one HMM, compared with exact predictions.

Let P be the distribution of the next observation given the whole past, P_k given the last k observations, and Q a
model's prediction from these k observations. In expectation over histories:

    E KL(P || Q)  =  E KL(P || P_k)  +  E KL(P_k || Q)
    excess           memory             learning
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from hmmscope import HMM, Run, require_process_type, stationary_distribution
from hmmscope.analysis import Histories, mean_row, model_probs
from hmmscope.inference import fit_decay
from hmmscope.lab import Numbers, Role, Rows, parameter

#: Observations before the longest window, enough for the filter to forget its start.
PAST = 40
#: Names and roles of the predictors.
LOOKS: dict[str, tuple[str, Role]] = {
    "memory": ("best from k observations", "optimum"),
    "model": ("model", "model"),
    "stationary": ("nothing seen", "baseline"),
    "untrained": ("model before training", "control"),
}
#: Memory errors (total variation) below this are rounding.
_ROUNDING = 1e-9


def histories_of(run: Run, longest: int, num_samples: int) -> Histories:
    return Histories.sampled(require_process_type(run.process, HMM), PAST + longest, num_samples, run.config.seed)


def window_rows(run: Run, histories: Histories, memory: int) -> list[dict[str, Any]]:
    """Return errors of a run that sees `memory` observations: (memory, predictor, metric, value, low, high, samples).

    ``excess`` (nats) and ``total_variation`` compare with the exact prediction from the whole past; ``learning``
    compares with the exact prediction from `memory` observations.
    """
    law, size, last = histories.law, histories.next_observation.shape[1], slice(-1, None)
    windows = histories.observations[:, -memory:]
    exact_NV = histories.next_observation
    best_NV = histories.remembered(memory)[1]
    alone_NV = (stationary_distribution(run.process) @ law.symbols()[0]).expand_as(exact_NV)
    laws = {
        "model": model_probs(run.model, windows, size, last, at_once=4096)[:, 0],
        "memory": best_NV,
        "untrained": model_probs(run.untrained(), windows, size, last, at_once=4096)[:, 0],
        "stationary": alone_NV,
    }
    rows = []
    for predictor, law_NV in laws.items():
        metrics = {"excess": divergence(exact_NV, law_NV), "total_variation": (exact_NV - law_NV).abs().sum(1) / 2}
        if predictor in ("model", "untrained"):
            metrics["learning"] = divergence(best_NV, law_NV)
        for metric, values in metrics.items():
            rows.append({"memory": memory, "predictor": predictor, "metric": metric} | mean_row(values.numpy()))
    return rows


def divergence(
    one: Float64[Tensor, "history symbol"], other: Float64[Tensor, "history symbol"]
) -> Float64[Tensor, " history"]:
    return (torch.special.xlogy(one, one) - torch.special.xlogy(one, other)).sum(1)


def exact_rate(histories: Histories, hmm: HMM, lengths: list[int]) -> dict[str, Any]:
    """Return the decay rate of the exact memory error, and the mixing rate of the hidden chain.

    Returns:
        ``rate``: -d ln(E TV(P, P_k)) / dk, nats per observation; None unless two errors exceed rounding.
        ``mixing``: -ln |λ| for the second eigenvalue λ of the transition matrix.
    """
    errors = [float(histories.distances(length).prediction.mean()) for length in lengths]
    used = [(length, error) for length, error in zip(lengths, errors, strict=True) if error > _ROUNDING]
    rate = fit_decay(*zip(*used, strict=True), first=used[0][0]).rate if len(used) >= 2 else None
    eigenvalues = np.sort(np.abs(np.linalg.eigvals(hmm.transition.numpy())))
    mixing = -math.log(max(eigenvalues[-2], 1e-300)) if len(eigenvalues) > 1 else None
    return {"rate": rate, "mixing": mixing}


# ---------------------------------------------------------------------------------------------------------------------
# Facts from the errors of one seed


def by_memory(rows: Rows, predictor: str, metric: str) -> dict[int, float]:
    return {row["memory"]: row["value"] for row in rows.where(predictor=predictor, metric=metric)}


def decay_rate(errors: Mapping[int, float], numbers: Numbers = None) -> float | None:
    """Return -d ln(error) / dk; None with fewer than two errors above rounding."""
    points = {
        float(k): math.log(error) for k, error in errors.items() if error > parameter(numbers, "rounding", _ROUNDING)
    }
    return -fitted_line(points)[0] if len(points) > 1 else None


def exponential_rather(errors: Mapping[int, float], numbers: Numbers = None) -> float | None:
    """Return the RMS residual of ln(error) for a power law minus that for an exponential; None for under 3 errors."""
    points = {
        float(k): math.log(error) for k, error in errors.items() if error > parameter(numbers, "rounding", _ROUNDING)
    }
    if len(points) < 3:
        return None
    return fitted_line({math.log(k): y for k, y in points.items()})[1] - fitted_line(points)[1]


def fitted_line(points: Mapping[float, float]) -> tuple[float, float]:
    x, y = np.array(list(points)), np.array(list(points.values()))
    slope, start = np.polyfit(x, y, 1)
    return float(slope), float(np.sqrt(np.mean((y - start - slope * x) ** 2)))
