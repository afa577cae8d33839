"""Interventions: what they change, what they leave, and that nothing of them stays."""

import pytest
import torch
from torch import Tensor, nn

import hmmscope as hs
from hmmscope.analysis.activations import capture_activations, residual_layers
from hmmscope.analysis.interventions import (
    ablate_head,
    add,
    edited,
    intervene,
    move_within,
    patch,
    project_out,
    set_pattern,
    span,
)
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.processes.make import make_process
from hmmscope_papers import constructions
from hmmscope_papers.constructions.deterministic_rnn import limits_theorem5_1

ZERO = torch.zeros(())


@pytest.fixture
def model() -> nn.Module:
    return hs.make_model("roformer", num_symbols=4, num_layers=2, num_heads=2, width=16, seed=0).eval()


def tokens(seed: int = 0, batch: int = 3, time: int = 7) -> Tensor:
    return torch.randint(4, (batch, time), generator=torch.Generator().manual_seed(seed))


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


@torch.no_grad()
def test_patching_a_whole_layer_gives_the_other_run(model: nn.Module) -> None:
    here, there = tokens(0), tokens(1)
    found = capture_activations(model, ["residual.1"], there)["residual.1"]
    with intervene(model, {"residual.1": patch(found)}):
        assert torch.equal(model(here), model(there))
    assert hooks(model) == 0


@torch.no_grad()
def test_only_chosen_samples_and_later_positions_change(model: nn.Module) -> None:
    plain = model(tokens())
    with intervene(model, {"residual.1": add(torch.arange(16.0), samples=1, positions=[3])}):
        changed = model(tokens())
    assert torch.equal(changed[[0, 2]], plain[[0, 2]])
    assert torch.equal(changed[1, :3], plain[1, :3])
    assert (changed[1, 3:] != plain[1, 3:]).any(-1).all()  # the last block carries it on
    with intervene(model, {"residual.2": add(torch.arange(16.0), positions=-1)}):
        changed = model(tokens())
    assert torch.equal(changed[:, :-1], plain[:, :-1])
    assert not torch.equal(changed[:, -1], plain[:, -1])


@torch.no_grad()
def test_projection_removes_a_subspace_and_nothing_else(model: nn.Module) -> None:
    drawn = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    directions = torch.cat([drawn, drawn[:1] + drawn[1:2], torch.zeros(1, 16)])  # two of them say nothing new
    basis = span(directions).float()
    assert basis.shape == (16, 3)
    plain = capture_activations(model, ["residual.1"], tokens())["residual.1"]
    mean = plain.mean((0, 1))
    for around in (None, mean):
        kept: dict[str, Tensor] = {}
        with intervene(model, {"residual.1": [project_out(directions, mean=around), _keeping(kept)]}):
            model(tokens())
        inside = (kept["x"] if around is None else kept["x"] - mean) @ basis
        assert inside.abs().max() < 1e-5
        assert torch.allclose(kept["x"] - kept["x"] @ basis @ basis.T, plain - plain @ basis @ basis.T, atol=1e-5) or (
            around is not None
        )


def _keeping(into: dict[str, Tensor]):  # type: ignore[no-untyped-def]
    def keep(x: Tensor) -> Tensor:
        into["x"] = x.clone()
        return x

    return keep


@torch.no_grad()
def test_moving_within_the_whole_space_is_patching(model: nn.Module) -> None:
    values = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(1))
    with intervene(model, {"residual.1": move_within(torch.eye(16), values)}):
        moved = model(tokens())
    with intervene(model, {"residual.1": patch(values)}):
        assert torch.allclose(moved, model(tokens()), atol=1e-5)


@torch.no_grad()
def test_head_that_is_ablated_is_as_one_that_writes_nothing(model: nn.Module) -> None:
    attention = model.get_submodule("blocks.0.attention")
    plain = model(tokens())
    with intervene(model, {"blocks.0.attention.mixed": ablate_head(1, 2)}):
        without = model(tokens())
    assert not torch.equal(without, plain)
    own = attention.get_submodule("out").weight[:, 8:]
    before = own.clone()
    own.zero_()
    assert torch.allclose(model(tokens()), without, atol=1e-6)
    own.copy_(before)
    mean = capture_activations(model, ["blocks.0.attention.mixed"], tokens())["blocks.0.attention.mixed"]
    with intervene(model, {"blocks.0.attention.mixed": ablate_head(1, 2, by=mean)}):
        assert torch.allclose(model(tokens()), plain, atol=1e-6)  # by its own values it is not ablated


