"""Rules and gates: what decides, what stays open, and what closes."""

import pytest

from hmmscope.lab.evidence.effects import Effect
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.verdicts import Above, Always, Below, Gate, Printed, Rule, Within, all_of, answer, at_budget


def effect(low: float, high: float, seeds: int = 5) -> Effect:
    return Effect(
        value=(low + high) / 2, low=low, high=high, error=(high - low) / 4, degrees=seeds - 1, num_seeds=seeds
    )


@pytest.mark.parametrize(
    ("rule", "low", "high", "verdict"),
    [
        (Above(), 0.1, 0.3, "reproduced"),
        (Above(), -0.1, 0.3, "inconclusive"),
        (Above(), -0.3, -0.1, "not reproduced"),
        (Above(0, smallest_effect=0.5), 0.1, 0.3, "not reproduced"),  # surely there, and surely too small
        (Above(0, smallest_effect=0.5), 0.1, 0.8, "reproduced in sign"),  # there, and it may matter or not
        (Above(0, smallest_effect=0.5), 0.4, 0.8, "reproduced in sign"),  # there, and perhaps too small
        (Above(0, smallest_effect=0.5), 0.5, 0.8, "reproduced"),
        (Above(1.0), 1.1, 1.2, "reproduced"),
        (Below(2.0, smallest_effect=0.5), 0.5, 1.0, "reproduced"),
        (Below(2.0, smallest_effect=0.5), 1.0, 1.9, "reproduced in sign"),
        (Below(2.0), 2.1, 3.0, "not reproduced"),
        (Within(0.1), -0.05, 0.05, "reproduced"),
        (Within(0.1), 0.2, 0.4, "not reproduced"),
        (Within(0.1), 0.05, 0.4, "inconclusive"),
        (Printed(1.0, margin=0.5), 0.8, 1.3, "reproduced"),
        (Printed(1.0, margin=0.1), 0.0, 2.0, "inconclusive"),  # too wide to say anything
        (Printed(1.0, margin=0.5), 1.1, 1.3, "not reproduced"),
    ],
)
def test_rules(rule: Rule, low: float, high: float, verdict: str) -> None:
    assert rule.verdict(effect(low, high)) == verdict


def test_what_is_not_seen_at_less_than_the_papers_budget_is_not_refuted() -> None:
    papers, less = {"sequences": 5e8}, "at 640,000 sequences (the paper: 500,000,000)"
    fewer = {"sequences": 640_000, "tokens": 2e9}
    assert at_budget("not reproduced", fewer, papers, True) == ("not at this budget", less)
    assert at_budget("reproduced", {"sequences": 640_000}, papers, True) == ("reproduced", less)
    assert at_budget("not reproduced", {"sequences": 5e8}, papers, True) == ("not reproduced", "")
    unknown = "at 640,000 sequences (the paper: not stated)"
    assert at_budget("not reproduced", {"sequences": 640_000}, {}, True) == ("not at this budget", unknown)
    assert at_budget("not reproduced", {}, papers, True)[0] == "not at this budget"


@pytest.mark.parametrize("could_help", [False, None])
def test_what_more_budget_would_deny_the_more_is_not_reproduced(could_help: bool | None) -> None:
    less = "at 640,000 sequences (the paper: 500,000,000)"
    assert at_budget("not reproduced", {"sequences": 640_000}, {"sequences": 5e8}, could_help) == (
        "not reproduced",
        less,
    )


def test_a_question_is_answered_only_by_an_interval_without_zero() -> None:
    assert answer(0.1, 0.2) == answer(-0.2, -0.1) == "answered"
    assert answer(-0.1, 0.2) == answer(0.0, 0.2) == answer(None, None) == "open"
    older = {"title": "How?", "text": "So.", "verdict": "found", "value": 0.1, "low": -0.1, "high": 0.3}
    assert Finding.from_data(older).verdict == "open"


def test_always_is_refuted_by_one_and_borne_out_by_many() -> None:
    rule = Always(0.9)
    assert rule.verdict(Effect.share([True] * 36)) == "reproduced"
    assert rule.verdict(Effect.share([True] * 35)) == "inconclusive"
    assert rule.verdict(Effect.share([True] * 99 + [False])) == "not reproduced"
    assert rule.seeds_needed(Effect.share([True] * 5)) == 36


@pytest.mark.parametrize(
    "found",
    [
        Effect.pooled([1.0]),  # one seed
        Effect.pooled([1.0, 1.0, 1.0]),  # no spread to tell an interval from
        Effect.pooled([1.0, 1.1, None]),  # a seed lacks the number
    ],
)
def test_without_an_interval_over_all_seeds_nothing_is_decided(found: Effect) -> None:
    assert Above().verdict(found) == "inconclusive"
    assert Below(100.0).verdict(found) == "inconclusive"


