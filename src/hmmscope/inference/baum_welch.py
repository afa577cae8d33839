"""The in-context baseline that fits a hidden Markov model to what it has seen so far: Baum-Welch, through hmmlearn."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hmmscope.axes import Float64, Int, Tensor
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.ragged import check_ragged
from hmmscope.processes.hmm import HMM
from hmmscope.schema import require
from hmmscope.seeds import derived_seed


@dataclass(frozen=True)
class BaumWelchFit:
    """A fitted model.

    Attributes:
        hmm: the model of the best restart.
        log_likelihood: log P(all observations) under it, nats.
        num_iterations: iterations of that restart.
        converged: whether its last step gained less than the tolerance, before the iterations ended.
    """

    hmm: HMM
    log_likelihood: float
    num_iterations: int
    converged: bool


def fit_baum_welch(
    observations: Int[Tensor, "batch time"],
    num_states: int,
    num_symbols: int,
    *,
    lengths: object = None,
    num_restarts: int = 3,
    max_iterations: int = 50,
    tolerance: float = 1e-3,
    pseudo_count: float = 0.1,
    seed: int = 0,
) -> BaumWelchFit:
    """Fit a state-emitting HMM to independent sequences by expectation maximisation from random starts.

    With a positive `pseudo_count` c, which is added to every expected count, the maximum is that of the posterior under
    Dirichlet(1 + c) rows, and no symbol is taken to be impossible because it has not been seen yet.

    Args:
        observations: symbols in [0, V), shape (batch, time).
        num_states, num_symbols: S and V of the model.
        lengths: optional number of observations of each sequence (batch,).
        num_restarts: random starts; the one with the largest log-likelihood is kept.
        max_iterations, tolerance: of each; the tolerance is in nats of all observations together.
        pseudo_count: at least 0.
        seed: in [0, 2^32).

    Raises:
        InputError: no observations; options out of range.
        ResourceError: hmmlearn (the extra `hmm`) is absent.

    Cost: restarts * iterations * batch * time * S^2.
    """
    for name, value, least in (
        ("num_states", num_states, 1),
        ("num_restarts", num_restarts, 1),
        ("max_iterations", max_iterations, 1),
        ("pseudo_count", pseudo_count, 0),
    ):
        require(value >= least, name, f"must be at least {least}", value)
    model_class = _categorical_hmm()
    checked, _, inside = check_ragged(observations, num_symbols, None, lengths)
    counts = [count for count in inside.sum(1).tolist() if count]
    require(sum(counts) > 0, "observations", "must hold at least one", tuple(checked.shape))
    flat = checked[inside][:, None].numpy()
    best: tuple[float, Any] | None = None
    for restart in range(num_restarts):
        model = model_class(
            n_components=num_states,
            n_features=num_symbols,
            n_iter=max_iterations,
            tol=tolerance,
            startprob_prior=1 + pseudo_count,
            transmat_prior=1 + pseudo_count,
            emissionprob_prior=1 + pseudo_count,
            random_state=derived_seed(seed, "baum-welch", restart) % 2**32,
        )
        logger = logging.getLogger("hmmlearn")
        level = logger.level
        logger.setLevel(logging.ERROR)  # it remarks on every small loss of likelihood to the prior
        try:
            model.fit(flat, counts)
        finally:
            logger.setLevel(level)
        score = float(model.score(flat, counts))
        if best is None or score > best[0]:
            best = score, model
    assert best is not None
    model = best[1]
    rows = (model.startprob_, model.transmat_, model.emissionprob_)
    fitted = HMM(*rows, title="Baum-Welch fit", allow_drop_tiny=True)
    return BaumWelchFit(fitted, best[0], int(model.monitor_.iter), model.monitor_.iter < max_iterations)


def baum_welch_predictions(
    observations: Int[Tensor, "batch time"],
    num_states: int,
    num_symbols: int,
    positions: Sequence[int],
    **options: Any,
) -> Float64[Tensor, "batch position symbol"]:
    """P(o_{t+1} | o_0..o_t) at each t of `positions`, by the model fitted to o_0..o_t of that sequence alone.

    Args:
        observations: (batch, time).
        num_states, num_symbols: of the models.
        positions: times t in [0, time).
        options: of `fit_baum_welch`, but `lengths`.

    Cost: a fit for each sequence and position.
    """
    observations = torch.as_tensor(observations)
    time = observations.shape[1]
    if not all(0 <= t < time for t in positions):
        raise InputError(f"positions: must be in [0, {time}), got {list(positions)}")
    predicted = torch.zeros(len(observations), len(positions), num_symbols, dtype=torch.float64)
    for b in range(len(observations)):
        for p, t in enumerate(positions):
            seen = observations[b : b + 1, : t + 1]
            fitted = fit_baum_welch(seen, num_states, num_symbols, **options)
            predicted[b, p] = filter_beliefs(fitted.hmm, seen).next_observation[0, -1]
    return predicted


def _categorical_hmm() -> Any:
    try:
        from hmmlearn.hmm import CategoricalHMM
    except ImportError:
        raise ResourceError("Baum-Welch needs hmmlearn: pip install 'hmmscope[hmm]'") from None
    return CategoricalHMM
