"""Measurements of the experiment header-filtering: excess losses, probes for beliefs, edited and removed parts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from hmmscope import (
    EvaluateOptions,
    ProcessDataset,
    Run,
    capture_activations,
    evaluate,
    intervene,
    make_process,
    registry,
)
from hmmscope.analysis import HeaderOptions, TunedNgrams, attention_taps, inference_mode
from hmmscope_studies.prompted.filtering_models import ARCHITECTURES

#: Observations of a training sample, and the largest multiple of them that is read.
LENGTH, TIMES = 32, 4
#: Places of scores: at the training length, beyond it, and in regions left out of training, with their processes.
HERE, BEYOND = "T", "beyond T"
REGIONS = {"slow": "told-slow-hmms", "sharp": "told-sharp-hmms"}
#: Baselines are the same for every network; slow ones are measured with this architecture only.
BESIDE = "lstm"

Row = dict[str, Any]


def instrument(name: str) -> Callable[..., list[Row]]:
    found: Callable[..., list[Row]] = registry.lookup("instrument", name)
    return found


def short(value: float) -> float:
    return float(f"{value:.5g}")


def places(run: Run) -> dict[str, tuple[ProcessDataset, int]]:
    layout, seed, spec = run.config.layout, run.config.seed, run.config.process
    found = {HERE: (run.dataset("evaluate"), 0)}
    if ARCHITECTURES[architecture_of(run)].any_length:
        found[BEYOND] = (longer(run, "evaluate"), layout.num_observations)
    sizes = {"num_states": spec.num_states, "num_symbols": spec.num_symbols, "least": spec.least, "seed": spec.seed}
    for region, name in REGIONS.items():
        process = make_process(name, **sizes)
        found[region] = (ProcessDataset(process, layout=layout, seed=seed, stream="evaluate"), 0)
    return found


def longer(run: Run, stream: str) -> ProcessDataset:
    layout = replace(run.config.layout, length=TIMES * run.config.layout.num_observations)
    return ProcessDataset(run.process, layout=layout, seed=run.config.seed, stream=stream)


def architecture_of(run: Run) -> str:
    spec = run.config.to_data()["model"]

    def alike(fields: Mapping[str, Any]) -> bool:
        kept = {"name", "positions", "negative"}
        return all(spec.get(key) == value for key, value in fields.items() if key in kept)

    return next(name for name, one in ARCHITECTURES.items() if alike(one.model))


def facts_of(run: Run) -> Row:
    training, took = run.config.training, run.seconds_per_step
    steps = training.num_steps
    return {
        "size": run.config.process.num_states,
        "architecture": architecture_of(run),
        "steps": steps,
        "sequences": steps * training.batch_size,
        "processor_seconds": None if took is None else short(steps * took),
    }


# ---------------------------------------------------------------------------------------------------------------------
# Scores


def learning_row(run: Run, num_samples: int) -> Row:
    score = evaluate(run.model, run.dataset("evaluate"), num_samples=num_samples, baselines=False)
    return facts_of(run) | {"place": HERE, "predictor": "model"} | _mean(score.measures["model"]["excess"])


def place_rows(run: Run, num_samples: int) -> list[Row]:
    facts, untrained, rows = facts_of(run), run.untrained(), []
    counting = TunedNgrams.tuned(run.dataset("counting"))
    for place, (dataset, first) in places(run).items():
        score = evaluate(run.model, dataset, num_samples=num_samples, options=EvaluateOptions(ngrams=counting))
        before = evaluate(untrained, dataset, num_samples=num_samples, baselines=False)
        counted = TunedNgrams.best({name: found["loss"] for name, found in score.measures.items()})
        found = {
            "model": score.measures["model"],
            "untrained": before.measures["model"],
            "counting": score.measures[counted],
        }
        for predictor, measures in found.items():
            values = measures["excess"][:, score.positions >= first]
            rows.append(facts | {"place": place, "predictor": predictor} | _mean(values))
    return rows


def _mean(values: np.ndarray) -> Row:
    means = values.mean(1)
    return {"value": short(float(means.mean())), "error": short(float(means.std(ddof=1) / len(means) ** 0.5))}


def position_rows(run: Run, num_samples: int, num_hmms: int, num_fits: int) -> list[Row]:
    """Return excess loss and calibration by number of known observations; the LSTM's rows include baselines."""
    facts, rows = facts_of(run), []
    beside = facts["architecture"] == BESIDE
    asked = [(HERE, run.dataset("evaluate"))]
    if ARCHITECTURES[facts["architecture"]].any_length:
        asked.append((BEYOND, longer(run, "evaluate")))
    for place, dataset in asked:
        all_of_them = beside and place == HERE
        pools, fits = (4, num_fits) if all_of_them else (0, 0)
        options = HeaderOptions(num_hmms=num_hmms, num_pools=pools, num_fits=fits, ngrams=all_of_them)
        found = instrument("header")(run.model, dataset, num_samples=num_samples, options=options)
        for row in _named(found) if all_of_them else [one for one in found if one["predictor"] == "model"]:
            if _is_shown(row["position"], dataset.layout.num_observations):
                rows.append(facts | {"place": place} | _columns(row, ("predictor", "position", "quantity", "value")))
    return rows


