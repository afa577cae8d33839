"""Architectures of the package transformers."""

from dataclasses import dataclass
from typing import Any

import torch

from hmmscope import registry
from hmmscope.models.base import ModelIO, check_sizes
from hmmscope.models.transformers_model import TransformersModel
from hmmscope.schema import require


@registry.model("mamba")
@dataclass(frozen=True, kw_only=True)
class MambaSpec:
    """Mamba: a selective state space model (Gu and Dao 2023). Needs ``pip install 'hmmscope[models]'``.

    Attributes:
        num_layers: number of blocks.
        width: width of the residual stream.
        state_size: number of state coordinates for each inner channel.
        expand: number of inner channels divided by `width`.
        kernel_size: width of the convolution.
    """

    num_layers: int = 4
    width: int = 128
    state_size: int = 16
    expand: int = 2
    kernel_size: int = 4

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "width", "state_size", "expand", "kernel_size")

    def build(self, model_io: ModelIO, generator: torch.Generator) -> TransformersModel:
        fields = {
            "num_hidden_layers": self.num_layers,
            "state_size": self.state_size,
            "expand": self.expand,
            "conv_kernel": self.kernel_size,
        }
        return TransformersModel("Mamba", fields, width=self.width, model_io=model_io, generator=generator)


@registry.model("mamba2")
@dataclass(frozen=True, kw_only=True)
class Mamba2Spec:
    """Mamba-2: state space duality (Dao and Gu 2024). Needs ``pip install 'hmmscope[models]'``.

    Attributes:
        num_layers: number of blocks.
        num_heads: number of heads, each of expand * width / num_heads channels.
        width: width of the residual stream.
        state_size: number of state coordinates for each inner channel.
        expand: number of inner channels divided by `width`.
        kernel_size: width of the convolution.
        chunk_length: number of positions computed together.
    """

    num_layers: int = 4
    num_heads: int = 4
    width: int = 128
    state_size: int = 64
    expand: int = 2
    kernel_size: int = 4
    chunk_length: int = 64

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "num_heads", "width", "state_size", "expand", "kernel_size", "chunk_length")
        rule = f"must make expand * width a multiple of num_heads = {self.num_heads}"
        require(self.width * self.expand % self.num_heads == 0, "width", rule, self.width)

    def build(self, model_io: ModelIO, generator: torch.Generator) -> TransformersModel:
        fields = {
            "num_hidden_layers": self.num_layers,
            "num_heads": self.num_heads,
            "head_dim": self.width * self.expand // self.num_heads,
            "n_groups": 1,
            "state_size": self.state_size,
            "expand": self.expand,
            "conv_kernel": self.kernel_size,
            "chunk_size": self.chunk_length,
        }
        return TransformersModel("Mamba2", fields, width=self.width, model_io=model_io, generator=generator)


@registry.model("xlstm")
@dataclass(frozen=True, kw_only=True)
class XLSTMSpec:
    """xLSTM with mLSTM blocks, which have a matrix memory (Beck et al. 2024). Needs ``pip install 'hmmscope[models]'``.

    Attributes:
        num_layers: number of blocks.
        num_heads: number of matrix memories in a block.
        width: width of the residual stream; a multiple of 2 * num_heads.
    """

    num_layers: int = 4
    num_heads: int = 4
    width: int = 128

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "num_heads", "width")
        rule = f"must be a multiple of 2 * num_heads = {2 * self.num_heads}"
        require(self.width % (2 * self.num_heads) == 0, "width", rule, self.width)

    def build(self, model_io: ModelIO, generator: torch.Generator) -> TransformersModel:
        fields = {
            "num_hidden_layers": self.num_layers,
            "num_heads": self.num_heads,
            "mode": "inference",  # other modes need multiples of a chunk; gradients are equal
            "autocast_kernel_dtype": "float32",
        }
        return TransformersModel("xLSTM", fields, width=self.width, model_io=model_io, generator=generator)


