"""Cyclic-DET: an automaton of cycles."""

from dataclasses import dataclass

from hmmscope import registry
from hmmscope.processes.cycles import CyclesSpec, driven, permutation_matrices
from hmmscope.processes.labelled import LabelledHMM


@registry.process("cyclic-det")
@dataclass(frozen=True, kw_only=True)
class CyclicDetSpec(CyclesSpec):
    """Symbols are uniform random actions; each action moves the state along its random cycle through all states.

    state_t = cycle[symbol_t][state_{t-1}], from state 0

    Five random cycles of five states generate A_5, whose word problem is complete for NC1, with probability 0.9992.

    Source: [Limits] §2.2 and Appendix C (Cyclic-DET).
    """

    def build(self) -> LabelledHMM:
        return driven(
            permutation_matrices(self.cycles()),
            symbols=self.actions,
            states=[f"s{s}" for s in range(self.num_states)],
            title=f"Cyclic-DET, {self.num_states} states, {self.num_symbols} actions",
            source="[Limits], Cyclic-DET",
        )
