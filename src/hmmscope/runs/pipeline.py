"""A trained model and its data, loaded from a run folder."""

import os
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from hmmscope import registry
from hmmscope.analysis.untrained_controls import draw_controls
from hmmscope.datasets.process_dataset import ProcessDataset, vocab_size
from hmmscope.datasets.targets import Target, dataset_of, make_target
from hmmscope.errors import DamagedError, InputError
from hmmscope.models.base import ModelIO, SequenceModel, build_model
from hmmscope.models.block_cot import feedback_width
from hmmscope.models.rehearsal import copied_model
from hmmscope.models.user_module import UserModuleSpec, as_module, model_name, unwrapped
from hmmscope.processes.files import load_process
from hmmscope.processes.make import built
from hmmscope.processes.process import Process
from hmmscope.reprs import Tabular, html_table, plot_rows
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.settings import plain
from hmmscope.runs.timings import NotMeasuredError, kept_timing, timing
from hmmscope.schema import require, require_path
from hmmscope.storage import disk, store
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.storage.seals import open_sealed
from hmmscope.training.engines import Choice, choose_engine
from hmmscope.training.state import load_weights
from hmmscope.training.updates import target_loss

#: Files of a run folder with a copy of a user's process and with the initial weights of a user's module.
OWN_PROCESS, FIRST_WEIGHTS = "process.safetensors", "first-weights.safetensors"


@dataclass(frozen=True)
class Run(Tabular):
    """A trained model and its data.

    Attributes:
        path: The run folder.
        config: The configuration.
        process: The data-generating process.
        model: A `SequenceModel` or the user's module, with the weights of the last checkpoint.
        summary: Results of a finished run, else None: ``loss``, ``bayes_loss``, their difference ``excess`` with its
            interval, ... For recorded sequences, ``bayes_loss`` and ``excess`` are None.
    """

    path: Path
    config: RunConfig
    process: Process
    model: Any
    summary: dict | None

    def __repr__(self) -> str:
        label = f"{model_name(self.config.model)} on {getattr(self.process, 'title', '') or repr(self.process)}"
        if self.summary is None:
            return f"Run({label}, not finished, path={str(self.path)!r})"
        beside = _beside(self.summary)
        steps = f"{self.summary['steps']} step{'s' * (self.summary['steps'] != 1)}"
        return f"Run({label}, {steps}, loss {self.summary['loss']:.4f} ({beside}))"

    def _repr_html_(self) -> str:
        rows: dict[str, Any] = {
            "model": model_name(self.config.model),
            "process": repr(self.process),
            "folder": self.path,
        }
        return html_table("Run", rows | (self.summary or {"state": "not finished"}))

    def table(self) -> list[dict[str, Any]]:
        """Return the training records: step, loss and evaluation loss."""
        return list(read_journal(self.path / "metrics.jsonl"))

    @property
    def seconds_per_step(self) -> float | None:
        """Return the mean processor time of a training step, in seconds; None if fewer than two steps were timed."""
        records = [record for record in read_journal(self.path / "timing.jsonl") if "processor_seconds" in record]
        pairs = [
            (later["step"] - one["step"], later["processor_seconds"] - one["processor_seconds"])
            for one, later in pairwise(records)
            if later["step"] > one["step"] and later["processor_seconds"] > one["processor_seconds"]
        ]
        steps = sum(count for count, _ in pairs)
        return sum(seconds for _, seconds in pairs) / steps if steps else None

    def plot(self, *, ax: Any = None) -> Any:
        """Return a Matplotlib figure of the losses over training."""
        rows = [
            {"step": row["step"], "of": name, "loss": row.get(key)}
            for name, key in (("training batch", "loss"), ("evaluation", "evaluation_loss"))
            for row in self.table()
        ]
        return plot_rows(rows, repr(self.process), x="step", y="loss", by=("of",), ax=ax)

    def dataset(self, stream: str = "evaluate") -> ProcessDataset:
        """Return a `ProcessDataset` of the run; its streams "evaluate" and "probe" are never used in training."""
        return ProcessDataset(self.process, layout=self.config.layout, seed=self.config.seed, stream=stream)

    def compare_with_untrained(self) -> list[tuple[str, Any]]:
        """Return pairs (name, model): the "trained" model, and three "untrained" controls of the same architecture."""
        twins = draw_controls(self.model, seed=self.config.seed, first=self.untrained()).models
        return [("trained", self.model), *(("untrained", twin) for twin in twins)]

    def dataset_of(self, source: Any, **reading: Any) -> ProcessDataset:
        """Return the sequences of a source as a dataset with the Bayes optimum of the run's process."""
        return dataset_of(source, self.process, self.config.layout, seed=self.config.seed, **reading)

    @property
    def target(self) -> Target:
        return make_target(self.config.target, self.process, self.config.layout)

    def untrained(self) -> Any:
        """Return the model with its initial weights."""
        return self.model_at(0)

    def model_at(self, step: int) -> Any:
        """Return a copy of the model with its weights after `step` steps.

        Raises:
            InputError: No checkpoint of that step is stored; `training.num_log_checkpoints` sets the stored steps.
            DamagedError: The checkpoint is damaged.
        """
        config, given = self.config, isinstance(self.config.model, UserModuleSpec)
        if isinstance(config.model, UserModuleSpec):
            config = replace(config, model=config.model.with_module(copied_model(self.model)))
        net = untrained_model(config, self.process)
        if step:
            found = RunDir.open(self.path).load_checkpoint(step)
            assert found is not None
            load_weights(net, found[1].get("model", {}))
        elif given:
            load_weights(net, store.read_tensors(self.path / FIRST_WEIGHTS, managed=True))
        return unwrapped(net)

    def checkpoint_steps(self) -> list[int]:
        """Return the steps with stored weights: 0, and completed steps chosen by ``training.num_log_checkpoints``.

        Raises:
            InputError: The run stores no intermediate checkpoints.
            DamagedError: A checkpoint of a finished run is missing.
        """
        wanted = self.config.training.log_checkpoint_steps
        if not wanted:
            raise InputError(
                f"{self.path}: has no intermediate checkpoints; train again with --training.num_log_checkpoints 20 "
                "(training={'num_log_checkpoints': 20} in Python)"
            )
        found = set(RunDir.open(self.path).checkpoint_steps())
        lost = [step for step in wanted if step not in found]
        if lost and self.summary is not None:
            raise DamagedError(f"{self.path}: the run is finished, but its checkpoint of step {lost[0]} is missing")
        return [0, *(step for step in wanted if step in found)]

    def report(self, out: str | Path | None = None) -> Path:
        """Write the model page of the finished run (default ``report.html`` in its folder) and return the page's path.

        Raises:
            InputError: The run is not finished, or `out` does not end in .html.
        """
        place: Path = self.look(self.path / "report.html" if out is None else out).path
        return place

    def look(self, out: str | Path | None = None) -> Any:
        """Return a notebook view of the model and the Bayes-optimal predictor; write it as page `out`, if given."""
        return registry.lookup("page", "look")(self, out)


