"""What is known of a process without any data, in a few lines of text."""

from hmmscope.errors import InputError, ResourceError
from hmmscope.inference.entropy import entropy_rate
from hmmscope.inference.observability import numerical_rank, observability
from hmmscope.inference.stationary import state_transitions, stationary_distribution
from hmmscope.processes.base import Process
from hmmscope.processes.hmm import HMM
from hmmscope.processes.labelled import LabelledHMM

#: Above this many states only sizes are told: the rest would take more than a second or two.
MAX_STATES = 64


def process_facts(process: Process) -> list[tuple[str, str]]:
    """(name, value) of the stationary law, entropy rate, observability and rank, as far as they are cheap."""
    if not isinstance(process, HMM | LabelledHMM) or process.num_states > MAX_STATES:
        return []
    try:
        law = stationary_distribution(process)
    except InputError:
        return [("stationary law", "not unique"), *_emission_facts(process)]
    names = process.states or tuple(map(str, range(process.num_states)))
    likeliest = sorted(range(len(names)), key=lambda s: -float(law[s]))[:5]
    stationary = ", ".join(f"{names[s]} {law[s]:.6f}" for s in likeliest) + (", ..." if len(names) > 5 else "")
    rate = entropy_rate(process)
    entropy = f"{rate.value:.6f} nats ({rate.method})"
    if not rate.exact:
        entropy = f"{rate.value:.6f} nats, 95 % {rate.low:.6f} to {rate.high:.6f} ({rate.method}); "
        entropy += f"bounds {rate.lower_bound:.6f}, {rate.upper_bound:.6f}"
    return [("stationary law", stationary), ("entropy rate", entropy), *_emission_facts(process)]


def _emission_facts(process: HMM | LabelledHMM) -> list[tuple[str, str]]:
    try:
        quick = process.num_states <= 6 or process.num_states == process.num_symbols
        found = observability(process, method="auto" if quick else "bounds")
    except ResourceError:  # no SciPy
        found = observability(process, method="bounds")
    gamma = f"{found.upper:.6f}" if found.exact else f"{found.lower:.6f} to {found.upper:.6f}"
    rank = numerical_rank(state_transitions(process.law))
    return [("observability", f"{gamma} ({found.method})"), ("transition rank", f"{rank} of {process.num_states}")]
