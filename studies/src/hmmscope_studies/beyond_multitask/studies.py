"""Shared parts of the studies of [MultiTask] that vary one parameter of a small Transformer."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from hmmscope import Run, evaluate, lab
from hmmscope.analysis import mean_row
from hmmscope_papers.multitask.predictors import last_sequence

CYCLES = "aliased-cycles-mixture"

#: Parameters for prompts from a pool, by scale; "paper" is the paper's setting (App. B.1). At small and gpu
#: states share symbols, so that n-grams reveal little and one layer is clearly worse than three.
_PROMPTS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "process": {"name": "random-mixture", "num_components": 4, "num_states": 3, "num_symbols": 3}
        | {"transition_concentration": 0.2, "emission_concentration": 0.2},
        "layout": {"num_demonstrations": 2, "demonstration_length": 4, "test_length": 4},
        "model": {"num_layers": 2, "num_heads": 2, "width": 16},
        "training": {"num_steps": 10, "batch_size": 8, "warmup_steps": 2, "evaluate_every": 5, "evaluate_samples": 8},
    },
    "small": {
        "process": {"name": CYCLES, "num_components": 32, "num_states": 8, "num_symbols": 4},
        "layout": {"num_demonstrations": 5, "demonstration_length": 8, "test_length": 8},
        "model": {"num_layers": 3, "num_heads": 4, "width": 64},
        "training": {"num_steps": 2500, "learning_rate": 3e-3, "warmup_steps": 40, "final_fraction": 0.0},
    },
    "gpu": {
        "process": {"name": CYCLES, "num_components": 256, "num_states": 16, "num_symbols": 8},
        "layout": {"num_demonstrations": 15, "demonstration_length": 8, "test_length": 8},
        "model": {"num_layers": 4, "num_heads": 8, "width": 256},
        "training": {"num_steps": 4000, "batch_size": 128, "precision": "bfloat16", "final_fraction": 0.0},
    },
    "paper": {
        "process": {"name": "random-mixture", "num_components": 8192, "num_states": 128, "num_symbols": 16}
        | {"transition_concentration": 0.01, "emission_concentration": 0.01},  # the paper does not state them
        "layout": {"num_demonstrations": 15, "demonstration_length": 16, "test_length": 16},
        "model": {"num_layers": 16, "num_heads": 16, "width": 1024},
        "training": {"num_steps": 4096, "learning_rate": 3e-4, "warmup_steps": 200, "precision": "bfloat16"},
    },
}

#: Parameters for windows of one HMM, by scale. The paper has no such runs; "paper" uses its vocabulary of 16.
_WINDOWS: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {
        "process": {"num_states": 3, "num_symbols": 3, "rank": 3},
        "model": {"num_layers": 1, "num_heads": 2, "width": 16},
        "training": {"num_steps": 10, "batch_size": 16, "warmup_steps": 2, "evaluate_every": 5, "evaluate_samples": 8},
    },
    "small": {
        "process": {"num_states": 5, "num_symbols": 5, "rank": 5},
        "model": {"num_layers": 2, "num_heads": 4, "width": 32},
        "training": {"num_steps": 500, "batch_size": 256, "learning_rate": 3e-3, "warmup_steps": 50},
    },
    "gpu": {
        "process": {"num_states": 8, "num_symbols": 8, "rank": 8},
        "model": {"num_layers": 2, "num_heads": 8, "width": 128},
        "training": {"num_steps": 2000, "batch_size": 1024, "learning_rate": 2e-3},
    },
    "paper": {
        "process": {"num_states": 16, "num_symbols": 16, "rank": 16},
        "model": {"num_layers": 4, "num_heads": 8, "width": 256},
        "training": {"num_steps": 20000, "batch_size": 1024, "learning_rate": 1e-3, "warmup_steps": 500},
    },
}
_WINDOWS["medium"] = _WINDOWS["small"]
#: Concentration of the factors of the windows' transition matrix: small, for slow forgetting.
WINDOW_CONCENTRATION = 0.1
#: Observability in the study of memory; the study of observability has it, too.
OBSERVABILITY = 0.6

#: Smallest increase of the excess loss, in nats, by using one layer.
DEPTH_GAIN = 0.1

_DECODER = {"name": "decoder", "positions": "rotary", "input_features": False, "dropout": 0.0}


def prompt_config(scale: str, **changes: dict[str, Any]) -> dict[str, Any]:
    """Return the base configuration of the studies on prompts: a rotary decoder on a pool of HMMs.

    Args:
        scale: "smoke", "small", "gpu" or "paper".
        changes: fields by section; ``process`` replaces its section, the others update theirs.

    Source: [MultiTask] Appendix B.1 for the sizes at scale "paper".
    """
    base = _PROMPTS[scale]
    return {
        "process": changes.get("process", base["process"]),
        "layout": {"name": "prompts"} | base["layout"] | changes.get("layout", {}),
        "model": _DECODER | base["model"] | changes.get("model", {}),
        "training": base["training"] | changes.get("training", {}),
    }


def window_config(scale: str, memory: int, observability: float = OBSERVABILITY) -> dict[str, Any]:
    """Return the configuration of a decoder that predicts from `memory` observations of one HMM.

    Args:
        scale: "smoke", "small", "gpu" or "paper".
        memory: number of observations.
        observability: observability of the channel, in (0, 1].

    Source: [MultiTask] Assumption 2 and Lemma 1; the sizes are our choice.
    """
    numbers = _WINDOWS[scale]
    process = {"observability": observability, "transition_concentration": WINDOW_CONCENTRATION}
    return {
        "process": {"name": "low-rank-hmm", **numbers["process"], **process},
        "layout": {"name": "sequences", "length": memory + 1},
        "model": _DECODER | numbers["model"],
        "training": numbers["training"],
    }


def end_rows(run: Run, num_samples: int, *, baselines: bool = True) -> list[dict[str, Any]]:
    score = evaluate(run.model, run.dataset(), num_samples=num_samples, baselines=baselines)
    twin = evaluate(run.untrained(), run.dataset(), num_samples=num_samples, baselines=False)
    measures = score.measures | {"untrained": twin.measures["model"]}
    last = last_sequence(score)
    return [
        {"predictor": predictor, "metric": metric} | mean_row(values[:, last].mean(1))
        for predictor, metrics in measures.items()
        for metric, values in metrics.items()
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Studies on prompts


class PromptStudy(lab.Experiment):
    """A study that varies one parameter of `prompt_config`."""

    num_seeds = lab.Experiment.NUM_SEEDS
    groups = {"end of the prompt": ("end",)}
    sizes = {"smoke": {"samples": 16}, "small": {"samples": 512}, "gpu": {"samples": 1024}, "paper": {"samples": 512}}
    #: Lists that define the plan, by scale.
    varied: ClassVar[dict[str, dict[str, list]]]

    def choices(self, scale: str) -> dict[str, Any]:
        return self.varied[scale]

    @abstractmethod
    def setting(self, run: Run) -> dict[str, Any]:
        """Return table columns with the value of the varied parameter."""

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        found = [(self.setting(run), end_rows(run, sizes["samples"])) for run in runs.values()]
        return {"end": [setting | row for setting, rows in found for row in rows]}

    def without_training(self, tables: lab.Tables) -> lab.Tables | None:
        return untrained_answers(tables, "end")


def untrained_answers(tables: lab.Tables, name: str) -> lab.Tables:
    rows = tables[name]
    taken = rows.where(predictor="untrained").with_columns(predictor=lambda row: "model")
    return {**tables, name: lab.Rows([*(row for row in rows if row["predictor"] != "model"), *taken])}


def excess_by(tables: lab.Tables, key: str, **fields: Any) -> dict[Any, lab.Effect]:
    found = {value: own.effect() for value, own in _excess(tables, **fields).by(key).items()}
    return {value: effect for value, effect in found.items() if effect is not None}


def excess_less(tables: lab.Tables, one: dict[str, Any], other: dict[str, Any], unit: str) -> lab.Effect | None:
    return _excess(tables, **one).less(_excess(tables, **other), unit=unit)


def _excess(tables: lab.Tables, **fields: Any) -> lab.Rows:
    return tables["end"].where(predictor="model", metric="excess", **fields)


def deepest(tables: lab.Tables) -> lab.Tables:
    """Return the tables without the one-layer control."""
    rows = tables["end"]
    return {**tables, "end": rows.where(layers=max(rows.values("layers")))}


def depth_matters(tables: lab.Tables, key: str) -> lab.Gate:
    """Require that a one-layer model has a higher excess loss than the deepest, by `DEPTH_GAIN` nats.

    Args:
        tables: ``end`` holds losses at the end of the prompt, also of one-layer models at one value of `key`.
        key: name of the varied parameter's column.
    """
    rows = _excess(tables)
    shallow = rows.where(layers=1)
    deep = rows.where(layers=max(rows.values("layers")), **{key: shallow.values(key)[0]} if shallow else {})
    gain = shallow.less(deep, unit="nats of excess")
    return (
        lab.Gate.learned(gain, DEPTH_GAIN, "a model of one layer")
        if gain
        else lab.Gate("learned", False, "no one-layer model was measured")
    )


def listed(found: dict[Any, lab.Effect]) -> str:
    return ", ".join(f"{name}: {one.value:.3f}" for name, one in found.items())


def better(effect: lab.Effect | None, one: str, other: str) -> str:
    if effect is None or effect.low is None or effect.high is None or effect.low <= 0 <= effect.high:
        return f"It is open whether {one.lower()} or {other} is better."
    return f"{one} is {'better' if effect.low > 0 else 'worse'} than {other}."


# ---------------------------------------------------------------------------------------------------------------------
# Figures

_UNITS = {
    "accuracy": ("Accuracy", "accuracy"),
    "loss": ("Loss", "nats per observation"),
    "excess": ("Excess over the optimum", "nats per observation"),
    "total_variation": ("Distance from the optimum", "total variation"),
}


def setting_bars(rows: lab.Rows, key: str, metric: str, values: Sequence[str]) -> lab.Panel:
    title, unit = _UNITS[metric]
    own = {name: rows.where(predictor=name, metric=metric) for name in lab.PREDICTORS}
    series = [lab.bar(found, key, values, *lab.PREDICTORS[name]) for name, found in own.items() if found]
    return lab.bars(title, *series, categories=values, y_label=unit)


def setting_lines(rows: lab.Rows, key: str, metric: str, **shown: Any) -> lab.Panel:
    title, unit = _UNITS[metric]
    own = {name: rows.where(predictor=name, metric=metric) for name in lab.PREDICTORS}
    series = [lab.curve(found, key, *lab.PREDICTORS[name]) for name, found in own.items()]
    return lab.lines(title, *series, y_label=unit, **shown)
