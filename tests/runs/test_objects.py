"""Objects everywhere: any process, corpus, sequences, module can be trained, evaluated, and gone on with."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.trained_ngrams import TrainedNgrams
from hmmscope.datasets.targets import PADDING, dataset_of, make_target
from hmmscope.errors import DamagedError, HmmscopeError, InputError, RefusedError
from hmmscope.lab.experiments import planning, running
from hmmscope.lab.experiments.experiment import Experiment
from hmmscope.processes.recorded_sequences import RecordedSequences
from hmmscope.progress import Progress
from hmmscope.storage import store

HALF = [0.5, 0.5]
MODEL = {"name": "roformer", "num_layers": 1, "num_heads": 2, "width": 8}
RECIPE = {"batch_size": 4, "evaluate_every": 2, "checkpoint_every": 2, "evaluate_samples": 4, "warmup_steps": 2}
STEPS: dict[str, Any] = {"num_steps": 4, "training": RECIPE}
SHORT: dict[str, Any] = STEPS | {"options": hs.TrainOptions(num_samples=6)}


class Net(nn.Module):
    """A module of somebody else: a GRU with dropout, and a part that no gradient reaches."""

    def __init__(self, num_tokens: int = 3, num_outputs: int = 2, rate: float = 0.3) -> None:
        super().__init__()
        self.read = nn.Embedding(num_tokens, 6)
        self.core, self.head, self.idle = nn.GRU(6, 6, batch_first=True), nn.Linear(6, num_outputs), nn.Linear(2, 2)
        self.dropout = nn.Dropout(rate)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.core(self.read(tokens))[0]))


class Causal(nn.Module):
    """As models of transformers: a configuration, and an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.net = SimpleNamespace(vocab_size=3), Net(3, 3)

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.net(input_ids))


def coin() -> hs.HMM:
    return hs.HMM(HALF, [[0.9, 0.1], [0.2, 0.8]], [[0.8, 0.2], [0.3, 0.7]], symbols=["h", "t"], title="coins")


def words() -> hs.SequenceData:
    rng = np.random.default_rng(0)
    return hs.SequenceData(["".join(rng.choice(list("abc"), rng.integers(2, 12))) for _ in range(60)], title="words")


def net(seed: int = 0, **options: Any) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # noqa: TID251 - a user's module has no other way
        return Net(**options)


# --------------------------------------------------------------------------------------------------------------------
# Sources of a training

SOURCES: dict[str, Any] = {
    "HMM": coin,
    "LabelledHMM": lambda: hs.make_process("golden-mean"),
    "Mixture": lambda: hs.Mixture(HALF, [coin(), coin()]),
    "LinearGaussian": lambda: hs.LinearGaussian([[0.9]], [[1.0]]),
    "MatrixProduct": lambda: hs.make_process("matmul", dimension=2),
    "name": lambda: "golden-mean",
    "shipped": lambda: "umbrella",
    "SequenceData": words,
    "Corpus": lambda: hs.ProcessDataset(coin(), 7, seed=3),
    "Corpus of sequences": lambda: hs.ProcessDataset(words(), 5, seed=3),
    "RunConfig": lambda: hs.RunConfig(process=coin(), layout=hs.SequenceLayout(length=7)),
}


@pytest.mark.drawn(5)
@pytest.mark.parametrize("case", SOURCES)
def test_anything_that_generates_is_trained_on(case: str, tmp_path: Path) -> None:
    source = SOURCES[case]()
    length = {} if case.startswith(("Corpus", "Run")) else {"length": 7}
    run = hs.train(source, tmp_path / "run", model=MODEL, seed=5, **length, **SHORT)
    assert run.summary["steps"] == 4
    assert np.isfinite(run.summary["loss"])
    assert len(repr(run)) < 200
    loaded = hs.load_run(tmp_path / "run")
    assert loaded.process.digest == run.process.digest
    assert loaded.summary == run.summary
    assert torch.equal(loaded.dataset()[0:3].tokens, run.dataset()[0:3].tokens)
    known = case not in ("SequenceData", "Corpus of sequences")
    assert (run.summary["bayes_loss"] is not None) == known
    assert ("baseline" in run.summary) == (not known)
    assert "Bayes optimum" in repr(run) if known else "optimum unknown" in repr(run)


