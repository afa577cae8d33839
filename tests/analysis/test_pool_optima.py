"""What an ideal observer knows of pools: all pairs as the prior of some, Pólya's urns, no optimum where nobody knows it."""

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import hmmscope as hs
from analysis_cases import Function, Oracle, leaking
from hmmscope.analysis.ngram_reach import ngram_reach
from hmmscope.datasets.process_dataset import Batch
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference.optimal import optimal_predictions, optimal_probs
from hmmscope.lab import cli
from hmmscope.processes.composed_cycles import ComposedCycles
from hmmscope.processes.mixture import Mixture
from hmmscope.processes.polya_urn import dirichlet_chain_predictions
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import load_run
from hmmscope.runs.training import train
from hmmscope.storage import store
from oracles import exact, mixture_by_enumeration

PROMPTS = hs.PromptLayout(num_demonstrations=2, demonstration_length=2, test_length=3)
SMALL = {"num_parts": 2, "num_states": 4, "num_symbols": 2}


def composed(pool: str, **fields: object) -> ComposedCycles:
    found = hs.make_process("composed-cycles", pool=pool, **SMALL | fields)
    assert isinstance(found, ComposedCycles)
    return found


def uniform(num_symbols: int) -> Function:
    return Function(lambda tokens: torch.zeros(*tokens.shape, num_symbols))


# All pairs as the prior -----------------------------------------------------------------------------------------------


def test_the_optimum_on_held_out_pairs_is_that_of_all_pairs() -> None:
    """Against the sum over components and hidden paths, in fractions."""
    held_out, everything = composed("held-out"), composed("all")
    layout = hs.PromptLayout(num_demonstrations=1, demonstration_length=2, test_length=3)
    batch = hs.ProcessDataset(held_out, layout=layout)[0:3]
    optimum = make_target("observation", held_out, layout).optimum(batch)
    hmms = [exact((hmm.initial, hmm.transition, hmm.emission)) for hmm in everything]
    starts = layout.reset_mask.tolist()
    for row, law in zip(batch.observations.tolist(), optimum, strict=True):
        _, _, following = mixture_by_enumeration([Fraction(1, 4)] * 4, hmms, row, starts)
        wanted = [[0.5, 0.5], *([float(p) for p in law_V] for law_V in following)][:-1]
        assert (law - torch.tensor(wanted, dtype=torch.float64)).abs().max() < 1e-9  # 1 / 4 and 1 / 2 are exact


def test_large_mixtures_give_the_same_law_without_a_posterior() -> None:
    everything = composed("all", num_parts=24)
    assert len(everything) > 512
    dataset = hs.ProcessDataset(everything, layout=PROMPTS)
    observations, starts = dataset[0:5].observations, torch.from_numpy(PROMPTS.reset_mask)
    wanted = optimal_predictions(everything, observations, reset_mask=starts).predicted_observation
    assert (optimal_probs(everything, observations, reset_mask=starts) - wanted).abs().max() < 1e-12


def test_knowing_the_part_is_worth_no_more_than_its_share_says() -> None:
    """Over all sequences: loss of the part's own mixture <= loss of the prior's <= the same + log(1 / share)."""
    held_out = composed("held-out")
    assert held_out.prior is not None
    sequences = torch.tensor(list(itertools.product(range(2), repeat=7)))
    own = hs.filter_mixture(held_out, sequences).log_likelihood
    of_prior = hs.filter_mixture(held_out.prior.process, sequences).log_likelihood
    gain = float((own.exp() * (own - of_prior)).sum())
    assert 0 < gain < math.log(1 / held_out.prior.weight)


