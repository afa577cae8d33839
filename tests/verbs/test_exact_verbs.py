"""Exact answers from the command line: the verbs say and write what the library computes, or one line of error."""

import json
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import hmmscope as hs
from cli_cases import assert_one_line, call  # noqa: F401 - a fixture
from hmmscope import system_info
from hmmscope.errors import InputError
from hmmscope.inference.baum_welch import fit_baum_welch
from hmmscope.inference.entropy import block_entropies
from hmmscope.inference.memory_error import memory_certificate, memory_error, sampled_memory_error
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.kernels.context_counts import context_counts, ngram_laws
from hmmscope.lab.verbs import sources
from hmmscope.lab.verbs.sources import read_observations
from hmmscope.lab.verbs.train import run_config
from hmmscope.processes.files import load_process
from hmmscope.processes.kalman import forgetting_factor, steady_step
from hmmscope.processes.make import make_process
from hmmscope.storage import store

CASINO = "1 3 6 6 6 2 6 1 6 6"


def written(call: Callable, *argv: object) -> tuple[str, dict]:
    """What `facts` prints, and what it writes."""
    called = call("infer", *argv, "--out", "facts.json")
    assert (called.code, called.error) == (0, ""), called.error
    data = json.loads(Path("facts.json").read_text())
    Path("facts.json").unlink()
    return called.out, data


# --------------------------------------------------------------------------------------------------------------------
# facts


def test_facts_of_a_generalised_hmm(call: Callable) -> None:
    """What needs no hidden states is told; what asks for them is refused."""
    process = make_process("post-quantum")
    out, data = written(
        call, "post-quantum", "--block-entropies", 4, "--memory", 2, "--mixed-states", 5, "--samples", 50
    )
    assert out.startswith("post-quantum: 3 dimensions, 3 symbols\n")
    assert data["least_dimension"] == 3
    assert data["observability"] is None
    assert "informed" not in data["block_entropies"]
    assert data["block_entropies"]["block"] == block_entropies(process, 4).block.tolist()
    assert data["memory_errors"][0]["total_variation"] == memory_error(process, 1, data["memory_time"]).total_variation
    assert [row["certificate"] for row in data["memory_errors"]] == [1.0, 1.0]
    assert data["entropy_rate"]["lower_bound"] == 0
    for option in (("--observability", 2), ("--mixing",)):
        refused = call("infer", "post-quantum", *option)
        assert_one_line(refused, 2)
        assert "but GeneralisedHMM has none; supported by HMM, LabelledHMM" in refused.error


def test_oracle_of_a_generalised_hmm(call: Callable, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("1 0 1 2\n1 0 0 1\n")
    told = call("infer", "post-quantum", "words.txt", "--out", "o.jsonl", "--memory", 2)
    assert (told.code, told.error) == (0, "")
    assert "impossible from observation 2 (0) on" in told.out
    rows = store.read_table(tmp_path / "o.jsonl")
    exact = hs.filter_beliefs(make_process("post-quantum"), torch.tensor([[1, 0, 1, 2]]))
    assert [row["vector"] for row in rows[:4]] == exact.beliefs[0].tolist()
    assert [row["next_observation"] for row in rows[:4]] == exact.next_observation[0].tolist()
    assert f"vector: {exact.beliefs[0, -1, 0]:.6f}, " in told.out
    assert rows[6]["log_likelihood"] is None  # the second sequence, from its third observation on
    assert len(rows[0]["memory_vector"]) == 3
    refused = call("infer", "post-quantum", "words.txt", "--viterbi")
    assert_one_line(refused, 2)
    assert (
        "--viterbi needs hidden paths, but GeneralisedHMM has none; supported by ComposedCycles, EmissionHMM, HMM"
        in refused.error
    )


def test_facts_of_rrxor(call: Callable) -> None:
    """Riechers and Crutchfield: 36 mixed states, entropy rate 2/3 ln 2."""
    out, data = written(call, "rrxor", "--block-entropies", 6, "--mixed-states", 100, "--observability", 2)
    assert out.startswith("rrxor: 5 states, 2 symbols\n")
    assert data["entropy_rate"]["value"] == pytest.approx(2 / 3 * math.log(2), abs=1e-9)
    assert data["transition_rank"] == 3
    assert "36 up to depth 6; these are all" in out
    assert data["mixed_states"]["complete"] is True
    assert len(data["mixed_states"]["beliefs"]) == 36
    assert np.array_equal(data["mixed_states"]["successor"], mixed_states(make_process("rrxor")).successor)
    expected = block_entropies(make_process("rrxor"), 6)
    for name in ("block", "myopic", "informed", "excess"):
        assert data["block_entropies"][name] == getattr(expected, name).tolist()
    assert [record["steps"] for record in data["observability_steps"]] == [1, 2]
    assert sum(data["stationary_law"]) == pytest.approx(1, abs=1e-14)
    assert data["digest"] == make_process("rrxor").digest


def test_facts_of_a_mixing_time_and_its_distances(call: Callable) -> None:
    out, data = written(call, "umbrella", "--mixing", "--samples", 300, "--seed", 3)
    expected = hs.mixing_time(load_process("umbrella"), num_samples=300, seed=3)
    assert data["mixing_time"] == expected.time
    assert data["mixing_time_paper_indexing"] == expected.paper_indexing
    assert data["mixing_distances"]["mean"] == expected.distances.mean.tolist()
    assert f"{expected.time:g} steps ({expected.paper_indexing:g} in the indexing of [Limits] Table 1)" in out


def test_facts_of_a_chain_that_never_forgets(call: Callable) -> None:
    hs.HMM([0.5, 0.5], [[0, 1], [1, 0]], [[0.5, 0.5], [0.5, 0.5]]).save(Path("turn.json"))
    out, data = written(call, "turn.json", "--mixing", "--samples", 10)
    assert "mixing time\n  none up to 120 steps" in out
    assert data["mixing_time"] is None


def test_facts_of_finite_memory(call: Callable) -> None:
    """The symmetric channel, whose errors decay by about 0.55 for each observation."""
    channel = hs.HMM([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.8, 0.2], [0.2, 0.8]])
    channel.save(Path("channel.npz"))
    out, data = written(call, "channel.npz", "--memory", 6, "--horizon", 14)
    errors = data["memory_errors"]
    assert data["memory_time"] == 14
    for row in errors:
        expected = memory_error(load_process("channel.npz"), row["memory"], 14)
        assert row["total_variation"] == expected.total_variation
        assert row["squared"] == expected.squared
        assert row["certificate"] == memory_certificate(load_process("channel.npz"), row["memory"])
        assert row["total_variation"] <= row["certificate"]
    assert round(data["memory_decay"]["ratio"], 3) == 0.552
    assert "decay: factor 0.55" in out
    assert "after 14 observations, by enumeration" in out


