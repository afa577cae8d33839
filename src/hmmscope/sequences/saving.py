"""Writing of sequences to files."""

import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hmmscope.errors import InputError, RefusedError
from hmmscope.sequences.read_request import FORMAT
from hmmscope.storage import store

if TYPE_CHECKING:
    from hmmscope.sequences.data import SequenceData

_ENDINGS = (".safetensors", ".npz", ".jsonl")


def write_sequences(data: "SequenceData", path: object) -> None:
    target = Path(str(path))
    if target.suffix not in _ENDINGS:
        raise InputError(f"path: must end in {', '.join(_ENDINGS)}, got {str(target)!r}")
    if os.path.lexists(target):
        raise RefusedError(f"{target}: exists; choose another name")
    header: dict[str, Any] = {"format": FORMAT, "version": 1, "num_symbols": data.num_symbols}
    header |= {} if data.symbols is None else {"symbols": list(data.symbols)}
    header |= {"gaps": True} if data.num_missing else {}
    if target.suffix == ".jsonl":
        named = dict(enumerate(data.symbols or range(data.num_symbols)))
        rows = [[named.get(v) for v in s.tolist()] for s in data]
        first, *others = ({"observations": row} for row in rows)
        store.write_table(target, [first | {"alphabet": header}, *others])
        return
    text = json.dumps(header)
    if target.suffix == ".safetensors":
        tensors = {"tokens": torch.from_numpy(np.array(data.flat)), "lengths": data.lengths}
        store.write_tensors(target, tensors, {"sequences": text})
        return
    buffer = io.BytesIO()
    np.savez(buffer, header=np.array(text), tokens=data.flat, lengths=data.lengths.numpy())
    store.write_bytes(target, buffer.getvalue())
