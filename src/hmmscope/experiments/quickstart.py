"""The whole way in minutes: a mixture of HMMs, a small RoFormer, the exact optimum, and a look inside."""

from dataclasses import replace
from typing import Any

import numpy as np

from hmmscope import registry
from hmmscope.analysis.curves import Score, evaluate
from hmmscope.analysis.intervals import bootstrap_ratio, mean_row
from hmmscope.analysis.probes import MAX_DISTANCE, probe
from hmmscope.corpora.corpus import Corpus
from hmmscope.evidence.claims import OURS, Seen, claim
from hmmscope.evidence.effects import Effect
from hmmscope.evidence.figures import Bars, Figure, Lines, Series
from hmmscope.evidence.panels import curve, heatmap, lines
from hmmscope.evidence.rows import Rows, Tables
from hmmscope.experiments.experiment import Experiment, Measured
from hmmscope.experiments.run_page import predictors_panel, training_figure
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.pipeline import Run, untrained_twin
from hmmscope.storage import rundir

#: Numbers of each scale: process, layout, model, training.
SCALES: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "process": {"num_components": 4, "num_states": 4, "num_symbols": 4},
        "layout": {"num_demonstrations": 3, "demonstration_length": 6, "test_length": 6},
        "model": {"num_layers": 2, "num_heads": 2, "width": 16},
        "training": {"num_steps": 30, "batch_size": 8, "warmup_steps": 5, "evaluate_every": 10, "checkpoint_every": 15},
    },
    "small": {
        "process": {"num_components": 40, "num_states": 8, "num_symbols": 8},
        "layout": {"num_demonstrations": 15, "demonstration_length": 6, "test_length": 6},
        "model": {"num_layers": 4, "num_heads": 4, "width": 96},
        "training": {"num_steps": 1200, "learning_rate": 3e-3, "num_threads": 2},
    },
    "gpu": {
        "process": {"num_components": 256, "num_states": 32, "num_symbols": 8},
        "layout": {"num_demonstrations": 15, "demonstration_length": 8, "test_length": 8},
        "model": {"num_layers": 8, "num_heads": 8, "width": 256},
        "training": {"num_steps": 6000, "batch_size": 128, "learning_rate": 1e-3},
    },
    "paper": {
        "process": {"num_components": 8192, "num_states": 128, "num_symbols": 16},
        "layout": {"num_demonstrations": 15, "demonstration_length": 16, "test_length": 16},
        "model": {"num_layers": 16, "num_heads": 16, "width": 1024},
        "training": {"num_steps": 4096, "batch_size": 32, "learning_rate": 3e-4, "warmup_steps": 200},
    },
}
CONCENTRATION = {"smoke": 0.1, "small": 0.1, "gpu": 0.03, "paper": 0.01}


