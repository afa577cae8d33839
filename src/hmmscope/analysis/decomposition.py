"""Decomposition of the error of linear predictions from the last few observations.

For a stationary process, let x be the one-hot window of the last L observations, and W a weight matrix estimated from
other sequences. Then

    E||P - W x||^2  =  E||P - P_L||^2  +  E||P_L - W_L x||^2  +  E||W_L x - W x||^2
    total              memory             misspecification       estimation

where P is the exact prediction from the whole past, P_L the best prediction from the window, and W_L x the best linear
prediction from the window.

Source: [MultiTask] Eq. (1) and (4), for zero misspecification (P_L = W_L x).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.inference.linear_memory import LinearPredictor, linear_predictor
from hmmscope.inference.memory import all_sequences, filter_windows, memory_table, with_prior
from hmmscope.inference.stationary_process import stationary_distribution
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.params import HMMParams, symbol_probs
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count

# Histories


@dataclass(frozen=True, repr=False)
class Histories(Shown):
    """Observation histories of a stationary process, with the exact belief and prediction after each.

    Attributes:
        observations: symbols (history, time), the oldest first.
        probability: weight of each history (history,); weights sum to one.
        beliefs: P(last state | history) (history, state).
        next_observation: P(next observation | history) (history, symbol).
        law: parameters of the process, started from its stationary distribution.
        exact: True if all histories are enumerated.
    """

    observations: Int64[Tensor, "history time"]
    probability: Float64[Tensor, " history"]
    beliefs: Float64[Tensor, "history state"]
    next_observation: Float64[Tensor, "history symbol"]
    law: HMMParams
    exact: bool

    @classmethod
    def all(cls, hmm: HMM | LabelledHMM, time: int) -> "Histories":
        """Enumerate histories of `time` observations with positive stationary probability.

        Raises:
            InputError: there are more than `MAX_ENUMERATED` sequences, or the stationary distribution is not unique.
        """
        require_count("time", time)
        params = with_prior(hmm)
        sequences = all_sequences(hmm.num_symbols, time)
        beliefs, following, log_probability = filter_windows(params, sequences)
        possible = log_probability > -torch.inf
        next_observation = following[possible] @ symbol_probs(params)[0]
        probability = log_probability[possible].exp()
        return cls(sequences[possible], probability, beliefs[possible], next_observation, params, exact=True)

    @classmethod
    def sampled(cls, hmm: HMM | LabelledHMM, time: int, num_samples: int, seed: int = 0) -> "Histories":
        """Sample histories, with equal weights."""
        require_count("time", time)
        require_count("num_samples", num_samples)
        params, starts = with_prior(hmm), np.arange(time) == 0
        paths = stationary_start(hmm).sample_paths(np.arange(num_samples), starts, seed, "monte-carlo")
        beliefs, following, _ = filter_windows(params, paths.observations)
        probability = torch.full((num_samples,), 1 / num_samples, dtype=torch.float64)
        return cls(paths.observations, probability, beliefs, following @ symbol_probs(params)[0], params, exact=False)

    def windows(self, memory_length: int) -> Int64[Tensor, " history"]:
        """Return the lexicographic index of each history's last `memory_length` observations."""
        num_symbols, time = self.next_observation.shape[1], self.observations.shape[1]
        require(1 <= memory_length <= time, "memory_length", f"must be in [1, {time}]", memory_length)
        place = num_symbols ** torch.arange(memory_length - 1, -1, -1)
        return (self.observations[:, time - memory_length :] * place).sum(1)

    def mean(self, values: Float64[Tensor, " history"]) -> float:
        return float(self.probability @ values)

    def remembered(
        self, memory_length: int
    ) -> tuple[Float64[Tensor, "history state"], Float64[Tensor, "history symbol"]]:
        """Return P(last state | w) and P(next observation | w) for each history's last `memory_length` symbols w."""
        windows_H = self.windows(memory_length)
        num_symbols, time = self.next_observation.shape[1], self.observations.shape[1]
        if num_symbols**memory_length <= len(windows_H):
            beliefs, following, _ = filter_windows(self.law, all_sequences(num_symbols, memory_length))
            beliefs, following = beliefs[windows_H], following[windows_H]
        else:
            beliefs, following, _ = filter_windows(self.law, self.observations[:, time - memory_length :])
        return beliefs, following @ symbol_probs(self.law)[0]

    def distances(self, memory_length: int) -> "MemoryDistances":
        """Compute distances between predictions from the last `memory_length` observations and from all observations.

        Source: [MultiTask] Lemma 1 and Lemma 3.
        """
        beliefs, next_observation = self.remembered(memory_length)
        difference = self.next_observation - next_observation
        return MemoryDistances(
            prediction=difference.abs().sum(1) / 2,
            belief=(self.beliefs - beliefs).abs().sum(1) / 2,
            squared=difference.square().sum(1),
        )

    def decompose(self, windows: "Windows", weights: Float64[Tensor, "*batch symbol feature"]) -> "Decomposition":
        """Decompose the expected error of linear predictions W x from windows x.

        Args:
            windows: windows of the same process, no longer than the histories.
            weights: one matrix W or many, not estimated from these histories.
        """
        number_H = self.windows(windows.memory_length)
        exact_HV, probability_H = self.next_observation, self.probability
        frequency_N = torch.zeros(len(windows.features), dtype=torch.float64).index_add(0, number_H, probability_H)
        memory = (exact_HV - windows.next_observation[number_H]).square().sum(1)
        shape = weights.shape[:-2]
        totals, estimations = [], []
        for matrix in weights.reshape(-1, *weights.shape[-2:]):
            prediction_NV = windows.features @ matrix.T
            totals.append(probability_H @ (exact_HV - prediction_NV[number_H]).square().sum(1))
            estimations.append(frequency_N @ (windows.linear_prediction - prediction_NV).square().sum(1))
        return Decomposition(
            total=torch.stack(totals).reshape(shape),
            memory=float(probability_H @ memory),
            misspecification=float(frequency_N @ windows.misfit),
            estimation=torch.stack(estimations).reshape(shape),
        )


