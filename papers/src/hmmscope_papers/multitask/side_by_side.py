"""Trained, untrained and constructed ([MultiTask] Theorem 1) networks, measured with the same instruments."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hmmscope import (
    InstrumentOptions,
    Mixture,
    ProcessDataset,
    PromptLayout,
    Run,
    attention_map,
    capture_activations,
    evaluate,
    probe,
    require_process_type,
)
from hmmscope.analysis import (
    bootstrap_means,
    bootstrap_ratio,
    explained_change,
    inference_mode,
    linear_cka,
    residual_layers,
)
from hmmscope.lab import MeasuredTables
from hmmscope.ties import largest
from hmmscope_papers.constructions import (
    LeastSquares,
    MultiTaskOptions,
    MultiTaskTransformer,
    RegressionSamples,
    multitask_theorem1,
)
from hmmscope_papers.multitask.models import BATCH, MAX_DISTANCE
from hmmscope_papers.multitask.predictors import where_of

#: Number of untrained controls.
TWINS = 3


def construct(run: Run, sizes: dict[str, Any]) -> MultiTaskTransformer:
    """Build Theorem 1's causal network for a run's prompts, with the largest stable step size."""
    layout = run.config.layout
    assert isinstance(layout, PromptLayout)
    network = multitask_theorem1(
        run.process.num_symbols,
        sizes["memory_length"],
        sizes["num_steps"],
        num_demonstrations=layout.num_demonstrations,
        demonstration_length=layout.demonstration_length,
        test_length=layout.test_length,
        options=MultiTaskOptions(learning_rate=float(1 / _regressions(run, sizes).largest.max()), causal=True),
    )
    return network.to(where_of(run))


def _regressions(run: Run, sizes: dict[str, Any]) -> LeastSquares:
    observations = run.dataset("probe")[0 : sizes["samples"]].observations
    return RegressionSamples.of(_demonstrations(run, observations), _symbols(run), sizes["memory_length"]).problem()


def _demonstrations(run: Run, observations: Tensor) -> Tensor:
    layout = run.config.layout
    assert isinstance(layout, PromptLayout)
    shape = (layout.num_demonstrations, layout.demonstration_length)
    return observations[:, : shape[0] * shape[1]].unflatten(1, shape)


def _symbols(run: Run) -> int:
    return run.process.num_symbols


def scores_of_networks(networks: Mapping[str, nn.Module], run: Run, sizes: dict[str, Any]) -> list[dict]:
    rows = []
    for name, network in networks.items():
        score = evaluate(network, run.dataset("probe"), num_samples=sizes["samples"], baselines=name == "trained")
        last = score.demonstrations == score.demonstrations.max()
        kept = last & (score.positions >= sizes["memory_length"])
        for predictor in ("model", "optimum", "order-1", "order-3") if name == "trained" else ("model",):
            for metric in ("accuracy", "total_variation"):
                if metric in score.measures[predictor]:
                    mean, low, high = bootstrap_means(score.measures[predictor][metric][:, kept].mean(1))
                    rows.append(
                        {
                            "predictor": name if predictor == "model" else predictor,
                            "metric": metric,
                            "value": float(mean),
                            "low": float(low),
                            "high": float(high),
                            "samples": sizes["samples"],
                        }
                    )
    return rows


def probes_of_networks(networks: Mapping[str, nn.Module], run: Run, sizes: dict[str, Any]) -> list[dict]:
    process = require_process_type(run.process, Mixture)
    few = process.first(min(sizes["probe_components"], len(process)))
    wanted = [("component", ProcessDataset(few, layout=run.config.layout, seed=run.config.seed, stream="probe"))]
    wanted += [(f"previous-{k}", run.dataset("probe")) for k in range(MAX_DISTANCE + 1)]
    rows = []
    for name, network in networks.items():
        for target, dataset in wanted:
            found = probe(
                network,
                dataset,
                target=target,
                num_samples=sizes["probe_samples"],
                shuffled_labels=False,
                seed=run.config.seed,
                options=InstrumentOptions(num_controls=TWINS if name == "trained" else 0),
            )
            last = max(row["layer"] for row in found)
            rows += [{"network": name, "depth": row["layer"] / last} | row for row in found]
    return rows


def attention_of_networks(
    networks: Mapping[str, nn.Module], dataset: ProcessDataset, sizes: dict[str, Any]
) -> MeasuredTables:
    offsets: list[dict] = []
    profiles: dict[tuple[str, int, int], list[float]] = {}
    for name, network in networks.items():
        rows = attention_map(network, dataset, num_samples=min(128, sizes["samples"]), max_offset=16)
        offsets += [{"network": name} | row for row in rows if row["kind"] == "offset"]
        for row in rows:
            if row["kind"] == "offset":
                profiles.setdefault((name, row["layer"], row["head"]), []).append(row["value"])
    gathering = [key for key in profiles if key[0] == "constructed" and max(profiles[key]) > 0.99]
    overlap = []
    for _, layer, head in gathering:
        shape = np.array(profiles["constructed", layer, head])
        for name in ("trained", "untrained"):
            found = {key: float(np.minimum(shape, profiles[key]).sum()) for key in profiles if key[0] == name}
            best = largest(found, found.__getitem__)
            overlap.append(
                {
                    "constructed_layer": layer,
                    "offset": int(shape.argmax()),
                    "network": name,
                    "layer": best[1],
                    "head": best[2],
                    "overlap": found[best],
                    "samples": min(128, sizes["samples"]),
                }
            )
    return {"offsets": offsets, "overlap": overlap}


def _features(network: nn.Module, tokens: Tensor, columns: Tensor) -> Tensor:
    names = residual_layers(network)
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    with inference_mode(network) as device:
        for begin in range(0, len(tokens), BATCH):
            part = tokens[begin : begin + BATCH].to(device)
            found = capture_activations(network, names, part, lambda x: x[:, columns].flatten(0, 1).cpu().double())
            for name in names:
                parts[name].append(found[name])
    return torch.stack([torch.cat(parts[name]) for name in names])


def similarity_of_networks(
    networks: Mapping[str, nn.Module], dataset: ProcessDataset, sizes: dict[str, Any]
) -> list[dict]:
    tokens, layout = dataset[0 : sizes["samples"]].tokens, dataset.layout
    inside = layout.position_in_sequence >= sizes["memory_length"] - 1
    last = layout.sequence_index == layout.sequence_index[-1]
    columns = torch.from_numpy(layout.token_positions[inside & last])
    features = {name: _features(network, tokens, columns) for name, network in networks.items()}
    size = features["trained"].shape[1] // sizes["chunks"]
    rows = []
    for name in ("trained", "untrained"):
        chunks = torch.stack(
            [
                linear_cka(
                    features[name][:, i * size : (i + 1) * size], features["constructed"][:, i * size : (i + 1) * size]
                )
                for i in range(sizes["chunks"])
            ]
        ).nan_to_num(0.0)
        mean, low, high = bootstrap_means(chunks.numpy())
        rows += [
            {
                "network": name,
                "layer": layer,
                "constructed_layer": other,
                "value": float(mean[layer, other]),
                "low": float(low[layer, other]),
                "high": float(high[layer, other]),
                "samples": sizes["chunks"],
            }
            for layer, other in np.ndindex(*mean.shape)
        ]
    return rows


def steps_of_networks(networks: Mapping[str, nn.Module], run: Run, sizes: dict[str, Any]) -> list[dict]:
    """Measure how much a gradient step helps a linear map to predict the output that each layer adds.

    The measure is the gain in R² if a map from the last symbol and symbol frequencies also reads (W^(t) - W^(t-1)) x.
    """
    dataset, num_symbols, memory = run.dataset("probe"), _symbols(run), sizes["memory_length"]
    batch = dataset[0 : sizes["samples"]]
    problems = _regressions(run, sizes)
    rate = float(1 / problems.largest.max())
    x = RegressionSamples.unlabelled(batch.observations[:, -memory:].flip(1), num_symbols).features()
    iterates = [problems.descent(t, rate) for t in range(sizes["num_steps"] + 1)]
    said = [(weights @ x[..., None])[..., 0] for weights in iterates]
    one_hot = torch.nn.functional.one_hot(batch.observations, num_symbols).double()
    base = torch.cat([one_hot[:, -1], one_hot.mean(1)], 1)
    train = torch.arange(len(base)) < (3 * len(base)) // 4
    column = torch.tensor([dataset.layout.context_length - 1])
    rows = []
    for name in ("trained", "untrained"):
        stream = _features(networks[name], batch.tokens, column)
        for layer in range(1, len(stream)):
            change = stream[layer] - stream[layer - 1]
            alone, spread = explained_change(change, base, train)
            for t in range(1, sizes["num_steps"] + 1):
                both, _ = explained_change(change, torch.cat([base, said[t] - said[t - 1]], 1), train)
                gain = bootstrap_ratio((alone - both).numpy(), spread.numpy())
                rows.append(
                    {
                        "network": name,
                        "layer": layer,
                        "step": t,
                        "base": 1 - float(alone.mean() / spread.mean()),
                        "value": gain[0],
                        "low": gain[1],
                        "high": gain[2],
                        "samples": int((~train).sum()),
                    }
                )
    return rows


def convergence_of(run: Run) -> list[dict]:
    assert run.summary is not None
    found = {row["step"]: row["evaluation_loss"] for row in run.table() if "evaluation_loss" in row}
    last = max(found)
    before = min(found, key=lambda step: abs(step - 3 * last / 4))
    floor = run.summary["training_floor"]
    return [{"steps": last, "earlier_step": before, "earlier": found[before] - floor, "end": found[last] - floor}]
