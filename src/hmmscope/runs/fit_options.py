"""Options of `hmmscope.fit` that are passed together, as `options=FitOptions(...)`."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from hmmscope.inference.constraints import Constraints, as_constraints
from hmmscope.inference.em import PARTS
from hmmscope.inference.fit_durations import FAMILIES
from hmmscope.inference.num_states import CHOICES
from hmmscope.inference.row_rules import check_fixed
from hmmscope.schema import require, require_count, require_known, unknown_name


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of `hmmscope.fit`: starting values, constraints, restarts and convergence.

    Attributes:
        start: Model from which the first restart begins, and which gives the values of `fixed` parts. Its zero
            probabilities stay zero; symbols are matched by name.
        fixed: Parts that keep the values of `start`: "initial", "transition", "emission", "durations".
        tied_emissions: A class number for each state; states of one class share one emission distribution.
        constraints: Forbidden, fixed and tied probabilities, or a function of the number of states that returns them.
        sequence_weights: Weight of each sequence; a weight of 2 equals two copies. With weights, no part
            of the data is held out to compare numbers of states.
        known_states: Known states at some times, by number or name, or sets of possible states; see `filter_beliefs`.
        durations: Longest visit to a state, in time steps; the fit is then a `SemiMarkovHMM`.
        duration_family: Distribution of durations, "free" or "negative-binomial".
        num_restarts: Maximum number of restarts; the best one is returned.
        max_iterations, tolerance: A restart ends after `max_iterations` EM steps, or when a step gains less than
            `tolerance` nats per observation.
        pseudo_count: Number that is added to every expected count.
        choose: Rule that chooses the number of states: "bic" (smallest BIC), or "evidence" (largest marginal
            likelihood). None means BIC, but `FitResult.interval` uses the marginal likelihood if it is fast to compute.
        quiet: True hides the progress; None shows it in a terminal or notebook only; False shows it also in a log.

    Raises:
        InputError: An option is out of range.
    """

    start: Any = None
    fixed: Collection[str] = ()
    tied_emissions: Sequence[int] | None = None
    constraints: Constraints | Callable[[int], Constraints] | None = None
    sequence_weights: Any = None
    known_states: Any = None
    durations: int | None = None
    duration_family: str = "free"
    num_restarts: int = 12
    max_iterations: int = 200
    tolerance: float = 1e-7
    pseudo_count: float = 0.1
    choose: str | None = None
    quiet: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.fixed, str):
            object.__setattr__(self, "fixed", (self.fixed,))
        own = " (pass its hmm)" if hasattr(self.start, "hmm") else ""
        good = self.start is None or hasattr(self.start, "file_format")
        require(good, "start", f"must be a model, such as HMM{own}", type(self.start).__name__)
        parts = PARTS if self.durations is None else (*PARTS, "durations")
        check_fixed(parts, self.start, self.fixed)
        as_constraints(self.constraints)
        if self.choose not in (None, *CHOICES):
            raise unknown_name("choose", self.choose, CHOICES)
        require_count("num_restarts", self.num_restarts)
        require_count("max_iterations", self.max_iterations)
        if self.durations is not None:
            require_count("durations", self.durations)
        require_known("duration_family", self.duration_family, FAMILIES)
        needed = self.durations is not None or self.duration_family == "free"
        require(needed, "duration_family", "needs durations, the longest visit", self.duration_family)
        for name in ("tolerance", "pseudo_count"):
            require(getattr(self, name) >= 0, name, "must be at least 0", getattr(self, name))
