"""Run experiments with networks that learned nothing; no claim about training may be decided on their tables.

    make controls                                                  all missing tables, within two core-hours
    python scripts/controls.py --seconds 600 untrained/mechanisms  selected tables, within a time limit

    untrained   initial weights: no step changes them
    one-step    one step at the full learning rate, then none
    mispaired   trained on the answers of another prompt

All have a complete training record, so that no gate closes because it is missing. Runs are in runs/controls/ and can be
resumed. results/controls/ has the tables that tests/evidence/test_controls.py reads.
"""

import argparse
import json
import lzma
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hmmscope.datasets.process_dataset import Batch
from hmmscope.datasets.targets import Target
from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.experiments.running import run_experiment
from hmmscope.lab.tasks.executors import ExecutorOptions
from hmmscope.storage import packed, seals
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.trainer import BatchSchedule

Row = dict[str, Any]
ROOT = Path(__file__).parents[1]
KEPT, AT_WORK = ROOT / "results" / "controls", ROOT / "runs" / "controls"
#: Scale, seeds, steps and evaluations of a training; few steps are enough for a network that learns nothing.
SCALE, SEEDS, STEPS, EVALUATIONS = "small", [0, 1, 2], {"untrained": 10, "one-step": 10, "mispaired": 40}, 10
_GRID = {"plan.layers": "0,1,2"}
_FLOORS = {"measurements.floor_samples": "50", "measurements.floor_instances": "2"}
_POOL = {"plan.parts": "96"}
#: Experiments with claims about learning, the cheapest first, with small sizes.
EXPERIMENTS: dict[str, dict[str, str]] = {
    "limits-table4": {"plan.layers": "1", "measurements.samples": "512", **_FLOORS},
    "constrained-updates": {},
    "multitask-fig3b": {"measurements.prompts": "256", **_POOL},
    "multitask-fig1": {"measurements.samples": "128", **_POOL},
    "multitask-fig7": {"measurements.samples": "64", "measurements.construction_samples": "8", **_POOL},
    "multitask-fig2": {"measurements.samples": "16", "measurements.permutations": "4", **_POOL}
    | {"measurements.construction_samples": "2"},
    "multitask-fig3a": {"measurements.components": "8", "measurements.state_components": "2", **_POOL}
    | {"measurements.prompts": "32", "measurements.state_prompts": "128"},
    "task-patching": {"measurements.samples": "128"},
    "limits-hard-dose": {"measurements.samples": "1024", "measurements.least_count": "16"},
    "limits-fig4-mixing": {"measurements.samples": "256", "plan.probabilities": "0.01,0.05,0.15"},
    "limits-fig5": {"measurements.samples": "256", "plan.widths": "16,32", "plan.head_counts": "1,2"},
    "limits-fig4-cot": {"measurements.samples": "256", "plan.blocks": "0,1,2"},
    "limits-fig2": {"measurements.samples": "256", **_GRID},
    "limits-fig6": {"plan.layers": "1,2"},
    "limits-fig3": {"measurements.samples": "512", "measurements.least_count": "32", **_GRID}
    | {"measurements.window_samples": "50"},
    "limits-table3": {"measurements.samples": "512", "plan.fixed_sets": "0", **_GRID, **_FLOORS},
    "mechanisms": {"measurements.samples": "64"},
    "belief-geometry": {"measurements.samples": "128", "measurements.points": "100"},
    "belief-development": {"measurements.samples": "64", "measurements.positions": "1"},
    "construction-vs-trained": {"measurements.samples": "64", "measurements.probe_samples": "128"}
    | {"measurements.probe_components": "4"},
    "limits-architectures": {"plan.architectures": "rnn,transformer", "measurements.samples": "256"},
    "limits-law": {"plan.layers": "0,1,2", "plan.first": "10", "plan.doublings": "2"},
    "header-filtering": {"plan.sizes": "2", "plan.architectures": "lstm,transformer", "plan.first": "10"}
    | {"plan.doublings": "1"},
}


def path_of(control: str, experiment: str) -> Path:
    return KEPT / control / f"{experiment}.json.xz"


