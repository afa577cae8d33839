"""Processes of chosen observability for [MultiTask] Lemma 1, and the exact memory error of one of them."""

import itertools
import math
from typing import Any

import numpy as np

from hmmscope import HMM, make_process, observability, require_process_type, symmetric_channel
from hmmscope.analysis import Histories, bootstrap_means
from hmmscope.inference import fit_decay, memory_certificate, numerical_rank
from hmmscope.lab import MeasuredTables
from hmmscope.schema import require
from hmmscope_papers.theorems import instances_of

CHAIN, LOW_RANK, HIDDEN = "binary chain", "random, rank 2", "three states, two symbols"
#: Ranks of otherwise similar random processes, and their observability.
RANKS, RANKED_AT = (2, 3, 4), 0.4
#: Held bit: probability of leaving states A and B, and of changing the bit on return.
LEAVE, FORGET = 0.05, 0.1
#: The memory is long enough when its error is this fraction of the error with one observation.
ENOUGH = 0.1


def binary_chain(flip: float, gamma: float) -> HMM:
    return HMM([0.5, 0.5], [[1 - flip, flip], [flip, 1 - flip]], symmetric_channel(2, gamma))


def hidden_cycle() -> HMM:
    transition = [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]
    return HMM([1 / 3] * 3, transition, [[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])


def held_bit(gamma: float) -> HMM:
    """Return a process with a bit that is shown at random times, else seen through a channel of observability gamma.

    States A and B hold the bit and emit 0 or 1 with probabilities (1 +- gamma) / 2. With probability `LEAVE`, A'
    follows A and B' follows B; they show the bit by symbols 2 and 3. Then the bit changes with probability `FORGET`.
    """
    size = 1 / (2 * (1 + LEAVE))
    transition = [
        [1 - LEAVE, 0, LEAVE, 0],
        [0, 1 - LEAVE, 0, LEAVE],
        [1 - FORGET, FORGET, 0, 0],
        [FORGET, 1 - FORGET, 0, 0],
    ]
    emission = [[(1 + gamma) / 2, (1 - gamma) / 2, 0, 0], [(1 - gamma) / 2, (1 + gamma) / 2, 0, 0]]
    emission += [[0, 0, 1, 0], [0, 0, 0, 1]]
    return HMM([size, size, LEAVE * size, LEAVE * size], transition, emission)


def held_bit_error(memory_length: int, time: float = math.inf) -> float:
    """Return E TV(P, P_L) of the held bit at gamma = 0; P predicts from `time` observations, P_L from the last L.

    a * (1/2 - b) * (s_L - s_time), s_n = (1 - a)^(n-1) / (1 + a) = P(bit not shown in n observations), where a is LEAVE
    and b is FORGET.
    """
    unseen, unseen_at_all = ((1 - LEAVE) ** (n - 1) / (1 + LEAVE) for n in (memory_length, time))
    return LEAVE * (0.5 - FORGET) * (unseen - unseen_at_all)


def processes(sizes: dict[str, Any]) -> list[tuple[dict, HMM, int, int]]:
    chain, low_rank = ((sizes[f"{kind}_lengths"], sizes[f"{kind}_past"]) for kind in ("chain", "low_rank"))
    found = []
    for gamma in sizes["observabilities"]:
        for flip in sizes["flips"]:
            names = {"family": CHAIN, "instance": f"flip {flip:g}", "observability": gamma}
            found.append((names, binary_chain(flip, gamma), *chain))
        for seed in instances_of(sizes):
            names = {"family": LOW_RANK, "instance": f"seed {seed}", "observability": gamma}
            found.append((names, _low_rank(seed, 2, gamma), *low_rank))
    names = {"family": HIDDEN, "instance": "", "observability": observability(hidden_cycle()).upper}
    found.append((names, hidden_cycle(), *chain))
    return found


def _low_rank(seed: int, rank: int, gamma: float) -> HMM:
    process = make_process(
        "low-rank-hmm",
        num_states=4,
        num_symbols=4,
        rank=rank,
        observability=gamma,
        seed=seed,
        transition_concentration=0.3,
    )
    return require_process_type(process, HMM)


def memory_rows(names: dict, hmm: HMM, longest: int, past: int) -> list[dict]:
    rows = []
    for length in range(1, longest + 1):
        histories = Histories.all(hmm, past + length)
        distances = histories.distances(length)
        rows.append(
            names
            | {
                "rank": numerical_rank(hmm.transition),
                "mixing": -math.log(_second_eigenvalue(hmm)),
                "memory_length": length,
                "histories": len(histories.probability),
                "total_variation": histories.mean(distances.prediction),
                "belief": histories.mean(distances.belief),
                "worst": float(distances.prediction.max()),
                "excess_over_belief": float((distances.prediction - distances.belief).max()),
                "certificate": memory_certificate(hmm, length),
            }
        )
    return rows


def _second_eigenvalue(hmm: HMM) -> float:
    return float(np.sort(np.abs(np.linalg.eigvals(hmm.transition.numpy())))[-2])


def rate_row(names: dict, rows: list[dict]) -> dict:
    fitted = fit_decay([row["memory_length"] for row in rows], [row["total_variation"] for row in rows])
    mixing = rows[0]["mixing"]
    return names | {
        "rate": fitted.rate,
        "mixing": mixing,
        "excess": fitted.rate - mixing,
        "residual": fitted.residual,
        "first": fitted.first,
        "last": fitted.last,
    }


def means_over_instances(rates: list[dict]) -> list[dict]:
    means = []
    for family in (CHAIN, LOW_RANK):
        for gamma in sorted({row["observability"] for row in rates if row["family"] == family}):
            rows = [row for row in rates if (row["family"], row["observability"]) == (family, gamma)]
            excess = np.array([row["excess"] for row in rows])
            for quantity, values in {"rate": [row["rate"] for row in rows], "excess": excess}.items():
                mean, low, high = (float(x) for x in bootstrap_means(np.array(values)))
                names = {"family": family, "observability": gamma, "quantity": quantity, "instances": len(rows)}
                means.append(names | {"value": mean, "low": low, "high": high})
    return means


def rank_rows(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for seed, rank in itertools.product(instances_of(sizes, "rank_instances"), RANKS):
        hmm = _low_rank(seed, rank, RANKED_AT)
        for length in range(1, sizes["low_rank_lengths"]):
            histories = Histories.all(hmm, sizes["low_rank_past"] + length)
            error = histories.mean(histories.distances(length).prediction)
            rows.append({"instance": seed, "rank": rank, "memory_length": length, "total_variation": error})
    return rows


def held_bit_tables(sizes: dict[str, Any]) -> MeasuredTables:
    lengths, gammas = sizes["held_lengths"], sizes["held_observabilities"]
    require(all(0 <= gamma < 1 for gamma in gammas), "held_observabilities", "must be in [0, 1)", gammas)
    curves, needed = [], []
    for gamma in gammas:
        errors = np.empty((sizes["held_seeds"], len(lengths)))
        for seed in range(sizes["held_seeds"]):
            histories = Histories.sampled(held_bit(gamma), 64 + max(lengths), sizes["held_histories"], seed)
            errors[seed] = [histories.mean(histories.distances(n).prediction) for n in lengths]
        curves += [
            {"observability": gamma, "memory_length": n, "total_variation": mean, "low": low, "high": high}
            for n, mean, low, high in zip(lengths, *(part.tolist() for part in bootstrap_means(errors)), strict=True)
        ]
        enough = [_memory_needed(lengths, row) for row in errors]
        if None not in enough:
            value, low, high = (float(x) for x in bootstrap_means(np.array(enough, np.float64)))
            needed.append({"observability": gamma, "value": value, "low": low, "high": high, "seeds": enough})
    return {"held-bit": curves, "held-bit-memory": needed}


def _memory_needed(lengths: list[int], errors: np.ndarray) -> float | None:
    ratio = errors / errors[0] / ENOUGH
    below = np.flatnonzero(ratio <= 1)
    if not len(below):
        return None
    j = below[0]
    if ratio[j] == 0:
        return float(lengths[j])
    before, after = math.log(ratio[j - 1]), math.log(ratio[j])
    return lengths[j - 1] + before / (before - after) * (lengths[j] - lengths[j - 1])
