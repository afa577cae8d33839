"""Plain data and arrays in one file: JSON, NPZ or safetensors."""

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hmmscope.axes import Tensor
from hmmscope.errors import InputError, RefusedError
from hmmscope.storage import store
from hmmscope.storage.mapped import read_arrays

ENDINGS = (".json", ".npz", ".safetensors")
#: Largest count of numbers in a JSON file; `store.read_json` can read such files.
_MOST_IN_JSON = 2_500_000


def read_file(path: Path) -> dict[str, Any]:
    if path.suffix == ".json":
        return _read_json(path)
    arrays, header = read_arrays(path, path.suffix, "hmm")
    return header | arrays


def write_file(path: Path, texts: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> None:
    if path.suffix not in ENDINGS:
        raise InputError(f"path: must end in .json, .npz or .safetensors, got {str(path)!r}")
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists; choose another name")
    size = sum(tensor.numel() for tensor in arrays.values())
    if path.suffix == ".json" and size > _MOST_IN_JSON:
        raise InputError(f"path: {size} numbers are too many for a .json file; use .safetensors")
    if path.suffix == ".json":
        store.write_json(path, {**texts, **{field: tensor.tolist() for field, tensor in arrays.items()}})
    elif path.suffix == ".safetensors":
        store.write_tensors(path, dict(arrays), {"hmm": json.dumps(texts)})
    else:
        buffer = io.BytesIO()
        np.savez(buffer, header=np.array(json.dumps(texts)), **{k: v.numpy() for k, v in arrays.items()})  # type: ignore[arg-type]
        store.write_bytes(path, buffer.getvalue())


def _read_json(path: Path) -> dict[str, Any]:
    data = store.read_json(path)
    if not isinstance(data, dict):
        raise InputError(f"{path.name}: must be a JSON object with fields such as initial, transition and emission")
    return data
