"""[MultiTask]: how well the paper's HMMs can be predicted, for several distributions of their matrices."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from hmmscope import Mixture, ProcessDataset, PromptLayout, Run, filter_mixture, lab, make_process, registry
from hmmscope import require_process_type as of_type
from hmmscope.analysis import TunedNgrams, known_component_probs, mean_row
from hmmscope.inference import optimal_probs
from hmmscope_papers.multitask.models import BATCH
from hmmscope_papers.multitask.predictors import LONGEST, measured, smoothed
from hmmscope_papers.theorems import by_scale, plain

#: Observations of a demonstration, and the first position of the last one that is judged, as in multitask-fig1 at `paper`.
DEMONSTRATION, FIRST = 16, 4
#: Concentrations of the rows of transitions and emissions.
CONCENTRATIONS = [[0.01, 0.01], [0.03, 0.03], [0.01, 0.03], [0.01, 0.1]]
#: Observations after which unlikely HMMs of the pool are dropped, and their largest posterior. On prompts of the pool the
#: posterior of a set of HMMs is a martingale, so the dropped ones, 8192e-30 together, later exceed 1e-20 with probability
#: 1e-6 at most.
EARLY, NEGLIGIBLE = 64, 1e-30
POOL, NEW = "pool", "new"
KNOWN, RETRIEVAL = "known-component", "retrieval"


@registry.experiment("multitask-concentrations")
class Concentrations(lab.Experiment):
    """Predictions by n-grams, the mixture over the pool, and the filter that knows the HMM, on growing prompts."""

    title = "On which random HMMs can inference of the HMM exceed n-gram baselines?"
    summary = (
        "[MultiTask] draws 8192 HMMs of 128 states and 16 symbols, and states neither the distribution of their "
        "matrices nor the length of a prompt. This experiment draws rows from Dirichlet distributions of several "
        "concentrations. For each concentration, tuned n-gram baselines, the Bayes mixture over the pool (retrieval) "
        "and the filter that knows the HMM are compared at the end of prompts of growing length, on HMMs of the pool "
        "and on new HMMs. Nothing is trained."
    )
    intervals = "Intervals are 95 % intervals over prompts, each from its own HMM."
    groups = {"predictions": ("predictions", "gaps"), "retrieval": ("retrieval",), "names": ("names",)}
    sizes = by_scale(
        hmms=(64, 1024, 8192, 8192),
        num_states=(8, 128, 128, 128),
        num_symbols=(4, 16, 16, 16),
        concentrations=(CONCENTRATIONS[:2], CONCENTRATIONS, CONCENTRATIONS, CONCENTRATIONS),
        symbols=([32, 64], [256, 1024], [256, 512, 1024, 2048], [256, 512, 1024, 2048]),
        prompts=(16, 128, 512, 512),
        tuning_prompts=(16, 64, 128, 128),
        retrieval_prompts=(16, 32, 128, 128),
        new_prompts=(16, 16, 32, 128),
        smoothings=([0.1], [0.03, 0.1], [0.03, 0.1], [0.01, 0.03, 0.1, 0.3]),
    )
    #: The size that two processor cores can measure.
    sizes["medium"] = sizes["gpu"] | {"prompts": 256, "tuning_prompts": 64, "retrieval_prompts": 64, "new_prompts": 24}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        tables: lab.MeasuredTables = {name: [] for name in self.groups[group]}
        for transition, emission in sizes["concentrations"]:
            where = {
                "transition": transition,
                "emission": emission,
                "concentrations": f"({transition:g}, {emission:g})",
            }
            pool, new = (_pool(sizes, transition, emission, first) for first in (0, sizes["hmms"]))
            for symbols in sizes["symbols"]:
                for name, rows in _MEASURES[group](pool, new, symbols, sizes):
                    tables[name].append(where | {"symbols": symbols} | rows)
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            lab.Figure(
                name="accuracy",
                title="Accuracy at the end of a prompt",
                caption=(
                    "Curves show the accuracy of predictions of the next observation in the last demonstration of a "
                    "prompt, against the number of observations of the prompt; there is a panel for each pair of "
                    "concentrations (transitions, emissions). Prompts come from HMMs of the pool. For retrieval, one point "
                    "shows prompts from new HMMs (shortest prompt only). Bands are 95 % intervals over prompts."
                ),
                panels=tuple(_panel(tables, name) for name in tables["gaps"].values("concentrations")),
            ),
            lab.Figure(
                name="names",
                title="How often symbol counts identify the HMM",
                caption=(
                    "Curves show the fraction of prompts of the pool for which the likelihood of the symbol counts is "
                    "largest for the right HMM, if the symbol frequencies of every HMM are known. Bands are 95 % intervals "
                    "over prompts."
                ),
                panels=(
                    lab.lines(
                        "",
                        *(plain(own, "symbols", name, "model") for (name,), own in _by_name(tables["names"])),
                        x_label="observations",
                        y_label="fraction of prompts",
                        log_x=True,
                        y_min=0.0,
                    ),
                ),
            ),
        ]


def _by_name(rows: lab.Rows) -> Iterator[tuple[tuple[Any], lab.Rows]]:
    return (((name,), rows.where(concentrations=name)) for name in rows.values("concentrations"))


def _panel(tables: lab.Tables, name: str) -> lab.Panel:
    rows = tables["predictions"].where(concentrations=name, metric="accuracy", prompts=POOL)
    best = lab.Rows(row for row in rows if row["best"])
    found = tables["retrieval"].where(concentrations=name, metric="accuracy")
    return lab.lines(
        name,
        plain(rows.where(predictor=KNOWN), "symbols", "HMM known", "ceiling"),
        plain(found.where(prompts=POOL), "symbols", "retrieval", "optimum"),
        plain(found.where(prompts=NEW), "symbols", "retrieval, new HMMs", "other"),
        plain(best, "symbols", "best n-gram", "baseline"),
        x_label="observations",
        y_label="accuracy",
        log_x=True,
        y_min=0.0,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _pool(sizes: dict[str, Any], transition: float, emission: float, first: int) -> Mixture:
    law = {"transition_concentration": transition, "emission_concentration": emission}
    shape = {name: sizes[name] for name in ("num_states", "num_symbols")}
    made = make_process("random-mixture", num_components=sizes["hmms"], first_component=first, **shape, **law)
    return of_type(made, Mixture)


def prompts_of(process: Mixture, symbols: int, stream: str) -> ProcessDataset:
    length = min(DEMONSTRATION, symbols // 2)
    layout = PromptLayout(num_demonstrations=symbols // length - 1, demonstration_length=length, test_length=length)
    return ProcessDataset(process, layout=layout, stream=stream)


def _asked(dataset: ProcessDataset) -> np.ndarray:
    layout, predicted = dataset.layout, dataset.layout.predicted_observations
    number = layout.sequence_index[predicted]
    return np.asarray((number == number.max()) & (layout.position_in_sequence[predicted] >= FIRST))


def _rows(values: dict[str, dict[str, np.ndarray]], **names: Any) -> Iterator[dict[str, Any]]:
    for predictor, metrics in values.items():
        for metric, found in metrics.items():
            yield {"predictor": predictor, "metric": metric, **names} | mean_row(found)


def predictions(pool: Mixture, new: Mixture, symbols: int, sizes: dict[str, Any]) -> Iterator[tuple[str, dict]]:
    tuning = prompts_of(pool, symbols, "counting")
    ngrams = TunedNgrams.tuned(tuning, num_samples=sizes["tuning_prompts"], orders=LONGEST, asked=_asked(tuning))
    for name, process in ((POOL, pool), (NEW, new)):
        dataset = prompts_of(process, symbols, "evaluate")
        asked = _asked(dataset)
        where = dataset.layout.predicted_observations[asked]
        parts: dict[str, dict[str, list]] = {}
        for begin in range(0, sizes["prompts"], BATCH):
            batch = dataset[begin : min(begin + BATCH, sizes["prompts"])]
            known = known_component_probs(dataset, batch)
            assert known is not None
            laws = ngrams.probs(dataset, batch) | {KNOWN: known}
            for predictor, law in laws.items():
                for metric, found in measured(law[:, asked], batch.observations[:, where]).items():
                    parts.setdefault(predictor, {}).setdefault(metric, []).append(found.mean(1))
        values = {
            one: {metric: np.concatenate(own) for metric, own in metrics.items()} for one, metrics in parts.items()
        }
        best = {
            kind: TunedNgrams.best({one: own[kind] for one, own in values.items()}, kind)
            for kind in ("accuracy", "loss")
        }
        for row in _rows(values, prompts=name):
            yield "predictions", row | {"best": best[row["metric"]] == row["predictor"]}
        for metric, sign in (("accuracy", 1), ("loss", -1)):
            gap = sign * (values[KNOWN][metric] - values[best[metric]][metric])
            yield "gaps", {"metric": metric, "prompts": name, "ngram": best[metric]} | mean_row(gap)


def retrieval(pool: Mixture, new: Mixture, symbols: int, sizes: dict[str, Any]) -> Iterator[tuple[str, dict]]:
    """Yield scores of the Bayes mixture over the pool; new HMMs are scored on the shortest prompts only."""
    kinds = [(POOL, pool, sizes["retrieval_prompts"], {RETRIEVAL: partial(retrieved, pool)})]
    if symbols == min(sizes["symbols"]):
        shares = {
            f"{RETRIEVAL} {share:g}": partial(optimal_probs, smoothed(pool, share)) for share in sizes["smoothings"]
        }
        kinds.append((NEW, new, sizes["new_prompts"], shares))
    for name, process, count, laws in kinds:
        dataset = prompts_of(process, symbols, "evaluate")
        where = dataset.layout.predicted_observations[_asked(dataset)]
        batch, starts = dataset[0:count], torch.from_numpy(dataset.layout.reset_mask)
        values: dict[str, dict[str, np.ndarray]] = {}
        for predictor, law in laws.items():
            found = measured(law(batch.observations, reset_mask=starts)[:, where], batch.observations[:, where])
            values[predictor] = {metric: own.mean(1) for metric, own in found.items()}
        best = min(values, key=lambda one: float(values[one]["loss"].mean()))
        yield from (("retrieval", row) for row in _rows({best: values[best]}, prompts=name))


def retrieved(
    pool: Mixture, observations: Int64[Tensor, "batch time"], *, reset_mask: Tensor
) -> Float64[Tensor, "batch time symbol"]:
    """Predict with the mixture of the pool's HMMs whose posterior after `EARLY` observations exceeds `NEGLIGIBLE`."""
    found = []
    for seen in observations.split(8):
        early = min(EARLY, seen.shape[1])
        posterior = filter_mixture(pool, seen[:, :early], reset_mask=reset_mask[:early]).component_posterior
        assert posterior is not None
        for own, weights in zip(seen, posterior[:, -1], strict=True):
            likely = torch.nonzero(weights > NEGLIGIBLE)[:, 0]
            few = Mixture.from_law([1 / len(likely)] * len(likely), pool.params.select(likely))
            found.append(optimal_probs(few, own[None], reset_mask=reset_mask))
    return torch.cat(found)


