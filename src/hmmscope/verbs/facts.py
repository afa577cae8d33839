"""The verb `facts`: what follows from the matrices of a process, without data."""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmmscope.analysis.screening import screen
from hmmscope.axes import Tensor
from hmmscope.corpora.layouts import Prompts
from hmmscope.errors import InputError
from hmmscope.inference.entropy import block_entropies
from hmmscope.inference.facts import (
    affordable_observability,
    facts_in_words,
    known_facts,
    mixture_facts,
    observability_in_words,
)
from hmmscope.inference.kalman import forgetting_factor, steady_step
from hmmscope.inference.memory import MAX_ENUMERATED
from hmmscope.inference.memory_error import (
    MemoryLoss,
    fit_decay,
    memory_certificate,
    memory_error,
    sampled_memory_error,
)
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.inference.mixing import MixingTime, mixing_time
from hmmscope.processes.base import Process
from hmmscope.processes.fresh import FreshHMMs
from hmmscope.processes.generalised import GeneralisedHMM
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.processes.linear_gaussian import LinearGaussian
from hmmscope.processes.mixture import Mixture
from hmmscope.schema import require
from hmmscope.seeds import check_seed
from hmmscope.storage import store
from hmmscope.text import say
from hmmscope.ties import steady
from hmmscope.verbs.endings import new_file
from hmmscope.verbs.sources import find_process

#: Sequences that the memory error is summed over where no time is given; beyond, they are sampled.
_ENUMERATED = 2**16
#: Observations beyond the longest memory, where none are given: the error no longer depends on where it all began.
_MARGIN = 16

#: What is refused before the process is built; beyond 64 observations there are too many blocks of two symbols.
_MOST = {"blocks": 64, "steps": 64, "memory": 10_000, "time": 10**6, "mixed_states": 2**53}

AnyHMM = HMM | LabelledHMM | GeneralisedHMM
Section = tuple[list[str], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class FactOptions:
    """What is asked for besides the cheap facts; zero for no.

    Attributes:
        blocks: longest block of observations whose entropy is wanted.
        steps: gamma_k for k up to this.
        memory: longest memory whose error is wanted.
        time: observations seen when a memory is judged; chosen if zero.
        mixing: whether the mixing time is wanted.
        mixed_states: where to stop looking for mixed states.
        screen: "NxL" for what counting reaches in prompts of N demonstrations of L observations; empty for no.
        samples, seed: sequences for what has to be sampled.
    """

    blocks: int = 0
    steps: int = 0
    memory: int = 0
    time: int = 0
    mixing: bool = False
    mixed_states: int = 0
    screen: str = ""
    samples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, most in _MOST.items():
            require(0 <= getattr(self, name) <= most, name, f"must be in [0, {most}]", getattr(self, name))
        require(self.samples >= 2, "samples", "must be at least 2", self.samples)
        rule = "must be demonstrations x their length, such as 5x8"
        require(not self.screen or bool(re.fullmatch(r"\d{1,6}x\d{1,6}", self.screen)), "screen", rule, self.screen)
        require(not self.time or self.time >= self.memory > 0, "time", "must be at least the memory", self.time)


def facts(
    process: str, component: int | None, out: str | None, allow_drop_tiny: bool, overrides: dict[str, str], **asked: Any
) -> None:
    """Print the facts, and write them as JSON if asked to."""
    options = FactOptions(**asked)
    if out is not None:
        new_file(out, (".json",))
    found = find_process(process, overrides, allow_drop_tiny=allow_drop_tiny)
    screened = bool(options.screen) and isinstance(found, FreshHMMs)
    pooled = component is None and (isinstance(found, Mixture) or screened)
    built = found if pooled else _component(found, component)
    if pooled:
        given = [name for name in ("blocks", "steps", "memory", "mixed_states", "mixing") if getattr(options, name)]
        if given:
            one = "; --component 0 is one of it" if isinstance(built, Mixture) else ""
            flag = f"--{given[0].replace('_', '-')}"
            raise InputError(f"process: {flag} is for one HMM, not for a {type(built).__name__}{one}")
        lines, data = _screen(built, options) if options.screen else _mixture(built)
    elif isinstance(built, LinearGaussian):
        given = [name for name in ("blocks", "steps", "memory", "mixed_states", "screen") if getattr(options, name)]
        if given:
            raise InputError(f"process: --{given[0].replace('_', '-')} is for one HMM, not for a linear system")
        lines, data = _linear(built)
    elif isinstance(built, HMM | LabelledHMM | GeneralisedHMM):
        lines, data = _sections(built, options)
    else:
        raise InputError(f"process: no facts about {type(built).__name__}")
    kind = "dimensions" if isinstance(built, GeneralisedHMM) else "states"
    say(f"{process}: {built.num_states} {kind}, {built.num_symbols} {_observed(built)}")
    say("\n".join(lines))
    if out is not None:
        sizes = {"num_states": built.num_states, "num_symbols": built.num_symbols}
        store.write_json(Path(out), {"process": process, "digest": built.digest, **sizes, **data})
        say(f"written: {out}")


def _observed(process: Process) -> str:
    return "observed coordinates" if isinstance(process, LinearGaussian) else "symbols"


def _component(process: Process, component: int | None) -> Process:
    """The process itself, or the component of a mixture that was asked for."""
    if component is None:
        return process
    if not isinstance(process, Mixture):
        raise InputError(f"component: is for mixtures, not for {type(process).__name__}")
    if not 0 <= component < process.num_components:
        raise InputError(f"component: must be in [0, {process.num_components}), got {component}")
    return process[component]


def _mixture(mixture: Process) -> Section:
    """What holds of all its components, and how one of them is asked for."""
    assert isinstance(mixture, Mixture)
    said = dict(mixture_facts(mixture))
    lines = [f"  {name:<16} {value}" for name, value in said.items()]
    return [*lines, "  of one of them   --component 0"], {"weights": mixture.weights_M.tolist(), "components": said}


def _sections(hmm: AnyHMM, options: FactOptions) -> Section:
    more: list[Section] = []
    for asked, section in (
        (options.blocks, _blocks),
        (options.steps, _steps),
        (options.mixing, _mixing),
        (options.memory, _memory),
        (options.mixed_states, _mixed),
        (options.screen, _screen),
    ):
        if asked:
            more.append(section(hmm, options))
    lines, data = _basic(hmm)  # last: it compiles kernels, for which what is refused need not wait
    for more_lines, more_data in more:
        lines, data = lines + more_lines, data | more_data
    return lines, data


def _basic(hmm: AnyHMM) -> Section:
    found = known_facts(hmm)
    lines = [f"  {name:<16} {value}" for name, value in facts_in_words(hmm, found)]
    return lines, {
        "stationary_law": None if found.stationary is None else found.stationary.tolist(),
        "entropy_rate": None if found.entropy is None else dataclasses.asdict(found.entropy),
        "observability": None if found.observability is None else _plain(found.observability),
        "least_dimension" if isinstance(hmm, GeneralisedHMM) else "transition_rank": found.rank,
    }


def _plain(record: Any) -> dict[str, Any]:
    """A record as plain data: tensors as lists."""
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in fields.items()}


