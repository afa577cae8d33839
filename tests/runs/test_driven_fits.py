"""Fits with inputs and with durations through `hmmscope.fit`."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.seeds import numpy_generator

NAMES = np.array(["keep", "switch"])
QUICK = hs.FitOptions(num_restarts=1, max_iterations=15)
LIMITS = {"num_restarts": 1, "max_iterations": 8}


def process():
    moves = [[[0.9, 0.1], [0.1, 0.9]], [[0.1, 0.9], [0.9, 0.1]]]
    return hs.InputOutputHMM(
        [0.5, 0.5], moves, [[0.95, 0.05], [0.05, 0.95]], symbols=["h", "t"], inputs=["keep", "switch"]
    )


@pytest.fixture(scope="module")
def given():
    hmm, inputs = process(), numpy_generator(0, "driven").integers(0, 2, (12, 30))
    drawn = hmm.sample(30, 12, inputs=inputs).observations.per_sequence()
    x, actions = [[hmm.symbols[v] for v in row] for row in drawn], [NAMES[row].tolist() for row in inputs]
    return x, actions, hs.fit(x, 2, inputs=actions, options=QUICK)


def test_answers_equal_inference_given_inputs(given):
    x, actions, fit = given
    assert fit.num_states == 2
    assert fit.hmm.inputs == ("keep", "switch")
    codes = torch.tensor([[fit.hmm.inputs.index(one) for one in row] for row in actions])
    symbols = torch.tensor([[fit.hmm.symbols.index(one) for one in row] for row in x])
    assert fit.score() == pytest.approx(fit.log_likelihood, abs=1e-9)
    paths = hs.most_likely_states(fit.hmm, symbols, inputs=codes).states
    assert fit.predict().tolist() == paths.flatten().tolist()
    assert fit.predict(x[3:5], inputs=actions[3:5]).tolist() == paths[3:5].flatten().tolist()
    smoothed = hs.smooth_beliefs(fit.hmm, symbols, inputs=codes)
    np.testing.assert_allclose(fit.predict_proba(), smoothed.flatten(0, 1), atol=1e-12)
    ahead = fit.forecast(x[0], 2, inputs=actions[0], next_inputs=["switch", "keep"]).mean
    belief = hs.filter_beliefs(fit.hmm, symbols[:1], inputs=codes[:1]).beliefs[0, -1]
    for step, action in enumerate((1, 0)):
        belief = belief @ fit.hmm.transition[action]
        np.testing.assert_allclose(ahead[step], belief @ fit.hmm.emission[action], atol=1e-12)
    rows = fit.states()
    assert [row["input"] for row in rows] == ["keep", "keep", "switch", "switch"]
    assert sum(row["share"] for row in rows[:2]) == pytest.approx(1)
    assert rows[0]["dwell_rows"] > 3 > rows[2]["dwell_rows"]
    assert fit.sample(4, 2, inputs=["keep"] * 4).observations.lengths == (4, 4)


def test_forms_of_inputs_are_equal(given, tmp_path):
    """Sequences, one row with an entry per observation, and a column give one fit; ragged and with a gap."""
    x, actions, _ = given
    x, actions = [x[0][:20], [*x[1][:5], None, *x[1][6:]]], [actions[0][:20], actions[1]]
    table = {"coin": [*x[0], *x[1]], "action": [*actions[0], *actions[1]], "seq": [0] * 20 + [1] * 30}
    options = {"options": QUICK, "missing": [None]}
    fits = [
        hs.fit(x, 2, inputs=actions, **options),
        hs.fit(x, 2, inputs=np.array(table["action"]), **options),
        hs.fit(table, 2, column="coin", group="seq", inputs="action", **options),
    ]
    assert len({fit.log_likelihood for fit in fits}) == 1
    fits[2].hmm.save(tmp_path / "hmm.json")
    again = hs.load_process(tmp_path / "hmm.json")
    assert again.inputs == ("keep", "switch")
    assert again.score(table) == pytest.approx(fits[0].score(), abs=1e-9)  # the column is stored


def test_inputs_and_labels_of_rows_follow_the_groups_of_a_table(given):
    x, actions, _ = given
    order = np.arange(60).reshape(2, 30).T.ravel()  # rows of two sequences by turns
    table = {"coin": np.array(x[:2]).ravel()[order], "seq": np.repeat([0, 1], 30)[order]}
    flat, known = np.array(actions[:2]).ravel()[order], np.arange(60) % 3 % 2
    options = [hs.FitOptions(known_states=own, **LIMITS) for own in (known.reshape(2, 30), known[order])]
    fits = [
        hs.fit(x[:2], 2, inputs=actions[:2], options=options[0]),
        hs.fit(table, 2, column="coin", group="seq", inputs=flat, options=options[1]),
        hs.fit(table, 2, column="coin", group="seq", inputs=flat.tolist(), options=options[1]),
    ]
    assert len({fit.log_likelihood for fit in fits}) == 1


def test_one_hot_rows_floats_and_columns_are_inputs(given):
    x, actions, fit = given
    codes = np.array([[fit.hmm.inputs.index(one) for one in row] for row in actions])
    expected = fit.predict(x, inputs=actions).tolist()
    forms = (np.eye(2)[codes], list(np.eye(2, dtype=int)[codes]), np.eye(2)[codes].reshape(-1, 2))
    for form in (*forms, codes.astype(float), codes.reshape(-1, 1), torch.from_numpy(codes)):
        assert fit.predict(x, inputs=form).tolist() == expected
    with pytest.raises(InputError, match="inputs: one-hot rows: must have a column for each"):
        fit.predict(x, inputs=np.eye(3)[codes])


def test_inputs_that_do_not_occur_and_sequences_without_weight_do_not_count(given):
    x, actions, _ = given
    codes = np.array([[NAMES.tolist().index(one) for one in row] for row in actions])
    fit = hs.fit(x, 2, inputs=2 * codes, options=QUICK)
    assert fit.hmm.num_inputs == 3
    assert fit.final.num_free == {"initial": 1, "transition": 4, "emission": 4}
    only = hs.Constraints(initial=[1, 0], emission=[[1, 0], [0.5, 0.5]])  # no sequence starts with 1
    options = hs.FitOptions(constraints=only, sequence_weights=[1, 0], **LIMITS)
    assert hs.fit([[0, 1, 1], [1, 0, 0]], 2, inputs=[[0, 1, 1]] * 2, options=options).num_observations == 3


def test_weights_equal_copies(given):
    x, actions, _ = given
    for inputs, more in ((actions, {}), (None, {"durations": 3})):
        options = {"num_restarts": 1, "max_iterations": 4, **more}
        twice = None if inputs is None else [*inputs[:3], inputs[0]]
        weighted = hs.FitOptions(sequence_weights=[2, 1, 1], **options)
        one = hs.fit(x[:3], 2, inputs=inputs and inputs[:3], options=weighted)
        other = hs.fit([*x[:3], x[0]], 2, inputs=twice, options=hs.FitOptions(**options))
        assert one.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-9)
        assert one.num_observations == other.num_observations == 120
        assert one.final.bic == pytest.approx(other.final.bic, abs=1e-9)


def semi_markov():
    durations = [[0.0, 0.1, 0.1, 0.8], [0.9, 0.1, 0.0, 0.0]]
    moves, emission = [[0.0, 1.0], [1.0, 0.0]], [[0.95, 0.05], [0.1, 0.9]]
    return hs.SemiMarkovHMM([0.5, 0.5], moves, durations, emission, states=["slow", "quick"])


def test_durations_answer_about_states():
    hmm = semi_markov()
    x = hmm.sample(40, 15).observations.per_sequence()
    fit = hs.fit(x, [1, 2], options=hs.FitOptions(durations=4, num_restarts=1, max_iterations=20))
    assert fit.num_states == 2
    assert "durations" in fit.lines()[-1]
    proba, pairs = fit.predict_proba(), fit.hmm.visits.of.numpy()
    smoothed = hs.smooth_beliefs(fit.hmm, torch.tensor(np.array(x))).flatten(0, 1).numpy()
    for state in range(2):
        np.testing.assert_allclose(proba[:, state], smoothed[:, pairs == state].sum(1), atol=1e-12)
    slow = max(fit.states(), key=lambda row: row["dwell_rows"])
    assert slow["dwell_rows"] == pytest.approx(3.7, abs=0.4)
    assert [row["dwell_rows"] for row in hmm.state_table()] == pytest.approx([3.7, 1.1])
    assert hmm.state_table()[0]["share"] == pytest.approx(3.7 / 4.8, abs=1e-6)
    assert set(hmm.predict(x[0], names=True)) == {"slow", "quick"}
    assert len(fit.forecast(x[0], 3).mean) == 3
    assert fit.score() == pytest.approx(fit.log_likelihood, abs=1e-5)  # HMM rounds to multiples of 2^-32


def test_constraints_of_fits_with_inputs(given):
    x, actions, free = given
    fit = hs.fit(x, 2, inputs=actions, options=hs.FitOptions(constraints=hs.Constraints.left_to_right, **LIMITS))
    assert not fit.hmm.transition[:, 1, 0].any()
    assert fit.final.num_free == {"initial": 0, "transition": 2, "emission": 4}
    tied = hs.Constraints(emission=[["a", "b"], ["c", None]])  # a name ties entries of all inputs
    fit = hs.fit(x, 2, inputs=actions, options=hs.FitOptions(constraints=tied, **LIMITS))
    assert torch.equal(fit.hmm.emission[0], fit.hmm.emission[1])
    assert fit.final.num_free["emission"] == 2
    assert all(np.diff(own).min() > -1e-9 for own in fit.final.history[:1])
    options = hs.FitOptions(start=free.hmm, fixed=["transition"], tied_emissions=[0, 0], **LIMITS)
    fit = hs.fit(x, 2, inputs=actions, options=options)
    assert torch.equal(fit.hmm.transition, free.hmm.transition)
    assert torch.equal(fit.hmm.emission[:, 0], fit.hmm.emission[:, 1])
    assert fit.final.num_free == {"initial": 1, "transition": 0, "emission": 2}
    zeros = free.hmm.replaced(transition=[[[1, 0], [0.5, 0.5]], [[0.5, 0.5], [0, 1]]])
    fit = hs.fit(x, 2, inputs=actions, options=hs.FitOptions(start=zeros, num_restarts=3, max_iterations=5))
    assert not fit.hmm.transition[[0, 1], [0, 1], [1, 0]].any()  # in all restarts


def test_complete_labels_with_inputs_give_counted_estimates(given):
    x, actions, _ = given
    states = numpy_generator(1, "driven").integers(0, 2, (12, 30))
    fit = hs.fit(x, 2, inputs=actions, options=hs.FitOptions(known_states=states, pseudo_count=0.0, **LIMITS))
    moves, codes = np.zeros((2, 2, 2)), np.array([[fit.hmm.inputs.index(one) for one in row] for row in actions])
    np.add.at(moves, (codes[:, 1:], states[:, :-1], states[:, 1:]), 1.0)
    np.testing.assert_allclose(fit.hmm.transition, moves / moves.sum(-1, keepdims=True), atol=1e-12)


def test_starts_are_matched_by_the_names_of_symbols_and_inputs(given):
    x, actions, fit = given
    turned = fit.hmm.replaced(emission=fit.hmm.emission.flip(0, 2), transition=fit.hmm.transition.flip(0))
    turned.symbols, turned.inputs = ("t", "h"), ("switch", "keep")
    options = {"num_restarts": 1, "max_iterations": 1}
    fits = [hs.fit(x, 2, inputs=actions, options=hs.FitOptions(start=one, **options)) for one in (fit.hmm, turned)]
    assert fits[0].log_likelihood == pytest.approx(fits[1].log_likelihood, abs=1e-9)


def test_constraints_and_labels_of_fits_with_durations():
    x = semi_markov().sample(30, 10, seed=1).observations.per_sequence()
    options = {"durations": 4, **LIMITS}
    fit = hs.fit(x, 3, options=hs.FitOptions(constraints=hs.Constraints.left_to_right, **options))
    assert fit.hmm.transition.tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]  # only the last state follows itself
    long = hs.Constraints(durations=[[False, True, True, True]] * 2)
    fit = hs.fit(x, 2, options=hs.FitOptions(constraints=long, **options))
    assert not fit.hmm.durations[:, 0].any()
    assert fit.final.num_free["durations"] == 4
    again = hs.FitOptions(start=fit.hmm, fixed=["durations"], **options)
    assert torch.equal(hs.fit(x, 2, options=again).hmm.durations, fit.hmm.durations)
    known = [[0, 0, 0, 1] * 7 + [-1, 0]] * 10
    fit = hs.fit(x, 2, options=hs.FitOptions(known_states=known, pseudo_count=0.0, **options))
    found = hs.smooth_beliefs(fit.hmm, np.array(x), known_states=known) @ torch.eye(2).double()[fit.hmm.visits.of]
    np.testing.assert_allclose(found[:, :28, 1], np.array(known)[:, :28], atol=1e-12)
    np.testing.assert_allclose(fit.hmm.durations[:, [2, 0]].diagonal(), 1, atol=0.05)
    logs = hs.log_likelihood(fit.hmm, np.array(x), known_states=known)
    assert fit.log_likelihood == pytest.approx(float(logs.sum()), abs=1e-5)  # HMM rounds to multiples of 2^-32


def test_plots_have_a_panel_per_input(given):
    fit = given[2]
    titles = [axes.get_title() for axes in fit.plot("transitions").axes]
    assert titles == ["keep", "switch"]
    assert len(fit.plot().axes) == 6
    lines = semi_markov().plot("durations").lines
    assert lines[0].get_ydata().tolist() == pytest.approx([0.0, 0.1, 0.1, 0.8])
    geometric = hs.HMM([1], [[1.0]], [[0.5, 0.5]]).plot("durations").lines[0]
    assert geometric.get_ydata().max() == 0
    with pytest.raises(InputError, match="ax: this plot has one panel per input"):
        fit.plot("emissions", ax=object())


def test_errors(given):
    x, actions, fit = given
    durations = hs.FitOptions(durations=3)
    for ask, message in (
        (lambda: fit.predict(x), "inputs: is missing; the model needs the input of each row of x"),
        (lambda: fit.sample(3), "inputs: is missing; the model needs the input of each step"),
        (lambda: fit.forecast(x[0], 2, inputs=actions[0]), "next_inputs: is missing; the model needs"),
        (lambda: fit.posterior(degrees=1.0), "posterior: unknown"),
        (lambda: fit.predict(x, inputs=[["up"] * 30] * 12), "up"),
        (lambda: hs.fit(x, 2, inputs=actions[:3]), r"inputs: must have one entry per observation \(12 sequences"),
        (lambda: hs.fit(x, 2, inputs=[actions[0][:9], [*actions[0], *actions[0][:21]], *actions[2:]]), r"inputs\[0\]"),
        (
            lambda: hs.fit(x[:1], 2, inputs=[[*actions[0][:29], None]]),
            "symbol 30: is None, .*; every observation needs an input, which is a name or a whole number$",
        ),
        (lambda: hs.fit(x[:1], 2, inputs=[[0.5] * 30]), r"got \[0.5.*; every observation needs an input"),
        (lambda: hs.fit(x, 2, inputs=actions, options=durations), "durations: cannot be combined with inputs"),
        (lambda: hs.fit([[0.5, 1.5]], 2, inputs=[[0, 1]]), "inputs: needs symbols, but emission is 'gaussian'"),
        (lambda: hs.fit(x, 2, validation=x, options=durations), "validation: cannot be combined with durations"),
        (lambda: hs.fit(x, 2, inputs="action"), "inputs: .*column"),
        (lambda: semi_markov().predict([0, 1], inputs=[0, 1]), "inputs: needs a model with inputs"),
        (lambda: hs.fit(x, [1, 2], inputs=actions, options=hs.FitOptions(known_states=[])), "known_states: needs one"),
        (lambda: hs.fit(x, 2, options=hs.FitOptions(constraints=hs.Constraints(durations=1))), "has no durations"),
        (lambda: hs.FitOptions(durations=0), "durations: must be at least 1"),
        (lambda: hs.FitOptions(duration_family="poisson"), "duration_family: unknown"),
        (lambda: hs.FitOptions(duration_family="negative-binomial"), "duration_family: needs durations"),
    ):
        with pytest.raises(InputError, match=message):
            ask()
