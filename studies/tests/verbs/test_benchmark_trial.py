"""Models that HMM-bench refuses when they are entered, and where they are run again."""

from pathlib import Path

import pytest
import torch
from torch import nn

from benchmark_cases import MODEL, failing
from hmmscope.errors import RefusedError
from hmmscope.lab.cli import main
from hmmscope_studies import benchmark as hmmbench
from hmmscope_studies.benchmark import submission as submitting


def _leaves(vocab_size):
    raise SystemExit(0)


class Embedded(nn.Module):
    """What the models below share: logits of a table, and one more thing that is wrong."""

    def __init__(self, vocab_size, num_outputs):
        super().__init__()
        self.table = nn.Embedding(vocab_size, num_outputs)

    def forward(self, tokens):
        return self.table(tokens)


class LooksAhead(Embedded):
    """At the token 3 alone, and by one column."""

    def forward(self, tokens):
        logits = self.table(tokens)
        return torch.where((tokens == 3)[..., None], 5 * logits.roll(-1, 1), logits)


class LooksAround(Embedded):
    """At the other samples."""

    def forward(self, tokens):
        return self.table(tokens) + self.table(tokens).mean(0)


class Counts(Embedded):
    def __init__(self, vocab_size, num_outputs):
        super().__init__(vocab_size, num_outputs)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens):
        self.calls += 1
        return self.table(tokens)


class Draws(Embedded):
    def forward(self, tokens):
        return torch.randn_like(self.table(tokens))


class MakesLater(Embedded):
    def forward(self, tokens):
        if not hasattr(self, "more"):
            self.more = nn.Parameter(torch.zeros(()))
        return self.table(tokens) + self.more


class Frozen(Embedded):
    def __init__(self, vocab_size, num_outputs):
        super().__init__(vocab_size, num_outputs)
        self.requires_grad_(False)


class Complex(Embedded):
    def __init__(self, vocab_size, num_outputs):
        super().__init__(vocab_size, num_outputs)
        self.phase = nn.Parameter(torch.ones(1, dtype=torch.complex64))


class Lazy(Embedded):
    def __init__(self, vocab_size, num_outputs):
        super().__init__(vocab_size, num_outputs)
        self.more = nn.LazyLinear(num_outputs)


class TooNarrow(Embedded):
    def __init__(self, vocab_size, num_outputs):
        super().__init__(vocab_size, 2)


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (LooksAhead, "asked-rarely: model: its prediction at position"),
        (LooksAround, "parity: model: its prediction at position"),
        (Counts, "parity: model: changes calls in evaluation mode"),
        (Draws, "parity: model: gives other predictions for the same input"),
        (MakesLater, "parity: model: creates weights when it is called"),
        (Frozen, "parity: model: has no weights to train"),
        (Complex, "parity: model: has weights that are not real numbers"),
        (Lazy, "parity: model: has lazy modules"),
        (TooNarrow, "asked-rarely: model: returns 2 logits"),
        (_leaves, "parity: SystemExit: 0"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_cannot_be_scored_is_refused_before_anything_is_written(model, part, tmp_path):
    failing(part, hmmbench.benchmark, model, tmp_path / "out", tasks=["parity", "asked-rarely"], num_steps=2)
    assert not (tmp_path / "out").exists()


class Normalised(Embedded):
    def forward(self, tokens):
        return self.table(tokens).softmax(-1)


def test_every_entry_is_rehearsed_on_its_tasks(tmp_path, monkeypatch):
    """Before anything is written; the line names the task."""

    def stop(*args):
        raise RefusedError("rehearsed")

    monkeypatch.setattr(submitting, "_open", stop)
    with pytest.warns(UserWarning, match=r"parity: .*probabilit"), pytest.raises(RefusedError, match="rehearsed"):
        hmmbench.benchmark(Normalised, tmp_path / "out", tasks=("parity",))


def test_a_model_that_looks_ahead_is_refused_where_it_is_run(tmp_path, monkeypatch):
    """Whoever leaves the trial out at home."""
    with monkeypatch.context() as patch:
        for name in ("try_entry", "require_causal"):
            patch.setattr(submitting, name, lambda *_: None)
        hmmbench.benchmark(LooksAhead, tmp_path / "out", tasks=["asked-rarely"], num_steps=20)
    assert hmmbench.check_submission(tmp_path / "out")
    failing("depends on later symbols", hmmbench.check_submission, tmp_path / "out", run=LooksAhead)


def test_of_several_models_each_is_tried(tmp_path, monkeypatch, capsys):
    """One that cannot be entered keeps no other out; a file that is not there is said before any is entered."""
    monkeypatch.chdir(tmp_path)
    Path("narrow.py").write_text(
        "from torch import nn\n\n\ndef build(vocab_size, num_outputs):\n    return nn.Embedding(9, 1)\n"
    )
    Path("good.py").write_text(MODEL)
    asked = ["--tasks", "parity", "--steps", "2", "-q"]
    assert main(["benchmark", "good.py", "none.py", *asked]) == 2
    assert not Path("hmm-bench").exists()
    capsys.readouterr()
    assert main(["benchmark", "narrow.py", "good.py", *asked]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error[2] benchmark: narrow.py failed (error[2] parity: model: ")
    assert told.err.count("\n") == 1
    assert "submission: hmm-bench/good" in told.out
    assert [path.name for path in Path("hmm-bench").iterdir()] == ["good"]
