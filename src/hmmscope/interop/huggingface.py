"""Folders that Hugging Face's AutoModelForCausalLM opens, written and read; and its causal models as models of ours."""

import dataclasses
import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hmmscope import __version__
from hmmscope.axes import Float, Int64, Tensor
from hmmscope.errors import DamagedError, InputError, RefusedError
from hmmscope.interop.exported import Exported, as_exported
from hmmscope.interop.families import FAMILIES
from hmmscope.interop.imported import as_decoder
from hmmscope.models.base import Ports, SequenceModel, Tap, check_inputs
from hmmscope.models.foreign import transformers
from hmmscope.schema import require
from hmmscope.storage import store

CONFIG, WEIGHTS, RECORD, GENERATION = "config.json", "model.safetensors", "hmmscope.json", "generation_config.json"
_FORMAT, _VERSION = "hmmscope-huggingface", 1


def export_huggingface(thing: Any, path: str | Path, *, max_length: int | None = None) -> Exported:
    """Write a trained model as a folder that ``AutoModelForCausalLM.from_pretrained`` opens, with the same logits.

    Learned, sinusoidal or no positions become GPT-2, rotary ones GPT-NeoX; see `as_exported` for what is folded.

        config.json             the architecture; its field ``hmmscope`` holds the numbers of outputs and tokens
        model.safetensors       the weights, in the model's own type
        generation_config.json  keeps ``generate`` from tokens that are no symbols; only where there are such
        hmmscope.json           `read_record`: sizes, and of a run its configuration and the process's digest and symbols
        manifest.json           sizes and SHA-256 digests

    Rows of ``lm_head`` beyond the outputs (a delimiter, that no model predicts) are zero: cut the logits to the number of
    symbols before a softmax. `evaluate` and the instruments do.

    Args:
        thing: a `Run`, or a decoder.
        path: a new folder.
        max_length: positions of GPT-2's table, for a model without a limit (default: its ports' max_length).

    Returns:
        What was written.

    Raises:
        InputError: the architecture has no such layout; one line names the field.
        RefusedError: `path` exists.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise RefusedError(f"{path}: exists; choose another --out")
    if not os.path.isdir(path.parent):
        raise InputError(f"out: there is no folder {path.parent}")
    model = model_of(thing)
    exported = as_exported(model, max_length=max_length)
    ports = model.ports
    with store.new_folder(path) as folder:
        store.write_json(folder / CONFIG, exported.config)
        store.write_tensors(folder / WEIGHTS, exported.tensors, {"format": "pt"})
        store.write_json(folder / RECORD, _record(thing, ports, exported))
        if exported.config["vocab_size"] > ports.num_outputs:
            beyond = list(range(ports.num_outputs, exported.config["vocab_size"]))
            store.write_json(folder / GENERATION, {"suppress_tokens": beyond})
    return exported


def to_huggingface(thing: Any, *, max_length: int | None = None) -> Any:
    """The same causal language model in memory, a ``GPT2LMHeadModel`` or ``GPTNeoXForCausalLM`` in evaluation mode.

    Args and errors as of `export_huggingface`; ResourceError if transformers is not installed.
    """
    library = transformers()
    model = model_of(thing)
    exported = as_exported(model, max_length=max_length)
    fields = {key: value for key, value in exported.config.items() if key != "model_type"}
    config = library.AutoConfig.for_model(exported.family.model_type, **fields)
    with torch.random.fork_rng(devices=[]):  # it draws first weights, which are replaced
        made = getattr(library, exported.family.architecture)(config)
    weight = next(model.parameters())
    made = made.to(dtype=weight.dtype)
    made.load_state_dict(exported.tensors)
    return made.to(weight.device).eval()


def read_record(path: str | Path) -> dict[str, Any]:
    """What `export_huggingface` wrote beside the model, as plain data, after checking every file of the folder.

    Keys: ``ports``; ``layout`` ("gpt2" or "gpt_neox"); ``run``, None for a bare model, or with ``config`` (for
    `hmmscope.runs.config.config_from_data`), ``process_digest`` and ``symbols`` (names, or None).

    Raises:
        InputError: no such folder, or one that was not exported from here.
        DamagedError: a file is missing or altered.
    """
    path = Path(path)
    if not (path / RECORD).is_file():
        raise InputError(f"{path}: holds no {RECORD}; it is not a folder that hmmscope exported")
    store.verify_folder(path, exact=False)
    record = store.read_json(path / RECORD, own=True)
    if not isinstance(record, dict) or record.get("format") != _FORMAT or record.get("version") != _VERSION:
        raise DamagedError(f"{path / RECORD}: not {_FORMAT!r} version {_VERSION}; if newer, upgrade hmmscope")
    return record


def from_huggingface(source: Any, *, num_symbols: int | None = None, layers: str | None = None) -> SequenceModel:
    """A causal language model of transformers, or a folder with one, as a model of this library.

    What `export_huggingface` wrote, and any GPT-2 or GPT-NeoX with exact GELU and the parts of our decoder, comes back
    as a `Decoder`: logits equal to rounding (rotations to float32, in which transformers computes them), all taps,
    and no need of transformers. Features and vectors of positions come back as one table of positions; the head's bias
    as part of the last norm's.

    Any other is wrapped as it is, with taps ``residual.<layer>``: see `HuggingFaceModel`.

    Args:
        source: a model in memory, or a folder.
        num_symbols: outputs; logits beyond them are cut off. By default as exported, or else the vocabulary.
        layers: the name of the list of layers, if it is not the one that its configuration tells.

    Raises:
        InputError: no folder, no causal model, more symbols than logits, or layers that are not found.
        DamagedError: an exported folder whose files are altered or missing.
        ResourceError: transformers is needed and not installed.
    """
    if isinstance(source, nn.Module):
        config = getattr(source, "config", None)
        if config is None or not hasattr(config, "to_dict"):
            raise InputError(f"model: {type(source).__name__} is no model of transformers; it has no config")
        made = any(type(source).__name__ == family.architecture for family in FAMILIES)
        native = as_decoder(config.to_dict(), source.state_dict(), num_symbols) if made else None
        return native if native is not None else HuggingFaceModel(source, num_symbols=num_symbols, layers=layers)
    path = Path(source)
    if not (path / CONFIG).is_file():
        raise InputError(f"{path}: there is no folder with a {CONFIG}; load what is elsewhere and pass the model")
    if (path / RECORD).is_file():
        read_record(path)
    config = store.read_json(path / CONFIG)
    if not isinstance(config, dict):
        raise DamagedError(f"{path / CONFIG}: not a configuration")
    if (path / WEIGHTS).is_file():
        native = as_decoder(config, store.read_tensors(path / WEIGHTS), num_symbols)
        if native is not None:
            return native
    loader = transformers().AutoModelForCausalLM
    try:
        model = loader.from_pretrained(str(path), local_files_only=True, use_safetensors=True)
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise InputError(f"{path}: transformers cannot open it ({' '.join(str(error).split())[:200]})") from error
    return HuggingFaceModel(model, num_symbols=num_symbols, layers=layers)


class HuggingFaceModel(SequenceModel):
    """A causal language model of transformers behind our interface. Activations: ``residual.<layer>``.

    ``residual.0`` is what the first layer reads, ``residual.<l>`` what layer l writes; changing one there changes the
    answer. The model itself is not changed: its layers are listened to during a call only.

    With a cache the tokens so far are kept and read again at every call: the same values, without the speed.

    Args:
        model: maps ``input_ids`` to an object with ``.logits``.
        num_symbols: outputs; logits beyond them are cut off. Default: all.
        layers: the name of the list of layers; by default the first one as long as its configuration says.

    Raises:
        InputError: an encoder-decoder, more symbols than logits, or layers that are not found.
    """

    def __init__(self, model: nn.Module, *, num_symbols: int | None = None, layers: str | None = None) -> None:
        super().__init__()
        config: Any = getattr(model, "config", None)
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(f"model: {type(model).__name__} is an encoder-decoder; a causal language model is needed")
        head = getattr(model, "get_output_embeddings", None)
        if head is None or head() is None:
            raise InputError(f"model: {type(model).__name__} has no head that gives logits of tokens")
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        vocabulary = getattr(text, "vocab_size", None)
        if not isinstance(vocabulary, int):
            raise InputError(f"model: {type(model).__name__} has no config.vocab_size, so it reads no tokens")
        num_outputs = vocabulary if num_symbols is None else num_symbols
        require(1 <= num_outputs <= vocabulary, "num_symbols", f"must be in [1, {vocabulary}]", num_outputs)
        limit = getattr(text, "max_position_embeddings", None)
        max_length = limit if isinstance(limit, int) and limit > 0 else None
        self.ports = Ports(num_outputs=num_outputs, num_tokens=vocabulary, max_length=max_length)
        self.num_symbols, self.num_tokens = num_outputs, vocabulary
        self.model = model
        self._layers = _layers_of(model, getattr(text, "num_hidden_layers", None), layers)
        self.residual = nn.ModuleList(Tap() for _ in range(len(self._listed()) + 1))
        accepted = inspect.signature(model.forward).parameters
        self._options = {"use_cache": False} if "use_cache" in accepted else {}
        self._reads_positions = "position_ids" in accepted

    def forward(
        self,
        inputs: Int64[Tensor, "batch time"],
        positions: Int64[Tensor, "*batch time"] | None = None,
        *,
        feedback: Float[Tensor, "batch time feedback"] | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "batch time output"]:
        """Outputs at every position; see `SequenceModel.forward`."""
        check_inputs(self.ports, inputs, feedback)
        time = inputs.shape[1]
        if cache is not None:
            if positions is None:
                begin = cache["inputs"].shape[1] if cache else 0
                positions = torch.arange(begin, begin + time, device=inputs.device)
            positions = positions.expand(len(inputs), -1)
            if cache:
                inputs = torch.cat([cache["inputs"], inputs], 1)
                positions = torch.cat([cache["positions"], positions], 1)
            cache["inputs"], cache["positions"] = inputs, positions
        options: dict[str, Any] = dict(self._options)
        if positions is not None and self._reads_positions:
            options["position_ids"] = positions.expand(len(inputs), -1)
        with self._tapped():
            output = self.model(input_ids=inputs, **options)
        logits: Tensor = output.logits
        return logits[:, -time:, : self.num_symbols]

    def _listed(self) -> nn.ModuleList:
        found = self.model.get_submodule(self._layers)
        assert isinstance(found, nn.ModuleList)
        return found

    @contextmanager
    def _tapped(self) -> Iterator[None]:
        """What the layers read and write passes through the taps."""
        first, layers = self.residual[0], self._listed()

        def read(module: nn.Module, args: tuple, options: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
            if args:
                return (first(args[0]), *args[1:]), options
            return args, options | {"hidden_states": first(options["hidden_states"])}

        handles = [layers[0].register_forward_pre_hook(read, with_kwargs=True)]
        for layer, tap in zip(layers, self.residual[1:], strict=True):

            def wrote(module: nn.Module, args: tuple, output: Any, tap: nn.Module = tap) -> Any:
                return (tap(output[0]), *output[1:]) if isinstance(output, tuple) else tap(output)

            handles.append(layer.register_forward_hook(wrote))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def model_of(thing: Any) -> SequenceModel:
    """A model as it is; of anything else, such as a `Run`, its attribute ``model``."""
    model = thing if isinstance(thing, nn.Module) else getattr(thing, "model", None)
    if not isinstance(model, nn.Module):
        raise InputError(f"model: must be a model or a run, got {type(thing).__name__}")
    return model  # type: ignore[return-value]


def _layers_of(model: nn.Module, count: int | None, name: str | None) -> str:
    """The name of the list of layers."""
    lists = {path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and path}
    if name is None:
        fitting = [path for path, module in lists.items() if len(module) and len(module) == count]
        if not fitting:
            raise InputError(f"layers: none found in {type(model).__name__}; name one of {', '.join(lists) or 'none'}")
        return fitting[0]
    if not len(lists.get(name, [])):
        raise InputError(f"layers: {name!r} is no list of layers; there are {', '.join(lists) or 'none'}")
    return name


def _record(thing: Any, ports: Ports, exported: Exported) -> Mapping[str, Any]:
    """hmmscope.json. Of a run only the attributes are known here."""
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
        "ports": dataclasses.asdict(ports),
        "run": run,
    }
