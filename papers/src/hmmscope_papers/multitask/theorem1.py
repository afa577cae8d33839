"""[MultiTask] Theorem 1: error of the constructed Transformer by samples, steps and memory, and cases of failure."""

import math
from typing import Any

import numpy as np
import torch

from hmmscope import (
    HMM,
    ProcessDataset,
    PromptLayout,
    Run,
    evaluate,
    lab,
    registry,
    stationary_distribution,
    symmetric_channel,
)
from hmmscope.analysis import bootstrap_means
from hmmscope.seeds import numpy_generator
from hmmscope_papers.constructions import RegressionSamples
from hmmscope_papers.multitask.networks import (
    block_shuffle_rows,
    build_network,
    draw_demonstrations,
    equality_row,
    memory_tables,
    sample_tables,
    step_tables,
    trained_in_context,
)
from hmmscope_papers.multitask.theorem_runs import (
    ROUNDING,
    claims_of_theorem,
    depth_figure,
    memory_figure,
    sample_figure,
    steps_figure,
)
from hmmscope_papers.theorems import INTERVALS, always, band, by_scale, ranges

NAME = "multitask-theorem1"
SAMPLES = [400, 1600, 6400, 25600]
WIDTHS = [2, 4, 8, 16, 32, 48, 64, 80]
DEPTHS = [*range(1, 17), 20, 24]

NUM_SYMBOLS = 4
#: Memory lengths in the measurements over steps (with singular covariance), and over samples.
STEPS_MEMORY, SAMPLE_MEMORY = 3, 2
#: Length of demonstrations in the measurement over steps: several windows each.
STEPS_LENGTH = 6
#: Steps if their number is irrelevant.
STEPS = 4
#: Prompts if their sizes are irrelevant.
SHAPE = {"num_demonstrations": 12, "demonstration_length": 6, "test_length": 6}


def process(instance: int) -> HMM:
    """Return a stationary HMM of four states in two groups, with rank 2 and observability 0.6.

    Instance 0 is a fixed process with second eigenvalue 0.52; others are random.
    """
    leave, inside = np.array([0.1, 0.2]), np.array([0.55, 0.30, 0.10, 0.05])
    if instance:
        rng = numpy_generator(instance, "process")
        leave, inside = rng.uniform(0.05, 0.25, 2), inside * rng.uniform(0.7, 1.3, 4)
        inside /= inside.sum()
    left = np.array([[1 - leave[0], leave[0]], [1 - leave[1], leave[1]]])
    transition = np.concatenate([left, left[::-1, ::-1]]) @ np.stack([inside, inside[::-1]])
    start = stationary_distribution(torch.from_numpy(transition))
    return HMM(start, transition, symmetric_channel(NUM_SYMBOLS, 0.6))


