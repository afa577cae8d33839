"""Retrieval or estimation: what a Transformer learns in context as the pool of HMMs grows."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hmmscope import registry
from hmmscope.analysis.activations import BATCH
from hmmscope.analysis.intervals import mean_row
from hmmscope.axes import Float64, Tensor
from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.evidence.claims import OURS, Seen, claim
from hmmscope.evidence.effects import Estimate
from hmmscope.evidence.figures import Figure, Lines, Role
from hmmscope.evidence.panels import curve, lines
from hmmscope.evidence.rows import Rows, Tables, effect_of, minus
from hmmscope.evidence.verdicts import converged
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured
from hmmscope.experiments.multitask_predictors import answers
from hmmscope.experiments.multitask_studies import prompt_config
from hmmscope.experiments.multitask_windows import divergence
from hmmscope.experiments.outcomes import FLAT, equal_tokens, flat
from hmmscope.inference.mixture import filter_known_component
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.pipeline import Run

#: Component numbers of the fresh pool that stands for the prior, and of the unseen HMMs; no pool reaches them.
PRIOR_FIRST, UNSEEN_FIRST = 2**20, 2**21


@registry.experiment("multitask-pool-size")
class PoolSize(Experiment):
    """Pools of 1, 4, 16, ... HMMs at equal steps, judged beside two exact mixtures on the pool and on unseen HMMs."""

    title = "Retrieval or estimation as the pool of HMMs grows"
    summary = (
        "The same decoder is trained for as many steps on pools of 1, 4, 16, ... HMMs ([MultiTask] has 8192). On prompts "
        "of the pool, and of HMMs that it never saw, it is compared with two exact Bayes predictors: one that knows the "
        "pool (retrieval), and one that knows only the law from which HMMs are drawn (estimation). The second is a mixture "
        "over a large fresh pool from that law, which approximates it from above in loss; the table 'prior' has its loss "
        "for smaller fresh pools."
    )
    intervals = SEED_INTERVALS
    num_seeds = NUM_SEEDS
    groups = {"end of the prompt": ("end", "prior")}

    sizes = {
        "smoke": {"samples": 16, "prior_components": 16, "unseen_components": 16},
        "small": {"samples": 256, "prior_components": 2048, "unseen_components": 256},
        "gpu": {"samples": 512, "prior_components": 8192, "unseen_components": 512},
        "paper": {"samples": 256, "prior_components": 16384, "unseen_components": 256},
    }
    varied = {
        "smoke": [1, 4],
        "small": [1, 4, 16, 64, 256, 1024],
        "gpu": [1, 4, 16, 64, 256, 1024, 4096],
        "paper": [1, 16, 256, 1024, 8192],
    }

    def choices(self, scale: str) -> dict[str, Any]:
        return {"pools": self.varied[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {
            f"{n} HMM{'s' * (n != 1)}": prompt_config(scale, process={"num_components": n}) for n in choices["pools"]
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        first = next(iter(runs.values()))
        spec, layout, seed = first.config.process, first.config.layout, first.config.seed
        prior = replace(spec, first_component=PRIOR_FIRST, num_components=sizes["prior_components"]).build()
        unseen = replace(spec, first_component=UNSEEN_FIRST, num_components=sizes["unseen_components"]).build()
        elsewhere = Corpus(unseen, layout=layout, seed=seed, stream="evaluate")[0 : sizes["samples"]]
        of_prior = _predictions(prior, elsewhere, first)
        rows = []
        for run in runs.values():
            assert isinstance(run.process, Mixture)
            here = run.corpus()[0 : sizes["samples"]]
            for on, batch, known, expected in (
                ("pool", here, run.process, _predictions(prior, here, run)),
                ("unseen", elsewhere, unseen, of_prior),
            ):
                setting = {"components": run.process.num_components, "on": on}
                rows += [setting | row for row in _rows(run, batch, known, expected)]
        smaller = sorted({max(1, sizes["prior_components"] // share) for share in (16, 4, 1)})
        losses = []
        for n in smaller:
            law = of_prior if n == prior.num_components else _predictions(prior.first(n), elsewhere, first)
            losses.append({"components": n} | mean_row(_loss(law, elsewhere, first)))
        return {"end": rows, "prior": losses}

    def figures(self, tables: Tables) -> list[Figure]:
        """Losses, and distances between the model and the two mixtures."""
        rows = tables["end"]
        panels = [
            *(_panel(rows.where(on=on, metric="loss"), _LOSSES, f"Loss, {title}") for on, title in _WHERE.items()),
            *(
                _panel(rows.where(on=on, metric="total_variation"), _DISTANCES, f"Distance, {title}", "total variation")
                for on, title in _WHERE.items()
            ),
        ]
        return [
            Figure(
                name="pool-size",
                title="Loss, and which predictor the model is near to",
                caption=(
                    "Over the test sequence, by the number of HMMs in the pool; steps and model are the same. Left: loss on "
                    "prompts of the pool and of unseen HMMs, beside the Bayes mixture over the pool, the Bayes mixture over "
                    "a large fresh pool (prior) and the filter that is told the HMM. Right: total variation of the model "
                    "from the two mixtures, and between the two. Bands are 95 % intervals over seeds."
                ),
                panels=tuple(panels),
            )
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Measuring


def _rows(run: Run, batch: Batch, known: Mixture, prior_BTV: Tensor) -> list[dict[str, Any]]:
    """Losses of the four predictors and distances between them, over the test sequence."""
    assert isinstance(run.process, Mixture)
    laws = {
        "model": answers(run.model, batch, run, _last(run)),
        "pool": _predictions(run.process, batch, run),
        "prior": prior_BTV,
        "known": _known(known, batch, run),
    }
    rows = [{"metric": "loss", "of": name} | mean_row(_loss(law, batch, run)) for name, law in laws.items()]
    for one, other in (("model", "pool"), ("model", "prior"), ("pool", "prior")):
        distance = (laws[one] - laws[other]).abs().sum(-1).mean(1) / 2
        rows.append({"metric": "total_variation", "of": f"{one}, {other}"} | mean_row(distance.numpy()))
    excess = divergence(laws["pool"].flatten(0, 1), laws["model"].flatten(0, 1)).unflatten(0, laws["model"].shape[:2])
    return [*rows, {"metric": "excess", "of": "model"} | mean_row(excess.mean(1).numpy())]


def _last(run: Run) -> np.ndarray:
    """Numbers of the observations of the test sequence."""
    index = run.config.layout.sequence_index
    found: np.ndarray = np.flatnonzero(index == index.max())
    return found


def _predictions(process: Mixture, batch: Batch, run: Run) -> Float64[Tensor, "batch time symbol"]:
    """The Bayes predictor of a pool over the test sequence."""
    starts, last = torch.from_numpy(run.config.layout.starts), _last(run)
    parts = [
        optimal_predictions(process, part, starts=starts).predicted_observation[:, last]
        for part in batch.observations.split(BATCH)
    ]
    return torch.cat(parts)


def _known(process: Mixture, batch: Batch, run: Run) -> Float64[Tensor, "batch time symbol"]:
    """The filter that is told the HMM, over the test sequence."""
    assert batch.components is not None
    starts = torch.from_numpy(run.config.layout.starts)
    told = filter_known_component(process, batch.observations, batch.components, starts=starts)
    return told.predicted_observation[:, _last(run)]


def _loss(law_BTV: Tensor, batch: Batch, run: Run) -> np.ndarray:
    """Mean cross-entropy of each sample over the test sequence, nats (sample,)."""
    labels = batch.observations[:, _last(run)]
    found: np.ndarray = -law_BTV.gather(2, labels[..., None])[..., 0].log().mean(1).numpy()
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Figures

_WHERE = {"pool": "HMMs of the pool", "unseen": "unseen HMMs"}
_LOSSES: dict[str, tuple[str, Role]] = {
    "pool": ("Bayes mixture over the pool", "optimum"),
    "known": ("Bayes filter, HMM known", "ceiling"),
    "model": ("model", "model"),
    "prior": ("Bayes mixture over a fresh pool (prior)", "other"),
}
_DISTANCES: dict[str, tuple[str, Role]] = {
    "model, pool": ("model to the pool's mixture", "model"),
    "model, prior": ("model to the prior's mixture", "other"),
    "pool, prior": ("between the two mixtures", "baseline"),
}


def _panel(rows: Rows, looks: dict[str, tuple[str, Role]], title: str, unit: str = "nats per observation") -> Lines:
    series = [curve(rows.where(of=name), "components", *look) for name, look in looks.items()]
    return lines(title, *series, x_label="HMMs in the pool", y_label=unit, log_x=True)


# ---------------------------------------------------------------------------------------------------------------------
# Questions


@claim(
    "multitask-switch",
    experiment="multitask-pool-size",
    source=OURS,
    says="From which size of the pool on does the model estimate in context, and no longer retrieve?",
    reading=(
        "The paper has one pool of 8192 HMMs. On prompts of unseen HMMs, total variation of the model to the Bayes "
        "mixture over its pool less that to the mixture over a large fresh pool, which stands for the prior; the "
        "number is that at the largest pool."
    ),
)
def switch(tables: Tables) -> Seen:
    rows = tables["end"].where(on="unseen", metric="total_variation")
    sizes = sorted(rows.values("components"))
    nearer = {size: _nearer(rows, size) for size in sizes}
    firsts = [switch_size({size: nearer[size].get(seed) for size in sizes}) for seed in rows.seeds()]
    listed = ", ".join(f"{size}: {effect_of(nearer[size])}" for size in sizes)
    priors = tables["prior"]
    used = sorted(priors.values("components"))
    losses_by = {size: priors.where(components=size).estimates() for size in used}
    change = minus(losses_by[used[-1]], losses_by[used[-2]]) if len(used) > 1 else {}
    gate = converged(
        {f"seed {seed}": None if one is None else one.value for seed, one in change.items()},
        FLAT,
        "loss of the prior's mixture",
    )
    losses = ", ".join(f"{size}: {effect_of(losses_by[size])}" for size in used)
    said = "so the sizes are at best bounds" if not gate.is_open else "which has converged"
    text = (
        f"Total variation to the pool's mixture less to the prior's, by size: {listed}. By seed it is above zero from "
        f"this size on: {', '.join('none' if size is None else str(size) for size in firsts)}. The mixture that stands "
        f"for the prior is over a fresh pool; its loss by the size of that: {losses}, {said}."
    )
    unit = f"total variation to the pool's mixture less to the prior's, {sizes[-1]} HMMs"
    return Seen(effect_of(nearer[sizes[-1]], unit), text, gates=(gate, equal_tokens(tables), flat(tables)))


@claim(
    "multitask-larger-pool",
    experiment="multitask-pool-size",
    source=OURS,
    says="What does a larger pool give, and what does it take?",
    reading=(
        "Loss of the model on prompts of its pool and of unseen HMMs; the number is by how much that on unseen HMMs "
        "falls from the smallest pool to the largest."
    ),
)
def larger_pool(tables: Tables) -> Seen:
    rows = tables["end"].where(metric="loss")
    sizes = sorted(rows.values("components"))

    def loss(on: str, size: int, of: str) -> Rows:
        return rows.where(on=on, components=size, of=of)

    parts = [
        f"{size} HMM{'s' * (size != 1)}: {loss('pool', size, 'model').effect()} ({loss('pool', size, 'pool').effect()}) and "
        f"{loss('unseen', size, 'model').effect()} ({loss('unseen', size, 'prior').effect()})"
        for size in (sizes[0], sizes[-1])
    ]
    text = (
        "Loss of the model on prompts of the pool (its Bayes mixture), and on unseen HMMs (the mixture that stands for the "
        f"prior), in nats: {'; '.join(parts)}."
    )
    gain = loss("unseen", sizes[0], "model").less(loss("unseen", sizes[-1], "model"), unit="nats on unseen HMMs")
    return Seen(gain, text, gates=(equal_tokens(tables), flat(tables)))


def switch_size(nearer: dict[int, Estimate | None]) -> int | None:
    """The first size from which on, at all larger sizes too, the model is nearer to the prior's mixture; of one seed."""
    found = None
    for size in sorted(nearer, reverse=True):
        one = nearer[size]
        if one is None or one.value <= 0:
            break
        found = size
    return found


def _nearer(rows: Rows, size: int) -> dict[Any, Estimate | None]:
    """TV(model, pool) - TV(model, prior) by seed."""
    own = rows.where(components=size)
    return minus(own.where(of="model, pool").estimates(), own.where(of="model, prior").estimates())
