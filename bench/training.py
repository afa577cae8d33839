"""Measure training at common shapes: tokens per second of forward pass, backward pass and AdamW."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bench.contest import Contest, installed, noise
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import Target, make_target
from hmmscope.models.base import build_model, cost_of
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import engine_of, model_io_of
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.engines import make_engine
from hmmscope.training.state import Moments
from hmmscope.training.trainer import BatchAhead, BatchSchedule, labelled, train_step


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One training.

    Attributes:
        name: Display name.
        config: Plain configuration.
        batch: Samples per step on a processor, and on a GPU.
    """

    name: str
    config: dict[str, Any]
    batch: tuple[int, int]


def _prompts(components: int, states: int, symbols: int, length: int) -> dict[str, Any]:
    return {
        "process": {
            "name": "random-mixture",
            "num_components": components,
            "num_states": states,
            "num_symbols": symbols,
        },
        "layout": {
            "name": "prompts",
            "num_demonstrations": 15,
            "demonstration_length": length,
            "test_length": length,
        },
    }


_LIMITS: dict[str, Any] = {
    "process": {"name": "cyclic-det"},
    "layout": {"name": "sequences", "length": 120, "placeholder": True},
    "target": "belief",
}


def _deep(num_layers: int) -> Shape:
    model = {"name": "decoder", "num_layers": num_layers, "width": 512, "num_heads": 8}
    return Shape(name=f"[Limits] Transformer, {num_layers} x 512", config=_LIMITS | {"model": model}, batch=(8, 256))


SHAPES = {
    "quickstart": Shape(
        name="quickstart, 5 x 96, 145 columns",
        config=_prompts(40, 8, 8, 8) | {"model": {"name": "roformer", "num_layers": 5, "num_heads": 4, "width": 96}},
        batch=(32, 512),
    ),
    "rnn": Shape(
        name="[Limits] RNN, 64 wide", config=_LIMITS | {"model": {"name": "rnn", "width": 64}}, batch=(256, 256)
    ),
    "limits-1": _deep(1),
    "limits-4": _deep(4),
    "limits-7": _deep(7),
    "multitask": Shape(
        name="[MultiTask] 16 x 1024, 273 columns",
        config=_prompts(64, 128, 16, 16)
        | {"model": {"name": "roformer", "num_layers": 16, "num_heads": 16, "width": 1024}},
        batch=(1, 32),
    ),
}


def contests(
    *,
    peers: bool,
    device: str = "cpu",
    shapes: tuple[str, ...] = (),
    precision: str = "float32",
    compiled: bool = False,
) -> list[Contest]:
    """Return a contest for each shape: our step and peers' steps on a labelled batch without dropout, and the product rate.

    Our step is also measured as in a run, which makes samples and exact labels and applies dropout; peers have no such row.

    Peers have the same layers, width and heads: nanoGPT's GPT, without and with biases (as ours); torch's
    TransformerEncoder; Transformers' Llama with a gated MLP of 8/3 of the width (equal parameters and FLOPs) and of four
    times the width; for the RNN torch's RNN.

    Args:
        peers: Whether to measure the peers too.
        device: "cpu" or "cuda".
        shapes: Names of SHAPES; all if empty, without the largest on a processor.
        precision: "float32" or "bfloat16" (autocast) for all; with bfloat16 also our step in float32.
        compiled: Also our step with torch.compile.
    """
    chosen = shapes or tuple(name for name in SHAPES if device != "cpu" or name != "multitask")
    return [_contest(SHAPES[name], peers, device, precision, compiled) for name in chosen]


def _contest(shape: Shape, peers: bool, device: str, precision: str, compiled: bool) -> Contest:
    batch = shape.batch[device != "cpu"]
    training = {"batch_size": batch, "precision": precision, "device": device, "gradient_clip": 1.0}
    config = config_from_data(shape.config | {"training": training})
    process = config.process.build()
    target = make_target(config.target, process, config.layout)
    ports = model_io_of(config, target)
    dataset = ProcessDataset(process, layout=config.layout, seed=0, stream="train", device=device)
    columns = config.layout.context_length
    tokens = batch * columns
    contest = Contest(f"training, {shape.name}, batch {batch}, {precision}", "tokens")
    contest.add("hmmscope", _ours(_without_dropout(config), dataset, target, at_hand=True), tokens)
    contest.add("hmmscope, as in a run", _ours(config, dataset, target), tokens)
    if precision != "float32":  # float32 as well, in the same rounds
        plain = replace(config, training=replace(config.training, precision="float32"))
        contest.add("hmmscope in float32, as in a run", _ours(plain, dataset, target), tokens)
    if compiled:
        compiled_config = replace(config, training=replace(config.training, compile=True))
        contest.add("hmmscope, compiled, as in a run", _ours(compiled_config, dataset, target), tokens)
    if peers:
        for name, model in _peers(config.model, ports.vocab_size or 1, ports.num_outputs, columns).items():
            contest.add(name, _step_of(model.to(device), config, dataset, target), tokens)
    cost = cost_of(config.model, ports, columns)
    if cost is not None:
        multiply, amount = gemm(device, precision)
        contest.flops, contest.dtype = cost.flops / columns, getattr(torch, precision)
        contest.add(f"{precision} matrix product", multiply, amount / (cost.flops / columns), limit=True)
    return contest


