"""Compilation of the training engine before worker processes start."""

from collections.abc import Iterable
from dataclasses import replace

from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.models.base import build_model
from hmmscope.runs.config import RunConfig
from hmmscope.runs.pipeline import engine_of, model_io_of
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.engines import make_engine
from hmmscope.training.optimizers import make_optimizer
from hmmscope.training.state import resolve_device


def warm_up(configs: Iterable[RunConfig], seen: set[type] | None = None) -> None:
    seen = set() if seen is None else seen
    for config in configs:
        spec, kind = config.training, type(config.model)
        if kind in seen or spec.engine == "torch" or resolve_device(spec.device, spec.engine) != "cpu":
            continue
        process = config.process.build()
        target = make_target(config.target, process, config.layout)
        ports = model_io_of(config, target)
        if engine_of(replace(config, training=replace(spec, device="cpu")), ports).engine == "torch":
            continue
        seen.add(kind)
        spec = replace(
            spec, device="cpu", engine="compiled", batch_size=1, accumulation_steps=1, num_trajectories=0, curriculum=()
        )
        model = build_model(config.model, ports, config.seed)
        engine, moments = make_engine(model, spec, ProcessGroup()), make_optimizer(model, spec)
        dataset = ProcessDataset(process, layout=config.layout, seed=config.seed, stream="corpus")
        engine.take(moments, dataset[0:1], target, 0)