def _beside(summary: dict) -> str:
    if summary["bayes_loss"] is not None:
        return f"Bayes optimum {summary['bayes_loss']:.4f}"
    return f"optimum unknown; {summary['baseline']} {summary['baseline_loss']:.4f}"


def read_run(path: str | Path) -> Run:
    """Read a run from its folder without the weights; its `model` is None."""
    folder = RunDir.open(require_path("path", path))
    config = config_from_data(folder.config)
    return Run(Path(path), config, _process_of(folder, config), None, folder.done)


def load_run(path: str | Path, *, model: torch.nn.Module | None = None, strict: bool = True) -> Run:
    """Load a run with the weights of its newest complete checkpoint.

    Args:
        path: The run folder.
        model: The user's module passed to `train`, if any; the weights are loaded into it. It may have another
            wrapper than in training, such as `DataParallel`.
        strict: True raises an error if the module's dtype or number of heads differs from those in training.

    Raises:
        InputError: The path is no run folder, it has no checkpoint, or the user's module is missing or does not fit.
        DamagedError: The folder is damaged, or the last checkpoint of a finished run is missing.
    """
    folder, run = RunDir.open(require_path("path", path)), read_run(path)
    config, process = run.config, run.process
    if isinstance(config.model, UserModuleSpec):
        if model is None:
            raise InputError(config.model.refusal(path))
        config = replace(config, model=config.model.with_module(as_module(model), strict=strict))
    elif model is not None:
        raise InputError(f"model: {path} contains the model, {config.model.name}; load it without model=")
    net = untrained_model(config, process)
    if folder.done is not None and open_sealed(folder.path, milestones=False) is None:
        warnings.warn(f"{path}: has no checksums (seal.json), so its files cannot be verified", stacklevel=2)
    found = folder.load_checkpoint()
    if found is None:
        raise InputError(f"{path}: the run has no checkpoint yet; train it with --resume (resume=True in Python)")
    if folder.done is not None and found[0] < config.training.num_steps:
        raise DamagedError(
            f"{path}: the run is finished, but its last complete checkpoint is of step {found[0]}, not "
            f"{config.training.num_steps}; delete done.json and train it again with --resume (resume=True in Python)"
        )
    load_weights(net, found[1].get("model", {}), strict=strict)
    return Run(Path(path), config, process, unwrapped(net), folder.done)


