"""HMM-bench: frozen tasks, submissions that anybody can score again, and what refuses those that were changed."""

import contextlib
import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hmmscope as hs
from benchmark_cases import MODEL, failing, sealed_again
from hmmscope.errors import DamagedError, HmmscopeError, NonFiniteError
from hmmscope.lab.cli import main
from hmmscope.lab.model_file import ModelFile
from hmmscope.lab.verbs.verify import verify
from hmmscope.storage import seals, store
from hmmscope_studies import benchmark as hmmbench
from hmmscope_studies.benchmark import checking, rates
from hmmscope_studies.benchmark import submission as submitting
from hmmscope_studies.benchmark.board import (
    RULES,
    board_rows,
    check_board,
    finding,
    keep_card,
    markdown,
    page,
    passing,
    read_cards,
    write_card,
)
from hmmscope_studies.benchmark.card import make_card, over_seeds
from hmmscope_studies.benchmark.entries import entry_of
from hmmscope_studies.benchmark.flags import card_flags, source_flags, weight_flags
from hmmscope_studies.benchmark.frozen import DIGESTS
from hmmscope_studies.benchmark.rates import best_rate, rates_of
from hmmscope_studies.benchmark.recompute import recompute
from hmmscope_studies.benchmark.scoring import LONGER, SCORED, ScoredSamples, _beliefs, predict, score
from hmmscope_studies.benchmark.tasks import BUDGETS, TASKS, TASKS_OF, tasks_of

FEW = ("parity", "told")


@pytest.fixture(scope="module")
def entered(tmp_path_factory):
    """A model file, and its submission: two tasks, three steps each."""
    folder = tmp_path_factory.mktemp("entered")
    (folder / "mine.py").write_text(MODEL)
    words = ["benchmark", str(folder / "mine.py"), "--out", str(folder / "out")]
    assert main([*words, "--tasks", ",".join(FEW), "--steps", "3", "-q"]) == 0
    return folder


