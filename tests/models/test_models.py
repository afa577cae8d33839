"""What every registered model does with its ports: caches, vectors, feedback, lengths, seeds, sizes; foreign layers."""

import copy
import importlib
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hmmscope import registry
from hmmscope.errors import InputError, ResourceError
from hmmscope.models.base import ModelIO, SequenceModel, build_model, make_model, parameter_count

#: What is handed over as a module has no sizes to build it from.
MODELS = sorted(set(registry.entries("model")) - {"given"})
OWN = [name for name in MODELS if not registry.entries("model")[name].__module__.endswith("transformers_specs")]
SMALL = {"num_layers": 2, "num_heads": 2, "width": 16, "mlp_ratio": 2}


def spec_of(name: str, **fields: Any) -> Any:
    known = registry.entries("model")[name].__dataclass_fields__
    return registry.build_spec(
        "model", {"name": name} | {k: v for k, v in SMALL.items() if k in known} | fields, "model"
    )


def built(name: str, *, vectors: bool = False, feedback: int = 0, seed: int = 0, **fields: Any) -> SequenceModel:
    """A small model in evaluation mode, of 5 outputs, that reads 6 tokens or vectors of 3 coordinates."""
    if name not in OWN:
        pytest.importorskip("transformers")
    reads: dict[str, Any] = {"input_width": 3} if vectors else {"vocab_size": 6}
    ports = ModelIO(num_outputs=5, max_length=150, feedback_width=feedback, **reads)
    return build_model(spec_of(name, **fields), ports, seed).eval()


