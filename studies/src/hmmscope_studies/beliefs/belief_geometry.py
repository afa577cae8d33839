"""Geometry of beliefs in trained models: fractals, processes that no finite HMM generates, and factored beliefs."""

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

from torch import nn

from hmmscope import ProcessDataset, Run, belief_space, lab, over_training, registry
from hmmscope.analysis import ExactBeliefs
from hmmscope.ties import largest
from hmmscope_studies.beliefs.belief_clouds import cloud_rows

FACTORED = "factored-mess3"
#: Names in figures, with the specs of the processes.
PROCESSES: dict[str, dict[str, Any]] = {
    "Mess3": {"name": "mess3"},
    "RRXOR": {"name": "rrxor"},
    "Bloch walk": {"name": "bloch-walk"},
    "post-quantum": {"name": "post-quantum"},
    "independent factors": {"name": FACTORED},
    "conditional factors": {"name": FACTORED, "coupling": "conditional"},
    "hidden coupling": {"name": FACTORED, "coupling": "hidden"},
}
#: Processes of two factors; in the last, the joint belief is not the product of the factors' beliefs.
FACTORS = ("independent factors", "conditional factors", "hidden coupling")
#: Processes with stored points of the first seed, and whether they cover all layers and steps.
_CLOUDS = {"Mess3": True, "RRXOR": False, "Bloch walk": False, "post-quantum": False}
_COLUMNS = ("layer", "quantity", "value", "low", "high", "error", "fitted")


#: Smallest fraction of variance unexplained before training for which a result is shown.
_LEAST_LEFT = 0.02