@registry.experiment(NAME)
class Theorem1(lab.Experiment):
    """The theorem's network on prompts of random HMMs, one process per instance; see `process`."""

    title = "A Transformer with constructed weights learns an HMM in context"
    in_paper = "[MultiTask] §4.2", "a sufficiently large Transformer can accurately approximate the HMM"
    summary = (
        "Theorem 1 of [MultiTask] is built as a network with explicit weights: softmax heads gather the last L symbols and "
        "the next one at every position, each ReLU layer takes one gradient step of least squares, and the last layer "
        "predicts. The network is run, and every layer is compared with the exact algorithm. Its error is measured against "
        "the number n of samples, the number T of steps and the memory L, and compared with the stated bound and rates."
    )
    intervals = INTERVALS
    groups = {
        "equality": ("equality",),
        "steps": ("steps", "step-rates"),
        "samples": ("samples",),
        "memory": ("memory", "memory-rates"),
        "depth": ("depth",),
        "failures": ("heads", "positions"),
        "in-context": ("in-context",),
        "shuffle": ("shuffle",),
    }
    sizes = by_scale(
        instances=(2, 36, 36, 36),
        demonstrations=(16, 60, 60, 60),
        steps=(60, 100, 120, 120),
        network_samples=([20, 40], [50, 100, 200], [50, 100, 200, 400], [50, 100, 200, 400, 800]),
        network_steps=(20, 60, 60, 60),
        samples=([100, 400, 1600], SAMPLES, SAMPLES, [*SAMPLES, 102400]),
        draws=(4, 4, 32, 64),
        history=(4, 7, 7, 8),
        memory_instances=(2, 8, 16, 32),
        memory_lengths=([1, 2], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 5]),
        memory_samples=(1000, 100000, 100000, 100000),
        memory_network_samples=(40, 100, 100, 100),
        failure_instances=(2, 8, 16, 32),
        failure_steps=(10, 100, 100, 200),
        depth_lengths=([1, 2, 3, 4], DEPTHS, [*DEPTHS, 32], [*DEPTHS, 32, 48, 64]),
        position_widths=([2, 8], WIDTHS, WIDTHS, WIDTHS),
        equality_instances=(1, 12, 12, 16),
        equality_steps=(5, 20, 20, 40),
        context_samples=(4, 64, 256, 512),
        context_demonstrations=(4, 15, 15, 31),
        shuffle_samples=(2, 36, 36, 64),
    )

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        match group:
            case "equality":
                return {"equality": _equality(sizes)}
            case "steps":
                return step_tables(process, sizes, STEPS_MEMORY, STEPS_LENGTH)
            case "samples":
                return sample_tables(process, sizes, SAMPLE_MEMORY)
            case "memory":
                return memory_tables(process, sizes, first=1)
            case "depth":
                return {"depth": _depth(sizes)}
            case "failures":
                return {"heads": _heads(sizes), "positions": _positions(sizes)}
            case "in-context":
                return {"in-context": _in_context(sizes)}
        return {"shuffle": _shuffle(sizes)}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            steps_figure(tables),
            sample_figure(tables),
            memory_figure(tables["memory"]),
            depth_figure(tables["depth"]),
            _failure_figure(tables),
            _in_context_figure(tables["in-context"]),
            _shuffle_figure(tables["shuffle"]),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _equality(sizes: dict[str, Any]) -> list[dict]:
    variants: dict[str, dict[str, Any]] = {
        "as stated": {},
        "a position in every slot": {"positions": "slot"},
        "causal": {"causal": True},
        "ridge": {"ridge": 0.1},
        "tabular features": {"features": "tabular"},
        "softmax gap 20": {"gap": 20.0},
        "float32": {"dtype": torch.float32, "gap": 110.0, "mask": 100.0},
    }
    rows = []
    for instance in range(sizes["equality_instances"]):
        for memory_length in (1, 2, 3):
            tokens = ProcessDataset(process(instance), layout=PromptLayout(**SHAPE), seed=instance)[0:2].tokens
            for variant, changes in variants.items():
                net = build_network(NUM_SYMBOLS, memory_length, sizes["equality_steps"], None, **SHAPE, **changes)
                rows.append(equality_row(net, tokens, instance=instance, variant=variant))
    return rows


