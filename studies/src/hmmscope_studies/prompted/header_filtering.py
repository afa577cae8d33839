"""Filtering an HMM given in the prompt: by architecture, size, and sequence length."""

from collections.abc import Callable, Mapping
from typing import Any

from hmmscope import Run, lab, registry
from hmmscope.schema import require_known
from hmmscope_studies.prompted.filtering_answers import who_filters
from hmmscope_studies.prompted.filtering_measures import (
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
from hmmscope_studies.prompted.filtering_models import ARCHITECTURES, HEADLINE, title

NATS = "nats above the filter"


@registry.experiment("header-filtering")
class HeaderFiltering(lab.Experiment):
    """Architectures with several training budgets, on new HMMs of several sizes that the prompt describes."""

    title = "Filtering an HMM given in the prompt"
    summary = (
        "Every sample has a new HMM, whose matrices are given in the prompt. Memorisation is impossible, and the "
        "optimum is exact: the filter of the given HMM. Three papers of 2025 report that Transformers filter in this "
        "setting, and that LSTMs fail; [Limits] finds RNNs better than Transformers on every HMM. This experiment "
        "compares these architectures. Networks with similar numbers of parameters are trained with budgets that "
        "double (each with an annealed learning rate), and compared after equally many samples and after equal "
        "processor time. They are tested up to their training length, up to four times that length, and on slowly "
        "mixing and nearly deterministic HMMs that training left out. The experiment also measures whether layers "
        "encode the belief and the header's matrices, and whether editing the header moves the predictions to those of "
        "the filter of the edited HMM."
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    run_columns = ("size", "architecture", "steps")
    #: `beyond_3` lists the architectures for sizes above 3.
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
    groups = {"scores": ("learning", "places", "positions"), "inside": ("belief", "memory", "edits", "moves", "heads")}

    def choices(self, scale: str) -> dict[str, Any]:
        return dict(self.shapes[scale])

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        for key in ("architectures", "beyond_3"):
            for name in choices[key]:
                require_known(f"plan.{key}", name, ARCHITECTURES)
        first, doublings = choices["first"], choices["doublings"]
        return {
            f"{_chain(size, name)}, {first * 2**k} steps": _config(size, name, first, first * 2**k)
            for size, name in _in_order(choices)
            for k in range(doublings)
        }

    def cells(self, labels: list[str]) -> dict[str, list[str]]:
        chains: dict[str, list[str]] = {}
        for label in labels:
            chains.setdefault(label.rpartition(", ")[0], []).append(label)
        return chains

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
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

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        inside = ("edits", "moves", "heads")
        before = {name: _relabelled(tables[name], "network", "untrained", "trained") for name in inside}
        twins = {name: tables[name].as_twins() for name in ("belief", "memory")}
        return {**scores_of("untrained", tables), **twins, **before}

    def with_ngrams_only(self, tables: lab.Tables) -> lab.Tables:
        return scores_of("counting", tables)

    def answer(self, tables: lab.Tables) -> list[str]:
        return who_filters(tables)

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        learning, places, positions = (tables[name] for name in self.groups["scores"])
        found = [_learning_figure(learning, places), _position_figure(positions), _calibration_figure(positions)]
        inside = [_edits_figure(tables["edits"]), _inside_figure(tables), _moves_figure(tables["moves"])]
        inside.append(_heads_figure(tables["heads"]))
        return [*found, _places_figure(places), *(figure for figure in inside if figure is not None)]


def _chain(size: int, name: str) -> str:
    return f"{size} states, {name}"


def _in_order(choices: Mapping[str, Any]) -> list[tuple[int, str]]:
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
            "checkpoint_every": first - first // 6,  # start of the first branch
            "engine": architecture.engine,
            "compile": architecture.compile,
        },
    }


# ---------------------------------------------------------------------------------------------------------------------
# Controls in place of the networks


