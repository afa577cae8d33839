"""Figures and findings of a study, from its tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from hmmscope import ties
from hmmscope.analysis.untrained_controls import LEAST_SHARE
from hmmscope.inference.monte_carlo import FEW
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.figure import Bars, Figure, Series
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.panels import curve, level, lines
from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.evidence.verdicts import answer
from hmmscope.lab.study.fit_summary import figures_of_fit
from hmmscope.ties import descending

SUMMARY = (
    "This page compares predictors of the next symbol on sequences with an unknown distribution: n-grams, the mixture of "
    "all context trees, hidden Markov models of growing size, and networks. All are fitted to the training part, where the "
    "n-gram baselines are also tuned. The validation part chooses the order of the n-gram and the training length of each "
    "network. The HMM compared with the networks is the one chosen by BIC, unless another has a lower validation loss "
    "by more than a standard error. All losses are on the test part. Lower losses in some contexts show what the "
    "best network knows beyond the best HMM. Regression of the HMM's belief on its layers shows how much of the HMM the "
    "network encodes."
)
_NATS = "nats per symbol"
#: Adjusted p-value up to which the data differ from simulations.
LEVEL = 0.05
#: Maximum contexts in the figure.
_DRAWN = 12

Tables = Mapping[str, Sequence[dict[str, Any]]]


def intervals(num_pieces: int, num_sequences: int, num_all: int) -> str:
    """Describe the units over which intervals are computed.

    Args:
        num_pieces: Number of test pieces.
        num_sequences: Number of given sequences.
        num_all: Number of all pieces.
    """
    cut = num_all > num_sequences
    of = f"{num_sequences} sequence{'s' * (num_sequences != 1)}"
    which = f"pieces cut from {of}" if cut else "sequences"
    if num_pieces == 1:
        return f"There are no intervals: the test part has only one of {num_all} {which}."
    alone = "; neighbouring pieces are assumed to be independent" if cut else ""
    law = "by Student's t distribution" if num_pieces < FEW else "by the bootstrap (1000 resamples)"
    return (
        f"Intervals are 95 % intervals over the test part, {num_pieces} of {num_all} {which}, {law}{alone}. They do not "
        "include the variation between trainings."
    )


def figures(tables: Tables) -> list[Figure]:
    """Return figures of predictors, loss by position and context, and the belief by layer."""
    found = [_predictors(Rows(tables["predictors"]))]
    if tables["positions"]:
        found.append(_positions(tables))
    if tables["contexts"]:
        found.append(_contexts(Rows(tables["contexts"])))
    if tables["beliefs"]:
        found.append(_beliefs(Rows(tables["beliefs"])))
    return [*found, *figures_of_fit(tables)]


def _chosen(tables: Tables, family: str) -> Mapping[str, Any]:
    return next(row for row in tables["predictors"] if row["family"] == family and row["chosen"])


def _predictors(rows: Rows) -> Figure:
    networks = dict.fromkeys(row["network"] for row in rows.where(family="network"))
    families = [
        curve(rows.where(family="n-gram"), "parameters", "n-grams by order", "baseline", pool=False),
        curve(rows.where(family="context trees"), "parameters", "context trees", "baseline", pool=False),
        curve(rows.where(family="HMM"), "parameters", "HMMs by number of states", "ceiling", pool=False),
        *(curve(rows.where(network=name), "parameters", name, "model", pool=False) for name in networks),
    ]
    sizes = rows.where(family="HMM")
    return Figure(
        name="predictors",
        title="Loss of all predictors of the next symbol",
        caption="Loss on the test part. Left: all predictors by number of parameters: distinct n-grams seen, free "
        "parameters of an HMM, weights of a network. Right: the HMMs on the validation part and on the test part.",
        panels=(
            lines("All predictors", *families, x_label="parameters", y_label=_NATS, log_x=True),
            lines(
                "HMMs",
                curve(sizes, "size", "test", "ceiling", pool=False),
                curve(sizes, "size", "validation", "control", y="validation", bands=False, pool=False),
                x_label="states",
                y_label=_NATS,
                log_x=True,
            ),
        ),
    )


def _positions(tables: Tables) -> Figure:
    rows = Rows(tables["positions"])
    looks = {"n-gram": "baseline", "context trees": "baseline", "HMM": "ceiling", "network": "model"}
    series = []
    for family, role in looks.items():
        name = _chosen(tables, family)["name"]
        series.append(curve(rows.where(name=name), "seen", name, role, pool=False))  # type: ignore[arg-type]
    return Figure(
        name="positions",
        title="Loss by the number of symbols seen",
        caption="The best n-gram, the context trees, the best HMM and the best network on the test part. A "
        "curve that keeps falling uses more of the past.",
        panels=(lines("", *series, x_label="symbols seen before", y_label=_NATS),),
    )


def _contexts(rows: Rows) -> Figure:
    panels = []
    for k in sorted(rows.values("symbols_before")):
        own = sorted(rows.where(symbols_before=k), key=lambda row: -row["count"] * row["value"])[:_DRAWN]
        effects = [Effect(value=row["value"], low=row["low"], high=row["high"]) for row in own]
        names = tuple(f"{row['context']}|{row['next']}" for row in own)
        title = f"after {k} symbol{'s' * (k != 1)}"
        series = (Series.of(effects, "gain of the network", "model"),)
        panels.append(Bars(title=title, y_label=f"{_NATS} there", categories=names, series=series))
    return Figure(
        name="contexts",
        title="Loss of the HMM minus loss of the network, by context",
        caption="Mean loss of the HMM minus that of the network, after the contexts with the largest total gain; the symbol "
        "after the bar | gains most. The table has more contexts, including those where the HMM is better.",
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
    series.append(level(alone, layers, "from the HMM's next-symbol distribution alone", "baseline"))
    return Figure(
        name="beliefs",
        title="The HMM's belief state in the layers of the network",
        caption="Held-out R² of the affine regression of the HMM's belief state on the residual stream.",
        panels=(lines("", *series, x_label="layer", y_label="R²", y_min=0.0, y_max=1.0),),
    )


def findings(tables: Tables, num_seeds: int) -> list[Finding]:
    """Return findings: the best predictor, the network's gain, and whether the network encodes the belief."""
    gram, tree, hmm, net = (_chosen(tables, family) for family in ("n-gram", "context trees", "HMM", "network"))
    (best,) = tables["chosen"]
    gain = Effect(value=best["value"], low=best["low"], high=best["high"], unit=_NATS)
    title, alone = f"The best network {_compared(gain)} the best HMM", net["pieces"] < 2
    if alone:  # no estimate of the variation between pieces
        title = "With one test piece it is undecided whether the best network beats the best HMM"
    seeds = f"{num_seeds} seed{'s' * (num_seeds != 1)} of each network"
    losses = f"{gram['value']:.4f} (n-gram of order {gram['size']}), {tree['value']:.4f} (context trees), "
    losses += f"{hmm['value']:.4f} (HMM of {hmm['size']} state{'s' * (hmm['size'] != 1)})"
    found = [
        _found(
            title,
            f"Test losses in nats per symbol: {losses}, "
            f"{net['value']:.4f} ({net['network']}, {net['size']} steps; {seeds}).",
            Effect(value=best["value"], unit=_NATS) if alone else gain,
        )
    ]
    if "counting" in best and not alone:
        over = Effect(
            value=best["over_counting_value"],
            low=best["over_counting_low"],
            high=best["over_counting_high"],
            unit=_NATS,
        )
        text = f"Compared with {_called(best['counting'])}, the better n-gram baseline on the test part."
        found.append(_found(f"The best network {_compared(over)} the n-gram baselines", text, over))
    for row in tables.get("states", ()):
        if row["chosen"]:
            found.append(_found(f"Number of states by BIC: {row['num_states']}", f"{row['reason']}."))
    if tables.get("goodness"):
        ps = {row["family"]: row["adjusted"] for row in tables["goodness"]}
        bad = [family for family, p in ps.items() if p <= LEVEL]
        title = f"The data {'differ from' if bad else 'are consistent with'} the HMM chosen by BIC"
        each = ", ".join(f"{family} {p:.3f}" for family, p in ps.items())
        found.append(
            _found(title, f"p-value of each family of statistics against simulations, times their number: {each}.")
        )
    first = [row for row in tables["contexts"] if row["symbols_before"] == 2] or list(tables["contexts"])
    surely = [row for row in first if row["low"] > 0]
    if surely and best["low"] > 0 and not alone:
        foremost = [surely[place] for place in descending([row["share"] for row in surely])[:5]]
        shown = ", ".join(f"{row['context']}|{row['next']} ({100 * row['share']:.1f} %)" for row in foremost)
        total = 100 * sum(row["share"] for row in surely)
        text = f"Preceding symbols that lower the loss most, with their fractions of the whole fall: {shown}. "
        text += f"{len(surely)} contexts whose interval is above zero account for {total:.0f} % of the gain."
        found.append(_found("Gain of the network over the HMM by context", text))
    if tables["beliefs"]:
        rows = Rows(tables["beliefs"]).where(labels="true")
        top, before = (
            ties.largest(rows.where(network=name), lambda row: row["r2"]) for name in ("trained", "untrained")
        )
        text = f"R² {top['r2']:.3f} at {top['layer_name']}; untrained network {before['r2']:.3f} at {before['layer_name']}; "
        text += f"R² from the HMM's next-symbol distribution alone {top['from_prediction']:.3f}."
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


def _called(name: str) -> str:
    return f"the n-gram of order {name.removeprefix('n-gram-')}" if name.startswith("n-gram-") else "the context trees"


def _found(title: str, text: str, effect: Effect | None = None) -> Finding:
    numbers = (
        {} if effect is None else {"value": effect.value, "low": effect.low, "high": effect.high, "unit": effect.unit}
    )
    verdict = "answered" if effect is None else answer(effect.low, effect.high)
    return Finding(title=title, text=text, verdict=verdict, **numbers)  # type: ignore[arg-type]
