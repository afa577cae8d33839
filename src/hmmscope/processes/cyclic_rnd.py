"""Cyclic-RND: cycles with occasional backward steps."""

from dataclasses import dataclass

from hmmscope import registry
from hmmscope.processes.cycles import CyclesSpec, driven, permutation_matrices
from hmmscope.processes.driven_as_hmm import augment
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.schema import require


@registry.process("cyclic-rnd")
@dataclass(frozen=True, kw_only=True)
class CyclicRndSpec(CyclesSpec):
    """`cyclic-det` with noise: with probability `backward_probability` the state steps backward on the cycle.

    kernel[a] = (1 - backward_probability) * cycle[a] + backward_probability * inverse cycle[a]

    Symbols are independent of the state and kernels are doubly stochastic, so the belief's entropy never decreases.

    Attributes:
        backward_probability: probability of a backward step, 0.01 in [Limits], and 0.03 to 0.15 in its Table 1.
        augmented: True for hidden states that are pairs (state, last action), numbered action * num_states + state.

    Source: [Limits] §2.2 and Appendix C (Cyclic-RND).
    """

    backward_probability: float = 0.01
    augmented: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.backward_probability <= 1, "backward_probability", "must be in [0, 1]", self.backward_probability
        )

    def build(self) -> LabelledHMM | HMM:
        forward_ASS = permutation_matrices(self.cycles())
        slip = self.backward_probability
        process = driven(
            (1 - slip) * forward_ASS + slip * forward_ASS.transpose(1, 2),
            symbols=self.actions,
            states=[f"s{s}" for s in range(self.num_states)],
            title=f"Cyclic-RND, {self.num_states} states, {self.num_symbols} actions, backward {slip:g}",
            source="[Limits], Cyclic-RND",
        )
        return augment(process) if self.augmented else process
