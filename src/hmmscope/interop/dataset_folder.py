"""Export of datasets for the package ``datasets`` of Hugging Face."""

import os
from pathlib import Path
from typing import Any

from hmmscope import __version__
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError, RefusedError
from hmmscope.schema import require, spec_to_data
from hmmscope.storage import store

#: Random stream of each split.
SPLITS = {"train": "train", "test": "evaluate"}
_AT_ONCE = 256


def export_dataset(
    dataset: ProcessDataset, path: str | Path, *, num_train: int = 1024, num_test: int = 256, exact: bool = True
) -> Path:
    """Write samples as a folder for ``datasets.load_dataset(path)``, without the package ``datasets``.

        train.jsonl, test.jsonl   samples of the streams "train" and "evaluate"
        README.md dataset card, with instructions to reproduce the samples exactly
        manifest.json             sizes and SHA-256 digests

    Args:
        dataset: dataset of tokens; its `stream` is ignored.
        path: folder to create.
        num_train, num_test: numbers of samples in the two files.
        exact: True adds columns of Bayes-optimal posteriors and predictions; see `ProcessStream`.

    Raises:
        InputError: the dataset has vectors instead of tokens, or a number of samples is below 1.
        RefusedError: `path` exists.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists; choose another folder")
    if not os.path.isdir(path.parent):
        raise InputError(f"path: the folder {path.parent} does not exist")
    if dataset.process.real_valued:
        raise InputError("dataset: must contain tokens, because vectors cannot be exported")
    counts = {"train": num_train, "test": num_test}
    for split, count in counts.items():
        require(count >= 1, f"num_{split}", "must be at least 1", count)
    columns: list[str] = []
    with store.new_folder(path) as folder:
        for split, count in counts.items():
            own = ProcessDataset(dataset.process, seed=dataset.seed, layout=dataset.layout, stream=SPLITS[split])
            rows: list[dict[str, Any]] = []
            for batch in own.stream(_AT_ONCE, num_samples=count, exact=exact):
                columns = list(batch)
                lists = {key: values.tolist() for key, values in batch.items()}
                rows += [{key: lists[key][row] for key in columns} for row in range(len(batch["tokens"]))]
            store.write_table(folder / f"{split}.jsonl", rows)
        store.write_text(folder / "README.md", _card(dataset, counts, columns))
    return path


_MEANINGS = {
    "tokens": "model input, one token per position",
    "observations": "the symbols, without delimiters",
    "beliefs": "P(state | observations so far), after each observation",
    "posterior": "P(component | observations so far), after each observation",
    "optimum": "P(next observation | observations so far), after each observation: the Bayes-optimal prediction",
}


def _card(dataset: ProcessDataset, counts: dict[str, int], columns: list[str]) -> str:
    process, layout = dataset.process, dataset.layout
    title = " ".join((process.title or process.describe()).split())
    splits = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in counts)
    told = "\n".join(f"- `{name}`: {_MEANINGS[name]}" for name in columns)
    sizes = ", ".join(f"{count:,} samples in `{split}`" for split, count in counts.items())
    return f"""---
pretty_name: {_quoted(f"Samples of {title}")}
tags:
- synthetic
- hidden-markov-model
configs:
- config_name: default
  data_files:
{splits}---

# Samples of {title}

{process.describe()}; {sizes}, of {layout.num_observations} observations each ({layout.context_length} tokens).

## Columns

{told}

## How to reproduce these samples

| | |
|---|---|
| made with | hmmscope {__version__} |
| digest of the process | `{process.digest}` |
| layout | `{spec_to_data(layout)}` |
| seed | {dataset.seed} |
| streams | {", ".join(f"{split} is {stream!r}" for split, stream in SPLITS.items())} |

Sample i of a process, layout, seed and stream is bit-identical on every machine:
`hmmscope.ProcessDataset(process, layout=..., seed={dataset.seed}, stream="train")[i]`.
"""


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
