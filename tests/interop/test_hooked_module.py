"""Modules of one's own under our names: what is heard is what passes, and what is put in its place moves the answer."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hmmscope as hs
from hmmscope import registry
from hmmscope.analysis.activations import require_module
from hmmscope.analysis.interventions import patch
from hmmscope.errors import InputError
from hmmscope.interop import HookedModule
from hmmscope.models.user_module import as_module

TOKENS, WIDTH = 5, 8


class OwnRecurrent(nn.Module):
    """An embedding, one recurrent module of two layers, and a head."""

    def __init__(self, kind: type[nn.RNNBase], *, batch_first: bool) -> None:
        super().__init__()
        self.embedding, self.head, self.batch_first = nn.Embedding(TOKENS, 6), nn.Linear(WIDTH, TOKENS), batch_first
        self.layers = kind(6, WIDTH, num_layers=2, batch_first=batch_first)  # type: ignore[call-arg]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = self.layers(x if self.batch_first else x.transpose(0, 1))[0]
        return self.head(x if self.batch_first else x.transpose(0, 1))


class OwnEncoder(nn.Module):
    """torch's Transformer, as a language model."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first)
        self.embedding, self.head, self.batch_first = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS), batch_first
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, mask = self.embedding(tokens), nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.encoder(x if self.batch_first else x.transpose(0, 1), mask=mask, is_causal=True)
        return self.head(x if self.batch_first else x.transpose(0, 1))