def test_facts_of_finite_memory_by_sampling(call: Callable) -> None:
    process = make_process("random-hmm", num_states=4, num_symbols=6)
    options = ["--num_states", 4, "--num_symbols", 6, "--samples", 200, "--seed", 5]
    _, data = written(call, "random-hmm", *options, "--memory", 6)
    assert data["memory_time"] == 22
    for row in data["memory_errors"]:
        expected = sampled_memory_error(process, row["memory"], 22, num_samples=200, seed=5)
        assert (row["total_variation"], row["low"], row["high"]) == (
            expected.total_variation,
            expected.low,
            expected.high,
        )
        assert row["exact"] is False


def test_memory_that_suffices_has_no_decay(call: Callable) -> None:
    hs.HMM([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], np.eye(2)).save(Path("seen.json"))
    out, data = written(call, "seen.json", "--memory", 3)
    assert data["memory_decay"] is None
    assert "the TV is zero up to rounding from memory length 1 on" in out
    assert "decay: not fitted; it needs --memory 3 or more" in written(call, "umbrella", "--memory", 2)[0]


def test_facts_where_the_stationary_law_is_not_unique(call: Callable) -> None:
    hs.HMM([0.5, 0.5], np.eye(2), [[0.9, 0.1], [0.2, 0.8]]).save(Path("split.json"))
    out, data = written(call, "split.json")
    assert data["stationary_law"] is None
    assert data["entropy_rate"] is None
    assert "stationary law   not unique" in out
    assert_one_line(call("infer", "split.json", "--block-entropies", 3), 2)


def test_facts_of_a_linear_system(call: Callable) -> None:
    _, data = written(call, "ran-lds", "--dimension", 3)
    process = make_process("ran-lds", dimension=3)
    assert data["forgetting_factor"] == forgetting_factor(process) == pytest.approx(0.3819660, abs=1e-7)
    assert data["mixing_time"] == pytest.approx(math.log(0.05) / math.log(0.3819660), abs=1e-5)
    assert data["steady_gain"] == steady_step(process).gain.tolist()


def test_facts_of_one_component(call: Callable) -> None:
    sizes = ["--num_components", 3, "--num_states", 3, "--num_symbols", 2]
    mixture = make_process("random-mixture", num_components=3, num_states=3, num_symbols=2)
    _, data = written(call, "random-mixture", *sizes, "--component", 2)
    assert data["digest"] == mixture[2].digest
    whole = call("infer", "random-mixture", *sizes)
    assert (whole.code, whole.error) == (0, "")
    assert "0.333333 each; entropy of the weights 1.098612 nats" in whole.out
    refused = call("infer", "random-mixture", *sizes, "--block-entropies", 2)
    assert_one_line(refused, 2)
    assert (
        "--block-entropies needs probabilities of words, but Mixture has none; supported by GeneralisedHMM, HMM"
        in refused.error
    )
    refused = call("infer", "random-mixture", *sizes, "--component", 3)
    assert_one_line(refused, 2)
    assert "component: must be in [0, 3), got 3" in refused.error


def test_facts_of_a_large_process(call: Callable) -> None:
    """`show` leaves these out; who asks for them gets them."""
    _, data = written(call, "random-hmm", "--num_states", 80, "--num_symbols", 4)
    assert data["transition_rank"] == 80
    assert data["observability"]["method"] == "more states than symbols"


# --------------------------------------------------------------------------------------------------------------------
# oracle


