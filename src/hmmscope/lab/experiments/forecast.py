"""Estimates of the time, memory and disk that an experiment needs."""

import json
from collections.abc import Iterator, Sequence

from hmmscope.lab.experiments.planning import ExperimentPlan, plan_of
from hmmscope.runs.config import RunConfig
from hmmscope.runs.dry_run import BY_COUNT, BY_COUNT_GPU, ResourceEstimate, estimate
from hmmscope.runs.resources import duration

#: Scales that are meant for a GPU.
ON_GPU = ("gpu", "paper")


def forecast(
    name: str, scale: str, overrides: dict[str, str], seeds: int | Sequence[int] | None, *, measure: bool = False
) -> Iterator[str]:
    """Yield lines on the cost of an experiment's trainings.

    Args:
        name, scale, overrides, seeds: see `hmmscope run`.
        measure: whether to time a few training steps.

    Raises:
        InputError: a name, scale or override is unknown.
        ResourceError: a step does not fit into memory.
    """
    plan = plan_of(name, scale, overrides, seeds)
    sizes = ", ".join(f"{key} {value}" for key, value in plan.sizes.items())
    if not plan.configs:
        yield "runs         none, because the experiment trains no model"
        yield f"measuring    with {sizes}"
        return
    repeats = len(plan.seeds or (0,))
    here = plan.scale not in ON_GPU
    counted = {label: estimate(config, here=here) for label, config in _seed_of(plan).items()}
    yield f"runs         {len(counted) * repeats:,}" + f", {len(counted):,} for each of {repeats} seeds" * (
        plan.seeds is not None
    )
    yield f"tokens       {repeats * sum(found.tokens for found in counted.values()):,}"
    flops = [found.flops for found in counted.values() if found.flops is not None]
    if len(flops) == len(counted):
        yield f"FLOPs        {repeats * sum(flops):.3g} (matrix products of forward and backward passes)"
    yield f"disk         about {repeats * sum(found.disk_bytes for found in counted.values()) / 1e6:,.1f} MB of checkpoints"
    most = max(counted, key=lambda label: counted[label].memory_bytes or 0)
    if counted[most].memory_bytes:
        yield f"memory       about {(counted[most].memory_bytes or 0) / 2**30:.2f} GiB for a step of {most}"
    yield from _time(plan, counted, repeats, measure)
    yield f"measuring    with {sizes} is not included in the estimates above"


def _time(plan: ExperimentPlan, counted: dict[str, ResourceEstimate], repeats: int, measure: bool) -> Iterator[str]:
    on_gpu = [found.gpu_seconds for found in counted.values()]
    here = [found.seconds for found in counted.values()]
    threads = next(iter(plan.configs.values())).training.num_threads
    by = f"{threads} threads" if threads > 1 else "one thread"
    if plan.scale in ON_GPU and None not in on_gpu:
        yield f"GPU time     about {duration(repeats * sum(map(float, on_gpu)))} to train, {BY_COUNT_GPU}"  # type: ignore[arg-type]
    if measure:
        seconds, shapes = _training_time(plan, counted)
        yield (
            f"time         about {duration(repeats * seconds)} of {by} to train, by timing a few steps of each "
            f"of {shapes} model shape{'s' * (shapes > 1)}"
        )
    elif plan.scale in ON_GPU and None not in on_gpu:
        return
    elif None in here:
        yield "time         unknown, because the FLOPs of one model cannot be counted; add --measure to time steps"
    else:
        total = sum(one for one in here if one is not None)
        yield f"time         about {duration(repeats * total)} of {by} to train, {BY_COUNT}; --measure times a few steps"


def _seed_of(plan: ExperimentPlan) -> dict[str, RunConfig]:
    return plan.configs if plan.seeds is None else plan.of_seed(plan.seeds[0])


def _training_time(plan: ExperimentPlan, counted: dict[str, ResourceEstimate]) -> tuple[float, int]:
    per_token: dict[str, float] = {}
    total = 0.0
    for label, config in _seed_of(plan).items():
        data, training = config.to_data(), config.training
        same = [data["layout"], data["model"], data["target"], config.process.name]
        shape = json.dumps([*same, training.batch_size, training.precision, training.block_length], default=str)
        if shape not in per_token:
            found = estimate(config, measure=True, compare=False)
            per_token[shape] = (found.seconds or 0.0) / found.tokens
        total += per_token[shape] * counted[label].tokens
    return total, len(per_token)
