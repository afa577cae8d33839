"""Names of the parts of `Decoder` in GPT-2 and GPT-NeoX."""

from collections.abc import Mapping
from dataclasses import dataclass

#: Epsilon of layer norms in both layouts and in torch.
EPSILON = 1e-5


@dataclass(frozen=True)
class TransformersMapping:
    """Names of the parts of `Decoder` in one architecture of transformers.

    Attributes:
        model_type: `model_type` of the architecture's configuration.
        architecture: name of the model's class.
        title: display name.
        embedding: name of the token embedding.
        positions: name of the position table, or None.
        blocks: name of the list of blocks.
        norm: name of the last norm.
        parts: names of a block's parts: name in `Decoder` -> name in transformers.
        transposed: True if weights of linear maps have shape (in, out).
        fused_by_head: True if rows of the fused query-key-value map are ordered (head, qkv, head width); the order of
            `Decoder` is (qkv, head, head width).
    """

    model_type: str
    architecture: str
    title: str
    embedding: str
    positions: str | None
    blocks: str
    norm: str
    parts: Mapping[str, str]
    transposed: bool
    fused_by_head: bool


GPT2 = TransformersMapping(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    title="GPT-2",
    embedding="transformer.wte",
    positions="transformer.wpe",
    blocks="transformer.h",
    norm="transformer.ln_f",
    parts={
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.out": "attn.c_proj",
        "mlp_norm": "ln_2",
        "mlp.hidden": "mlp.c_fc",
        "mlp.out": "mlp.c_proj",
    },
    transposed=True,
    fused_by_head=False,
)

GPT_NEOX = TransformersMapping(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    title="GPT-NeoX",
    embedding="gpt_neox.embed_in",
    positions=None,
    blocks="gpt_neox.layers",
    norm="gpt_neox.final_layer_norm",
    parts={
        "attention_norm": "input_layernorm",
        "attention.qkv": "attention.query_key_value",
        "attention.out": "attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "mlp.hidden": "mlp.dense_h_to_4h",
        "mlp.out": "mlp.dense_4h_to_h",
    },
    transposed=False,
    fused_by_head=True,
)

FAMILIES = (GPT2, GPT_NEOX)
