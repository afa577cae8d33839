"""Untrained twins, and what a network explains of what they leave."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hmmscope as hs
from analysis_cases import Held
from hmmscope.analysis.geometry import BELIEF, belief_targets, belief_times, geometry, read_off
from hmmscope.analysis.learned import Learned, learned
from hmmscope.analysis.probes import read_stream
from hmmscope.analysis.untrained_controls import (
    NO_COLUMNS,
    ExplainedFraction,
    UntrainedControls,
    draw_controls,
    explained_beyond_controls,
)
from hmmscope.errors import InputError
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.monte_carlo import student_quantile
from hmmscope.models.base import make_model, seeded_generators
from hmmscope.processes.hmm import HMM

MESS3 = hs.make_process("mess3")


class Own(nn.Module):
    """A module of a user with every kind of part that torch draws."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.rnn, self.head = nn.LayerNorm(8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)
        self.residual = nn.ModuleList([nn.Identity()])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(self.residual[0](self.rnn(x)[0]))


class Table(nn.Module):
    """Weights that nothing draws."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(3, 3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens]


class Drawn(Table):
    def __init__(self) -> None:
        super().__init__()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table)


OWN = Own()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def assert_fresh(model: nn.Module, found: UntrainedControls) -> None:
    """All weights finite, no twin like another or like the model, and the model as it was."""
    before = weights(model)
    assert (len(found.models), found.reason) == (3, "")
    drawn = [weights(twin) for twin in found.models]
    for one in drawn:
        assert one.shape == before.shape
        assert one.isfinite().all()
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not torch.equal(drawn[one], drawn[other])
    assert all(not torch.equal(one, before) for one in drawn)


@pytest.mark.parametrize("name", ["roformer", "rnn", "gru"])
def test_a_model_of_ours_is_built_again_by_its_spec(name: str) -> None:
    sizes = {"width": 8, "num_layers": 1} | ({"num_heads": 2} if name == "roformer" else {})
    model = make_model(name, num_symbols=3, **sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(5.0)  # as training may have left it
    kept = weights(model)
    found = draw_controls(model)
    assert_fresh(model, found)
    assert torch.equal(weights(model), kept)
    assert not any((weights(twin) == 5).any() for twin in found.models)
    assert all(
        torch.equal(weights(a), weights(b)) for a, b in zip(found.models, draw_controls(model).models, strict=True)
    )
    fresh = weights(make_model(name, num_symbols=3, seed=1, **sizes))
    assert weights(found.models[0]).std() == pytest.approx(fresh.std(), rel=0.2)  # the law of its first weights


def test_any_module_is_drawn_by_its_parts_and_leaves_the_global_generator() -> None:
    state = torch.get_rng_state()
    assert_fresh(Own(), draw_controls(Own()))
    assert not torch.equal(state, torch.get_rng_state())  # Own() drew; what follows does not
    model = Drawn()
    before = torch.get_rng_state()
    assert_fresh(model, draw_controls(model))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Table(), "cannot reinitialize parameter 'table' of module 'Table'; define reset_parameters() there"),
        (nn.Sequential(nn.Identity()), "Sequential has no weights to reinitialize"),
        (nn.Sequential(nn.Linear(2, 2), Table()), "cannot reinitialize parameter '1.table' of module 'Sequential'"),
    ],
)
def test_a_module_that_cannot_be_drawn_says_so_in_one_line(model: nn.Module, said: str) -> None:
    found = draw_controls(model)
    assert found.models == ()
    assert said in found.reason
    assert "\n" not in found.reason


def test_two_twins_have_no_spread_to_speak_of() -> None:
    with pytest.raises(InputError, match="num_controls: must be at least 3"):
        draw_controls(Own(), 2)
    assert draw_controls(Own(), 0) == UntrainedControls((), "no controls were requested")


@pytest.mark.parametrize(
    ("degrees", "value"), [(1.0, 12.7062), (2.0, 4.30265), (2.5, 3.57465), (30.0, 2.04227), (500.0, 1.96472)]
)
def test_students_quantile(degrees: float, value: float) -> None:
    """Printed tables; that of 2.5 by an incomplete beta function."""
    assert student_quantile(degrees) == pytest.approx(value, rel=1e-5)


def test_a_share_is_what_the_network_explains_of_what_the_twins_leave() -> None:
    twins = np.repeat([[0.2, 0.3, 0.4]], 5, 0)
    found = explained_beyond_controls(np.full(5, 0.03), twins, 100)
    assert (found.read, found.controls, found.num_controls) == (pytest.approx(0.97), pytest.approx(0.7), 3)
    assert found.value == pytest.approx(0.9)
    half = student_quantile(2.0) * math.sqrt((0.1 / 0.3) ** 2 * (1 + 1 / 3))  # samples add nothing here
    assert found.low == pytest.approx(1 - 0.1 * math.exp(half))
    assert found.high == pytest.approx(1 - 0.1 * math.exp(-half))
    assert str(found) == f"0.90 [{found.low:.2f}, {found.high:.2f}] of what 3 untrained controls leave unexplained"


def test_noise_of_the_samples_widens_the_interval() -> None:
    twins = np.repeat([[0.2, 0.21, 0.22]], 400, 0)
    noisy = np.concatenate([[0.05], np.random.default_rng(0).normal(0.05, 0.02, 399)])
    one, other = explained_beyond_controls(np.full(400, 0.05), twins, 100), explained_beyond_controls(noisy, twins, 100)
    assert one.low is not None
    assert other.low is not None
    assert other.low < one.low - 0.1


def test_no_error_at_all_is_no_certainty() -> None:
    found = explained_beyond_controls(np.zeros(5), np.repeat([[0.2, 0.3, 0.4]], 5, 0), 20)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low is not None
    assert found.low < 1 - (1 - 0.025**0.05) / 0.3


@pytest.mark.parametrize(
    ("share", "verdict", "said"),
    [
        (
            ExplainedFraction(0.99, 0.9, 3, 0.9, 0.8, 0.95),
            "more",
            "0.90 [0.80, 0.95] of what 3 untrained controls leave unexplained",
        ),
        (
            ExplainedFraction(0.9, 0.9, 3, 0.0, -0.4, 0.3),
            "no more",
            "0.00 [-0.40, 0.30] of what 3 untrained controls leave unexplained",
        ),
        (
            ExplainedFraction(0.9, 0.9, 3, 1e-6, 1e-7, 2e-6),
            "no more",
            "0.00 [0.00, 0.00] of what 3 untrained controls leave unexplained",
        ),
        (
            ExplainedFraction(0.8, 0.9, 3, -1.0, -1.5, -0.5),
            "less",
            "-1.00 [-1.50, -0.50] of what 3 untrained controls leave unexplained",
        ),
        (
            ExplainedFraction(0.99, 0.9, 3, 0.991, 0.9892, 0.9922),  # 0.99 [0.99, 0.99] would be no interval
            "more",
            "0.991 [0.989, 0.992] of what 3 untrained controls leave unexplained",
        ),
        (ExplainedFraction(0.9, reason="not identifiable: Table"), "not told", "not identifiable: Table"),
    ],
)
def test_what_training_added_in_words(share: ExplainedFraction, verdict: str, said: str) -> None:
    assert (share.verdict, str(share)) == (verdict, said)


def test_where_twins_leave_next_to_nothing_nothing_is_told() -> None:
    found = explained_beyond_controls(np.full(5, 0.001), np.repeat([[0.012, 0.019, 0.02]], 5, 0), 100)
    assert (found.value, found.verdict) == (None, "not told")
    assert str(found) == "not identifiable: 3 untrained controls already reach 0.983, the network 0.999"


@pytest.mark.parametrize("name", [None, "gpt2", "xavier_uniform_", "kaiming_normal_", "orthogonal_"])
def test_another_untrained_network_has_no_more_than_its_twins(name: str | None) -> None:
    """At most 5 % of the draws seem to; the law of what they leave has a long tail, to both sides of the ratio."""
    dataset = hs.ProcessDataset(MESS3, 8, stream="probe")
    times = belief_times(dataset)
    belief = belief_targets(dataset, times, 64)[BELIEF]
    left = []
    for seed in range(80):
        model: nn.Module = make_model("roformer", num_symbols=3, width=8, num_layers=2, num_heads=2, seed=seed)
        with seeded_generators(seed):
            model = gpt2(model) if name == "gpt2" else model
            for weight in model.parameters() if name and name != "gpt2" else ():
                getattr(nn.init, name)(weight) if weight.ndim > 1 else None
        left.append(1 - read_off(read_stream(model, dataset, times, ["residual.2"], 64), belief, 64).r2()[:, 0])
    twins = [np.stack([left[(i + k) % 80] for k in (1, 2, 3)], 1) for i in range(80)]
    found = [explained_beyond_controls(own, others, 16).verdict for own, others in zip(left, twins, strict=True)]
    assert found.count("not told") == 0
    assert found.count("no more") >= 72
    assert found.count("more") <= 4


def test_geometry_and_probe_have_the_twins_beside_what_they_read() -> None:
    dataset = hs.ProcessDataset(MESS3, 12, stream="probe")
    model = make_model("roformer", num_symbols=3, width=16, num_layers=1, num_heads=2)
    rows = geometry(model, dataset, num_samples=64)
    for row in rows:
        assert NO_COLUMNS.keys() <= row.keys()
        if row["targets"] == "shuffled":
            assert row["twins"] is row["beyond_twins"] is None
        else:
            assert abs(row["r2"] - row["twins"]) < 0.2
            assert row["share_low"] <= 0.02
    (first,) = hs.probe(
        model, dataset, target="previous-0", layers=["residual.0"], num_samples=64, shuffled_labels=False
    )
    assert first["beyond_twins"] == "not identifiable: 3 untrained controls already reach 1.000, the network 1.000"
    assert "twins" in hs.probe(model, dataset, num_samples=16)[0]
    (planted,) = hs.probe(
        Held(3, 4, 1),
        hs.ProcessDataset(MESS3, 6),
        target="previous-1",
        layers=["memory"],
        num_samples=16,
        shuffled_labels=False,
    )
    assert planted["beyond_twins"] == "not identifiable: Held has no weights to reinitialize"


class Fixed(nn.Module):
    """The law of a hidden process that it is told, or a wrong law that looks at nothing."""

    outputs = "law"

    def __init__(self, hidden: HMM | None) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.hidden is None:
            return torch.tensor([0.9, 0.1]).expand(*tokens.shape, 2)
        return filter_beliefs(self.hidden, tokens).next_observation


def test_how_far_a_network_has_gone_from_what_needs_no_memory_to_the_optimum() -> None:
    chain = HMM([2 / 3, 1 / 3], [[0.8, 0.2], [0.4, 0.6]], [[1, 0], [0, 1]])  # stationary law 2/3, 1/3
    datasets = [hs.ProcessDataset(chain, 40, stream=stream) for stream in ("evaluate", "train")]
    best, worse = (learned(Fixed(hidden), *datasets, num_samples=2048) for hidden in (chain, None))
    assert best.at_bar == pytest.approx(-(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)), abs=0.01)
    entropy = 2 / 3 * -(0.8 * math.log(0.8) + 0.2 * math.log(0.2)) + 1 / 3 * -(
        0.4 * math.log(0.4) + 0.6 * math.log(0.6)
    )
    assert best.optimum == pytest.approx(entropy, abs=0.01)
    assert (best.share, best.verdict) == (pytest.approx(1.0), "most")
    assert str(best) == "100 % [100, 100] of the way from the best constant answer to the optimum"
    assert worse.share is not None
    assert worse.share < -0.5
    assert worse.verdict == "nothing"
    coin = HMM([1.0], [[1.0]], [[0.7, 0.3]])
    nothing = learned(Fixed(coin), *(hs.ProcessDataset(coin, 40, stream=stream) for stream in ("evaluate", "train")))
    assert (nothing.verdict, str(nothing)) == ("nothing to learn", "the best constant answer is the optimum")


def test_what_the_last_symbol_tells_is_nothing_learned() -> None:
    """A chain over symbols in the place of a network, on a process whose optimum remembers more."""
    mess3 = hs.make_process("mess3")
    datasets = [hs.ProcessDataset(mess3, 24, stream=stream) for stream in ("evaluate", "train")]
    seen = datasets[1][0:4096].observations
    pairs = torch.bincount((3 * seen[:, :-1] + seen[:, 1:]).flatten(), minlength=9).reshape(3, 3).double()
    chain = HMM(torch.full((3,), 1 / 3), pairs / pairs.sum(1, keepdim=True), torch.eye(3))
    shallow, deep = (learned(Fixed(one), *datasets) for one in (chain, mess3))
    assert (shallow.verdict, deep.verdict) == ("nothing", "most")
    assert shallow.bar == deep.bar == "the best prediction given the last symbol"
    assert shallow.at_bar == pytest.approx(shallow.loss, abs=1e-3)
    assert str(deep) == "100 % [100, 100] of the way from the best prediction given the last symbol to the optimum"


@pytest.mark.parametrize(
    ("share", "low", "verdict"),
    [(0.99, 0.98, "most"), (0.5, 0.4, "most"), (0.3, 0.2, "part"), (0.3, -0.1, "nothing"), (0.01, 0.005, "nothing")],
)
def test_how_much_counts_as_learned(share: float, low: float, verdict: str) -> None:
    assert Learned(0.0, "a bar", 0.0, 0.0, share, low, 1.0).verdict == verdict


def gpt2(module: nn.Module) -> nn.Module:
    """The module with the first weights of GPT-2: normal ones of standard deviation .02, biases of zero."""
    for part in module.modules():
        for weight in [] if isinstance(part, nn.LayerNorm) else part.parameters(recurse=False):
            nn.init.normal_(weight, 0, 0.02) if weight.ndim > 1 else nn.init.zeros_(weight)
    return module


@pytest.mark.parametrize(
    "draw",
    [lambda w: nn.init.normal_(w, 0, 0.02), nn.init.xavier_uniform_, nn.init.kaiming_normal_, nn.init.orthogonal_],
)
def test_redrawn_controls_of_another_initialization_are_refused(draw: Any) -> None:
    model = Own()
    for weight in model.parameters():
        if weight.ndim > 1:
            draw(weight)
    found = draw_controls(model)
    assert found.models == ()
    assert draw_controls(nn.DataParallel(model)).reason == found.reason  # the model's own names
    assert found.reason.startswith("not identifiable: the controls of Own have another initialization than the model (")
    assert found.reason.endswith("; pass as controls= a function that makes the untrained module")


def test_the_reason_names_the_quantity_that_differs() -> None:
    model = Own()
    first = gpt2(Own())
    with torch.no_grad():  # one direction alone, at the scale of the draws
        for (name, weight), drawn in zip(first.named_parameters(), Own().parameters(), strict=True):
            weight.copy_(drawn)
            if name == "rnn.weight_hh_l0":
                one = torch.randn(weight.shape[0], 1) @ torch.randn(1, weight.shape[1])
                weight.copy_(one * drawn.square().mean().sqrt() / one.square().mean().sqrt())
    assert "rnn.weight_hh_l0: its median singular value is" in draw_controls(model, first=first).reason


def test_training_is_no_other_initialization() -> None:
    torch.manual_seed(0)  # noqa: TID251
    for first in (None, *(Own() for _ in range(12))):
        assert draw_controls(Own(), first=first).reason == ""  # as it was drawn
    model = Own()
    with torch.no_grad():  # each matrix is pushed far along one direction, each vector is stretched
        for weight in model.parameters():
            one = torch.randn(weight.shape[0], 1) @ torch.randn(1, weight[0].numel())
            weight += weight.std() * one if weight.ndim > 1 else weight
    assert draw_controls(model).reason == ""
    assert (
        "have another initialization than the model" in draw_controls(model, first=gpt2(Own())).reason
    )  # but it did not begin as the draws do
    assert draw_controls(gpt2(Own()), first=Own()).reason == ""


@pytest.mark.parametrize("way", ["belief_map", "geometry", "probe", "look"])
def test_controls_are_drawn_by_the_function_that_is_given(way: str) -> None:
    made = []

    def controls() -> nn.Module:
        made.append(gpt2(Own()))
        return made[-1]

    model, dataset = gpt2(Own()), hs.ProcessDataset(MESS3, 8, stream="probe")
    plotted = {"num_points": 100} if way in ("look", "belief_map") else {}

    def said(given: Any) -> str:
        options: Any = hs.InstrumentOptions(controls=given, **plotted)
        if way == "look":
            return str(hs.look(model, dataset, num_samples=8, options=options).data["beliefs"]["text"])
        if way == "belief_map":
            return str(hs.belief_map(model, dataset, num_samples=64, options=options).share)
        instrument: Any = {"geometry": geometry, "probe": hs.probe}[way]
        return str(instrument(model, dataset, num_samples=64, options=options)[0]["beyond_twins"])

    drawn = 8 if way == "belief_map" else 3
    assert f"{drawn} untrained controls" in said(controls)
    assert len(made) == drawn
    assert said(None).startswith("not identifiable: the controls of Own have another initialization")


def test_a_function_draws_by_a_named_seed_and_leaves_every_generator() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    python = random.getstate()
    with seeded_generators(3):
        random.random()
    assert random.getstate() == python  # below the checks of annotations draw from it

    def controls() -> nn.Module:
        model = Table()
        numbers = [torch.randn(3), torch.tensor(np.random.rand(3)), torch.tensor([random.random()] * 3)]  # noqa: NPY002
        with torch.no_grad():
            model.table.copy_(torch.stack(numbers))
        return model

    first, again, other = (draw_controls(Table(), seed=seed, controls=controls).models for seed in (3, 3, 4))
    assert all(torch.equal(weights(a), weights(b)) for a, b in zip(first, again, strict=True))
    rows = torch.stack([weights(one).reshape(3, 3) for one in (*first, *other)])
    assert all(len(set(map(tuple, rows[:, k].tolist()))) == 6 for k in range(3))  # each generator draws anew
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("controls", "said"),
    [
        (Own(), "must be a function without arguments"),
        (lambda: 3, "it returned 3"),
        (lambda: Table()[0], "fails (TypeError"),
        (Table, "must return the model's architecture with embedding.weight (3, 8), got table (3, 3)"),
        (lambda: torch.manual_seed(0) and Own(), "must draw new weights at every call"),  # noqa: TID251
        (lambda: OWN, "must draw new weights at every call"),
        (lambda: Own()(torch.zeros(1, 2, dtype=torch.long)).sum().backward(), "fails (RuntimeError"),  # it would train
    ],
)
def test_what_makes_no_controls_is_refused(controls: Any, said: str) -> None:
    with pytest.raises(InputError, match=r"^controls: ") as found:
        draw_controls(OWN, controls=controls)
    assert said in str(found.value)
    with pytest.raises(InputError, match=r"^controls: "):
        hs.probe(OWN, hs.ProcessDataset(MESS3, 8), num_samples=16, options=hs.InstrumentOptions(controls=controls))


class Buffered(nn.Module):
    """A layer beside a table in a buffer."""

    def __init__(self, table: torch.Tensor, *, persistent: bool = True) -> None:
        super().__init__()
        self.head, self.norm = nn.Linear(8, 3), nn.BatchNorm1d(8)
        self.register_buffer("table", table, persistent=persistent)


TIMES, RATES = torch.arange(40.0)[:, None], 10_000 ** -(torch.arange(4.0) / 4)


@pytest.mark.parametrize(
    ("table", "learned"),
    [
        (torch.randn(40, 8), True),
        (torch.randn(8), True),
        ((TIMES * RATES).sin() + 0.1 * torch.randn(40, 4), True),
        (torch.ones(9, 9).tril(), False),
        (torch.full((9, 9), -torch.inf).triu(1), False),
        (torch.cat([(TIMES * RATES).sin(), (TIMES * RATES).cos()], 1), False),
        (torch.polar(torch.ones(40, 4), TIMES * RATES), False),
        (RATES.repeat(3)[:4], False),
        (10_000 ** -(torch.arange(8.0) / 8), False),
        (-(TIMES - TIMES.T).abs(), False),
        (torch.arange(9), False),
        (torch.tensor(0.3), False),
    ],
)
def test_a_learned_buffer_enters_no_control(table: torch.Tensor, learned: bool) -> None:
    torch.manual_seed(0)  # noqa: TID251  # one draw in 400 is called another initialisation
    for persistent in (True, False):
        model = Buffered(table, persistent=persistent)
        model.norm.running_mean.normal_()  # as training leaves it; redrawing sets it back
        found = draw_controls(model)
        assert ("buffer 'table' of module 'Buffered' may be learned" in found.reason) == learned
        assert (found.models == ()) == learned
        fresh = lambda: Buffered(torch.zeros_like(table))  # noqa: E731
        for twin in draw_controls(model, controls=fresh).models:
            assert not twin.table.abs().any()  # type: ignore[operator, union-attr]
            assert not twin.norm.running_mean.any()  # type: ignore[operator, union-attr]
