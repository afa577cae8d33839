"""Times per training step of each engine, by machine and package versions, stored in the user's cache."""

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import make_target
from hmmscope.errors import HmmscopeError
from hmmscope.models.base import ModelIO, build_model, cost_of
from hmmscope.runs.config import RunConfig
from hmmscope.runs.settings import settings
from hmmscope.schema import by_field, spec_to_data, to_stored
from hmmscope.storage import disk, store
from hmmscope.system_info import environment, processor
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.engines import SHORT, Timing, make_engine
from hmmscope.training.state import Moments

#: Time limit in seconds for rounds that time one step of each engine (at least one round); most operations of a timed
#: step; fewest samples of a step that is cut to this limit.
_SECONDS, _STEP, _FEWEST = 2.0, 2e10, 16


def timing(config: RunConfig, model_io: ModelIO, seconds: float) -> Timing | None:
    with suppress(OSError, HmmscopeError):
        store.make_folder(_file().parent)
    with disk.one_at_a_time(_file().parent):
        kept = _read()
        shape, length = _shape(config, model_io), config.training.num_steps
        if shape not in kept["steps"]:
            if [shape, length] in kept["short"]:
                return None
            if seconds < kept["first"]:
                kept["short"].append([shape, length])
            else:
                kept["steps"][shape], kept["first"] = _measured(config, model_io)
            with suppress(OSError, HmmscopeError):
                store.write_json(_file(), kept)
        found = kept["steps"].get(shape)
    return None if found is None else Timing(**by_field(Timing, found))


class NotMeasuredError(LookupError):
    """Raised when no step times of this training are stored for this machine."""


def kept_timing(config: RunConfig, model_io: ModelIO, seconds: float) -> Timing | None:
    kept = _read()
    found = kept["steps"].get(_shape(config, model_io))
    if found is not None:
        return Timing(**by_field(Timing, found))
    if seconds < kept["first"]:
        return None
    raise NotMeasuredError


@cache
def _facts() -> dict[str, Any]:
    versions = {name: environment()[name] for name in ("hmmscope", "python", "torch", "numba", "num_cpu")}
    return processor() | versions


def _file() -> Path:
    digest = hashlib.sha256(json.dumps(_facts(), sort_keys=True).encode()).hexdigest()
    folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(folder).expanduser() / "hmmscope" / f"timings-{digest[:12]}.json"


def _read() -> dict[str, Any]:
    with suppress(OSError, HmmscopeError, AttributeError, KeyError, TypeError, ValueError):
        kept = store.read_json(_file())
        first, short, steps = float(kept["first"]), list(kept["short"]), dict(kept["steps"])
        for found in steps.values():
            Timing(**by_field(Timing, found)).faster()
        if kept["machine"] == _facts():
            return {"machine": _facts(), "first": first, "short": short, "steps": steps}
    return {"machine": _facts(), "first": SHORT, "short": [], "steps": {}}


def _shape(config: RunConfig, model_io: ModelIO) -> str:
    spec = config.training
    sizes = {"columns": config.layout.context_length, "target": config.target, "outputs": model_io.num_outputs}
    recipe = to_stored(spec)
    sizes |= {key: recipe[key] for key in ("batch_size", "num_grains", "num_threads")}
    if spec.precision != "float32":
        sizes["precision"] = spec.precision
    return json.dumps(sizes | {"model": spec_to_data(config.model)}, sort_keys=True, default=str)


def _measured(config: RunConfig, model_io: ModelIO) -> tuple[dict[str, float], float]:
    begun, spec = time.process_time(), config.training
    process = config.process.build()
    target = make_target(config.target, process, config.layout)
    cost = cost_of(config.model, model_io, config.layout.context_length)
    most = spec.batch_size if cost is None else max(_FEWEST, int(_STEP / cost.flops))
    samples = min(spec.batch_size, most)
    grains = spec.accumulation_steps if samples == spec.batch_size else 1
    spec = replace(spec, batch_size=samples, accumulation_steps=grains, curriculum=(), num_trajectories=0)
    batch = ProcessDataset(process, layout=config.layout, seed=config.seed, stream="train")[0:samples]
    clock = time.process_time if spec.num_threads == 1 else time.perf_counter
    names: tuple[Literal["compiled", "torch"], ...] = ("compiled", "torch")
    best: dict[str, float] = dict.fromkeys(names, float("inf"))
    with settings(spec):
        takers = {}
        for name in names:
            own = replace(spec, engine=name)
            takers[name] = (
                make_engine(build_model(config.model, model_io, config.seed).train(), own, ProcessGroup()),
                Moments(),
            )
            takers[name][0].take(takers[name][1], batch, target, 0)
        compiled, rounds = time.perf_counter(), 0
        while rounds < 1 or (rounds < 50 and time.perf_counter() - compiled < _SECONDS):
            for name, (taker, moments) in takers.items():
                start = clock()
                taker.take(moments, batch, target, rounds + 1)
                best[name] = min(best[name], clock() - start)
            rounds += 1
    return best | {"samples": samples}, time.process_time() - begun
