"""Reading and crash-safe writing of files and folders; the library writes all files with this module.

A file is written under a temporary name in the same folder, synced and renamed to its target; then the rename is
synced. A folder is written in the same way, with a manifest of sizes and SHA-256 digests. Nothing is ever unpickled.
"""

import gc
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.storage import disk
from hmmscope.storage.disk import write_bytes

if TYPE_CHECKING:  # avoid the second that importing torch takes
    import torch

MANIFEST = "manifest.json"
FORMAT, VERSION = "hmmscope-folder", 1

# ---------------------------------------------------------------------------------------------------------------------
# Files


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, obj: Any) -> None:
    """Write `obj` as JSON in UTF-8, with an indent of 1 and keys in insertion order.

    Raises:
        InputError: A value has no JSON form, such as NaN or infinity.
    """
    write_bytes(path, json_bytes(obj, str(path)))


def json_bytes(obj: Any, where: str) -> bytes:
    return dump(obj, where, indent=1, ensure_ascii=False) + b"\n"


def read_json(path: Path, *, limit: int = 64 << 20, managed: bool = False) -> Any:
    """Read a JSON file of at most `limit` bytes, in which NaN and duplicate keys are errors.

    For a `managed` file (written by hmmscope), a link or a missing file is reported as damage.

    Raises:
        InputError: The file is missing, not a regular file, or larger than `limit`.
        DamagedError: The file is not JSON.
    """
    return parse(disk.read_bytes(path, managed=managed, limit=limit), str(path))


def read_text(path: Path, *, limit: int) -> str:
    """Read UTF-8 text of at most `limit` bytes.

    Raises:
        InputError: The file is missing, not a regular file, too large, or not UTF-8.
    """
    try:
        return disk.read_bytes(path, managed=False, limit=limit).decode("utf-8-sig")
    except UnicodeDecodeError:
        packed = "; unpack it first" if path.suffix.lower() in (".gz", ".bz2", ".xz", ".zst", ".zip") else ""
        raise InputError(f"{path}: is not UTF-8 text{packed}") from None


def write_table(path: Path, rows: list[dict]) -> None:
    write_bytes(path, table_bytes(rows, str(path)))


def table_bytes(rows: list[dict], where: str) -> bytes:
    lines = []
    for number, row in enumerate(rows):
        try:
            lines.append(dump(row, where) + b"\n")
        except InputError:
            for key, value in row.items():
                dump(value, f"{where}: row {number}, {key!r}")
            raise
    return b"".join(lines)


def read_table(path: Path, *, limit: int = 1 << 30, managed: bool = True) -> list[dict]:
    """Read rows that `write_table` wrote; see `read_json` for `managed`.

    Raises:
        InputError: The file is larger than `limit` bytes, or is missing and not `managed`.
        DamagedError: A line is incomplete or not a JSON object.
    """
    return parse_table(disk.read_bytes(path, managed=managed, limit=limit), str(path))


def parse_table(data: bytes, where: str) -> list[dict]:
    *lines, tail = data.split(b"\n")
    if tail:
        raise DamagedError(f"{where}:{len(lines) + 1}: the last line is incomplete")
    rows = [parse(line, f"{where}:{number}") for number, line in enumerate(lines, 1)]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise DamagedError(f"{where}:{number}: not a JSON object")
    return rows


def write_tensors(path: Path, tensors: dict[str, "torch.Tensor"], metadata: dict[str, str] | None = None) -> None:
    write_bytes(path, tensor_bytes(tensors, metadata))


