"""The verb `look`."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from hmmscope.analysis.initialization import Controls, made_controls
from hmmscope.analysis.untrained_controls import InstrumentOptions
from hmmscope.errors import InputError
from hmmscope.interop import from_huggingface
from hmmscope.lab.model_file import ModelFile, as_script, imports_beside, kept_running, one_line
from hmmscope.lab.model_page.model_page import look as look_at
from hmmscope.lab.verbs.options import LookOptions
from hmmscope.lab.verbs.pages import is_run, page_place
from hmmscope.runs.pipeline import load_run
from hmmscope.storage.rundir import RunDir
from hmmscope.text import say


@kept_running()
def look(options: LookOptions) -> None:
    """Write the page of a run, of a model in a Hugging Face folder, or of FILE.py:NAME."""
    place = page_place(options.out)
    named = None if options.layers is None else options.layers.split(",")
    (thing, controls), process = load_model(options.model), options.process
    if isinstance(thing, nn.Module) and process is not None and is_run(Path(process)):
        thing, process = load_run(process, model=thing), None  # the user's module that this run trained
    more = InstrumentOptions(controls=controls)
    found = look_at(thing, process, length=options.length, num_samples=options.samples, layers=named, options=more)
    for line in found.warnings:
        say(f"warning: {line}")
    say(f"page: {found.save(place)}")
    if not options.quiet:
        for row in found.losses:
            say(f"{row['value']:.4f} [{row['low']:.4f}, {row['high']:.4f}] {found.data['unit']}  {row['name']}")
        if found.data["beliefs"] is not None:
            say(f"belief in {found.data['beliefs']['best']}: {found.data['beliefs']['text']}")


def load_model(name: str) -> tuple[Any, Controls | None]:
    """Load a run folder, the model of a Hugging Face folder, or the model FILE.py:NAME.

    Raises:
        InputError: Another source, or NAME is not a module and builds none.
    """
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py"):
        return _made_by(Path(file), attribute)
    if name.endswith(".py"):
        raise InputError(
            f"model: give {name}:NAME, where NAME is a module or a function without arguments that returns one"
        )
    if not os.path.isdir(name):
        raise InputError(f"model: folder {name!r} does not exist; give a run, a Hugging Face folder, or FILE.py:NAME")
    if os.path.lexists(Path(name) / "seeds.json") or os.path.lexists(Path(name) / "checkpoints"):
        RunDir.open(Path(name))
        return name, None
    return from_huggingface(name), None


def _made_by(path: Path, attribute: str) -> tuple[nn.Module, Controls | None]:
    if not path.is_file():
        raise InputError(f"model: file {str(path)!r} does not exist")
    file, make = ModelFile.read(path), None
    with one_line(f"model: {path}:{attribute}"), imports_beside(path), as_script(path):
        found = getattr(file.run(), attribute, None)
        if callable(found) and not isinstance(found, nn.Module):
            make, found = found, found()
    if not isinstance(found, nn.Module):
        raise InputError(f"model: {path}:{attribute} must be an nn.Module or return one, got {type(found).__name__}")
    return found, make if make is not None and _draws(make, found) else None


def _draws(make: Any, model: nn.Module) -> bool:
    try:
        made_controls(make, model, (0, 1))
    except InputError:
        return False
    return True
