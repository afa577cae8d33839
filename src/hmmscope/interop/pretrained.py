"""Pretrained language models on sequences of symbols."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmmscope.datasets.tokenized import TextLayout
from hmmscope.errors import InputError, ResourceError
from hmmscope.interop.huggingface import from_huggingface
from hmmscope.interop.library_models import HuggingFaceModel
from hmmscope.models.transformers_model import transformers


def pretrained(
    source: Any,
    names: Sequence[str] | int,
    *,
    tokenizer: Any = None,
    length: int = 256,
    gguf_file: str | None = None,
    **text: Any,
) -> tuple[HuggingFaceModel, TextLayout]:
    """Return a language model that outputs only the symbols' logits, and its text layout.

        model, text = pretrained("path/to/model", names=4, length=512)
        score = hs.evaluate(model, hs.ProcessDataset(hmm, layout=text, stream="evaluate"))

    Args:
        source: causal language model of transformers, or its folder.
        names: names of the symbols, or the number of symbols.
        tokenizer: tokenizer of the model (default: from the folder).
        length: number of observations of the sequence, without demonstrations.
        gguf_file: name of a GGUF file in the folder; its weights are converted to float32.
        text: other fields of `TextLayout`.

    Raises:
        InputError: the model or tokenizer is missing, a name is not one token, or the text is too long for the model.
        ResourceError: transformers is not installed, or, for a GGUF file, gguf or accelerate is not.
    """
    if gguf_file is not None:
        require_gguf(gguf_file)
        try:
            source, own = read_gguf(transformers(), Path(source), gguf_file)
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise InputError(f"gguf_file: cannot open {gguf_file} ({' '.join(str(error).split())[:200]})") from error
        tokenizer = own if tokenizer is None else tokenizer
    if tokenizer is None:
        if not isinstance(source, str) and not hasattr(source, "__fspath__"):
            raise InputError("tokenizer: is missing; pass the tokenizer that belongs to the model")
        try:
            tokenizer = transformers().AutoTokenizer.from_pretrained(
                str(source), local_files_only=True, trust_remote_code=False
            )
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise InputError(f"{source}: cannot open a tokenizer ({' '.join(str(error).split())[:200]})") from error
    layout = TextLayout(tokenizer=tokenizer, names=names, length=length, **text)
    model = from_huggingface(source, symbols=layout.symbol_tokens)
    assert isinstance(model, HuggingFaceModel)
    limit = model.model_io.max_length
    if limit is not None and layout.context_length > limit:
        raise InputError(f"length: needs {layout.context_length} tokens of text, but the model reads at most {limit}")
    return model, layout


def require_gguf(file: str) -> None:
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise ResourceError(f"{file} needs {' and '.join(missing)}: pip install 'hmmscope[pretrained]'")


def read_gguf(library: Any, folder: Path, file: str) -> tuple[Any, Any]:
    named = {"gguf_file": file, "local_files_only": True, "trust_remote_code": False}
    tokenizer = library.AutoTokenizer.from_pretrained(str(folder), **named)
    read = library.AutoModelForCausalLM.from_pretrained(str(folder), dtype="float32", **named)
    plain = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    model = type(read)(type(read.config).from_dict(plain))
    model.load_state_dict(read.state_dict())
    return model.eval(), tokenizer
