"""Figures that are drawn again from the stored tables of an experiment."""

from hmmscope import registry
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.rows import Tables


def figures_of(experiment: str, tables: Tables) -> list[Figure]:
    """Return the figures that a registered experiment draws of its tables."""
    found = registry.lookup("experiment", experiment)()
    found.name = experiment
    figures: list[Figure] = found.figures(tables)
    return figures
