"""[MultiTask] Lemma 1: how fast a process forgets, by its observability."""

import math
from typing import Any

import numpy as np

from hmmscope import Run, lab, registry
from hmmscope.schema import require
from hmmscope_papers.multitask.forgetting import (
    CHAIN,
    LOW_RANK,
    held_bit_error,
    held_bit_tables,
    means_over_instances,
    memory_rows,
    processes,
    rank_rows,
    rate_row,
)
from hmmscope_papers.theorems import always, by_scale, plain, power_slopes

NAME = "multitask-lemma1"
FLIPS = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
GAMMAS = [0.1, 0.2, 0.3, 0.4, 0.6, 0.8]
HELD_GAMMAS = [0.0, 0.05, 0.1, 0.2, 0.4, 0.8]
HELD_LENGTHS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96]
#: Largest observability in the fit of its exponent, which describes weak observations.
WEAK = 0.4


@registry.experiment(NAME)
class Lemma1(lab.Experiment):
    """Distances between predictions from a short memory and exact predictions, over all or sampled histories."""

    title = "A short memory is enough if observations distinguish the states"
    in_paper = (
        "[MultiTask] §4.2",
        "a fixed-length memory model is sufficient to approximate the full-memory transition probabilities",
    )
    summary = (
        "Lemma 1 of [MultiTask] states that the prediction from the last L observations approaches the exact "
        "prediction geometrically in L, at a rate that depends on the observability coefficient γ. The distance of the "
        "predictions is computed by summing over all histories, for processes of chosen γ; for γ close to zero, it is "
        "measured on long sampled histories."
    )
    intervals = "Intervals are 95 % intervals over processes, or over independent sets of sampled histories."
    groups = {
        "memory": ("memory", "rates", "rates-by-observability"),
        "rank": ("rank",),
        "held bit": ("held-bit", "held-bit-memory"),
    }
    #: `past`: observations before every window, so that the error does not bend down for long windows.
    sizes = by_scale(
        flips=([0.1, 0.2], FLIPS, FLIPS, FLIPS),
        observabilities=([0.2, 0.4, 0.8], GAMMAS, [0.05, *GAMMAS], [0.05, *GAMMAS, 0.9]),
        chain_lengths=(5, 8, 9, 10),
        chain_past=(5, 8, 9, 10),
        instances=(2, 8, 24, 48),
        low_rank_lengths=(3, 4, 5, 5),
        low_rank_past=(3, 4, 4, 4),
        rank_instances=(3, 24, 48, 48),
        held_observabilities=([0.0, 0.2, 0.8], HELD_GAMMAS, HELD_GAMMAS, [0.0, 0.02, *HELD_GAMMAS[1:]]),
        held_lengths=([1, 2, 4, 8, 16, 32, 64, 96], HELD_LENGTHS, HELD_LENGTHS, HELD_LENGTHS),
        held_histories=(100, 2000, 5000, 10000),
        held_seeds=(3, 8, 16, 32),
        first_instance=(0, 0, 0, 0),
    )
    #: Other processes than at the smaller scales, enough to decide the exponent of the rank.
    sizes["medium"] = sizes["small"] | {"first_instance": 87, "rank_instances": 400}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        if group == "held bit":
            return held_bit_tables(sizes)
        if group == "rank":
            return {"rank": rank_rows(sizes)}
        require(all(0 < flip < 0.5 for flip in sizes["flips"]), "flips", "must be in (0, 0.5)", sizes["flips"])
        require(sizes["instances"] >= 1, "instances", "must be at least 1", sizes["instances"])
        memory, rates = [], []
        for process in processes(sizes):
            rows = memory_rows(*process)
            memory += rows
            rates.append(rate_row(process[0], rows))
        return {"memory": memory, "rates": rates, "rates-by-observability": means_over_instances(rates)}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_memory_figure(tables["memory"]), _rate_figure(tables["rates-by-observability"]), _held_figure(tables)]


