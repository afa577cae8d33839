"""Add rows that need no training to stored tables that were measured without them.

    python scripts/add_rows.py papers/results/medium/multitask-fig1@16-8 [SISTER ...]   tuned n-gram baselines
    python scripts/add_rows.py studies/results/small/multitask-heads                     tuned n-gram baselines of
    other studies
    python scripts/add_rows.py papers/results/small/limits-fig4-cot                     constant answer

Samples are functions of a seed, so they are drawn again; a stored untrained result must be reproduced.

*Tuned n-gram baselines* have a back-off strength that is tuned for each order on other prompts of the pool; they include
context trees. They replace the rows of n-grams with one fixed strength, and the gains of networks over them are computed
again. A SISTER is the folder of another experiment on the same runs; its table "setting" gets the gains. The rows of the
filter given the HMM must equal the stored ones. Gains are differences of unpaired means, so their intervals are too wide.

In the studies of heads, positions and rank, and of learning in context, the new rows are in the tables "end", "predictions"
and "convergence". The untrained network, and for chains the exact filter, must equal the stored ones.

*Constant answer* of limits-fig4-cot: the untrained network must equal the stored one.

parts.jsonl stores the version of the measurement that added the rows.
"""

import argparse
import math
import tempfile
from collections.abc import Callable
from datetime import date
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from hmmscope.analysis import TunedNgrams
from hmmscope.analysis.ngrams import is_ngram
from hmmscope.lab.evidence.rows import Rows
from hmmscope.lab.experiments.parts import measurement_of
from hmmscope.lab.experiments.planning import ExperimentPlan
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import Run, untrained_model
from hmmscope.storage import packed, store
from hmmscope.storage.seals import open_sealed, remove_seal, write_seal
from hmmscope_papers.limits.fig4_cot import error_rows
from hmmscope_papers.multitask.predictors import NGRAMS, counting_of, last_sequence, pools_of, prompt_score
from hmmscope_papers.multitask.training_setting import OVER_COUNTING, RIGHT_OVER_COUNTING
from hmmscope_studies.beyond_multitask.in_context import chain_of, chain_rows, convergence_rows
from hmmscope_studies.beyond_multitask.studies import PromptStudy, end_rows

Row = dict[str, Any]
#: Maps plan, seed and tables of a part to its changed tables.
Change = Callable[[ExperimentPlan, int, dict[str, list[Row]]], dict[str, list[Row]]]
TOLD, AXES = "known-component", ("demonstrations", "positions")
#: Effects and quantities by metric, with the network's sign in the difference.
GAINS = {"loss": ("gain over counting", -1), "accuracy": ("accuracy over counting", 1)}
QUANTITIES = {"loss": OVER_COUNTING, "accuracy": RIGHT_OVER_COUNTING}


def same(kept: Rows, again: Rows, along: str) -> bool:
    """Return whether values along an axis agree to float32 rounding."""
    pairs = zip(kept, again, strict=False)
    return len(kept) == len(again) > 0 and all(
        one[along] == other[along] and math.isclose(one["value"], other["value"], rel_tol=1e-6) for one, other in pairs
    )


def counted(config: RunConfig, own: dict[str, Rows], sizes: Row) -> dict[str, list[Row]]:
    """Return rows of n-gram baselines by axis, for one model.

    Raises:
        ValueError: The prompts differ from the stored ones.
    """
    process = config.process.build()
    run = Run(Path(), config, process, untrained_model(config, process), None)
    counting = counting_of(run)
    found: dict[str, list[Row]] = {axis: [] for axis in AXES}
    for pool, asked in pools_of(run).items():
        score = prompt_score(run, asked, sizes["samples"], (TOLD,), counting)
        columns = {"demonstrations": score.positions >= sizes["first_position"], "positions": last_sequence(score)}
        for axis in AXES:
            rows = [{"pool": pool} | row for row in score.rows(axis, columns[axis])]
            told = own[axis].where(pool=pool, predictor=TOLD, metric="loss")
            if not same(told, Rows(rows).where(predictor=TOLD, metric="loss"), "x"):
                raise ValueError(
                    f"{config.process.name}, seed {config.seed}, {pool}: the prompts differ from the stored ones"
                )
            found[axis] += [row for row in rows if row["predictor"] in NGRAMS]
    return found


def gain(network: Rows, counting: Rows, sign: int) -> Row:
    """Return the difference of means of a network and the best n-gram baseline, times `sign`, with its unpaired interval.

    Positions are averaged as if their errors were fully dependent.
    """
    metric = network[0]["metric"]
    means = {name: [row["value"] for row in rows] for name, rows in counting.by("predictor").items()}
    best = counting.where(predictor=TunedNgrams.best(means, metric))
    (one, a), (other, b) = (_mean(rows) for rows in (network, best))
    value, wide = sign * (one - other), math.hypot(a, b)
    return {"value": value, "low": value - wide, "high": value + wide, "samples": network[0]["samples"]}


