"""Cyclic-HARD: the state must be predicted only occasionally."""

from dataclasses import dataclass

import torch

from hmmscope import registry
from hmmscope.processes.cycles import CyclesSpec, permutation_matrices
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.schema import require


@registry.process("cyclic-hard")
@dataclass(frozen=True, kw_only=True)
class CyclicHardSpec(CyclesSpec):
    """The process `cyclic-det` with rare queries: the symbol after `*` names the state.

    stage 0: with probability prediction_rate the symbol `*`, then stage 1; else a uniform random action, then stage 0;
    stage 1: the name of the state, then stage 2;
    stage 2: a uniform random action, then stage 0

    Symbols are the actions, then `*`, then the state names. Hidden state (s, stage) has number stage * num_states + s.

    Attributes:
        prediction_rate: probability of `*` in stage 0; 1 / (sequence length) in [Limits].

    Source: [Limits] §2.2, Appendices B and C (Cyclic-HARD); where they differ, Appendix B.
    """

    prediction_rate: float = 1 / 120

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.prediction_rate <= 1, "prediction_rate", "must be in (0, 1]", self.prediction_rate)
        edges = (self.num_symbols + 1 + self.num_states) * 3 * self.num_states
        require(edges <= 65536, "num_states", "must give at most 65536 pairs (symbol, hidden state)", edges)

    def build(self) -> LabelledHMM:
        size, num_actions = self.num_states, self.num_symbols
        asking, told = slice(size, 2 * size), slice(2 * size, 3 * size)
        labelled = torch.zeros(num_actions + 1 + size, 3 * size, 3 * size, dtype=torch.float64)
        moves_ASS = permutation_matrices(self.cycles()) / num_actions
        labelled[:num_actions, :size, :size] = (1 - self.prediction_rate) * moves_ASS
        labelled[:num_actions, told, :size] = moves_ASS
        labelled[num_actions, :size, asking] = self.prediction_rate * torch.eye(size, dtype=torch.float64)
        for state in range(size):
            labelled[num_actions + 1 + state, size + state, 2 * size + state] = 1
        process = LabelledHMM(
            torch.eye(3 * size, dtype=torch.float64)[0],
            labelled,
            symbols=(*self.actions, "*", *(f"s{s}" for s in range(size))),
            states=[f"s{s}{suffix}" for suffix in ("", ",asked", ",told") for s in range(size)],
            title=f"Cyclic-HARD, {size} states, {num_actions} actions, questions at rate {self.prediction_rate:g}",
            source="[Limits], Cyclic-HARD",
        )
        process.evaluated_after = num_actions
        return process
