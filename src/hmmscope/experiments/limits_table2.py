"""[Limits] Table 2: what block chain-of-thought costs, counted and timed."""

import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from hmmscope import registry
from hmmscope.analysis.intervals import NUM_RESAMPLES
from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.corpora.targets import Target, make_target
from hmmscope.evidence.figures import Figure
from hmmscope.evidence.findings import Finding
from hmmscope.experiments.experiment import Experiment, Measured, Tables
from hmmscope.experiments.limits_models import TASKS, limits_config
from hmmscope.experiments.limits_table2_figures import cost_figure, times_figure
from hmmscope.models.base import SequenceModel
from hmmscope.models.block_cot import num_blocks
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import Run, fresh_model, threads
from hmmscope.schema import require, unknown_name
from hmmscope.seeds import numpy_generator
from hmmscope.training.objectives import target_loss

BLOCKS = [1, 4, 8, 12, 30]
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"length": 6, "layers": 1, "width": 8, "heads": 2, "batch_size": 4, "rounds": 3, "blocks": [1, 2, 4]},
    "small": {"length": 60, "layers": 3, "width": 64, "heads": 4, "batch_size": 32, "rounds": 9, "blocks": BLOCKS},
    "gpu": {"length": 60, "layers": 3, "width": 256, "heads": 8, "batch_size": 256, "rounds": 25, "blocks": BLOCKS},
    "paper": {"length": 60, "layers": 3, "width": 512, "heads": 8, "batch_size": 1024, "rounds": 25, "blocks": BLOCKS},
}
ALGORITHMS = ("naive", "two-phase")
#: Block length of no chain-of-thought.
PLAIN = 0

#: Seconds an epoch in the paper, by task and block length; 0 is without.
PRINTED = {"matmul": {1: 4838, 8: 608, 12: 390, 0: 94}, "cyclic-det": {1: 4828, 8: 620, 12: 393, 0: 94}}


@registry.experiment("limits-table2")
class Table2(Experiment):
    """See the module."""

    title = "What block chain-of-thought costs"
    summary = (
        "A training pass (forward and backward) with block chain-of-thought against an ordinary one. The naive algorithm "
        "makes one pass over the whole sequence for each block; the two-phase one first finds the answers with a cache and "
        "without gradients, then makes one pass. Forward tokens and floating-point operations are counted, times are taken "
        "side by side. Nothing is trained."
    )
    intervals = (
        "Counts are exact. Times are medians over rounds in which all variants take their turn; intervals are 95 % "
        "bootstrap intervals over rounds (1000 resamples). They depend on the machine and on what else it does."
    )
    groups = {"counting": ("costs",), "timing": ("times",)}

    def measurements(self, scale: str) -> dict[str, Any]:
        return {"tasks": ["cyclic-det", "matmul"], **SCALES[scale]}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        for task in sizes["tasks"]:
            if task not in TASKS:
                raise unknown_name("measurements.tasks", task, TASKS)
        require(min(sizes["blocks"]) >= 1, "measurements.blocks", "must be at least 1", sizes["blocks"])
        require(sizes["rounds"] >= 1, "measurements.rounds", "must be at least 1", sizes["rounds"])
        if group == "counting":
            return {"costs": [row for task in sizes["tasks"] for row in _costs(task, sizes)]}
        with threads(1):
            return {"times": [row for task in sizes["tasks"] for row in _times(task, sizes)]}

    def figures(self, tables: Tables) -> list[Figure]:
        return [cost_figure(tables["costs"]), times_figure(tables["times"], PRINTED)]

    def notes(self, tables: Tables) -> list[Finding]:
        return [_two_phase_note(tables)]


class _Variant:
    """A model with a block length and an algorithm, and what one training pass of it is."""

    def __init__(self, task: str, block_length: int, algorithm: str, sizes: dict[str, Any]) -> None:
        self.config = _config(task, block_length, algorithm, sizes)
        process = self.config.process.build()
        self.model: SequenceModel = fresh_model(self.config, process).to("cuda" if torch.cuda.is_available() else "cpu")
        corpus = Corpus(process, layout=self.config.layout, seed=0, stream="train")
        self.target: Target = make_target(self.config.target, process, self.config.layout)
        self.batch: Batch = corpus[0 : sizes["batch_size"]]
        device = next(self.model.parameters()).device
        parts = {name: getattr(self.batch, name).to(device) for name in ("tokens", "observations", "states")}
        self.batch = replace(self.batch, **parts)
        self.block_length, self.algorithm = block_length, algorithm

    @property
    def names(self) -> dict[str, Any]:
        """Columns that tell variants apart."""
        return {"block_length": self.block_length, "algorithm": self.algorithm if self.block_length else "none"}

    def train_once(self) -> None:
        """Forward and backward pass of one batch; no step is taken."""
        self.model.zero_grad(set_to_none=True)
        target_loss(
            self.model, self.batch, self.target, block_length=self.block_length, block_algorithm=self.algorithm
        ).backward()
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _config(task: str, block_length: int, algorithm: str, sizes: dict[str, Any]) -> RunConfig:
    # Without dropout both algorithms compute the same numbers.
    model = {"width": sizes["width"], "num_heads": sizes["heads"], "dropout": 0.0}
    training = {"block_length": block_length, "block_algorithm": algorithm, "batch_size": sizes["batch_size"]}
    changes: dict[str, Any] = {"model": model, "training": training, "length": sizes["length"], "curriculum": False}
    return config_from_data(limits_config("paper", task, sizes["layers"], **changes))


