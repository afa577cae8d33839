"""What follows from the tables of an experiment and need not be kept beside them."""

from hmmscope import registry
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.rows import Tables


def figures_of(experiment: str, tables: Tables) -> list[Figure]:
    """The figures that a registered experiment draws of its tables, in their order.

    Raises:
        InputError: no experiment of this name is installed.
    """
    found = registry.lookup("experiment", experiment)()
    found.name = experiment
    figures: list[Figure] = found.figures(tables)
    return figures
