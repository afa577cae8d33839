"""Capabilities (quantities exactly computable for a process), and the Bayes-optimal predictor's output."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.reprs import Shown

#: Capabilities: quantities that may be known exactly, as in `Process.capabilities`.
PREDICTIONS, BELIEFS, SMOOTHING, PATHS, MEMORY = (
    "exact predictions",
    "beliefs",
    "smoothing",
    "hidden paths",
    "finite memory",
)
WORDS, STATES, COMPONENTS = "probabilities of words", "hidden states", "components"
FORECASTS, GAPS = "forecasts", "distributions of missing observations"
MIXING, VECTORS, DRIVING = "mixing time", "driven vectors", "driving matrices"
HEADERS = "headers"
#: Capabilities that inference computes from `params`.
OF_STATES = frozenset({PREDICTIONS, BELIEFS, SMOOTHING, PATHS, MEMORY, WORDS, FORECASTS, STATES, GAPS, MIXING})
#: The functions that compute capabilities from `params`, and the methods that a class may define instead.
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
    """The process that the Bayes-optimal predictor assumes.

    Attributes:
        process: process that is assumed to generate the samples.
        weight: total prior probability that `process` gives to the components that generate the samples.
    """

    process: Any
    weight: float


class HeaderFormat(NamedTuple):
    """The format of headers: integers at the start of a sample that encode an HMM's parameters.

    Attributes:
        num_entries: number of integers in a header.
        num_values: number of possible values of each integer.
    """

    num_entries: int
    num_values: int


#: Tolerance for the sum of a distribution.
ROUNDING = 1e-6


@dataclass(frozen=True, repr=False)
class ObserverOutput(Shown):
    """Predictions and beliefs of the Bayes-optimal predictor after each observation.

    Attributes:
        predicted_observation: P(o_t | o_0..o_{t-1}) (batch, time, symbol), or E[o_t | o_0..o_{t-1}] for vectors.
        next_observation: P(o_{t+1} | o_0..o_t), or E[o_{t+1} | o_0..o_t] for vectors.
        log_likelihood_terms: log P(o_t | o_0..o_{t-1}) (batch, time), nats; log density for vectors.
        probs: other distributions (batch, time, outcome), such as "belief".
        vectors: other vectors (batch, time, ...), such as the "mean" of a state.
    """

    predicted_observation: Float64[Tensor, "batch time outcome"]
    next_observation: Float64[Tensor, "batch time outcome"]
    log_likelihood_terms: Float64[Tensor, "batch time"]
    probs: Mapping[str, Tensor] = field(default_factory=dict)
    vectors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def belief(self) -> Tensor | None:
        """The first of the entries "belief", "vector" and "mean" that this output has, or None."""
        return self.probs.get("belief", self.vectors.get("vector", self.vectors.get("mean")))

    @classmethod
    def of_symbols(
        cls,
        observations: Int64[Tensor, "batch time"],
        predicted: Float64[Tensor, "batch time_and_one symbol"],
        **laws: Tensor,
    ) -> "ObserverOutput":
        """Build the output for T observations from T + 1 predictive distributions.

        Raises:
            InputError: a row is neither a distribution nor (after an impossible past) zero.
        """
        for name, law in {"predicted": predicted, **laws}.items():
            total = law.sum(-1)
            wrong = (law < -ROUNDING).any(-1) | ~(((total - 1).abs() <= ROUNDING) | (total == 0))
            if bool(wrong.any()):
                place = wrong.nonzero()[0].tolist()
                raise InputError(
                    f"observe: {name}{place} must be nonnegative with sum 1, but sums to {float(total[tuple(place)]):g}"
                )
        terms = predicted[:, :-1].gather(2, observations[..., None])[..., 0].log()
        return cls(predicted[:, :-1], predicted[:, 1:], terms, laws)