def test_evaluate_takes_the_prior_and_other_observers() -> None:
    sizes = {"num_parts": 4, "num_states": 6, "num_symbols": 3}
    held_out, trained, everything = (composed(pool, **sizes) for pool in ("held-out", "train", "all"))
    dataset = hs.ProcessDataset(held_out, layout=PROMPTS)
    score = hs.evaluate(uniform(3), dataset, num_samples=70, observers={"retrieval": trained, "all": everything})
    found = score.measures
    assert np.array_equal(found["all"]["loss"], found["optimum"]["loss"])
    assert np.abs(found["all"]["excess"]).max() < 1e-12
    wanted = optimal_probs(trained, dataset[0:70].observations, reset_mask=torch.from_numpy(PROMPTS.reset_mask))
    seen = wanted.gather(2, dataset[0:70].observations[..., None])[..., 0]
    assert np.allclose(found["retrieval"]["loss"], -seen.log().numpy(), atol=1e-12)
    assert (found["retrieval"]["excess"] >= -1e-12).all()
    assert found["retrieval"]["excess"].mean() > 0.001
    assert score.excess is not None
    assert score.no_optimum is None
    own = hs.evaluate(uniform(3), hs.ProcessDataset(trained, layout=PROMPTS), num_samples=20)
    assert own.bayes_loss == pytest.approx(-_loglik(trained, 20), abs=1e-12)  # of the pool itself: no other prior


def _loglik(process: Mixture, count: int) -> float:
    observations = hs.ProcessDataset(process, layout=PROMPTS)[0:count].observations
    return float(hs.filter_mixture(process, observations, reset_mask=PROMPTS.reset_mask).log_likelihood.mean()) / 7


def test_observers_that_cannot_stand_there() -> None:
    held_out = composed("held-out")
    dataset = hs.ProcessDataset(held_out, layout=PROMPTS)
    for name in ("model", "optimum", "order-2"):
        with pytest.raises(InputError, match="observers: must not have the name of another"):
            hs.evaluate(uniform(2), dataset, num_samples=2, observers={name: held_out})
    other = hs.make_process("random-hmm", num_symbols=3)
    with pytest.raises(InputError, match=r"observers\.odd: must have 2 symbols, got 3"):
        hs.evaluate(uniform(2), dataset, num_samples=2, observers={"odd": other})
    hmm = hs.make_process("random-hmm", num_states=2, num_symbols=2)
    with pytest.raises(InputError, match="the target must be observation or density"):
        hs.evaluate(uniform(2), hs.ProcessDataset(hmm, 4), num_samples=2, target="belief", observers={"odd": held_out})


def test_a_model_that_knows_the_part_is_valid_and_one_that_sees_the_answer_is_not() -> None:
    held_out = composed("held-out", num_parts=3, num_states=6, num_symbols=3, follow=1.0, show=1.0)
    dataset = hs.ProcessDataset(held_out, layout=PROMPTS)
    told = hs.evaluate(Oracle(dataset), dataset, num_samples=1500, baselines=False)
    assert told.loss < told.bayes_loss - 0.01  # type: ignore[operator]
    assert told.invalid is None
    leaks = hs.evaluate(leaking(dataset, 0.9), dataset, num_samples=1500, baselines=False)
    assert leaks.invalid is not None
    assert "below the loss of the Bayes optimum" in leaks.invalid


# Pólya's urns ---------------------------------------------------------------------------------------------------------