def stationary_start(hmm: HMM | LabelledHMM) -> HMM | LabelledHMM:
    law_S = stationary_distribution(hmm)
    if float((law_S - hmm.initial).abs().max()) < 2.0**-31:
        return hmm
    return hmm.with_initial(law_S)


@dataclass(frozen=True, repr=False)
class MemoryDistances(Shown):
    """Distances between beliefs or predictions from the last L observations and from all observations.

    Attributes:
        prediction: total variation between the two predictions (history,).
        belief: total variation between the two beliefs (history,).
        squared: squared Euclidean distance between the two predictions (history,).
    """

    prediction: Float64[Tensor, " history"]
    belief: Float64[Tensor, " history"]
    squared: Float64[Tensor, " history"]


# Parts of the error


@dataclass(frozen=True, repr=False)
class Windows(Shown):
    """All windows of L observations, and the best predictions from them.

    Attributes:
        memory_length: number of observations L.
        features: one-hot vectors x, the most recent observation first (window, feature).
        probability: P(window) (window,).
        next_observation: P(next observation | window) (window, symbol); zeros for windows of probability zero.
        linear: the best linear predictor from x.
        process: process, started from its stationary distribution.
    """

    memory_length: int
    features: Float64[Tensor, "window feature"]
    probability: Float64[Tensor, " window"]
    next_observation: Float64[Tensor, "window symbol"]
    linear: LinearPredictor
    process: HMM | LabelledHMM

    @classmethod
    def all(cls, hmm: HMM | LabelledHMM, memory_length: int) -> "Windows":
        """Enumerate the windows; raise InputError if there are more than `MAX_ENUMERATED`."""
        table, linear = memory_table(hmm, memory_length), linear_predictor(hmm, memory_length)
        features = torch.nn.functional.one_hot(table.windows.flip(1), hmm.num_symbols).flatten(1).double()
        started = stationary_start(hmm)
        return cls(memory_length, features, table.probability, table.next_observation, linear, started)

    @cached_property
    def linear_prediction(self) -> Float64[Tensor, "window symbol"]:
        return self.features @ self.linear.weights.T

    @cached_property
    def misfit(self) -> Float64[Tensor, " window"]:
        """Squared distance between the best and the best linear prediction, per window."""
        return (self.next_observation - self.linear_prediction).square().sum(1)

    @property
    def rank(self) -> int:
        """Rank of E x x^T; at most L (V - 1) + 1 for windows of L observations of V symbols."""
        return self.features.shape[1] - self.linear.num_zero

    @property
    def noise(self) -> float:
        """Mean squared error of the best linear prediction of the one-hot next observation."""
        weights = self.linear.weights
        return 1 - float((weights @ self.linear.covariance * weights).sum())


@dataclass(frozen=True, repr=False)
class Decomposition(Shown):
    """Terms of the decomposition in the module's docstring; `total` is computed independently.

    Attributes:
        total: E||P - W x||^2 for each matrix W.
        memory: E||P - P_L||^2.
        misspecification: E||P_L - W_L x||^2.
        estimation: E||W_L x - W x||^2 for each W.
    """

    total: Float64[Tensor, "..."]
    memory: float
    misspecification: float
    estimation: Float64[Tensor, "..."]

    @property
    def gap(self) -> Float64[Tensor, "..."]:
        """total - memory - misspecification - estimation; zero up to rounding for enumerated histories."""
        return self.total - self.memory - self.misspecification - self.estimation
