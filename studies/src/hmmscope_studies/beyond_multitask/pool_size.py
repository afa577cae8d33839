"""Strategies of a Transformer by pool size and training: n-grams, retrieval from a pool, inference."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from hmmscope import (
    Mixture,
    Process,
    ProcessDataset,
    Run,
    as_composed_cycles,
    lab,
    registry,
    require_process_type,
    strategy_weights,
)
from hmmscope.analysis import LevelCrossing, TunedNgrams, known_component_probs, mean_row
from hmmscope.inference import optimal_probs
from hmmscope_papers.multitask.models import BATCH, PARTS, multitask_plan
from hmmscope_papers.multitask.predictors import (
    POOLS,
    TREE,
    answers,
    counting_of,
    measured,
    observers_of,
    pools_of,
    smoothed,
)
from hmmscope_papers.multitask.training_setting import in_regime, model_columns, pool_columns, setting_rows

#: Threshold of retrieval in nats: loss on held-out HMMs above that on the pool.
RETRIEVES = 0.1


@registry.experiment("multitask-pool-size")
class PoolSize(lab.Experiment):
    """The same model, trained on equally many tokens from pools of growing size."""

    title = "Does a model use n-grams, retrieval or inference? Effect of pool size and training"
    summary = (
        "The same decoder is trained on equally many prompts from pools of growing size, so that each HMM is shown "
        "thousands of times in the smallest pool, and about 16 times (as in the paper) in the largest. An HMM "
        "is a pair of a cycle and an emission. Predictions on HMMs of the pool, on held-out pairs of its cycles and "
        "emissions, and on HMMs with new ones are compared with mixtures of n-grams, retrieval (Bayes mixture over "
        "the pool) and inference (that over all pairs). Models that store checkpoints are measured during training too."
    )
    num_seeds = lab.Experiment.NUM_SEEDS
    measure_per_run = True
    groups = {"strategies": ("weights", "left"), "training": ("phases",), "setting": ("setting",)}
    sizes = {
        "smoke": {"samples": 8, "phase_samples": 8, "first_position": 4},
        "small": {"samples": 256, "phase_samples": 256, "first_position": 4},
        "medium": {"samples": 2048, "phase_samples": 2048, "first_position": 4},
        "gpu": {"samples": 512, "phase_samples": 256, "first_position": 4},
        "paper": {"samples": 256, "phase_samples": 256, "first_position": 4},
    }
    varied = {**PARTS, "small": [8, 16, 32, 96]}

    def choices(self, scale: str) -> dict[str, Any]:
        return {"parts": self.varied[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return multitask_plan(scale, choices["parts"])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        tables: lab.MeasuredTables = {name: [] for name in self.groups[group]}
        look = {
            "strategies": _strategies,
            "training": _phases,
            "setting": lambda run, sizes: {"setting": setting_rows(run)},
        }
        for label, run in runs.items():
            for name, rows in look[group](run, sizes).items():
                tables[name] += [model_columns(label, run) | row for row in rows]
        return tables

    def without_training(self, tables: lab.Tables) -> lab.Tables | None:
        return None

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        phases = tables["phases"]
        return [
            _transition_figure(phases),
            _weights_figure(tables),
            _by_demonstration(in_regime(tables)),
            _phase_figure(phases),
        ]


def _prompts(run: Run, process: Process) -> ProcessDataset:
    return ProcessDataset(process, layout=run.config.layout, seed=run.config.seed, stream="evaluate")


def strategy_laws(run: Run, dataset: ProcessDataset, count: int) -> dict[str, Float64[Tensor, "prompt judged symbol"]]:
    counting = counting_of(run)
    parts = [
        _strategy_laws(run, dataset, slice(begin, min(begin + BATCH, count)), counting)
        for begin in range(0, count, BATCH)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _strategy_laws(
    run: Run, dataset: ProcessDataset, samples: slice, ngrams: TunedNgrams
) -> dict[str, Float64[Tensor, "batch judged symbol"]]:
    batch = dataset[samples]
    counted = ngrams.probs(dataset, batch)
    del counted[TREE]
    found = {"uniform": torch.full_like(counted["order-0"], 1 / dataset.num_symbols), "unigram": counted.pop("order-0")}
    found |= counted
    reset_mask, judged = torch.from_numpy(dataset.layout.reset_mask), dataset.layout.predicted_observations
    for name, pool in observers_of(run).items():
        believed = as_composed_cycles(pool) or smoothed(require_process_type(pool, Mixture), 0.01)
        probs = optimal_probs(believed, batch.observations, reset_mask=reset_mask)[:, judged]
        found["inference" if name == "prior" else name] = probs
    return found


def _strategies(run: Run, sizes: dict[str, Any]) -> lab.MeasuredTables:
    weights, left = [], []
    for pool, process in pools_of(run).items():
        dataset = _prompts(run, process)
        layout, judged = dataset.layout, dataset.layout.predicted_observations
        laws, law = (
            strategy_laws(run, dataset, sizes["samples"]),
            answers(run.model, dataset[0 : sizes["samples"]].tokens, run, judged),
        )
        number, position = layout.sequence_index[judged], layout.position_in_sequence[judged]
        late, last = position >= sizes["first_position"], number == number.max()
        places = {("demonstrations", x): late & (number == x) for x in np.unique(number).tolist()}
        places |= {("positions", x): last & (position == x) for x in np.unique(position[last]).tolist()}
        for (axis, x), columns in places.items():
            chosen = torch.from_numpy(columns)
            found = strategy_weights(law[:, chosen], {name: one[:, chosen] for name, one in laws.items()})
            where = {"pool": pool, "axis": axis, "x": x}
            weights += [
                where | {"strategy": name, "value": value, "error": found.error[name]}
                for name, value in found.value.items()
            ]
            nearest = min(found.single_kl.values())
            left += [where | {"quantity": name, "value": v} for name, v in (("left", found.left), ("alone", nearest))]
    return {"weights": weights, "left": left}


def _phases(run: Run, sizes: dict[str, Any]) -> lab.MeasuredTables:
    training, pools = run.config.training, pools_of(run)
    columns = pool_columns(run)
    last = run.config.layout.sequence_index[run.config.layout.predicted_observations]
    end, judged = last == last.max(), run.config.layout.predicted_observations
    known: dict[str, np.ndarray] = {}
    counting = counting_of(run)
    counted: dict[str, np.ndarray] = {}
    batches = {pool: _prompts(run, process)[0 : sizes["phase_samples"]] for pool, process in pools.items()}
    for pool, process in pools.items():
        dataset, batch = _prompts(run, process), batches[pool]
        labels = batch.observations[:, judged]
        loss = {name: _loss(probs, labels, end) for name, probs in counting.probs(dataset, batch).items()}
        counted[pool] = loss[TunedNgrams.best(loss)]
        told = known_component_probs(dataset, batch)
        assert told is not None
        known[pool] = _loss(told, labels, end)
    other = "held-out" if "held-out" in pools else "unseen"
    rows = []
    for step in run.checkpoint_steps()[1:] if training.num_log_checkpoints else [training.num_steps]:
        model = run.model_at(step) if training.num_log_checkpoints else run.model
        loss = {
            pool: _loss(answers(model, batch.tokens, run, judged), batch.observations[:, judged], end)
            for pool, batch in batches.items()
        }
        above = {pool: loss[pool] - known[pool] for pool in pools}
        where = {"step": step, "shown": columns["prompts"] * step / training.num_steps}
        gap, inside, beyond = above[other].mean() - above["pool"].mean(), above["pool"], above[other]
        error = math.hypot(inside.std(ddof=1), beyond.std(ddof=1)) / math.sqrt(len(inside))
        rows.append(where | {"effect": "retrieval", "value": float(gap), "error": error})
        rows.append(where | {"effect": "inference"} | mean_row(counted["unseen"] - loss["unseen"]))
    return {"phases": rows}


def _loss(probs: Tensor, labels: Tensor, end: np.ndarray) -> np.ndarray:
    found: np.ndarray = measured(probs, labels)["loss"][:, end].mean(1)
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Figures

_STRATEGIES: dict[str, tuple[str, lab.Role]] = {
    "inference": ("inference over all pairs", "optimum"),
    "retrieval": ("retrieval from the pool", "model"),
    "counting": ("n-grams, orders 1 to 4", "baseline"),
    "unigram": ("unigram", "other"),
    "uniform": ("uniform", "control"),
}


_EFFECTS: dict[str, lab.Role] = {"inference": "optimum", "retrieval": "model"}


def _named(rows: lab.Rows) -> lab.Rows:
    kept = lab.Rows(row for row in rows if not row["strategy"].startswith("order-"))
    keys = [key for key in (rows[0] if rows else {}) if key not in ("strategy", "value", "error")]
    orders = lab.Rows(row for row in rows if row["strategy"].startswith("order-"))
    for group in orders.by(*keys).values():
        row = {key: group[0][key] for key in keys} | {"strategy": "counting"}
        error = math.hypot(*(one["error"] for one in group))
        kept.append(row | {"value": math.fsum(one["value"] for one in group), "error": error})
    return kept


def _end(tables: lab.Tables) -> lab.Rows:
    rows = tables["weights"].where(axis="demonstrations")
    return _named(rows.where(x=max(rows.values("x"))))


def _weights_figure(tables: lab.Tables) -> lab.Figure:
    rows = _end(tables)
    panels = [
        lab.lines(
            title[0].upper() + title[1:],
            *(lab.curve(rows.where(pool=pool, strategy=name), "prompts", *look) for name, look in _STRATEGIES.items()),
            x_label="prompts per HMM",
            y_label="weight",
            log_x=True,
            y_min=0.0,
            y_max=1.02,
        )
        for pool, title in POOLS.items()
        if rows.where(pool=pool)
    ]
    return lab.Figure(
        name="weights",
        title="Mixture of strategies nearest to the predictions of a model",
        caption=(
            "Curves show the weights in the mixture of strategies that is nearest to the predictions of the model (in KL "
            "divergence), after all demonstrations, against the number of training prompts per HMM. On prompts of the pool, "
            "retrieval and inference soon agree, so that their weights cannot be distinguished there."
        ),
        panels=tuple(panels),
    )


def _by_demonstration(tables: lab.Tables) -> lab.Figure:
    rows = _named(tables["weights"])
    panels = [
        lab.lines(
            f"{title[0].upper()}{title[1:]}, by {axis.removesuffix('s')}",
            *(
                lab.curve(rows.where(pool=pool, axis=axis, strategy=name), "x", *look)
                for name, look in _STRATEGIES.items()
            ),
            x_label=label,
            y_label="weight",
            y_min=0.0,
            y_max=1.02,
        )
        for pool, title in POOLS.items()
        for axis, label in (("demonstrations", "demonstrations before"), ("positions", "observations seen"))
        if rows.where(pool=pool)
    ]
    return lab.Figure(
        name="by-demonstration",
        title="Mixture of strategies along a prompt, with about as many prompts per HMM as in the paper",
        caption=(
            f"Curves show the weights in the nearest mixture of strategies for the pool with {_prompts_said(tables)} "
            "prompts per HMM, against the number of demonstrations before a sequence, and along the test sequence."
        ),
        panels=tuple(panels),
    )


def _phase_figure(rows: lab.Rows) -> lab.Figure:
    named = rows.with_columns(pool=lambda row: f"{row['prompts']:.4g}")
    shown = {"x_label": "step", "y_label": "prompts per HMM at the end", "z_label": "nats"}
    titles = {
        "retrieval": "Retrieval: excess, held-out HMMs minus HMMs of the pool",
        "inference": "Inference: n-gram loss minus model loss, unseen HMMs",
    }
    maps = [
        lab.heatmap(t, lab.Rows(named.where(effect=e).pool("step", "pool")), "step", "pool", **shown)
        for e, t in titles.items()
    ]
    return lab.Figure(
        name="phases",
        title="Retrieval and inference during training",
        caption=(
            "Left: excess loss (over the filter that knows the HMM) on held-out HMMs minus that on the pool. Right: "
            "loss of the best in-context n-gram baseline minus that of the model, on unseen HMMs. All losses are "
            "measured in the test sequence; values are means over seeds."
        ),
        panels=tuple(maps),
    )


def _transition_figure(rows: lab.Rows) -> lab.Figure:
    named = rows.with_columns(shown_as=lambda row: f"{row['prompts']:.3g} prompts per HMM")
    last = lab.Rows(row for row in rows if row["shown"] == row["prompts"])
    titles = {
        "inference": "Inference: n-gram loss minus model loss, unseen HMMs",
        "retrieval": "Retrieval: excess, held-out HMMs minus HMMs of the pool",
    }
    panels = []
    for effect, title in titles.items():
        curves = [lab.curve(own, "step", name) for name, own in named.where(effect=effect).by("shown_as").items()]
        panels.append(lab.lines(f"{title}, by step", *curves, x_label="step", y_label="nats", log_x=True))
    ends = [lab.curve(last.where(effect=effect), "prompts", effect, role) for effect, role in _EFFECTS.items()]
    panels.append(lab.lines("At the end of training", *ends, x_label="prompts per HMM", y_label="nats", log_x=True))
    return lab.Figure(
        name="transition",
        title="Inference and retrieval, during training and by prompts per HMM",
        caption=(
            "Inference is the loss of the best n-gram baseline (tuned n-grams, context tree weighting) minus that of "
            "the model, on unseen HMMs. Retrieval is the excess loss (over the filter that knows the HMM) on held-out "
            "HMMs minus that on the pool. The first two panels show inference and retrieval by training step, with one "
            "curve per pool; the last panel shows both at the end of training by prompts per HMM. All models train on "
            "equally many tokens. All losses are measured in the test sequence; bands are 95 % intervals over seeds."
        ),
        panels=tuple(panels),
    )


def _prompts_said(tables: lab.Tables) -> str:
    return ", ".join(f"{value:.4g}" for value in tables["weights"].values("prompts"))


# ---------------------------------------------------------------------------------------------------------------------
# Questions


@lab.claim("multitask-switch")
def switch(tables: lab.Tables) -> lab.Measurement:
    rows = tables["phases"].where(effect="retrieval")
    last = lab.Rows(row for row in rows if row["shown"] == row["prompts"])
    found = last.per_seed(lambda own: _crossed(own, "prompts", RETRIEVES))
    listed = ", ".join(f"{x:.4g}: {own.effect()}" for x, own in sorted(last.by("prompts").items()))
    text = f"Nats by which the loss on held-out HMMs exceeds that on the pool, by prompts per HMM: {listed}. {_where(found)}"
    effect = _logs(found).effect("log2 of prompts per HMM")
    return lab.Measurement(effect, text, gates=(lab.Gate.equal_tokens(tables),))


def _crossed(rows: lab.Rows, key: str, level: float) -> LevelCrossing | None:
    found = sorted(rows, key=lambda row: row[key])
    errors = [row["error"] if "error" in row else (row["high"] - row["low"]) / 3.92 for row in found]
    places = [round(row[key]) if row[key] >= 1 else 1 for row in found]
    return LevelCrossing.of(places, [row["value"] for row in found], errors, level=level)


def _logs(found: Mapping[Any, LevelCrossing | None]) -> lab.PerSeed[lab.EstimateWithError | None]:
    return lab.PerSeed(
        {seed: None if one is None else lab.EstimateWithError(one.log2_step, one.error) for seed, one in found.items()}
    )


def _where(found: Mapping[Any, LevelCrossing | None]) -> str:
    said = ", ".join("none" if one is None else f"{one.step:,.0f}" for one in found.values())
    return f"This difference crosses {RETRIEVES:g} nats at these numbers of prompts per HMM, by seed: {said}."
