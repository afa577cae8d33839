"""Terms of this library with the field's synonyms: the glossary, `hmmscope show` and "did you mean" read this table."""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Term(NamedTuple):
    """One term.

    Attributes:
        name: the term in prose.
        code: its names in code: of `hmmscope`, of the command line (``infer --viterbi``), or of a field.
        meaning: a phrase.
        synonyms: the words that readers may look up instead.
    """

    name: str
    code: tuple[str, ...]
    meaning: str
    synonyms: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.meaning}\n  in code: {', '.join(self.code)}\n  also called: {', '.join(self.synonyms)}"
        )


#: Sections; of each term a line with its name and its names in code, one with the meaning, one with the synonyms.
_TABLE = """
# Processes and data
process | Process, make_process, load_process
    a source of sequences: an HMM, a mixture, a linear system, a file
    generative model, data generator, source
state | states, num_states
    the hidden variable of a process at one time
    latent state, hidden state, hidden unit, latent, n_states, n_components
observation | observations
    the value that a process emits at one time: a symbol or a vector
    emission, datum
symbol | symbols, num_symbols
    one of the finitely many values of an observation
    letter, alphabet, category, n_symbols, n_features
sequence | SequenceData
    observations from one start to one end
    time series, trajectory, episode, sentence
time | time
    the index of an observation in its sequence, from 0
    time step, timestep
mixture | Mixture
    a process that draws one of its HMMs for each sample
    mixture model, ensemble
component | components, component
    one HMM of a mixture
    task, expert
pool | num_components
    the set of HMMs that prompts are drawn from
    task set, collection
initial distribution | initial
    the probabilities of the state at time 0
    start probabilities, startprob, prior
transition matrix | transition
    entry [i, j] is P(next state j, given state i)
    transmat, transition kernel, transition probabilities
emission matrix | emission
    entry [i, v] is P(symbol v, given state i)
    emissionprob, observation matrix, output matrix
emission family | EmissionHMM
    the type of distribution of observations given the state
    observation model, output distribution, observation distribution
labelled transition matrices | LabelledHMM
    entry [v, i, j] is P(emit v and go to j, given state i)
    edge-emitting HMM, Mealy machine, transition-emitting
generalised HMM | GeneralisedHMM
    a linear model whose matrices may have negative entries
    observable operator model, weighted automaton, predictive state representation
channel | MultichannelHMM
    one of several symbols that are observed at the same time
    modality, multichannel
linear Gaussian system | LinearGaussian, kalman_filter
    vectors as states, linear maps and Gaussian noise
    state-space model, linear dynamical system, Kalman filter
missing observation | MISSING
    an observation that was not recorded
    gap, NaN, masked value
sequence start | reset_mask, lengths
    the times at which a new sequence begins
    episode boundary, reset, segment ids
variance floor | min_covar
    the smallest variance that a fitted state may have
    regularisation constant
stream | stream, seed
    a named random source; streams of one seed are independent
    random state, rng, generator
# Exact inference
belief state | filter_beliefs, infer
    P(state t, given observations 0..t): the filtered posterior
    posterior, filtered posterior, filtering, filter, forward algorithm, forward probabilities
smoothed posterior | smooth_beliefs, infer --smooth
    P(state t, given all observations)
    smoothing, smooth, smoother, gamma, forward-backward, posterior decoding, backward algorithm
most likely states | most_likely_states, infer --viterbi
    the state path of largest probability, given all observations
    viterbi, Viterbi path, MAP path, MAP, decode, decoding, best path
state path sample | sample_state_paths, infer --paths
    a draw of the state path from its posterior
    posterior sample, backward sampling, FFBS
expected counts | expected_counts
    posterior means of the numbers of transitions and emissions
    sufficient statistics, E-step, xi, occupancy
log-likelihood | log_likelihood, infer
    log P(observations), in nats
    score, logprob, marginal likelihood, likelihood
fit | fit
    maximum-likelihood parameters of an HMM, by EM with restarts
    Baum-Welch, EM, expectation maximisation, expectation maximization, maximum likelihood, estimate
Bayes optimum | optimal_predictions, observe, infer
    the prediction of the Bayes-optimal predictor, which knows the process but not its hidden states
    ground truth, oracle, ideal observer, Bayes-optimal predictor, gold answer
next-observation distribution | optimal_predictions, predictions
    P(observation t+1, given observations 0..t)
    predictive distribution, predictive posterior, next-token distribution, predict
forecast | forecast, infer --forecast
    the distribution of several future observations
    multi-step prediction, rollout, extrapolate
mixture posterior | filter_mixture
    P(component, given observations 0..t)
    component posterior, task posterior, task inference
Bayes loss | bayes_loss
    the loss of the Bayes optimum on given samples
    Bayes error, irreducible loss
entropy rate | entropy_rate
    the mean Bayes loss of long sequences
    entropy, conditional entropy
stationary distribution | stationary_distribution
    the state distribution that a transition leaves unchanged
    steady state, invariant distribution, equilibrium
mixing time | mixing_time
    the time after which the first state no longer matters
    forgetting, relaxation time
fixed memory | memory_beliefs, infer --memory
    inference from the last L observations only
    context size, context window, sliding window
ceiling | ceiling
    the score of a predictor that is given more information, such as the component
    upper bound, skyline
# Models and training
dataset | ProcessDataset
    numbered samples of a process in a layout, with the exact answers
    corpus, data set, data loader, dataloader
sample | num_samples
    one input of a model: a sequence or a prompt
    example, data point, training example
token | tokens
    one input of a model at one position: a symbol, delimiter or placeholder
    subword, input id
vocabulary size | vocab_size
    the number of different tokens of a model
    vocabulary, vocab, num tokens
layout | SequenceLayout, PromptLayout, HeaderLayout
    the arrangement of observations in a sample
    prompt format, template
position | num_positions, positions
    the place of a token in a sample, from 0
    column, context length, token index
prompt | PromptLayout, num_demonstrations
    several sequences of one component: demonstrations, then a test sequence
    few-shot prompt, demonstration, in-context example, shots
model | make_model
    a map from tokens to logits
    network, net, nn.Module, architecture
width | width
    the number of coordinates of the residual stream
    hidden size, d_model, embedding dimension
density head | DensityHead
    the output layer for vector observations
    mixture density network, MDN
training | train
    steps of an optimiser on samples
    learning, optimise, optimize
engine | training.engine
    the implementation of a training step: compiled or torch
    backend
configuration | RunConfig
    every value that fixes the numbers of a run
    hyperparameters, config, training arguments
checkpoint | checkpoint_every, num_log_checkpoints
    weights and optimiser state of one step on disk
    snapshot
run | Run, load_run
    the folder of one trained model
    training directory, experiment folder
sweep | sweep
    the runs of a grid of configurations
    grid search, hyperparameter search
# Analysis and evidence
loss | loss
    the negative log-likelihood of the labels, in nats per symbol
    cross-entropy, NLL, perplexity
excess | excess
    the KL divergence of a prediction from the Bayes optimum, in nats
    regret, KL, KL divergence
n-gram baselines | ngram_baselines, infer --ngram-baselines
    predictors from counts of the last few symbols
    n-gram, ngram, ngrams, unigram, bigram, Markov baseline, counting
evaluation | evaluate
    loss by position, beside the Bayes optimum and the baselines
    test, validate, benchmark a model, metrics
untrained control | untrained_model
    the same architecture with newly drawn weights, measured by the same instrument
    random baseline, random network, untrained twin, chance level
instrument | analyse, analysis
    a function of a model and a dataset that returns a table
    analyser, diagnostic, analyze
activation | capture_activations
    the output of a module inside a model
    run_with_cache, hooks, hook, forward hook, cache, hidden representation
probe | probe
    a linear or small model that predicts a target from activations
    linear classifier, decoder probe
intervention | intervene
    an edit of an activation during the forward pass
    activation patching, patching, steering, ablation
belief map | belief_map
    the affine map from activations to belief states
    belief regression, belief geometry
attention map | attention_map
    mean attention by head, query and key
    attention pattern, attention weights
fit length | fit_length
    the largest length up to which the evaluation loss stays below an error rate
    length generalisation, length generalization
model page | look
    one offline page about a model
    dashboard, visualise, visualize, plot
study | study
    n-grams, HMMs and networks compared on your sequences
    model comparison, model selection
experiment | run, Experiment
    models to train, measurements, figures and claims under one name
    reproduction, benchmark suite
effect | Effect
    the number that a claim is about, with its interval
    effect size, estimate with interval
claim | claims, claim
    a sentence of a paper with the decision rule for it
    hypothesis, hypothesis test
gate | gates
    a precondition of the decision rule
    precondition, sanity check
verdict | claims, verdict
    the result of the decision rule
    outcome, conclusion
power | Power
    the fraction of simulated experiments in which a rule finds a true effect
    statistical power
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

#: Names of `hmmscope` and of the command line that earlier versions had.
RENAMED = {
    "as_kind": "require_process_type",
    "as_pairs": "as_composed_cycles",
    "ask": "infer",
    "capture": "capture_activations",
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
    "milestones": "num_log_checkpoints",
    "num_grains": "accumulation_steps",
}


def _plain(word: str) -> str:
    """A word in lower case without dashes, underscores and a section."""
    return re.sub(r"[\s_-]+", " ", word.lstrip("-").lower()).strip()


_BY_WORD = {
    _plain(word): term for terms in TERMS.values() for term in terms for word in reversed((term.name, *term.synonyms))
}


def find_term(word: str) -> Term | None:
    """Return the term with this name or synonym, in singular or plural; None if there is none."""
    plain = _plain(word)
    return next((_BY_WORD[one] for one in (plain, plain.removesuffix("s")) if one in _BY_WORD), None)


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """Return the name among `known` that a synonym or an earlier name stands for."""
    options = list(known)
    names, term = [RENAMED.get(word), RENAMED.get(word.rpartition(".")[2].removeprefix("--"))], find_term(word)
    for code in term.code if term else ():
        names += [code, *code.split(), f"--{code.rpartition('.')[2]}", code.rpartition(".")[2]]
    for name in filter(None, names):
        match = next((one for one in options if one == name), None)
        match = match or next((one for one in options if one.rpartition(".")[2] == name), None)
        if match is not None and match != word:
            return match
    return None
