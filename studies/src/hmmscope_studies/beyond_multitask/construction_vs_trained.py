"""The network of [MultiTask] Theorem 1 and a trained one, compared by the same measures."""

from functools import partial
from typing import Any

import numpy as np

from hmmscope import Run, lab, registry
from hmmscope.analysis import ShuffleValues
from hmmscope_papers.multitask.models import MAX_DISTANCE, PARTS, multitask_config
from hmmscope_papers.multitask.side_by_side import (
    attention_of_networks,
    construct,
    convergence_of,
    probes_of_networks,
    scores_of_networks,
    similarity_of_networks,
    steps_of_networks,
)
from hmmscope_papers.theorems import by_scale

NAME = "construction-vs-trained"
TITLES = {"trained": "Trained", "constructed": "Constructed", "untrained": "Before training"}
ROLES: dict[str, lab.Role] = {"trained": "model", "constructed": "ceiling", "untrained": "control"}
#: Probe targets and their names.
TARGETS = {f"previous-{k}": f"{k} back" for k in range(MAX_DISTANCE + 1)} | {"component": "which HMM"}
#: Accuracy gain over the untrained network from which a target counts as readable.
GAINED = 0.1
#: Largest relative change of the excess loss in the last quarter of training.
FLAT = 0.1


@registry.experiment(NAME)
class ConstructionVsTrained(lab.Experiment):
    """The model of [MultiTask] Figures 1 to 7 with the largest pool, and the constructed network."""

    title = "Does a trained network work like the network of Theorem 1?"
    summary = (
        "A decoder is trained on a mixture of hidden Markov models and compared with the network of [MultiTask] "
        "Theorem 1, with a causal mask, on the same prompts. The same instruments measure both: which past symbols a "
        "layer represents, where the identity of the HMM becomes decodable, whether attention depends on positions, "
        "which positions it selects, how similar the layers are, and whether steps of gradient descent on the "
        "demonstrations explain what a trained layer adds. The untrained model is the control."
    )
    num_seeds = {"smoke": 2, "small": 5, "medium": 5, "gpu": 5, "paper": 1}
    groups = {
        "scores": ("scores",),
        "convergence": ("convergence",),
        "probes": ("probes",),
        "shuffle": ("shuffle",),
        "attention": ("offsets", "overlap"),
        "similarity": ("similarity",),
        "steps": ("steps",),
    }
    sizes = by_scale(
        memory_length=(2, 4, 4, 4),
        num_steps=(3, 8, 16, 16),
        samples=(32, 512, 1024, 1024),
        probe_samples=(48, 512, 1024, 2048),
        probe_components=(2, 16, 32, 64),
        chunks=(2, 4, 8, 8),
    )
    sizes["medium"] = sizes["small"]

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {"model": multitask_config(scale, PARTS[scale][-1])}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        run = runs["model"]
        if group == "convergence":
            return {"convergence": convergence_of(run)}
        networks = {"trained": run.model, "constructed": construct(run, sizes), "untrained": run.untrained()}
        dataset = run.dataset("probe")
        match group:
            case "scores":
                return {"scores": scores_of_networks(networks, run, sizes)}
            case "probes":
                return {"probes": probes_of_networks(networks, run, sizes)}
            case "shuffle":
                few = min(64, sizes["samples"])
                found = {name: ShuffleValues.of(model, dataset, num_samples=few) for name, model in networks.items()}
                return {"shuffle": [{"network": name} | row for name, values in found.items() for row in values.rows()]}
            case "attention":
                return attention_of_networks(networks, dataset, sizes)
            case "similarity":
                return {"similarity": similarity_of_networks(networks, dataset, sizes)}
        return {"steps": steps_of_networks(networks, run, sizes)}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            _score_figure(tables["scores"]),
            _probe_figure(tables["probes"]),
            _shuffle_figure(tables["shuffle"]),
            _offset_figure(tables["offsets"]),
            _similarity_figure(tables["similarity"]),
            _step_figure(tables["steps"]),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _score_figure(rows: lab.Rows) -> lab.Figure:
    def panel(metric: str, title: str, label: str) -> lab.Panel:
        kept = rows.where(metric=metric)
        names = kept.values("predictor")
        return lab.bars(title, lab.bar(kept, "predictor", names, label), categories=names, y_label=label)

    return lab.Figure(
        name="scores",
        title="Accuracy and distance from the optimum, by predictor",
        caption="Bars show accuracy (left) and total variation from the optimum (right) after at least L observations "
        "of the test sequence, where L is the memory length of the construction (the network of Theorem 1). Its output "
        "is clipped at zero and normalised. Bars have 95 % intervals.",
        panels=(
            panel("accuracy", "Accuracy", "accuracy"),
            panel("total_variation", "Distance to the optimum", "total variation"),
        ),
    )


