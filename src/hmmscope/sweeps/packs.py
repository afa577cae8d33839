"""Which runs of a sweep one worker trains together, as one batched program, and how many.

A pack is of runs that differ in their seeds only. Nothing is packed unless the user asks: the numbers of a packed run are
those of the run by itself to rounding, not to the bit.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hmmscope.errors import InputError
from hmmscope.packing import MAY_DIFFER
from hmmscope.runs.config import RunConfig
from hmmscope.schema import parse_value, require
from hmmscope.training.state import resolve_device

#: Models that have a packed form, unless they learn their first state.
PACKABLE = ("decoder", "roformer", "linear-attention", "rnn", "lstm", "gru")

_MOST = 1024


@dataclass(frozen=True)
class Rule:
    """Where ``auto`` packs.

    Attributes:
        device: of the runs, "cpu" or "cuda".
        models: their names.
        max_width: of a model.
        most: runs of a pack.
    """

    device: str
    models: tuple[str, ...]
    max_width: int
    most: int


#: What ``auto`` means; what no rule names is trained one by one.
#:
#: On a processor: ``hmmscope bench packed`` measures width 64, one thread; docs/training-packed.md has its table. RNNs are
#: faster in packs of 2 and more (with ReLU; tanh is the same program). GRUs gain less than the table is uncertain by,
#: LSTMs are slower, Transformers as fast. On CUDA the rule is a choice and no measurement: a step of a small model is a few
#: hundred launches there, of which a pack needs as many as one run.
RULES = (
    Rule("cpu", ("rnn",), 64, 8),
    Rule("cuda", PACKABLE, 128, 8),
)


def parse_pack(text: str) -> int | None:
    """The value of ``--pack``: most runs of a pack, 1 for "off", None for "auto".

    Raises:
        InputError: anything else.
    """
    if text in ("off", "auto"):
        return 1 if text == "off" else None
    try:
        count: int = parse_value(int, text, "pack")
    except InputError:
        raise InputError(f"pack: must be a number of runs, auto or off, got {text!r}") from None
    require(1 <= count <= _MOST, "pack", f"must be in [1, {_MOST}]", count)
    return count


def largest_pack(config: RunConfig, pack: int | None) -> int:
    """How many runs such as this one to train together at most; 1 for none.

    Args:
        config: of the run. A device "auto" is the one of this machine.
        pack: that many of whatever has a packed form; None for what `RULES` say.
    """
    model = config.model
    if model.name not in PACKABLE or getattr(model, "learn_initial", False) or config.training.compile:
        return 1
    if pack is not None:
        return pack
    device = config.training.device
    if device == "auto":
        device = resolve_device(device)  # "cuda" is not resolved: it may be there only on the machines of a cluster
    for rule in RULES:
        if rule.device == device and model.name in rule.models and model.width <= rule.max_width:
            return rule.most
    return 1


def kind_of(config: RunConfig) -> str:
    """Equal for runs that may be trained together: a digest of the configuration without what may differ in a pack."""
    data = config.to_data()
    for key in MAY_DIFFER:
        *path, last = key.split(".")
        section = data
        for word in path:
            section = section[word]
        section.pop(last, None)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


class Packs:
    """How the runs of a sweep are put together.

    Args:
        configs: of all runs, by name.
        pack: see `parse_pack`.
    """

    def __init__(self, configs: Mapping[str, RunConfig], pack: int | None) -> None:
        self._kinds: dict[str, tuple[str, int]] = {}
        for name, config in configs.items() if pack != 1 else ():
            most = largest_pack(config, pack)
            if most > 1:
                self._kinds[name] = (kind_of(config), most)

    def __bool__(self) -> bool:
        """Whether there is anything to put together."""
        return bool(self._kinds)

    def part(self, names: Sequence[str]) -> None:
        """Train these by themselves from now on."""
        for name in names:
            self._kinds.pop(name, None)

    def units(self, waiting: Sequence[str], places: int) -> Iterator[tuple[str, ...]]:
        """All that waits as units of work, in the order of their first runs.

        A pack has at most ceil(waiting / places) runs, so that no place stays empty for its sake, and the packs of one
        kind are of about the same size.
        """
        limit = -(-len(waiting) // places)
        mates: dict[tuple[str, int], list[str]] = {}
        for name in waiting:
            if name in self._kinds:
                mates.setdefault(self._kinds[name], []).append(name)
        cut = {kind: _even(names, min(kind[1], limit)) for kind, names in mates.items()}
        taken: set[str] = set()
        for name in waiting:
            if name in self._kinds and name not in taken:
                unit = next(cut[self._kinds[name]])
                taken.update(unit)
                yield unit
            elif name not in self._kinds:
                yield (name,)


def _even(names: Sequence[str], most: int) -> Iterator[tuple[str, ...]]:
    """The names in order, in as few parts of at most `most` as there can be, of about the same size."""
    count = -(-len(names) // most)
    for number in range(count):
        yield tuple(names[len(names) * number // count : len(names) * (number + 1) // count])
