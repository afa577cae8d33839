"""The verbs from end to end, and what stands at the other end of their output."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from cli_cases import BUFFERED, LONG, TINY, assert_one_line, call, rubbish, trained  # noqa: F401 - fixtures
from hmmscope import progress
from hmmscope.lab.verbs import precompile
from hmmscope.lab.verbs.precompile import CALLS
from hmmscope.processes.files import load_process
from hmmscope.processes.hmm import HMM
from hmmscope.storage import store
from hmmscope.storage.rundir import read_journal


def test_oracle_of_the_textbook(call: Callable, tmp_path: Path) -> None:
    """Russell and Norvig: two umbrellas, and the rain is believed in with 0.883."""
    (tmp_path / "o.txt").write_text("umbrella umbrella\n\numbrella,no-umbrella,umbrella\n")
    called = call("infer", "umbrella", "o.txt", "--out", "o.jsonl")
    assert (called.code, called.error) == (0, "")
    assert "sequence 1: 2 observations, log-likelihood -1.045546 nats (-0.522773 per observation)" in called.out
    assert "belief: rain 0.883357, " in called.out
    rows = store.read_table(tmp_path / "o.jsonl")
    assert [(row["sequence"], row["position"]) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert rows[1]["belief"] == pytest.approx([0.883357041251778, 0.116642958748222], abs=1e-9)
    assert sum(rows[1]["next_observation"]) == pytest.approx(1)
    assert np.exp(rows[0]["log_likelihood"] + rows[1]["log_likelihood"]) == pytest.approx(0.3515, abs=1e-8)


def test_oracle_of_letters(call: Callable, tmp_path: Path) -> None:
    hmm = load_process("letters-hmm")
    assert hmm.symbols is not None
    assert call("sample", "letters-hmm", "-n", 2, "--length", 30, "--out", "l.txt").code == 0
    assert len((tmp_path / "l.txt").read_text().splitlines()[0]) == 30  # characters, without spaces between
    called = call("infer", "letters-hmm", "l.txt", "--out", "l.jsonl", "-q")
    assert (called.code, called.error) == (0, "")
    assert "table:" not in called.out
    rows = store.read_table(tmp_path / "l.jsonl")
    assert len(rows) == 60
    assert all(abs(sum(row["belief"]) - 1) < 1e-9 for row in rows)


def test_oracle_of_the_impossible(call: Callable, tmp_path: Path) -> None:
    HMM([1, 0], [[0, 1], [1, 0]], np.eye(2), symbols=["a", "b"]).save(tmp_path / "turns.json")
    (tmp_path / "o.txt").write_text("abab\nabba\n")
    called = call("infer", "turns.json", "o.txt", "--out", "o.jsonl")
    assert (called.code, called.error) == (0, "")
    assert "sequence 1: 4 observations, log-likelihood 0.000000 nats" in called.out
    assert (
        "4 observations, log-likelihood -inf nats; the sequence is impossible from observation 2 (b) on" in called.out
    )
    assert [row["log_likelihood"] for row in store.read_table(tmp_path / "o.jsonl")[4:]] == [0, 0, None, None]


def test_names_with_escape_sequences_are_shown_and_not_obeyed(call: Callable, tmp_path: Path) -> None:
    names = {"symbols": ["a\x1b[2J", "b\n"], "states": ["s\x1b]0;x\x07", "t"]}
    HMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.1, 0.9]], **names).save(tmp_path / "n.json")
    (tmp_path / "o.jsonl").write_text('{"observations": [0, 1, 1]}\n')
    called = call("infer", "n.json", "o.jsonl", "--smooth", "--viterbi", "--paths", 1, "--memory", 1)
    assert (called.code, called.error) == (0, "")
    assert all(line.isprintable() for line in called.out.splitlines())
    assert "a\\x1b[2J" in called.out
    assert "most likely path: " in called.out


def test_oracle_drops_tiny_probabilities_if_told_to(call: Callable, rubbish: None) -> None:
    dropped, kept = (
        call("infer", "tiny.json", "good.txt", "--allow-drop-tiny"),
        call("infer", "tiny.json", "good.txt"),
    )
    assert (dropped.code, dropped.error, kept.code) == (0, "", 0)
    assert kept.error.startswith("warning: HMM: 1 positive entry below 2^-32 was raised to 2^-32")
    assert kept.error.count("\n") == 1


def test_train_analyse_report(call: Callable, tmp_path: Path) -> None:
    emission = [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]
    HMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], emission, title="mine <b>&").save(tmp_path / "mine.json")
    called = call("train", "mine.json", "--out", "run", "-q", *TINY)
    assert (called.code, called.error) == (0, "")
    assert re.search(r"\* Distance to the optimum \(answered\): .* nats", called.out)
    assert " nats per answer)" in called.out
    assert "INVALID" not in called.out
    assert len(read_journal(tmp_path / "run" / "metrics.jsonl")) == 4
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["training"]["num_steps"], config["model"]["width"], config["layout"]["length"]) == (4, 4, 8)
    again = call("train", "mine.json", "--out", "run", "-q", "--resume", *TINY)
    assert (again.code, again.out) == (0, called.out)
    options = ["--target", "previous-1", "--num_samples", 8, "--shuffled_labels", "false"]
    analysed = call("analyse", "run", "probe", *options)
    assert (analysed.code, analysed.error) == (0, "")
    (table,) = (tmp_path / "run" / "analysis").iterdir()
    assert table.name == "probe-target-previous-1-num_samples-8-shuffled_labels-false.jsonl"
    rows = store.read_table(table)
    assert [row["layer_name"] for row in rows] == ["residual.0", "residual.1"]
    assert len(analysed.out.splitlines()) == 4
    assert call("analyse", "run", "probe", "--target", "previous-1", "--seed", 8, "-q").out.count("\n") == 1
    assert len([*(tmp_path / "run" / "analysis").iterdir()]) == 2  # another option, another table
    (tmp_path / "own.txt").write_text("0 0 2 1 2\n0 1 0\n")
    scored = call("analyse", "run", "curves", "--sequences", "own.txt")
    assert (scored.code, scored.error) == (0, "")
    assert "8 observations in 2 sequences of 3 to 5" in scored.out
    rows = store.read_table(tmp_path / "run" / "analysis" / "curves-own.txt.jsonl")
    assert {row["samples"] for row in rows if row["predictor"] == "optimum"} == {1, 2}
    assert_one_line(call("analyse", "run", "probe", "--sequences", "own.txt"), 2)
    assert_one_line(call("analyse", "run", "curves", "--unit", "words"), 2)
    reported = call("report", "run", "-o", "page.html")
    assert (reported.code, reported.error, reported.out) == (0, "", "page: page.html\n")
    page = (tmp_path / "page.html").read_text()
    assert "Loss above the optimum" in page
    assert "mine <b>" not in page
    assert "mine &lt;b&gt;&amp;" in page


@pytest.mark.parametrize(
    "instrument, options",
    [
        ("probe", ["--target", "component"]),
        ("probe", ["--target", "previous-0", "--layers", "residual.0,blocks.0.attention"]),
        ("shuffle", ["--num_permutations", "3"]),
        ("attention", ["--max_offset", "2"]),
    ],
)
def test_instruments(instrument: str, options: list[str], call: Callable, trained: Path) -> None:
    called = call("analyse", trained, instrument, "--num_samples", 12, *options)
    assert (called.code, called.error) == (0, "")
    table = Path(called.out.splitlines()[-1].removeprefix("table: "))
    rows = store.read_table(table)
    assert len(called.out.splitlines()) == len(rows) + 2
    table.unlink()


def test_train_with_other_defaults_by_name(call: Callable, tmp_path: Path) -> None:
    """The name of a section comes first, wherever it stands: fields given before it are not forgotten."""
    sizes = ["--process.num_states", 3, "--process.num_symbols", 3, "--process.name", "markov-chain"]
    called = call("train", "random-hmm", "--out", "run", "-q", *sizes, *TINY)
    assert called.code == 0, called.error
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["process"]["name"], config["process"]["num_states"]) == ("markov-chain", 3)


def test_progress_is_lines_without_a_terminal(call: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("train", "umbrella", "--out", "short", *TINY).error == ""  # not spoken of
    monkeypatch.setattr(progress, "_SHORT", -1.0)
    called = call("train", "umbrella", "--out", "run", *TINY)
    assert called.code == 0
    assert re.fullmatch(r"training 4/4 .* loss .* \(Bayes loss .*\)\n", called.error)
    assert "\x1b" not in called.error + called.out


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "words",
    [
        ["report", "RUN", "--figures", LONG],
        ["check", LONG],
        ["report", LONG],
        ["analyse", LONG, "geometry"],
        ["report", "RUN", "-o", f"{LONG}.html"],
        ["sweep", "mess3", "--vary", "training.num_steps=1,2", "--out", LONG],
    ],
    ids=lambda words: " ".join(words)[:20],
)
def test_a_name_that_is_too_long_is_bad_input(words: list[str], call: Callable, trained: Path) -> None:
    told = call(*[str(trained) if word == "RUN" else word for word in words])
    assert_one_line(told, 2)
    assert "the path or a name in it is too long" in told.error
    assert len(told.error) < 400


def test_claims_are_the_result_and_printed_quietly_too(call: Callable) -> None:
    aloud, quiet = call("claims"), call("claims", "-q")
    assert quiet.code == 0
    assert quiet.out == aloud.out
    assert len(quiet.out.splitlines()) > 70


def test_doctor(call: Callable) -> None:
    called = call("check")
    assert (called.code, called.error) == (0, "")
    assert all(line.startswith("ok  ") for line in called.out.splitlines())
    assert "Philox4x32-10 gives its test vector" in called.out


def test_first_calls_are_made_and_told(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are there for `bench.cold`; here those are made that other tests have compiled."""
    few = {name: one for name, one in CALLS.items() if name.endswith("s, 2 states") or name == "HMM"}
    assert len(few) == 5
    monkeypatch.setattr(precompile, "CALLS", few)
    called = call("check", "--compile")
    assert (called.code, called.error) == (0, "")
    assert all(f"ok    {name}" in called.out for name in few)
    assert "compiled: 5 calls" in called.out
    refused = call("check", "--compile", "folder")
    assert (refused.code, refused.error) == (
        2,
        "error[2] --compile: applies to this installation; give no folder with it\n",
    )


def test_doctor_finds_what_is_wrong(call: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmmscope.lab.verbs.doctor._PHILOX_ZERO", (1, 2, 3, 4))
    called = call("check")
    assert called.code == 5
    assert "FAIL  random numbers" in called.out


def test_a_config_file_is_what_show_says(call: Callable, tmp_path: Path) -> None:
    data = {"process": {"name": "even"}, "training": {"num_steps": 2, "device": "cpu"}, "seed": 3}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(data))
    assert call("train", "c.yaml", "--out", "run", "-q", *TINY[2:]).code == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["process"]["name"], config["training"]["num_steps"], config["seed"]) == ("even", 2, 3)


def test_module_can_be_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hmmscope.lab.cli", "--help"], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "exit codes" in done.stdout


def test_a_reader_that_has_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "hmmscope.lab.cli", "show"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=100, env=BUFFERED)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_disk_behind_the_output() -> None:
    command = [sys.executable, "-m", "hmmscope.lab.cli", "show"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=100, env=BUFFERED)
    assert done.returncode == 5
    assert done.stderr.startswith("error[5] No space left on device")
    assert done.stderr.count("\n") == 1
