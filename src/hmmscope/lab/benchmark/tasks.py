"""The tasks of HMM-bench, version 1: what generates, how it is laid out, and how much a model may read of it.

A task never changes. What would change its digest is a new version of the bench: see docs/benchmark.md.
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
from hmmscope.lab.benchmark.frozen import DIGESTS, WORDS
from hmmscope.processes.process import Process
from hmmscope.registry import build_spec, stored_data
from hmmscope.runs.config import RunConfig
from hmmscope.schema import parse_spec, require, unknown_name
from hmmscope.training.spec import TrainingSpec

VERSION = "1"
#: Longest samples, in lengths of the training.
TIMES = 8
#: Samples that are scored: of the length of the training, and of the longest one; and read for the belief.
SCORED, LONGER, READ = 128, 32, 64


@dataclass(frozen=True, kw_only=True)
class BenchmarkTask:
    """One task.

    Attributes:
        name: of the task.
        kind, about: for readers, what it asks for ("state tracking", "forgetting", ...) and a line on it.
        process: what trains, as data of a registered process.
        layout: of samples, as data of a registered layout; the longest samples have `TIMES` its length.
        target: "observation" or "belief".
        light: whether it is in the light track.
        scored: fields of the process that differ where it is scored, such as a pool that was held out.
        reads: whether it is asked how much of the exact belief can be read from the model.
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

    def generator(self, *, scored: bool = True) -> Process:
        """What generates: where it is scored, or where it is trained."""
        data = self.process | (self.scored if scored else {})
        process: Process = build_spec("process", data, "process").build()
        return process

    def laid_out(self, times: int = 1) -> Layout:
        """The layout of samples of so many lengths of the training."""
        layout = build_spec("layout", self.layout, "layout")
        found: Layout = replace(layout, length=times * layout.length)
        return found

    def corpus(self, seed: int, times: int = 1, *, stream: str = "test", scored: bool = True) -> ProcessDataset:
        """Samples of the task."""
        return ProcessDataset(self.generator(scored=scored), layout=self.laid_out(times), seed=seed, stream=stream)

    def asked(self, dataset: ProcessDataset) -> Target:
        """What is asked of a model on these samples."""
        return make_target(self.target, dataset.process, dataset.layout)

    def config(self, model: Any, budget: "Budget", training: dict[str, Any], seed: int) -> RunConfig:
        """The training of a model on the task."""
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
        """The kind as digests and cards have it."""
        return WORDS[self.name][0] if self.name in WORDS else self.kind

    def frozen_fields(self) -> dict[str, Any]:
        """Return the fields that enter the digest, under fixed names and in the words of version 1."""
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
        """sha256 of all that fixes the task: its fields, the law, the bits of samples, and what is scored."""
        fields = self.frozen_fields() | {"times": TIMES, "scored_samples": [SCORED, LONGER, READ]}
        trained = self.corpus(0, stream="train", scored=False)
        text = json.dumps(fields, sort_keys=True) + trained.digest(8) + self.corpus(0, TIMES).digest(8)
        return hashlib.sha256(f"HMM-bench/{VERSION}/{text}".encode()).hexdigest()

    def require_frozen(self) -> None:
        """DamagedError if the task of this installation is not the one of the bench."""
        if self.digest != DIGESTS[self.name]:
            raise DamagedError(
                f"{self.name}: its samples here are not those of HMM-bench {VERSION} ({self.digest[:12]} instead of "
                f"{DIGESTS[self.name][:12]}); the numerical libraries differ, or hmmscope does"
            )


@dataclass(frozen=True)
class Budget:
    """What a model may use on a task.

    Attributes:
        track: "light" or "full".
        num_steps, batch_size: of the training, so that tokens are fixed.
        parameters: at most so many weights.
        seconds: of one core, for all tasks of the track and one seed.
    """

    track: str
    num_steps: int
    batch_size: int
    parameters: int
    seconds: int


BUDGETS = {
    "light": Budget("light", 1200, 32, 250_000, 600),
    "full": Budget("full", 20_000, 64, 2_000_000, 8 * 3600),
}


def _sequences(length: int) -> dict[str, Any]:
    return {"name": "sequences", "length": length, "placeholder": True}


def _group(name: str, group: str, about: str, **fields: Any) -> BenchmarkTask:
    process = {"name": "word-problem", "group": group, "num_generators": 0 if group == "Z2" else 2}
    return BenchmarkTask(
        name=name,
        kind="state tracking",
        about=about,
        process=process,
        layout=_sequences(16),
        target="belief",
        **fields,
    )


def _forgetting(speed: str, follow: float, **fields: Any) -> BenchmarkTask:
    process = {"name": "aliased-cycles", "num_states": 8, "num_symbols": 4, "follow": follow, "show": 0.9}
    about = f"A noisy cycle of 8 states and 4 symbols that is followed with probability {follow}: it forgets {speed}ly."
    return BenchmarkTask(
        name=f"forget-{speed}",
        kind="forgetting",
        about=about,
        process=process,
        layout=_sequences(32),
        reads=True,
        **fields,
    )


TASKS = (
    _group("parity", "Z2", "The parity of the bits so far.", light=True),
    _group("z60", "Z60", "The sum modulo 60 of two numbers, as they come: abelian."),
    _group(
        "a5", "A5", "The product so far of two elements of A5, the smallest group that is not solvable.", light=True
    ),
    _group("s5", "S5", "The product so far of two permutations of five things."),
    _forgetting("quick", 0.6),
    _forgetting("middling", 0.9),
    _forgetting("slow", 0.99, light=True),
    BenchmarkTask(
        name="asked-rarely",
        kind="sparse supervision",
        about="Cyclic-HARD: the state shows once in sixteen actions, and is certain to who has followed all of them.",
        process={"name": "cyclic-hard", "num_states": 5, "num_symbols": 3, "prediction_rate": 1 / 16},
        layout=_sequences(32),
        light=True,
    ),
    BenchmarkTask(
        name="composed",
        kind="in context",
        about="A pair of a cycle and an emission, of 12 states and 6 symbols, that was never seen in training.",
        process={"name": "composed-cycles", "num_states": 12, "num_symbols": 6, "num_parts": 16},
        scored={"pool": "held-out"},
        layout=_sequences(48),
    ),
    BenchmarkTask(
        name="markov",
        kind="in context",
        about="A Markov chain of four symbols that is new in every sample.",
        process={"name": "fresh-markov-chains", "num_states": 4, "num_symbols": 4},
        layout=_sequences(48),
        light=True,
    ),
    BenchmarkTask(
        name="told",
        kind="HMM in the prompt",
        about="An HMM of 2 states and 2 symbols, new in every sample, whose matrices stand in the prompt.",
        process={"name": "told-hmms", "least": 1},
        layout={"name": "header", "length": 32},
        light=True,
        reads=True,
    ),
    BenchmarkTask(
        name="mess3",
        kind="belief geometry",
        about="Mess3, whose beliefs fill a fractal.",
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


def tasks_of(track: str, names: Sequence[str] | None = None) -> tuple[BenchmarkTask, ...]:
    """The tasks of a track, or those of them that are named.

    Raises:
        InputError: an unknown track or task.
    """
    if track not in BUDGETS:
        raise unknown_name("track", track, BUDGETS)
    found = {task.name: task for task in TASKS if task.light or track == "full"}
    is_list = names is None or (isinstance(names, Iterable) and not isinstance(names, str))
    require(is_list, "--tasks", "must be a list of names", names)
    for name in names or ():
        if name not in found:
            raise unknown_name("tasks", name, found)
    return tuple(found.values()) if names is None else tuple(found[name] for name in found if name in names)
