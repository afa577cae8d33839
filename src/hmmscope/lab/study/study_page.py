"""Figures and findings of a study, made from its tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hmmscope import ties
from hmmscope.analysis.untrained_controls import LEAST_SHARE
from hmmscope.inference.monte_carlo import FEW
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.figure import Bars, Figure, Panel, Series
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.panels import curve, level, lines
from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.evidence.verdicts import answer
from hmmscope.lab.report.formatting import shorten
from hmmscope.lab.study.fit_summary import figures_of_fit
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.vector_data import VectorData
from hmmscope.ties import descending

#: For each family of baselines: its name in a legend, and the name of one predictor in sentences.
_BASELINES = {
    "n-gram": ("n-grams by order", "the n-gram of order {size}"),
    "context trees": ("context trees", "the context trees"),
    "autoregression": ("autoregressions by order", "the autoregression of order {size}"),
}


def summary(counting: Sequence[str], data: SequenceData | VectorData) -> str:
    symbols, names = "n-gram" in counting, ", ".join(data.alphabets) if isinstance(data, VectorData) else ""
    mixed = (
        f" Columns of names ({names}) are channels: given the state, an HMM emits each name independently, and "
        "autoregressions of order 1 and more predict a name from the preceding name only. For such data there are no "
        "parameter intervals and no forecast."
    )
    simple = "n-grams, the mixture of all context trees" if symbols else "Gaussian autoregressions"
    return (
        f"This page compares predictors of the next {'symbol' if symbols else 'observation'} on sequences with an unknown "
        f"distribution: {simple}, {'' if symbols else 'Gaussian '}hidden Markov models of growing size, and networks. All "
        f"are fitted to the training part{', where the n-gram baselines are also tuned' if symbols else ''}. The "
        f"validation part chooses the order of the {'n-gram' if symbols else 'autoregression'} and the training length of "
        "each network. The networks are compared with the HMM chosen by BIC, or with the HMM with the lowest "
        "validation loss if it is better by more than one standard error of the difference. All losses are on the test part"
        + (
            ". Contexts in which the network has the lower loss show what the best network knows beyond the best HMM"
            if symbols
            else "; they are negative log densities, which may be below zero"
        )
        + ". Regressing the HMM's belief on the layers of the network shows how much of the belief the network encodes."
        + mixed * bool(names)
    )


#: Largest adjusted p-value at which the data count as different from simulations.
LEVEL = 0.05
#: Most contexts in a panel of the figure.
_DRAWN = 12

Tables = Mapping[str, Sequence[dict[str, Any]]]


def intervals(num_pieces: int, num_sequences: int, num_all: int) -> str:
    """Return sentences on how the intervals of test losses were computed.

    Args:
        num_pieces: Number of test pieces.
        num_sequences: Number of sequences before they were cut.
        num_all: Number of pieces in all parts.
    """
    cut = num_all > num_sequences
    of = f"{num_sequences} sequence{'s' * (num_sequences != 1)}"
    which = f"pieces cut from {of}" if cut else "sequences"
    if num_pieces == 1:
        return f"There are no intervals: the test part has only one of {num_all} {which}."
    alone = "; neighbouring pieces are assumed to be independent" if cut else ""
    law = "by Student's t distribution" if num_pieces < FEW else "by the bootstrap (1000 resamples)"
    return (
        f"Intervals are 95 % intervals over the test part ({num_pieces} of {num_all} {which}), {law}{alone}. They do "
        "not include the variation between trainings."
    )


def figures(tables: Tables) -> list[Figure]:
    found = [_predictors(Rows(tables["predictors"]))]
    if tables["positions"]:
        found.append(_positions(tables))
    if tables.get("contexts"):
        found.append(_contexts(Rows(tables["contexts"])))
    if tables["beliefs"]:
        found.append(_beliefs(Rows(tables["beliefs"])))
    return [*found, *figures_of_fit(tables)]


def _nats(rows: Iterable[Mapping[str, Any]]) -> str:
    return f"nats per {'observation' if any(row['family'] == 'autoregression' for row in rows) else 'symbol'}"


def _simple(tables: Tables) -> list[Mapping[str, Any]]:
    families = [family for family in _BASELINES if any(row["family"] == family for row in tables["predictors"])]
    return [_chosen(tables, family) for family in families]


def _chosen(tables: Tables, family: str) -> Mapping[str, Any]:
    return next(row for row in tables["predictors"] if row["family"] == family and row["chosen"])


def _predictors(rows: Rows) -> Figure:
    networks = dict.fromkeys(row["network"] for row in rows.where(family="network"))
    families = [
        *(
            curve(rows.where(family=family), "parameters", said, "baseline", pool=False)
            for family, (said, _) in _BASELINES.items()
        ),
        curve(rows.where(family="HMM"), "parameters", "HMMs by number of states", "ceiling", pool=False),
        *(curve(rows.where(network=name), "parameters", name, "model", pool=False) for name in networks),
    ]
    sizes, unit = rows.where(family="HMM"), _nats(rows)
    simple = "distinct n-grams seen" if unit.endswith("symbol") else "coefficients of an autoregression"
    return Figure(
        name="predictors",
        title=f"Loss of all predictors of the next {unit.removeprefix('nats per ')}",
        caption=f"Left: test loss of each predictor over its number of parameters ({simple}, free parameters of an HMM, "
        "weights of a network). Right: loss of the HMMs on the validation and test parts over the number of states.",
        panels=(
            lines("All predictors", *families, x_label="parameters", y_label=unit, log_x=True),
            lines(
                "HMMs",
                curve(sizes, "size", "test", "ceiling", pool=False),
                curve(sizes, "size", "validation", "control", y="validation", bands=False, pool=False),
                x_label="states",
                y_label=unit,
                log_x=True,
            ),
        ),
    )


def _positions(tables: Tables) -> Figure:
    rows = Rows(tables["positions"])
    looks = [(row["name"], "baseline") for row in _simple(tables)]
    looks += [(_chosen(tables, family)["name"], role) for family, role in (("HMM", "ceiling"), ("network", "model"))]
    unit = _nats(tables["predictors"])
    series = []
    for name, role in looks:
        series.append(curve(rows.where(name=name), "seen", name, role, pool=False))  # type: ignore[arg-type]
    return Figure(
        name="positions",
        title=f"Loss by the number of {unit.removeprefix('nats per ')}s seen",
        caption="Test loss of the best simple predictors, HMM and network over the number of preceding observations. A "
        "predictor with a curve that keeps falling uses more of the past.",
        panels=(lines("", *series, x_label=f"{unit.removeprefix('nats per ')}s seen before", y_label=unit),),
    )


def _contexts(rows: Rows) -> Figure:
    panels: list[Panel] = []
    words = {row["context"]: row["context"].split(" ") for row in rows}
    known = list(dict.fromkeys(word for row in rows for word in (*words[row["context"]], row["next"])))
    short = dict(zip(known, shorten(known, 5), strict=True))
    for k in sorted(rows.values("symbols_before")):
        own = sorted(rows.where(symbols_before=k), key=lambda row: -row["count"] * row["value"])[:_DRAWN]
        effects = [Effect(value=row["value"], low=row["low"], high=row["high"]) for row in own]
        names = tuple(f"{' '.join(short[word] for word in words[row['context']])}|{short[row['next']]}" for row in own)
        title = f"after {k} symbol{'s' * (k != 1)}"
        series = (Series.of(effects, "gain of the network", "model"),)
        panels.append(Bars(title=title, y_label="nats per symbol after the context", categories=names, series=series))
    return Figure(
        name="contexts",
        title="Loss of the HMM minus loss of the network, by context",
        caption="Bars show the mean loss of the HMM minus the mean loss of the network after a context, for the "
        "contexts with the largest total difference. Labels are context|symbol that contributes most to it.",
        panels=tuple(panels),
    )


def _beliefs(rows: Rows) -> Figure:
    layers = sorted(rows.values("layer"))
    alone = rows[0]["from_prediction"]
    shown = (
        ("trained", "true", "trained network", "model"),
        ("untrained", "true", "untrained network", "control"),
        ("trained", "shuffled", "shuffled beliefs", "control"),
    )
    series = [
        curve(rows.where(network=network, labels=labels), "layer", name, role, y="r2", pool=False)  # type: ignore[arg-type]
        for network, labels, name, role in shown
    ]
    series.append(level(alone, layers, "R² of the belief from the HMM's next-symbol distribution alone", "baseline"))
    return Figure(
        name="beliefs",
        title="The HMM's belief state in the layers of the network",
        caption="Held-out R² of affine maps from each layer of the residual stream to the HMM's belief state.",
        panels=(lines("", *series, x_label="layer", y_label="R²", y_min=0.0, y_max=1.0),),
    )


def findings(tables: Tables, num_seeds: int) -> list[Finding]:
    hmm, net = (_chosen(tables, family) for family in ("HMM", "network"))
    (best,), simple, unit = tables["chosen"], _simple(tables), _nats(tables["predictors"])
    gain = Effect(value=best["value"], low=best["low"], high=best["high"], unit=unit)
    title, alone = f"The best network {_compared(gain)} the best HMM", net["pieces"] < 2
    if alone:  # no estimate of the variation between pieces
        title = "With one test piece it is undecided whether the best network beats the best HMM"
    seeds = f"{num_seeds} seed{'s' * (num_seeds != 1)} of each network"
    losses = "".join(f"{row['value']:.4f} ({_called(row).removeprefix('the ')}), " for row in simple)
    losses += f"{hmm['value']:.4f} (HMM of {hmm['size']} state{'s' * (hmm['size'] != 1)})"
    found = [
        _found(
            title,
            f"Test losses in {unit}: {losses}, {net['value']:.4f} ({net['network']}, {net['size']} steps; {seeds}).",
            Effect(value=best["value"], unit=unit) if alone else gain,
        )
    ]
    if "counting" in best and not alone:
        over = Effect(
            value=best["over_counting_value"], low=best["over_counting_low"], high=best["over_counting_high"], unit=unit
        )
        rival, symbols = next(row for row in simple if row["name"] == best["counting"]), unit.endswith("symbol")
        better = ", which is the better n-gram baseline on the test part" * symbols
        title = f"The best network {_compared(over)} the {'n-gram baselines' if symbols else 'autoregressions'}"
        found.append(_found(title, f"Compared with {_called(rival)}{better}.", over))
    for row in tables.get("states", ()):
        if row["chosen"]:
            found.append(
                _found(
                    f"By BIC, {row['num_states']} hidden state{'s' * (row['num_states'] > 1)} fit best",
                    f"{row['reason']}.",
                )
            )
    if tables.get("goodness"):
        ps = {row["family"]: row["adjusted"] for row in tables["goodness"]}
        bad = [family for family, p in ps.items() if p <= LEVEL]
        title = f"The data {'differ from' if bad else 'are consistent with'} the HMM chosen by BIC"
        each = ", ".join(f"{family} {p:.3f}" for family, p in ps.items())
        found.append(_found(title, f"p-values of families of statistics, times the number of families: {each}."))
    contexts = list(tables.get("contexts", ()))
    first = [row for row in contexts if row["symbols_before"] == 2] or contexts
    surely = [row for row in first if row["low"] > 0]
    if surely and best["low"] > 0 and not alone:
        foremost = [surely[place] for place in descending([row["share"] for row in surely])[:5]]
        shown = ", ".join(f"{row['context']}|{row['next']} ({100 * row['share']:.1f} %)" for row in foremost)
        total = 100 * sum(row["share"] for row in surely)
        text = f"Contexts (preceding|next symbols) in which the network gains most (% of its whole gain): {shown}. "
        text += f"The gain's interval is above zero for {len(surely)} contexts, which account for {total:.0f} % of it."
        found.append(_found("Gain of the network over the HMM by context", text))
    if tables["beliefs"]:
        rows = Rows(tables["beliefs"]).where(labels="true")
        top, before = (
            ties.largest(rows.where(network=name), lambda row: row["r2"]) for name in ("trained", "untrained")
        )
        text = (
            f"R² is {top['r2']:.3f} at {top['layer_name']}; without training, it is {before['r2']:.3f} at "
            f"{before['layer_name']}; "
        )
        text += f"from the HMM's next-symbol distribution alone, R² is {top['from_prediction']:.3f}."
        effect = Effect(value=top["r2"], low=top["low"], high=top["high"], unit="R²")
        if top.get("beyond_twins"):
            text += f" {top['beyond_twins'][0].upper()}{top['beyond_twins'][1:]}."
        share = top.get("share")
        title = "It cannot be determined whether training made the network encode the HMM's belief"
        if share is not None:
            better = top["share_low"] > 0 and share >= LEAST_SHARE
            how = "better after training" if better else "no better after training than before"
            title = f"The HMM's belief can be decoded from the network {how}"
        found.append(_found(title, text, effect))
    return found


def _compared(gain: Effect) -> str:
    assert gain.low is not None
    assert gain.high is not None
    return "beats" if gain.low > 0 else "does not beat" if gain.high < 0 else "does not measurably differ from"


def _called(row: Mapping[str, Any]) -> str:
    return _BASELINES[row["family"]][1].format(size=row["size"])


def _found(title: str, text: str, effect: Effect | None = None) -> Finding:
    numbers = (
        {} if effect is None else {"value": effect.value, "low": effect.low, "high": effect.high, "unit": effect.unit}
    )
    verdict = "answered" if effect is None else answer(effect.low, effect.high)
    return Finding(title=title, text=text, verdict=verdict, **numbers)  # type: ignore[arg-type]
