"""Export to and import from Hugging Face's AutoModelForCausalLM."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hmmscope import __version__
from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.interop.exported import Exported, as_exported
from hmmscope.interop.families import FAMILIES
from hmmscope.interop.imported import as_decoder
from hmmscope.interop.library_models import HuggingFaceModel
from hmmscope.models.base import ModelIO, SequenceModel
from hmmscope.models.transformers_model import transformers
from hmmscope.schema import to_stored
from hmmscope.storage import store

CONFIG, WEIGHTS, RECORD, GENERATION = "config.json", "model.safetensors", "hmmscope.json", "generation_config.json"
_FORMAT, _VERSION = "hmmscope-huggingface", 1


def export_huggingface(thing: Any, path: str | Path, *, max_length: int | None = None) -> Exported:
    """Write a model as a folder for ``AutoModelForCausalLM.from_pretrained``, with the same logits.

    Decoders with rotary positions become GPT-NeoX, other decoders GPT-2; see `as_exported`.

        config.json             architecture; the key ``hmmscope`` has the numbers of outputs and tokens
        model.safetensors       weights
        generation_config.json  settings of generation, which suppress tokens that are not symbols
        hmmscope.json           record of the run, see `read_record`
        manifest.json           sizes and SHA-256 digests

    Use only the symbols' logits of the exported model, because other tokens have rows of zeros in ``lm_head``.

    Args:
        thing: `Run` or decoder.
        path: folder to create.
        max_length: size of GPT-2's position table; required for a model without a limit of positions.

    Returns:
        The exported model.

    Raises:
        InputError: the model has a part that GPT-2 and GPT-NeoX lack.
        RefusedError: `path` exists.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise RefusedError(f"{path}: already exists; choose another path (--export)")
    if not os.path.isdir(path.parent):
        raise InputError(f"path: the folder {path.parent} does not exist")
    model = model_of(thing)
    exported = as_exported(model, max_length=max_length)
    ports = model.model_io
    with store.new_folder(path) as folder:
        store.write_json(folder / CONFIG, exported.config)
        store.write_tensors(folder / WEIGHTS, exported.tensors, {"format": "pt"})
        store.write_json(folder / RECORD, _record(thing, ports, exported))
        if exported.config["vocab_size"] > ports.num_outputs:
            beyond = list(range(ports.num_outputs, exported.config["vocab_size"]))
            store.write_json(folder / GENERATION, {"suppress_tokens": beyond})
    return exported


def to_huggingface(thing: Any, *, max_length: int | None = None) -> Any:
    """Convert `thing` to a ``GPT2LMHeadModel`` or ``GPTNeoXForCausalLM``.

    Arguments and errors are as in `export_huggingface`; also raises ResourceError without transformers.
    """
    library = transformers()
    model = model_of(thing)
    exported = as_exported(model, max_length=max_length)
    fields = {key: value for key, value in exported.config.items() if key != "model_type"}
    config = library.AutoConfig.for_model(exported.family.model_type, **fields)
    with torch.random.fork_rng(devices=[]):  # its initial weights are replaced
        made = getattr(library, exported.family.architecture)(config)
    weight = next(model.parameters())
    made = made.to(dtype=weight.dtype)
    made.load_state_dict(exported.tensors)
    return made.to(weight.device).eval()


def read_record(path: str | Path) -> dict[str, Any]:
    """Read and verify the record of an exported folder.

    Keys are ``ports`` (sizes of inputs and outputs), ``layout`` ("gpt2" or "gpt_neox") and ``run``. ``run`` is
    None, or has the keys ``config`` (see `hmmscope.runs.config.config_from_data`), ``process_digest`` and ``symbols``.

    Raises:
        InputError: the folder was not exported by hmmscope.
        DamagedError: a file is missing or altered.
    """
    path = Path(path)
    if not (path / RECORD).is_file():
        raise InputError(f"{path}: has no {RECORD}; it must be a folder that hmmscope exported")
    store.verify_folder(path, exact=False)
    record = store.read_json(path / RECORD, managed=True)
    if not isinstance(record, dict) or record.get("format") != _FORMAT or record.get("version") != _VERSION:
        raise DamagedError(f"{path / RECORD}: must be {_FORMAT!r} version {_VERSION}; if newer, upgrade hmmscope")
    return record


