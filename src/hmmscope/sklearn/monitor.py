"""Whether expectation maximisation goes on, and what it says of itself."""

import math
import sys
from collections import deque


class ConvergenceMonitor:
    """Keeps the log-likelihood of each iteration, and says when to end.

    Set `monitor_` of an estimator to one of a class of your own, with another `converged`, and `fit` goes by that.

    Attributes:
        tol: nats; a gain below it ends the fit.
        n_iter: iterations at most.
        verbose: whether each iteration is a line on standard error: its number, the log-likelihood, the gain.
        history: log-likelihoods at the beginning of each iteration, nats.
        iter: how many there were.
    """

    def __init__(self, tol: float, n_iter: int, verbose: bool) -> None:
        self.tol, self.n_iter, self.verbose = tol, n_iter, verbose
        self.history: deque[float] = deque()
        self.iter = 0

    def __repr__(self) -> str:
        shown = {"history": list(self.history)} | {k: v for k, v in sorted(vars(self).items()) if k != "history"}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def _reset(self) -> None:
        """Begin anew; hmmlearn's monitors have the same."""
        self.iter = 0
        self.history.clear()

    def report(self, log_prob: float) -> None:
        """Take up the log-likelihood of an iteration, nats."""
        if self.verbose:
            gain = log_prob - self.history[-1] if self.history else math.nan
            print(f"{self.iter + 1:>10d} {log_prob:>16.8f} {gain:>+16.8f}", file=sys.stderr)
        self.history.append(log_prob)
        self.iter += 1

    @property
    def converged(self) -> bool:
        """Whether the last gain was below `tol`, or no iteration is left."""
        gained = self.history[-1] - self.history[-2] if len(self.history) >= 2 else math.inf
        return self.iter == self.n_iter or gained < self.tol
