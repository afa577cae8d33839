"""Which architectures filter an HMM whose matrices stand in the prompt, at which size, and beyond which length."""

from dataclasses import replace
from typing import Any

import numpy as np

from hmmscope import Corpus, Run, evaluate, make_process, registry
from hmmscope.lab import (
    NUM_SEEDS,
    Effect,
    Experiment,
    Figure,
    Measured,
    Rows,
    Seen,
    Tables,
    claim,
    curve,
    lines,
    pooled,
)

NAME = "header-filtering"
LENGTH, TIMES = 32, 4
#: Title and fields of each architecture; widths are those at which parameters are nearest to 100,000.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "rnn": ("RNN", {"name": "rnn", "num_layers": 2, "width": 160}),
    "lstm": ("LSTM", {"name": "lstm", "num_layers": 2, "width": 80}),
    "gru": ("GRU", {"name": "gru", "num_layers": 2, "width": 92}),
    "transformer": ("Transformer, rotary", {"name": "roformer", "num_layers": 2, "width": 64, "num_heads": 4}),
    "transformer-nope": (
        "Transformer, no positions",
        {"name": "decoder", "positions": "none", "input_features": False, "dropout": 0.0}
        | {"num_layers": 2, "width": 64, "num_heads": 4},
    ),
    "linear-attention": (
        "linear attention",
        {"name": "linear-attention", "num_layers": 2, "width": 64, "num_heads": 4},
    ),
    "delta-rule": (
        "delta rule ±",
        {"name": "delta-rule", "negative": True, "num_layers": 2, "width": 64, "num_heads": 4},
    ),
    "mamba2": ("Mamba-2", {"name": "mamba2", "num_layers": 2, "width": 64, "num_heads": 4, "chunk_length": 16}),
}
#: What is kept out of the training, by the process that has it.
REGIONS = {"slow": "told-slow-hmms", "sharp": "told-sharp-hmms"}
#: Nats above the filter of the HMM that is told, below which a model counts as filtering.
NEAR = 0.01
NATS = "nats above the filter"


