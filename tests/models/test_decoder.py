"""Options of the decoder, attention in blocks, dropout, recurrent and linear forms, costs."""

import cmath
import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hmmscope import registry
from hmmscope.errors import InputError
from hmmscope.models import attention, blocked
from hmmscope.models.attention import Attention, KeyValues, RotaryTable, rotate
from hmmscope.models.base import Dropout, ModelIO, SequenceModel, build_model, cost_of, make_model
from hmmscope.models.blocked import BlockedAttention
from hmmscope.models.decoder import DecoderSpec, RoFormerSpec, input_features, sinusoids
from hmmscope.models.linear_attention import LinearAttention, positive
from hmmscope.models.recurrent import GRUSpec, LSTMSpec, RNNSpec
from hmmscope.seeds import torch_generator

SMALL = {"num_layers": 2, "num_heads": 2, "width": 16, "mlp_ratio": 2}


def decoder(seed: int = 0, max_length: int = 40, **fields: Any) -> SequenceModel:
    given = {"num_symbols": 5, "vocab_size": 6, "seed": seed, "max_length": max_length}
    return make_model("decoder", **given, **{"dropout": 0.0, **SMALL, **fields}).eval()


def tokens_of(batch: int = 3, time: int = 11, seed: int = 0) -> torch.Tensor:
    return torch.randint(6, (batch, time), generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --------------------------------------------------------------------------------------------------------------------
# The decoder


def decoder_by_hand(model: nn.Module, tokens: torch.Tensor, max_length: int) -> torch.Tensor:
    """[Limits] A.1 and C.1 in loops, from the weights of a decoder with learned positions and features."""
    weights = {key: value.detach() for key, value in model.state_dict().items()}
    outputs = []
    for sequence in tokens:
        stream = []
        for t, token in enumerate(sequence):
            angle = math.pi * t / (4 * (max_length - 1))
            feature = torch.tensor([math.sin(angle), math.cos(angle), 1.0], dtype=torch.float64)
            stream.append(
                weights["embedding.weight"][token] + weights["features.weight"] @ feature + weights["positions"][t]
            )
        for layer in range(2):
            normed = [layer_norm(x, weights, f"blocks.{layer}.attention_norm") for x in stream]
            qkv = [affine(x, weights, f"blocks.{layer}.attention.qkv").view(3, 2, 8) for x in normed]
            for t in range(len(stream)):
                heads = []
                for head in range(2):
                    logits = torch.stack([qkv[t][0, head] @ qkv[s][1, head] / math.sqrt(8) for s in range(t + 1)])
                    pattern = logits.exp() / logits.exp().sum()
                    heads.append(sum(pattern[s] * qkv[s][2, head] for s in range(t + 1)))
                stream[t] = stream[t] + affine(torch.cat(heads), weights, f"blocks.{layer}.attention.out")
            for t, x in enumerate(stream):
                hidden = affine(
                    layer_norm(x, weights, f"blocks.{layer}.mlp_norm"), weights, f"blocks.{layer}.mlp.hidden"
                )
                hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
                stream[t] = x + affine(hidden, weights, f"blocks.{layer}.mlp.out")
        outputs.append(torch.stack([affine(layer_norm(x, weights, "norm"), weights, "head") for x in stream]))
    return torch.stack(outputs)


def affine(x: torch.Tensor, weights: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def layer_norm(x: torch.Tensor, weights: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    centred = x - x.mean()
    scaled = centred / (centred.square().mean() + 1e-5).sqrt()
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def test_decoder_is_the_one_on_paper() -> None:
    model = decoder(max_length=21).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))  # no norm or bias is trivial
        assert (model(tokens_of()) - decoder_by_hand(model, tokens_of(), 21)).abs().max() < 1e-12


def test_roformer_is_a_decoder_with_options() -> None:
    sizes = {"num_symbols": 5, "vocab_size": 6, "seed": 3, **SMALL}
    one = make_model("roformer", **sizes)
    other = make_model("decoder", positions="rotary", input_features=False, dropout=0.0, **sizes)
    assert one.state_dict().keys() == other.state_dict().keys()
    assert torch.equal(one(tokens_of()), other(tokens_of()))
    assert RoFormerSpec(**SMALL).decoder.positions == "rotary"


def test_weights_are_drawn_in_the_same_order_as_ever() -> None:
    """Embedding, then qkv, out, hidden, out of each block, then the head, from one generator: old seeds stay valid."""
    model = make_model("roformer", num_symbols=5, vocab_size=6, seed=2, **SMALL)
    drawn = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Embedding)]
    assert [tuple(module.weight.shape) for module in drawn] == [
        *[(6, 16), *2 * [(48, 16), (16, 16), (32, 16), (16, 32)]],
        (5, 16),
    ]
    generator = torch_generator(2, "weights")
    stds = [0.5, *2 * [1 / 4, 1 / 8, 1 / 4, 1 / math.sqrt(32) / 2], 0.02]
    for module, std in zip(drawn, stds, strict=True):
        assert torch.equal(module.weight, torch.empty_like(module.weight).normal_(0.0, std, generator=generator))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
