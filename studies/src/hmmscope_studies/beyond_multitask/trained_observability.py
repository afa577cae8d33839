"""Error of predictions from a short memory, by observability, in trained models."""

import math
from typing import Any

from hmmscope import HMM, Run, registry, require_process_type
from hmmscope.lab import Experiment, Figure, MeasuredTables, Measurement, Panel, Rows, Tables, claim, curve, lines
from hmmscope.schema import require
from hmmscope_studies.beyond_multitask.studies import untrained_answers, window_config
from hmmscope_studies.beyond_multitask.windows import LOOKS, exact_rate, fitted_line, histories_of, window_rows

#: Largest observability in the fit of its exponent, which describes weak observations.
WEAK = 0.6


@registry.experiment("multitask-observability")
class ObservabilityExperiment(Experiment):
    """One decoder per observability and memory length, for the same hidden chain."""

    title = "Error of trained models, by observability"
    summary = (
        "Lemma 1 of [MultiTask] bounds the error of a memory of L observations by d exp(-c gamma^4 L) for rank d, "
        "where gamma is the observability coefficient of the emissions. The emission is a symmetric channel of chosen "
        "gamma over the same hidden chain; a decoder is trained for each gamma and each of several memory lengths, and "
        "its error is compared with that of the best predictor from the same observations. The constant c is unknown, "
        "so exponents are fitted and no bound is drawn."
    )
    num_seeds = Experiment.NUM_SEEDS
    groups = {"observability": ("errors", "rates")}
    sizes = {
        "smoke": {"histories": 64},
        "small": {"histories": 8192},
        "gpu": {"histories": 32768},
        "paper": {"histories": 32768},
    }

    def choices(self, scale: str) -> dict[str, Any]:
        gammas = {"smoke": [0.4, 0.8], "small": [0.2, 0.4, 0.6, 0.8]}
        lengths = {"smoke": [1, 2], "small": [1, 2, 3], "gpu": [1, 2, 3, 4], "paper": [1, 2, 3, 4, 6]}
        more = [0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0]
        return {"observabilities": gammas.get(scale, more), "lengths": lengths[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        gammas = choices["observabilities"]
        require(all(0 < gamma <= 1 for gamma in gammas), "plan.observabilities", "must be in (0, 1]", gammas)
        return {
            f"observability {gamma:g}, memory {k}": window_config(scale, k, gamma)
            for gamma in gammas
            for k in choices["lengths"]
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        errors, rates = [], []
        by_gamma: dict[float, dict[int, Run]] = {}
        for run in runs.values():
            by_gamma.setdefault(run.config.process.observability, {})[run.config.layout.context_length - 1] = run
        for gamma, memories in by_gamma.items():
            first = next(iter(memories.values()))
            histories = histories_of(first, max(max(memories), 4), sizes["histories"])
            rows = [row for k, run in memories.items() for row in window_rows(run, histories, k)]
            errors += [{"observability": gamma} | row for row in rows]
            rank = {"observability": gamma, "rank": first.config.process.rank}
            rates.append(rank | exact_rate(histories, require_process_type(first.process, HMM), [1, 2, 3, 4]))
        return {"errors": errors, "rates": rates}

    def figures(self, tables: Tables) -> list[Figure]:
        rows, rates = tables["errors"].where(metric="total_variation"), tables["rates"]
        memories = sorted(rows.values("memory"))
        looks = {**LOOKS, "memory": ("best from the same observations", "optimum")}

        def panel(k: int) -> Panel:
            own = rows.where(memory=k)
            series = [curve(own.where(predictor=name), "observability", *look) for name, look in looks.items()]
            title, y_label = f"{k} observation{'s' * (k != 1)} seen", "total variation from the filter of the past"
            return lines(title, *series, x_label="observability", y_label=y_label, log_y=True)

        decay = [
            curve(rates, "observability", "exact memory error", "optimum", y="rate"),
            curve(rates, "observability", "the chain alone (no observation)", "baseline", y="mixing"),
        ]
        panels = [panel(memories[0]), panel(memories[-1])]
        if any(decay):
            labels = {"x_label": "observability", "y_label": "rate, nats per observation"}
            panels.append(lines("Decay in memory", *decay, **labels))
        return [
            Figure(
                name="observability",
                title="Error and its decay rate, by observability",
                caption=(
                    "Left and middle: total variation from the filter of the whole past for the shortest and the longest "
                    "memory, against observability. Right: decay rate of the exact memory error (best predictor's). If "
                    "observations are weak, all errors are small, because predictions without observations are nearly "
                    "right. Bands are 95 % intervals over seeds, each with its own hidden chain."
                ),
                panels=tuple(panels),
            )
        ]

    def without_training(self, tables: Tables) -> Tables | None:
        return untrained_answers(tables, "errors")


# ---------------------------------------------------------------------------------------------------------------------
# Claims


@claim("multitask-observability-rate")
def observability_rate(tables: Tables) -> Measurement:
    rates = tables["rates"]
    slope = rates.per_seed(_rate_slope).effect("nats per observation and unit of observability")
    each = {gamma: own.effect("rate") for gamma, own in sorted(rates.by("observability").items())}
    listed = ", ".join(f"{gamma:g}: {rate}" for gamma, rate in each.items() if rate is not None)
    return Measurement(slope, f"Decay rate of the exact memory error, by observability: {listed}. {_slowed(rates)}")


@claim("multitask-observability-exponent")
def exponent(tables: Tables) -> Measurement:
    rates = tables["rates"]
    by_seed = rates.per_seed(exponent_of)
    effect = by_seed.effect("exponent of gamma")
    have = [value for value in by_seed.values() if value is not None]
    found = f"An exponent of gamma was fitted in {len(have)} of {len(by_seed)} seeds"
    said = f"{found}: {', '.join(f'{value:.1f}' for value in have)}." if have else f"{found}."
    return Measurement(effect, f"{said} {_slowed(rates.where(observability=_weak(rates)))}")


def exponent_of(rows: Rows) -> float | None:
    """Return the slope of ln(decay rate - mixing rate) in ln(observability), up to `WEAK`; None if undefined."""
    gains = {gamma: _gain(rows.one(observability=gamma)) for gamma in _weak(rows)}
    known = {math.log(gamma): math.log(gain) for gamma, gain in gains.items() if gain is not None and gain > 0}
    return fitted_line(known)[0] if 2 <= len(known) == len(gains) else None


def _rate_slope(rows: Rows) -> float | None:
    rates = {row["observability"]: row["rate"] for row in rows if row["rate"] is not None}
    return fitted_line(rates)[0] if len(rates) > 1 else None


def _gain(row: dict[str, Any]) -> float | None:
    return None if row["rate"] is None or row["mixing"] is None else row["rate"] - row["mixing"]


def _slowed(rates: Rows) -> str:
    slow = Rows(row for row in rates if (gain := _gain(row)) is not None and gain <= 0)
    if not slow:
        return "At no tested observability do observations slow the forgetting of the chain."
    where = ", ".join(
        f"gamma = {gamma:g} in {len(own)} of {_count(rates, gamma)} seeds" for gamma, own in _by_gamma(slow)
    )
    return f"Observations slow the forgetting of the chain at {where}, because they retain what the chain alone would lose."


def _by_gamma(rows: Rows) -> list[tuple[float, Rows]]:
    return sorted(rows.by("observability").items())


def _count(rows: Rows, gamma: float) -> int:
    return len(rows.where(observability=gamma))


def _weak(rows: Rows) -> list[float]:
    return [gamma for gamma in _gammas(rows) if gamma <= WEAK]


def _gammas(rows: Rows) -> list[float]:
    return sorted(rows.values("observability"))
