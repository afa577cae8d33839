"""[MultiTask] Lemma 1: how fast a process is forgotten, against how well its observations tell states apart."""

import itertools
import math
from typing import Any

import numpy as np

from hmmscope import registry
from hmmscope.analysis.decomposition import all_histories, memory_distances, sampled_histories
from hmmscope.analysis.intervals import bootstrap_means, bootstrap_ratio
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import Experiment, Finding, Measured, Tables
from hmmscope.experiments.multitask_lemma1_figures import held_figure, memory_figure, rate_figure
from hmmscope.inference.memory_error import fit_decay, memory_certificate
from hmmscope.inference.observability import numerical_rank, observability
from hmmscope.processes.hmm import HMM
from hmmscope.processes.low_rank import LowRankHMMSpec, symmetric_channel
from hmmscope.runs.pipeline import Run
from hmmscope.schema import require

#: Sizes of each scale. `past` is the number of observations before the window: the same for every window, so that the
#: error does not bend down where the window comes near to the whole history.
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {
        **{"flips": [0.1, 0.2], "observabilities": [0.2, 0.4, 0.8], "chain_lengths": 5, "chain_past": 5},
        **{"instances": 2, "low_rank_lengths": 3, "low_rank_past": 3},
        **{"held_observabilities": [0.0, 0.2, 0.8], "held_lengths": [1, 2, 4, 8, 16, 32, 64, 96]},
        **{"held_histories": 100, "held_seeds": 3},
    },
    "small": {
        **{"flips": [0.05, 0.1, 0.15, 0.2, 0.25, 0.3], "observabilities": [0.1, 0.2, 0.3, 0.4, 0.6, 0.8]},
        **{"chain_lengths": 8, "chain_past": 8, "instances": 8, "low_rank_lengths": 4, "low_rank_past": 4},
        **{"held_observabilities": [0.0, 0.05, 0.1, 0.2, 0.4, 0.8]},
        **{"held_lengths": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96], "held_histories": 2000, "held_seeds": 8},
    },
    "gpu": {
        **{"flips": [0.05, 0.1, 0.15, 0.2, 0.25, 0.3], "observabilities": [0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8]},
        **{"chain_lengths": 9, "chain_past": 9, "instances": 24, "low_rank_lengths": 5, "low_rank_past": 4},
        **{"held_observabilities": [0.0, 0.05, 0.1, 0.2, 0.4, 0.8]},
        **{"held_lengths": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96], "held_histories": 5000, "held_seeds": 16},
    },
    "paper": {
        **{"flips": [0.05, 0.1, 0.15, 0.2, 0.25, 0.3], "observabilities": [0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 0.9]},
        **{"chain_lengths": 10, "chain_past": 10, "instances": 48, "low_rank_lengths": 5, "low_rank_past": 4},
        **{"held_observabilities": [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8]},
        **{"held_lengths": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96], "held_histories": 10000, "held_seeds": 32},
    },
}

CHAIN, LOW_RANK, HIDDEN = "binary chain", "random, rank 2", "three states, two symbols"
#: The exponent of the observability is fitted up to here: it describes weak observations.
WEAK = 0.4
#: Held bit: probability of leaving the silent states, and of forgetting the bit on coming back.
LEAVE, FORGET = 0.05, 0.1
#: Memory is enough when the error is this share of that with one observation.
ENOUGH = 0.1


def binary_chain(flip: float, gamma: float) -> HMM:
    """Two states that change with probability `flip`, seen through a binary symmetric channel of observability gamma."""
    return HMM([0.5, 0.5], [[1 - flip, flip], [flip, 1 - flip]], symmetric_channel(2, gamma))


