"""Figures of an experiment, redrawn from its stored tables."""

from dataclasses import replace

from hmmscope import registry
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.rows import Tables


def figures_of(experiment: str, tables: Tables) -> list[Figure]:
    found = registry.lookup("experiment", experiment)()
    found.name = experiment
    figures: list[Figure] = found.figures(tables)
    if found.in_paper is not None and figures:
        place, words = found.in_paper
        figures[0] = replace(figures[0], caption=f"{figures[0].caption} The paper ({place}): “{words}”")
    return figures
