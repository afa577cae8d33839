"""Exact properties of a process, without data."""

from contextlib import suppress
from dataclasses import dataclass

import torch

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference.entropy import EntropyRate, entropy_rate, rate_of_stationary
from hmmscope.inference.observability import Observability, numerical_rank, observability, pair_bound
from hmmscope.inference.stationary_process import state_transitions, stationary_distribution
from hmmscope.processes.capabilities import COMPONENTS, PATHS, WORDS
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.ties import descending, steady

#: State limit of `process_facts`, so that it takes a second or two.
MAX_STATES = 64
#: State limit for a mixture, and number of components that are described.
MAX_MIXED_STATES, MAX_COMPONENTS = 128, 8
#: Limits of `affordable_observability`: words for linear programs, states for an inverse.
MAX_WORDS, MAX_INVERTED = 256, 512
#: Sampled sequences for an entropy rate: most, fewest, and their product with the squared states.
_MOST_SAMPLED, _LEAST_SAMPLED, _SAMPLED = 200, 50, 5e7


@dataclass(frozen=True, repr=False)
class Facts(Shown):
    """Properties of one HMM or generalised HMM.

    Attributes:
        stationary: Stationary distribution or vector (state,); None if not unique.
        entropy: Entropy rate in nats; None if `stationary` is None.
        observability: Observability coefficient for one observation; None for a generalised HMM.
        rank: Rank of the transition matrix; for a generalised HMM the minimal dimension.
    """

    stationary: Float64[Tensor, " state"] | None
    entropy: EntropyRate | None
    observability: Observability | None
    rank: int


def known_facts(hmm: Process) -> Facts:
    hmm.require_capability(WORDS)
    if hmm.params.signed:
        gamma, rank = None, least_dimension(hmm)
    else:
        gamma, rank = affordable_observability(hmm), numerical_rank(state_transitions(hmm.params))
    try:
        count = max(_LEAST_SAMPLED, min(_MOST_SAMPLED, int(_SAMPLED / hmm.num_states**2)))
        stationary_S = stationary_distribution(hmm)
    except InputError:  # several closed classes
        return Facts(None, None, gamma, rank)
    return Facts(stationary_S, rate_of_stationary(hmm, stationary_S, count), gamma, rank)


def affordable_observability(hmm: Process, steps: int = 1) -> Observability:
    num_words = hmm.num_symbols ** min(steps, 64)
    quick = hmm.num_states == num_words or (hmm.num_states <= 6 and num_words <= MAX_WORDS)
    if MAX_INVERTED < hmm.num_states <= num_words:
        return pair_bound(hmm, steps)
    try:
        return observability(hmm, steps, method="auto" if quick else "bounds")
    except ResourceError:  # no SciPy
        return observability(hmm, steps, method="bounds")


def least_dimension(process: Process) -> int:
    """Compute the minimal dimension, the rank of the Hankel matrix [P(p s)] of words p, s."""
    ends = torch.ones(1, process.num_states, dtype=torch.float64)
    steps_VSS = process.params.arrivals()
    prefixes = _spanned(process.params.initial_MS[:1], steps_VSS)
    suffixes = _spanned(ends, steps_VSS.transpose(1, 2))
    return numerical_rank(prefixes @ suffixes.T)


def _spanned(start_NS: Tensor, steps_VSS: Tensor) -> Tensor:
    basis = _basis(start_NS)
    while True:
        grown = _basis(torch.cat([basis, (basis @ steps_VSS).flatten(0, 1)]))
        if len(grown) == len(basis):
            return basis
        basis = grown


def _basis(rows_NS: Tensor) -> Tensor:
    _, sizes, right = torch.linalg.svd(rows_NS, full_matrices=False)
    return right[sizes > 1e-9 * sizes[0]]


def process_facts(process: Process) -> list[tuple[str, str]]:
    if COMPONENTS in process.uses_hmm_inference:
        return mixture_facts(process)
    if process.real_valued and PATHS in process.capabilities() and process.num_states <= MAX_STATES:
        rate = entropy_rate(process)
        ends = f"95 % interval {steady(rate.low):z.4f} to {steady(rate.high):z.4f}, from samples"
        return [*process.facts(), ("entropy rate", f"{steady(rate.value):z.4f} nats per observation ({ends})")]
    if WORDS not in process.uses_hmm_inference:
        return process.facts()
    return facts_in_words(process, known_facts(process)) if process.num_states <= MAX_STATES else []


def mixture_facts(mixture: Process) -> list[tuple[str, str]]:
    weights = mixture.component_weights
    least, most = (f"{steady(float(end)):.6g}" for end in (weights.min(), weights.max()))
    law = f"{least} each" if least == most else f"{least} to {most}"
    entropy = float(torch.special.entr(weights).sum())
    said = [("weights", f"{law}; entropy of the weights {steady(entropy):z.6f} nats")]
    if mixture.num_states > MAX_MIXED_STATES:
        return said
    count = len(weights)
    first = [mixture.component(m) for m in range(min(count, MAX_COMPONENTS))]
    whose = "" if len(first) == count else f" (of the first {len(first)} components)"
    seconds = [float(torch.linalg.eigvals(state_transitions(hmm.params)).abs().sort().values[-2:][0]) for hmm in first]
    if mixture.num_states > 1:
        said.append(
            (
                "2nd eigenvalue",
                f"{steady(min(seconds)):z.6f} to {steady(max(seconds)):z.6f}, second-largest modulus{whose}",
            )
        )
    rates = []
    for hmm in first:
        with suppress(InputError):  # several closed classes
            rates.append(entropy_rate(hmm, num_samples=50).value)
    if rates:
        whose = (
            whose
            if len(rates) == len(first)
            else f" (of {len(rates)} components with a unique stationary distribution)"
        )
        said.append(("entropy rate", f"{steady(min(rates)):z.4f} to {steady(max(rates)):z.4f} nats{whose}"))
    return said


def facts_in_words(hmm: Process, facts: Facts) -> list[tuple[str, str]]:
    signed = hmm.params.signed
    stands = "fixed vector" if signed else "stationary law"
    said = [(stands, "not unique")]
    if facts.stationary is not None and facts.entropy is not None:
        names = hmm.states or tuple(map(str, range(hmm.num_states)))
        law, rate = facts.stationary.tolist(), facts.entropy
        likeliest = (range(len(names)) if signed else descending(law))[:5]
        stationary = ", ".join(f"{names[s]} {steady(law[s]):z.6f}" for s in likeliest) + (
            ", ..." if len(names) > 5 else ""
        )
        value, low, high, lower, upper = (
            f"{steady(number):z.6f}" for number in (rate.value, rate.low, rate.high, rate.lower_bound, rate.upper_bound)
        )
        entropy = f"{value} nats ({rate.method})"
        if not rate.exact:
            entropy = f"{value} nats, 95 % {low} to {high} ({rate.method}); bounds {lower}, {upper}"
        said = [(stands, stationary), ("entropy rate", entropy)]
    rank = f"{facts.rank} of {hmm.num_states}"
    if facts.observability is None:
        return [*said, ("least dimension", rank)]
    return [*said, ("observability", observability_in_words(facts.observability)), ("transition rank", rank)]


def observability_in_words(found: Observability) -> str:
    lower, upper = (f"{steady(bound):z.6f}" for bound in (found.lower, found.upper))
    gamma = upper if found.exact else f"{lower} to {upper}"
    return f"{gamma} ({found.method})"
