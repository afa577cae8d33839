"""Output of the command `infer` for a process without sequences: properties that follow from its matrices."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmmscope.analysis.ngram_reach import ngram_reach
from hmmscope.axes import Tensor
from hmmscope.datasets.layouts import PromptLayout
from hmmscope.errors import InputError
from hmmscope.inference.entropy import block_entropies
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
from hmmscope.inference.process_facts import (
    affordable_observability,
    facts_in_words,
    known_facts,
    observability_in_words,
    process_facts,
)
from hmmscope.lab.verbs.options import InferOptions
from hmmscope.lab.verbs.output_paths import new_file
from hmmscope.lab.verbs.sources import find_process
from hmmscope.processes.capabilities import COMPONENTS, MIXING, STATES, WORDS
from hmmscope.processes.process import Process
from hmmscope.schema import require, to_stored
from hmmscope.seeds import check_seed
from hmmscope.storage import store
from hmmscope.text import say
from hmmscope.ties import steady

#: Most sequences that are enumerated for the error of a memory if no horizon is given; more are sampled.
_ENUMERATED = 2**16
#: Default horizon beyond the longest memory, in observations, so that the error hardly depends on the initial state.
_MARGIN = 16

#: Largest values of options, checked before the process is built; 64 observations of two symbols have 2^64 blocks.
_MOST = {"block_entropies": 64, "observability": 64, "memory": 10_000, "horizon": 10**6, "mixed_states": 2**53}

Section = tuple[list[str], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class FactOptions:
    """Properties to compute besides the basic ones; the value zero leaves a property out.

    Attributes:
        block_entropies: Length of the longest block, in observations.
        observability: Largest number of observations for `hmmscope.inference.observability`.
        memory: Longest memory of the evaluated predictors, in observations.
        horizon: Number of observations after which the errors for `memory` are measured; 0 means at most `memory` + 16.
        mixing: Whether to compute the mixing time.
        mixed_states: Largest number of mixed states (reachable belief states).
        ngram_baselines: "NxL" for n-gram baselines in prompts of N demonstrations of length L; empty for none.
        samples, seed: Number and seed of sequences sampled if exact computation costs too much.
    """

    block_entropies: int = 0
    observability: int = 0
    memory: int = 0
    horizon: int = 0
    mixing: bool = False
    mixed_states: int = 0
    ngram_baselines: str = ""
    samples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name, most in _MOST.items():
            require(0 <= getattr(self, name) <= most, name, f"must be in [0, {most}]", getattr(self, name))
        require(self.samples >= 2, "samples", "must be at least 2", self.samples)
        rule = "must be NUMBERxLENGTH of the demonstrations, such as 5x8"
        require(
            not self.ngram_baselines or bool(re.fullmatch(r"\d{1,6}x\d{1,6}", self.ngram_baselines)),
            "ngram_baselines",
            rule,
            self.ngram_baselines,
        )
        require(
            not self.horizon or self.horizon >= self.memory > 0,
            "horizon",
            "needs --memory, and must not be below it",
            self.horizon,
        )


def facts(asked: InferOptions) -> None:
    options = FactOptions(**{one.name: getattr(asked, one.name) for one in dataclasses.fields(FactOptions)})
    if asked.out is not None:
        new_file(asked.out, (".json",))
    found = find_process(asked.process, asked.overrides, allow_drop_tiny=asked.allow_drop_tiny)
    built = _component(found, asked.component)
    for option, (question, _) in _SECTIONS.items():
        if getattr(options, option):
            built.require_capability(question, f"--{option.replace('_', '-')}")
    if options.ngram_baselines and not (WORDS in built.uses_hmm_inference or built.subsample_components(1)):
        raise InputError(f"process: --ngram-baselines needs an HMM or a mixture of HMMs, got {type(built).__name__}")
    lines, data = _about(built, options)
    if not lines:
        raise InputError(f"process: {type(built).__name__} has no properties to compute")
    observed = "observed coordinates" if built.real_valued else "symbols"
    kind = "dimensions" if WORDS in built.uses_hmm_inference and built.params.signed else "states"
    say(f"{asked.process}: {built.num_states} {kind}, {built.num_symbols} {observed}")
    say("\n".join(lines))
    if asked.out is not None:
        sizes = {"num_states": built.num_states, "num_symbols": built.num_symbols}
        store.write_json(Path(asked.out), {"process": asked.process, "digest": built.digest, **sizes, **data})
        say(f"written: {asked.out}")


def _component(process: Process, component: int | None) -> Process:
    if component is None:
        return process
    process.require_capability(COMPONENTS, "--component")
    count = len(process.component_weights)
    if not 0 <= component < count:
        raise InputError(f"component: must be in [0, {count}), got {component}")
    return process.component(component)


def _about(process: Process, options: FactOptions) -> Section:
    if WORDS in process.uses_hmm_inference:
        return _sections(process, options)
    if options.ngram_baselines:
        return _screen(process, options)
    said = dict(process_facts(process))
    lines = [f"  {name:<16} {value}" for name, value in said.items()]
    if COMPONENTS not in process.uses_hmm_inference:
        return lines, process.facts_data()
    return [*lines, "  one component    --component 0"], {
        "weights": process.component_weights.tolist(),
        "components": said,
    }


def _sections(hmm: Process, options: FactOptions) -> Section:
    asked = [section for option, (_, section) in _SECTIONS.items() if getattr(options, option)]
    more = [section(hmm, options) for section in [*asked, *([_screen] if options.ngram_baselines else [])]]
    lines, data = _basic(hmm)  # compiles kernels, so after all refusals
    for more_lines, more_data in more:
        lines, data = lines + more_lines, data | more_data
    return lines, data


def _basic(hmm: Process) -> Section:
    found = known_facts(hmm)
    lines = [f"  {name:<16} {value}" for name, value in facts_in_words(hmm, found)]
    return lines, {
        "stationary_law": None if found.stationary is None else found.stationary.tolist(),
        "entropy_rate": None if found.entropy is None else to_stored(found.entropy),
        "observability": None if found.observability is None else _plain(found.observability),
        "least_dimension" if hmm.params.signed else "transition_rank": found.rank,
    }


def _plain(record: Any) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, Tensor) else value for key, value in to_stored(record).items()}


def _blocks(hmm: Process, options: FactOptions) -> Section:
    found = block_entropies(hmm, options.block_entropies)
    columns = {"block": found.block.tolist(), "myopic": found.myopic.tolist()}
    if found.informed is not None:
        columns["informed"] = found.informed.tolist()
    columns["excess"] = found.excess.tolist()
    heads = {"block": "H(n)", "myopic": "h_n", "informed": "lower bound", "excess": "excess"}
    lines = ["block entropies, nats\n" + f"  {'n':>4} " + " ".join(f"{heads[name]:>12}" for name in columns)]
    for n, row in enumerate(zip(*columns.values(), strict=True), 1):
        lines.append(f"  {n:>4} " + " ".join(f"{steady(value):z12.6f}" for value in row))
    return lines, {"block_entropies": columns}


def _steps(hmm: Process, options: FactOptions) -> Section:
    found = [affordable_observability(hmm, steps) for steps in range(options.observability, 0, -1)][
        ::-1
    ]  # too many: at once
    lines = ["observability of k observations", *(f"  {f.steps:>4} {observability_in_words(f)}" for f in found)]
    return lines, {"observability_steps": [_plain(record) for record in found]}


def _mixing(hmm: Process, options: FactOptions) -> Section:
    found = mixing_time(hmm, num_samples=options.samples, seed=options.seed)
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
    paper = "" if found.distances is None else f" ({found.paper_indexing:g} in the indexing of [Limits] Table 1)"
    return f"{found.time:g} steps{paper}"


def _memory(hmm: Process, options: FactOptions) -> Section:
    time = options.horizon or _affordable_time(hmm, options.memory)
    exact = hmm.num_symbols ** min(time, 64) <= (MAX_ENUMERATED if options.horizon else _ENUMERATED)
    lengths, errors = list(range(1, options.memory + 1)), []
    for length in lengths:
        errors.append(
            memory_error(hmm, length, time)
            if exact
            else sampled_memory_error(hmm, length, time, num_samples=options.samples, seed=options.seed)
        )
    if STATES not in hmm.uses_hmm_inference:
        bounds = [1.0] * len(lengths)  # no bound holds for every history
    else:
        bounds = [memory_certificate(hmm, length) for length in lengths]
    how = "by enumeration" if exact else f"over {options.samples} sequences"
    lines = [f"error (total variation, TV) of finite-memory predictions after {time} observations, {how}"]
    lines.append(f"  {'memory':>6} {'TV':>12} {'95 %':>25} {'squared':>12} {'bound on TV':>18}")
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


def _affordable_time(hmm: Process, memory: int) -> int:
    for time in range(memory + _MARGIN, memory + 1, -1):
        if hmm.num_symbols ** min(time, 64) <= _ENUMERATED:
            return time
    return memory + _MARGIN


def _decay(lengths: list[int], errors: list[MemoryLoss]) -> tuple[str, dict[str, Any] | None]:
    values = [error.total_variation for error in errors]
    if len(lengths) < 3:
        return "decay: not fitted; it needs --memory 3 or more", None
    if min(values) <= 1e-14:
        first = next(length for length, value in zip(lengths, values, strict=True) if value <= 1e-14)
        return f"decay: not fitted, because the TV is zero up to rounding from memory length {first} on", None
    fit = fit_decay(lengths, values)
    return (
        f"decay: factor {steady(fit.ratio):.6f} per remembered observation (ln TV fitted from {fit.first} to "
        f"{fit.last}, largest residual {steady(fit.residual):z.3f})",
        to_stored(fit),
    )


def _mixed(hmm: Process, options: FactOptions) -> Section:
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
    demonstrations, length = map(int, options.ngram_baselines.split("x"))
    layout = PromptLayout(num_demonstrations=demonstrations, demonstration_length=length, test_length=length)
    first = min(4, length - 1)
    found = ngram_reach(process, layout, num_samples=options.samples, first_position=first, seed=options.seed)
    about = f"n-gram baselines after {demonstrations} demonstrations of length {length}, from test position {first} on"
    return [about, *found.lines()], {
        "screening": found.rows(),
        "screening_chance": found.chance,
        "screening_no_optimum": found.no_optimum,
    }


#: For each option, the capability that a process needs and the function that computes the output.
_SECTIONS: dict[str, tuple[str, Callable[[Process, FactOptions], Section]]] = {
    "block_entropies": (WORDS, _blocks),
    "observability": (STATES, _steps),
    "mixing": (MIXING, _mixing),
    "memory": (WORDS, _memory),
    "mixed_states": (WORDS, _mixed),
}