def _variants(task: str, sizes: dict[str, Any]) -> list[_Variant]:
    wanted = [(PLAIN, "none"), *((b, algorithm) for b in sizes["blocks"] for algorithm in ALGORITHMS)]
    return [_Variant(task, block, "two-phase" if name == "none" else name, sizes) for block, name in wanted]


def _name(task: str) -> str:
    return TASKS[task][2]


def _costs(task: str, sizes: dict[str, Any]) -> list[dict]:
    """Forward tokens and operations of one sample, exactly, and both as multiples of an ordinary pass."""
    rows: list[dict] = []
    for variant in _variants(task, sizes):
        tokens = {"with": 0, "without": 0}

        def count(module: Any, args: Any, output: Any, tokens: dict[str, int] = tokens) -> None:
            tokens["with" if torch.is_grad_enabled() else "without"] += args[0].shape[:2].numel()

        handle = variant.model.register_forward_hook(count)
        with FlopCounterMode(display=False) as counter:
            variant.train_once()
        handle.remove()
        batch = len(variant.batch.tokens)
        columns = variant.config.layout.num_columns
        found = {name: number // batch for name, number in tokens.items()}
        rows.append(
            {
                "task": _name(task),
                **variant.names,
                "length": sizes["length"],
                "blocks": num_blocks(columns, variant.block_length) if variant.block_length else 1,
                "tokens_with_gradient": found["with"],
                "tokens_without_gradient": found["without"],
                "passes": found["with"] / columns,
                "flops": counter.get_total_flops() / batch,
            }
        )
    plain = rows[0]["flops"]
    return [row | {"flops_ratio": row["flops"] / plain} for row in rows]


def _times(task: str, sizes: dict[str, Any]) -> list[dict]:
    """Seconds of a training pass by variant: medians over interleaved rounds, and ratios within a round."""
    variants = _variants(task, sizes)
    seconds = np.empty((sizes["rounds"], len(variants)))
    for variant in variants:
        variant.train_once()  # what is made on first use
    for one_round in seconds:
        for index, variant in enumerate(variants):
            begin = time.perf_counter()
            variant.train_once()
            one_round[index] = time.perf_counter() - begin
    first = {name: i for i, name in enumerate((v.block_length, v.algorithm) for v in variants)}
    vanilla = first.get((1, "naive"))
    rows = []
    for index, variant in enumerate(variants):
        row = {"task": _name(task), **variant.names, "length": sizes["length"], "rounds": sizes["rounds"]}
        row["seconds"] = statistics.median(seconds[:, index].tolist())
        row |= _ratio(seconds[:, index] / seconds[:, 0], "to_plain")
        share = None if vanilla is None else seconds[:, index] / seconds[:, vanilla]
        row |= _ratio(share, "to_vanilla")
        rows.append(row)
    return rows


def _ratio(ratios: np.ndarray | None, name: str) -> dict[str, float | None]:
    """Median over rounds with its bootstrap interval."""
    if ratios is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    drawn = numpy_generator(0, "bootstrap").integers(len(ratios), size=(NUM_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[drawn], axis=1), [2.5, 97.5])
    return {name: float(np.median(ratios)), f"{name}_low": float(low), f"{name}_high": float(high)}


def _two_phase_note(tables: Tables) -> Finding:
    costs = [row for row in tables["costs"] if row["algorithm"] == "two-phase" and row["block_length"]]
    times = [row for row in tables["times"] if row["algorithm"] == "two-phase" and row["block_length"]]
    most = max(row["flops_ratio"] for row in costs)
    slowest = max(times, key=lambda row: row["to_plain"])
    text = (
        f"The two-phase algorithm takes at most {most:.2f} times the operations of a pass without chain-of-thought, at any "
        f"block length, and at most {slowest['to_plain']:.2f} times its time (at block length {slowest['block_length']}, "
        f"{slowest['task']}). It gives the same loss and gradients as the naive one."
    )
    return Finding(
        title="The same gradients for less", text=text, verdict="found", value=most, unit="times the operations"
    )
