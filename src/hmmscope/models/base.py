"""The interface of models, hook points, initialization, and models by name."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hmmscope import registry
from hmmscope.axes import Cache, Feedback, Float, Inputs, Positions, Tensor
from hmmscope.errors import InputError, ResourceError
from hmmscope.reprs import html_table
from hmmscope.schema import require, require_count
from hmmscope.seeds import derived_seed, torch_generator
from hmmscope.system_info import require_memory


@contextmanager
def kept_modes(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, training in modes:
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    with kept_modes(model):
        model.eval()
        yield


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed the global random generators for user code in the ``with`` block, then restore them."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - users' code draws from it
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)  # noqa: TID251 - put back at the end
            np.random.seed(seed % 2**32)  # noqa: NPY002, TID251 - put back at the end
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


@dataclass(frozen=True, kw_only=True)
class ModelIO:
    """Input and output sizes of a model of tokens or vectors.

    Attributes:
        num_outputs: number of logits, or of regression coordinates.
        vocab_size: number of input tokens, or None for vectors.
        input_width: number of coordinates of an input vector, or None for tokens.
        max_length: largest number of positions of an input; required by learned positions and `input_features`.
        feedback_width: number of extra inputs at each position (block chain-of-thought).
    """

    num_outputs: int
    vocab_size: int | None = field(default=None, metadata={"stored": "num_tokens"})
    input_width: int | None = None
    max_length: int | None = None
    feedback_width: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                require_count(name, value, int(name != "feedback_width"))
        if (self.vocab_size is None) == (self.input_width is None):
            raise InputError("vocab_size, input_width: pass one of the two, because a model reads tokens or vectors")

    @property
    def read_width(self) -> int:
        """Width of one input: a one-hot token or a vector."""
        width = self.input_width if self.vocab_size is None else self.vocab_size
        assert width is not None
        return width


class HookPoint(nn.Module):
    """A named identity module for hooks, such as ``residual.2`` or ``blocks.0.attention.logits``."""

    def forward(self, activation: Tensor) -> Tensor:
        return activation

    @property
    def is_hooked(self) -> bool:
        return len(self._forward_hooks) > 0


class Mixer(nn.Module):
    """A module that mixes positions in a block; its arguments are the residual stream, rotary rotation and cache."""

    def empty_past(self) -> Any:
        raise AssertionError("subclasses define empty_past")


class Dropout(nn.Module):
    """Dropout with masks that depend only on (model seed, step, part of the batch) and the order of calls in a step.

    In a model compiled by torch, torch's global generator draws the masks.
    """

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        super().__init__()
        self.rate = rate
        self._seed = int(torch.randint(2**32, (), generator=generator)) if rate else 0
        self.set_step(0)

    def set_step(self, step: int, stream: int = 0) -> None:
        self.step_seed = derived_seed(self._seed, f"dropout/{stream}", step) if self.rate else 0
        self._generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if torch.compiler.is_compiling():  # a generator would break the graph
            return F.dropout(x, self.rate)
        if self._generator is None or self._generator.device != x.device:
            self._generator = torch.Generator(x.device).manual_seed(self.step_seed)
        kept = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self._generator)
        return x * kept.div_(1 - self.rate)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_generator": None}  # a copy restarts its step


class SequenceModel(nn.Module):
    """A model from tokens (batch, time) or vectors (batch, time, input) to outputs (batch, time, output).

    Attributes:
        model_io: input and output sizes.
        num_symbols, vocab_size: ``model_io.num_outputs`` and ``model_io.vocab_size``.
        outputs: type of the outputs, "logits" (also for regression) or "law" (probabilities).
        residual: hook points ``residual.0`` (embedding) to ``residual.<layers>``.
        spec: hyperparameters of the architecture, or None.
        trained_length: length of the samples on which the model was trained, or None.
        step_seed: seed of dropout in the current training step.
    """

    outputs: ClassVar[Literal["logits", "law"]] = "logits"

    model_io: ModelIO
    num_symbols: int
    vocab_size: int | None
    residual: nn.ModuleList
    spec: "ModelSpec | None" = None
    trained_length: int | None = None
    step_seed: int = 0

    def forward(
        self, inputs: Inputs, positions: Positions = None, *, feedback: Feedback = None, cache: Cache = None
    ) -> Float[Tensor, "batch time output"]:
        """Compute the outputs at each position from the inputs so far.

        Args:
            inputs: tokens, or vectors (batch, time, ``model_io.input_width``).
            positions: position numbers (default: 0, 1, 2, ...); ignored by models without positions.
            feedback: extra inputs (batch, time, ``model_io.feedback_width``); None for zeros.
            cache: dictionary, empty at the first call; later calls continue the inputs and return outputs at the new
                positions only.
        """
        raise AssertionError("subclasses define forward")

    def _repr_html_(self) -> str:
        taps = [name for name, module in self.named_modules() if isinstance(module, HookPoint)]
        reads = f"{self.vocab_size} tokens" if self.vocab_size else f"vectors of {self.model_io.input_width}"
        facts = {
            "reads": reads,
            "outputs": f"{self.num_symbols} {self.outputs}",
            "parameters": f"{parameter_count(self):,}",
        }
        return html_table(type(self).__name__, facts | {"taps": ", ".join(taps[:12]) + ", ..." * (len(taps) > 12)})

    def set_step(self, step: int, stream: int = 0) -> None:
        """Set the training step, which seeds dropout; parts of a batch use different values of `stream`."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.set_step(step, stream)
                self.step_seed = module.step_seed