@pytest.mark.parametrize("features", [True, False])
def test_positions_are_seen_or_not(positions: str, features: bool) -> None:
    """Without any position two permuted pasts look the same to the last position; with any they differ."""
    model = decoder(positions=positions, input_features=features, num_layers=1).double()
    tokens = torch.tensor([[0, 1, 2, 3, 4], [2, 0, 3, 1, 4]])
    with torch.no_grad():
        one, other = model(tokens)[:, -1]
    blind = positions == "none" and not features
    assert ((one - other).abs().max() < 1e-12) == blind


def test_features_and_sinusoids() -> None:
    found = input_features(torch.tensor([0, 60, 120]), 121, torch.float64)
    root = math.sqrt(0.5)
    expected = torch.tensor([[0, 1, 1], [math.sin(math.pi / 8), math.cos(math.pi / 8), 1], [root, root, 1]])
    assert (found - expected).abs().max() < 1e-7
    waves = sinusoids(torch.tensor([[0, 3]]), 4, torch.float64)
    expected = torch.tensor([[[0, 0, 1, 1], [math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)]]])
    assert waves.shape == (1, 2, 4)
    assert (waves - expected).abs().max() < 1e-7
    for wrong, message in [
        (1, "must be at least 2 with input features"),
        (None, "input features need the longest input length"),
    ]:
        with pytest.raises(InputError, match=message):
            make_model("decoder", num_symbols=5, positions="none", max_length=wrong, **SMALL)


def test_without_mlp_norm_and_mask() -> None:
    names = {key for key, _ in decoder(attention_only=True).named_parameters()}
    assert not any("mlp" in name for name in names)
    names = {key for key, _ in decoder(norm="none").named_parameters()}
    assert not any("norm" in name for name in names)
    model = decoder(causal=False)
    tokens = tokens_of()
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 6
    with torch.no_grad():
        assert ((model(tokens) - model(changed))[:, 0].abs().amax(-1) > 1e-7).all()
    with pytest.raises(InputError, match="cache: needs causal attention"):
        model(tokens, cache={})


def test_scaled_and_unscaled_logits() -> None:
    logits = []
    for scaled in (True, False):
        model = decoder(scale_attention=scaled)
        model.blocks[0].attention.logits.register_forward_hook(lambda module, args, output: logits.append(output))
        model(tokens_of())
    past = torch.ones(11, 11, dtype=torch.bool).tril()
    assert torch.allclose(logits[0][..., past] * math.sqrt(8), logits[1][..., past], atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"scale_attention": False}, {"positions": "rotary"}])
def test_every_form_of_attention_is_the_same(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, torch's kernel, and the plain form for listeners."""
    model = decoder(max_length=130, **options).double()
    tokens = tokens_of(time=120)
    plain = model(tokens)
    model.blocks[1].attention.pattern.register_forward_hook(lambda module, args, output: None)
    heard = model(tokens)
    monkeypatch.setattr(attention, "MAX_BLOCKED_LENGTH", 0)
    fused = model(tokens)
    assert (plain - heard).abs().max() < 1e-12
    assert (plain - fused).abs().max() < 1e-12


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("width", 15, "width: must be a multiple of num_heads = 2, got 15"),
        ("width", 0, r"width: must be in \[1, 65536\], got 0"),
        ("dropout", 1.0, r"dropout: must be in \[0, 1\), got 1.0"),
        ("rotary_base", 0.0, "rotary_base: must be positive, got 0.0"),
        ("positions", "rotating", "positions: unknown 'rotating'"),
        ("norm", "post", "norm: unknown 'post'"),
    ],
)
def test_decoder_options_are_checked(field: str, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        decoder(**{field: value})
    with pytest.raises(InputError, match="width: must be a multiple of 2"):
        decoder(positions="rotary", width=6)
    with pytest.raises(InputError, match="width: must be even"):
        decoder(positions="sinusoidal", width=9, num_heads=1)


# --------------------------------------------------------------------------------------------------------------------
# Attention in blocks, rotations, keys and values


@pytest.mark.parametrize("time", [1, 2, 47, 48, 49, 73, 100, 145, 200])
def test_blocks_are_attention(time: int) -> None:
    qkv = normal(3, time, 3, 12, 4).requires_grad_()  # 36 heads of samples: more than one group
    rotation = RotaryTable(4, 100.0).first(0, time, qkv)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    q, k = rotate(q, rotation), rotate(k, rotation)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.7).transpose(1, 2).reshape(3, time, 48)
    before = qkv.detach().clone()
    found = BlockedAttention.apply(qkv, rotation, 0.7)
    weights = normal(3, time, 48, seed=1)
    (one,), (other,) = torch.autograd.grad(found, qkv, weights), torch.autograd.grad(expected, qkv, weights)
    assert (found - expected).abs().max() < 1e-12
    assert (one - other).abs().max() < 1e-12
    assert torch.equal(qkv, before)  # it works on a copy


