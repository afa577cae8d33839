"""A mixture of Mess3 processes that differ in speed and noise."""

from dataclasses import dataclass

import numpy as np

from hmmscope import registry
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.textbook import Mess3Spec
from hmmscope.schema import require
from hmmscope.seeds import check_seed, numpy_generator


@registry.process("mess3-mixture")
@dataclass(frozen=True, kw_only=True)
class Mess3MixtureSpec:
    """A mixture of equally likely `mess3` processes; `switch` and `emission` of component m depend on (seed, m) only.

    switch ~ uniform on [least_switch, most_switch],  emission ~ uniform on [least_emission, most_emission]

    The symbol of state i is i in all components, so components' beliefs are comparable.

    Source: see `Mess3Spec`.
    """

    num_components: int = 8
    least_switch: float = 0.02
    most_switch: float = 0.25
    least_emission: float = 0.5
    most_emission: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        require(1 <= self.num_components <= 65536, "num_components", "must be in [1, 65536]", self.num_components)
        for name, most in (("switch", 0.5), ("emission", 1.0)):
            low, high = getattr(self, f"least_{name}"), getattr(self, f"most_{name}")
            require(low > 0, f"least_{name}", "must be positive", low)
            require(low <= high, f"least_{name}", f"must be at most most_{name} = {high}", low)
            require(high <= most, f"most_{name}", f"must be at most {most:g}", high)

    def build(self) -> Mixture:
        components = [self._component(m) for m in range(self.num_components)]
        return Mixture(np.full(self.num_components, 1 / self.num_components), components)

    def _component(self, number: int) -> LabelledHMM:
        rng = numpy_generator(self.seed, "mess3-mixture", number)
        switch = rng.uniform(self.least_switch, self.most_switch)
        return Mess3Spec(switch=switch, emission=rng.uniform(self.least_emission, self.most_emission)).build()
