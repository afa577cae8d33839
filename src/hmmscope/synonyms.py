"""Glossary: terms of this library with their synonyms in the field."""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Term(NamedTuple):
    """One term of the glossary.

    Attributes:
        name: Term, as used in text.
        code: Names of the term in Python, on the command line (such as ``infer --viterbi``) and in configurations.
        meaning: Definition in one phrase.
        synonyms: Other words for the term.
    """

    name: str
    code: tuple[str, ...]
    meaning: str
    synonyms: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.meaning}\n  in code: {', '.join(self.code)}\n  also called: {', '.join(self.synonyms)}"
        )


#: Sections of terms; each term has a line with its name and its names in code, one with its meaning, one with synonyms.
_TABLE = """
# Processes and data
process | Process, make_process, load_process
    a source of sequences: an HMM, a mixture, a linear system, a file
    generative model, data generator
state | states, num_states
    the hidden variable of a process at one time
    latent, latent state, hidden state, hidden unit, n_states
observation | observations
    a symbol or vector, emitted at one time
    emission, datum
symbol | symbols, num_symbols
    one of the finitely many values of an observation
    letter, category, n_features
sequence | SequenceData
    observations from one start to one end
    time series, trajectory, episode
time | time
    the index of an observation, from 0
    time step
mixture | Mixture
    a process that draws one of several HMMs for each sample
    mixture model, ensemble
component | components, component
    one HMM of a mixture
    task, expert
pool | num_components
    the set of HMMs that generate the prompts
    task set
initial distribution | initial
    the probabilities of the state at time 0
    startprob, prior
transition matrix | transition
    entry [i, j] is P(next state j, given state i)
    transmat, transition probabilities
emission matrix | emission
    entry [i, v] is P(symbol v, given state i)
    emissionprob, observation matrix
emission family | EmissionHMM
    the type of observation distribution
    observation model, output distribution
labelled transition matrices | LabelledHMM
    entry [v, i, j] is P(emit v and go to j, given state i)
    edge-emitting HMM
generalised HMM | GeneralisedHMM
    a linear model whose matrices may have negative entries
    observable operator model, weighted automaton
linear Gaussian system | LinearGaussian, kalman_filter
    vectors as states, linear maps and Gaussian noise
    state-space model, Kalman filter
missing observation | MISSING
    an observation that was not recorded
    gap, NaN
sequence start | reset_mask, lengths
    the times at which a new sequence begins
    episode boundary, reset
stream | stream, seed
    a named source of random numbers
    random state, generator
# Exact inference
belief state | filter_beliefs, infer
    P(state t, given observations 0..t): the filtered posterior
    posterior, filtered posterior, filter, filtering, forward algorithm
smoothed posterior | smooth_beliefs, infer --smooth
    P(state t, given all observations)
    smooth, smoothing, gamma, forward-backward, posterior decoding
most likely states | most_likely_states, infer --viterbi
    the state path of largest probability, given all observations
    Viterbi, Viterbi path, likeliest path, MAP path, decode, decoding
state path sample | sample_state_paths, infer --paths
    a draw from the posterior of state paths
    posterior sample, backward sampling
expected counts | expected_counts
    expected numbers of transitions and emissions
    sufficient statistics, E-step, xi, occupancy
log-likelihood | log_likelihood, infer
    log P(observations), in nats
    score, logprob, likelihood
fit | fit
    maximum-likelihood parameters of an HMM, by EM with restarts
    Baum-Welch, EM, expectation maximization, maximum likelihood
Bayes optimum | optimal_predictions, observe, infer
    the prediction of an observer who knows the process but not its states
    ground truth, oracle, ideal observer, Bayes-optimal predictor
next-observation distribution | optimal_predictions, predictions
    P(observation t+1, given observations 0..t)
    predictive distribution, predict
forecast | forecast, infer --forecast
    the distribution of several future observations
    rollout, multi-step prediction
mixture posterior | filter_mixture
    P(component, given observations 0..t)
    component posterior, task inference
Bayes loss | bayes_loss
    the loss of the Bayes optimum on given samples
    Bayes error, irreducible loss
entropy rate | entropy_rate
    the limit of the mean Bayes loss per observation in long sequences
    entropy, conditional entropy
stationary distribution | stationary_distribution
    the distribution that transitions leave unchanged
    steady state, invariant distribution
mixing time | mixing_time
    the number of observations after which the belief hardly depends on the initial state
    forgetting
fixed memory | memory_beliefs, infer --memory
    inference from the last L observations only
    context window, sliding window
ceiling | ceiling
    the score of a predictor that has more information than the model
    upper bound
# Models and training
dataset | ProcessDataset
    numbered samples of a process, with exact answers
    data set, corpus, data loader
token | tokens
    a symbol, delimiter or placeholder at one position
    input id
vocabulary size | vocab_size
    the number of different tokens that a model reads
    vocabulary, vocab
position | num_positions, positions
    the place of a token in a sample, from 0
    column, context length
prompt | PromptLayout, num_demonstrations
    demonstrations of one component, then a test sequence
    demonstration, in-context example, shots
model | make_model
    a map from tokens to logits
    network, architecture
width | width
    the dimension of the residual stream
    hidden size, d_model
engine | training.engine
    the implementation of training, compiled or torch
    backend
configuration | RunConfig
    all settings that determine the result of a run
    hyperparameters, config
checkpoint | checkpoint_every, num_log_checkpoints
    weights and optimiser state after one training step, stored on disk
    snapshot
run | Run, load_run
    the folder of one trained model
    training directory
sweep | sweep
    the runs of a grid of configurations
    grid search, hyperparameter search
# Analysis and evidence
loss | loss
    the negative log-likelihood of the labels, in nats per symbol
    cross-entropy, NLL, perplexity
excess | excess
    KL(optimum || prediction), in nats
    regret, KL, KL divergence
n-gram baselines | ngram_baselines, infer --ngram-baselines
    predictors from counts of the last few symbols
    n-gram, ngram, unigram, bigram, Markov baseline, counting
evaluation | evaluate
    losses by position of a model, the optimum and baselines
    test, metrics
untrained control | untrained_model
    the same architecture with newly drawn weights
    random baseline, random network, untrained twin
instrument | analyse, analysis
    a function of a model and a dataset that returns a table
    diagnostic, analyze
activation | capture_activations
    the output of a module inside a model
    run_with_cache, hook, cache, hidden representation
probe | probe
    a linear map from activations to a target
    linear classifier
intervention | intervene
    an edit of an activation
    patching, activation patching, steering, ablation
belief map | belief_map
    belief states computed from activations by a fitted affine map
    belief geometry
fit length | fit_length
    the position up to which the evaluation loss stays below a threshold
    length generalization
model page | look
    one offline page about a model
    dashboard, visualize, plot
experiment | run, Experiment
    models to train, measurements, figures and claims under one name
    reproduction, benchmark suite
claim | claims, claim
    a statement with a rule that decides whether measurements support it
    hypothesis, hypothesis test
gate | gates
    a condition without which the decision rule does not apply
    precondition, sanity check
verdict | claims, verdict
    the result of applying the decision rule to measurements
    outcome, conclusion
"""


