"""How the error of a short memory depends on how well observations tell states apart, in trained models."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.evidence.figures import Figure, Lines
from hmmscope.evidence.pooling import by_seed
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.multitask_studies import curve, of, window_config
from hmmscope.experiments.multitask_windows import exact_rate, histories_of, window_rows
from hmmscope.processes.hmm import HMM
from hmmscope.runs.pipeline import Run

#: The exponent of the observability is fitted up to here: it describes weak observations.
WEAK = 0.6


@registry.experiment("multitask-observability")
class Observability(Experiment):
    """See the module."""

    title = "Error against observability"
    summary = (
        "Lemma 1 of [MultiTask] bounds the error of a memory of L observations by d exp(-c gamma^4 L), gamma the "
        "observability coefficient of the emissions. The emission is a symmetric channel of chosen gamma over the same "
        "hidden chain; a decoder is trained for each gamma and each of several memories, and its error stands beside the "
        "exact one of the same memory. The constant c is unknown, so exponents are fitted and no bound is drawn."
    )
    intervals = SEED_INTERVALS
    num_seeds = NUM_SEEDS
    groups = {"observability": ("errors", "rates")}

    def choices(self, scale: str) -> dict[str, Any]:
        gammas = {"smoke": [0.4, 0.8], "small": [0.2, 0.4, 0.6, 0.8]}
        lengths = {"smoke": [1, 2], "small": [1, 2, 3], "gpu": [1, 2, 3, 4], "paper": [1, 2, 3, 4, 6]}
        more = [0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0]
        return {"observabilities": gammas.get(scale, more), "lengths": lengths[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        gammas = choices["observabilities"]
        if not all(0 < gamma <= 1 for gamma in gammas):
            raise InputError(f"plan.observabilities: must be in (0, 1], got {gammas}")
        return {
            f"observability {gamma:g}, memory {k}": window_config(scale, k, gamma)
            for gamma in gammas
            for k in choices["lengths"]
        }

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"histories": {"smoke": 64, "small": 8192, "gpu": 32768, "paper": 32768}[scale]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        errors, rates = [], []
        by_gamma: dict[float, dict[int, Run]] = {}
        for run in runs.values():
            by_gamma.setdefault(run.config.process.observability, {})[run.config.layout.num_columns - 1] = run
        for gamma, memories in by_gamma.items():
            first = next(iter(memories.values()))
            histories = histories_of(first, max(max(memories), 4), sizes["histories"])
            assert isinstance(first.process, HMM)
            rows = [row for k, run in memories.items() for row in window_rows(run, histories, k)]
            errors += [{"observability": gamma} | row for row in rows]
            rank = {"observability": gamma, "rank": first.config.process.rank}
            rates.append(rank | exact_rate(histories, first.process, [1, 2, 3, 4]))
        return {"errors": errors, "rates": rates}

    def figures(self, tables: Tables) -> list[Figure]:
        rows, rates = tables["errors"], tables["rates"]
        memories = sorted({row["memory"] for row in rows})
        names = {
            "memory": ("best from the same observations", "optimum"),
            "model": ("model", "model"),
            "stationary": ("nothing seen", "baseline"),
            "untrained": ("model before training", "control"),
        }
        panels = []
        for k in (memories[0], memories[-1]):
            here = of(rows, memory=k, metric="total_variation")
            series = tuple(curve(of(here, predictor=key), "observability", *name) for key, name in names.items())
            title, y_label = f"{k} observation{'s' * (k != 1)} seen", "total variation from the filter of the past"
            panels.append(Lines(title=title, x_label="observability", y_label=y_label, series=series, log_y=True))
        exact = [row | {"value": row["rate"]} for row in rates if row["rate"] is not None]
        mixing = [row | {"value": row["mixing"]} for row in rates if row["mixing"] is not None]
        shown = [
            curve(found, "observability", name, role)
            for found, name, role in (
                (exact, "exact memory error", "optimum"),
                (mixing, "the chain alone (no observation)", "baseline"),
            )
            if found
        ]
        if shown:
            decay = Lines(
                title="Decay in memory",
                x_label="observability",
                y_label="rate, nats per observation",
                series=tuple(shown),
            )
            panels.append(decay)
        return [
            Figure(
                name="observability",
                title="Error and its decay, by observability",
                caption=(
                    "Total variation from the filter of the whole past for the shortest and the longest memory, by "
                    "observability, and the rate at which the exact error of a memory decays in its length. With weak "
                    "observations there is little to know, so all errors are small there: compare with nothing seen. "
                    "Bands are 95 % intervals over seeds, each with its own hidden chain."
                ),
                panels=tuple(panels),
            )
        ]

    def notes(self, tables: Tables) -> list[Finding]:
        exponent = by_seed(tables["rates"], exponent_of)
        if exponent is None:
            return []
        text = (
            "What observations add to the decay of the exact memory error (its rate less that of the chain alone) grows "
            f"like gamma^{exponent.value:.2f} up to gamma = {WEAK:g}; the lemma guarantees gamma^4 times a constant."
        )
        return [
            Finding(
                title="The exponent of the observability",
                text=text,
                verdict="found",
                value=exponent.value,
                low=exponent.low,
                high=exponent.high,
                unit="exponent of gamma",
            )
        ]


def exponent_of(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Slope of ln(rate - mixing) against ln(observability) up to `WEAK`, of one seed; None below two such points."""
    points = [
        (row["observability"], row["rate"] - row["mixing"])
        for row in rows
        if row["observability"] <= WEAK and row["rate"] is not None and row["mixing"] is not None
    ]
    points = [(gamma, excess) for gamma, excess in points if excess > 0]
    if len(points) < 2:
        return None
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])
