"""[MultiTask] Theorem 2: joint prediction of the next symbols, where one symbol does not distinguish the states."""

import itertools
import math
from typing import Any

import torch

from hmmscope import HMM, ProcessDataset, PromptLayout, Run, make_process, observability, registry, require_process_type
from hmmscope.lab import Experiment, Figure, MeasuredTables, Measurement, Rows, Tables, claim, lines
from hmmscope_papers.multitask.networks import (
    build_network,
    draw_demonstrations,
    equality_row,
    memory_tables,
    sample_tables,
    step_tables,
    trained_in_context,
)
from hmmscope_papers.multitask.theorem_runs import (
    claims_of_theorem,
    depth_figure,
    memory_figure,
    sample_figure,
    steps_figure,
)
from hmmscope_papers.theorems import INTERVALS, always, band, by_scale, instances_of, plain

NAME = "multitask-theorem2"
SAMPLES = [400, 1600, 6400, 25600]
FUTURES = [1, 2, 3, 4, 5, 6, 7, 8]

NUM_SYMBOLS = 2
#: Memory lengths in the measurements over steps and samples.
STEPS_MEMORY, SAMPLE_MEMORY = 3, 2
#: Length of demonstrations in the measurement over steps: several windows each.
STEPS_LENGTH = 8


def process(instance: int) -> HMM:
    """Return an HMM of three states and two symbols, observable from two symbols but not from one.

    Instance 0 is cyclic, with observability 0 of one symbol and 0.319 of two; others are random and stationary.
    """
    if instance == 0:
        transition = [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]
        return HMM([1 / 3] * 3, transition, [[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]])
    concentrations = {"transition_concentration": 0.5, "emission_concentration": 0.5}
    sizes = {"num_states": 3, "num_symbols": NUM_SYMBOLS, "rank": 3}
    return require_process_type(make_process("low-rank-hmm", **sizes, **concentrations, seed=instance), HMM)