def test_oracle_draws_paths(call: Callable) -> None:
    """Draws are those of the library, sequence n having stream n; the first do not depend on how many there are."""
    Path("c.txt").write_text(f"{CASINO}\n{CASINO}\n")
    casino = load_process("dishonest-casino")
    called = call("infer", "dishonest-casino", "c.txt", "--paths", 400, "--seed", 7, "--smooth", "--out", "c.jsonl")
    assert called.code == 0, called.error
    rows = store.read_table(Path("c.jsonl"))
    for number in range(2):
        drawn = torch.tensor([row["paths"] for row in rows if row["sequence"] == number + 1]).T
        tokens = read_observations(Path("c.txt"), casino)[0][number]
        assert torch.equal(drawn, hs.sample_state_paths(casino, tokens, num_paths=400, seed=7, indices=[number])[:, 0])
        smoothed = torch.tensor([row["smoothed"] for row in rows if row["sequence"] == number + 1])
        assert ((drawn == 0).double().mean(0) - smoothed[:, 0]).abs().max() < 5 * 0.5 / math.sqrt(400)
    assert call("infer", "dishonest-casino", "c.txt", "--paths", 1, "--seed", 7).out.count("path 0:") == 2


def test_oracle_of_a_short_memory(call: Callable) -> None:
    Path("c.txt").write_text(f"{CASINO}\n")
    casino = load_process("dishonest-casino")
    called = call("infer", "dishonest-casino", "c.txt", "--memory", 3, "--out", "c.jsonl")
    kept = hs.memory_beliefs(casino, read_observations(Path("c.txt"), casino)[0][0], 3)
    rows = store.read_table(Path("c.jsonl"))
    assert [row["memory_belief"] for row in rows] == kept.beliefs[0].tolist()
    assert [row["memory_next_observation"] for row in rows] == kept.next_observation[0].tolist()
    assert [row["memory_log_likelihood"] for row in rows] == kept.log_likelihood_terms[0].tolist()
    assert f"with 3 observations of memory: log-likelihood {float(kept.log_likelihood[0]):.6f} nats" in called.out


def test_oracle_of_ngrams(call: Callable) -> None:
    Path("c.txt").write_text(f"{CASINO}\n")
    casino = load_process("dishonest-casino")
    assert call("infer", "dishonest-casino", "c.txt", "--ngrams", 2, "--out", "c.jsonl").code == 0
    tokens = read_observations(Path("c.txt"), casino)[0][0]
    predicted = ngram_laws(context_counts(tokens.numpy(), np.arange(tokens.shape[1]), 6, 1), [1.0, 1.0])
    for row, laws in zip(store.read_table(Path("c.jsonl")), predicted[0], strict=True):
        np.testing.assert_allclose(np.exp(row["ngram_log_likelihood"]), laws[:, row["observation"]], rtol=1e-12)


@pytest.mark.parametrize("ending", ["npz", "safetensors", "jsonl"])
def test_oracle_of_vectors(ending: str, call: Callable) -> None:
    """The Kalman filter, on what `sample` writes."""
    assert call("sample", "ran-lds", "-n", 2, "--length", 6, "--out", f"v.{ending}", "--dimension", 3).code == 0
    called = call("infer", "ran-lds", f"v.{ending}", "--out", "o.jsonl", "--dimension", 3)
    assert (called.code, called.error) == (0, "")
    process = make_process("ran-lds", dimension=3)
    exact = hs.kalman_filter(process, hs.ProcessDataset(process, length=6)[0:2].observations)
    rows = store.read_table(Path("o.jsonl"))
    assert [row["sequence"] for row in rows] == [1] * 6 + [2] * 6
    for row in rows:
        b, t = row["sequence"] - 1, row["position"]
        assert row["mean"] == pytest.approx(exact.means[b, t].tolist(), rel=1e-12)
        assert row["next_observation"] == pytest.approx(exact.next_observation[b, t].tolist(), rel=1e-12)
        assert np.allclose(row["covariance"], exact.covariances[b, t], rtol=1e-12, atol=0)
        assert row["log_likelihood"] == pytest.approx(float(exact.log_likelihood_terms[b, t]), rel=1e-12)
    assert f"log-density {float(exact.log_likelihood[0]):.6f} nats" in called.out


@pytest.mark.parametrize("ending", ["npz", "jsonl"])
def test_oracle_of_vectors_with_gaps(ending: str, call: Callable) -> None:
    """NaN and null are missing without a marker, as everywhere in numbers, and filtered over."""
    process = make_process("ran-lds", dimension=2)
    vectors = hs.ProcessDataset(process, length=4)[0:2].observations
    vectors[0, 1], vectors[1, 3, 0] = torch.nan, torch.nan
    if ending == "npz":
        np.savez("v.npz", observations=vectors.numpy())
    else:
        rows = [[[None if v != v else v for v in row] for row in rows] for rows in vectors.tolist()]
        rows[0][1] = None
        Path("v.jsonl").write_text("".join(json.dumps({"observations": row}) + "\n" for row in rows))
    called = call("infer", "ran-lds", f"v.{ending}", "--dimension", 2, "--out", "o.jsonl")
    assert called.code == 0, called.error
    assert "3 missing numbers" in called.out
    exact = hs.kalman_filter(process, vectors)
    rows = store.read_table(Path("o.jsonl"))
    assert rows[1]["observation"] == [None, None]
    assert [row["mean"] for row in rows] == [pytest.approx(m, rel=1e-12) for m in exact.means.flatten(0, 1).tolist()]
    assert "sequence 1: 3 observations and 1 missing" in called.out


