"""[MultiTask] Figure 1: accuracy in context, against demonstrations and along the test sequence."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.analysis.activations import as_law
from hmmscope.analysis.curves import MAX_ORDER, Score, evaluate
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.constructions.least_squares import demonstration_samples, least_squares, window_features
from hmmscope.constructions.multitask_network import MultiTaskTransformer
from hmmscope.corpora.corpus import Corpus
from hmmscope.corpora.layouts import Prompts
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured, Tables
from hmmscope.experiments.multitask_fig1_figures import figures
from hmmscope.experiments.multitask_models import multitask_config
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.pipeline import Run
from hmmscope.schema import require

#: Shares of a uniform law that the mixture over the pool is tried with on other HMMs.
_RETRIEVAL = {"smoothings": [0.01, 0.03, 0.1, 0.3]}

#: Sizes of the measurements.
SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"samples": 64, "first_position": 4, "memory_lengths": [1, 2], "num_steps": 3, "smoothings": [0.01, 0.1]},
    "small": {"samples": 1024, "first_position": 4, "memory_lengths": [2, 4], "num_steps": 20, **_RETRIEVAL},
    "gpu": {"samples": 1024, "first_position": 4, "memory_lengths": [2, 4], "num_steps": 20, **_RETRIEVAL},
    "paper": {"samples": 1024, "first_position": 4, "memory_lengths": [2, 4], "num_steps": 20, **_RETRIEVAL},
}

#: Baselines that count in the prompt, from the simplest on.
NGRAMS = tuple(f"order-{order}" for order in range(MAX_ORDER + 1))


@registry.experiment("multitask-fig1")
class MultiTaskFig1(Experiment):
    """See the module."""

    title = "Accuracy rises with demonstrations and along the test sequence"
    summary = (
        "A RoFormer trained on prompts from a mixture of hidden Markov models predicts fresh prompts: of the HMMs of its "
        "pool, and of HMMs of the same prior that it never saw. Beside it stand what can be counted in the prompt, the "
        "network that Theorem 1 constructs, the Bayes mixture over the pool, and the filter that is told the HMM."
    )
    num_seeds = NUM_SEEDS
    intervals = SEED_INTERVALS
    groups = {"predictions": ("demonstrations", "positions", "effects")}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {"model": multitask_config(scale)}

    def measurements(self, scale: str) -> dict[str, Any]:
        return dict(SIZES[scale])

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        run = runs["model"]
        first, longest = sizes["first_position"], min(run.config.layout.sequence_lengths) - 1
        require(0 <= first <= longest, "measurements.first_position", f"must be in [0, {longest}]", first)
        scores = {"pool": pool_score(run, sizes), "unseen": unseen_score(run, sizes)}
        tables: Measured = {"demonstrations": [], "positions": [], "effects": effects(scores, first)}
        for pool, score in scores.items():
            kept = {"demonstrations": score.positions >= first, "positions": _last(score)}
            for axis, columns in kept.items():
                tables[axis] += [{"pool": pool} | row for row in score.rows(axis, columns)]
        return tables

    def figures(self, tables: Tables) -> list[Figure]:
        return figures(tables)


# ---------------------------------------------------------------------------------------------------------------------
# Predictors


def pool_score(run: Run, sizes: dict[str, Any]) -> Score:
    """The model on fresh prompts of its own HMMs, beside the optimum, the ceiling and the baselines."""
    corpus = run.corpus()
    score = evaluate(run.model, corpus, num_samples=sizes["samples"])
    kept = ("model", "optimum", "known-component", *NGRAMS)
    metrics = ("accuracy", "loss", "excess")
    measures = {name: {m: v for m, v in score.measures[name].items() if m in metrics} for name in kept}
    return replace(score, measures=measures | constructed_measures(corpus, score, sizes))


def unseen_score(run: Run, sizes: dict[str, Any]) -> Score:
    """The model on prompts of HMMs of the same prior that are not in its pool.

    The Bayes mixture over the pool is no optimum there. It is what a learner does that only retrieves, and is shown with
    its probabilities smoothed: as they are, a prompt of another HMM may be impossible. Of several shares of smoothing the
    one is taken that has the least loss at the end of these prompts, in favour of retrieval.
    """
    spec: Any = run.config.process
    held_out = replace(spec, first_component=spec.first_component + spec.num_components)
    corpus = Corpus(held_out.build(), layout=run.config.layout, seed=run.config.seed, stream="evaluate")
    score = evaluate(run.model, corpus, num_samples=sizes["samples"])
    kept = ("model", "known-component", *NGRAMS)
    measures = {name: {m: score.measures[name][m] for m in ("accuracy", "loss")} for name in kept}
    observations = corpus[0 : sizes["samples"]].observations
    assert isinstance(run.process, Mixture)
    judged, starts = corpus.layout.predicted, torch.from_numpy(corpus.layout.starts)
    end = _last(score) & (score.positions >= sizes["first_position"])
    found = []
    for share in sizes["smoothings"]:
        law = optimal_predictions(smoothed(run.process, share), observations, starts=starts).predicted_observation
        found.append(_measured(law[:, judged], observations[:, judged]))
    measures["retrieval"] = min(found, key=lambda one: float(one["loss"][:, end].mean()))
    return replace(score, measures=measures | constructed_measures(corpus, score, sizes))


def smoothed(mixture: Mixture, share: float) -> Mixture:
    """Each transition and emission mixed with a uniform one: (1 - share) p + share / number of columns."""
    require(0 < share < 1, "measurements.smoothings", "must be in (0, 1)", share)

    def mix(rows: Tensor) -> Tensor:
        return (1 - share) * rows + share / rows.shape[-1]

    components = []
    for m in range(len(mixture)):
        hmm = mixture[m]
        assert isinstance(hmm, HMM)
        components.append(HMM(hmm.initial_S, mix(hmm.transition_SS), mix(hmm.emission_SV)))
    return Mixture(mixture.weights_M, components)


def constructed_measures(
    corpus: Corpus, score: Score, sizes: dict[str, Any]
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Accuracy of Theorem 1's network at each judged column, by predictor ``theorem1-<memory length>``.

    NaN where it does not speak: before the first demonstration, and where its window reaches beyond the sequence. There
    is no loss: a vector that is clipped to a law gives zeros.
    """
    observations = corpus[0 : sizes["samples"]].observations
    judged = torch.from_numpy(corpus.layout.predicted)
    found = {}
    for memory in sizes["memory_lengths"]:
        accuracy = np.full((len(observations), len(judged)), np.nan)
        for number in range(1, int(score.demonstrations.max()) + 1):
            here = np.flatnonzero((score.demonstrations == number) & (score.positions >= memory))
            vectors = constructed_vectors(corpus, observations, judged[here], number, memory, sizes["num_steps"])
            labels = observations[:, judged[here]]
            accuracy[:, here] = _measured(as_law(_Vectors(), vectors), labels)["accuracy"]
        found[f"theorem1-{memory}"] = {"accuracy": accuracy}
    return found