def _without_dropout(config: RunConfig) -> RunConfig:
    return replace(config, model=replace(config.model, dropout=0.0)) if hasattr(config.model, "dropout") else config


def _ours(config: RunConfig, corpus: ProcessDataset, target: Target, *, at_hand: bool = False) -> Callable[[], None]:
    """Return steps of a long training by the engine that the rule chooses, on fresh samples or one labelled batch."""
    spec, ports = replace(config.training, num_steps=10**6), model_io_of(config, target)
    spec = replace(spec, engine=engine_of(replace(config, training=spec), ports).engine)
    device = torch.device(spec.device)
    model = build_model(config.model, ports).to(device).train()
    engine = make_engine(model, spec, ProcessGroup())
    moments, state = Moments(), {"step": 0}
    kept = labelled(corpus[: spec.batch_size], target) if at_hand else None
    ahead = BatchAhead(BatchSchedule(corpus, target, spec, device), engine, spec.num_steps, device)
    if not at_hand:
        engine.meanwhile = ahead.prepare

    def step() -> None:
        batch, asked = ahead.take(state["step"]) if kept is None else (kept, target)
        train_step(model, moments, batch, asked, spec, state["step"], engine)
        state["step"] += 1

    return step


def _step_of(model: nn.Module, config: RunConfig, corpus: ProcessDataset, target: Target) -> Callable[[], None]:
    spec = config.training
    batch = corpus[0 : spec.batch_size]
    labels = target.labels(batch)
    columns = target.token_positions_on(batch.tokens.device)
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=spec.learning_rate,
        betas=(spec.betas[0], spec.betas[1]),
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
        fused=True,
    )

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(spec.device, torch.bfloat16, enabled=spec.precision == "bfloat16"):
            outputs = model(batch.tokens)
            loss = target.loss(getattr(outputs, "logits", outputs)[:, columns, : target.num_outputs], labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.gradient_clip)
        optimiser.step()

    return step


def _peers(spec: Any, num_tokens: int, num_outputs: int, columns: int) -> dict[str, nn.Module]:
    if spec.name == "rnn":
        return {"torch RNN": _TorchRNN(num_tokens, num_outputs, spec.width)}
    found: dict[str, nn.Module] = {
        "nanoGPT form": _NanoGPT(spec, num_tokens, num_outputs, columns, bias=False),
        "nanoGPT form, with biases": _NanoGPT(spec, num_tokens, num_outputs, columns, bias=True),
        "nn.TransformerEncoder": _Encoder(spec, num_tokens, num_outputs, columns),
    }
    if installed("transformers"):
        from transformers import LlamaConfig, LlamaForCausalLM

        for hidden, name in ((round(8 * spec.width / 3), "8/3"), (4 * spec.width, "4")):
            llama = LlamaConfig(
                vocab_size=num_tokens,
                hidden_size=spec.width,
                intermediate_size=hidden,
                num_hidden_layers=spec.num_layers,
                num_attention_heads=spec.num_heads,
                max_position_embeddings=columns,
                use_cache=False,
            )
            found[f"transformers Llama, MLP x {name}"] = LlamaForCausalLM(llama)
    return found


class _NanoGPT(nn.Module):
    """nanoGPT's architecture: learned positions, pre-LN, fused attention, GELU MLP, with or without biases."""

    def __init__(self, spec: Any, num_tokens: int, num_outputs: int, columns: int, *, bias: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(num_tokens, spec.width), nn.Embedding(columns, spec.width)
        self.blocks = nn.ModuleList(_NanoBlock(spec.width, spec.num_heads, bias) for _ in range(spec.num_layers))
        self.norm, self.head = nn.LayerNorm(spec.width), nn.Linear(spec.width, num_outputs, bias=bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _NanoBlock(nn.Module):
    def __init__(self, width: int, num_heads: int, bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.hidden, self.out = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(batch, time, self.num_heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).contiguous().view(batch, time, width))
        return x + self.out(F.gelu(self.hidden(self.norm2(x))))


class _Encoder(nn.Module):
    def __init__(self, spec: Any, num_tokens: int, num_outputs: int, columns: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(num_tokens, spec.width), nn.Embedding(columns, spec.width)
        layer = nn.TransformerEncoderLayer(
            spec.width, spec.num_heads, 4 * spec.width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, spec.num_layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(spec.width), nn.Linear(spec.width, num_outputs)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        time = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(time, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(time, device=tokens.device)
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))


class _TorchRNN(nn.Module):
    def __init__(self, num_tokens: int, num_outputs: int, width: int) -> None:
        super().__init__()
        self.vocab_size = num_tokens
        self.rnn = nn.RNN(num_tokens, width, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(F.one_hot(tokens, self.vocab_size).float())[0])


def gemm(device: str, precision: str) -> tuple[Callable[[], torch.Tensor], float]:
    """Return a large matrix product and its FLOPs."""
    size = 2048 if device == "cpu" else 8192
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    left, right = (noise(size, size, dtype=dtype, device=device) for _ in range(2))
    return lambda: left @ right, 2.0 * size**3