def _mean(rows: Rows) -> tuple[float, float]:
    return fmean(row["value"] for row in rows), fmean((row["high"] - row["low"]) / 2 for row in rows)


def of_model(own: dict[str, Rows], made: dict[str, list[Row]]) -> tuple[list[Row], dict[str, Row]]:
    """Return a model's effects by network and pool, and its gains by quantity."""
    end = Rows(made["demonstrations"])
    end, ends = end.where(x=max(end.values("x"))), own["demonstrations"]
    ends = ends.where(x=max(ends.values("x")))
    effects = []
    for pool in end.values("pool"):
        for network, name in (("trained", "model"), ("untrained", "untrained")):
            for metric, (effect, sign) in GAINS.items():
                where = {"pool": pool, "metric": metric}
                found = gain(ends.where(predictor=name, **where), end.where(**where), sign)
                effects.append({"network": network, "pool": pool, "effect": effect} | found)
    quantities = {
        quantity: gain(
            own["positions"].where(predictor="model", pool="pool", metric=metric),
            Rows(made["positions"]).where(pool="pool", metric=metric),
            GAINS[metric][1],
        )
        for metric, quantity in QUANTITIES.items()
    }
    return effects, quantities


def replaced(rows: Rows, old: Any, new: list[Row]) -> list[Row]:
    """Remove the old rows and insert the new ones at the place of the first old row."""
    first = next((place for place, row in enumerate(rows) if old(row)), len(rows))
    kept = [row for row in rows if not old(row)]
    place = sum(not old(row) for row in rows[:first])
    return [*kept[:place], *new, *kept[place:]]


