"""Plans are checked before they run: which claims each can decide, and why not."""

import json
from collections.abc import Callable
from pathlib import Path

import kept_results
import pytest

from cli_cases import call  # noqa: F401 - a fixture
from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.power import chances
from hmmscope.lab.evidence.verdicts import Above
from hmmscope.lab.experiments.decidable import Outlook, outlooks, warning_of
from hmmscope.lab.experiments.planning import ExperimentPlan, plan_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def by_name(plan: ExperimentPlan, **options: list[Path]) -> dict[str, Outlook]:
    return {one.claim.name: one for one in outlooks(plan, **options)}


def test_the_plan_of_one_task_decides_that_task_alone() -> None:
    """The only GPU run of [Limits] trained Cyclic-DET: it could decide none of nine claims as a whole."""
    protocol = json.loads((ROOT / "papers/protocols/limits-fig3@gpu.json").read_text())
    kept = [kept_results.RESULTS / folder for folder in ("gpu/limits-fig3@cyclic-det", "medium/limits-fig3")]
    found = by_name(ExperimentPlan.from_data("limits-fig3", "gpu", protocol["plan"]), kept=kept)
    assert len(found) == 9
    assert not any(one.answer() == "can decide" for one in found.values())
    grows = found["limits-fit-length-grows"]
    assert (grows.parts, grows.missing) == (("Cyclic-DET",), ("Cyclic-RND", "MatMul"))
    assert grows.answer() == "can decide only Cyclic-DET: the plan does not measure Cyclic-RND, MatMul"
    assert found["limits-rnn-fits"].parts == ("Cyclic-DET",)
    for name in ("limits-hard-no-depth", "limits-hard-below-det", "limits-hard-plateau", "limits-constant-depth"):
        assert not found[name].decides
    power = found["limits-fit-length-power"]  # three seeds of that spread
    assert not power.decides
    assert "12 seeds would raise the first fraction to 0.9" in power.answer()


def test_the_plan_of_figure_1_at_the_papers_scale() -> None:
    """Its ratios are the paper's; one seed decides nothing, and five do."""
    one, five = (by_name(plan_of("multitask-fig1", "paper", {}, seeds)) for seeds in (None, 5))
    assert {outlook.answer() for outlook in one.values()} == {"cannot decide: one seed is not enough for a verdict"}
    assert {outlook.answer() for outlook in five.values()} == {"can decide"}
    fixed = {gate.text for gate in five["multitask-high-accuracy"].gates if gate.name == "regime"}
    assert "the number of prompts in which each HMM was shown (16 in the paper) is 16 (required: 4 to 64)" in fixed
    assert {"learned", "converged"} <= {*five["multitask-high-accuracy"].pending}


def test_a_claim_about_a_construction_has_no_gate_on_the_pool() -> None:
    small = by_name(plan_of("multitask-fig3b", "medium", {"plan.parts": "224", "plan.cycles": "12/6"}, 5), kept=[])
    assert not any("HMM" in gate.text for gate in small["multitask-construction-gathers"].gates)
    assert any("HMM" in gate.text for gate in small["multitask-peak-moves-up"].gates)


def test_ratios_that_the_plan_fixes_close_their_claims() -> None:
    small = by_name(plan_of("multitask-fig1", "medium", {"plan.parts": "16", "plan.cycles": "12/6"}, 5), kept=[])
    assert not any(one.decides for one in small.values())
    assert (
        "the number of HMMs in the pool (8192 in the paper) is 128 (required: 512"
        in small["multitask-high-accuracy"].answer()
    )
    asked = by_name(plan_of("limits-fig3", "medium", {}, None), kept=[])
    assert not asked["limits-hard-plateau"].decides
    assert (
        "the fraction of actions after which the model must predict the state is 0.03125"
        in asked["limits-hard-plateau"].answer()
    )
    assert asked["limits-fit-length-grows"].answer() == "can decide"
    longer = by_name(plan_of("limits-fig3", "medium", {"plan.length": "64"}, 8), kept=[])
    assert longer["limits-hard-plateau"].answer() == "can decide"


def test_ratios_of_kept_trainings_count_for_the_same_plan() -> None:
    """The number of prompts per HMM comes from kept tables of the same trainings, not from a hook."""
    own, other = (
        by_name(plan_of("limits-table3", "medium", changes, 8)) for changes in ({}, {"training.warmup_steps": "9"})
    )
    gates = [gate for gate in own["limits-no-overfitting"].gates if gate.name == "regime"]
    assert [gate.is_open for gate in gates] == [False]
    assert not own["limits-no-overfitting"].decides
    assert "regime" in other["limits-no-overfitting"].pending


def test_without_kept_tables_the_plan_still_answers_what_it_fixes() -> None:
    found = by_name(plan_of("multitask-fig1", "paper", {}, None), kept=[])
    assert {one.answer() for one in found.values()} == {"cannot decide: one seed is not enough for a verdict"}


def test_scale_smoke_decides_nothing_and_warns_of_nothing() -> None:
    plan = plan_of("limits-fig3", "smoke", {}, None)
    assert not any(one.decides for one in outlooks(plan, []))
    assert warning_of(plan) is None


def test_a_plan_that_can_decide_nothing_warns_before_it_begins(
    call: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hmmscope.lab.verbs.run.run_experiment", stop)
    line = ("run", "multitask-fig1", "--scale", "small", "--out", str(tmp_path / "a"), "--num-seeds")
    warned = "warning: this plan can decide none of its 3 claims"
    assert warned in call(*line, "1").error
    assert warned not in call(*line, "5").error


def test_a_dry_run_prints_each_gate(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "found no stored tables of limits-fig3 in results/" in call("run", "limits-fig3", "--dry-run").out
    monkeypatch.chdir(ROOT)
    said = call(
        "run", "limits-fig3", "--scale", "medium", "--plan.tasks", "cyclic-det", "--plan.layers", "1", "--dry-run"
    )
    assert said.code == 0
    assert "of 9 claims and questions, in whole or in part:" in said.out
    assert "  measured   closed  the plan does not measure MatMul (MatMul)" in said.out
    assert "  learned    ?       depends on the data" in said.out


def test_chances_of_a_rule() -> None:
    """A spread of nothing decides always, a wide one never; and in sign is borne out too."""
    quiet, loud = Effect.pooled([1.0, 1.01, 0.99]), Effect.pooled([1.0, 90.0, -50.0])
    assert (chances(Above(0, smallest_effect=0.5), {"": quiet}) or ()) > (0.99, 0.99)
    assert max(chances(Above(0, smallest_effect=0.5), {"": loud}) or (1.0,)) < 0.1
    assert chances(Above(), {"": quiet}) is None
