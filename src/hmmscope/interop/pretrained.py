"""Pretrained language models on sequences of symbols, in context."""

from collections.abc import Sequence
from typing import Any

from hmmscope.corpora.tokenized import Text
from hmmscope.errors import InputError
from hmmscope.interop.huggingface import from_huggingface
from hmmscope.interop.tapped import HuggingFaceModel
from hmmscope.models.foreign import transformers


def pretrained(
    source: Any,
    names: Sequence[str] | int,
    *,
    tokenizer: Any = None,
    length: int = 256,
    **text: Any,
) -> tuple[HuggingFaceModel, Text]:
    """A language model that predicts symbols, and the layout in which it reads them.

        model, text = pretrained("path/to/model", names=4, length=512)
        score = hs.evaluate(model, hs.Corpus(hmm, layout=text, stream="evaluate"))

    Its outputs are the logits of the symbols' tokens; every instrument runs on the two.

    Args:
        source: a causal model of transformers, or a folder with one.
        names: of the symbols, or how many: see `Text`.
        tokenizer: by default the one in the folder.
        length: observations of the last sequence.
        text: other fields of `Text`: separator, prefix, num_demonstrations, ...

    Raises:
        InputError: no model or tokenizer, names that are not one token each, or a text that is longer than the model reads.
        ResourceError: transformers is not installed.
    """
    if tokenizer is None:
        if not isinstance(source, str) and not hasattr(source, "__fspath__"):
            raise InputError("tokenizer: must be given with a model in memory")
        try:
            tokenizer = transformers().AutoTokenizer.from_pretrained(
                str(source), local_files_only=True, trust_remote_code=False
            )
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise InputError(f"{source}: no tokenizer opens there ({' '.join(str(error).split())[:200]})") from error
    layout = Text(tokenizer=tokenizer, names=names, length=length, **text)
    model = from_huggingface(source, symbols=layout.symbol_tokens)
    assert isinstance(model, HuggingFaceModel)
    limit = model.ports.max_length
    if limit is not None and layout.num_columns > limit:
        raise InputError(f"length: takes {layout.num_columns} tokens of text, and the model reads {limit}")
    return model, layout
