"""Ctrl-C in a fit keeps what was computed; the choice of the number of states is named and states its cost."""

import signal
from pathlib import Path

import numpy as np
import pytest

import hmmscope as hs
from hmmscope.emissions import vector_evidence
from hmmscope.errors import InputError
from hmmscope.inference import gibbs
from hmmscope.inference.evidence import Evidence
from hmmscope.inference.gibbs import Chains
from hmmscope.lab.cli import main
from hmmscope.progress import Progress, StoppableProgress
from hmmscope.training.signals import Interrupted

SYMBOLS = np.random.default_rng(0).integers(0, 3, 120).tolist()
NUMBERS = np.random.default_rng(0).normal(size=120) + np.repeat([0.0, 4.0], 60)


@pytest.fixture(autouse=True)
def heard():
    """SIGINT raises KeyboardInterrupt, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def ctrl_c(monkeypatch):
    """Return a function that sends SIGINT when progress reaches a step."""

    def at(step, *, raised=True):
        update = StoppableProgress.update

        def interrupting(self, made, note=""):
            update(self, made, note)
            if made >= step and not self.stopped:
                if raised:
                    signal.raise_signal(signal.SIGINT)
                self.stopped = True

        monkeypatch.setattr(StoppableProgress, "update", interrupting)

    return at


@pytest.mark.parametrize("data", [SYMBOLS, NUMBERS], ids=["symbols", "numbers"])
def test_an_interrupted_fit_holds_what_it_has(data, ctrl_c):
    whole = hs.fit(data, [1, 2], options=hs.FitOptions(choose="bic"))
    ctrl_c(2450)  # restarts that were not needed count: this is the first of 2 states
    with pytest.raises(Interrupted, match=r"stopped by SIGINT in restart .* `result` of this error") as caught:
        hs.fit(data, [1, 2, 3])
    found = caught.value.result
    assert caught.value.exit_code == 130
    assert list(found.fits) == [1]
    assert found.fits[1].log_likelihood == whole.fits[1].log_likelihood
    assert len(found.predict()) == 120
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("data", [SYMBOLS, NUMBERS], ids=["symbols", "numbers"])
def test_a_first_size_that_was_interrupted_is_returned_unconverged(data, ctrl_c):
    ctrl_c(3)
    with pytest.raises(Interrupted) as caught:
        hs.fit(data, 3)
    found = caught.value.result
    assert not found.converged
    assert found.hmm.num_states == 3
    assert np.isfinite(found.score())


def test_a_second_ctrl_c_ends_at_once():
    with StoppableProgress(4, "fit", quiet=True) as progress:
        signal.raise_signal(signal.SIGINT)
        assert progress.stopped
        assert progress(1)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("data", [SYMBOLS, NUMBERS], ids=["symbols", "numbers"])
def test_interrupted_chains_are_the_beginning_of_whole_ones(data, monkeypatch, ctrl_c):
    monkeypatch.setattr(gibbs, "PIECE", 7)
    options = {"num_chains": 2, "warm_up": 20, "every": 3, "max_lengthening": 1}
    fit = hs.fit(data, 2)
    whole = fit.posterior(30, **options)
    ctrl_c(20 + 60, raised=False)  # in a thread, where no handler runs
    with pytest.raises(Interrupted, match=r"after \d+ draws per chain") as caught:
        fit.posterior(30, **options)
    found = caught.value.result
    chains, draws = found.log_likelihood.shape
    assert 4 <= draws < 30
    assert found.log_likelihood.tolist() == whole.log_likelihood[:chains, :draws].tolist()
    ctrl_c(1, raised=False)
    with pytest.raises(Interrupted, match="before the first draws"):
        fit.posterior(30, **options)


def test_the_pieces_of_chains_are_all_their_sweeps(monkeypatch):
    monkeypatch.setattr(gibbs, "PIECE", 10)
    for warm_up, every, draws in [(0, 1, 4), (25, 3, 7), (10, 20, 5), (11, 1, 40)]:
        chains = Chains(num_draws=draws, num_chains=1, warm_up=warm_up, every=every)
        pieces = list(chains.pieces())
        assert sum(burn + 1 + every * (end - first - 1) for burn, first, end in pieces) == chains.num_sweeps
        assert pieces[-1][2] == draws


def test_an_interrupted_command_saves_its_fit(tmp_path, ctrl_c, capsys):
    Path(tmp_path / "seen.txt").write_text(" ".join(map(str, SYMBOLS)))
    ctrl_c(2450)
    out = tmp_path / "fitted.json"
    asked = ["fit", str(tmp_path / "seen.txt"), "--unit", "numbers", "--states", "1,2,3", "--out", str(out)]
    assert main(asked) == 130
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"saved the best fit so far in {out}")
    assert hs.load_process(out).num_states == 1


@pytest.mark.parametrize("data", [SYMBOLS, NUMBERS], ids=["symbols", "numbers"])
def test_the_rule_of_the_choice_is_named_and_its_cost_stated(data):
    by_bic = hs.fit(data, [1, 2], options=hs.FitOptions(choose="bic"))
    assert "the interval uses BIC only, because choose is 'bic'" in by_bic.reason
    assert by_bic.support.log_evidence == {size: -fit.bic / 2 for size, fit in by_bic.fits.items()}
    by_evidence = hs.fit(data, [1, 2], options=hs.FitOptions(choose="evidence"))
    assert "the largest evidence" in by_evidence.reason
    logs = by_evidence.support.log_evidence
    assert by_evidence.hmm.num_states == max(logs, key=logs.get)
    restarts = sum(fit.num_restarts for fit in by_bic.fits.values()) + (by_bic.whole is not None)
    assert by_bic.cost["restarts"] == restarts
    assert by_bic.cost["evidence_seconds"] <= by_bic.cost["seconds"]
    assert by_bic.lines()[-1].startswith(f"cost of choosing num_states: {restarts} restarts, ")
    with pytest.raises(InputError, match="choose: unknown 'aic'; did you mean 'bic'"):
        hs.fit(data, [1, 2], options=hs.FitOptions(choose="aic"))
    data = [data] if data is SYMBOLS else data
    with pytest.raises(InputError, match=r"choose: cannot be 'evidence', because .*; use choose='bic'"):
        hs.fit(data, [1, 2], options=hs.FitOptions(choose="evidence", sequence_weights=[2.0]))


def test_long_numbers_are_chosen_by_bic_unless_the_evidence_is_asked_for(monkeypatch):
    limits = []

    def estimated(hmm, rows, lengths, laws, *, most, callback, chain):
        limits.append(most)
        return (
            vector_evidence.vector_evidence(hmm, rows, lengths, laws, most=0)
            if hmm.num_states > 1
            else Evidence(0.0, 0.0)
        )

    monkeypatch.setattr("hmmscope.runs.vector_sequences.vector_evidence", estimated)
    assert "takes too long" in hs.fit(NUMBERS, [1, 2]).reason
    assert set(limits) == {60_000}
    with pytest.raises(InputError, match=r"cannot be 'evidence', because .* takes too long; use choose='bic'"):
        hs.fit(NUMBERS, [1, 2], options=hs.FitOptions(choose="evidence"))
    assert limits[-1] == 1_000_000


def test_progress_without_a_terminal_is_silent_and_inner_progress_is_a_note(monkeypatch, capsys):
    lines = []
    monkeypatch.setattr("hmmscope.progress._SECONDS_BETWEEN_LINES", -1.0)
    monkeypatch.setattr("hmmscope.progress.say_beside", lines.append)
    with Progress(4, "fit", quiet=None) as silent:
        silent.update(4)
    assert lines == []
    with Progress(None, "look") as outer:
        outer.update(1)
        with Progress(2, "probe") as inner:
            inner.update(1, "layer 3")
        outer.update(2)
    assert lines == ["look 1  ", "look 1  probe 1/2  layer 3", "look 2  "]