def _read(table: str) -> dict[str, tuple[Term, ...]]:
    sections: dict[str, tuple[Term, ...]] = {}
    for part in table.split("\n# ")[1:]:
        title, *lines = part.strip().split("\n")
        cells = [line.strip() for line in lines]
        heads = [head.split(" | ") for head in cells[::3]]
        sections[title] = tuple(
            Term(name, tuple(code.split(", ")), meaning, tuple(synonyms.split(", ")))
            for (name, code), meaning, synonyms in zip(heads, cells[1::3], cells[2::3], strict=True)
        )
    return sections


#: The sections of the glossary.
TERMS = _read(_TABLE)

#: Names of earlier versions, each with its present name: keys of stored configurations, Python names and options.
STORED_KEYS = {"milestones": "num_log_checkpoints", "num_grains": "accumulation_steps"}
RENAMED = STORED_KEYS | {
    "as_kind": "require_process_type",
    "as_pairs": "as_composed_cycles",
    "ask": "infer",
    "capture": "capture_activations",
    "Cloud": "DenseScatter",
    "Estimate": "EstimateWithError",
    "Law": "ScalingLaw",
    "Measured": "MeasuredTables",
    "number": "parameter",
    "Seen": "Measurement",
    "ChannelsHMM": "MultichannelHMM",
    "Corpus": "ProcessDataset",
    "count": "ngram_baselines",
    "EmittingHMM": "EmissionHMM",
    "fresh_model": "untrained_model",
    "future_law": "future_distribution",
    "Header": "HeaderLayout",
    "likeliest": "stable_argmax",
    "missing_laws": "missing_probs",
    "Observed": "ObserverOutput",
    "Paths": "SampledPaths",
    "Prompts": "PromptLayout",
    "Sequences": "SequenceLayout",
    "Text": "TextLayout",
    "--begin": "--warm-start",
    "--blocks": "--block-entropies",
    "--board": "--leaderboard",
    "--check": "--goodness-of-fit",
    "--examine": "--sensitivity",
    "--first": "--only-first",
    "--from": "--reuse",
    "--instances": "--vary-process",
    "--keep": "--copy-card",
    "--over-training": "--over-checkpoints",
    "--screen": "--ngram-baselines",
    "--silence": "--heartbeat-timeout",
    "--steps": "--observability",
    "--time": "--horizon",
    "--trained": "--pool",
}


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]+", " ", word.lstrip("-").lower().replace("is", "iz")).strip()


_BY_WORD = {
    _plain(word): term for terms in TERMS.values() for term in terms for word in reversed((term.name, *term.synonyms))
}

#: Other words for verbs of the command line, before each verb's name.
_VERBS = """predict filter smooth score posterior: infer; estimate learn em: fit; compare explore: study;
grid cluster: sweep; evaluate eval intervene patch ablate export convert: analyse; view open draw graph: look;
submit leaderboard: benchmark; reproduce paper: run; ledger verdicts: claims; figure figures page: report;
list describe info docs: show; generate simulate: sample; verify validate test: check"""
_VERB_OF = {word: verb for words, verb in (one.split(": ") for one in _VERBS.split(";")) for word in words.split()}


def find_term(word: str) -> Term | None:
    plain = _plain(word)
    return next((_BY_WORD[one] for one in (plain, plain.removesuffix("s")) if one in _BY_WORD), None)


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` for which `word` is a synonym or an earlier name, else None."""
    options = list(known)
    names, term = [RENAMED.get(word), RENAMED.get(word.rpartition(".")[2].removeprefix("--"))], find_term(word)
    names += [_VERB_OF.get(word.lower())]
    for code in term.code if term else ():
        names += [code, *code.split(), f"--{code.rpartition('.')[2]}", code.rpartition(".")[2]]
    for name in filter(None, names):
        match = next((one for one in options if one == name), None)
        match = match or next((one for one in options if one.rpartition(".")[2] == name), None)
        if match is not None and match != word:
            return match
    return None
