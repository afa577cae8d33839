"""Figures of `multitask_fig7`."""

from collections.abc import Callable, Mapping

from hmmscope.evidence.figures import Bars, Figure, Heatmap, Lines, Role, Series
from hmmscope.evidence.pooling import pool_rows, rows_with
from hmmscope.experiments.experiment import Tables
from hmmscope.experiments.panels import series_of

_ROLES: dict[str, Role] = {"trained": "model", "untrained": "control", "constructed": "other", "uniform": "baseline"}
_NAMES = {
    "trained": "trained",
    "untrained": "before training",
    "constructed": "network of Theorem 1",
    "uniform": "even attention",
}
_TITLES = {"trained": "Trained", "untrained": "Before training", "constructed": "Theorem 1"}
_SCALES = "The first two maps share their colours; that of Theorem 1 has a scale of its own."


def figures(tables: Tables) -> list[Figure]:
    return [_layers(tables["offsets"]), _heads(tables["offsets"]), _sources(tables["sources"]), _alignment(tables)]


def _layers(rows: list[dict]) -> Figure:
    return Figure(
        name="by-distance",
        title="Where the last token looks, by layer",
        caption=(
            "Share of the attention of the last token that falls on the column so many columns back (0 is itself), "
            f"averaged over heads, prompts and {_seeds(rows)}. The ReLU heads of the network of Theorem 1 are not "
            f"normalised; shown is the share of what they give. Beige: it looks nowhere. {_SCALES}"
        ),
        panels=_maps(
            {network: pool_rows(rows_with(rows, network=network), ["layer", "offset"]) for network in _TITLES},
            "layer",
            lambda row: str(row["layer"]),
        ),
    )


def _heads(rows: list[dict]) -> Figure:
    seed = rows[0]["seed"]
    own = [row for row in rows_with(rows, seed=seed) if row["network"] != "constructed" or row["gathers"]]
    return Figure(
        name="by-head",
        title="Where the last token looks, by head",
        caption=(
            f"As in the figure by layer, for every head (layer.head) of seed {seed}; heads of different seeds are not the "
            f"same heads. Of the network of Theorem 1 those that gather the last tokens. {_SCALES}"
        ),
        panels=_maps(
            {network: rows_with(own, network=network) for network in _TITLES},
            "layer.head",
            lambda row: f"{row['layer']}.{row['head'] + 1}",
        ),
    )


def _maps(rows: Mapping[str, list[dict]], y_label: str, name: Callable[[dict], str]) -> tuple[Heatmap, ...]:
    """One map a network; the trained and the untrained one have one scale, so that their colours can be compared."""
    shared = max((row["value"] for network in ("trained", "untrained") for row in rows[network]), default=0.0) or None
    return tuple(
        _map(rows[network], title, y_label, name, None if network == "constructed" else shared)
        for network, title in _TITLES.items()
    )


def _map(rows: list[dict], title: str, y_label: str, name: Callable[[dict], str], z_max: float | None) -> Heatmap:
    offsets = sorted({row["offset"] for row in rows})
    cells = {(name(row), row["offset"]): row["value"] for row in rows}
    names = list(dict.fromkeys(name(row) for row in rows))
    return Heatmap(
        title=title,
        x_label="columns back",
        y_label=y_label,
        z_label="share of attention",
        x=tuple(map(str, offsets)),
        y=tuple(names),
        z=tuple(tuple(cells.get((one, offset)) for offset in offsets) for one in names),
        z_min=0.0,
        z_max=z_max,
    )


def _sources(rows: list[dict]) -> Figure:
    def panel(source: str) -> Lines:
        series = []
        for network, role in _ROLES.items():
            pooled = pool_rows(rows_with(rows, network=network, source=source), ["depth"])
            if pooled:
                series.append(series_of(pooled, _NAMES[network], role, x="depth"))
        title = source[0].upper() + source[1:]
        return Lines(
            title=title, x_label="depth (layer / layers)", y_label="share of attention", series=tuple(series), y_min=0.0
        )

    return Figure(
        name="by-source",
        title="What the last token looks at",
        caption=(
            "Share of the attention of the last token by what it falls on, averaged over heads and prompts, against depth. "
            f"Even attention: the share of the columns. Means and 95 % intervals over {_seeds(rows)}."
        ),
        panels=tuple(panel(source) for source in dict.fromkeys(row["source"] for row in rows)),
    )


def _alignment(tables: Tables) -> Figure:
    rows = tables["alignment"]
    heads = sorted({(row["constructed_layer"], row["offset"]) for row in rows})
    series = [Series(name=_NAMES["constructed"], role="ceiling", y=(1.0,) * len(heads))]
    for network in ("trained", "untrained"):
        pooled = {
            (row["constructed_layer"], row["offset"]): row
            for row in pool_rows(rows_with(rows, network=network), ["constructed_layer", "offset"])
        }
        columns = {side: tuple(pooled[head][side] for head in heads) for side in ("value", "low", "high")}
        role = _ROLES[network]
        series.append(
            Series(name=_NAMES[network], role=role, y=columns["value"], low=columns["low"], high=columns["high"])
        )
    return Figure(
        name="alignment",
        title="Heads that look where the construction gathers",
        caption=(
            "A gathering head of the construction puts all attention of the last token on one column. Shown is the "
            "attention that the best head of the network puts there, trained and before training; bars are 95 % intervals "
            f"over {_seeds(rows)}."
        ),
        panels=(
            Bars(
                title="",
                y_label="attention",
                categories=tuple(f"layer {layer}: {offset} back" for layer, offset in heads),
                series=tuple(series),
                y_min=0.0,
            ),
        ),
    )


def _seeds(rows: list[dict]) -> str:
    seeds = len({row["seed"] for row in rows})
    return f"{seeds} seeds" if seeds > 1 else "one seed"