def scores_of(predictor: str, tables: lab.Tables) -> lab.Tables:
    places, made = tables["places"], dict(tables)
    known = {_whose(row): row for row in places.where(predictor=predictor)}

    def taken(row: Row) -> Row:
        own = known.get(_whose(row))
        same = row.get("predictor") != "model" or own is None
        return row if same or own is None else row | {key: own[key] for key in ("value", "error")}

    return {**made, "learning": lab.Rows(map(taken, tables["learning"])), "places": lab.Rows(map(taken, places))}


def _whose(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("seed", "size", "architecture", "place"))


def _relabelled(rows: lab.Rows, column: str, control: str, trained: str) -> lab.Rows:
    others = lab.Rows(row for row in rows if row.get(column) != trained)
    return lab.Rows([*others, *rows.where(**{column: control}).with_columns(**{column: lambda row: trained})])


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _sized(size: int) -> str:
    return f"{size} states, {size} symbols"


def _each(rows: lab.Rows, panel: Callable[[int, lab.Rows], lab.Panel | None]) -> tuple[lab.Panel, ...]:
    found = [panel(size, own) for size, own in rows.by("size").items()]
    return tuple(one for one in found if one is not None)


def _learning_figure(learning: lab.Rows, places: lab.Rows) -> lab.Figure:
    def panel(size: int, own: lab.Rows, column: str, label: str) -> lab.Panel:
        series: list[lab.Series | None] = []
        for name, one in own.by("architecture").items():
            means = one.pool("steps", value=column)
            at = {row["steps"]: row[column] for row in means}
            placed = lab.Rows(row | {column: at[row["steps"]]} for row in one if row["steps"] in at)
            series.append(lab.curve(placed, column, title(name), "model"))
        beside = places.where(size=size, place=HERE)
        ends = [row[column] for row in own if row.get(column) is not None]
        for predictor, said, role in (("counting", "n-gram baseline, no header", "baseline"),):
            values = [row["value"] for row in beside.where(predictor=predictor)]
            if values and ends:
                series.append(lab.level(sum(values) / len(values), (min(ends), max(ends)), said, role))  # type: ignore[arg-type]
        return lab.lines(_sized(size), *series, x_label=label, y_label=NATS, log_x=True, log_y=True)

    timed = lab.Rows(row for row in learning if row.get("processor_seconds") is not None)
    panels = _each(learning, lambda size, own: panel(size, own, "sequences", "samples trained on"))
    panels += _each(timed, lambda size, own: panel(size, own, "processor_seconds", "seconds of one core"))
    return lab.Figure(
        name="learning",
        title="Excess over the filter of the given HMM, by training samples and by processor time",
        caption=(
            "Curves show the mean KL divergence from the exact filter, over positions and HMMs. Each point is a training "
            "that ends with an annealed learning rate. Processor times are those of our implementations on the machine "
            "named below. Lines are means over seeds; bands are 95 % intervals."
        ),
        panels=panels,
    )


def _position_figure(rows: lab.Rows) -> lab.Figure:
    def panel(size: int, own: lab.Rows) -> lab.Panel:
        own = _powers(own.where(quantity="excess"))
        models = own.where(predictor="model")
        series = [
            lab.curve(_longest(one), "position", title(name), "model")
            for name, one in models.by("architecture").items()
        ]
        for predictor, said in _BESIDE.items():
            series.append(lab.curve(own.where(predictor=predictor), "position", said, "baseline"))
        label = f"observations known (trained to {LENGTH})"
        return lab.lines(_sized(size), *series, x_label=label, y_label=NATS, log_x=True, log_y=True)

    return lab.Figure(
        name="by-position",
        title=f"Excess by the number of observations, up to {TIMES} times the training length",
        caption=(
            "Curves show the mean KL divergence from the filter of the given HMM. Four predictors do not read the header: "
            "the filter of another HMM, the best n-gram baseline, Baum-Welch on the observations so far, and (by Monte "
            "Carlo) the Bayes mixture over all HMMs. Lines are means over seeds; bands are 95 % intervals."
        ),
        panels=_each(rows, panel),
    )


