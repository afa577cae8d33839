"""HMMs composed of a cycle and an emission matrix; some pools contain cycles, matrices or pairs unseen in training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.kernels.random_arrays import random_permutations
from hmmscope.processes.aliased_cycles import NoisyCyclesSpec, mostly
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.params import StateEmissionParams
from hmmscope.processes.process import PriorProcess
from hmmscope.schema import parse_spec, require, spec_to_data
from hmmscope.seeds import philox_key

#: Offsets of cycle and emission numbers, in multiples of K: 0 for those of the training pool, 1 for new ones.
_NEW = {"new-cycles": (1, 0), "new-emissions": (0, 1), "new": (1, 1)}


class ComposedCycles(Mixture):
    """A mixture of equally likely HMMs, each composed of a cycle and an emission matrix.

    Attributes:
        pairs_M: numbers of the cycle and the emission matrix of each component (component, 2).
        spec: the pool's `ComposedCyclesSpec`.
    """

    stored_name = "ComposedCycles"

    file_format = "hmmscope-composed-cycles"
    file_arrays = ()
    file_fields = ("spec",)

    pairs_M: Int64[Tensor, "component 2"]
    spec: "ComposedCyclesSpec"

    def file_tensors(self) -> dict[str, Tensor]:
        return {}

    def file_texts(self) -> dict[str, Any]:
        return {"spec": spec_to_data(self.spec)}

    @classmethod
    def from_file(cls, data: Mapping[str, Any], *, allow_drop_tiny: bool = False) -> "ComposedCycles":
        spec: ComposedCyclesSpec = parse_spec(ComposedCyclesSpec, data.get("spec", {}), "spec")
        return spec.build()

    @cached_property
    def prior(self) -> PriorProcess | None:  # type: ignore[override]
        """Prior over all pairs of a cycle and an emission matrix if this pool is "held-out", else None."""
        if self.spec.pool != "held-out":
            return None
        everything = replace(self.spec, pool="all").build()
        return PriorProcess(everything, len(self) / len(everything))


@registry.process("composed-cycles")
@dataclass(frozen=True, kw_only=True)
class ComposedCyclesSpec(NoisyCyclesSpec):
    """A pool of equally likely HMMs, chosen from the K^2 pairs of K noisy cycles and K balanced emission matrices.

    In a balanced matrix each of V symbols is the most likely in S/V random states. Cycle a depends on (seed, a)
    only, emission matrix b on (seed, b), and the split into training and held-out pairs on (seed, K).

    Attributes:
        num_parts: number K of cycles, and of emission matrices.
        pool: "train" (a random half of the K^2 pairs), "held-out" (the other half), "all" (all pairs), or K^2 pairs
            with new cycles ("new-cycles"), new emission matrices ("new-emissions") or new cycles and matrices ("new").

    Source: this project.
    """

    num_parts: int = 32
    pool: Literal["train", "held-out", "all", "new-cycles", "new-emissions", "new"] = "train"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(2 <= self.num_parts <= 256, "num_parts", "must be in [2, 256]", self.num_parts)

    def pairs(self) -> Int64[Tensor, "component 2"]:
        size = self.num_parts
        grid_M = np.arange(size**2)
        if self.pool in ("train", "held-out"):
            order = random_permutations(philox_key(self.seed, "pairs"), np.array([size]), 1, size**2)[0, 0]
            half = size**2 // 2
            grid_M = np.sort(order[:half] if self.pool == "train" else order[half:])
        cycle, emission = _NEW.get(self.pool, (0, 0))
        return torch.from_numpy(np.stack([grid_M // size + cycle * size, grid_M % size + emission * size], 1))

    def emissions(self, numbers: NDArray[np.int64]) -> Float64[Tensor, "emission state symbol"]:
        order = random_permutations(philox_key(self.seed, "emission"), numbers, 1, self.num_states)[:, 0]
        shown = np.empty_like(order)
        np.put_along_axis(shown, order, np.broadcast_to(np.arange(self.num_states) % self.num_symbols, order.shape), 1)
        return mostly(torch.from_numpy(shown), self.num_symbols, self.show)

    def build(self) -> ComposedCycles:
        pairs_M = self.pairs()
        self.require_room(len(pairs_M))
        cycles, cycle_M = pairs_M[:, 0].unique(return_inverse=True)
        emissions, emission_M = pairs_M[:, 1].unique(return_inverse=True)
        params = StateEmissionParams(
            self.initial(len(pairs_M)),
            self.transitions(cycles.numpy())[cycle_M],
            self.emissions(emissions.numpy())[emission_M],
        )
        pool = ComposedCycles.from_law(np.full(len(pairs_M), 1 / len(pairs_M)), params)
        assert isinstance(pool, ComposedCycles)
        pool.pairs_M, pool.spec = pairs_M, self
        return pool
