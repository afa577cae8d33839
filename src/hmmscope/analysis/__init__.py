"""Instruments: measurements that compare a trained model with Bayes-optimal predictions and beliefs."""

from typing import TYPE_CHECKING

from hmmscope.facade import lazily

if TYPE_CHECKING:
    from hmmscope.analysis.activations import inference_mode as inference_mode
    from hmmscope.analysis.activations import model_outputs as model_outputs
    from hmmscope.analysis.activations import model_probs as model_probs
    from hmmscope.analysis.activations import residual_layers as residual_layers
    from hmmscope.analysis.activations import to_probs as to_probs
    from hmmscope.analysis.curves import Score as Score
    from hmmscope.analysis.curves import known_component_probs as known_component_probs
    from hmmscope.analysis.decomposition import Histories as Histories
    from hmmscope.analysis.decomposition import Windows as Windows
    from hmmscope.analysis.discovery import automaton as automaton
    from hmmscope.analysis.discovery import dictionary as dictionary
    from hmmscope.analysis.fit_length import crossing_length as crossing_length
    from hmmscope.analysis.fit_length import evaluation_losses as evaluation_losses
    from hmmscope.analysis.fit_length import fit_start as fit_start
    from hmmscope.analysis.geometry import ExactBeliefs as ExactBeliefs
    from hmmscope.analysis.geometry import Readout as Readout
    from hmmscope.analysis.header import HeaderOptions as HeaderOptions
    from hmmscope.analysis.header import bayes_predictions as bayes_predictions
    from hmmscope.analysis.header import entropy_bits as entropy_bits
    from hmmscope.analysis.header import prior_pool as prior_pool
    from hmmscope.analysis.intervals import bootstrap_means as bootstrap_means
    from hmmscope.analysis.intervals import bootstrap_ratio as bootstrap_ratio
    from hmmscope.analysis.intervals import mean_row as mean_row
    from hmmscope.analysis.interventions import set_pattern as set_pattern
    from hmmscope.analysis.layer_curves import resampled_curves as resampled_curves
    from hmmscope.analysis.layer_curves import with_interval as with_interval
    from hmmscope.analysis.mechanisms import paths as paths
    from hmmscope.analysis.mechanisms import roles as roles
    from hmmscope.analysis.ngrams import TunedNgrams as TunedNgrams
    from hmmscope.analysis.probes import ProbeData as ProbeData
    from hmmscope.analysis.shuffle import ShuffleValues as ShuffleValues
    from hmmscope.analysis.shuffle import attention_taps as attention_taps
    from hmmscope.analysis.similarity import explained_change as explained_change
    from hmmscope.analysis.similarity import linear_cka as linear_cka
    from hmmscope.analysis.strategies import LevelCrossing as LevelCrossing

__getattr__, __dir__, __all__ = lazily(__name__)