def constant_rows(plan: ExperimentPlan, seed: int, part: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Add the constant answer to the table "errors".

    Raises:
        ValueError: The samples differ from the stored ones.
    """
    kept, rows = Rows(part["errors"]), list(part["errors"])
    for config in plan.of_seed(seed).values():
        process = config.process.build()
        run = Run(Path(), config, process, untrained_model(config, process), None)
        found = Rows(error_rows(run, plan.sizes["samples"]))
        where = {key: found[0][key] for key in ("task", "layers", "block_length")}
        if not same(kept.where(predictor="untrained", **where), found.where(predictor="untrained"), "position"):
            raise ValueError(f"{where}, seed {seed}: the samples differ from the stored ones")
        rows += found.where(predictor="constant")
    return {"errors": rows}


def study_rows(plan: ExperimentPlan, seed: int, part: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Add tuned n-gram baselines to the table "end" of a study; models on the same prompts share them.

    Raises:
        ValueError: The prompts differ from the stored ones.
    """
    assert isinstance(plan.experiment, PromptStudy)
    rows, samples = Rows(part["end"]), plan.sizes["samples"]
    counted: dict[str, list[Row]] = {}
    for config in plan.of_seed(seed).values():
        process = config.process.build()
        run = Run(Path(), config, process, untrained_model(config, process), None)
        where, prompts = plan.experiment.setting(run), repr((config.process, config.layout))
        found = Rows(end_rows(run, samples, baselines=prompts not in counted))
        if not same(rows.where(predictor="untrained", **where), found.where(predictor="untrained"), "metric"):
            raise ValueError(f"{where}, seed {seed}: the prompts differ from the stored ones")
        counted.setdefault(prompts, [row for row in found if is_ngram(row["predictor"])])
        own = [where | row for row in counted[prompts]]
        old = lambda row, where=where: is_ngram(row["predictor"]) and where.items() <= row.items()  # noqa: E731
        rows = Rows(replaced(rows, old, own))
    return {"end": rows}


def context_rows(plan: ExperimentPlan, seed: int, part: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """Add tuned n-gram baselines to the tables of learning in context.

    Raises:
        ValueError: The samples differ from the stored ones.
    """
    rows, ends = Rows(part["predictions"]), Rows(part["convergence"])
    (config,) = plan.of_seed(seed).values()
    network = untrained_model(config, config.process.build())
    for mixing, noise in product(plan.sizes["mixing"], plan.sizes["noise"]):
        about = {"mixing": mixing, "noise": noise}
        found = Rows(about | row for row in chain_rows(chain_of(mixing, noise, seed), network, plan.sizes, seed))
        for known in ("optimum", "untrained"):
            kept = rows.where(network=known, metric="loss", **about)
            if not same(kept, found.where(network=known, metric="loss"), "position"):
                raise ValueError(f"{about}, seed {seed}: the samples differ from the stored ones")
        own = [row for row in found if is_ngram(row["network"])]
        facts = {key: ends.where(**about)[0][key] for key in ("mixing_time", "entropy_rate")}
        reached = [about | facts | row for row in convergence_rows(Rows(own))]
        old = lambda row, about=about: is_ngram(row["network"]) and about.items() <= row.items()  # noqa: E731
        rows, ends = Rows(replaced(rows, old, own)), Rows(replaced(ends, old, reached))
    return {"predictions": rows, "convergence": ends}


#: Function that adds the rows, and the name of the rows, for experiments without sisters.
ALONE: dict[str, tuple[Change, str]] = {
    "limits-fig4-cot": (constant_rows, "constant"),
    "multitask-heads": (study_rows, "counting"),
    "multitask-positions": (study_rows, "counting"),
    "multitask-rank": (study_rows, "counting"),
    "in-context": (context_rows, "counting"),
}


def rewrite(folder: Path, change: Change, what: str) -> None:
    """Replace tables of a folder with the tables that `change` returns, and write its seal again."""
    about, seal = store.read_json(folder / "experiment.json"), open_sealed(folder)
    assert seal is not None, f"{folder}: has no seal"
    plan = ExperimentPlan.from_data(about["experiment"], about["scale"], about["config"])
    index = store.read_table(folder / packed.INDEX)
    parts = packed.by_part(index, packed.read_tables(folder), folder)
    added = {what: measurement_of(plan.experiment).version, "created": date.today().isoformat()}
    tables: dict[str, list[Row]] = {name: [] for name in index[0]["rows"]}
    for row, part in zip(index, parts, strict=True):
        part |= change(plan, row["seed"], part)
        row |= {"added": added, "rows": {name: len(part[name]) for name in row["rows"]}}
        for name in tables:
            tables[name] += [{"seed": row["seed"]} | one for one in part[name]]
    with tempfile.TemporaryDirectory() as made:
        out = Path(made)
        store.make_folder(out / packed.TABLES)
        for name, rows in tables.items():
            store.write_table(out / packed.TABLES / f"{name}.jsonl", rows)
        store.write_table(out / packed.INDEX, index)
        remove_seal(folder)
        packed.pack(out, folder)
    write_seal(folder, "experiment", seal.bound | {"rows_added": added})


def by_model(change: Callable[[ExperimentPlan, int, str, dict[str, Rows]], dict[str, list[Row]]]) -> Change:
    """Return a change of a part that applies `change` to the tables of each model."""

    def of_part(plan: ExperimentPlan, seed: int, part: dict[str, list[Row]]) -> dict[str, list[Row]]:
        made = dict(part)
        for label in dict.fromkeys(row["label"] for row in part["setting"]):
            own = {name: Rows(rows).where(label=label) for name, rows in part.items()}
            for name, rows in change(plan, seed, label, own).items():
                columns = {key: own[name][0][key] for key in ("label", "hmms", "prompts")}
                rest = [row for row in made[name] if row["label"] != label]
                made[name] = [*rest, *(columns | row for row in rows)]
        return made

    return of_part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    first, *sisters = parser.parse_args().folders
    if first.name in ALONE:
        rewrite(first, *ALONE[first.name])
        return
    gains: dict[tuple[int, str], dict[str, Row]] = {}

    def setting(rows: Rows, seed: int, label: str) -> list[Row]:
        own = [{"quantity": name} | row for name, row in gains[seed, label].items()]
        return replaced(rows, lambda row: row["quantity"] in QUANTITIES.values(), own)

    def whole(plan: ExperimentPlan, seed: int, label: str, own: dict[str, Rows]) -> dict[str, list[Row]]:
        made = counted(plan.of_seed(seed)[label], own, plan.sizes)
        effects, gains[seed, label] = of_model(own, made)
        print(f"{first}, seed {seed}, {label}: {gains[seed, label][RIGHT_OVER_COUNTING]}", flush=True)
        known = {"first_position": own["effects"][0]["first_position"]}
        names = [effect for effect, _ in GAINS.values()]
        curves = {axis: replaced(own[axis], lambda row: row["predictor"] in NGRAMS, made[axis]) for axis in AXES}
        return curves | {
            "effects": replaced(own["effects"], lambda row: row["effect"] in names, [known | row for row in effects]),
            "setting": setting(own["setting"], seed, label),
        }

    rewrite(first, by_model(whole), "counting")
    for folder in sisters:
        rewrite(
            folder, by_model(lambda _, seed, label, own: {"setting": setting(own["setting"], seed, label)}), "counting"
        )


if __name__ == "__main__":
    main()
