"""What models share: what goes in and comes out, named activations, weights from a named generator; models by name."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.axes import Float, Int64, Tensor
from hmmscope.errors import InputError
from hmmscope.reprs import html_table
from hmmscope.schema import require, require_count
from hmmscope.seeds import derived_seed, torch_generator


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and then each of its modules in the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, training in modes:
            module.training = training


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python for calls of a user's code, and put them back at the end."""
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
    """What goes into a model and comes out. A model reads tokens or vectors, not both.

    Attributes:
        num_outputs: logits, or coordinates of a regression.
        vocab_size: size of the vocabulary that is read, or None when vectors are read.
        input_width: coordinates of a vector input, or None when tokens are read.
        max_length: columns of the longest input; learned positions and input features need it.
        feedback_width: extra inputs at every position (block chain-of-thought), 0 for none.
    """

    num_outputs: int
    vocab_size: int | None = field(default=None, metadata={"stored": "num_tokens"})
    input_width: int | None = None
    max_length: int | None = None
    feedback_width: int = 0

    def __post_init__(self) -> None:
        require(self.num_outputs >= 1, "num_outputs", "must be at least 1", self.num_outputs)
        for name in ("vocab_size", "input_width", "max_length"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, "must be at least 1", value)
        require(self.feedback_width >= 0, "feedback_width", "must be at least 0", self.feedback_width)
        if (self.vocab_size is None) == (self.input_width is None):
            raise InputError("vocab_size, input_width: give one of them; a model reads tokens or vectors")

    @property
    def read_width(self) -> int:
        """Coordinates of what is read at one position: a one-hot token or a vector."""
        width = self.input_width if self.vocab_size is None else self.vocab_size
        assert width is not None
        return width


class HookPoint(nn.Module):
    """An activation with a name: passes its input through, and is where instruments listen.

    The name is the module's path (``residual.2``, ``blocks.0.attention.logits``), as for any other module of any model.
    """

    def forward(self, activation: Tensor) -> Tensor:
        return activation

    @property
    def is_hooked(self) -> bool:
        """Whether somebody listens; what is costly and only for listeners is skipped otherwise."""
        return len(self._forward_hooks) > 0


class Mixer(nn.Module):
    """What moves information between the positions of a block: called with (stream, rotation, past)."""

    def empty_past(self) -> Any:
        """What a cache holds of no position; a call with it as `past` adds its own positions."""
        raise AssertionError("a mixer says what a cache starts with")


class Dropout(nn.Module):
    """Zeroes a fraction `rate` of what passes during training, and scales the rest by 1 / (1 - rate).

    The masks of a step are a function of (the model's seed, step, stream) and of the order of the calls within the
    step, never of a global generator or of earlier steps: `SequenceModel.set_step` starts a step.
    """

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        super().__init__()
        self.rate = rate
        self._seed = int(torch.randint(2**32, (), generator=generator)) if rate else 0
        self.set_step(0)

    def set_step(self, step: int, stream: int = 0) -> None:
        """Masks from here on are those of `step`; parts of one step that run apart take different streams."""
        self._step = (step, stream)
        self._generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if self._generator is None or self._generator.device != x.device:
            step, stream = self._step
            seed = derived_seed(self._seed, f"dropout/{stream}", step)
            self._generator = torch.Generator(x.device).manual_seed(seed)
        kept = torch.empty_like(x).bernoulli_(1 - self.rate, generator=self._generator)
        return x * kept.div_(1 - self.rate)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_generator": None}  # a copy starts its step anew


class SequenceModel(nn.Module):
    """Tokens (batch, time) or vectors (batch, time, input) to outputs at every position (batch, time, output).

    Attributes:
        model_io: what goes in and comes out.
        num_symbols: size of the output, ``model_io.num_outputs``.
        vocab_size: size of the vocabulary that is read, or None when vectors are read.
        outputs: what the outputs are: "logits", which a regression reads as coordinates, or "law" for probabilities.
        residual: taps on the stream after the embedding and after every layer, ``residual.0`` to ``residual.<layers>``.
        spec: what it was built from, so that it can be built again with other weights; None where nobody said.
        trained_length: observations of a sample of the run that it belongs to; None for a model of no run.
    """

    outputs: ClassVar[Literal["logits", "law"]] = "logits"

    model_io: ModelIO
    num_symbols: int
    vocab_size: int | None
    residual: nn.ModuleList
    spec: "ModelSpec | None" = None
    trained_length: int | None = None

    def forward(
        self,
        inputs: Int64[Tensor, "batch time"] | Float[Tensor, "batch time input"],
        positions: Int64[Tensor, "*batch time"] | None = None,
        *,
        feedback: Float[Tensor, "batch time feedback"] | None = None,
        cache: dict[str, Any] | None = None,
    ) -> Float[Tensor, "batch time output"]:
        """Outputs at every position, each a function of the inputs up to there.

        Args:
            inputs: tokens, or vectors of ``model_io.input_width`` coordinates.
            positions: default to 0, 1, 2, ...; for each sequence or for all. A model without positions ignores them.
            feedback: extra inputs of ``model_io.feedback_width`` coordinates; None stands for zeros.
            cache: a dictionary, empty at first, that remembers what was read. These inputs then follow those of the
                earlier calls with it, and the outputs are those of the new positions only: the same values as for the
                whole at once, to rounding.
        """
        raise AssertionError("a model defines forward")

    def _repr_html_(self) -> str:
        taps = [name for name, module in self.named_modules() if isinstance(module, HookPoint)]
        reads = f"{self.vocab_size} tokens" if self.vocab_size else f"vectors of {self.model_io.input_width}"
        facts = {
            "reads": reads,
            "gives": f"{self.num_symbols} {self.outputs}",
            "parameters": f"{parameter_count(self):,}",
        }
        return html_table(type(self).__name__, facts | {"taps": ", ".join(taps[:12]) + ", ..." * (len(taps) > 12)})

    def set_step(self, step: int, stream: int = 0) -> None:
        """Begin training step `step`: what is random in the forward pass is a function of the seed and the step.

        Parts of one step that run apart (workers, pieces of a batch) take different streams.
        """
        for module in self.modules():
            if isinstance(module, Dropout):
                module.set_step(step, stream)


