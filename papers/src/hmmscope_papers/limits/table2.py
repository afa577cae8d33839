"""[Limits] Table 2: operations and time of block chain-of-thought."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from hmmscope import Run, TrainingPass, lab, registry
from hmmscope.schema import require, require_known
from hmmscope.seeds import numpy_generator
from hmmscope_papers.limits.trainings import TASKS, limits_config

ALGORITHMS = ("naive", "two-phase")
#: Block length that means no chain-of-thought.
PLAIN = 0

#: Seconds per epoch in the paper, by task and block length; 0 means no chain-of-thought.
PRINTED = {"matmul": {1: 4838, 8: 608, 12: 390, 0: 94}, "cyclic-det": {1: 4828, 8: 620, 12: 393, 0: 94}}


def _sizes(
    length: int,
    layers: int,
    width: int,
    heads: int,
    batch_size: int,
    rounds: int,
    blocks: Sequence[int] = (1, 4, 8, 12, 30),
    seconds: float = 0.4,
) -> dict[str, Any]:
    model = {"length": length, "layers": layers, "width": width, "heads": heads}
    return {
        "tasks": ["cyclic-det", "matmul"],
        **model,
        "batch_size": batch_size,
        "rounds": rounds,
        "seconds": seconds,
        "blocks": list(blocks),
    }


_NUM_RESAMPLES = 1000


@registry.experiment("limits-table2")
class Table2(lab.Experiment):
    """Operations and time of one training pass by block length and algorithm; nothing is trained."""

    title = "Computing cost of block chain-of-thought"
    in_paper = "[Limits] before Table 2", "The time cost of b-block CoT is approximately 1/b of that of vanilla CoT."
    summary = (
        "A training pass (forward and backward) with block chain-of-thought is compared with an ordinary pass. The "
        "naive algorithm makes one pass over the whole sequence for each block; the two-phase algorithm first computes "
        "the answers with a cache and without gradients, then makes one pass. Forward tokens and floating-point "
        "operations are exact counts; times are taken in interleaved rounds. Nothing is trained."
    )
    intervals = (
        "Counts are exact. Times are processor times, or wall times on a GPU. They are medians over rounds in which all "
        "variants take turns (short passes are repeated); intervals are 95 % bootstrap intervals over rounds (1000 "
        "resamples). Times depend on the machine and its load."
    )
    sizes = {
        "smoke": _sizes(6, 1, 8, 2, 4, 3, [1, 2, 4], 0.0),
        "small": _sizes(60, 3, 64, 4, 16, 25, seconds=0.2),
        "gpu": _sizes(60, 3, 256, 8, 256, 25),
        "paper": _sizes(60, 3, 512, 8, 1024, 25),
    }
    groups = {"counting": ("costs",), "timing": ("times",)}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        for task in sizes["tasks"]:
            require_known("measurements.tasks", task, TASKS)
        require(min(sizes["blocks"]) >= 1, "measurements.blocks", "must be at least 1", sizes["blocks"])
        require(sizes["rounds"] >= 1, "measurements.rounds", "must be at least 1", sizes["rounds"])
        require(0 <= sizes["seconds"] <= 60, "measurements.seconds", "must be in [0, 60]", sizes["seconds"])
        if group == "counting":
            return {"costs": [row for task in sizes["tasks"] for row in _costs(task, sizes)]}
        with _one_thread():
            return {"times": [row for task in sizes["tasks"] for row in _times(task, sizes)]}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [_cost_figure(tables["costs"]), _times_figure(tables["times"])]


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _variants(task: str, sizes: dict[str, Any]) -> Iterator[tuple[dict[str, Any], TrainingPass]]:
    # Without dropout both algorithms compute the same numbers.
    model = {"width": sizes["width"], "num_heads": sizes["heads"], "dropout": 0.0}
    changes: dict[str, Any] = {"model": model, "length": sizes["length"], "curriculum": False}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for block, algorithm in ((PLAIN, "none"), *((b, algorithm) for b in sizes["blocks"] for algorithm in ALGORITHMS)):
        training = {"block_length": block, "batch_size": sizes["batch_size"]}
        training |= {} if algorithm == "none" else {"block_algorithm": algorithm}
        config = limits_config("paper", task, sizes["layers"], training=training, **changes)
        yield {"block_length": block, "algorithm": algorithm}, TrainingPass(config, device)


def _name(task: str) -> str:
    return TASKS[task][2]


def _costs(task: str, sizes: dict[str, Any]) -> list[dict]:
    rows: list[dict] = []
    for names, training_pass in _variants(task, sizes):
        tokens = {"with": 0, "without": 0}

        def count(module: Any, args: Any, output: Any, tokens: dict[str, int] = tokens) -> None:
            tokens["with" if torch.is_grad_enabled() else "without"] += args[0].shape[:2].numel()

        handle = training_pass.model.register_forward_hook(count)
        with FlopCounterMode(display=False) as counter:
            training_pass()
        handle.remove()
        batch, block = len(training_pass.batch.tokens), names["block_length"]
        columns = training_pass.config.layout.context_length
        found = {name: number // batch for name, number in tokens.items()}
        rows.append(
            {
                "task": _name(task),
                **names,
                "length": sizes["length"],
                "blocks": max(1, -(-(columns - 1) // block)) if block else 1,
                "tokens_with_gradient": found["with"],
                "tokens_without_gradient": found["without"],
                "passes": found["with"] / columns,
                "flops": counter.get_total_flops() / batch,
            }
        )
    plain = rows[0]["flops"]
    return [row | {"flops_ratio": row["flops"] / plain} for row in rows]


def _times(task: str, sizes: dict[str, Any]) -> list[dict]:
    variants, passes = zip(*_variants(task, sizes), strict=True)
    seconds = np.empty((sizes["rounds"], len(passes)))
    for training_pass in passes:
        training_pass()  # warm up
    repeats = [max(1, math.ceil(sizes["seconds"] / _seconds_a_pass(one, 1))) for one in passes]
    for one_round in seconds:
        one_round[:] = [_seconds_a_pass(one, number) for one, number in zip(passes, repeats, strict=True)]
    first = {(names["block_length"], names["algorithm"]): i for i, names in enumerate(variants)}
    vanilla = first.get((1, "naive"))
    rows = []
    for index, names in enumerate(variants):
        row = {"task": _name(task), **names, "length": sizes["length"], "rounds": sizes["rounds"]}
        row["seconds"] = statistics.median(seconds[:, index].tolist())
        row |= _ratio(seconds[:, index] / seconds[:, 0], "to_plain")
        relative = None if vanilla is None else seconds[:, index] / seconds[:, vanilla]
        row |= _ratio(relative, "to_vanilla")
        rows.append(row)
    return rows


def _seconds_a_pass(training_pass: TrainingPass, repeats: int) -> float:
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    begin = clock()
    for _ in range(repeats):
        training_pass()
    return max(clock() - begin, 1e-9) / repeats


def _ratio(ratios: np.ndarray | None, name: str) -> dict[str, float | None]:
    if ratios is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    drawn = numpy_generator(0, "bootstrap").integers(len(ratios), size=(_NUM_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[drawn], axis=1), [2.5, 97.5])
    return {name: float(np.median(ratios)), f"{name}_low": float(low), f"{name}_high": float(high)}


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _cost_figure(rows: lab.Rows) -> lab.Figure:
    return lab.Figure(
        name="operations",
        title="Floating-point operations of a training pass, by block length",
        caption=(
            "Curves show the floating-point operations of a forward and backward pass as a multiple of those without "
            "chain-of-thought (the line at 1). With blocks of length b, the naive algorithm needs ceil(T / b) passes over "
            "T positions; the two-phase algorithm computes the same gradients in one pass."
        ),
        panels=tuple(
            _panel(own, task, "flops_ratio", "operations relative to no chain-of-thought")
            for task, own in rows.by("task").items()
        ),
    )


def _times_figure(rows: lab.Rows) -> lab.Figure:
    titles = {TASKS[task][2]: printed for task, printed in PRINTED.items()}
    same = rows.values("length") == [60]
    panels = []
    for task, own in rows.by("task").items():
        known = titles.get(task, {}) if same else {}
        blocks = tuple(sorted(block for block in known if block))
        ratios = tuple(known[block] / known[PLAIN] for block in blocks)
        printed = (
            lab.Series(name="naive, as printed in [Limits]", x=blocks, y=ratios, role="baseline") if known else None
        )
        panels.append(_panel(own, task, "to_plain", "time relative to no chain-of-thought", printed))
    return lab.Figure(
        name="times",
        title="Time of a training pass, by block length",
        caption=(
            "Curves show the time of a forward and backward pass as a multiple of the time without chain-of-thought "
            "(median and 95 % interval over interleaved rounds). They are compared with the number of passes, ceil(T / b) "
            "for block length b and T positions, and with ratios of the seconds per epoch that Table 2 prints (four GPUs)."
        ),
        panels=tuple(panels),
    )


def _panel(rows: lab.Rows, task: str, column: str, label: str, printed: lab.Series | None = None) -> lab.Panel:
    kept = lab.Rows(row for row in rows if row["block_length"]).with_columns(
        low=lambda row: row.get(f"{column}_low"), high=lambda row: row.get(f"{column}_high")
    )
    blocks = tuple(sorted(kept.values("block_length")))
    return lab.lines(
        task,
        lab.curve(kept.where(algorithm="naive"), "block_length", "naive", "other", y=column, pool=False),
        lab.curve(kept.where(algorithm="two-phase"), "block_length", "two-phase", "model", y=column, pool=False),
        lab.Series(
            name="ceil(T / b)", x=blocks, y=tuple(float(-(-kept[0]["length"] // b)) for b in blocks), role="baseline"
        ),
        lab.level(1.0, blocks, "no chain-of-thought", "control"),
        printed,
        x_label="block length b",
        y_label=label,
        log_x=True,
        log_y=True,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

#: Range of the naive algorithm's time per pass, in ordinary passes, at which its times are valid.
PASS_RANGE = (0.6, 1.3)


def _naive(rows: lab.Rows, least: int = 2) -> lab.Rows:
    return lab.Rows(row for row in rows.where(algorithm="naive") if row["block_length"] >= least)


def _name_of(row: dict[str, Any]) -> str:
    return f"{row['task']} b = {row['block_length']}"


@lab.claim("limits-cot-cost")
def cost(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = lab.Rows(row for row in _naive(tables["times"]) if row["to_vanilla"] is not None)
    effects, each_pass = {}, []
    for row in rows:
        passes = math.ceil(row["length"] / row["block_length"])
        value, low, high = (row[f"to_vanilla{end}"] * row["length"] / passes for end in ("", "_low", "_high"))
        effects[_name_of(row)] = lab.Effect(
            value=value,
            low=low,
            high=high,
            degrees=-1,
            num_seeds=row["rounds"],
            unit="time relative to b = 1 divided by the number of passes relative to b = 1",
        )
        each_pass.append(row["to_plain"] / passes)
    worst = max(each_pass, key=lambda one: abs(math.log(one)), default=1.0)
    low, high = lab.parameter(numbers, "pass_range", PASS_RANGE)
    gate = lab.Gate.regime(
        worst,
        low,
        high,
        "the ratio (farthest from 1 over block lengths) of the time per pass to the time without chain-of-thought",
    )
    seen = "; ".join(f"{_name_of(row)} {row['to_vanilla']:.3f}" for row in rows)
    text = f"Time divided by the time of vanilla chain-of-thought (b = 1): {seen or 'not measured'}."
    return lab.Measurement(effects, text, gates=(gate,))


@lab.claim("limits-cot-passes")
def passes(tables: lab.Tables) -> lab.Measurement:
    rows = _naive(tables["costs"], 1)
    right = [row["passes"] == math.ceil(row["length"] / row["block_length"]) for row in rows]
    return lab.Measurement(
        lab.Effect.share(right, "fraction of cases") if right else None,
        f"The number of forward passes is ceil(T / b) in {sum(right)} of {len(right)} cases.",
    )
