"""Floors of the losses of [Limits] at the paper's sizes: 5 states, 5 symbols, 120 observations."""

import math
from typing import Any

import torch

from hmmscope import registry
from hmmscope.experiments.limits_models import PAPER_LENGTH
from hmmscope.inference.floors import belief_floor, linear_floor, linear_variances
from hmmscope.processes.labelled import LabelledHMM

#: Trajectories of a batch of the paper's RNN.
_BATCH = 256


def paper_floors(tasks: list[str], seed: int, *, num_samples: int, backward: list[float]) -> list[dict]:
    """The least possible losses, averaged over positions 1 .. 120.

    Args:
        tasks: of "cyclic-rnd" (its augmented form too, and with the first action hidden), "ran-hmm" and "ran-lds"; the
            floors of Cyclic-DET and MatMul are 0.
        seed: of the instance and the sequences.
        num_samples: sequences.
        backward: backward probabilities of Cyclic-RND.

    Returns:
        Rows ``task``, ``backward`` (None but for Cyclic-RND), ``value``, ``low``, ``high``, ``batch_deviation`` (of a mean
        over a batch of 256 trajectories; known for RanLDS only, otherwise None), ``samples`` (0 if exact).
    """
    rows: list[dict] = []
    if "cyclic-rnd" in tasks:
        rows += [_belief("cyclic-rnd", {"backward_probability": b, "seed": seed}, b, num_samples) for b in backward]
        augmented = {"backward_probability": 0.01, "augmented": True, "seed": seed}
        rows.append(_belief("cyclic-rnd, augmented", augmented, 0.01, num_samples))
        rows.append(_first_hidden(seed, num_samples))
    if "ran-hmm" in tasks:
        rows.append(_belief("ran-hmm", {"seed": seed}, None, num_samples))
    if "ran-lds" in tasks:
        process = registry.build_spec("process", {"name": "ran-lds", "seed": seed}, "process").build()
        floor = linear_floor(process, PAPER_LENGTH)
        squares = float(linear_variances(process, PAPER_LENGTH).square().sum())
        deviation = math.sqrt(2 * squares / process.num_symbols / _BATCH) / PAPER_LENGTH
        ends: dict[str, Any] = {"value": floor, "low": floor, "high": floor}
        rows.append({"task": "ran-lds", "backward": None, **ends, "batch_deviation": deviation, "samples": 0})
    return rows


def _first_hidden(seed: int, num_samples: int) -> dict:
    """Of Cyclic-RND as Prop. A.1 prints it: an action acts one step after it is seen, and that of step 0 is not seen."""
    process = registry.build_spec("process", {"name": "cyclic-rnd", "seed": seed}, "process").build()
    law_S = process.initial_S @ process.labelled_VSS.sum(0)
    later = LabelledHMM(law_S, process.labelled_VSS)
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
    process = registry.build_spec("process", {"name": name, **fields}, "process").build()
    found = belief_floor(process, PAPER_LENGTH, num_samples=num_samples, seed=fields["seed"])
    numbers = {"value": float(found.mean), "low": float(found.low), "high": float(found.high)}
    return {"task": task, "backward": backward, **numbers, "batch_deviation": None, "samples": num_samples}