def test_oracle_says_the_laws_of_gaps(call: Callable) -> None:
    Path("g.txt").write_text("umbrella NA no-umbrella NA NA NA NA NA\n")
    for name in ("umbrella", "m.json"):
        umbrella = load_process("umbrella")
        process = umbrella if name == "umbrella" else hs.Mixture([0.3, 0.7], [umbrella, umbrella])
        if name == "m.json":
            process.save(name)
        called = call("infer", name, "g.txt", "--missing", "NA", "--out", f"o-{name}.jsonl", "-q")
        assert called.code == 0, called.error
        laws = hs.missing_probs(process, hs.SequenceData("g.txt", symbols_from=process, missing="NA"))[0]
        assert f"  missing observation 1: umbrella {laws[1, 0]:.6f}, no-umbrella {laws[1, 1]:.6f}" in called.out
        assert "and 1 more missing observations" in called.out
        rows = store.read_table(Path(f"o-{name}.jsonl"))
        assert [row["position"] for row in rows if "missing_law" in row] == [1, 3, 4, 5, 6, 7]
        assert rows[3]["missing_law"] == laws[3].tolist()


@pytest.mark.parametrize("ending", ["npz", "safetensors", "jsonl", "txt"])
def test_oracle_reads_what_sample_writes(ending: str, call: Callable) -> None:
    assert call("sample", "dishonest-casino", "-n", 3, "--length", 9, "--out", f"s.{ending}").code == 0
    called = call("infer", "dishonest-casino", f"s.{ending}", "-q")
    casino = load_process("dishonest-casino")
    exact = hs.filter_beliefs(casino, hs.ProcessDataset(casino, length=9)[0:3].observations)
    said = [line for line in called.out.splitlines() if line.startswith("sequence")]
    for line, log in zip(said, exact.log_likelihood.tolist(), strict=True):
        assert f"log-likelihood {log:.6f} nats" in line


@pytest.mark.parametrize(
    "symbols", [("no rain", "rain"), ("a,b", "c"), (" ", "a"), ("a ", "b"), ("\u2028", "b"), ("a", "b\n")]
)
def test_text_that_would_be_read_otherwise_is_not_written(symbols: tuple[str, str], call: Callable) -> None:
    hs.HMM([1.0], [[1.0]], [[0.5, 0.5]], symbols=symbols).save("odd.json")
    refused = call("sample", "odd.json", "-n", 3, "--length", 9, "--out", "s.txt")
    assert_one_line(refused, 2)
    assert "out: this .txt would be read back differently" in refused.error
    assert not Path("s.txt").exists()
    for ending in ("jsonl", "npz", "safetensors"):
        assert call("sample", "odd.json", "-n", 3, "--length", 9, "--out", f"s.{ending}", "-q").code == 0
        data = hs.SequenceData(f"s.{ending}")
        assert data.symbols == symbols
        drawn = hs.ProcessDataset(load_process("odd.json"), length=9)[0:3].observations
        assert torch.equal(data.padded()[0], drawn)


def test_text_of_one_symbol_a_line_is_not_written(call: Callable) -> None:
    assert_one_line(call("sample", "umbrella", "-n", 3, "--length", 1, "--out", "s.txt"), 2)
    assert call("sample", "umbrella", "-n", 3, "--length", 1, "--out", "s.jsonl").code == 0
    assert call("sample", "umbrella", "-n", 0, "--out", "none.txt").code == 0


def test_oracle_says_all_in_a_line_and_shows_the_first_sequences(call: Callable) -> None:
    assert call("sample", "dishonest-casino", "-n", 13, "--length", 4, "--out", "s.txt").code == 0
    casino = load_process("dishonest-casino")
    total = float(hs.log_likelihood(casino, hs.ProcessDataset(casino, length=4)[0:13].observations).sum())
    lines = call("infer", "dishonest-casino", "s.txt").out.splitlines()
    assert (
        lines[2] == f"13 sequences, 52 observations: log-likelihood {total:.6f} nats ({total / 52:.6f} per observation)"
    )
    assert [line for line in lines if line.startswith("sequence ")][-1].startswith("sequence 10: 4 observations")
    assert lines[-1] == "and 3 more sequences; --out TABLE.jsonl writes all"
    written = call("infer", "dishonest-casino", "s.txt", "--out", "s.jsonl", "-q").out.splitlines()
    assert written[-1] == "and 3 more sequences"
    assert len(store.read_table(Path("s.jsonl"))) == 52
    Path("w.txt").write_text("1 0\n0 1 0 1 1\n")
    first = call("infer", "even", "w.txt", "-q").out.splitlines()[0]
    assert first == "2 sequences, 7 observations: log-likelihood -inf nats (impossible sequences: 1)"


