"""The verb `analyse`."""

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from torch import nn

from hmmscope import registry
from hmmscope.analysis.belief_map import dataset_for
from hmmscope.analysis.initialization import Controls
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.lab.model_file import kept_running, split_name
from hmmscope.lab.verbs.export import export
from hmmscope.lab.verbs.models import load_model, trained_by
from hmmscope.lab.verbs.options import AnalyseOptions
from hmmscope.lab.verbs.output_paths import new_file
from hmmscope.lab.verbs.sources import find_process
from hmmscope.runs import development
from hmmscope.runs.pipeline import Run, load_run
from hmmscope.schema import parse_value, unknown_name
from hmmscope.storage import seals, store
from hmmscope.text import say


@kept_running()
def analyse(options: AnalyseOptions) -> None:
    if options.export is not None:
        given = [name for name in options.beyond_defaults() if name not in ("export", "quiet", "run")]
        if given or options.overrides:
            raise InputError(f"--export: only exports the model; leave out {(given or [*options.overrides])[0]}")
        return export(options.run, options.export, options.quiet)
    if options.instrument is None:
        raise InputError("instrument: missing; give a name that 'hmmscope show instruments' lists, or --export DIR")
    _instrument(options, options.instrument)


def _instrument(asked: AnalyseOptions, instrument: str) -> None:
    sequences, overrides, quiet, reading = asked.sequences, asked.overrides, asked.quiet, asked.reading()
    tool = registry.lookup("instrument", instrument)
    options = _options_of(tool, overrides)
    if sequences is None:
        given = next((name for name, value in reading.items() if value is not None), None)
        if given is not None:
            raise InputError(f"--{given}: applies to a file of sequences; add --sequences FILE, or leave it out")
    elif instrument != "curves":
        raise InputError(
            "--sequences: needs the instrument `curves`; others need hidden states, which a file of sequences lacks"
        )
    loaded, dataset, controls = _measured(asked)
    if dataset.process.data is not None and sequences is not None and not quiet:
        say(dataset.process.data.describe())
    if controls is not None:
        options = _with_controls(tool, options, controls)
    if isinstance(loaded, Run) and instrument == "curves":  # defaults from the training run
        trained_for = {"target": loaded.config.target, "block_length": loaded.config.training.block_length}
        options = trained_for | options
    if asked.over_checkpoints:
        rows = development.over_training(loaded, tool, dataset=dataset, **options)
    else:
        rows = tool(loaded.model if isinstance(loaded, Run) else loaded, dataset, **options)
    path = None if asked.out is None else Path(asked.out)
    if path is None and isinstance(loaded, Run):
        about = "" if sequences is None else f"-{Path(sequences).name}"
        about += "-over-training" * asked.over_checkpoints + "".join(
            f"-{key}-{value}" for key, value in overrides.items()
        )
        path = loaded.path / "analysis" / f"{_file_name(instrument + about)}.jsonl"
        store.make_folder(path.parent)
    if path is not None:
        store.write_table(path, rows)
        seals.cover(path)
    for line in getattr(rows, "warnings", ()):
        say(f"warning: {line}")
    if not quiet:
        columns = list(rows[0])
        say("  ".join(f"{column:>12}" for column in columns))
        for row in rows:
            say("  ".join(f"{_short(row[column]):>12}" for column in columns))
    if path is not None:
        say(f"table: {path}")


def _measured(asked: AnalyseOptions) -> tuple[Any, ProcessDataset, Controls | None]:
    if asked.out is not None:
        new_file(asked.out, (".jsonl",))
    other = asked.process is not None or split_name(asked.run)[1]
    model, controls = load_model(asked.run) if other else (asked.run, None)
    given, process = trained_by(model, asked.process)
    if isinstance(given, nn.Module):
        if asked.sequences is not None or asked.over_checkpoints:
            raise InputError(
                f"{'--sequences' if asked.sequences else '--over-checkpoints'}: needs a run, got {asked.run}"
            )
        return given, dataset_for(given, process, asked.length), controls
    run = load_run(given) if isinstance(given, str) else given
    if process is not None or asked.length is not None:
        raise InputError(f"{'process' if process else '--length'}: is fixed by the given run; leave it out")
    if asked.sequences is None:
        return run, run.dataset("probe"), controls
    return run, run.dataset_of(asked.sequences, **asked.reading()), controls


def _with_controls(tool: Callable[..., Any], options: dict[str, Any], controls: Controls) -> dict[str, Any]:
    cls = _options_class(tool)
    if cls is None or "controls" not in {one.name for one in fields(cls)}:
        return options
    return options | {"options": replace(options.get("options", cls()), controls=controls)}


def _options_of(tool: Callable[..., Any], overrides: Mapping[str, str]) -> dict[str, Any]:
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(tool).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    known.pop("options", None)
    cls = _options_class(tool)
    rare = {} if cls is None else {one.name: one.default for one in fields(cls)}
    found: dict[str, Any] = {}
    for key, value in overrides.items():
        if key not in known | rare:
            raise unknown_name(f"--{key}", key, known | rare)
        default = (known | rare)[key]
        kind = _KINDS.get(key, str if default is None else type(default))
        found[key] = find_process(value) if key == "observer" else parse_value(kind, value, f"--{key}")
    in_options = {key: found.pop(key) for key in rare if key in found}
    return found | ({"options": cls(**in_options)} if cls is not None and in_options else {})


def _options_class(tool: Callable[..., Any]) -> Any:
    hints: tuple[Any, ...] = get_args(get_type_hints(tool).get("options"))
    return next(filter(is_dataclass, hints), None)


_KINDS: dict[str, Any] = {"layers": tuple[str, ...], "interventions": tuple[str, ...], "num_points": int}


def _short(value: object) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _file_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:200]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
