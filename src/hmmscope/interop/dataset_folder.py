"""A corpus as a folder that Hugging Face's datasets opens, with a card."""

import os
from pathlib import Path
from typing import Any

from hmmscope import __version__
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError, RefusedError
from hmmscope.schema import require, spec_to_data
from hmmscope.storage import store

#: Of each split the random stream that it is of.
SPLITS = {"train": "train", "test": "evaluate"}
_AT_ONCE = 256


def export_dataset(
    dataset: ProcessDataset, path: str | Path, *, num_train: int = 1024, num_test: int = 256, exact: bool = True
) -> Path:
    """Write samples of a corpus as a folder that ``datasets.load_dataset(path)`` opens; nothing of datasets is needed.

        train.jsonl, test.jsonl   a sample a line: tokens, observations, and with `exact` beliefs or posterior, and optimum
        README.md                 the card: what generates, sizes, columns, and how the same bits are made again
        manifest.json             sizes and SHA-256 digests

    The splits are of the streams "train" and "evaluate", which have no sample in common; floats are written so that they are
    read back to the last bit.

    Args:
        dataset: of tokens; its own stream does not matter.
        path: a new folder.
        num_train, num_test: samples of each split.
        exact: whether to add the exact answers, see `ProcessStream`.

    Raises:
        InputError: vectors in place of tokens, or no samples.
        RefusedError: `path` exists.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists; choose another folder")
    if not os.path.isdir(path.parent):
        raise InputError(f"path: there is no folder {path.parent}")
    if dataset.process.real_valued:
        raise InputError("dataset: is of vectors, and what is exported holds tokens")
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
    "tokens": "what a model reads, a token a column",
    "observations": "the symbols, without delimiters",
    "beliefs": "P(state | observations so far), after each observation",
    "posterior": "P(component | observations so far), after each observation",
    "optimum": "P(next observation | observations so far), after each observation: no model can do better",
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

## The same bits again

| | |
|---|---|
| made with | hmmscope {__version__} |
| digest of the process | `{process.digest}` |
| layout | `{spec_to_data(layout)}` |
| seed | {dataset.seed} |
| streams | {", ".join(f"{split} is {stream!r}" for split, stream in SPLITS.items())} |

Sample i of a process, layout, seed and stream has the same bits on every machine:
`hmmscope.ProcessDataset(process, layout=..., seed={dataset.seed}, stream="train")[i]`.
"""


def _quoted(text: str) -> str:
    """As a string of YAML."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
