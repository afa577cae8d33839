"""What processes of vectors share: how networks read their observations, and which densities say what comes next."""

from abc import abstractmethod
from typing import ClassVar

import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.process import Process


class VectorProcess(Process):
    """A process whose observations are vectors of numbers.

    Attributes:
        density: what its next observation is a mixture of, given the past: "gaussian", "poisson" or "symbols".
        num_mixture_components: of how many such laws.
        scale: centre and width of each coordinate, by which networks read and say numbers.
    """

    stored_name = "VectorProcess"

    real_valued = True
    density: ClassVar[str] = "gaussian"

    @property
    def num_mixture_components(self) -> int:
        return 1

    @property
    def scale(self) -> tuple[Float64[Tensor, "coordinate"], Float64[Tensor, "coordinate"]]:
        zeros = torch.zeros(self.num_symbols, dtype=torch.float64)
        return zeros, zeros + 1

    def standardize(
        self, observations: Float64[Tensor, "batch time coordinate"]
    ) -> Float64[Tensor, "batch time coordinate"]:
        """What a network reads: each coordinate less its centre, over its width."""
        centre_Y, width_Y = (one.to(observations.device) for one in self.scale)
        return (observations - centre_Y) / width_Y

    @abstractmethod
    def following(self, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch coordinate"]:
        """E[o_{t+1}] of an observer with these beliefs, or this mean, of state t."""


def following(process: Process, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch coordinate"]:
    """`VectorProcess.following` of a process; InputError for a kind that does not say it."""
    if not isinstance(process, VectorProcess):
        raise InputError(
            f"process: a {type(process).__name__} does not say what follows a belief; a VectorProcess does"
        )
    return process.following(beliefs)
