"""Tests for mutants that no test detected before: each test fails on the mutant that its name describes."""

import inspect
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope import registry
from hmmscope.analysis import activations, belief_space, geometry, initialization, task_patching
from hmmscope.analysis.discovery import model_words
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.datasets.layouts import PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.tokenized import TextLayout
from hmmscope.errors import DamagedError, InputError, ResourceError
from hmmscope.inference import counts, device, fit_durations, forward, gibbs
from hmmscope.inference.counts import Counts
from hmmscope.inference.em import Model, MStepSettings
from hmmscope.inference.free_parameters import zeros_in_words
from hmmscope.inference.loop_inputs import PackedSequences as Packed
from hmmscope.inference.memory_error import sampled_memory_error
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.lab.evidence import ledger, scatter_data, verdicts
from hmmscope.lab.evidence.finding import Finding
from hmmscope.models.base import make_model
from hmmscope.processes import cycles
from hmmscope.processes.files import load_process
from hmmscope.processes.make import make_process
from hmmscope.processes.observations import as_batch
from hmmscope.runs import training as run_training
from hmmscope.runs.config import configure
from hmmscope.runs.forecasts import Forecasts
from hmmscope.runs.page_export import in_browser
from hmmscope.runs.pipeline import OWN_PROCESS, _process_of
from hmmscope.runs.settings import settings
from hmmscope.runs.stream_parts import parts_of
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import MISSING
from hmmscope.sequences.vector_data import read_vectors
from hmmscope.storage import disk, mapped, packed, seals, store
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.spec import TrainingSpec
from tokenizer_cases import tokenizer


def test_a_draw_of_equal_cycles_is_left_out_and_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    same = torch.tensor([[1, 2, 0], [1, 2, 0]])
    other = torch.tensor([[1, 2, 0], [2, 0, 1]])
    monkeypatch.setattr(cycles, "_DRAWS", 3)
    monkeypatch.setattr(cycles, "random_cycles", lambda *_, **__: torch.cat([same, other, other]))
    monkeypatch.setattr(cycles, "_generate", lambda *_: True)
    asked = SimpleNamespace(num_symbols=2, num_states=3, group_order=3, seed=0, distinct=True)
    kind = next(one for one in vars(cycles).values() if inspect.isclass(one) and "cycles" in vars(one))
    assert torch.equal(kind.cycles(asked), other)


def test_an_error_that_is_not_about_determinism_is_raised_as_it_is() -> None:
    spec = SimpleNamespace(num_threads=1, deterministic=True)
    with pytest.raises(RuntimeError, match=r"^out of luck$"), settings(spec):
        raise RuntimeError("out of luck")
    said = r"training\.deterministic: x has no deterministic form"
    with pytest.raises(InputError, match=said), settings(spec):
        raise RuntimeError("x has no deterministic form. And more")


def test_words_that_are_longer_than_the_layout_are_refused() -> None:
    dataset = ProcessDataset(load_process("umbrella"), layout=SequenceLayout(length=3, placeholder=True))
    law = model_words(make_model("rnn", num_symbols=2, vocab_size=3, width=4, max_length=4), dataset)
    with pytest.raises(InputError, match="words: must have at most 3 symbols, got 4"):
        law(torch.zeros(1, 4, dtype=torch.int64))


@pytest.mark.parametrize("name", ["a", "ab", "abc", "abcd", "abcde"])
def test_a_header_with_texts_is_as_long_as_tensors_need(name: str, tmp_path: Path) -> None:
    data = store.tensor_bytes({"x": torch.zeros(2)}, {name: "text"})
    assert int.from_bytes(data[:8], "little") % 8 == 0  # the data is aligned for every type of tensor


def test_tensors_without_numbers_are_mapped(tmp_path: Path) -> None:
    """The file contains only a header."""
    store.write_tensors(tmp_path / "x.safetensors", {"x": torch.zeros(0)})
    tensors = mapped.map_tensors(tmp_path / "x.safetensors")[0]
    assert tensors["x"].shape == (0,)


def test_more_mixed_states_than_memory_holds_are_refused() -> None:
    with pytest.raises(ResourceError, match="mixed_states: needs"):
        mixed_states(load_process("umbrella"), max_states=10**13, max_depth=1)


def test_what_is_left_out_of_a_list_is_counted() -> None:
    assert verdicts._some(["a", "b", "c"]) == "a; b; c"
    assert verdicts._some(["a", "b", "c", "d"]) == "a; b; c; others"


