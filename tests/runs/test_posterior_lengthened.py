"""Chains that have not mixed are lengthened up to a limit, and the result says so."""

from typing import Any

import numpy as np
import pytest

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.gibbs import Chains, Draws
from hmmscope.runs import posterior


def test_chains_are_lengthened_until_they_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    fit, asked, needed = hs.fit([[0, 1, 1, 0]] * 5, 1), list[tuple[int, int]](), [1]

    def drawn(hmm: Any, work: Any, prior: Any, chains: Chains, allowed: Any) -> Draws:
        asked.append((chains.warm_up, chains.every))
        apart = 5.0 if len(asked) < needed[0] else 0.0
        values = np.random.default_rng(0).normal(size=(2, 50, 1)) + apart * np.arange(2)[:, None, None]
        return Draws({"initial": values}, np.zeros((2, 50)), 0.0)

    monkeypatch.setattr(posterior, "_symbol_draws", drawn)
    for needed[0], limit, factor in ((1, 8, 1), (3, 8, 4), (9, 8, 8), (3, 1, 1)):
        asked.clear()
        found = fit.posterior(50, num_chains=2, warm_up=10, max_lengthening=limit)
        assert found.lengthened == factor
        assert asked[-1] == (10 * factor, factor)
        assert (f"the chains were made {factor} times as long" in found.lines()[0]) == (factor > 1)
    with pytest.raises(InputError, match="max_lengthening: must be at least 1 and whole"):
        fit.posterior(50, max_lengthening=0)
