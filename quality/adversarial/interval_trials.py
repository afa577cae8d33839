"""Trials of the coverage of intervals on residuals of stored tables, and of the INVALID flag of evaluations."""

import math
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from analysis_cases import HONEST, Oracle, mixture, random_hmm
from folder_trials import RESULTS
from hmmscope.analysis.curves import evaluate
from hmmscope.analysis.intervals import bootstrap_means, bootstrap_ratio
from hmmscope.analysis.layer_curves import resampled_curves, with_interval
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.inference.monte_carlo import estimate
from hmmscope.lab.evidence.effects import Effect, EstimateWithError
from hmmscope.processes.hmm import HMM
from hmmscope.processes.process import Process
from hmmscope.storage.packed import read_tables
from trials import Report, trial

#: Bounds on the coverage of each 95 % interval, for every method and sample size in `LAWS`.
LEAST, MOST = 0.93, 0.97
#: Standard errors by which a measured coverage may lie outside of these bounds.
_SURE = 3.3
#: Size of a planted leak in nats per observation, number of samples, and symbols per sample.
_LEAK, _LEAK_SAMPLES, _LEAK_LENGTH = 0.02, 32, 64

#: Lower and upper end; None if all values are equal and no interval is shown.
Ends = tuple[float, float] | None


def _mean(values: NDArray[np.float64]) -> Ends:
    _, low, high = bootstrap_means(values)
    return float(low), float(high)


def _ratio(values: NDArray[np.float64]) -> Ends:
    """Return the interval of a ratio of two correlated means, minus the true ratio 1/2."""
    bottom = 1 + 0.2 * np.tanh(values)
    _, low, high = bootstrap_ratio(0.5 * bottom + 0.1 * values, bottom)
    return low - 0.5, high - 0.5


def _curve(values: NDArray[np.float64]) -> Ends:
    found = with_interval(resampled_curves(values[:, None])[:, 0], len(values))
    return found["low"], found["high"]


def _sampled(values: NDArray[np.float64]) -> Ends:
    found = estimate(torch.from_numpy(values))
    return float(found.low), float(found.high)


def _seeds(values: NDArray[np.float64]) -> Ends:
    found = Effect.pooled(values.tolist())
    return None if found.low is None or found.high is None else (found.low, found.high)


def _one_seed(values: NDArray[np.float64]) -> Ends:
    """Return the interval of an effect from a single seed with an error from its samples."""
    _, low, high = bootstrap_means(values)
    found = Effect.pooled([EstimateWithError(float(values.mean()), float(high - low) / 2 / 1.959964)])
    return None if found.low is None or found.high is None else (found.low, found.high)


#: Methods of intervals, and the sample sizes at which results show them.
LAWS: dict[str, tuple[Callable[[NDArray[np.float64]], Ends], tuple[int, ...]]] = {
    "means over samples": (_mean, (2, 4, 8, 16, 32, 64, 99, 100, 256)),
    "ratios over pieces": (_ratio, (8, 16, 32, 64, 99, 100, 256)),
    "curves over layers": (_curve, (8, 16, 32, 64, 128, 1000)),
    "sampled sequences": (_sampled, (8, 50, 100, 1000)),
    "means over seeds": (_seeds, (2, 3, 5, 10)),
    "one seed, over samples": (_one_seed, (32, 256)),
}


def residuals() -> list[NDArray[np.float64]]:
    """Return the residuals of seeds from the mean of their group, for each measure of the stored tables, with mean zero.

    Residuals of a measure are divided by its median standard deviation. Groups outside of half to twice that deviation are
    omitted, because they would dominate the tails. Division of each group by its own deviation would remove the tails.
    """
    found = []
    for kept in sorted(RESULTS.iterdir()):
        for rows in read_tables(kept).values():
            for groups in _by_measure(rows).values():
                usual = float(np.median([np.std(values, ddof=1) for values in groups]))
                like = [values for values in groups if usual / 2 <= np.std(values, ddof=1) <= 2 * usual]
                pool = np.concatenate([(v - v.mean()) * math.sqrt(len(v) / (len(v) - 1)) for v in like])
                if len(pool) >= 60:
                    found.append(pool / usual)
    return found


