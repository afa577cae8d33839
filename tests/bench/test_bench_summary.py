"""The one table of the bench: who is ahead of whom, in what share of the limit, and why."""

import re

import numpy as np
import pytest
import torch

import hmmscope as hs
from bench import peak, probes
from bench.contest import Contest, summary, where_time_goes


def rows(ours: float, **others: float) -> list[dict]:
    same = {
        "work": "filtering",
        "threads": 1,
        "unit": "tokens/s",
        "share_of_limit": ours / 8,
        "share_of_peak": ours / 16,
    }
    return [
        same | {"who": who, "rate": rate, "limit": who == "limit", "ours_over_this": ours / rate}
        for who, rate in {"hmmscope": ours, "limit": 8.0, **others}.items()
    ]


def test_the_fastest_peer_and_the_reason_where_it_is_ahead() -> None:
    contest = Contest("filtering", "tokens")
    (behind,) = summary([(contest, rows(2.0, slow=1.0, fast=4.0, **{"hmmscope, other": 5.0}))])
    assert (behind["peer"], behind["ratio"], behind["share_of_limit"]) == ("fast", 0.5, 0.25)
    assert behind["share_of_peak"] == 0.125
    (ahead,) = summary([(contest, rows(2.0, slow=1.0))])
    assert (ahead["peer"], ahead["ratio"], ahead["reason"]) == ("slow", 2.0, "")
    (alone,) = summary([(contest, rows(2.0))])
    assert (alone["peer"], alone["ratio"]) == (None, None)


def test_the_reason_says_where_the_time_of_a_slower_call_goes() -> None:
    """Two calls that wait, and the compiled loop of a filter: the profile finds each in its part."""
    hmm, seen = hs.load_process("umbrella"), torch.zeros(1, 20_000, dtype=torch.int64)
    contest = Contest("filtering", "tokens")
    contest.add("hmmscope", lambda: hs.filter_beliefs(hmm, seen), 1)
    contest.add("nobody", lambda: None, 1)
    (line,) = summary([(contest, contest.rows(repeats=1, threads=1))])
    assert re.fullmatch(
        r"of \S+ ms, \d+% in compiled loops, \d+% in torch and NumPy, \d+% in Python "
        r"\(longest loop: \w+, \S+ ms\); nobody takes \S+ ms",
        line["reason"],
    )
    assert (
        where_time_goes(contest.contenders[1], 1, 1.0)
        == "of 1e+03 ms, 0% in compiled loops, 0% in torch and NumPy, 100% in Python"
    )


def test_one_thread_is_timed_by_the_processor_and_several_by_the_clock() -> None:
    contest = Contest("nothing", "calls")
    contest.add("hmmscope", lambda: sum(range(10000)), 1)
    assert contest.rows(repeats=1, threads=1)[0]["timed_by"] == "processor"
    assert contest.rows(repeats=1, threads=2)[0]["timed_by"] == "clock"
    contest.rows(repeats=1, threads=1)  # and torch has one thread again


@pytest.mark.parametrize("threads", [1, 2])
def test_a_product_has_its_share_of_the_peak_beside_that_of_the_library(threads: int) -> None:
    left = torch.full((64, 64), 0.5, dtype=torch.float64)
    contest = Contest("product", "rows", flops=2.0 * 64**2)
    contest.add("hmmscope", lambda: left @ left, 64)
    contest.add("torch.mm", lambda: torch.mm(left, left), 64, limit=True)
    ours, library, peak = contest.rows(repeats=1, threads=threads)
    assert (peak["who"], peak["share_of_peak"], peak["limit"]) == ("float64 peak", 1.0, True)
    assert ours["share_of_peak"] == pytest.approx(ours["rate"] / peak["rate"])
    assert ours["share_of_limit"] == pytest.approx(ours["rate"] / library["rate"])
    assert library["share_of_limit"] is None
    assert library["share_of_peak"] == pytest.approx(library["rate"] / peak["rate"])
    torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_peak_is_of_multiplications_that_are_made(dtype: type) -> None:
    """From 0, 1/8, .. on, x -> x / 2 + 1 / 2 comes to one, in each of the chains that are added up."""
    numbers = np.full(128, 0.5, dtype)
    peak.fused(100, numbers)
    (changed,) = np.flatnonzero(numbers != 0.5)[-1:] + 1
    assert (numbers[:changed] == peak.CHAINS).all()
    operations = peak.burst(torch.float64 if dtype == np.float64 else torch.float32)[1]  # type: ignore[index]
    assert operations == 2**21 * 2 * peak.CHAINS * changed


@pytest.mark.slow
def test_both_fit_the_same_probes() -> None:
    pytest.importorskip("sklearn")
    (contest,) = probes.contests(peers=True, samples=256)
    ours, theirs = (contender.run() for contender in contest.contenders)
    for weights, model in zip(ours, theirs, strict=True):
        centred = (weights[:-1] - weights[:-1].mean(1, keepdim=True)).T.numpy()
        assert abs(centred - model.coef_).max() < 0.1 * abs(model.coef_).max()  # both stop before the minimum
