"""Methods of a fit; they use the fitted data by default."""

import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np

from hmmscope.errors import InputError
from hmmscope.inference.free_parameters import zeros_in_words
from hmmscope.progress import StoppableProgress
from hmmscope.reprs import Tabular
from hmmscope.runs import state_answers, state_plots
from hmmscope.runs.forecasts import Forecasts
from hmmscope.runs.given_rows import GivenRows, given_rows, with_known_states
from hmmscope.runs.posterior import FitData
from hmmscope.runs.row_values import RowValues
from hmmscope.schema import unknown_name
from hmmscope.training.signals import Interrupted


class FitAnswers(Tabular):
    """Methods that apply a fitted model to observations `x` (default: the fitted data).

    See `StateMethods` for `x`, its reading options and the results.
    """

    hmm: Any
    data: FitData | None
    fits: dict[int, Any]
    held_out: dict[int, float]
    held_out_errors: dict[int, float]
    reason: str
    num_zeros: dict[str, int]
    cost: dict[str, float]
    final: Any

    @property
    def num_states(self) -> int:
        return state_answers.num_shown(self.hmm)

    def predict(self, x: Any = None, *, names: bool = False, known_states: Any = None, **reading: Any) -> RowValues:
        return state_answers.predict(self.hmm, self._known("predict", x, known_states, reading), names=names)

    def predict_proba(self, x: Any = None, *, known_states: Any = None, **reading: Any) -> RowValues:
        """Compute P(state | all observations) for each row, shape (row, state)."""
        return state_answers.predict_proba(self.hmm, self._known("predict_proba", x, known_states, reading))

    def score(
        self,
        x: Any = None,
        *,
        per_sequence: bool = False,
        known_states: Any = None,
        sequence_weights: Any = None,
        **reading: Any,
    ) -> Any:
        """Compute log P(x) in nats: a number, or with `per_sequence` an array (sequence,)."""
        rows = self._known("score", x, known_states, reading)
        return state_answers.score(self.hmm, rows, per_sequence=per_sequence, sequence_weights=sequence_weights)

    def sample(
        self, length: int, num_sequences: int = 1, *, seed: int = 0, inputs: Any = None
    ) -> state_answers.SampledRows:
        return state_answers.sample(self.hmm, length, num_sequences, seed=seed, inputs=inputs)

    def forecast(
        self, observed: Any = None, steps: int = 1, *, seed: int = 0, next_inputs: Any = None, **reading: Any
    ) -> Forecasts:
        """Forecast the next observations of one sequence with the fitted parameters."""
        rows = self._rows("forecast", observed, reading)
        return state_answers.forecast(self.hmm, rows, steps, seed=seed, next_inputs=next_inputs)

    def states(self, x: Any = None, **reading: Any) -> state_answers.StateTable:
        """Return a row for each state: its emissions, how often it occurs and how long it lasts.

        See `StateMethods.state_table`.
        """
        return state_answers.state_table(self.hmm, self._rows("states", x, reading))

    def plot(self, kind: str = "overview", x: Any = None, *, ax: Any = None, **options: Any) -> Any:
        """Plot the fit with Matplotlib; return the Axes, or a Figure with several Axes.

        Args:
            kind: A kind of `StateMethods.plot`, such as "overview"; "convergence" (log-likelihood over the iterations
                of each restart); or "num_states" (probability of each number of states).
            x, ax, options: See `hmmscope.processes.state_methods.StateMethods.plot`; for example, `sequence` is the
                index or name of the sequence to plot.
        """
        if kind in state_plots.OF_FITS:
            return state_plots.OF_FITS[kind](self, ax=ax, **options)
        if kind not in state_plots.KINDS:
            raise unknown_name("kind", kind, (*state_plots.KINDS, *state_plots.OF_FITS))
        own, reading = state_plots.split_options(options)
        return state_plots.plot(self.hmm, kind, self._rows("plot", x, reading), ax=ax, **own)

    def lines(self) -> list[str]:
        """Return lines of text: scores of the numbers of states, `reason`, and warnings (restarts that disagree)."""
        found = []
        if len(self.fits) > 1 or self.held_out:
            each = "an observation" if self.hmm.real_valued else "a symbol"
            held_out = f"   held-out log-likelihood, nats {each}" * bool(self.held_out)
            found.append(f"states  restarts           BIC{held_out}")
            for size in self.held_out or self.fits:
                fit, error = self.fits[size], self.held_out_errors.get(size, np.nan)
                held_out = f"   {self.held_out[size]:.6f}" if self.held_out else ""
                beside = "" if np.isnan(error) else f" ± {error:.6f}"
                chosen = "  chosen" if size == self.num_states else ""
                found.append(f"{size:6d}  {fit.num_restarts:8d}  {fit.bic:12.2f}{held_out}{beside}{chosen}")
        found += [self.reason] * bool(self.reason)
        unsure = [size for size, fit in self.fits.items() if not fit.restarts_agree and fit.num_restarts > 1]
        if unsure:
            each = ", ".join(f"{size} ({self.fits[size].restart_gap:.2g} nats difference)" for size in unsure)
            made = self.fits[unsure[0]].num_restarts
            found.append(
                f"the best two restarts do not agree after {made} restarts (the maximum) for these numbers of states: {each}"
            )
        found += filter(None, [zeros_in_words(self.num_zeros), self._cost_in_words() if len(self.fits) > 1 else ""])
        return [*found, *(self.final.remarks if self.fits else ())]

    def _cost_in_words(self) -> str:
        if not self.cost:
            return ""
        said = f"cost of choosing num_states: {self.cost['restarts']} restarts, {self.cost['seconds']:.1f} s"
        own = self.cost["evidence_seconds"]
        return f"{said}, of which {own:.1f} s for the evidence" if own >= 0.05 else said

    def _rows(self, asked: str, x: Any, reading: dict[str, Any]) -> GivenRows:
        if x is None:
            if reading:
                raise InputError(f"{next(iter(reading))}: describes how to read x, but x is missing; pass x")
            return self._whole(asked).rows
        found = given_rows(self.hmm, x, **reading)
        return found if found.columns or self.data is None else replace(found, columns=self.data.columns)

    def _known(self, asked: str, x: Any, known_states: Any, reading: dict[str, Any]) -> GivenRows:
        rows = with_known_states(self.hmm, x, known_states, reading, self._rows(asked, x, reading))
        return rows if asked == "score" else rows.with_warning()

    def _whole(self, asked: str) -> FitData:
        if self.data is None:
            raise InputError(f"{asked}: needs the fitted data, but a stream stores none; fit without stream=True")
        return self.data


def ended(found: Any, heard: StoppableProgress, begun: float, names: Any = None) -> Any:
    if names is not None:
        found.hmm.states = names
    restarts = sum(fit.num_restarts for fit in found.fits.values()) + (found.whole is not None)
    evidence_seconds = 0.0 if found.support is None else found.support.seconds
    cost = {"restarts": restarts, "seconds": time.monotonic() - begun, "evidence_seconds": evidence_seconds}
    found = replace(found, cost=cost)
    if heard.stopped:
        said = f"fit: stopped by SIGINT in restart {restarts}; the best fit so far is in `result` of this error"
        raise Interrupted(f"{said} (sys.last_value.result)", signal.SIGINT, found)
    return found


def searched(fit: Any) -> str:
    if fit.num_restarts == 1:
        return "one restart"
    ended = "agree" if fit.restarts_agree else f"differ by {fit.restart_gap:.2g} nats"
    return f"best two of {fit.num_restarts} restarts {ended}"
