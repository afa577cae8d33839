"""HMMs in the prompt: the header is the law, the optimum is its filter, and nothing of it can be learned by heart."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hmmlearn import hmm as theirs

import hmmscope as hs
import oracles
from comparing import refuses
from hmmscope.analysis import HeaderOptions, bayes_predictions, prior_pool
from hmmscope.processes.header_hmms import REGIONS, round_rows


def refused(part, call, *args, **options):
    refuses(lambda: call(*args, **options), part, kind=hs.HmmscopeError)


FAMILIES = ["told-hmms", "told-sparse-hmms", "told-cycles", "told-sharp-hmms", "told-slow-hmms"]


def corpus(name="told-hmms", length=6, *, stream="corpus", seed=0, **fields):
    return hs.ProcessDataset(
        hs.make_process(name, **fields), layout=hs.HeaderLayout(length=length), stream=stream, seed=seed
    )


def written(tokens, num_states, num_symbols, denominator):
    """The HMM that a row of tokens says, by plain loops over what stands in it."""
    entries = iter(int(token) - num_symbols for token in tokens)

    def rows(outcomes):
        found = []
        for _ in range(num_states):
            row = [Fraction(next(entries), denominator) for _ in range(outcomes - 1)]
            found.append([*row, 1 - sum(row)])
        return found

    transition = rows(num_states)
    return [Fraction(1, num_states)] * num_states, transition, rows(num_symbols)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("sizes", [(2, 2, 16), (3, 4, 16), (8, 8, 64)])
def test_the_header_is_the_law(name, sizes):
    states, symbols, denominator = sizes
    found = corpus(name, num_states=states, num_symbols=symbols, denominator=denominator)
    batch, process = found[0:50], found.process
    assert found.layout.context_length == states * (states - 1) + states * (symbols - 1) + 6 == batch.tokens.shape[1]
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < found.vocab_size == symbols + denominator + 1
    assert (batch.tokens[:, -6:] == batch.observations).all()
    _, transition, emission = process.spec.components(batch.components.numpy())
    for row in range(50):
        said = written(batch.tokens[row], states, symbols, denominator)
        assert said[1:] == oracles.exact((transition[row], emission[row]))
    heard = process.decode_header(process.encode_header(batch.components)).params
    assert torch.equal(heard.transition_MSS, transition)
    assert torch.equal(heard.emission_MSV, emission)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("states", "symbols"), [(2, 2), (3, 2), (2, 3)])
def test_the_optimum_is_that_of_every_hidden_path(name, states, symbols):
    found = corpus(name, length=5, num_states=states, num_symbols=symbols)
    batch = found[0:12]
    laws = hs.make_target("observation", found.process, found.layout).optimum(batch)
    beliefs = hs.make_target("belief", found.process, found.layout).optimum(batch)
    for row in range(12):
        hmm, seen = written(batch.tokens[row], states, symbols, 16), batch.observations[row].tolist()
        answer = oracles.by_enumeration(hmm, seen)
        first = [sum(hmm[0][s] * hmm[2][s][v] for s in range(states)) for v in range(symbols)]
        np.testing.assert_allclose(laws[row], np.array([first, *answer.following[:-1]], float), atol=1e-9)
        np.testing.assert_allclose(beliefs[row], np.array([hmm[0], *answer.belief], float), atol=1e-9)


def test_the_optimum_at_eight_states_is_hmmlearns():
    found = corpus("told-slow-hmms", length=40, num_states=8, num_symbols=8, denominator=64)
    batch = found[0:2]
    laws = hs.make_target("observation", found.process, found.layout).optimum(batch)
    for row in range(2):
        initial, transition, emission = written(batch.tokens[row], 8, 8, 64)
        other = theirs.CategoricalHMM(8, n_features=8)
        other.startprob_, other.transmat_ = np.array(initial, float), np.array(transition, float)
        other.emissionprob_ = np.array(emission, float)
        seen = batch.observations[row].numpy()
        for t in range(1, 40):
            before = other.score(seen[:t, None])
            joint = [other.score(np.append(seen[:t], symbol)[:, None]) for symbol in range(8)]
            np.testing.assert_allclose(laws[row, t], np.exp(np.array(joint) - before), atol=1e-8)  # they sum floats


def test_no_two_samples_of_any_stream_have_one_component():
    streams = [corpus(stream=stream)[0:500].components for stream in ("train", "evaluate", "probe")]
    pool = prior_pool(corpus().process, 500)
    assert len(torch.cat(streams).unique()) == 1500
    assert pool.num_components == 500
    headers = corpus(num_states=4, num_symbols=4, stream="train")[0:2000].tokens[:, :24]
    assert len(headers.unique(dim=0)) > 1990


def test_what_is_left_out_is_what_other_families_are():
    for region, name in (("slow", "told-slow-hmms"), ("sharp", "told-sharp-hmms")):
        numbers = np.arange(400)
        for size in (2, 4):
            sizes = {"num_states": size, "num_symbols": size}
            inside = hs.registry.lookup("process", name)(**sizes)
            assert REGIONS[region](*inside.draw(numbers)).all()
            family = hs.registry.lookup("process", "told-hmms")
            assert not REGIONS[region](*family(**sizes, without=(region,)).draw(numbers)).any()
        assert REGIONS[region](*family().draw(numbers)).any()  # of two states some are there, if nothing is left out
    held = corpus(without=("slow", "sharp"))
    assert torch.equal(held[[5, 3]].tokens, held[0:6].tokens[[5, 3]])  # a component depends on its own number


def test_rows_are_rounded_by_the_largest_remainder():
    rows = np.array([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0], [1 / 3, 1 / 3, 1 / 3]])
    assert round_rows(rows, 16).tolist() == [[8, 5, 3], [0, 0, 16], [6, 5, 5]]
    assert round_rows(rows, 16, 1).tolist() == [[7, 5, 4], [1, 1, 14], [6, 5, 5]]
    drawn = np.random.default_rng(0).dirichlet([0.3] * 5, 1000)
    found = round_rows(drawn, 64, 2)
    assert (found.sum(1) == 64).all()
    assert found.min() == 2
    assert (abs(found - 2 - drawn * 54) < 1).all()


def test_least_entries_keep_the_filter_of_a_wrong_header_finite():
    for name in ("told-hmms", "told-cycles", "told-sharp-hmms", "told-slow-hmms"):
        found = corpus(name, num_states=3, num_symbols=3, least=1)
        _, transition, emission = found.process.spec.components(np.arange(200))
        assert min(transition.min(), emission.min()) == 1 / 16
    sparse = corpus("told-sparse-hmms", num_states=4, num_symbols=4, support=2)
    _, transition, emission = sparse.process.spec.components(np.arange(200))
    assert ((transition > 0).sum(-1) <= 2).all()
    assert (emission > 0).sum(-1).amax() == 2
    assert len(torch.unique((transition > 0).flatten(1), dim=0)) > 150


def test_cycles_are_followed_and_shown():
    found = corpus("told-cycles", num_states=6, num_symbols=3, follow=0.8, show=0.8)
    _, transition, emission = found.process.spec.components(np.arange(100))
    following, shown = transition.argmax(-1), emission.argmax(-1)
    assert (transition.amax(-1) >= 0.75).all()
    assert (emission.amax(-1) >= 0.75).all()
    assert (following.sort(1).values == torch.arange(6)).all()
    assert (following != torch.arange(6)).all()
    assert ((shown[..., None] == torch.arange(3)).sum(1) == 2).all()
    assert len(shown.unique(dim=0)) > 40


def test_an_edited_header_moves_the_optimum_to_the_new_filter():
    found = corpus(length=8, num_states=3, num_symbols=3, least=1)
    batch = found[0:4]
    target = hs.make_target("observation", found.process, found.layout)
    tokens = batch.tokens.clone()
    tokens[:, :12] = batch.tokens[[1, 2, 3, 0], :12]
    edited = hs.Batch(tokens, batch.observations, batch.states, batch.components)
    hmm = written(tokens[0], 3, 3, 16)
    answer = oracles.by_enumeration(hmm, batch.observations[0].tolist())
    np.testing.assert_allclose(target.optimum(edited)[0, 1:], np.array(answer.following[:-1], float), atol=1e-9)
    assert (target.optimum(edited) - target.optimum(batch)).abs().max() > 0.1
    tokens[2, 0] = 3 + 15
    tokens[2, 1] = 3 + 2
    refused("header[2]: the row of state 0", target.optimum, edited)


def test_what_has_no_header_is_refused_in_a_line():
    header = hs.HeaderLayout(length=4)
    refused("layout: the size of the header depends on the process", getattr, header, "token_positions")
    refused("supported by HeaderHMMs", hs.ProcessDataset, hs.make_process("mess3"), layout=header)
    refused("layout header needs headers", hs.RunConfig, process="fresh-hmms", layout="header")
    refused("denominator: must be a power of two", hs.make_process, "told-hmms", denominator=10)
    refused("least: must be in [0, 5]", hs.make_process, "told-hmms", num_states=3, least=6)
    refused("without: unknown 'slowly'", hs.make_process, "told-hmms", without=("slowly",))
    refused(
        "exclude nearly all HMMs",
        lambda: corpus(transition_concentration=1e-6, emission_concentration=1e-6, without=("sharp",))[0:9],
    )
    process = hs.make_process("told-hmms")
    refused("header: must have 4 entries", process.decode_header, torch.zeros(2, 3, dtype=torch.int64))
    refused("no closed form", hs.optimal_predictions, process, torch.zeros(1, 3, dtype=torch.int64))


def test_evaluate_counts_no_column_of_the_header_and_goes_beyond_the_trained_length():
    found = corpus(length=6, stream="evaluate")
    longer = hs.ProcessDataset(found.process, layout=replace(found.layout, length=24), stream="evaluate")
    model = hs.make_model("lstm", num_symbols=2, vocab_size=found.vocab_size, width=8)
    for one, length in ((found, 6), (longer, 24)):
        score = hs.evaluate(model, one, num_samples=16)
        assert score.positions.tolist() == list(range(length))
        assert score.invalid is None
        assert "known-component" not in score.measures
        assert "context-tree" in score.measures
        assert (score.measures["model"]["excess"] >= 0).all()
    assert torch.equal(longer[0:9].observations[:, :6], found[0:9].observations)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("model", ["rnn", "decoder"])
@pytest.mark.parametrize("target", ["observation", "belief"])
def test_the_compiled_engine_and_torch_train_alike_behind_headers(tmp_path, model, target):
    sizes = {"width": 16, "num_layers": 1}
    sizes |= {"num_heads": 2, "dropout": 0.0} if model == "decoder" else {}
    config = {
        "process": {"name": "told-hmms"},
        "layout": {"name": "header", "length": 6},
        "model": {"name": model, **sizes},
        "target": target,
    }
    losses = {}
    for engine in ("compiled", "torch"):
        training = {"num_steps": 3, "batch_size": 8, "engine": engine, "evaluate_samples": 32}
        run = hs.train(hs.config_from_data(config | {"training": training}), out=tmp_path / engine)
        losses[engine] = hs.evaluate(run.model, run.dataset("evaluate"), num_samples=32, target=target).loss
    assert losses["compiled"] == pytest.approx(losses["torch"], abs=1e-5)  # float32
    again = hs.load_run(tmp_path / "torch")
    assert again.config.layout.context_length == 10
    assert again.config.to_data()["layout"] == {"name": "header", "length": 6}


class Filter(torch.nn.Module):
    """Reads the header and filters, in plain loops; its outputs are laws."""

    outputs = "law"

    def forward(self, tokens):
        laws = torch.zeros(*tokens.shape, 2, dtype=torch.float64)
        for row, sample in enumerate(tokens):
            initial, *matrices = written(sample, 2, 2, 16)
            transition, emission = (np.array(matrix, float) for matrix in matrices)
            ahead = np.array(initial, float)
            for column in range(3, len(sample)):
                if column > 3:
                    joint = ahead * emission[:, int(sample[column])]
                    ahead = joint / joint.sum() @ transition
                laws[row, column] = torch.from_numpy(ahead @ emission)
        return laws


def test_the_instrument_finds_a_filter_at_the_optimum_and_all_that_read_no_header_above_it():
    found = corpus(length=8, least=1, stream="evaluate")
    measure = hs.registry.lookup("instrument", "header")
    rows = measure(Filter(), found, num_samples=48, options=HeaderOptions(num_hmms=512, num_pools=2, num_fits=16))
    mean = {(row["predictor"], row["quantity"]): row for row in rows if row["position"] is None}
    assert abs(mean["model", "excess"]["value"]) < 1e-12
    assert mean["model", "entropy-error"]["value"] < 1e-12
    for predictor in ("wrong-header", "bayes", "context-tree", "baum-welch"):
        assert mean[predictor, "excess"]["low"] > 0.005
        assert mean[predictor, "entropy-error"]["value"] > 0.01
    assert mean["bayes", "excess"]["value"] < mean["wrong-header", "excess"]["value"]
    fitted = {row["position"] for row in rows if row["predictor"] == "baum-welch"}
    assert fitted == {1, 2, 4, None}
    alone = measure(Filter(), found, num_samples=8, options=HeaderOptions(num_pools=0, num_fits=0, ngrams=False))
    assert {row["predictor"] for row in alone} == {"model", "wrong-header"}
    beliefs = measure(Filter(), found, num_samples=8, target="belief")
    assert {row["predictor"] for row in beliefs} == {"model", "wrong-header"}
    refused("header layout", measure, Filter(), hs.ProcessDataset("mess3", length=4))


def test_the_bayes_predictor_is_that_of_all_hmms_where_they_are_few():
    """Rows that are certain, each by a fair choice: sixteen HMMs, equally likely."""
    process = hs.make_process("told-sharp-hmms", sharp=1.0)
    rows = torch.eye(2, dtype=torch.float64)
    both = [rows[[a, b]] for a in (0, 1) for b in (0, 1)]
    hmms = [hs.HMM([0.5, 0.5], transition, emission) for transition in both for emission in both]
    seen = torch.tensor([[0, 0, 1, 0], [1, 1, 1, 1]])
    exact = hs.optimal_predictions(hs.Mixture([1 / 16] * 16, hmms), seen).predicted_observation
    found = bayes_predictions(process, seen, num_hmms=20_000)
    assert (found - exact).abs().max() < 0.03  # the share of 20,000 draws is known to 0.004 and is divided by 1/8
    assert (found - bayes_predictions(process, seen, num_hmms=20_000, number=1)).abs().max() > 0
