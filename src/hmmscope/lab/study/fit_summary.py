"""Goodness of fit, parameter uncertainty and forecast of the HMM that a study chooses by BIC."""

from collections.abc import Mapping, Sequence
from typing import Any

from hmmscope.errors import InputError
from hmmscope.inference.gibbs import Chains, DirichletPrior
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.figure import Bars, Figure, Series
from hmmscope.lab.evidence.panels import curve, lines
from hmmscope.lab.evidence.rows import Rows
from hmmscope.runs.goodness import goodness_of_fit
from hmmscope.runs.posterior import FitData
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.vector_data import VectorData

#: Settings of the posterior draws, and most operations that they may cost; above that, parameters have no intervals.
CHAINS, MOST = Chains(num_draws=200, num_chains=2, warm_up=100), 2e10
#: Numbers of simulated data sets and of forecast steps, and most symbols of a forecast and entries of an array in figures.
SIMULATIONS, STEPS, SYMBOLS, ENTRIES = 100, 12, 5, 24


def tables_of_fit(hmm: Any, train: SequenceData | VectorData) -> dict[str, list[dict[str, Any]]]:
    material, models = FitData(train, restricted=False), [hmm]
    entries: list[dict[str, Any]] = []
    ahead: list[dict[str, Any]] = []
    sweeps = CHAINS.num_chains * (CHAINS.warm_up + CHAINS.num_draws)
    width = hmm.num_symbols**2 if isinstance(train, VectorData) else 1
    if sweeps * train.num_observations * hmm.num_states**2 * width <= MOST:
        try:
            posterior = material.posterior(hmm, DirichletPrior(), CHAINS, {})
        except InputError:  # matching labels needs scipy
            posterior = None
        if posterior is not None:
            models = posterior.models(SIMULATIONS)
            entries = [row | {"entry": ">".join(map(str, row["entry"]))} for row in posterior.table()]
            entries = [row | {key: None for key, value in row.items() if value != value} for row in entries]
            names = (train.columns if isinstance(train, VectorData) else train.symbols) or [
                str(v) for v in range(hmm.num_symbols)
            ]
            rows = posterior.forecast(material.sequences[-1], STEPS).table()
            ahead = [row | {"symbol": names[row["outcome"]]} for row in rows]
    found = goodness_of_fit(models, material.sequences, SIMULATIONS)
    shown = [
        row | {"p": found.p_values[row["family"]], "adjusted": found.adjusted[row["family"]]} for row in found.rows
    ]
    return {"goodness": shown, "entries": entries, "forecast": ahead}


def figures_of_fit(tables: Mapping[str, Sequence[dict[str, Any]]]) -> list[Figure]:
    found = []
    if tables.get("goodness"):
        found.append(_goodness(tables["goodness"]))
    if tables.get("entries"):
        found.append(_entries(tables["entries"]))
    if tables.get("forecast"):
        symbols = any(row["array"] == "emission" for row in tables["entries"])
        found.append(_forecast(tables["forecast"], "probability" if symbols else "value"))
    return found


def _goodness(rows: Sequence[dict[str, Any]]) -> Figure:
    panels = []
    for family in dict.fromkeys(row["family"] for row in rows):
        own = Rows([row | {"x": x} for x, row in enumerate((row for row in rows if row["family"] == family), 1)])
        of_data = curve(own, "x", "data", "model", bands=False, pool=False)
        simulated = curve(own, "x", "simulated, 95 %", "ceiling", y="mean", pool=False)
        label = {"runs": "run length (the last point includes longer runs)", "autocorrelation": "lag"}
        x_label = label.get(family.split()[0], "n-grams, the most frequent first")
        title = f"{family}, p {own[0]['adjusted']:.2g}"
        panels.append(lines(title, of_data, simulated, x_label=x_label, y_label="statistic"))
    return Figure(
        name="goodness",
        title="Goodness of fit of the HMM chosen by BIC",
        caption="Each panel shows one family of statistics of the training part, with mean and 95 % band over "
        f"{SIMULATIONS} simulations of the HMM. p is the p-value of the family's largest deviation, times the number "
        "of families.",
        panels=tuple(panels),
    )


def _entries(rows: Sequence[dict[str, Any]]) -> Figure:
    panels = []
    for array in [name for name in dict.fromkeys(row["array"] for row in rows) if name != "initial"]:
        own = sorted((row for row in rows if row["array"] == array), key=lambda row: -row["mean"])[:ENTRIES]
        effects = [Effect(value=row["mean"], low=row["low"], high=row["high"]) for row in own]
        series = (Series.of(effects, "posterior", "model"),)
        panels.append(
            Bars(title=array, y_label=_measured(array), categories=tuple(row["entry"] for row in own), series=series)
        )
    return Figure(
        name="entries",
        title="Parameter uncertainty of the HMM chosen by BIC",
        caption="Posterior means with 95 % intervals of the largest parameters, by Gibbs sampling with uniform priors "
        "on rows of probabilities. The label i>j means the transition from state i to state j, or symbol (or "
        "coordinate) j in state i.",
        panels=tuple(panels),
    )


def _measured(array: str) -> str:
    return "probability" if array in ("transition", "emission") else "value"


def _forecast(rows: Sequence[dict[str, Any]], y_label: str) -> Figure:
    last = max(row["step"] for row in rows)
    order = sorted((row for row in rows if row["step"] == last), key=lambda row: -row["mean"])[:SYMBOLS]
    series = [
        curve(
            Rows([one for one in rows if one["outcome"] == row["outcome"]]), "step", row["symbol"], y="mean", pool=False
        )
        for row in order
    ]
    return Figure(
        name="forecast",
        title="Forecast after the last training piece",
        caption="Predictions of the HMM chosen by BIC. For symbols, curves show the probabilities of the symbols that "
        "are most likely at the last step, with 95 % intervals over the posterior of the parameters. For numbers, "
        "curves show predictive means with 95 % predictive intervals.",
        panels=(lines("", *series, x_label="steps ahead", y_label=y_label),),
    )