def inputs_of(vectors: bool = False, batch: int = 3, time: int = 11, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if vectors:
        return torch.randn(batch, time, 3, generator=generator)
    return torch.randint(6, (batch, time), generator=generator)


def feedback_of(width: int = 4, batch: int = 3, time: int = 11) -> torch.Tensor:
    return torch.rand(batch, time, width, generator=torch.Generator().manual_seed(9))


# --------------------------------------------------------------------------------------------------------------------
# Caches


def in_parts(model: nn.Module, cuts: list[int], *sequences: Any) -> torch.Tensor:
    """Outputs of calls with one cache, on pieces between the cuts; sequences are inputs and feedback."""
    cache: dict[str, Any] = {}
    inputs, feedback = sequences
    parts = []
    for begin, end in zip([0, *cuts], [*cuts, inputs.shape[1]], strict=True):
        told = None if feedback is None else feedback[:, begin:end]
        parts.append(model(inputs[:, begin:end], feedback=told, cache=cache))
        assert parts[-1].shape[1] == end - begin
    return torch.cat(parts, 1)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("vectors, feedback", [(False, 0), (False, 4), (True, 4)])
def test_cached_calls_give_the_same_as_one(name: str, vectors: bool, feedback: int) -> None:
    # foreign layers compute some steps in float32 whatever the weights are
    tolerance = 1e-12 if name in OWN else 1e-5
    model = built(name, vectors=vectors, feedback=feedback).double()
    inputs = inputs_of(vectors, time=70)
    inputs = inputs.double() if vectors else inputs
    told = feedback_of(feedback, time=70).double() if feedback else None
    singly = (
        [list(range(1, 70)), [1], [69], [64, 66]] if name in OWN else [list(range(60, 70))]
    )  # those read it all again
    with torch.no_grad():
        whole = model(inputs, feedback=told)
        for cuts in ([3, 4, 30], *singly):
            assert (in_parts(model, cuts, inputs, told) - whole).abs().max() < tolerance
    assert (in_parts(model, [3, 4, 30], inputs, told) - whole).abs().max() < tolerance  # with gradients
    other = inputs_of(vectors, time=70, seed=1)
    with torch.no_grad():
        mixed = in_parts(model, [5], torch.cat([other[:, :5].to(inputs), inputs[:, 5:]], 1), told)
    assert (mixed - whole)[:, 5:].abs().max() > 1e-6  # what the cache holds is used


@pytest.mark.parametrize("name", OWN)
def test_gradients_flow_through_a_cache(name: str) -> None:
    model, inputs = built(name).double(), inputs_of()
    grads = []
    for outputs in (model(inputs), in_parts(model, [2, 7], inputs, None)):
        outputs[:, -1].square().sum().backward()
        grads.append({key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None})
        model.zero_grad()
    assert grads[0].keys() == grads[1].keys()
    assert all((grads[0][key] - grads[1][key]).abs().max() < 1e-12 for key in grads[0])


# --------------------------------------------------------------------------------------------------------------------
# Vectors and feedback


@pytest.mark.parametrize("name", MODELS)
def test_vectors_are_read(name: str) -> None:
    model, inputs = built(name, vectors=True), inputs_of(vectors=True)
    assert model.vocab_size is None
    outputs = model(inputs)
    assert outputs.shape == (3, 11, 5)
    outputs.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert (parameter.grad != 0).any(), key
    changed = inputs.clone()
    changed[:, 6, 1] += 1
    difference = (model(changed) - outputs).abs().amax((0, 2))
    assert (difference[:6] == 0).all()
    assert (difference[6:] > 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_feedback_is_heard_from_its_position_on(name: str) -> None:
    model, inputs, told = built(name, feedback=4), inputs_of(), feedback_of()
    with torch.no_grad():
        plain = model(inputs)
        assert torch.equal(plain, model(inputs, feedback=torch.zeros_like(told)))
        told[:, :6] = 0
        difference = (model(inputs, feedback=told) - plain).abs().amax((0, 2))
    assert (difference[:6] == 0).all()
    assert (difference[6:] > 0).all()
    model(inputs, feedback=feedback_of()).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert (parameter.grad != 0).any(), key


@pytest.mark.parametrize("name", MODELS)
def test_wrong_inputs_are_refused(name: str, unchecked: None) -> None:
    model, vector_model = built(name, feedback=4), built(name, vectors=True)
    for call, message in [
        (
            lambda: model(inputs_of(vectors=True)),
            "inputs: the model reads tokens (batch, time), got float32 (3, 11, 3)",
        ),
        (lambda: model(inputs_of()[0]), "inputs: the model reads tokens (batch, time), got int64 (11,)"),
        (lambda: vector_model(inputs_of()), "inputs: the model reads vectors (batch, time, 3), got int64 (3, 11)"),
        (
            lambda: vector_model(inputs_of(vectors=True)[..., :2]),
            "inputs: the model reads vectors (batch, time, 3), got float32 (3, 11, 2)",
        ),
        (
            lambda: model(inputs_of(), feedback=feedback_of(3)),
            "feedback: must have the shape (3, 11, 4), got float32 (3, 11, 3)",
        ),
        (
            lambda: vector_model(inputs_of(vectors=True), feedback=feedback_of()),
            "feedback: must have the shape (3, 11, 0), got float32 (3, 11, 4)",
        ),
    ]:
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value) == message


# --------------------------------------------------------------------------------------------------------------------
# Lengths, seeds, copies


@pytest.mark.parametrize("name", ["decoder", "linear-attention"])
def test_learned_positions_end(name: str) -> None:
    fields = {"num_symbols": 5, "positions": "learned", "num_layers": 1, "num_heads": 2, "width": 8}
    model = make_model(name, max_length=10, **fields).eval()
    tokens = inputs_of(time=10) % 5
    model(tokens)
    rule = r"max_length: the model reads positions 0 to 9, got position 10; build it with max_length=11"
    with pytest.raises(InputError, match=rule):
        model(inputs_of(time=11) % 5)
    with pytest.raises(InputError, match=rule):
        model(tokens, positions=torch.arange(1, 11))
    cache: dict[str, Any] = {}
    model(tokens[:, :7], cache=cache)
    with pytest.raises(InputError, match=rule):
        model(tokens[:, :4], cache=cache)
    with pytest.raises(
        InputError, match="max_length: learned positions need the longest input length; pass max_length"
    ):
        make_model(name, **fields)


@pytest.mark.parametrize("name", MODELS)
def test_building_is_a_function_of_the_seed_alone(name: str) -> None:
    torch.rand(5)
    before = torch.get_rng_state()
    one = built(name, seed=3, feedback=2)
    assert torch.equal(torch.get_rng_state(), before)  # nobody else's random numbers change
    torch.rand(7)
    same, other = built(name, seed=3, feedback=2), built(name, seed=4, feedback=2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    kinds = (nn.Linear, nn.Embedding, nn.RNNBase)
    drawn = [name for name, module in one.named_modules() if isinstance(module, kinds) and "gate_preact" not in name]
    assert len(drawn) >= 2
    for name in drawn:
        pairs = list(zip(one.get_submodule(name).parameters(), other.get_submodule(name).parameters(), strict=True))
        assert all(not torch.equal(a, b) for a, b in pairs if a.std() > 0), name


@pytest.mark.parametrize("name", MODELS)
def test_copies_and_saved_weights_are_whole(name: str) -> None:
    model, inputs = built(name), inputs_of()
    twin, again = copy.deepcopy(model), built(name, seed=1)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(inputs), twin(inputs))
        assert torch.equal(model(inputs), again(inputs))
    heard: list[torch.Tensor] = []
    twin.residual[1].register_forward_hook(lambda module, args, output: heard.append(output))
    model(inputs)
    assert heard == []  # the copy has taps of its own
    twin(inputs)
    assert len(heard) == 1


@pytest.mark.parametrize("name", MODELS)
def test_taps_can_change_the_stream(name: str) -> None:
    """What a hook of a tap returns goes on, so that interventions work on every model."""
    model, inputs = built(name), inputs_of()
    with torch.no_grad():
        plain = model(inputs)
        for tap in model.residual:
            handle = tap.register_forward_hook(lambda module, args, output: output + 1.7 * torch.sin(output))
            assert (model(inputs) - plain).abs().max() > 1e-6
            handle.remove()
        assert torch.equal(plain, model(inputs))


# --------------------------------------------------------------------------------------------------------------------
# Sizes


@pytest.mark.parametrize("width, heads", [(8, 2), (16, 4), (24, 3)])
def test_parameters_of_a_decoder(width: int, heads: int) -> None:
    """[Limits] A.1: 12 d^2 + 13 d for each layer at an MLP of four times the width."""
    counts = []
    for layers in (1, 2, 5):
        fields = {"num_layers": layers, "num_heads": heads, "width": width}
        model = make_model("decoder", num_symbols=5, vocab_size=6, max_length=121, **fields)
        counts.append(parameter_count(model))
    each = 12 * width**2 + 13 * width
    assert counts[1] - counts[0] == each
    reads = (6 + 3) * width + 121 * width  # linear map of one-hot and features, position vectors
    assert counts == [reads + layers * each + 2 * width + 5 * width + 5 for layers in (1, 2, 5)]


def test_parameters_of_the_published_models() -> None:
    rnn = make_model("rnn", num_symbols=5, vocab_size=6)
    assert parameter_count(rnn) == 6 * 64 + 64 * 64 + 2 * 64 + 64 * 5 + 5 == 4933
    ports = ModelIO(num_outputs=5, vocab_size=6, max_length=121)
    sizes = [
        spec_of("decoder", num_layers=n, num_heads=8, width=512, mlp_ratio=4).cost(ports, 121).parameters
        for n in (1, 2)
    ]
    assert sizes[1] - sizes[0] == 3_152_384


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("vectors, feedback", [(False, 0), (False, 4), (True, 4)])
def test_parameters_are_counted_without_building(name: str, vectors: bool, feedback: int) -> None:
    model = built(name, vectors=vectors, feedback=feedback)
    assert spec_of(name).cost(model.model_io, 9).parameters == parameter_count(model)


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "vocab_size, input_width: pass one of the two, because a model"),
        ({"vocab_size": 3, "input_width": 3}, "vocab_size, input_width: pass one of the two, because a model"),
        ({"vocab_size": 0}, "vocab_size: must be at least 1, got 0"),
        ({"vocab_size": 3, "max_length": 0}, "max_length: must be at least 1, got 0"),
        ({"vocab_size": 3, "feedback_width": -1}, "feedback_width: must be at least 0, got -1"),
        ({"vocab_size": 3, "num_outputs": 0}, "num_outputs: must be at least 1, got 0"),
    ],
)
def test_ports_are_checked(given: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModelIO(**{"num_outputs": 4} | given)


def test_make_model_is_checked() -> None:
    with pytest.raises(InputError, match=r"model\.name: unknown 'rn'; did you mean 'rnn'"):
        make_model("rn", num_symbols=3)
    with pytest.raises(InputError, match=r"model\.widht: unknown 'widht'; did you mean 'width'"):
        make_model("rnn", num_symbols=3, widht=8)
    with pytest.raises(InputError, match="vocab_size: must be at least 3, the number of symbols, got 2"):
        make_model("rnn", num_symbols=3, vocab_size=2)
    with pytest.raises(InputError, match="vocab_size, input_width: pass only one, because a model"):
        make_model("rnn", num_symbols=3, vocab_size=4, input_width=2)
    model = make_model("rnn", num_symbols=3, input_width=2, feedback_width=4, max_length=7)
    assert model.model_io == ModelIO(num_outputs=3, input_width=2, feedback_width=4, max_length=7)
    assert (model.num_symbols, model.vocab_size, model.outputs) == (3, None, "logits")


@pytest.mark.parametrize("name", MODELS)
def test_regression_starts_near_zero(name: str) -> None:
    """Outputs of a fresh model are small: their mean square is that of a head of deviation 0.02."""
    with torch.no_grad():
        outputs = built(name, vectors=True)(inputs_of(vectors=True, batch=32))
    assert outputs.square().mean() < 0.1
    assert math.isfinite(outputs.sum().item())


# --------------------------------------------------------------------------------------------------------------------
# Foreign layers

FOREIGN = ["mamba", "mamba2", "xlstm", "rwkv", "gated-deltanet", "llama"]


@pytest.mark.parametrize("name", FOREIGN)
def test_without_transformers_one_line_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> Any:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    assert name in registry.entries("model")
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ResourceError) as caught:
        make_model(name, num_symbols=5, num_layers=2, width=16)
    assert str(caught.value) == "model: this model needs transformers: pip install 'hmmscope[models]'"


