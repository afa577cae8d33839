"""The shipped processes and text: published numbers, and what the letters model claims about English."""

import math
import re
import string
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from hmmlearn.hmm import CategoricalHMM

import hmmscope as hs

SHIPPED = ("umbrella", "dishonest-casino", "letters-hmm", "clock")
SYMBOLS = ("_", *string.ascii_lowercase)
SMALLEST_PROBABILITY = 1e-6  # of scripts/fit_letters.py: smaller entries are exactly zero
QUANTISATION = 2**-31  # probabilities are multiples of 2**-32


def book() -> str:
    return files("hmmscope").joinpath("data/letters/alice.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module", name="text")
def encoded_text() -> torch.Tensor:
    """The shipped text as symbols: a-z, and one space for each run of other characters."""
    normalised = re.sub("[^a-z]+", "_", book().lower()).strip("_")
    return torch.tensor([SYMBOLS.index(symbol) for symbol in normalised])


def split(text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The part that trained the letters model, and the last tenth, which did not."""
    num_train = len(text) * 9 // 10
    return text[:num_train], text[num_train:]


@pytest.mark.parametrize("name", SHIPPED)
def test_rows_sum_to_one_and_names_are_unique(name: str) -> None:
    hmm = hs.load_process(name)
    assert hmm.transition.shape == (hmm.num_states, hmm.num_states)
    assert hmm.emission.shape == (hmm.num_states, hmm.num_symbols)
    for rows in (hmm.initial, hmm.transition, hmm.emission):
        assert rows.dtype == torch.float64
        assert (rows >= 0).all()
        torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:-1], dtype=torch.float64), rtol=0, atol=1e-12)
    for names, count in ((hmm.symbols, hmm.num_symbols), (hmm.states, hmm.num_states)):
        assert len(set(names)) == count
        assert all(names)


@pytest.mark.parametrize("name", SHIPPED)
def test_initial_law_is_stationary(name: str) -> None:
    """All shipped processes start in their stationary law; for the umbrella world it is also the book's prior."""
    hmm = hs.load_process(name)
    # one matrix product moves each entry by at most the quantisation of its S + 1 terms
    tolerance = (hmm.num_states + 1) * QUANTISATION
    torch.testing.assert_close(hmm.initial @ hmm.transition, hmm.initial, rtol=0, atol=tolerance)


def test_umbrella_filter_has_the_published_values() -> None:
    """Russell and Norvig: P(R_1 | u_1) = 0.818, P(R_2 | u_1, u_2) = 0.883."""
    hmm = hs.load_process("umbrella")
    umbrella, rain = hmm.symbols.index("umbrella"), hmm.states.index("rain")
    beliefs_BTS = hs.filter_beliefs(hmm, torch.full((1, 2), umbrella)).beliefs
    assert [round(p, 3) for p in beliefs_BTS[0, :, rain].tolist()] == [0.818, 0.883]


def test_casino_stationary_law_and_beliefs_by_hand() -> None:
    """Stationary law (2/3, 1/3) from 0.05 p = 0.1 (1 - p); belief 3/5 then 42/53 in the loaded die after two sixes.

    First six: (1/3 * 1/2) / (2/3 * 1/6 + 1/3 * 1/2) = (1/6) / (5/18) = 3/5.
    Second:    the die before the roll is loaded with 0.4 * 0.05 + 0.6 * 0.9 = 0.56; 0.28 / (0.44 / 6 + 0.28) = 42/53.
    """
    hmm = hs.load_process("dishonest-casino")
    assert hmm.states == ("fair", "loaded")
    assert hmm.symbols == ("1", "2", "3", "4", "5", "6")
    eventually_SS = torch.linalg.matrix_power(hmm.transition, 512)
    law_S = torch.tensor([2 / 3, 1 / 3], dtype=torch.float64)
    tolerance = 100 * QUANTISATION  # the gap of the chain, 0.15, magnifies the quantisation of its rows
    torch.testing.assert_close(eventually_SS, law_S.expand(2, 2), rtol=0, atol=tolerance)
    result = hs.filter_beliefs(hmm, torch.full((1, 2), hmm.symbols.index("6")))
    assert result.beliefs[0, :, 1].tolist() == pytest.approx([3 / 5, 42 / 53], abs=tolerance)
    assert float(result.log_likelihood) == pytest.approx(math.log(5 / 18 * (0.44 / 6 + 0.28)), abs=tolerance)


def test_text_is_the_whole_book(text: torch.Tensor) -> None:
    assert len(re.findall(r"^ +CHAPTER [IVX]+$", book(), flags=re.MULTILINE)) == 12
    assert book().rstrip().endswith("THE END")
    assert "gutenberg" not in book().lower()
    assert int((text != 0).sum()) > 100_000
    assert set(text.tolist()) == set(range(27))


def test_letters_model_has_27_symbols_and_no_tiny_probability() -> None:
    hmm = hs.load_process("letters-hmm")
    assert hmm.symbols == SYMBOLS
    assert hmm.num_states == 12
    for rows in (hmm.initial, hmm.transition, hmm.emission):
        assert float(rows[rows > 0].min()) > 0.9 * SMALLEST_PROBABILITY  # quantised after the pruning
    assert bool((hmm.emission == 0).any())


def test_letters_model_beats_the_unigram_entropy_on_held_out_text(text: torch.Tensor) -> None:
    """Even against the entropy of the held-out letters themselves, which no memoryless model can undercut."""
    train_T, held_out_T = split(text)
    frequency_V = torch.bincount(held_out_T, minlength=27).double() / len(held_out_T)
    entropy = float(-torch.xlogy(frequency_V, frequency_V).sum())
    hmm = hs.load_process("letters-hmm")
    held_out, train = (
        float(hs.filter_beliefs(hmm, part_T[None]).log_likelihood) / len(part_T)
        for part_T in (held_out_T, train_T[-len(held_out_T) :])
    )
    assert held_out > -entropy + 0.5
    assert held_out == pytest.approx(-2.2339, abs=1e-4)  # printed by scripts/fit_letters.py
    assert abs(held_out - train) < 0.05


def test_filter_agrees_with_hmmlearn_on_real_text(text: torch.Tensor) -> None:
    hmm = hs.load_process("letters-hmm")
    peer = CategoricalHMM(hmm.num_states, n_features=hmm.num_symbols)
    peer.startprob_, peer.transmat_, peer.emissionprob_ = (
        rows.numpy() for rows in (hmm.initial, hmm.transition, hmm.emission)
    )
    part_T = text[:5000]
    ours = float(hs.filter_beliefs(hmm, part_T[None]).log_likelihood)
    assert ours == pytest.approx(peer.score(part_T.numpy()[:, None]), rel=1e-9)


def test_two_states_find_the_vowels(text: torch.Tensor) -> None:
    """Cave and Neuwirth (1980): two states separate the vowels (here with the space and h) from the consonants.

    Baum-Welch has worse local optima, so the claim is about the best of four random starts.
    """
    train_N1 = text[:20_000].numpy()[:, None]
    fits = [two_state_fit(train_N1, seed) for seed in range(4)]
    best = max(fits, key=lambda model: model.score(train_N1))
    state_V = best.emissionprob_.argmax(0)
    vowel_states = {int(state_V[SYMBOLS.index(vowel)]) for vowel in "aeiou"}
    assert len(vowel_states) == 1
    common_consonants = [SYMBOLS.index(letter) for letter in "tnsrdl"]
    assert vowel_states.isdisjoint(state_V[common_consonants].tolist())


def two_state_fit(train_N1: np.ndarray, seed: int) -> CategoricalHMM:
    model = CategoricalHMM(
        2,
        n_features=len(SYMBOLS),
        n_iter=200,
        tol=0.1,
        random_state=seed,
        params="te",
        init_params="te",
        implementation="scaling",
    )
    model.startprob_ = np.full(2, 0.5)
    return model.fit(train_N1)


def test_the_flow_of_the_nile_changes_in_1899(tmp_path: Path) -> None:
    """100 shipped years, of which five are left out; Cobb (1978)."""
    rows = files("hmmscope").joinpath("data/nile/nile.csv").read_text().splitlines(keepends=True)
    path = tmp_path / "nile.csv"
    path.write_text("".join(row for row in rows if not "1915" <= row[:4] <= "1919"))
    fit = hs.fit(path, 2, column="flow", time="year", every="12mo", emission="gaussian")
    assert (fit.num_observations, len(fit.predict())) == (95, 100)
    assert str(fit.predict().index[np.flatnonzero(np.diff(fit.predict()))[0] + 1]).startswith("1899-01-01")