def constructed_vectors(
    corpus: Corpus, observations: Int64[Tensor, "batch time"], asked: Int64[Tensor, "judged"], number: int,
    memory_length: int, num_steps: int,
) -> Float64[Tensor, "batch judged symbol"]:  # fmt: skip
    """What the network of Theorem 1 for `number` demonstrations says of the observations `asked`.

    Its gradient layers are gradient descent on the windows of the demonstrations, so that is what is computed here, with
    the learning rate 1 / memory_length that the network has by default; it equals the network to rounding.
    """
    layout, num_symbols = corpus.layout, corpus.num_symbols
    assert isinstance(layout, Prompts)
    length = layout.demonstration_length
    demonstrations = observations[:, : number * length].unflatten(1, (number, length))
    problem = least_squares(demonstration_samples(demonstrations, num_symbols, memory_length))
    weights_BVF = problem.iterates(num_steps, 1 / memory_length)[-1]
    back = torch.arange(1, memory_length + 1)
    windows = observations[:, asked[:, None] - back]
    return window_features(windows, num_symbols) @ weights_BVF.mT


class _Vectors(torch.nn.Module):
    """Outputs are read as those of the constructed network."""

    outputs = MultiTaskTransformer.outputs


def _measured(law: Float64[Tensor, "batch judged symbol"], labels: Int64[Tensor, "batch judged"]) -> dict:
    """Accuracy and loss (sample, judged)."""
    loss = -law.gather(2, labels[..., None])[..., 0].log()
    return {"accuracy": (law.argmax(-1) == labels).double().numpy(), "loss": loss.numpy()}


# ---------------------------------------------------------------------------------------------------------------------
# What the claims rest on


@dataclass(frozen=True)
class _Part:
    """Where an effect is taken."""

    score: Score
    first_position: int

    def mean(self, predictor: str, metric: str, columns: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Mean over some judged columns (sample,)."""
        values = self.score.measures[predictor][metric][:, columns]
        return np.asarray(values.mean(1))

    @property
    def late(self) -> NDArray[np.bool_]:
        return np.asarray(self.score.positions >= self.first_position)

    @property
    def end(self) -> NDArray[np.bool_]:
        return np.asarray(_last(self.score) & self.late)


def _last(score: Score) -> NDArray[np.bool_]:
    return np.asarray(score.demonstrations == score.demonstrations.max())


def effects(scores: dict[str, Score], first_position: int) -> list[dict]:
    """Differences that the claims rest on, paired within prompts: (effect, pool, first_position, value, ...).

    ``demonstrations``: model's accuracy with all demonstrations less that without any, positions >= `first_position`;
    ``length``: at the last position of the test sequence less that at the first, all demonstrations; ``length after
    one``: less that at the second. At the end (all demonstrations, positions >= `first_position`): ``above order-1``,
    ``below the ceiling``: model less order-1 n-gram, known HMM less model, accuracy; ``loss above the ceiling``: model
    less known HMM, nats; ``gain over order-1``, ``gain over retrieval``: n-gram, or smoothed mixture over the pool, less
    model, nats.
    """
    rows = []
    for pool, score in scores.items():
        part = _Part(score, first_position)
        none = (score.demonstrations == 0) & part.late
        along = [_last(score) & (score.positions == t) for t in (0, 1, score.positions[_last(score)].max())]
        first, second, last = (part.mean("model", "accuracy", columns) for columns in along)
        accuracy = {name: part.mean(name, "accuracy", part.end) for name in ("model", "order-1", "known-component")}
        loss = {
            name: part.mean(name, "loss", part.end)
            for name in ("model", "order-1", "known-component", "retrieval")
            if name in score.measures
        }
        found = {
            "demonstrations": accuracy["model"] - part.mean("model", "accuracy", none),
            "length": last - first,
            "length after one": last - second,
            "above order-1": accuracy["model"] - accuracy["order-1"],
            "below the ceiling": accuracy["known-component"] - accuracy["model"],
            "loss above the ceiling": loss["model"] - loss["known-component"],
            "gain over order-1": loss["order-1"] - loss["model"],
        }
        if "retrieval" in loss:
            found["gain over retrieval"] = loss["retrieval"] - loss["model"]
        for effect, values in found.items():
            mean, low, high = (float(x) for x in bootstrap_means(values))
            number = {"value": mean, "low": low, "high": high, "samples": len(values)}
            rows.append({"effect": effect, "pool": pool, "first_position": first_position} | number)
    return rows