@registry.model("rwkv")
@dataclass(frozen=True, kw_only=True)
class RWKVSpec:
    """RWKV, version 4 (Peng et al. 2023). Needs ``pip install 'hmmscope[models]'``.

    Attributes:
        num_layers: number of blocks, at least 2.
        width: width of the residual stream, at least 2.
        mlp_ratio: hidden width of the channel mixing divided by `width`.
    """

    num_layers: int = 4
    width: int = 128
    mlp_ratio: int = 4

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "width", "mlp_ratio")
        require(self.num_layers >= 2, "num_layers", "must be at least 2", self.num_layers)
        require(self.width >= 2, "width", "must be at least 2", self.width)

    def build(self, model_io: ModelIO, generator: torch.Generator) -> TransformersModel:
        fields = {
            "num_hidden_layers": self.num_layers,
            "intermediate_size": self.mlp_ratio * self.width,
            "context_length": max(1024, model_io.max_length or 0),
            "rescale_every": 0,  # otherwise weights change with the training mode
        }
        return TransformersModel("Rwkv", fields, width=self.width, model_io=model_io, generator=generator)


@registry.model("gated-deltanet")
@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetSpec:
    """Gated delta rule networks (Yang et al. 2024): the linear layers of Qwen3.5 without its attention layers.

    Needs ``pip install 'hmmscope[models]'``.

    Attributes:
        num_layers: number of blocks.
        num_heads: number of heads, each of width / num_heads coordinates.
        width: width of the residual stream; a multiple of num_heads.
        mlp_ratio: hidden width of the MLP divided by `width`.
        kernel_size: width of the convolution.
        chunk_length: number of positions computed together.
    """

    num_layers: int = 4
    num_heads: int = 4
    width: int = 128
    mlp_ratio: float = 8 / 3
    kernel_size: int = 4
    chunk_length: int = 64

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "num_heads", "width", "mlp_ratio", "kernel_size", "chunk_length")
        rule = f"must be a multiple of num_heads = {self.num_heads}"
        require(self.width % self.num_heads == 0, "width", rule, self.width)

    def build(self, model_io: ModelIO, generator: torch.Generator) -> TransformersModel:
        fields = {
            "num_hidden_layers": self.num_layers,
            "layer_types": ["linear_attention"] * self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_heads,
            "intermediate_size": round(self.mlp_ratio * self.width),
            "linear_conv_kernel_dim": self.kernel_size,
            "linear_key_head_dim": self.width // self.num_heads,
            "linear_value_head_dim": self.width // self.num_heads,
            "linear_num_key_heads": self.num_heads,
            "linear_num_value_heads": self.num_heads,
        }
        io: dict[str, Any] = {"model_io": model_io, "generator": generator}
        options = {"chunk_size": self.chunk_length}
        return TransformersModel("Qwen3_5Text", fields, width=self.width, options=options, **io)


@registry.model("llama")
@dataclass(frozen=True, kw_only=True)
class LlamaSpec:
    """Llama (Touvron et al. 2023): rotary positions, gated MLP, RMS norms. Needs ``pip install 'hmmscope[models]'``.

    Attributes:
        num_layers: number of blocks.
        num_heads: number of heads in a block.
        width: width of the residual stream; a multiple of 2 * num_heads.
        mlp_ratio: hidden width of the MLP divided by `width`; 8/3 gives as many weights as 4 in `DecoderSpec`,
            whose MLP has two matrices instead of three.
    """

    num_layers: int = 4
    num_heads: int = 4
    width: int = 128
    mlp_ratio: float = 8 / 3

    def __post_init__(self) -> None:
        check_sizes(self, "num_layers", "num_heads", "width", "mlp_ratio")
        rule = f"must be a multiple of 2 * num_heads = {2 * self.num_heads}"
        require(self.width % (2 * self.num_heads) == 0, "width", rule, self.width)

    def build(self, model_io: ModelIO, generator: torch.Generator) -> TransformersModel:
        fields = {
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_heads,
            "intermediate_size": round(self.mlp_ratio * self.width),
            "max_position_embeddings": max(2048, model_io.max_length or 0),
            "attn_implementation": "sdpa",
        }
        io: dict[str, Any] = {"model_io": model_io, "generator": generator}
        return TransformersModel("Llama", fields, width=self.width, reads_positions=True, attention="self_attn", **io)