def hidden_cycle() -> HMM:
    """Three states that go round, two symbols: observability zero for one observation, positive for two."""
    transition = [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]
    return HMM([1 / 3] * 3, transition, [[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])


def held_bit(gamma: float) -> HMM:
    """A bit that shows clearly now and then, and in between only through a channel of observability gamma.

    States A, B hold the bit and emit 0 or 1, with probabilities (1 +- gamma) / 2; with probability `LEAVE` the bit is
    shown, by the symbols 2 or 3 of states A', B'; these return to A or B, to the other one with probability `FORGET`.

    At gamma = 0 the emission matrix is singular, and the memory has to reach back to where the bit was shown.
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
    """E TV(P, P_L) of the held bit at gamma = 0, after `time` observations.

    leave * (1/2 - forget) * (s_L - s_time),    s_n = P(bit not shown in n observations) = (1 - leave)^(n-1) / (1 + leave)

    Known once shown, the bit is left with probability `leave` to be shown again, by one symbol or the other.
    """
    unseen, unseen_at_all = ((1 - LEAVE) ** (n - 1) / (1 + LEAVE) for n in (memory_length, time))
    return LEAVE * (0.5 - FORGET) * (unseen - unseen_at_all)


@registry.experiment("multitask-lemma1")
class Lemma1(Experiment):
    """See the module."""

    title = "A short memory is enough where observations tell states apart"
    summary = (
        "Lemma 1 of [MultiTask]: the prediction from the last L observations approaches the exact one at a geometric rate "
        "in L, which the observability coefficient gamma controls. The distance is computed by summing over all histories, "
        "for processes of chosen gamma; where gamma goes to zero, it is followed over long sampled histories."
    )
    intervals = "Intervals are 95 % bootstrap intervals over processes, or over independent sets of sampled histories."
    groups = {
        "memory": ("memory", "rates", "rates-by-observability", "exponents"),
        "held bit": ("held-bit", "held-bit-memory"),
    }

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(SCALES[scale])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        if group == "held bit":
            return _held_bit(sizes)
        require(all(0 < flip < 0.5 for flip in sizes["flips"]), "flips", "must be in (0, 0.5)", sizes["flips"])
        require(sizes["instances"] >= 1, "instances", "must be at least 1", sizes["instances"])
        memory, rates = [], []
        for process in _processes(sizes):
            rows = _memory_rows(*process)
            memory += rows
            rates.append(_rate_row(process[0], rows))
        exponents = [_exponent_row(family, rates) for family in (CHAIN, LOW_RANK)]
        return {
            "memory": memory,
            "rates": rates,
            "rates-by-observability": _means_over_instances(rates),
            "exponents": [row for row in exponents if row["instances"]],
        }

    def figures(self, tables: Tables) -> list[Figure]:
        chains = [row["instance"] for row in tables["memory"] if row["family"] == CHAIN]
        chain = "flip 0.1" if "flip 0.1" in chains else chains[0]
        return [
            memory_figure(tables["memory"], {CHAIN: chain, LOW_RANK: "seed 0"}),
            rate_figure(tables["rates-by-observability"], (CHAIN, LOW_RANK)),
            held_figure(tables, held_bit_error),
        ]

    def findings(self, tables: Tables) -> list[Finding]:
        return [
            _geometric_finding(tables),
            _certificate_finding(tables["memory"]),
            _contraction_finding(tables["memory"]),
            _exponent_finding(tables["exponents"]),
            _monotone_finding(tables["rates"]),
            _singular_finding(tables["held-bit-memory"]),
            _hidden_finding(tables["rates"]),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _processes(sizes: dict[str, Any]) -> list[tuple[dict, HMM, int, int]]:
    """(what it is, process, largest memory, observations before the window)."""
    chain, low_rank = ((sizes[f"{kind}_lengths"], sizes[f"{kind}_past"]) for kind in ("chain", "low_rank"))
    found = []
    for gamma in sizes["observabilities"]:
        for flip in sizes["flips"]:
            names = {"family": CHAIN, "instance": f"flip {flip:g}", "observability": gamma}
            found.append((names, binary_chain(flip, gamma), *chain))
        for seed in range(sizes["instances"]):
            spec = LowRankHMMSpec(
                num_states=4, num_symbols=4, rank=2, observability=gamma, seed=seed, transition_concentration=0.3
            )
            names = {"family": LOW_RANK, "instance": f"seed {seed}", "observability": gamma}
            found.append((names, spec.build(), *low_rank))
    names = {"family": HIDDEN, "instance": "", "observability": observability(hidden_cycle()).upper}
    found.append((names, hidden_cycle(), *chain))
    return found


def _memory_rows(names: dict, hmm: HMM, longest: int, past: int) -> list[dict]:
    """Distances of the memory from the exact answer for each memory length, over all histories."""
    rows = []
    for length in range(1, longest + 1):
        histories = all_histories(hmm, past + length)
        distances = memory_distances(histories, length)
        rows.append(
            names
            | {
                "rank": numerical_rank(hmm.transition_SS),
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
    """Absolute value of the second eigenvalue of the transition matrix."""
    return float(np.sort(np.abs(np.linalg.eigvals(hmm.transition_SS.numpy())))[-2])


def _rate_row(names: dict, rows: list[dict]) -> dict:
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


def _means_over_instances(rates: list[dict]) -> list[dict]:
    """Rate, and rate - mixing: mean over instances with its interval."""
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


def _exponent_row(family: str, rates: list[dict]) -> dict:
    """Slope of ln(rate - mixing) against ln(observability), of weak observations, over the instances of a family."""
    slopes, left_out = [], 0
    for instance in dict.fromkeys(row["instance"] for row in rates if row["family"] == family):
        rows = [row for row in rates if (row["family"], row["instance"]) == (family, instance)]
        weak = [row for row in rows if row["observability"] <= WEAK]
        if len(weak) < 2 or min(row["excess"] for row in weak) <= 0:
            left_out += 1
            continue
        x, y = (np.log([row[key] for row in weak]) for key in ("observability", "excess"))
        slopes.append(np.polyfit(x, y, 1)[0])
    if not slopes:
        return {"family": family, "instances": 0, "left_out": left_out}
    mean, low, high = (float(x) for x in bootstrap_means(np.array(slopes)))
    counts = {"instances": len(slopes), "left_out": left_out}
    return {"family": family, "exponent": mean, "low": low, "high": high} | counts


def _held_bit(sizes: dict[str, Any]) -> Measured:
    lengths, gammas = sizes["held_lengths"], sizes["held_observabilities"]
    require(all(0 <= gamma < 1 for gamma in gammas), "held_observabilities", "must be in [0, 1)", gammas)
    curves, needed = [], []
    for gamma in gammas:
        errors = np.empty((sizes["held_seeds"], len(lengths)))
        for seed in range(sizes["held_seeds"]):
            histories = sampled_histories(held_bit(gamma), 64 + max(lengths), sizes["held_histories"], seed)
            errors[seed] = [histories.mean(memory_distances(histories, n).prediction) for n in lengths]
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
    """Where the error falls to a share of `ENOUGH` of the first one, between lengths by a straight line in ln(error)."""
    ratio = errors / errors[0] / ENOUGH
    below = np.flatnonzero(ratio <= 1)
    if not len(below):
        return None
    j = below[0]
    if ratio[j] == 0:
        return float(lengths[j])
    before, after = math.log(ratio[j - 1]), math.log(ratio[j])
    return lengths[j - 1] + before / (before - after) * (lengths[j] - lengths[j - 1])


# ---------------------------------------------------------------------------------------------------------------------
# Findings


def _geometric_finding(tables: Tables) -> Finding:
    rates = [row for row in tables["rates"] if row["observability"] > 0]
    slowest, bend = min(row["rate"] for row in rates), max(row["residual"] for row in rates)
    constant = min(
        math.log(row["rank"] / (2 * row["total_variation"])) / (row["observability"] ** 4 * row["memory_length"])
        for row in tables["memory"]
        if row["observability"] > 0
    )
    good = slowest > 0 and bend < math.log(1.5) and constant > 0
    text = (
        f"ln(error) is a straight line in the memory length for all {len(rates)} processes with gamma > 0, within a factor "
        f"of {math.exp(bend):.2f}; the slowest falls by {slowest:.3f} nats per observation. The stated form, "
        f"d exp(-c gamma^4 L) in L1 distance, holds at every point with c up to {constant:.2f}."
    )
    return Finding(
        title="The error falls geometrically with the memory",
        text=text,
        verdict="reproduced" if good else "not reproduced",
        value=slowest,
        unit="nats per observation, slowest process",
    )


def _certificate_finding(rows: list[dict]) -> Finding:
    informative = [row for row in rows if row["certificate"] < 1]
    share = max(row["worst"] / row["certificate"] for row in informative)
    histories = sum(row["histories"] for row in informative)
    text = (
        f"The certificate of Hilbert's metric bounds the error of each of {histories:,} histories ({len(informative)} "
        f"pairs of process and memory length): the largest error is {share:.3f} of it."
    )
    return Finding(
        title="A bound for every history",
        text=text,
        verdict="reproduced" if share <= 1 + 1e-9 else "not reproduced",
        value=share,
        unit="largest error over bound",
    )


def _contraction_finding(rows: list[dict]) -> Finding:
    worst = max(row["excess_over_belief"] for row in rows)
    ratio = np.array([row["total_variation"] / row["belief"] for row in rows])
    text = (
        f"In no history is the prediction further off than the belief (the largest difference is {worst:.1e}); on "
        f"average it is off by {ratio.mean():.2f} of it ({ratio.min():.2f} to {ratio.max():.2f})."
    )
    return Finding(
        title="A bound on beliefs is a bound on predictions",
        text=text,
        verdict="reproduced" if worst <= 1e-12 else "not reproduced",
        value=float(ratio.mean()),
        unit="prediction error over belief error",
    )


def _exponent_finding(rows: list[dict]) -> Finding:
    title = "The rate grows as the square of the observability"
    chains = [row for row in rows if row["family"] == CHAIN]
    if not chains:
        text = f"An exponent needs two observabilities up to {WEAK:g}."
        return Finding(title=title, text=text, verdict="inconclusive")
    row = chains[0]
    others = [other for other in rows if other["family"] == LOW_RANK]
    more = "".join(
        f" For random processes of rank 2 it is {other['exponent']:.2f} ({other['low']:.2f} to {other['high']:.2f}; "
        f"{other['left_out']} of {other['instances'] + other['left_out']} left out, which forget no faster than they mix)."
        for other in others
    )
    text = (
        f"For gamma up to {WEAK:g} the rate exceeds that of the hidden chain by a multiple of gamma^{row['exponent']:.2f} "
        f"({row['low']:.2f} to {row['high']:.2f}, {row['instances']} binary chains): the guarantee gamma^4 is far too "
        f"careful.{more}"
    )
    return Finding(
        title=title,
        text=text,
        verdict="found",
        value=row["exponent"],
        low=row["low"],
        high=row["high"],
        unit="exponent of gamma",
    )


def _monotone_finding(rates: list[dict]) -> Finding:
    count, falling = 0, []
    for family, instance in dict.fromkeys(
        (row["family"], row["instance"]) for row in rates if row["observability"] > 0
    ):
        rows = [row for row in rates if (row["family"], row["instance"]) == (family, instance)]
        values = [row["rate"] for row in sorted(rows, key=lambda row: row["observability"])]
        if len(values) > 1:
            count += 1
            if any(later < earlier for earlier, later in itertools.pairwise(values)):
                falling.append(rows[0]["mixing"])
    found = f"In {count - len(falling)} of {count} processes the rate grows with every step of gamma. "
    if falling:
        found += (
            f"In the other {len(falling)} it falls somewhere: their chains forget by themselves at {min(falling):.2f} nats "
            "per observation or more, and informative observations keep alive what the chain alone would have lost."
        )
    else:
        found += (
            "None of them has a chain that forgets so fast by itself that observations keep alive what it would lose."
        )
    return Finding(
        title="Better observations make forgetting faster, with exceptions",
        text=found,
        verdict="found",
        value=(count - len(falling)) / count,
        unit="share of processes",
    )


def _singular_finding(rows: list[dict]) -> Finding:
    title = "Near-singular emissions need long memories"
    if len(rows) < 2:
        return Finding(title=title, text="The memories measured are too short to tell.", verdict="inconclusive")
    least, most = (pick(rows, key=lambda row: row["observability"]) for pick in (min, max))
    value, low, high = bootstrap_ratio(np.array(least["seeds"]), np.array(most["seeds"]))
    text = (
        f"To bring the error down to {ENOUGH:g} of that of one observation, a memory of {least['value']:.1f} observations "
        f"({least['low']:.1f} to {least['high']:.1f}) is needed at gamma = {least['observability']:g}, and of "
        f"{most['value']:.1f} at gamma = {most['observability']:g}. At gamma = 0 the error still falls: the hidden chain "
        "forgets by itself, which the lemma does not use."
    )
    verdict = "reproduced" if low > 1 else "not reproduced" if high < 1 else "inconclusive"
    return Finding(
        title=title,
        text=text,
        verdict=verdict,  # type: ignore[arg-type]
        value=value,
        low=low,
        high=high,
        unit="ratio of memory lengths",
    )


def _hidden_finding(rates: list[dict]) -> Finding:
    row = next(row for row in rates if row["family"] == HIDDEN)
    two = observability(hidden_cycle(), 2).lower
    text = (
        f"Three states behind two symbols have gamma = {row['observability']:g} for one observation and {two:.3f} for two "
        f"(Assumption 4). The memory error falls by {row['rate']:.2f} nats per observation (the chain alone: "
        f"{row['mixing']:.2f}); ln(error) is off a straight line by up to {row['residual']:.2f}."
    )
    return Finding(
        title="Observability of single observations is not necessary",
        text=text,
        verdict="found",
        value=row["rate"],
        unit="nats per observation",
    )
