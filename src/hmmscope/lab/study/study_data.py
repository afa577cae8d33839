"""The data of a study (symbols or numbers, cut into pieces) and its settings."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from hmmscope import registry
from hmmscope.analysis.autoregression import AUTOREGRESSION, AutoRegression
from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.fit_emissions_em import FLOOR
from hmmscope.emissions.vector_evidence import UNASKED, vector_evidence
from hmmscope.inference.evidence import Evidence, evidence
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.lab.study import study_tables
from hmmscope.processes.hmm import HMM
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.processes.recorded_vectors import RecordedVectors
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import engine_of, model_io_of
from hmmscope.runs.vector_sequences import READING, emission_of, read_numbers, refuse
from hmmscope.schema import require
from hmmscope.seeds import check_seed
from hmmscope.sequences.data import SequenceData, read_as
from hmmscope.sequences.vector_data import VectorData
from hmmscope.training.spec import TrainingSpec

#: Numbers of passes through the training part; they are tried in this order as long as the validation loss falls.
PASSES = (8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """Settings of a study.

    Attributes:
        length: Largest length of the pieces of sequences, reduced if there would be fewer than 30.
        states: Numbers of states of the HMMs.
        restarts: Largest number of restarts of a fit; a fit ends once its two best restarts agree.
        iterations: Largest number of EM steps of a restart.
        order: Longest context of the n-grams and context trees, in symbols.
        networks: Names of the models to train.
        max_steps: Largest number of steps of a training.
        batch_size, learning_rate: Settings of the trainings, see `TrainingSpec`.
        seeds: Number of trainings of each network, with different weights and samples.
        emission: "symbols" or "gaussian" (default: "gaussian" for fractional numbers, else "symbols").
        covariance_type: Covariances of Gaussian states: "diag", "full", "tied" or "spherical".
        min_variance: Least variance of Gaussian densities, as a fraction of each coordinate's variance (default: that
            of `RecordedVectors`, but at least .001 in HMMs).
        split_seed: Seed of the split into training (8/10), validation (1/10) and test (1/10).
    """

    length: int = 128
    states: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    restarts: int = 12
    iterations: int = 200
    order: int = 5
    networks: tuple[str, ...] = ("rnn", "roformer")
    max_steps: int = 2000
    batch_size: int = 32
    learning_rate: float = 2e-3
    seeds: int = 1
    emission: str = ""
    covariance_type: str = "diag"
    min_variance: float | None = None
    split_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("restarts", "iterations", "max_steps", "batch_size", "seeds"):
            require(getattr(self, name) >= 1, name, "must be at least 1", getattr(self, name))
        require(self.length >= 2, "length", "must be at least 2", self.length)
        require(0 <= self.order <= 16, "order", "must be in [0, 16]", self.order)
        for name in ("states", "networks"):
            value = getattr(self, name)
            require(len(set(value)) == len(value) > 0, name, "must be one or several distinct values", value)
        require(self.emission in ("", "symbols", "gaussian"), "emission", "must be symbols or gaussian", self.emission)
        for network in self.networks:
            registry.lookup("model", network, "networks")
        check_seed(self.split_seed, "split_seed")


class Prepared:
    """The data of a study, cut into pieces, and the settings.

    Attributes:
        spec: Settings of the study.
        source: The sequences before they are cut.
        data: All pieces.
        layout: Layout of a sample: a placeholder token, so that models predict the first observation, then a piece.
        counting: Names of the simple baselines, such as "n-gram".
    """

    kind: ClassVar[type[HMM] | type[EmissionHMM]] = HMM
    target, unit = "observation", "symbol"
    counting: ClassVar[tuple[str, ...]] = ("n-gram", "context trees")

    def __init__(self, source: Any, spec: StudySpec) -> None:
        self.spec, self.source, self.title = spec, source, source.title
        self.data = source.chunks(spec.length).seeded(spec.split_seed)
        self.process = RecordedSequences(self.data)
        self.layout = SequenceLayout(length=max(2, self.data.longest), placeholder=True)
        self.parts = self.data.train, self.data.validation, self.data.test  # raises if there are too few

    def corpus(self, stream: str) -> ProcessDataset:
        return ProcessDataset(self.process, layout=self.layout, stream=stream)

    def config(self, network: str, num_steps: int, seed: int) -> RunConfig:
        spec = self.spec
        training = TrainingSpec(
            num_steps=num_steps,
            batch_size=spec.batch_size,
            learning_rate=spec.learning_rate,
            warmup_steps=max(1, num_steps // 20),
            weight_decay=0.1,
            evaluate_every=max(1, num_steps // 10),
        )
        model = {"name": network} | getattr(registry.entries("model").get(network), "study_fields", {})
        return RunConfig(
            process=self.process, layout=self.layout, model=model, training=training, seed=seed, target=self.target
        )

    @cached_property
    def steps(self) -> tuple[int, ...]:
        each = self.parts[0].num_observations / (self.spec.batch_size * self.layout.length)
        counts = [max(50, round(passes * each)) for passes in PASSES]
        return tuple(sorted({count for count in counts if count <= self.spec.max_steps})) or (self.spec.max_steps,)

    def engine(self, network: str) -> str:
        config = self.config(network, self.steps[-1], 0)
        config = replace(config, training=replace(config.training, device="cpu"))
        return engine_of(config, model_io_of(config, make_target(config.target, self.process, self.layout))).engine

    def facts(self) -> list[dict[str, str]]:
        train, validation, test = (
            f"{part.num_observations:,} {self.unit}s in {len(part):,} pieces" for part in self.parts
        )
        lines = self.data.describe().splitlines()
        said = (line.strip().removeprefix("first: ") for line in lines[:2])
        about = dict(zip(("data", "begins"), said, strict=False))
        about |= {"training": train, "validation": validation, "test": test, "seeds of networks": str(self.spec.seeds)}
        return [{"name": name, "value": value} for name, value in about.items()]

    #: Options of `hmmscope.fit`.
    fit_options: Mapping[str, Any] = {}

    def evidence_of(self, hmm: Any) -> Evidence | None:
        return evidence(flat_sequences(self.parts[0].flat, self.parts[0].lengths.numpy()), hmm)

    def num_parameters(self, hmm: Any) -> int:
        size: int = hmm.num_states
        return size - 1 + size * (size - 1) + size * (self.data.num_symbols - 1)

    def counters(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        orders = [order for order in range(self.spec.order + 1) if f"n-gram-{order}" in names]
        return study_tables.counters(self.parts[0], orders)

    def tables(self, gain: Any) -> dict[str, list[dict[str, Any]]]:
        entropies = study_tables.entropies(self.parts[0], self.spec.order)
        return {"entropies": entropies, "contexts": study_tables.contexts(self.corpus("test"), gain)}


class PreparedNumbers(Prepared):
    """`Prepared` for sequences of numbers."""

    kind = EmissionHMM
    target, unit, counting = "density", "observation", ("autoregression",)

    def __init__(self, source: VectorData, spec: StudySpec) -> None:
        self.spec, self.source = spec, source
        whole = RecordedVectors(source, split_seed=spec.split_seed, min_variance=spec.min_variance)
        self.process: Any = whole.in_pieces(spec.length)
        self.title = source.how.split(";")[0] or "numbers"
        self.data, self.parts = self.process.data, self.process.parts
        self.layout = SequenceLayout(length=max(2, int(self.data.lengths.max())), placeholder=True)
        least = max(float(self.process.least_variances.min()), FLOOR if spec.min_variance is None else 0.0)
        self.fit_options = {"emission": "gaussian", "covariance_type": spec.covariance_type, "min_variance": least}

    def evidence_of(self, hmm: Any) -> Evidence | None:
        rows = self.parts[0].rows
        laws = type(hmm).conjugate(rows, **hmm.options)
        return vector_evidence(hmm, rows, self.parts[0].lengths, laws, most=UNASKED)

    def num_parameters(self, hmm: Any) -> int:
        size: int = hmm.num_states
        return size - 1 + size * (size - 1) + int(hmm.num_parameters)

    def counters(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        least = self.process.least_variances
        each = AutoRegression(self.parts[0].padded(), self.spec.order, least, self.process.chains).num_parameters
        return {
            f"{AUTOREGRESSION}{k}": {"family": "autoregression", "size": k, "parameters": count}
            for k, count in enumerate(each)
        }

    def tables(self, gain: Any) -> dict[str, list[dict[str, Any]]]:
        return {}


def prepare(source: Any, spec: StudySpec, **reading: Any) -> Prepared:
    """Return the data of a study, read, cut into pieces and split; raise InputError if that is impossible."""
    if isinstance(source, SequenceData) or emission_of(source, spec.emission or None, reading) == "symbols":
        return Prepared(read_as(source, reading), spec)
    refuse("gaussian", **{name: value for name, value in reading.items() if name not in READING})
    own = {name: reading[name] for name in READING if name in reading}
    return PreparedNumbers(read_numbers(source, spec.emission or None, own), spec)
