"""What torch is set to while something runs, and then set back."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hmmscope.errors import InputError
from hmmscope.training.spec import TrainingSpec

#: Type of the weights of a run, and of the numbers that it is trained on.
DTYPE = torch.float32


@contextmanager
def settings(spec: TrainingSpec) -> Iterator[None]:
    """The threads and the determinism that a recipe asks of torch, and then as before.

    Raises:
        InputError: an operation that has no deterministic form, if the recipe is to be deterministic.
    """
    name = "CUBLAS_WORKSPACE_CONFIG"
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(name)
    with threads(spec.num_threads), plain():
        if not spec.deterministic:
            yield
            return
        os.environ[name] = workspace or ":4096:8"  # without it cuBLAS may give other bits when repeated
        torch.use_deterministic_algorithms(True)
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            what = str(error).partition(".")[0]
            raise InputError(f"training.deterministic: {what}; train on the processor, or without it") from error
        finally:
            torch.use_deterministic_algorithms(strict, warn_only=warns)
            del os.environ[name]
            os.environ.update({} if workspace is None else {name: workspace})


@contextmanager
def plain() -> Iterator[None]:
    """Gradients, and new tensors in float32, whatever the caller has set: neither may change the bits of a run."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """That many threads for torch, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
