"""The base class of experiments.

A seeded experiment (`num_seeds` is not empty) trains every model once per seed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from hmmscope import registry
from hmmscope.lab.evidence.claim import Claim, claims_of
from hmmscope.lab.evidence.controls import counting, untrained
from hmmscope.lab.evidence.figure import Figure
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.ledger import SCALES
from hmmscope.lab.evidence.rows import Tables
from hmmscope.lab.evidence.verdicts import Gate
from hmmscope.processes.process import Process
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import Run

#: Name of the only part of a seed whose models are all measured together.
ALL = "all"

INTERVALS = "Intervals are 95 % bootstrap intervals over samples (1000 resamples)."
#: Intervals of seeded experiments, see `hmmscope.lab.evidence.effects`.
SEED_INTERVALS = (
    "Curves are means over seeds; each seed has its own instance of the process, weights and samples. Bands and "
    "intervals are 95 % intervals over seeds by Student's t (over samples by the bootstrap if there is one seed)."
)

#: Measured tables by name, as plain rows.
MeasuredTables = dict[str, list[dict[str, Any]]]


class Experiment(ABC):
    """An experiment; subclasses are registered by name."""

    name: str
    title: str
    summary: str
    #: Place in a paper and a sentence from it, which is quoted under the first figure.
    in_paper: tuple[str, str] | None = None
    #: Whether each model is measured and stored separately, as long experiments need; see `cells`.
    measure_per_run: bool = False

    #: Default number of seeds at each scale, for experiments on trained models.
    NUM_SEEDS = {"smoke": 2, "small": 3, "medium": 5, "gpu": 3, "paper": 1}
    #: Number of seeds of this experiment at each scale; empty if it is not seeded.
    num_seeds: dict[str, int] = {}
    #: Sizes of the measurements (such as numbers of samples) at each scale.
    sizes: dict[str, dict[str, Any]]

    #: Table columns that identify a network within a seed.
    run_columns: tuple[str, ...] = ()

    #: Version of `measure`, unless the file of claims has one; it is raised if the rows change for the same models.
    measurement: int = 1

    @property
    def intervals(self) -> str:
        """Sentence on how intervals are computed."""
        return SEED_INTERVALS if self.num_seeds else INTERVALS

    @property
    def scales(self) -> tuple[str, ...]:
        """Scales at which the experiment runs."""
        known = getattr(self, "sizes", None) or [scale for scale in SCALES if scale != "medium"]
        return tuple(scale for scale in SCALES if scale in known)

    def choices(self, scale: str) -> dict[str, Any]:
        """Return the parameters of `plan` with their defaults; options ``--plan.NAME`` change them."""
        return {}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        """Return the configuration of each model to train, by label."""
        return {}

    def live_run(self, scale: str, labels: list[str]) -> str | None:
        """Return the label of the run that the page evaluates in the browser, or None."""
        return None

    def live_process(self, run: Run) -> Process | None:
        """Return the process for exact inference in the browser; None means the run's process."""
        return None

    def cells(self, labels: list[str]) -> dict[str, list[str]]:
        """Return the parts of a seed, by name: labels of models, measured together."""
        return {label: [label] for label in labels} if self.measure_per_run else {ALL: labels}

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(self.sizes[scale])

    #: Measurements in order, with the names of their tables.
    groups: dict[str, tuple[str, ...]]

    @abstractmethod
    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        """Measure `runs` (all models, or one part of a seed), and return the tables of the measurement `group`."""

    @abstractmethod
    def figures(self, tables: Tables) -> list[Figure]:
        """Return figures made from the tables."""

    def without_training(self, tables: Tables) -> Tables | None:
        """Return the tables that untrained networks would give, for tests of the claims; None if unknown.

        By default, the rows of untrained networks replace the rows of trained networks.
        """
        return untrained(tables)

    def with_ngrams_only(self, tables: Tables) -> Tables | None:
        """Return the tables that networks would give if they learned n-grams only; None if unknown."""
        return counting(tables)

    def planned_gates(self, configs: Mapping[str, RunConfig], claim: Claim) -> Iterable[Gate]:
        """Return the gates (preconditions) of a claim that follow from the plan alone; see `decidable`.

        Args:
            configs: configurations of the models, by label.
            claim: a claim of this experiment.
        """
        return ()

    def planned_rows(self, tables: Tables, configs: Mapping[str, RunConfig]) -> Tables:
        """Return the rows of stored tables that belong to models of a plan."""
        return tables

    def findings(self, tables: Tables) -> list[Finding]:
        """Return the findings: the verdicts of all claims of the experiment, then `notes`."""
        return [claim.evaluate(tables) for claim in claims_of(self.name)] + self.notes(tables)

    def notes(self, tables: Tables) -> list[Finding]:
        """Return findings that belong to no claim."""
        return []

    def answer(self, tables: Tables) -> list[str]:
        """Return lines of Markdown that answer the question of the experiment.

        Args:
            tables: all stored tables of one scale.
        """
        return []

    def facts(self, sizes: dict[str, Any]) -> list[dict[str, str]]:
        """Return named facts for the page: by default, the sizes of the measurements."""
        return [{"name": key.replace("_", " "), "value": ", ".join(map(str, _listed(v)))} for key, v in sizes.items()]


def _listed(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]


def experiment_named(name: str) -> Experiment:
    found: Experiment = registry.lookup("experiment", name)()
    found.name = name
    return found
