"""What may be known exactly of a process, and what an observer knows who knows the process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.reprs import Shown

#: What may be known exactly of a process, as `Process.answered` names it.
PREDICTIONS, BELIEFS, SMOOTHING, PATHS, MEMORY = (
    "exact predictions",
    "beliefs",
    "smoothing",
    "hidden paths",
    "finite memory",
)
WORDS, STATES, COMPONENTS = "probabilities of words", "hidden states", "components"
FORECASTS, GAPS = "forecasts", "laws of what is missing"
MIXING, VECTORS, DRIVING = "mixing time", "driven vectors", "driving matrices"
HEADERS = "headers"
#: Those that inference answers from the law of hidden states.
OF_STATES = frozenset({PREDICTIONS, BELIEFS, SMOOTHING, PATHS, MEMORY, WORDS, FORECASTS, STATES, GAPS, MIXING})
#: The functions that answer from a law, and the methods by which a kind answers itself.
BY_PARAMS = {
    PREDICTIONS: "hmmscope.observe(process, observations)",
    SMOOTHING: "hmmscope.smooth_beliefs(process, observations)",
    PATHS: "hmmscope.most_likely_states and hmmscope.sample_state_paths",
    MEMORY: "hmmscope.memory_beliefs(process, observations, memory_length)",
    MIXING: "hmmscope.mixing_time(process)",
    FORECASTS: "hmmscope.forecast(process, observed, steps)",
    GAPS: "hmmscope.missing_probs(process, observations)",
}
OWN = {
    PREDICTIONS: ("observe",),
    SMOOTHING: ("smooth",),
    PATHS: ("viterbi", "sample_posterior_paths"),
    MEMORY: ("fixed_memory_predictions",),
    MIXING: ("mixing_time",),
    VECTORS: ("vectors",),
    DRIVING: ("driving_matrices",),
    HEADERS: ("decode_header",),
}


class PriorProcess(NamedTuple):
    """What the ideal observer of a process believes instead of the process itself.

    Attributes:
        process: where samples come from as far as anybody can know.
        weight: probability under it that a sample comes from the part that is observed.
    """

    process: Any
    weight: float


class HeaderFormat(NamedTuple):
    """How the component of a sample is told in integers, see the layout `header`.

    Attributes:
        num_entries: integers of a header.
        num_values: what each may be, 0 .. num_values - 1.
    """

    num_entries: int
    num_values: int


#: By how much the sum of a law may be off.
ROUNDING = 1e-6


@dataclass(frozen=True, repr=False)
class ObserverOutput(Shown):
    """What an observer knows who knows the process, after each observation.

    Attributes:
        predicted_observation: P(o_t | o_0..o_{t-1}) (batch, time, symbol); of vectors the mean (batch, time, coordinate).
        next_observation: the same of o_{t+1} given o_0..o_t.
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}), or log density (batch, time), nats; -inf where it is impossible.
        probs: what else is believed after each observation, as laws (batch, time, outcome) by name, such as "belief".
        vectors: the same that are no laws (batch, time, ...), such as the "mean" of a state.
    """

    predicted_observation: Float64[Tensor, "batch time outcome"]
    next_observation: Float64[Tensor, "batch time outcome"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    probs: Mapping[str, Tensor] = field(default_factory=dict)
    vectors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def belief(self) -> Tensor | None:
        """What is believed of the hidden state: its law, or the vector or the mean that stands for it; None if nothing."""
        return self.probs.get("belief", self.vectors.get("vector", self.vectors.get("mean")))

    @classmethod
    def of_symbols(
        cls,
        observations: Int64[Tensor, "batch time"],
        predicted: Float64[Tensor, "batch time_and_one symbol"],
        **laws: Tensor,
    ) -> "ObserverOutput":
        """From the law of each symbol given those before it, one more than there are observations.

        Raises:
            InputError: what is no law: rows that do not sum to one, or to zero where the past is impossible.
        """
        for name, law in {"predicted": predicted, **laws}.items():
            total = law.sum(-1)
            wrong = (law < -ROUNDING).any(-1) | ~(((total - 1).abs() <= ROUNDING) | (total == 0))
            if bool(wrong.any()):
                place = wrong.nonzero()[0].tolist()
                raise InputError(f"observe: {name}{place} must be a law, and sums to {float(total[tuple(place)]):g}")
        terms = predicted[:, :-1].gather(2, observations[..., None])[..., 0].log()
        return cls(predicted[:, :-1], predicted[:, 1:], terms, laws)
