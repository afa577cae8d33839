"""Measure the filter of a mixture: component-tokens per second, and the fraction of the machine's matrix-product rate."""

from collections.abc import Callable
from functools import partial

import torch

from bench.contest import Contest, noise
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.inference.fast import mixture_predictions
from hmmscope.processes.make import make_process
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.require_type import require_process_type

STATES, SYMBOLS, BATCH, LENGTH, COMPONENTS = 128, 16, 1024, 32, 48

#: The sizes of [MultiTask]: 8192 components and prompts of 256 symbols; 7e13 operations.
LENGTH_ON_GPU, COMPONENTS_ON_GPU = 256, 8192


def contests(*, peers: bool, device: str = "cpu", components: int | None = None) -> list[Contest]:
    """Measure `components` HMMs of 128 states and 16 symbols on 1024 sequences of 32; the cost is linear in each number.

    On a GPU there are 8192 HMMs and sequences of 256; float64 gets an eighth of the HMMs, which takes about as long.
    """
    if device == "cpu":
        return _contests(components or COMPONENTS, LENGTH, device, (torch.float32, torch.float64))
    components = components or COMPONENTS_ON_GPU
    return [
        *_contests(components, LENGTH_ON_GPU, device, (torch.float32,)),
        *_contests(max(1, components // 8), LENGTH_ON_GPU, device, (torch.float64,)),
    ]


def _contests(components: int, length: int, device: str, dtypes: tuple[torch.dtype, ...]) -> list[Contest]:
    mixture = require_process_type(
        make_process("random-mixture", num_components=components, num_states=STATES, num_symbols=SYMBOLS), Mixture
    )
    observations = ProcessDataset(mixture, length=length, device=device)[0:BATCH].observations
    few = observations[: BATCH // 16]

    def ours(observations: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return mixture_predictions(mixture, observations, dtype=dtype).log_likelihood_terms.sum(1)

    exact = ours(few, torch.float64)
    found = []
    for dtype in dtypes:
        error = float(((ours(few, dtype) - exact) / exact).abs().max())
        where = "" if device == "cpu" else f" on {device}"
        what = f"mixture{where} of {components} x {STATES} x {SYMBOLS}, {BATCH} x {length}, {str(dtype)[6:]}"
        contest = Contest(
            f"{what} (largest relative error of a log-likelihood against float64: {error:.1e})",
            "products",
            flops=2.0 * STATES**2,
            dtype=dtype,
        )
        contest.add("hmmscope", partial(ours, observations, dtype), components * BATCH * length)
        products, rows = _products(1 if device == "cpu" else min(256, components), dtype, device)
        contest.add("matrix products alone", products, rows, limit=True)
        found.append(contest)
    return found


def _products(together: int, dtype: torch.dtype, device: str) -> tuple[Callable[[], None], int]:
    left = noise(together, BATCH, STATES, dtype=dtype, device=device)
    right = noise(together, STATES, STATES, dtype=dtype, device=device)
    out = torch.empty_like(left)

    def products() -> None:
        for _ in range(64):
            if together == 1:
                torch.mm(left[0], right[0], out=out[0])
            else:
                torch.bmm(left, right, out=out)

    return products, 64 * together * BATCH