@pytest.fixture
def copied(entered, tmp_path):
    shutil.copytree(entered / "out", tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def here(monkeypatch):
    """Model files run in this process, which starts none; the files that ran."""
    ran = []

    def in_this_process(path, file, out, parts):
        ran.append(file)
        recompute(path, file, out)

    monkeypatch.setattr(checking, "in_child", in_this_process)
    return ran


@pytest.mark.parametrize("task", [*TASKS_OF["1"], *TASKS], ids=lambda task: f"{task.name}-{task.bench}")
def test_no_task_changes_within_a_version(task):
    assert task.digest == DIGESTS[task.bench][task.name], (
        "another task is another version of the bench: see docs/benchmark.md"
    )


def test_the_light_track_is_eight_of_all_tasks():
    assert len(tasks_of("light")) == len(tasks_of("light", bench="1")) == 8
    assert tasks_of("full") == TASKS
    assert len(TASKS) == len(TASKS_OF["1"]) == 14
    assert all(task in TASKS for task in tasks_of("light"))
    failing("tasks: unknown 'z60'", tasks_of, "light", ["z60"])
    failing("track: unknown 'quick'", tasks_of, "quick")


def test_a_submission_is_scored_again_without_its_code(entered, capsys, monkeypatch):
    card = json.loads((entered / "out" / "card.json").read_text())
    assert (card["name"], card["track"], card["ranked"]) == ("small gru", "light", False)
    assert card["not_ranked"] == "3 steps a task"
    assert card["declared"] == {"parameters": 500, "seconds": 0.0}
    assert card["costs"]["parameters"] > 500
    assert card["costs"]["tokens"] == 3 * 32 * (17 + 36)
    row = next(row for row in card["scores"] if (row["task"], row["score"]) == ("told", "excess"))
    assert all(row[floor] > 0 for floor in ("constant", "counting", "untrained", "shuffled"))
    assert (entered / "out" / "model.py").read_text() == MODEL
    assert not (entered / "out" / "work").exists()
    monkeypatch.setattr(ModelFile, "run", lambda _: pytest.fail("ran the model's code"))
    assert main(["check", str(entered / "out")]) == 0
    assert "2 scores recomputed from stored predictions, without running its code" in capsys.readouterr().out
    verify([str(entered / "out")], quiet=True)


@pytest.mark.long
def test_its_predictions_come_again_from_the_model(entered, tmp_path, capsys):
    assert main(["check", str(entered / "out"), "--run", str(entered / "mine.py")]) == 0
    assert "from stored predictions, which the model reproduces" in capsys.readouterr().out


def test_digests_are_compared_before_anything_runs(entered, copied, tmp_path, capsys, here):
    """Another file, and a submission that was altered; bytecode has no place in one."""
    (tmp_path / "other.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{MODEL}")
    assert main(["check", str(copied), "--run", str(tmp_path / "other.py")]) == 3
    assert "is not the model file" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    here.clear()
    cache = copied / "__pycache__"
    cache.mkdir()
    failing(
        "is bytecode or machine code, which is not allowed in a submission",
        hmmbench.check_submission,
        copied,
        run=str(entered / "mine.py"),
    )
    cache.rmdir()
    for name in ("model.pyc", "MODEL.PYC", "model.cpython-311-x86_64-linux-gnu.so", "model.so.1", "model.pyd"):
        (copied / name).write_bytes(b"")
        failing(f"{name}: is bytecode or machine code", hmmbench.check_submission, copied)
        (copied / name).unlink()
    card = json.loads((copied / "card.json").read_text())
    card["solved"]["value"] = 0.99
    sealed_again(copied, card)
    failing("card.json.solved.value is 0.99", hmmbench.check_submission, copied, run=str(entered / "mine.py"))
    assert not here


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names features of that kind of processor")
def test_it_is_scored_again_as_on_an_older_processor(entered, tmp_path):
    """Code without AVX and without fused multiply-adds, in torch, its libraries and our own kernels."""
    older = {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "NUMBA_CPU_NAME": "nehalem",
        "NUMBA_CPU_FEATURES": "+sse4.2,-avx,-avx2,-fma,-avx512f",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    told = (
        "import torch; from hmmscope.kernels.products import has; "
        "print(torch.backends.cpu.get_cpu_capability(), has('avx'))"
    )
    words = ["-m", "hmmscope", "check", str(entered / "out"), "--run", str(entered / "mine.py")]
    for asked, answer in (
        (["-c", told], "DEFAULT False"),
        (words, "2 scores recomputed from stored predictions, which the model reproduces"),
    ):
        done = subprocess.run([sys.executable, *asked], env=os.environ | older, capture_output=True, text=True)
        assert answer in done.stdout, done.stderr


def test_a_changed_byte_is_refused(copied):
    path = copied / "tasks" / "told-0" / "predictions.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    failing("predictions.safetensors", hmmbench.check_submission, copied)


def test_a_better_card_under_a_new_seal_is_refused(copied):
    card = json.loads((copied / "card.json").read_text())
    card["solved"]["value"] = 0.99
    sealed_again(copied, card)
    failing("card.json.solved.value is 0.99", hmmbench.check_submission, copied)


def test_another_model_file_under_a_new_seal_is_refused(copied):
    card = json.loads((copied / "card.json").read_text())
    (copied / "model.py").write_text("raise SystemExit")
    sealed_again(copied, card)
    failing("is not the model file that was entered", hmmbench.check_submission, copied)
    (copied / "model.py").unlink()
    sealed_again(copied, card)
    failing("is missing", hmmbench.check_submission, copied)


def test_better_scores_under_a_new_seal_are_refused(copied):
    path = copied / "tasks" / "parity-0" / "measured.json"
    measured = json.loads(path.read_text())
    measured["scores"]["excess"] = 0.0
    store.write_json(path, measured)
    sealed_again(copied, json.loads((copied / "card.json").read_text()))
    failing("measured.json: scores.excess is 0.0", hmmbench.check_submission, copied)


def test_other_weights_draw_other_samples(copied):
    part = copied / "tasks" / "parity-0"
    weights = store.read_tensors(part / "weights.safetensors")
    before = submitting.weights_digest(weights)
    weights["0.weight"][0, 0] += 1e-3
    store.write_tensors(part / "weights.safetensors", weights)
    card = json.loads((copied / "card.json").read_text())
    sealed_again(copied, card)
    failing("contains other weights", hmmbench.check_submission, copied)
    task, after = tasks_of("light", ["told"])[0], submitting.weights_digest(weights)
    one, other = (ScoredSamples.of(task, digest) for digest in (before, after))
    assert not torch.equal(one.batch(one.trained, 8).observations, other.batch(other.trained, 8).observations)
    assert not set(one.batch(one.trained, SCORED).components.tolist()) & set(
        other.batch(other.trained, SCORED).components.tolist()
    )
    measured = json.loads((part / "measured.json").read_text()) | {"weights": submitting.weights_digest(weights)}
    store.write_json(part / "measured.json", measured)
    sealed_again(copied, card)
    failing("measured.json: samples is", hmmbench.check_submission, copied)


def test_invented_predictions_are_refused_where_the_model_is_run(entered, copied, here):
    """The optimum itself, with scores and card that follow from it, under a new seal."""
    task, part = tasks_of("light", ["told"])[0], copied / "tasks" / "told-0"
    measured = json.loads((part / "measured.json").read_text())
    samples = ScoredSamples.of(task, measured["weights"])
    stored = store.read_tensors(part / "predictions.safetensors")
    for name, dataset, count in (("trained", samples.trained, SCORED), ("longest", samples.longest, LONGER)):
        stored[name] = task.asked(dataset).optimum(samples.batch(dataset, count)).log().float()
    store.write_tensors(part / "predictions.safetensors", stored)
    measured["scores"] = score(task, samples, stored)
    assert measured["scores"]["excess"] < 1e-10
    store.write_json(part / "measured.json", measured)
    about = json.loads((copied / "entry.json").read_text())
    stated = {key: value for key, value in about.items() if key not in ("format", "bench")}
    tasks = tasks_of("light", FEW)
    sealed_again(copied, make_card(stated, tasks, submitting.read_measured(copied, tasks, 1)))
    told = hmmbench.check_submission(copied)  # nothing but the model can tell
    assert "scores recomputed" in told
    assert told.endswith(" files, 0 not covered")
    failing("from the model's predictions", hmmbench.check_submission, copied, run=str(entered / "mine.py"))


def test_three_learning_rates_are_tried_for_everyone(entered, copied):
    """A third of the entry's, that itself, and three times as much, on a seed that scores nothing."""
    part = copied / "tasks" / "told-0" / "measured.json"
    measured, card = json.loads(part.read_text()), json.loads((copied / "card.json").read_text())
    assert [one["learning_rate"] for one in measured["rates"]["tried"]] == [0.00333, 0.01, 0.03]
    assert measured["learning_rate"] == best_rate(measured["rates"]["tried"])
    assert card["rates"]["told"] == measured["rates"]["tried"]
    assert len({one["excess"] for one in card["rates"]["told"]}) == 3
    assert card["costs"]["search_seconds"] > 0
    rows = [row for row in card["scores"] if row["score"] == "share_solved"]
    assert [row["by_seed"] for row in rows] == [[row["value"]] for row in rows]
    told = next(line for line in (copied / "card.txt").read_text().splitlines() if line.startswith("told "))
    assert told.endswith(f"  {rows[1]['value']:.3f}")
    for change, said in (
        ({"learning_rate": 0.03 if measured["learning_rate"] != 0.03 else 0.01}, "rates.learning_rate is"),
        ({"rates": measured["rates"] | {"tried": measured["rates"]["tried"][:2]}}, "rates.tried is"),
        ({"rates": {}}, "rates are missing"),
        ({"rates": {"tried": [3]}}, "rates are missing"),
    ):
        store.write_json(part, measured | change)
        sealed_again(copied, card)
        failing(f"measured.json: {said}", hmmbench.check_submission, copied)
    assert rates_of({}) == [0.001, 0.003, 0.009]


def test_a_rate_at_which_training_diverges_is_not_chosen(tmp_path, monkeypatch):
    task, seen = tasks_of("light", ["parity"])[0], []

    def diverges(config, *_, **__):
        seen.append((config.seed, config.training.learning_rate))
        raise NonFiniteError("loss")

    monkeypatch.setattr(rates, "train", diverges)
    configure = functools.partial(submitting.config_of, entry_of("rnn"), task, BUDGETS["light"], rates.SEARCH_SEED)
    with pytest.raises(NonFiniteError):
        rates.choose_rate(configure, task, {}, tmp_path)
    assert seen == [(1000, rate) for rate in (0.001, 0.003, 0.009)]
    tried = [{"learning_rate": 0.1, "excess": None}, {"learning_rate": 0.2, "excess": 0.5}]
    assert best_rate(tried) == 0.2


def test_build_gets_sizes_and_no_data(tmp_path):
    """Neither a file nor a dataset of the process in which it runs, also if it hides the error."""
    (tmp_path / "answers.txt").write_text("0.5")

    def reads(vocab_size, num_outputs):
        (tmp_path / "answers.txt").read_text()
        return Tiny(vocab_size, num_outputs)

    def draws(vocab_size, num_outputs):
        import gc

        found = [one for one in gc.get_objects() if type(one) is hs.ProcessDataset]
        with contextlib.suppress(hs.HmmscopeError):
            assert found
            found[0][0:8]
        return Tiny(vocab_size, num_outputs)

    kept = hs.ProcessDataset("mess3", length=4)
    for build, said in ((reads, "build: reads "), (draws, "build: draws samples of a dataset")):
        failing(said, hmmbench.benchmark, build, tmp_path / "out", tasks=["parity"], num_steps=1)
        assert not (tmp_path / "out").exists()
    assert kept[0:1].tokens.shape[0] == 1

    seen = {}

    def keeps(**given):
        seen.update(given)
        return Tiny(given["vocab_size"], given["num_outputs"])

    hmmbench.benchmark(keeps, tmp_path / "sizes", tasks=["parity"], num_steps=1)
    assert all(value is None or type(value) is int for value in seen.values())


def test_version_one_stays_readable(entered, tmp_path, monkeypatch, capsys):
    """Its kept cards make their board; a submission of it is scored again; versions have boards of their own."""
    cards = Path(__file__).parents[2] / "results" / "hmm-bench"
    old = read_cards(cards)
    assert {card["bench"] for card in old} == {"1"}
    assert markdown(old).startswith("# HMM-bench 1: leaderboard")
    assert "| mess3 | rrxor |" in markdown(old)
    assert "Leaving out one seed of each" not in markdown(old)  # which its cards do not have
    with monkeypatch.context() as patch:
        patch.setattr(submitting, "VERSION", "1")
        patch.setattr(submitting, "tasks_of", functools.partial(tasks_of, bench="1"))
        patch.setattr(submitting, "_rates", lambda *_: {"learning_rate": 0.01})
        hmmbench.benchmark(entered / "mine.py", tmp_path / "all" / "old", tasks=["mess3"], num_steps=2)
    card = json.loads((tmp_path / "all/old/card.json").read_text())
    assert (card["bench"], "rates" in card, "by_seed" in card["solved"]) == ("1", False, False)
    assert card["tasks"] == {"mess3": DIGESTS["1"]["mess3"]}
    assert main(["check", str(tmp_path / "all/old")]) == 0
    assert main(["benchmark", "--leaderboard", str(tmp_path / "all")]) == 0
    assert "# HMM-bench 1: leaderboard" in capsys.readouterr().out
    shutil.copytree(entered / "out", tmp_path / "all" / "new")
    failing("contains cards of HMM-bench 1, 2; give each version a folder", read_cards, tmp_path / "all")


def test_an_interrupted_submission_goes_on_to_the_same_card(entered, tmp_path, monkeypatch):
    enter, done = submitting._enter, []

    def interrupted(entry, task, *rest):
        if task.name == "told" and "told" not in done:
            done.append(task.name)
            raise KeyboardInterrupt
        done.append(task.name)
        return enter(entry, task, *rest)

    monkeypatch.setattr(submitting, "_enter", interrupted)
    options = {"tasks": FEW, "num_steps": 3}
    with pytest.raises(KeyboardInterrupt):
        hmmbench.benchmark(entered / "mine.py", tmp_path / "out", **options)
    failing("is not finished", hmmbench.check_submission, tmp_path / "out")
    failing("exists", hmmbench.benchmark, entered / "mine.py", tmp_path / "out", **options)
    card = hmmbench.benchmark(entered / "mine.py", tmp_path / "out", resume=True, **options)
    assert done == ["parity", "told", "told"]
    whole = json.loads((entered / "out" / "card.json").read_text())
    assert card.data["scores"] == whole["scores"]
    assert card.data["weights"] == whole["weights"]
    failing("contains another entry", hmmbench.benchmark, "lstm", tmp_path / "out", resume=True, **options)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_scores_of_the_optimum_and_of_knowing_nothing(task):
    samples = ScoredSamples.of(task, "0" * 16)
    stored = {}
    for name, dataset, count in (("trained", samples.trained, SCORED), ("longest", samples.longest, LONGER)):
        asked = task.asked(dataset)
        exact = asked.optimum(samples.batch(dataset, count))
        stored[name] = (exact.log() if asked.kind == "law" else exact).float()
    best = score(task, samples, stored)
    assert abs(best["excess"]) < 1e-6
    assert best["share_solved"] == pytest.approx(1, abs=1e-5)
    assert (best["fit_length"], best["long_fit_length"]) == (1, 8)
    assert best["floor_shuffled"] > best["excess"] + 0.01
    nothing = {name: torch.zeros_like(values) for name, values in stored.items()}  # the uniform law, or no movement
    worst = score(task, samples, nothing)
    assert worst["share_solved"] < 0.1
    assert worst["fit_length"] < 0.2
    assert worst["floor_constant"] == best["floor_constant"] > 0
    if task.target == "observation" and not task.generator().real_valued:
        assert best["floor_counting"] > -1e-9
    nothing["trained"][0, 0] = torch.nan
    failing("predictions.trained: must be finite", score, task, samples, nothing)


class Tiny(nn.Module):
    def __init__(self, vocab_size=64, num_outputs=60):
        super().__init__()
        self.inside, self.out = nn.Embedding(vocab_size, 4), nn.Linear(4, num_outputs)

    def forward(self, tokens):
        return self.out(self.inside(tokens))


def test_any_module_enters_and_seeds_differ(tmp_path):
    options = {"tasks": ["parity"], "num_steps": 2, "seeds": 2}
    for name, model in (("class", Tiny), ("object", Tiny())):
        card = hmmbench.benchmark(model, tmp_path / name, name=name, **options)
        assert len(set(card.data["weights"]["parity"])) == 2
        row = next(row for row in card.table() if row["score"] == "excess")
        assert row["low"] < row["value"] < row["high"]
        assert "not ranked" in repr(card)
        assert card.value("parity", "belief_share") is None
    assert "predictions, which the model reproduces" in hmmbench.check_submission(tmp_path / "class", run=Tiny)
    failing("was entered from Python", hmmbench.check_submission, tmp_path / "class", run=str(_file(tmp_path)))


def _file(folder):
    (folder / "mine.py").write_text(MODEL)
    return folder / "mine.py"


def test_what_is_no_model_is_refused_in_a_line(tmp_path):
    failing("model: must be a module", entry_of, 3)
    failing("model: unknown 'lstn'; did you mean 'lstm'?", entry_of, "lstn")
    for text, part in (
        ("x = 1", "must define a function build"),
        ("import nowhere", "ModuleNotFoundError"),
        (MODEL.replace("learning_rate", "num_steps"), "TRAINING.num_steps: unknown"),
        (MODEL.replace('"parameters"', '"weights"'), "DECLARED.weights: unknown"),
        (MODEL + "\nTRAINING = [1]", "TRAINING: must be a mapping"),
        (MODEL + "\nLAYERS = '1'", "LAYERS: must be a list of module names, got '1'"),
        ("raise SystemExit(0)", "SystemExit"),
    ):
        (tmp_path / "bad.py").write_text(text)
        failing(part, entry_of, tmp_path / "bad.py")
    vectors = {"track": "full", "tasks": ["linear-gaussian"], "num_steps": 2}
    failing("gaussian: build: must accept the argument input_w", hmmbench.benchmark, Tiny, tmp_path / "v", **vectors)
    failing("parity: ValueError: no", hmmbench.benchmark, _raises, tmp_path / "r", tasks=["parity"], num_steps=2)
    failing("seeds: must be a whole number in [1, 100]", hmmbench.benchmark, Tiny, tmp_path / "s", seeds=0)
    failing("num_steps: must be a whole number", hmmbench.benchmark, Tiny, tmp_path / "s", num_steps=2.5)
    failing("tasks: must name at least one task", hmmbench.benchmark, Tiny, tmp_path / "s", tasks=[])
    failing("tasks: must be a list of task names", hmmbench.benchmark, Tiny, tmp_path / "s", tasks="parity")
    failing("not the folder of a submission", hmmbench.check_submission, tmp_path)
    assert main(["check", str(tmp_path), "--run", "x.py"]) == 2


def test_layers_that_a_model_lacks_are_found_before_it_trains(tmp_path):
    (tmp_path / "mine.py").write_text(MODEL + "\nLAYERS = ['1', 'gru']")
    failing("LAYERS", hmmbench.benchmark, tmp_path / "mine.py", tmp_path / "out", tasks=["parity"], num_steps=2)
    assert not (tmp_path / "out").exists()


def _raises(vocab_size):
    raise ValueError("no\nway")


def test_seconds_before_an_interruption_count(entered, tmp_path, monkeypatch):
    options = {"tasks": ["parity"], "num_steps": 3}

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(submitting, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            hmmbench.benchmark(entered / "mine.py", tmp_path / "out", **options)
    spent = tmp_path / "out" / "work" / "parity-0.json"
    assert store.read_json(spent)["seconds"] >= 0
    store.write_json(spent, {"seconds": 1000.0})
    card = hmmbench.benchmark(entered / "mine.py", tmp_path / "out", resume=True, **options)
    assert 1000 < card.data["costs"]["seconds"] < 1100
    assert not (tmp_path / "out" / "work").exists()
    assert hmmbench.check_submission(tmp_path / "out")


def test_what_no_entry_has_is_refused_under_a_new_seal(copied):
    card, entry = (json.loads((copied / name).read_text()) for name in ("card.json", "entry.json"))
    text = (copied / "card.txt").read_text()
    sealed_again(copied, card)
    assert (copied / "card.txt").read_text() == text
    (copied / "card.txt").write_text(text.replace("0.", "1.", 1))
    seals.remove_seal(copied)
    seals.write_seal(copied, "submission", {})
    failing("card.txt: does not follow from card.json", hmmbench.check_submission, copied)
    (copied / "tasks" / "zz").mkdir()
    (copied / "tasks" / "zz" / "more.json").write_text("{}")
    sealed_again(copied, card)
    failing("tasks/zz: is not part of the submission", hmmbench.check_submission, copied)
    shutil.rmtree(copied / "tasks" / "zz")
    for key, value, said in (
        ("num_steps", None, "num_steps is None, which is not valid for an entry"),
        ("seeds", 0, "seeds is 0, which is not valid for an entry"),
        ("entered", [], "entered is [], which is not valid for an entry"),
        ("entered", ["z"], "tasks: unknown 'z'"),
        ("ranked", True, "ranked is True, which is not valid for an entry"),
        ("batch_size", 64, "batch_size is 64, which is not valid for an entry"),
        ("declared", {"parameters": -1}, "declared.parameters: must be at least 0"),
        ("training", {"num_steps": 9}, "TRAINING.num_steps: unknown"),
    ):
        (copied / "entry.json").write_text(json.dumps(entry | {key: value}))
        sealed_again(copied, card)
        failing(f"entry.json: {said}", hmmbench.check_submission, copied)


def _measured_again(folder, **changes):
    """Another measurement of one part, with the card that follows from it, under a new seal."""
    path = folder / "tasks" / "told-0" / "measured.json"
    store.write_json(path, json.loads(path.read_text()) | changes)
    about = json.loads((folder / "entry.json").read_text())
    stated = {key: value for key, value in about.items() if key not in ("format", "bench")}
    tasks = tasks_of("light", FEW)
    sealed_again(folder, make_card(stated, tasks, submitting.read_measured(folder, tasks, 1)))


def test_what_it_costs_and_what_was_chosen_are_compared(entered, copied, here):
    """More parameters than its weights have; with the model, any other number, and another recipe."""
    true = json.loads((copied / "tasks" / "told-0" / "measured.json").read_text())["parameters"]
    _measured_again(copied, parameters=true - 1)
    assert hmmbench.check_submission(copied)  # which numbers are parameters, only the model says
    said = f"parameters is {true - 1}, but recomputing it gives {true}"
    failing(said, hmmbench.check_submission, copied, run=str(entered / "mine.py"))
    _measured_again(copied, parameters=true + 1)
    failing(f"but weights.safetensors has only {true} numbers", hmmbench.check_submission, copied)
    _measured_again(copied, parameters=true, training_seconds=None)
    failing("measured.json: training_seconds is None, which is not valid", hmmbench.check_submission, copied)
    entry = json.loads((copied / "entry.json").read_text()) | {"training": {"learning_rate": 0.01, "weight_decay": 0.5}}
    store.write_json(copied / "entry.json", entry)
    _measured_again(copied, training_seconds=1.0)
    assert hmmbench.check_submission(copied)
    failing(
        "entry.json: training is {'learning_rate': 0.01, 'weight_decay': 0.5}",
        hmmbench.check_submission,
        copied,
        run=str(entered / "mine.py"),
    )


def test_a_linear_system_is_entered_as_vectors(tmp_path):
    def build(input_width, num_outputs):
        return nn.Linear(input_width or 1, num_outputs)

    card = hmmbench.benchmark(build, tmp_path / "out", track="full", tasks=["linear-gaussian"], num_steps=2)
    assert card.value("linear-gaussian", "excess") > 0
    assert hmmbench.check_submission(tmp_path / "out", run=build)


def test_the_belief_is_read_beyond_twins_from_what_is_stored():
    """A recurrent network whose state is the filter of nothing: an untrained one explains no more than its twins."""
    (task,) = tasks_of("light", ["mess3"], "1")
    samples = ScoredSamples.of(task, "1" * 16)
    model = hs.make_model("lstm", num_symbols=3, vocab_size=4, width=8)
    stored = predict(model, task, samples, None)
    found = score(task, samples, stored)
    assert stored["read"].shape[0] == 4
    assert found["belief_share"] is None or abs(found["belief_share"]) < 0.5
    exact = stored["read"].clone()
    exact[0] = _beliefs(samples)[1].flatten(0, 1).float()
    assert score(task, samples, stored | {"read": exact})["belief_share"] == pytest.approx(1, abs=1e-6)


def test_the_board_reads_submissions_and_cards(entered, tmp_path):
    kept = keep_card(entered / "out", tmp_path / "cards")
    assert kept.stat().st_size < 20_000
    assert "weights" in json.loads(kept.read_text())
    card = json.loads(kept.read_text())
    write_card(card | {"name": "<better>", "solved": over_seeds([0.9, 0.8])}, tmp_path / "cards")
    text = markdown(read_cards(tmp_path / "cards"))
    assert text.index("&lt;better&gt; (not ranked) | - | 0.850 [") < text.index("small gru (not ranked)")
    assert "<better>" not in text
    assert "best n-gram or context tree" in text
    html = page(read_cards(tmp_path / "cards"))
    assert "&lt;better&gt;" in html
    assert "<better>" not in html
    assert main(["benchmark", "--leaderboard", str(tmp_path / "cards"), "--out", str(tmp_path / "board"), "-q"]) == 0
    assert (tmp_path / "board" / "leaderboard.html").is_file()
    (tmp_path / "board" / "leaderboard.md").write_text("# mine\n")
    assert main(["benchmark", "--leaderboard", str(tmp_path / "cards"), "--out", str(tmp_path / "board"), "-q"]) == 3
    assert (tmp_path / "board" / "leaderboard.md").read_text() == "# mine\n"
    failing("no finished submission", read_cards, entered / "out" / "tasks")
    failing("is a submission; give its parent folder", read_cards, entered / "out")
    write_card(card | {"bench": "0"}, tmp_path / "cards")
    failing("a card of HMM-bench 0", read_cards, tmp_path / "cards")


EXACT = """
import torch

from torch import nn

class Exact(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1))

    def forward(self, tokens):
        parity = (tokens == 1).cumsum(1) % 2
        return nn.functional.one_hot(parity, 2) * 20.0 + self.weight

def build(num_outputs):
    import hmmscope
    return Exact()
"""


def test_what_computes_the_answer_is_listed_beside_the_models(tmp_path, capsys):
    (tmp_path / "exact.py").write_text(EXACT)
    words = ["benchmark", str(tmp_path / "exact.py"), "--out", str(tmp_path / "all/exact"), "--tasks", "parity"]
    assert main([*words, "--steps", "2", "-q"]) == 0
    (row,) = board_rows(read_cards(tmp_path / "all", "predictions"))
    assert (row["tier"], row["checked"]) == (None, "predictions")
    assert row["flags"] == ["untrained weights solve 1.00 of parity", "imports hmmscope"]
    assert main(["benchmark", "--leaderboard", str(tmp_path / "all"), "--check", "model"]) == 0
    assert "exact (exact or fitted model: untrained weights solve 1.00 of parity; imports hmmscope) | -" in (
        capsys.readouterr().out
    )
    card = keep_card(tmp_path / "all/exact", tmp_path / "cards")
    assert json.loads(card.read_text())["flags"] == ["imports hmmscope"]
    without = json.loads(card.read_text())["scores"]
    assert card_flags({"scores": [row | {"untrained": None} for row in without]}) == [
        "every build has the same weights"
    ]
    (mess3,) = tasks_of("light", ["mess3"], "1")
    table = torch.tensor([0.00375, 0.0425, 0.0675, 0.765])
    assert weight_flags({"table": table, "bias": torch.randn(1000)}, mess3) == ["table contains parameters of mess3"]
    assert weight_flags({"table": table + 1e-5}, mess3) == []
    assert source_flags(b"x = [0.00375, 0.0425, 0.765]\nlr = 0.001", (mess3,)) == ["states parameters of mess3"]
    assert source_flags(b"width = 64\nlr = 0.001\nstd = 0.0425", (mess3,)) == []


def test_models_whose_intervals_overlap_share_a_tier(entered):
    card = json.loads((entered / "out" / "card.json").read_text()) | {"ranked": True}
    shares = {
        "a": (0.9, 0.92),
        "b": (0.86, 0.9),
        "c": (0.84, 0.85),
        "d": (0.8, 0.82),
        "f": (0.7, 0.83),
        "e": (None, None),
    }
    cards = [
        card | {"name": name, "solved": {"value": 0.5, "low": low, "high": high}}
        for name, (low, high) in shares.items()
    ]
    assert [row["tier"] for row in board_rows(cards)] == [1, 1, 2, 3, 3, None]
    assert finding(cards).startswith("a solves the most")
    assert finding(cards[-1:]).startswith("No model is in a tier")


def test_no_model_passes_one_of_a_better_tier_without_a_seed(entered):
    """In 300 boards of ten models with two to six seeds; means, spreads and an outlying seed are drawn."""
    card = json.loads((entered / "out" / "card.json").read_text()) | {"ranked": True}
    rng, tiers = np.random.default_rng(0), 0
    for _ in range(300):
        cards = []
        for number, mean in enumerate(sorted(rng.uniform(0.5, 1, 10), reverse=True)):
            values = rng.normal(mean, rng.choice([1e-4, 1e-3, 3e-3]), rng.integers(2, 7))
            values[0] += rng.choice([0, 0.02])
            solved = over_seeds(list(values)) | {"by_seed": list(values)}
            cards.append(card | {"name": str(number), "solved": solved, "seeds": len(values)})
        rows = board_rows(sorted(cards, key=lambda card: -card["solved"]["value"]))
        tiers += max(row["tier"] for row in rows)
        assert passing(rows) == []
    assert tiers > 600
    for row in rows:  # a tier for each model, which the intervals do not support
        row["tier"] = rows.index(row)
    rows[0]["by_seed"] = [0.1, 0.9]
    assert "1 passes " + rows[0]["model"] in passing([rows[0], rows[1] | {"model": "1"}])
    text = markdown(cards)
    assert "Leaving out one seed of each model changes no order between tiers." in text
    assert "Leaving out one seed of each" in page(cards)
    assert all(rule in text for rule in RULES)


def test_names_stay_text_in_markdown(entered, tmp_path):
    name = "<img src=x onerror=alert(1)> [a](javascript:b) `c` | d"
    shown = r"&lt;img src=x onerror=alert(1)&gt; [a\](javascript:b) \`c\` \| d"
    card = json.loads((entered / "out" / "card.json").read_text())
    for hostile in ("<script>alert(1)</script>", "a | b", "``", "*a* __b__ ![c](d)", "</td><td>", "&lt;"):
        rows = markdown([card | {"name": hostile}]).splitlines()
        (row,) = [line for line in rows if "(not ranked)" in line]
        assert len(re.split(r"(?<!\\)\|", row)) == len(re.split(r"\|", next(line for line in rows if "| tier" in line)))
        assert not re.search(r"<|(?<!\\)[`*_]|(?<!\\)\]\(", row.replace("(not ranked)", ""))
        html = page([card | {"name": hostile}])
        assert html.count("<td") == page([card]).count("<td")
        assert "<script" not in html
    for bad in ("two\nlines", "a\0b", "x" * 61, "", 3):
        folder = tmp_path / "cards"
        folder.mkdir(exist_ok=True)
        store.write_json(folder / "forged-light-0123456789ab.json", card | {"name": bad})
        failing("the name of the model must be one line of at most 60 characters", read_cards, folder)
    assert hmmbench.board._line([name, "0.85 [0.80, 0.90]"]) == f"| {shown} | 0.85 [0.80, 0.90] |"


def test_a_folder_of_cards_is_checked(entered, tmp_path, capsys):
    kept = keep_card(entered / "out", tmp_path / "cards")
    assert main(["benchmark", "--leaderboard", str(kept.parent), "-q"]) == 0
    capsys.readouterr()
    assert main(["check", str(kept.parent)]) == 0
    said = "1 card of HMM-bench 2; the leaderboard follows from them; 3 files, 0 not covered\n"
    assert capsys.readouterr().out == f"{kept.parent}: {said}"
    assert main(["benchmark", "--leaderboard", str(kept.parent), "--out", str(kept.parent / "of may"), "-q"]) == 0
    assert check_board(kept.parent)[0].endswith("; 5 files, 0 not covered")
    capsys.readouterr()
    assert main(["check", str(tmp_path)]) == 0  # and inside another folder
    assert capsys.readouterr().out.endswith(f"{tmp_path}: 1 folder of hmmscope inside; 5 files, 0 not covered\n")
    (kept.parent / "of may" / "leaderboard.md").write_text("another")
    (kept.parent / "notes").write_text("mine")
    assert "6 files, 2 not covered: notes, of may/leaderboard.md" in check_board(kept.parent)[0]
    board, text = kept.parent / "leaderboard.md", kept.read_text()
    board.write_text(board.read_text().replace("small", "large"))
    with pytest.raises(DamagedError, match=r"leaderboard\.md: does not follow from the cards"):
        check_board(kept.parent)
    card = json.loads(text)
    store.write_json(kept, card | {"seeds": 2})
    with pytest.raises(DamagedError, match="does not match the digest in its name"):
        read_cards(kept.parent)
    kept.unlink()
    for value, said in (([card], "is not a card of HMM-bench"), (card | {"costs": 3}, "is an incomplete card")):
        store.write_json(kept, value)
        with pytest.raises(HmmscopeError, match=said):
            read_cards(kept.parent)


def test_a_folder_of_submissions_is_checked(entered, tmp_path):
    shutil.copytree(entered / "out", tmp_path / "all" / "one")
    told, _ = check_board(tmp_path / "all")
    assert told.startswith("1 card of HMM-bench 2; 1 submission scored again; ")
    assert told.endswith(" files, 0 not covered")
    assert "leaderboard" not in told
    card = json.loads((tmp_path / "all" / "one" / "card.json").read_text())
    card["solved"]["value"] = 0.99
    sealed_again(tmp_path / "all" / "one", card)
    with pytest.raises(DamagedError, match=r"card\.json\.solved\.value is 0\.99"):
        check_board(tmp_path / "all")
    (tmp_path / "all" / "one" / "card.json").write_text("{}")
    with pytest.raises(DamagedError):
        check_board(tmp_path / "all")


def test_fields_of_a_registered_model_are_entered_and_kept(tmp_path, capsys):
    """A submission says which fields were chosen, goes on with the same ones, and is run again with them."""
    words = ["benchmark", "linear-attention", "--tasks", "parity", "--steps", "2", "--out", str(tmp_path / "own"), "-q"]
    chosen = ["--model.width", "16", "--model.num-layers", "1"]
    assert main([*words, *chosen]) == 0
    assert "chosen fields of the model: width 16, num_layers 1" in capsys.readouterr().out
    card = store.read_json(tmp_path / "own" / "card.json", managed=True)
    assert card["fields"] == {"width": 16, "num_layers": 1}
    assert card["costs"]["parameters"] < 5000
    assert main(["check", str(tmp_path / "own"), "--run", "linear-attention"]) == 0
    assert main([*words, *chosen, "--resume"]) == 0
    assert main([*words, "--model.width", "32", "--resume"]) == 3
    with pytest.raises(HmmscopeError, match=r"^model\.width: must be a multiple of num_heads"):
        entry_of({"name": "linear-attention", "width": 18})
    (tmp_path / "my_model.py").write_text(MODEL)
    for refused, line in (
        (["rnn", "--training.num_steps", "4"], "--training.num_steps: the benchmark allows only fields of the model"),
        ([str(tmp_path / "my_model.py"), "--model.width", "16"], "my_model.py builds its own"),
        (["--model.width", "16"], "no model is given"),
    ):
        capsys.readouterr()
        assert main(["benchmark", *refused]) == 2
        assert line in capsys.readouterr().err
