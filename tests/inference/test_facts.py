"""What the command line says about a process without data, and in hindsight."""

import json
from typing import NoReturn

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.inference import entropy, stationary_process
from hmmscope.inference import process_facts as facts_of
from hmmscope.inference.process_facts import process_facts
from hmmscope.lab.cli import main


def said(capsys, *argv):
    code = main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_facts_of_the_even_process():
    facts = dict(process_facts(hs.make_process("even")))
    assert facts["stationary law"].startswith("A 0.666667, B 0.333333")
    assert facts["entropy rate"] == "0.462098 nats (unifilar)"
    assert facts["observability"] == "0.500000 (inverse)"
    assert facts["transition rank"] == "2 of 2"


def test_facts_are_left_out_where_there_are_none():
    mixture = hs.make_process("random-mixture", num_components=2, num_states=2, num_symbols=2)
    assert [name for name, _ in process_facts(mixture)] == ["weights", "2nd eigenvalue", "entropy rate"]
    single = hs.make_process("random-mixture", num_components=2, num_states=1, num_symbols=2)
    assert [name for name, _ in process_facts(single)] == ["weights", "entropy rate"]
    wide = hs.make_process("random-mixture", num_components=2, num_states=129, num_symbols=2)
    assert [name for name, _ in process_facts(wide)] == ["weights"]
    large = hs.make_process("random-hmm", num_states=65, num_symbols=4)
    assert process_facts(large) == []
    split = hs.HMM([0.5, 0.5], [[1, 0], [0, 1]], [[1, 0], [0, 1]])
    assert [name for name, _ in process_facts(split)] == ["stationary law", "observability", "transition rank"]
    assert dict(process_facts(split))["stationary law"] == "not unique"
    both = hs.Mixture([0.5, 0.5], [split, split])
    assert [name for name, _ in process_facts(both)] == ["weights", "2nd eigenvalue"]


def test_facts_of_many_states_take_neither_all_steps_nor_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1500 states and symbols those are 27 GB each; and 200 samples are ten seconds."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("too much")

    rng, size = np.random.default_rng(0), 24
    hmm = hs.HMM(np.ones(size) / size, rng.dirichlet(np.ones(size), size), rng.dirichlet(np.ones(size), size))
    asked, eliminated = [], []
    solve = stationary_process.stationary_law
    monkeypatch.setattr(stationary_process, "stationary_law", lambda law: eliminated.append(1) or solve(law))
    monkeypatch.setattr(entropy, "_STEP_ENTRIES", 1000)
    monkeypatch.setattr(entropy, "_BOUND_WORK", size**2)
    monkeypatch.setattr(entropy, "_sampled_rate", lambda _, num, *__: asked.append(num) or (3.0, 0.01))
    monkeypatch.setattr(facts_of, "MAX_INVERTED", 20)
    monkeypatch.setattr(facts_of, "_SAMPLED", 60 * size**2)
    monkeypatch.setattr(facts_of, "observability", refuse)
    for name in ("steps", "arrivals"):
        monkeypatch.setattr(type(hmm.params), name, refuse)
    found = dict(process_facts(hmm))
    assert found["entropy rate"].startswith("3.0")
    assert found["observability"].startswith("0.000000 to 0.")
    assert asked == [60]
    assert eliminated == [1]
    monkeypatch.setattr(facts_of, "_SAMPLED", 1)
    process_facts(hmm)
    assert asked == [60, 50]


@pytest.mark.parametrize("name", ["umbrella", "even", "random-hmm", "random-automaton"])
def test_show_tells_the_facts(name, capsys):
    code, out, _ = said(capsys, "show", name)
    assert code == 0
    for word in ("stationary law", "entropy rate", "observability", "transition rank"):
        assert word in out


def test_hindsight(capsys, tmp_path):
    days = tmp_path / "days.txt"
    days.write_text("umbrella umbrella no-umbrella\n")
    code, out, _ = said(
        capsys, "infer", "umbrella", str(days), "--smooth", "--viterbi", "--out", str(tmp_path / "days.jsonl")
    )
    assert code == 0
    assert "  smoothed: rain 0.862, rain 0.799, dry 0.809\n" in out
    assert "  most likely path: rain rain dry (log-probability -2.687660)\n" in out
    rows = [json.loads(line) for line in (tmp_path / "days.jsonl").read_text().splitlines()]
    assert [row["viterbi"] for row in rows] == [0, 0, 1]
    assert rows[-1]["smoothed"] == pytest.approx(rows[-1]["belief"])


def test_hindsight_of_an_impossible_sequence(capsys, tmp_path):
    words, table = tmp_path / "words.txt", tmp_path / "words.jsonl"
    words.write_text("0 1 0\n")
    code, out, _ = said(capsys, "infer", "even", str(words), "--smooth", "--viterbi", "--out", str(table))
    assert code == 0
    assert "impossible from observation 2 (0) on" in out
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    assert [row["viterbi"] for row in rows] == [-1, -1, -1]
    assert rows[0]["smoothed"] == [0.0, 0.0]


def test_hindsight_of_a_mixture_is_of_one_of_its_components(capsys, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("0 1 ? 0\n")
    asked = ("infer", "markov-mixture", str(words), "--missing", "?")
    code, out, _ = said(capsys, *asked, "--viterbi", "--smooth", "--paths", "2")
    mixture, seen = hs.make_process("markov-mixture"), torch.tensor([[0, 1, hs.MISSING, 0]])
    path = hs.most_likely_states(mixture, seen)
    assert code == 0
    assert (
        f"most likely path of component {int(path.component)}: {' '.join(map(str, path.states[0].tolist()))} (" in out
    )
    assert "smoothed: 0 1.000, 1 1.000, " in out  # a chain is seen
    assert "path 1: 0 1 " in out
    code, _, error = said(capsys, *asked, "--memory", "2")
    assert code == 2
    assert error.endswith(
        "use hmmscope.filter_mixture for the mixture, or one HMM of it: mixture[0] in Python, --component 0 in a shell\n"
    )
