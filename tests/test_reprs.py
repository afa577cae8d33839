"""What is printed of results is short, whatever their size."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import hmmscope
import hmmscope as hs
from hmmscope.inference.mixed_states import mixed_states
from hmmscope.lab.cli import main

LONGEST = 600


def records() -> Iterator[type]:
    """Every dataclass of the library whose name is not private."""
    for found in pkgutil.walk_packages(hmmscope.__path__, "hmmscope."):
        if not found.name.startswith(("hmmscope.__main__", "hmmscope.kernels.gpu")):
            for thing in vars(importlib.import_module(found.name)).values():
                own = inspect.isclass(thing) and thing.__module__ == found.name and not thing.__name__.startswith("_")
                if own and dataclasses.is_dataclass(thing):
                    yield thing


def prints_arrays(record: type) -> bool:
    """Whether a generated repr writes the entries of an array."""
    arrays = re.compile(r"Tensor|NDArray|ndarray|jaxtyping|\b(Float|Int|Bool)\d*\[")
    generated = record.__dataclass_params__.repr and "__repr__" in vars(record)  # type: ignore[attr-defined]
    own = any("def __repr__" in line for line in inspect.getsource(record).splitlines())
    return (
        generated
        and not own
        and any(field.repr and arrays.search(str(field.type)) for field in dataclasses.fields(record))
    )


@pytest.mark.long
def test_no_record_prints_its_arrays() -> None:
    @dataclasses.dataclass
    class Loud:
        values: torch.Tensor

    assert prints_arrays(Loud)
    found = list(records())
    assert len(found) > 100
    assert [f"{record.__module__}.{record.__name__}" for record in found if prints_arrays(record)] == []


HMM = hs.make_process("random-hmm", num_states=12, num_symbols=9, seed=0)
POOL = hs.make_process("random-mixture", num_components=6, num_states=4, num_symbols=9, seed=0)
SEEN = hs.ProcessDataset(HMM, length=64)[0:32]
LARGE: dict[str, Callable[[], object]] = {
    "filter_beliefs": lambda: hs.filter_beliefs(HMM, SEEN.observations),
    "filter_mixture": lambda: hs.filter_mixture(POOL, SEEN.observations),
    "filter_known_component": lambda: hs.filter_known_component(POOL, SEEN.observations, SEEN.observations[:, 0] % 6),
    "mixture_predictions": lambda: hs.mixture_predictions(POOL, SEEN.observations),
    "optimal_predictions": lambda: hs.optimal_predictions(POOL, SEEN.observations),
    "most_likely_states": lambda: hs.most_likely_states(HMM, SEEN.observations),
    "memory_beliefs": lambda: hs.memory_beliefs(HMM, SEEN.observations, memory_length=3),
    "expected_counts": lambda: hs.expected_counts(HMM, SEEN.observations),
    "observability": lambda: hs.observability(HMM, method="bounds"),
    "mixed_states": lambda: mixed_states(hs.make_process("rrxor")),
    "batch": lambda: SEEN,
    "law": lambda: HMM.params,
    "config": lambda: hs.RunConfig(process=HMM, model="decoder", training={"num_steps": 5}),
    "config of a module": lambda: hs.RunConfig(model=torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(99)))),
    "model": lambda: Html(hs.make_model("roformer", num_symbols=9, num_layers=12, width=8, num_heads=2)),
}


class Html:
    """Of a module only the table is short: its repr is that of torch."""

    def __init__(self, thing: object) -> None:
        self._repr_html_ = thing._repr_html_  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return "a module"


@pytest.mark.parametrize("name", LARGE)
def test_results_are_short_in_a_terminal_and_a_table_in_a_notebook(name: str) -> None:
    thing = LARGE[name]()
    assert len(repr(thing)) <= LONGEST
    html = thing._repr_html_()  # type: ignore[attr-defined]
    assert html.startswith("<table>")
    assert len(html) <= 5 * LONGEST


def test_few_numbers_are_printed_as_they_are() -> None:
    shown = repr(
        hs.filter_beliefs(hs.HMM([0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[1, 0], [0, 1]]), torch.tensor([[0, 1]]))
    )
    assert "beliefs=[[[1, 0], [0, 1]]]" in shown
    assert "beliefs=float64[32, 64, 12]" in repr(hs.filter_beliefs(HMM, SEEN.observations))
    assert "num_steps=5" in repr(LARGE["config"]())
    assert "learning_rate" not in repr(LARGE["config"]())


def test_a_small_hmm_prints_its_matrices_and_a_notebook_shows_them() -> None:
    casino = hs.load_process("dishonest-casino")
    assert str(casino).splitlines()[3:] == [
        "  from, to   fair  loaded",
        "  fair      0.950   0.050",
        "  loaded    0.100   0.900",
        "  emits       1      2      3      4      5      6",
        "  fair    0.167  0.167  0.167  0.167  0.167  0.167",
        "  loaded  0.100  0.100  0.100  0.100  0.100  0.500",
    ]
    assert "\n" not in repr(casino)
    lasting = hs.HMM([0.5, 0.5], [[0.9999, 0.0001], [1e-9, 1 - 1e-9]], [[1.0], [1.0]])
    assert str(lasting).splitlines()[4:6] == ["  state 0    0.9999   0.0001", "  state 1     0.000    1.000"]
    card = casino._repr_html_()
    assert card.count("<table>") == 4
    assert re.search(r"<th [^>]*>loaded</th><td [^>]*>0\.100</td><td [^>]*>0\.900</td>", card)


def test_a_large_hmm_prints_a_picture_and_what_its_states_emit() -> None:
    size = 60
    names = ["<b>" * 2000, *(f"s{v}" for v in range(1, size))]
    shift = torch.roll(torch.eye(size, dtype=torch.float64), 1, 1)
    hmm = hs.HMM(torch.full((size,), 1 / size, dtype=torch.float64), shift, torch.eye(size), symbols=names)
    lines = str(hmm).splitlines()
    assert max(map(len, lines)) < 130
    assert len(lines) < 90
    first = lines.index(next(line for line in lines if line.startswith("  from, to (60 × 60")))
    assert lines[first + 1] == "    | ██" + " " * 57 + "|"  # two states a row, and the largest entry of each block
    assert f"  state 3   {names[3]} 1.000" in lines
    card = hmm._repr_html_()
    assert card.count("<svg") == 3
    assert card.count("h1v1h-1z") >= 2 * size
    assert "<b>" not in card.replace("&lt;b&gt;", "")
    assert len(card) < 12000


def test_a_symbol_of_thousands_of_letters_is_shown_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hs.HMM([1.0], [[1.0]], [[0.5, 0.5]], symbols=["a" * 5000, "b"]).save(tmp_path / "long.json")
    (tmp_path / "b.txt").write_text("b b\n")
    assert main(["show", str(tmp_path / "long.json")]) == 0
    assert main(["infer", str(tmp_path / "long.json"), str(tmp_path / "b.txt"), "-q"]) == 0
    said = capsys.readouterr().out
    assert "a" * 39 + "…" in said
    assert max(map(len, said.splitlines())) < 120