@torch.no_grad()
def test_pattern_that_is_set_is_the_one_that_mixes(model: nn.Module) -> None:
    plain = model(tokens())
    name = "blocks.1.attention.pattern"
    found = capture_activations(model, [name], tokens())[name]
    with intervene(model, {name: set_pattern(found)}):
        assert torch.allclose(model(tokens()), plain, atol=1e-5)
    zeros = torch.zeros_like(found)
    with intervene(model, {name: set_pattern(zeros, head=0), "blocks.1.attention.mixed": _first_head_is_zero}):
        model(tokens())
    with intervene(model, {name: set_pattern(zeros)}):
        without = model(tokens())
    with intervene(model, {"blocks.1.attention.mixed": patch(ZERO)}):
        assert torch.allclose(model(tokens()), without, atol=1e-6)


def _first_head_is_zero(x: Tensor) -> Tensor:
    assert (x[..., :8] == 0).all()
    assert (x[..., 8:] != 0).any()
    return x


def test_gradients_flow_through_edits(model: nn.Module) -> None:
    direction = torch.zeros(16, requires_grad=True)
    with intervene(model, {"residual.1": add(direction, positions=2)}):
        model(tokens())[:, -1, 0].sum().backward()
    assert direction.grad.abs().max() > 0


@pytest.mark.usefixtures("unchecked")
def test_nothing_is_left_after_an_error(model: nn.Module) -> None:
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"), intervene(model, {"residual.0": broken}):
        model(tokens())
    assert hooks(model) == 0
    with pytest.raises(InputError, match=r"no module named 'residual\.9'"), intervene(model, {"residual.9": broken}):
        pass
    with (
        pytest.raises(InputError, match=r"the edit of residual\.0 must keep its shape"),
        intervene(model, {"residual.0": lambda x: x[:, :1]}),
    ):
        model(tokens())
    with (
        pytest.raises(InputError, match=r"edits: the edit of residual\.0 must return a tensor, got None"),
        intervene(model, {"residual.0": lambda x: None}),
    ):
        model(tokens())
    with (
        pytest.raises(InputError, match=r"edits: residual\.0 must be a function or a list of functions, got 3"),
        intervene(model, {"residual.0": 3}),
    ):
        pass
    for names in ("residual.0", 3):
        with pytest.raises(InputError, match="layers: must be a list of names, got"):
            capture_activations(model, names, tokens())
    with pytest.raises(InputError, match="head: must be in"):
        ablate_head(2, 2)
    assert hooks(model) == 0


@torch.no_grad()
def test_constructed_attention_uses_the_pattern_that_is_set() -> None:
    net = constructions.multitask_theorem1(
        2,
        2,
        1,
        num_demonstrations=2,
        demonstration_length=4,
        test_length=4,
        options=constructions.MultiTaskOptions(learning_rate=0.1, causal=True),
    )
    prompt = torch.tensor([[2, 0, 1, 1, 0, 2, 1, 0, 0, 1, 2, 0, 1, 1, 0]])
    name = next(name for name, _ in net.named_modules() if name.endswith("attention.pattern"))
    plain = net(prompt)
    with intervene(net, {name: lambda x: x}):
        assert torch.allclose(net(prompt), plain, atol=1e-9)
    with intervene(net, {name: lambda x: x * 0}):
        assert not torch.allclose(net(prompt), plain, atol=1e-3)


@torch.no_grad()
def test_belief_that_is_set_in_a_theorems_network_is_what_the_filter_goes_on_from() -> None:
    """The hidden state of the RNN of Theorem 5.1 holds the belief: that of another prefix gives that prefix's future."""
    process = make_process("cyclic-det", seed=3)
    net = limits_theorem5_1(process, placeholder=False)
    batch = hs.ProcessDataset(process, length=8, seed=0)[0:16].observations
    exact = filter_beliefs(process, batch).beliefs
    assert torch.allclose(net(batch), exact)
    assert residual_layers(net) == ["residual.0", "residual.1"]
    other = capture_activations(net, ["residual.1"], batch.flip(0))["residual.1"]
    with intervene(net, {"residual.1": patch(other)}):
        assert torch.allclose(net(batch), exact.flip(0))


@torch.no_grad()
def test_module_that_gives_a_tuple() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            return x, "kept"

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()

        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            return self.pair(x)

    outer, x = Outer(), torch.ones(2, 3, 4)
    with intervene(outer, {"pair": edited(lambda x: x + 1, positions=slice(1, None))}):
        changed, said = outer(x)
    assert said == "kept"
    assert changed[:, 0].eq(1).all()
    assert changed[:, 1:].eq(2).all()
