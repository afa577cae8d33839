"""Names of classes, fields, functions and modules, and prose, are free: none of them is part of stored data.

Stored identities, and how each stays the same when code changes:

- digests of corpora and processes: `digest_name` of the layout and of the form of law, `HMMParams.file_arrays`;
- keys of configurations, findings, figures, protocols and caches: metadata ``{"stored": key}`` of a field, see `schema`;
- registered names: ``registry.process(name, stored=...)``; ids of experiments, claims and instruments are literals;
- kinds of objects that are handed over: `stored_name` of the class;
- rules and verbs: `Rule.name`, `options.VERBS`; figures, gates, file formats, columns of tables: literals;
- seeds: `seeds.NAMES` and `seeds.PURPOSES`; tasks of HMM-bench: `Task.frozen_fields` and `frozen.WORDS`;
- weights in checkpoints: attributes of modules, which have no other name in files and stay;
- what `hmmscope check` derives again is compared without words and without the order of claims.

Other tests hold the verdicts of rules (tests/evidence), the digests of HMM-bench and its cards (tests/verbs) and the bits of
samples (tests/process_datasets).
"""

import ast
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import kept_results
import pytest
import torch

import hmmscope as hs
from hmmscope import registry, schema, seeds
from hmmscope.datasets.layouts import Layout
from hmmscope.errors import DamagedError, InputError
from hmmscope.lab.cli import main
from hmmscope.lab.evidence.claim import Claim, claims_of
from hmmscope.lab.evidence.figure import _KINDS, ROLES, Bars, Figure, Lines, Series
from hmmscope.lab.evidence.finding import Finding
from hmmscope.lab.evidence.protocol import entry_of
from hmmscope.lab.evidence.verdicts import RULES, VERDICTS, Gate
from hmmscope.lab.experiments.derived_findings import derive_again
from hmmscope.lab.sweeps.grid import expand, run_name
from hmmscope.lab.verbs import verify
from hmmscope.lab.verbs.options import verbs
from hmmscope.models.adapted import AdaptedModule, adapt
from hmmscope.models.base import ModelIO, build_model
from hmmscope.models.user_module import UserModuleSpec
from hmmscope.processes.from_file import ObjectSpec
from hmmscope.processes.params import HMMParams
from hmmscope.processes.process import Process, kinds
from hmmscope.runs.config import RunConfig, config_from_data
from hmmscope.runs.presets import preset
from hmmscope.storage import store
from hmmscope.training.spec import TrainingSpec
from hmmscope_studies.benchmark import board, checking
from hmmscope_studies.benchmark.card import as_text
from hmmscope_studies.benchmark.frozen import WORDS
from hmmscope_studies.benchmark.tasks import TASKS, tasks_of

ROOT = Path(__file__).parents[1]
#: Sizes of specs, wherever one has a field of that name in files.
SMALL: dict[str, Any] = {
    **{"num_components": 3, "num_states": 5, "num_symbols": 5, "num_properties": 3, "num_entities": 4, "rank": 2},
    **{"num_demonstrations": 2, "demonstration_length": 3, "test_length": 4, "length": 9, "path": "umbrella"},
    **{"num_layers": 2, "num_heads": 2, "width": 16, "mlp_ratio": 2},
}


def below(kind: type) -> Iterator[type]:
    """The classes of the library below a class."""
    for one in kind.__subclasses__():
        if one.__module__.startswith("hmmscope"):
            yield one
        yield from below(one)


@contextmanager
def renamed(*classes: type) -> Iterator[None]:
    """Classes called otherwise in here, as after an edit of their modules."""
    before = [(one, one.__name__, one.__qualname__) for one in classes]
    try:
        for one, name, path in before:
            one.__name__, one.__qualname__ = f"{name}Renamed", f"{path}Renamed"
        yield
    finally:
        for one, name, path in before:
            one.__name__, one.__qualname__ = name, path