# ---------------------------------------------------------------------------------------------------------------------
# Figures

#: Most curves in a panel.
MAX_CURVES = 4


def few(values: list[float]) -> list[float]:
    ordered = sorted(values)
    if len(ordered) <= MAX_CURVES:
        return ordered
    return [ordered[round(k * (len(ordered) - 1) / (MAX_CURVES - 1))] for k in range(MAX_CURVES)]


def _curve(rows: lab.Rows, gamma: float) -> lab.Series | None:
    return plain(rows.where(observability=gamma), "memory_length", f"γ = {gamma:g}", "model", y="total_variation")


def _memory_figure(rows: lab.Rows) -> lab.Figure:
    chains, low_rank = (rows.where(family=family).values("instance") for family in (CHAIN, LOW_RANK))
    shown = {CHAIN: "flip 0.1" if "flip 0.1" in chains else chains[0], LOW_RANK: low_rank[0]}
    panels = []
    for family, instance in shown.items():
        found = rows.where(family=family, instance=instance)
        gammas = few(found.values("observability"))
        bound = found.where(observability=gammas[0])
        panels.append(
            lab.lines(
                f"{family} ({instance})",
                *(_curve(found, gamma) for gamma in gammas),
                plain(bound, "memory_length", "bound, every history", "ceiling", y="certificate"),
                x_label="memory length (observations)",
                y_label="mean total variation",
                log_y=True,
            )
        )
    return lab.Figure(
        name="memory-error",
        title="Error of predictions from the last observations alone",
        caption=(
            "Curves show the total variation between the prediction from the last observations and the exact prediction, "
            "averaged over all histories by enumeration, for emission channels of observability coefficient γ. The bound "
            "(contraction in Hilbert's metric) holds for every history and does not depend on γ."
        ),
        panels=tuple(panels),
    )


def _rate_figure(rows: lab.Rows) -> lab.Figure:
    def curves(quantity: str) -> list[lab.Series | None]:
        found = rows.where(quantity=quantity)
        if quantity == "excess":  # its axes are logarithmic
            found = lab.Rows(row for row in found if row["low"] > 0)
        families = [(name, found.where(family=name)) for name in (CHAIN, LOW_RANK)]
        return [plain(kept, "observability", name, "model") for name, kept in families if len(kept) > 1]

    gammas = tuple(sorted(rows.values("observability")))
    return lab.Figure(
        name="decay-rate",
        title="Decay rate of the error, by observability",
        caption=(
            "Left: rate at which the error of a memory of L observations falls with L. Right: this rate minus the rate at "
            "which the hidden chain forgets without observations (-ln of its second eigenvalue), for families of processes "
            "where the difference is positive. The rate that the lemma guarantees grows as γ⁴, up to an unstated constant. "
            "Lines are means over processes; bands are 95 % intervals over processes."
        ),
        panels=(
            lab.lines(
                "The rate", *curves("rate"), x_label="observability γ", y_label="nats per observation", y_min=0.0
            ),
            lab.lines(
                "The rate minus the mixing rate of the chain",
                *curves("excess"),
                lab.Series(name="γ²", role="optimum", x=gammas, y=tuple(gamma**2 for gamma in gammas)),
                lab.Series(name="γ⁴ (the guarantee)", role="ceiling", x=gammas, y=tuple(gamma**4 for gamma in gammas)),
                x_label="observability γ",
                y_label="nats per observation",
                log_x=True,
                log_y=True,
            ),
        ),
    )