def test_places_of_certainty_are_a_triangle_in_the_middle_of_the_square() -> None:
    """The triangle has equal sides and equal margins above and below."""
    a, b, c = scatter_data.CORNERS
    sides = [float(np.linalg.norm(one - other)) for one, other in ((a, b), (b, c), (c, a))]
    assert sides == pytest.approx([1 / 1.28] * 3)
    assert (a[0] + b[0]) / 2 == pytest.approx(0.5)
    assert a[1] + c[1] == pytest.approx(1)
    assert scatter_data.CORNERS.min() > 0.05


def test_colours_come_back_to_the_nearest_step() -> None:
    levels = np.arange(256)[:, None] / 255 * np.ones(3)
    assert np.array_equal(scatter_data.unpack_colours(scatter_data.pack_colours(levels)), levels)
    near = scatter_data.unpack_colours(scatter_data.pack_colours(np.full((1, 3), 0.6 / 255)))
    assert near.tolist() == [[1 / 255] * 3]


def test_an_interval_of_one_sample_is_its_value() -> None:
    assert [float(x) for x in bootstrap_means(np.array([3.0]))] == [3, 3, 3]


def test_a_text_of_someone_else_may_be_a_link_and_a_missing_one_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\ufeffé")
    (tmp_path / "link").symlink_to("text")
    assert store.read_text(tmp_path / "link", limit=9) == "é"
    with pytest.raises(InputError, match="nothing: cannot be read"):
        store.read_text(tmp_path / "nothing", limit=9)


