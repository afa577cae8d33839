"""The random HMM of [Limits]."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hmmscope import registry
from hmmscope.kernels.random_arrays import dirichlet_rows, standard_normals, uniforms
from hmmscope.processes.hmm import HMM
from hmmscope.schema import require
from hmmscope.seeds import check_seed, philox_key


@registry.process("ran-hmm")
@dataclass(frozen=True, kw_only=True)
class RanHMMSpec:
    """A random HMM that starts in state 0 and moves before it emits.

    transition[i] and emission[i] ~ law, independently for each i;  initial = transition[0]

    State t and observation t are called s_{t+1} and o_{t+1} in [Limits].

    Source: [Limits] §2.1 and Appendix C (RanHMM), which does not state the row distribution.

    Attributes:
        num_states, num_symbols: numbers of states and symbols, n and m in [Limits].
        law: distribution of the rows: "dirichlet" (uniform over stochastic rows), "softmax" (of N(0, 1) numbers) or
            "uniform" (normalized U(0, 1) numbers).
        seed: seed of the rows.
    """

    num_states: int = 5
    num_symbols: int = 5
    law: Literal["dirichlet", "softmax", "uniform"] = "dirichlet"
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for field in ("num_states", "num_symbols"):
            require(1 <= getattr(self, field) <= 4096, field, "must be in [1, 4096]", getattr(self, field))
        known = ("dirichlet", "softmax", "uniform")
        require(self.law in known, "law", f"must be one of {', '.join(known)}", self.law)

    def rows(self, purpose: str, num_columns: int) -> np.ndarray:
        key, number = philox_key(self.seed, purpose), np.array([0])
        if self.law == "dirichlet":
            return dirichlet_rows(key, number, self.num_states, num_columns, 1.0)[0]
        if self.law == "softmax":
            rows = np.exp(standard_normals(key, number, self.num_states, num_columns)[0])
        else:
            rows = uniforms(key, number, self.num_states, num_columns)[0]
        return rows / rows.sum(1, keepdims=True)

    def build(self) -> HMM:
        transition = self.rows("transition", self.num_states)
        emission = self.rows("emission", self.num_symbols)
        title, source = f"random HMM ({self.law} rows) from state 0", "[Limits], RanHMM"
        return HMM(transition[0], transition, emission, title=title, source=source, allow_drop_tiny=True)
