"""The verb `analyse`: run an instrument on a trained run, or export the run to Hugging Face."""

import hashlib
import inspect
import re
from pathlib import Path
from typing import Any

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.lab.verbs.export import export
from hmmscope.lab.verbs.options import AnalyseOptions
from hmmscope.lab.verbs.sources import find_process
from hmmscope.runs import development
from hmmscope.runs.pipeline import load_run
from hmmscope.schema import parse_value, unknown_name
from hmmscope.storage import seals, store
from hmmscope.text import say


def analyse(options: AnalyseOptions) -> None:
    """Run an instrument on the final model or on all stored checkpoints and write the table; or export the model."""
    if options.export is not None:
        given = [name for name in options.beyond_defaults() if name not in ("export", "quiet", "run")]
        if given or options.overrides:
            raise InputError(f"--export: exports the model only; leave out {(given or [*options.overrides])[0]}")
        return export(options.run, options.export, options.quiet)
    if options.instrument is None:
        raise InputError("instrument: missing; give one of hmmscope show instruments, or --export DIR")
    _instrument(options, options.instrument)


def _instrument(asked: AnalyseOptions, instrument: str) -> None:
    sequences, overrides, quiet, reading = asked.sequences, asked.overrides, asked.quiet, asked.reading()
    tool = registry.lookup("instrument", instrument)
    known = {
        name: parameter
        for name, parameter in inspect.signature(tool).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    options: dict[str, Any] = {}
    for key, value in overrides.items():
        if key not in known:
            raise unknown_name(f"--{key}", key, known)
        lists = ("layers", "interventions")
        default = known[key].default
        kind = tuple[str, ...] if key in lists else str if default is None else type(default)
        options[key] = find_process(value) if key == "observer" else parse_value(kind, value, f"--{key}")
    if sequences is None:
        given = next((name for name, value in reading.items() if value is not None), None)
        if given is not None:
            raise InputError(f"--{given}: applies to --sequences FILE only")
    elif instrument != "curves":
        raise InputError(
            "--sequences: the hidden states of given sequences are unknown; only the instrument curves can use them"
        )
    loaded = load_run(asked.run)
    dataset = loaded.dataset("probe") if sequences is None else loaded.dataset_of(sequences, **reading)
    if dataset.process.data is not None and sequences is not None and not quiet:
        say(dataset.process.data.describe())
    if instrument == "curves":  # defaults from the training run
        trained_for = {"target": loaded.config.target, "block_length": loaded.config.training.block_length}
        options = trained_for | options
    if asked.over_checkpoints:
        rows = development.over_training(loaded, tool, dataset=dataset, **options)
    else:
        rows = tool(loaded.model, dataset, **options)
    about = "" if sequences is None else f"-{Path(sequences).name}"
    named = (
        about
        + "-over-training" * asked.over_checkpoints
        + "".join(f"-{key}-{value}" for key, value in overrides.items())
    )
    path = loaded.path / "analysis" / f"{_file_name(instrument + named)}.jsonl"
    store.make_folder(path.parent)
    store.write_table(path, rows)
    seals.cover(path)
    for line in getattr(rows, "warnings", ()):
        say(f"warning: {line}")
    if not quiet:
        columns = list(rows[0])
        say("  ".join(f"{column:>12}" for column in columns))
        for row in rows:
            say("  ".join(f"{_short(row[column]):>12}" for column in columns))
    say(f"table: {path}")


def _short(value: object) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _file_name(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:200]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