def _is_shown(position: int | None, length: int) -> bool:
    return position is None or position & (position - 1) == 0 or position == length - 1


def _named(rows: Iterable[Row]) -> list[Row]:
    kept = list(rows)
    means = {row["predictor"]: row["value"] for row in kept if row["position"] is None and row["quantity"] == "excess"}
    counted = TunedNgrams.best({name: np.array([value]) for name, value in means.items()})
    others = {name for name in means if _counts(name)} - {counted}
    named = [row | {"predictor": "counting"} if row["predictor"] == counted else row for row in kept]
    return [row for row in named if row["predictor"] not in others]


def _counts(name: str) -> bool:
    return name.startswith("order-") or name == "context-tree"


# ---------------------------------------------------------------------------------------------------------------------
# Inside


def belief_rows(run: Run, num_samples: int) -> list[Row]:
    found = instrument("geometry")(run.model, run.dataset("probe"), num_samples=num_samples, seed=run.config.seed)
    kept = [row for row in found if row["target"] == "belief" and row["targets"] == "true"]
    columns = ("layer", "r2", "fitted", "twins", "share", "share_low", "share_high")
    return [facts_of(run) | _columns(row, columns) for row in kept]


def memory_rows(run: Run, num_samples: int) -> list[Row]:
    found = instrument("header-memory")(run.model, run.dataset("probe"), num_samples=num_samples, seed=run.config.seed)
    columns = ("part", "layer", "r2", "twins", "share", "share_low", "share_high")
    return [facts_of(run) | _columns(row, columns) for row in found]


def edit_rows(run: Run, num_samples: int) -> list[Row]:
    rows = []
    for network, model in {"trained": run.model, "untrained": run.untrained()}.items():
        found = instrument("header-edits")(model, run.dataset("probe"), num_samples=num_samples, seed=run.config.seed)
        columns = ("where", "layer", "edit", "value", "error", "before")
        rows += [facts_of(run) | {"network": network} | _columns(row, columns) for row in found]
    return rows


def move_rows(run: Run, num_samples: int) -> list[Row]:
    """Measure how far a belief edit moves the prediction to the filter's prediction for the new belief (1: all the way).

    Returns:
        Rows (network, layer, fitted, subspace, value, error, before), as in `belief_interventions`: another sample
        gives what the belief readout (subspace "belief") or a random map of equal rank ("random") reads.
    """
    rows = []
    for network, model in {"trained": run.model, "untrained": run.untrained()}.items():
        found = instrument("belief-interventions")(
            model, run.dataset("probe"), num_samples=num_samples, interventions=("swap",), seed=run.config.seed
        )
        columns = ("layer", "fitted", "subspace", "value", "error", "before")
        about = facts_of(run) | {"network": network}
        kept = [row for row in found if row["metric"] == "kl" and row["subspace"] != "whole"]
        rows += [about | _columns(row, columns) for row in kept]
    return rows


def head_rows(run: Run, num_samples: int) -> list[Row]:
    """Return each head's attention from observations to the header, and the loss increase without this attention.

    Returns:
        Rows (network, layer, head, quantity, value): "attention" (of later observations to the header) and "cost" (nats).
    """
    facts = facts_of(run)
    if not facts["architecture"].startswith("transformer"):
        return []
    dataset, rows = run.dataset("probe"), []
    header = dataset.layout.context_length - dataset.layout.num_observations
    for network, model in {"trained": run.model, "untrained": run.untrained()}.items():
        names, looks = attention_taps(model, "pattern"), _attention(model, dataset, header, num_samples)
        intact = _excess(model, dataset, num_samples)
        for layer, name in enumerate(names, 1):
            for head, look in enumerate(looks[name]):
                with intervene(model, {name: _deaf(head, header)}):
                    cost = _excess(model, dataset, num_samples) - intact
                about = facts | {"network": network, "layer": layer, "head": head}
                rows.append(about | {"quantity": "attention", "value": short(look)})
                rows.append(about | {"quantity": "cost", "value": short(cost)})
    return rows


def _attention(model: nn.Module, dataset: ProcessDataset, header: int, num_samples: int) -> dict[str, list[float]]:
    later = header + dataset.layout.num_observations // 2
    with inference_mode(model) as device:
        tokens = dataset[0:num_samples].tokens.to(device)
        found = capture_activations(
            model, attention_taps(model, "pattern"), tokens, lambda x: x[:, :, later:, :header].sum(-1).mean((0, 2))
        )
    return {name: shares.tolist() for name, shares in found.items()}


def _deaf(head: int, header: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def edit(pattern: torch.Tensor) -> torch.Tensor:
        changed = pattern.clone()
        changed[:, head, header:, :header] = 0
        own = changed[:, head, header:]
        changed[:, head, header:] = own / own.sum(-1, keepdim=True)
        return changed

    return edit


def _excess(model: nn.Module, dataset: ProcessDataset, num_samples: int) -> float:
    score = evaluate(model, dataset, num_samples=num_samples, baselines=False)
    return float(score.measures["model"]["excess"].mean())


def _columns(row: Row, names: Iterable[str]) -> Row:
    return {name: short(row[name]) if isinstance(row[name], float) else row[name] for name in names}
