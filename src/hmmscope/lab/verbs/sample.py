"""The verb `sample`."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hmmscope.axes import Tensor
from hmmscope.datasets.layouts import SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.lab.verbs.options import SampleOptions
from hmmscope.lab.verbs.output_paths import new_file
from hmmscope.lab.verbs.sources import find_process
from hmmscope.processes.process import Process
from hmmscope.sequences.data import SequenceData
from hmmscope.storage import store
from hmmscope.system_info import require_memory
from hmmscope.text import say


def sample(options: SampleOptions) -> None:
    num_samples, length, first, out = options.num_samples, options.length, options.first, options.out
    if num_samples < 0 or first < 0:
        raise InputError(f"num_samples, first: must be at least 0, got {num_samples} and {first}")
    if out is not None:
        new_file(out, (".txt", ".jsonl", ".npz", ".safetensors"))
    layout = SequenceLayout(length=length)
    built = find_process(options.process, options.overrides)
    if built.num_inputs is not None or options.inputs is not None:
        arrays = _given_inputs(built, options)
        num_samples, length = arrays["observations"].shape
    else:
        require_memory("sample", 8 * 4 * num_samples * (length + 1))
        dataset = ProcessDataset(built, layout=layout, seed=options.seed)
        batch = dataset[first : first + num_samples]
        arrays = {"observations": batch.observations, "states": batch.states}
        if batch.components is not None:
            arrays["components"] = batch.components
    if out is None:
        for line in _as_text(built, arrays["observations"]):
            say(line)
        return
    path = Path(out)
    match path.suffix:
        case ".txt":
            text = "".join(line + "\n" for line in _as_text(built, arrays["observations"]))
            _require_equal(text, built, arrays["observations"])
            store.write_text(path, text)
        case ".jsonl":
            columns = {name: tensor.tolist() for name, tensor in arrays.items()}
            if "inputs" in arrays and built.inputs is not None:  # type: ignore[attr-defined]
                columns["inputs"] = [[built.inputs[u] for u in row] for row in columns["inputs"]]  # type: ignore[attr-defined]
            rows = [{"sample": first + i} | {name: c[i] for name, c in columns.items()} for i in range(num_samples)]
            rows[:1] = [row | {"alphabet": _alphabet(built)} for row in rows[:1]]
            store.write_table(path, rows)
        case ".npz":
            buffer = io.BytesIO()
            numbers: dict[str, Any] = {name: tensor.numpy() for name, tensor in arrays.items()}
            np.savez(buffer, header=np.array(json.dumps(_alphabet(built))), **numbers)
            store.write_bytes(path, buffer.getvalue())
        case ".safetensors":
            store.write_tensors(path, arrays, {"sequences": json.dumps(_alphabet(built))})
    if not options.quiet:
        digest = "" if "inputs" in arrays else f"; the first 100 have digest {dataset.digest(100)}"
        say(f"{num_samples} sequences of {length} -> {path}{digest}")


def _given_inputs(process: Any, options: SampleOptions) -> dict[str, Tensor]:
    if process.num_inputs is None:
        raise InputError(f"--inputs: needs a model with inputs, got {process!r}; fit one with hmmscope fit --inputs")
    if options.inputs is None:
        raise InputError("--inputs: must be a file of inputs, because the model depends on inputs")
    read = SequenceData(options.inputs, symbols=process.inputs or process.num_inputs)
    if read.num_missing or len(set(read.lengths.tolist())) != 1:
        raise InputError(f"--inputs: {options.inputs} must hold sequences of one length without gaps")
    inputs = read.padded()[0]
    drawn = process.sample_given(inputs, seed=options.seed)
    return {"observations": drawn.observations, "states": drawn.states, "inputs": inputs}


def _require_equal(text: str, process: Process, observations: Tensor) -> None:
    if not len(observations):
        return
    try:
        found = SequenceData(text, symbols=process.symbols or process.num_symbols)
        same = found.lengths.tolist() == [observations.shape[1]] * len(observations)
        why = "" if same and torch.equal(found.padded()[0], observations) else "as other sequences"
    except InputError as error:
        why = str(error)
    if why:
        raise InputError(f"out: this .txt would be read back differently ({why}); write .jsonl, .npz or .safetensors")


def _alphabet(process: Process) -> dict[str, Any]:
    names = {} if process.symbols is None else {"symbols": list(process.symbols)}
    return {"format": "hmmscope-sequences", "version": 1, "num_symbols": process.num_symbols} | names


def _as_text(process: Process, observations: torch.Tensor) -> list[str]:
    names = process.symbols
    if names is None:
        return [" ".join(map(str, row)) for row in observations.tolist()]
    glue = "" if all(len(name) == 1 for name in names) else " "
    return [glue.join(names[v] for v in row) for row in observations.tolist()]
