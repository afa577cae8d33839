"""Which architectures filter an HMM whose matrices stand in the prompt, at which size, and beyond which length."""

from collections.abc import Callable, Mapping
from typing import Any

from hmmscope import Run, registry
from hmmscope.lab import (
    Experiment,
    Figure,
    MeasuredTables,
    Panel,
    Rows,
    Series,
    Tables,
    bar,
    bars,
    curve,
    heatmap,
    level,
    lines,
)
from hmmscope.schema import unknown_name
from hmmscope_papers.header.filtering_answers import who_filters
from hmmscope_papers.header.filtering_measures import (
    BEYOND,
    HERE,
    LENGTH,
    REGIONS,
    TIMES,
    Row,
    belief_rows,
    edit_rows,
    head_rows,
    learning_row,
    memory_rows,
    move_rows,
    place_rows,
    position_rows,
)
from hmmscope_papers.header.filtering_models import ARCHITECTURES, HEADLINE, title

NATS = "nats above the filter"


@registry.experiment("header-filtering")
class HeaderFiltering(Experiment):
    """Fresh HMMs in sixteenths, told in a header; sizes by architectures, annealed budgets of each."""

    title = "Who filters an HMM that it is told"
    summary = (
        "A fresh HMM for every sample, whose matrices stand in the prompt, so that nothing can be learned by heart and the "
        "optimum is exact: the filter of the HMM that is told. Three papers of 2025 report that Transformers filter so, and "
        "that LSTMs fail; [Limits] finds RNNs ahead of Transformers on every HMM. Here both stand on one axis: networks of "
        "about as many parameters, after budgets that double, each of which is annealed to its end, compared after as many "
        "samples and after as much processor time; up to the length of their training and to four times of it; and on "
        "slowly mixing and nearly deterministic HMMs, which training left out. Then it is asked what they hold: the belief, "
        "the header's matrices, and whether an edited header moves their answers to those of the new filter."
    )
    num_seeds = Experiment.NUM_SEEDS
    run_columns = ("size", "architecture", "steps")
    #: `beyond_3` are the architectures of the sizes above 3.
    shapes: dict[str, dict[str, Any]] = {
        "smoke": {"sizes": [2], "architectures": ["lstm", "transformer"], "beyond_3": ["lstm"]}
        | {"first": 12, "doublings": 2},
        "small": {"sizes": [2, 3], "architectures": list(HEADLINE), "beyond_3": list(HEADLINE)}
        | {"first": 300, "doublings": 3},
        "medium": {"sizes": [2, 3, 4, 5], "architectures": list(HEADLINE), "beyond_3": list(HEADLINE)}
        | {"first": 1000, "doublings": 4},
    }
    sizes = {
        "smoke": {"samples": 16, "hmms": 16, "fits": 2, "read": 16, "intervened": 16},
        "small": {"samples": 1024, "hmms": 1024, "fits": 16, "read": 384, "intervened": 128},
        "medium": {"samples": 2048, "hmms": 4096, "fits": 32, "read": 768, "intervened": 256},
    }
    groups = {
        "scores": ("learning", "places", "positions"),
        "inside": ("belief", "memory", "edits", "moves", "heads"),
    }

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        for key in ("architectures", "beyond_3"):
            for name in choices[key]:
                if name not in ARCHITECTURES:
                    raise unknown_name(f"plan.{key}", name, ARCHITECTURES)
        first, doublings = choices["first"], choices["doublings"]
        return {
            f"{_chain(size, name)}, {first * 2**k} steps": _config(size, name, first, first * 2**k)
            for size, name in _in_order(choices)
            for k in range(doublings)
        }

    def cells(self, labels: list[str]) -> dict[str, list[str]]:
        """A trunk with its branches, shortest first: each goes on from the one before."""
        chains: dict[str, list[str]] = {}
        for label in labels:
            chains.setdefault(label.rpartition(", ")[0], []).append(label)
        return chains

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        last = max(runs.values(), key=lambda run: run.config.training.num_steps)
        if group == "scores":
            positions = position_rows(last, sizes["samples"] // 2, sizes["hmms"], sizes["fits"])
            learning = [learning_row(run, sizes["samples"]) for run in runs.values()]
            return {"learning": learning, "places": place_rows(last, sizes["samples"]), "positions": positions}
        return {
            "belief": belief_rows(last, sizes["read"]),
            "memory": memory_rows(last, sizes["read"]),
            "edits": edit_rows(last, sizes["intervened"]),
            "moves": move_rows(last, sizes["read"]),
            "heads": head_rows(last, sizes["intervened"]),
        }

    def without_training(self, tables: Tables) -> Tables:
        """Networks before training, at every budget."""
        inside = ("edits", "moves", "heads")
        before = {name: _relabelled(tables[name], "network", "untrained", "trained") for name in inside}
        twins = {name: tables[name].as_twins() for name in ("belief", "memory")}
        return {**scores_of("untrained", tables), **twins, **before}

    def with_ngrams_only(self, tables: Tables) -> Tables:
        """The best that counts, in the place of every network."""
        return scores_of("counting", tables)

    def answer(self, tables: Tables) -> list[str]:
        return who_filters(tables)

    def figures(self, tables: Tables) -> list[Figure]:
        learning, places, positions = (tables[name] for name in self.groups["scores"])
        found = [_learning_figure(learning, places), _position_figure(positions), _calibration_figure(positions)]
        inside = [_edits_figure(tables["edits"]), _inside_figure(tables), _moves_figure(tables["moves"])]
        inside.append(_heads_figure(tables["heads"]))
        return [*found, _places_figure(places), *(figure for figure in inside if figure is not None)]


def _chain(size: int, name: str) -> str:
    return f"{size} states, {name}"


def _in_order(choices: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Whom the questions are about first, the smallest sizes first; then all others, and sizes above 3."""
    found = [
        (size, name) for size in choices["sizes"] for name in choices["architectures" if size <= 3 else "beyond_3"]
    ]
    return sorted(found, key=lambda one: (one[0] > 3, one[1] not in HEADLINE, one[0]))


def _config(size: int, name: str, first: int, steps: int) -> dict[str, Any]:
    architecture = ARCHITECTURES[name]
    return {
        "process": {"name": "told-hmms", "num_states": size, "num_symbols": size}
        | {"least": 1, "without": list(REGIONS)},
        "layout": {"name": "header", "length": LENGTH},
        "model": architecture.model,
        "training": {
            "num_steps": steps,
            "schedule": "wsd",
            "batch_size": 64,
            "learning_rate": architecture.rate,
            "warmup_steps": first // 5,
            "evaluate_every": 0,
            "checkpoint_every": first - first // 6,  # where the first branch begins
            "engine": architecture.engine,
            "compile": architecture.compile,
        },
    }


# ---------------------------------------------------------------------------------------------------------------------
# Others in the place of the networks


def scores_of(predictor: str, tables: Tables) -> Tables:
    """The tables with the scores of a control in the place of those of each network, at every budget."""
    places, made = tables["places"], dict(tables)
    known = {_whose(row): row for row in places.where(predictor=predictor)}

    def taken(row: Row) -> Row:
        own = known.get(_whose(row))
        same = row.get("predictor") != "model" or own is None
        return row if same or own is None else row | {key: own[key] for key in ("value", "error")}

    return {**made, "learning": Rows(map(taken, tables["learning"])), "places": Rows(map(taken, places))}


def _whose(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("seed", "size", "architecture", "place"))


def _relabelled(rows: Rows, column: str, control: str, trained: str) -> Rows:
    others = Rows(row for row in rows if row.get(column) != trained)
    return Rows([*others, *rows.where(**{column: control}).with_columns(**{column: lambda row: trained})])


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _sized(size: int) -> str:
    return f"{size} states, {size} symbols"


def _each(rows: Rows, panel: Callable[[int, Rows], Panel | None]) -> tuple[Panel, ...]:
    found = [panel(size, own) for size, own in rows.by("size").items()]
    return tuple(one for one in found if one is not None)


def _learning_figure(learning: Rows, places: Rows) -> Figure:
    """Excess against samples, and against processor time, a panel a size and currency."""

    def panel(size: int, own: Rows, column: str, label: str) -> Panel:
        series: list[Series | None] = []
        for name, one in own.by("architecture").items():
            means = one.pool("steps", value=column)
            at = {row["steps"]: row[column] for row in means}
            placed = Rows(row | {column: at[row["steps"]]} for row in one if row["steps"] in at)
            series.append(curve(placed, column, title(name), "model"))
        beside = places.where(size=size, place=HERE)
        ends = [row[column] for row in own if row.get(column) is not None]
        for predictor, said, role in (("counting", "counting, no header", "baseline"),):
            values = [row["value"] for row in beside.where(predictor=predictor)]
            if values and ends:
                series.append(level(sum(values) / len(values), (min(ends), max(ends)), said, role))  # type: ignore[arg-type]
        return lines(_sized(size), *series, x_label=label, y_label=NATS, log_x=True, log_y=True)

    timed = Rows(row for row in learning if row.get("processor_seconds") is not None)
    panels = _each(learning, lambda size, own: panel(size, own, "sequences", "samples trained on"))
    panels += _each(timed, lambda size, own: panel(size, own, "processor_seconds", "seconds of one core"))
    return Figure(
        name="learning",
        title="How far above the filter of the HMM that is told, after as many samples and as much time",
        caption=(
            "Mean KL divergence from the exact filter, over positions and HMMs. Each point is a budget that was annealed to "
            "its end. Processor time is that of our implementations on the machine of the tables. Means over seeds, bands "
            "are 95 % intervals."
        ),
        panels=panels,
    )


def _position_figure(rows: Rows) -> Figure:
    """Excess by position up to several lengths of the training, a panel a size."""

    def panel(size: int, own: Rows) -> Panel:
        own = _powers(own.where(quantity="excess"))
        models = own.where(predictor="model")
        series = [
            curve(_longest(one), "position", title(name), "model") for name, one in models.by("architecture").items()
        ]
        for predictor, said in _BESIDE.items():
            series.append(curve(own.where(predictor=predictor), "position", said, "baseline"))
        label = f"observations known (trained to {LENGTH})"
        return lines(_sized(size), *series, x_label=label, y_label=NATS, log_x=True, log_y=True)

    return Figure(
        name="by-position",
        title=f"By the number of observations known, to {TIMES} times the length of the training",
        caption=(
            "Mean KL divergence from the filter of the HMM that is told. Beside the networks stand those who read no "
            "header: the filter of another HMM, counting, Baum-Welch on the observations so far, and by Monte Carlo the "
            "Bayes predictor that knows the family. Means over seeds, bands are 95 % intervals."
        ),
        panels=_each(rows, panel),
    )


_BESIDE = {
    "wrong-header": "filter of another header",
    "counting": "counting",
    "baum-welch": "Baum-Welch",
    "bayes": "Bayes, no header",
}


def _powers(rows: Rows) -> Rows:
    """The rows of positions that are powers of two."""
    return Rows(row for row in rows if row["position"] and row["position"] & (row["position"] - 1) == 0)


def _longest(rows: Rows) -> Rows:
    """The rows at the longest samples that there are."""
    return rows.where(place=BEYOND) or rows.where(place=HERE)


def _calibration_figure(rows: Rows) -> Figure:
    def panel(size: int, own: Rows) -> Panel:
        own = _powers(own.where(quantity="entropy-error", predictor="model"))
        series = [
            curve(_longest(one), "position", title(name), "model") for name, one in own.by("architecture").items()
        ]
        label = f"observations known (trained to {LENGTH})"
        return lines(_sized(size), *series, x_label=label, y_label="bits", log_x=True, log_y=True)

    return Figure(
        name="calibration",
        title="How far the entropy of the prediction is from that of the exact one",
        caption="Mean absolute difference of entropies, in bits. Means over seeds, bands are 95 % intervals.",
        panels=_each(rows, panel),
    )


_PLACES = {
    HERE: "as trained",
    BEYOND: f"beyond, to {TIMES} T",
    "slow": "slowly mixing",
    "sharp": "nearly certain",
}


def _places_figure(rows: Rows) -> Figure:
    def panel(size: int, own: Rows) -> Panel:
        shown = [place for place in _PLACES if own.where(place=place)]
        named = Rows(row | {"at": _PLACES[row["place"]]} for row in own)
        series = [
            bar(one, "at", [_PLACES[place] for place in shown], title(name), "model")
            for name, one in named.where(predictor="model").by("architecture").items()
            if set(one.values("place")) >= set(shown)
        ]
        counting = named.where(predictor="counting")
        series.append(bar(counting, "at", [_PLACES[place] for place in shown], "counting, no header", "baseline"))
        return bars(_sized(size), *series, categories=[_PLACES[place] for place in shown], y_label=NATS)

    return Figure(
        name="places",
        title="Beyond the length of the training, and on HMMs that it left out",
        caption=(
            "After the largest budget. Slowly mixing HMMs, and those whose rows are nearly deterministic, were left out of "
            "the training. Counting is tuned where the networks trained. Intervals are 95 % over seeds."
        ),
        panels=_each(rows, panel),
    )


def _edits_figure(rows: Rows) -> Figure:
    def panel(size: int, own: Rows) -> Panel:
        tokens = own.where(where="tokens")
        names = tokens.values("architecture")
        named = Rows(row | {"who": title(row["architecture"])} for row in tokens)
        who = [title(name) for name in names]
        trained = named.where(network="trained")
        series = [
            bar(trained.where(edit="own"), "who", who, "one entry edited", "model"),
            bar(trained.where(edit="other"), "who", who, "header of another sample", "baseline"),
            bar(named.where(network="untrained", edit="own"), "who", who, "before training", "control"),
        ]
        return bars(_sized(size), *series, categories=who, y_label="share of the way to the new filter")

    return Figure(
        name="edits",
        title="One entry of the header is changed: do the answers go to those of the new filter?",
        caption=(
            "1 - D(new filter, model after) / D(new filter, model before), over the later half of the observations, which "
            "stay. One is a model that filters with the new HMM, zero one that does not hear the edit. Intervals are 95 % "
            "over seeds."
        ),
        panels=_each(rows, panel),
    )


def _inside_figure(tables: Tables) -> Figure | None:
    panels: list[Panel] = []
    for name, said in (("belief", "belief"), ("memory", "the header's numbers")):
        for size, own in tables[name].by("size").items():
            own = own.where(part="transition") if name == "memory" else own
            known = Rows(row for row in own if row["share"] is not None)
            series = [
                curve(one, "layer", title(which), "model", y="share") for which, one in known.by("architecture").items()
            ]
            if any(series):
                told = f"{_sized(size)}: {said}"
                shown: dict[str, Any] = {"y_min": -0.25, "y_max": 1.02}
                panels.append(lines(told, *series, x_label="layer", y_label="share of what twins leave", **shown))
    if not panels:
        return None
    return Figure(
        name="inside",
        title="What each layer holds beyond untrained networks: the belief, and the transition matrix of the header",
        caption=(
            "1 - (1 - R²) / mean over three untrained twins of (1 - R²), of affine maps on held-out samples: of the exact "
            "belief after every observation, and of the header's transition probabilities at the last observation. Means "
            "over seeds, bands are 95 % intervals."
        ),
        panels=tuple(panels),
    )


def _moves_figure(rows: Rows) -> Figure | None:
    trained = rows.where(network="trained", subspace="belief")
    if not trained:
        return None

    def panel(size: int, own: Rows) -> Panel:
        series: list[Series | None] = [
            curve(one, "layer", title(name), "model") for name, one in own.by("architecture").items()
        ]
        others = rows.where(size=size, network="trained", subspace="random", architecture="transformer")
        series.append(curve(others, "layer", "another part of it", "control"))
        return lines(_sized(size), *series, x_label="layer", y_label="share of the way", y_min=-1.0, y_max=1.02)

    return Figure(
        name="moves",
        title="What reads as the belief is moved: do the answers go to those that the other belief calls for?",
        caption=(
            "1 - D(exact answer to the other belief, model after) / D(that, model before), at single positions, where "
            "what the stream of a layer says of the belief, by the affine map that fits best, is that of another "
            "sample, of another HMM. One is a model that takes it for its belief, zero one that does not hear it; "
            "below zero its answers go elsewhere, and below -1 they are not drawn. Another part: by a random map of "
            "the same rank, in the rotary Transformer. Means over seeds, bands are 95 % intervals."
        ),
        panels=_each(trained, panel),
    )


def _heads_figure(rows: Rows) -> Figure | None:
    rows = rows.where(architecture="transformer", network="trained", quantity="cost")
    if not rows:
        return None

    def panel(size: int, own: Rows) -> Panel:
        ranked = Rows()
        for one in own.by("seed", "layer").values():
            dearest = sorted(one, key=lambda row: -row["value"])
            ranked += [row | {"rank": place} for place, row in enumerate(dearest, 1)]
        labels = {"x_label": "head of the layer, the dearest first", "y_label": "layer", "z_label": "nats"}
        return heatmap(_sized(size), ranked, "rank", "layer", **labels)

    return Figure(
        name="heads",
        title="Heads that carry the header: what it costs where one of them reads none of it",
        caption=(
            "Nats that are added where the observations give no weight of a head of the rotary Transformer to the header, "
            "and all of it to themselves. Means over seeds."
        ),
        panels=_each(rows, panel),
    )
