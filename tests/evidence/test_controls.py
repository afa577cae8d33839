"""Networks that learned nothing decide no claim: as drawn, after one step, and trained on the answers of other prompts.

They were measured as trained ones are, by ``make controls``; what is kept of it is read here.
"""

import inspect
import json
import lzma
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

import hmmscope as hs
import script_modules
from adversarial_tables import DECIDED, judged, on_training
from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.evidence.rows import Rows, Tables
from overclaim_phrases import praise

KEPT = Path(__file__).parents[2] / "results" / "controls"
CONTROLS = ("untrained", "one-step", "mispaired")
FOLDERS = sorted(path.relative_to(KEPT) for path in KEPT.glob("*/*.json.xz"))
#: Claims that networks decide that learned nothing: what is left to be mended. A claim that stands comes off the list.
FALLEN: dict[str, tuple[str, ...]] = {}


def tables_of(path: Path) -> Tables:
    """The tables of a control, by rows."""
    data = json.loads(lzma.decompress((KEPT / path).read_bytes()))
    return {name: Rows(map(dict, rows_of(columns))) for name, columns in data.items()}


def rows_of(columns: dict[str, list]) -> list[list[tuple]]:
    """The cells of each row with their columns."""
    return [list(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("path", FOLDERS, ids=str)
def test_what_learned_nothing_decides_nothing(path: Path) -> None:
    experiment, tables = path.name.removesuffix(".json.xz"), tables_of(path)
    found = {claim.name: claim.evaluate(tables) for claim in on_training(experiment)}
    assert {name for name, one in found.items() if one.verdict in DECIDED} == set(
        FALLEN.get(str(path).removesuffix(".json.xz"), ())
    )
    asked = [claim for claim in claims_of(experiment) if claim.about == "training" and claim.is_question]
    answers = {
        claim.name: claim.evaluate(tables) for claim in asked if not judged(claim, tables).verdict.startswith("broken")
    }
    assert [name for name, one in answers.items() if one.verdict == "answered"] == []
    assert [sentence for one in (found | answers).values() for sentence in praise(one.text)] == []


def test_all_controls_are_kept(script: ModuleType) -> None:
    assert {str(path) for path in FOLDERS} == {
        f"{control}/{name}.json.xz" for control in CONTROLS for name in script.EXPERIMENTS
    }


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_modules.script("controls")


def test_the_script_makes_all_controls_of_experiments_with_claims_on_training(script: ModuleType) -> None:
    assert tuple(script.STEPS) == CONTROLS
    called = inspect.getsource(script.make)
    given = re.findall(r"^ {12}(\w+)=", called, re.MULTILINE)
    assert given
    assert set(given) <= inspect.signature(script.run_experiment).parameters.keys()
    assert [name for name in script.EXPERIMENTS if not on_training(name)] == []
    assert {path.name.removesuffix(".json.xz") for path in FOLDERS} <= set(script.EXPERIMENTS)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("engine", ["torch", "compiled"])
def test_what_a_control_does_to_a_training(script: ModuleType, engine: str, tmp_path: Path) -> None:
    def weights(control: str | None, steps: int) -> list[torch.Tensor]:
        training = {"batch_size": 8, "warmup_steps": 0, "final_fraction": 1.0, "engine": engine, "learning_rate": 0.01}
        options = {
            "model": "rnn",
            "length": 6,
            "num_steps": steps,
            "training": training,
            "out": tmp_path / f"{control} {steps}",
        }
        if control is None:
            run = hs.train("mess3", **options)
        else:
            with script.learning_nothing(control):
                run = hs.train("mess3", **options)
        return [*run.model.parameters(), *run.untrained().parameters()]

    def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return all(torch.equal(*pair) for pair in zip(one, other, strict=True))

    def trained(found: list[torch.Tensor]) -> list[torch.Tensor]:
        return found[: len(found) // 2]

    untrained, once = weights("untrained", 3), trained(weights("one-step", 3))
    assert same(trained(untrained), untrained[len(untrained) // 2 :])
    assert same(once, trained(weights(None, 1)))
    assert not same(once, trained(untrained))
    assert not same(trained(weights("mispaired", 3)), trained(weights(None, 3)))
