"""On a CUDA device: the same bits, the same numbers, no copy from the host. `make test-gpu`; see also test_device_roads."""

import numpy as np
import pytest
import torch

import hmmscope as hs
from bench import filtering, mixture, sampling
from device_cases import PROCESSES, SAMPLES, STARTS, process_of, same_as_plain, sizes_of
from hmmscope import system_info
from hmmscope.analysis.probes import ProbeData
from hmmscope.errors import ResourceError
from hmmscope.inference import device as there
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.kernels import gpu, gpu_forward
from hmmscope.kernels.device_samplers import TorchSampler, device_sampler, fused_works
from hmmscope.models.base import ModelIO, build_model
from hmmscope.models.decoder import RoFormerSpec

pytestmark = pytest.mark.gpu

KEY = (2**32 - 1, 2**32 - 2)
LAYERS = ["residual.0", "residual.1", "residual.2"]
PROMPTS = hs.PromptLayout(num_demonstrations=15, demonstration_length=8, test_length=8)


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.fail("no CUDA device: these tests are for a machine that has one")
    return torch.device("cuda", torch.cuda.current_device())


def test_fused_kernels_are_what_runs_where_triton_is(cuda):
    process = process_of("random-mixture")
    sampler = device_sampler(process.alias_tables, **sizes_of(process), device=cuda)
    assert isinstance(sampler, gpu.TritonSampler) == gpu.installed()
    if gpu.installed():
        assert fused_works(cuda)
        assert there.fused_works(cuda, torch.float32, 8, 8)


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("name", PROCESSES)
def test_samplers_give_the_plain_bits(name, starts, cuda):
    process = process_of(name)
    same_as_plain(TorchSampler(process.alias_tables, **sizes_of(process), device=cuda), name, starts, KEY, cuda)
    if gpu.installed():
        for block in (None, 32, 64, 256, 512):
            sampler = gpu.TritonSampler(process.alias_tables, **sizes_of(process), device=cuda, block=block)
            same_as_plain(sampler, name, starts, KEY, cuda)


@pytest.mark.parametrize("layout", [hs.SequenceLayout(length=257), PROMPTS], ids=["sequences", "prompts"])
@pytest.mark.parametrize("name", ["7x3", "random-mixture", "mess3", "edge-mixture"])
def test_large_batches_have_the_bits_of_the_processor(name, layout, cuda):
    dataset = hs.ProcessDataset(process_of(name), layout=layout, seed=11, stream="train")
    for index in (slice(0, 5000), slice(2**32 - 700, 2**32 + 700), SAMPLES.tolist()):
        found, exact = dataset.on(cuda)[index], dataset[index]
        for one, two in zip(vars(found).values(), vars(exact).values(), strict=True):
            assert one is two is None or torch.equal(one.cpu(), two)
    assert dataset.on(cuda).digest(5000) == dataset.digest(5000)


def test_batches_are_made_without_waiting_and_without_the_host(cuda):
    """Torch raises on any operation that waits for the device, and a copy from ordinary memory does."""
    dataset = hs.ProcessDataset(process_of("random-mixture"), layout=PROMPTS, device=cuda)
    dataset[0:64]
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = dataset[64:128]
        with pytest.raises(RuntimeError, match="synchronizing"):
            batch.tokens.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(batch.tokens.cpu(), dataset.on("cpu")[64:128].tokens)


# ---------------------------------------------------------------------------------------------------------------------
# Filters


FILTERED = {
    "random-hmm": lambda: hs.make_process("random-hmm", num_states=128, num_symbols=16),
    "mess3": lambda: process_of("mess3"),
    "cyclic-hard": lambda: process_of("cyclic-hard"),
    "random-mixture": lambda: hs.make_process("random-mixture", num_components=20, num_states=16, num_symbols=8),
    "edge-mixture": lambda: process_of("edge-mixture"),
}


@pytest.mark.parametrize("name", FILTERED)
def test_filters_equal_those_of_the_processor(name, cuda):
    """Relative 1e-9: rounding of 100 steps at 1e-16, amplified where a probability is small among others."""
    process = FILTERED[name]()
    observations = hs.ProcessDataset(process, length=100)[0:50].observations
    starts = torch.arange(100) % 40 == 0
    filters = hs.filter_mixture if isinstance(process, hs.Mixture) else hs.filter_beliefs
    pairs = [
        (filters(process, o, reset_mask=starts), optimal_predictions(process, o))
        for o in (observations.to(cuda), observations)
    ]
    for found, exact in zip(*pairs, strict=True):
        for field, value in vars(exact).items():
            if value is not None:
                assert getattr(found, field).device == cuda
                torch.testing.assert_close(getattr(found, field).cpu(), value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-11), (torch.float32, 1e-6)])
