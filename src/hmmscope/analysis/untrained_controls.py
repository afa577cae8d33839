"""Untrained controls: networks of the same architecture with new initial weights.

Instruments report the fraction explained beyond controls: the relative decrease of the unexplained variance from the
controls to the network,

    share = 1 - (1 - R²) / mean over controls (1 - R²_control)

or the same expression with error rates in place of 1 - R².
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
from hmmscope.models.adapted import innermost, named_module, title_of
from hmmscope.models.base import SequenceModel, build_model
from hmmscope.models.rehearsal import copied_model
from hmmscope.models.user_module import UserModule
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count
from hmmscope.seeds import MAX_SEED, derived_seed, torch_generator
from hmmscope.text import in_digits

#: Default and least number of controls.
NUM_TWINS = 3
NO_POINTS = "must be omitted, because this instrument plots no beliefs"
#: Least unexplained fraction of controls; below it the fraction explained beyond controls is not identifiable.
LEAST_LEFT = 0.02
#: Smaller fractions count as none: rounding and the ridge differ between controls.
LEAST_SHARE = 0.02
#: Largest half-width of an interval on the log scale, which avoids overflow.
_WIDEST = 20.0


@dataclass(frozen=True, kw_only=True)
class InstrumentOptions:
    """Options that `belief_map`, `look`, `probe` and `geometry` share.

    Attributes:
        num_controls: Number of untrained controls, 0 or at least 3 (default: 8 for `belief_map`, else 3).
        controls: Function that returns an untrained module, such as ``lambda: Mine()`` (default: `draw_controls`).
        observer: HMM that defines the belief (default: the process); required for recorded sequences, except by `look`.
        num_points: Number of plotted beliefs in `belief_map` (default: 100,000) and `look` (default: 4000).

    Raises:
        InputError: An option is out of range.
    """

    num_controls: int | None = None
    controls: Controls | None = None
    observer: Any = None
    num_points: int | None = None

    def __post_init__(self) -> None:
        if self.num_points is not None:
            require_count("num_points", self.num_points)

    def num_controls_or(self, default: int = NUM_TWINS) -> int:
        return default if self.num_controls is None else self.num_controls

    def without(self, **unused: str) -> "InstrumentOptions":
        """Return the options; raise InputError if an option is set that the instrument does not use."""
        for name, why in unused.items():
            require(getattr(self, name) is None, name, why, getattr(self, name))
        return self


@dataclass(frozen=True, repr=False)
class UntrainedControls(Shown):
    """Untrained networks of one architecture.

    Attributes:
        models: the networks; empty if there are none.
        reason: why there are no networks.
    """

    models: tuple[nn.Module, ...]
    reason: str = ""


@dataclass(frozen=True, repr=False)
class ExplainedFraction(Shown):
    """How much a network explains of the variance (or errors) that untrained controls leave unexplained.

    Attributes:
        read: R² or accuracy of the network.
        controls: mean R² or accuracy of the controls, or None.
        num_controls: number of controls.
        value, low, high: the fraction with its 95 % interval, or None if not identifiable.
        reason: why the fraction is not identifiable.
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
        """Comparison with controls: "more", "less", "no more" (insignificant) or "not told" (not identifiable)."""
        if self.value is None or self.low is None or self.high is None:
            return "not told"
        if abs(self.value) < LEAST_SHARE or self.low <= 0 <= self.high:
            return "no more"
        return "more" if self.low > 0 else "less"

    def __str__(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return self.reason
        share = in_digits(self.value, self.low, self.high)
        return f"{share} of what {self.num_controls} untrained controls leave unexplained"

    def columns(self) -> dict[str, Any]:
        share = {"share": self.value, "share_low": self.low, "share_high": self.high}
        return {"twins": self.controls} | share | {"beyond_twins": str(self)}


#: Columns of a row without controls, such as shuffled labels.
NO_COLUMNS = dict.fromkeys(("twins", "share", "share_low", "share_high", "beyond_twins"))


def draw_controls(
    model: nn.Module,
    num_controls: int = NUM_TWINS,
    *,
    seed: int = 0,
    controls: Controls | None = None,
    first: nn.Module | None = None,
) -> UntrainedControls:
    """Copy a network with new initial weights, each copy from its own seed.

    Without `controls`, models of this library are rebuilt from their spec and models of transformers from their
    configuration. TransformerLens models are initialized by the model that they wrap, and other modules by the
    ``reset_parameters`` of each submodule. The result has no controls if this fails, if the copies' weights have
    another scale than the model's, or if a buffer that may be learned stays unchanged.

    Args:
        model: any module.
        num_controls: number of controls, 0 or at least 3.
        seed: seed in [0, 2^32).
        controls: function that makes an untrained module.
        first: the network with its initial weights, if known.

    Returns:
        Controls on the network's device, or no controls and the reason.

    Raises:
        InputError: one or two controls are requested, or `controls` does not return new weights of the same shapes.
    """
    rule = f"must be at least {NUM_TWINS} to measure the spread of controls, or 0 for no controls"
    require(num_controls == 0 or num_controls >= NUM_TWINS, "num_controls", rule, num_controls)
    if num_controls == 0:
        return UntrainedControls((), "no controls were requested")
    seeds = [derived_seed(seed, "twin", draw) % MAX_SEED for draw in range(num_controls)]
    if controls is not None:
        return UntrainedControls(made_controls(controls, model, seeds))
    try:
        return UntrainedControls(_redrawn(model if first is None else first, seeds, trained=first is None))
    except InputError as error:
        return UntrainedControls((), f"not identifiable: {error}")


def _redrawn(model: nn.Module, seeds: list[int], *, trained: bool) -> tuple[nn.Module, ...]:
    drawn = [_twin(model, seed, tables=trained) for seed in seeds]
    known = set.intersection(*(names for _, names in drawn))
    own, *others = (
        {name: one for name, one in named_module(net).named_parameters() if name not in known}
        for net in (model, *(twin for twin, _ in drawn))
    )
    odd = other_law(own, others, trained=trained)
    if odd:
        raise InputError(f"the controls of {title_of(model)} have another initialization than the model ({odd}); {FIX}")
    return tuple(twin for twin, _ in drawn)


def _twin(model: nn.Module, seed: int, *, tables: bool) -> tuple[nn.Module, set[str]]:
    name = title_of(model)
    if not any(True for _ in model.parameters()):
        raise InputError(f"{name} has no weights to reinitialize")
    device = next(model.parameters()).device
    known: set[int] = set()
    try:
        twin = copied_model(model).cpu()  # the CPU gives every device the same weights
        named = named_module(twin)
        before = {where: buffer.clone() for where, buffer in named.named_buffers()}
        with torch.no_grad(), _drawing(seed):
            for parameter in twin.parameters():
                parameter.fill_(torch.nan)
            _draw(twin, seed, known)
    except Exception as error:
        line = " ".join(str(error).split())[:200]
        raise InputError(f"{name} cannot be reinitialized ({type(error).__name__}: {line}); {FIX}") from error
    for where, parameter in named.named_parameters():
        if parameter.isnan().any():
            raise InputError(
                f"cannot reinitialize parameter {where!r} of module {name!r}; define reset_parameters() there, or {FIX}"
            )
    table = copied_table(named, before, known) if tables else ""
    if table:
        raise InputError(f"buffer {table!r} of module {name!r} may be learned, but has no initializer; {FIX}")
    return twin.to(device), {where for where, parameter in named.named_parameters() if id(parameter) in known}


def _draw(module: nn.Module, seed: int, known: set[int]) -> None:
    if isinstance(module, SequenceModel) and not isinstance(module, UserModule) and module.spec is not None:
        module.load_state_dict(build_model(module.spec, module.model_io, seed).state_dict())
        known.update(map(id, (*module.parameters(), *module.buffers())))
        return
    if innermost(module) is not module:  # a wrapper may forward the attributes of its module
        _draw(innermost(module), seed, known)
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
    draw: Any = type(original)._init_weights  # type: ignore[attr-defined]
    for part in original.modules():
        if type(part).__module__.startswith(("torch.", "transformers.")):
            for drawn in (part, *part.parameters(recurse=False)):
                drawn.__dict__.pop("_is_hf_initialized", None)
            draw(original, part)


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch_generator(seed, "twin").get_state())
        yield