@registry.experiment(NAME)
class HeaderFiltering(Experiment):
    """Fresh HMMs in sixteenths, told in a header; sizes by architectures, as many samples for all."""

    title = "Who filters an HMM that it is told"
    summary = (
        "A fresh HMM for every sample, whose matrices stand in the prompt, so that nothing can be learned by heart and the "
        "optimum is exact: the filter of the HMM that is told. Three papers of 2025 report that Transformers filter so, and "
        "that LSTMs fail; [Limits] finds RNNs ahead of Transformers on every HMM. Here both stand on one axis, after as "
        "many samples, up to the length of their training and to four times of it, and on slowly mixing and nearly "
        "deterministic HMMs, which training left out."
    )
    num_seeds = NUM_SEEDS
    networks = ("size", "architecture")
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"states": [2], "architectures": ["lstm", "transformer"], "steps": 10},
        "small": {"states": [2, 3], "architectures": ["rnn", "lstm", "transformer"], "steps": 1500},
        "medium": {"states": [2, 3], "architectures": list(ARCHITECTURES), "steps": 4000},
    }
    sizes = {"smoke": {"samples": 16}, "small": {"samples": 512}, "medium": {"samples": 2048}}
    one_by_one = True
    groups = {"excess": ("excess", "positions")}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        steps = choices["steps"]
        training = {"num_steps": steps, "batch_size": 64, "learning_rate": 2e-3, "evaluate_every": 0}
        return {
            f"{size} states, {name}": {
                "process": {"name": "told-hmms", "num_states": size, "num_symbols": size}
                | {"least": 1, "without": list(REGIONS)},
                "layout": {"name": "header", "length": LENGTH},
                "model": ARCHITECTURES[name][1],
                "training": training,
            }
            for size in choices["states"]
            for name in choices["architectures"]
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        tables: Measured = {"excess": [], "positions": []}
        for label, run in runs.items():
            assert run.summary is not None
            size, _, name = label.partition(" states, ")
            about = {"size": int(size), "architecture": name}
            costs = {"parameters": run.summary["parameters"]}
            for place, corpus in _places(run).items():
                for network, model in {"trained": run.model, "untrained": run.untrained()}.items():
                    score = evaluate(model, corpus, num_samples=sizes["samples"], baselines=network == "trained")
                    found = {network: "model"}
                    if network == "trained" and score.baseline is not None:
                        found["counting"] = score.baseline[0]
                    for which, predictor in found.items():
                        values = score.measures[predictor]["excess"]
                        later = values[:, LENGTH:] if place == f"{TIMES} T" else values
                        row = about | {"place": place, "network": which}
                        tables["excess"].append(row | costs | {"value": float(np.mean(later))})
                        tables["positions"] += [
                            row | {"position": int(position), "value": float(value)}
                            for position, value in zip(score.positions, values.mean(0), strict=True)
                            if position & (position - 1) == 0
                        ]
        return tables

    def figures(self, tables: Tables) -> list[Figure]:
        rows = tables["excess"].where(place="T")
        sizes = [_by_size(rows), _by_position(tables["positions"])]
        return [figure for figure in sizes if figure is not None]


def _places(run: Run) -> dict[str, Corpus]:
    """Samples of the length of the training, of `TIMES` its length, and of what it left out."""
    layout, seed, spec = run.config.layout, run.config.seed, run.config.process
    found = {
        "T": run.corpus("evaluate"),
        f"{TIMES} T": Corpus(run.process, layout=replace(layout, length=TIMES * LENGTH), seed=seed, stream="evaluate"),
    }
    sizes = {"num_states": spec.num_states, "num_symbols": spec.num_symbols, "least": spec.least}
    for region, name in REGIONS.items():
        process = make_process(name, **sizes)
        found[region] = Corpus(process, layout=layout, seed=seed, stream="evaluate")
    return found


def _by_size(rows: Rows) -> Figure:
    """Excess against the number of states, a curve an architecture."""
    trained = [
        curve(own, "size", ARCHITECTURES[name][0], "model")
        for name, own in rows.where(network="trained").by("architecture").items()
    ]
    others = [
        curve(rows.where(network="counting"), "size", "counting, no header", "baseline"),
        curve(rows.where(network="untrained"), "size", "before training, mean of all", "control"),
    ]
    return Figure(
        name="excess-by-size",
        title="How far above the filter of the HMM that is told",
        caption="Mean KL divergence from the exact filter, over positions and HMMs. Bands are 95 % intervals over seeds.",
        panels=(lines("", *trained, *others, x_label="states, and symbols", y_label=NATS, y_min=0.0),),
    )


def _by_position(rows: Rows) -> Figure:
    """Excess by position up to several lengths of the training, a panel a size."""
    panels = []
    for size, own in rows.where(place=f"{TIMES} T").by("size").items():
        series = [
            curve(one, "position", ARCHITECTURES[name][0], "model")
            for name, one in own.where(network="trained").by("architecture").items()
        ]
        series.append(curve(own.where(network="counting"), "position", "counting, no header", "baseline"))
        label = f"observations known (trained to {LENGTH})"
        panels.append(lines(f"{size} states, {size} symbols", *series, x_label=label, y_label=NATS, y_min=0.0))
    return Figure(
        name="excess-by-position",
        title="Beyond the length of the training",
        caption="The same by the number of observations that are known. Means over seeds, bands are 95 % intervals.",
        panels=tuple(panels),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _excess(rows: Rows, name: str) -> dict[Any, float]:
    """Nats above the filter, by seed."""
    return rows.where(architecture=name, network="trained").per_seed(lambda own: own[0]["value"])


def _said(rows: Rows) -> str:
    found = []
    for size, own in rows.where(network="trained").by("size").items():
        names = own.values("architecture")
        means = (f"{ARCHITECTURES[name][0]} {np.mean(list(_excess(own, name).values())):.4f}" for name in names)
        found.append(f"{size} states: {', '.join(means)}")
    return f"Nats above the filter: {'; '.join(found) or 'nothing'}."


def _ahead(rows: Rows, one: str, other: str) -> dict[str, Effect]:
    """Excess of one architecture less that of another, by size; seeds are pairs."""
    found = {}
    for size, own in rows.by("size").items():
        first, second = _excess(own, one), _excess(own, other)
        if first and first.keys() == second.keys():
            found[f"{size} states"] = pooled([first[seed] - second[seed] for seed in first], "nats")
    return found


@claim("header-lstm-behind")
def lstm_behind(tables: Tables) -> Seen:
    """Within seed and size, at the length of the training."""
    rows = tables["excess"].where(place="T")
    return Seen(_ahead(rows, "lstm", "transformer") or None, _said(rows))


@claim("header-rnn-ahead")
def rnn_ahead(tables: Tables) -> Seen:
    """Within seed and size, at the length of the training."""
    rows = tables["excess"].where(place="T")
    return Seen(_ahead(rows, "transformer", "rnn") or None, _said(rows))


@claim("header-who-filters")
def who_filters(tables: Tables) -> Seen:
    """The excess of each architecture, at the largest size."""
    rows = tables["excess"].where(place="T")
    largest = rows.where(size=max(rows.values("size"), default=0))
    effects = {name: pooled(list(_excess(largest, name).values()), "nats") for name in largest.values("architecture")}
    return Seen(effects or None, f"{_said(rows)} A model filters where this is below {NEAR}.")


@claim("header-longer")
def longer(tables: Tables) -> Seen:
    """Excess beyond the length of the training less that up to it, by architecture, at the largest size."""
    rows = tables["excess"]
    largest = rows.where(size=max(rows.values("size"), default=0))
    effects = {}
    for name in largest.values("architecture"):
        short, long = (_excess(largest.where(place=place), name) for place in ("T", f"{TIMES} T"))
        if short and short.keys() == long.keys():
            effects[name] = pooled([long[seed] - short[seed] for seed in short], "nats")
    return Seen(effects or None, f"Beyond the training length: {_said(rows.where(place=f'{TIMES} T'))}")
