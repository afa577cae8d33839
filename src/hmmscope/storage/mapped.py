"""Reading of untrusted array files: memory-mapped safetensors, and NPZ with bounded decompression."""

import io
import json
import math
import mmap
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hmmscope.errors import DamagedError, InputError
from hmmscope.storage import disk

if TYPE_CHECKING:
    import torch

#: Endings of files of arrays.
ARRAYS = (".npy", ".npz", ".safetensors")
_MAX_HEADER = 16 << 20
#: Most bytes that an archive may decompress to: the larger of a fixed number and a multiple of the archive's size.
_INFLATED, _RATIO = 1 << 28, 64
_NAMES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
_MAX_AXES = 64  # NumPy's limit


def map_tensors(path: Path) -> tuple[dict[str, "torch.Tensor"], dict[str, str]]:
    """Map the tensors of a safetensors file into memory; also return its metadata.

    The file must not change while the tensors are in use.
    """
    import torch

    path = Path(path)
    with disk.reading(path, managed=False) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        try:
            if size < 8 or not 0 < length <= min(size - 8, _MAX_HEADER):
                raise ValueError("the header is longer than the file")
            header = json.loads(file.read(length))
            texts = header.pop("__metadata__", {})
            if not all(isinstance(text, str) for text in texts.values()):
                raise ValueError("metadata must be text")
            begin = 8 + length
            places = {str(name): _place(entry, size - begin) for name, entry in header.items()}
            if sum(end - first for first, end, _, _ in places.values()) != size - begin:
                raise ValueError("the tensors do not fill the file")
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DamagedError(f"{path}: is not a complete safetensors file ({reason})") from error
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    tensors = {}
    for name, (first, end, kind, shape) in places.items():
        data_type = getattr(torch, kind)
        if end == first:
            tensors[name] = torch.empty(shape, dtype=data_type)
        elif (begin + first) % data_type.itemsize:
            tensors[name] = torch.frombuffer(bytearray(whole[begin + first : begin + end]), dtype=data_type).view(shape)
        else:
            count = math.prod(shape)
            tensors[name] = torch.frombuffer(whole, dtype=data_type, count=count, offset=begin + first).view(shape)
    return tensors, texts


def _place(entry: dict[str, Any], room: int) -> tuple[int, int, str, tuple[int, ...]]:
    if entry["dtype"] not in _NAMES:
        raise ValueError(f"type {str(entry['dtype'])[:20]} is not supported; save it as I64 or F64")
    kind, width = _NAMES[entry["dtype"]]
    shape = tuple(entry["shape"])
    if len(shape) > _MAX_AXES:
        raise ValueError(f"a tensor has more than {_MAX_AXES} axes")
    first, end = entry["data_offsets"]
    whole = all(type(number) is int and number >= 0 for number in (*shape, first, end))
    if math.prod(max(1, number) for number in shape if type(number) is int) >= 2**63:
        raise ValueError("a shape exceeds any memory")
    if not whole or not first <= end <= room or end - first != math.prod(shape) * width:
        raise ValueError("a tensor extends beyond the file, or its size differs from its shape")
    return first, end, kind, shape


def read_arrays(path: Path, ending: str, *keys: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a file's arrays and JSON header (NPZ: array `header`; safetensors: metadata at the first existing key)."""
    if ending == ".npy":
        return {"observations": read_npy(path)}, {}
    arrays: dict[str, Any]
    arrays, texts = map_tensors(path) if ending == ".safetensors" else (read_npz(path), {})
    if ending == ".npz" and np.ndim(arrays.get("header", "")) == 0:
        texts = {keys[0]: str(arrays.pop("header", "{}"))}
    try:
        header = json.loads(next((texts[key] for key in keys if key in texts), "{}"))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise DamagedError(f"{path.name}: header is not JSON")
    return arrays, header


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read the plain arrays of an NPZ file, without pickles and with bounded decompression."""
    path = Path(path)
    with disk.reading(path, managed=False) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                inflated, allowed = sum(member.file_size for member in members), max(_INFLATED, _RATIO * size)
                if inflated > allowed:
                    raise InputError(
                        f"{path}: its {size} bytes decompress to {inflated} bytes, more than the {allowed} allowed; "
                        "save it without compression"
                    )
                return {
                    member.filename.removesuffix(".npy"): _read_npy(archive.read(member), member.filename)
                    for member in members
                }
        except InputError:
            raise
        except Exception as error:  # NumPy, zipfile and zlib raise a dozen types on invalid archives
            reason = " ".join(str(error).split())[:200]
            raise DamagedError(f"{path.name}: is not a readable NPZ file of plain arrays ({reason})") from None


def read_npy(path: Path) -> NDArray[Any]:
    with disk.reading(path, managed=False) as file:
        try:
            shape, fortran, kind, begin = _head_of(file, os.fstat(file.fileno()).st_size, path.name)
            if math.prod(shape) == 0:
                return np.empty(shape, kind)
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            flat = np.frombuffer(whole, kind, math.prod(shape), begin)
            return flat.reshape(shape, order="F" if fortran else "C")
        except Exception as error:
            raise DamagedError(f"{path.name}: is not a plain array ({' '.join(str(error).split())[:200]})") from None


def _read_npy(data: bytes, name: str) -> NDArray[Any]:
    stream = io.BytesIO(data)
    _head_of(stream, len(data), name)
    stream.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _head_of(stream: BinaryIO, size: int, name: str) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(stream)
    if kind.hasobject:
        raise ValueError(f"{name} holds Python objects")
    if math.prod(shape) * kind.itemsize != size - stream.tell():
        raise ValueError(f"the size of {name} differs from the size in its header")
    return shape, fortran, kind, stream.tell()
