"""Block entropies and entropy rates of processes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError
from hmmscope.inference.forward import forward_steps
from hmmscope.inference.memory import MAX_ENUMERATED
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.inference.stationary_process import state_transitions, stationary_distribution
from hmmscope.processes.capabilities import WORDS
from hmmscope.processes.make import as_process
from hmmscope.processes.params import symbol_probs
from hmmscope.processes.process import Process
from hmmscope.processes.stationary import closed_classes, stationary_law
from hmmscope.reprs import Shown
from hmmscope.schema import require_count
from hmmscope.system_info import require_memory

#: Limit on array entries when `entropy_rate` computes bounds, a fraction of a second.
_BOUND_WORK = 2**19
#: Number of step-matrix entries above which mixed states are not enumerated.
_STEP_ENTRIES = 2**25
_ROUNDING = 1e-13
#: Distance from the stationary distribution below which the start of sampled sequences is forgotten.
_FORGOTTEN = 1e-4


@dataclass(frozen=True, repr=False)
class BlockEntropies(Shown):
    """Entropies of the first n = 1, 2, .. observations, in nats.

    Attributes:
        block: Block entropies H(o_0..o_{n-1}) (length,).
        myopic: Conditional entropies h_n = H(o_{n-1} | o_0..o_{n-2}), upper bounds on the entropy rate.
        informed: H(o_{n-1} | o_0..o_{n-2}, first state), lower bounds on the entropy rate; None for a `GeneralisedHMM`.
        excess: H(o_0..o_{n-1}) - n h_n, which converges to the excess entropy.
    """

    block: Float64[Tensor, " length"]
    myopic: Float64[Tensor, " length"]
    informed: Float64[Tensor, " length"] | None

    @property
    def excess(self) -> Float64[Tensor, " length"]:
        return self.block - self.myopic * torch.arange(1, len(self.block) + 1)


def block_entropies(hmm: Process, length: int) -> BlockEntropies:
    """Compute exact block entropies of the stationary process, by enumeration.

    Source: Cover and Thomas, *Elements of Information Theory*, section 4.5.
    """
    require_count("length", length)
    hmm.require_capability(WORDS)
    if hmm.num_symbols ** min(length, 64) > MAX_ENUMERATED:
        raise InputError(
            f"length: {hmm.num_symbols}^{length} words exceed the limit of {MAX_ENUMERATED}; use a smaller length"
        )
    return _blocks(hmm, stationary_distribution(hmm), length)


def _blocks(hmm: Process, stationary_S: Tensor, length: int) -> BlockEntropies:
    states, symbols = hmm.num_states, hmm.num_symbols
    require_memory("block_entropies", 8 * 2 * symbols ** (length - 1) * (states + 1) * (states + symbols))
    symbols_SV = symbol_probs(hmm.params)[0]
    first_NS = stationary_S[None]  # P(word, next emitting state)
    known_KNS = torch.diag(stationary_S)[:, None]  # jointly with the first state K
    start_entropy = _entropy(stationary_S)
    block, informed = [], []
    for n in range(length):
        block.append(_entropy(first_NS @ symbols_SV))
        informed.append(_entropy(known_KNS @ symbols_SV) - start_entropy)
        if n + 1 < length:
            steps_VSS = hmm.params.steps()
            first_NS = torch.einsum("ni,vij->nvj", first_NS, steps_VSS).flatten(0, 1)
            known_KNS = torch.einsum("kni,vij->knvj", known_KNS, steps_VSS).flatten(1, 2)
    block_T, informed_T = (torch.tensor([0.0, *values], dtype=torch.float64).diff() for values in (block, informed))
    return BlockEntropies(block_T.cumsum(0), block_T, None if hmm.params.signed else informed_T)


def _entropy(probs: Tensor) -> float:
    return float(torch.special.entr(probs.clamp_min(0.0)).sum())  # a generalized HMM has zeros only up to rounding


@dataclass(frozen=True)
class EntropyRate:
    """Entropy of the next observation given the past, in nats.

    Attributes:
        value: Entropy rate, or its estimate.
        low, high: 95 % interval; equal to `value` if exact.
        lower_bound, upper_bound: Guaranteed bounds on the entropy rate; infinite for vector processes.
        exact: True if `value` is exact up to rounding.
        method: "unifilar", "mixed states" or "sampling".
    """

    value: float
    low: float
    high: float
    lower_bound: float
    upper_bound: float
    exact: bool
    method: str


def entropy_rate(
    process: Process | str, *, num_samples: int = 200, length: int = 400, seed: int = 0, max_mixed_states: int = 300
) -> EntropyRate:
    """Compute the entropy rate, the smallest mean loss that a predictor of long sequences can reach.

    A unifilar process (state and symbol determine the next state) has the exact entropy rate

        sum_s stationary[s] * H(symbol emitted from s)

    It is also exact if at most `max_mixed_states` beliefs (mixed states) are reachable. Otherwise the estimate is the
    mean entropy of exact predictions over the last two thirds of each sampled sequence. For vector processes the result
    is the differential entropy rate, without bounds.

    Source: Shannon (1948) for unifilar sources; Blackwell (1957) for mixed states.

    Args:
        process: HMM, labelled HMM, or vector process with an exact filter.
        num_samples, length, seed: Number (at least 2), length (at least 3) and seed of the sampled sequences.
        max_mixed_states: Largest number of mixed states to enumerate.

    Raises:
        InputError: The stationary distribution is not unique, or the process is a mixture.
    """
    process = as_process(process)
    require_count("num_samples", num_samples, 2)
    require_count("length", length, 3)
    if process.real_valued:
        require_memory("entropy_rate", 32 * num_samples * length, "choose smaller num_samples or length")
        return _of_densities(process, num_samples, length, seed)
    return rate_of_stationary(process, stationary_distribution(process), num_samples, length, seed, max_mixed_states)


def rate_of_stationary(
    process: Process,
    stationary_S: Float64[Tensor, " state"],
    num_samples: int,
    length: int = 400,
    seed: int = 0,
    max_mixed_states: int = 300,
) -> EntropyRate:
    rate = None if process.params.signed else _unifilar_rate(process, stationary_S)
    if rate is not None:
        return EntropyRate(rate, rate, rate, rate, rate, True, "unifilar")
    walk_NN = None
    if process.num_symbols * process.num_states**2 <= _STEP_ENTRIES:
        reached = mixed_states(process, prior=stationary_S, max_states=max_mixed_states, tolerance=_ROUNDING)
        walk_NN = reached.labelled().sum(0) if reached.complete else None
    if walk_NN is not None and len(closed_classes(walk_NN)) == 1:
        rate = float(stationary_law(walk_NN) @ torch.special.entr(reached.probability).sum(1))
        return EntropyRate(rate, rate, rate, rate, rate, True, "mixed states")
    require_memory("entropy_rate", 32 * num_samples * length, "choose smaller num_samples or length")
    longest = max(1, int(math.log(_BOUND_WORK / process.num_states**2) / math.log(process.num_symbols)))
    bounds = _blocks(process, stationary_S, longest)
    lower, upper = 0.0 if bounds.informed is None else float(bounds.informed[-1]), float(bounds.myopic[-1])
    mean, error = _sampled_rate(_settled(process, stationary_S, length // 3), num_samples, length, seed)
    low, high = (min(max(end, lower), upper) for end in (mean - 1.96 * error, mean + 1.96 * error))
    return EntropyRate(min(max(mean, lower), upper), low, high, lower, upper, False, "sampling")


def _unifilar_rate(process: Process, stationary_S: Tensor) -> float | None:
    params, recurrent_S = process.params, stationary_S > 0
    if params.states_emit:
        move_SS, symbols_SV = params.transitions()[0], symbol_probs(params)[0]
        if bool(((move_SS[recurrent_S] > 0).sum(1) <= 1).all()):  # emission before transition
            return float(stationary_S @ torch.special.entr(symbols_SV).sum(1))
        ways_SV = (move_SS[recurrent_S] > 0).double() @ (symbols_SV > 0).double()
        if bool((ways_SV <= 1).all()):  # transition before emission
            return float(stationary_S @ torch.special.entr(move_SS @ symbols_SV).sum(1))
        return None
    steps_VSS = params.steps()
    if bool(((steps_VSS[:, recurrent_S] > 0).sum(2) <= 1).all()):
        return float(stationary_S @ torch.special.entr(steps_VSS.sum(2).T).sum(1))
    return None


def _of_densities(process: Process, num_samples: int, length: int, seed: int) -> EntropyRate:
    starts = np.arange(length) == 0
    observations = process.sample_paths(np.arange(num_samples), starts, seed, "evaluate").observations
    means_B = -process.observe(observations).log_likelihood_terms[:, length // 3 :].mean(1)
    mean, error = float(means_B.mean()), float(means_B.std()) / math.sqrt(num_samples)
    return EntropyRate(mean, mean - 1.96 * error, mean + 1.96 * error, -math.inf, math.inf, False, "sampling")


def _settled(process: Process, stationary_S: Tensor, after: int) -> Process:
    started: Callable[[Tensor], Process] | None = getattr(process, "with_initial", None)
    if started is None:
        return process
    law_S = process.params.initial_MS[0] @ torch.linalg.matrix_power(state_transitions(process.params), after)
    return process if float((law_S - stationary_S).abs().sum()) < _FORGOTTEN else started(stationary_S)


def _sampled_rate(process: Process, num_samples: int, length: int, seed: int) -> tuple[float, float]:
    paths = process.sample_paths(np.arange(num_samples), np.arange(length) == 0, seed, "evaluate")
    symbols_SV = symbol_probs(process.params)[0]
    entropies = [
        torch.special.entr((step.next_probs[0] @ symbols_SV).clamp_min(0.0)).sum(-1)
        for t, step in enumerate(forward_steps(process.params, paths.observations[None], torch.arange(length) == 0))
        if t >= length // 3
    ]
    means_B = torch.stack(entropies).mean(0)
    return float(means_B.mean()), float(means_B.std()) / math.sqrt(num_samples)
