"""The fused kernels, run on the processor by Triton's interpreter: the plain sampler's bits, the torch road's numbers.

Triton must know before it is imported, so the first test runs the rest of this file in a process of its own.
"""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import hmmscope as hs
from device_cases import PROCESSES, SAMPLES, STARTS, process_of, same_as_plain, sizes_of
from hmmscope.inference import device as there
from hmmscope.kernels import device_samplers as device
from hmmscope.kernels import gpu, gpu_forward

pytest.importorskip("triton", reason="needs Triton (comes with torch for CUDA)")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process that the first test starts")
CPU = torch.device("cpu")
NO_INTERPRETER = f"this Triton's interpreter does not work with NumPy {np.__version__}"


@pytest.mark.skipif(INTERPRETED, reason="already inside")
def test_this_file_in_the_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "-rs", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    if NO_INTERPRETER in done.stdout:
        pytest.skip(NO_INTERPRETER)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


@pytest.fixture(scope="module", autouse=True)
def interpreter_works():
    """Some releases of Triton cannot interpret a loop with some releases of NumPy."""
    if INTERPRETED:
        process = process_of("7x3")
        sampler = gpu.TritonSampler(process.alias_tables, **sizes_of(process), device=CPU)
        try:
            sampler((0, 0), torch.arange(1), STARTS["one"])
        except Exception as reason:
            if "0-dimensional arrays can be converted" in str(reason):
                pytest.skip(NO_INTERPRETER)
            raise


# ---------------------------------------------------------------------------------------------------------------------
# Sampler


@inside
@pytest.mark.parametrize("name", PROCESSES)
def test_fused_sampler_gives_the_plain_bits(name):
    """In blocks that the samples fill, overflow, and do not fill; keys with high bits; numbers beyond 2^32."""
    process = process_of(name)
    for starts, key, block in (
        ("one", (7, 16), 64),
        ("plain", (2**32 - 1, 2**32 - 2), 32),
        ("prompts", (2**31, 17), None),
    ):
        sampler = gpu.TritonSampler(process.alias_tables, **sizes_of(process), device=CPU, block=block)
        same_as_plain(sampler, name, starts, key)


@inside
def test_the_check_of_bits_fails_for_another_key_and_for_forgotten_starts():
    process = process_of("7x3")
    sampler = gpu.TritonSampler(process.alias_tables, **sizes_of(process), device=CPU)
    with pytest.raises(AssertionError, match="Mismatched"):
        same_as_plain(lambda key, *rest: sampler((key[0], key[1] + 1), *rest), "7x3", "plain", (0, 16))
    with pytest.raises(AssertionError, match="Mismatched"):
        same_as_plain(lambda k, s, starts: sampler(k, s, np.arange(len(starts)) == 0), "7x3", "prompts", (0, 16))


