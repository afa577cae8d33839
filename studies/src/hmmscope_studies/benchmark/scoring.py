"""Scores from stored predictions, without a model."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import log_softmax

from hmmscope.analysis.activations import layers_read, target_probs
from hmmscope.analysis.fit_length import crossing_length
from hmmscope.analysis.geometry import ExactBeliefs
from hmmscope.analysis.initialization import Controls
from hmmscope.analysis.layer_curves import resampled_curves
from hmmscope.analysis.ngrams import TunedNgrams, other_samples
from hmmscope.analysis.untrained_controls import draw_controls, explained_beyond_controls
from hmmscope.axes import Float64, Tensor
from hmmscope.datasets.process_dataset import Batch, ProcessDataset
from hmmscope.datasets.targets import NextObservation, Target
from hmmscope.errors import InputError
from hmmscope_studies.benchmark.tasks import LONGER, READ, SCORED, TIMES, BenchmarkTask

#: Evaluation loss below which a position counts as fitted.
ERROR_RATE = 0.1
#: Scores of every task.
SCORES = ("excess", "share_solved", "fit_length", "long_excess", "long_fit_length", "belief_share")
FLOORS = ("constant", "counting", "untrained", "shuffled")
#: Samples per forward pass.
_TOGETHER = 32


@dataclass(frozen=True)
class ScoredSamples:
    """The scored samples of a submission, drawn with the digest of its weights as seed.

    Attributes:
        trained, longest: Datasets with samples of the training length, and of 8 times (`TIMES`) that length.
        first: Index of the first scored sample, also set by the digest.
    """

    trained: ProcessDataset
    longest: ProcessDataset
    first: int

    @classmethod
    def of(cls, task: BenchmarkTask, digest: str) -> "ScoredSamples":
        seed, first = int(digest[:8], 16), int(digest[8:16], 16)
        return cls(task.corpus(seed), task.corpus(seed, TIMES), first)

    def batch(self, dataset: ProcessDataset, count: int) -> Batch:
        return dataset[self.first : self.first + count]


def predict(
    model: nn.Module,
    task: BenchmarkTask,
    samples: ScoredSamples,
    layers: tuple[str, ...] | None,
    controls: Controls | None = None,
) -> dict[str, Tensor]:
    """Compute predictions of the model and an untrained control, and the regressed belief.

    Returns:
        Log-probabilities or vectors (sample, evaluated position, output) of the model (``trained``, ``longest``) and
            of an untrained control on the first samples (``untrained``). If `task.reads`, also ``read`` (network,
            example, state): beliefs of test samples, regressed from the best layer of the model and of each control.
    """
    found = {"trained": _answers(model, task, samples, samples.trained, SCORED)}
    with suppress(InputError):  # a model may not support such positions
        found["longest"] = _answers(model, task, samples, samples.longest, LONGER)
    twins: tuple[nn.Module, ...] = ()
    with suppress(InputError):  # the function may return the same module each time
        twins = draw_controls(model, controls=controls).models
    if twins:
        found["untrained"] = _answers(twins[0], task, samples, samples.trained, LONGER)
        if task.reads:
            try:
                found["read"] = _read(model, twins, samples, layers)
            except InputError:  # no layers were found; the card shows it
                if layers is not None:
                    raise
    return found


def _answers(
    model: nn.Module, task: BenchmarkTask, samples: ScoredSamples, dataset: ProcessDataset, count: int
) -> Tensor:
    asked = task.asked(dataset)
    answers = answers_on(model, asked, samples.batch(dataset, count))
    return (answers.log() if asked.kind == "law" else answers).float()


def answers_on(model: nn.Module, asked: Target, batch: Batch) -> Float64[Tensor, "sample judged output"]:
    parts = []
    for begin in range(0, len(batch.tokens), _TOGETHER):
        rows = slice(begin, begin + _TOGETHER)
        part = Batch(batch.tokens[rows], batch.observations[rows], batch.states[rows], None)
        parts.append(target_probs(model, part, asked, 0))
    return torch.cat(parts)


def mean_excess(model: nn.Module, task: BenchmarkTask, samples: ScoredSamples) -> float:
    asked, batch = task.asked(samples.trained), samples.batch(samples.trained, SCORED)
    return _excess(asked, answers_on(model, asked, batch), asked.optimum(batch)).mean().item()


def _exact(samples: ScoredSamples) -> ExactBeliefs:
    task = samples.trained
    return ExactBeliefs.of(ProcessDataset(task.process, layout=task.layout, seed=task.seed, stream="probe"), READ)


def _read(
    model: nn.Module, twins: tuple[nn.Module, ...], samples: ScoredSamples, layers: tuple[str, ...] | None
) -> Tensor:
    exact, values = _exact(samples), []
    names = layers_read(model, layers)
    for one in (model, *twins):
        found = exact.read(exact.stream(one, names))
        values.append(found.values[found.chosen])
    return torch.stack(values).float()


def score(task: BenchmarkTask, samples: ScoredSamples, stored: dict[str, Tensor]) -> dict[str, Any]:
    """Score stored predictions, with baselines and controls.

    ``excess``: mean KL divergence from the optimum, nats per prediction (for vectors squared distance to the optimum);
    ``share_solved``: 1 - excess / excess of the best constant answer;
    ``fit_length``: training lengths up to which the evaluation loss of [Limits] stays below 0.1 (`ERROR_RATE`);
    ``long_excess``: excess beyond the training length, on samples `TIMES` (8) times as long, or None;
    ``long_fit_length``: ``fit_length`` on these longer samples, in training lengths, or None;
    ``belief_share``: (R² of the belief - R² of untrained controls) / (1 - R² of untrained controls), or None.

    The excess of baselines and controls on the same samples is stored as ``constant`` (the best constant distribution),
    ``counting`` (the best n-gram baseline, None without symbols), ``untrained`` (an untrained control) and ``shuffled``
    (predictions for other samples).

    Raises:
        InputError: The predictions have a wrong shape or are not finite.
    """
    asked = task.asked(samples.trained)
    batch = samples.batch(samples.trained, SCORED)
    exact = asked.optimum(batch)
    answers = _laws(asked, stored, "trained", exact)
    excess = _excess(asked, answers, exact)
    found: dict[str, Any] = {"excess": excess.mean().item()}
    floors: dict[str, float | None] = {
        "constant": _excess(asked, _constant(task, samples).expand_as(exact), exact).mean().item(),
        "counting": _counting(asked, samples, batch, exact),
        "untrained": None,
        "shuffled": _excess(asked, answers.roll(1, 0), exact).mean().item(),
    }
    if "untrained" in stored:
        floors["untrained"] = (
            _excess(asked, _laws(asked, stored, "untrained", exact[:LONGER]), exact[:LONGER]).mean().item()
        )
    assert floors["constant"] is not None
    found["share_solved"] = 1 - found["excess"] / floors["constant"]
    length = samples.trained.layout.num_observations
    found["fit_length"] = _fitted(asked, batch, answers, exact)
    found |= {"long_excess": None, "long_fit_length": None}
    if "longest" in stored:
        found |= _beyond(task, samples, stored, length)
    found["belief_share"] = _share(samples, stored["read"]) if "read" in stored else None
    return found | {f"floor_{name}": floors[name] for name in FLOORS}


def _beyond(task: BenchmarkTask, samples: ScoredSamples, stored: dict[str, Tensor], length: int) -> dict[str, float]:
    asked_long, batch_long = task.asked(samples.longest), samples.batch(samples.longest, LONGER)
    exact_long = asked_long.optimum(batch_long)
    answers_long = _laws(asked_long, stored, "longest", exact_long)
    beyond = torch.from_numpy(asked_long.positions > length)
    excess = _excess(asked_long, answers_long, exact_long)[:, beyond].mean().item()
    return {"long_excess": excess, "long_fit_length": TIMES * _fitted(asked_long, batch_long, answers_long, exact_long)}


def _laws(asked: Target, stored: dict[str, Tensor], name: str, like: Tensor) -> Float64[Tensor, "sample judged output"]:
    answers = stored.get(name)
    shape = None if answers is None else tuple(answers.shape)
    if answers is not None and shape == tuple(like.shape):
        probs = log_softmax(answers.double(), -1).exp() if asked.kind == "law" else answers.double()
        if probs.isfinite().all():
            return probs
    raise InputError(f"predictions.{name}: must be finite predictions of shape {tuple(like.shape)}, got {shape}")


def _excess(asked: Target, answers: Tensor, exact: Tensor) -> Tensor:
    if asked.kind == "vector":
        return (answers - exact).square().mean(-1)
    return (torch.special.xlogy(exact, exact) - torch.special.xlogy(exact, answers.clamp_min(2.0**-60))).sum(-1)


def _constant(task: BenchmarkTask, samples: ScoredSamples) -> Tensor:
    dataset = task.corpus(0, stream="counting", scored=False)
    exact = task.asked(dataset).optimum(dataset[0:SCORED])
    return exact.mean((0, 1))


def _counting(asked: Target, samples: ScoredSamples, batch: Batch, exact: Tensor) -> float | None:
    if not isinstance(asked, NextObservation):
        return None
    others = other_samples(samples.trained)
    assert others is not None
    laws = TunedNgrams.tuned(others).probs(samples.trained, batch)
    return min(_excess(asked, law, exact).mean().item() for law in laws.values())


def _fitted(asked: Target, batch: Batch, answers: Tensor, exact: Tensor) -> float:
    counted = asked.counted(batch)
    terms = asked.distance_terms(answers, exact).where(counted, 0.0).sum(0)
    counts = counted.sum(0)
    by_position: dict[int, float | None] = {}
    for place, position in enumerate(asked.positions.tolist()):
        if position > 0:
            by_position[position] = (
                (terms[place] / counts[place]).item() if counts[place] else by_position.get(position - 1)
            )
    known = {position: loss for position, loss in by_position.items() if loss is not None}
    if not known:
        return 0.0
    first = min(known)
    losses = [known.get(position, known[first]) for position in sorted(by_position)]
    return crossing_length([losses], sorted(by_position), ERROR_RATE) / max(by_position)


def _beliefs(samples: ScoredSamples) -> tuple[Tensor, Tensor]:
    belief = _exact(samples).belief.unflatten(0, (READ, -1))
    return belief[: 3 * READ // 4], belief[3 * READ // 4 :]


def _share(samples: ScoredSamples, read: Tensor) -> float | None:
    train, test = _beliefs(samples)
    if read.ndim != 3 or read.shape[1:] != test.flatten(0, 1).shape or len(read) < 4 or read.isnan().any():
        raise InputError(f"predictions.read: must be (model + 3 controls, example, state), got {tuple(read.shape)}")
    spread = (test - train.flatten(0, 1).mean(0)).square().sum((1, 2)).numpy()
    errors = (read.double().unflatten(1, test.shape[:2]) - test).square().sum((2, 3)).numpy()
    means = resampled_curves(np.concatenate([errors, spread[None]]).T)
    left = means[:, :-1] / means[:, -1:]
    return explained_beyond_controls(left[:, 0], left[:, 1:], len(test)).value