class EncodedModel(SequenceModel):
    """A model with a residual stream that starts with embedding(input) + feedback(extra inputs).

    Attributes:
        embedding: embedding table of tokens, or linear map of vectors.
        feedback: linear map without bias of the extra inputs, or None.
    """

    def __init__(self, model_io: ModelIO, width: int) -> None:
        super().__init__()
        self.model_io, self.num_symbols, self.vocab_size = model_io, model_io.num_outputs, model_io.vocab_size
        self.embedding: nn.Module
        if model_io.vocab_size is not None:
            self.embedding = nn.Embedding(model_io.vocab_size, width)
        else:
            self.embedding = nn.Linear(model_io.read_width, width)
        self.feedback = nn.Linear(model_io.feedback_width, width, bias=False) if model_io.feedback_width else None

    def encode(self, inputs: Tensor, feedback: Tensor | None) -> Tensor:
        check_inputs(self.model_io, inputs, feedback)
        x_BTD: Tensor = self.embedding(inputs)
        if self.feedback is not None and feedback is not None:
            x_BTD = x_BTD + self.feedback(feedback)
        return x_BTD


@dataclass(frozen=True)
class Cost:
    """Training cost of a model, computed from its sizes.

    Attributes:
        parameters: number of trainable parameters.
        flops: matrix-product FLOPs of a training sample; the backward pass counts as two forward passes.
        kept: number of activations that the backward pass of a sample needs, within 10 % of torch's count.
    """

    parameters: int
    flops: float
    kept: int

    def step_bytes(self, batch_size: int, *, number_bytes: int = 4) -> int:
        """Return bytes of weights, gradients, AdamW moments and activations."""
        return 4 * self.parameters * 4 + batch_size * self.kept * number_bytes


def cost_of(spec: "ModelSpec", model_io: ModelIO, columns: int, *, device: str = "cpu") -> Cost | None:
    """Return the training cost of an architecture on samples of `columns` positions; None if unknown."""
    counted = getattr(spec, "cost", None)
    return None if counted is None else counted(model_io, columns, device=device)


@runtime_checkable
class ModelSpec(Protocol):
    """Hyperparameters of an architecture, a registered dataclass with an optional method ``cost``."""

    def build(self, model_io: ModelIO, generator: torch.Generator) -> SequenceModel: ...