def _probe_figure(rows: lab.Rows) -> lab.Figure:
    def panel(network: str) -> lab.Panel:
        kept = rows.where(network=network)
        return lab.lines(
            TITLES[network],
            *(
                lab.curve(
                    kept.where(target=target), "layer", name, "other" if " back" in name else "model", y="accuracy"
                )
                for target, name in TARGETS.items()
            ),
            x_label="layer",
            y_label="probe accuracy",
            y_min=0.0,
            y_max=1.02,
        )

    return lab.Figure(
        name="probes",
        title="Accuracy of probes, by layer and network",
        caption="Curves show the accuracy of linear probes for the symbol k steps back and for the identity of the HMM, on "
        "samples that the probe was not trained on. Layer 0 is the embedding.",
        panels=tuple(panel(network) for network in TITLES),
    )


def _shuffle_figure(rows: lab.Rows) -> lab.Figure:
    centred = _with_depth(rows)
    return lab.Figure(
        name="position-shuffle",
        title="Does attention depend on the positions of demonstrations?",
        caption="Each attention logit from the last token is compared with the logit of the same key token after whole "
        "demonstrations are permuted. Curves show the coefficient of variation of centred logits (minus their mean "
        "over keys), averaged over heads. A layer without variation depends on content alone.",
        panels=(
            lab.lines(
                "",
                *(lab.curve(centred.where(network=name), "depth", name, role) for name, role in ROLES.items()),
                x_label="depth (fraction of the layers)",
                y_label="coefficient of variation",
                y_min=0.0,
            ),
        ),
    )


def _with_depth(rows: lab.Rows) -> lab.Rows:
    kept = lab.Rows(row for row in rows.where(metric="cv_centred") if row["head"] >= 0)
    last = {network: max(group.values("layer")) for network, group in kept.by("network").items()}
    return kept.with_columns(depth=lambda row: row["layer"] / last[row["network"]])


def _offset_figure(rows: lab.Rows) -> lab.Figure:
    def panel(network: str) -> lab.Panel:
        kept = rows.where(network=network)
        whole = {layer: sum(row["value"] for row in group) for layer, group in kept.by("layer").items()}
        heads = {layer: len(group.values("head")) * len(group.seeds()) for layer, group in kept.by("layer").items()}
        shares = kept.with_columns(
            share=lambda row: row["value"] * heads[row["layer"]] / whole[row["layer"]] if whole[row["layer"]] else 0.0
        )
        return lab.heatmap(
            TITLES[network],
            shares,
            "key",
            "layer",
            z="share",
            x_label="positions back",
            y_label="layer",
            z_label="fraction of the attention shown",
        )

    return lab.Figure(
        name="attention-by-offset",
        title="Attention of the last token, by layer and distance",
        caption="Colours show the attention of the last token by distance, averaged over heads. Each row is divided by its "
        "sum over the shown distances, because the construction's gradient layers are not normalised.",
        panels=(panel("trained"), panel("constructed")),
    )


def _similarity_figure(rows: lab.Rows) -> lab.Figure:
    axes: dict[str, Any] = {"x_label": "layer of the construction", "y_label": "layer", "z_label": "linear CKA"}
    return lab.Figure(
        name="similarity",
        title="Similarity of the residual streams of two networks, by layer",
        caption=(
            "Colours show the linear centred kernel alignment (CKA) of the residual streams at the same positions. A value "
            "of one means that two streams are equal up to rotation and scale."
        ),
        panels=tuple(
            lab.heatmap(
                TITLES[name], rows.where(network=name), "constructed_layer", "layer", z_min=0.0, z_max=1.0, **axes
            )
            for name in ("trained", "untrained")
        ),
    )