def _blocks(hmm: AnyHMM, options: FactOptions) -> Section:
    found = block_entropies(hmm, options.blocks)
    columns = {"block": found.block.tolist(), "myopic": found.myopic.tolist()}
    if found.informed is not None:
        columns["informed"] = found.informed.tolist()
    columns["excess"] = found.excess.tolist()
    heads = {"block": "H(n)", "myopic": "h_n", "informed": "lower bound", "excess": "excess"}
    lines = ["block entropies, nats\n" + f"  {'n':>4} " + " ".join(f"{heads[name]:>12}" for name in columns)]
    for n, row in enumerate(zip(*columns.values(), strict=True), 1):
        lines.append(f"  {n:>4} " + " ".join(f"{steady(value):z12.6f}" for value in row))
    return lines, {"block_entropies": columns}


def _with_states(hmm: AnyHMM, option: str) -> HMM | LabelledHMM:
    """The process, if it has hidden states."""
    if isinstance(hmm, GeneralisedHMM):
        raise InputError(f"process: --{option} asks about hidden states, which a generalised HMM has not")
    return hmm


def _steps(process: AnyHMM, options: FactOptions) -> Section:
    hmm = _with_states(process, "steps")
    found = [affordable_observability(hmm, steps) for steps in range(options.steps, 0, -1)][::-1]  # too many: at once
    lines = ["observability of k observations", *(f"  {f.steps:>4} {observability_in_words(f)}" for f in found)]
    return lines, {"observability_steps": [_plain(record) for record in found]}


def _mixing(hmm: AnyHMM, options: FactOptions) -> Section:
    found = mixing_time(_with_states(hmm, "mixing"), num_samples=options.samples, seed=options.seed)
    assert found.distances is not None
    mean, low, high = (values.tolist() for values in (found.distances.mean, found.distances.low, found.distances.high))
    ends = (f"{steady(series[-1]):z.4f}" for series in (mean, low, high))
    last = "distance {}, 95 % {} to {}".format(*ends) + f", {options.samples} sequences"
    return [f"mixing time\n  {_mixing_words(found)}: {last}"], {
        "mixing_time": found.time,
        "mixing_time_paper_indexing": found.paper_indexing,
        "mixing_distances": {"mean": mean, "low": low, "high": high},
    }


def _mixing_words(found: MixingTime) -> str:
    if found.time is None:
        return f"none up to {found.max_time} steps"
    paper = "" if found.distances is None else f" ({found.paper_indexing:g} as [Limits] Table 1 counts)"
    return f"{found.time:g} steps{paper}"


