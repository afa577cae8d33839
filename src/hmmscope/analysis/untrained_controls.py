"""Untrained twins: what can be read from a network of the same architecture that learned nothing.

A random network keeps much of what it has read, so a high R² says little of training. The figure to quote is the share of
what the twins leave unexplained:

    share = 1 - (1 - R²) / mean over twins (1 - R²_twin)

and the same of accuracies, with the share of errors in place of 1 - R².
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hmmscope.analysis.initialization import FIX, Controls, copied_table, made_controls, other_law
from hmmscope.analysis.layer_curves import Curves
from hmmscope.errors import InputError
from hmmscope.inference.monte_carlo import student_quantile
from hmmscope.models.base import SequenceModel, build_model
from hmmscope.models.user_module import UserModule
from hmmscope.reprs import Shown
from hmmscope.schema import require
from hmmscope.seeds import MAX_SEED, derived_seed, torch_generator
from hmmscope.text import in_digits

#: Twins that an instrument draws unless told otherwise, and the fewest from which a spread is taken.
NUM_TWINS = 3
#: Where twins leave less than this unexplained, nothing is told: there is no room for training to show.
LEAST_LEFT = 0.02
#: A share that is smaller counts as none, even where it is beyond doubt: rounding and the ridge differ from draw to draw.
LEAST_SHARE = 0.02
#: Half-width on the scale of logarithms from which on an interval is no wider: nothing is known there, and numbers end.
_WIDEST = 20.0


@dataclass(frozen=True, repr=False)
class UntrainedControls(Shown):
    """Untrained networks of one architecture.

    Attributes:
        models: the draws; none where the network cannot be drawn afresh.
        reason: then why, one line.
    """

    models: tuple[nn.Module, ...]
    reason: str = ""


@dataclass(frozen=True, repr=False)
class ExplainedFraction(Shown):
    """What a network explains of what its untrained twins leave.

    Attributes:
        read: R² or accuracy of the network.
        controls: mean of the same over the twins; None without twins.
        num_controls: how many.
        value, low, high: the share with its 95 % interval; None where it is not identifiable.
        reason: then why, one line.
    """

    read: float
    controls: float | None = None
    num_controls: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """Effect of training: more, less, no more, or "not told" (not identifiable); below `LEAST_SHARE` it is no more."""
        if self.value is None or self.low is None or self.high is None:
            return "not told"
        if abs(self.value) < LEAST_SHARE or self.low <= 0 <= self.high:
            return "no more"
        return "more" if self.low > 0 else "less"

    def __str__(self) -> str:
        """``0.91 [0.84, 0.95] of what 3 untrained controls leave unexplained``, or why it is not identifiable."""
        if self.value is None or self.low is None or self.high is None:
            return self.reason
        share = in_digits(self.value, self.low, self.high)
        return f"{share} of what {self.num_controls} untrained twins leave unexplained"

    def columns(self) -> dict[str, Any]:
        """As columns of a table."""
        share = {"share": self.value, "share_low": self.low, "share_high": self.high}
        return {"twins": self.controls} | share | {"beyond_twins": str(self)}


#: The columns of a row that has no twins, such as a control with shuffled labels.
NO_COLUMNS = dict.fromkeys(("twins", "share", "share_low", "share_high", "beyond_twins"))


def draw_controls(
    model: nn.Module,
    num_controls: int = NUM_TWINS,
    *,
    seed: int = 0,
    controls: Controls | None = None,
    first: nn.Module | None = None,
) -> UntrainedControls:
    """Copies of a network with new first weights, each from a seed of its own; the network stays as it is.

    A function `controls` makes them as the user does. Without it a model of this library is built again from its spec, one
    of transformers from its configuration, one of TransformerLens by the laws of the model within it. In any other module
    every submodule with weights is drawn by its ``reset_parameters``, as those of torch have it; what a module's own
    ``__init__`` did to the weights of its submodules is not repeated. So its weights are compared with those of the draws,
    and there are no twins where the scales differ or where a buffer of the module may be learned, see `initialization`.

    Args:
        model: any module.
        num_controls: how many; 0 for none.
        seed: of the draws, in [0, 2^32).
        controls: a function without arguments that makes the untrained module, ``lambda: Mine()``.
        first: the network with its first weights, where they are known: these are compared, and their buffers taken.

    Returns:
        The twins, on the device of the network; without any and with a line that says why where it cannot be drawn afresh:
        it has no weights, or weights that nothing draws, or first weights of another law.

    Raises:
        InputError: fewer than three, which have no spread to speak of; or `controls` makes no other such modules.
    """
    rule = f"must be at least {NUM_TWINS}, whose spread is measured, or 0 for none"
    require(num_controls == 0 or num_controls >= NUM_TWINS, "num_controls", rule, num_controls)
    if num_controls == 0:
        return UntrainedControls((), "no twins were asked for")
    seeds = [derived_seed(seed, "twin", draw) % MAX_SEED for draw in range(num_controls)]
    if controls is not None:
        return UntrainedControls(made_controls(controls, model, seeds))
    try:
        return UntrainedControls(_redrawn(model if first is None else first, seeds, trained=first is None))
    except InputError as error:
        return UntrainedControls((), f"not identifiable: {error}")


def _redrawn(model: nn.Module, seeds: list[int], *, trained: bool) -> tuple[nn.Module, ...]:
    """Copies with other weights, if nothing says that these have another law than the model's."""
    drawn = [_twin(model, seed, tables=trained) for seed in seeds]
    known = set.intersection(*(names for _, names in drawn))
    own, *others = (
        {name: one for name, one in net.named_parameters() if name not in known}
        for net in (model, *(twin for twin, _ in drawn))
    )
    odd = other_law(own, others, trained=trained)
    if odd:
        raise InputError(f"the first weights of {type(model).__name__} seem to be drawn otherwise, {odd}; {FIX}")
    return tuple(twin for twin, _ in drawn)