def _held_figure(tables: lab.Tables) -> lab.Figure:
    rows = tables["held-bit"]
    visible = lab.Rows(row for row in rows if row["low"] > 1e-8)
    lengths = tuple(sorted(rows.values("memory_length")))
    panels = [
        lab.lines(
            "A bit that few symbols determine",
            *(_curve(visible, gamma) for gamma in few(rows.values("observability"))),
            lab.Series(name="γ = 0, exact", role="optimum", x=lengths, y=tuple(map(held_bit_error, lengths))),
            x_label="memory length (observations)",
            y_label="mean total variation",
            log_y=True,
            y_min=1e-7,
        )
    ]
    if tables["held-bit-memory"]:
        panels.append(
            lab.lines(
                "Memory for a tenth of the error",
                plain(tables["held-bit-memory"], "observability", "memory needed", "model"),
                x_label="observability γ",
                y_label="memory length (observations)",
                y_min=0.0,
            )
        )
    return lab.Figure(
        name="near-singular",
        title="With almost uninformative observations the memory must be long",
        caption=(
            "The state is a bit. One symbol in twenty, on average, determines the bit; other symbols depend on it "
            "through a channel of observability γ. Left: error of the prediction from the last observations. Right: "
            "memory length at which this error is a tenth of the error with memory length 1. Histories are "
            "sampled; bands are 95 % intervals over independent sets of histories."
        ),
        panels=tuple(panels),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


@lab.claim("multitask-lemma1-geometric")
def geometric(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rates = lab.Rows(row for row in tables["rates"] if row["observability"] > 0)
    held = always(
        rates,
        lambda row: row["rate"] > 0 and row["residual"] < math.log(lab.parameter(numbers, "straight")),
        "family",
        "instance",
        "observability",
        unit="fraction of processes",
    )
    text = (
        f"In the process with the slowest decay (of {len(rates)} processes), the logarithm of the error falls by "
        f"{min(row['rate'] for row in rates):.3f} per observation. In all processes the error stays within a factor "
        f"of {math.exp(max(row['residual'] for row in rates)):.2f} of an exponential."
    )
    return lab.Measurement(held, text)


@lab.claim("multitask-lemma1-gamma")
def power_of_gamma(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    weak = lab.Rows(row for row in tables["rates"] if 0 < row["observability"] <= lab.parameter(numbers, "weak", WEAK))
    families = (CHAIN, LOW_RANK)
    slopes = {name: power_slopes(weak.where(family=name), "observability", "rate") for name in families}
    effects = {
        name: lab.Effect.pooled(found, "exponent of gamma") for name, found in slopes.items() if None not in found
    }
    rows = lab.Rows(row for row in tables["memory"] if row["observability"] > 0)
    constant = min(
        math.log(row["rank"] / (2 * row["total_variation"])) / (row["observability"] ** 4 * row["memory_length"])
        for row in rows
    )
    bound = "exp(-c γ^4 L) times the HMM's rank (memory L, observability γ)"
    text = f"The L1 error is at most {bound} in all {len(rows)} cases, if c <= {constant:.2f}."
    return lab.Measurement(effects, text, required=families)


@lab.claim("multitask-lemma1-rank")
def factor_of_rank(tables: lab.Tables) -> lab.Measurement:
    rows = tables.get("rank")
    if not rows:
        return lab.Measurement(None, "All processes have rank 2.")
    first = rows.where(memory_length=1)
    errors = {d: lab.Effect.pooled([row["total_variation"] for row in group]) for d, group in first.by("rank").items()}
    text = (
        "From the last observation alone, the error of predictions is "
        f"{'; '.join(f'{error.short()} at rank {d}' for d, error in errors.items())}."
    )
    return lab.Measurement(
        lab.Effect.pooled(power_slopes(first, "rank", "total_variation"), "exponent of the rank"), text
    )


@lab.claim("multitask-lemma1-contraction")
def contraction(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["memory"]
    ratio = np.array([row["total_variation"] / row["belief"] for row in rows])
    names = ("family", "instance", "observability")
    held = always(
        rows,
        lambda row: row["excess_over_belief"] <= lab.parameter(numbers, "rounding"),
        *names,
        unit="fraction of processes",
    )
    return lab.Measurement(
        held,
        (
            f"The error of the prediction is on average {ratio.mean():.2f} times the error of the belief "
            f"({ratio.min():.2f} to {ratio.max():.2f} times)."
        ),
    )
