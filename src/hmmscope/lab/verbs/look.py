"""The verb `look`: one model beside its exact optimum, as a page."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from hmmscope.analysis.initialization import Controls, made_controls
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
    """Write the page of a run, of a model in the layout of Hugging Face, or of a model that a Python file makes."""
    place = page_place(options.out)
    named = None if options.layers is None else options.layers.split(",")
    (thing, controls), process = load_model(options.model), options.process
    if isinstance(thing, nn.Module) and process is not None and is_run(Path(process)):
        thing, process = load_run(process, model=thing), None  # the module of one's own that this run has trained
    found = look_at(thing, process, length=options.length, num_samples=options.samples, layers=named, controls=controls)
    for line in found.warnings:
        say(f"warning: {line}")
    say(f"page: {found.save(place)}")
    if not options.quiet:
        for row in found.losses:
            say(f"{row['value']:.4f} [{row['low']:.4f}, {row['high']:.4f}] {found.data['unit']}  {row['name']}")
        if found.data["beliefs"] is not None:
            say(f"belief in {found.data['beliefs']['best']}: {found.data['beliefs']['text']}")


def load_model(name: str) -> tuple[Any, Controls | None]:
    """A run's folder by its name, or the model that a folder of Hugging Face or a Python file, FILE.py:NAME, stands for.

    With it what makes untrained controls: NAME, if it is a class or a function and makes other weights at each call.

    Raises:
        InputError: none of these, or a file whose NAME is no module and makes none.
    """
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py"):
        return _made_by(Path(file), attribute)
    if name.endswith(".py"):
        raise InputError(f"model: say what makes the model, {name}:NAME, a module or a function without arguments")
    if not os.path.isdir(name):
        raise InputError(f"model: there is no folder {name!r}; give a run, a folder of Hugging Face, or FILE.py:NAME")
    if os.path.lexists(Path(name) / "seeds.json") or os.path.lexists(Path(name) / "checkpoints"):
        RunDir.open(Path(name))
        return name, None
    return from_huggingface(name), None


def _made_by(path: Path, attribute: str) -> tuple[nn.Module, Controls | None]:
    """Run a Python file, and return the module that NAME in it is or makes; it may import what lies beside it."""
    if not path.is_file():
        raise InputError(f"model: there is no file {str(path)!r}")
    file, make = ModelFile.read(path), None
    with one_line(f"model: {path}:{attribute}"), imports_beside(path), as_script(path):
        found = getattr(file.run(), attribute, None)
        if callable(found) and not isinstance(found, nn.Module):
            make, found = found, found()
    if not isinstance(found, nn.Module):
        raise InputError(f"model: {attribute!r} in {path} is no module and makes none, got {type(found).__name__}")
    return found, make if make is not None and _draws(make, found) else None


def _draws(make: Any, model: nn.Module) -> bool:
    """Return whether a function makes a module like this one with new weights at each call."""
    try:
        made_controls(make, model, (0, 1))
    except InputError:
        return False
    return True