@pytest.mark.parametrize("states", [5, 16, 100, 128, 200])
def test_log_likelihoods(states, dtype, tolerance, cuda):
    """The largest size has no fused kernel."""
    hmm = hs.make_process("random-hmm", num_states=states, num_symbols=16)
    observations = hs.ProcessDataset(hmm, length=256)[0:200].observations
    found = hs.log_likelihood(hmm, observations.to(cuda), dtype=dtype)
    assert found.device == cuda
    torch.testing.assert_close(found.cpu(), hs.log_likelihood(hmm, observations), rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_mixture_predictions(dtype, tolerance, cuda):
    mix = hs.make_process("random-mixture", num_components=40, num_states=32, num_symbols=8)
    dataset = hs.ProcessDataset(mix, layout=PROMPTS)
    observations = dataset[0:100].observations
    exact = hs.mixture_predictions(mix, observations, reset_mask=dataset.layout.reset_mask, dtype=torch.float64)
    found = hs.mixture_predictions(mix, observations.to(cuda), reset_mask=dataset.layout.reset_mask, dtype=dtype)
    for field, value in vars(exact).items():
        torch.testing.assert_close(getattr(found, field).cpu(), value, rtol=0, atol=tolerance)


def test_scores_and_probes_of_a_model_there_are_those_of_the_processor(cuda):
    """What is exact to rounding, what the model says to that of float32 products."""
    pool = hs.make_process("random-mixture", num_components=600, num_states=4, num_symbols=4)
    dataset = hs.ProcessDataset(pool, layout=PROMPTS, stream="evaluate")
    ports = ModelIO(num_outputs=4, vocab_size=dataset.vocab_size, max_length=dataset.layout.context_length)
    model = build_model(RoFormerSpec(num_layers=2, num_heads=2, width=32), ports, 0)
    exact, data = hs.evaluate(model, dataset, num_samples=64), ProbeData.read(model, dataset, "previous-1", LAYERS, 64)
    found = hs.evaluate(model.to(cuda), dataset, num_samples=64)
    for name, measures in exact.measures.items():
        tolerance = 1e-4 if name == "model" else 1e-9
        np.testing.assert_allclose(found.measures[name]["loss"], measures["loss"], rtol=0, atol=tolerance)
    there_data = ProbeData.read(model, dataset, "previous-1", LAYERS, 64)
    assert there_data.features.device == cuda
    np.testing.assert_allclose(there_data.correct().mean(0), data.correct().mean(0), rtol=0, atol=0.02)


def test_fused_filter_keeps_float32_accuracy_when_training_allows_tf32(cuda):
    """TF32 alone would lose three digits; the sums of 256 steps stay within 1e-6 of float64."""
    if not gpu.installed():
        pytest.skip("needs Triton")
    hmm = hs.make_process("random-hmm", num_states=128, num_symbols=16)
    observations = hs.ProcessDataset(hmm, length=256, device=cuda)[0:300].observations
    starts = torch.arange(256) == 0
    rows = tuple(part.to(cuda) for part in hmm.params.rows())
    exact, _, ahead = there.forward_logs_torch(rows, observations, starts, predictions=True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        single = tuple(part.float() for part in rows)
        norms, lost, predicted = gpu_forward.forward_norms(single, observations, starts, 1e-25, predictions=True)
        total = hs.log_likelihood(hmm, observations, dtype=torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)
    assert not lost.any()
    torch.testing.assert_close(norms.double().log().sum(0)[0], exact.sum(0)[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(total, exact.sum(0)[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(predicted.double(), ahead, rtol=0, atol=1e-5)


def test_what_does_not_fit_is_refused_before_it_is_allocated(cuda):
    mix = process_of("random-mixture")
    before = torch.cuda.memory_allocated(cuda)
    observations = torch.zeros(2**20, 1, dtype=torch.int8, device=cuda).expand(-1, 2**14)
    with pytest.raises(ResourceError, match="GiB are free on cuda"):
        system_info.require_memory_on(cuda, "filter_mixture", 8 * observations.numel() * len(mix))
    assert torch.cuda.memory_allocated(cuda) - before < 2**25


def test_bench_runs(cuda, monkeypatch):
    monkeypatch.setattr(sampling, "BATCHES_ON_GPU", (300,))
    monkeypatch.setattr(filtering, "SHAPES_ON_GPU", ((8, 8, 100, 20),))
    monkeypatch.setattr(mixture, "LENGTH_ON_GPU", 20)
    found = sampling.contests(peers=False, device="cuda", components=10)
    found += filtering.contests(peers=False, device="cuda")
    found += mixture.contests(peers=False, device="cuda", components=10)
    for contest in found:
        for row in contest.rows(repeats=1, threads=1):
            assert np.isfinite(row["rate"])
            assert row["rate"] > 0
            assert "cuda" in row["work"]
