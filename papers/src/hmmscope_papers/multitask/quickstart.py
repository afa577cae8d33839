"""A demonstration in minutes: two pools of HMMs, a small RoFormer on each, exact answers, and probes."""

from typing import Any

from hmmscope import Process, ProcessDataset, Run, lab, probe, registry
from hmmscope.analysis import TunedNgrams
from hmmscope.ties import largest, smallest
from hmmscope_papers.multitask.fig1 import effects
from hmmscope_papers.multitask.models import PARTS, multitask_plan
from hmmscope_papers.multitask.predictors import POOLS, TREE, counting_of, pools_of, prompt_score
from hmmscope_papers.multitask.training_setting import looks, pool_columns, spread

#: Predictors that are drawn besides the best n-gram.
_SHOWN = ("known-component", "prior", "retrieval", "model", "untrained", TREE)
#: Probe targets and their names.
_READ = {"previous-1": "1 back", "previous-2": "2 back", "previous-3": "3 back", "component": "which of 16 HMMs"}
#: Predictors for prompts other than held-out pairs, where the mixture over all pairs is not the optimum.
_NO_PRIOR = ("model", "untrained", "known-component", "retrieval")
#: Unseen HMMs on the live page.
_LIVE = 16
#: Changes to figure 1 for the demo, chosen on seeds 11 and 12, because there a model learns in a minute.
#: The demo has seed 0.
_DEMO = {
    "process": {"num_states": 12, "num_symbols": 6},
    "model": {"mlp_ratio": 1},
    "training": {"num_steps": 2200},
}


