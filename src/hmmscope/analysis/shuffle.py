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
    logits: list[Tensor] = []
    predictions: list[Tensor] = []
    with inference_mode(model) as device:
        for repeat in range(num_permutations):
            order = torch.arange(shape[0]) if repeat == 0 else torch.randperm(shape[0], generator=generator)
            observations = batch.observations.clone()
            observations[:, : shape[0] * shape[1]] = demonstrations[:, order].flatten(1)
            tokens = layout.tokens(observations, corpus.num_symbols).to(device)
            keys = columns_NM[order.argsort()].flatten()  # where each key, in its original numbering, stands now
            found = capture(model, names, tokens, lambda x, keys=keys: x[:, :, -1, keys].cpu().double())  # type: ignore[misc]
            logits.append(torch.stack([found[name] for name in names]))
            predictions.append(as_law(model, model_outputs(model, tokens, corpus.num_symbols)[:, -1]))
    logits_RLBHU = torch.stack(logits)
    prediction_RBV = torch.stack(predictions)
    change = 0.5 * (prediction_RBV - prediction_RBV.mean(0)).abs().sum(-1).mean(0)
    rows = _rows("prediction_change", change[None, :, None], first_layer=0, first_head=-1)
    rows += _rows("cv", _variation(logits_RLBHU))
    rows += _rows("cv_centred", _variation(logits_RLBHU - logits_RLBHU.mean(-1, keepdim=True)))
    pattern = logits_RLBHU.softmax(-1)
    rows += _rows("attention_change", 0.5 * (pattern - pattern.mean(0)).abs().sum(-1).mean(0))
    return rows


def attention_taps(model: nn.Module, what: str) -> list[str]:
    """Names of the taps on attention "logits" or "pattern", by layer."""
    names = [name for name, _ in model.named_modules() if name.endswith(f".attention.{what}")]
    if not names:
        raise InputError(f"model: has no taps named *.attention.{what}; use a model of this library")
    return names


def _variation(logits_RLBHU: Tensor) -> Tensor:
    """Coefficient of variation (layer, sample, head)."""
    spread = logits_RLBHU.std(0, correction=0).mean(-1)
    return spread / logits_RLBHU.abs().mean((0, -1)).clamp_min(1e-12)


def _rows(metric: str, values_LBH: Tensor, first_layer: int = 1, first_head: int = 0) -> list[dict]:
    mean, low, high = bootstrap_means(values_LBH.transpose(0, 1).numpy())
    return [
        {
            "layer": layer + first_layer,
            "head": head + first_head,
            "metric": metric,
            "value": float(mean[layer, head]),
            "low": float(low[layer, head]),
            "high": float(high[layer, head]),
            "samples": values_LBH.shape[1],
        }
        for layer in range(mean.shape[0])
        for head in range(mean.shape[1])
    ]
