"""What is known of a process without any data."""

from dataclasses import dataclass

from hmmscope.axes import Float64, Tensor
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference.entropy import EntropyRate, entropy_rate
from hmmscope.inference.observability import Observability, numerical_rank, observability
from hmmscope.inference.stationary import state_transitions, stationary_distribution
from hmmscope.processes.base import Process
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.reprs import Shown

#: Above this many states `process_facts` tells nothing: it would take more than a second or two.
MAX_STATES = 64
#: Above this many words `affordable_observability` solves no linear programs.
MAX_WORDS = 256


@dataclass(frozen=True, repr=False)
class Facts(Shown):
    """Numbers of one HMM.

    Attributes:
        stationary: its stationary law (state,); None if there are several.
        entropy: its entropy rate; None without a stationary law.
        observability: of one observation.
        rank: numerical rank of its transition matrix.
    """

    stationary: Float64[Tensor, "state"] | None
    entropy: EntropyRate | None
    observability: Observability
    rank: int


def known_facts(hmm: HMM | LabelledHMM) -> Facts:
    """The stationary law, entropy rate, observability and rank of an HMM; the costly parts as bounds or estimates.

    Cost: O(S^3), and 200 sequences of 400 observations where the entropy rate has to be sampled.
    """
    gamma, rank = affordable_observability(hmm), numerical_rank(state_transitions(hmm.law))
    try:
        return Facts(stationary_distribution(hmm), entropy_rate(hmm), gamma, rank)
    except InputError:  # several sets of states that are never left
        return Facts(None, None, gamma, rank)


def affordable_observability(hmm: HMM | LabelledHMM, steps: int = 1) -> Observability:
    """`observability`, as bounds where the exact number would take linear programs that are slow or not installed."""
    num_words = hmm.num_symbols ** min(steps, 64)
    quick = hmm.num_states == num_words or (hmm.num_states <= 6 and num_words <= MAX_WORDS)
    try:
        return observability(hmm, steps, method="auto" if quick else "bounds")
    except ResourceError:  # no SciPy
        return observability(hmm, steps, method="bounds")


def process_facts(process: Process) -> list[tuple[str, str]]:
    """(name, value) of `known_facts` where it takes no more than a second or two; else nothing."""
    if not isinstance(process, HMM | LabelledHMM) or process.num_states > MAX_STATES:
        return []
    return facts_in_words(process, known_facts(process))


def facts_in_words(hmm: HMM | LabelledHMM, facts: Facts) -> list[tuple[str, str]]:
    """(name, value) of each."""
    said = [("stationary law", "not unique")]
    if facts.stationary is not None and facts.entropy is not None:
        names = hmm.states or tuple(map(str, range(hmm.num_states)))
        law, rate = facts.stationary.tolist(), facts.entropy
        likeliest = sorted(range(len(names)), key=lambda s: -law[s])[:5]
        stationary = ", ".join(f"{names[s]} {law[s]:.6f}" for s in likeliest) + (", ..." if len(names) > 5 else "")
        entropy = f"{rate.value:.6f} nats ({rate.method})"
        if not rate.exact:
            entropy = f"{rate.value:.6f} nats, 95 % {rate.low:.6f} to {rate.high:.6f} ({rate.method}); "
            entropy += f"bounds {rate.lower_bound:.6f}, {rate.upper_bound:.6f}"
        said = [("stationary law", stationary), ("entropy rate", entropy)]
    rank = f"{facts.rank} of {hmm.num_states}"
    return [*said, ("observability", observability_in_words(facts.observability)), ("transition rank", rank)]


def observability_in_words(found: Observability) -> str:
    """The number or the interval, and what settled it."""
    gamma = f"{found.upper:.6f}" if found.exact else f"{found.lower:.6f} to {found.upper:.6f}"
    return f"{gamma} ({found.method})"