def _depth(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for memory_length in sizes["depth_lengths"]:
        shape = {"num_demonstrations": 2, "demonstration_length": memory_length + 2, "test_length": memory_length}
        layout = PromptLayout(**shape)
        tokens = ProcessDataset(process(0), layout=layout)[0:2].tokens
        for steps in (1, 4):
            net = build_network(NUM_SYMBOLS, memory_length, steps, None, **shape)
            row = equality_row(net, tokens)
            stated = math.ceil(math.log2(memory_length)) + steps + 2
            rows.append({key: row[key] for key in ("memory_length", "steps", "layers", "gather_error")})
            rows[-1]["stated"] = stated
    return rows


def _heads(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for instance in range(sizes["failure_instances"]):
        drawn = draw_demonstrations(process(instance), sizes["demonstrations"], STEPS_LENGTH, instance)
        samples = RegressionSamples.of(drawn, NUM_SYMBOLS, SAMPLE_MEMORY)
        problem = samples.problem()
        x_NF, rate = samples.features().unique(dim=0), 1 / float(problem.largest)
        for num_heads in range(NUM_SYMBOLS, 2 * NUM_SYMBOLS + 1):
            weights, _ = trained_in_context(
                drawn, NUM_SYMBOLS, SAMPLE_MEMORY, sizes["failure_steps"], learning_rate=rate, num_heads=num_heads
            )
            errors = ((problem.solution() - weights) @ x_NF.T).norm(dim=1).amax(1)
            rows += [
                {"instance": instance, "heads": num_heads, "steps": step, "error": float(errors[step])}
                for step in sorted({0, *np.geomspace(1, len(errors) - 1, 12).round().astype(int).tolist()})
            ]
    return rows


def _positions(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    columns = PromptLayout(**SHAPE).context_length
    choices = [("rotating pair", "column", 2)]
    choices += [("absolute", "absolute", width) for width in (*sizes["position_widths"], columns)]
    for instance in range(sizes["failure_instances"]):
        tokens = ProcessDataset(process(instance), layout=PromptLayout(**SHAPE), seed=instance)[0:2].tokens
        for label, positions, width in choices:
            changes = {"position_seed": instance} if positions == "absolute" else {}
            net = build_network(
                NUM_SYMBOLS, STEPS_MEMORY, STEPS, None, **SHAPE, positions=positions, position_width=width, **changes
            )
            exact, stream = net.exact(tokens), net.stream(tokens)[2]
            wrong = [
                (stream[..., net.subspaces[name]] - exact.block(name, net.code.table)).abs().amax(-1) > 0.5
                for name in ("slot-1", "slot-2")
            ]
            predicting = list(net.predicting_columns)
            final = exact.prediction(exact.weights(STEPS)[-1])
            rows.append(
                {
                    "instance": instance,
                    "positions": label,
                    "width": width,
                    "columns": columns,
                    "wrong": float(torch.stack(wrong).double().mean()),
                    "prediction_error": float((net(tokens) - final)[:, predicting].abs().max()),
                }
            )
    return rows


def _in_context(sizes: dict[str, Any]) -> list[dict]:
    shape = {"num_demonstrations": sizes["context_demonstrations"], "demonstration_length": 16, "test_length": 16}
    net = build_network(NUM_SYMBOLS, SAMPLE_MEMORY, sizes["network_steps"], None, **shape, causal=True)
    dataset = ProcessDataset(process(0), layout=PromptLayout(**shape), stream="evaluate")
    score = evaluate(net, dataset, num_samples=sizes["context_samples"])
    whole, rows = score.positions >= SAMPLE_MEMORY, []
    for predictor, measures in score.measures.items():
        for metric in ("accuracy", "total_variation"):  # losses are infinite where the vector gives no probability
            for seen in np.unique(score.demonstrations) if metric in measures else ():
                kept = whole & (score.demonstrations == seen)
                mean, low, high = (float(value) for value in bootstrap_means(measures[metric][:, kept].mean(1)))
                names = {"x": int(seen), "predictor": predictor, "metric": metric}
                rows.append(names | {"value": mean, "low": min(low, mean), "high": max(high, mean)})
    return rows


def _shuffle(sizes: dict[str, Any]) -> list[dict]:
    net = build_network(NUM_SYMBOLS, STEPS_MEMORY, 4, None, **SHAPE)
    rows = []
    for instance in range(sizes["shuffle_samples"]):
        drawn = draw_demonstrations(process(instance), 12, 6, instance)
        test = draw_demonstrations(process(instance), 1, 6, instance, draw=12)[0]
        others = torch.stack([draw_demonstrations(process(instance), 12, 6, instance, draw=k) for k in range(2, 9)])
        rows += [{"instance": instance} | row for row in block_shuffle_rows(net, drawn, test, others, seed=instance)]
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _failure_figure(tables: lab.Tables) -> lab.Figure:
    heads, positions = tables["heads"], tables["positions"]
    counts, widths = sorted(heads.values("heads"), reverse=True), positions.where(positions="absolute").values("width")
    rotating = max(row["wrong"] for row in positions.where(positions="rotating pair"))
    of_heads = [
        band(heads.where(heads=n), "steps", f"{n} heads", "other" if n < counts[0] else "model") for n in counts
    ]
    return lab.Figure(
        name="failures",
        title="Errors of the construction with too few heads, or with random positions",
        caption=(
            "Left: distance from least squares if each gradient layer has only some of its heads; lines are medians "
            "and bands are ranges over processes. Right: fraction of gathered tokens that are wrong if position "
            "vectors are random and a least-squares matrix maps each to an earlier one."
        ),
        panels=(
            lab.lines("Heads", *of_heads, x_label="gradient layers", y_label="distance from least squares", log_y=True),
            lab.lines(
                "Positions",
                band(positions.where(positions="absolute"), "width", "absolute", y="wrong"),
                lab.level(rotating, (min(widths), max(widths)), "rotating pair (2 coordinates)", "model"),
                x_label="coordinates of a position vector",
                y_label="fraction of wrong tokens",
                y_min=0.0,
                y_max=1.0,
            ),
        ),
    )


def _in_context_figure(rows: lab.Rows) -> lab.Figure:

    def panel(kept: lab.Rows, metric: str, title: str, y_label: str) -> lab.Panel:
        x_label = "demonstrations before the sequence"
        own, looks = kept.where(metric=metric), lab.PREDICTORS | {"model": ("construction", "model")}
        series = [lab.curve(own.where(predictor=name), "x", *look) for name, look in looks.items()]
        return lab.lines(title, *series, x_label=x_label, y_label=y_label)

    judged = rows.where(predictor=("model", "order-0", "order-1", "order-2"))
    return lab.Figure(
        name="in-context",
        title="The constructed network as a predictor",
        caption=(
            "The causal variant of the construction is scored like a trained model: negative entries of its output are "
            "set to zero and the rest is normalised, at positions where the memory is full. The optimum is the "
            "filter that knows the process. Bands are 95 % intervals over prompts."
        ),
        panels=(
            panel(rows, "accuracy", "Accuracy", "accuracy"),
            panel(judged, "total_variation", "Distance from the optimum", "total variation"),
        ),
    )


def _shuffle_figure(rows: lab.Rows) -> lab.Figure:
    cells = ranges(lab.Rows(row for row in rows if row["layer"] > 0), "layer", "head", value="value")
    return lab.Figure(
        name="position-shuffle",
        title="Variation of attention logits if demonstrations are permuted, by layer and head",
        caption=(
            "Colours show the coefficient of variation of the attention logits from the last token to the regression "
            "samples when whole demonstrations are permuted (median over prompts). The gathering layers, which have one "
            "head, depend on positions; the gradient and prediction layers depend on content."
        ),
        panels=(
            lab.heatmap(
                "",
                cells,
                "head",
                "layer",
                x_label="head",
                y_label="layer",
                z_label="coefficient of variation",
                z_min=0.0,
            ),
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

claims_of_theorem(1)


@lab.claim("multitask-theorem1-depth")
def depth(tables: lab.Tables) -> lab.Measurement:
    rows = tables["depth"]

    def right(row: dict[str, Any]) -> bool:
        return row["layers"] == row["stated"] and row["gather_error"] == 0

    text = (
        f"{sum(map(right, rows))} of {len(rows)} networks have the stated number of layers and gather all tokens "
        f"exactly, with memory lengths up to {max(rows.values('memory_length'))}."
    )
    return lab.Measurement(always(rows, right, "memory_length", "steps", unit="fraction of networks"), text)


@lab.claim("multitask-theorem1-content")
def content(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    gathering = lab.parameter(numbers, "gathering")
    upper = lab.Rows(row for row in tables["shuffle"] if row["layer"] == 0 or row["layer"] > gathering)
    lower = lab.Rows(row for row in tables["shuffle"] if 1 <= row["layer"] <= gathering)
    early = lab.Effect.pooled(
        [float(np.mean([row["value"] for row in rows])) for rows in lower.by("instance").values()]
    )
    heads = lab.Rows(row for row in upper if row["layer"])
    said = lab.Effect.pooled(
        [float(np.mean([row["content"] for row in rows])) for rows in heads.by("instance").values()]
    )
    least = min(row["content"] for row in upper if not row["layer"])
    text = (
        f"In {len(upper.values('instance'))} prompts of different processes, permuted demonstrations change the logits "
        f"of gathering layers by {early.short()} of their size, and the logits of the layers above and the prediction "
        f"by at most {max(row['value'] for row in upper):.1e}. Other demonstrations at the same positions change the "
        f"logits of the layers above by {said.short()} of their size, the prediction by at least {least:.2g}, and the "
        f"logits of the gathering layers by at most {max(row['content'] for row in lower):.1e}."
    )
    held = always(
        upper,
        lambda row: row["value"] < lab.parameter(numbers, "rounding", ROUNDING),
        "instance",
        unit="fraction of prompts",
    )
    moved = "the variation of the gathering layers' logits under permutation, relative to their size,"
    other = (
        "the variation of the upper layers' logits under other demonstrations at the same positions, relative to "
        "their size,"
    )
    half = lab.parameter(numbers, "moved")
    return lab.Measurement(
        held,
        text,
        (lab.Gate.regime(early.value, half, math.inf, moved), lab.Gate.regime(said.value, half, math.inf, other)),
    )