class OwnAttention(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.fused = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(2, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            mixed = F.softmax((q @ k.mT / 2).masked_fill(future, -torch.inf), -1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class OwnBlock(nn.Module):
    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.norm, self.looks = nn.LayerNorm(WIDTH), OwnAttention(fused=fused)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.looks(self.norm(x))
        return x + self.mlp(x)


class OwnGPT(nn.Module):
    """A decoder as people write it."""

    def __init__(self, *, fused: bool, blocks: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(32, WIDTH)
        self.h = nn.ModuleList(OwnBlock(fused=fused) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(x)


class Steps(nn.Module):
    """A cell that is called once a symbol: no module gives a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(TOKENS, 4), nn.GRUCell(4, 4), nn.Linear(4, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        state, found = torch.zeros(len(tokens), 4), []
        for token in tokens.T:
            state = self.cell(self.embedding(token), state)
            found.append(state)
        return self.head(torch.stack(found, 1))


STREAM = ["residual.0", "residual.1", "residual.2"]
LOOKS = [f"blocks.{layer}.attention{part}" for layer in range(2) for part in ("", ".logits", ".pattern")]
MIXED = [f"blocks.{layer}.attention.mixed" for layer in range(2)]
MODULES: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "lstm": (lambda: OwnRecurrent(nn.LSTM, batch_first=True), STREAM),
    "gru, time first": (lambda: OwnRecurrent(nn.GRU, batch_first=False), STREAM),
    "rnn": (lambda: OwnRecurrent(nn.RNN, batch_first=True), STREAM),
    "TransformerEncoder": (lambda: OwnEncoder(batch_first=True), [*STREAM, *LOOKS, *MIXED]),
    "TransformerEncoder, time first": (lambda: OwnEncoder(batch_first=False), [*STREAM, *LOOKS, *MIXED]),
    "fused attention": (lambda: OwnGPT(fused=True), [*STREAM, *LOOKS, *MIXED]),
    "softmax": (lambda: OwnGPT(fused=False), [*STREAM, *LOOKS]),
}


def tokens() -> torch.Tensor:
    return torch.randint(TOKENS, (3, 7), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_what_passes_is_heard_and_what_is_put_in_its_place_moves_the_answer(name: str) -> None:
    make, taps = MODULES[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)  # noqa: TID251 - put back at the end
        model = make().eval()
    answer, heard = model(tokens()), hs.capture_activations(model, taps, tokens())
    for tap, activation in heard.items():
        assert activation.shape[0] == 3, tap  # samples first, whatever the order of axes in the module
        with hs.intervene(model, {tap: lambda x: x.clone()}):
            torch.testing.assert_close(model(tokens()), answer, atol=1e-5, rtol=0)
        with hs.intervene(model, {tap: lambda x: x.flip(0)}):
            assert (model(tokens()) - answer).abs().max() > 1e-3, tap
        with hs.intervene(model, {tap: patch(activation)}):
            torch.testing.assert_close(model(tokens()), answer, atol=1e-5, rtol=0)
    assert torch.equal(model(tokens()), answer)  # nothing stays
    if name.startswith("Tr"):
        torch.testing.assert_close(heard["blocks.0.attention.pattern"].sum(-1), torch.ones(3, 2, 7))
        assert heard["blocks.0.attention.pattern"].triu(1).abs().max() == 0


@torch.no_grad()
def test_layers_within_one_recurrent_module_are_its_layers() -> None:
    model = OwnRecurrent(nn.LSTM, batch_first=True).eval()
    first = nn.LSTM(6, WIDTH, batch_first=True)
    first.load_state_dict({key: value for key, value in model.layers.state_dict().items() if key.endswith("_l0")})
    expected = first(model.embedding(tokens()))[0]
    found = hs.capture_activations(model, ["residual.1"], tokens())["residual.1"]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_every_instrument_takes_the_names_of_all() -> None:
    model, dataset = OwnGPT(fused=True), hs.ProcessDataset(hs.make_process("random-hmm", num_symbols=TOKENS), 7)
    rows = hs.probe(model, dataset, num_samples=16, layers=["residual.1"])
    assert {row["layer_name"] for row in rows} == {"residual.1"}
    assert {row["layer"] for row in hs.attention_map(model, dataset, num_samples=4)} == {1, 2}
    own = hs.capture_activations(model, ["h.0", "residual.1"], tokens())  # its own names too, in one call
    torch.testing.assert_close(own["h.0"], own["residual.1"])


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", sorted(set(registry.entries("model")) - {"given"}))
def test_every_family_has_attention_patterns_or_says_that_it_has_none(name: str) -> None:
    if registry.entries("model")[name].__module__.endswith("foreign_specs"):
        pytest.importorskip("transformers")
    model = hs.make_model(name, num_symbols=3, num_layers=2, width=16, max_length=9)
    dataset, what = hs.ProcessDataset("mess3", 9), "blocks.1.attention.pattern"
    if name in ("decoder", "roformer", "llama"):
        found = hs.capture_activations(model, [what, "blocks.1.attention.mixed"], dataset[0:2].tokens)
        torch.testing.assert_close(found[what].sum(-1), torch.ones(found[what].shape[:-1]))
        assert {row["layer"] for row in hs.attention_map(model, dataset, num_samples=2)} == {1, 2}
        return
    with pytest.raises(InputError, match="found no softmax attention in"):
        hs.attention_map(model, dataset, num_samples=2)
    with pytest.raises(InputError, match="found no softmax attention in"):
        hs.capture_activations(model, [what], dataset[0:2].tokens)


class Halves(nn.Module):
    """A Transformer of torch that adds float32 masks, which torch accepts in any other dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]))
        return self.head(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_mask_of_another_dtype_hides_no_attention(dtype: torch.dtype) -> None:
    dataset = hs.ProcessDataset(hs.make_process("random-hmm", num_symbols=TOKENS), 6)
    model = Halves().to(dtype)
    found = hs.capture_activations(model, ["residual.2", "blocks.1.attention.pattern"], dataset[0:3].tokens)
    assert {one.dtype for one in found.values()} == {dtype}
    assert {row["layer"] for row in hs.attention_map(model, dataset, num_samples=2)} == {1, 2}


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="layers: no module of Steps returns"):
        HookedModule(Steps())
    with pytest.raises(InputError, match="found no residual stream in the model; name modules"):
        hs.probe(Steps(), hs.ProcessDataset(hs.make_process("random-hmm", num_symbols=TOKENS), 6), num_samples=8)
    near = pytest.raises(InputError, match=r"edits: no module named 'residual.7' in the model; did you mean residual")
    with near, hs.intervene(OwnGPT(fused=True), {"residual.7": lambda x: x}):
        pass
    with pytest.raises(InputError, match="model: Linear fails on tokens"):
        HookedModule(nn.Linear(2, 2))


def test_functions_and_dictionaries_are_scored_and_what_is_no_module_is_one_line() -> None:
    dataset, weights = hs.ProcessDataset(hs.make_process("mess3"), length=6), nn.Embedding(3, 3)

    class Named(nn.Module):
        def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": tokens, "logits": weights(tokens)}

    scores = [
        hs.evaluate(model, dataset, num_samples=8).loss for model in (weights, lambda tokens: weights(tokens), Named())
    ]
    assert scores[0] == scores[1] == scores[2]
    with pytest.raises(InputError, match="model: must be a torch module or a function of tokens, got 3"):
        as_module(3)
    with pytest.raises(InputError, match="model: must be a torch module, got 3"):
        require_module(3)
