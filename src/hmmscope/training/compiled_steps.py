"""Training steps of small models by the compiled engine."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hmmscope.axes import Float, Tensor
from hmmscope.datasets.process_dataset import Batch
from hmmscope.datasets.targets import PADDING, Target
from hmmscope.engine.chunks import StepInputs
from hmmscope.engine.folding import adamw, add_up, norm_of
from hmmscope.engine.layout import (
    ChunkPlan,
    carved,
    cell_halves_of,
    decoder_shapes,
    decoder_work,
    empty,
    halves_of,
    numbers_of,
    pieces,
    plan,
    recurrent_shapes,
    recurrent_work,
)
from hmmscope.engine.rnn import (
    CellMaps,
    RNNStepShape,
    recurrent_chunk,
    recurrent_gradient,
    recurrent_halves,
    recurrent_maps,
)
from hmmscope.engine.sizes import Sizes
from hmmscope.engine.transformer import Maps, Shape, decoder_chunk, decoder_gradient, decoder_halves, decoder_maps
from hmmscope.errors import InputError
from hmmscope.models.attention import Attention
from hmmscope.models.base import SequenceModel
from hmmscope.models.decoder import Decoder, input_features, sinusoids
from hmmscope.models.recurrent import Recurrent
from hmmscope.training import updates
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.parallel import SingleProcess
from hmmscope.training.schedules import learning_rate
from hmmscope.training.spec import TrainingSpec
from hmmscope.training.state import Moments

Array = NDArray[Any]


class Compiled(SingleProcess):
    """Training in one process by the compiled engine instead of autograd.

    Args:
        model: A `Decoder` or `Recurrent` on the CPU.
        poison: True fills work arrays with NaN first, so that tests detect reads of unwritten numbers.

    Raises:
        InputError: The engine does not support the model, or the model has hooks.
    """

    in_parts: ClassVar[bool] = False

    def __init__(
        self, model: SequenceModel, spec: TrainingSpec, world: ProcessGroup | None = None, *, poison: bool = False
    ) -> None:
        super().__init__(model, spec, world)
        if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
            raise InputError("training.engine: compiled does not support forward hooks; remove them or use torch")
        self._theta = _flattened([parameter.data for parameter in model.parameters()])
        self._gradient = torch.from_numpy(empty(self._theta.shape, self._theta.numpy().dtype)).zero_()
        names, begin = {}, 0
        for name, parameter in model.named_parameters():
            names[name] = begin
            end = begin + parameter.numel()
            parameter.data = self._theta[begin:end].view_as(parameter)
            parameter.grad = self._gradient[begin:end].view_as(parameter)
            begin = end
        rounded = spec.precision == "bfloat16"
        if rounded and self._theta.dtype != torch.float32:
            raise InputError(
                "training.precision: bfloat16 in the compiled engine needs a float32 model; use float32 or the torch engine"
            )
        self._family: _Family = (
            _DecoderFamily(model, names, rounded) if isinstance(model, Decoder) else _cells(model, names, rounded)
        )
        self._norm_of, self._add_up, self._adamw = (f.load(self._theta.numpy().dtype) for f in (norm_of, add_up, adamw))
        self._poison, self._moments = poison, torch.zeros(0)
        self._rooms: dict[tuple[int, int], _Workspace] = {}
        self._pool = ThreadPoolExecutor(spec.num_threads - 1) if spec.num_threads > 1 else None

    def gradients(self, batch: Batch, target: Target, step: int) -> Float[Tensor, ""]:
        total, theta = 0.0, self._theta.numpy()
        steps = int(target.token_positions[-1]) + 1
        held: list[_Workspace] = []
        count = target.num_labels(batch)
        for part in updates.grains(batch, self.spec.accumulation_steps):
            asked = _asked(part, target, steps, count, theta.dtype)
            _check(asked, self._family.sizes, len(part.tokens))
            for piece in pieces(self._family.sizes, len(part.tokens)):
                room = self._room(steps, piece.stop - piece.start)
                if room not in held:
                    self._family.prepare(theta, room)
                    room.sums.fill(0)
                    held.append(room)
                own = {name: getattr(asked, name)[piece] for name in ("tokens", "vectors", "ids", "values")}
                total += self._run(room, asked._replace(**own))
        for room in held:
            self._add_up(room.sums)
        for other in held[1:]:  # a last grain of fewer samples, or a piece
            held[0].sums[0] += other.sums[0]
        self._family.finish(theta, held[0], self._gradient.numpy())
        return torch.tensor(total, dtype=torch.float64)

    def _room(self, steps: int, count: int) -> "_Workspace":
        if (steps, count) not in self._rooms:
            self._rooms[steps, count] = _Workspace(
                self._family, steps, count, self.spec, self._theta.numpy().dtype, self._poison
            )
        return self._rooms[steps, count]

    def take(self, moments: Moments, batch: Batch, target: Target, step: int) -> tuple[float, float]:
        loss, gradient = self.gradients(batch, target, step).item(), self._gradient.numpy()
        norm = self._norm_of(gradient)
        if not (abs(loss) < float("inf") and norm < float("inf")):
            raise updates.not_finite(self.model, loss, step, self.world)
        self.before_update()
        first, second = self._adopted(moments, step)
        spec = self.spec
        scale = min(1.0, spec.gradient_clip / (norm + 1e-6)) if spec.gradient_clip else 1.0
        self._adamw(
            self._theta.numpy(), gradient, first, second, scale, learning_rate(spec, step), *spec.betas,
            spec.epsilon, spec.weight_decay, step + 1,
        )  # fmt: skip
        return loss, norm

    def _adopted(self, moments: Moments, step: int) -> tuple[Array, Array]:
        if not len(self._moments):
            count = torch.tensor(0.0)
            self._moments = torch.from_numpy(empty((2, len(self._theta)), self._theta.numpy().dtype)).zero_()
            begin = 0
            for parameter in self.model.parameters():
                end = begin + parameter.numel()
                state = moments.state[parameter]
                for name, vector in zip(("exp_avg", "exp_avg_sq"), self._moments, strict=True):
                    view = vector[begin:end].view_as(parameter)
                    if name in state:
                        view.copy_(state[name])
                    state[name] = view
                state["step"] = count  # one for all
                begin = end
            self._count = count
        self._count.fill_(step + 1)
        first, second = self._moments.numpy()
        return first, second

    def _run(self, room: "_Workspace", asked: StepInputs) -> float:
        chunks, threads = room.plan.chunks, len(room.works)
        cuts = [
            chunks[number * len(chunks) // threads : (number + 1) * len(chunks) // threads] for number in range(threads)
        ]

        def run(number: int) -> float:
            loss = 0.0
            for first, count in cuts[number]:
                loss += self._family.chunk(
                    room.shape, room.maps, room.views[number], room.works[number], asked, first, count
                )
            return loss

        others = [] if self._pool is None else [self._pool.submit(run, number) for number in range(1, threads)]
        return sum((other.result() for other in others), run(0))


class _Workspace:
    def __init__(
        self, family: "_Family", steps: int, count: int, spec: TrainingSpec, dtype: np.dtype, poison: bool
    ) -> None:
        self.plan: ChunkPlan = plan(family.sizes, steps, count, spec.num_threads, dtype.itemsize)
        threads = min(spec.num_threads, len(self.plan.chunks))
        shapes, sum_shapes = family.shapes(steps), family.shapes(steps, sums=True)
        self.maps = carved(empty((numbers_of(shapes),), dtype, poison), shapes)
        self.sums = empty((threads, numbers_of(sum_shapes)), dtype, poison)
        self.views = [carved(row, sum_shapes) for row in self.sums]
        self.works = family.works(self.plan, dtype, poison, threads)
        self.shape = family.shape(self.plan)
        self.fixed = family.fixed(steps, dtype)


class _Family:
    sizes: Sizes
    chunk: Any
    maps: Any
    gradient: Any

    def load(self, model: Decoder | Recurrent, *entries: Any) -> None:
        self.chunk, self.maps, self.gradient = (
            entry.load(model.head.weight.detach().numpy().dtype) for entry in entries
        )

    def shapes(self, steps: int, *, sums: bool = False) -> Any:
        raise AssertionError

    def works(self, plan: ChunkPlan, dtype: np.dtype, poison: bool, threads: int) -> list[Any]:
        raise AssertionError

    def shape(self, plan: ChunkPlan) -> Any:
        raise AssertionError

    def fixed(self, steps: int, dtype: np.dtype) -> tuple[Array, ...]:
        return ()

    def prepare(self, theta: Array, room: _Workspace) -> None:
        raise AssertionError

    def finish(self, theta: Array, room: _Workspace, gradient: Array) -> None:
        raise AssertionError


class _DecoderFamily(_Family):
    def __init__(self, model: Decoder, names: dict[str, int], rounded: bool) -> None:
        block: Any = model.blocks[0]
        attention = block.attention
        if type(attention) is not Attention or not model.causal or model.dropout.rate or model.feedback is not None:
            raise InputError("training.engine: compiled does not support this decoder; use torch")
        self._model, hidden = model, 0 if block.mlp is None else block.mlp.hidden.out_features
        width, self._attention = model.head.in_features, attention
        self.sizes = Sizes(
            inputs=model.model_io.read_width,
            outputs=model.model_io.num_outputs,
            layers=len(model.blocks),
            width=width,
            heads=attention.num_heads,
            hidden=hidden,
        )
        self.load(model, decoder_chunk, decoder_maps, decoder_gradient)
        self._halves: Any = decoder_halves.load(model.head.weight.detach().numpy().dtype) if rounded else None
        inside = ["attention_norm.weight", "attention_norm.bias", "attention.qkv.weight", "attention.qkv.bias"]
        inside += ["attention.out.weight", "attention.out.bias", "mlp_norm.weight", "mlp_norm.bias"]
        inside += ["mlp.hidden.weight", "mlp.hidden.bias", "mlp.out.weight", "mlp.out.bias"]
        found = [[names.get(f"blocks.{layer}.{name}", -1) for name in inside] for layer in range(self.sizes.layers)]
        ends = ["positions", "embedding.weight", "embedding.bias", "features.weight", "norm.weight", "norm.bias"]
        ends += ["head.weight", "head.bias"]
        rows = 0 if model.positions is None else len(model.positions)
        self._blocks = np.array(found, np.int64)
        self._ends = np.array([names.get(name, -1) for name in ends] + [rows], np.int64)

    def shapes(self, steps: int, *, sums: bool = False) -> Maps:
        shapes = decoder_shapes(self.sizes, steps, across=not sums and self._halves is None)
        return shapes._replace(back=(shapes.back[0], shapes.back[2], shapes.back[1])) if sums else shapes

    def works(self, plan: ChunkPlan, dtype: np.dtype, poison: bool, threads: int) -> list[Any]:
        cos = sin = np.empty((0, self.sizes.width // self.sizes.heads), dtype)
        if self._model.rotary is not None:
            positions = torch.arange(plan.steps)
            rotation = self._model.rotary.at(positions, self._model.head.weight.dtype)
            cos, sin = (np.ascontiguousarray(t.numpy()) for t in rotation)
        halves = halves_of(self.sizes, dtype, poison, rounded=self._halves is not None)
        sizes, lanes, steps = self.sizes, plan.lanes, plan.steps
        return [decoder_work(sizes, lanes, cos, sin, steps, halves, dtype, poison) for _ in range(threads)]

    def shape(self, plan: ChunkPlan) -> Shape:
        normed = int(self._ends[4] >= 0)
        return Shape(self.sizes.heads, self.sizes.hidden, normed, plan.steps, plan.lanes, float(self._attention.scale))

    def fixed(self, steps: int, dtype: np.dtype) -> tuple[Array, ...]:
        model, positions, width = self._model, torch.arange(steps), self.sizes.width
        longest, kind = model.model_io.max_length, model.head.weight.dtype
        if longest is not None and steps > longest and (model.positions is not None or model.features is not None):
            raise InputError(f"max_length: the model reads at most {longest} positions, got {steps}")
        added = sinusoids(positions, width, kind) if model.sinusoidal else torch.zeros(steps, width, dtype=kind)
        features = torch.zeros(steps, 3, dtype=kind)
        if model.features is not None:
            features = input_features(positions, longest or 0, kind)
        return added.numpy(), features.numpy()

    def prepare(self, theta: Array, room: _Workspace) -> None:
        added, features = room.fixed
        self.maps(theta, self._blocks, self._ends, added, features, room.maps)
        if self._halves is not None:
            self._halves(room.maps, room.works[0].halves)

    def finish(self, theta: Array, room: _Workspace, gradient: Array) -> None:
        self.gradient(theta, self._blocks, self._ends, room.fixed[1], room.views[0], gradient)


class _RecurrentFamily(_Family):
    def __init__(self, model: Recurrent, names: dict[str, int], rounded: bool) -> None:
        layers: list[Any] = list(model.layers)
        self._relu = int(layers[0].nonlinearity == "relu")
        self.sizes = Sizes(
            inputs=model.model_io.read_width,
            outputs=model.model_io.num_outputs,
            layers=len(layers),
            width=model.head.in_features,
        )
        self.load(model, recurrent_chunk, recurrent_maps, recurrent_gradient)
        self._halves: Any = recurrent_halves.load(model.head.weight.detach().numpy().dtype) if rounded else None
        inside = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        self._layers = np.array(
            [[names[f"layers.{n}.{name}"] for name in inside] for n in range(len(layers))], np.int64
        )
        ends = (names.get("initial", -1), names["head.weight"], names["head.bias"])
        self._ends = np.array(ends, np.int64)

    def shapes(self, steps: int, *, sums: bool = False) -> CellMaps:
        return recurrent_shapes(self.sizes, steps, across=not sums and self._halves is None)

    def works(self, plan: ChunkPlan, dtype: np.dtype, poison: bool, threads: int) -> list[Any]:
        halves = cell_halves_of(self.sizes, dtype, poison, rounded=self._halves is not None)
        return [recurrent_work(self.sizes, plan.lanes, plan.steps, halves, dtype, poison) for _ in range(threads)]

    def shape(self, plan: ChunkPlan) -> RNNStepShape:
        return RNNStepShape(self._relu, plan.steps, plan.lanes)

    def prepare(self, theta: Array, room: _Workspace) -> None:
        self.maps(theta, self._layers, self._ends, room.maps)
        if self._halves is not None:
            self._halves(room.maps, room.works[0].halves)

    def finish(self, theta: Array, room: _Workspace, gradient: Array) -> None:
        self.gradient(self._layers, self._ends, room.views[0], gradient)


def _cells(model: SequenceModel, names: dict[str, int], rounded: bool) -> _RecurrentFamily:
    plain = isinstance(model, Recurrent) and all(type(layer) is nn.RNN for layer in model.layers)
    if not plain or model.model_io.feedback_width:
        raise InputError("training.engine: compiled does not support this model; use torch")
    assert isinstance(model, Recurrent)
    return _RecurrentFamily(model, names, rounded)


def _flattened(tensors: Sequence[Tensor]) -> Tensor:
    if len({tensor.dtype for tensor in tensors}) != 1 or any(tensor.device.type != "cpu" for tensor in tensors):
        raise InputError("training.engine: compiled needs parameters of one dtype on the CPU; use torch")
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    own = torch.from_numpy(empty((len(flat),), flat.numpy().dtype))
    return own.copy_(flat)


def _asked(part: Batch, target: Target, steps: int, count: int, dtype: np.dtype) -> StepInputs:
    labels, tokens = target.labels(part), part.tokens[:, :steps]
    columns = np.full(steps, -1, np.int64)
    columns[target.token_positions] = np.arange(len(target.token_positions))
    soft, vectors = labels.is_floating_point(), tokens.is_floating_point()
    return StepInputs(
        tokens=np.zeros((0, 0), np.int64) if vectors else np.ascontiguousarray(tokens.numpy()),
        vectors=np.ascontiguousarray(tokens.numpy(), dtype) if vectors else np.zeros((0, 0, 0), dtype),
        ids=np.zeros((0, 0), np.int64) if soft else np.ascontiguousarray(labels.numpy()),
        values=np.ascontiguousarray(labels.numpy(), dtype) if soft else np.zeros((0, 0, 0), dtype),
        columns=columns,
        weight=1 / (max(1, count) * (target.num_outputs if target.kind == "vector" else 1)),
        kind=int(target.kind == "vector"),
    )


def _check(asked: StepInputs, sizes: Sizes, count: int) -> None:
    read = asked.vectors if len(asked.vectors) else asked.tokens
    judged = (asked.columns >= 0).sum()
    labels = asked.values if len(asked.values) else asked.ids
    good = read.shape[:2] == (count, len(asked.columns)) and labels.shape[:2] == (count, judged)
    if read.ndim == 3:
        good = good and read.shape[2] == sizes.inputs
    else:
        good = good and bool(read.min() >= 0) and read.max() < sizes.inputs
    if labels.ndim == 3:
        good = good and labels.shape[2] == sizes.outputs
    else:
        good = good and bool(((labels >= 0) | (labels == PADDING)).all()) and labels.max() < sizes.outputs
    if not good:
        raise InputError(
            f"batch: inputs of shape {read.shape} and labels of shape {labels.shape} do not fit a model of "
            f"{sizes.inputs} inputs and {sizes.outputs} outputs"
        )
