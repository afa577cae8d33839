"""Comparison of a model with other predictors on samples that start with a header (HMM parameters)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import BATCH, target_probs
from hmmscope.analysis.layer_curves import Curves, resampled_curves, with_interval
from hmmscope.analysis.ngrams import TunedNgrams, other_samples
from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.process_dataset import Batch, ProcessDataset, check_dataset
from hmmscope.datasets.targets import Target, make_target
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import baum_welch_predictions
from hmmscope.inference.fast import mixture_predictions
from hmmscope.processes.capabilities import HEADERS
from hmmscope.processes.process import Process
from hmmscope.schema import options_of, require_count
from hmmscope.seeds import PURPOSES

BAUM_WELCH, BAYES, WRONG = "baum-welch", "bayes", "wrong-header"
QUANTITIES = ("excess", "entropy-error", "entropy-bias")

#: Probabilities (sample, position, outcome) by predictor, NaN where there are none.
Laws = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class HeaderOptions:
    """Options of `header`.

    Attributes:
        num_hmms, num_pools: Size and number of pools (sets of random HMMs) for predictor ``bayes``; 0 pools omit it.
        num_fits: Number of samples to which Baum-Welch is applied; 0 omits ``baum-welch``.
        positions: Numbers of observations after which Baum-Welch predicts (default: 1, 2, 4, ...).
        ngrams: True adds n-gram baselines.

    Raises:
        InputError: An option is out of range.
    """

    num_hmms: int = 4096
    num_pools: int = 4
    num_fits: int = 16
    positions: Sequence[int] | None = None
    ngrams: bool = True

    def __post_init__(self) -> None:
        require_count("num_hmms", self.num_hmms)
        require_count("num_pools", self.num_pools, 0)
        require_count("num_fits", self.num_fits, 0)


@registry.instrument("header", x="position", by=("predictor",), only=("quantity",))
def header(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    num_samples: int = 256,
    target: str = "observation",
    seed: int = 0,
    options: HeaderOptions | None = None,
) -> list[dict]:
    """Compute the excess loss and entropy error of predictors by position::

        ``model``           the model
        ``wrong-header``    the exact filter with another sample's header
        ``order-k``, ``context-tree``   n-gram baselines (`TunedNgrams.tuned`)
        ``baum-welch``      an HMM of equal size fitted to earlier observations, at `positions`
        ``bayes`` the Bayes predictor that knows only the distribution of HMMs, estimated from `num_pools` pools of
        `num_hmms` HMMs

    The optimum is the exact filter with the sample's header. The quantities are ``excess``, KL(optimum || predictor) in
    nats, ``entropy-bias``, H(predictor) - H(optimum) in bits, and ``entropy-error``, its absolute value. If the target
    is the belief, only the first two predictors are scored.

    Args:
        model: any module from tokens to logits.
        dataset: dataset in the layout `header`.
        num_samples: number of samples.
        target: "observation" or "belief".
        seed: seed of bootstrap and fits.
        options: see `HeaderOptions`.

    Returns:
        Rows (predictor, position, quantity, value, low, high, error, samples). `position` is the number of earlier
        observations; None marks the mean over positions. The 95 % interval is over samples, for
        ``bayes`` also over pools. Rows of infinite excess are omitted.

    Raises:
        InputError: the dataset is in another layout.

    Source: this project; entropy by position as in Agarwal, Dalal and Misra (2025), arXiv 2512.22471.
    """
    options = options_of(options, HeaderOptions)
    behind_headers(dataset)
    require_count("num_samples", num_samples, 2)
    asked = make_target(target, dataset.process, dataset.layout)
    first = list(range(0, num_samples, BATCH))
    if num_samples - first[-1] == 1:  # the wrong header needs two samples per batch
        first.pop()
    samples = [dataset[begin:end] for begin, end in pairwise([*first, num_samples])]
    exact = torch.cat([asked.optimum(batch) for batch in samples])
    predictors: dict[str, Callable[[Batch], Tensor]] = {
        "model": partial(target_probs, model, asked=asked, block_length=0)
    }
    predictors[WRONG] = partial(_of_wrong_header, dataset, asked)
    about = {"seed": seed}
    rows: list[dict] = []
    for name, laws_of in predictors.items():
        rows += _rows(name, torch.cat([laws_of(batch) for batch in samples]), exact, asked, **about)
    if target != "observation":
        return rows
    for name, probs in (_counted(dataset, samples) if options.ngrams else {}).items():
        rows += _rows(name, probs, exact, asked, **about)
    if options.num_fits:
        positions = _doublings(dataset) if options.positions is None else options.positions
        known = torch.from_numpy(np.array(positions))
        fitted = torch.full_like(exact[: options.num_fits], torch.nan)
        fitted[:, known] = _fitted(dataset, options.num_fits, known.tolist())
        rows += _rows(BAUM_WELCH, fitted, exact[: options.num_fits], asked, **about)
    if options.num_pools:
        pools = [prior_pool(dataset.process, options.num_hmms, number) for number in range(options.num_pools)]
        found = [torch.cat([asked.answer_of(pool, batch) for batch in samples]) for pool in pools]  # type: ignore[attr-defined]
        rows += _pooled([_rows(BAYES, probs, exact, asked, **about) for probs in found])
    return rows


def _counted(dataset: ProcessDataset, samples: Sequence[Batch]) -> Laws:
    others = other_samples(dataset)
    assert others is not None
    tuned = TunedNgrams.tuned(others)
    found = [tuned.probs(dataset, batch) for batch in samples]
    return {name: torch.cat([probs[name] for probs in found]) for name in found[0]}


def behind_headers(dataset: ProcessDataset) -> int:
    """Return the number of header tokens; raise InputError if the layout has no header."""
    check_dataset(dataset)
    if dataset.layout.header_format is None:
        raise InputError(
            "dataset: must have a header layout; use ProcessDataset(process, layout=hmmscope.HeaderLayout(length=...))"
        )
    return dataset.layout.header_format.num_entries


def prior_pool(process: Process, num_hmms: int, number: int = 0) -> Process:
    process.require_capability(HEADERS, "prior_pool")
    first = (PURPOSES["monte-carlo"] << 40) + number * num_hmms
    pool, _ = process.select_components(torch.arange(first, first + num_hmms)) or (process, None)
    return pool


def bayes_predictions(
    process: Process, observations: Tensor, *, num_hmms: int = 4096, number: int = 0
) -> Float64[Tensor, "batch time symbol"]:
    """Estimate P(o_t | o_0..o_{t-1}) by Monte Carlo over the distribution of HMMs, without reading the header.

    sum_m P_m(o_0..o_t) / sum_m P_m(o_0..o_{t-1})    over HMMs m drawn from the distribution

    Args:
        process: process with a new HMM for each sample.
        observations: symbols (batch, time).
        num_hmms: number of HMMs drawn.
        number: index of the set of HMMs; sets are independent.
    """
    pool = prior_pool(process, num_hmms, number)
    return mixture_predictions(pool, observations, dtype=torch.float64).predicted_observation


def _of_wrong_header(dataset: ProcessDataset, asked: Target, batch: Batch) -> Tensor:
    length = dataset.layout.context_length - dataset.layout.num_observations
    tokens = batch.tokens.clone()
    tokens[:, :length] = batch.tokens[:, :length].roll(1, 0)
    return asked.optimum(Batch(tokens, batch.observations, batch.states, batch.components))


def _doublings(dataset: ProcessDataset) -> list[int]:
    return [2**k for k in range(20) if 2**k < dataset.layout.num_observations]


def _fitted(dataset: ProcessDataset, num_fits: int, known: list[int]) -> Tensor:
    sizes = dataset.process.num_states, dataset.process.num_symbols
    seen = dataset[0:num_fits].observations
    return baum_welch_predictions(seen, *sizes, [t - 1 for t in known], num_restarts=2, num_tries=1, max_iterations=30)


def entropy_bits(laws: Float64[Tensor, "*batch outcome"]) -> Float64[Tensor, "*batch"]:
    return -torch.special.xlogy(laws, laws).sum(-1) / np.log(2)


def _rows(name: str, probs: Tensor, exact: Tensor, asked: Target, *, seed: int) -> list[dict]:
    apart = entropy_bits(probs) - entropy_bits(exact)
    excess = (torch.special.xlogy(exact, exact) - torch.special.xlogy(exact, probs)).sum(-1)
    found = dict(zip(QUANTITIES, (excess, apart.abs(), apart), strict=True))
    kept = ~probs[:, :, 0].isnan().any(0)
    positions: list[int | None] = [*asked.positions[kept.numpy()].tolist(), None]
    rows = []
    for quantity, values in found.items():
        by_column: Curves = values[:, kept].numpy()
        by_column = np.concatenate([by_column, by_column.mean(1, keepdims=True)], 1)
        finite = np.isfinite(by_column).all(0)
        draws = resampled_curves(by_column.T[finite].T, seed=seed)
        for place, column in enumerate(np.flatnonzero(finite)):
            about = {"predictor": name, "position": positions[column], "quantity": quantity}
            rows.append(about | with_interval(draws[:, place], len(probs)) | {"samples": len(probs)})
    return rows


def _pooled(pools: list[list[dict]]) -> Iterator[dict]:
    for same in zip(*pools, strict=True):
        values = np.array([row["value"] for row in same])
        between = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        error = float(np.hypot(np.mean([row["error"] for row in same]), between))
        mean = float(values.mean())
        yield same[0] | {"value": mean, "low": mean - 1.96 * error, "high": mean + 1.96 * error, "error": error}