def _twin(model: nn.Module, seed: int, *, tables: bool) -> tuple[nn.Module, set[str]]:
    """A copy with new first weights, and the names of those whose law is known."""
    name = type(model).__name__
    if not any(True for _ in model.parameters()):
        raise InputError(f"{name} has no weights to draw")
    device = next(model.parameters()).device
    known: set[int] = set()
    try:
        twin = copy.deepcopy(model).cpu()  # weights are drawn on the processor: the same ones for every device
        before = {where: buffer.clone() for where, buffer in twin.named_buffers()}
        with torch.no_grad(), _drawing(seed):
            for parameter in twin.parameters():
                parameter.fill_(torch.nan)
            _draw(twin, seed, known)
    except Exception as error:
        line = " ".join(str(error).split())[:200]
        raise InputError(f"{name} cannot be drawn afresh ({type(error).__name__}: {line}); {FIX}") from error
    for where, parameter in twin.named_parameters():
        if parameter.isnan().any():
            raise InputError(f"nothing draws {where} of {name} afresh; give its module a reset_parameters(), or {FIX}")
    table = copied_table(twin, before, known) if tables else ""
    if table:
        raise InputError(f"the buffer {table} of {name} may be learned, and nothing draws it afresh; {FIX}")
    return twin.to(device), {where for where, parameter in twin.named_parameters() if id(parameter) in known}


def _draw(module: nn.Module, seed: int, known: set[int]) -> None:
    """New weights in place, those of submodules first; ids of those that a spec or a configuration draws go to `known`."""
    if isinstance(module, SequenceModel) and not isinstance(module, UserModule) and module.spec is not None:
        module.load_state_dict(build_model(module.spec, module.model_io, seed).state_dict())
        known.update(map(id, (*module.parameters(), *module.buffers())))
        return
    original = getattr(module, "original_model", None)
    if isinstance(original, nn.Module) and hasattr(type(original), "_init_weights"):  # of TransformerLens
        _draw_in_place(original)
        known.update(map(id, (*module.parameters(), *module.buffers())))
        return
    if hasattr(getattr(module, "config", None), "to_dict") and hasattr(module, "init_weights"):  # of transformers
        module.load_state_dict(type(module)(copy.deepcopy(module.config)).state_dict())
        known.update(map(id, (*module.parameters(), *module.buffers())))
        return
    for child in module.children():
        _draw(child, seed, known)
    for name in ("reset_parameters", "_reset_parameters"):
        if hasattr(module, name):
            getattr(module, name)()
            return


