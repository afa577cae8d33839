"""How much is lost by forgetting all but the last few observations: exactly, by sampling, and at worst."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.memory import all_sequences, filter_windows, memory_beliefs, memory_table
from hmmscope.inference.stationary import emitting_steps, stationary_distribution
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.laws import Law, StateEmitting, symbol_law
from hmmscope.schema import require


@dataclass(frozen=True)
class MemoryError_:
    """Expected distance of the finite-memory prediction from the exact one, after `time` observations.

    Attributes:
        total_variation: E 1/2 ||P(. | o_0..o_{t-1}) - P_L(. | last L)||_1, in [0, 1].
        squared: E ||P - P_L||^2, the Euclidean norm.
        low, high: 95 % interval of `total_variation`; equal to it if exact.
        exact: by enumeration, or by sampling.
    """

    total_variation: float
    squared: float
    low: float
    high: float
    exact: bool
