"""Expectation and maximization steps of HMMs with vector emissions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Bool, Float64, Int64, Tensor, Vectors
from hmmscope.emissions.chain import count_rows
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.states import StateCounts
from hmmscope.inference.constraints import RowConstraints
from hmmscope.inference.em import PARTS, require_possible
from hmmscope.inference.free_parameters import num_free
from hmmscope.reprs import Shown


@dataclass(frozen=True, repr=False)
class EmissionSteps(Shown):
    rows: Vectors
    lengths: Int64[Tensor, " sequence"]
    min_variance: Float64[Tensor, " coordinate"]
    pseudo_count: float
    fixed: frozenset[str]
    positive: dict[str, Tensor]
    weights: NDArray[np.float64] | None
    allowed: Bool[Tensor, "row state"] | None
    constraints: Mapping[str, RowConstraints]

    @property
    def num_steps(self) -> float:
        return self.total(self.lengths)

    def counts(self, model: EmissionHMM) -> tuple[StateCounts, float]:
        logs = model.log_likelihoods(self.rows)
        logs = logs if self.allowed is None else logs.masked_fill(~self.allowed, -torch.inf)
        counts = count_rows(model.chain, logs, self.lengths, self.weights)
        require_possible(counts.log_likelihood.numpy(), np.arange(len(self.lengths)))
        return counts, self.total(counts.log_likelihood)

    def total(self, values: Tensor) -> float:
        return float(values.sum() if self.weights is None else values.double() @ torch.from_numpy(self.weights))

    def maximise(self, model: EmissionHMM, counts: StateCounts) -> EmissionHMM:
        found: dict[str, Any] = {}
        for part, before, count in (
            ("initial", model.initial, counts.initial),
            ("transition", model.transition, counts.transitions),
        ):
            if part in self.constraints:
                own = self.constraints[part].maximise(count.numpy(), self.pseudo_count, before.numpy())
                found[part] = torch.from_numpy(own)
            elif part not in self.fixed:
                weight = (count + self.pseudo_count).where(before > 0, 0.0)
                total = weight.sum(-1, keepdim=True)
                found[part] = torch.where(total > 0, weight / total.where(total > 0, 1.0), before)
        if "emission" not in self.fixed:
            found |= model.m_step(self.rows, counts.occupancy, self.min_variance)
        return model.replaced(**found)

    def log_prior(self, model: EmissionHMM) -> float:
        free = [
            law
            for part, law in (("initial", model.initial), ("transition", model.transition))
            if part not in self.fixed and part not in self.constraints
        ]
        logs = [float(law[law > 0].log().sum()) for law in free]
        logs += [own.log_prior(getattr(model, part).numpy()) for part, own in self.constraints.items()]
        return self.pseudo_count * sum(logs) if self.pseudo_count else 0.0

    def constrained(self, model: EmissionHMM) -> EmissionHMM:
        own = {part: one.maximise(getattr(model, part).numpy()) for part, one in self.constraints.items()}
        return model.replaced(**own) if own else model

    def row_constraints(self, model: EmissionHMM) -> dict[str, RowConstraints]:
        found = dict(self.constraints)
        for part in PARTS[:2]:
            rows, allowed = getattr(model, part), self.positive.get(part)
            if part in self.fixed:
                found[part] = RowConstraints.of(part, rows, tuple(rows.shape))
            elif part not in found and allowed is not None and not bool(allowed.all()):
                found[part] = RowConstraints.of(part, allowed, tuple(rows.shape))
        return found

    def num_free(self, model: EmissionHMM) -> dict[str, int]:
        whole = {"initial": torch.ones_like(model.initial), "transition": torch.ones_like(model.transition)}
        found = {part: num_free(self.positive.get(part, own).numpy()) for part, own in whole.items()}
        found["emission"] = sum(model.num_free(self.positive).values())
        found |= {part: own.num_free for part, own in self.constraints.items()}
        return {part: 0 if part in self.fixed else found[part] for part in PARTS}

    def seen(self) -> dict[str, float]:
        count, seen = self.total(torch.ones(len(self.lengths))), (~self.rows.isnan()).any(1)
        num_seen = self.total(torch.stack([part.sum() for part in seen.split(self.lengths.tolist())]))
        return dict(zip(PARTS, (count, self.num_steps - count, num_seen), strict=True))


def zeros_by_part(positive: Mapping[str, Tensor]) -> dict[str, int]:
    found = dict.fromkeys(PARTS, 0)
    for name, allowed in positive.items():
        found[name if name in PARTS else "emission"] += int((~allowed).sum())
    return found