def test_an_impossible_sequence_has_no_paths_but_its_memory_may_live(call: Callable) -> None:
    Path("w.txt").write_text("0 1 0 1 1\n")
    called = call("infer", "even", "w.txt", "--paths", 2, "--viterbi", "--memory", 1, "--out", "w.jsonl")
    assert called.code == 0, called.error
    assert "impossible from observation 2 (0) on" in called.out
    assert "path" not in called.out
    rows = store.read_table(Path("w.jsonl"))
    assert [row["paths"] for row in rows] == [[-1, -1]] * 5
    assert rows[-1]["log_likelihood"] is None
    assert sum(rows[-1]["memory_belief"]) == pytest.approx(1)


# --------------------------------------------------------------------------------------------------------------------
# fit


def without_progress(error: str) -> str:
    """Standard error without the line of progress, which a fit shows that takes seconds: the first, while it compiles."""
    return re.sub(r"fit \d+/\d+ .*\n", "", error)


def test_fit_finds_a_model_and_saves_it(call: Callable) -> None:
    umbrella = load_process("umbrella")
    assert call("sample", "umbrella", "-n", 20, "--length", 50, "--out", "u.txt").code == 0
    called = call("fit", "u.txt", "--states", 2, "--out", "fitted.json", "--restarts", 2, "--iterations", 30)
    assert (called.code, without_progress(called.error)) == (0, "")
    fitted = load_process("fitted.json")
    assert fitted.symbols == ("no-umbrella", "umbrella")
    numbers = {name: v for v, name in enumerate(fitted.symbols)}
    words = [[numbers[w] for w in line.split()] for line in Path("u.txt").read_text().splitlines()]
    expected = fit_baum_welch(torch.tensor(words), 2, 2, num_restarts=2, max_iterations=30)
    assert torch.equal(fitted.transition, expected.hmm.transition)
    assert torch.equal(fitted.emission, expected.hmm.emission)
    assert f"log-likelihood {expected.log_likelihood:.6f} nats" in called.out
    truth = float(hs.log_likelihood(umbrella, 1 - torch.tensor(words)).sum())
    assert expected.log_likelihood > truth - 5  # the data say more than their maker, up to the weight of the prior
    assert call("infer", "fitted.json", "u.txt").code == 0


def test_no_samples_are_no_lines(call: Callable) -> None:
    called = call("sample", "umbrella", "-n", 0)
    assert (called.code, called.out) == (0, "")


def test_gaps_are_named_once_and_kept(call: Callable) -> None:
    """--missing of a fit is kept in the HMM's file: the oracle sums over the same gaps; its table has no symbol there."""
    Path("g.csv").write_text("sky\n" + "".join(f"{('sun', 'rain', 'NA')[k * k % 7 % 3]}\n" for k in range(60)))
    options = ["--column", "sky", "--unit", "lines", "--missing", "NA", "--restarts", 1, "--iterations", 3]
    called = call("fit", "g.csv", "--states", 2, "--out", "g.json", *options)
    assert called.code == 0, called.error
    assert "43 observations in 1 sequence of 60, 2 symbols, 17 missing: rain sun" in called.out
    asked = call("infer", "g.json", "g.csv", "--smooth", "--viterbi", "--memory", 2, "--ngrams", 2, "--out", "g.jsonl")
    assert asked.code == 0, asked.error
    assert "sequence 1: 43 observations and 17 missing, log-likelihood" in asked.out
    assert "--unit lines --column sky --missing NA" in asked.out
    rows = [json.loads(line) for line in Path("g.jsonl").read_text().splitlines()]
    gaps = [row for row in rows if row["observation"] is None]
    assert (len(rows), len(gaps)) == (60, 17)
    assert all(row["log_likelihood"] == row["memory_log_likelihood"] == 0 for row in gaps)
    total = sum(row["log_likelihood"] for row in rows)
    data = hs.SequenceData("g.csv", symbols_from=load_process("g.json"))
    assert total == pytest.approx(float(hs.log_likelihood(load_process("g.json"), data)))
    assert_one_line(
        call("fit", "g.csv", "--states", 2, "--out", "h.json", "--column", "sky", "--missing", "sun,rain,NA"), 2
    )