@inside
def test_small_results_are_packed_step_after_step():
    process = process_of("7x3")
    sampler = gpu.TritonSampler(process.alias_tables, **sizes_of(process), device=CPU)
    key, samples = (1, 16), torch.arange(40)
    packed, components = sampler.packed(key, samples, STARTS["plain"])
    observations, states, _ = sampler(key, samples, STARTS["plain"])
    assert packed.shape == (2, 2, 40)  # 13 steps of one byte fill two words
    assert not components.any()
    for t in range(13):
        byte = packed[:, t // 8] >> 8 * (t % 8) & 0xFF
        assert torch.equal(byte, torch.stack([observations[:, t], states[:, t]]))


@inside
@pytest.mark.parametrize("batch, time", [(0, 5), (3, 0)])
def test_nothing_to_draw(batch, time):
    process = process_of("random-mixture")
    sampler = gpu.TritonSampler(process.alias_tables, **sizes_of(process), device=CPU)
    observations, states, components = sampler((0, 0), torch.arange(batch), np.arange(time) == 0)
    assert observations.shape == states.shape == (batch, time)
    assert components.shape == (batch,)


@inside
def test_a_long_sequence_and_samples_that_are_not_contiguous():
    process = process_of("7x3")
    starts = np.arange(150) % 70 == 0
    samples = torch.arange(20)[::7]
    sampler = gpu.TritonSampler(process.alias_tables, **sizes_of(process), device=CPU, block=32)
    found = sampler((3, 17), samples, starts)
    exact = process.sample_paths(samples.numpy(), starts, 3, "train")
    assert torch.equal(found[0], exact.observations)
    assert torch.equal(found[1], exact.states)


@inside
def test_a_sampler_is_tried_before_it_is_used(monkeypatch):
    assert device.fused_works.__wrapped__(CPU)
    drawn = gpu.TritonSampler.packed
    monkeypatch.setattr(
        gpu.TritonSampler, "packed", lambda self, *rest: (drawn(self, *rest)[0] ^ 1, drawn(self, *rest)[1])
    )
    with pytest.raises(RuntimeError, match="wrong samples on cpu"):
        device.fused_works.__wrapped__(CPU)

    def broken(*args):
        raise OSError("no compiler")

    monkeypatch.setattr(gpu.TritonSampler, "packed", broken)
    with pytest.warns(UserWarning, match="does not run on cpu .no compiler.; using torch operations"):
        assert not device.fused_works.__wrapped__(CPU)


# ---------------------------------------------------------------------------------------------------------------------
# Filter


def compared(mixture, observations, starts, tolerance=3e-6):
    """The kernel against the torch road in float64: logs, doubtful sequences, predictions.

    Float32 rounds a handful of times at 6e-8 in each step, and a logarithm sums what its own step lost.
    """
    rows = tuple(part.float() for part in mixture.params.rows())
    floor = there.FLOORS[torch.float32]
    for predictions in (True, False):
        norms, doubtful, predicted = gpu_forward.forward_norms(
            rows, observations, starts, floor, predictions=predictions
        )
        exact = there.forward_logs_torch(
            tuple(part.double() for part in rows), observations, starts, predictions=predictions
        )
        assert torch.equal(doubtful, exact[1])
        possible = exact[0] > -torch.inf
        assert torch.equal(norms > 0, possible)
        torch.testing.assert_close(norms.double().log()[possible], exact[0][possible], rtol=0, atol=tolerance)
        torch.testing.assert_close(predicted.double(), exact[2], rtol=0, atol=tolerance)


@inside
@pytest.mark.parametrize("size", [(1, 1, 1), (3, 5, 4), (2, 16, 16), (2, 20, 17), (1, 128, 16)])
def test_fused_filter_equals_the_torch_road(size):
    components, states, symbols = size
    mixture = hs.make_process(
        "random-mixture",
        num_components=components,
        num_states=states,
        num_symbols=symbols,
        transition_concentration=1.0,
        emission_concentration=1.0,
    )
    observations = hs.ProcessDataset(mixture, length=9)[0:70].observations
    compared(mixture, observations, torch.arange(9) % 4 == 0)


@inside
def test_fused_filter_knows_what_is_impossible():
    hmm = hs.HMM([1, 0, 0], [[0, 1, 0], [0, 0.5, 0.5], [1, 0, 0]], [[1, 0], [0.5, 0.5], [0, 1]])
    observations = torch.cartesian_prod(*[torch.arange(2)] * 6)
    compared(hs.Mixture([1], [hmm]), observations, torch.arange(6) == 0)


@inside
def test_the_comparison_fails_for_other_starts(monkeypatch):
    mixture = process_of("random-mixture")
    observations = hs.ProcessDataset(mixture, length=9)[0:5].observations
    right = gpu_forward.forward_norms

    def wrong(rows, observations, starts, floor, *, predictions):
        return right(rows, observations, torch.arange(9) == 0, floor, predictions=predictions)

    monkeypatch.setattr(gpu_forward, "forward_norms", wrong)
    with pytest.raises(AssertionError):
        compared(mixture, observations, torch.arange(9) % 4 == 0)


@inside
def test_heads_and_remainders_are_exact():
    values = torch.tensor([1.0, 1 / 3, 2.0**-32, 1 - 2.0**-24, 0.0, 1e-30]).repeat(4)
    head, rest = gpu_forward.split(values)
    assert torch.equal(head + rest, values)
    assert not (head.view(torch.int32) & 0x1FFF).any()
    assert ((rest >= 0) & (rest <= values * 2.0**-10)).all()


@inside
def test_a_filter_is_tried_before_it_is_used(monkeypatch):
    """On a device that calls itself the processor: everything but the choice of the road is as on a GPU."""
    monkeypatch.setattr(there, "KINDS", ("cpu",))
    trial = there.fused_works.__wrapped__
    for states, symbols in ((1, 1), (5, 3), (128, 16)):
        assert trial(CPU, torch.float32, states, symbols)
    assert not trial(CPU, torch.float64, 5, 3)
    assert not trial(CPU, torch.float32, 129, 3)


@inside
def test_mixture_predictions_by_the_fused_filter(monkeypatch):
    monkeypatch.setattr(there, "KINDS", ("cpu",))
    monkeypatch.setattr(there, "fused_works", there.fused_works.__wrapped__)
    mixture = hs.make_process("random-mixture", num_components=4, num_states=6, num_symbols=5)
    observations = hs.ProcessDataset(mixture, length=10)[0:20].observations
    starts = torch.arange(10) % 5 == 0
    exact = hs.mixture_predictions(mixture, observations, reset_mask=starts, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*using torch operations")
        predicted, terms = there.mixture_predictions_there(
            mixture.params, mixture.component_weights, observations, starts, torch.float32
        )
    torch.testing.assert_close(predicted, exact.predicted_observation, rtol=0, atol=3e-6)
    torch.testing.assert_close(terms, exact.log_likelihood_terms, rtol=0, atol=1e-5)


@inside
def test_what_does_not_fit_the_fused_filter():
    assert gpu_forward.fits(128, 128, torch.float32)
    assert not gpu_forward.fits(129, 2, torch.float32)
    assert not gpu_forward.fits(2, 129, torch.float32)
    assert not gpu_forward.fits(2, 2, torch.float64)
    assert len(SAMPLES) > 32  # so that blocks of 32 are overflown above