@pytest.mark.parametrize(
    "layout", [hs.SequenceLayout(length=3), hs.PromptLayout(num_demonstrations=1, demonstration_length=2)]
)
def test_a_renamed_layout_leaves_the_digests_of_corpora(layout: Layout) -> None:
    dataset = hs.ProcessDataset("umbrella", layout=layout)
    before = dataset.digest(2)
    with renamed(type(layout)):
        assert dataset.digest(2) == before


def test_every_layout_of_the_library_has_a_name_for_digests_and_others_have_their_own() -> None:
    registry.entries("layout")
    kinds = list(below(Layout))
    assert len(kinds) >= 4
    assert all("digest_name" in vars(kind) for kind in kinds)

    class Own(hs.SequenceLayout):
        pass

    assert Own.digest_name == "Own"


@pytest.mark.parametrize("name", ["random-hmm", "mess3", "bloch-walk", "told-hmms"])
def test_renamed_forms_of_laws_leave_the_digests_of_processes(name: str) -> None:
    before = hs.make_process(name).params_digest
    with renamed(*below(HMMParams)):
        assert hs.make_process(name).params_digest == before


def test_every_law_of_the_library_has_a_name_for_digests() -> None:
    registry.entries("process")
    assert {kind.digest_name for kind in below(HMMParams)} >= {"StateEmitting", "EdgeEmitting", "Signed"}
    assert all("digest_name" in vars(kind) for kind in below(HMMParams))


def test_a_task_of_the_bench_that_is_worded_better_is_the_same_task() -> None:
    parity = tasks_of("light", ["parity"])[0]
    worded = replace(parity, kind="other words", about="Other words.")
    worded.require_frozen()
    assert worded.digest == parity.digest != replace(parity, reads=True).digest
    assert worded.frozen_kind == "state tracking"
    assert all(WORDS[task.name] == (task.frozen_kind, task.frozen_fields()["about"]) for task in TASKS)


def test_the_card_in_lines_and_leaderboards_are_compared_without_their_words() -> None:
    tasks = tasks_of("light", ["parity", "told"])
    card = store.read_json(next((ROOT / "studies" / "results" / "hmm-bench").glob("gru-*.json")))
    text = as_text(card)
    assert "the gap between a constant predictor and the optimum" in text
    worded = text.replace("the gap between a constant predictor and the optimum", "the excess").replace(
        "Card(", "Score("
    )
    assert checking._without_words(worded, tasks) == checking._without_words(text, tasks)
    row = next(line for line in text.splitlines() if line.startswith("told "))
    for forged in (
        text.replace(row, row.replace(".", "1.", 1)),
        text.replace("gru", "lstm"),
        text.replace("17,", "16,"),
    ):
        assert checking._without_words(forged, tasks) != checking._without_words(text, tasks)
    for page in (board.markdown([card]), board.page([card])):
        assert board._cells(page.replace("Solved:", "Closed:").replace("counting, no", "n-grams, no")) == board._cells(
            page
        )
        assert board._cells(page.replace("gru", "lstm")) != board._cells(page)
        assert len(board._cells(page)) == 2 + len(board.reference_rows(card))


# ---------------------------------------------------------------------------------------------------------------------
# Findings derived again from tables


def test_a_sealed_folder_is_as_it_was_where_claims_are_worded_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = str(tmp_path / "kept")
    shutil.copytree(kept_results.RESULTS / "small" / "limits-table1", folder)
    derive_again(Path(folder))
    names = [claim.name for claim in claims_of("limits-table1")]
    found = Claim.finding

    def worded(self: Claim, *given: Any, **options: Any) -> Finding:
        before = found(self, *given, **options)
        gates = tuple(replace(gate, text="another text") for gate in before.gates)
        return replace(before, gates=gates, text="Another text.", unit="another unit", **changes)

    changes: dict[str, Any] = {}
    for name in names:
        claim = replace(
            registry.lookup("claim", name),
            claim_text="Said otherwise.",
            operationalization="As well.",
            source="a paper",
        )
        monkeypatch.setitem(registry._found["claim"], name, claim)
    monkeypatch.setattr(Claim, "finding", worded)
    assert main(["check", folder]) == 0, capsys.readouterr().err
    changes |= {"verdict": "inconclusive"}
    assert main(["check", folder]) == 4
    assert ".verdict is " in capsys.readouterr().err