def names(pool: Mixture, new: Mixture, symbols: int, sizes: dict[str, Any]) -> Iterator[tuple[str, dict]]:
    dataset = prompts_of(pool, symbols, "evaluate")
    length, law = dataset.layout.sequence_lengths[-1], pool.params
    state, frequencies = law.initial_MS, torch.zeros(len(pool), pool.num_symbols, dtype=torch.float64)
    for _ in range(length):
        frequencies += torch.einsum("ms,msv->mv", state, law.emission_MSV) / length
        state = torch.einsum("ms,mst->mt", state, law.transition_MSS)
    batch = dataset[0 : sizes["prompts"]]
    counts = torch.nn.functional.one_hot(batch.observations, pool.num_symbols).sum(1).double()
    assert batch.components is not None
    named = (counts @ frequencies.clamp_min(1e-12).log().T).argmax(1).eq(batch.components)
    yield "names", mean_row(named.double().numpy())


_MEASURES = {"predictions": predictions, "retrieval": retrieval, "names": names}


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _effects(rows: lab.Rows, unit: str) -> dict[str, lab.Effect]:
    effects = {name: (own.effect(unit=unit), own[0]["samples"]) for (name,), own in _by_name(rows)}
    return {
        name: replace(effect, num_seeds=prompts) for name, (effect, prompts) in effects.items() if effect is not None
    }


@lab.claim("random-hmms-leave-room")
def room(tables: lab.Tables) -> lab.Measurement:
    shortest = min(tables["gaps"].values("symbols"))
    effects = _effects(tables["gaps"].where(metric="accuracy", prompts=POOL, symbols=shortest), "accuracy")
    known = tables["predictions"].where(predictor=KNOWN, metric="accuracy", prompts=POOL, symbols=shortest)
    accuracy = _effects(known, "with the HMM known")
    named = _effects(tables["names"].where(symbols=shortest), "of prompts")
    each = "; ".join(
        f"{name}: {found}; symbol counts identify the HMM in {named[name]}" for name, found in accuracy.items()
    )
    return lab.Measurement(
        effects, f"After {shortest} observations, the accuracy by concentrations (transitions, emissions) is {each}."
    )