def _draw_in_place(original: nn.Module) -> None:
    """New weights in a model of transformers whose parts were taken apart, each by the law of its kind."""
    draw: Any = type(original)._init_weights  # type: ignore[attr-defined]
    for part in original.modules():
        if type(part).__module__.startswith(("torch.", "transformers.")):
            for drawn in (part, *part.parameters(recurse=False)):
                drawn.__dict__.pop("_is_hf_initialized", None)
            draw(original, part)


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """What draws from torch's global generator draws from (seed, "twin"); the global one is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch_generator(seed, "twin").get_state())
        yield


def explained_beyond_controls(
    left: Curves, twins_left: Curves, num_samples: int, *, reason: str = ""
) -> ExplainedFraction:
    """The share of what the twins leave, from what is left unexplained on all test samples and on resamples.

    Its interval is Student's law of the logarithm of the ratio, by Satterthwaite's degrees of freedom. Its variance adds

        that of the ratio over resamples of the test samples, which are the same for the network and for its twins;
        that between twins, (1 + 1 / twins) times: of their mean, and of the draw that the network itself began as.

    So the interval of another untrained network lies above zero in 2 or 3 of 100 cases (seen with three architectures).

    Args:
        left: 1 - R², or the share of errors, of the network (1 + resamples,); the first on all samples.
        twins_left: the same of each twin (1 + resamples, twin).
        num_samples: test samples.
        reason: why there are no twins, if there are none.

    Source: ours.
    """
    read, num_twins = 1 - float(left[0]), twins_left.shape[1]
    if num_twins == 0:
        return ExplainedFraction(read, reason=reason)
    means = twins_left.mean(1)
    about: dict[str, Any] = {"read": read, "controls": 1 - float(means[0]), "num_controls": num_twins}
    if means[0] < LEAST_LEFT:
        numbers = f"{read:.3f} against {1 - means[0]:.3f} of {num_twins} untrained twins"
        return ExplainedFraction(**about, reason=f"not identifiable: {numbers}")
    spread = float(twins_left[0].var(ddof=1) / means[0] ** 2) * (1 + 1 / num_twins)
    ratio = float(left[0] / means[0])
    least = 1 - 0.025 ** (1 / num_samples)  # of which no error in so many samples is the sign, once in forty
    drawn = np.divide(left[1:], means[1:], out=np.ones_like(means[1:]), where=means[1:] > 0)
    noise = float(drawn.var(ddof=1)) / ratio**2 if ratio > 0 else 0.0
    total = noise + spread
    if total <= 0:
        half = 0.0
    else:
        degrees = total**2 / (noise**2 / max(1, num_samples - 1) + spread**2 / (num_twins - 1))
        half = min(student_quantile(degrees) * float(np.sqrt(total)), _WIDEST)
    high = ratio if ratio > 0 else least / float(means[0])
    return ExplainedFraction(
        **about, value=1 - ratio, low=1 - high * float(np.exp(half)), high=1 - ratio * float(np.exp(-half))
    )


def explained_by_layer(
    left: Curves, twins_left: list[Curves], num_samples: int, *, reason: str = ""
) -> list[ExplainedFraction]:
    """`explained_beyond_controls` layer by layer, of what is left (1 + resamples, layer) in the network and in each twin."""
    stacked = np.stack(twins_left, 2) if twins_left else np.zeros((*left.shape, 0))
    return [
        explained_beyond_controls(left[:, i], stacked[:, i], num_samples, reason=reason) for i in range(left.shape[1])
    ]
