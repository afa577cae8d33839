"""The whole way in minutes: two pools of HMMs, a small RoFormer on each, the exact answers, and a look inside."""

from typing import Any

from hmmscope import registry
from hmmscope.analysis.probes import probe
from hmmscope.corpora.corpus import Corpus
from hmmscope.evidence.claims import OURS, Seen, claim
from hmmscope.evidence.effects import Effect
from hmmscope.evidence.figures import Figure, Lines
from hmmscope.evidence.panels import curve, lines
from hmmscope.evidence.rows import Rows, Tables
from hmmscope.experiments.experiment import SEED_INTERVALS, Experiment, Measured
from hmmscope.experiments.looks import prompt_looks
from hmmscope.experiments.multitask_fig1 import effects
from hmmscope.experiments.multitask_models import PARTS, multitask_plan
from hmmscope.experiments.multitask_predictors import NGRAMS, POOLS, pools_of, prompt_score
from hmmscope.experiments.multitask_setting import pool_columns, spread
from hmmscope.runs.pipeline import Run, untrained_twin
from hmmscope.storage import rundir

#: Predictors that are drawn; the tables have more.
_SHOWN = ("known-component", "prior", "retrieval", "model", "untrained", "order-1", "order-2")
#: What is read of each layer, and how it is called.
_READ = {"previous-1": "1 back", "previous-2": "2 back", "previous-3": "3 back", "component": "which of 16 HMMs"}