def _memory(hmm: AnyHMM, options: FactOptions) -> Section:
    """Errors of all memories up to the longest, the decay fitted to them, and the certificates."""
    time = options.time or _affordable_time(hmm, options.memory)
    exact = hmm.num_symbols ** min(time, 64) <= (MAX_ENUMERATED if options.time else _ENUMERATED)
    lengths, errors = list(range(1, options.memory + 1)), []
    for length in lengths:
        errors.append(
            memory_error(hmm, length, time)
            if exact
            else sampled_memory_error(hmm, length, time, num_samples=options.samples, seed=options.seed)
        )
    if isinstance(hmm, GeneralisedHMM):
        bounds = [1.0] * len(lengths)  # nothing is known to hold of every history
    else:
        bounds = [memory_certificate(hmm, length) for length in lengths]
    how = "by enumeration" if exact else f"over {options.samples} sequences"
    lines = [f"error of finite memory after {time} observations, {how}"]
    lines.append(f"  {'memory':>6} {'TV':>12} {'95 %':>25} {'squared':>12} {'TV of any history':>18}")
    for length, error, bound in zip(lengths, errors, bounds, strict=True):
        mean, square, low, high, most = map(
            steady, (error.total_variation, error.squared, error.low, error.high, bound)
        )
        interval = "" if error.exact else f"{low:z.6f} to {high:z.6f}"
        lines.append(f"  {length:>6} {mean:z12.6f} {interval:>25} {square:12.3e} {most:18.6f}")
    said, decay = _decay(lengths, errors)
    return [*lines, f"  {said}"], {
        "memory_time": time,
        "memory_errors": [
            {"memory": length, "certificate": bound, **_plain(error)}
            for length, error, bound in zip(lengths, errors, bounds, strict=True)
        ],
        "memory_decay": decay,
    }


def _affordable_time(hmm: AnyHMM, memory: int) -> int:
    """memory + 16, or less if only that can be enumerated; two more than the memory at least."""
    for time in range(memory + _MARGIN, memory + 1, -1):
        if hmm.num_symbols ** min(time, 64) <= _ENUMERATED:
            return time
    return memory + _MARGIN


def _decay(lengths: list[int], errors: list[MemoryLoss]) -> tuple[str, dict[str, Any] | None]:
    values = [error.total_variation for error in errors]
    if len(lengths) < 3:
        return "decay: needs a memory of 3 or more", None
    if min(values) <= 1e-14:
        first = next(length for length, value in zip(lengths, values, strict=True) if value <= 1e-14)
        return f"decay: none, the error is zero up to rounding from memory {first} on", None
    fit = fit_decay(lengths, values)
    return (
        f"decay: a factor {steady(fit.ratio):.6f} for each observation (fitted from {fit.first} to {fit.last}, "
        f"largest residual {steady(fit.residual):z.3f})",
        dataclasses.asdict(fit),
    )


def _mixed(hmm: AnyHMM, options: FactOptions) -> Section:
    found = mixed_states(hmm, max_states=options.mixed_states)
    count, depth = len(found.depth), int(found.depth.max())
    ending = "these are all" if found.complete else f"stopped by {found.stopped_by}"
    lines = [f"mixed states\n  {count} up to depth {depth}; {ending}"]
    symbols = hmm.symbols or tuple(map(str, range(hmm.num_symbols)))
    for node in range(min(count, 8)):
        law = ", ".join(f"{steady(value):z.6f}" for value in found.beliefs[node, :8].tolist())
        row = zip(symbols, found.successor[node].tolist(), found.probability[node].tolist(), strict=True)
        edges = ", ".join(f"{name} {steady(p):.4f} -> {'?' if to < 0 else to}" for name, to, p in row if p > 0)
        lines.append(f"  {node:>4} ({law}{', ...' if hmm.num_states > 8 else ''})  {edges}")
    return lines + (["  ..."] if count > 8 else []), {"mixed_states": _plain(found)}


def _screen(process: Process, options: FactOptions) -> Section:
    """What counting reaches in prompts, beside the optimum."""
    demonstrations, length = map(int, options.screen.split("x"))
    layout = Prompts(num_demonstrations=demonstrations, demonstration_length=length, test_length=length)
    first = min(4, length - 1)
    found = screen(process, layout, num_samples=options.samples, first_position=first, seed=options.seed)
    return [f"after {demonstrations} demonstrations of {length}, from position {first} on", *found.lines()], {
        "screening": found.rows(),
        "screening_chance": found.chance,
        "screening_no_optimum": found.no_optimum,
    }


def _linear(process: LinearGaussian) -> Section:
    """Of a linear system everything is exact and cheap."""
    found, step, factor = mixing_time(process), steady_step(process), forgetting_factor(process)
    variance = float(step.innovation_covariance.diagonal().mean())
    lines = [
        f"  mixing time      {steady(found.time):.6f} steps (to a twentieth of an error)",
        f"  forgetting       {steady(factor):z.6f} of an error in the mean is left after a step",
        f"  least variance   {steady(variance):z.6f} of a coordinate of the next observation, in the long run",
    ]
    return lines, {
        "mixing_time": found.time,
        "forgetting_factor": factor,
        "steady_gain": step.gain.tolist(),
        "steady_covariance": step.covariance.tolist(),
        "steady_innovation_covariance": step.innovation_covariance.tolist(),
    }