def tensor_bytes(tensors: dict[str, "torch.Tensor"], metadata: dict[str, str] | None = None) -> bytes:
    from safetensors.torch import save

    data = save({name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()})
    if not metadata:
        return data
    # safetensors writes metadata in random order; rewrite the header with sorted keys.
    header, body = _split_header(data)
    text = json.dumps({"__metadata__": metadata, **header}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def read_tensors(path: Path, *, limit: int = 1 << 40, managed: bool = False) -> dict[str, "torch.Tensor"]:
    """Read the tensors of a safetensors file to the CPU; see `read_json` for `managed`.

    Raises:
        InputError: See `read_json`.
        DamagedError: The file is not a complete safetensors file.
    """
    return parse_tensors(disk.read_bytes(path, managed=managed, limit=limit), str(path))


def parse_tensors(data: bytes, where: str) -> dict[str, "torch.Tensor"]:
    from safetensors.torch import load

    try:
        return load(data)
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        raise DamagedError(f"{where}: is not a complete safetensors file ({_line(error)})") from error


def _split_header(data: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    if end > len(data):
        raise ValueError("header longer than the file")
    return json.loads(data[8:end]), data[end:]


def dump(obj: Any, where: str, **options: Any) -> bytes:

    def scalar(value: Any) -> Any:
        if getattr(value, "ndim", None) == 0:
            return value.item()
        raise TypeError(f"{type(value).__name__} has no JSON form")

    try:
        return json.dumps(obj, allow_nan=False, default=scalar, **options).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: {_line(error)}") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key occurs twice among {sorted(key for key, _ in pairs)[:8]}")
    return found


def parse(data: bytes, where: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    collects = gc.isenabled()
    gc.disable()  # millions of small lists would be traversed again and again; parsing makes no cycles
    try:
        return json.loads(data.decode(), object_pairs_hook=unique_keys, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: not JSON: {_line(error)}") from error
    finally:
        if collects:
            gc.enable()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# ---------------------------------------------------------------------------------------------------------------------
# Folders

#: Value of "format" in the file that identifies a folder; files of versions before 0.3 have no "format".
FORMATS = {"grid": "hmmscope-grid/1", "experiment": "hmmscope-experiment/1"}


def check_format(document: Any, kind: str, path: Path) -> None:
    if not isinstance(document, dict) or document.get("format", FORMATS[kind]) != FORMATS[kind]:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise DamagedError(f"{path}: has format {str(found)[:40]!r}, not {FORMATS[kind]}; if newer, upgrade hmmscope")


@contextmanager
def new_folder(path: Path, *, manifest: bool = True) -> Iterator[Path]:
    """Yield a temporary folder to fill, renamed to `path` atomically when the block ends.

    Raises:
        RefusedError: `path` exists.
        ResourceError: The disk is full, read-only or failing.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists; choose another name")
    with disk.writing(path, 0):
        temporary, lock = disk.open_temporary(path, _make_and_open)
    try:
        yield temporary
        if manifest:
            write_manifest(temporary)
        files, folders = _contents(temporary)
        with disk.writing(path, sum(file.stat().st_size for file in files)):
            for file in files:
                fd = disk.open_own(file, os.O_RDONLY)
                try:
                    disk.fsync(fd)
                finally:
                    os.close(fd)
            for folder in folders:
                disk.fsync_dir(folder)
            disk.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            disk.remove_tree(temporary)
        raise
    finally:
        os.close(lock)
    with disk.writing(path, 0):
        disk.fsync_dir(path.parent)


def _make_and_open(path: Path) -> int:
    disk.mkdir(path)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(path: Path) -> None:
    path = Path(path)
    if not path.is_dir() and path != path.parent:
        make_folder(path.parent)
        with disk.writing(path, 0):
            try:
                disk.mkdir(path)
            except FileExistsError:  # created by another process, or a file
                if not path.is_dir():
                    raise
            disk.fsync_dir(path.parent)


def write_manifest(folder: Path) -> None:
    files = file_entries(folder, [file.relative_to(folder).as_posix() for file in _contents(folder)[0]])
    write_json(folder / MANIFEST, {"format": FORMAT, "version": VERSION, "files": files})


def file_entries(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    entries = {}
    for name in names:
        with disk.reading(folder / name, managed=True) as stream:
            size = os.fstat(stream.fileno()).st_size
            entries[name] = {"size": size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
    return entries


def check_entries(folder: Path, entries: dict[str, Any], where: str) -> None:
    for name, expected in entries.items():
        with _opened_entry(folder, name, expected, where) as stream:
            _check_digest(hashlib.file_digest(stream, "sha256").hexdigest(), folder / name, expected, where)


def read_entry(folder: Path, name: str, expected: Any, where: str) -> bytes:
    with _opened_entry(folder, name, expected, where) as stream:
        data = stream.read(expected["size"])
    _check_digest(hashlib.sha256(data).hexdigest(), folder / name, expected, where)
    return data


@contextmanager
def _opened_entry(folder: Path, name: str, expected: Any, where: str) -> Iterator[BufferedReader]:
    file, parts = folder / name, Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
        raise DamagedError(f"{folder / where}: lists {name!r}, which is not a file in the folder")
    for parent in list(file.parents)[: len(parts) - 1]:
        if parent.is_symlink():
            raise DamagedError(f"{parent}: is a symbolic link, which is not followed")
    with disk.reading(file, managed=True) as stream:
        size = os.fstat(stream.fileno()).st_size
        if not isinstance(expected, dict) or expected.keys() != {"size", "sha256"} or size != expected["size"]:
            raise DamagedError(f"{file}: has {size} bytes, but {where} recorded another size")
        yield stream


def _check_digest(digest: str, file: Path, expected: Any, where: str) -> None:
    if digest != expected["sha256"]:
        raise DamagedError(f"{file}: altered (its SHA-256 differs from the SHA-256 in {where})")


def verify_folder(path: Path, *, exact: bool = True) -> dict:
    """Return the manifest of a folder after comparing every file's size and digest with it.

    If `exact` is true, a file that the manifest does not name raises an error.

    Raises:
        DamagedError: A file is missing, altered, not in the manifest, or a link; the message names the first.
    """
    manifest = read_manifest(path, exact=exact)
    check_entries(path, manifest["files"], MANIFEST)
    return manifest


def read_manifest(path: Path, *, exact: bool = True) -> dict:
    path = Path(path)
    if path.is_symlink() or not path.is_dir():
        raise DamagedError(f"{path}: is missing, is a link, or is not a folder")
    manifest = read_json(path / MANIFEST, managed=True)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise DamagedError(f"{path / MANIFEST}: is not {FORMAT!r} version {VERSION}; if newer, upgrade hmmscope")
    files = manifest.get("files")
    if manifest.keys() != {"format", "version", "files"} or not isinstance(files, dict):
        raise DamagedError(f"{path / MANIFEST}: is not a manifest")
    if exact:
        found = {file.relative_to(path).as_posix() for file in _contents(path)[0]} - {MANIFEST}
        if found != files.keys():
            raise DamagedError(f"{path / min(found ^ files.keys())}: is missing, or is not in the manifest")
    return manifest


def remove_folder(path: Path) -> None:
    temporary = disk.temporary_sibling(path)
    with disk.writing(path, 0):
        disk.rename(path, temporary)
        disk.fsync_dir(path.parent)
        disk.remove_tree(temporary)


def remove_file(path: Path) -> None:
    with disk.writing(path, 0):
        disk.unlink(path)
        disk.fsync_dir(path.parent)


def move_folder(path: Path, new: Path) -> None:
    with disk.writing(new, 0):
        disk.rename(path, new)
        disk.fsync_dir(path.parent)


def remove_leftovers(folder: Path) -> None:
    with disk.writing(folder, 0):
        disk.remove_leftovers(folder)


def _contents(folder: Path) -> tuple[list[Path], list[Path]]:
    files: list[Path] = []
    folders = [folder]
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise DamagedError(f"{folder}: cannot be listed ({error.strerror})") from error
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            inner_files, inner_folders = _contents(Path(entry.path))
            files += inner_files
            folders += inner_folders
        elif entry.is_file(follow_symlinks=False):
            files.append(Path(entry.path))
        else:
            raise DamagedError(f"{entry.path}: is a link or not a regular file; remove it")
    return files, folders