def test_an_inner_folder_whose_seal_is_gone_is_told_from_one_with_another(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    store.write_json(inner / "experiment.json", {})
    seals.write_seal(inner, "experiment", {})
    digest = seals.digest_of(inner)
    seals.write_seal(tmp_path, "experiment", {"folders": {"inner": digest}})
    assert [str(seals.seal_report(tmp_path)), seals.seal_report(tmp_path).runs] == ["1 file, 0 not covered", 0]
    store.write_json(inner / "experiment.json", {"a": 1})
    seals.remove_seal(inner)
    with pytest.raises(DamagedError, match="inner: has no checksums"):
        seals.seal_report(tmp_path)
    seals.write_seal(inner, "experiment", {})
    with pytest.raises(DamagedError, match="inner: was changed after"):
        seals.seal_report(tmp_path)


def test_demonstrations_of_text_may_have_one_observation() -> None:
    made = {"tokenizer": tokenizer("bytes"), "names": 3, "length": 2, "num_demonstrations": 1}
    assert TextLayout(**made, demonstration_length=1).sequence_lengths == (1, 2)
    with pytest.raises(InputError, match="demonstration_length: must be at least 1, got 0"):
        TextLayout(**made, demonstration_length=0)


def test_a_name_that_is_not_one_token_is_passed_over() -> None:
    """The letters H to Z are several tokens each."""
    assert TextLayout(tokenizer=tokenizer("pieces"), names=9, length=2).names == (*"ABCDEFG", "t", "the")


def test_an_observer_with_components_needs_samples_with_components(unchecked: None) -> None:
    dataset, observer = (
        ProcessDataset(load_process("umbrella"), 4),
        make_process("markov-mixture", num_states=2, num_symbols=2),
    )
    with pytest.raises(InputError, match="observer: must be a single HMM, because the samples have no components"):
        geometry.belief_targets(dataset, np.arange(4), 2, observer=observer)


def test_what_is_streamed_and_what_is_read_have_the_same_seed(tmp_path: Path) -> None:
    SequenceData([[0, 1, 1], [1, 0]]).save(tmp_path / "x.npz")
    whole = SequenceData(tmp_path / "x.npz")
    assert SequenceData.from_encoded(whole._encoded, "x").seed == whole.seed == 0


def test_batches_have_a_sequence_at_least() -> None:
    with pytest.raises(InputError, match="batch_size: must be at least 1, got 0"):
        next(SequenceData([[0, 1]]).batches(0))


@pytest.mark.parametrize("index", [-1, 2**40, [0, 2**40]])
def test_samples_that_have_no_number_are_refused(index: object) -> None:
    with pytest.raises(InputError, match=r"index: must be in 0 to 2\^40 - 1"):
        ProcessDataset(load_process("umbrella"), 4)[index]


def test_a_seal_of_a_newer_version_is_no_seal_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write_json(tmp_path / "experiment.json", {})
    with monkeypatch.context() as patch:
        patch.setattr(seals, "VERSION", seals.VERSION + 1)
        seals.write_seal(tmp_path, "experiment", {})
        assert seals.read_seal(tmp_path) is not None
    with pytest.raises(DamagedError, match=f"version {seals.VERSION + 1}, not {seals.VERSION}"):
        seals.read_seal(tmp_path)


def test_texts_beside_tensors_are_written_as_they_are() -> None:
    assert "é".encode() in store.tensor_bytes({"x": torch.zeros(1)}, {"a": "é"})


def test_a_header_beyond_all_use_is_not_read(tmp_path: Path) -> None:
    for size, fails in ((1 << 10, False), ((16 << 20) + 8, True)):
        (tmp_path / "x.safetensors").write_bytes(size.to_bytes(8, "little") + b"{}".ljust(size))
        with pytest.raises(DamagedError, match="longer than the file") if fails else nullcontext():
            assert mapped.map_tensors(tmp_path / "x.safetensors") == ({}, {})


@pytest.mark.parametrize("given", [{"axis": 0}, {"lengths": [3, 2]}])
def test_sequences_of_numbers_take_neither_an_axis_nor_lengths(given: dict[str, object]) -> None:
    with pytest.raises(InputError, match="lengths, axis: apply to a single array"):
        read_vectors([np.zeros(3), np.zeros(2)], **given)


def test_a_model_is_held_in_parts_by_several_processes_alone() -> None:
    spec, several = TrainingSpec(parallel="fsdp"), ProcessGroup()
    assert not run_training._in_parts(spec, several)
    several.size = 2
    assert run_training._in_parts(spec, several)
    assert not run_training._in_parts(TrainingSpec(), several)


def test_a_registered_process_is_not_copied_into_its_run(tmp_path: Path) -> None:
    few = {"model": "rnn", "length": 4, "training": {"batch_size": 2}}
    for steps in (2, 2):
        made = hs.train(
            "mess3", tmp_path / "run", num_steps=steps, resume=True, options=hs.TrainOptions(num_samples=4), **few
        )
    assert not (made.path / OWN_PROCESS).exists()


@pytest.mark.parametrize(("symbols", "length"), [(15, 15), (32, 16), (33, 17), (800, 16), (8000, 160)])
def test_few_long_sequences_are_cut_into_fifty_blocks_of_sixteen_at_least(symbols: int, length: int) -> None:
    assert SequenceData([[0, 1] * (symbols // 2) + [0] * (symbols % 2)]).block_length == length


def test_a_file_beyond_all_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    os.truncate(path, disk.MOST_BYTES)  # a sparse file without data
    with disk.reading(path, managed=False):
        pass
    os.truncate(path, (1 << 40) + 1)
    with (
        pytest.raises(InputError, match="1099511627777 bytes, more than the 1099511627776 allowed"),
        disk.reading(path, managed=False),
    ):
        pass


def test_a_long_path_is_cut_in_its_error(tmp_path: Path) -> None:
    for length, cut in ((900, False), (1100, True)):
        path = tmp_path / ("x/" * length)[: length - len(str(tmp_path)) - 1]
        with pytest.raises(InputError) as refused, disk.reading(path, managed=False):
            pass
        assert (str(path) not in str(refused.value)) is cut


@pytest.mark.parametrize(
    ("name", "field", "good", "bad"),
    [("cyclic-hard", "prediction_rate", 1.0, 1.5), ("ginc", "stay", 1.0, 1.5), ("ginc", "stay", 0.0, -0.1)],
)
def test_shares_lie_between_none_and_all(name: str, field: str, good: float, bad: float) -> None:
    assert getattr(registry.build_spec("process", {"name": name, field: good}, "process"), field) == good
    with pytest.raises(InputError, match=rf"{field}: must be in .0, 1\], got {bad}"):
        registry.build_spec("process", {"name": name, field: bad}, "process")


def test_masked_symbols_are_missing() -> None:
    seen, _ = as_batch(np.ma.masked_equal([0, 1, 0], 1), load_process("umbrella").alphabet)
    assert seen.tolist() == [[0, MISSING, 0]]


def test_what_falls_below_two_to_the_minus_forty_becomes_zero() -> None:
    model = Model(np.array([0.5, 0.5]), np.eye(2), np.eye(2))
    for little, left in ((2.0**-41, False), (2.0**-39, True)):
        counts = Counts(np.array([1.0, little]), np.eye(2), np.eye(2), np.zeros(0))
        assert (MStepSettings(0.0, frozenset(), None).maximise(model, counts).initial[1] > 0) == left


def test_zeros_of_a_model_add_nothing_to_its_prior() -> None:
    assert MStepSettings(0.5, frozenset(), None).log_prior(Model(np.array([1.0, 0.0]), np.eye(2), np.eye(2))) == 0


def test_mixed_states_go_back_to_the_first_one_too() -> None:
    found = mixed_states(make_process("golden-mean"), prior=[1.0, 0.0])
    assert bool((found.successor == 0).any())
    assert found.labelled().sum((0, 2)).tolist() == pytest.approx([1.0] * len(found.depth))


def test_sampled_paths_of_short_sequences_of_numbers_are_padded_with_minus_one() -> None:
    numbers = hs.GaussianHMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.0], [5.0]], [[1.0], [1.0]])
    paths = hs.sample_state_paths(numbers, torch.tensor([[[0.0], [5.0]], [[5.0], [0.0]]]), num_paths=3, lengths=[2, 1])
    assert (paths[:, 1, 1] == -1).all()
    assert (paths >= 0).sum() == 9


def test_an_interval_of_a_sampled_memory_error_is_its_standard_error() -> None:
    process = load_process("umbrella")
    few, many = (sampled_memory_error(process, 1, 4, num_samples=count) for count in (100, 1600))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(4, rel=0.2)


def test_the_first_chain_begins_where_it_is_told_and_the_others_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun = (np.array([0.5, 0.5]), np.eye(2) / 2 + 0.25, np.eye(2)), []
    monkeypatch.setattr(gibbs, "symbol_chain", lambda *given: begun.append(given[0].tolist()) or True)
    seen = np.zeros(4, np.int64)
    work = Packed(seen, np.zeros(1, np.int64), np.array([4]), np.arange(1), np.arange(4) == 0)
    chains = gibbs.Chains(num_draws=4, num_chains=2, warm_up=0)
    gibbs.symbol_draws(work, start, np.empty(0, np.int64), gibbs.DirichletPrior(), chains, start)
    assert sum(one == [0.5, 0.5] for one in begun) == 1


def test_what_varies_in_no_direction_has_none() -> None:
    assert belief_space._effective(torch.zeros(2, dtype=torch.float64)) == 0


def test_filters_check_for_underflow_alike_and_pieces_fill_their_memory() -> None:
    assert (forward._RISKY, forward._CHECK_EVERY) == (device.RISKY, device.EVERY)
    for size, rows in ((3, 1), (16, 1), (16, 5)):
        used = 8 * size * rows * counts._piece_length(size, rows)
        assert 0.99 < used / (counts.PIECE_BYTES * (1 if rows == 1 else 4)) <= 1


def test_a_summary_counts_exploratory_rows_and_a_finding_keeps_what_is_true_alone() -> None:
    verdict = verdicts.VERDICTS[0]
    row = SimpleNamespace(finding=SimpleNamespace(verdict=verdict), exploratory="late", sensitivity=None)
    assert ledger.summary([row]) == "1 claims: 1 supported; 1 exploratory"  # type: ignore[list-item]
    plain, grouped = (Finding(title="a", text="b", verdict=verdict, bimodal=one).to_data() for one in (False, True))
    assert "bimodal" not in plain
    assert grouped["bimodal"] is True


def test_a_folder_of_tables_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("tables", "packed"):
        (tmp_path / name).symlink_to("elsewhere")
        with pytest.raises(DamagedError, match="not followed"):
            packed.read_tables(tmp_path)
        (tmp_path / name).unlink()


def test_a_row_that_is_none_is_told_by_its_line() -> None:
    with pytest.raises(DamagedError, match="x:2: not a JSON object"):
        store.parse_table(b"{}\n[]\n", "x")


def test_three_parts_with_zeros_are_listed() -> None:
    said = zeros_in_words({"initial": 1, "transition": 2, "emission": 3})
    assert said == "fixed at zero, as in start: 1 initial, 2 transition and 3 emission probabilities"


def test_mixed_states_need_probabilities_of_words() -> None:
    hmm = hs.PoissonHMM([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[2.0], [9.0]])
    with pytest.raises(InputError, match="PoissonHMM has no probabilities of words"):
        mixed_states(hmm)


def test_a_link_in_a_run_is_not_read_as_its_process(tmp_path: Path) -> None:
    load_process("umbrella").save(tmp_path / "elsewhere.json")
    (tmp_path / OWN_PROCESS).symlink_to("elsewhere.json")
    with pytest.raises(DamagedError, match="not followed"):
        _process_of(SimpleNamespace(path=tmp_path), configure("umbrella"))


@pytest.mark.parametrize("log_r", [-3.0, 0.0, 1.7, 5.0])
def test_a_negative_binomial_of_durations_is_the_likeliest_one(log_r: float) -> None:
    counts, kept = np.arange(1.0, 31.0)[::-1] ** 2, np.ones(30, bool)
    counts = fit_durations._with_mean(log_r, counts, kept) * 1000
    found = fit_durations._negative_binomial(np.full(30, 1 / 30), counts, kept)
    others = [fit_durations._score(fit_durations._with_mean(at, counts, kept), counts) for at in np.linspace(-4, 8, 97)]
    assert fit_durations._score(found, counts) >= max(others) - 1e-6
    assert found == pytest.approx(counts / 1000, abs=1e-4)


def test_a_stream_has_parts_of_four_million_observations_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SequenceData([[0, 1]] * 5)
    for number, parts in ((2**22, 1), (2**22 + 1, 2), (2**30, 5)):
        monkeypatch.setattr(SequenceData, "num_observations", number)
        assert len(list(parts_of(data, 0, {})[0])) == parts


def test_a_forecast_is_shown_without_its_names_and_times() -> None:
    three = torch.zeros(1, 2)
    assert not {"names", "index"} & set(
        repr(Forecasts(three, three, three, ("a", "b"), ["monday"])).replace("=", " ").split()
    )
    assert "monday" not in repr(Forecasts(three, three, three, ("a", "b"), ["monday"]))


@pytest.mark.parametrize(("shift", "shown"), [(0.0, True), (5e-6, True), (1.5e-5, False), (1.0, False)])
def test_a_page_computes_only_modules_that_it_reproduces(shift: float, shown: bool) -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell, self.head = torch.nn.Embedding(2, 3), torch.nn.GRU(3, 3), torch.nn.Linear(3, 2)
            for one in self.parameters():
                torch.nn.init.zeros_(one)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.head(self.cell(self.embed(tokens).transpose(0, 1))[0].transpose(0, 1)) + shift
            return answer

    assert (in_browser(Own(), ProcessDataset(load_process("umbrella"), 4)) is not None) is shown


def test_an_option_that_an_instrument_does_not_use_is_refused() -> None:
    assert hs.InstrumentOptions().without(num_points="no").num_points is None
    with pytest.raises(InputError, match="num_points: is of no use, got 3"):
        hs.InstrumentOptions(num_points=3).without(num_points="is of no use")


def test_activations_of_the_last_position_alone_are_told_from_transposed_ones() -> None:
    tokens = torch.zeros(4, 6)
    for shape, told in (((4, 1, 5), True), ((4, 8, 6), False), ((5, 1, 5), False), ((4, 5), False)):
        with pytest.raises(InputError) as refused:
            activations._require_features_last(shape, tokens)
        assert (activations._ALL_AT_ONCE in str(refused.value)) is told


def test_initial_values_may_differ_from_controls_up_to_a_ratio() -> None:
    drawn = torch.tensor([1.0, -1.0]).repeat(500)
    controls, most = [{"w": drawn}, {"w": -drawn}], initialization.VECTOR_RATIO
    assert initialization.other_law({"w": drawn}, controls[:1]) == ""  # one control is enough
    assert initialization.other_law({"w": most * drawn}, controls) == ""
    assert "root mean square" in initialization.other_law({"w": 1.01 * most * drawn}, controls)


@pytest.mark.parametrize("value", [torch.inf, 0.0])
def test_a_distance_that_has_no_share_hides_no_other(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    process = make_process("random-mixture", num_components=3, num_states=2, num_symbols=3)
    dataset = ProcessDataset(process, layout=PromptLayout(num_demonstrations=1, demonstration_length=3, test_length=3))
    sizes = {"num_symbols": 3, "vocab_size": dataset.vocab_size, "max_length": 16}
    model = make_model("roformer", num_layers=1, width=8, seed=0, **sizes).eval()
    known = task_patching.DISTANCES
    rows = task_patching.task_patching(model, dataset, num_samples=16, num_random=1)
    without = {"without": lambda probs, _: torch.full(probs.shape[:-1], value, dtype=torch.float64)}
    monkeypatch.setattr(task_patching, "DISTANCES", without | known)
    assert task_patching.task_patching(model, dataset, num_samples=16, num_random=1) == rows
    assert rows
