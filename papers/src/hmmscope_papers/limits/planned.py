"""Preconditions of claims that are known before training: tasks, depths and supervision rate."""

from collections.abc import Mapping
from typing import Any

from hmmscope.lab import Experiment, Gate, Rows, Tables
from hmmscope_papers.limits.lengths import asked_once_in
from hmmscope_papers.limits.tables import HARD


class GridExperiment(Experiment):
    """Base of experiments on the trainings of `hmmscope_papers.limits.trainings.grid`."""

    def planned_gates(self, configs: Mapping[str, Any], claim: Any) -> tuple[Gate, ...]:
        hard = [config.layout.num_observations for config in configs.values() if config.process.name == HARD]
        return asked_once_in(max(hard), claim.parameters) if hard and "rarely" in claim.parameters else ()

    def planned_rows(self, tables: Tables, configs: Mapping[str, Any]) -> Tables:
        tasks = {config.process.name for config in configs.values()}
        layers = {0 if config.model.name == "rnn" else config.model.num_layers for config in configs.values()}
        return {
            name: Rows(
                row for row in rows if row.get("task", "") in {"", *tasks} and row.get("layers", -1) in {-1, *layers}
            )
            for name, rows in tables.items()
        }
