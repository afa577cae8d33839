"""Initial weights: controls made by a user's function, and checks that weights come from one distribution."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import nn

from hmmscope.axes import Tensor
from hmmscope.errors import HmmscopeError, InputError
from hmmscope.models.base import seeded_generators
from hmmscope.models.kept_state import equal_values
from hmmscope.schema import shown
from hmmscope.seeds import derived_seed

#: A function without arguments that makes an untrained module.
Controls = Callable[[], nn.Module]
#: Least ratio of scales that shows another initial distribution of a matrix, for trained and for initial weights.
TRAINED_RATIO, FIRST_RATIO = 1.6, 1.25
#: The same for vectors, which training moves further.
VECTOR_RATIO = 4.0
#: Standard errors of a scale that are allowed.
_ERRORS = 4.0
#: Relative standard error of a square Gaussian matrix's median singular value / that of its root mean square.
_INNER_ERROR = 2.4
#: Rows and columns of the block for singular values.
_BLOCK = 256
#: Relative error of a table computed from positions, and the least fraction of such entries.
_TABLE_ERROR, _TABLE_SHARE = 1e-3, 0.9

FIX = "pass as controls= a function that makes the untrained module"


def made_controls(controls: Controls, model: nn.Module, seeds: Sequence[int]) -> tuple[nn.Module, ...]:
    """Make one untrained module per seed with a user's function, on the device and in the dtype of the model.

    The user's function runs without gradients and with seeded global random generators.
    """
    rule = "must be a function without arguments that makes the untrained module, such as lambda: Mine()"
    if not callable(controls) or isinstance(controls, nn.Module):
        raise InputError(f"controls: {rule}, got {shown(controls)}")
    made = []
    for seed in seeds:
        try:
            with torch.no_grad(), seeded_generators(derived_seed(seed, "controls")):
                one = controls()
        except Exception as error:
            line = error if isinstance(error, HmmscopeError) else f"{type(error).__name__}: {error}"
            reason = " ".join(str(line).split())[:200]
            raise InputError(f"controls: the function fails ({reason}); it must return an untrained module") from error
        if not isinstance(one, nn.Module):
            raise InputError(f"controls: {rule}; it returned {shown(one)}")
        _require_same_shapes(one, model)
        made.append(_placed(one, model))
    for one, other in [*pairwise(made), *((model, one) for one in made)]:
        if _same_weights(one, other):
            raise InputError(
                "controls: must draw new weights at every call, but two modules have the same weights; remove fixed "
                "seeds and loaded weights"
            )
    return tuple(made)


def _require_same_shapes(made: nn.Module, model: nn.Module) -> None:
    wanted, found = ([(name, tuple(p.shape)) for name, p in one.named_parameters()] for one in (model, made))
    if [shape for _, shape in wanted] == [shape for _, shape in found]:  # names may have a prefix of a wrapper
        return
    odd, own = next(((b, a) for a, b in zip(wanted, found, strict=False) if a[1] != b[1]), (None, None))
    if odd is None or own is None:
        raise InputError(f"controls: must return a module of {len(wanted)} parameters like the model, got {len(found)}")
    raise InputError(f"controls: must return the model's architecture with {own[0]} {own[1]}, got {odd[0]} {odd[1]}")


def _placed(made: nn.Module, model: nn.Module) -> nn.Module:
    like = next(model.parameters(), None)
    if like is not None:
        dtype = like.dtype  # complex buffers stay complex, which Module.to would make real
        made = made.to(like.device)._apply(lambda one: one.to(dtype) if one.is_floating_point() else one)
    return made.train(model.training)


def _same_weights(one: nn.Module, other: nn.Module) -> bool:
    if one is other:
        return True
    pairs = [
        *zip(one.parameters(), other.parameters(), strict=True),
        *zip(one.buffers(), other.buffers(), strict=False),
    ]
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


def other_law(own: Mapping[str, Tensor], drawn: Sequence[Mapping[str, Tensor]], *, trained: bool = True) -> str:
    """Describe a parameter of `own` (a model) whose initial distribution differs from `drawn` (controls), or return "".

    Training hardly changes the median singular value of a matrix.
    """
    for name, weight in own.items():
        found = _ratio(weight.detach(), [one[name].detach() for one in drawn], trained=trained)
        if found is not None:
            return f"{name}: {found}"
    return ""


def _ratio(weight: Tensor, drawn: Sequence[Tensor], *, trained: bool) -> str | None:
    count = weight.numel()
    if count < 2 or not weight.is_floating_point():
        return None
    weight, drawn = weight.double().cpu(), [one.double().cpu() for one in drawn]
    still, fixed = bool((weight == weight.flatten()[0]).all()), all(torch.equal(one, drawn[0]) for one in drawn)
    if still and not fixed:
        return f"all its values are {float(weight.flatten()[0]):.3g}, but in the untrained controls its values vary"
    if fixed and not trained and not torch.equal(weight, drawn[0]):
        return "its values differ from the initial values that all untrained controls share"
    size = _mean([_root_mean_square(one) for one in drawn])
    if size == 0:
        return None
    ratio = _root_mean_square(weight) / size
    limit, error = TRAINED_RATIO if trained else FIRST_RATIO, _ERRORS / math.sqrt(2 * count)
    matrix = weight.ndim > 1 and min(weight.flatten(1).shape) > 1
    if not matrix and trained:
        limit = VECTOR_RATIO
    limit = max(math.log(limit), error)
    changes = [(math.log(ratio) if ratio > 0 else -math.inf, limit, "root mean square")]
    if matrix and not fixed:
        inner = math.log(_inner(weight) / _mean([_inner(one) for one in drawn])) if _inner(weight) > 0 else -math.inf
        changes += [(inner, limit if trained else max(limit, _INNER_ERROR * error), "median singular value")]
        if trained and changes[0][0] * inner <= 0:
            return None
    change, allowed, what = (min if trained else max)(changes, key=lambda one: abs(one[0]) / one[1])
    if abs(change) <= allowed:
        return None
    return f"its {what} is {math.exp(change):.2g} times the {what} in the untrained controls"


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def _inner(weight: Tensor) -> float:
    return float(torch.linalg.svdvals(weight.flatten(1)[:_BLOCK, :_BLOCK]).median())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def copied_table(module: nn.Module, before: dict[str, Tensor], known: set[int]) -> str:
    """Return the name of a buffer that may be learned but is the same after a new initialization, or "".

    Buffers of integers, masks, sinusoids, ramps or powers of the position count as not learned.
    """
    for name, buffer in module.named_buffers():
        if id(buffer) in known or not (buffer.is_floating_point() or buffer.is_complex()):
            continue
        old = before.get(name)
        if old is not None and equal_values(old, buffer) and not _follows(buffer.detach().cpu()):
            return name
    return ""


def _follows(table: Tensor) -> bool:
    values = torch.view_as_real(table) if table.is_complex() else table.to_dense()
    values = values.double()
    if values[values.isfinite()].unique().numel() <= 2:
        return True
    return any(_recurs(values.movedim(axis, 0).reshape(values.shape[axis], -1)) for axis in range(table.ndim))


def _recurs(rows: Tensor) -> bool:
    if len(rows) < 3:
        return False
    size = rows.nan_to_num(posinf=0, neginf=0).square().mean(0).sqrt()
    before, now, after = rows[:-2], rows[1:-1], rows[2:]
    ramp = (after - 2 * now + before).abs() <= _TABLE_ERROR * size
    straight = (ramp | ~torch.stack([before, now, after]).isfinite().all(0)).double().mean(0) >= _TABLE_SHARE
    if len(rows) < 5 or not rows.isfinite().all():  # two numbers a and b would fit every short column
        power = ((now.square() - before * after).abs() <= _TABLE_ERROR * now.square()).all(0)
        return bool((straight | power).all())
    pairs = torch.stack([now.T, before.T], 2)
    scale = size.clamp_min(torch.finfo(size.dtype).tiny)[:, None, None]
    pairs, ahead = pairs / scale, after.T[:, :, None] / scale
    left = torch.linalg.pinv(pairs, rtol=1e-9) @ ahead
    near = ((pairs @ left - ahead).abs() <= _TABLE_ERROR).double().mean((1, 2)) >= _TABLE_SHARE
    return bool((straight | near).all())
