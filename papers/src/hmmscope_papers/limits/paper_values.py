"""Losses that [Limits] prints in Tables 3 and 4, and lower bounds at the paper's sizes (5 states and symbols, length 120).

A printed loss belongs to one random instance, so it is compared with the prediction interval for one new instance.
"""

import math
from typing import Any

import torch

from hmmscope import make_process
from hmmscope.inference import belief_floor, linear_variances
from hmmscope.lab import Effect, Tables
from hmmscope_papers.limits.trainings import PAPER_LENGTH

#: Table 3: final training loss by task and model; CT is with curriculum training.
TABLE_3: dict[str, dict[str, float]] = {
    "matmul": {
        "RNN": 2.3475e-6,
        "5 layers": 0.10927,
        "5 layers, CT": 0.09885,
        "6 layers": 0.11073,
        "6 layers, CT": 0.10999,
    },
    "cyclic-det": {
        "RNN": 2.2662e-7,
        "5 layers": 0.67059,
        "5 layers, CT": 0.76278,
        "6 layers": 0.68182,
        "6 layers, CT": 0.77835,
    },
    "cyclic-rnd": {"RNN": 3.7769e-6, "5 layers": 1.24707, "6 layers": 1.13770},
    "ran-hmm": {"RNN": 1.40139, "2 layers": 1.40107},
    "ran-lds": {"RNN": 2.58242, "2 layers": 2.61545},
}
#: Table 4: epochs, and training loss of 7 layers by task; Cyclic-RND is augmented.
TABLE_4_EPOCHS = (60, 70, 80, 90, 100, 125, 150, 175, 200)
TABLE_4: dict[str, tuple[float, ...]] = {
    "cyclic-det": (0.014, 0.006, 0.004, 0.005, 0.003),
    "cyclic-rnd": (1.506, 1.503, 1.503, 1.502, 1.503),
    "matmul": (0.1069, 0.0999, 0.0969, 0.0934, 0.0916, 0.0894, 0.0885, 0.0875, 0.0870),
}
#: Trajectories of a batch of the paper's RNN.
_BATCH = 256


def paper_floors(
    tasks: list[str], seed: int, *, num_samples: int, backward: list[float], instances: int = 1
) -> list[dict]:
    """Compute lower bounds of the loss, averaged over positions 1 .. 120, for several instances of each process.

    Args:
        tasks: Some of "cyclic-rnd" (adds its variants "augmented" and "first action hidden"), "ran-hmm" and "ran-lds".
        seed: Instance i has the seed `seed * instances + i`.
        num_samples: Number of sequences.
        backward: Backward probabilities of Cyclic-RND.
        instances: Number of instances, at least 1.

    Returns:
        Rows ``instance``, ``task``, ``backward``, ``value`` (lower bound), ``low``, ``high`` (interval),
            ``batch_deviation`` (standard deviation of a mean loss of 256 trajectories), ``samples`` (0 if exact).
    """
    numbers = range(seed * instances, (seed + 1) * instances)
    return [{"instance": one} | row for one in numbers for row in _floors(tasks, one, num_samples, backward)]


def _floors(tasks: list[str], seed: int, num_samples: int, backward: list[float]) -> list[dict]:
    rows: list[dict] = []
    if "cyclic-rnd" in tasks:
        rows += [_belief("cyclic-rnd", {"backward_probability": b, "seed": seed}, b, num_samples) for b in backward]
        augmented = {"backward_probability": 0.01, "augmented": True, "seed": seed}
        rows.append(_belief("cyclic-rnd, augmented", augmented, 0.01, num_samples))
        rows.append(_first_hidden(seed, num_samples))
    if "ran-hmm" in tasks:
        rows.append(_belief("ran-hmm", {"seed": seed}, None, num_samples))
    if "ran-lds" in tasks:
        process = make_process("ran-lds", seed=seed)
        variances = linear_variances(process, PAPER_LENGTH)
        floor, squares = float(variances.mean()), float(variances.square().sum())
        deviation = math.sqrt(2 * squares / process.num_symbols / _BATCH) / PAPER_LENGTH
        ends: dict[str, Any] = {"value": floor, "low": floor, "high": floor}
        rows.append({"task": "ran-lds", "backward": None, **ends, "batch_deviation": deviation, "samples": 0})
    return rows


def _first_hidden(seed: int, num_samples: int) -> dict:
    process: Any = make_process("cyclic-rnd", seed=seed)
    law_S = process.initial @ process.labelled.sum(0)
    later = process.with_initial(law_S)
    found = belief_floor(later, PAPER_LENGTH - 1, num_samples=num_samples, seed=seed)
    first = float(torch.special.entr(law_S).sum())
    ends = {
        key: (first + (PAPER_LENGTH - 1) * float(number)) / PAPER_LENGTH
        for key, number in (("value", found.mean), ("low", found.low), ("high", found.high))
    }
    row = {"task": "cyclic-rnd, first action hidden", "backward": 0.01, **ends}
    return row | {"batch_deviation": None, "samples": num_samples}


def _belief(task: str, fields: dict[str, Any], backward: float | None, num_samples: int) -> dict:
    name = task.partition(",")[0]
    process: Any = make_process(name, **fields)
    found = belief_floor(process, PAPER_LENGTH, num_samples=num_samples, seed=fields["seed"])
    numbers = {"value": float(found.mean), "low": float(found.low), "high": float(found.high)}
    return {"task": task, "backward": backward, **numbers, "batch_deviation": None, "samples": num_samples}


def floors(tables: Tables, task: str, backward: float | None = None) -> list[float]:
    """Return the lower bounds of a task at the paper's sizes, one for each instance."""
    return [row["value"] for row in tables["paper-floors"].where(task=task, backward=backward)]


#: An epoch's mean covers positions 0 .. 120, of which the first is known, and divides by 120 or by 121: Eq. (C.1) sums 121
#: terms. Dividing by 121 gives the smaller bound.
LEAST_SHARE = PAPER_LENGTH / (PAPER_LENGTH + 1)


def printed_gap(tables: Tables, task: str, printed: float, backward: float | None = None) -> Effect | None:
    """Return a printed loss minus the smallest possible loss on one new instance; None without lower bounds."""
    found = floors(tables, task, backward)
    gaps = [printed - LEAST_SHARE * floor for floor in found]
    return Effect.predicted(gaps, "printed loss minus the smallest possible loss") if found else None


def said_floor(tables: Tables, task: str, backward: float | None = None) -> str:
    found = floors(tables, task, backward)
    return f"{Effect.predicted(found).short()} ({len(found)} instances)" if found else "not measured"