def test_one_long_sequence_is_read_alike_by_every_verb(call: Callable) -> None:
    """A column of one symbol a row: refused with both readings, or read as asked; and then as the HMM's own sequences."""
    skies = [("sun", "rain", "snow")[k * k % 7 % 3] for k in range(400)]
    Path("w.csv").write_text("day,sky\n" + "".join(f"{k},{sky}\n" for k, sky in enumerate(skies)))
    options = ["--column", "sky", "--unit", "lines", "--restarts", 1, "--iterations", 3]
    for verb in (["fit", "w.csv", "--states", 2, "--out", "no.json"], ["study", "w.csv", "--out", "no"]):
        assert_one_line(call(*verb, "--column", "sky"), 2)
    called = call("fit", "w.csv", "--states", "1,2", "--out", "two.json", *options)
    assert called.code == 0, called.error
    assert "w.csv: 400 observations in 1 sequence of 400, 3 symbols" in called.out
    assert "held-out blocks of 16 symbols; the refit uses all data" in called.out
    assert load_process("two.json").num_states in (1, 2)
    assert call("fit", "w.csv", "--states", 2, "--out", "h.json", *options).code == 0
    said = call("infer", "h.json", "w.csv").out
    assert "w.csv: 400 observations in 1 sequence of 400" in said
    assert "read with options of the process, --unit lines --column sky" in said
    assert said.count("\nsequence ") == 1
    assert "fitted to        sequences read with options --unit lines --column sky" in call("show", "h.json").out
    configured = run_config("w.csv", {"process.column": "sky", "process.unit": "lines"})
    assert (configured.process.cut, configured.layout.length) == (16, 16)  # type: ignore[attr-defined]
    reading = {"column": "sky", "unit": "lines", "missing": ["rain"]}
    told = run_config("w.csv", {"process.cut": "20"}, reading)
    assert told.process.build().data.num_missing == skies.count("rain")
    assert told.process.cut == 20
    small = ["--training.num_steps", 2, "--model", "rnn", "--model.width", 4]
    assert_one_line(call("train", "umbrella", "--column", "sky", "--out", "no", *small), 2)
    called = call("train", "w.csv", "--column", "sky", "--unit", "lines", "--out", "r", *small)
    assert called.code == 0, called.error
    assert "w.csv: 400 observations in 25 sequences of 16, 3 symbols" in called.out
    plain = hs.HMM([1.0], [[1.0]], [[0.4, 0.3, 0.3]], symbols=["rain", "snow", "sun"])
    plain.save("plain.json")  # each line is one of its symbols, so they are one sequence
    assert "w.csv: 400 observations in 1 sequence of 400" in call("infer", "plain.json", "w.csv", "--column", "sky").out


def test_arrays_of_hmmlearn_are_fitted(call: Callable) -> None:
    x = np.array([0, 1, 1, 0, 2, 1, 0, 0, 1, 2])[:, None]
    options: dict = {"options": hs.FitOptions(num_restarts=1, max_iterations=3)}
    rows = hs.fit([x[:4, 0].tolist(), x[4:, 0].tolist()], 2, **options)
    both = hs.fit(x, 2, lengths=[4, 6], **options)
    assert both.log_likelihood == rows.log_likelihood
    assert hs.fit(x, 2, **options).log_likelihood == hs.fit(x[:, 0], 2, **options).log_likelihood
    with pytest.raises(InputError, match="lengths: SequenceData is already read"):
        hs.fit(hs.SequenceData(x), 2, lengths=[4, 6])
    np.save("x.npy", x)
    for flags, lengths in (([], 1), (["--axis", 1], 10)):
        assert call("fit", "x.npy", "--states", 1, "--out", f"{lengths}.json", "--iterations", 1, *flags).code == 0
        assert f"10 observations in {lengths} sequence" in call("infer", f"{lengths}.json", "x.npy").out
    assert call("sample", "1.json", "-n", 10, "--length", 1, "--out", "s.npz").code == 0
    assert (
        "10 observations in 10 sequences of 1" in call("infer", "1.json", "s.npz").out
    )  # what the library wrote it knows


def test_fit_of_numbers_and_unequal_lengths(call: Callable) -> None:
    Path("n.txt").write_text("0 1 2\n2,1\n\n0\n")
    assert call("fit", "n.txt", "--states", 1, "--out", "n.npz", "--symbols", 5, "-q").code == 0
    fitted = load_process("n.npz")
    assert (fitted.num_states, fitted.num_symbols, fitted.symbols) == (1, 5, None)
    counts = np.array([2, 2, 2, 0, 0]) + 0.1
    np.testing.assert_allclose(fitted.emission[0], counts / counts.sum(), atol=2**-31)


