"""hmmscope: train sequence models on hidden Markov processes and compare them with Bayes-optimal predictions."""

from typing import TYPE_CHECKING, Any

from hmmscope.facade import lazily

__version__ = "0.3.0"

if TYPE_CHECKING:
    from hmmscope import analysis as analysis
    from hmmscope import inference as inference
    from hmmscope import interop as interop
    from hmmscope import registry as registry
    from hmmscope import schema as schema
    from hmmscope import seeds as seeds
    from hmmscope import ties as ties
    from hmmscope.analysis.activations import capture_activations as capture_activations
    from hmmscope.analysis.attention_maps import attention_map as attention_map
    from hmmscope.analysis.belief_interventions import InterventionOptions as InterventionOptions
    from hmmscope.analysis.belief_interventions import belief_interventions as belief_interventions
    from hmmscope.analysis.belief_map import belief_map as belief_map
    from hmmscope.analysis.belief_space import belief_space as belief_space
    from hmmscope.analysis.constrained_updates import constrained_updates as constrained_updates
    from hmmscope.analysis.curves import EvaluateOptions as EvaluateOptions
    from hmmscope.analysis.curves import evaluate as evaluate
    from hmmscope.analysis.fit_length import fit_length as fit_length
    from hmmscope.analysis.interventions import intervene as intervene
    from hmmscope.analysis.mechanisms import mechanisms as mechanisms
    from hmmscope.analysis.probes import probe as probe
    from hmmscope.analysis.shuffle import shuffle_test as shuffle_test
    from hmmscope.analysis.strategy_weights import strategy_weights as strategy_weights
    from hmmscope.analysis.task_patching import task_patching as task_patching
    from hmmscope.analysis.trained_ngrams import ngram_baselines as ngram_baselines
    from hmmscope.analysis.untrained_controls import InstrumentOptions as InstrumentOptions
    from hmmscope.datasets.layouts import HeaderLayout as HeaderLayout
    from hmmscope.datasets.layouts import Layout as Layout
    from hmmscope.datasets.layouts import PromptLayout as PromptLayout
    from hmmscope.datasets.layouts import SequenceLayout as SequenceLayout
    from hmmscope.datasets.process_dataset import Batch as Batch
    from hmmscope.datasets.process_dataset import ProcessDataset as ProcessDataset
    from hmmscope.datasets.targets import make_target as make_target
    from hmmscope.datasets.tokenized import TextLayout as TextLayout
    from hmmscope.emissions.emission_hmm import EmissionHMM as EmissionHMM
    from hmmscope.emissions.gaussian import GaussianHMM as GaussianHMM
    from hmmscope.emissions.gaussian_mixture import GaussianMixtureHMM as GaussianMixtureHMM
    from hmmscope.emissions.mixed import MixedHMM as MixedHMM
    from hmmscope.emissions.multichannel import MultichannelHMM as MultichannelHMM
    from hmmscope.emissions.poisson import PoissonHMM as PoissonHMM
    from hmmscope.errors import HmmscopeError as HmmscopeError
    from hmmscope.inference.constraints import Constraints as Constraints
    from hmmscope.inference.continuations import forecast as forecast
    from hmmscope.inference.entropy import entropy_rate as entropy_rate
    from hmmscope.inference.fast import log_likelihood as log_likelihood
    from hmmscope.inference.fast import mixture_predictions as mixture_predictions
    from hmmscope.inference.filtering import filter_beliefs as filter_beliefs
    from hmmscope.inference.memory import memory_beliefs as memory_beliefs
    from hmmscope.inference.missing import missing_probs as missing_probs
    from hmmscope.inference.missing import sample_missing as sample_missing
    from hmmscope.inference.mixing import mixing_time as mixing_time
    from hmmscope.inference.mixture_posterior import filter_known_component as filter_known_component
    from hmmscope.inference.mixture_posterior import filter_mixture as filter_mixture
    from hmmscope.inference.observability import future_distribution as future_distribution
    from hmmscope.inference.observability import observability as observability
    from hmmscope.inference.optimal import observe as observe
    from hmmscope.inference.optimal import optimal_predictions as optimal_predictions
    from hmmscope.inference.paths import most_likely_states as most_likely_states
    from hmmscope.inference.paths import sample_state_paths as sample_state_paths
    from hmmscope.inference.smoothing import expected_counts as expected_counts
    from hmmscope.inference.smoothing import smooth_beliefs as smooth_beliefs
    from hmmscope.inference.stable_argmax import stable_argmax as stable_argmax
    from hmmscope.inference.stationary_process import stationary_distribution as stationary_distribution
    from hmmscope.lab.model_page.model_page import look as look
    from hmmscope.lab.study.run_study import study as study
    from hmmscope.models.adapted import adapt as adapt
    from hmmscope.models.base import make_model as make_model
    from hmmscope.processes.capabilities import ObserverOutput as ObserverOutput
    from hmmscope.processes.files import load_process as load_process
    from hmmscope.processes.generalised import GeneralisedHMM as GeneralisedHMM
    from hmmscope.processes.hmm import HMM as HMM
    from hmmscope.processes.input_output import InputOutputHMM as InputOutputHMM
    from hmmscope.processes.kalman import kalman_filter as kalman_filter
    from hmmscope.processes.labelled import LabelledHMM as LabelledHMM
    from hmmscope.processes.linear_gaussian import LinearGaussian as LinearGaussian
    from hmmscope.processes.low_rank import symmetric_channel as symmetric_channel
    from hmmscope.processes.make import make_process as make_process
    from hmmscope.processes.matrix_product import MatrixProduct as MatrixProduct
    from hmmscope.processes.mixture import Mixture as Mixture
    from hmmscope.processes.process import Process as Process
    from hmmscope.processes.process import SampledPaths as SampledPaths
    from hmmscope.processes.require_type import as_composed_cycles as as_composed_cycles
    from hmmscope.processes.require_type import require_process_type as require_process_type
    from hmmscope.processes.semi_markov import SemiMarkovHMM as SemiMarkovHMM
    from hmmscope.processes.switching import SwitchingLinearGaussian as SwitchingLinearGaussian
    from hmmscope.processes.switching_filter import switching_filter as switching_filter
    from hmmscope.runs.config import RunConfig as RunConfig
    from hmmscope.runs.config import config_from_data as config_from_data
    from hmmscope.runs.development import over_training as over_training
    from hmmscope.runs.fit_options import FitOptions as FitOptions
    from hmmscope.runs.fitting import fit as fit
    from hmmscope.runs.pipeline import Run as Run
    from hmmscope.runs.pipeline import TrainingPass as TrainingPass
    from hmmscope.runs.pipeline import load_run as load_run
    from hmmscope.runs.pipeline import untrained_model as untrained_model
    from hmmscope.runs.training import TrainOptions as TrainOptions
    from hmmscope.runs.training import train as train
    from hmmscope.sequences.data import SequenceData as SequenceData
    from hmmscope.sequences.gaps import MISSING as MISSING
    from hmmscope.sequences.streaming import SequenceStream as SequenceStream
    from hmmscope.sequences.vector_data import VectorData as VectorData
    from hmmscope.sequences.vector_data import read_vectors as read_vectors
    from hmmscope.training import recipes as recipes
    from hmmscope.training.updates import target_loss as target_loss

_get, __dir__, _names = lazily(__name__)
__all__ = ["__version__", *_names]

#: Public names that moved to other distributions, each with its present module and distribution.
_MOVED = {
    "benchmark": ("hmmscope_studies.benchmark.benchmark", "hmmscope-studies"),
    "check_submission": ("hmmscope_studies.benchmark.check_submission", "hmmscope-studies"),
    "constructions": ("hmmscope_papers.constructions", "hmmscope-papers"),
}


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        module, distribution = _MOVED[name]
        raise AttributeError(
            f"module 'hmmscope' has no attribute {name!r}: use {module}, in the package {distribution}"
        )
    return _get(name)
