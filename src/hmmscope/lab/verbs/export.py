"""The command `analyse --export`: write a trained run as a folder that Hugging Face libraries open."""

from hmmscope.interop.huggingface import export_huggingface
from hmmscope.runs.pipeline import load_run
from hmmscope.text import say


def export(run: str, out: str, quiet: bool) -> None:
    loaded = load_run(run)
    exported = export_huggingface(loaded, out)
    family, beyond = exported.family, exported.config["vocab_size"] - loaded.model.num_symbols
    numbers = sum(tensor.numel() for tensor in exported.tensors.values())
    say(f"{family.title} layout, {numbers} weights in {exported.config['dtype']}: {out}")
    if not quiet:
        say(f"open it: transformers.AutoModelForCausalLM.from_pretrained({out!r})")
        if beyond:
            say(
                f"use only the first {loaded.model.num_symbols} logits of the exported model: the other {beyond} belong to "
                "tokens that are not symbols"
            )