_BESIDE = {
    "wrong-header": "filter of another header",
    "counting": "n-gram baseline",
    "baum-welch": "Baum-Welch",
    "bayes": "Bayes, no header",
}


def _powers(rows: lab.Rows) -> lab.Rows:
    return lab.Rows(row for row in rows if row["position"] and row["position"] & (row["position"] - 1) == 0)


def _longest(rows: lab.Rows) -> lab.Rows:
    return rows.where(place=BEYOND) or rows.where(place=HERE)


def _calibration_figure(rows: lab.Rows) -> lab.Figure:
    def panel(size: int, own: lab.Rows) -> lab.Panel:
        own = _powers(own.where(quantity="entropy-error", predictor="model"))
        series = [
            lab.curve(_longest(one), "position", title(name), "model") for name, one in own.by("architecture").items()
        ]
        label = f"observations known (trained to {LENGTH})"
        return lab.lines(_sized(size), *series, x_label=label, y_label="bits", log_x=True, log_y=True)

    return lab.Figure(
        name="calibration",
        title="Difference between the entropies of the model's and of the exact prediction",
        caption="Curves show the mean absolute difference between the entropy of the model's prediction and that of the "
        "exact prediction, in bits. Lines are means over seeds; bands are 95 % intervals.",
        panels=_each(rows, panel),
    )


_PLACES = {HERE: "as trained", BEYOND: f"beyond, up to {TIMES} T", "slow": "slowly mixing", "sharp": "nearly certain"}


def _places_figure(rows: lab.Rows) -> lab.Figure:
    def panel(size: int, own: lab.Rows) -> lab.Panel:
        shown = [place for place in _PLACES if own.where(place=place)]
        named = lab.Rows(row | {"at": _PLACES[row["place"]]} for row in own)
        series = [
            lab.bar(one, "at", [_PLACES[place] for place in shown], title(name), "model")
            for name, one in named.where(predictor="model").by("architecture").items()
            if set(one.values("place")) >= set(shown)
        ]
        counting = named.where(predictor="counting")
        series.append(
            lab.bar(counting, "at", [_PLACES[place] for place in shown], "n-gram baseline, no header", "baseline")
        )
        return lab.bars(_sized(size), *series, categories=[_PLACES[place] for place in shown], y_label=NATS)

    return lab.Figure(
        name="places",
        title="Excess beyond the training length, and on HMMs left out of training",
        caption=(
            "Bars show the mean KL divergence from the exact filter after the largest budget. Slowly mixing HMMs and HMMs "
            "with nearly deterministic rows were left out of training. The n-gram baseline is tuned on the training "
            "distribution. Intervals are 95 % intervals over seeds."
        ),
        panels=_each(rows, panel),
    )


def _edits_figure(rows: lab.Rows) -> lab.Figure:
    def panel(size: int, own: lab.Rows) -> lab.Panel:
        tokens = own.where(where="tokens")
        names = tokens.values("architecture")
        named = lab.Rows(row | {"who": title(row["architecture"])} for row in tokens)
        who = [title(name) for name in names]
        trained = named.where(network="trained")
        series = [
            lab.bar(trained.where(edit="own"), "who", who, "one entry edited", "model"),
            lab.bar(trained.where(edit="other"), "who", who, "header of another sample", "baseline"),
            lab.bar(named.where(network="untrained", edit="own"), "who", who, "before training", "control"),
        ]
        return lab.bars(_sized(size), *series, categories=who, y_label="move to the new filter (1: all the way)")

    return lab.Figure(
        name="edits",
        title="Response of the predictions to an edit of one header entry",
        caption=(
            "Bars show 1 - D(new filter, model after the edit) / D(new filter, model before the edit), where the new "
            "filter is that of the edited HMM, and D is the KL divergence over the later half of the observations, "
            "which are unchanged. One means that the model filters with the new HMM, and zero that it ignores the "
            "edit. Intervals are 95 % over seeds."
        ),
        panels=_each(rows, panel),
    )


