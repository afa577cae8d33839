"""Settings of torch that hold inside a `with` block."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hmmscope.errors import InputError
from hmmscope.training.spec import TrainingSpec

#: Number type of weights and of training arithmetic.
DTYPE = torch.float32


@contextmanager
def settings(spec: TrainingSpec) -> Iterator[None]:
    """Apply a recipe's settings of threads and determinism, and restore the previous settings on exit.

    Raises:
        InputError: An operation has no deterministic implementation.
    """
    name = "CUBLAS_WORKSPACE_CONFIG"
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(name)
    with threads(spec.num_threads), plain():
        if not spec.deterministic:
            yield
            return
        os.environ[name] = workspace or ":4096:8"  # else cuBLAS may not repeat bits
        torch.use_deterministic_algorithms(True)
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            what = str(error).partition(".")[0]
            raise InputError(f"training.deterministic: {what}; use the CPU, or set deterministic to false") from error
        finally:
            torch.use_deterministic_algorithms(strict, warn_only=warns)
            del os.environ[name]
            os.environ.update({} if workspace is None else {name: workspace})


@contextmanager
def plain() -> Iterator[None]:
    """Enable gradients and the default dtype float32 inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
