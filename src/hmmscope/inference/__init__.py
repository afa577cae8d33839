"""Exact Bayesian inference in hidden Markov processes, in float64."""

from typing import TYPE_CHECKING

from hmmscope.facade import lazily

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
    from hmmscope.inference.optimal import optimal_probs as optimal_probs
    from hmmscope.inference.window import linear_window_errors as linear_window_errors
    from hmmscope.inference.window import window_errors as window_errors

__getattr__, __dir__, __all__ = lazily(__name__)
