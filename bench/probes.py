"""Compare logistic probes of all layers with the same objective: ours fits them at once, scikit-learn one by one."""

from typing import Any

import torch

from bench.contest import Contest, installed
from hmmscope.analysis.activations import residual_layers
from hmmscope.analysis.logistic import fit_logistic
from hmmscope.analysis.probes import ProbeData
from hmmscope.datasets.layouts import PromptLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.models.base import ModelIO, build_model
from hmmscope.models.decoder import RoFormerSpec
from hmmscope.processes.make import make_process

LAYERS, WIDTH, COMPONENTS, SAMPLES, RIDGE = 17, 64, 16, 1024, 1e-3


def contests(*, peers: bool, device: str = "cpu", samples: int = SAMPLES) -> list[Contest]:
    """Probe which of 16 HMMs generated a prompt, at each hook point of a network of 16 layers."""
    if device != "cpu":
        raise InputError("device: bench probes measures the processor; use cpu")
    mixture = make_process("random-mixture", num_components=COMPONENTS, num_states=8, num_symbols=8)
    dataset = ProcessDataset(mixture, layout=PromptLayout(num_demonstrations=7, demonstration_length=8, test_length=8))
    ports = ModelIO(num_outputs=8, vocab_size=dataset.vocab_size, max_length=dataset.layout.context_length)
    model = build_model(RoFormerSpec(num_layers=LAYERS - 1, num_heads=4, width=WIDTH), ports, 0)
    data = ProbeData.read(model, dataset, "component", residual_layers(model), samples)
    x, y = (data.features - data.features.mean(1, keepdim=True)), data.labels
    x = x / x.std(1, keepdim=True).clamp_min(1e-6)
    contest = Contest(
        f"logistic probes, {LAYERS} layers of {WIDTH}, {x.shape[1]} examples, {COMPONENTS} classes",
        "probes",
    )
    contest.add("hmmscope", lambda: fit_logistic(x, y, COMPONENTS, ridge=RIDGE), LAYERS)
    if peers and installed("sklearn"):
        contest.add("scikit-learn", lambda: _sklearn(x, y), LAYERS)
    return [contest]


def _sklearn(x: torch.Tensor, y: torch.Tensor) -> list[Any]:
    from sklearn.linear_model import LogisticRegression

    return [LogisticRegression(C=1 / (RIDGE * len(y)), max_iter=200).fit(layer.numpy(), y.numpy()) for layer in x]