@registry.experiment("quickstart")
class Quickstart(Experiment):
    """A RoFormer on prompts of a small pool and one on those of a large pool, asked about HMMs that neither has seen."""

    title = "Two RoFormers, few HMMs shown often and many shown rarely"
    summary = (
        "Two small decoders read as many prompts: demonstrations from one hidden Markov model of a pool, then a test "
        "sequence of the same one. One pool is small and its HMMs are shown more than a thousand times; in the other each "
        "is shown about ten times. Both are asked about HMMs of their pool, about held-out pairs of its parts, and about "
        "HMMs of which they have seen no part. Beside them stand what counting in the prompt reaches, what retrieval from "
        "the pool reaches, and the filter that is told the HMM."
    )
    intervals = SEED_INTERVALS
    num_seeds = {"smoke": 1, "small": 1, "gpu": 1, "paper": 1}
    groups = {"measurements": ("in-context", "effects", "layers", "training")}
    sizes = {
        "smoke": {"samples": 16, "first_position": 4, "probe_samples": 64},
        "small": {"samples": 128, "first_position": 4, "probe_samples": 512},
        "gpu": {"samples": 512, "first_position": 4, "probe_samples": 1024},
        "paper": {"samples": 512, "first_position": 4, "probe_samples": 1024},
    }

    def choices(self, scale: str) -> dict[str, Any]:
        return {"parts": PARTS[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        plan = multitask_plan(scale, choices["parts"])
        if scale == "small":
            for config in plan.values():
                config["training"] |= {"num_steps": 1500}
        return plan

    def live_run(self, scale: str, labels: list[str]) -> str | None:
        return labels[0] if scale in ("smoke", "small") else None  # the others are too large for a page

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        tables: Measured = {name: [] for name in self.groups[group]}
        for label, run in runs.items():
            where = {"label": label, **pool_columns(run)}
            for pool, process in pools_of(run).items():
                score = prompt_score(run, process, sizes["samples"])
                rows = score.rows("demonstrations", score.positions >= sizes["first_position"])
                tables["in-context"] += [where | {"pool": pool} | row for row in rows]
                tables["effects"] += [where | row for row in effects(score, pool, sizes["first_position"])]
            tables["layers"] += [where | row for row in _layers(run, sizes["probe_samples"])]
            records = rundir.read_journal(run.path / "metrics.jsonl")
            tables["training"] += [
                where | {key: row[key] for key in ("step", "evaluation_loss")}
                for row in records
                if row.get("evaluation_loss") is not None
            ]
        return tables

    def figures(self, tables: Tables) -> list[Figure]:
        """Predictions, layers and the loss over training."""
        return [
            _in_context(tables["in-context"], "loss", "nats per observation"),
            _in_context(tables["in-context"], "accuracy", "accuracy"),
            _layer_figure(tables["layers"]),
            _training_figure(tables["training"]),
        ]


def _layers(run: Run, num_samples: int) -> list[dict]:
    """Probes of `_READ`, layer by layer, in the trained and the untrained network."""
    few = Corpus(spread(run.process, 16), layout=run.config.layout, seed=run.config.seed, stream="probe")
    rows = []
    for network, model in {"trained": run.model, "untrained": untrained_twin(run)}.items():
        for target in _READ:
            corpus = few if target == "component" else run.corpus("probe")
            found = probe(model, corpus, target=target, num_samples=num_samples, shuffled_labels=False, num_twins=0)
            rows += [{"network": network} | row for row in found]
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _in_context(rows: Rows, metric: str, unit: str) -> Figure:
    panels = []
    for prompts, of_model in rows.where(metric=metric).by("prompts").items():
        for pool, own in of_model.by("pool").items():
            title = f"{POOLS[pool][0].upper()}{POOLS[pool][1:]}; {_shown(prompts)}"
            series = [
                curve(own.where(predictor=p), "x", *look) for p, look in prompt_looks(pool).items() if p in _SHOWN
            ]
            panels.append(lines(title, *series, x_label="demonstrations before the sequence", y_label=unit))
    return Figure(
        name=f"in-context-{metric}",
        title=f"{metric.capitalize()} as demonstrations arrive",
        caption=(
            "The next observation, at the later positions of a sequence, against the number of demonstrations before it. "
            "Top: few HMMs that were shown often; bottom: many that were shown rarely. Retrieval is the exact answer of an "
            "observer who knows the pool and believes in nothing else: the optimum on the pool. The mixture over all pairs "
            "is the optimum on held-out pairs. The n-grams count in the prompt alone. Bands are 95 % intervals over "
            "prompts, of one training each."
        ),
        panels=tuple(panels),
    )


def _layer_figure(rows: Rows) -> Figure:
    def panel(own: Rows, title: str) -> Lines:
        series = [curve(own.where(target=target), "layer", name, y="accuracy") for target, name in _READ.items()]
        chance = curve(own.where(target="component"), "layer", "chance, which HMM", "baseline", y="chance", bands=False)
        return lines(title, *series, chance, x_label="layer", y_label="probe accuracy", y_min=0.0, y_max=1.02)

    panels = [
        panel(own.where(network=network), f"{name}; {_shown(prompts)}")
        for prompts, own in rows.by("prompts").items()
        for network, name in {"trained": "Trained", "untrained": "Before training"}.items()
    ]
    return Figure(
        name="layers",
        title="What a layer holds",
        caption=(
            "Accuracy of linear probes on prompts that neither the model nor the probe was trained on: the observation k "
            "steps back, at positions 4 and later of the test sequence, and which of 16 HMMs of the pool speaks, at the "
            "last observation. Layer 0 is the embedding. What the network holds before training, it did not learn."
        ),
        panels=tuple(panels),
    )


def _training_figure(rows: Rows) -> Figure:
    series = [
        curve(own, "step", f"pool with {_shown(prompts)}", y="evaluation_loss")
        for prompts, own in rows.by("prompts").items()
    ]
    return Figure(
        name="training",
        title="Loss over training",
        caption="Loss on fresh prompts of the own pool, over whole prompts.",
        panels=(lines("", *series, x_label="step", y_label="nats per observation"),),
    )


def _shown(prompts: float) -> str:
    return f"{prompts:,.3g} prompts per HMM" if prompts < 1000 else f"{prompts:,.0f} prompts per HMM"


# ---------------------------------------------------------------------------------------------------------------------
# Questions


@claim(
    "quickstart-often",
    experiment="quickstart",
    source=OURS,
    says="What does the model do whose HMMs were shown often?",
    reading="Loss above the filter that is told the HMM: the number is that on HMMs never seen less that on the pool.",
)
def often(tables: Tables) -> Seen:
    return _asked(tables, max(tables["effects"].values("prompts")))


@claim(
    "quickstart-rarely",
    experiment="quickstart",
    source=OURS,
    says="What does the model do whose HMMs were shown rarely?",
    reading="Loss above the filter that is told the HMM: the number is that on HMMs never seen less that on the pool.",
)
def rarely(tables: Tables) -> Seen:
    return _asked(tables, min(tables["effects"].values("prompts")))


@claim(
    "quickstart-layers",
    experiment="quickstart",
    source=OURS,
    says="What do its layers hold that they did not hold before training?",
    reading=(
        "Probe accuracy at the best layer of the model whose HMMs were shown rarely, beside the same before training; the "
        "number is the gain for the token one back."
    ),
)
def layers_hold(tables: Tables) -> Seen:
    rows = tables["layers"].where(prompts=min(tables["layers"].values("prompts")))

    def best(target: str, network: str) -> dict[str, Any]:
        return max(rows.where(target=target, network=network), key=lambda row: row["accuracy"])

    parts = []
    for target, name in _READ.items():
        own, before = best(target, "trained"), best(target, "untrained")
        parts.append(f"{name} {own['accuracy']:.2f} at layer {own['layer']} ({before['accuracy']:.2f} before training)")
    one, control = best("previous-1", "trained"), best("previous-1", "untrained")
    gain = one["accuracy"] - control["accuracy"]
    half = sum((row["high"] - row["low"]) / 2 for row in (one, control))
    effect = Effect(value=gain, low=gain - half, high=gain + half, unit="probe accuracy, 1 back, above the untrained")
    return Seen(effect, f"Read at the best layer: {'; '.join(parts)}.")


def _asked(tables: Tables, prompts: float) -> Seen:
    """What one model does on its pool and beyond it, in words that follow the intervals."""
    own = tables["effects"].where(prompts=prompts, network="trained")

    def effect(name: str, pool: str) -> Effect:
        found = own.where(effect=name, pool=pool).effect()
        assert found is not None
        return found

    rows = tables["in-context"].where(prompts=prompts, metric="loss")
    end = rows.where(x=max(rows.values("x")))
    losses = {pool: {row["predictor"]: row["value"] for row in ended} for pool, ended in end.by("pool").items()}
    parts = [
        f"on {POOLS[pool]} {loss['model']:.2f} (counting {min(loss[name] for name in NGRAMS if name in loss):.2f}, "
        f"retrieval {loss['retrieval']:.2f}, component known {loss['known-component']:.2f})"
        for pool, loss in losses.items()
    ]
    above = own.where(effect="loss above the ceiling")
    gap = above.where(pool="unseen").less(above.where(pool="pool"), unit="nats more on HMMs never seen")
    assert gap is not None
    counting = effect("gain over counting", "unseen")
    if (counting.low or 0) > 0:
        tells = "it does better than counting in the prompt, so it learns in context"
    elif (counting.high or 0) < 0:
        tells = "it does worse than counting in the prompt, which needs no training"
    else:
        tells = "it is not told apart from counting in the prompt"
    knows = "knows its pool by heart" if (gap.low or 0) > 0 else "is not seen to know its pool by heart"
    text = (
        f"Shown each HMM in {_shown(prompts).removesuffix(' per HMM')}, the model {knows}, and on HMMs never seen {tells}: "
        f"{losses['pool']['model']:.2f} nats on its pool, {losses['unseen']['model']:.2f} on those"
    )
    return Seen(gap, f"{text}. After all demonstrations, in nats: {'; '.join(parts)}.")