@registry.experiment("belief-geometry")
class BeliefGeometry(lab.Experiment):
    """RoFormers on processes with a known geometry of beliefs."""

    title = "Geometry of belief states in the residual stream"
    summary = (
        "RoFormers are trained to predict the next observation of processes whose beliefs have a known geometry. The "
        "beliefs of Mess3 form a fractal. The beliefs of RRXOR have four dimensions, and its next-symbol distribution "
        "does not determine them. No finite HMM generates the quantum process, whose predictive vectors fill a disc, "
        "or the post-quantum process, whose predictive vectors fill a curve after a reset. Pairs of Mess3 processes "
        "(factors) are independent or coupled through observations or hidden states. Affine maps read the exact belief "
        "from every layer at every stored training step. For pairs, the experiment measures whether the stream encodes "
        "the joint belief (eight dimensions) or the beliefs of both factors (two dimensions each), and whether their "
        "subspaces are orthogonal. The control is the untrained network."
    )
    num_seeds = {"smoke": 2, "small": 5, "gpu": 5, "paper": 5}
    run_columns = ("process",)
    sizes = {
        "smoke": {"samples": 24, "points": 60},
        "small": {"samples": 512, "points": 10_000},
        "gpu": {"samples": 4096, "points": 20_000},
        "paper": {"samples": 4096, "points": 20_000},
    }
    measure_per_run = True
    groups = {"steps": ("steps",), "clouds": ("clouds",)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        steps, length, batch = {
            "smoke": (8, 6, 8),
            "small": (1200, 16, 32),
            "gpu": (5000, 32, 256),
            "paper": (20000, 64, 256),
        }[scale]
        layers, width = {"smoke": (1, 16), "small": (2, 64), "gpu": (4, 128), "paper": (4, 256)}[scale]
        milestones = 3 if scale == "smoke" else 7
        training = {"num_steps": steps, "learning_rate": 3e-3 if scale == "small" else 1e-3, "batch_size": batch}
        training |= {"milestones": milestones, "evaluate_every": max(1, steps // 4), "checkpoint_every": steps}
        return {
            name: {
                "process": dict(process),
                "layout": {"name": "sequences", "length": length, "placeholder": True},
                "model": {"name": "roformer", "width": width, "num_layers": layers, "num_heads": 4},
                "training": dict(training),
            }
            for name, process in PROCESSES.items()
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        rows = []
        for name, run in runs.items():
            if group == "steps":
                factors = 2 if name in FACTORS else 1
                found: list[dict[str, Any]] = over_training(
                    run, _measured, num_samples=sizes["samples"], num_factors=factors
                )
            else:
                shown = run.config.seed == 0 and name in _CLOUDS
                found = cloud_rows(run, sizes["points"], over_all=_CLOUDS[name]) if shown else []
            rows += [{"process": name} | row for row in found]
        return {group: rows}

    def without_training(self, tables: lab.Tables) -> lab.Tables:
        rows = tables["steps"]
        frozen = lab.Rows({**row, "step": step} for step in rows.values("step") for row in rows.where(step=0))
        return {**tables, "steps": frozen}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        rows, clouds = tables["steps"], tables["clouds"]
        shapes = [_fractal_figure(clouds), _shapes_figure(clouds)] if clouds else []
        return [_layers_figure(rows), _added_figure(rows), *shapes, _dimensions_figure(rows), _development_figure(rows)]


def _measured(model: nn.Module, dataset: ProcessDataset, *, num_samples: int, num_factors: int) -> list[dict]:
    exact = ExactBeliefs.of(dataset, num_samples)
    found, alone = exact.read(exact.stream(model)), float(exact.from_prediction()[0])
    rows = belief_space(model, dataset, num_samples=num_samples, num_factors=num_factors)
    for layer, read in enumerate(found.by_layer()):
        rows.append({"layer": layer, "quantity": "read"} | read)
        rows.append({"layer": layer, "quantity": "from the prediction", "value": alone})
    return [{key: row[key] for key in _COLUMNS if key in row} for row in rows]


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _layers_figure(rows: lab.Rows) -> lab.Figure:
    def panel(process: str) -> lab.Panel:
        own = rows.where(process=process)
        before, after = (own.where(step=step, quantity="read") for step in _ends(rows))
        return lab.lines(
            process,
            lab.curve(after, "layer", "trained", "model"),
            lab.curve(before, "layer", "before training", "control"),
            lab.curve(own.where(quantity="from the prediction"), "layer", "affine in the exact prediction", "baseline"),
            x_label="layer",
            y_label="held-out R²",
            y_min=-0.05,
            y_max=1.02,
        )

    return lab.Figure(
        name="layers",
        title="R² of affine maps from each layer to the belief",
        caption=(
            "Curves show R² of an affine map to the exact belief (or predictive vector) after every observation, on "
            "held-out samples; layer 0 is the embedding. The baseline is R² of an affine map from the exact "
            "next-symbol distribution; it is one if belief and distribution are affine functions of each other. Bands "
            "are 95 % intervals over seeds."
        ),
        panels=tuple(panel(process) for process in rows.values("process")),
    )


def _added_figure(rows: lab.Rows) -> lab.Figure:
    def left(own: lab.Rows, step: int) -> float:
        return 1 - float(max(own.where(step=step), key=lambda row: row["fitted"])["value"])

    shares: list[dict[str, Any]] = []
    for process, own in rows.where(quantity="read").by("process").items():
        before, after = (own.per_seed(partial(left, step=step)) for step in _ends(rows))
        if (mean := fmean(before.values())) >= _LEAST_LEFT:
            shares += [{"process": process, "seed": seed, "value": 1 - x / mean} for seed, x in after.items()]
    names = lab.Rows(shares).values("process")
    return lab.Figure(
        name="added",
        title="Fraction of the belief's previously unexplained variance that training explains",
        caption=(
            "Bars show 1 - (1 - R²) / (mean over seeds of 1 - R² before training), with R² of the layer whose affine "
            f"map fits its training samples best. Processes with less than {_LEAST_LEFT:g} of the variance unexplained "
            "before training are left out. Intervals are 95 % intervals over seeds."
        ),
        panels=(
            lab.bars(
                "",
                lab.bar(lab.Rows(shares), "process", names, "trained", "model"),
                categories=names,
                y_label="fraction explained",
            ),
        ),
    )


def _ends(rows: lab.Rows) -> tuple[int, int]:
    steps = rows.values("step")
    return min(steps), max(steps)


def _last_layer(rows: lab.Rows) -> lab.Rows:
    return rows.where(layer=max(rows.values("layer")))


def _fractal_figure(clouds: lab.Rows) -> lab.Figure:
    rows = clouds.where(process="Mess3")
    return lab.Figure(
        name="fractal",
        title="The fractal of Mess3, exact and decoded from the network",
        caption=(
            "Each point is the belief after one prefix, in the triangle of the three states, coloured by the exact belief "
            "in all panels. Left: beliefs of the forward filter. Middle: beliefs decoded from each layer of the trained "
            "network. Right: beliefs decoded from the last layer at stored steps of training. All panels show the first "
            "seed; the affine maps are fitted to these points."
        ),
        panels=(
            lab.BeliefPlane.panel(rows, "exact", "Exact"),
            lab.BeliefPlane.panel(rows, "layer", "Decoded, by layer", "layer"),
            lab.BeliefPlane.panel(rows, "step", "Decoded, by step of training", "step"),
        ),
    )


def _shapes_figure(clouds: lab.Rows) -> lab.Figure:
    panels = []
    for process in ("RRXOR", "Bloch walk", "post-quantum"):
        rows = clouds.where(process=process)
        panels += [
            lab.BeliefPlane.panel(rows, "exact", f"{process}, exact"),
            lab.BeliefPlane.panel(rows, "step", f"{process}, decoded"),
        ]
    return lab.Figure(
        name="shapes",
        title="Beliefs of RRXOR and of two processes that no finite HMM generates",
        caption=(
            "Each point is the exact belief after one prefix, or the belief decoded from the last layer at the end of "
            "training. RRXOR has 36 beliefs in four dimensions; the panels show the two dimensions with the largest "
            "variance. The Bloch walk's predictive vectors fill a disc; those of the post-quantum process lie in a convex "
            "set with a logarithmic boundary."
        ),
        panels=tuple(panels),
    )


def _dimensions_figure(rows: lab.Rows) -> lab.Figure:
    names = rows.values("process")
    pairs = [name for name in FACTORS if name in names]
    before, after = (_last_layer(rows).where(step=step) for step in _ends(rows))

    def panel(title: str, quantity: str, processes: list[str], y_label: str, *null: lab.Series) -> lab.Panel:
        trained = lab.bar(after.where(quantity=quantity), "process", processes, "trained", "model")
        untrained = lab.bar(before.where(quantity=quantity), "process", processes, "before training", "control")
        return lab.bars(title, trained, untrained, *null, categories=processes, y_label=y_label)

    joint = lab.bar(after.where(quantity="joint"), "process", names, "joint belief", "ceiling")
    panels = [panel("Dimension of the space", "dimension", names, "effective dimensions", joint)]
    if pairs:
        random = lab.bar(after.where(quantity="random overlap"), "process", pairs, "random spaces", "baseline")
        panels.append(panel("Explained by separate factors", "factored", pairs, "fraction"))
        panels.append(panel("Overlap of the factors' spaces", "overlap", pairs, "cos²", random))
    return lab.Figure(
        name="dimensions",
        title="Do the dimensions of two factors add up or multiply?",
        caption=(
            "Left: effective dimension of the space in which the last layer varies with the belief; two factors of two "
            "dimensions each give 4 if encoded separately, and 8 if encoded jointly. Middle: variance of the stream "
            "explained by the factors' beliefs, as a fraction of that explained by the joint belief. Right: mean squared "
            "cosine of the angles between the two factors' subspaces. Intervals are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _development_figure(rows: lab.Rows) -> lab.Figure:
    own = lab.Rows(row for row in _last_layer(rows) if row["step"] > 0)

    def panel(title: str, quantity: str, processes: tuple[str, ...], y_label: str) -> lab.Panel:
        series = [lab.curve(own.where(process=name, quantity=quantity), "step", name, "model") for name in processes]
        return lab.lines(title, *series, x_label="step of training", y_label=y_label, log_x=True)

    return lab.Figure(
        name="development",
        title="Decoded belief, factors and dimension during training",
        caption=(
            "The panels show three measures of the last layer against the step of training: R² of the belief; the variance "
            "that the factors' beliefs explain, as a fraction of that explained by the joint belief; and the effective "
            "dimension. Bands are 95 % intervals over seeds."
        ),
        panels=(
            panel("Belief", "read", tuple(PROCESSES), "held-out R²"),
            panel("Separate factors", "factored", FACTORS, "fraction"),
            panel("Dimension", "dimension", FACTORS, "dimensions"),
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _gains(tables: lab.Tables, processes: tuple[str, ...]) -> dict[str, lab.Effect]:
    rows, effects = tables["steps"].where(quantity="read"), {}
    first, last = _ends(rows)

    def read(own: lab.Rows, step: int) -> lab.EstimateWithError:
        best = largest(own.where(step=step), lambda row: row["fitted"])
        return lab.EstimateWithError(best["value"], best["error"])

    def gain(own: lab.Rows) -> lab.EstimateWithError:
        before = read(own, first)
        less, left = read(own, last) - before, 1 - before.value
        return lab.EstimateWithError(less.value / left, less.error / left)

    for process, own in rows.where(process=processes).by("process").items():
        effects[process] = lab.Effect.pooled(
            list(own.per_seed(gain).values()), "of the belief's variance that untrained networks leave unexplained"
        )
    return effects


def _said(effects: dict[str, lab.Effect]) -> str:
    return "; ".join(f"{name} {effect.short()}" for name, effect in effects.items())


@lab.claim("beliefs-are-linear")
def beliefs_are_linear(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    wanted = ("Mess3", "RRXOR")
    effects = _gains(tables, wanted)
    return lab.Measurement(
        effects,
        "Training explains these fractions of the belief's variance that untrained networks leave unexplained: "
        f"{_said(effects)}.",
        (lab.Gate.flat(tables, lab.parameter(numbers, "settled"), label=wanted),),
        wanted,
    )


@lab.claim("beliefs-beyond-hmms")
def beliefs_beyond_hmms(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    wanted = ("Bloch walk", "post-quantum")
    effects = _gains(tables, wanted)
    return lab.Measurement(
        effects,
        "Training explains these fractions of the predictive vectors' variance that untrained networks leave "
        f"unexplained: {_said(effects)}.",
        (lab.Gate.flat(tables, lab.parameter(numbers, "settled"), label=wanted),),
        wanted,
    )


def _by_process(
    tables: lab.Tables, measure: Callable[[Callable[[int, str], float]], float], unit: str
) -> dict[str, lab.Effect]:
    rows, effects = _last_layer(tables["steps"]), {}
    ends = _ends(rows)

    def of_seed(own: lab.Rows) -> float:
        return measure(lambda end, quantity: own.one(step=ends[end], quantity=quantity)["value"])

    for process, own in rows.where(process=FACTORS[:2]).by("process").items():
        effects[process] = lab.Effect.pooled(list(own.per_seed(of_seed).values()), unit)
    return effects


@lab.claim("factors-apart")
def factors_apart(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    def removed(of: Callable[[int, str], float]) -> float:
        return (of(1, "factored") - of(0, "factored")) / (1 - of(0, "factored"))

    effects = _by_process(tables, removed, "of the variance that the factors do not explain before training")
    held = _by_process(tables, lambda of: of(1, "dimension"), "dimensions")
    text = (
        "Effective dimensions of the belief in the last layer (4 if factors are encoded separately, 8 if jointly): "
        f"{_said(held)}."
    )
    return lab.Measurement(
        effects, text, (lab.Gate.flat(tables, lab.parameter(numbers, "settled"), label=FACTORS[:2]),), FACTORS[:2]
    )


@lab.claim("factors-orthogonal")
def factors_orthogonal(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    effects = _by_process(tables, lambda of: 1 - of(1, "overlap") / of(0, "overlap"), "of the overlap before training")
    held = _by_process(tables, lambda of: of(1, "overlap"), "")
    return lab.Measurement(
        effects,
        f"Mean squared cosine between the factors' subspaces in the trained network: {_said(held)}.",
        (lab.Gate.flat(tables, lab.parameter(numbers, "settled"), label=FACTORS[:2]),),
        FACTORS[:2],
    )


@lab.claim("factored-early")
def factored_early(tables: lab.Tables) -> lab.Measurement:
    rows = _last_layer(tables["steps"].where(process="hidden coupling"))

    def shares(own: lab.Rows) -> tuple[int, float, float]:
        read, share = (
            {row["step"]: row["value"] for row in own.where(quantity=quantity)} for quantity in ("read", "factored")
        )
        first, last = _ends(own)
        half = (read[first] + read[last]) / 2
        early = min(step for step, value in read.items() if value >= half)
        return early, share[early] - share[first], share[last]

    found = list(rows.per_seed(shares).values())
    late = lab.Effect.pooled([share for _, _, share in found])
    text = (
        "R² of the belief reaches the mean of its first and last values at training steps (one for each seed) "
        f"{sorted(step for step, _, _ in found)}; at the end the factors explain {late.short()} of the variance that "
        "the joint belief explains."
    )
    return lab.Measurement(
        lab.Effect.pooled([gain for _, gain, _ in found], "of the variance that the joint belief explains"), text
    )
