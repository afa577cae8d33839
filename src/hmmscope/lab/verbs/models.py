"""Loading of models for commands: folders of runs or of Hugging Face models, and FILE.py:NAME."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from hmmscope.analysis.initialization import Controls, made_controls
from hmmscope.errors import InputError
from hmmscope.interop import from_huggingface
from hmmscope.lab.model_file import ModelFile, as_script, imports_beside, one_line, split_name
from hmmscope.lab.verbs.pages import is_run
from hmmscope.runs.pipeline import load_run
from hmmscope.schema import unknown_name
from hmmscope.storage.rundir import RunDir


def load_model(name: str) -> tuple[Any, Controls | None]:
    """Return the model (or `name` for a run folder), and FILE.py's function that makes untrained models, or None."""
    path, attribute = split_name(name)
    if attribute:
        return _made_by(Path(path), attribute)
    if name.endswith(".py"):
        raise InputError(
            f"model: give {name}:NAME, where NAME is an nn.Module or a function without arguments that returns one"
        )
    if not os.path.isdir(name):
        raise InputError(f"model: folder {name!r} does not exist; give a run, a Hugging Face folder, or FILE.py:NAME")
    if any(os.path.lexists(Path(name) / one) for one in ("seeds.json", "checkpoints")):
        RunDir.open(Path(name))
        return name, None
    return from_huggingface(name), None


def trained_by(model: Any, process: str | None) -> tuple[Any, str | None]:
    if isinstance(model, nn.Module) and process is not None and is_run(Path(process)):
        return load_run(process, model=model), None
    return model, process


def _made_by(path: Path, attribute: str) -> tuple[nn.Module, Controls | None]:
    if not path.is_file():
        raise InputError(f"model: file {str(path)!r} does not exist")
    file, make = ModelFile.read(path), None
    with one_line(f"model: {path}:{attribute}"), imports_beside(path), as_script(path):
        module = file.run()
        if not hasattr(module, attribute):
            own = [name for name, one in vars(module).items() if isinstance(one, nn.Module) or _is_own(one, module)]
            raise unknown_name(f"model: {path}", attribute, own)
        found = getattr(module, attribute)
        if callable(found) and not isinstance(found, nn.Module):
            make, found = found, found()
    if not isinstance(found, nn.Module):
        raise InputError(f"model: {path}:{attribute} must be an nn.Module or return one, got {type(found).__name__}")
    return found, make if make is not None and _draws(make, found) else None


def _is_own(one: Any, module: ModuleType) -> bool:
    return callable(one) and getattr(one, "__module__", None) == module.__name__


def _draws(make: Callable[[], Any], model: nn.Module) -> bool:
    try:
        made_controls(make, model, (0, 1))
    except InputError:
        return False
    return True