def test_blocks_have_the_right_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "_BLOCK", 2)
    monkeypatch.setattr(blocked, "_GROUP", 3)
    qkv = normal(2, 7, 3, 2, 4).requires_grad_()
    rotation = RotaryTable(4, 10.0).first(0, 7, qkv)
    assert torch.autograd.gradcheck(lambda x: BlockedAttention.apply(x, rotation, 0.5), (qkv,))


def test_second_derivatives_need_a_listener() -> None:
    layer, x = Attention(8, 2).double(), normal(2, 5, 8).requires_grad_()
    rotation = RotaryTable(4, 100.0).first(0, 5, x)
    (first,) = torch.autograd.grad(layer(x, rotation).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
    layer.pattern.register_forward_hook(lambda module, args, output: None)
    assert torch.autograd.gradgradcheck(lambda x: layer(x, rotation), (x,))


def test_blocks_cut_all_queries() -> None:
    for time in range(1, 300):
        blocks = blocked._blocks(time)
        assert [begin for begin, _ in blocks] == [0, *(end for _, end in blocks[:-1])]
        assert blocks[-1][1] == time
        assert len(blocks) <= blocked.num_blocks(time)
        assert max(end - begin for begin, end in blocks) == blocks[0][1]


def test_rotation_turns_pairs() -> None:
    table = RotaryTable(4, 100.0)
    cos, sin = table.first(2, 4, normal(1))
    x = normal(1, 1, 2, 4)
    found = rotate(x, (cos, sin))[0, 0, 1]  # position 3
    for pair, angle in ((0, 3.0), (1, 0.3)):
        whole = complex(x[0, 0, 1, pair], x[0, 0, 1, pair + 2]) * cmath.exp(1j * angle)
        assert abs(found[pair] - whole.real) < 1e-12
        assert abs(found[pair + 2] - whole.imag) < 1e-12
    with torch.inference_mode():
        table.first(0, 500, normal(1))
    weights = normal(1, 1, 500, 4).requires_grad_()
    rotate(weights, table.first(0, 500, weights)).sum().backward()  # what was made in inference mode is of use
    each = table.at(torch.arange(500)[None], torch.float64)[0][0, 0]
    assert torch.equal(each, table.first(0, 500, weights)[0])


def test_keys_and_values_are_kept() -> None:
    keys, values = normal(2, 3, 40, 4), normal(2, 3, 40, 4, seed=1)
    for grad in (True, False):
        past = KeyValues()
        with torch.set_grad_enabled(grad):
            for begin, end in ((0, 3), (3, 4), (4, 20), (20, 40)):
                k, v = past.append(keys[:, :, begin:end], values[:, :, begin:end])
                assert torch.equal(k, keys[:, :, :end])
                assert torch.equal(v, values[:, :, :end])


def test_attention_taps_with_a_cache() -> None:
    layer = Attention(8, 2).double()
    x, past, seen = normal(2, 9, 8), KeyValues(), []
    whole = layer(x)
    layer.pattern.register_forward_hook(lambda module, args, output: seen.append(output))
    parts = [layer(x[:, :5], None, past), layer(x[:, 5:], None, past)]
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-12
    assert [pattern.shape for pattern in seen] == [(2, 2, 5, 5), (2, 2, 4, 9)]
    assert (seen[1][..., torch.ones(4, 9, dtype=torch.bool).triu(6)] == 0).all()


# --------------------------------------------------------------------------------------------------------------------
# Dropout


def dropped(model: SequenceModel, step: int, stream: int = 0) -> torch.Tensor:
    model.set_step(step, stream)
    return model(tokens_of())


def test_dropout_is_a_function_of_seed_and_step() -> None:
    model, same, other = (decoder(seed=seed, dropout=0.3).train() for seed in (1, 1, 2))
    first = [dropped(model, step) for step in range(4)]
    assert not any(torch.equal(first[a], first[b]) for a in range(4) for b in range(a))
    torch.rand(11)
    dropped(same, 0)
    same(tokens_of())  # further passes within a step, such as an evaluation, change no later step
    assert torch.equal(dropped(same, 3), first[3])
    assert torch.equal(dropped(copy.deepcopy(same), 2), first[2])
    assert not torch.equal(dropped(same, 2, stream=1), first[2])
    model.set_step(2)
    twice = [model(tokens_of()), model(tokens_of())]
    assert torch.equal(twice[0], first[2])
    assert not torch.equal(*twice)  # pieces of a batch have masks of their own
    other.load_state_dict(model.state_dict())
    assert not torch.equal(dropped(other, 2), first[2])
    assert torch.equal(dropped(model.eval(), 2), decoder(seed=1)(tokens_of()))  # none outside of training


def test_dropout_drops_its_share() -> None:
    layer = Dropout(0.3, torch.Generator().manual_seed(0))
    x = torch.full((1000, 1000), 2.0)
    found = layer(x)
    kept = found != 0
    assert torch.equal(found[kept], torch.full_like(found[kept], 2 / 0.7))
    assert abs(kept.double().mean() - 0.7) < 5 * math.sqrt(0.21 / 1e6)  # false alarm below 1e-6
    assert torch.equal(Dropout(0.0, torch.Generator())(x), x)


def test_dropout_has_three_places(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    monkeypatch.setattr(Dropout, "forward", lambda self, x: shapes.append(tuple(x.shape)) or x)
    decoder(dropout=0.1)(tokens_of())
    assert shapes == [(3, 11, 16)] * (1 + 2 * 2)


# --------------------------------------------------------------------------------------------------------------------
# Recurrent and linear


@pytest.mark.parametrize(
    "spec, plain",
    [
        (RNNSpec(num_layers=2, width=7), nn.RNN(9, 7, 2, nonlinearity="relu", batch_first=True)),
        (RNNSpec(num_layers=2, width=7, nonlinearity="tanh"), nn.RNN(9, 7, 2, batch_first=True)),
        (LSTMSpec(num_layers=2, width=7), nn.LSTM(9, 7, 2, batch_first=True)),
        (GRUSpec(num_layers=2, width=7), nn.GRU(9, 7, 2, batch_first=True)),
    ],
    ids=["relu", "tanh", "lstm", "gru"],
)
def test_recurrent_models_are_those_of_torch(spec: Any, plain: nn.RNNBase) -> None:
    model = build_model(spec, ModelIO(num_outputs=5, vocab_size=6, feedback_width=3), 0)
    ours = dict(model.layers.named_parameters())
    for name, parameter in plain.named_parameters():  # weight_ih_l1 is layers.1.weight_ih_l0
        kind, _, layer = name.rpartition("_l")
        parameter.data = ours[f"{layer}.{kind}_l0"].data
    told = torch.rand(3, 11, 3, generator=torch.Generator().manual_seed(2))
    expected = model.head(plain(torch.cat([F.one_hot(tokens_of(), 6).float(), told], -1))[0])
    assert (model(tokens_of(), feedback=told) - expected).abs().max() < 1e-6
    bound = 1 / math.sqrt(7)
    assert all(parameter.abs().max() <= bound for parameter in ours.values())


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_first_states_can_be_learned(name: str) -> None:
    fields = {"num_symbols": 5, "vocab_size": 6, "num_layers": 2, "width": 8}
    fixed, learned = make_model(name, **fields), make_model(name, learn_initial=True, **fields)
    assert torch.equal(fixed(tokens_of()), learned(tokens_of()))  # it begins at zero
    learned(tokens_of()).square().sum().backward()
    assert learned.initial.shape == (2, 2 if name == "lstm" else 1, 8)
    assert (learned.initial.grad.abs().amax(-1) > 0).all()
    with torch.no_grad():
        learned.initial += 0.5
        whole = learned(tokens_of())
        assert (whole - fixed(tokens_of()))[:, 0].abs().max() > 1e-4
        cache: dict[str, Any] = {}
        parts = [learned(tokens_of()[:, :4], cache=cache), learned(tokens_of()[:, 4:], cache=cache)]
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-6


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_linear_attention_is_a_weighted_mean(chunk: int) -> None:
    layer, x = LinearAttention(8, 2, chunk).double(), normal(3, 13, 8)
    q, k, v = layer.qkv(x).view(3, 13, 3, 2, 4).unbind(2)
    expected = torch.empty(3, 13, 2, 4, dtype=torch.float64)
    for t in range(13):
        weights = torch.einsum("bhk,buhk->buh", F.elu(q[:, t]) + 1, F.elu(k[:, : t + 1]) + 1)
        expected[:, t] = torch.einsum("buh,buhk->bhk", weights / weights.sum(1, keepdim=True), v[:, : t + 1])
    assert (layer(x) - layer.out(expected.flatten(2))).abs().max() < 1e-12


def test_features_of_linear_attention_stay_positive() -> None:
    x = torch.tensor([-80.0, -20.0, -1.0, 0.0, 2.0], requires_grad=True)
    found = positive(x)
    assert torch.allclose(
        found, torch.tensor([math.exp(-80), math.exp(-20), math.exp(-1), 1.0, 3.0]), rtol=1e-6, atol=0
    )
    found.sum().backward()
    assert (x.grad > 0).all()


# --------------------------------------------------------------------------------------------------------------------
# Costs


def spec_of(name: str, **fields: Any) -> Any:
    return registry.build_spec("model", {"name": name, **fields}, "model")


PORTS = ModelIO(num_outputs=9, vocab_size=10, max_length=600)


def test_flops_of_a_decoder() -> None:
    """24 d^2 + 2 T d a token and layer forward, thrice that in all, and the head."""
    spec = spec_of("roformer", num_layers=5, num_heads=4, width=96)
    assert spec.cost(PORTS, 145).flops == 3 * 145 * (5 * (24 * 96**2 + 2 * 145 * 96) + 2 * 96 * 9)
    assert spec_of("rnn").cost(PORTS, 10).flops == 3 * 10 * (2 * 64 * (10 + 64) + 2 * 64 * 9)
    assert cost_of(spec_of("mamba"), PORTS, 10) is None
    assert cost_of(spec, PORTS, 145) == spec.cost(PORTS, 145)


@pytest.mark.parametrize("options", [{}, {"attention_only": True}, {"input_features": False, "mlp_ratio": 3}])
@pytest.mark.parametrize("vectors", [True, False])
def test_flops_are_those_that_torch_counts(options: dict, vectors: bool) -> None:
    reads: dict[str, Any] = {"input_width": 3} if vectors else {"vocab_size": 6}
    ports = ModelIO(num_outputs=5, max_length=40, feedback_width=2, **reads)
    spec = DecoderSpec(num_layers=2, num_heads=2, width=16, causal=False, **options)
    model = build_model(spec, ports, 0).eval()
    for block in model.blocks:
        block.attention.pattern.register_forward_hook(lambda module, args, output: None)  # products in the open
    inputs = torch.zeros(1, 30, 3) if vectors else torch.zeros(1, 30, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(inputs, feedback=torch.zeros(1, 30, 2))
    assert 3 * counter.get_total_flops() == spec.cost(ports, 30).flops


def bytes_kept(model: nn.Module, inputs: torch.Tensor) -> int:
    """What torch keeps for the backward pass, each storage once, without the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = model(inputs)
        loss = F.cross_entropy(outputs.flatten(0, 1), torch.zeros(inputs.numel(), dtype=torch.int64))
    assert loss.isfinite()
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in weights)


@pytest.mark.drawn(10)
@pytest.mark.parametrize("time", [40, 145, 600])
@pytest.mark.parametrize(
    "name, fields",
    [
        ("roformer", {"num_heads": 4}),
        ("decoder", {"num_heads": 4}),
        ("decoder", {"num_heads": 4, "norm": "none", "attention_only": True, "dropout": 0.0}),
        ("decoder", {"num_heads": 4, "causal": False}),
        ("linear-attention", {"num_heads": 4}),
        ("delta-rule", {"num_heads": 4}),
        ("delta-rule", {"num_heads": 4, "gated": False}),
        *[("rnn", {}), ("lstm", {}), ("gru", {})],
    ],
)
def test_memory_is_what_torch_keeps(name: str, fields: dict, time: int) -> None:
    """Within 10 %: sizes of a few small things are left out."""
    spec = spec_of(name, num_layers=2, width=64, **fields)
    model = build_model(spec, PORTS, 0).train()
    tokens = torch.zeros(4, time, dtype=torch.int64)
    cost = spec.cost(PORTS, time)
    assert 0.9 < bytes_kept(model, tokens) / (4 * 4 * cost.kept) < 1.1
    assert cost.step_bytes(4) == 4 * 4 * cost.kept + 16 * sum(parameter.numel() for parameter in model.parameters())