def _inside_figure(tables: lab.Tables) -> lab.Figure | None:
    panels: list[lab.Panel] = []
    for name, said in (("belief", "belief"), ("memory", "the header's numbers")):
        for size, own in tables[name].by("size").items():
            own = own.where(part="transition") if name == "memory" else own
            known = lab.Rows(row for row in own if row["share"] is not None)
            series = [
                lab.curve(one, "layer", title(which), "model", y="share")
                for which, one in known.by("architecture").items()
            ]
            if any(series):
                told = f"{_sized(size)}: {said}"
                shown: dict[str, Any] = {"y_min": -0.25, "y_max": 1.02}
                panels.append(
                    lab.lines(
                        told, *series, x_label="layer", y_label="fraction of the variance left by controls", **shown
                    )
                )
    if not panels:
        return None
    return lab.Figure(
        name="inside",
        title="Belief and header's transition matrix decoded from each layer, compared with untrained controls",
        caption=(
            "Curves show 1 - (1 - R²) / mean over three untrained controls of (1 - R²), on held-out samples. The "
            "affine maps go from a layer to the exact belief after every observation, and to the header's transition "
            "probabilities at the last observation. Lines are means over seeds; bands are 95 % intervals."
        ),
        panels=tuple(panels),
    )


def _moves_figure(rows: lab.Rows) -> lab.Figure | None:
    trained = rows.where(network="trained", subspace="belief")
    if not trained:
        return None

    def panel(size: int, own: lab.Rows) -> lab.Panel:
        series: list[lab.Series | None] = [
            lab.curve(one, "layer", title(name), "model") for name, one in own.by("architecture").items()
        ]
        others = rows.where(size=size, network="trained", subspace="random", architecture="transformer")
        series.append(lab.curve(others, "layer", "random subspace", "control"))
        return lab.lines(_sized(size), *series, x_label="layer", y_label="fraction of the way", y_min=-1.0, y_max=1.02)

    return lab.Figure(
        name="moves",
        title="Response of the predictions if the belief in a layer is replaced",
        caption=(
            "The belief component of a layer's stream (by the best affine map) is replaced by that of another sample, "
            "which has another HMM. Curves show 1 - D(exact prediction for the new belief, model after the edit) / "
            "D(same prediction, model before the edit) at single positions, where D is the KL divergence. One means "
            "that the model uses the new belief, and zero that it ignores it; values below -1 are not drawn. “Random "
            "subspace” replaces a random component of the same rank, in the rotary Transformer. Lines are means over "
            "seeds; bands are 95 % intervals."
        ),
        panels=_each(trained, panel),
    )


def _heads_figure(rows: lab.Rows) -> lab.Figure | None:
    rows = rows.where(architecture="transformer", network="trained", quantity="cost")
    if not rows:
        return None

    def panel(size: int, own: lab.Rows) -> lab.Panel:
        ranked = lab.Rows()
        for one in own.by("seed", "layer").values():
            dearest = sorted(one, key=lambda row: -row["value"])
            ranked += [row | {"rank": place} for place, row in enumerate(dearest, 1)]
        labels = {"x_label": "head of the layer, largest rise of the loss first", "y_label": "layer", "z_label": "nats"}
        return lab.heatmap(_sized(size), ranked, "rank", "layer", **labels)

    return lab.Figure(
        name="heads",
        title="Rise of the loss if a head does not attend to the header",
        caption=(
            "Colours show the rise of the loss, in nats, if one head of the rotary Transformer attends only to observations "
            "and not to the header. Values are means over seeds."
        ),
        panels=_each(rows, panel),
    )