def test_objects_and_names_give_the_same_bits(tmp_path: Path) -> None:
    coin().save(tmp_path / "coin.json")
    by_object = hs.train(coin(), tmp_path / "a", model=MODEL, length=7, **SHORT)
    by_path = hs.train(tmp_path / "coin.json", tmp_path / "b", model=MODEL, length=7, **SHORT)
    spec = hs.RunConfig(process=coin(), layout=hs.SequenceLayout(length=7), model=MODEL)
    by_config = hs.train(spec, tmp_path / "c", **SHORT)
    for other in (by_path, by_config):
        assert other.summary == by_object.summary
        for one, two in zip(other.model.parameters(), by_object.model.parameters(), strict=True):
            assert torch.equal(one, two)


def test_a_run_on_an_object_goes_on_with_the_same_object_only(tmp_path: Path) -> None:
    hs.train(coin(), tmp_path / "run", model=MODEL, length=7, **SHORT)
    again = hs.train(
        coin(), tmp_path / "run", model=MODEL, length=7, resume=True, options=hs.TrainOptions(num_samples=6), **STEPS
    )
    assert again.summary is not None
    other = hs.HMM(HALF, [[0.9, 0.1], [0.2, 0.8]], [[0.8, 0.2], [0.3, 0.7]], symbols=["t", "h"])
    with pytest.raises(RefusedError, match="contains a run with another configuration"):
        hs.train(
            other, tmp_path / "run", model=MODEL, length=7, resume=True, options=hs.TrainOptions(num_samples=6), **STEPS
        )
    (tmp_path / "run" / "process.safetensors").unlink()
    with pytest.raises(InputError, match="the HMM object with digest"):
        hs.load_run(tmp_path / "run")