def untrained_model(config: RunConfig, process: Process) -> SequenceModel:
    """Return the model with its initial weights."""
    require(isinstance(config, RunConfig), "config", "must be a RunConfig", config)
    target = make_target(config.target, process, config.layout)
    length = int(config.layout.num_observations)
    with plain():
        return build_model(config.model, model_io_of(config, target), config.seed, trained_length=length)


class TrainingPass:
    """Forward and backward pass of the first training batch, without an update.

    Args:
        config: Configuration of the run, or its plain data.
        device: Device of the model.

    Attributes:
        config: Configuration of the run.
        model: Model with its initial weights.
        batch: Batch on the device.
    """

    def __init__(self, config: RunConfig | dict[str, Any], device: str = "cpu") -> None:
        config = config_from_data(config) if isinstance(config, dict) else config
        process = config.process.build()
        self.config, self.model = config, untrained_model(config, process).to(device)
        self._target = make_target(config.target, process, config.layout)
        batch = ProcessDataset(process, layout=config.layout, seed=config.seed, stream="train")[
            0 : config.training.batch_size
        ]
        moved = {name: getattr(batch, name).to(device) for name in ("tokens", "observations", "states")}
        self.batch = replace(batch, **moved)

    def __call__(self) -> None:
        spec = self.config.training
        self.model.zero_grad(set_to_none=True)
        options: dict[str, Any] = {"block_length": spec.block_length, "block_algorithm": spec.block_algorithm}
        target_loss(self.model, self.batch, self._target, **options).backward()
        if self.batch.tokens.is_cuda:
            torch.cuda.synchronize()


def model_io_of(config: RunConfig, target: Target) -> ModelIO:
    process, layout = target.process, target.layout
    vectors = process.real_valued
    return ModelIO(
        num_outputs=target.num_outputs,
        vocab_size=None if vectors else vocab_size(process, layout),
        input_width=process.num_symbols if vectors else None,
        max_length=layout.context_length,
        feedback_width=feedback_width(target.num_outputs) if config.training.block_length else 0,
    )


def engine_of(config: RunConfig, model_io: ModelIO, num_processes: int = 1, *, measure: bool = True) -> Choice:
    """Choose the training engine of a run, with a reason; without `measure`, use only stored times of the engines."""
    if config.target.startswith("density"):
        if config.training.engine == "compiled":
            raise InputError("training.engine: compiled does not support densities; use torch")
        return Choice("torch", f"target = {config.target} (the compiled engine does not support densities)")
    columns, found = config.layout.context_length, partial(timing if measure else kept_timing, config, model_io)
    try:
        return choose_engine(config.model, model_io, config.training, columns, num_processes, found)
    except NotMeasuredError:
        return Choice("compiled", "unless torch is clearly faster, which the first training on this machine measures")


def _process_of(folder: RunDir, config: RunConfig) -> Process:
    own = folder.path / OWN_PROCESS
    if os.path.lexists(own):
        os.close(disk.open_own(own, os.O_RDONLY))  # a link is refused
    process: Process = load_process(own) if os.path.lexists(own) else built(config.process)
    check_same(folder, process)
    return process


def check_same(folder: RunDir, process: Process) -> None:
    """Raise DamagedError unless the process equals, bit by bit, the process of the run's training."""
    expected = store.read_json(folder.path / "seeds.json", managed=True).get("process_digest")
    if expected not in (process.digest, process.params_digest):  # older folders store the digest without names
        raise DamagedError(
            f"{folder.path}: the process differs from that in training (digest {process.digest[:12]} instead of "
            f"{str(expected)[:12]}); restore the process file, or the package versions in environment.json"
        )
