"""The position-shuffle test: how much attention logits move when demonstrations change places."""

import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import as_law, capture, inference_mode, model_outputs
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.axes import Tensor
from hmmscope.corpora.corpus import Corpus
from hmmscope.corpora.layouts import Prompts
from hmmscope.errors import InputError
from hmmscope.schema import require
from hmmscope.seeds import torch_generator


@registry.instrument("shuffle")
def shuffle_test(
    model: nn.Module, corpus: Corpus, *, num_samples: int = 64, num_permutations: int = 8, seed: int = 0
) -> list[dict]:
    """Mode A (block order): permute whole demonstrations and follow the logits from the last test token.

    The query is the last test token, the keys are the observations of the demonstrations, and a logit is followed by
    the identity of its key. The content of each demonstration is kept, so the data distribution is unchanged and an
    ideal learner's answer does not move at all.

        cv = mean over keys of the standard deviation over permutations / mean over keys of |logit|

    Args:
        model: with taps ``blocks.<layer>.attention.logits`` (batch, head, query, key).
        corpus: of prompts with at least two demonstrations.
        num_samples: prompts.
        num_permutations: including the order as sampled.
        seed: of the permutations.

    Returns:
        Rows (layer, head, metric, value, low, high, samples); layers count from 1. Metrics: ``cv``; ``cv_centred``, the
        same after removing the mean over keys, which softmax ignores; ``attention_change``, the total variation between
        the attention over these keys and its mean over permutations. Layer 0, head -1 holds ``prediction_change``, the
        same for the predicted law of the next observation. Intervals are 95 % over prompts.

    Raises:
        InputError: no such taps, or no demonstrations to permute.

    Source: [MultiTask] Fig. 2 (the metric is not stated there; a standard deviation relative to a mean is drawn).
    """
    layout = corpus.layout
    if not isinstance(layout, Prompts) or layout.num_demonstrations < 2:
        raise InputError("layout: the shuffle test needs prompts with at least two demonstrations")
    require(num_samples >= 1, "num_samples", "must be at least 1", num_samples)
    require(num_permutations >= 2, "num_permutations", "must be at least 2", num_permutations)
    names = attention_taps(model, "logits")
    batch = corpus[0:num_samples]
    generator = torch_generator(seed, "shuffle")
    shape = (layout.num_demonstrations, layout.demonstration_length)
    demonstrations = batch.observations[:, : shape[0] * shape[1]].view(num_samples, *shape)
    columns_NM = torch.from_numpy(layout.columns[: shape[0] * shape[1]]).view(shape)
    logits: dict[str, list[Tensor]] = {name: [] for name in names}
    predictions: list[Tensor] = []
    with inference_mode(model) as device:
        for repeat in range(num_permutations):
            order = torch.arange(shape[0]) if repeat == 0 else torch.randperm(shape[0], generator=generator)
            observations = batch.observations.clone()
            observations[:, : shape[0] * shape[1]] = demonstrations[:, order].flatten(1)
            tokens = layout.tokens(observations, corpus.num_symbols).to(device)
            keys = columns_NM[order.argsort()].flatten()  # where each key, in its original numbering, stands now
            found = capture(model, names, tokens, lambda x, keys=keys: x[:, :, -1, keys].cpu().double())  # type: ignore[misc]
            for name in names:
                logits[name].append(found[name])
            predictions.append(as_law(model, model_outputs(model, tokens, corpus.num_symbols)[:, -1]))
    prediction_RBV = torch.stack(predictions)
    change = 0.5 * (prediction_RBV - prediction_RBV.mean(0)).abs().sum(-1).mean(0)
    rows = _rows("prediction_change", change[:, None], layer=0, first_head=-1)
    by_layer = {layer: torch.stack(logits[name]) for layer, name in enumerate(names, 1)}  # as many heads as it has
    for metric, measure in (("cv", _variation), ("cv_centred", _centred_variation), ("attention_change", _change)):
        for layer, logits_RBHU in by_layer.items():
            rows += _rows(metric, measure(logits_RBHU), layer=layer)
    return rows


def attention_taps(model: nn.Module, what: str) -> list[str]:
    """Names of the taps on attention "logits" or "pattern", by layer."""
    names = [name for name, _ in model.named_modules() if name.endswith(f".attention.{what}")]
    if not names:
        raise InputError(f"model: has no taps named *.attention.{what}; use a model of this library")
    return names


def _variation(logits_RBHU: Tensor) -> Tensor:
    """Coefficient of variation (sample, head)."""
    spread = logits_RBHU.std(0, correction=0).mean(-1)
    return spread / logits_RBHU.abs().mean((0, -1)).clamp_min(1e-12)


def _centred_variation(logits_RBHU: Tensor) -> Tensor:
    return _variation(logits_RBHU - logits_RBHU.mean(-1, keepdim=True))


def _change(logits_RBHU: Tensor) -> Tensor:
    """Total variation between the attention over the keys and its mean over permutations (sample, head)."""
    pattern = logits_RBHU.softmax(-1)
    return 0.5 * (pattern - pattern.mean(0)).abs().sum(-1).mean(0)


def _rows(metric: str, values_BH: Tensor, layer: int, first_head: int = 0) -> list[dict]:
    mean, low, high = bootstrap_means(values_BH.numpy())
    return [
        {
            "layer": layer,
            "head": head + first_head,
            "metric": metric,
            "value": float(mean[head]),
            "low": float(low[head]),
            "high": float(high[head]),
            "samples": values_BH.shape[0],
        }
        for head in range(len(mean))
    ]