def from_huggingface(
    source: Any, *, num_symbols: int | None = None, symbols: Sequence[int] | None = None, layers: str | None = None
) -> SequenceModel:
    """Import a causal language model of transformers, in memory or from a folder.

    Models exported by hmmscope, and GPT-2 or GPT-NeoX models with exact GELU and only parts that `Decoder` has, become
    a `Decoder` with equal logits, without transformers. Other models become a `HuggingFaceModel`.

    Args:
        source: model, or folder of a saved model.
        num_symbols: keep only the first `num_symbols` outputs (default: the number in an export, else all).
        symbols: token of each symbol, instead of `num_symbols`; the result is then a `HuggingFaceModel`.
        layers: name of the model's list of layers (default: the first with ``num_hidden_layers`` modules).

    Raises:
        InputError: the folder does not exist, or the model is not causal, has no layers or too few logits.
        DamagedError: files of an exported folder are altered or missing.
        ResourceError: transformers is needed but not installed.
    """
    if isinstance(source, nn.Module):
        config = getattr(source, "config", None)
        if config is None or not hasattr(config, "to_dict"):
            raise InputError(f"model: must be a model of transformers, but {type(source).__name__} has no config")
        made = any(type(source).__name__ == family.architecture for family in FAMILIES)
        native = as_decoder(config.to_dict(), source.state_dict(), num_symbols) if made and symbols is None else None
        return native or HuggingFaceModel(source, num_symbols=num_symbols, symbols=symbols, layers=layers)
    path = Path(source)
    if not (path / CONFIG).is_file():
        raise InputError(f"{path}: must be a folder with a {CONFIG}; alternatively, pass a loaded model")
    length = _trained_length(read_record(path)) if (path / RECORD).is_file() else None
    config = store.read_json(path / CONFIG)
    if not isinstance(config, dict):
        raise DamagedError(f"{path / CONFIG}: must be a JSON object of configuration fields")
    if symbols is None and (path / WEIGHTS).is_file():
        native = as_decoder(config, store.read_tensors(path / WEIGHTS), num_symbols)
        if native is not None:
            native.trained_length = length
            return native
    loader = transformers().AutoModelForCausalLM
    try:
        model = loader.from_pretrained(str(path), local_files_only=True, use_safetensors=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise InputError(f"{path}: transformers cannot open it ({' '.join(str(error).split())[:200]})") from error
    return HuggingFaceModel(model, num_symbols=num_symbols, symbols=symbols, layers=layers)


def _trained_length(record: Mapping[str, Any]) -> int | None:
    config = (record.get("run") or {}).get("config") or {}
    length = (config.get("layout") or {}).get("length")
    return length if type(length) is int else None


def model_of(thing: Any) -> SequenceModel:
    model = thing if isinstance(thing, nn.Module) else getattr(thing, "model", None)
    if not isinstance(model, nn.Module):
        raise InputError(f"model: must be a model or a run, got {type(thing).__name__}")
    return model  # type: ignore[return-value]


def _record(thing: Any, model_io: ModelIO, exported: Exported) -> Mapping[str, Any]:
    run = None
    if hasattr(thing, "config") and hasattr(thing, "process"):
        names = getattr(thing.process, "symbols", None)
        run = {
            "config": thing.config.to_data(),
            "process_digest": thing.process.digest,
            "symbols": None if names is None else list(names),
        }
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "written_by": f"hmmscope {__version__}",
        "layout": exported.family.model_type,
        "ports": to_stored(model_io),
        "run": run,
    }