def test_a_large_build_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_LARGE", 3 * 4 * 8)
    sizes = {"process.num_components": "3", "process.num_states": "4", "process.num_symbols": "4"}
    with pytest.warns(UserWarning, match="building 3 HMMs of 4 states"):
        sources.find_process("random-mixture", sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sources.find_process("random-mixture", sizes | {"process.num_components": "2"})


def test_fit_chooses_among_sizes_and_streams(call: Callable) -> None:
    assert call("sample", "umbrella", "-n", 20, "--length", 30, "--out", "u.txt").code == 0
    called = call("fit", "u.txt", "--states", "1,2", "--out", "chosen.json", "--iterations", 10)
    assert (called.code, without_progress(called.error)) == (0, "")
    assert re.search(r"\n +1 +3 +\d+\.\d\d +-0\.\d{6} ± 0\.\d{6}  chosen\n +2 +\d+ +\d+\.\d\d +-0\.", called.out)
    assert "\n1 state, 95 % [1, 2]: the smallest BIC, " in called.out
    assert re.search(r", best two of \d+ restarts agree\n", called.out)
    assert load_process("chosen.json").num_states in (1, 2)
    called = call(
        "fit", "u.txt", "--states", 2, "--out", "s.json", "--iterations", 5, "--stream", "--unit", "words", "-q"
    )
    assert (called.code, called.out) == (
        0,
        "2 states, 2 symbols, 600 observations of a stream; each observation is read once\n",
    )
    assert load_process("s.json").symbols == ("no-umbrella", "umbrella")


# --------------------------------------------------------------------------------------------------------------------
# Refusals

REFUSED: dict[str, tuple[int, list[object], str]] = {
    "no process": (2, ["infer"], "required: process"),
    "unknown process": (2, ["infer", "umbrela"], "did you mean 'umbrella'"),
    "unknown field": (2, ["infer", "random-hmm", "--num_state", 3], "did you mean '--num_states'"),
    "field of a shipped process": (2, ["infer", "umbrella", "--num_states", 3], "--num_states: unknown option"),
    "negative blocks": (2, ["infer", "umbrella", "--block-entropies", -1], "block_entropies: must be in [0, 64]"),
    "long blocks": (2, ["infer", "umbrella", "--block-entropies", 21], "exceed the limit of 1048576"),
    "absurd blocks": (2, ["infer", "umbrella", "--block-entropies", 10**5], "block_entropies: must be in [0, 64]"),
    "absurd memory": (2, ["infer", "umbrella", "--memory", 10**9], "memory: must be in [0, 10000]"),
    "long steps": (2, ["infer", "umbrella", "--observability", 21], "exceed the limit of 1048576"),
    "one sample": (2, ["infer", "umbrella", "--samples", 1], "samples: must be at least 2"),
    "time without memory": (
        2,
        ["infer", "umbrella", "--horizon", 5],
        "horizon: needs --memory, and must not be below it",
    ),
    "time below memory": (
        2,
        ["infer", "umbrella", "--memory", 6, "--horizon", 5],
        "horizon: needs --memory, and must not be below it",
    ),
    "seed": (2, ["infer", "umbrella", "--seed", -1], "seed: must be an integer in"),
    "component of one HMM": (
        2,
        ["infer", "umbrella", "--component", 0],
        "--component needs components, but HMM has none; supported by ComposedCycles, Mixture",
    ),
    "memory of a linear system": (
        2,
        ["infer", "ran-lds", "--memory", 2],
        "--memory needs probabilities of words, but LinearGaussian has none",
    ),
    "no facts": (2, ["infer", "fresh-hmms"], "HMMPerSample has no properties to compute"),
    "mixed states beyond memory": (5, ["infer", "umbrella", "--mixed-states", 10**13], "GiB"),
    "samples of a memory": (5, ["infer", "umbrella", "--memory", 3, "--horizon", 99, "--samples", 10**9], "GiB"),
    "samples beyond memory": (5, ["infer", "umbrella", "--mixing", "--samples", 10**13], "GiB"),
    "states beyond memory": (5, ["infer", "huge.npz", "--block-entropies", 10], "GiB"),
    "no JSON": (2, ["infer", "umbrella", "--out", "facts.txt"], "out: must end in .json"),
    "no table of lines": (2, ["infer", "umbrella", "w.txt", "--out", "o.csv"], "out: must end in .jsonl, got 'o.csv'"),
    "sequences alone": (2, ["infer", "n.txt"], "n.txt is a file of sequences; give a process first"),
    "existing": (3, ["infer", "umbrella", "--out", "there.json"], "there.json: exists"),
    "paths of vectors": (
        2,
        ["infer", "post-quantum", "n.txt", "--paths", 1],
        "--paths needs hidden paths, but Generalised",
    ),
    "two for one HMM": (
        2,
        ["infer", "ran-lds", "v.npz", "--smooth", "--memory", 1],
        "--smooth needs smoothing, but LinearGaussian has none",
    ),
    "ngrams of vectors": (2, ["infer", "ran-lds", "v.npz", "--ngrams", 1], "--ngrams needs symbols"),
    "negative paths": (2, ["infer", "umbrella", "w.txt", "--paths", -1], "paths: must be at least 0"),
    "negative memory": (2, ["infer", "umbrella", "w.txt", "--memory", -1], "memory: must be at least 0"),
    "absurd paths": (5, ["infer", "umbrella", "w.txt", "--paths", 10**12], "GiB"),
    "absurd ngrams": (5, ["infer", "umbrella", "w.txt", "--ngrams", 10**12], "GiB"),
    "vectors from text": (2, ["infer", "ran-lds", "n.txt"], "n.txt: contains no numbers"),
    "vectors of another size": (
        2,
        ["infer", "ran-lds", "v.npz", "--dimension", 4],
        "v.npz: has 5 coordinates, but the process has 4",
    ),
    "vectors for symbols": (2, ["infer", "umbrella", "v.npz"], "must be whole numbers (sequence, time) or names"),
    "symbols for vectors": (
        2,
        ["infer", "ran-lds", "w.npz"],
        "w.npz, array observations: must be numbers (time, 5) or (sequence, time, 5), got (1, 3)",
    ),
    "no array": (2, ["infer", "umbrella", "other.npz"], "other.npz: sequence 1: must be a list of whole numbers"),
    "ragged rows": (2, ["infer", "ran-lds", "ragged.jsonl"], "sequence 1: rows have different lengths, 1, 2"),
    "missing array": (2, ["infer", "umbrella", "none.npz"], "none.npz: cannot be read (No such file"),
    "torn array": (4, ["infer", "umbrella", "torn.npz"], "not a readable NPZ"),
    "symbol out of range": (2, ["infer", "umbrella", "w.npz"], "sequence 1, symbol 3: 7 is not a symbol in [0, 2)"),
    "no vectors": (2, ["infer", "umbrella", "empty.jsonl"], "holds no sequence"),
    "fit without states": (2, ["fit", "w.txt", "--out", "new.json"], "required: --states"),
    "fit of no states": (2, ["fit", "w.txt", "--states", 0, "--out", "new.json"], "states: must be at least 1"),
    "fit of nothing": (2, ["fit", "blank.txt", "--states", 1, "--out", "new.json"], "holds no sequence"),
    "fit to a table": (2, ["fit", "w.txt", "--states", 1, "--out", "new.csv"], "out: must end in"),
    "too few symbols": (
        2,
        ["fit", "n.txt", "--states", 1, "--out", "x.json", "--symbols", 2],
        "not one of the numbers 0 to 1",
    ),
    "symbols of names": (
        2,
        ["fit", "w.txt", "--states", 1, "--out", "x.json", "--symbols", 2],
        "not one of the numbers 0 to 1",
    ),
    "huge symbol": (2, ["fit", "big.txt", "--states", 1, "--out", "x.json"], "not one of the numbers 0 to 16777215"),
    "fit beyond memory": (5, ["fit", "w.txt", "--states", 10**9, "--out", "x.json"], "GiB"),
    "huge pseudo-count": (
        2,
        ["fit", "w.txt", "--states", 1, "--out", "x.json", "--pseudo-count", "-1"],
        "pseudo_count",
    ),
}


@pytest.fixture
def rubbish() -> None:
    """The files that the refused commands name."""
    Path("w.txt").write_text("umbrella no-umbrella\n")
    Path("n.txt").write_text("0 1 2\n")
    Path("big.txt").write_text("0 12345678901234567890\n")
    Path("blank.txt").write_text("\n \n")
    Path("there.json").write_text("{}")
    Path("torn.npz").write_bytes(b"PK\x03\x04")
    Path("empty.jsonl").write_text("")
    Path("ragged.jsonl").write_text('{"observations": [[1.0, 2.0], [3.0]]}\n')
    np.savez("v.npz", observations=np.zeros((1, 3, 5)))
    np.savez("w.npz", observations=np.array([[0, 1, 7]]))
    np.savez("other.npz", numbers=np.full(3, 0.5))
    size = 400
    np.savez("huge.npz", initial=np.full(size, 1 / size), transition=np.full((size, size), 1 / size), emission=EMISSION)


EMISSION = np.tile([0.25] * 4, (400, 1))


@pytest.mark.parametrize("name", REFUSED)
def test_one_line_of_error(name: str, call: Callable, rubbish: None, monkeypatch: pytest.MonkeyPatch) -> None:
    code, argv, expected = REFUSED[name]
    monkeypatch.setattr(system_info, "free_memory", lambda: 2**34)  # 16 GiB, wherever this runs
    before = sorted(path.name for path in Path().iterdir())
    called = call(*argv)
    assert_one_line(called, code)
    assert expected in called.error
    assert sorted(path.name for path in Path().iterdir()) == before


def test_every_exact_verb_has_help(call: Callable, capsys: pytest.CaptureFixture) -> None:
    for verb in ("infer", "fit"):
        try:
            told = call(verb, "--help").out
        except SystemExit:
            told = capsys.readouterr().out
        assert "usage: hmmscope" in told


def test_fit_says_what_may_be_said_of_it(call: Callable) -> None:
    """Intervals of entries, goodness of fit, and the next symbols; a forecast alone is refused before anything is done."""
    assert call("sample", "umbrella", "-n", 8, "--length", 40, "--out", "u.txt").code == 0
    fit = "fit", "u.txt", "--states", 2, "--restarts", 1, "--iterations", 20, "-q", "--unit", "words"
    called = call(*fit, "--out", "u.json", "--posterior", 20, "--goodness-of-fit", 20, "--forecast", 1)
    assert called.code == 0
    for said in (
        r"rounding probabilities to multiples of 2\^-32: KL divergence at most \S+ nats per symbol\n"
        r"posterior of 4 chains of 20 draws: largest R-hat ",
        r"\n  transition\[0, 1\] +0\.\d{4}  95 % \[0\.\d{4}, 0\.\d{4}\]\n",
        r"\ngoodness of fit against 20 simulations of draws from the posterior:\n  runs +p \d\.\d{3}, adjusted \d\.\d{3}",
        r"\n  \+1  umbrella  0\.\d{4} \[0\.\d{4}, 0\.\d{4}\]\n",
    ):
        assert re.search(said, called.out), said
    refused = call(*fit, "--out", "v.json", "--forecast", 1)
    assert (refused.code, Path("v.json").exists()) == (2, False)
    assert "--forecast: needs draws from the posterior for its intervals; add --posterior 500" in refused.error