@registry.experiment("quickstart")
class Quickstart(Experiment):
    """A RoFormer on prompts of a small pool, and every instrument on it once."""

    title = "A RoFormer learns a mixture of hidden Markov models"
    summary = (
        "A decoder is trained from scratch on prompts: demonstrations from one hidden Markov model of a pool, then a test "
        "sequence of the same one. Which model of the pool it is, and its hidden states, are never shown. Everything that "
        "the decoder predicts stands beside the exact Bayes-optimal answer."
    )
    groups = {
        "predictions": ("in-context", "last-sequence", "gap"),
        "unseen": ("unseen",),
        "training": ("training",),
        "probes": ("probes",),
        "shuffle": ("shuffle",),
        "attention": ("attention",),
    }

    sizes = {
        "smoke": {"samples": 32, "probe_samples": 64, "probe_components": 2, "shuffle_samples": 8},
        "small": {"samples": 512, "probe_samples": 512, "probe_components": 16, "shuffle_samples": 64},
        "gpu": {"samples": 1024, "probe_samples": 2048, "probe_components": 32, "shuffle_samples": 128},
        "paper": {"samples": 1024, "probe_samples": 2048, "probe_components": 64, "shuffle_samples": 64},
    }

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        numbers = SCALES[scale]
        concentration = CONCENTRATION[scale]
        process = {"transition_concentration": concentration, "emission_concentration": concentration}
        return {
            "model": {
                "process": {"name": "random-mixture", **process, **numbers["process"]},
                "layout": {"name": "prompts", **numbers["layout"]},
                "model": {"name": "roformer", **numbers["model"]},
                "training": dict(numbers["training"]),
            }
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        run = runs["model"]
        match group:
            case "predictions":
                score = evaluate(run.model, run.corpus(), num_samples=sizes["samples"])
                last = score.demonstrations == score.demonstrations.max()
                return {
                    "in-context": score.rows("demonstrations"),
                    "last-sequence": score.rows("positions", last),
                    "gap": _gap(score),
                }
            case "unseen":
                return {"unseen": _unseen(run, sizes)}
            case "training":
                return {"training": _training_curve(run)}
            case "probes":
                return {"probes": _probes(run, sizes)}
        instrument = registry.lookup("instrument", group)
        models = {"trained": run.model, "untrained": untrained_twin(run)}
        rows = [
            {"model": label} | row
            for label, model in models.items()
            for row in instrument(model, run.corpus("probe"), num_samples=sizes["shuffle_samples"])
        ]
        return {group: rows}

    def figures(self, tables: Tables) -> list[Figure]:
        """Predictions, probes, shuffled positions, attention and the loss over training."""
        training = tables["training"]
        return [
            _in_context_figure(tables),
            _probe_figure(tables["probes"]),
            _distance_figure(tables["probes"]),
            _shuffle_figure(tables["shuffle"]),
            _attention_figure(tables["attention"]),
            training_figure(training, training[0]["training_floor"]),
        ]


def _unseen(run: Run, sizes: dict[str, Any]) -> list[dict]:
    """The same measurement on components that were never trained on, from the same prior."""
    spec = run.config.process
    held_out = replace(spec, first_component=spec.first_component + spec.num_components)
    corpus = Corpus(held_out.build(), layout=run.config.layout, seed=run.config.seed, stream="evaluate")
    rows = evaluate(run.model, corpus, num_samples=sizes["samples"]).rows("demonstrations")
    return [row for row in rows if row["predictor"] in ("model", "known-component", "order-1")]


def _training_curve(run: Run) -> list[dict]:
    records = rundir.read_journal(run.path / "metrics.jsonl")
    assert run.summary is not None
    floor = {"training_floor": run.summary["training_floor"]}
    return [
        {key: record[key] for key in ("step", "loss", "evaluation_loss") if key in record} | floor for record in records
    ]


def _gap(score: Score) -> list[dict]:
    """What the findings rest on, each with its interval over samples."""
    first, last = score.demonstrations == 0, score.demonstrations == score.demonstrations.max()
    accuracy = {name: score.measures[name]["accuracy"] for name in ("model", "optimum")}
    loss = {name: score.measures[name]["loss"][:, last].mean(1) for name in ("model", "optimum", "order-1")}
    rows = []
    for name, values in accuracy.items():
        rise = values[:, last].mean(1) - values[:, first].mean(1)
        rows.append(_interval_row(f"{name}: rise in accuracy", rise))
        rows.append(_interval_row(f"{name}: first accuracy", values[:, first].mean(1)))
        rows.append(_interval_row(f"{name}: last accuracy", values[:, last].mean(1)))
    rows += [_interval_row(f"{name}: last loss", values) for name, values in loss.items()]
    closed = np.stack([loss["order-1"] - loss["model"], loss["order-1"] - loss["optimum"]], 1)
    rows.append(_ratio_row("share of the gap closed", closed))
    return rows


def _interval_row(quantity: str, values: np.ndarray) -> dict:
    return {"quantity": quantity} | mean_row(values)


def _ratio_row(quantity: str, pairs: np.ndarray) -> dict:
    """Ratio of two means over samples (sample, 2); the interval resamples the pairs."""
    value, low, high = bootstrap_ratio(pairs[:, 0], pairs[:, 1])
    return {"quantity": quantity, "value": value, "low": low, "high": high, "samples": len(pairs)}


def _probes(run: Run, sizes: dict[str, Any]) -> list[dict]:
    process, layout, seed = run.process, run.config.layout, run.config.seed
    assert isinstance(process, Mixture)
    few = process.first(min(sizes["probe_components"], len(process)))
    rows = []
    for label, model in {"trained": run.model, "untrained": untrained_twin(run)}.items():
        wanted = [("component", Corpus(few, layout=layout, seed=seed, stream="probe"))]
        wanted += [("state", Corpus(process[0], layout=layout, seed=seed, stream="probe"))]
        wanted += [(f"previous-{k}", run.corpus("probe")) for k in range(MAX_DISTANCE + 1)]
        for target, corpus in wanted:
            found = probe(
                model, corpus, target=target, num_samples=sizes["probe_samples"], shuffled_labels=label == "trained"
            )
            rows += [{"model": label} | row for row in found]
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures

_LAYERS: dict[str, Any] = {"x_label": "layer", "y_label": "probe accuracy", "y_min": 0.0, "y_max": 1.02}


def _in_context_figure(tables: Tables) -> Figure:
    demonstrations, position = "demonstrations before the sequence", "position in the test sequence"
    nats = "nats per observation"
    return Figure(
        name="in-context-learning",
        title="Predictions improve as demonstrations arrive",
        caption=(
            "Next-observation accuracy and loss, averaged over the positions of a sequence, against the number of "
            "demonstrations before it: on HMMs of the pool, and on HMMs that the model never saw; and along the test "
            "sequence on HMMs of the pool. The optimum knows the pool but not which HMM it is; the ceiling is told. The "
            "n-grams count in the prompt only: what a model does no better than they do on HMMs never seen is not "
            "learned in context. Bands are 95 % intervals."
        ),
        panels=(
            predictors_panel(tables["in-context"], "accuracy", "Accuracy, pool", demonstrations, "accuracy"),
            predictors_panel(tables["in-context"], "loss", "Loss, pool", demonstrations, nats),
            predictors_panel(tables["unseen"], "accuracy", "Accuracy, HMMs never seen", demonstrations, "accuracy"),
            predictors_panel(tables["unseen"], "loss", "Loss, HMMs never seen", demonstrations, nats),
            predictors_panel(
                tables["last-sequence"], "accuracy", "Accuracy in the test sequence", position, "accuracy"
            ),
            predictors_panel(tables["last-sequence"], "loss", "Loss in the test sequence", position, nats),
        ),
    )


def _probe_figure(rows: Rows) -> Figure:
    def panel(target: str, title: str) -> Lines:
        own = rows.where(target=target)
        trained, before = (own.where(model=model, labels="true") for model in ("trained", "untrained"))
        shuffled = own.where(model="trained", labels="shuffled")
        return lines(
            title,
            curve(trained, "layer", "trained", "model", y="accuracy"),
            curve(trained, "layer", "exact posterior", "ceiling", y="ceiling", bands=False),
            curve(before, "layer", "untrained model", "control", y="accuracy"),
            curve(shuffled, "layer", "shuffled labels", "control", y="accuracy"),
            curve(trained, "layer", "commonest class", "baseline", y="chance", bands=False),
            **_LAYERS,
        )

    return Figure(
        name="probes",
        title="Which HMM, and which hidden state: read layer by layer",
        caption=(
            "Accuracy of linear probes (multinomial logistic regression) on samples that neither the model nor the "
            "probe was trained on. Left: which HMM of the pool, read at the last observation. Right: the hidden state of "
            "one HMM, at positions 4 and later of the test sequence. Controls: the same model before training, and a "
            "probe trained on shuffled labels."
        ),
        panels=(panel("component", "Which HMM"), panel("state", "Hidden state")),
    )


def _distance_figure(rows: Rows) -> Figure:
    panels = []
    for model, title in {"trained": "Trained", "untrained": "Before training"}.items():
        own = rows.where(model=model, labels="true")
        back = (own.where(target=f"previous-{k}") for k in range(MAX_DISTANCE + 1))
        series = [curve(found, "layer", f"{k} back", y="accuracy") for k, found in enumerate(back)]
        panels.append(lines(title, *series, **_LAYERS))
    return Figure(
        name="previous-observations",
        title="Which past observations a layer holds",
        caption=(
            "Accuracy of linear probes for the observation k steps back, read at positions 4 and later of the test "
            "sequence, on samples that neither the model nor the probe was trained on. Layer 0 is the embedding."
        ),
        panels=tuple(panels),
    )


def _shuffle_figure(rows: Rows) -> Figure:
    looks = {"trained": ("trained", "model"), "untrained": ("untrained model", "control")}

    def panel(metric: str, title: str, y_label: str) -> Lines:
        own = rows.where(metric=metric)
        series = [curve(own.where(model=model), "layer", *look, bands=False) for model, look in looks.items()]  # type: ignore[arg-type]
        return lines(title, *series, x_label="layer", y_label=y_label, y_min=0.0)

    labels = {"x_label": "head", "y_label": "layer", "z_label": "coefficient of variation"}
    return Figure(
        name="position-shuffle",
        title="How far attention depends on where demonstrations stand",
        caption=(
            "Whole demonstrations are permuted, and the attention logits from the last token are followed by the identity "
            "of the key. The coefficient of variation is the standard deviation over permutations relative to the mean "
            "size of a logit, after removing what softmax ignores; zero means that the layer looks at content, not place."
        ),
        panels=(
            panel("cv_centred", "Variation of centred logits", "coefficient of variation"),
            panel("attention_change", "Change of the attention itself", "total variation"),
            heatmap(
                "Trained: layer by head", rows.where(model="trained", metric="cv_centred"), "head", "layer", **labels
            ),
        ),
    )


def _attention_figure(rows: Rows) -> Figure:
    trained = rows.where(model="trained")
    layers = sorted(trained.values("layer"))
    by_source = trained.where(kind="source")
    sources = []
    for source in ("same sequence", "earlier sequences", "delimiters"):
        shares = {row["layer"]: row["value"] for row in by_source.where(key=source).pool("layer")}
        sources.append(Series(name=source, y=tuple(shares[layer] for layer in layers)))
    labels = {"x_label": "columns back", "y_label": "layer", "z_label": "attention"}
    return Figure(
        name="attention",
        title="Where the last token looks",
        caption="Attention of the last token, averaged over heads and samples: by distance to the key, and by its source.",
        panels=(
            heatmap("By distance", trained.where(kind="offset"), "key", "layer", **labels),
            Bars(
                title="By source",
                y_label="attention",
                categories=tuple(f"layer {layer}" for layer in layers),
                series=tuple(sources),
            ),
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Questions


@claim(
    "quickstart-in-context",
    experiment="quickstart",
    source=OURS,
    says="Does the model learn in context, or does it know its pool?",
    reading=(
        "Accuracy with all demonstrations less that with none on HMMs of the pool, beside the loss on HMMs that it "
        "never saw, where the n-gram of order 1 shows what counting alone reaches; the number is the rise on the pool."
    ),
)
def in_context(tables: Tables) -> Seen:
    losses = tables["unseen"].where(metric="loss")
    last = max(losses.values("x"))
    start = losses.one(predictor="model", x=min(losses.values("x")))
    end, counted, told = (losses.one(predictor=name, x=last) for name in ("model", "order-1", "known-component"))
    if end["low"] > counted["high"]:
        tells = "So what it does on its pool is mostly retrieval: in context it learns less than counting does"
    elif end["high"] < counted["low"]:
        tells = "So it learns in context more than pairs of neighbours tell"
    else:
        tells = "There it and the n-gram are not told apart"
    text = (
        f"On HMMs of the pool accuracy goes from {_value(tables, 'model: first accuracy')} without demonstrations to "
        f"{_value(tables, 'model: last accuracy')} after the last one; the Bayes mixture over the pool, which "
        f"retrieves, ends at {_value(tables, 'optimum: last accuracy')}. On HMMs never seen the loss goes from "
        f"{start['value']:.3f} nats to {end['value']:.3f}, while the n-gram of order 1, which only counts, ends at "
        f"{counted['value']:.3f} and the filter that is told the HMM at {told['value']:.3f}. {tells}."
    )
    return Seen(
        _effect(tables["gap"].one(quantity="model: rise in accuracy"), "rise in accuracy, HMMs of the pool"), text
    )


@claim(
    "quickstart-gap",
    experiment="quickstart",
    source=OURS,
    says="How near to the optimum does it come?",
    reading="Share of the gap in loss between the n-gram of order 1 and the Bayes mixture over the pool, last sequence.",
)
def gap(tables: Tables) -> Seen:
    share = tables["gap"].one(quantity="share of the gap closed")
    text = (
        "At the last sequence, on HMMs of the pool, the order-1 in-context n-gram loses "
        f"{_value(tables, 'order-1: last loss')} nats, the model {_value(tables, 'model: last loss')} and the Bayes "
        f"mixture {_value(tables, 'optimum: last loss')}."
    )
    return Seen(_effect(share, "share of the gap closed"), text)


@claim(
    "quickstart-layers",
    experiment="quickstart",
    source=OURS,
    says="What does it hold, layer by layer?",
    reading="Probe accuracy for the HMM and for the hidden state at the best layer, beside the same before training.",
)
def layers_hold(tables: Tables) -> Seen:
    rows = tables["probes"].where(labels="true")

    def best(target: str, model: str = "trained") -> dict[str, Any]:
        return max(rows.where(target=target, model=model), key=lambda row: row["accuracy"])

    component, state = best("component"), best("state")
    text = (
        f"Which HMM it is can be read with accuracy {component['accuracy']:.2f} at layer {component['layer']} "
        f"({best('component', 'untrained')['accuracy']:.2f} at best before training, {component['ceiling']:.2f} by the "
        f"exact posterior); the hidden state with {state['accuracy']:.2f} at layer {state['layer']} "
        f"({best('state', 'untrained')['accuracy']:.2f} before training, {state['ceiling']:.2f} by the exact filter)."
    )
    return Seen(_effect(component | {"value": component["accuracy"]}, "probe accuracy, component"), text)


def _effect(row: dict[str, Any], unit: str) -> Effect:
    """The number of one run with its interval over samples."""
    return Effect(value=row["value"], low=row["low"], high=row["high"], unit=unit)


def _value(tables: Tables, quantity: str) -> str:
    return f"{tables['gap'].one(quantity=quantity)['value']:.3f}"
