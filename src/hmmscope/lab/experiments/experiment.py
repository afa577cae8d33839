"""What an experiment is: a plan of models to train, measurements on them, and figures and findings from the tables.

A seeded experiment (`num_seeds` is not empty) trains every model of its plan once for each seed, with the instance of the
process, the weights and the samples of that seed. It is measured seed by seed, and the rows of its tables say which.
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

#: The part of a seed that is not divided.
ALL = "all"

INTERVALS = "Intervals are 95 % bootstrap intervals over samples (1000 resamples)."
#: The sentence on intervals of seeded experiments, see `hmmscope.lab.evidence.effects`.
SEED_INTERVALS = (
    "Curves are means over seeds; each seed has its own instance of the process, weights and samples. Bands and intervals "
    "are 95 % intervals over seeds by Student's law (over samples by the bootstrap where there is one seed)."
)

#: The tables of a measurement, to be written: plain rows by name.
MeasuredTables = dict[str, list[dict[str, Any]]]


class Experiment(ABC):
    """Subclasses are registered by name; their methods do not know the scale, only the numbers of the plan.

    An experiment on constructed networks or on processes alone trains nothing: its plan is empty.
    """

    name: str
    title: str
    summary: str
    #: Each model is measured and kept by itself, as an experiment of many hours needs it, see `cells`.
    measure_per_run: bool = False

    #: How many seeds the experiments on trained models have at each scale.
    NUM_SEEDS = {"smoke": 2, "small": 3, "medium": 5, "gpu": 3, "paper": 1}
    #: How many this one has, if it is seeded.
    num_seeds: dict[str, int] = {}
    #: Sizes of the measurements at each scale: the one table of what differs between scales apart from the models.
    sizes: dict[str, dict[str, Any]]

    #: Columns of the tables that tell its networks of a seed apart.
    run_columns: tuple[str, ...] = ()

    #: Version of what `measure` makes, where no record of claims has one: raised when it makes other rows of the same
    #: models, never otherwise. Parts of another version are not taken over.
    measurement: int = 1

    @property
    def intervals(self) -> str:
        """How intervals are made, in sentences; a class that makes them otherwise has a text here."""
        return SEED_INTERVALS if self.num_seeds else INTERVALS

    @property
    def scales(self) -> tuple[str, ...]:
        """The scales that it has numbers for, from the smallest on."""
        known = getattr(self, "sizes", None) or [scale for scale in SCALES if scale != "medium"]
        return tuple(scale for scale in SCALES if scale in known)

    def choices(self, scale: str) -> dict[str, Any]:
        """Numbers and lists that shape the plan, each an option ``--plan.NAME``."""
        return {}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        """The models to train: plain configurations by label."""
        return {}

    def live_run(self, scale: str, labels: list[str]) -> str | None:
        """The label of the run that the page computes live, if there is one."""
        return None

    def live_process(self, run: Run) -> Process | None:
        """HMMs from which the page draws in place of those that the run was trained on; None for its own."""
        return None

    def cells(self, labels: list[str]) -> dict[str, list[str]]:
        """Which models of a seed are measured together, by name, in the order of work: all in one part, or
        `measure_per_run`.

        A part that is measured is kept.
        """
        return {label: [label] for label in labels} if self.measure_per_run else {ALL: labels}

    def measurements(self, scale: str) -> dict[str, Any]:
        """Sizes of the measurements, shown as facts; by default the row of `sizes`."""
        return dict(self.sizes[scale])

    #: Measurements in order, each with the names of the tables that it makes.
    groups: dict[str, tuple[str, ...]]

    @abstractmethod
    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        """The tables of one measurement: of all models, or of those of one seed if it is seeded."""

    @abstractmethod
    def figures(self, tables: Tables) -> list[Figure]:
        """Figures from the tables."""

    def without_training(self, tables: Tables) -> Tables | None:
        """The tables as they would be had nothing been trained: the control of every claim on training.

        By default the rows of untrained networks stand in the place of those of trained ones. An experiment without such
        rows puts there what its know-nothing predictor gives. None if it trains nothing.
        """
        return untrained(tables)

    def with_ngrams_only(self, tables: Tables) -> Tables | None:
        """The tables as they would be had the networks learned to count and no more; None where nothing was counted."""
        return counting(tables)

    def planned_gates(self, configs: Mapping[str, RunConfig], claim: Claim) -> Iterable[Gate]:
        """The gates of a claim whose numbers a plan fixes, such as how rarely a state is asked for; see `decidable`.

        Args:
            configs: of the plan, by label.
            claim: of this experiment; `number` gives its numbers in here.
        """
        return ()

    def planned_rows(self, tables: Tables, configs: Mapping[str, RunConfig]) -> Tables:
        """The rows of kept tables about models that a plan has too; by default all rows."""
        return tables

    def findings(self, tables: Tables) -> list[Finding]:
        """What was found: the verdicts of all claims that the experiment decides."""
        return [claim.evaluate(tables) for claim in claims_of(self.name)] + self.notes(tables)

    def notes(self, tables: Tables) -> list[Finding]:
        """Further findings, of which nothing was claimed."""
        return []

    def answer(self, tables: Tables) -> list[str]:
        """The question of the experiment answered in lines of Markdown, for its page in the documentation, if it has such.

        Args:
            tables: all that is kept of it at one scale, plans that stand beside that of the scale too.
        """
        return []

    def facts(self, sizes: dict[str, Any]) -> list[dict[str, str]]:
        """What was measured, in a few lines, where no model was trained."""
        return [{"name": key.replace("_", " "), "value": ", ".join(map(str, _listed(v)))} for key, v in sizes.items()]


def _listed(value: Any) -> list:
    return list(value) if isinstance(value, list | tuple) else [value]


def experiment_named(name: str) -> Experiment:
    """A registered experiment."""
    found: Experiment = registry.lookup("experiment", name)()
    found.name = name
    return found
