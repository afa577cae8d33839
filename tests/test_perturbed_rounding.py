"""No text, order, digest, verdict or exit code depends on the last bit of a float: `perturbed_rounding.py` moves it."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from perturbed_rounding import JOBS, Mover, exact

SCRIPT = Path(__file__).with_name("perturbed_rounding.py")


@cache
def texts(seed: int, *jobs: str) -> dict[str, dict[str, str]]:
    """What the jobs print with the last bits moved; seed 0 moves none, and needs no process of its own."""
    if seed == 0:
        return {job: JOBS[job]() for job in jobs}
    done = subprocess.run([sys.executable, str(SCRIPT), str(seed), *jobs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["moved"] > 10_000
    return found["texts"]


def unchanged(seed: int, *jobs: str) -> None:
    plain, moved = texts(0, *jobs), texts(seed, *jobs)
    for job in jobs:
        for name, text in plain[job].items():
            assert moved[job][name] == text, f"{job} {name}"


@pytest.mark.long
def test_answers_and_digests_stay() -> None:
    unchanged(1, "laws", "oracle")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_every_text_stays(seed: int) -> None:
    unchanged(seed, "laws", "oracle", "facts", "show", "claims")


def test_what_is_moved() -> None:
    """Products of thirds; but no product of counts, no sum of multiples of 2^-32, no zero and no infinity."""
    import numpy as np
    import torch

    mover, thirds = Mover(1), np.arange(1, 61).reshape(6, 10) / 3
    moved, plain = mover.product(thirds, thirds.T), thirds @ thirds.T
    assert not exact([thirds, thirds])
    assert (moved != plain).any()
    np.testing.assert_allclose(moved, plain, rtol=1e-15)
    counts = torch.tensor([[3.0, 0.0], [2.0**-32, 1 - 2.0**-32]], dtype=torch.float64)
    assert exact([counts])
    assert torch.equal(mover.call("sum", counts.sum, 0), counts.sum(0))
    logs = mover.call("log", torch.log, torch.tensor([1.0, 0.0, 3.0], dtype=torch.float64))
    assert logs[:2].tolist() == [0.0, -torch.inf]
    assert logs[2] != torch.tensor(3.0, dtype=torch.float64).log()
