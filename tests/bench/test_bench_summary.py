"""The one table of the bench: who is ahead of whom, in what share of the limit, and why."""

import pytest

from bench import probes
from bench.contest import Contest, summary


def rows(ours: float, **others: float) -> list[dict]:
    same = {"work": "filtering", "threads": 1, "unit": "tokens/s", "share_of_limit": ours / 8}
    return [
        same | {"who": who, "rate": rate, "limit": who == "limit", "ours_over_this": ours / rate}
        for who, rate in {"hmmscope": ours, "limit": 8.0, **others}.items()
    ]


def test_the_fastest_peer_and_the_reason_where_it_is_ahead() -> None:
    contest = Contest("filtering", "tokens", reason="it returns less")
    (behind,) = summary([(contest, rows(2.0, slow=1.0, fast=4.0, **{"hmmscope, other": 5.0}))])
    assert (behind["peer"], behind["ratio"], behind["share_of_limit"]) == ("fast", 0.5, 0.25)
    assert behind["reason"] == "it returns less"
    (ahead,) = summary([(contest, rows(2.0, slow=1.0))])
    assert (ahead["peer"], ahead["ratio"], ahead["reason"]) == ("slow", 2.0, "")
    (alone,) = summary([(contest, rows(2.0))])
    assert (alone["peer"], alone["ratio"]) == (None, None)


def test_one_thread_is_timed_by_the_processor_and_several_by_the_clock() -> None:
    contest = Contest("nothing", "calls")
    contest.add("hmmscope", lambda: sum(range(10000)), 1)
    assert contest.rows(repeats=1, threads=1)[0]["timed_by"] == "processor"
    assert contest.rows(repeats=1, threads=2)[0]["timed_by"] == "clock"
    contest.rows(repeats=1, threads=1)  # and torch has one thread again


@pytest.mark.slow
def test_both_fit_the_same_probes() -> None:
    pytest.importorskip("sklearn")
    (contest,) = probes.contests(peers=True, samples=256)
    ours, theirs = (contender.run() for contender in contest.contenders)
    for weights, model in zip(ours, theirs, strict=True):
        centred = (weights[:-1] - weights[:-1].mean(1, keepdim=True)).T.numpy()
        assert abs(centred - model.coef_).max() < 0.1 * abs(model.coef_).max()  # both stop before the minimum
