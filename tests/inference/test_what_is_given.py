"""Processes by name, arrays as lists, lengths and starts of other types: what exact answers take, and what they refuse."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope.errors import InputError

SEEN = [[0, 1, 1, 0]]
BY_NAME = {
    "mess3": [
        lambda process: hs.filter_beliefs(process, SEEN).beliefs,
        lambda process: hs.smooth_beliefs(process, SEEN),
        lambda process: hs.log_likelihood(process, SEEN),
        lambda process: hs.forecast(process, SEEN, 2).observations,
        lambda process: hs.future_distribution(process, SEEN, 2),
        lambda process: hs.memory_beliefs(process, SEEN, 2).beliefs,
        lambda process: hs.missing_probs(process, SEEN),
        lambda process: hs.sample_missing(process, SEEN),
        lambda process: hs.most_likely_states(process, SEEN).states,
        lambda process: hs.sample_state_paths(process, SEEN),
        lambda process: hs.mixture_predictions(process, SEEN).predicted_observation,
        lambda process: hs.stationary_distribution(process),
        lambda process: torch.tensor(hs.mixing_time(process, num_samples=4, max_time=8).time),
        lambda process: torch.tensor(hs.entropy_rate(process, num_samples=4, length=64).value),
        lambda process: torch.tensor(hs.observability(process).lower),
    ],
    "random-hmm": [lambda process: hs.expected_counts(process, SEEN).transitions],
    "aliased-cycles-mixture": [
        lambda process: hs.filter_mixture(process, SEEN).component_posterior,
        lambda process: hs.filter_known_component(process, SEEN, [0]).beliefs,
    ],
}


@pytest.mark.drawn(4)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name, number", [(name, n) for name, asked in BY_NAME.items() for n in range(len(asked))])
def test_a_name_is_the_process_that_it_names(name, number):
    asked = BY_NAME[name][number]
    assert torch.equal(asked(name), asked(hs.make_process(name)))
    with pytest.raises(InputError, match="process: must be a process, SequenceData, or the name or path of one, got 5"):
        asked(5)


@pytest.mark.usefixtures("unchecked")
def test_filters_of_numbers_take_lists_and_arrays_and_one_sequence():
    linear = hs.make_process("ran-lds")
    seen = hs.ProcessDataset(linear, length=3)[0:2].observations
    exact = hs.kalman_filter(linear, seen)
    for given in (seen.tolist(), seen.numpy(), list(seen.numpy())):
        assert torch.equal(hs.kalman_filter(linear, given).means, exact.means)
    assert torch.allclose(hs.kalman_filter(linear, seen[0]).means[0], exact.means[0], rtol=0, atol=1e-12)
    switching = hs.SwitchingLinearGaussian(
        mode_initial=[0.5, 0.5],
        mode_transition=[[0.9, 0.1], [0.1, 0.9]],
        initial=[0.0],
        transition=[[[0.9]], [[-0.5]]],
        output=[[[1.0]], [[1.0]]],
        state_noise=[[[1.0]], [[0.1]]],
        output_noise=[[[0.1]], [[0.1]]],
    )
    one = [[0.1], [0.7], [float("nan")]]
    expected = hs.switching_filter(switching, torch.tensor([one], dtype=torch.float64)).means
    for given in (one, [one], np.array(one)):
        assert torch.equal(hs.switching_filter(switching, given).means, expected)
    for call in (hs.kalman_filter, hs.switching_filter):
        with pytest.raises(InputError, match=r"process: must be a .*linear system"):
            call("mess3", seen)
    for matrix in ([["a"]], [[0.5, 0.5], [1.0]]):
        with pytest.raises(InputError, match=r"^process: (must hold real numbers|rows have different lengths)"):
            hs.stationary_distribution(matrix)
    assert torch.equal(
        hs.stationary_distribution([[0.5, 0.5], [0.1, 0.9]]),
        hs.stationary_distribution(torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)),
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("lengths", ["a", ["a"], {}])
def test_lengths_and_starts_that_are_none(lengths):
    with pytest.raises(InputError, match=r"^lengths: must be"):
        hs.filter_beliefs("mess3", SEEN, lengths=lengths)
    with pytest.raises(InputError, match=r"^reset_mask: must be 4 booleans"):
        hs.filter_beliefs("mess3", SEEN, reset_mask=lengths)