def _step_figure(rows: lab.Rows) -> lab.Figure:
    axes: dict[str, Any] = {"x_label": "gradient step", "y_label": "layer", "z_label": "gain in R²"}
    return lab.Figure(
        name="gradient-steps",
        title="Does a gradient step explain what a layer adds?",
        caption="A linear map predicts the output that a layer adds at the last position from the last symbol and the "
        "symbol frequencies in the prompt. Colours show the gain in R² on held-out prompts if the map also receives "
        "the change of a regression's prediction by one gradient step on the demonstrations.",
        panels=tuple(
            lab.heatmap(TITLES[name], rows.where(network=name), "step", "layer", **axes)
            for name in ("trained", "untrained")
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _gates(tables: lab.Tables, numbers: lab.Numbers = None) -> list[lab.Gate]:
    changes = {f"seed {row.get('seed')}": (row["earlier"] - row["end"]) / row["end"] for row in tables["convergence"]}
    scores = tables["scores"].where(metric="accuracy")

    def better(own: lab.Rows) -> lab.EstimateWithError:
        return _estimate(own.one(predictor="trained")) - _estimate(own.one(predictor="untrained"))

    return [
        lab.Gate.learned(
            lab.Effect.pooled(list(scores.per_seed(better).values()), "accuracy"),
            lab.parameter(numbers, "gained", GAINED),
            "the untrained model",
        ),
        lab.Gate.converged(
            changes, lab.parameter(numbers, "flat", FLAT), "loss above the optimum (as a fraction of its final value)"
        ),
    ]


def _estimate(row: dict[str, Any], column: str = "value") -> lab.EstimateWithError:
    return lab.EstimateWithError(row[column], (row["high"] - row["low"]) / 3.92)


def onset(rows: lab.Rows, network: str, target: str, numbers: lab.Numbers = None) -> float | None:
    """Return the layer with half the maximum gain over the untrained network; None if no gain reaches `GAINED`."""
    kept = rows.where(target=target)
    before = {row["depth"]: row["accuracy"] for row in kept.where(network="untrained")}
    xs, ys = zip(*sorted(before.items()), strict=True)
    found = sorted(kept.where(network=network), key=lambda row: row["layer"])
    gains = [row["accuracy"] - float(np.interp(row["depth"], xs, ys)) for row in found]
    if max(gains) < lab.parameter(numbers, "gained", GAINED):
        return None
    first = next(i for i, gain in enumerate(gains) if gain >= max(gains) / 2)
    if first == 0:
        return float(found[0]["layer"])
    rise = (max(gains) / 2 - gains[first - 1]) / (gains[first] - gains[first - 1])
    return float(found[first - 1]["layer"] + rise * (found[first]["layer"] - found[first - 1]["layer"]))


def _said(rows: lab.Rows, network: str, targets: list[str], numbers: lab.Numbers = None) -> str:
    parts = []
    for target in targets:
        found = list(rows.per_seed(partial(partial(onset, numbers=numbers), network=network, target=target)).values())
        there = [layer for layer in found if layer is not None]
        some = f" in {len(there)} of {len(found)} seeds" if len(there) < len(found) else ""
        parts.append(f"{TARGETS[target]}{f' {np.mean(there):.1f}' if there else ''}{some}")
    return ", ".join(parts)


@lab.claim("construction-nearer-first")
def nearer_first(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["probes"]

    def later(own: lab.Rows) -> float | None:
        one, two = (onset(own, "trained", f"previous-{k}", numbers) for k in (1, 2))
        return None if one is None or two is None else two - one

    found = list(rows.per_seed(later).values())
    backs = [f"previous-{k}" for k in range(1, MAX_DISTANCE + 1)]
    text = (
        "The onset is the layer where the gain in probe accuracy over the untrained network reaches half its maximum. "
        f"Mean onset in the trained network: {_said(rows, 'trained', backs, numbers)}. In the construction: "
        f"{_said(rows, 'constructed', backs, numbers)}."
    )
    effect = None if all(one is None for one in found) else lab.Effect.pooled(found, "layers")
    return lab.Measurement(effect, text, _gates(tables, numbers))


@lab.claim("construction-task-after-window")
def task_after_window(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = tables["probes"]

    def later(own: lab.Rows) -> float | None:
        window, task = (onset(own, "trained", target, numbers) for target in ("previous-1", "component"))
        return None if window is None or task is None else task - window

    found = list(rows.per_seed(later).values())
    best = {name: rows.where(network=name, target="component").pool("layer", value="accuracy") for name in TITLES}
    highest = ", ".join(f"{max(row['accuracy'] for row in one):.2f} {TITLES[n].lower()}" for n, one in best.items())
    added = rows.where(network="trained", target="component").beyond_twins("accuracy")
    highest += f" ({added})" if added else ""
    text = (
        f"The best probe accuracy for the identity of the HMM is {highest}. The onset is the layer where the gain in "
        "probe accuracy over the untrained network reaches half its maximum. Mean onset in the trained network: "
        f"{_said(rows, 'trained', ['previous-1', 'component'], numbers)}."
    )
    effect = None if all(one is None for one in found) else lab.Effect.pooled(found, "layers")
    return lab.Measurement(effect, text, _gates(tables, numbers))


@lab.claim("construction-content-above")
def content_above(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = _with_depth(tables["shuffle"])

    def halves(own: lab.Rows, network: str) -> float:
        kept = own.where(network=network)
        low, high = ([row["value"] for row in kept if (row["depth"] > 0.5) == upper] for upper in (False, True))
        return float(np.mean(high) - np.mean(low))

    effects = {name: list(rows.per_seed(partial(halves, network=name)).values()) for name in TITLES}
    differences = [a - b for a, b in zip(effects["trained"], effects["untrained"], strict=True)]
    said = ", ".join(f"{TITLES[name].lower()} {lab.Effect.pooled(found).short()}" for name, found in effects.items())
    text = (
        f"Variation of attention logits if demonstrations are permuted, upper minus lower half of the layers: {said}."
    )
    return lab.Measurement(lab.Effect.pooled(differences, "coefficient of variation"), text, _gates(tables, numbers))