@registry.experiment("quickstart")
class Quickstart(lab.Experiment):
    """RoFormers trained on a small and on a large pool, evaluated on unseen HMMs."""

    title = "Two models, trained on few HMMs shown often and on many shown rarely"
    summary = (
        "Does a model that predicts well memorise its HMMs, or does it learn from the prompt? Two small decoders are "
        "trained on equally many prompts: demonstrations from one hidden Markov model of a pool, then a test sequence of "
        "the same model. The memoriser has a small pool, and sees each HMM more than a thousand times; the learner sees "
        "each HMM of a large pool about fifteen times. Both are evaluated on HMMs of their pool, on held-out pairs of "
        "a cycle and an emission, and on unseen HMMs. They are compared with tuned n-gram baselines, with retrieval "
        "from the pool, and with the filter that knows the HMM."
    )
    num_seeds = {"smoke": 1, "small": 1, "gpu": 1, "paper": 1}
    groups = {"measurements": ("in-context", "effects", "layers", "training")}
    sizes = {
        "smoke": {"samples": 16, "never_seen_samples": 16, "first_position": 4, "probe_samples": 64},
        "small": {"samples": 128, "never_seen_samples": 512, "first_position": 4, "probe_samples": 512},
        "gpu": {"samples": 512, "never_seen_samples": 512, "first_position": 4, "probe_samples": 1024},
        "paper": {"samples": 512, "never_seen_samples": 512, "first_position": 4, "probe_samples": 1024},
    }

    def choices(self, scale: str) -> dict[str, Any]:
        return {"parts": PARTS[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        plan = multitask_plan(scale, choices["parts"])
        if scale == "small":
            for config in plan.values():
                for section, changes in _DEMO.items():
                    config[section] |= changes
        return plan

    def live_run(self, scale: str, labels: list[str]) -> str | None:
        return labels[-1] if scale in ("smoke", "small") else None  # other runs are too large for a page

    def live_process(self, run: Run) -> Process | None:
        return spread(pools_of(run)["unseen"], _LIVE)

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        tables: lab.MeasuredTables = {name: [] for name in self.groups[group]}
        for label, run in runs.items():
            where = {"label": label, **pool_columns(run)}
            counting = counting_of(run)
            for pool, process in pools_of(run).items():
                count = sizes["never_seen_samples" if pool == "unseen" else "samples"]
                score = prompt_score(run, process, count, None if pool == "held-out" else _NO_PRIOR, counting)
                rows = score.rows("demonstrations", score.positions >= sizes["first_position"])
                tables["in-context"] += [where | {"pool": pool} | row for row in rows]
                tables["effects"] += [where | row for row in effects(score, pool, sizes["first_position"])]
            tables["layers"] += [where | row for row in _layers(run, sizes["probe_samples"])]
            records = run.table()
            tables["training"] += [
                where | {key: row[key] for key in ("step", "evaluation_loss")}
                for row in records
                if row.get("evaluation_loss") is not None
            ]
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            _never_seen(tables["in-context"]),
            _in_context(tables["in-context"], "loss", "nats per observation"),
            _in_context(tables["in-context"], "accuracy", "accuracy"),
            _layer_figure(tables["layers"]),
            _training_figure(tables["training"]),
        ]


def _layers(run: Run, num_samples: int) -> list[dict]:
    few = ProcessDataset(spread(run.process, 16), layout=run.config.layout, seed=run.config.seed, stream="probe")
    rows: list[dict] = []
    for target in _READ:
        dataset = few if target == "component" else run.dataset("probe")
        rows += probe(run.model, dataset, target=target, num_samples=num_samples, shuffled_labels=False)
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _never_seen(rows: lab.Rows) -> lab.Figure:
    panels = []
    for prompts, own in rows.where(metric="loss", pool="unseen").by("prompts").items():
        series = [lab.curve(own.where(predictor=name), "x", *look) for name, look in _looks(own, "unseen").items()]
        title = f"Trained on {_shown(prompts)}"
        panels.append(
            lab.lines(title, *series, x_label="demonstrations before the sequence", y_label="nats per observation")
        )
    return lab.Figure(
        name="never-seen",
        title="Unseen HMMs: which model learns from the prompt?",
        caption=(
            "Curves show the loss for the next observation of unseen HMMs, at later positions of a sequence. A model that "
            "memorised its HMMs does no better than retrieval from its pool; a model that learns from the prompt does "
            "better than retrieval and than tuned n-gram baselines. Bands are 95 % intervals over prompts."
        ),
        panels=tuple(panels),
    )


def _in_context(rows: lab.Rows, metric: str, unit: str) -> lab.Figure:
    panels = []
    for prompts, of_model in rows.where(metric=metric).by("prompts").items():
        for pool, own in of_model.by("pool").items():
            title = f"{POOLS[pool][0].upper()}{POOLS[pool][1:]}; {_shown(prompts)}"
            series = [lab.curve(own.where(predictor=name), "x", *look) for name, look in _looks(own, pool).items()]
            panels.append(lab.lines(title, *series, x_label="demonstrations before the sequence", y_label=unit))
    return lab.Figure(
        name=f"in-context-{metric}",
        title=f"{metric.capitalize()} as demonstrations arrive",
        caption=(
            f"Curves show the {metric} for the next observation at the later positions of a sequence, against the "
            "number of demonstrations before it. Top: few HMMs, each shown often. Bottom: many HMMs, each shown "
            "rarely. Retrieval is the Bayes mixture over the pool, which is the optimum on the pool; the mixture over "
            "all pairs is the optimum on held-out pairs. The best n-gram and the context trees use only the prompt, "
            "and are tuned on other prompts of the pool. Bands are 95 % intervals over prompts, one model per pool."
        ),
        panels=tuple(panels),
    )


def _looks(rows: lab.Rows, pool: str) -> dict[str, tuple[str, lab.Role]]:
    end = rows.where(x=max(rows.values("x")))
    orders = {row["predictor"]: row["value"] for row in end if row["predictor"].startswith("order-")}
    if end[0]["metric"] == "accuracy":
        orders = {name: -value for name, value in orders.items()}
    shown = (*_SHOWN, *([smallest(orders, orders.__getitem__)] if orders else []))
    return {name: look for name, look in looks(pool).items() if name in shown}


def _layer_figure(rows: lab.Rows) -> lab.Figure:
    def panel(own: lab.Rows, title: str, y: str) -> lab.Panel:
        series = [lab.curve(own.where(target=target), "layer", name, y=y) for target, name in _READ.items()]
        chance = lab.curve(
            own.where(target="component"), "layer", "chance, which HMM", "baseline", y="chance", bands=False
        )
        return lab.lines(title, *series, chance, x_label="layer", y_label="probe accuracy", y_min=0.0, y_max=1.02)

    panels = [
        panel(own, f"{name}; {_shown(prompts)}", y)
        for prompts, own in rows.by("prompts").items()
        for y, name in {"accuracy": "Trained", "twins": "Untrained controls"}.items()
    ]
    return lab.Figure(
        name="layers",
        title="What each layer represents",
        caption=(
            "Curves show the accuracy of linear probes on prompts that neither the model nor the probe was trained on. "
            "Some probes predict the observation k steps back, at positions 4 and later of the test sequence; another one "
            "identifies the HMM among 16 of the pool, at the last observation. Layer 0 is the embedding. Untrained "
            "controls (mean of three) show what a probe decodes without learning."
        ),
        panels=tuple(panels),
    )


def _training_figure(rows: lab.Rows) -> lab.Figure:
    series = [
        lab.curve(own, "step", f"pool with {_shown(prompts)}", y="evaluation_loss")
        for prompts, own in rows.by("prompts").items()
    ]
    return lab.Figure(
        name="training",
        title="Loss over training",
        caption="Curves show the loss on fresh prompts of the training pool, averaged over whole prompts.",
        panels=(lab.lines("", *series, x_label="step", y_label="nats per observation"),),
    )


def _shown(prompts: float) -> str:
    return f"{prompts:,.3g} prompts per HMM" if prompts < 1000 else f"{prompts:,.0f} prompts per HMM"


# ---------------------------------------------------------------------------------------------------------------------
# Questions


@lab.claim("quickstart-counting")
def beyond_counting(tables: lab.Tables) -> lab.Measurement:
    return _better(tables, "counting")


@lab.claim("quickstart-retrieval")
def beyond_retrieval(tables: lab.Tables) -> lab.Measurement:
    return _better(tables, "retrieval")


@lab.claim("quickstart-layers")
def layers_hold(tables: lab.Tables) -> lab.Measurement:
    rows = tables["layers"].where(prompts=min(tables["layers"].values("prompts")))
    best = {target: largest(rows.where(target=target), lambda row: row["accuracy"]) for target in _READ}
    said = "accuracy " + ", ".join(
        f"{name} {best[target]['accuracy']:.2f} ({best[target]['twins']:.2f})" for target, name in _READ.items()
    )
    one = best["previous-1"]
    if one["share"] is None:
        return lab.Measurement(None, f"{said}. The controls are too accurate to show an effect of training.")
    share = lab.Effect(
        value=one["share"],
        low=one["share_low"],
        high=one["share_high"],
        unit="of controls' error removed (1 back)",
    )
    return lab.Measurement(share, f"{said}.")


def _better(tables: lab.Tables, than: str) -> lab.Measurement:
    prompts = min(tables["effects"].values("prompts"))
    own = tables["effects"].where(prompts=prompts, network="trained", pool="unseen")
    nats, right = (
        own.where(effect=f"gain over {than}").effect(unit="nats"),
        own.where(effect=f"accuracy over {than}").effect(),
    )
    assert nats is not None
    assert right is not None
    losses, accuracies = (_end(tables, prompts, "unseen", metric) for metric in ("loss", "accuracy"))
    beside = "retrieval"
    if than == "counting":
        losses = {"counting": losses[TunedNgrams.best(losses)], **losses}
        accuracies = {"counting": accuracies[TunedNgrams.best(accuracies, "accuracy")], **accuracies}
        beside = "counting"
    sides = _side(nats), _side(right)
    says = {(1, 1): "Yes", (1, 0): "In nats alone", (0, 1): "In accuracy alone", (0, 0): "No difference is seen"}
    other = "n-gram baseline" if than == "counting" else than
    text = (
        f"{says.get(sides, 'No')}: model {losses['model']:.2f} nats, {other} {losses[beside]:.2f} nats; "
        f"accuracies {accuracies['model']:.2f} and {accuracies[beside]:.2f}, difference {right}."
    )
    return lab.Measurement(nats, text)


def _side(effect: lab.Effect) -> int:
    return ((effect.low or 0) > 0) - ((effect.high or 0) < 0)


def _end(tables: lab.Tables, prompts: float, pool: str, metric: str) -> dict[str, float]:
    rows = tables["in-context"].where(prompts=prompts, metric=metric, pool=pool)
    return {row["predictor"]: row["value"] for row in rows.where(x=max(rows.values("x")))}
