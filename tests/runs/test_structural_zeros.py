"""Zeros of `start` stay zero in every restart, and BIC counts what is left free."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError
from hmmscope.inference.free_parameters import num_free, restricted, zeros_in_words

STAIRS = [[0.8, 0.2, 0.0], [0.0, 0.8, 0.2], [0.0, 0.0, 1.0]]
FIRST = [0.5, 0.5, 0.0]
LAWS = [[0.4, 0.3, 0.3, 0.0], [0.4, 0.3, 0.0, 0.3], [0.25, 0.25, 0.25, 0.25]]
QUICK: dict[str, Any] = {"num_restarts": 2, "max_iterations": 3}


@pytest.fixture(scope="module")
def symbols() -> np.ndarray:
    """Return samples of an ergodic HMM, which fits better than any left-to-right model."""
    moves = [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]]
    process = hs.HMM([1 / 3] * 3, moves, [[0.85, 0.05, 0.05, 0.05], [0.05, 0.85, 0.05, 0.05], [0.05, 0.05, 0.45, 0.45]])
    return process.sample_paths(np.arange(12), np.arange(40) == 0, 1).observations.numpy()


@pytest.mark.parametrize(("fixed", "tied"), [((), None), ((), [0, 1, 2]), ("emission", None), ("initial", None)])
def test_symbols(symbols: np.ndarray, fixed: Any, tied: Any) -> None:
    start = hs.HMM(FIRST, STAIRS, LAWS)
    fit = hs.fit(symbols, 3, options=hs.FitOptions(start=start, fixed=fixed, tied_emissions=tied, **QUICK))
    assert fit.hmm.digest != start.digest
    for name, zero in start.file_tensors().items():
        assert bool((fit.hmm.file_tensors()[name][zero == 0] == 0).all()), name
    assert fit.num_zeros == {"initial": 1, "transition": 4, "emission": 2}
    assert "7 probabilities fixed at zero" in repr(fit)
    assert "fixed at zero, as in start: 1 initial, 4 transition and 2 emission probabilities" in fit.lines()
    free = {"initial": 1, "transition": 2, "emission": 7}
    free |= {} if not fixed else {fixed: 0}
    penalty = free["initial"] * math.log(12) + free["transition"] * math.log(468) + free["emission"] * math.log(480)
    assert fit.final.num_free == free
    assert fit.final.bic == pytest.approx(penalty - 2 * fit.log_likelihood, abs=1e-9)
    drawn = fit.posterior(4, num_chains=2, warm_up=2, max_lengthening=1)
    for name, zero in start.file_tensors().items():
        assert all(bool((one.file_tensors()[name][zero == 0] == 0).all()) for one in drawn.models(4)), name


def test_a_start_that_forbids_the_data_is_named(symbols: np.ndarray) -> None:
    options = hs.FitOptions(start=hs.MultichannelHMM([1.0, 0.0], np.eye(2), [np.eye(2), np.eye(2)]), **QUICK)
    rows = np.stack([symbols > 0, symbols > 0], -1).astype(float)
    with pytest.raises(InputError, match=r"^observations\[0\]: has probability zero under start"):
        hs.fit(rows, 2, emission="channels", options=options)


def test_restarts_separate_equal_rows(symbols: np.ndarray) -> None:
    fit = hs.fit(symbols, 3, options=hs.FitOptions(start=hs.HMM(FIRST, STAIRS, np.full((3, 4), 0.25)), **QUICK))
    rows = fit.hmm.emission
    assert min(float((rows[i] - rows[j]).abs().sum()) for i, j in ((0, 1), (0, 2), (1, 2))) > 0.05


def test_a_stream(symbols: np.ndarray) -> None:
    start = hs.HMM(FIRST, STAIRS, LAWS)
    fit = hs.fit([symbols[:6], symbols[6:]], 3, options=hs.FitOptions(start=start), stream=True)
    assert bool((fit.hmm.transition[start.transition == 0] == 0).all())
    assert fit.num_zeros == {"initial": 1, "transition": 4, "emission": 2}
    assert "7 probabilities fixed at zero" in repr(fit)
    assert not hs.fit([symbols[:6], symbols[6:]], 2, stream=True, options=hs.FitOptions(**QUICK)).num_zeros


def test_tied_states_have_the_zeros_of_all(symbols: np.ndarray) -> None:
    start = hs.HMM(FIRST, np.full((3, 3), 1 / 3), [[0.0, 0.4, 0.3, 0.3], LAWS[2], LAWS[2]])
    fit = hs.fit(symbols, 3, options=hs.FitOptions(start=start, tied_emissions=[1, 0, 1], **QUICK))
    assert (fit.hmm.emission[:, 0] > 0).tolist() == [False, True, False]
    assert fit.final.num_free["emission"] == 5
    apart = hs.HMM(FIRST, STAIRS, [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5], LAWS[2]])
    with pytest.raises(InputError, match="no symbol has positive probability in all states of class 2"):
        hs.fit(symbols, 3, options=hs.FitOptions(start=apart, tied_emissions=[2, 2, 0]))


def test_what_a_fit_drives_to_zero_is_free(symbols: np.ndarray) -> None:
    never = np.where(symbols == 3, 2, symbols)
    fit = hs.fit(hs.SequenceData(never, symbols=4), 2, options=hs.FitOptions(pseudo_count=0.0, **QUICK))
    assert not fit.hmm.emission[:, 3].any()
    assert fit.final.num_free == {"initial": 1, "transition": 2, "emission": 6}
    assert not sum(fit.num_zeros.values())
    assert "zero" not in repr(fit)


def families() -> list[tuple[str, hs.EmissionHMM, dict[str, int], int]]:
    """Name, start, free numbers, zeros of the emissions."""
    chain = FIRST, STAIRS
    centres = np.arange(6.0).reshape(3, 2, 1)
    weights = [[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]
    matrices = [[[0.4, 0.3, 0.3, 0.0], LAWS[1], LAWS[2]], [[0.0, 1.0]] + [[0.5, 0.5]] * 2]
    mixture = hs.GaussianMixtureHMM(*chain, weights, centres, np.ones((3, 2, 1)))
    return [
        ("gaussian", hs.GaussianHMM(*chain, [0.0, 1.0, 2.0], np.ones((3, 1))), {"emission": 6}, 0),
        ("gaussian", hs.GaussianHMM(*chain, [0.0, 1.0, 2.0], np.eye(1), "tied"), {"emission": 4}, 0),
        ("gaussian-mixture", mixture, {"emission": 5 + 5 + 2}, 1),
        ("poisson", hs.PoissonHMM(*chain, [1.0, 2.0, 3.0]), {"emission": 3}, 0),
        ("channels", hs.MultichannelHMM(*chain, matrices), {"emission": 2 + 2 + 3 + 0 + 1 + 1}, 3),
    ]


@pytest.mark.parametrize("case", families(), ids=lambda case: f"{case[0]}-{case[2]['emission']}")
def test_numbers(symbols: np.ndarray, case: tuple[str, hs.EmissionHMM, dict[str, int], int]) -> None:
    emission, start, free, zeros = case
    columns = 2 if emission == "channels" else 1
    rows = np.stack([symbols, 1 - symbols % 2], -1)[:4, :20, :columns].astype(np.float64)
    fit = hs.fit(rows, 3, options=hs.FitOptions(start=start, **QUICK), emission=emission)
    for name, allowed in start.positive.items():
        assert bool((fit.hmm.file_tensors()[name][~allowed] == 0).all()), name
    assert fit.num_zeros == {"initial": 1, "transition": 4, "emission": zeros}
    assert fit.final.num_free == {"initial": 1, "transition": 2} | free
    penalty = math.log(4) + 2 * math.log(76) + free["emission"] * math.log(80)
    assert fit.final.bic == pytest.approx(penalty - 2 * fit.log_likelihood, abs=1e-9)


def test_options_that_are_not_those_of_start_are_refused() -> None:
    start = hs.GaussianHMM([0.5, 0.5], np.eye(2), [0.0, 1.0], np.ones((2, 1)))
    with pytest.raises(
        InputError, match="covariance_type: must equal the value in start, 'diag', or be omitted, got 'full'"
    ):
        hs.fit(np.arange(9.0) / 2, 2, options=hs.FitOptions(start=start), covariance_type="full")


def test_rows_that_lose_nothing_keep_their_bits() -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(5), 4)
    allowed = np.ones((4, 5), np.bool_)
    assert np.array_equal(restricted(rows, allowed), rows)
    allowed[1, :2] = False
    found = restricted(rows, allowed)
    assert np.array_equal(found[[0, 2, 3]], rows[[0, 2, 3]])
    assert found[1] == pytest.approx(rows[1] * [0, 0, 1, 1, 1] / rows[1, 2:].sum(), abs=1e-15)
    assert restricted(np.eye(2)[:1], np.array([[False, True]])).tolist() == [[0.0, 1.0]]
    assert num_free(allowed) == 4 * 4 - 2
    assert zeros_in_words({"initial": 1, "emission": 0}) == "fixed at zero, as in start: 1 initial probability"


def test_a_start_without_zeros_leaves_the_restarts_as_they_were(symbols: np.ndarray) -> None:
    """The best of the two is the second, which is random and the same beside any start."""
    flat = hs.HMM([1 / 3] * 3, np.full((3, 3), 1 / 3), np.full((3, 4), 0.25))
    other = hs.HMM([1 / 3] * 3, np.full((3, 3), 1 / 3), [[0.1, 0.2, 0.3, 0.4]] * 3)
    options: dict[str, Any] = {"num_restarts": 2, "max_iterations": 5}
    one, two = (hs.fit(symbols, 3, options=hs.FitOptions(start=start, **options)) for start in (flat, other))
    assert torch.equal(one.hmm.transition, two.hmm.transition)
    assert not sum(one.num_zeros.values())


SPELLS = ([0.5, 0.5, 0.0], [[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[0.5, 0.0, 0.5], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], LAWS)
DRIVEN: list[tuple[hs.Process, dict[str, int]]] = [
    (hs.SemiMarkovHMM(*SPELLS), {"initial": 1, "transition": 0, "durations": 4, "emission": 7}),
    (hs.InputOutputHMM(FIRST, [STAIRS, np.full((3, 3), 1 / 3)], LAWS), {"initial": 1, "transition": 8, "emission": 14}),
]


@pytest.mark.parametrize("family", ["free", "negative-binomial", "inputs"])
def test_durations_and_inputs(symbols: np.ndarray, family: str) -> None:
    """The data come from another model, so that restarts without the zeros of `start` fit better."""
    start, free = DRIVEN[family == "inputs"]
    given: Any = {"inputs": symbols % 2} if family == "inputs" else {}
    more: Any = {} if given else {"durations": 3, "duration_family": family}
    data = np.where(symbols == 3, 0, symbols) if family == "inputs" else np.repeat(symbols[:, ::4] % 3, 2, 1)
    fit = hs.fit(hs.SequenceData(data, symbols=4), 3, **given, options=hs.FitOptions(start=start, **more, **QUICK))
    zeros = {name: int((rows == 0).sum()) for name, rows in start.file_tensors().items()}
    for name, rows in start.file_tensors().items():
        assert bool((fit.hmm.file_tensors()[name][rows == 0] == 0).all()), name
    assert (fit.num_zeros, fit.final.num_free) == (zeros, free)


def test_names_of_a_start_with_inputs_or_durations_are_matched() -> None:
    text, given = ["aabbbaab" * 4, "bbaabbba" * 4], ["xxyyxyyx" * 4, "yxyxyyxx" * 4]
    rows = np.array([[[0.9, 0.1]], [[0.2, 0.8]]])
    begins = [
        hs.InputOutputHMM([1.0], [[1.0]], rows, symbols=["b", "a"], inputs=["y", "x"]),
        hs.InputOutputHMM([1.0], [[1.0]], rows[::-1, :, ::-1].copy(), symbols=["a", "b"], inputs=["x", "y"]),
    ]
    fits = [hs.fit(text, 1, inputs=given, options=hs.FitOptions(start=one, **QUICK)) for one in begins]
    assert [fit.final.history[0][0] for fit in fits] == pytest.approx([fits[1].final.history[0][0]] * 2)
    assert fits[0].hmm.inputs == ("x", "y")
    chain, flat = ([0.5, 0.5], 1 - np.eye(2), np.full((2, 3), 1 / 3)), rows[:, 0]
    spells = [hs.SemiMarkovHMM(*chain, flat, symbols=["b", "a"]), hs.SemiMarkovHMM(*chain, flat[:, ::-1].copy())]
    fits = [hs.fit(text, 2, options=hs.FitOptions(start=one, durations=3, **QUICK)) for one in spells]
    assert [fit.final.history[0][0] for fit in fits] == pytest.approx([fits[1].final.history[0][0]] * 2)
    with pytest.raises(InputError, match="start: has the symbols b, a, but the source has a, b, c"):
        hs.fit(["abcabc" * 9], 2, options=hs.FitOptions(start=spells[0], durations=3))


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("mess3", "start: must be a model, such as HMM, got 'str'"),
        (hs.make_process("mess3"), "start: must be an HMM of 3 states and 4 symbols, got LabelledHMM"),
        (DRIVEN[1][0], "start: must be an HMM of 3 states and 4 symbols, got InputOutputHMM"),
        (
            hs.HMM([0.5, 0.5], np.eye(2), np.full((2, 4), 0.25)),
            "start: must be an HMM of 3 states and 4 symbols, got HMM",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_another_kind_of_start_is_refused(symbols: np.ndarray, start: Any, said: str, stream: bool) -> None:
    with pytest.raises(InputError, match=said):
        hs.fit([symbols[:6], symbols[6:]] if stream else symbols, 3, options=hs.FitOptions(start=start), stream=stream)