def explained_beyond_controls(
    left: Curves, twins_left: Curves, num_samples: int, *, reason: str = ""
) -> ExplainedFraction:
    """Compute the fraction explained beyond controls, and its interval.

    The interval is Student's t interval for the log ratio of unexplained fractions (network / mean of n controls). Its
    variance is (variance over resamples) + (1 + 1/n) (variance between controls), with Satterthwaite's degrees of
    freedom.

    Args:
        left: unexplained fraction of the network on test samples and their resamples (1 + resamples,).
        twins_left: unexplained fraction of each control (1 + resamples, control).
        num_samples: number of test samples.
        reason: why there are no controls.

    Source: this project.
    """
    read, num_twins = 1 - float(left[0]), twins_left.shape[1]
    if num_twins == 0:
        return ExplainedFraction(read, reason=reason)
    means = twins_left.mean(1)
    about: dict[str, Any] = {"read": read, "controls": 1 - float(means[0]), "num_controls": num_twins}
    if means[0] < LEAST_LEFT:
        numbers = f"{num_twins} untrained controls already reach {1 - means[0]:.3f}, the network {read:.3f}"
        return ExplainedFraction(**about, reason=f"not identifiable: {numbers}")
    spread = float(twins_left[0].var(ddof=1) / means[0] ** 2) * (1 + 1 / num_twins)
    ratio = float(left[0] / means[0])
    least = 1 - 0.025 ** (
        1 / num_samples
    )  # the error rate that gives no error in this many samples with probability 1/40
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
    """Apply `explained_beyond_controls` to each layer (last axis)."""
    stacked = np.stack(twins_left, 2) if twins_left else np.zeros((*left.shape, 0))
    return [
        explained_beyond_controls(left[:, i], stacked[:, i], num_samples, reason=reason) for i in range(left.shape[1])
    ]
