"""Methods of every process with hidden states, implemented in `hmmscope.runs`."""

import importlib
from typing import Any


def _defined(module: str) -> Any:
    return importlib.import_module(f"hmmscope.runs.{module}")


class StateMethods:
    """Methods on observations, with the same names for all processes.

    `x` is any data that `hmmscope.fit` accepts. `lengths` splits the rows of `x` into sequences; options such as
    `column` apply to tables. A model with inputs needs `inputs`: an input for each row, or the name of a column.
    `known_states` conditions `predict`, `predict_proba` and `score` on the states of some rows; `score` weights
    sequences by `sequence_weights`. Results are arrays with a row per row of `x`; `to_pandas()` adds the index of `x`.
    """

    def predict(self, x: Any, *, names: bool = False, **reading: Any) -> Any:
        """Return each row's state on the most likely path (Viterbi), or -1 in a sequence of probability zero.

        Args:
            x, reading: See `StateMethods`.
            names: True returns names of states instead of numbers.
        """
        return _defined("state_answers").predict(self, x, names=names, **reading)

    def predict_proba(self, x: Any, **reading: Any) -> Any:
        """Compute P(state | all observations) for each row of `x`, shape (row, state)."""
        return _defined("state_answers").predict_proba(self, x, **reading)

    def score(self, x: Any, *, per_sequence: bool = False, **reading: Any) -> Any:
        """Compute log P(x) in nats, in total or, with `per_sequence`, for each sequence (sequence,)."""
        return _defined("state_answers").score(self, x, per_sequence=per_sequence, **reading)

    def sample(self, length: int, num_sequences: int = 1, *, seed: int = 0, inputs: Any = None) -> Any:
        """Sample sequences; return their `observations` and `states`, row by row.

        `inputs` (length,) or (num_sequences, length) applies to a model with inputs.
        """
        return _defined("state_answers").sample(self, length, num_sequences, seed=seed, inputs=inputs)

    def forecast(self, observed: Any, steps: int = 1, *, seed: int = 0, next_inputs: Any = None, **reading: Any) -> Any:
        """Forecast the next observations of one sequence; return `hmmscope.runs.forecasts.Forecasts`.

        `next_inputs` (steps,) applies to a model with inputs.
        """
        options = {"seed": seed, "next_inputs": next_inputs}
        return _defined("state_answers").forecast(self, observed, steps, **options, **reading)

    def state_table(self, x: Any = None, **reading: Any) -> Any:
        """Return a table with a row for each state: emissions, frequency and duration.

        `share` is the mean posterior probability over the rows of `x` (without `x`, the stationary probability);
        `visits` counts visits of the state on the most likely path. `dwell_rows` is the model's mean length of a visit
        in rows; `dwell_time` multiplies it by the time between rows of `x`, if known.
        """
        return _defined("state_answers").state_table(self, x, **reading)

    def plot(self, kind: str = "overview", x: Any = None, *, ax: Any = None, **options: Any) -> Any:
        """Plot the model with Matplotlib; return the Axes or, for several Axes, the Figure.

        Args:
            kind: "overview", "observations" (coloured by state), "probabilities" (of the states over time),
                "transitions" (graph with dwell times), "emissions" or "durations" (of visits).
            x: Observations; required by "observations" and "probabilities".
            ax: Axes to draw on.
            options: `sequence` (index or name of the sequence to plot, such as a group), `coordinates`, `figsize`, and
                options of reading `x`. See `hmmscope.runs.state_plots`.
        """
        return _defined("state_plots").plot(self, kind, x, ax=ax, **options)
