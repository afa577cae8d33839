"""Modules with signatures, outputs, wrappers and states of their own."""

import copy
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.checkpoint import checkpoint

import hmmscope as hs
from hmmscope import registry
from hmmscope.analysis.untrained_controls import draw_controls
from hmmscope.errors import InputError
from hmmscope.models.kept_state import undisturbed
from hmmscope.models.weight_names import matched

DATASET = hs.ProcessDataset(hs.make_process("mess3"), length=12, stream="probe")
TOKENS = DATASET[0:4].tokens
FEW, NO_CONTROLS = hs.TrainOptions(num_samples=8), hs.InstrumentOptions(num_controls=0)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x)).cumsum(1) / 10


class Net(nn.Module):
    """A causal network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(3, 8), nn.ModuleList(Block(8) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embedding(tokens.view(-1)).view(*tokens.shape, 8)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.lstm(self.embedding(tokens))[0])


@dataclass
class Answer:
    loss: Any
    scores: torch.Tensor


class Masked(Net):
    def forward(self, input_ids: torch.Tensor, attention_mask: Any, position_ids: Any) -> Any:
        assert attention_mask.sum() == input_ids.numel()
        assert position_ids.tolist()[0][:3] == [0, 1, 2]
        return super().forward(input_ids)


class KeywordsOnly(Net):
    def forward(self, *, token_ids: torch.Tensor, labels: Any = None) -> Any:
        return {"logits": super().forward(token_ids)}


class MaskFirst(Net):
    def forward(self, src_mask: torch.Tensor, tokens: torch.Tensor) -> Any:
        assert src_mask.isinf().equal(torch.ones_like(src_mask).triu(1) > 0)
        assert src_mask.dtype == self.head.weight.dtype
        return None, super().forward(tokens)


class Embedded(Net):
    def forward(self, embeds: Any = None, tokens: Any = None, *, is_causal: bool, start_pos: int) -> Any:
        assert (embeds, is_causal, start_pos) == (None, True, 0)
        return super().forward(tokens), self.embedding(tokens)


class HiddenFirst(Net):
    def forward(self, tokens: torch.Tensor) -> Any:
        return self.embedding(tokens), super().forward(tokens)


class Lists(Net):
    def forward(self, *tokens: torch.Tensor) -> Any:
        return [super().forward(tokens[0]), "more"]


class Vectors(Net):
    def forward(self, vectors: torch.Tensor) -> Any:
        return self.head(vectors)


class Dictionary(Net):
    def forward(self, batch: dict) -> Any:
        return Answer(None, super().forward(batch["tokens"]))


class Warm(Net):
    def forward(self, tokens: torch.Tensor, temperature: float, *, mask: Any) -> Any:
        assert mask.shape == tokens.shape
        return super().forward(tokens) / temperature


def plain_of(model: nn.Module) -> Net:
    plain = Net()
    plain.load_state_dict(model.state_dict())
    return plain


@pytest.mark.parametrize("kind", [Masked, KeywordsOnly, MaskFirst, Lists, Embedded])
def test_known_arguments_and_outputs_need_no_adapter(kind: type[Net]) -> None:
    dtype = torch.float64 if kind is MaskFirst else torch.float32
    model = kind().to(dtype)
    own = hs.evaluate(plain_of(model).to(dtype), DATASET, num_samples=8, baselines=False)
    assert hs.evaluate(model, DATASET, num_samples=8, baselines=False).loss == own.loss
    rows = hs.probe(model, DATASET, layers=["layers.1"], num_samples=16, options=NO_CONTROLS)
    assert rows[0]["layer_name"] == "layers.1"
    assert hs.analysis.activations.residual_layers(model) == ["residual.0", "residual.1", "residual.2"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: hs.adapt(Dictionary(), lambda model, tokens: model({"tokens": tokens}).scores),
        lambda: hs.adapt(Dictionary(), lambda model, tokens: model({"tokens": tokens}), output="scores"),
        lambda: hs.adapt(Warm(), temperature=2.0, mask=torch.ones_like, output=lambda output: output * 2),
        lambda: hs.adapt(HiddenFirst(), output=1),
        lambda: hs.adapt(KeywordsOnly(), tokens="token_ids", output="logits"),
    ],
)
def test_an_adapter_keeps_names_and_weights(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = make()
    plain = plain_of(model)
    torch.testing.assert_close(model(TOKENS), plain(TOKENS))
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
    assert (
        hs.probe(model, DATASET, layers=["layers.0"], num_samples=16, options=NO_CONTROLS)[0]["layer_name"]
        == "layers.0"
    )
    with hs.intervene(model, {"residual.1": lambda x: x * 0}), torch.no_grad():
        changed = model(TOKENS)
    assert not torch.equal(changed, plain(TOKENS))
    run = hs.train(
        DATASET.process,
        tmp_path / "run",
        model=model,
        length=8,
        num_steps=1,
        options=FEW,
        training={"batch_size": 4, "evaluate_every": 0},
    )
    assert run.model is model
    assert torch.equal(plain_of(run.model)(TOKENS), hs.load_run(run.path, model=make()).model(TOKENS))
    assert torch.equal(hs.load_run(run.path, model=Net()).model.head.weight, run.model.head.weight)


def test_an_adapter_follows_its_module() -> None:
    model = hs.adapt(Warm(), temperature=1.0, mask=torch.ones_like)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.head.weight.zero_()
    assert other.adapted is not model.adapted
    assert not other.adapted.head.weight.any()
    assert model.head.weight.any()
    model.double().eval()
    assert model(TOKENS).dtype == torch.float64
    assert not model.adapted.training
    assert not model.adapted.head.training
    model.adapted.train()
    assert model.training
    assert (
        len(hs.belief_map(model, DATASET, num_samples=16, options=hs.InstrumentOptions(num_points=100)).share.columns())
        > 3
    )


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (lambda: Warm(), r"^model: Warm needs more arguments than the tokens \(temperature, mask\); pass hs.adapt\("),
        (lambda: Dictionary(), r"if the model takes a dictionary, pass .*model\(\{'tokens': tokens\}\)\)$"),
        (
            lambda: hs.adapt(Dictionary(), lambda model, tokens: model({"tokens": tokens})),
            r"got Answer with scores; name the logits: hs.adapt\(model, output='scores'\)$",
        ),
        (
            lambda: HiddenFirst(),
            r"^model: returns a tuple with tensors of shapes \(5, 11, 8\) and \(5, 11, 3\); name .*, output=1\)$",
        ),
        (lambda: hs.adapt(HiddenFirst(), tokens="tokens"), r"^model: returns a tuple with tensors of shapes"),
        (lambda: hs.adapt(Net(), lambda model, tokens: Answer(None, None)), r"got Answer$"),  # type: ignore[arg-type]
        (lambda: hs.adapt(Lists(), output=1), r"to logits \(batch, time, symbol\), got str$"),
        (
            lambda: hs.adapt(Lists(), output="logits"),
            r"^output: the model's output has no 'logits'; it is list with 0$",
        ),
        (lambda: hs.adapt(Warm(), mask=torch.ones_like), r"needs more arguments than the tokens \(temperature\)"),
        (
            lambda: hs.adapt(lambda: 0),
            r"^model: <lambda>'s forward takes no tokens; pass hs.adapt\(model, call=function\)$",
        ),
        (
            lambda: lambda tokens: torch.zeros(len(tokens), 1, 3),
            r"returns only the last position; .*: hs.adapt\(model, targets=lambda tokens: tokens\)$",
        ),
        (
            lambda: hs.adapt("runs/a"),
            r"function of tokens, got 'runs/a'; for a run pass hs.load_run\('runs/a'\).model$",
        ),
        (
            lambda: hs.adapt(Net().state_dict()),
            r"got weights \(OrderedDict\); pass a module that has loaded these weights",
        ),
        (lambda: hs.adapt(SimpleNamespace(model=Net())), r"; pass its .model$"),
        (lambda: hs.adapt(Net(), tokens="ids"), r"the forward of Net has no argument 'ids'; it has tokens$"),
        (lambda: hs.adapt(Net(), mask=1), r"the forward of Net has no argument 'mask'; it has tokens$"),
        (
            lambda: hs.adapt(Net(), lambda model, tokens: model(tokens.float())),
            r"in its module embedding: RuntimeError",
        ),
        (lambda: Vectors(), r"; if the model takes one-hot vectors, pass hs.adapt\("),
        (lambda: hs.adapt(3), r"^model: must be a torch module or a function of tokens, got 3$"),
        (
            lambda: hs.adapt(Net(), lambda model, tokens: 0, mask=1),
            r"^call: cannot be combined with tokens= or other arguments",
        ),
    ],
)
def test_a_signature_that_does_not_fit_is_one_line(model: Callable[[], Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        hs.evaluate(model(), DATASET, num_samples=8, baselines=False)


class Attending(nn.Module):
    """One causal layer of attention with a mask, positions and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places, self.parts = nn.Embedding(3, 8), nn.Embedding(16, 8), nn.Linear(8, 24)
        self.head = nn.Linear(8, 3)

    def forward(
        self,
        tokens: torch.Tensor,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        begin = 0 if past_key_values is None else past_key_values.shape[1]
        position_ids = begin + torch.arange(tokens.shape[1]) if position_ids is None else position_ids
        query, *pairs = self.parts(self.embedding(tokens) + self.places(position_ids)).chunk(3, -1)
        pair = torch.cat(pairs, -1)
        pair = pair if past_key_values is None else torch.cat([past_key_values, pair], 1)
        key, value = pair.chunk(2, -1)
        allowed = torch.ones(tokens.shape[1], key.shape[1], dtype=torch.bool).tril(begin)
        if attention_mask is not None:
            allowed = allowed & (attention_mask[:, None] > 0) | torch.eye(key.shape[1], dtype=torch.bool)[begin:]
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return SimpleNamespace(logits=self.head(mixed), past_key_values=pair)


@pytest.mark.parametrize("kind", ["own", "gpt2", "llama"])
def test_left_padding_and_a_key_value_cache_give_the_same_logits(kind: str) -> None:
    transformers = None if kind == "own" else pytest.importorskip("transformers")
    sizes: dict[str, Any] = {"vocab_size": 3, "bos_token_id": None, "eos_token_id": None}
    more = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    if transformers is None:
        model: Any = Attending().eval()
    elif kind == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=32, **sizes)
    else:
        config = transformers.LlamaConfig(hidden_size=16, intermediate_size=32, **more, **sizes)
    if transformers is not None:
        model = transformers.AutoModelForCausalLM.from_config(config).eval()

    def padded(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        before = torch.zeros_like(tokens[:, :3])
        mask = torch.cat([before, torch.ones_like(tokens)], 1)
        places = torch.cat([before, torch.arange(tokens.shape[1]).expand_as(tokens)], 1)
        return model(torch.cat([before, tokens], 1), attention_mask=mask, position_ids=places).logits[:, 3:]

    def cached(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        begin = model(tokens[:, :5], use_cache=True)
        rest = model(tokens[:, 5:], past_key_values=begin.past_key_values)
        return torch.cat([begin.logits, rest.logits], 1)

    whole = hs.evaluate(model, DATASET, num_samples=8, baselines=False).loss
    for call in (padded, cached):
        adapted = hs.adapt(model, call)
        with torch.no_grad():
            torch.testing.assert_close(adapted(TOKENS), model(TOKENS).logits, atol=1e-6, rtol=0)
        assert hs.evaluate(adapted, DATASET, num_samples=8, baselines=False).loss == pytest.approx(whole, abs=1e-6)
        with pytest.raises(InputError, match=r"found if the call of hs[.]adapt computes all positions at once"):
            hs.attention_map(adapted, DATASET, num_samples=2)
        layer = {"own": "parts", "gpt2": "transformer.h.0.mlp", "llama": "model.layers.0.mlp"}[kind]
        with pytest.raises(InputError, match=r"got \(16, .*pass a model, or a call= of hs.adapt, that computes all"):
            hs.probe(adapted, DATASET, target="previous-1", num_samples=16, layers=[layer])
    with pytest.raises(InputError, match=f"layers: {layer} runs 2 times, on parts of the {TOKENS.shape[1]} positions"):
        hs.capture_activations(adapted, [layer], TOKENS)
    if kind != "own":  # a call keeps the initializer of transformers
        assert len(draw_controls(hs.adapt(model, padded)).models) == len(draw_controls(model).models) > 1


def test_attention_of_torch_with_both_masks_is_read() -> None:
    class Encoded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
            self.embedding, self.encoder = (
                nn.Embedding(3, 8),
                nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            )
            self.head = nn.Linear(8, 3)

        def forward(self, src: torch.Tensor, src_mask: torch.Tensor, src_key_padding_mask: torch.Tensor) -> Any:
            return self.head(self.encoder(self.embedding(src), src_mask, src_key_padding_mask))

    model = Encoded().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hs.attention_map(model, DATASET, num_samples=8)
    padding = torch.zeros(4, 12, dtype=torch.bool)
    padding[0, 8:] = True
    causal = torch.ones(12, 12, dtype=torch.bool).triu(1)
    patterns = []
    with torch.no_grad():
        expected = model(TOKENS, causal, padding)
        with hs.intervene(model, {"blocks.0.attention.pattern": lambda p: patterns.append(p) or p}):
            torch.testing.assert_close(model(TOKENS, causal, padding), expected)
    assert not patterns[0][0, :, :, 8:].any()
    assert not patterns[0].triu(1).any()


# --------------------------------------------------------------------------------------------------------------------
# Weights


class Outer(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.model = inside

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.model(tokens)


def train(model: nn.Module, path: Path, **options: Any) -> Any:
    options = {"num_steps": 2, "training": {"batch_size": 4, "evaluate_every": 0, "checkpoint_every": 1}} | options
    return hs.train(DATASET.process, path, model=model, length=8, options=FEW, **options)


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": lambda net: torch.compile(net, backend="eager"),  # type: ignore[dict-item,return-value]
    "parallel": nn.DataParallel,
    "both": lambda net: nn.DataParallel(torch.compile(net, backend="eager")),  # type: ignore[type-var]
}


@pytest.mark.long
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_weights_of_wrapped_modules_go_both_ways(wrap: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    run = train(wrap(net := Net()), tmp_path / "wrapped")
    assert run.model is net
    for again in (Net(), wrap(Net())):
        assert torch.equal(hs.load_run(run.path, model=again).model(TOKENS), run.model(TOKENS))
    assert torch.equal(plain_of(run.model)(TOKENS), run.model(TOKENS))


@pytest.mark.long
@pytest.mark.parametrize(("kind", "plain"), [("ddp", Net), ("fsdp", Net), ("fsdp", Recurrent)])
def test_weights_of_distributed_modules_go_both_ways(kind: str, plain: type[nn.Module], tmp_path: Path) -> None:
    def wrapped(net: nn.Module) -> nn.Module:
        if kind == "ddp":
            return nn.parallel.DistributedDataParallel(net)
        return fully_shard(net, mesh=init_device_mesh("cpu", (1,)))  # type: ignore[no-any-return]

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        runs = train(wrapped(plain()), tmp_path / kind), train(plain(), tmp_path / "plain")
        found = [
            (run.model(TOKENS), hs.load_run(run.path, model=again).model(TOKENS))
            for run in runs
            for again in (plain(), wrapped(plain()))
        ]
        joined = FullyShardedDataParallel(plain(), device_id=torch.device("cpu"))
        with pytest.raises(InputError, match=r"^model: FSDP has flattened its weights; pass use_orig_params=True"):
            train(joined, tmp_path / "joined")
    finally:
        torch.distributed.destroy_process_group()
    assert all(torch.equal(expected, one) for expected, one in found)


def test_a_wrapper_class_of_the_user_loads_into_the_plain_module_and_back(tmp_path: Path) -> None:
    outer, plain = train(Outer(Net()), tmp_path / "outer"), train(Net(), tmp_path / "plain")
    assert torch.equal(hs.load_run(outer.path, model=Net()).model(TOKENS), outer.model(TOKENS))
    assert torch.equal(hs.load_run(plain.path, model=Outer(Net())).model(TOKENS), plain.model(TOKENS))
    assert matched(["a.w", "b"], ["a.w", "c"]) is None


def test_another_dtype_or_number_of_heads_is_loaded_on_request_only(tmp_path: Path) -> None:
    class Heads(Net):
        def __init__(self, num_heads: int) -> None:
            super().__init__()
            self.num_heads = num_heads

    run = train(Heads(2), tmp_path / "run")
    with pytest.raises(InputError, match=r"^model: has num_heads=4, but the run has num_heads=2; load the weights any"):
        hs.load_run(run.path, model=Heads(4))
    with pytest.raises(InputError, match=r"^model: 'embedding.weight' is float64 here, float32 in the run; pass that"):
        hs.load_run(run.path, model=Heads(2).double())
    assert hs.load_run(run.path, model=Heads(4).double(), strict=False).model.head.weight.dtype == torch.float64
    assert hs.train(run.config, run.path, model=Heads(2), resume=True).summary == run.summary


def test_a_module_that_differs_is_not_a_damaged_file(tmp_path: Path) -> None:
    class Buffered(Net):
        def __init__(self, size: int, name: str = "mask") -> None:
            super().__init__()
            self.register_buffer(name, torch.ones(size, size))

    run = train(Buffered(8), tmp_path / "run")
    with pytest.raises(InputError, match=r"tensor 'mask' has shape \(9, 9\) here, but \(8, 8\) in the run; pass"):
        hs.load_run(run.path, model=Buffered(9))
    with pytest.raises(InputError, match=r"^model: must be a torch module .*; pass an instance, Net\(\.\.\.\)$"):
        hs.load_run(run.path, model=Net)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"only this module has the tensor 'other', not the run's module"):
        hs.load_run(run.path, model=Buffered(8, "other"))


class Mean:
    def __init__(self) -> None:
        self.value = 0.0


def test_state_outside_of_the_state_dict_is_named(tmp_path: Path) -> None:
    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.sum, self.cache, self.kept, self.text = 0, torch.zeros(3), None, None, ""
            self.seen, self.last, self.table = {"sizes": [torch.zeros(1)]}, deque([0], maxlen=2), np.zeros(2)
            self.pair, self.rng, self.mean = (torch.zeros(1), 0), np.random.default_rng(0), Mean()
            self.ema = [parameter.detach().clone() for parameter in self.parameters()]
            self.__dict__["teacher"], self.again = copy.deepcopy(self.head), [self.head]
            self.register_buffer("sums", torch.zeros(2), persistent=False)

        def forward(self, tokens: torch.Tensor) -> Any:
            logits = super().forward(tokens)
            self.cache, self.kept = torch.arange(tokens.shape[1]), [logits.detach()]  # of the last call only
            if self.training:
                self.calls, self.sum, self.text = self.calls + 1, self.sum + 1, f"{self.text}."
                self.sums.add_(1)
                self.seen["sizes"][0].add_(1)
                self.last.append(self.last[-1] + 1)
                self.table += 1
                self.pair, self.mean.value = (self.pair[0] + 1, 0), self.mean.value + self.rng.random()
                for own, mean in [*zip(self.parameters(), self.ema, strict=True), (self.head.bias, self.teacher.bias)]:
                    mean.data.lerp_(own.detach(), 0.1)
            return logits

        def get_extra_state(self) -> dict[str, int]:
            return {"calls": self.calls}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.calls = state["calls"]

    names = "calls, sum, text, seen, last, table, pair, rng, mean, ema, teacher, sums, the value of get_extra_state"
    with pytest.warns(UserWarning, match=rf"outside of the tensors of its state_dict \({names}\)"):
        run = train(Counting(), tmp_path / "run")
    assert hs.load_run(run.path, model=Counting()).model.calls == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(Net(), tmp_path / "plain")
    model = Counting()
    with undisturbed(model):
        model.train()
        model(TOKENS)
    assert [model.seen["sizes"][0].item(), list(model.last), model.table.sum(), model.mean.value] == [0, [0], 0, 0]
    assert model.rng.random() == np.random.default_rng(0).random()
    assert torch.equal(model.ema[0], model.embedding.weight)


def test_modules_that_cannot_be_trained_are_one_line(tmp_path: Path) -> None:
    sparse = Net()
    sparse.embedding = nn.Embedding(3, 8, sparse=True)
    twisted = Net()
    twisted.layers[0].phase = nn.Parameter(torch.zeros(8, dtype=torch.complex64))
    embedding = Net()
    embedding.embedding = torch.ao.nn.quantized.Embedding(3, 8)
    for quantized, name in (
        (torch.ao.quantization.quantize_dynamic(Net()), r"layers\.0\.linear"),
        (embedding, "embedding"),
    ):
        assert hs.evaluate(quantized, DATASET, num_samples=8, baselines=False).loss > 0
        with pytest.raises(
            InputError, match=rf"^model: {name} is quantized and cannot be trained; train it before quanti"
        ):
            train(quantized, tmp_path / "run")
    spread = Net()
    spread.register_buffer("graph", torch.eye(3).to_sparse())
    assert hs.probe(spread, DATASET, num_samples=16)[0]["share"] is not None
    with pytest.raises(InputError, match=r"^model: graph is a sparse tensor, .* register it with persistent=False$"):
        train(spread, tmp_path / "run")
    with pytest.raises(InputError, match=r"^model: layers\.0\.phase is complex; use two real parameters instead$"):
        train(twisted, tmp_path / "run")
    with pytest.raises(InputError, match=r"^model: embedding has sparse gradients; build it with sparse="):
        train(sparse, tmp_path / "run")


def test_a_module_returns_in_its_own_mode(tmp_path: Path) -> None:
    model = Net().eval()
    model.head.train()
    run = train(model, tmp_path / "run")
    assert (run.model.training, run.model.layers[0].training, run.model.head.training) == (False, False, True)

    class Dropped(Net):
        def forward(self, tokens: torch.Tensor) -> Any:
            return nn.functional.dropout(super().forward(tokens), 0.5, self.training)

    dropped = Outer(Dropped())
    first, second = (hs.capture_activations(dropped, ["model"], TOKENS)["model"] for _ in range(2))
    assert torch.equal(first, second)
    assert dropped.training


# --------------------------------------------------------------------------------------------------------------------
# Hooks


@pytest.mark.long
@pytest.mark.parametrize("in_place", [False, True])
def test_edits_reach_a_compiled_module_that_ran_before(in_place: bool) -> None:
    net = Net()
    model: Any = net if in_place else torch.compile(net, backend="eager")
    if in_place:
        net.compile(backend="eager")
    with torch.no_grad():
        before = model(TOKENS)
        for name in ("residual.1", "layers.0"):
            with hs.intervene(model, {name: lambda x: x * 0}):
                assert not torch.equal(model(TOKENS), before)
            assert torch.equal(model(TOKENS), before)
    found = hs.capture_activations(model, ["layers.0", "residual.2"], TOKENS)
    assert found["layers.0"].shape == (4, 12, 8)


def test_the_users_hooks_are_called_once_for_each_batch() -> None:
    model, counts = Net(), {"before": 0, "after": 0}

    def before(module: nn.Module, args: Any) -> None:
        counts["before"] += 1

    def after(module: nn.Module, args: Any, output: Any) -> None:
        counts["after"] += 1

    model.layers[0].register_forward_pre_hook(before)
    model.layers[0].register_forward_hook(after)
    dataset = hs.ProcessDataset(DATASET.process, length=64, stream="probe")
    hs.evaluate(model, DATASET, num_samples=128, baselines=False)
    assert counts == {"before": 2, "after": 2}
    hs.probe(model, dataset, target="previous-1", num_samples=64)  # with controls, which are silent
    assert counts == {"before": 3, "after": 3}
    with hs.intervene(model, {"residual.1": lambda x: x}):
        model(TOKENS)
    assert counts == {"before": 4, "after": 4}


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_users_hooks_are_called_as_in_their_own_loop_under_recomputation(reentrant: bool, tmp_path: Path) -> None:
    class Recomputed(Net):
        def forward(self, tokens: torch.Tensor) -> Any:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return self.head(x)

    def counted(net: nn.Module) -> dict[str, int]:
        counts = dict.fromkeys(("before", "after", "backward"), 0)

        def count(name: str) -> Callable[..., None]:
            return lambda *_: counts.update({name: counts[name] + 1})

        net.layers[0].register_forward_pre_hook(count("before"))
        net.layers[0].register_forward_hook(count("after"))
        net.layers[0].register_full_backward_hook(count("backward"))
        return counts

    own = Recomputed()
    expected = counted(own)
    for _ in range(2):
        own(TOKENS).sum().backward()
    expected = expected | {"before": expected["before"] + 1, "after": expected["after"] + 1}  # the final evaluation
    trained = Recomputed()
    counts = counted(trained)
    train(trained, tmp_path / "run")
    assert counts == expected
    counts.update(dict.fromkeys(counts, 0))
    with torch.no_grad(), hs.intervene(trained, {"layers.1": lambda x: x}):
        trained(TOKENS)
    hs.capture_activations(trained, ["residual.1"], TOKENS)
    assert counts == {"before": 2, "after": 2, "backward": 0}
    assert all(len(layer._forward_hooks) == (number == 0) for number, layer in enumerate(trained.layers))


def test_a_hook_that_the_model_needs_is_called() -> None:
    class Offset(Net):
        def forward(self, tokens: torch.Tensor) -> Any:
            return super().forward(tokens - 3)

    model = Offset()
    model.register_forward_pre_hook(lambda module, args: (args[0] + 3,))
    score = hs.evaluate(model, DATASET, num_samples=8, baselines=False)
    assert score.loss == hs.evaluate(plain_of(model), DATASET, num_samples=8, baselines=False).loss


# --------------------------------------------------------------------------------------------------------------------
# Results


def test_results_state_their_measurement_and_instruments_take_a_device() -> None:
    score = hs.evaluate(Net(), DATASET, num_samples=8, baselines=False, device="cpu")
    assert score.about == {"length": 12, "samples": 8, "seed of samples": 0, "device": "cpu"}
    rows = hs.probe(Net(), DATASET, layers=["layers.0"], num_samples=16, options=NO_CONTROLS, device="cpu")
    assert rows.about == score.about | {"samples": 16, "layers": ["layers.0"], "seed": 0}  # type: ignore[attr-defined]
    for device, line in [
        ("nowhere", "^device: 'nowhere' is not available here"),
        ("meta", "^device: must be a device that stores values"),
    ]:
        with pytest.raises(InputError, match=line):
            hs.attention_map(Net(), DATASET, device=device)  # type: ignore[call-arg]


def test_instruments_name_parts_as_the_model_does() -> None:
    model = Net()
    model.layers[1].scale = nn.Parameter(torch.ones(8))  # nothing draws it anew
    rows = hs.probe(hs.adapt(model, output=lambda output: output), DATASET, num_samples=16)
    assert "cannot reinitialize parameter 'layers.1.scale' of module 'Net'; " in rows[0]["beyond_twins"]
    with pytest.raises(InputError, match=r"^layers: found no residual stream in the model; it has no modules inside$"):
        hs.probe(hs.adapt(lambda tokens: tokens[..., None] * torch.ones(3)), DATASET)


def test_captures_explain_failures_and_take_a_device(unchecked: None) -> None:
    class Failing(Net):
        def forward(self, tokens: torch.Tensor) -> Any:
            return super().forward(tokens) @ torch.zeros(5, 3)

    net = Net()
    captured = [hs.capture_activations(net, ["layers.0"], TOKENS, device=one)["layers.0"] for one in ("cpu", None)]
    assert torch.equal(*captured)
    for model, line in [
        (Failing(), r"^model: Failing fails on tokens \(4, 12\).*: RuntimeError: "),
        (3, "^model: must be a torch module, got 3$"),
        (Net, "^model: must be a torch module, got <class"),
    ]:
        with pytest.raises(InputError, match=line):
            hs.capture_activations(model, ["layers.0"], TOKENS)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):  # an error of the caller's function
        hs.capture_activations(Net(), ["layers.0"], TOKENS, lambda x: x * (1 // 0))
    nowhere = hs.intervene(Net(), {"layers.0": lambda x: x}, device="nowhere")
    with pytest.raises(InputError, match=r"^device: 'nowhere' is not available here"), nowhere:
        pass


@pytest.mark.parametrize("kind", [torch.int64, torch.complex64])
def test_logits_are_real_floats(kind: torch.dtype, tmp_path: Path) -> None:
    class Cast(Net):
        def forward(self, tokens: torch.Tensor) -> Any:
            return super().forward(tokens).to(kind)

    name = str(kind).removeprefix("torch.")
    with pytest.raises(InputError, match=f"^model: must return logits of a real floating-point dtype, got {name}; "):
        hs.evaluate(Cast(), DATASET, num_samples=4)
    with pytest.raises(
        InputError, match=r"must be a torch module, a registered model.*; pass an instance, Net\(...\)$"
    ):
        hs.train(DATASET.process, tmp_path / "run", model=Net)


def test_every_table_of_an_instrument_is_plotted() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    rows: Any = registry.lookup("instrument", "strategies")(Net(), DATASET, num_samples=8)
    assert rows.about["samples"] == 8
    assert rows.columns()["predictor"][:2] == ["uniform", "uniform"]
    rows.plot(ax=axes, metric="total_variation")
    drawn = [float(y) for line in axes.lines for y in line.get_ydata()]
    assert drawn == [row["value"] for row in rows if row["metric"] == "total_variation"]
    for only, line in [
        ({"metric": "x"}, "^plot: no row has metric='x'$"),
        ({"metrik": 1}, "needs the column 'metrik'"),
    ]:
        with pytest.raises(InputError, match=line):
            rows.plot(**only)
    assert registry.lookup("instrument", "curves")(Net(), DATASET, num_samples=8).plot(ax=axes) is axes.figure


def test_plots_are_drawn_in_given_axes() -> None:
    from matplotlib.figure import Figure

    few = hs.InstrumentOptions(num_controls=0, num_points=100)
    rows = hs.probe(Net(), DATASET, layers=["layers.0", "layers.1"], num_samples=16, options=NO_CONTROLS)
    found = [
        rows,
        hs.evaluate(Net(), DATASET, num_samples=8),
        hs.belief_map(Net(), DATASET, num_samples=16, options=few),
    ]
    figure = Figure()
    for axes, one in zip(figure.subplots(1, 3), found, strict=True):
        assert one.plot(ax=axes) is figure  # type: ignore[attr-defined]
        assert axes.get_title()


@pytest.mark.parametrize(
    ("error", "told"),
    [(SystemExit(3), "the model's code .*SystemExit: 3"), (AssertionError(), "Net .*layers.2: AssertionError$")],
)
def test_an_exit_or_an_empty_assertion_in_a_module_is_named(error: BaseException, told: str, tmp_path: Path) -> None:
    class Ends(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    (net := Net()).layers.append(Ends(8))
    for call in (lambda: hs.evaluate(net, DATASET, num_samples=4), lambda: train(net, tmp_path / "run")):
        with pytest.raises(InputError, match=f"^model: {told}"):
            call()


def test_a_module_of_a_fixed_length_is_trained_at_the_length_of_its_training(tmp_path: Path) -> None:
    class Fixed(Net):
        def forward(self, tokens: torch.Tensor) -> Any:
            assert tokens.shape[1] == self.length, "another length"
            return super().forward(tokens)

    module = Fixed()
    module.length = 7  # type: ignore[assignment]  # inputs of samples of 8, whose last token is only predicted
    assert train(module, tmp_path / "run").summary["steps"] == 2
    module.length = 8  # type: ignore[assignment]
    with pytest.raises(InputError, match=r"^model: Fixed fails on tokens \(\d, 7\): AssertionError: another length"):
        train(module, tmp_path / "other")


@pytest.mark.parametrize(
    "convert", [torch.jit.script, lambda net: torch.jit.trace(net, TOKENS), torch.fx.symbolic_trace]
)
def test_converted_modules_are_evaluated_and_trained(convert: Callable[[nn.Module], Any], tmp_path: Path) -> None:
    net = nn.Sequential(nn.Embedding(3, 8), nn.Linear(8, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = convert(net)
    assert hs.evaluate(model, DATASET, num_samples=8, baselines=False).loss > 0
    run = train(model, tmp_path / "run")
    assert torch.equal(hs.load_run(run.path, model=net).model(TOKENS), run.model(TOKENS))