class EncodedModel(SequenceModel):
    """A model that first maps what it reads to a stream of `width` coordinates.

    x = embedding(input) + feedback(fed back)       a linear map of vectors; of one-hot tokens it is a table

    Attributes:
        embedding: table of the tokens, or linear map of the vectors.
        feedback: linear map without a bias, or None if ``model_io.feedback_width`` is 0.
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
        """The stream before the first layer (batch, time, width)."""
        check_inputs(self.model_io, inputs, feedback)
        x_BTD: Tensor = self.embedding(inputs)
        if self.feedback is not None and feedback is not None:
            x_BTD = x_BTD + self.feedback(feedback)
        return x_BTD


@dataclass(frozen=True)
class Cost:
    """What training takes, counted from the sizes without building the model.

    Attributes:
        parameters: trainable numbers.
        flops: floating-point operations of forward and backward pass for one sample. Products of matrices only; a product
            of m × k by k × n counts 2mkn, and the backward pass twice the forward one.
        kept: numbers that the forward pass of one sample keeps for the backward pass, logits and loss among them; within
            a tenth of what torch keeps.
    """

    parameters: int
    flops: float
    kept: int

    def step_bytes(self, batch_size: int, *, number_bytes: int = 4) -> int:
        """Bytes of a training step: weights, gradients, two moments of AdamW, and what the backward pass keeps."""
        return 4 * self.parameters * 4 + batch_size * self.kept * number_bytes


def cost_of(spec: "ModelSpec", model_io: ModelIO, columns: int, *, device: str = "cpu") -> Cost | None:
    """What a spec says of its cost for samples of `columns` positions; None where it says nothing (transformers')."""
    counted = getattr(spec, "cost", None)
    return None if counted is None else counted(model_io, columns, device=device)


@runtime_checkable
class ModelSpec(Protocol):
    """A frozen dataclass of sizes, registered by name. One that knows its cost has a method ``cost``, see `cost_of`."""

    def build(self, model_io: ModelIO, generator: torch.Generator) -> SequenceModel:
        """The model with fresh weights from `generator`."""
        ...


def check_inputs(model_io: ModelIO, inputs: Tensor, feedback: Tensor | None) -> None:
    """InputError unless the inputs and what is fed back are what the model was built for."""
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
    """InputError unless each of these fields of a spec is a size."""
    for name in fields:
        require(1 <= getattr(spec, name) <= 65536, name, "must be in [1, 65536]", getattr(spec, name))


def described(tensor: Tensor) -> str:
    """Type and shape in words, for messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator, *, num_residual_writes: int) -> None:
    """Normal weights of variance 1/fan-in, zero biases, embeddings of standard deviation one half.

    Linear maps whose attribute is named ``out`` write into the residual stream and are scaled by
    1/sqrt(num_residual_writes); one named ``head`` gets standard deviation 0.02, so that the first loss is near log V.
    Those named ``features`` and ``feedback`` stand beside the embedding and have its standard deviation.
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
    """Number of trainable numbers."""
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
    """Build a registered model with fresh weights, ``make_model("roformer", num_symbols=16, num_layers=4, ...)``.

    Args:
        name: of the architecture.
        num_symbols: size of the output.
        vocab_size: size of the input vocabulary, if it has a delimiter beside the symbols (``corpus.vocab_size``).
        seed: of the weights.
        max_length: columns of the longest input, for architectures with learned positions or input features.
        input_width: coordinates of an input that is a vector; the model then reads no tokens.
        feedback_width: extra inputs at every position (block chain-of-thought).
        fields: of the architecture's spec.

    Raises:
        InputError: an unknown name or field, a value out of range, or a package that is not installed.
    """
    spec = registry.build_spec("model", {"name": name, **fields}, "model")
    require_count("num_symbols", num_symbols)
    if input_width is None:
        vocab_size = num_symbols if vocab_size is None else vocab_size
        require_count("vocab_size", vocab_size, num_symbols, ", the number of symbols")
    elif vocab_size is not None:
        raise InputError("vocab_size, input_width: give one of them; a model reads tokens or vectors")
    ports = ModelIO(
        num_outputs=num_symbols,
        vocab_size=vocab_size,
        input_width=input_width,
        max_length=max_length,
        feedback_width=feedback_width,
    )
    return build_model(spec, ports, seed)


def build_model(
    spec: ModelSpec, model_io: ModelIO, seed: int = 0, *, trained_length: int | None = None
) -> SequenceModel:
    """The model of a spec, with weights from the named stream (seed, "weights"); the global generator stays as it is.

    `trained_length` is kept in it: the observations of a sample of its run.
    """
    with torch.random.fork_rng(devices=[]):  # layers of torch draw from it when they are made
        model = spec.build(model_io, torch_generator(seed, "weights"))
    model.spec, model.trained_length = spec, trained_length
    return model
