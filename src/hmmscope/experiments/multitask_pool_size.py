"""Retrieval or estimation: what a Transformer learns in context as the pool of HMMs grows."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, as_law, inference_mode, model_outputs
from hmmscope.axes import Float64, Tensor
from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.evidence.figures import Figure, Lines, Series
from hmmscope.evidence.pooling import by_seed
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Finding, Measured, Tables
from hmmscope.experiments.multitask_studies import curve, mean_row, of, prompt_config
from hmmscope.experiments.multitask_windows import divergence
from hmmscope.inference.mixture import filter_known_component
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.pipeline import Run

#: Component numbers of the fresh pool that stands for the prior, and of the unseen HMMs; no pool reaches them.
PRIOR_FIRST, UNSEEN_FIRST = 2**20, 2**21


@registry.experiment("multitask-pool-size")
class PoolSize(Experiment):
    """See the module."""

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

    def choices(self, scale: str) -> dict[str, Any]:
        sizes = {
            "smoke": [1, 4],
            "small": [1, 4, 16, 64, 256, 1024],
            "gpu": [1, 4, 16, 64, 256, 1024, 4096],
            "paper": [1, 16, 256, 1024, 8192],
        }
        return {"pools": sizes[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {
            f"{n} HMM{'s' * (n != 1)}": prompt_config(scale, process={"num_components": n}) for n in choices["pools"]
        }

    def measurements(self, scale: str) -> dict[str, Any]:
        samples = {"smoke": 16, "small": 256, "gpu": 512, "paper": 256}
        prior = {"smoke": 16, "small": 2048, "gpu": 8192, "paper": 16384}
        unseen = {"smoke": 16, "small": 256, "gpu": 512, "paper": 256}
        return {"samples": samples[scale], "prior_components": prior[scale], "unseen_components": unseen[scale]}

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
        rows = tables["end"]
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
                panels=(
                    *(_loss_panel(of(rows, on=on), title) for on, title in _WHERE.items()),
                    *(_distance_panel(of(rows, on=on), title) for on, title in _WHERE.items()),
                ),
            )
        ]

    def notes(self, tables: Tables) -> list[Finding]:
        rows = tables["end"]
        sizes = sorted({row["components"] for row in rows})

        def loss(on: str, size: int, of_whom: str) -> str:
            found = by_seed(
                of(rows, on=on, components=size, metric="loss", of=of_whom), lambda found: float(found[0]["value"])
            )
            return "none" if found is None else f"{found.value:.3f}"

        parts = [
            f"{size} HMMs: {loss('pool', size, 'model')} ({loss('pool', size, 'pool')}) and "
            f"{loss('unseen', size, 'model')} ({loss('unseen', size, 'prior')})"
            for size in (sizes[0], sizes[-1])
        ]
        text = (
            "Loss of the model on prompts of the pool (its Bayes mixture), and on unseen HMMs (the mixture of the prior), "
            f"in nats: {'; '.join(parts)}."
        )
        return [Finding(title="What a larger pool gives and takes", text=text, verdict="found")]


_WHERE = {"pool": "HMMs of the pool", "unseen": "unseen HMMs"}


def _rows(run: Run, batch: Batch, known: Mixture, prior_BTV: Tensor) -> list[dict[str, Any]]:
    """Losses of the four predictors and distances between them, over the test sequence."""
    assert isinstance(run.process, Mixture)
    laws = {
        "model": _answers(run, batch),
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


def _answers(run: Run, batch: Batch) -> Float64[Tensor, "batch time symbol"]:
    """The model's predictions over the test sequence."""
    columns, parts = torch.from_numpy(run.config.layout.columns[_last(run)] - 1), []
    with inference_mode(run.model) as device:
        for part in batch.tokens[:, :-1].split(BATCH):
            outputs = model_outputs(run.model, part.to(device), run.process.num_symbols, kind="law")
            parts.append(as_law(run.model, outputs[:, columns.to(outputs.device)]))
    return torch.cat(parts)


def _loss(law_BTV: Tensor, batch: Batch, run: Run) -> np.ndarray:
    """Mean cross-entropy of each sample over the test sequence, nats (sample,)."""
    labels = batch.observations[:, _last(run)]
    found: np.ndarray = -law_BTV.gather(2, labels[..., None])[..., 0].log().mean(1).numpy()
    return found


def _panel(rows: list[dict], names: dict[str, tuple[str, str]], title: str, unit: str) -> Lines:
    series: list[Series] = [curve(of(rows, of=key), "components", *name) for key, name in names.items()]
    x_label = "HMMs in the pool"
    return Lines(title=title, x_label=x_label, y_label=unit, series=tuple(series), log_x=True)


def _loss_panel(rows: list[dict], title: str) -> Lines:
    names = {
        "pool": ("Bayes mixture over the pool", "optimum"),
        "known": ("Bayes filter, HMM known", "ceiling"),
        "model": ("model", "model"),
        "prior": ("Bayes mixture over a fresh pool (prior)", "other"),
    }
    return _panel(of(rows, metric="loss"), names, f"Loss, {title}", "nats per observation")


def _distance_panel(rows: list[dict], title: str) -> Lines:
    names = {
        "model, pool": ("model to the pool's mixture", "model"),
        "model, prior": ("model to the prior's mixture", "other"),
        "pool, prior": ("between the two mixtures", "baseline"),
    }
    return _panel(of(rows, metric="total_variation"), names, f"Distance, {title}", "total variation")
