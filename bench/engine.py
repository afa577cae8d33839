"""Compare the compiled engine with torch: training steps of small models on a given batch, with one or more threads."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

from bench.contest import Contest
from bench.training import gemm
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError
from hmmscope.kernels.pairs import AT_ONCE
from hmmscope.models.base import build_model, cost_of
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.pipeline import model_io_of
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.engines import make_engine
from hmmscope.training.state import Moments

_STEPS = 4  # steps of one call, so that a call takes more than microseconds


def _limits(model: dict[str, Any], columns: int, batch: int = 64) -> dict[str, Any]:
    return {
        "process": {"name": "cyclic-det"},
        "layout": {"name": "sequences", "length": columns - 1, "placeholder": True},
        "target": "belief",
        "model": model,
        "training": {"batch_size": batch},
    }


def _decoder(num_layers: int, width: int = 64) -> dict[str, Any]:
    return {"name": "decoder", "num_layers": num_layers, "width": width, "num_heads": 8, "dropout": 0.0}


def _prompts() -> dict[str, Any]:
    return {
        "process": {"name": "random-mixture", "num_components": 40, "num_states": 8, "num_symbols": 8},
        "layout": {"name": "prompts", "num_demonstrations": 7, "demonstration_length": 8, "test_length": 8},
        "model": {"name": "roformer", "num_layers": 4, "width": 64, "num_heads": 4},
        "training": {"batch_size": 32},
    }


#: Display name and configuration.
SHAPES: dict[str, dict[str, Any]] = {
    **{f"decoder {n} x 64, {t} columns": _limits(_decoder(n), t) for n in (1, 2, 4) for t in (3, 5, 17, 33)},
    "decoder 4 x 128, 17 columns": _limits(_decoder(4, 128), 17),
    "decoder 2 x 256, 33 columns": _limits(_decoder(2, 256), 33, 32),
    "decoder 1 x 512, 121 columns": _limits(_decoder(1, 512), 121, 16),
    "decoder 4 x 64 of few samples, 33 columns": _limits(_decoder(4), 33, 4),
    "decoder 1 x 512 of few samples, 121 columns": _limits(_decoder(1, 512), 121, 8),
    "decoder 2 x 64, 257 columns": _limits(_decoder(2), 257, 32),
    "decoder 7 x 64, 121 columns": _limits(_decoder(7), 121),
    "RNN 64, 17 columns": _limits({"name": "rnn", "width": 64}, 17),
    "RNN 64, 121 columns": _limits({"name": "rnn", "width": 64}, 121, 256),
    "roformer 4 x 64, prompts of 71 columns": _prompts(),
}
#: Shapes also measured in bfloat16, on processors with bfloat16 products.
ROUNDED = (
    "decoder 4 x 64, 33 columns",
    "decoder 4 x 128, 17 columns",
    "decoder 2 x 256, 33 columns",
    "decoder 1 x 512, 121 columns",
    "RNN 64, 121 columns",
)


def contests(*, peers: bool, device: str = "cpu") -> list[Contest]:
    """Return a contest for each shape: a step of each engine with clipping and AdamW, and the rate of a large product.

    `peers` are ignored, because `bench training` has them.

    Raises:
        InputError: The device is not a processor.
    """
    if device != "cpu":
        raise InputError("device: bench engine measures the processor; use cpu")
    whole = [_contest(name, data) for name, data in SHAPES.items()]
    return whole + [_contest(name, SHAPES[name], "bfloat16") for name in (ROUNDED if AT_ONCE else ())]


def _contest(name: str, data: dict[str, Any], precision: str = "float32") -> Contest:
    config = config_from_data(data | {"training": {**data["training"], "device": "cpu", "precision": precision}})
    columns, batch = config.layout.context_length, config.training.batch_size
    work = f"step, {name}, batch {batch}" + (f", {precision}" if precision != "float32" else "")
    contest = Contest(work, "tokens")
    engines: tuple[Literal["compiled", "torch"], ...] = ("compiled", "torch")
    for engine in engines:
        contest.add(engine, _steps(config, engine), _STEPS * batch * columns)
    multiply, amount = gemm("cpu", precision)
    target = make_target(config.target, config.process.build(), config.layout)
    cost = cost_of(config.model, model_io_of(config, target), columns)
    assert cost is not None
    contest.flops, contest.dtype = cost.flops / columns, getattr(torch, precision)
    contest.add(f"{precision} matrix product", multiply, amount / (cost.flops / columns), limit=True)
    return contest


def _steps(config: RunConfig, engine: Literal["compiled", "torch"]) -> Callable[[], None]:
    """Return a function that steps an engine on one batch; the engine has as many threads as torch at its first call."""
    made: dict[int, Callable[[], None]] = {}

    def make(threads: int) -> Callable[[], None]:
        spec = replace(config.training, engine=engine, num_threads=threads)
        process = config.process.build()
        target = make_target(config.target, process, config.layout)
        model = build_model(config.model, model_io_of(config, target)).train()
        taker, moments = make_engine(model, spec, ProcessGroup()), Moments()
        batch = ProcessDataset(process, layout=config.layout, seed=0, stream="train")[0 : spec.batch_size]
        labels = target.labels(batch)
        target.labels = lambda batch: labels  # type: ignore[method-assign]

        def run() -> None:
            for step in range(_STEPS):
                taker.take(moments, batch, target, step)

        return run

    def run() -> None:
        threads = torch.get_num_threads()
        if threads not in made:
            made[threads] = make(threads)
        made[threads]()

    return run
