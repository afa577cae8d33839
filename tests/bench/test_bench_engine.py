"""The bench of the two engines computes steps with both."""

import pytest

from bench import engine
from hmmscope.errors import InputError
from hmmscope.training.compiled_steps import Compiled
from hmmscope.training.parallel import SingleProcess


@pytest.mark.slow
def test_both_engines_take_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for kind in (SingleProcess, Compiled):
        take = kind.take
        monkeypatch.setattr(kind, "take", lambda self, *args, take=take: taken.append(type(self)) or take(self, *args))
    monkeypatch.setattr(engine, "ROUNDED", ())
    monkeypatch.setattr(engine, "SHAPES", {"RNN 64, 17 columns": engine.SHAPES["RNN 64, 17 columns"]})
    (contest,) = engine.contests(peers=False)
    assert [contender.name for contender in contest.contenders] == ["compiled", "torch", "float32 matrix product"]
    for contender in contest.contenders[:2]:
        contender.run()
    assert taken == [Compiled] * 4 + [SingleProcess] * 4
    assert contest.contenders[0].amount == contest.contenders[1].amount == 4 * 64 * 17


def test_only_on_the_processor() -> None:
    with pytest.raises(InputError, match="bench engine measures the processor"):
        engine.contests(peers=False, device="cuda")
