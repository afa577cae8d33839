"""What a training takes, by hand; statistics of goodness by hand; modules of one's own on a page; refusals."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.errors import DamagedError, InputError, ResourceError
from hmmscope.models.base import ModelIO
from hmmscope.models.user_module import UserModule
from hmmscope.runs import dry_run, goodness, posterior, resources
from hmmscope.runs.config import RunConfig, config_from_data, configure, pinned, read_yaml
from hmmscope.runs.forecasts import forecast_with
from hmmscope.runs.page_export import in_browser
from hmmscope.runs.pipeline import FIRST_WEIGHTS, load_run, model_io_of
from hmmscope.runs.settings import settings, threads
from hmmscope.runs.training import _first_weights
from hmmscope.sequences.gaps import MISSING
from hmmscope.storage import seals
from hmmscope.training.distributed import ProcessGroup
from hmmscope.training.spec import TrainingSpec
from hmmscope_studies import benchmark as hmmbench

EVEN = hs.make_process("even")

CORPUS = hs.ProcessDataset("umbrella", 6)
FEW: dict[str, Any] = {
    "model": "rnn",
    "length": 4,
    "training": {"batch_size": 2, "checkpoint_every": 1},
    "options": hs.TrainOptions(num_samples=4),
}


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0.0 seconds"),
        (119.9, "119.9 seconds"),
        (120.0, "2.0 minutes"),
        (7199.0, "120.0 minutes"),
        (7200.0, "2.0 hours"),
        (172_799.0, "48.0 hours"),
        (172_800.0, "2.0 days"),
    ],
)
def test_a_time_has_the_largest_unit_of_which_there_are_two(seconds: float, said: str) -> None:
    assert resources.duration(seconds) == said


def test_samples_and_tokens_of_a_training() -> None:
    """A fixed set ends each epoch with what is left of it; stages read prefixes, and a column that is no observation."""
    fixed = TrainingSpec(num_steps=7, batch_size=4, num_trajectories=10)
    assert [dry_run._samples(fixed, 0, end) for end in range(8)] == [0, 4, 8, 10, 14, 18, 20, 24]
    assert dry_run._samples(fixed, 2, 5) == 10
    assert dry_run._samples(TrainingSpec(num_steps=7, batch_size=4), 2, 5) == 12
    grow = TrainingSpec(num_steps=6, batch_size=2, curriculum=(2, 4, 9))
    assert dry_run._columns_of_epochs(grow, 8, 9) == [(3, 4), (5, 4), (9, 4)]
    epochs = TrainingSpec(num_steps=6, batch_size=2, epoch_steps=3, curriculum=(2, 4))
    assert dry_run._columns_of_epochs(epochs, 8, 8) == [(2, 6), (4, 6)]
    assert dry_run._columns_of_epochs(TrainingSpec(num_steps=6, batch_size=2), 8, 9) == [(9, 12)]


def test_what_stays_on_the_disk() -> None:
    """The newest two checkpoints and the milestones; weights and two moments of each."""
    assert dry_run._kept(TrainingSpec(num_steps=10, checkpoint_every=3)) == 2
    assert dry_run._kept(TrainingSpec(num_steps=10, checkpoint_every=10)) == 1
    assert dry_run._kept(TrainingSpec(num_steps=11, checkpoint_every=10)) == 2
    assert dry_run._kept(TrainingSpec(num_steps=64, checkpoint_every=100, num_log_checkpoints=3)) == 3
    net = nn.Linear(3, 2)
    net.register_buffer("seen", torch.zeros(5))
    assert dry_run._checkpoint_bytes(net) == 4 * (3 * 8 + 5)  # type: ignore[arg-type]
    config = RunConfig(training=TrainingSpec(num_steps=10))
    ports = model_io_of(config, hs.make_target("observation", config.process.build(), config.layout))
    size = resources.disk_bytes(config, ports)
    found = dry_run.estimate(config, measure=False)
    assert size == 200 * 10 + 12 * found.parameters * 3
    assert resources.disk_bytes(replace(config, training=TrainingSpec(num_steps=64, num_log_checkpoints=4)), ports) == (
        200 * 64 + 12 * found.parameters * 5
    )


def test_a_large_model_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure("umbrella", model="rnn", length=8, training={"device": "cpu", "num_steps": 7200})
    ports = model_io_of(config, hs.make_target("observation", config.process.build(), config.layout))
    size = dry_run.estimate(config, measure=False).parameters
    monkeypatch.setattr(resources, "LARGE", size)
    resources.warn_if_large(config, ports)
    monkeypatch.setattr(resources, "LARGE", size - 1)
    monkeypatch.setattr(resources, "torch_seconds", lambda *_: 14_400.0)
    said = rf"rnn has {size:,} parameters; a training step takes about 0.0 GiB of memory, and 7,200 steps take about "
    with pytest.warns(UserWarning, match=said + "4.0 hours"):
        resources.warn_if_large(config, ports)
    with pytest.warns(UserWarning, match=said + "2.0 hours"):
        resources.warn_if_large(replace(config, training=replace(config.training, num_threads=2)), ports)
    monkeypatch.setattr("hmmscope.system_info.free_memory", lambda: 1000)
    with pytest.raises(ResourceError, match=r"a training step: needs .* lower training\.batch_size, or raise"):
        resources.require_memory_for(config, ports)


def test_an_estimate_in_lines() -> None:
    config = configure("umbrella", length=8, training={"batch_size": 4, "num_steps": 6, "epoch_steps": 3})
    found = dry_run.ResourceEstimate(
        parameters=1234, samples=24, tokens=192, flops=4e9, memory_bytes=2**29, free_bytes=2**31, disk_bytes=2_500_000,
        engine="torch", engine_reason="as requested", steps_measured=1, samples_measured=4, seconds=2.0,
        other_precision="bfloat16", other_seconds=4.0,
    )  # fmt: skip
    lines = [line.split(maxsplit=1) for line in dry_run.as_text(found, config)]
    assert dict(lines) == {
        "parameters": "1,234",
        "steps": "6 of 4 samples (2 epochs)",
        "tokens": "192 in 24 samples",
        "engine": "torch (as requested)",
        "FLOPs": "4e+09 (matrix products, forward and backward)",
        "memory": "about 0.50 GiB for a step, 2.0 GiB free",
        "disk": "about 2.5 MB for 2 stored checkpoints" if dry_run._kept(config.training) == 2 else lines[6][1],
        "time": "about 2.0 seconds (96 tokens/s, measured over 1 step)",
        "speed": "2.0 GFLOP/s",
        "precision": "bfloat16 would be 0.50 times as fast here",
    }
    less = dry_run.as_text(replace(found, steps_measured=2, samples_measured=3, flops=None, memory_bytes=None), config)
    assert any("measured over 2 steps of 3 samples" in line for line in less)
    assert not any(line.startswith(("FLOPs", "memory", "speed")) for line in less)
    assert not any(line.startswith("time") for line in dry_run.as_text(replace(found, seconds=None), config))


# --------------------------------------------------------------------------------------------------------------------


def test_runs_grams_and_lags_by_hand() -> None:
    """A gap parts runs, n-grams and pairs; what is longer than the longest run counts with it."""
    seen = [torch.tensor([0, 0, 1, MISSING, 1, 1, 1]), torch.tensor([0] * 15), torch.tensor([], dtype=torch.int64)]
    runs = goodness._runs(seen)
    assert {place: share for place, share in runs.items() if share} == {
        (1,): 0.25,
        (2,): 0.25,
        (3,): 0.25,
        (12, 0): 0.25,
    }
    assert [goodness._called(place) for place in ((3,), (12, 0), (0, 1))] == ["3", "12+", "0 1"]
    grams = goodness._grams(seen[:1], lambda one: one, 2)
    assert grams == {(0, 0): 0.25, (0, 1): 0.25, (1, 1): 0.5}
    assert goodness._grams(seen[2:], lambda one: one, 2) == {}
    equal = goodness._equal(seen[:1])
    assert (equal[1,], equal[2,], equal[6,], equal[16,]) == (3 / 4, 2 / 3, 0.0, 0.0)
    numbers = [torch.tensor([[1.0], [3.0], [1.0], [3.0]], dtype=torch.float64)]
    lags = goodness._correlations(numbers, 0)
    assert (lags[1,], lags[2,], lags[3,], lags[4,]) == (-1.0, 1.0, -1.0, 0.0)
    assert set(goodness._correlations([torch.ones(4, 1, dtype=torch.float64)], 0).values()) == {0.0}
    edges = torch.tensor([1.0, 2.0], dtype=torch.float64)
    binned = goodness._binned(torch.tensor([[0.0], [1.0], [1.5], [2.0], [math.nan]], dtype=torch.float64), 0, edges)
    assert binned.tolist() == [0, 1, 1, 2, MISSING]


def test_the_p_of_the_largest_deviation() -> None:
    """In standard deviations over all rows; what never varies counts for nothing."""
    table = np.array([[3.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    assert goodness._p_value(table) == 0.25
    assert goodness._p_value(table[1:]) == 1.0
    assert goodness._p_value(np.ones((5, 2))) == 1.0
    assert goodness._most([{(0,): 0.5, (1,): 0.2}, {(2,): 0.6, (1,): 0.5}]) == [(2,), (0,), (1,)]
    assert len(goodness._most([{(k,): 1.0 for k in range(20)}])) == goodness.GRAMS


def test_goodness_in_lines() -> None:
    rows = tuple(
        {"family": "runs", "place": str(k), "value": value, "mean": 0.5, "low": 0.4, "high": 0.6}
        for k, value in enumerate([0.4, 0.6, 0.3, *[0.7] * 6])
    )
    found = goodness.Goodness(rows, {"runs": 0.3, "n-grams of 2": 0.6}, 20, drawn=True)
    assert found.adjusted == {"runs": 0.6, "n-grams of 2": 1.0}
    assert found.lines() == [
        "goodness of fit against 20 simulations of draws from the posterior:",
        "  runs             p 0.300, adjusted 0.600 for 2 families; outside the band at 2, 3, 4, 5, 6, 7, ...",
        "  n-grams of 2     p 0.600, adjusted 1.000 for 2 families",
    ]
    assert "of the fitted model" in replace(found, drawn=False).lines()[0]
    with pytest.raises(InputError, match="num_simulations: must be at least 20, got 19"):
        goodness.goodness_of_fit([hs.load_process("umbrella")], [torch.tensor([0, 1, 0])], 19)
    drawn = goodness.goodness_of_fit([hs.load_process("umbrella")], [torch.tensor([0, 1, 0])], 20)
    assert (drawn.num_simulations, drawn.drawn) == (20, False)
    assert set(drawn.p_values) == {"runs", "n-grams of 2", "n-grams of 3", "autocorrelation"}


def test_forecasts_of_one_model_are_its_own() -> None:
    hmm = hs.load_process("umbrella")
    found = forecast_with([hmm], torch.tensor([0, 1]), 3)
    assert torch.equal(found.mean, hs.forecast(hmm, torch.tensor([[0, 1]]), 3).observations[0])
    assert torch.equal(found.low, found.high)
    assert [(row["step"], row["outcome"]) for row in found.table()] == [(s, o) for s in (1, 2, 3) for o in (0, 1)]
    several = "observed: must be one sequence"
    for steps, past, said in ((0, [0, 1], "steps: must be at least 1"), (1, [[0, 1], [1, 1]], several)):
        with pytest.raises(InputError, match=said):
            forecast_with([hmm], torch.tensor(past), steps)


# --------------------------------------------------------------------------------------------------------------------


class Own(nn.Module):
    """A recurrent module of one's own."""

    def __init__(
        self, kind: type[nn.RNNBase] = nn.GRU, *, scale: float = 1.0, extra: bool = False, **options: Any
    ) -> None:
        super().__init__()
        self.embedding, self.scale = nn.Embedding(3, 4), scale
        self.layers = kind(4, 5, **{"batch_first": True} | options)
        self.head = nn.Linear(10 if options.get("bidirectional") else 5, 3, bias=not options.get("num_layers"))
        self.extra = nn.LayerNorm(5) if extra else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        turned = not self.layers.batch_first
        x = self.layers(x.transpose(0, 1) if turned else x)[0]
        return self.scale * self.head(x.transpose(0, 1) if turned else x)