def _by_measure(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], list[NDArray[np.float64]]]:
    """Return the values of groups of at least four seeds in a table, by measure."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows:
        value = row.get("value")
        if "seed" in row and isinstance(value, float) and math.isfinite(value):
            about = {
                key: x for key, x in row.items() if key not in ("seed", "value", "low", "high", "error", "samples")
            }
            groups[tuple(f"{key}={about[key]}" for key in sorted(about))].append(value)
    measures: dict[tuple[str, ...], list[NDArray[np.float64]]] = defaultdict(list)
    for key, values in groups.items():
        if len(values) >= 4 and np.std(values) > 1e-12 * abs(np.mean(values)):
            named = tuple(part for part in key if part.split("=")[0] in ("metric", "quantity", "effect", "predictor"))
            measures[named].append(np.array(values))
    return measures


@trial("coverage")
def coverage(folder: Path, number: int, rng: random.Random) -> Report:
    """Draw samples from residuals with mean zero: 95 % intervals must contain zero in 93 to 97 % of them."""
    report = Report("G34", "intervals by every method and sample size, on samples of the residuals of stored tables")
    laws, drawn = residuals(), np.random.default_rng(rng.randrange(2**32))
    assert laws
    least, most = (1.0, ""), (0.0, "")
    for name, (interval, sizes) in LAWS.items():
        for size in sizes:
            drawings = (drawn.choice(laws[drawn.integers(len(laws))], size) for _ in range(number))
            shown = [ends for ends in map(interval, drawings) if ends is not None]
            report.trials += len(shown)
            share = sum(low <= 0 <= high for low, high in shown) / len(shown)
            error = _SURE * math.sqrt(LEAST * (1 - LEAST) / len(shown))
            least, most = min(least, (share, f"{name} {size}")), max(most, (share, f"{name} {size}"))
            if not LEAST - error <= share <= MOST + error:
                report.found(f"{name} of {size}: covers {share:.3f}")
    report.note = f"{sum(len(sizes) for _, sizes in LAWS.values())} methods and sizes, {len(laws)} measures; "
    report.note += f"least {least[0]:.3f} ({least[1]}), most {most[0]:.3f} ({most[1]})"
    return report


def _clean(rng: random.Random) -> tuple[Process, Callable[[torch.Tensor], torch.Tensor]]:
    """Return a random process and an honest model of it: the optimum or a worse predictor."""
    seed, kind = rng.randrange(2**31), rng.randrange(4)
    if kind == 0:  # rare symbols: a model that gives them no probability is seldom penalized
        rare = 10 ** -rng.uniform(1, 5)
        shift = torch.tensor([0.0, -rng.choice((2.0, 8.0, 30.0))])
        return HMM([1.0], [[1.0]], [[1 - rare, rare]]), lambda x: x + shift
    process = mixture(seed) if kind == 1 else random_hmm(seed, concentration=rng.choice((0.1, 0.5, 2.0)))
    return process, HONEST[rng.choice(sorted(HONEST))]


@trial("alarms")
def alarms(folder: Path, number: int, rng: random.Random) -> Report:
    """Evaluate honest models on few or many samples: none may be INVALID; the note counts evaluations by sample size."""
    report = Report("G34", "INVALID flags of honest models, on 1 to 64 samples of 1 to 24 symbols")
    sizes: dict[int, int] = {}
    for _ in range(number):
        process, model = _clean(rng)
        samples, seed = rng.choice((1, 2, 3, 4, 8, 16, 64)), rng.randrange(2**31)
        layout = (
            PromptLayout(num_demonstrations=1, demonstration_length=3, test_length=4) if rng.random() < 0.2 else None
        )
        dataset = ProcessDataset(process, layout=layout or SequenceLayout(length=rng.choice((2, 3, 5, 25))), seed=seed)
        score = evaluate(Oracle(dataset, model), dataset, num_samples=samples, baselines=False)
        report.trials += 1
        sizes[samples] = sizes.get(samples, 0) + 1
        if score.invalid is not None:
            report.found(f"{samples} samples of {dataset.layout}, seed {seed}: {score.invalid}")
    report.note = ", ".join(f"{count} of {samples} samples" for samples, count in sorted(sizes.items()))
    return report


@trial("leaks")
def leaks(folder: Path, number: int, rng: random.Random) -> Report:
    """Evaluate models with leaked labels that gain .02 nats per observation: at least 99 % must be INVALID."""
    report = Report(
        "G34", f"planted leaks of {_LEAK} nats per observation: {_LEAK_SAMPLES} samples of {_LEAK_LENGTH} symbols"
    )
    missed = 0
    for _ in range(number):
        process: Process = random_hmm(rng.randrange(2**31), concentration=rng.choice((0.5, 2.0)))
        dataset = ProcessDataset(process, layout=SequenceLayout(length=_LEAK_LENGTH + 1), seed=rng.randrange(2**31))
        batch = dataset[0:_LEAK_SAMPLES]
        after = batch.observations[:, 1:, None].long()
        laws = Oracle(dataset)(batch.tokens).double().softmax(-1)[:, : after.shape[1]]
        truth = torch.zeros_like(laws).scatter_(2, after, 1.0)
        low, high = 0.0, 1.0  # the weight of the true label that gains `_LEAK` on average
        for _ in range(50):
            part = (low + high) / 2
            gain = ((1 - part) * laws + part * truth).log().sub(laws.log()).gather(2, after).mean()
            low, high = (part, high) if gain < _LEAK else (low, part)
        leaking = ((1 - low) * laws + low * truth).log()
        model = _Held(leaking)
        score = evaluate(model, dataset, num_samples=_LEAK_SAMPLES, baselines=False)
        report.trials += 1
        missed += score.invalid is None
    if missed > 0.01 * number:
        report.found(f"{missed} of {number} were not noticed")
    report.note = f"{number - missed} of {number} were flagged"
    return report


class _Held(torch.nn.Module):
    """Return fixed logits for any tokens."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self._logits = logits

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(
            self._logits[: len(tokens), : tokens.shape[1]], (0, 0, 0, max(0, tokens.shape[1] - self._logits.shape[1]))
        )