@pytest.mark.parametrize("name", FOREIGN)
def test_long_and_short_inputs_agree(name: str) -> None:
    """Their layers take long inputs by chunks and short ones step by step."""
    pytest.importorskip("transformers")
    model = make_model(name, num_symbols=5, vocab_size=6, num_layers=2, width=16).eval()
    tokens = inputs_of(time=130)
    with torch.no_grad():
        whole = model(tokens)
        for time in (40, 64, 100):
            assert (whole[:, :time] - model(tokens[:, :time])).abs().max() < 1e-5  # float32, outputs of order 0.1
        assert torch.equal(whole, model.train()(tokens))


@pytest.mark.parametrize("name", ["mamba2", "gated-deltanet"])
def test_the_chunk_changes_nothing_but_rounding(name: str) -> None:
    pytest.importorskip("transformers")
    tokens, found = inputs_of(time=37), []
    for chunk in (8, 16, 64):
        model = make_model(name, num_symbols=5, vocab_size=6, num_layers=2, width=16, chunk_length=chunk).eval()
        with torch.no_grad():
            found.append(model(tokens))
    assert not torch.equal(found[0], found[2])  # it is handed on
    assert (found[0] - found[2]).abs().max() < 1e-5
    assert (found[1] - found[2]).abs().max() < 1e-5


