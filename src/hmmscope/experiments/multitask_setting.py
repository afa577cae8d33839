"""The setting in which a claim of [MultiTask] on trained models can be decided, and the gates that read it.

The paper shows each of 8192 HMMs 16 times, so that nothing can be learned by heart. A small pool is another setting: each
HMM is shown hundreds of times and can be retrieved, and how often symbols occur may name the HMM, which no training is
needed for. The table "setting" of an experiment records, seed by seed, which setting it was.
"""

from typing import Any

import torch

from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.probes import chance_accuracy, label_stream, probe_correct, reading_times
from hmmscope.axes import Tensor
from hmmscope.corpora.corpus import Corpus
from hmmscope.evidence.rows import Rows, Tables
from hmmscope.evidence.verdicts import Gate, learned, regime
from hmmscope.experiments.outcomes import flat
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.pipeline import Run
from hmmscope.storage import store

#: Prompts per HMM that count as the paper's regime: its 16, up to a factor of four.
PROMPTS_PER_HMM = (4.0, 64.0)
#: HMMs in a pool that counts as the paper's: its 8192, and down to a sixteenth of them.
POOL = (512.0, 2.0**20)
#: Share of the way from chance to certainty up to which symbol counts may name the HMM.
MOST_FROM_COUNTS = 0.25
#: Nats by which a model has to be better than the best n-gram to count as having learned.
LEARNED = 0.02
#: HMMs that the probe on symbol counts tells apart, and prompts of each.
_NAMED, _PROMPTS = 16, 64

PER_HMM, HMMS, FROM_COUNTS = "prompts per HMM", "HMMs in the pool", "component from symbol counts"
OVER_COUNTING = "gain over the best n-gram"


def setting_rows(run: Run) -> list[dict[str, Any]]:
    """The table "setting" of a run on prompts of a mixture: (quantity, value, low, high, chance).

    ``prompts per HMM`` (different ones, in training); ``HMMs in the pool``; ``component from symbol counts``: accuracy of a
    linear probe for the HMM on how often symbols are in a prompt, with the share of the commonest class;
    ``gain over the best n-gram``: loss of the best n-gram less that of the model, after all demonstrations, nats.
    """
    process, training = run.process, run.config.training
    assert isinstance(process, Mixture)
    prompts = training.num_trajectories or training.num_steps * training.batch_size
    few = process.first(min(_NAMED, len(process)))
    corpus = Corpus(few, layout=run.config.layout, seed=run.config.seed, stream="probe")
    counted = counting_rows(corpus, len(few) * _PROMPTS)[0]
    scores = Rows(store.read_table(run.path / "evaluation.jsonl")).where(axis="demonstrations", metric="loss")
    end = scores.where(x=max(scores.values("x")))
    losses = {row["predictor"]: Rows([row]).estimates()[None] for row in end if row["value"] is not None}
    orders = [loss for name, loss in losses.items() if name.startswith("order-") and loss is not None]
    model, best = losses["model"], min(orders)
    assert model is not None
    gain = best - model
    return [
        {"quantity": PER_HMM, "value": prompts / len(process)},
        {"quantity": HMMS, "value": len(process)},
        {"quantity": FROM_COUNTS, "value": counted["accuracy"]}
        | {key: counted[key] for key in ("low", "high", "chance")},
        {"quantity": OVER_COUNTING, "value": gain.value, "error": gain.error},
    ]


def counting_rows(corpus: Corpus, count: int) -> list[dict[str, Any]]:
    """Probes of the component that read frequencies of symbols, and of pairs of neighbours, in whole prompts.

    Returns:
        a row each: (frequencies, accuracy, low, high, chance, samples), intervals over prompts.
    """
    times, size, layout = reading_times(corpus, "component"), corpus.num_symbols, corpus.layout
    observations = corpus[0:count].observations
    pairs = observations[:, :-1] * size + observations[:, 1:]
    inside = torch.from_numpy(~layout.starts[1:])
    single, double = _share(observations, size), _share(pairs[:, inside], size * size)
    rows = []
    for name, features in {"symbols": single, "symbols and pairs": torch.cat([single, double], 1)}.items():
        data = label_stream(features.float()[None], corpus, "component", times)
        mean, low, high = (float(x[0]) for x in bootstrap_means(probe_correct(data)))
        row = {"frequencies": name, "accuracy": mean, "low": low, "high": high}
        rows.append(row | {"chance": chance_accuracy(data), "samples": count})
    return rows


def _share(symbols: Tensor, size: int) -> Tensor:
    """How often each of `size` symbols is in a row (sample, size)."""
    return torch.zeros(len(symbols), size).scatter_add_(1, symbols, torch.ones(symbols.shape)) / symbols.shape[1]


# ---------------------------------------------------------------------------------------------------------------------
# Gates


def gates(tables: Tables) -> tuple[Gate, ...]:
    """What has to hold before a claim on the trained models of Figures 1, 2, 3 and 7 is judged."""
    return (
        not_from_counts(tables),
        few_prompts(tables),
        large_pool(tables),
        beyond_counting(tables),
        flat(tables),
    )


def few_prompts(tables: Tables) -> Gate:
    """Whether each HMM was shown about as rarely as in the paper."""
    found = _of(tables, PER_HMM).effect()
    if found is None:
        return Gate("regime", False, "in how many prompts each HMM was shown is not recorded")
    return regime(found.value, *PROMPTS_PER_HMM, "the number of prompts in which each HMM was shown (16 in the paper)")


def large_pool(tables: Tables) -> Gate:
    """Whether the pool was about as large as in the paper."""
    found = _of(tables, HMMS).effect()
    if found is None:
        return Gate("regime", False, "how many HMMs the pool had is not recorded")
    return regime(found.value, *POOL, "the number of HMMs in the pool (8192 in the paper)")


def not_from_counts(tables: Tables) -> Gate:
    """Whether telling the HMM takes more than counting symbols."""
    rows = _of(tables, FROM_COUNTS)
    found, chance = rows.effect(), rows.effect("chance")
    if found is None or chance is None:
        return Gate("regime", False, "how often symbol counts alone name the HMM is not recorded")
    most = chance.value + MOST_FROM_COUNTS * (1 - chance.value)
    return regime(found.value, 0.0, most, "the accuracy with which symbol counts alone name the HMM")


def beyond_counting(tables: Tables) -> Gate:
    """Whether the models are better than what can be counted in the prompt."""
    found = _of(tables, OVER_COUNTING).effect(unit="nats")
    if found is None:
        return Gate("learned", False, "whether the model is better than the best n-gram is not recorded")
    return learned(found, LEARNED, "the best in-context n-gram")


def _of(tables: Tables, quantity: str) -> Rows:
    return Rows(tables.get("setting", ())).where(quantity=quantity)