@registry.experiment(NAME)
class Theorem2(Experiment):
    """The theorem's network on weakly revealing HMMs, one process per instance; see `process`."""

    title = "A Transformer with constructed weights predicts the next symbols jointly"
    in_paper = (
        "[MultiTask] §4.3, on observations that do not distinguish the states",
        "Transformers can still learn HMMs efficiently under such “weak revealing” case",
    )
    summary = (
        "Theorem 2 of [MultiTask] is built as a network with explicit weights. If a single symbol does not distinguish the "
        "hidden states, the network fits the joint one-hot vector of the next k symbols by least squares. The network is "
        "run, and every layer is compared with the exact algorithm. Its error is measured against the number n of samples, "
        "the number T of steps and the memory L, and compared with the stated bound and rates."
    )
    intervals = INTERVALS
    groups = {
        "equality": ("equality",),
        "marginals": ("marginals",),
        "observability": ("observability",),
        "steps": ("steps", "step-rates"),
        "samples": ("samples",),
        "memory": ("memory", "memory-rates"),
        "depth": ("depth",),
    }
    sizes = by_scale(
        instances=(2, 36, 36, 36),
        equality_instances=(1, 12, 12, 16),
        equality_steps=(5, 20, 20, 40),
        demonstrations=(16, 60, 60, 60),
        steps=(60, 200, 200, 200),
        network_samples=([20, 40], [50, 100, 200], [50, 100, 200, 400], [50, 100, 200, 400, 800]),
        network_steps=(30, 80, 80, 80),
        samples=([100, 400, 1600], SAMPLES, SAMPLES, [*SAMPLES, 102400]),
        draws=(4, 4, 32, 64),
        history=(7, 11, 13, 14),
        memory_instances=(2, 8, 16, 32),
        memory_lengths=([1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8]),
        memory_samples=(1000, 100000, 100000, 100000),
        memory_network_samples=(40, 50, 50, 50),
        futures=(2, 2, 2, 2),
        depth_memories=([3], [2, 3, 4], [2, 3, 4], [2, 3, 4]),
        depth_futures=([1, 2, 3], FUTURES, FUTURES, [*FUTURES, 9]),
        first_instance=(0, 0, 0, 0),
    )
    #: Other processes than at the smaller scales, enough to decide the rate.
    sizes["medium"] = sizes["small"] | {"first_instance": 36, "memory_instances": 24}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        match group:
            case "equality":
                return {"equality": _equality(sizes)}
            case "marginals":
                return {"marginals": _marginals(sizes)}
            case "observability":
                return {"observability": _observability(sizes)}
            case "steps":
                return step_tables(process, sizes, STEPS_MEMORY, STEPS_LENGTH)
            case "samples":
                return sample_tables(process, sizes, SAMPLE_MEMORY)
            case "memory":
                return memory_tables(process, sizes, first=2)
        return {"depth": _depth(sizes)}

    def figures(self, tables: Tables) -> list[Figure]:
        layers = tables["depth"].where(memory_length=STEPS_MEMORY)
        return [
            _observability_figure(tables["observability"]),
            steps_figure(tables),
            sample_figure(tables),
            memory_figure(tables["memory"]),
            depth_figure(layers, x="futures", x_label="futures k, symbols"),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _equality(sizes: dict[str, Any]) -> list[dict]:
    variants: dict[str, dict[str, Any]] = {
        "as stated": {},
        "a position in every slot": {"positions": "slot"},
        "causal": {"causal": True},
        "ridge": {"ridge": 0.1},
        "softmax gap 20": {"gap": 20.0},
        "float32": {"dtype": torch.float32, "gap": 110.0, "mask": 100.0},
    }
    shape = {"num_demonstrations": 12, "demonstration_length": 7, "test_length": 6}
    rows = []
    for instance in instances_of(sizes, "equality_instances"):
        tokens = ProcessDataset(process(instance), layout=PromptLayout(**shape), seed=instance)[0:2].tokens
        for futures in (1, 2, 3):
            for variant, changes in variants.items():
                net = build_network(NUM_SYMBOLS, 3, sizes["equality_steps"], futures, **shape, **changes)
                rows.append(equality_row(net, tokens, instance=instance, variant=variant))
    return rows


def _marginals(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for instance in instances_of(sizes, "equality_instances"):
        drawn = draw_demonstrations(process(instance), 12, 7, instance)
        for futures in (2, 3):
            joint, _ = trained_in_context(drawn, NUM_SYMBOLS, 3, sizes["equality_steps"], futures)
            same = drawn[:, : 7 - futures + 1]  # the windows whose label is complete
            single, _ = trained_in_context(same, NUM_SYMBOLS, 3, sizes["equality_steps"])
            summed = joint.unflatten(1, (NUM_SYMBOLS, -1)).sum(2)
            difference = float((summed - single).abs().max())
            rows.append({"instance": instance, "futures": futures, "difference": difference})
    return rows


def _observability(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for instance in dict.fromkeys((0, *instances_of(sizes))):  # 0 is drawn separately
        for futures in (1, 2, 3, 4):
            found = observability(process(instance), futures, method="bounds" if instance else "auto")
            rows.append({"instance": instance, "futures": futures, "lower": found.lower, "upper": found.upper})
    return rows


def _depth(sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for memory, futures in itertools.product(sizes["depth_memories"], sizes["depth_futures"]):
        shape = {"num_demonstrations": 2, "demonstration_length": memory + futures, "test_length": memory}
        tokens = ProcessDataset(process(0), layout=PromptLayout(**shape))[0:1].tokens
        for steps in (1, 4):
            row = equality_row(build_network(NUM_SYMBOLS, memory, steps, futures, **shape), tokens)
            kept = ("memory_length", "futures", "steps", "layers", "heads", "width", "gather_error")
            gathering = math.ceil(math.log2(memory)) + math.ceil(math.log2(futures))
            stated = {"stated": gathering + steps + 2, "stated_heads": 2 * NUM_SYMBOLS**futures}
            rows.append({key: row[key] for key in kept} | stated)
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def _observability_figure(rows: Rows) -> Figure:
    others = Rows(row for row in rows if row["instance"] != 0)
    return Figure(
        name="observability",
        title="Joint observability of the next observations",
        caption=(
            "Curves show the observability coefficient of the joint distribution of the next k symbols given the state. If "
            "it is 0, two different mixtures of states give the same distribution. Lines of random processes are medians, "
            "bands are ranges over processes."
        ),
        panels=(
            lines(
                "",
                plain(rows.where(instance=0), "futures", "chosen by hand, exact", "model", y="upper"),
                band(others, "futures", "random processes, lower bound", y="lower"),
                x_label="observations k",
                y_label="gamma_k",
                y_min=0.0,
            ),
        ),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

claims_of_theorem(2)


@claim("multitask-theorem2-depth")
def depth(tables: Tables) -> Measurement:
    rows = tables["depth"]

    def right(row: dict[str, Any]) -> bool:
        sizes = row["layers"] == row["stated"] and row["heads"] == row["stated_heads"]
        return sizes and row["gather_error"] == 0

    text = (
        f"For k up to {max(rows.values('futures'))}, {sum(map(right, rows))} of {len(rows)} networks have the stated "
        "numbers of layers and heads, and gather all tokens exactly."
    )
    return Measurement(always(rows, right, "memory_length", "futures", "steps", unit="fraction of networks"), text)