@pytest.mark.parametrize(
    "source, options, part",
    [
        ("nothing", {}, "process: unknown 'nothing'"),
        (3, {}, "process: must be a registered process"),
        ("umbrella", {"model": "roforme"}, "model.name: unknown 'roforme'; did you mean 'roformer'?"),
        ("umbrella", {"model": 3}, "model: must be a torch module, a registered model"),
        (
            "umbrella",
            {"length": 5, "options": hs.TrainOptions(layout=hs.PromptLayout())},
            "length: cannot be combined with layout; give only one of them",
        ),
        ("umbrella", {"options": hs.TrainOptions(target="beliefs")}, "target: unknown 'beliefs'"),
        ("umbrella", {"training": {"steps": 3}}, "training.steps: unknown 'steps'"),
        ("golden-mean", {"model": nn.Linear(3, 3)}, "model: Linear fails on tokens"),
        ("golden-mean", {"model": Net(1)}, "model: does not know token 1 of the samples"),
        ("golden-mean", {"model": Net(2, 1)}, "model: returns 1 logits, but the dataset has 2 symbols"),
        ("golden-mean", {"model": nn.Embedding(2, 2), "training": {"block_length": 2}}, "training.block_length: needs"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_refusals_are_one_line_and_leave_nothing(source: Any, options: dict, part: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        hs.train(source, tmp_path / "run", **options)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("measure", [hs.evaluate, hs.probe])
def test_instruments_say_how_to_make_a_corpus(measure: Any) -> None:
    with pytest.raises(InputError, match=r"dataset: must be a ProcessDataset, got SequenceData.*stream='evaluate'"):
        measure(net(), words())


def test_ngrams_are_not_judged_on_what_they_have_counted() -> None:
    model = net(num_tokens=3, num_outputs=3)
    names = {
        stream: set(hs.evaluate(model, hs.ProcessDataset(words(), 5, stream=stream), num_samples=4).measures)
        for stream in ("corpus", "train", "evaluate", "probe")
    }
    assert names["evaluate"] == names["probe"]
    assert "trained-order-1" in names["probe"]
    assert names["corpus"] == names["train"] == {"model", "context-tree", *(f"order-{k}" for k in range(4))}


def test_a_corpus_of_given_sequences_is_as_long_as_the_longest() -> None:
    data = words()
    assert hs.ProcessDataset(data).layout.length == data.longest  # type: ignore[attr-defined]
    long = hs.SequenceData([[0, 1] * 200])
    assert hs.ProcessDataset(long).layout.length == 256  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"^length: is missing; pass a length or a layout$"):
        hs.ProcessDataset(coin())


@pytest.mark.usefixtures("unchecked")
def test_a_corpus_is_of_a_process() -> None:
    with pytest.raises(
        InputError, match=r"process: must be a process, SequenceData, or the name .*, got tensor.*hmmscope.SequenceData"
    ):
        hs.ProcessDataset(torch.zeros(3, 4), length=20)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="process: unknown 'umbrela'; did you mean 'umbrella'"):
        hs.ProcessDataset("umbrela", length=20)
    umbrella = hs.load_process("umbrella")
    assert hs.ProcessDataset("umbrella", length=20).digest(3) == hs.ProcessDataset(umbrella, length=20).digest(3)


# --------------------------------------------------------------------------------------------------------------------
# Modules of the user


def test_a_module_is_trained_in_place_and_kept(tmp_path: Path) -> None:
    module, before = net(), net().state_dict()
    run = hs.train(coin(), tmp_path / "run", model=module, length=7, **SHORT)
    assert run.model is module
    assert not torch.equal(module.read.weight, before["read.weight"])
    config = store.read_json(tmp_path / "run" / "config.json")["model"]
    assert config["name"] == "given"
    assert config["class_name"].endswith("test_objects.Net")
    assert "read.weight 3x6" in config["shapes"]
    with pytest.raises(
        InputError, match=r"its model is a user module, .*Net; .* hs.load_run\('.*', model=.*Net\(...\)\)"
    ):
        hs.load_run(tmp_path / "run")
    loaded = hs.load_run(tmp_path / "run", model=net(7))
    for one, two in zip(loaded.model.parameters(), module.parameters(), strict=True):
        assert torch.equal(one, two)
    for name, tensor in loaded.untrained().state_dict().items():
        assert torch.equal(tensor, before[name])
    with pytest.raises(InputError, match="must have the parameters of the run"):
        hs.load_run(tmp_path / "run", model=net(num_tokens=4))


def test_a_module_with_dropout_is_a_function_of_the_seed_and_goes_on(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    whole = hs.train(coin(), tmp_path / "a", model=net(), length=7, **SHORT)
    assert torch.equal(torch.get_rng_state(), state)
    again = hs.train(coin(), tmp_path / "b", model=net(), length=7, **SHORT)
    other = hs.train(coin(), tmp_path / "c", model=net(), length=7, seed=9, **SHORT)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
    assert not torch.equal(whole.model.head.weight, other.model.head.weight)
    # stopped after its first checkpoint: the second goes on from there, whatever weights the module comes with
    for path in (tmp_path / "b").glob("done.json"):
        path.unlink()
    for path in sorted((tmp_path / "b" / "checkpoints").iterdir())[-1:]:
        store.remove_folder(path)
    resumed = hs.train(
        coin(), tmp_path / "b", model=net(3), length=7, resume=True, options=hs.TrainOptions(num_samples=6), **STEPS
    )
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])


def test_models_with_logits_are_models(tmp_path: Path) -> None:
    run = hs.train(coin(), tmp_path / "run", model=Causal(), length=7, **SHORT)
    score = hs.evaluate(run.model, run.dataset(), num_samples=6)
    assert score.loss == pytest.approx(run.summary["loss"])
    rows = hs.probe(run.model, run.dataset("probe"), target="previous-0", layers=["net.dropout"], num_samples=8)
    assert {row["layer_name"] for row in rows} == {"net.dropout"}


@pytest.mark.parametrize("model", [Net(1), Causal()], ids=["embedding", "vocabulary"])
def test_too_small_a_vocabulary_is_one_line(model: nn.Module) -> None:
    process = hs.HMM([1.0], [[1.0]], [[0.2] * 5])
    with pytest.raises(
        InputError, match=r"model: does not know token 4 of the samples; its (vocabulary|embedding (net.)?read) has"
    ):
        hs.evaluate(model, hs.ProcessDataset(process, 50), num_samples=2)
    layer = "read" if isinstance(model, Net) else "net.read"
    with pytest.raises(InputError, match="model: does not know token 4"):
        hs.probe(model, hs.ProcessDataset(process, 50), target="previous-0", layers=[layer], num_samples=8)


def test_too_few_positions_are_not_too_small_a_vocabulary() -> None:
    class Short(Causal):
        def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
            nn.functional.embedding(torch.arange(input_ids.shape[1]), torch.zeros(8, 2))
            return super().forward(input_ids)

    assert hs.evaluate(Short(), hs.ProcessDataset(coin(), 8), num_samples=2).loss > 0
    with pytest.raises(
        InputError,
        match=r"model: Short fails on tokens \(4, 19\): .* the model runs on 8 tokens per sample but not on 19; .* <= 8",
    ):
        hs.evaluate(Short(), hs.ProcessDataset(coin(), 20), num_samples=2)


# --------------------------------------------------------------------------------------------------------------------
# Given sequences


def test_windows_lie_in_their_part_and_are_padded() -> None:
    data = words()
    process = RecordedSequences(data)
    for stream, part in (
        ("train", data.train),
        ("evaluate", data.validation),
        ("probe", data.validation),
        ("corpus", data),
    ):
        batch = hs.ProcessDataset(process, 5, stream=stream)[0:300]
        texts = [data.as_text(row[kept]) for row, kept in zip(batch.observations, batch.states >= 0, strict=True)]
        allowed = [part.as_text(sequence) for sequence in part]
        assert all(any(text in whole for whole in allowed) for text in texts)
        assert ((batch.observations == 0) | (batch.states == 0)).all()
        assert (batch.states.diff(dim=1) <= 0).all()  # padding is at the end
        assert {whole for whole in allowed if len(whole) <= 5} <= set(texts)


def test_streams_of_judgement_show_each_piece_once() -> None:
    data = words()
    process = RecordedSequences(data)
    count = process.num_different("evaluate", 4)
    batch = hs.ProcessDataset(process, 4, stream="evaluate")[0:count]
    seen = sorted(data.as_text(row[kept]) for row, kept in zip(batch.observations, batch.states >= 0, strict=True))
    texts = [data.as_text(sequence) for sequence in data.validation]
    pieces = [text[i : i + 4] for text in texts for i in range(0, len(text), 4) if i == 0 or len(text) - i > 1]
    assert seen == sorted(pieces)
    again = hs.ProcessDataset(process, 4, stream="evaluate")[count : 2 * count]
    assert torch.equal(again.observations, batch.observations)


def test_windows_that_come_again_are_not_counted_twice() -> None:
    dataset = hs.ProcessDataset(words(), 40, stream="probe")
    count = len(words().validation)
    assert dataset.different(1000) == count == hs.ProcessDataset(words(), 40, stream="evaluate").different(1000)
    assert (
        hs.ProcessDataset(words(), 40, stream="train").different(1000)
        == hs.ProcessDataset(coin(), 40).different(1000)
        == 1000
    )
    model = net(num_tokens=3, num_outputs=3)
    assert len(hs.evaluate(model, dataset, num_samples=256).measures["model"]["loss"]) == count
    with pytest.raises(
        InputError, match=f"num_samples: must be at least 8 .three quarters train the probe, .* tests it., got {count}"
    ):
        hs.probe(model, dataset, target="previous-0", layers=["read"])


def test_padding_is_not_asked_for() -> None:
    dataset = hs.ProcessDataset(words(), 9, stream="train")
    target = make_target("observation", dataset.process, dataset.layout)
    batch = dataset[0:20]
    labels = target.labels(batch)
    assert isinstance(labels, torch.Tensor)
    inside = batch.states[:, 1:] >= 0
    assert torch.equal(labels, batch.observations[:, 1:].where(inside, PADDING))
    logits = torch.randn(20, 8, 3, generator=torch.Generator().manual_seed(0))
    by_hand = -logits.log_softmax(-1).gather(2, batch.observations[:, 1:, None])[..., 0][inside].mean()
    assert target.loss(logits, labels) == pytest.approx(by_hand.item(), rel=1e-6)
    terms = target.loss_terms(logits.double().softmax(-1), labels)
    assert torch.equal(terms.isnan(), ~inside)
    with pytest.raises(InputError, match="recorded sequences have no Bayes optimum, because their process is unknown"):
        target.optimum(batch)
    with pytest.raises(InputError, match="must be observation for recorded sequences"):
        make_target("belief", dataset.process, dataset.layout)
    with pytest.raises(InputError, match="one sequence per sample; use the layout sequences"):
        hs.ProcessDataset(words(), layout=hs.PromptLayout())[0:1]


def mixed() -> hs.Mixture:
    other = hs.HMM([1, 0], [[0.5, 0.5], [0.5, 0.5]], [[0.1, 0.9], [0.6, 0.4]])
    return hs.Mixture([0.25, 0.75], [coin(), other])


def test_own_sequences_stand_beside_the_optimum_of_the_process_that_was_trained_on(tmp_path: Path) -> None:
    process = mixed()
    model, layout = net(), hs.SequenceLayout(length=6)
    rows = hs.ProcessDataset(process, 9, seed=3)[0:40].observations
    ragged = [row[: 2 + number % 8].tolist() for number, row in enumerate(rows)]
    path = tmp_path / "own.txt"
    path.write_text("\n".join(" ".join(map(str, row)) for row in ragged))
    score = hs.evaluate(model, dataset_of(path, process, layout))
    assert (score.invalid, score.no_optimum) == (None, None)
    begun = [torch.tensor(row[:6]) for row in ragged]
    by_hand = [hs.optimal_predictions(process, row[None]).log_likelihood_terms[0, 1:] for row in begun]
    assert score.bayes_loss == pytest.approx(-torch.cat(by_hand).mean().item(), rel=1e-12)
    asked = ~np.isnan(score.measures["optimum"]["loss"])
    assert asked.sum() == sum(len(row) - 1 for row in begun)
    assert (np.isnan(score.measures["model"]["excess"]) == ~asked).all()
    assert score.excess[0] > 0
    assert {row["value"] for row in score.rows("positions")} - {None}
    data = hs.SequenceData(ragged, symbols=2)
    assert hs.evaluate(model, dataset_of(data, process, layout)).bayes_loss == score.bayes_loss


def test_own_sequences_that_are_not_of_the_process_are_found_out() -> None:
    process, layout = mixed(), hs.SequenceLayout(length=20)
    score = hs.evaluate(net(), dataset_of([[0] * 20, [0, 0, 0, 1] * 5] * 10, process, layout))
    assert score.invalid.startswith("the sequences do not come from the process given with them: the optimum is")
    with pytest.raises(InputError, match="must have the process's symbols"):
        dataset_of(hs.SequenceData(["ab", "ba"]), process, layout)
    with pytest.raises(InputError, match="symbols: must be 2, got 3"):
        dataset_of(hs.SequenceData([[0, 1, 2]]), process, layout)
    with pytest.raises(
        InputError, match=r"sequences: need a process of symbols and one sequence per sample \(SequenceLayout\)"
    ):
        dataset_of([[0, 1]], process, hs.PromptLayout())
    nobodys = dataset_of(["abba"], RecordedSequences(words()), layout)
    assert hs.evaluate(net(num_tokens=3, num_outputs=3), nobodys).bayes_loss is None


def test_trained_ngrams_are_those_of_a_plain_count() -> None:
    data = words()
    found = TrainedNgrams(RecordedSequences(data), 3)
    batch = hs.ProcessDataset(data, 6, stream="evaluate")[0:5].observations
    positions = np.arange(1, 6)
    laws = found.predictions(batch, positions)
    train = [sequence.tolist() for sequence in data.train]

    def law(context: list[int], strengths: tuple[float, ...]) -> np.ndarray:
        shorter = law(context[1:], strengths) if context else np.full(3, 1 / 3)
        counts, k = np.zeros(3), len(context)
        for sequence in train:
            for t in range(k, len(sequence)):
                counts[sequence[t]] += sequence[t - k : t] == context
        return (counts + strengths[k] * shorter) / (counts.sum() + strengths[k])

    for order in range(4):
        for b, row in enumerate(batch.tolist()):
            for j, t in enumerate(positions):
                expected = law(row[max(0, t - order) : t], found.strengths[order])
                np.testing.assert_allclose(laws[f"trained-order-{order}"][b, j], expected, rtol=1e-12)


def test_a_score_without_an_optimum_says_so(tmp_path: Path) -> None:
    run = hs.train(words(), tmp_path / "run", model=MODEL, **SHORT)
    score = hs.evaluate(run.model, run.dataset(), num_samples=5)
    assert score.bayes_loss is None
    assert score.excess is None
    assert score.invalid is None
    assert score.baseline is not None
    assert "optimum unknown" in repr(score)
    names = {row["predictor"] for row in score.table()}
    assert {"model", "trained-order-0", "trained-order-3", "trained-context-tree", "order-0", "context-tree"} <= names
    assert "optimum" not in names
    rows = score.rows("positions")
    assert all(np.isfinite(row["value"]) for row in rows)
    assert {row["x"]: row["samples"] for row in rows if row["predictor"] == "model" and row["metric"] == "loss"}[1] == 5


@pytest.mark.long
def test_training_on_sequences_learns_more_than_frequencies(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [np.resize([[0, 1, 2], [0, 2, 1]][k % 2], rng.integers(9, 20)).tolist() for k in range(60)]
    recipe = {**RECIPE, "batch_size": 16, "learning_rate": 1e-2, "evaluate_every": 50}
    run = hs.train(hs.SequenceData(rows), tmp_path / "run", model=MODEL, num_steps=150, training=recipe)
    losses = {row["predictor"]: row["loss"] for row in hs.evaluate(run.model, run.dataset(), num_samples=6).table()}
    assert losses["model"] < 0.5 * losses["trained-order-0"]


@pytest.mark.usefixtures("unchecked")
def test_training_reads_as_fit_and_study_do(tmp_path: Path) -> None:
    """Lists, columns with lengths, texts, and files whose reading has to be said."""
    rng = np.random.default_rng(2)
    drawn = rng.integers(0, 2, (12, 6))
    rows, flat = drawn.tolist(), drawn.ravel().tolist()
    wanted = hs.SequenceData(rows)
    text = "day,sky\n" + "".join(f"{k},{'-' if k % 7 == 3 else 'ab'[v]}\n" for k, v in enumerate(flat))
    (tmp_path / "sky.csv").write_text(text)
    (tmp_path / "sky.log").write_text("\n".join("".join(map("ab".__getitem__, row)) for row in rows))
    sky = hs.SequenceData(tmp_path / "sky.csv", column="sky", unit="lines", missing="-")
    sources: list[tuple[Any, dict, str]] = [
        (rows, {}, wanted.digest),
        (np.array(flat)[:, None], {"lengths": [6] * 12}, wanted.digest),
        (tmp_path / "sky.log", {}, hs.SequenceData(rows, symbols=["a", "b"]).digest),
        (tmp_path / "sky.csv", {"column": "sky", "unit": "lines", "missing": "-"}, sky.in_blocks().digest),
    ]
    for number, (source, options, digest) in enumerate(sources):
        run = hs.train(source, tmp_path / f"run-{number}", model=MODEL, **SHORT, **options)
        assert run.process.digest == digest
        assert run.process.data.num_steps == 72
    for source, options, message in (
        (wanted, {"unit": "words"}, "unit: SequenceData is already read"),
        (coin(), {"column": "a"}, "column: needs a source that is a file or table of sequences"),
        ("umbrella", {"column": "a"}, "column: needs a source that is a file or table of sequences, got 'umbrella'"),
        (rows, {"colum": "a"}, "option: unknown 'colum'; did you mean 'column'"),
    ):
        with pytest.raises(InputError, match=message):
            hs.train(source, tmp_path / "no", model=MODEL, **SHORT, **options)
    assert not (tmp_path / "no").exists()


def test_a_run_on_a_file_of_sequences_keeps_them(tmp_path: Path) -> None:
    words().save(tmp_path / "words.npz")
    run = hs.train(tmp_path / "words.npz", tmp_path / "run", model=MODEL, **SHORT)
    (tmp_path / "words.npz").unlink()
    loaded = hs.load_run(tmp_path / "run")
    assert loaded.process.digest == run.process.digest == words().digest
    (tmp_path / "run" / "process.safetensors").unlink()
    hs.ProcessDataset(hs.SequenceData([[0, 1], [1], [2]]), 2).process.save(tmp_path / "run" / "process.safetensors")
    with pytest.raises(DamagedError, match="the process differs from that in training"):
        hs.load_run(tmp_path / "run")


def test_a_file_that_was_exchanged_is_refused_by_runs_and_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.json"
    hs.load_process("umbrella").save(path)
    data = {
        "process": {"name": "file", "path": str(path)},
        "layout": {"name": "sequences", "length": 6},
        "model": MODEL,
    }

    class Mine(Experiment):
        name = title = summary = "mine"
        sizes, groups = {"smoke": {}}, {}

        def plan(self, scale: str, **choices: object) -> dict:
            return {"a": data}

        def measure(self, *found: object) -> dict:
            raise InputError("stopped")

        def figures(self, tables: object) -> list:
            return []

    monkeypatch.setattr(planning, "experiment_named", lambda name: Mine())
    monkeypatch.setattr(running, "train", lambda *_, **__: Mine().measure())
    run = hs.train(hs.RunConfig(**data), tmp_path / "run", **SHORT)
    assert run.config.process.digest == run.process.digest
    with pytest.raises(HmmscopeError, match="stopped"):
        running.run_experiment("mine", "smoke", tmp_path / "out", quiet=True)
    path.unlink()
    hs.load_process("dishonest-casino").save(path)
    with pytest.raises(RefusedError, match=r"process\.digest"):
        hs.train(hs.RunConfig(**data), tmp_path / "run", resume=True, options=hs.TrainOptions(num_samples=6), **STEPS)
    with pytest.raises(RefusedError, match=r"process\.digest"):
        running.run_experiment("mine", "smoke", tmp_path / "out", resume=True, quiet=True)
    assert hs.load_run(tmp_path / "run").process.digest == run.process.digest  # the folder has its own copy


# --------------------------------------------------------------------------------------------------------------------
# In a notebook, and on the command line


def test_reprs_are_short() -> None:
    dataset = hs.ProcessDataset(coin(), 7)
    score = hs.evaluate(net().eval(), dataset, num_samples=4)
    for thing in (coin(), hs.Mixture(HALF, [coin(), coin()]), hs.make_process("ran-lds"), dataset, score, words()):
        assert len(repr(thing)) < 250
        assert "array(" not in repr(thing)
        assert "tensor(" not in repr(thing)
        assert thing._repr_html_().startswith("<table>")  # type: ignore[attr-defined]
    prompts = hs.ProcessDataset(
        coin(), layout=hs.PromptLayout(num_demonstrations=2, demonstration_length=3, test_length=3)
    )
    attentive = hs.make_model("roformer", num_symbols=2, vocab_size=3, num_layers=1, num_heads=1, width=4)
    for rows in (
        hs.attention_map(attentive, prompts, num_samples=2),
        hs.shuffle_test(attentive, prompts, num_samples=2),
    ):
        assert rows._repr_html_().startswith("<table>")
        assert rows.table() == list(rows)
        assert len(rows.plot().axes) == 1
    table = score.table()
    assert {row["predictor"] for row in table} == set(score.measures)
    assert table[0]["loss"] == pytest.approx(score.loss)
    hostile = hs.HMM([1.0], [[1.0]], [[1.0]], title="<script>")
    assert "<script>" not in hostile._repr_html_()


def test_an_export_says_what_it_is_and_not_its_weights(tmp_path: Path) -> None:
    model = hs.make_model("roformer", num_symbols=3, num_layers=1, width=8, num_heads=2)
    exported = hs.interop.export_huggingface(model, tmp_path / "out")
    assert repr(exported).startswith("Exported(gpt_neox, ")
    assert len(repr(exported)) < 100


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("answer", [hs.filter_beliefs, hs.smooth_beliefs, hs.most_likely_states, hs.log_likelihood])
@pytest.mark.parametrize("observations", ["hth", Path("hth.txt"), [["h"], ["x", "h"]]], ids=["text", "path", "unknown"])
def test_what_is_no_symbol_is_one_line(answer: Any, observations: Any) -> None:
    with pytest.raises(
        InputError, match=r"observations: .*; pass symbols \(batch, time\), or rows that SequenceData reads"
    ) as caught:
        answer(coin(), observations)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("observations", [[["h", "t"], ["h"]], [[0, 1], [0]]], ids=["names", "numbers"])
def test_names_and_ragged_lists_are_read(observations: Any) -> None:
    tokens, lengths = hs.SequenceData(["ht", "h"], symbols=coin().symbols).padded()
    expected = hs.filter_beliefs(coin(), tokens, lengths=lengths).log_likelihood
    assert torch.equal(hs.filter_beliefs(coin(), observations).log_likelihood, expected)


def test_a_notebook_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    shown: list[str] = []

    class ZMQInteractiveShell:
        pass

    html = SimpleNamespace(HTML=str, display=lambda *_, **__: SimpleNamespace(update=shown.append))
    shell = SimpleNamespace(get_ipython=ZMQInteractiveShell, display=html)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", html)
    monkeypatch.setattr("hmmscope.progress._DELAY", 0.0)
    with Progress(4, "<fit>", unit="steps", per_step=1.0) as progress:
        for step in range(1, 5):
            progress.update(step, "a & b")
    assert "&lt;fit&gt; <progress value='4' max='4'></progress> 4/4" in shown[-1]
    assert shown[-1].endswith("a &amp; b")
    assert "steps/s" in shown[-1]
    with Progress(2, "fit", unit="", per_step=1.0) as progress:  # what was left out is no rate
        progress.update(1)
        progress.update(2)
    assert "/s" not in shown.pop()
    with Progress(4, "fit", unit="steps", per_step=1.0, quiet=True) as progress:
        progress.update(4)
    assert len(shown) == 1
    assert capsys.readouterr().err == ""


def test_gradients_and_types_that_the_caller_has_set_change_no_bit(tmp_path: Path) -> None:
    """Weights and the last loss stay as they are; the caller's settings are put back."""

    def trained(name: str) -> list[torch.Tensor]:
        run = hs.train(coin(), tmp_path / name, model=MODEL, length=7, **SHORT)
        again = hs.load_run(tmp_path / name)
        assert all(map(torch.equal, run.model.parameters(), again.model.parameters()))
        return [*run.model.parameters(), torch.tensor(run.summary["loss"], dtype=torch.float64)]

    expected = trained("plain")
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        double = trained("double")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(kind)
    with torch.no_grad():
        without = trained("no_grad")
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        inference = trained("inference_mode")
        assert torch.is_inference_mode_enabled()
    for found in (double, without, inference):
        assert [one.dtype for one in found] == [one.dtype for one in expected]
        assert all(map(torch.equal, found, expected))


class Untrainable(torch.nn.Embedding):
    """A table of logits whose forward leaves gradients out, by ``how``."""

    how: Any = staticmethod(lambda: torch.no_grad())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with self.how():
            return super().forward(tokens)


def test_modules_that_no_gradient_can_train_are_one_line(tmp_path: Path) -> None:
    frozen = torch.nn.Embedding(3, 2).requires_grad_(False)
    inference = Untrainable(3, 2)
    inference.how = torch.inference_mode
    with torch.inference_mode():
        made = torch.nn.Embedding(3, 2)
    for module, said in (
        (frozen, "model: has no trainable weights; "),
        (Untrainable(3, 2), "model: its output has no gradient; "),
        (inference, "model: its output has no gradient; "),
        (made, r"model: its weights were created under torch.inference_mode\(\); "),
    ):
        with pytest.raises(InputError, match=said):
            hs.train(coin(), tmp_path / "run", model=module, length=7, **SHORT)
        assert not (tmp_path / "run").exists()
    spared = Untrainable(3, 2)  # in evaluation alone
    spared.how = lambda: torch.set_grad_enabled(spared.training and torch.is_grad_enabled())
    assert hs.train(coin(), tmp_path / "run", model=spared, length=7, **SHORT).summary is not None
