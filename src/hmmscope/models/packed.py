"""Many models of one shape as one: each weight has a first axis of members, each batch the rows of all of them.

A pack reads (member * batch, ...), rows k * batch .. (k + 1) * batch - 1 being those of member k, and answers in the same
order, so that everything which takes a model (taps, caches, block chain-of-thought, losses) takes a pack. It is built of
the members' own modules with their weighted leaves replaced; what has no weights runs as it is, on more rows.

A member's parameters become views into the pack's, [k] of the first axis: to train the pack is to train the members.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hmmscope.axes import Float, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.models.base import Dropout, SequenceModel, Tap
from hmmscope.models.decoder import Decoder
from hmmscope.models.packed_recurrent import PackedGRU, PackedLSTM, PackedRNN, affine
from hmmscope.schema import require


class Pack(SequenceModel):
    """K models of one shape in one program.

    Args:
        members: models of the same class and sizes, on one device. Their parameters become views into the pack's.

    Attributes:
        members: the models, which stay usable one by one (evaluation, checkpoints).
        stacks: for each parameter of a member the pack's, with a first axis of members, and those of the members.

    Raises:
        InputError: no members, members of different sizes, or an architecture that has no packed form.
    """

    def __init__(self, members: Sequence[SequenceModel]) -> None:
        super().__init__()
        require(len(members) >= 1, "members", "must be at least one model", len(members))
        shapes = [[(name, p.shape) for name, p in member.named_parameters()] for member in members]
        for number, (member, found) in enumerate(zip(members, shapes, strict=True)):
            same = type(member) is type(members[0]) and found == shapes[0]
            require(same, f"members[{number}]", "must have the class and shapes of members[0]", type(member).__name__)
        first = members[0]
        self.ports, self.num_symbols, self.num_tokens = first.ports, first.num_symbols, first.num_tokens
        self.members = tuple(members)
        self.stacks: list[tuple[nn.Parameter, list[nn.Parameter]]] = []
        self._rows = _Rows(len(members))
        self.network: Any = self._packed("", list(members))
        if sum(len(own) for _, own in self.stacks) != sum(len(found) for found in shapes):
            raise InputError(f"model: {type(first).__name__} has no packed form with these options; train it by itself")

    def forward(
        self,
        inputs: Int64[Tensor, "rows time"] | Float[Tensor, "rows time input"],
        positions: Int64[Tensor, "*batch time"] | None = None,
        *,
        feedback: Float[Tensor, "rows time feedback"] | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "rows time output"]:
        """Outputs of all members, rows = member * batch; see `SequenceModel.forward`."""
        if positions is not None:
            raise InputError("positions: a pack reads positions 0, 1, 2, ...")
        count = len(self.members)
        require(len(inputs) % count == 0, "inputs", f"must have equally many rows for {count} members", len(inputs))
        self._rows.batch = len(inputs) // count
        outputs: Tensor = self.network(inputs, feedback=feedback, cache=cache)
        return outputs

    def _stack(self, parameters: Sequence[nn.Parameter]) -> nn.Parameter:
        """One parameter with a first axis of members, of which theirs become views."""
        stack = nn.Parameter(torch.stack([parameter.detach() for parameter in parameters]))
        for parameter, view in zip(parameters, stack.detach().unbind(), strict=True):
            parameter.data = view
        self.stacks.append((stack, list(parameters)))
        return stack

    def _packed(self, name: str, modules: list[Any]) -> nn.Module:
        """Modules of the same name of all members as one."""
        first = modules[0]
        if type(first) in _LEAVES:
            make = _LEAVES[type(first)]
            parameters = [dict(module.named_parameters()) for module in modules]
            stacks = {key: self._stack([own[key] for own in parameters]) for key in parameters[0]}
            return make(modules, stacks)
        packed: Any = nn.Module.__new__(type(first))
        nn.Module.__init__(packed)
        for key, value in vars(first).items():
            if key not in vars(packed):
                packed.__dict__[key] = value  # sizes and the like
        for key in first._modules:
            packed.add_module(key, self._packed(f"{name}.{key}", [module._modules[key] for module in modules]))
        if isinstance(first, Decoder):
            if first.features is not None:
                packed.features = _EachPosition(packed.features.weight, self._rows)
            if first.positions is not None:
                packed.positions = _EachPosition(self._stack([module.positions for module in modules]), self._rows)
        built: nn.Module = packed
        return built

    @property
    def num_members(self) -> int:
        return len(self.members)


class _Rows:
    """Rows of one member in the pass that is going on."""

    def __init__(self, members: int) -> None:
        self.members, self.batch = members, 0

    def repeat(self, x_KTD: Tensor) -> Tensor:
        """What all samples of a member share, for each of them."""
        wide = x_KTD[:, None].expand(-1, self.batch, -1, -1)
        return wide.reshape(self.members * self.batch, *x_KTD.shape[1:])


class _Linear(nn.Module):
    """y = x weight[k]^T + bias[k] on the rows of member k: one batched product."""

    def __init__(self, modules: Sequence[nn.Linear], stacks: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.weight, self.bias = stacks["weight"], stacks.get("bias")

    def forward(self, x: Tensor) -> Tensor:
        x_KNI = x.reshape(len(self.weight), -1, x.shape[-1])
        return affine(x_KNI, self.weight, self.bias).view(*x.shape[:-1], -1)


class _EachPosition(nn.Module):
    """What a decoder adds to every sample of a member: vectors of positions, or a linear map of their features."""

    def __init__(self, weight: nn.Parameter, rows: _Rows) -> None:
        super().__init__()
        self.weight, self._rows = weight, rows

    def __getitem__(self, positions_T: Tensor) -> Tensor:
        return self._rows.repeat(self.weight[:, positions_T])

    def forward(self, features_TI: Tensor) -> Tensor:
        return self._rows.repeat(torch.matmul(features_TI, self.weight.transpose(1, 2)))


class _Embedding(nn.Module):
    """Row weight[k, token] on the rows of member k: one table of all members' rows."""

    def __init__(self, modules: Sequence[nn.Embedding], stacks: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.weight = stacks["weight"]

    def forward(self, tokens: Tensor) -> Tensor:
        members, num_tokens, _ = self.weight.shape
        first = torch.arange(0, members * num_tokens, num_tokens, device=tokens.device)
        rows = (tokens.reshape(members, -1) + first[:, None]).view(tokens.shape)
        return F.embedding(rows, self.weight.flatten(0, 1))


class _LayerNorm(nn.Module):
    """Layer norm with weight[k] and bias[k] on the rows of member k."""

    def __init__(self, modules: Sequence[nn.LayerNorm], stacks: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.weight, self.bias = stacks["weight"], stacks["bias"]
        self.shape, self.eps = modules[0].normalized_shape, modules[0].eps

    def forward(self, x: Tensor) -> Tensor:
        normal_KND = F.layer_norm(x, self.shape, eps=self.eps).view(len(self.weight), -1, x.shape[-1])
        return torch.addcmul(self.bias[:, None], normal_KND, self.weight[:, None]).view(x.shape)


class _Dropout(nn.Module):
    """Each member's masks on its rows, the same as if it were alone."""

    def __init__(self, modules: Sequence[Dropout], stacks: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.each = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        first = self.each[0]
        assert isinstance(first, Dropout)
        if not self.training or first.rate == 0:
            return x
        return torch.cat([dropout(rows) for dropout, rows in zip(self.each, x.chunk(len(self.each)), strict=True)])


_LEAVES: dict[type, Callable[[Any, dict[str, nn.Parameter]], nn.Module]] = {
    nn.Linear: _Linear,
    nn.Embedding: _Embedding,
    nn.LayerNorm: _LayerNorm,
    nn.RNN: PackedRNN,
    nn.LSTM: PackedLSTM,
    nn.GRU: PackedGRU,
    Dropout: _Dropout,
    Tap: lambda modules, stacks: Tap(),
}