FIGURE = Figure(
    name="loss",
    title="A title",
    caption="A caption.",
    panels=(
        Lines(
            title="left",
            x_label="steps",
            y_label="nats",
            series=(Series(name="counting", x=(0, 1), y=(0.5, 0.25), role="baseline"),),
        ),
        Bars(title="", y_label="share", categories=("layer 1", "layer 2"), series=(Series(name="a", y=(1, 2)),)),
    ),
).to_data()


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ('"A title"', '"Another"', True),
        ('"counting"', '"n-gram baseline"', True),
        ('"layer 1"', '"1st layer"', True),
        ('"layer 1"', '"layer 3"', False),
        ('"baseline"', '"optimum"', False),
        ("0.25", "0.26", False),
        ('"kind": "bars"', '"kind": "lines"', False),
    ],
)
def test_figures_are_compared_without_their_words(before: str, after: str, same: bool) -> None:
    text = json.dumps(FIGURE)
    assert before in text
    other = json.loads(text.replace(before, after))
    one, two = (verify._without(data, verify._FIGURE_WORDS) for data in (FIGURE, other))
    if same:
        verify._same(one, two, "figure", 1e-9)
    else:
        with pytest.raises(DamagedError):
            verify._same(one, two, "figure", 1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# Names written out

VERB_NAMES = "show run train sweep sample infer fit study analyse claims report look benchmark check"


def test_protocols_have_the_names_of_rules_and_the_command_line_those_of_verbs() -> None:
    claims = [
        registry.lookup("claim", name) for name in ("limits-fit-length-grows", claims_of("limits-table1")[0].name)
    ]
    before = [entry_of(claim) for claim in claims]
    with renamed(*RULES.values()):
        assert [entry_of(claim) for claim in claims] == before
    assert list(verbs()) == VERB_NAMES.split()
    assert before[0]["rule"]["name"] == "above"
    assert list(RULES) == ["above", "below", "within", "printed", "always"]


@pytest.mark.long
def test_every_name_of_a_seed_stands_in_the_table_of_frozen_names() -> None:
    """A name is a literal argument of one of these functions; the table has them all, and nothing else."""
    makers, found = {"derived_seed": 1, "torch_generator": 1, "numpy_generator": 1}, set()
    makers |= {"drawn_components": 3, "draw": 3}
    for path in [one for name in ("", "papers", "studies") for one in (ROOT / name / "src").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and called in makers and len(node.args) > makers[called]:
                inside = ast.walk(node.args[makers[called]])
                found |= {one.value for one in inside if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    assert found == set(seeds.NAMES)
    assert hashlib.sha256("\n".join(seeds.NAMES).encode()).hexdigest()[:12] == "b41fcd3b7ac4"
    assert hashlib.sha256(json.dumps([seeds.PURPOSES, seeds.STREAMS]).encode()).hexdigest()[:12] == "6410ae032025"


# ---------------------------------------------------------------------------------------------------------------------
# Fields and registered names that files call otherwise


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A record in another one, with a field that was `old` once."""

    new: int = field(default=1, metadata={"stored": "old"})


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A record with two fields of another name in files."""

    inner: Inner = field(default_factory=Inner, metadata={"stored": "inside"})
    plain: int = 0
    changed: tuple[int, ...] = field(default=(), metadata={"stored": "before"})


def test_a_field_is_written_by_its_stored_name_and_read_by_both() -> None:
    spec = Outer(inner=Inner(new=3), plain=2, changed=(1, 2))
    stored = {"inside": {"old": 3}, "plain": 2, "before": [1, 2]}
    assert schema.spec_to_data(spec) == stored
    assert list(schema.to_stored(spec)) == list(stored)
    by_name = {"inner": {"new": 3}, "plain": 2, "changed": [1, 2]}
    for data in (stored, by_name, stored | {"inside": {"new": 3}}):
        assert schema.parse_spec(Outer, data, "") == spec
    for data, said in (
        ({"before": [1], "changed": [1]}, "section.changed: is given twice"),
        ({"inside": {"old": 1, "new": 1}}, "section.inside.new: is given twice"),
        ({"befor": [1]}, "section.befor: unknown 'befor'"),
        ({"before": "x"}, r"section.before\[0\]: must be an integer"),
    ):
        with pytest.raises(InputError, match=said):
            schema.parse_spec(Outer, data, "section")


@pytest.fixture
def other_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry whose processes may be changed."""
    registry.entries("process")
    for table in (registry._found, registry._stored):
        monkeypatch.setitem(table, "process", dict(table["process"]))


def spec_of(fields: dict[str, Any], name: str) -> type:
    """A class of specs with these fields."""

    def build(self: Any) -> hs.HMM:
        return hs.HMM([1.0, 0], [[0.5, 0.5], [0.25, 0.75]], [[1.0, 0], [0, 1.0]])

    annotations = {key: int for key in fields}
    made = type(name, (), {"__annotations__": annotations, "build": build, "__module__": __name__, **fields})
    return dataclass(frozen=True, kw_only=True)(made)


def test_a_process_and_its_field_that_are_renamed_keep_what_is_stored(other_registry: None) -> None:
    before = registry.process("one-old")(spec_of({"size": 2, "other": 3}, "OldSpec"))
    made = {"process": {"name": "one-old", "size": 5}, "training": {"num_grains": 2}}
    kept = RunConfig(**made)
    data, run, digest = kept.to_data(), run_name(kept), hs.ProcessDataset(before(size=5).build(), length=3).digest(2)
    del registry._found["process"]["one-old"]
    fields = {"width": field(default=2, metadata={"stored": "size"}), "other": 3}
    after = registry.process("one-new", stored="one-old")(spec_of(fields, "NewSpec"))
    for name, key in (("one-old", "size"), ("one-new", "width"), ("one-new", "size"), ("one-old", "width")):
        found = config_from_data({**made, "process": {"name": name, key: 5}})
        assert found.process == after(width=5)
        assert (found.to_data(), run_name(found)) == (data, run)
        changed = config_from_data(data, {f"process.{key}": "7", "process.name": name})
        assert changed.process == after(width=7)
        point = expand({"base": made, "vary": {f"process.{key}": [5, 6]}})[1]
        assert point.varied[f"process.{key}"] == 6
    assert run == "roformer-one-old-seed0-" + run[-12:]
    assert data["process"] == {"name": "one-old", "size": 5, "other": 3}
    assert hs.ProcessDataset(after(width=5).build(), length=3).digest(2) == digest
    assert registry.stored_data("process", {"name": "one-new", "width": 1}) == {"name": "one-old", "size": 1}
    assert hs.make_process("one-old", width=4).num_states == hs.make_process("one-new", size=4).num_states == 2
    assert "one-new" in list(registry.entries("process"))
    assert "one-old" not in list(registry.entries("process"))
    assert registry.lookup("process", "one-old") is registry.entries("process").get("one-new") is after
    with pytest.raises(InputError, match="unknown 'one-olt'"):
        registry.lookup("process", "one-olt")


def test_a_stored_name_is_taken(other_registry: None) -> None:
    registry.process("one-new", stored="one-old")(spec_of({"size": 2}, "NewSpec"))
    for name, stored in (("one-old", None), ("two", "one-old"), ("two", "one-new"), ("two", "mess3")):
        with pytest.raises(InputError, match=r"is already a name of|is already registered by"):
            registry.process(name, stored=stored)(spec_of({"size": 2}, "Another"))


def test_an_object_that_is_handed_over_is_called_the_same_by_configurations() -> None:
    registry.entries("process")
    assert [kind for kind in below(Process) if "stored_name" not in vars(kind)] == []
    hmm, module = hs.make_process("mess3"), adapt(lambda tokens: tokens)
    with renamed(type(hmm), AdaptedModule):
        assert ObjectSpec.of(hmm).kind == type(hmm).stored_name == "LabelledHMM"
        assert UserModuleSpec.of(module).class_name == "hmmscope.models.user_module.Function"
    assert UserModuleSpec.of(torch.nn.Linear(1, 1)).class_name == "torch.nn.modules.linear.Linear"


# ---------------------------------------------------------------------------------------------------------------------
# The baseline from before names were changed: tests/stored_names.json

KEPT = json.loads(Path(__file__).with_name("stored_names.json").read_text())


def small(kind: str, name: str) -> Any:
    """A registered spec, found by its stored name, of the sizes of the contract tests."""
    cls = registry.lookup(kind, name)
    known = schema.known_keys(cls)
    return registry.build_spec(kind, {"name": name} | {key: SMALL[key] for key in SMALL if key in known}, kind)


@pytest.mark.parametrize("name", KEPT["processes"])
def test_digests_of_processes_and_corpora_are_as_they_were(name: str) -> None:
    process = small("process", name).build()
    assert process.digest[:16] == KEPT["processes"][name]
    for laid, digest in KEPT["corpora"].items():
        layout, _, of = laid.partition("/")
        if of == name:
            assert hs.ProcessDataset(process, layout=small("layout", layout)).digest(3)[:16] == digest, layout


def test_names_of_runs_are_as_they_were() -> None:
    """They hold the registered names and a digest of all keys and values of a configuration."""
    for what, name in KEPT["runs"].items():
        kind, _, of = what.partition("/")
        spec = None if kind == "preset" else small(kind, of) if of == "file" else registry.lookup(kind, of)()
        config = config_from_data(preset(of)) if spec is None else RunConfig(**{kind: spec})
        assert run_name(config) == name, what


@pytest.mark.parametrize("name", KEPT["weights"])
def test_names_of_weights_are_as_they_were(name: str) -> None:
    """Checkpoints and exports have them."""
    ports = ModelIO(num_outputs=5, vocab_size=6, max_length=64)
    weights = build_model(small("model", name), ports, 0).state_dict()
    shapes = [[key, list(tensor.shape)] for key, tensor in weights.items()]
    assert hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16] == KEPT["weights"][name]


def test_lists_of_stored_names_are_as_they_were() -> None:
    """Figures, gates, formats and fields of the recipe."""
    assert sorted(_KINDS) == ["bars", "cloud", "explorer", "heatmap", "lines"]
    assert {"converged", "learned", "matched", "regime", "room", "power"} <= {*get_args(get_type_hints(Gate)["name"])}
    formats = sorted(kind for kind in kinds() if kind.startswith("hmmscope-"))
    said = json.dumps([formats, list(schema.spec_to_data(TrainingSpec())), VERDICTS, ROLES, store.FORMATS])
    assert hashlib.sha256(said.encode()).hexdigest()[:16] == "0e05eff4dba3a8b1"


def test_a_trained_run_has_the_folder_and_the_keys_that_it_had(tmp_path: Path) -> None:
    data = {
        "process": {"name": "mess3"},
        "layout": {"name": "sequences", "length": 4},
        "model": {"name": "rnn", "width": 4},
        "training": {"num_steps": 2, "batch_size": 2, "warmup_steps": 0, "device": "cpu", "engine": "torch"},
    }
    config = config_from_data(data)
    assert run_name(config) == "rnn-mess3-seed0-73ed1cdcf1d2"
    run = hs.train(config, out=tmp_path / "run")
    names = sorted(path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file())
    done, config_bytes = store.read_json(run.path / "done.json"), (run.path / "config.json").read_bytes()
    assert hashlib.sha256(config_bytes).hexdigest()[:16] == "728f7d2cedbd3c2d"
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    said = json.dumps([names, sorted(done), [sorted(one) for one in records]])
    assert hashlib.sha256(said.encode()).hexdigest()[:16] == "df0a0b638c92d4df"