def test_a_recurrent_module_of_ones_own_is_known_by_its_answers() -> None:
    for kind, cell in ((nn.GRU, "gru"), (nn.LSTM, "lstm"), (nn.RNN, "tanh")):
        model = Own(kind, num_layers=2)
        found = in_browser(model, CORPUS)
        assert found is not None
        sizes, weights = found
        assert sizes == {"kind": "recurrent", "cell": cell, "tokens": 3, "heads": 0, "layers": 2}
        assert torch.equal(weights["head.weight"], model.head.weight[:2])
        assert weights["head.bias"].tolist() == [0, 0]
        assert torch.equal(weights["layers.1.weight_hh_l0"], model.layers.weight_hh_l1)
        assert len(weights) == 3 + 2 * 4
    biased = Own()
    found = in_browser(biased, CORPUS)
    assert torch.equal(found[1]["head.bias"], biased.head.bias[:2])
    bare = in_browser(Own(nn.GRU, bias=False), CORPUS)
    assert bare[1]["layers.0.bias_ih_l0"].tolist() == [0] * 15
    assert in_browser(Own(batch_first=False), CORPUS) is not None
    for other in (Own(bidirectional=True), Own(scale=2.0), Own(extra=True), nn.Sequential(nn.Embedding(3, 2))):
        assert in_browser(other, CORPUS) is None


