"""Python files that build models, read only once, so that the digest is that of the code that ran."""

import argparse
import ast
import hashlib
import importlib.machinery
import importlib.util
import linecache
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from hmmscope.errors import HmmscopeError, InputError, code_and_line
from hmmscope.storage import disk

#: Largest size of a model file in bytes.
_MOST_BYTES = 2**20


def split_name(name: str) -> tuple[str, str]:
    path, colon, attribute = name.rpartition(":")
    return (path, attribute) if colon and path.endswith(".py") else (name, "")


@dataclass(frozen=True)
class ModelFile:
    """A Python file that builds a model, read once.

    Attributes:
        path: Path of the file.
        source: Bytes of the file, which `run` compiles.
        name: Name of the function or class in the file that builds the model.
    """

    path: Path
    source: bytes
    name: str = field(default="build", compare=False)

    @classmethod
    def read(cls, path: Path, name: str = "build") -> "ModelFile":
        """Read a file.

        Raises:
            InputError: The file does not exist, or exceeds 1 MiB.
        """
        return cls(path, disk.read_bytes(path, managed=False, limit=_MOST_BYTES), name)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source).hexdigest()

    def run(self) -> ModuleType:
        """Run the source as a module in `sys.modules`.

        Raises:
            InputError: The code raises an error, or tries to end the process.
        """
        place = os.path.abspath(self.path)
        module = ModuleType(self._module_name())
        module.__file__ = place
        module.__package__ = ""
        with one_line(f"model: {self.path}"), as_script(self.path):
            code = compile(self.source, place, "exec", dont_inherit=True)
            text = importlib.util.decode_source(self.source)
            # An entry without a date keeps tracebacks and compilers from reading the file again.
            linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
            sys.modules[module.__name__], _RAN[module.__name__] = module, self
            try:
                exec(code, module.__dict__)
            except BaseException:
                sys.modules.pop(module.__name__, None)
                raise
        return module

    def siblings(self) -> list[str]:
        with one_line(f"model: {self.path}"):
            nodes = list(ast.walk(ast.parse(self.source)))
        direct = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        found = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        names = {name.partition(".")[0] for name in [*direct, *(node.module or "" for node in found if not node.level)]}
        relative = {"." * node.level + (node.module or "") for node in found if node.level}
        return sorted(relative | {name for name in names if self._is_beside(name)})

    @contextmanager
    def imports_nothing_beside(self) -> Iterator[None]:
        """Raise InputError if the file, or code in the ``with`` block, imports a module from the file's folder."""
        self._require_none(self.siblings())
        modules, folder = {*sys.modules}, self.path.parent.resolve()
        installed = {place for one in sys.path if folder in (place := Path(one).resolve()).parents}  # an environment
        yield
        new = {name: Path(getattr(sys.modules[name], "__file__", None) or "/") for name in {*sys.modules} - modules}
        above = {name: {*path.resolve().parents} for name, path in new.items() if _RAN.get(name) is not self}
        found = sorted(name for name, one in above.items() if folder in one and not installed & one)
        for name in found:
            del sys.modules[name]  # a second call is refused, too
        self._require_none(found)

    def _require_none(self, siblings: list[str]) -> None:
        if siblings:
            raise InputError(
                f"{self.path}: imports {', '.join(siblings)[:100]} from its own folder, but the digest of a benchmark "
                "entry covers one file only; move that code into the file, or install it as a package"
            )

    def _is_beside(self, name: str) -> bool:
        folder = self.path.parent.resolve()
        spec = _spec_of(name)
        if spec is None:  # nothing installed has this name
            return any(folder.glob(f"{name}.*")) or (folder / name).is_dir()
        places = [*filter(None, [spec.origin if spec.has_location else None]), *(spec.submodule_search_locations or ())]
        return any(Path(place).resolve().parent == folder for place in places)

    def _module_name(self) -> str:
        stem = re.sub(r"\W", "_", self.path.stem)
        if stem in sys.modules:
            taken = _RAN.get(stem) != self
        else:
            spec = _spec_of(stem)
            taken = spec is not None and spec.origin != os.path.abspath(self.path)
        return f"{stem}_{self.digest[:12]}" if taken else stem


#: Model files that this process has run, by module name.
_RAN: dict[str, ModelFile] = {}


def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    with suppress(ImportError, ValueError, AttributeError):
        return importlib.util.find_spec(name)
    return None


@contextmanager
def as_script(path: Path) -> Iterator[None]:
    """Run the ``with`` block as a script without arguments; raise SystemExit if it tries to end the process."""
    argv, complain = sys.argv, argparse.ArgumentParser.error

    def end_in_words(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise SystemExit(message)

    sys.argv, argparse.ArgumentParser.error = [str(path)], end_in_words  # type: ignore[method-assign]
    try:
        with _ends_raise():
            yield
    finally:
        sys.argv, argparse.ArgumentParser.error = argv, complain  # type: ignore[method-assign]


@contextmanager
def kept_running() -> Iterator[None]:
    """Raise InputError if code in the ``with`` block tries to end the process."""
    try:
        with _ends_raise():
            yield
    except SystemExit as error:
        if os.environ.get("WORLD_SIZE", "1") != "1":  # torchrun workers end together
            raise
        raise InputError(
            f"model: the model's code called sys.exit (SystemExit: {error.code}); let it return instead"
        ) from None


@contextmanager
def _ends_raise() -> Iterator[None]:
    end, own = os._exit, os.getpid()

    def end_own(status: int) -> NoReturn:
        if os.getpid() != own or threading.current_thread() is not threading.main_thread():
            end(status)  # a forked child, or a monitoring thread
        raise SystemExit(status)

    os._exit = end_own
    try:
        yield
    finally:
        os._exit = end


@contextmanager
def imports_beside(path: Path) -> Iterator[None]:
    """Let the ``with`` block import from the folder of the file `path`, as a script can."""
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Convert errors of user code in the ``with`` block into an InputError that starts with `what`.

    Errors of hmmscope and Ctrl-C pass unchanged.
    """
    try:
        yield
    except (HmmscopeError, KeyboardInterrupt, BrokenPipeError):
        raise
    except SystemExit as error:
        code = 0 if error.code is None else error.code
        raise InputError(
            f"{what} ends the process (SystemExit: {' '.join(str(code).split())[:100]}) before it builds a model; "
            "put its script code under if __name__ == '__main__':"
        ) from None
    except BaseException as error:
        if isinstance(error, Exception) and code_and_line(error)[0] == 5:
            raise
        raise InputError(f"{what} fails ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from error
