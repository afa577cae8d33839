"""Convergence monitor of expectation maximization."""

import math
import sys
from collections import deque


class ConvergenceMonitor:
    """Monitor that records log-likelihoods and decides when a fit ends.

    To change when fits end, assign an instance of a subclass to the attribute `monitor_` of an estimator.

    Attributes:
        tol: The fit ends when an iteration gains less than this log-likelihood, in nats.
        n_iter: Maximum number of iterations.
        verbose: Whether to print each iteration to standard error.
        history: Log-likelihood at the start of each iteration, in nats.
        iter: Number of iterations.
    """

    def __init__(self, tol: float, n_iter: int, verbose: bool) -> None:
        self.tol, self.n_iter, self.verbose = tol, n_iter, verbose
        self.history: deque[float] = deque()
        self.iter = 0

    def __repr__(self) -> str:
        shown = {"history": list(self.history)} | {k: v for k, v in sorted(vars(self).items()) if k != "history"}
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in shown.items())})"

    def _reset(self) -> None:
        self.iter = 0
        self.history.clear()

    def report(self, log_prob: float) -> None:
        """Record the log-likelihood of an iteration."""
        if self.verbose:
            gain = log_prob - self.history[-1] if self.history else math.nan
            print(f"{self.iter + 1:>10d} {log_prob:>16.8f} {gain:>+16.8f}", file=sys.stderr)
        self.history.append(log_prob)
        self.iter += 1

    @property
    def converged(self) -> bool:
        """True if the last iteration gained less than `tol`, or was iteration number `n_iter`."""
        gained = self.history[-1] - self.history[-2] if len(self.history) >= 2 else math.inf
        return self.iter == self.n_iter or gained < self.tol