@pytest.mark.parametrize("matters", [0.0, 0.2])
def test_mirror_of_reproduced_is_not_reproduced(matters: float) -> None:
    rule = Above(0.3, smallest_effect=matters)
    found = effect(0.6, 0.9)
    assert rule.verdict(found) == "reproduced"
    assert rule.verdict(found.mirrored(rule.bound)) == "not reproduced"


def test_how_many_seeds_would_decide() -> None:
    found = Effect.pooled([0.1, 0.9, 0.2])
    count = Above().seeds_needed(found)
    assert count > 3
    assert Above().verdict(found.with_seeds(count)) == "reproduced"
    assert Above().verdict(found.with_seeds(count - 1)) == "inconclusive"
    assert Above().seeds_needed(Effect.pooled([-1.0, 1.0, 0.0])) is None  # at the bound: no number of seeds would


def test_all_of_takes_the_worst_and_refuses_what_is_missing() -> None:
    good, better, bad, open_ = effect(1, 2), effect(3, 4), effect(-2, -1), effect(-1, 1)
    assert all_of(Above(), {"a": better, "b": good}) == ("reproduced", "b", [])
    assert all_of(Above(), {"a": better, "b": open_}) == ("inconclusive", "b", [])
    assert all_of(Above(), {"a": bad, "b": open_}) == ("not reproduced", "a", [])
    assert all_of(Above(), {"a": good}, wanted=("a", "c")) == ("not tested", "a", ["c"])
    assert all_of(Above(), {}) == ("not tested", "", [])


def test_converged() -> None:
    assert Gate.converged({"a": 0.01, "b": -0.02}, 0.1, "loss").is_open
    moving = Gate.converged({"a": 0.01, "b": -0.2}, 0.1, "loss")
    assert not moving.is_open
    assert "in 1 of 2 cases (b) the loss" in moving.text
    assert not Gate.converged({"a": 0.01, "b": None}, 0.1, "loss").is_open  # what was not recorded is not flat
    assert not Gate.converged({"a": float("nan")}, 0.1, "loss").is_open
    assert not Gate.converged({}, 0.1, "loss").is_open


def test_a_verdict_is_settled_if_one_more_doubling_would_not_turn_it() -> None:
    clear, open_ = {"a": effect(1, 2)}, {"a": effect(-1, 1)}
    assert Gate.converged_by_rule(Above(), clear, {"a": -0.5}).is_open
    assert Gate.converged_by_rule(Above(), clear, {"a": 5.0}).is_open
    turned = Gate.converged_by_rule(Above(), clear, {"a": -1.5})
    assert not turned.is_open
    assert "changed the effect by -1.5 (a)" in turned.text
    assert "would change the answer from supported to undecided" in turned.text
    assert Gate.converged_by_rule(Above(), open_, {"a": 0.0}).is_open
    assert not Gate.converged_by_rule(Above(), open_, {"a": 3.0}).is_open
    assert not Gate.converged_by_rule(Above(), clear, {"a": None}).is_open  # what was not recorded does not rest
    assert not Gate.converged_by_rule(Above(), clear, {}).is_open
    assert not Gate.converged_by_rule(Above(), {}, {}).is_open
    assert Gate.converged_by_rule(Above(), clear | {"b": effect(3, 4)}, {"a": 0.0, "b": -1.0}).is_open
    assert not Gate.converged_by_rule(
        Above(), clear | {"b": effect(3, 4)}, {"a": 0.0, "b": -9.0}
    ).is_open  # any of them


def test_learned() -> None:
    assert Gate.learned(effect(0.2, 0.4), 0.1, "an n-gram").is_open
    assert not Gate.learned(effect(0.2, 0.4), 0.5, "an n-gram").is_open
    assert not Gate.learned(effect(-0.1, 0.4), 0.1, "an n-gram").is_open


def test_matched() -> None:
    same = {"rnn": {"sequences": 100, "tokens": 800}, "transformer": {"sequences": 100, "tokens": 900}}
    assert Gate.matched(same).text == "the compared models were trained with equal sequences"
    four = Gate.matched({"rnn": {"sequences": 400}, "transformer": {"sequences": 100}})
    assert not four.is_open
    assert "sequences by a factor of 4" in four.text
    assert not Gate.matched({"rnn": {"sequences": 1}, "transformer": {"tokens": 1}}).is_open


def test_regime_and_room() -> None:
    assert Gate.regime(16, 8, 64, "prompts per HMM").is_open
    assert not Gate.regime(960, 8, 64, "prompts per HMM").is_open
    assert Gate.headroom(4, 2, "the length").is_open
    assert not Gate.headroom(1.2, 2, "the length").is_open
