"""`look`: write the page that compares a model with the Bayes optimum."""

import html
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hmmscope.analysis.activations import check_layers
from hmmscope.analysis.belief_map import dataset_for
from hmmscope.analysis.devices import on_device
from hmmscope.analysis.rehearsing import already_rehearsed, rehearsed
from hmmscope.analysis.untrained_controls import InstrumentOptions, UntrainedControls, draw_controls
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError
from hmmscope.lab.experiments.run_page import description
from hmmscope.lab.model_page.page_measurements import PageInputs, measured
from hmmscope.lab.report.folder import UNSEALED
from hmmscope.lab.report.look_page import render_look, write_look
from hmmscope.models.adapted import shown_model, title_of
from hmmscope.models.user_module import model_name
from hmmscope.processes.process import Process
from hmmscope.progress import Progress
from hmmscope.reprs import ResultTable, Tabular
from hmmscope.runs.pipeline import Run, load_run
from hmmscope.schema import options_of, require, require_count, require_path
from hmmscope.sequences.data import SequenceData
from hmmscope.storage import seals

#: Largest number of held-out samples.
MOST_SAMPLES = 2**20
#: Descriptions of the network before training: of a run, and of a module whose initial weights are unknown.
FIRST_WEIGHTS, A_TWIN = "this network with its initial weights", "an untrained network of the same architecture"


@dataclass(frozen=True, repr=False)
class ModelPage(Tabular):
    """Comparison of a model with the Bayes optimum: measurements and their page.

    Attributes:
        data: Everything on the page, as plain data.
        path: Path of the page, or None if it was not written.
    """

    data: dict[str, Any]
    path: Path | None = None

    @property
    def losses(self) -> ResultTable:
        """Return rows (name, role, value, low, high) of the losses of optimum, model, baseline and controls."""
        return self._table("losses", self.data["losses"], "value")

    @property
    def layers(self) -> ResultTable:
        """Return rows with the R² of the belief in each layer, for the model, its controls and its initial weights."""
        rows = [] if self.data["beliefs"] is None else self.data["beliefs"]["layers"]
        return self._table(
            "R² by layer", [{k: v for k, v in row.items() if k not in ("after", "before")} for row in rows], "r2"
        )

    def _table(self, title: str, rows: list[dict[str, Any]], y: str) -> ResultTable:
        made = ResultTable(rows, title, x="name", y=y, by=())
        made.about, made.warnings = self.about, tuple(self.warnings)
        return made

    @property
    def warnings(self) -> list[str]:
        """Return warnings about a user's module, one line each."""
        return list(self.data["warnings"])

    @property
    def about(self) -> dict[str, Any]:
        """Return the settings of the measurements, such as length, number of samples and seed."""
        return dict(self.data["about"])

    @property
    def unknown(self) -> list[str]:
        """Return the questions that the page cannot answer, one sentence each."""
        return list(self.data["unknown"])

    def table(self) -> ResultTable:
        """Return `losses`."""
        return self.losses

    def plot(self, *, ax: Any = None) -> Any:
        """Return a Matplotlib figure of `losses`; `layers.plot()` draws R² by layer."""
        return self.losses.plot(ax=ax)

    def html(self) -> str:
        return render_look(self.data)

    def save(self, out: str | Path) -> Path:
        """Write the page atomically.

        Raises:
            InputError: `out` does not end in .html.
        """
        return write_look(self.data, Path(out))

    def __repr__(self) -> str:
        rows = ", ".join(f"{row['name']} {row['value']:.4f}" for row in self.losses)
        beliefs = self.data["beliefs"]
        read = f"; belief in {beliefs['best']}: {beliefs['text']}" if beliefs else ""
        where = f"; page: {self.path}" if self.path else ""
        invalid = f"; INVALID: {self.data['invalid']}" if self.data["invalid"] else ""
        told = invalid + "".join(f"; warning: {line}" for line in self.warnings)
        about = f"{self.data['name']} on {self.data['process']}, length {self.data['length']}"
        return f"Look({about}: {rows} {self.data['unit']}{read}{told}{where})"

    def _repr_html_(self) -> str:
        page = html.escape(self.html(), quote=True)
        frame = "width:100%;height:760px;border:1px solid #ccc;border-radius:8px"
        return f'<iframe title="hmmscope look" sandbox="allow-scripts" style="{frame}" srcdoc="{page}"></iframe>'


