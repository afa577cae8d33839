"""Measure both implementations of the filter near their crossover: states in registers, and matrix products.

A fixed rule (`hmmscope.inference.loop_inputs.few`) selects one, so that digits do not depend on the machine. This
module measures the cost of the rule. Numba's variables NUMBA_CPU_NAME and NUMBA_CPU_FEATURES emulate another processor.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from bench.contest import Contest
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference import loop_inputs
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.processes.require_type import require_process_type

STATES, SEQUENCES, WORK = (24, 32, 48, 64), (1, 4, 16, 96), 4e8
#: Settings that force each implementation.
ROADS = {"registers": {"FEW_STATES": 64}, "products": {"FEW_STATES": 0, "most_side_by_side": 0}}


def contests(*, peers: bool, device: str = "cpu") -> list[Contest]:
    """Compare the selected implementation with each one; there are no peers.

    Raises:
        InputError: The device is not a processor.
    """
    if device != "cpu":
        raise InputError("device: bench roads measures the processor; use cpu")
    return [_contest(states, count) for states in STATES for count in SEQUENCES]


def _contest(states: int, count: int) -> Contest:
    hmm = require_process_type(make_process("random-hmm", num_states=states, num_symbols=16), HMM)
    length = max(64, int(WORK / states**2) // count)
    observations = ProcessDataset(hmm, length=length)[0:count].observations

    def over(changes: dict[str, int]) -> Callable[[], Any]:
        def run() -> Any:
            with patch.dict(vars(loop_inputs), changes):
                return filter_beliefs(hmm, observations)

        return run

    contest = Contest(f"filter_beliefs, {states} states, {count} x {length}", "tokens")
    contest.add("hmmscope", lambda: filter_beliefs(hmm, observations), observations.numel())
    for name, changes in ROADS.items():
        contest.add(f"hmmscope, {name}", over(changes), observations.numel())
    return contest
