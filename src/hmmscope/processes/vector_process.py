"""The base class of real-valued processes."""

from abc import abstractmethod

import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.processes.process import Process


class VectorProcess(Process):
    """A process with real vectors as observations.

    Attributes:
        density: mixture components of predicted densities: "gaussian", "poisson", (categorical) "symbols" or "mixed".
        sizes: numbers of symbols of those coordinates that are symbols, the last ones.
        num_mixture_components: number of these components.
        scale: centre and width that standardize each coordinate.
        least_variances: lower bound of a network's predicted variance of each standardized coordinate.
    """

    stored_name = "VectorProcess"

    real_valued = True
    density: str = "gaussian"
    sizes: Int64[Tensor, " channel"] = torch.zeros(0, dtype=torch.int64)

    @property
    def num_mixture_components(self) -> int:
        return 1

    @property
    def scale(self) -> tuple[Float64[Tensor, " coordinate"], Float64[Tensor, " coordinate"]]:
        zeros = torch.zeros(self.num_symbols, dtype=torch.float64)
        return zeros, zeros + 1

    @property
    def least_variances(self) -> Float64[Tensor, " coordinate"]:
        return torch.zeros(self.num_symbols, dtype=torch.float64)

    def standardize(
        self, observations: Float64[Tensor, "batch time coordinate"]
    ) -> Float64[Tensor, "batch time coordinate"]:
        centre_Y, width_Y = (one.to(observations.device) for one in self.scale)
        return (observations - centre_Y) / width_Y

    @abstractmethod
    def following(self, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch coordinate"]:
        """Return E[o_{t+1}] given the belief about state t or, if states are vectors, given their mean."""


def following(process: Process, beliefs: Float64[Tensor, "*batch state"]) -> Float64[Tensor, "*batch coordinate"]:
    """Return `VectorProcess.following` of a process; raise InputError if it has none."""
    if not isinstance(process, VectorProcess):
        raise InputError(f"process: {type(process).__name__} has no predictions from beliefs; pass a VectorProcess")
    return process.following(beliefs)
