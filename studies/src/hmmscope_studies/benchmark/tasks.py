"""The tasks of each version of HMM-bench: process, layout and budget.

A task never changes: a changed digest requires a new version of the benchmark, see docs/benchmark.md.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hmmscope.datasets.layouts import Layout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import Target, make_target
from hmmscope.errors import DamagedError
from hmmscope.processes.process import Process
from hmmscope.registry import build_spec, stored_data
from hmmscope.runs.config import RunConfig
from hmmscope.schema import parse_spec, require, unknown_name
from hmmscope.training.spec import TrainingSpec
from hmmscope_studies.benchmark.frozen import DIGESTS, WORDS

#: The version that models enter, and those whose submissions and cards can be read.
VERSION, VERSIONS = "2", ("1", "2")
#: Length of the longest samples, in training lengths.
TIMES = 8
#: Scored samples of the training length, of the longest length, and for belief regression.
SCORED, LONGER, READ = 128, 32, 64


@dataclass(frozen=True, kw_only=True)
class BenchmarkTask:
    """One task of HMM-bench.

    Attributes:
        name: Name of the task.
        kind, about: Category ("state tracking", "forgetting", ...) and one-line description.
        process: Training process, as data of a registered process.
        layout: Layout of training samples, as data of a registered layout.
        target: "observation" or "belief".
        light: True for tasks of the light track.
        scored: Fields of the process that differ for scoring, such as a held-out pool.
        reads: True if R² of the decoded belief is scored.
        bench: Version of the benchmark.
    """

    name: str
    kind: str
    about: str
    process: dict[str, Any]
    layout: dict[str, Any]
    target: str = "observation"
    light: bool = False
    scored: dict[str, Any] = field(default_factory=dict)
    reads: bool = False
    bench: str = VERSION

    def generator(self, *, scored: bool = True) -> Process:
        data = self.process | (self.scored if scored else {})
        process: Process = build_spec("process", data, "process").build()
        return process

    def laid_out(self, times: int = 1) -> Layout:
        layout = build_spec("layout", self.layout, "layout")
        found: Layout = replace(layout, length=times * layout.length)
        return found

    def corpus(self, seed: int, times: int = 1, *, stream: str = "test", scored: bool = True) -> ProcessDataset:
        return ProcessDataset(self.generator(scored=scored), layout=self.laid_out(times), seed=seed, stream=stream)

    def asked(self, dataset: ProcessDataset) -> Target:
        return make_target(self.target, dataset.process, dataset.layout)

    def config(self, model: Any, budget: "Budget", training: dict[str, Any], seed: int) -> RunConfig:
        fixed = {"num_steps": budget.num_steps, "batch_size": budget.batch_size, "num_threads": 1, "device": "cpu"}
        free = {"learning_rate": 3e-3, "warmup_steps": min(100, budget.num_steps // 4)} | training
        every = {"evaluate_every": 0, "checkpoint_every": max(200, budget.num_steps // 8)}
        return RunConfig(
            process=self.process,
            layout=self.layout,
            model=model,
            target=self.target,
            training=parse_spec(TrainingSpec, free | fixed | every, "TRAINING"),
            seed=seed,
        )

    @property
    def frozen_kind(self) -> str:
        return WORDS[self.name][0] if self.name in WORDS else self.kind

    def frozen_fields(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.frozen_kind,
            "about": WORDS[self.name][1] if self.name in WORDS else self.about,
            "process": stored_data("process", self.process),
            "layout": stored_data("layout", self.layout),
            "target": self.target,
            "light": self.light,
            "scored": self._scored_keys(),
            "reads": self.reads,
        }

    def _scored_keys(self) -> dict[str, Any]:
        found = stored_data("process", {"name": self.process["name"], **self.scored})
        return {key: value for key, value in found.items() if key != "name"}

    @cached_property
    def digest(self) -> str:
        fields = self.frozen_fields() | {"times": TIMES, "scored_samples": [SCORED, LONGER, READ]}
        trained = self.corpus(0, stream="train", scored=False)
        text = json.dumps(fields, sort_keys=True) + trained.digest(8) + self.corpus(0, TIMES).digest(8)
        return hashlib.sha256(f"HMM-bench/{self.bench}/{text}".encode()).hexdigest()

    def require_frozen(self) -> None:
        frozen = DIGESTS[self.bench][self.name]
        if self.digest != frozen:
            raise DamagedError(
                f"{self.name}: its samples differ from those of HMM-bench {self.bench} ({self.digest[:12]} instead of "
                f"{frozen[:12]}); use NumPy and PyTorch from when that version appeared"
            )


@dataclass(frozen=True)
class Budget:
    """Training budget and limits of a track.

    Attributes:
        track: "light" or "full".
        num_steps, batch_size: Training settings.
        parameters: Maximum number of weights.
        seconds: Seconds on one core, for all tasks of the track and one seed.
    """

    track: str
    num_steps: int
    batch_size: int
    parameters: int
    seconds: int


BUDGETS = {"light": Budget("light", 1200, 32, 250_000, 600), "full": Budget("full", 20_000, 64, 2_000_000, 8 * 3600)}


def _sequences(length: int) -> dict[str, Any]:
    return {"name": "sequences", "length": length, "placeholder": True}


def _group(name: str, group: str, about: str, **fields: Any) -> BenchmarkTask:
    process = {"name": "word-problem", "group": group, "num_generators": 0 if group == "Z2" else 2}
    return BenchmarkTask(
        name=name, kind="state tracking", about=about, process=process, layout=_sequences(16), target="belief", **fields
    )


def _forgetting(speed: str, follow: float, **fields: Any) -> BenchmarkTask:
    process = {"name": "aliased-cycles", "num_states": 8, "num_symbols": 4, "follow": follow, "show": 0.9}
    about = (
        f"A noisy cycle of 8 states and 4 symbols, followed with probability {follow} per step ({speed} forgetting)."
    )
    return BenchmarkTask(
        name=f"forget-{speed}",
        kind="forgetting",
        about=about,
        process=process,
        layout=_sequences(32),
        reads=True,
        **fields,
    )


_EVERY = (
    _group("parity", "Z2", "The parity of the bits so far.", light=True),
    _group("z60", "Z60", "The sum so far, modulo 60, of symbols that stand for two generators of Z60 (abelian)."),
    _group("a5", "A5", "The product so far of symbols for two elements of A5, a non-solvable group.", light=True),
    _group("s5", "S5", "The product so far of two permutations of five elements."),
    _forgetting("quick", 0.6),
    _forgetting("middling", 0.9),
    _forgetting("slow", 0.99, light=True),
    BenchmarkTask(
        name="asked-rarely",
        kind="sparse supervision",
        about="Cyclic-HARD: the state is shown once in sixteen actions; actions since then determine the current "
        "state.",
        process={"name": "cyclic-hard", "num_states": 5, "num_symbols": 3, "prediction_rate": 1 / 16},
        layout=_sequences(32),
        light=True,
    ),
    BenchmarkTask(
        name="more-states",
        kind="sparse supervision",
        about="Cyclic-HARD of 8 states: the state is shown once in eight actions; actions since then determine the "
        "current state.",
        process={"name": "cyclic-hard", "num_states": 8, "num_symbols": 3, "prediction_rate": 1 / 8},
        layout=_sequences(32),
        light=True,
    ),
    BenchmarkTask(
        name="composed",
        kind="in context",
        about="A combination of cycle and emission, with 12 states and 6 symbols, that training never contains.",
        process={"name": "composed-cycles", "num_states": 12, "num_symbols": 6, "num_parts": 16},
        scored={"pool": "held-out"},
        layout=_sequences(48),
    ),
    BenchmarkTask(
        name="which-cycle",
        kind="in context",
        about="One of 16 noisy cycles of 8 states and 4 symbols, drawn for each sample.",
        process={
            "name": "aliased-cycles-mixture",
            "num_states": 8,
            "num_symbols": 4,
            "follow": 0.95,
            "show": 0.9,
            "num_components": 16,
        },
        layout=_sequences(48),
        light=True,
    ),
    BenchmarkTask(
        name="markov",
        kind="in context",
        about="A Markov chain of four symbols, new in every sample.",
        process={"name": "fresh-markov-chains", "num_states": 4, "num_symbols": 4},
        layout=_sequences(48),
        light=True,
    ),
    BenchmarkTask(
        name="told",
        kind="HMM in the prompt",
        about="An HMM of 2 states and 2 symbols, new in every sample, with its matrices in the prompt.",
        process={"name": "told-hmms", "least": 1},
        layout={"name": "header", "length": 32},
        light=True,
        reads=True,
    ),
    BenchmarkTask(
        name="mess3",
        kind="belief geometry",
        about="Mess3, whose belief states form a fractal.",
        process={"name": "mess3"},
        layout=_sequences(32),
        light=True,
        reads=True,
    ),
    BenchmarkTask(
        name="rrxor",
        kind="belief geometry",
        about="Random-random-XOR: two fair bits, then their exclusive or.",
        process={"name": "rrxor"},
        layout=_sequences(32),
        light=True,
        reads=True,
    ),
    BenchmarkTask(
        name="linear-gaussian",
        kind="real numbers",
        about="A linear system in two dimensions with orthogonal matrices and unit noise; the optimum is the Kalman filter.",
        process={"name": "ran-lds", "dimension": 2},
        layout=_sequences(32),
    ),
)
#: Tasks that only one version has; nearly every model solved the two of version 1.
_ONLY = {"1": ("forget-slow", "mess3"), "2": ("more-states", "which-cycle")}
#: Tasks by version.
TASKS_OF = {
    bench: tuple(replace(task, bench=bench) for task in _EVERY if task.name not in _ONLY[other])
    for bench, other in (("1", "2"), ("2", "1"))
}
TASKS = TASKS_OF[VERSION]


def tasks_of(track: str, names: Sequence[str] | None = None, bench: str = VERSION) -> tuple[BenchmarkTask, ...]:
    """Return all tasks, or the named tasks, of a track in a version.

    Raises:
        InputError: The track or a task is unknown.
    """
    if track not in BUDGETS:
        raise unknown_name("track", track, BUDGETS)
    found = {task.name: task for task in TASKS_OF[bench] if task.light or track == "full"}
    is_list = names is None or (isinstance(names, Iterable) and not isinstance(names, str))
    require(is_list, "tasks", "must be a list of task names", names)
    for name in names or ():
        if name not in found:
            raise unknown_name("tasks", name, found)
    return tuple(found.values()) if names is None else tuple(found[name] for name in found if name in names)