def overrides(control: str, experiment: str) -> dict[str, str]:
    """Return plan changes for a short training with the evaluations of a long one."""
    steps = STEPS[control]
    every, training = steps // EVALUATIONS, {"num_steps": steps, "warmup_steps": steps // 10, "checkpoint_every": steps}
    training |= {"evaluate_every": every, "evaluate_samples": 64}
    if experiment.startswith("limits-"):
        training |= {"epoch_steps": every, "halve_every": 7}
    return {f"training.{name}": str(value) for name, value in training.items()} | EXPERIMENTS[experiment]


@contextmanager
def learning_nothing(control: str) -> Iterator[None]:
    """Replace trainings with those of a control."""
    if control == "mispaired":
        with patch.object(BatchSchedule, "batch", mispaired(BatchSchedule.batch)):
            yield
        return

    def rate(spec: TrainingSpec, step: int) -> float:
        return spec.learning_rate if control == "one-step" and step == 0 else 0.0

    with (
        patch("hmmscope.training.updates.learning_rate", rate),
        patch("hmmscope.training.compiled_steps.learning_rate", rate),
    ):
        yield


def mispaired(batch_of: Callable[..., tuple[Batch, Target]]) -> Callable[..., tuple[Batch, Target]]:
    """Return a batch function that pairs each prompt with the answers of the next prompt."""

    def batch(*given: Any) -> tuple[Batch, Target]:
        found, target = batch_of(*given)
        return replace(found, tokens=found.tokens.roll(1, 0)), target

    return batch


def make(control: str, experiment: str) -> None:
    """Train, measure and store the tables."""
    out, kept = AT_WORK / control / experiment, path_of(control, experiment)
    with learning_nothing(control):
        run_experiment(
            experiment,
            SCALE,
            out,
            overrides=overrides(control, experiment),
            seeds=SEEDS,
            executor=ExecutorOptions(jobs=1),
            resume=True,
            quiet=True,
        )
    tables = {name: [_short(row) for row in rows] for name, rows in packed.read_tables(out).items()}
    kept.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(read_by_claims(experiment, tables), separators=(",", ":"))
    kept.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    seals.keep(KEPT, [kept.relative_to(KEPT).as_posix()])


def read_by_claims(experiment: str, tables: dict[str, list[Row]]) -> dict[str, dict[str, list[Any]]]:
    """Return the tables and columns that claims read, by column; missing entries are null.

    If a rule later reads another column, the stored tables lack it and the test of the rule fails.
    """
    claims = claims_of(experiment)
    said = {claim.name: claim.evaluate(tables, power=False) for claim in claims}

    def unread(less: dict[str, list[Row]]) -> bool:
        try:
            return all(claim.evaluate(less, power=False) == said[claim.name] for claim in claims)
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError):
            return False

    for name in list(tables):
        less = {other: rows for other, rows in tables.items() if other != name}
        tables = less if unread(less) else tables
    for name in tables:
        for key in dict.fromkeys(key for row in tables[name] for key in row):
            without = [{one: value for one, value in row.items() if one != key} for row in tables[name]]
            tables = {**tables, name: without} if unread({**tables, name: without}) else tables
    return {name: _by_column(rows) for name, rows in tables.items()}


def _by_column(rows: list[Row]) -> dict[str, list[Any]]:
    columns = dict.fromkeys(key for row in rows for key in row)
    return {column: [row.get(column) for row in rows] for column in columns}


def _short(row: Row) -> Row:
    return {key: _digits(value) for key, value in row.items()}


def _digits(value: Any) -> Any:
    if isinstance(value, list):
        return [_digits(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=7200.0, help="processor seconds after which no further table is started"
    )
    parser.add_argument("wanted", nargs="*", help="CONTROL/EXPERIMENT")
    options = parser.parse_args()
    known = [f"{control}/{experiment}" for experiment in EXPERIMENTS for control in STEPS]
    for name in options.wanted or known:
        control, experiment = name.split("/")
        if path_of(control, experiment).exists() or time.process_time() > options.seconds:
            continue
        before = time.process_time()
        make(control, experiment)
        print(f"{name}: {time.process_time() - before:.0f} core-seconds", flush=True)


if __name__ == "__main__":
    main()
