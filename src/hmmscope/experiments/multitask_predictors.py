"""Predictors of prompts: a trained model, the same before training, retrieval, and the network that Theorem 1 constructs."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.analysis.activations import BATCH, as_law, inference_mode, model_outputs
from hmmscope.analysis.curves import MAX_ORDER, Score, evaluate
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.constructions.least_squares import demonstration_samples, least_squares, window_features
from hmmscope.constructions.multitask_network import MultiTaskTransformer
from hmmscope.corpora.corpus import Batch, Corpus
from hmmscope.corpora.layouts import Prompts
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.models.base import SequenceModel
from hmmscope.processes.hmm import HMM
from hmmscope.processes.mixture import Mixture
from hmmscope.runs.pipeline import Run, untrained_twin
from hmmscope.schema import require

#: Baselines that count in the prompt, from the simplest on.
NGRAMS = tuple(f"order-{order}" for order in range(MAX_ORDER + 1))


def last_sequence(score: Score) -> NDArray[np.bool_]:
    """Judged columns of the test sequence (judged,)."""
    return np.asarray(score.demonstrations == score.demonstrations.max())


def answers(
    model: SequenceModel, batch: Batch, run: Run, asked: NDArray[np.int64]
) -> Float64[Tensor, "batch asked symbol"]:
    """What a model says of the observations number `asked` of prompts that are laid out as those of a run."""
    columns, parts = torch.from_numpy(run.config.layout.columns[asked] - 1), []
    with inference_mode(model) as device:
        for part in batch.tokens[:, :-1].split(BATCH):
            outputs = model_outputs(model, part.to(device), run.process.num_symbols, kind="law")
            parts.append(as_law(model, outputs[:, columns.to(outputs.device)]))
    return torch.cat(parts)


def untrained_score(run: Run, score: Score) -> Score:
    """Accuracy of the model before training on the prompts of a score."""
    corpus = run.corpus()
    batch = corpus[0 : len(score.measures["model"]["accuracy"])]
    asked = corpus.layout.predicted
    law = answers(untrained_twin(run), batch, run, asked)
    return replace(score, measures={"model": measured(law, batch.observations[:, asked])})


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
    end = last_sequence(score) & (score.positions >= sizes["first_position"])
    found = []
    for share in sizes["smoothings"]:
        law = optimal_predictions(smoothed(run.process, share), observations, starts=starts).predicted_observation
        found.append(measured(law[:, judged], observations[:, judged]))
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
            accuracy[:, here] = measured(as_law(_Vectors(), vectors), labels)["accuracy"]
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


def measured(law: Float64[Tensor, "batch judged symbol"], labels: Int64[Tensor, "batch judged"]) -> dict:
    """Accuracy and loss (sample, judged)."""
    loss = -law.gather(2, labels[..., None])[..., 0].log()
    return {"accuracy": (law.argmax(-1) == labels).double().numpy(), "loss": loss.numpy()}
