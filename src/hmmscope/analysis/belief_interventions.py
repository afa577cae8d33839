"""Belief interventions: test whether a model uses the belief that can be read from its layers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import inference_mode, layers_read, model_outputs, read_stream, to_probs
from hmmscope.analysis.geometry import BELIEF, RIDGE, AffineFit, belief_targets, belief_times, fit_affine
from hmmscope.analysis.interventions import Edit, add, intervene
from hmmscope.analysis.layer_curves import Curves, resampled_curves, with_interval
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.datasets.headers import decoded_hmms
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import check_target, make_target
from hmmscope.processes.params import HMMParams
from hmmscope.processes.vector_process import following
from hmmscope.schema import options_of, require, require_count, require_known, require_names
from hmmscope.seeds import torch_generator

#: Singular values below this fraction of the largest count as zero; beliefs sum to one, so one direction is never read.
RANK = 1e-6
#: Edits of the stream at a position.
INTERVENTIONS = ("set", "swap", "ablate")


@dataclass(frozen=True, kw_only=True)
class InterventionOptions:
    """Options of `belief_interventions`.

    Attributes:
        num_positions: Number of edited positions, at equal distances in the last three quarters of the sequence.
        num_random: Number of draws over which the control ``random`` of `belief_interventions` is averaged.
        ridge: Penalty of the regression that reads the belief.

    Raises:
        InputError: An option is out of range.
    """

    num_positions: int = 4
    num_random: int = 4
    ridge: float = RIDGE

    def __post_init__(self) -> None:
        require_count("num_positions", self.num_positions)
        require_count("num_random", self.num_random)
        require(self.ridge >= 0, "ridge", "must be at least 0", self.ridge)


@registry.instrument("belief-interventions", by=("intervention", "subspace"), only=("metric",))
def belief_interventions(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    layers: Sequence[str] | None = None,
    num_samples: int = 512,
    answer: str = "observation",
    interventions: Sequence[str] = INTERVENTIONS,
    seed: int = 0,
    options: InterventionOptions | None = None,
) -> list[dict]:
    """Edit the belief in one layer at one position, and compare the model's prediction with the exact filter.

    An affine map read(x) = x W + m from the residual stream x to the belief b is fitted on three quarters of the
    samples; the other samples are edited. Let b' and x' be the belief and stream of another edited sample, from the
    same component in mixtures; if each sample begins with its HMM's parameters, the HMMs may differ. Let Σ be the
    covariance of x, and G = (WᵀΣW)⁺ WᵀΣ (see `writing`). The edits are

        set      x + (b' - read(x)) G
        swap     x + (read(x') - read(x)) G
        ablate   x - (read(x) - mean of b) G

    The control ``random`` replaces W by an isotropic random map of whitened x, of equal rank; for ``set``, it replaces
    the change of x by a random change of equal norm. The control ``whole`` replaces x by x' (``swap``) or by the mean
    of x (``ablate``). Let exact(b) be the exact `answer` given belief b, and D a distance (see `metric`
    below). The value of ``set`` and ``swap`` is the fraction of the distance to exact(b') that the edit closes,

        1 - D(exact(b'), model after) / D(exact(b'), model before).

    For ``ablate``, let before = D(exact(b), model before), after = D(exact(b), model after) and mean = D(exact(b),
    exact(mean of b)). The value is the lost fraction of the belief's benefit, (after - before) / (mean - before).

    Args:
        model: any module.
        dataset: samples of an HMM or a mixture.
        layers: module names (default: the residual stream).
        num_samples: number of samples; the last quarter is edited.
        answer: target that the model predicts: "observation", "belief", or "density" for vectors.
        interventions: names of interventions (default: all).
        seed: seed of subspaces and bootstrap.
        options: see `InterventionOptions`.

    Returns:
        Rows (layer, layer_name, fitted, intervention, subspace, metric, value, low, high, error, before, after,
        samples). `fitted` is the R² of the map on its training samples; `subspace` is "belief" or a control. `metric`
        is "kl" (in nats) or "total_variation"; for vectors "squared", the mean squared difference of predicted means,
        scaled as model inputs. Rows of infinite D are omitted. `before` and `after` are means of D. `error` (standard
        error) and the 95 % interval are over edited samples.

    Raises:
        InputError: the process has no belief states, a layer or the answer is unknown, or no two edited samples have
            the same component.

    Source: this project; the affine maps follow Shai et al. (2024).
    """
    options = options_of(options, InterventionOptions)
    require_count("num_samples", num_samples, 16, " (three quarters fit the map, one quarter is edited)")
    check_target(answer, "answer")
    for intervention in require_names("interventions", interventions):
        require_known("interventions", intervention, INTERVENTIONS)
    names = layers_read(model, layers)
    task = _InterventionData(model, dataset, num_samples, _positions(dataset, options.num_positions), answer)
    times, rows = belief_times(dataset), []
    for layer, name in enumerate(names):  # one by one: layers may differ in width
        stream = read_stream(model, dataset, times, [name], num_samples)[0].double()
        x_BTD = stream.unflatten(0, (num_samples, len(times)))
        fit, fitted = _fit(x_BTD, task, options.ridge)
        about = {"layer": layer, "layer_name": name, "fitted": fitted}
        for intervention, subspace, edits in _edits(fit, x_BTD, task, options.num_random, seed):
            if intervention in interventions:
                change = about | {"intervention": intervention, "subspace": subspace}
                rows += [change | moved for moved in _moved(task, name, intervention, edits, seed)]
    return rows


def _fit(x_BTD: Tensor, task: "_InterventionData", ridge: float) -> tuple[AffineFit, float]:
    train = x_BTD[: task.first].flatten(0, 1)
    known = task.beliefs[: task.first].flatten(0, 1)
    fit = fit_affine(train[None], known, ridge)
    return fit, 1 - ((fit(train[None])[0] - known).square().sum() / (known - fit.mean).square().sum()).item()


def _moved(
    task: "_InterventionData", name: str, intervention: str, edits: list[list[Edit]], seed: int
) -> Iterator[dict[str, Any]]:
    for metric, (before, after) in task.distances(name, intervention, edits).items():
        worth = task.worth[metric] if intervention == "ablate" else None
        if np.isfinite([before, after, before if worth is None else worth]).all():
            with np.errstate(divide="ignore", invalid="ignore"):
                draws = _share(before, after, worth, seed)
            if np.isnan(draws).any():  # no distance to gain or lose
                continue
            means = {"before": before.mean().item(), "after": after.mean().item(), "samples": len(before)}
            yield {"metric": metric} | with_interval(draws, len(before)) | means


class _InterventionData:
    def __init__(
        self, model: nn.Module, dataset: ProcessDataset, num_samples: int, times: list[int], answer: str
    ) -> None:
        every = belief_times(dataset)
        beliefs = belief_targets(dataset, every, num_samples)[BELIEF]
        self.model, self.times, self.first = model, times, (3 * num_samples) // 4
        self.beliefs = beliefs.unflatten(0, (num_samples, len(every)))
        self.columns = [int(dataset.layout.token_positions[every[t]]) for t in times]
        batch = dataset[self.first : num_samples]
        components = torch.zeros(len(batch.tokens), dtype=torch.int64) if batch.components is None else batch.components
        hmms = decoded_hmms(dataset.process, dataset.layout, batch.tokens)
        if hmms is not None:
            components = torch.arange(len(batch.tokens))
        self.donor, kept = (components.roll(-1), components) if hmms is not None else _others(components)
        require(len(kept) > 0, "num_samples", "must be larger to edit two samples of one component", num_samples)
        self.changed, self.tokens = self.first + kept, batch.tokens[kept]
        asked, process = make_target(answer, dataset.process, dataset.layout), dataset.process
        self._asked, self.of_vectors = asked, process.real_valued and answer != "belief"
        self.metrics = VECTOR_DISTANCES if self.of_vectors else DISTANCES

        def answers(beliefs_BPS: Tensor) -> Tensor:
            if answer == "belief":
                return beliefs_BPS
            if self.of_vectors:
                return process.standardize(following(process, beliefs_BPS))
            params = process.params if hmms is None else hmms.params
            return exact_answers(params, beliefs_BPS, components[kept], answer)

        own = self.beliefs[self.changed][:, times]
        self.exact, self.wanted = answers(own), answers(own[self.donor])
        mean = answers(self.beliefs[: self.first, times].mean(0).expand_as(own))
        self.worth = {name: of(self.exact, mean).mean(1).numpy() for name, of in self.metrics.items()}
        self.plain = self._answers({})

    def distances(self, name: str, intervention: str, chosen: list[list[Edit]]) -> dict[str, tuple[Curves, Curves]]:
        wanted = self.exact if intervention == "ablate" else self.wanted
        after = [
            (wanted[:, i], self._answers({name: edit}, [i])[:, 0]) for edits in chosen for i, edit in enumerate(edits)
        ]
        return {
            metric: (
                of(wanted, self.plain).mean(1).numpy(),
                torch.stack([of(exact, found) for exact, found in after]).mean(0).numpy(),
            )
            for metric, of in self.metrics.items()
        }

    def _answers(self, edits: dict[str, Edit], which: list[int] | None = None) -> Float64[Tensor, "sample position v"]:
        columns = self.columns if which is None else [self.columns[i] for i in which]
        with inference_mode(self.model) as device, intervene(self.model, edits):
            tokens = self.tokens.to(device)
            tokens = tokens.to(next(self.model.parameters()).dtype) if tokens.is_floating_point() else tokens
            outputs = model_outputs(self.model, tokens, self._asked.num_outputs, kind=self._asked.kind)[:, columns]
        if not self.of_vectors:
            return to_probs(self.model, outputs)
        return self._asked.process.standardize(self._asked.mean(outputs.cpu().double()))


def _positions(dataset: ProcessDataset, count: int) -> list[int]:
    total = len(belief_times(dataset))
    return sorted({round(t) for t in np.linspace(total // 4, total - 1, count)})


def _edits(
    fit: AffineFit, x_BTD: Tensor, task: _InterventionData, num_random: int, seed: int
) -> Iterator[tuple[str, str, list[list[Edit]]]]:

    own_BPD, train_ND = x_BTD[task.changed][:, task.times], x_BTD[: task.first].flatten(0, 1)
    other_BPD, mean_D = own_BPD[task.donor], train_ND.mean(0)
    wanted = task.beliefs[task.changed][:, task.times][task.donor]
    covariance_DD = (train_ND - mean_D).T @ (train_ND - mean_D) / len(train_ND)
    read_DS = (fit.weights / fit.scale.transpose(1, 2))[0]
    found = fit(own_BPD.flatten(0, 1)[None])[0].unflatten(0, own_BPD.shape[:2])
    change_BPD = (wanted - found) @ writing(read_DS, covariance_DD)
    generator = torch_generator(seed, "probe")

    def random(shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def moved(change: Tensor) -> list[Edit]:
        return [add(change[:, i, None], positions=column) for i, column in enumerate(task.columns)]

    def part(x_BPD: Tensor, maps: list[Tensor]) -> list[list[Edit]]:
        return [moved((x_BPD - own_BPD) @ read @ writing(read, covariance_DD)) for read in maps]

    rank = int(torch.linalg.matrix_rank(read_DS, rtol=RANK))
    root_DD, inverse_DD = _roots(covariance_DD)
    maps = [inverse_DD @ random(torch.Size((len(mean_D), rank))) for _ in range(num_random)]
    arrows = [random(change_BPD.shape) @ root_DD for _ in range(num_random)]
    yield "set", "belief", [moved(change_BPD)]
    yield (
        "set",
        "random",
        [moved(arrow * (change_BPD.norm(dim=-1) / arrow.norm(dim=-1))[..., None]) for arrow in arrows],
    )
    for intervention, x_BPD in (("swap", other_BPD), ("ablate", mean_D.expand_as(own_BPD))):
        yield intervention, "belief", part(x_BPD, [read_DS])
        yield intervention, "random", part(x_BPD, maps)
        yield intervention, "whole", [moved(x_BPD - own_BPD)]


def writing(
    read_DS: Float64[Tensor, "width coordinate"], covariance_DD: Float64[Tensor, "width width"]
) -> Float64[Tensor, "coordinate width"]:
    """Compute G = (WᵀΣW)⁺ WᵀΣ, which maps a change of x W to the most likely change of x (W: `read_DS`, Σ: covariance).

    Source: the patterns of Haufe et al. (2014).
    """
    shared_SD = read_DS.T @ covariance_DD
    return torch.linalg.pinv(shared_SD @ read_DS, rtol=RANK, hermitian=True) @ shared_SD


def _roots(covariance_DD: Float64[Tensor, "width width"]) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(covariance_DD)
    kept = values > RANK * values.max()
    scale = values.clamp_min(0).sqrt()
    return vectors * scale @ vectors.T, vectors * torch.where(kept, 1 / scale, 0.0) @ vectors.T


def exact_answers(
    law: HMMParams,
    beliefs: Float64[Tensor, "batch *time state"],
    components: Int64[Tensor, " batch"] | None = None,
    answer: str = "observation",
) -> Float64[Tensor, "batch *time outcome"]:
    """Return the exact next-observation probabilities given beliefs, or the beliefs themselves.

    Args:
        law: parameters of the process.
        beliefs: state probabilities (batch, ..., state).
        components: component of each sample (default: the first).
        answer: "observation" or "belief", which returns `beliefs`.
    """
    if answer == "belief":
        return beliefs
    following_MSV = law.predictive()
    chosen_BSV = following_MSV[torch.zeros(len(beliefs), dtype=torch.int64) if components is None else components]
    return torch.einsum("b...s,bsv->b...v", beliefs, chosen_BSV)


def _others(components: Int64[Tensor, " sample"]) -> tuple[Tensor, Tensor]:
    same_BB = components[:, None] == components
    kept = (same_BB.sum(1) > 1).nonzero()[:, 0]
    of_kept = components[kept]
    places = {int(m): (of_kept == m).nonzero()[:, 0] for m in of_kept.unique()}
    donor = torch.empty_like(kept)
    for found in places.values():
        donor[found] = found.roll(-1)
    return donor, kept


def divergence(exact: Float64[Tensor, "*batch v"], found: Float64[Tensor, "*batch v"]) -> Float64[Tensor, "*batch"]:
    """Compute KL(exact || found) in nats, which may be infinite."""
    return torch.special.xlogy(exact, exact / found.where(exact > 0, 1.0)).sum(-1)


def total_variation(
    exact: Float64[Tensor, "*batch v"], found: Float64[Tensor, "*batch v"]
) -> Float64[Tensor, "*batch"]:
    return (exact - found).abs().sum(-1) / 2


def squared(exact: Float64[Tensor, "*batch y"], found: Float64[Tensor, "*batch y"]) -> Float64[Tensor, "*batch"]:
    return (exact - found).square().mean(-1)


VECTOR_DISTANCES = {"squared": squared}
DISTANCES = {"kl": divergence, "total_variation": total_variation}


def _share(before: Curves, after: Curves, worth: Curves | None, seed: int) -> Curves:
    columns = [before, after] if worth is None else [before, after, worth]
    means = resampled_curves(np.stack(columns, 1), seed=seed)
    if worth is None:
        share: Curves = 1 - means[:, 1] / means[:, 0]
        return share
    lost: Curves = (means[:, 1] - means[:, 0]) / (means[:, 2] - means[:, 0])
    return lost