def test_models_of_a_posterior_are_even_over_its_draws() -> None:
    """The first and the last among them; no more than there are."""
    hmm = hs.load_process("umbrella")
    shares = torch.linspace(0.1, 0.7, 7, dtype=torch.float64)
    initial = torch.stack([shares, 1 - shares], 1)[:6].view(2, 3, 2)
    found = posterior.Posterior(hmm, {"initial": initial}, torch.zeros(2, 3, dtype=torch.float64), 0.0, [])
    for count, places in ((1, [0]), (2, [0, 5]), (6, list(range(6))), (9, list(range(6)))):
        drawn = [float(one.initial[0]) for one in found.models(count)]
        assert drawn == pytest.approx(shares[places].tolist(), abs=1e-9)


def test_threads_and_determinism_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *given, **options: asked.append((given, options)))
    before, name = torch.get_num_threads(), "CUBLAS_WORKSPACE_CONFIG"
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    for own in (None, ":16:8"):
        monkeypatch.setenv(name, own or "")
        if not own:
            monkeypatch.delenv(name)
        with settings(TrainingSpec(deterministic=True, num_threads=1)):
            assert asked.pop() == ((True,), {})
            assert os.environ[name] == (own or ":4096:8")
        assert os.environ.get(name) == own
        assert asked.pop() == ((False,), {"warn_only": False})
    with settings(TrainingSpec(num_threads=1)):
        assert asked == []
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: config_from_data([]), r"config: must be a mapping of sections, got \[\]"),
        (lambda: config_from_data({"num_steps": 3}), r"num_steps: is a field of training; write --training\.num_steps"),
        (lambda: config_from_data({"modle": 3}), "modle: unknown 'modle'|modle"),
        (lambda: config_from_data({}, {"seed.x": "1"}), "seed.x: seed is a single value, without fields"),
        (lambda: config_from_data({"seed": "x"}), "seed: "),
        (
            lambda: configure("umbrella", layout="prompts", length=3),
            "length: cannot be combined with layout; give only one of them",
        ),
        (
            lambda: configure("umbrella", length=1),
            "layout: must have at least 2 positions, because the model reads one and predicts the next, got 1",
        ),
        (
            lambda: configure("umbrella", layout="prompts", training={"curriculum": [2]}),
            "training.curriculum: needs samples of one",
        ),
        (
            lambda: configure("umbrella", model=5),
            "model: must be a torch module, a registered model or a mapping with the key name, got 5",
        ),
        (
            lambda: configure("umbrella", model=nn.Linear(1, 1).state_dict()),
            "model: must be a torch module, got weights",
        ),
        (
            lambda: configure("umbrella", read_options={"unit": "lines"}),
            "unit: needs a source that is a file or table of sequences",
        ),
        (
            lambda: configure([[0, 1]] * 3, read_options={"num_steps": 3}),
            r"num_steps: is a field of training; give training=",
        ),
        (lambda: configure([[0, 1]] * 3, read_options={"unti": "lines"}), "option: unknown 'unti'"),
    ],
)
def test_a_configuration_that_is_none_is_refused(ask: Any, said: str, unchecked: None) -> None:
    with pytest.raises(InputError, match=said):
        ask()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &x 1\nb: *x\n", "line 2: aliases"),
        ("a: !!int 1\n", "line 1: aliases .* and tags"),
        ("a: 1\na: 2\n", "line 2: key 'a' appears twice"),
        ("[1]: 2\n", "line 1: a key must be text"),
        ("a: [1\n", "line 2: not YAML"),
        ("[" * 500, "nested too deeply"),
    ],
)
def test_yaml_that_is_not_read(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(InputError, match=rf"^c\.yaml: {said}"):
        read_yaml(tmp_path / "c.yaml")


def test_yaml_is_texts_truth_values_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: 012\nb: no\nc: true\nd: false\ne: ~\nf:\ng: null\nh: [1.5, x]\ni: trueish\n")
    assert read_yaml(tmp_path / "c.yaml") == {
        "a": "012", "b": "no", "c": True, "d": False, "e": None, "f": None, "g": None, "h": ["1.5", "x"], "i": "trueish",
    }  # fmt: skip


def test_what_a_finished_run_has_lost_is_said(tmp_path: Path) -> None:
    """Its last checkpoint, its seal; and a run on a module of its own takes no other."""
    run = hs.train("umbrella", tmp_path / "run", num_steps=3, **FEW)
    assert run.config.training.num_steps == 3
    seals.remove_seal(run.path)
    with pytest.warns(UserWarning, match=r"has no checksums \(seal.json\), so its files cannot be verified"):
        load_run(run.path)
    with pytest.raises(InputError, match=r"model: .* contains the model, rnn"):
        load_run(run.path, model=nn.Linear(1, 1))
    with pytest.raises(
        InputError, match=r"has no intermediate checkpoints; train again with --training\.num_log_checkpoints 20"
    ):
        run.checkpoint_steps()
    last = sorted((run.path / "checkpoints").iterdir())[-1]
    last.rename(tmp_path / "gone")
    with (
        pytest.warns(UserWarning, match="no checksums"),
        pytest.raises(
            DamagedError, match=r"finished, but its last complete checkpoint is of step 2, not 3; delete done\.json"
        ),
    ):
        load_run(run.path)


def test_a_file_that_is_pinned_stays_so_and_another_is() -> None:
    config = config_from_data({"process": {"name": "file", "path": "umbrella"}, "model": {"name": "rnn"}})
    own = pinned(config)
    assert getattr(own.process, "digest", "") == hs.load_process("umbrella").digest
    assert pinned(own, hs.load_process("dishonest-casino")) is own
    plain = config_from_data({"process": {"name": "mess3"}, "model": {"name": "rnn"}})
    assert pinned(plain) is plain


def test_a_module_that_goes_on_has_the_weights_that_it_began_with(tmp_path: Path) -> None:
    ports = ModelIO(num_outputs=3, vocab_size=3)
    begun, again = UserModule(Own(), ports, 0), UserModule(Own(), ports, 0)
    _first_weights(tmp_path, begun, ProcessGroup())
    kept = (tmp_path / FIRST_WEIGHTS).read_bytes()
    _first_weights(tmp_path, again, ProcessGroup())
    assert (tmp_path / FIRST_WEIGHTS).read_bytes() == kept
    for one, other in zip(begun.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: hs.load_run(5), "path: must be a path, got 5"),
        (lambda: hs.load_run("y" * 3000), r"path: y{100}\.\.\.: the path or a name in it is too long .*"),
        (lambda: hs.load_run("\0"), r"path: must be a name that a file can have, got '\\x00'"),
        (lambda: hs.fit([[0, 1]], 2, stream="yes"), "stream: must be True or False, got 'yes'"),
        (lambda: hs.fit(hs.ProcessDataset("even", 4), 2, stream=True), "source: a stream needs a path, .*"),
        (lambda: hs.make_target("belief", EVEN, "text"), r"layout: must be a Layout, .*, got 'text'"),
        (lambda: hs.ProcessDataset(EVEN, layout="text"), r"layout: must be a Layout, .*, got 'text'"),
        (lambda: hs.ProcessDataset(EVEN, 4, stream=np.ones(2)), r"stream: unknown array.*"),
        (lambda: hs.stationary_distribution(torch.eye(3)[:2]), "process: must be a process or a square matrix.*"),
        (lambda: hs.stationary_distribution([True, None]), "process: must hold real numbers.*"),
        (lambda: hs.fit_length([[0.1]], [1], 0.1, definition=torch.ones(2, 2)), "definition: unknown .*prefix."),
        (lambda: hmmbench.check_submission(5), "folder: must be a path, got 5"),
        (lambda: hs.train("umbrella", 5, model="rnn"), "out: must be a path, got 5"),
        (lambda: hs.study([[0, 1], [1, 0]] * 9, 5), "out: must be a path, got 5"),
        (lambda: hmmbench.benchmark("rnn", 5), "out: must be a path, got 5"),
        (lambda: hmmbench.benchmark("rnn", "never", tasks=5), "^tasks: must be a list of task names, got 5"),
        (lambda: hs.over_training(5, "probe"), r"run: must be a run, such as .*, got 5"),
    ],
)
def test_values_of_other_types_are_named(call: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"^{words}$"):
        call()
