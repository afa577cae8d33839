"""The setting in which claims of [MultiTask] about trained models can be decided, and preconditions that require it.

The paper trains on 16 prompts of each of 8192 HMMs, too few to memorise them. In a small pool, HMMs can be retrieved or
identified by symbol counts.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hmmscope import Mixture, ProcessDataset, Run, require_process_type
from hmmscope.analysis import ProbeData, TunedNgrams, bootstrap_means, mean_row
from hmmscope.lab import PREDICTORS, Experiment, Figure, Gate, MeasuredTables, Numbers, Role, Rows, Tables, parameter
from hmmscope_papers.multitask.models import CYCLES, PARTS, multitask_plan
from hmmscope_papers.multitask.predictors import last_sequence, prompt_score

#: Prompts per HMM in the paper, and the range of its regime: up to a factor of four.
PAPERS_PROMPTS = 16.0
PROMPTS_PER_HMM = (4.0, 64.0)
#: Numbers of HMMs that count as a pool of the paper's size: from a sixteenth of its 8192.
POOL = (512.0, 2.0**20)
#: Largest fraction of the way from chance to certainty that symbol counts may reach for the HMM.
MOST_FROM_COUNTS = 0.25
#: Loss in nats below the best n-gram baseline that counts as learned. Older tables have untuned n-grams, which are
#: worse by 0.03 to 0.06 nats.
LEARNED = 0.1
#: Gain of accuracy over the best n-gram baseline that counts as learned: lower end of the interval.
RIGHT = 0.05
#: The cycles of the claims, if a table has several: of the three tried, those with the largest gain over n-grams
#: (0.16 nats and 0.06 of accuracy in a trial of one seed, which is not used again).
SEPARATES = "12/6"
#: Largest change of the loss, in nats, in the last quarter of a training behind a claim.
SETTLED = 0.05
#: HMMs that the probe on symbol counts distinguishes, and prompts of each; prompts for the gain over n-grams.
_NAMED, _PROMPTS, _JUDGED = 16, 64, 2048

PER_HMM, HMMS, FROM_COUNTS = "prompts per HMM", "HMMs in the pool", "component from symbol counts"
OVER_COUNTING, RIGHT_OVER_COUNTING = "gain over the best n-gram", "accuracy over the best n-gram"
TWINS = ", untrained twins"


def looks(pool: str) -> dict[str, tuple[str, Role]]:
    return {name: look for name, look in PREDICTORS.items() if (pool, name) != ("unseen", "prior")}


class PoolFigure(Experiment):
    """A figure of the paper for each model of `multitask_plan`; its claims use the model that `in_regime` selects."""

    num_seeds = Experiment.NUM_SEEDS
    run_columns = ("label",)
    #: Figures that are also drawn for the other models.
    of_all: tuple[str, ...] = ()

    def choices(self, scale: str) -> dict[str, Any]:
        return {"parts": PARTS[scale], "cycles": CYCLES[scale]}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return multitask_plan(scale, choices["parts"], choices["cycles"])

    def cells(self, labels: list[str]) -> dict[str, list[str]]:
        return {label: [label] for label in labels} if any(", " in label for label in labels) else super().cells(labels)

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        tables: MeasuredTables = {name: [] for name in self.groups[group]}
        for label, run in runs.items():
            found = {"setting": setting_rows(run)} if group == "setting" else self.look(run, sizes)
            for name, rows in found.items():
                tables[name] += [model_columns(label, run) | row for row in rows]
        return tables

    def planned_gates(self, configs: Mapping[str, Any], claim: Any) -> tuple[Gate, ...]:
        if "prompts_per_hmm" not in claim.parameters:
            return ()
        tables = {"setting": Rows(row for label, config in configs.items() for row in planned_setting(label, config))}
        own = in_regime(tables, claim.parameters)
        return few_prompts(own, claim.parameters), large_pool(own, claim.parameters)

    @abstractmethod
    def look(self, run: Run, sizes: dict[str, Any]) -> MeasuredTables:
        """Return the tables measured on one model."""

    @abstractmethod
    def drawn(self, tables: Tables) -> list[Figure]:
        """Return the figures of one model."""

    def figures(self, tables: Tables) -> list[Figure]:
        labels = sorted(tables["setting"].values("label"), key=lambda label: label != regime_label(tables))
        found = []
        for place, label in enumerate(labels):
            own = of_label(tables, label)
            told = (
                f"The pool has {_said(own, HMMS)} HMMs, each shown in {_said(own, PER_HMM)} prompts (label of the model: "
                f"{label})."
            )
            for figure in self.drawn(own):
                caption = f"{figure.caption} {told}"
                if not place:
                    found.append(replace(figure, caption=caption))
                elif figure.name in self.of_all:
                    name = f"{figure.name}-{re.sub('[^a-z0-9]+', '-', label.lower())}"
                    title = f"{figure.title}: {_said(own, PER_HMM)} prompts per HMM"
                    found.append(replace(figure, name=name, title=title, caption=caption))
        return found


def model_columns(label: str, run: Run) -> dict[str, Any]:
    return {"label": label, "cycles": f"{run.process.num_states}/{run.process.num_symbols}", **pool_columns(run)}


def pool_columns(run: Run) -> dict[str, Any]:
    process = require_process_type(run.process, Mixture)
    return {"hmms": len(process), "prompts": prompts_shown(run) / len(process)}


def prompts_shown(run: Run) -> int:
    training = run.config.training
    return training.num_trajectories or training.num_steps * training.batch_size


def planned_setting(label: str, config: Any) -> list[dict[str, Any]]:
    process, training = config.process, config.training
    hmms = getattr(process, "num_components", 0) or process.num_parts**2 // 2
    prompts = training.num_trajectories or training.num_steps * training.batch_size
    columns = {"label": label, "cycles": f"{process.num_states}/{process.num_symbols}", "seed": 0}
    return [
        columns | {"quantity": PER_HMM, "value": prompts / hmms},
        columns | {"quantity": HMMS, "value": float(hmms)},
    ]


def setting_rows(run: Run) -> list[dict[str, Any]]:
    """Return the table "setting" of a run on prompts of a mixture: (quantity, value, low, high, chance).

    ``component from symbol counts`` is the accuracy of a linear probe for the HMM on symbol frequencies. ``gain over
    the best n-gram`` (in nats) and ``accuracy over the best n-gram`` are advantages of the model and of untrained
    controls, on fresh prompts of the pool.
    """
    few = spread(run.process, _NAMED)
    dataset = ProcessDataset(few, layout=run.config.layout, seed=run.config.seed, stream="probe")
    counted = counting_rows(dataset, len(few) * _PROMPTS)[0]
    score = prompt_score(run, run.process, min(_JUDGED, prompts_shown(run)), ("model", "untrained"))
    end, gains = last_sequence(score), []
    loss, right = (
        {name: of[kind][:, end].mean(1) for name, of in score.measures.items()} for kind in ("loss", "accuracy")
    )
    for network, said in (("model", ""), ("untrained", TWINS)):
        nats, accuracy = (
            loss[TunedNgrams.best(loss)] - loss[network],
            right[network] - right[TunedNgrams.best(right, "accuracy")],
        )
        gains.append({"quantity": OVER_COUNTING + said} | mean_row(nats))
        gains.append({"quantity": RIGHT_OVER_COUNTING + said} | mean_row(accuracy))
    columns = pool_columns(run)
    return [
        {"quantity": PER_HMM, "value": columns["prompts"]},
        {"quantity": HMMS, "value": columns["hmms"]},
        {"quantity": FROM_COUNTS, "value": counted["accuracy"]}
        | {key: counted[key] for key in ("low", "high", "chance")},
        *gains,
    ]


def spread(process: Any, count: int) -> Mixture:
    process = require_process_type(process, Mixture)
    count = min(count, len(process))
    chosen = torch.linspace(0, len(process) - 1, count, dtype=torch.float64).long()
    return Mixture.from_law([1 / count] * count, process.params.select(chosen))


def counting_rows(dataset: ProcessDataset, count: int) -> list[dict[str, Any]]:
    """Probe the component (HMM) from the frequencies of symbols and neighbouring pairs in a prompt.

    Returns:
        rows (frequencies, accuracy, low, high, chance, samples).
    """
    size, layout = dataset.num_symbols, dataset.layout
    observations = dataset[0:count].observations
    pairs = observations[:, :-1] * size + observations[:, 1:]
    inside = torch.from_numpy(~layout.reset_mask[1:])
    single, double = _share(observations, size), _share(pairs[:, inside], size * size)
    rows = []
    for name, features in {"symbols": single, "symbols and pairs": torch.cat([single, double], 1)}.items():
        data = ProbeData.of(features.float()[None], dataset, "component")
        mean, low, high = (float(x[0]) for x in bootstrap_means(data.correct()))
        row = {"frequencies": name, "accuracy": mean, "low": low, "high": high}
        rows.append(row | {"chance": data.chance, "samples": count})
    return rows


def _share(symbols: Tensor, size: int) -> Tensor:
    return torch.zeros(len(symbols), size).scatter_add_(1, symbols, torch.ones(symbols.shape)) / symbols.shape[1]


# ---------------------------------------------------------------------------------------------------------------------
# Gates


def regime_label(tables: Tables, numbers: Numbers = None) -> Any:
    rows = of_cycles(tables).get("setting", Rows())

    def distance(label: Any) -> tuple[bool, float]:
        hmms, prompts = (
            rows.where(label=label, quantity=name).pool("quantity")[0]["value"] for name in (HMMS, PER_HMM)
        )
        return hmms < parameter(numbers, "pool", POOL)[0], abs(
            math.log(prompts / parameter(numbers, "papers_prompts", PAPERS_PROMPTS))
        )

    return min(rows.values("label"), key=distance, default=None)


def of_cycles(tables: Tables) -> Tables:
    if SEPARATES not in Rows(tables.get("setting", ())).values("cycles"):
        return tables
    return {
        name: Rows(row for row in rows if row.get("cycles", SEPARATES) == SEPARATES) for name, rows in tables.items()
    }


def of_label(tables: Tables, label: Any) -> Tables:
    return {name: Rows(row for row in rows if row.get("label", label) == label) for name, rows in tables.items()}


def in_regime(tables: Tables, numbers: Numbers = None) -> Tables:
    label = regime_label(tables, numbers)
    return tables if label is None else of_label(tables, label)


def gates_of_the_hmm(tables: Tables, numbers: Numbers = None) -> tuple[Gate, ...]:
    return not_from_counts(tables, numbers), *gates(tables, numbers)


def gates(tables: Tables, numbers: Numbers = None) -> tuple[Gate, ...]:
    return (
        few_prompts(tables, numbers),
        large_pool(tables, numbers),
        beyond_counting(tables, numbers),
        right_beyond_counting(tables, numbers),
        Gate.flat(tables, parameter(numbers, "settled", SETTLED)),
    )


def few_prompts(tables: Tables, numbers: Numbers = None) -> Gate:
    found = _of(tables, PER_HMM).effect()
    if found is None:
        return Gate("regime", False, "the number of prompts per HMM is not recorded")
    low, high = parameter(numbers, "prompts_per_hmm", PROMPTS_PER_HMM)
    return Gate.regime(found.value, low, high, "the number of prompts in which each HMM was shown (16 in the paper)")


def large_pool(tables: Tables, numbers: Numbers = None) -> Gate:
    found = _of(tables, HMMS).effect()
    if found is None:
        return Gate("regime", False, "the number of HMMs in the pool is not recorded")
    low, high = parameter(numbers, "pool", POOL)
    return Gate.regime(found.value, low, high, "the number of HMMs in the pool (8192 in the paper)")


def not_from_counts(tables: Tables, numbers: Numbers = None) -> Gate:
    rows = _of(tables, FROM_COUNTS)
    found, chance = rows.effect(), rows.effect("chance")
    if found is None or chance is None:
        return Gate("regime", False, "the accuracy with which symbol counts alone identify the HMM is not recorded")
    most = chance.value + parameter(numbers, "most_from_counts", MOST_FROM_COUNTS) * (1 - chance.value)
    return Gate.regime(found.value, 0.0, most, "the accuracy with which symbol counts alone identify the HMM")


def beyond_counting(tables: Tables, numbers: Numbers = None) -> Gate:
    found = _of(tables, OVER_COUNTING).effect(unit="nats")
    if found is None:
        return Gate("learned", False, "the gain of the model over the best n-gram baseline is not recorded")
    return Gate.learned(found, parameter(numbers, "learned", LEARNED), "the best in-context n-gram baseline")


def right_beyond_counting(tables: Tables, numbers: Numbers = None) -> Gate:
    found = _of(tables, RIGHT_OVER_COUNTING).effect(unit="of accuracy")
    if found is None:
        return Gate("learned", False, "the gain of accuracy over the best n-gram baseline is not recorded")
    least = -math.inf if found.low is None else found.low
    said = f"the accuracy of the model exceeds the accuracy of the best in-context n-gram baseline by {found}"
    is_open = least >= parameter(numbers, "right", RIGHT)
    return Gate(
        "learned",
        is_open,
        said if is_open else f"{said} (required: an interval above {RIGHT:g})",
        (least, parameter(numbers, "right", RIGHT)),
    )


def _of(tables: Tables, quantity: str) -> Rows:
    return Rows(tables.get("setting", ())).where(quantity=quantity)


def _said(tables: Tables, quantity: str) -> str:
    found = _of(tables, quantity).effect()
    if found is None:
        return "an unknown number of"
    return f"{found.value:,.0f}" if found.value >= 1e3 else f"{found.value:.4g}"
