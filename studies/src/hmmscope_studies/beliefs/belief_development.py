"""Development over training: which simple predictor a model resembles, and when it uses its belief."""

import math
from typing import Any

from hmmscope import InterventionOptions, Run, belief_interventions, lab, over_training, probe, registry
from hmmscope.analysis import LevelCrossing
from hmmscope.ties import largest

CHAINS = "fresh-markov-chains"
#: Display names of the trained models, by process and architecture.
MODELS = {
    (CHAINS, "roformer"): "RoFormer, Markov chains",
    ("mess3", "roformer"): "RoFormer, Mess3",
    ("rrxor", "rnn"): "RNN, RRXOR",
}
#: Display names and roles of predictors.
_LOOKS: dict[str, tuple[str, lab.Role]] = {
    "uniform": ("uniform", "control"),
    "order-0": lab.PREDICTORS["order-0"],
    "window-0": ("no observation", "baseline"),
    "window-1": ("last observation", "other"),
    "window-2": ("last two", "ceiling"),
    "optimum": ("exact answer", "optimum"),
}
_STEP = "step of training"


@registry.experiment("belief-development")
class BeliefDevelopment(lab.Experiment):
    """Small models, measured at log-spaced training steps."""

    title = "When can a belief be decoded from a model, and when does the model use it?"
    summary = (
        "Checkpoints are stored at logarithmically spaced steps. At each checkpoint, predictions are compared with "
        "simple predictors and with the optimum (the exact answer), and another belief is written into the layers (as "
        "in the experiment belief-interventions). The results show which predictors a model resembles in turn, when "
        "the belief can be decoded, and when the model uses it. For Markov chains that are drawn anew for each sample "
        "[Induction] reports this order: uniform predictions, then unigrams, then bigrams of the context."
    )
    num_seeds = {"smoke": 2, "small": 5, "gpu": 5, "paper": 5}
    run_columns = ("process", "architecture")
    sizes = {
        "smoke": {"samples": 32, "positions": 1},
        "small": {"samples": 256, "positions": 2},
        "gpu": {"samples": 2048, "positions": 4},
        "paper": {"samples": 2048, "positions": 4},
    }
    groups = {"strategies": ("strategies",), "interventions": ("interventions",), "read": ("read",)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        steps, length, chain = {
            "smoke": (8, 6, 8),
            "small": (600, 16, 48),
            "gpu": (4000, 32, 100),
            "paper": (20000, 64, 100),
        }[scale]
        width = {"smoke": 16, "small": 64, "gpu": 128, "paper": 256}[scale]
        training = {"num_steps": steps, "learning_rate": 3e-3, "batch_size": 8 if scale == "smoke" else 64}
        training |= {"milestones": 3 if scale == "smoke" else 14, "evaluate_every": 0, "checkpoint_every": steps}
        sizes = {CHAINS: {"num_states": 3, "num_symbols": 3, "transition_concentration": 1.0}}
        layers = {"roformer": {"num_layers": 2, "num_heads": 2}, "rnn": {}}
        still = {"warmup_steps": 0, "learning_rate": 1e-3}  # transitions come early, and must not fall into the warm-up
        return {
            f"{architecture} on {process}": {
                "process": {"name": process, **sizes.get(process, {})},
                "layout": {"name": "sequences", "length": chain if process == CHAINS else length, "placeholder": True},
                "model": {"name": architecture, "width": width, **layers[architecture]},
                "training": training | (still if process == CHAINS else {}),
            }
            for process, architecture in MODELS
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        rows = []
        for run in runs.values():
            process = run.config.process.name
            if group == "strategies":
                found: list[dict[str, Any]] = over_training(run, "strategies", num_samples=sizes["samples"])
                found = [row | {"warmup": run.config.training.warmup_steps} for row in found]
            elif group == "read" and process != CHAINS:  # with three untrained controls
                dataset, options = run.dataset("probe"), {"num_samples": sizes["samples"], "seed": run.config.seed}
                found = probe(run.model, dataset, target="belief", shuffled_labels=False, **options)
            elif process != CHAINS:  # a visible state leaves no belief
                options = {
                    "num_samples": sizes["samples"],
                    "options": InterventionOptions(num_positions=sizes["positions"]),
                }
                found = over_training(run, belief_interventions, interventions=("set",), **options)
            else:
                continue
            rows += [{"process": process, "architecture": run.config.model.name} | row for row in found]
        return {group: rows}

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        frozen = {name: _frozen(rows) for name, rows in tables.items() if name in ("strategies", "interventions")}
        return {**tables, **frozen} | ({"read": tables["read"].as_twins()} if "read" in tables else {})

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            lab.Figure(
                name="strategies",
                title="Distance of the model from simple predictors, by training step",
                caption=(
                    "Curves show the KL divergence of the model from simple predictors and the optimum (exact answer), "
                    "by step; the lowest curve belongs to the nearest predictor. Bands are 95 % intervals over seeds."
                ),
                panels=tuple(_distances(rows, title) for rows, title in _each(tables["strategies"])),
            ),
            lab.Figure(
                name="use",
                title="When the belief can be decoded, and when it is used",
                caption=(
                    "Curves show two measures at the layer that encodes the belief best at the end of training. “Read” "
                    "is R² of the affine map from this layer to the belief. “Used”: if another belief is written into "
                    "the layer, the KL divergence from the filter's prediction for that belief falls by this fraction "
                    "(one: to zero; values below -1 are not shown). The horizontal line is the mean held-out R² of "
                    "untrained controls at their best layer. Bands are 95 % intervals."
                ),
                panels=tuple(
                    _use(rows, title, _read_of(tables, title)) for rows, title in _each(_used(tables["interventions"]))
                ),
            ),
        ]


def _frozen(rows: lab.Rows) -> lab.Rows:
    steps = rows.values("step")
    return lab.Rows({**row, "step": step} for step in steps for row in rows.where(step=0))


def _each(rows: lab.Rows) -> list[tuple[lab.Rows, str]]:
    found = ((rows.where(process=p, architecture=a), title) for (p, a), title in MODELS.items())
    return [(own, title) for own, title in found if own]


def _distances(rows: lab.Rows, title: str) -> lab.Panel:
    own = lab.Rows(row for row in rows.where(metric="kl") if row["step"] > 0)
    series = [lab.curve(own.where(predictor=name), "step", *look) for name, look in _LOOKS.items()]
    return lab.lines(title, *series, x_label=_STEP, y_label="KL divergence (nats)", y_min=0.0, log_x=True)


def _read_of(tables: lab.Tables, title: str) -> lab.Rows:
    return next((own for own, name in _each(tables.get("read", lab.Rows())) if name == title), lab.Rows())


def _use(rows: lab.Rows, title: str, read: lab.Rows) -> lab.Panel:
    own = lab.Rows(row for row in rows if row["step"] > 0)
    shown = lab.Rows(row for row in own.where(subspace="belief") if row["value"] > -1)
    series = [lab.curve(shown, "step", "read", "ceiling", y="fitted"), lab.curve(shown, "step", "used", "model")]
    control = lab.Rows(row for row in own.where(subspace="random") if row["value"] > -1)
    series.append(lab.curve(control, "step", "random change of equal size", "control"))
    if read:
        best = max(row["twins"] for row in read.pool("layer", value="twins"))
        series.append(
            lab.level(best, (min(own.values("step")), max(own.values("step"))), "untrained controls", "baseline")
        )
        title = f"{title}: {read.beyond_twins('r2')}"
    return lab.lines(title, *series, x_label=_STEP, y_label="R², fraction of the way", log_x=True)


def _used(rows: lab.Rows) -> lab.Rows:
    found = lab.Rows()
    for own in rows.where(metric="kl").by("seed", "process").values():
        above = lab.Rows(row for row in own if row["layer"] > 0)
        best = largest(above.where(step=max(own.values("step")), subspace="belief"), lambda row: row["fitted"])
        found += above.where(layer=best["layer"])
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Transitions


def _place(found: LevelCrossing | None) -> lab.EstimateWithError | None:
    return None if found is None else lab.EstimateWithError(found.log2_step, found.error)


def _transitions(
    tables: lab.Tables, process: str, before: str, after: str
) -> lab.PerSeed[lab.EstimateWithError | None]:
    rows = tables["strategies"].where(process=process)
    return rows.per_seed(lambda own: _place(LevelCrossing.between(own, before, after)))


def _after_warmup(rows: lab.Rows, first: lab.PerSeed[lab.EstimateWithError | None]) -> lab.Gate:
    lasts = rows.values("warmup")
    places = [2**place.value for place in first.values() if place is not None]
    if not lasts or not places:
        return lab.Gate(
            "regime", False, "no model leaves the uniform distribution, or the number of warm-up steps is not recorded"
        )
    return lab.Gate.regime(
        min(places),
        max(lasts),
        math.inf,
        "the earliest training step at which a model becomes closer to unigrams than to uniform predictions",
    )


def _step(effect: lab.Effect | None) -> str:
    if effect is None:
        return "at no step"
    ends = "" if effect.low is None or effect.high is None else f" ({2**effect.low:.0f} to {2**effect.high:.0f})"
    return f"at step {2**effect.value:.0f}{ends}"


@lab.claim("unigrams-before-bigrams")
def unigrams_first(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    first, second = (_transitions(tables, CHAINS, *pair) for pair in (("uniform", "order-0"), ("order-0", "optimum")))
    last = tables["strategies"].where(process=CHAINS, metric="kl", step=max(tables["strategies"].values("step")))
    gain = last.where(predictor="order-0").less(last.where(predictor="optimum"), unit="nats")
    assert gain is not None
    text = (
        f"The model moves from uniform predictions to unigrams {_step(first.effect())}, and from unigrams to the exact "
        f"answer {_step(second.effect())}."
    )
    gates = (
        lab.Gate.learned(gain, lab.parameter(numbers, "learned"), "the unigrams of the context"),
        _after_warmup(last, first),
    )
    return lab.Measurement((second - first).effect("doublings of the number of training steps"), text, gates)
