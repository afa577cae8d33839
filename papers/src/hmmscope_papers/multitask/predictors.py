"""Predictors of prompts: trained and untrained models, retrieval, n-grams, and the network of Theorem 1."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from torch import Tensor, nn

from hmmscope import (
    Mixture,
    Process,
    ProcessDataset,
    PromptLayout,
    Run,
    as_composed_cycles,
    require_process_type,
    stable_argmax,
)
from hmmscope.analysis import Score, TunedNgrams, known_component_probs, model_probs
from hmmscope.inference import optimal_probs
from hmmscope.schema import require
from hmmscope.ties import smallest
from hmmscope_papers.constructions import RegressionSamples
from hmmscope_papers.multitask.models import BATCH

#: Largest n-gram order that is always shown.
MAX_ORDER = 4
#: Largest n-gram order, and the mixture of context trees.
LONGEST, TREE = 8, "context-tree"
NGRAMS = (*(f"order-{order}" for order in range(LONGEST + 1)), TREE)
#: Prompts of the pool for tuning the n-gram baselines.
_TUNED_ON = 256
#: Sources of prompts.
POOLS = {"pool": "HMMs of the pool", "held-out": "held-out pairs", "unseen": "unseen HMMs"}
#: Fractions of the uniform distribution in the smoothed mixture; without smoothing, prompts may be impossible.
SMOOTHINGS = (0.01, 0.03, 0.1, 0.3)


def where_of(run: Run) -> torch.device:
    weights = [] if run.model is None else run.model.parameters()
    return next((p.device for p in weights), torch.device("cpu"))


def last_sequence(score: Score) -> NDArray[np.bool_]:
    return np.asarray(score.demonstrations == score.demonstrations.max())


def counting_of(run: Run) -> TunedNgrams:
    dataset = ProcessDataset(run.process, layout=run.config.layout, seed=run.config.seed, stream="counting")
    number = dataset.layout.sequence_index[dataset.layout.predicted_observations]
    return TunedNgrams.tuned(dataset, num_samples=_TUNED_ON, orders=LONGEST, asked=number == number.max())


def answers(
    model: nn.Module, tokens: Int64[Tensor, "batch column"], run: Run, asked: NDArray[np.int64]
) -> Float64[Tensor, "batch asked symbol"]:
    columns = torch.from_numpy(run.config.layout.token_positions[asked] - 1)
    return model_probs(model, tokens[:, :-1], run.process.num_symbols, columns, at_once=BATCH)


def pools_of(run: Run) -> dict[str, Process]:
    spec: Any = run.config.process
    if as_composed_cycles(run.process):
        other = {"held-out": "held-out", "unseen": "new"}
        return {"pool": run.process} | {name: replace(spec, pool=pool).build() for name, pool in other.items()}
    beyond = replace(spec, first_component=spec.first_component + spec.num_components)
    return {"pool": run.process, "unseen": beyond.build()}


def observers_of(run: Run) -> dict[str, Process]:
    """Return the pools of two Bayes mixtures: ``retrieval`` (the run's pool), ``prior`` (all cycle-emission pairs)."""
    found: dict[str, Process] = {"retrieval": run.process}
    if pairs := as_composed_cycles(run.process):
        found["prior"] = replace(pairs.spec, pool="all").build()
    return found


def prompt_score(
    run: Run,
    process: Process,
    num_samples: int,
    predictors: Sequence[str] | None = None,
    ngrams: TunedNgrams | None = None,
) -> Score:
    """Score every predictor at every observation of fresh prompts from a process.

    ``untrained`` is the mean of three untrained controls. ``retrieval``, the Bayes mixture over the run's pool, is the
    optimum on prompts of this pool; ``prior``, the mixture over all pairs, is the optimum on held-out pairs. For
    prompts of other HMMs, a mixture over the paper's pool is smoothed by the fraction in `SMOOTHINGS` of least loss.

    Args:
        run: trained model and its prompts.
        process: source of the prompts.
        num_samples: number of prompts.
        predictors: names of predictors besides n-grams (default: all).
        ngrams: result of `counting_of` for the run, if known.
    """
    dataset = ProcessDataset(process, layout=run.config.layout, seed=run.config.seed, stream="evaluate")
    asked, parts = dataset.layout.predicted_observations, []
    ngrams = counting_of(run) if ngrams is None else ngrams
    named = {"trained": "model"}
    models = [(named.get(name, name), model) for name, model in run.compare_with_untrained()]
    own_pool = process is run.process
    believed = {
        key: pool
        for name, own in observers_of(run).items()
        if predictors is None or name in predictors
        for key, pool in ({name: own} if own_pool or as_composed_cycles(own) else _smoothings(name, own)).items()
    }
    where, reset_mask = where_of(run), torch.from_numpy(dataset.layout.reset_mask)
    for begin in range(0, num_samples, BATCH):
        batch = dataset[begin : min(begin + BATCH, num_samples)]
        own = [(n, answers(m, batch.tokens, run, asked)) for n, m in models if predictors is None or n in predictors]
        laws: dict[str, Float64[Tensor, "batch judged symbol"]] = {}
        told = predictors is None or "known-component" in predictors
        known = known_component_probs(dataset, batch) if told else None
        laws |= ngrams.probs(dataset, batch) | ({} if known is None else {"known-component": known})
        seen = batch.observations.to(where)
        laws |= {
            name: optimal_probs(pool, seen, reset_mask=reset_mask)[:, asked].cpu() for name, pool in believed.items()
        }
        labels = batch.observations[:, asked]
        parts.append(_of_networks(own, labels) | {name: measured(law, labels) for name, law in laws.items()})
    measures = {
        name: {metric: np.concatenate([part[name][metric] for part in parts]) for metric in ("accuracy", "loss")}
        for name in parts[0]
    }
    layout = dataset.layout
    score = Score(measures, layout.sequence_index[asked], layout.position_in_sequence[asked], None)
    tried = [name for name in measures if name.startswith("retrieval ")]
    if tried:
        end = last_sequence(score)
        best = smallest(tried, lambda name: float(measures[name]["loss"][:, end].mean()))
        measures["retrieval"] = measures[best]
        for name in tried:
            del measures[name]
    return score


def _of_networks(probs: list[tuple[str, Tensor]], labels: Tensor) -> dict[str, dict[str, NDArray[np.float64]]]:
    found: dict[str, list[dict]] = {}
    for name, law in probs:
        found.setdefault(name, []).append(measured(law, labels))
    return {name: {key: np.mean([one[key] for one in own], 0) for key in own[0]} for name, own in found.items()}


def _smoothings(name: str, pool: Process) -> dict[str, Process]:
    return {f"{name} {share:g}": smoothed(require_process_type(pool, Mixture), share) for share in SMOOTHINGS}


def smoothed(mixture: Mixture, share: float) -> Mixture:
    """Mix each row p with the uniform distribution: (1 - share) p + share / row length."""
    require(0 < share < 1, "share", "must be in (0, 1)", share)

    def mix(rows: Tensor) -> Tensor:
        return (1 - share) * rows + share / rows.shape[-1]

    params: Any = mixture.params
    mixed = replace(params, transition_MSS=mix(params.transition_MSS), emission_MSV=mix(params.emission_MSV))
    return Mixture.from_law(mixture.component_weights, mixed)


def constructed_measures(
    dataset: ProcessDataset, score: Score, sizes: dict[str, Any]
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return the accuracy of Theorem 1's networks ``theorem1-<memory length>``; NaN where the window is incomplete."""
    observations = dataset[0 : sizes["samples"]].observations
    judged = torch.from_numpy(dataset.layout.predicted_observations)
    found = {}
    for memory in sizes["memory_lengths"]:
        accuracy = np.full((len(observations), len(judged)), np.nan)
        for number in range(1, int(score.demonstrations.max()) + 1):
            here = np.flatnonzero((score.demonstrations == number) & (score.positions >= memory))
            vectors = constructed_vectors(dataset, observations, judged[here], number, memory, sizes["num_steps"])
            labels = observations[:, judged[here]]
            accuracy[:, here] = (stable_argmax(vectors.clamp_min(0)) == labels).double().numpy()
        found[f"theorem1-{memory}"] = {"accuracy": accuracy}
    return found


def constructed_vectors(
    dataset: ProcessDataset, observations: Int64[Tensor, "batch time"], asked: Int64[Tensor, " judged"], number: int,
    memory_length: int, num_steps: int,
) -> Float64[Tensor, "batch judged symbol"]:  # fmt: skip
    layout, num_symbols = dataset.layout, dataset.num_symbols
    assert isinstance(layout, PromptLayout)
    length = layout.demonstration_length
    demonstrations = observations[:, : number * length].unflatten(1, (number, length))
    problem = RegressionSamples.of(demonstrations, num_symbols, memory_length).problem()
    weights_BVF = problem.iterates(num_steps, 1 / memory_length)[-1]
    back = torch.arange(1, memory_length + 1)
    windows = observations[:, asked[:, None] - back]
    return RegressionSamples.unlabelled(windows, num_symbols).features() @ weights_BVF.mT


def measured(law: Float64[Tensor, "batch judged symbol"], labels: Int64[Tensor, "batch judged"]) -> dict:
    loss = -law.gather(2, labels[..., None])[..., 0].log()
    return {"accuracy": (stable_argmax(law) == labels).double().numpy(), "loss": loss.numpy()}