def check_inputs(model_io: ModelIO, inputs: Tensor, feedback: Tensor | None) -> None:
    if model_io.vocab_size is not None:
        if inputs.ndim != 2 or inputs.is_floating_point():
            raise InputError(f"inputs: the model reads tokens (batch, time), got {described(inputs)}")
    elif inputs.ndim != 3 or inputs.shape[2] != model_io.input_width or not inputs.is_floating_point():
        rule = f"the model reads vectors (batch, time, {model_io.input_width})"
        raise InputError(f"inputs: {rule}, got {described(inputs)}")
    if feedback is not None and feedback.shape != (*inputs.shape[:2], model_io.feedback_width):
        wanted = (*inputs.shape[:2], model_io.feedback_width)
        raise InputError(f"feedback: must have the shape {wanted}, got {described(feedback)}")


def check_sizes(spec: Any, *fields: str) -> None:
    for name in fields:
        require(1 <= getattr(spec, name) <= 65536, name, "must be in [1, 65536]", getattr(spec, name))


def described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator, *, num_residual_writes: int) -> None:
    """Initialize normal weights of variance 1/fan-in, zero biases, and embeddings of standard deviation 0.5.

    Weights of the layers ``out``, which write to the residual stream, are divided by sqrt(num_residual_writes).
    Standard deviations are 0.02 for the output layer ``head``, 0.5 for the input layers ``features`` and ``feedback``.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, 0.5, generator=generator)
        elif isinstance(module, nn.Linear):
            std = 1 / math.sqrt(module.in_features)
            last = name.rpartition(".")[2]
            if last == "out":
                std /= math.sqrt(num_residual_writes)
            elif last == "head":
                std = 0.02
            elif last in ("features", "feedback"):
                std = 0.5
            module.weight.normal_(0.0, std, generator=generator)
            if module.bias is not None:
                module.bias.zero_()


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def make_model(
    name: str,
    *,
    num_symbols: int,
    vocab_size: int | None = None,
    seed: int = 0,
    max_length: int | None = None,
    input_width: int | None = None,
    feedback_width: int = 0,
    **fields: Any,
) -> SequenceModel:
    """Build a registered model with new weights: ``make_model("roformer", num_symbols=16, num_layers=4, ...)``.

    Args:
        name: name of the architecture.
        num_symbols: number of outputs.
        vocab_size: number of input tokens, such as ``dataset.vocab_size`` (default: `num_symbols`).
        seed: seed of the weights.
        max_length: number of positions of the longest input, for learned positions or input features.
        input_width: number of coordinates of vector inputs, for models that do not read tokens.
        feedback_width: number of extra inputs at each position.
        fields: hyperparameters of the architecture.

    Raises:
        InputError: a name is unknown, a value is out of range, or a package is missing.
    """
    spec = registry.build_spec("model", {"name": name, **fields}, "model")
    require_count("num_symbols", num_symbols)
    if input_width is None:
        vocab_size = num_symbols if vocab_size is None else vocab_size
        require_count("vocab_size", vocab_size, num_symbols, ", the number of symbols")
    elif vocab_size is not None:
        raise InputError("vocab_size, input_width: pass only one, because a model reads tokens or vectors")
    ports = ModelIO(
        num_outputs=num_symbols,
        vocab_size=vocab_size,
        input_width=input_width,
        max_length=max_length,
        feedback_width=feedback_width,
    )
    cost, advice = cost_of(spec, ports, 1), "choose a smaller vocab_size, width or number of layers"
    if cost is not None:
        require_memory("make_model", 4 * cost.parameters, advice)
    try:
        return build_model(spec, ports, seed)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise ResourceError(f"make_model: the weights do not fit in memory; {advice}") from None


def build_model(
    spec: ModelSpec, model_io: ModelIO, seed: int = 0, *, trained_length: int | None = None
) -> SequenceModel:
    with torch.random.fork_rng(devices=[]):  # layers of torch draw from the global generator
        model = spec.build(model_io, torch_generator(seed, "weights"))
    model.spec, model.trained_length = spec, trained_length
    return model
