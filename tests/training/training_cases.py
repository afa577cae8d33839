"""What the tests of training share."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forking
from hmmscope.processes.hmm import HMM
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.storage import store
from hmmscope.storage.rundir import RunDir, read_journal
from hmmscope.training import updates
from training_crash import CONFIG, EVERY, run

SCRIPT = Path(__file__).with_name("training_crash.py")


class Stop(BaseException):
    """Ends a run as abruptly as an exception can."""


def config(**training: Any) -> RunConfig:
    """The configuration of the crash tests, with other training numbers."""
    return config_from_data(CONFIG | {"training": CONFIG["training"] | training})


@pytest.fixture
def at_loss(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[torch.Tensor], torch.Tensor]], None]:
    """Puts a function in place of the loss's value at its n-th computation."""
    loss = updates.target_loss

    def plant(number: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        calls = 0

        def changed(*args: Any, **options: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return change(loss(*args, **options)) if calls == number else loss(*args, **options)

        monkeypatch.setattr(updates, "target_loss", changed)

    return plant


def stop(loss: torch.Tensor) -> torch.Tensor:
    raise Stop


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    run(path)
    return path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended in step 39, with checkpoints of steps 28 and 35."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        loss, calls = updates.target_loss, 0

        def counted(*args: Any, **options: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            found = loss(*args, **options)
            return stop(found) if calls == 39 else found

        patch.setattr(updates, "target_loss", counted)
        with pytest.raises(Stop):
            run(path)
    assert RunDir.open(path).checkpoint_steps() == [4 * EVERY, 5 * EVERY]
    assert len(read_journal(path / "metrics.jsonl")) == 38
    return path


@pytest.fixture
def partial(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it, under another name."""
    return Path(shutil.copytree(stopped, tmp_path / "copied"))


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def reseal(folder: Path) -> None:
    """Make the manifest true of files that were changed: a folder made by somebody else, not a damaged one."""
    names = json.loads((folder / "manifest.json").read_text())["files"]
    aside = folder.parent / "aside"
    aside.mkdir()
    for name in names:
        shutil.copy(folder / name, aside / name)
    store.write_manifest(aside)
    shutil.copy(aside / "manifest.json", folder / "manifest.json")
    shutil.rmtree(aside)


class Constant(nn.Module):
    """Logits by column: row c of a table, whatever the tokens are."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = table

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[: tokens.shape[1]].expand(len(tokens), -1, -1)


# --------------------------------------------------------------------------------------------------------------------
# Interrupted and resumed


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict]:
    """The report of the script on one of its modes, as ``kills=12``."""

    def report(mode: str) -> dict:
        done = forking.run([str(SCRIPT), str(tmp_path_factory.mktemp("crashes")), mode])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])[mode.partition("=")[0]]

    return report


MUTATIONS: dict[str, Any] = {
    "process.num_states": 4,
    "process.num_symbols": 5,
    "process.transition_concentration": 2.0,
    "process.emission_concentration": 2.0,
    "process.seed": 2,
    "layout.length": 9,
    "layout.placeholder": True,
    "model.num_layers": 2,
    "model.num_heads": 1,
    "model.width": 12,
    "model.mlp_ratio": 3,
    "model.rotary_base": 100.0,
    "training.num_steps": 61,
    "training.batch_size": 5,
    "training.num_trajectories": 30,
    "training.epoch_steps": 20,
    "training.schedule": "constant",
    "training.learning_rate": 0.011,
    "training.warmup_steps": 6,
    "training.warmup_from": 0.001,
    "training.halve_every": 10,
    "training.final_fraction": 0.1,
    "training.betas": [0.9, 0.99],
    "training.epsilon": 1e-7,
    "training.weight_decay": 0.02,
    "training.gradient_clip": 2.0,
    "training.curriculum": [4, 8],
    "training.block_length": 3,
    "training.block_algorithm": "naive",
    "training.num_grains": 2,  # the stored name of accumulation_steps
    "training.parallel": "ddp",
    "training.precision": "bfloat16",
    "training.compile": True,
    "training.deterministic": True,
    "training.evaluate_every": 10,
    "training.evaluate_samples": 9,
    "training.checkpoint_every": 8,
    "training.milestones": 5,
    "training.num_threads": 2,
    "target": "belief",
    "seed": 4,
}


def flat(data: dict[str, Any], where: str = "") -> dict[str, Any]:
    found = {}
    for key, value in data.items():
        found |= flat(value, f"{where}{key}.") if isinstance(value, dict) else {f"{where}{key}": value}
    return found


# --------------------------------------------------------------------------------------------------------------------
# A user's own process


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, RunConfig]:
    file = tmp_path / "mine.json"
    HMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]], symbols=["a", "b", "c"]).save(file)
    data = CONFIG | {"process": {"name": "file", "path": str(file)}}
    return file, config_from_data(data, {"training.num_steps": "9"})
