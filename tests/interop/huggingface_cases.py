"""What the tests of the Hugging Face layout share."""

from pathlib import Path

import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.activations import capture_activations
from hmmscope.interop import export_huggingface
from hmmscope.models.decoder import Decoder
from hmmscope.runs.config import config_from_data
from hmmscope.seeds import torch_generator

LENGTH, SYMBOLS, TOKENS = 12, 5, 6
SMALL = {"num_layers": 2, "num_heads": 2, "width": 8}

#: Options of every kind that has a layout.
GRID = {
    "learned": ("decoder", {}),
    "learned-bare": ("decoder", {"input_features": False, "dropout": 0.0, "mlp_ratio": 2}),
    "sinusoidal": ("decoder", {"positions": "sinusoidal"}),
    "sinusoidal-bare": ("decoder", {"positions": "sinusoidal", "input_features": False}),
    "features-only": ("decoder", {"positions": "none"}),
    "no-positions": ("decoder", {"positions": "none", "input_features": False}),
    "unscaled": ("decoder", {"scale_attention": False, "num_heads": 1}),
    "attention-only": ("decoder", {"attention_only": True}),
    "rotary": ("decoder", {"positions": "rotary", "input_features": False, "rotary_base": 500.0}),
    "rotary-unscaled": ("decoder", {"positions": "rotary", "input_features": False, "scale_attention": False}),
    "rotary-attention-only": ("decoder", {"positions": "rotary", "input_features": False, "attention_only": True}),
    "roformer": ("roformer", {"num_layers": 3, "mlp_ratio": 1}),
}
ROTARY = {name for name, (kind, fields) in GRID.items() if kind == "roformer" or fields.get("positions") == "rotary"}

#: Float32: rounding. Float64: rounding, but transformers computes rotations in float32 whatever the type of the weights.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
ROTATIONS = 1e-6


def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """With biases and gains that are not what a fresh model has, so that none can be forgotten."""
    generator = torch_generator(seed, "weights")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.copy_(1 + 0.3 * torch.randn(module.weight.shape, generator=generator))
            bias = getattr(module, "bias", None)
            if isinstance(bias, torch.Tensor):
                bias.copy_(0.3 * torch.randn(bias.shape, generator=generator))
    return model.eval()


def made(name: str, dtype: torch.dtype = torch.float32, **options) -> Decoder:
    kind, fields = GRID[name]
    sizes = {"num_symbols": SYMBOLS, "vocab_size": TOKENS, "max_length": LENGTH} | options
    model = hs.make_model(kind, seed=1, **sizes, **(SMALL | fields))
    assert isinstance(model, Decoder)
    return shaken(model).to(dtype)


def tokens(count: int = 3, length: int = LENGTH, below: int = TOKENS) -> torch.Tensor:
    return torch.randint(below, (count, length), generator=torch_generator(2, "weights"))


def foreign(name: str) -> nn.Module:
    """A small causal model whose weights our generator drew."""
    library = pytest.importorskip("transformers")
    sizes = {"vocab_size": TOKENS, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    extra = {
        "llama": {"intermediate_size": 16, "num_key_value_heads": 1, "max_position_embeddings": 64},
        "gpt2": {"n_positions": 64, "activation_function": "gelu_new"},
        "gpt_neox": {"intermediate_size": 16, "max_position_embeddings": 64},
        "opt": {"ffn_dim": 16, "word_embed_proj_dim": 8, "pad_token_id": 1},
        "mamba": {"state_size": 4},
        "gpt_neo": {
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global"], 2]],
            "max_position_embeddings": 64,
        },
    }[name]
    if name == "gpt_neo":
        sizes = {"vocab_size": TOKENS, "hidden_size": 8}
    with torch.random.fork_rng(devices=[]):
        model = library.AutoModelForCausalLM.from_config(library.AutoConfig.for_model(name, **(sizes | ends | extra)))
    generator = torch_generator(3, "weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.mean() + 0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    return (one - other).abs().max().item()


def streams(model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    names = [name for name, _ in model.named_modules() if name.startswith("residual.")]
    return list(capture_activations(model, names, inputs).values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An exported roformer."""
    export_huggingface(made("roformer"), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two short runs on prompts, which have a delimiter."""
    base = {
        "process": {"name": "random-mixture", "num_components": 3, "num_states": 3, "num_symbols": 4},
        "layout": {"name": "prompts", "num_demonstrations": 2, "demonstration_length": 3, "test_length": 6},
        "training": {"num_steps": 60, "batch_size": 8, "learning_rate": 0.01, "warmup_steps": 5, "device": "cpu"},
    }
    paths = {}
    for name, fields in {"decoder": {}, "roformer": {}}.items():
        paths[name] = tmp_path_factory.mktemp("runs") / name
        hs.train(
            config_from_data(base | {"model": {"name": name, **SMALL, **fields}}),
            paths[name],
            options=hs.TrainOptions(num_samples=8),
        )
    return paths
