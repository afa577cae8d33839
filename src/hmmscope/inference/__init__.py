"""What an ideal observer knows: exact answers in float64."""

from typing import TYPE_CHECKING

from hmmscope.facade import lazily

_HOME = {
    "all_sequences": "memory",
    "baum_welch_predictions": "baum_welch",
    "belief_floor": "floors",
    "filter_windows": "memory",
    "fit_decay": "memory_error",
    "linear_floor": "floors",
    "linear_variances": "floors",
    "linear_window_errors": "window",
    "memory_certificate": "memory_error",
    "numerical_rank": "observability",
    "optimal_law": "optimal",
    "window_errors": "window",
    "with_prior": "memory",
}

__all__ = [*_HOME]

if TYPE_CHECKING:
    from hmmscope.inference.baum_welch import baum_welch_predictions as baum_welch_predictions
    from hmmscope.inference.floors import belief_floor as belief_floor
    from hmmscope.inference.floors import linear_floor as linear_floor
    from hmmscope.inference.floors import linear_variances as linear_variances
    from hmmscope.inference.memory import all_sequences as all_sequences
    from hmmscope.inference.memory import filter_windows as filter_windows
    from hmmscope.inference.memory import with_prior as with_prior
    from hmmscope.inference.memory_error import fit_decay as fit_decay
    from hmmscope.inference.memory_error import memory_certificate as memory_certificate
    from hmmscope.inference.observability import numerical_rank as numerical_rank
    from hmmscope.inference.optimal import optimal_law as optimal_law
    from hmmscope.inference.window import linear_window_errors as linear_window_errors
    from hmmscope.inference.window import window_errors as window_errors

__getattr__, __dir__ = lazily(__name__, _HOME)