def test_foreign_weights_have_our_law() -> None:
    """Linear maps are normal of variance 1 / fan-in; what writes is scaled by the number of writes."""
    pytest.importorskip("transformers")
    model = make_model("llama", num_symbols=5, num_layers=3, num_heads=2, width=128)
    for name, module in model.layers.named_modules():
        if isinstance(module, nn.Linear):
            writes = name.endswith(("o_proj", "down_proj"))
            expected = 1 / math.sqrt(module.in_features * (6 if writes else 1))
            assert abs(module.weight.std().item() / expected - 1) < 0.05, name
    mamba = make_model("mamba", num_symbols=5, num_layers=2, width=16).layers.layers[0].layer.mixer
    decays = torch.arange(1, 17).log().expand(32, 16)
    assert torch.allclose(mamba.A_log, decays)  # the real part of S4D
    steps = F.softplus(mamba.dt_proj.bias)
    assert 1e-4 <= steps.min() <= steps.max() <= 0.1 + 1e-6


@pytest.mark.parametrize(
    "name, fields, message",
    [
        ("llama", {"width": 6}, "width: must be a multiple of 2"),
        ("llama", {"mlp_ratio": 0.1}, r"mlp_ratio: must be in \[1, 65536\]"),
        ("xlstm", {"width": 6, "num_heads": 2}, "width: must be a multiple of 2"),
        ("mamba2", {"width": 5, "num_heads": 4}, "width: must make expand . width a multiple of num_heads = 4"),
        ("rwkv", {"num_layers": 1}, "num_layers: must be at least 2"),
        ("gated-deltanet", {"width": 9, "num_heads": 2}, "width: must be a multiple of num_heads = 2"),
        ("mamba", {"state_size": 0}, r"state_size: must be in \[1, 65536\]"),
    ],
)
def test_foreign_options_are_checked(name: str, fields: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_model(name, num_symbols=5, **fields)
