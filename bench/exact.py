"""Measure exact inference by the public functions: filter, smoother, Viterbi paths, memory beliefs, mixtures, Baum-Welch."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.contest import Contest, installed, noise
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.emissions.chain import count_rows, filter_states, smooth_states, viterbi_states
from hmmscope.emissions.gaussian import GaussianHMM
from hmmscope.emissions.states import MarkovChainParams, StateCounts
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import fit_baum_welch
from hmmscope.inference.fast import log_likelihood, mixture_predictions
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.loop_inputs import over_lanes
from hmmscope.inference.memory import memory_beliefs
from hmmscope.inference.mixture_posterior import filter_mixture
from hmmscope.inference.paths import most_likely_states
from hmmscope.inference.smoothing import expected_counts, smooth_beliefs
from hmmscope.interop.hmmlearn import to_hmmlearn
from hmmscope.processes.hmm import HMM
from hmmscope.processes.make import make_process
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.require_type import require_process_type

#: (states, symbols, sequences, length), and the number of sequences for hmmlearn.
SHAPES = (((8, 8, 4096, 128), 256), ((128, 16, 512, 256), 8))
MEMORY, ITERATIONS = 8, 3
#: (states, sequences, length) of few sequences with 8 symbols.
LONG = ((4, 1, 10**6), (4, 2, 10**6), (4, 8, 10**5), (8, 1, 10**6))
#: (cyclic, states, sequences, length) of chains with three transitions from each state.
SPARSE = ((False, 256, 1, 2000), (True, 256, 1, 2000), (False, 256, 64, 128))
#: Number of states and (sequences, length) of inference from given log-likelihoods.
GIVEN, GIVEN_SHAPES = (2, 4, 8, 16, 64), ((1, 10**5), (100, 1000))


def contests(*, peers: bool, device: str = "cpu") -> list[Contest]:
    """Compare float64 answers at 8 and 128 states, few long sequences, sparse transitions, and a mixture of 64 HMMs."""
    if device != "cpu":
        raise InputError("device: bench exact measures the processor; use cpu")
    found = [contest for shape, few in SHAPES for contest in _shape(*shape, few=few, peers=peers)]
    found += [contest for shape in LONG for contest in _long(*shape, peers=peers)]
    found += [contest for shape in SPARSE for contest in _sparse(*shape, peers=peers)]
    given = [(states, *shape) for shape in GIVEN_SHAPES for states in GIVEN]
    found += [contest for shape in given for contest in _numbers(*shape, peers=peers)]
    return [*found, _mixture()]


def _process(states: int, symbols: int) -> HMM:
    hmm = require_process_type(make_process("random-hmm", num_states=states, num_symbols=symbols), HMM)
    return hmm


def _shape(states: int, symbols: int, batch: int, length: int, *, few: int, peers: bool) -> list[Contest]:
    hmm = _process(states, symbols)
    observations = ProcessDataset(hmm, length=length)[0:batch].observations
    sizes = f"{states} states, {batch} x {length}"
    tokens = observations.numel()
    product = 2.0 * states**2  # product of a belief and the transition matrix
    filtering = Contest(f"filter_beliefs, {sizes}", "tokens", flops=product)
    filtering.add("hmmscope", lambda: filter_beliefs(hmm, observations), tokens)
    filtering.add("matrix products alone", _products(batch, states), 16 * batch, limit=True)
    filtering.add("torch loop", functools.partial(_loop, hmm, observations), tokens)
    smoothing = Contest(f"smooth_beliefs, {sizes}", "tokens", flops=2 * product)
    smoothing.add("hmmscope", lambda: smooth_beliefs(hmm, observations), tokens)
    paths = Contest(f"most_likely_states, {sizes}", "tokens")
    paths.add("hmmscope", lambda: most_likely_states(hmm, observations), tokens)
    memory = Contest(f"memory_beliefs of {MEMORY}, {sizes}", "tokens", flops=(MEMORY - 1) * product)
    memory.add("hmmscope", lambda: memory_beliefs(hmm, observations, MEMORY), tokens)
    counts = Contest(f"expected_counts, {sizes}", "tokens", flops=3 * product)
    counts.add("hmmscope", lambda: expected_counts(hmm, observations), tokens)
    fitting = Contest(f"Baum-Welch, a step, {sizes}", "tokens", flops=3 * product)
    start = require_process_type(make_process("random-hmm", num_states=states, num_symbols=symbols, seed=1), HMM)
    fitting.add("hmmscope", _fit(start, observations), ITERATIONS * tokens)
    if peers and installed("hmmlearn"):
        flat, lengths = observations[:few].reshape(-1, 1).numpy(), [length] * few
        model = hmmlearn_of(hmm)
        smoothing.add("hmmlearn", lambda: model.predict_proba(flat, lengths), few * length)
        paths.add("hmmlearn", lambda: model.decode(flat, lengths), few * length)
        fitting.add("hmmlearn", lambda: hmmlearn_of(start).fit(flat, lengths), ITERATIONS * few * length)
    return [filtering, smoothing, paths, memory, counts, fitting]


def _sparse(cyclic: bool, states: int, batch: int, length: int, *, peers: bool) -> list[Contest]:
    """Compare a sparse chain (stay, or move by one or two) with the same chain stored as a dense matrix."""
    transition = np.zeros((states, states))
    for state in range(states):
        for ahead, share in enumerate((0.6, 0.3, 0.1)):
            transition[state, (state + ahead) % states if cyclic else min(state + ahead, states - 1)] += share
    emission = _process(states, 16).emission
    hmm = HMM(np.full(states, 1 / states) if cyclic else np.eye(states)[0], transition, emission)
    return _calls(hmm, f"{'cycle' if cyclic else 'left-right'} of {states} states", batch, length, peers=peers)


def _long(states: int, batch: int, length: int, *, peers: bool) -> list[Contest]:
    """Compare two kernels: states in one register, and one sequence per lane."""
    return _calls(_process(states, 8), f"{states} states", batch, length, peers=peers)


def _calls(hmm: HMM, name_of: str, batch: int, length: int, *, peers: bool) -> list[Contest]:
    observations = ProcessDataset(hmm, length=length)[0:batch].observations
    calls: dict[str, Callable[..., Any]] = {
        "filter_beliefs": filter_beliefs,
        "smooth_beliefs": smooth_beliefs,
        "most_likely_states": most_likely_states,
        "expected_counts": expected_counts,
    }
    found = {}
    for name, call in calls.items():
        run = functools.partial(call, hmm, observations)
        found[name] = Contest(f"{name}, {name_of}, {batch} x {length}", "tokens")
        found[name].add("hmmscope", run, observations.numel())
        found[name].add("hmmscope, plain implementation", functools.partial(_over_lanes, run), observations.numel())
    if peers and installed("hmmlearn"):
        flat, lengths, model = observations.reshape(-1, 1).numpy(), [length] * batch, hmmlearn_of(hmm)
        found["smooth_beliefs"].add("hmmlearn", lambda: model.predict_proba(flat, lengths), observations.numel())
        found["most_likely_states"].add("hmmlearn", lambda: model.decode(flat, lengths), observations.numel())
    return list(found.values())


def _numbers(states: int, batch: int, length: int, *, peers: bool) -> list[Contest]:
    """Compare inference from given log-likelihoods, from symbols, and from vectors whose likelihoods are computed too."""
    process = require_process_type(make_process("random-gaussian", num_states=states, dimension=2), GaussianHMM)
    seen, tokens = ProcessDataset(process, length=length)[0:batch].observations, batch * length
    chain, logs, hmm = process.chain, process.log_likelihoods(seen), _process(states, 8)
    symbols = ProcessDataset(hmm, length=length)[0:batch].observations
    pairs: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = (
        (filter_states, filter_beliefs),
        (smooth_states, smooth_beliefs),
        (viterbi_states, most_likely_states),
        (_count_states, expected_counts),
    )
    found = []
    for given, of_symbols in pairs:
        contest = Contest(f"{given.__name__.removeprefix('_')}, {states} states, {batch} x {length}", "tokens")
        contest.add("hmmscope, log-likelihoods given", functools.partial(given, chain, logs), tokens)
        contest.add("hmmscope, symbols", functools.partial(of_symbols, hmm, symbols), tokens)
        found.append(contest)
    found[0].add("hmmscope, log_likelihood of vectors", lambda: log_likelihood(process, seen), tokens)
    if peers and installed("hmmlearn"):
        model, rows, lengths = to_hmmlearn(process), seen.flatten(0, 1).numpy(), [length] * batch
        found[0].add("hmmlearn, score", lambda: model.score(rows, lengths), tokens)
    return found


def _count_states(chain: MarkovChainParams, logs: torch.Tensor) -> StateCounts:
    return count_rows(chain, logs.flatten(0, 1), torch.full(logs.shape[:1], logs.shape[1]))


def _over_lanes(run: Callable[[], Any]) -> Any:
    with over_lanes():
        return run()


def _mixture() -> Contest:
    options = {"transition_concentration": 1.0, "emission_concentration": 1.0}
    mixture = require_process_type(
        make_process("random-mixture", num_components=64, num_states=6, num_symbols=8, **options), Mixture
    )
    observations = ProcessDataset(mixture, length=128)[0:256].observations
    contest = Contest("filter_mixture, 64 x 6 states, 256 x 128", "tokens")
    contest.add("hmmscope", lambda: filter_mixture(mixture, observations), observations.numel())
    predictions = functools.partial(mixture_predictions, mixture, observations)
    contest.add("hmmscope, mixture_predictions", predictions, observations.numel())
    contest.add("torch loop", functools.partial(_mixture_loop, mixture, observations), observations.numel())
    return contest


def _products(batch: int, states: int) -> Callable[[], None]:
    left, right = noise(batch, states, dtype=torch.float64), noise(states, states, dtype=torch.float64)
    out = torch.empty_like(left)

    def products() -> None:
        for _ in range(16):
            torch.mm(left, right, out=out)

    return products


def _loop(hmm: HMM, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
    likelihood_VS = hmm.emission.T.contiguous()
    batch, time = observations.shape
    beliefs = torch.empty(batch, time, hmm.num_states, dtype=torch.float64)
    predicted = torch.empty(batch, time, hmm.num_symbols, dtype=torch.float64)
    law, total = hmm.initial.expand(batch, -1), torch.zeros(batch, dtype=torch.float64)
    for t in range(time):
        joint = law * likelihood_VS[observations[:, t]]
        norm = joint.sum(1)
        total += norm.log()
        beliefs[:, t] = joint / norm[:, None]
        law = beliefs[:, t] @ hmm.transition
        predicted[:, t] = law @ hmm.emission
    return beliefs, predicted, total


def _mixture_loop(mixture: Mixture, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    initial_MS, transition_MSS, emission_MSV = mixture.params.rows()
    likelihood_VMS = emission_MSV.permute(2, 0, 1).contiguous()
    batch, time = observations.shape
    posterior = torch.empty(batch, time, len(mixture), dtype=torch.float64)
    predicted = torch.empty(batch, time, mixture.num_symbols, dtype=torch.float64)
    law_MBS = initial_MS[:, None].expand(-1, batch, -1)
    log_weight_BM = mixture.component_weights.log().expand(batch, -1)
    for t in range(time):
        joint = law_MBS * likelihood_VMS[observations[:, t]].transpose(0, 1)
        norm_MB = joint.sum(-1)
        log_weight_BM = (log_weight_BM + norm_MB.T.log()).log_softmax(1)
        posterior[:, t] = log_weight_BM.exp()
        law_MBS = torch.bmm(joint / norm_MB[..., None], transition_MSS)
        predicted[:, t] = torch.einsum("bm,mbv->bv", posterior[:, t], torch.bmm(law_MBS, emission_MSV))
    return posterior, predicted


def _fit(start: HMM, observations: torch.Tensor) -> Callable[[], Any]:
    return functools.partial(
        fit_baum_welch,
        observations,
        start.num_states,
        start.num_symbols,
        start=start,
        num_restarts=1,
        max_iterations=ITERATIONS,
        tolerance=0.0,
        pseudo_count=0.0,
    )


def hmmlearn_of(hmm: HMM) -> Any:
    """Return hmmlearn's equivalent model, with `ITERATIONS` iterations."""
    from hmmlearn.hmm import CategoricalHMM

    model = CategoricalHMM(
        n_components=hmm.num_states, n_features=hmm.num_symbols, n_iter=ITERATIONS, tol=-np.inf, init_params=""
    )
    rows = (hmm.initial, hmm.transition, hmm.emission)
    model.startprob_, model.transmat_, model.emissionprob_ = (part.numpy().copy() for part in rows)
    return model
