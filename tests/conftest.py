"""One thread, shape annotations executed, the same generated examples in every run."""

from collections.abc import Iterator

import hypothesis
import jaxtyping
import pytest
import torch

#: Without kernels: compiled functions cannot close over checked ones.
ANNOTATED = ("inference", "processes", "corpora", "models", "constructions", "training", "analysis")

torch.set_num_threads(1)
jaxtyping.install_import_hook([f"hmmscope.{package}" for package in ANNOTATED], "beartype.beartype")
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("fixed")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Annotations are not executed: what a user sees who passes the wrong thing."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
