"""Cyclic-DET: an automaton of cycles."""

from dataclasses import dataclass

from hmmscope import registry
from hmmscope.processes.cycles import CyclesSpec, driven, permutation_matrices
from hmmscope.processes.labelled import LabelledHMM


@registry.process("cyclic-det")
@dataclass(frozen=True, kw_only=True)
class CyclicDetSpec(CyclesSpec):
    """A random cycle through all states for each action; uniform actions are the symbols.

    state_t = cycle[symbol_t][state_{t-1}], from state 0

    The cycles of five states almost surely generate the group A_5, whose word problem is complete for NC1; cycles of up
    to four states generate solvable groups.

    Source: [Limits] §2.2 and App. C (Cyclic-DET).
    """

    def build(self) -> LabelledHMM:
        return driven(
            permutation_matrices(self.cycles()),
            symbols=self.actions,
            states=[f"s{s}" for s in range(self.num_states)],
            title=f"Cyclic-DET, {self.num_states} states, {self.num_symbols} actions",
            source="[Limits], Cyclic-DET",
        )