def look(
    model: nn.Module | Run | str | Path,
    process: Process | ProcessDataset | SequenceData | str | Path | None = None,
    out: str | Path | None = None,
    *,
    layers: Sequence[str] | None = None,
    length: int | None = None,
    num_samples: int = 256,
    seed: int = 0,
    options: InstrumentOptions | None = None,
    device: str | None = None,
) -> ModelPage:
    """Compare one model with the Bayes optimum of its process, on an offline page or inline in a notebook.

    The page shows the losses of the model, the optimum, the best n-gram baseline and untrained controls; belief maps of
    each layer before and after training; attention; and an intervention. If the page can run the model in the browser,
    readers can also enter symbols.

    Args:
        model: A module that maps tokens (batch, time) to logits, a run, or the folder of a run.
        process: The process of the training data (object, name or file), a dataset, or sequences; not for a run.
        out: Path of the page, ending in .html.
        layers: Names of modules; beliefs are regressed on their outputs (default: the residual stream).
        length: Number of observations in a sample, as in training; needed for a module that does not store it.
        num_samples: Number of held-out samples for the losses.
        seed: Seed of samples and controls.
        options: Options of the measurements, see `InstrumentOptions`.
        device: Device on which the model runs; the model is moved back at the end.

    Raises:
        InputError: Model, process or length is missing, the model does not fit, or `out` does not end in .html.
    """
    if out is not None and require_path("out", out).suffix not in (".html", ".htm"):
        raise InputError(f"out: must end in .html, got {os.fspath(out)!r}")
    options = options_of(options, InstrumentOptions).without(observer="must be unset: the page uses the exact beliefs")
    num_points = 4000 if options.num_points is None else options.num_points
    require_count("num_points", num_points, 100)
    require(1 <= num_samples <= MOST_SAMPLES, "num_samples", f"must be in [1, {MOST_SAMPLES}]", num_samples)
    with Progress(None, "look", quiet=None), on_device(model, device):
        given = load_run(model) if isinstance(model, str | Path) else model
        made = _made(given) if isinstance(given, Run) else None
        if isinstance(given, Run):
            subject = _of_run(given, process, options, length)
        elif isinstance(given, nn.Module):
            subject = _of_module(given, process, options, length, seed)
        else:
            raise InputError(f"model: must be a module, a run or the folder of a run, got {shown_model(model)}")
        with already_rehearsed():
            check_layers(subject.model, layers or ())
            data = measured(subject, num_samples=num_samples, num_points=num_points, layers=layers) | {"made": made}
    return ModelPage(data, None if out is None else write_look(data, Path(out)))


def _of_module(model: nn.Module, process: Any, options: InstrumentOptions, length: int | None, seed: int) -> PageInputs:
    probe = dataset_for(model, process, length, seed)
    layout = probe.layout
    target = make_target("observation", probe.process, layout)
    lines = rehearsed(model, probe, target)
    held_out, training = (
        ProcessDataset(probe.process, layout=layout, seed=probe.seed, stream=s) for s in ("evaluate", "train")
    )
    twins = draw_controls(model, options.num_controls_or(), seed=seed, controls=options.controls)
    return PageInputs(
        model=model,
        name=title_of(model),
        probe=probe,
        held_out=held_out,
        training=training,
        target=target,
        block_length=0,
        controls=twins,
        before=_first(twins),
        before_is=A_TWIN,
        warnings=lines,
        seed=seed,
    )


def _of_run(run: Run, process: Any, options: InstrumentOptions, length: int | None) -> PageInputs:
    if process is not None or length is not None:
        raise InputError("process: a run has its own process and length; omit both, or pass run.model instead")
    block_length = run.config.training.block_length
    lines = () if block_length else rehearsed(run.model, run.dataset("probe"), run.target)
    before = run.untrained()
    twins = draw_controls(
        run.model, options.num_controls_or(), seed=run.config.seed, controls=options.controls, first=before
    )
    return PageInputs(
        model=run.model,
        name=model_name(run.config.model),
        probe=run.dataset("probe"),
        held_out=run.dataset("evaluate"),
        training=run.dataset("train"),
        target=run.target,
        block_length=block_length,
        controls=twins,
        before=before,
        before_is=FIRST_WEIGHTS,
        steps=run.config.training.num_steps,
        warnings=lines,
        seed=run.config.seed,
    )


def _made(run: Run) -> dict[str, Any]:
    found = description(run)
    sealed = seals.open_sealed(run.path, weights=False) is not None
    return {
        "name": run.path.name,
        "figures": found.figures,
        "facts": [*found.about["facts"], *([] if sealed else [{"name": "seal", "value": UNSEALED}])],
        "command": found.about["command"],
        "config": json.dumps(found.about["config"], indent=2, ensure_ascii=False),
    }


def _first(twins: UntrainedControls) -> nn.Module | None:
    return twins.models[0] if twins.models else None
