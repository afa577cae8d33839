"""Further options of `hmmscope.fit`, besides its keywords."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from hmmscope.inference.constraints import Constraints, as_constraints
from hmmscope.inference.em import PARTS
from hmmscope.inference.fit_durations import FAMILIES
from hmmscope.inference.num_states import CHOICES
from hmmscope.schema import require, require_count, unknown_name


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of `hmmscope.fit`: starting values, constraints, restarts and convergence.

    Attributes:
        start: Model for the first restart and for fixed parts. Its zeros stay zero; symbols match by name.
        fixed: Parts that keep the values of `start`: "initial", "transition", "emission", "durations".
        tied_emissions: A class per state; each class shares one emission distribution.
        constraints: Forbidden, fixed and tied probabilities, or a function that gives them for a number of states.
        sequence_weights: Factor of each sequence; 2 equals two copies. They hold nothing out, except `validation`.
        known_states: States, or sets of states, at some times, by number or name, see `filter_beliefs`.
        durations: Longest visit of a state; the fit is a `SemiMarkovHMM`.
        duration_family: "free" or "negative-binomial".
        num_restarts: Maximum; the best restart is returned.
        max_iterations, tolerance: Limits of each restart, which converges when a step gains less nats per observation.
        pseudo_count: Added to every expected count.
        choose: Rule for the number of states: "bic" (computes no evidence), "evidence" (the largest), or by default the
            smallest BIC, with an interval by the evidence unless data are long.
        quiet: Show no progress; None shows it in a terminal or notebook only, False also in a log.

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
        require(set(self.fixed) <= set(parts), "fixed", f"must be among {', '.join(parts)}", sorted(self.fixed))
        rule = "needs start=, which contains the fixed parts"
        require(self.start is not None or not self.fixed, "fixed", rule, sorted(self.fixed))
        as_constraints(self.constraints)
        if self.choose not in (None, *CHOICES):
            raise unknown_name("choose", self.choose, CHOICES)
        require_count("num_restarts", self.num_restarts)
        require_count("max_iterations", self.max_iterations)
        if self.durations is not None:
            require_count("durations", self.durations)
        if self.duration_family not in FAMILIES:
            raise unknown_name("duration_family", self.duration_family, FAMILIES)
        needed = self.durations is not None or self.duration_family == "free"
        require(needed, "duration_family", "needs durations, the longest visit", self.duration_family)
        for name in ("tolerance", "pseudo_count"):
            require(getattr(self, name) >= 0, name, "must be at least 0", getattr(self, name))
