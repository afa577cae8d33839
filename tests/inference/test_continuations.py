"""What comes next: by enumeration of what may, and draws as often as they are likely."""

import itertools

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.lab.cli import main
from hmmscope.storage import store
from strategies import dense, small_hmm, with_zeros

UMBRELLA = hs.load_process("umbrella")


def words(process, past, steps):
    """P(word | past) of every word."""
    found = {}
    before = chance_of(process, past) if past else 1.0
    for word in itertools.product(range(process.num_symbols), repeat=steps):
        found[word] = chance_of(process, [*past, *word]) / before
    return found


def chance_of(process, word):
    return float(hs.observe(process, torch.tensor([word])).log_likelihood_terms.sum().exp())


PROCESSES = {
    "hmm": hs.HMM(*small_hmm(np.random.default_rng(5))),
    "labelled": hs.make_process("even"),
    "mess3": hs.make_process("mess3"),
    "cyclic": hs.make_process("golden-mean"),
    "mixture": hs.Mixture([0.3, 0.7], [hs.HMM(*kind(np.random.default_rng(5), 3, 3)) for kind in (dense, with_zeros)]),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_laws_are_sums_over_all_that_may_come(name):
    process, steps = PROCESSES[name], 3
    rolls = hs.ProcessDataset(process, length=6)[0:3].observations
    found = hs.forecast(process, rolls, steps)
    assert found.states.sum(2) == pytest.approx(np.ones((3, steps)), abs=1e-12)
    for b, past in enumerate(rolls.tolist()):
        chances = words(process, past, steps)
        for k in range(steps):
            law = [sum(p for word, p in chances.items() if word[k] == v) for v in range(process.num_symbols)]
            assert found.observations[b, k].tolist() == pytest.approx(law, abs=1e-12)


@pytest.mark.parametrize("name", PROCESSES)
def test_draws_are_as_often_as_they_are_likely(name):
    process, past = PROCESSES[name], hs.ProcessDataset(PROCESSES[name], length=5)[0:1].observations
    drawn = hs.forecast(process, past, 3, num_draws=4000, seed=2).drawn_observations[:, 0]
    counts = {word: 0 for word in words(process, past[0].tolist(), 3)}
    for word in map(tuple, drawn.tolist()):
        counts[word] += 1
    for word, chance in words(process, past[0].tolist(), 3).items():
        assert abs(counts[word] / 4000 - chance) <= 4.5 * np.sqrt(chance * (1 - chance) / 4000)  # zero stays zero


def test_draws_go_with_their_states_and_do_not_depend_on_others():
    past = torch.tensor([[0, 1], [1, 1]])
    found = hs.forecast(UMBRELLA, past, 4, num_draws=2000, seed=1)
    stay = (found.drawn_states[..., 1:] == found.drawn_states[..., :-1]).double().mean((0, 2))
    assert stay.tolist() == pytest.approx([0.7, 0.7], abs=0.02)
    fewer = hs.forecast(UMBRELLA, past[:1], 4, num_draws=5, seed=1)
    assert fewer.drawn_observations[:, 0].tolist() == found.drawn_observations[:5, 0].tolist()


def test_without_a_past_a_sequence_begins_and_after_the_impossible_nothing_comes():
    begun = hs.forecast(UMBRELLA, torch.zeros(1, 0, dtype=torch.int64), 1)
    first = hs.filter_beliefs(UMBRELLA, torch.tensor([[0]])).first_observation
    assert begun.observations[0, 0].tolist() == pytest.approx(first.tolist(), abs=1e-15)
    ragged = hs.forecast(UMBRELLA, torch.tensor([[0, 1], [0, 0]]), 2, lengths=[2, 0])
    assert ragged.observations[1, 0].tolist() == pytest.approx(first.tolist(), abs=1e-15)
    never = hs.forecast(hs.HMM([1.0, 0.0], np.eye(2), np.eye(2)), torch.tensor([[0, 1]]), 2, num_draws=1)
    assert float(never.observations.sum()) == 0
    assert never.drawn_observations.tolist() == [[[-1, -1]]]


def test_a_mixture_that_saw_nothing_or_the_impossible():
    parts = [hs.HMM([1.0], [[1.0]], [[1.0, 0.0, 0.0]]), hs.HMM([1.0], [[1.0]], [[0.0, 1.0, 0.0]])]
    mixture = hs.Mixture([0.25, 0.75], parts)
    past = torch.tensor([[0, 0], [1, 1], [0, 1], [2, 0]])
    found = hs.forecast(mixture, past, 2, lengths=[2, 0, 2, 1], num_draws=2000, seed=3)
    laws = [[1, 0, 0], [0.25, 0.75, 0], [0, 0, 0], [0, 0, 0]]
    assert found.observations[:, 1].tolist() == laws
    assert found.states[:, 0, 0].tolist() == [1, 1, 0, 0]
    assert found.drawn_observations[:, 0].unique().tolist() == [0]
    assert (found.drawn_observations[:, 2:] == -1).all()
    assert (found.drawn_observations[:, 1, 0] == found.drawn_observations[:, 1, 1]).all()  # one component a draw
    assert (found.drawn_observations[:, 1, 0] == 1).double().mean() == pytest.approx(0.75, abs=0.045)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: hs.forecast(UMBRELLA, torch.tensor([[0]]), 0), "steps: must be at least 1"),
        (lambda: hs.forecast(UMBRELLA, torch.tensor([[0]]), 1.5), "steps: must be an integer, got 1.5"),
        (lambda: hs.forecast(UMBRELLA, torch.tensor([[0]]), 10**9), "steps: must be at most 1048576"),
        (lambda: hs.forecast(UMBRELLA, torch.tensor([[0]]), 1, num_draws=-1), "num_draws: must be"),
        (
            lambda: hs.forecast(UMBRELLA, torch.tensor([[0]]), 1, num_draws="3"),
            "num_draws: must be an integer, got '3'",
        ),
        (
            lambda: hs.forecast(hs.make_process("fresh-markov-chains"), torch.tensor([[0]]), 1),
            "has no forecasts; supported by ComposedCycles, GeneralisedHMM, HMM, LabelledHMM, Mixture",
        ),
    ],
)
def test_refusals(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_the_command_line_prints_and_keeps_the_laws(tmp_path, capsys):
    (tmp_path / "days.txt").write_text("umbrella\nno-umbrella\n")
    arguments = ["infer", "umbrella", str(tmp_path / "days.txt"), "--unit", "lines", "--forecast", "2"]
    assert main([*arguments, "--out", str(tmp_path / "t.jsonl"), "-q"]) == 0
    found = hs.forecast(UMBRELLA, torch.tensor([[0, 1]]), 2)
    rows = store.read_table(tmp_path / "t.jsonl")
    assert [row["position"] for row in rows] == [0, 1, 2, 3]
    assert rows[3]["forecast"] == pytest.approx(found.observations[0, 1].tolist(), abs=1e-12)
    assert "in 2 steps: " in capsys.readouterr().out
