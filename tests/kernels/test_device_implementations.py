"""What runs on a GPU, checked on the processor: same bits, same numbers, and nothing that stays behind on the host."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import hmmscope as hs
from bench import filtering, mixture, sampling
from bench.__main__ import main
from bench.contest import noise
from device_cases import PROCESSES, SAMPLES, STARTS, process_of, same_as_plain, sizes_of
from fake_gpu import DEVICE, MixedDevices, ghost_device
from hmmscope.errors import InputError, ResourceError
from hmmscope.inference import device as there
from hmmscope.inference.fast import belief_states
from hmmscope.inference.optimal import optimal_predictions
from hmmscope.kernels import gpu, gpu_forward
from hmmscope.kernels.device_samplers import TorchSampler, device_sampler
from hmmscope.processes import process as base
from hmmscope.processes.params import StateEmissionParams
from op_counts import OpCounts

KEYS = [(0, 16), (2**32 - 1, 2**32 - 2)]
LAYOUT = hs.PromptLayout(num_demonstrations=2, demonstration_length=3, test_length=7)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("name", PROCESSES)
def test_sampler_in_torch_operations_gives_the_plain_bits(name, starts, key):
    process = process_of(name)
    sampler = device_sampler(process.alias_tables, **sizes_of(process), device=torch.device("cpu"))
    assert isinstance(sampler, TorchSampler)
    same_as_plain(sampler, name, starts, key)


class Counted(TorchDispatchMode):
    """Counts operations, and those whose result the host waits for."""

    WAITS = ("_local_scalar_dense", "nonzero", "_unique2", "equal")

    def __init__(self):
        super().__init__()
        self.operations = self.waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        self.waits += func.overloadpacket.__name__ in self.WAITS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["cyclic-det", "cyclic-hard", "random-hmm"])
def test_labels_on_a_device_take_few_operations_and_wait_for_its_checks_alone(name, monkeypatch):
    """A training step of 121 columns: not a number of operations for each symbol of each step."""
    process = hs.make_process(name)
    observations = process.sample_paths(np.arange(64), np.arange(120) == 0, 0, "train").observations
    with ghost_device(monkeypatch):
        ghost = observations.to("cuda")
        belief_states(process, ghost)  # the law is there from now on
        with Counted() as counted:
            belief_states(process, ghost)
    assert counted.waits <= 4
    assert counted.operations <= 3 * 120


@pytest.mark.parametrize(("name", "operations"), [("random-hmm", 2.7), ("cyclic-hard", 1.7)])
def test_likelihoods_on_a_device_take_two_operations_a_step_and_one_gather(name, operations, monkeypatch):
    process = hs.make_process(name)
    observations = hs.ProcessDataset(process, length=128)[0:8].observations
    exact = hs.log_likelihood(process, observations)
    with ghost_device(monkeypatch):
        ghost = observations.to("cuda")
        found = hs.log_likelihood(process, ghost)
    with OpCounts() as ops, Counted() as counted:
        there.log_likelihood_there(process.params, observations, torch.arange(128) == 0, torch.float64)
    assert ops.total <= operations * 128
    assert counted.waits == 1
    torch.testing.assert_close(found.cpu(), exact, rtol=1e-14, atol=0)


@pytest.mark.parametrize("chunk_bytes", [1, 2**26])
def test_likelihoods_on_a_device_restart_and_keep_impossible_sequences(chunk_bytes, monkeypatch):
    monkeypatch.setattr(there, "CHUNK_BYTES", chunk_bytes)
    process = hs.make_process("cyclic-det")
    observations = hs.ProcessDataset(process, length=21)[0:6].observations
    observations[2, 3] = (observations[2, 3] + 1) % process.num_symbols
    starts = torch.tensor([t in (0, 5, 8, 20) for t in range(21)])
    found, doubtful = there._log_likelihood_64(process.params, observations, starts)
    exact = there.underflow_safe_log_likelihood(process.params, observations, starts)
    assert not doubtful.any()
    assert found.isinf().tolist() == exact.isinf().tolist()
    torch.testing.assert_close(found, exact, rtol=1e-13, atol=0)


def test_tiny_probabilities_on_a_device_are_summed_step_by_step():
    """Eight steps of 1e-60 would be zero in float64."""
    rare, half = torch.tensor([[[1.0, 1e-60], [1.0, 1e-60]]], dtype=torch.float64), torch.full((1, 2, 2), 0.5).double()
    params = StateEmissionParams(half[:, 0], half, rare)
    observations = torch.ones(1, 16, dtype=torch.int64)
    assert not there._stays_representable(params)
    found, doubtful = there.log_likelihood_there(params, observations, torch.arange(16) == 0, torch.float64)
    assert not doubtful.any()
    assert found.item() == pytest.approx(16 * np.log(1e-60), rel=1e-14)


def test_the_check_of_bits_fails_for_another_key():
    process = process_of("7x3")
    sampler = TorchSampler(process.alias_tables, **sizes_of(process), device=torch.device("cpu"))
    with pytest.raises(AssertionError, match="Mismatched"):
        same_as_plain(lambda key, *rest: sampler((key[0] + 1, key[1]), *rest), "7x3", "plain", (0, 16))


# ---------------------------------------------------------------------------------------------------------------------
# Corpora


@pytest.mark.drawn(3)
@pytest.mark.parametrize("layout", [hs.SequenceLayout(length=9), LAYOUT], ids=["sequences", "prompts"])
@pytest.mark.parametrize("name", ["7x3", "random-mixture", "cyclic-hard", "edge-mixture"])
def test_corpus_on_a_device_has_the_bits_of_the_processor(name, layout, monkeypatch):
    dataset = hs.ProcessDataset(process_of(name), layout=layout, seed=5, stream="train")
    with ghost_device(monkeypatch):
        there = dataset.on("cuda")
        assert there.device == DEVICE
        for index in (slice(3, 40, 5), slice(2**32 - 1, 2**32 + 2), SAMPLES.tolist(), 7, slice(4, 4)):
            found, exact = there[index], dataset[index]
            for one, two in zip(vars(found).values(), vars(exact).values(), strict=True):
                assert (one is None) == (two is None)
                if one is not None:
                    assert one.device == DEVICE
                    assert one.dtype == torch.int64
                    assert torch.equal(one.cpu(), two)
        assert there.digest(64) == dataset.digest(64)


def test_vectors_and_fresh_processes_come_from_the_processor(monkeypatch):
    with ghost_device(monkeypatch):
        for name in ("ran-lds", "fresh-hmms"):
            dataset = hs.ProcessDataset(hs.make_process(name), length=5)
            found = dataset.on("cuda")[0:3]
            assert found.tokens.device == DEVICE
            assert torch.equal(found.tokens.cpu(), dataset[0:3].tokens)


def test_the_processor_keeps_its_compiled_sampler(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("a device sampler was made")

    monkeypatch.setattr(base, "device_sampler", never)
    process = hs.make_process("random-hmm")
    expected = hs.ProcessDataset(process, length=8)[0:5].tokens
    assert torch.equal(hs.ProcessDataset(process, length=8, device="cpu")[0:5].tokens, expected)
    assert torch.equal(hs.ProcessDataset(process, length=8).on("cpu")[0:5].tokens, expected)
    paths = process.sample_paths_on(torch.arange(5), np.arange(8) == 0, 0)
    assert torch.equal(paths.observations, expected)


def test_a_device_that_is_not_there_is_refused(unchecked):
    process = process_of("7x3")
    with pytest.raises(ResourceError, match=r"device: cuda:7 is not available \(number of CUDA devices: \d\)"):
        hs.ProcessDataset(process, length=5, device="cuda:7")
    for bad in ("gpu", "cuda:x", 1.5):
        with pytest.raises(InputError, match="device: must be"):
            hs.ProcessDataset(process, length=5, device=bad)


# ---------------------------------------------------------------------------------------------------------------------
# Filters: one code for all devices, so on a device that is not there


def hmm_with_zeros():
    return hs.HMM([1, 0, 0], [[0, 1, 0], [0, 0.5, 0.5], [1, 0, 0]], [[1, 0], [0.5, 0.5], [0, 1]])


def mixture_with_zeros():
    other = hs.HMM([0.5, 0.5, 0], [[0, 0, 1], [1, 0, 0], [0.25, 0.5, 0.25]], [[0.5, 0.5], [1, 0], [1, 0]])
    return hs.Mixture(
        [0.5, 0.25, 0, 0.25],
        [hmm_with_zeros(), other, other, hs.make_process("random-hmm", num_states=3, num_symbols=2)],
    )


FILTERED = {
    "7x3": lambda: process_of("7x3"),
    "zeros": hmm_with_zeros,
    "mess3": lambda: process_of("mess3"),
    "mixture": lambda: hs.make_process("random-mixture", num_components=5, num_states=6, num_symbols=4),
    "mixture with zeros": mixture_with_zeros,
    "edge mixture": lambda: process_of("edge-mixture"),
}


def every_sequence(num_symbols, time=5):
    """All of them, so that impossible ones are there."""
    return torch.cartesian_prod(*[torch.arange(num_symbols)] * time)


def equal(found, exact, tolerance=1e-12):
    """Records equal field by field: probabilities relatively and in their zeros, logarithms also absolutely."""
    for field, value in vars(exact).items():
        other = getattr(found, field)
        if value is None:
            assert other is None
            continue
        other = other.cpu()
        logarithm = field.startswith("log")
        assert logarithm or torch.equal(other == 0, value == 0), field
        torch.testing.assert_close(other, value, rtol=tolerance, atol=tolerance if logarithm else 0)


@pytest.mark.parametrize("name", FILTERED)
def test_filters_run_where_the_observations_are(name, monkeypatch):
    process = FILTERED[name]()
    observations = every_sequence(process.num_symbols)[::3]
    starts = torch.arange(5) % 3 == 0
    lengths = torch.arange(len(observations)) % 6
    with ghost_device(monkeypatch):
        ghost = observations.to("cuda")
        filters = [hs.filter_mixture] if isinstance(process, hs.Mixture) else [hs.filter_beliefs]
        for function in filters:
            for options in ({}, {"reset_mask": starts}, {"lengths": lengths}, {"reset_mask": starts.to("cuda")}):
                exact = function(process, observations, **{k: v.cpu() for k, v in options.items()})
                found = function(process, ghost, **options)
                assert all(value.device == DEVICE for value in vars(found).values())
                equal(found, exact)
        if not isinstance(process, hs.Mixture):
            exact = belief_states(process, observations, reset_mask=starts)
            torch.testing.assert_close(
                belief_states(process, ghost, reset_mask=starts).cpu(), exact, rtol=1e-12, atol=0
            )
        equal(optimal_predictions(process, ghost), optimal_predictions(process, observations))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("name", ["mixture", "mixture with zeros", "edge mixture"])
def test_mixture_predictions_run_there(name, dtype, tolerance, monkeypatch):
    """float32: each of five steps and the prediction is rounded a few times at 6e-8."""
    mixture = FILTERED[name]()
    observations = every_sequence(mixture.num_symbols)[::2]
    for starts in (None, torch.arange(5) % 2 == 0):
        exact = hs.mixture_predictions(mixture, observations, reset_mask=starts, dtype=torch.float64)
        with ghost_device(monkeypatch):
            found = hs.mixture_predictions(mixture, observations.to("cuda"), reset_mask=starts, dtype=dtype)
            assert found.predicted_observation.device == DEVICE
            equal(found, exact, tolerance)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("size", [(3, 2), (20, 4)])
def test_log_likelihood_runs_there(size, dtype, tolerance, monkeypatch):
    hmm = hmm_with_zeros() if size[0] == 3 else hs.make_process("random-hmm", num_states=20, num_symbols=4)
    observations = every_sequence(size[1], 6)
    exact = hs.log_likelihood(hmm, observations)
    with ghost_device(monkeypatch):
        found = hs.log_likelihood(hmm, observations.to("cuda"), dtype=dtype)
        assert found.device == DEVICE
        torch.testing.assert_close(found.cpu(), exact, rtol=tolerance, atol=0)


# ---------------------------------------------------------------------------------------------------------------------
# The torch road called by its name, against the compiled one


def test_no_chunk_of_components_changes_the_answer():
    mixture = hs.make_process("random-mixture", num_components=13, num_states=5, num_symbols=3)
    observations = hs.ProcessDataset(mixture, length=11)[0:17].observations
    starts = torch.arange(11) % 4 == 0
    exact = hs.mixture_predictions(mixture, observations, reset_mask=starts, dtype=torch.float64)
    for chunk_bytes in (1, 2**16, 2**30):
        predicted, terms = there.mixture_predictions_there(
            mixture.params, mixture.component_weights, observations, starts, torch.float64, chunk_bytes=chunk_bytes
        )
        torch.testing.assert_close(predicted, exact.predicted_observation, rtol=1e-12, atol=0)
        torch.testing.assert_close(terms, exact.log_likelihood_terms, rtol=1e-11, atol=1e-13)


def test_torch_road_equals_the_compiled_one_in_both_precisions():
    hmm = hs.make_process("random-hmm", num_states=40, num_symbols=6)
    observations = hs.ProcessDataset(hmm, length=200)[0:30].observations
    starts = torch.arange(200) == 0
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 1e-6)):
        expected = hs.log_likelihood(hmm, observations, dtype=dtype)
        total, doubtful = there.log_likelihood_there(hmm.params, observations, starts, dtype)
        assert not doubtful.any()
        torch.testing.assert_close(total, expected, rtol=tolerance, atol=0)


def test_underflow_is_not_impossible_on_the_torch_road():
    """A law that float32 loses is found again, and the sequence is not called impossible."""
    tiny = 2.0**-32
    hmm = hs.HMM([1 - tiny, tiny], [[1, 0], [0, 1]], [[1, 0], [tiny, 1 - tiny]])
    other = hs.HMM([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]])
    mixture = hs.Mixture([0.5, 0.5], [hmm, other])
    observations = torch.zeros(1, 30, dtype=torch.int64)
    observations[0, -1] = 1
    starts = torch.arange(30) == 0
    exact = hs.filter_mixture(mixture, observations)
    _, terms = there.mixture_predictions_there(
        mixture.params, mixture.component_weights, observations, starts, torch.float32
    )
    torch.testing.assert_close(terms, exact.log_likelihood_terms, rtol=1e-6, atol=1e-6)
    logs, doubtful, _ = there.forward_logs(tuple(r.float() for r in hmm.params.rows()), observations, starts)
    assert doubtful.tolist() == [[True]]
    assert logs[-1].item() == -torch.inf


@pytest.mark.parametrize("length", [40, 80])
def test_float64_sees_an_entry_before_it_vanishes(length):
    """A belief of 2^-32 to the length: half of them are beyond float64, and none is called impossible."""
    tiny = 2.0**-32
    hmm = hs.HMM([0.5, 0.5], [[1, 0], [0, 1]], [[1 - tiny, tiny, 0], [tiny, 0.5 - tiny, 0.5]])
    mixture = hs.Mixture([0.5, 0.5], [hmm, hs.HMM([1, 0], [[1, 0], [0, 1]], [[1, 0, 0], [0, 0, 1]])])
    observations = torch.zeros(1, length, dtype=torch.int64)
    observations[0, -1] = 2
    starts = torch.arange(length) == 0
    exact = hs.filter_mixture(mixture, observations).log_likelihood_terms
    assert exact.isfinite().all()
    _, doubtful, _ = there.forward_logs_torch(mixture.params.rows(), observations, starts)
    assert doubtful.tolist() == [[True], [False]]
    found = there.mixture_predictions_there(
        mixture.params, mixture.component_weights, observations, starts, torch.float64
    )[1]
    torch.testing.assert_close(found, exact, rtol=1e-12, atol=1e-12)


def test_what_is_impossible_is_in_no_doubt_in_float64(monkeypatch):
    """Prompts of a sparse pool are impossible for most of its HMMs, which is no reason to go over them again."""
    law = {"transition_concentration": 0.002, "emission_concentration": 0.002}
    mixture = hs.make_process("random-mixture", num_components=40, num_states=32, num_symbols=8, **law)
    layout = hs.PromptLayout(num_demonstrations=3, demonstration_length=8, test_length=8)
    dataset = hs.ProcessDataset(mixture, layout=layout, stream="evaluate")
    observations, starts = dataset[0:24].observations, torch.from_numpy(dataset.layout.reset_mask)
    exact = hs.mixture_predictions(mixture, observations, reset_mask=starts, dtype=torch.float64)
    logs, doubtful, _ = there.forward_logs_torch(mixture.params.rows(), observations, starts)
    assert (logs.sum(0) == -torch.inf).double().mean() > 0.5
    assert doubtful.double().mean() < 0.01
    given = mixture.params, mixture.component_weights, observations, starts
    monkeypatch.setattr(there, "again_in_logs", Mock(wraps=there.again_in_logs))
    predicted, terms = there.mixture_predictions_there(*given, torch.float64)
    assert there.again_in_logs.call_count == doubtful.any(1).sum()
    torch.testing.assert_close(predicted, exact.predicted_observation, rtol=0, atol=1e-12)
    torch.testing.assert_close(terms, exact.log_likelihood_terms, rtol=1e-12, atol=1e-12)


def test_precision_of_products_is_restored():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with there.full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def stand_in(rows, observations, starts, floor, *, predictions):
    """What the fused kernel gives, by the torch road."""
    logs, doubtful, predicted = there.forward_logs_torch(rows, observations, starts, predictions=predictions)
    return logs.exp().float(), doubtful, predicted


def test_a_fused_filter_is_tried_before_it_is_used(monkeypatch):
    monkeypatch.setattr(there, "KINDS", ("cpu",))
    monkeypatch.setattr(there, "fused_works", there.fused_works.__wrapped__)
    monkeypatch.setattr(gpu, "installed", lambda: True)
    monkeypatch.setattr(gpu_forward, "forward_norms", stand_in)
    mixture, starts = FILTERED["mixture"](), torch.arange(5) % 3 == 0
    observations = every_sequence(mixture.num_symbols)[::9]
    exact = hs.mixture_predictions(mixture, observations, reset_mask=starts, dtype=torch.float64)
    given = mixture.params, mixture.component_weights, observations, starts
    with monkeypatch.context() as patch:
        patch.setattr(there, "forward_logs_torch", Mock(wraps=there.forward_logs_torch))
        predicted, terms = there.mixture_predictions_there(*given, torch.float32)
        assert there.forward_logs_torch.call_count == 3  # the trial, the number it is checked against, the answer
        there.mixture_predictions_there(*given, torch.float64)
        assert there.forward_logs_torch.call_count == 4
    torch.testing.assert_close(predicted, exact.predicted_observation, rtol=0, atol=1e-6)
    torch.testing.assert_close(terms, exact.log_likelihood_terms, rtol=0, atol=1e-5)

    def wrong(*given, **options):
        norms, *rest = stand_in(*given, **options)
        return 1.001 * norms, *rest

    monkeypatch.setattr(gpu_forward, "forward_norms", wrong)
    with pytest.raises(RuntimeError, match="results on cpu are wrong"):
        there.mixture_predictions_there(*given, torch.float32)
    monkeypatch.setattr(gpu_forward, "forward_norms", Mock(side_effect=OSError("out of shared memory")))
    with pytest.warns(UserWarning, match="cannot run on cpu .out of shared memory.; using slower torch operations"):
        assert torch.equal(there.mixture_predictions_there(*given, torch.float32)[0], predicted)


def test_what_does_not_fit_on_the_device_is_refused_first(monkeypatch):
    mixture = FILTERED["mixture"]()
    with ghost_device(monkeypatch, free_bytes=1000):
        observations = torch.zeros(10, 10, dtype=torch.int64, device="cuda")
        for function in (hs.filter_mixture, hs.mixture_predictions):
            with pytest.raises(ResourceError, match="GiB are free on cuda:9"):
                function(mixture, observations)


# ---------------------------------------------------------------------------------------------------------------------
# The checking helper


def test_a_ghost_may_not_meet_an_ordinary_tensor(monkeypatch):
    with ghost_device(monkeypatch):
        ghost = torch.ones(3, device="cuda")
        assert (ghost + 1).device == DEVICE
        assert ghost.cpu().device == torch.device("cpu")
        assert (ghost * torch.tensor(2.0)).device == DEVICE
        for wrong in (
            lambda: ghost + torch.ones(3),
            lambda: ghost[torch.arange(2)],
            lambda: torch.stack([ghost, torch.ones(3)]),
        ):
            with pytest.raises(MixedDevices):
                wrong()
        with pytest.raises(TypeError, match="numpy"):
            ghost.numpy()
    assert ghost.device == torch.device("cpu")


# ---------------------------------------------------------------------------------------------------------------------
# Speed is measured there


def test_bench_on_a_device(monkeypatch):
    """Every contender runs, once as a check and once timed, and the limit is one of them."""
    monkeypatch.setattr(sampling, "BATCHES_ON_GPU", (30,))
    monkeypatch.setattr(sampling, "LENGTH", 6)
    monkeypatch.setattr(filtering, "SHAPES_ON_GPU", ((8, 8, 20, 32),))
    monkeypatch.setattr(mixture, "LENGTH_ON_GPU", 6)
    monkeypatch.setattr(mixture, "BATCH", 20)
    with ghost_device(monkeypatch):
        found = sampling.contests(peers=False, device="cuda", components=2)
        found += filtering.contests(peers=True, device="cuda")
        found += mixture.contests(peers=False, device="cuda", components=3)
        assert len(found) == 2 + 2 + 2
        for contest in found:
            rows = contest.rows(repeats=1, threads=1)
            assert "on cuda" in contest.work
            assert rows[0]["who"] == "hmmscope"
            limits = [row["who"] for row in rows if row["share_of_limit"] is None]
            assert (
                len([who for who in limits if not who.endswith(" peak")]) == 1
            )  # a peak of the processor is no limit here
            assert all(row["rate"] > 0 for row in rows)


def test_noise_has_no_pattern_that_a_chip_could_use():
    values = noise(64, 64, dtype=torch.float32)
    assert values.abs().max() <= 1
    assert values.unique().numel() > 4000
    assert torch.linalg.matrix_rank(values) == 64


def test_bench_refuses_a_device_in_one_line(capsys):
    assert main(["sampling", "--device", "tpu"]) == 2
    assert capsys.readouterr().err == "error[2] device: unknown 'tpu'; did you mean 'cpu'? (known: cpu, cuda)\n"
    if not torch.cuda.is_available():
        assert main(["sampling", "--device", "cuda"]) == 5
        assert "device: cuda was requested but no CUDA device is present" in capsys.readouterr().err