def by_integration(sequence: list[int], concentration: int) -> float:
    """P(o_1..o_{T-1} | o_0) of two symbols, by quadrature over the two rows: exact, because integrands are polynomials."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    x, w = (nodes + 1) / 2, weights / 2
    density = (x * (1 - x)) ** (concentration - 1)
    total = 1.0
    for i in range(2):
        likelihood = np.ones_like(x)
        for a, b in itertools.pairwise(sequence):
            if a == i:
                likelihood = likelihood * (x if b == 0 else 1 - x)
        total *= (w * density * likelihood).sum() / (w * density).sum()
    return total


@pytest.mark.parametrize("concentration", [1, 2, 5])
def test_urns_equal_integration_over_the_rows(concentration: int) -> None:
    for sequence in itertools.product(range(2), repeat=5):
        found = dirichlet_chain_predictions(torch.tensor([sequence]), 2, float(concentration))[0]
        assert found[0].tolist() == [0.5, 0.5]
        for t in range(1, 5):
            past = list(sequence[:t])
            wanted = [by_integration([*past, v], concentration) / by_integration(past, concentration) for v in range(2)]
            assert found[t].tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("num_symbols, concentration", [(2, 0.01), (3, 0.5), (4, 3.0)])
def test_urns_equal_rising_factorials(num_symbols: int, concentration: float) -> None:
    """P(path | first) = product over rows of prod_j a (a + 1) .. (a + n_ij - 1) / [V a (V a + 1) .. (V a + n_i - 1)]."""
    a, rng = Fraction(concentration), np.random.default_rng(0)
    for _ in range(20):
        sequence = rng.integers(num_symbols, size=30).tolist()
        law = dirichlet_chain_predictions(torch.tensor([sequence]), num_symbols, concentration)[0]
        found = float(law.gather(1, torch.tensor(sequence)[:, None])[1:, 0].log().sum())
        counts = np.zeros((num_symbols, num_symbols), int)
        np.add.at(counts, (sequence[:-1], sequence[1:]), 1)
        rise = lambda x, n: math.prod((x + k for k in range(n)), start=Fraction(1))  # noqa: E731
        wanted = Fraction(1)
        for row in counts.tolist():
            wanted *= math.prod((rise(a, n) for n in row), start=Fraction(1)) / rise(num_symbols * a, sum(row))
        assert found == pytest.approx(math.log(wanted), abs=1e-9)
        assert (law.sum(1) - 1).abs().max() < 1e-12


def test_steps_between_sequences_are_none() -> None:
    observations = torch.tensor([[0, 1, 0, 1, 1, 0]])
    starts = torch.tensor([True, False, True, False, True, False])
    found = dirichlet_chain_predictions(observations, 2, 1.0, reset_mask=starts)[0]
    assert found[starts].tolist() == [[0.5, 0.5]] * 3
    assert found[3].tolist() == pytest.approx([1 / 3, 2 / 3])  # 0 -> 1 once; 1 -> 0 was no step
    assert found[5].tolist() == pytest.approx([1 / 2, 1 / 2])  # from 1 nothing is known
    with pytest.raises(InputError, match="concentration: must be positive"):
        dirichlet_chain_predictions(observations, 2, 0.0)
    with pytest.raises(InputError, match="symbol 1 is not in"):
        dirichlet_chain_predictions(observations, 1, 1.0)
    with pytest.raises(ResourceError):
        dirichlet_chain_predictions(observations, 10**7, 1.0)


@pytest.mark.parametrize("concentration", [0.1, 1.0])
def test_fresh_chains_are_drawn_from_what_the_urns_believe(concentration: float) -> None:
    """Calibration: the loss has the mean of the predicted entropy; nearest wrong predictors have not. z within 4."""
    fresh = hs.make_process("fresh-markov-chains", num_states=3, num_symbols=3, transition_concentration=concentration)
    layout = hs.PromptLayout(num_demonstrations=2, demonstration_length=6, test_length=6)
    observations, starts = (
        hs.ProcessDataset(fresh, layout=layout)[0:4000].observations,
        torch.from_numpy(layout.reset_mask),
    )
    for belief, holds in ((concentration, True), (3 * concentration, False)):
        law = dirichlet_chain_predictions(observations, 3, belief, reset_mask=starts)
        loss = -law.gather(2, observations[..., None])[..., 0].log()
        surprise = (loss - torch.special.entr(law).sum(-1)).mean(1)
        z = float(surprise.mean() / surprise.std() * len(surprise) ** 0.5)
        assert (abs(z) < 4) == holds, z
    assert torch.equal(
        optimal_probs(fresh, observations, reset_mask=starts),
        dirichlet_chain_predictions(observations, 3, concentration, reset_mask=starts),
    )


def test_nothing_beats_the_urns_but_the_filter_that_is_told_the_chain() -> None:
    fresh = hs.make_process("fresh-markov-chains", num_states=4, num_symbols=4)
    score = hs.evaluate(
        uniform(4), hs.ProcessDataset(fresh, layout=hs.PromptLayout(num_demonstrations=4)), num_samples=300
    )
    losses = {name: float(metrics["loss"].mean()) for name, metrics in score.measures.items()}
    best = losses.pop("optimum")
    assert losses.pop("known-component") < best - 0.05
    assert min(losses.values()) > best
    assert score.excess is not None
    assert score.excess[0] == pytest.approx(math.log(4) - best, abs=0.03)


# Fresh pools train and are scored -------------------------------------------------------------------------------------

TINY = {
    "layout": {"name": "prompts", "num_demonstrations": "2", "demonstration_length": "3", "test_length": "4"},
    "model": {"name": "roformer", "num_layers": "1", "num_heads": "2", "width": "16"},
    "training": {"num_steps": "4", "batch_size": "8", "evaluate_every": "2", "evaluate_samples": "8"},
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", ["fresh-markov-chains", "fresh-hmms", "fresh-aliased-cycles"])
def test_fresh_pools_train(name: str, plain: bool, tmp_path: Path) -> None:
    config = TINY | {"process": {"name": name, "num_states": "4", "num_symbols": "4"}}
    if plain:
        config["layout"] = {"name": "sequences", "length": "12"}
    run = train(config_from_data(config), tmp_path / "run", options=hs.TrainOptions(num_samples=32))
    assert run.summary is not None
    known = name == "fresh-markov-chains"
    for field in ("bayes_loss", "excess", "excess_low", "excess_high", "training_floor"):
        assert (run.summary[field] is not None) == known
    assert ("no_optimum" in run.summary) != known
    assert run.summary["invalid"] is None
    again = load_run(tmp_path / "run")
    score = hs.evaluate(again.model, again.dataset(), num_samples=32)
    assert score.loss == pytest.approx(run.summary["loss"], rel=1e-6)
    assert (score.no_optimum is None) == known
    assert ("optimum" in score.measures) == ("excess" in score.measures["model"]) == known
    assert score.measures["known-component"]["loss"].mean() < score.loss
    assert score.baseline is not None
    assert score.baseline[0] in {f"order-{k}" for k in range(4)}
    rows = store.read_table(tmp_path / "run" / "evaluation.jsonl")
    assert {row["metric"] for row in rows if row["predictor"] == "model"} >= {"accuracy", "loss"}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", ["fresh-markov-chains", "fresh-aliased-cycles"])
def test_the_command_line_says_that_no_optimum_is_known(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = [
        "--process.num_states",
        "4",
        "--process.num_symbols",
        "4",
        "--model.width",
        "16",
        "--model.num_layers",
        "1",
    ]
    steps = ["--training.num_steps", "3", "--training.batch_size", "4", "--layout.length", "8"]
    assert cli.main(["train", name, "--out", "run", "-q", *sizes, *steps]) == 0
    said = capsys.readouterr().out
    assert ("The optimum is unknown (the integral over all HMMs" in said) == (name == "fresh-aliased-cycles")
    assert ("Bayes optimum" in said) == (name == "fresh-markov-chains")
    assert cli.main(["report", "run", "-o", "page.html"]) == 0
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_model_that_is_told_more_than_the_hmm_leaks() -> None:
    """Without an optimum the filter that is told the HMM is the floor."""
    dataset = hs.ProcessDataset(hs.make_process("fresh-hmms", num_states=3, num_symbols=3), layout=PROMPTS)
    observations = dataset[0:200].observations

    def answer(tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, 3)
        row = [int((dataset[0:200].tokens[:, : tokens.shape[1]] == sample).all(1).nonzero()[0]) for sample in tokens]
        columns = torch.from_numpy(PROMPTS.token_positions - 1)
        logits[:, columns] = 4.0 * torch.nn.functional.one_hot(observations[row], 3)
        return logits

    score = hs.evaluate(Function(answer), dataset, num_samples=200)
    assert score.invalid is not None
    assert "knows the HMM" in score.invalid
    assert hs.evaluate(uniform(3), dataset, num_samples=200).invalid is None


def test_the_target_refuses_to_guess() -> None:
    fresh = hs.make_process("fresh-hmms", num_states=2, num_symbols=2)
    asked = make_target("observation", fresh, PROMPTS)
    batch: Batch = hs.ProcessDataset(fresh, layout=PROMPTS)[0:2]
    assert not asked.exact
    for refused in (asked.optimum, asked.lower_bound_terms):
        with pytest.raises(InputError, match=r"no Bayes optimum: .* no closed form"):
            refused(batch)
    with pytest.raises(InputError, match=r"HMMPerSample has no exact predictions \(the integral"):
        optimal_predictions(fresh, batch.observations)


# Screening ------------------------------------------------------------------------------------------------------------


def test_aliased_cycles_cannot_be_counted() -> None:
    """The published screening of 16 states and 8 symbols: .79 known and optimal, .61 counting, probes near chance."""
    pool = hs.make_process("aliased-cycles-mixture", num_components=64)
    found = ngram_reach(pool, hs.PromptLayout(num_demonstrations=5), num_samples=256)
    for name in ("optimum", "known-component"):
        assert found.accuracy[name].low <= 0.790 <= found.accuracy[name].high
    assert found.ngrams.low <= 0.61 <= found.ngrams.high
    assert found.ngrams.high < found.accuracy["optimum"].low - 0.08
    assert found.component["symbol counts"].value < 0.2
    assert found.untrained is not None
    assert found.untrained.value < 0.2
    assert found.num_components == 16


def test_dirichlet_rows_can_be_counted() -> None:
    """The control: here symbol counts and an untrained network name the HMM."""
    law = {"transition_concentration": 0.1, "emission_concentration": 0.1}
    pool = hs.make_process("random-mixture", num_components=40, num_states=8, num_symbols=8, **law)
    found = ngram_reach(
        pool, hs.PromptLayout(num_demonstrations=15, demonstration_length=4, test_length=6), num_samples=64
    )
    assert found.component["symbol counts"].low > 0.9
    assert found.untrained is not None
    assert found.untrained.low > 0.8


def test_retrieval_counting_and_composition_are_apart() -> None:
    fields = {"num_parts": 16, "num_states": 16, "num_symbols": 8}
    found = ngram_reach(
        composed("held-out", **fields),
        hs.PromptLayout(num_demonstrations=5),
        num_samples=192,
        observers={"retrieval": composed("train", **fields)},
        probe_samples=64,
    )
    levels = [found.accuracy["retrieval"], found.ngrams, found.accuracy["optimum"]]
    assert [level.value for level in levels] == sorted(level.value for level in levels)
    assert levels[0].high < levels[1].low
    assert levels[1].high < levels[2].low
    assert found.loss["optimum"].value < found.loss["retrieval"].value - 1


def test_screening_of_pools_without_components_or_optimum() -> None:
    layout = hs.PromptLayout(num_demonstrations=1, demonstration_length=5, test_length=6)
    sizes = {"num_samples": 16, "probe_samples": 32}
    fresh = ngram_reach(hs.make_process("fresh-aliased-cycles", num_states=4, num_symbols=2), layout, **sizes)
    assert "optimum" not in fresh.accuracy
    assert fresh.no_optimum is not None
    assert any("unknown" in line for line in fresh.lines())
    assert {row["what"] for row in fresh.rows()} == {"accuracy", "loss", "component"}
    one = ngram_reach(
        hs.make_process("aliased-cycles", num_states=4, num_symbols=2), hs.SequenceLayout(length=9), **sizes
    )
    assert one.component == {}
    assert one.untrained is one.chance is one.num_components is None
    assert set(one.accuracy) == {"optimum", "context-tree", *(f"order-{k}" for k in range(5))}
    with pytest.raises(InputError, match="first_position"):
        ngram_reach(hs.make_process("aliased-cycles"), layout, first_position=6)
    with pytest.raises(InputError, match="must have symbols for n-gram baselines"):
        ngram_reach(hs.make_process("ran-lds"), hs.SequenceLayout(length=9))


def test_facts_screens(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    sizes = ["--num_states", "4", "--num_symbols", "2", "--samples", "8"]
    command = ["infer", "aliased-cycles-mixture", "--ngram-baselines", "2x5", "--num_components", "3", *sizes]
    assert cli.main([*command, "--out", str(tmp_path / "f.json")]) == 0
    said = capsys.readouterr().out
    assert "n-gram baselines after 2 demonstrations of length 5, from test position 4 on" in said
    assert "accuracy of probes for 3 components" in said
    rows = store.read_json(tmp_path / "f.json")["screening"]
    assert {row["name"] for row in rows} >= {"optimum", "order-4", "symbol counts"}
    assert cli.main(["infer", "umbrella", "--ngram-baselines", "1x6", "--samples", "8"]) == 0
    assert "entropy rate" in capsys.readouterr().out
    for bad in (
        ["--ngram-baselines", "5"],
        ["--ngram-baselines", "1x4", "--block-entropies", "2"],
        ["--ngram-baselines", "1x0"],
    ):
        assert cli.main(["infer", "aliased-cycles-mixture", *bad]) == 2
        assert capsys.readouterr().err.startswith("error[2]")
