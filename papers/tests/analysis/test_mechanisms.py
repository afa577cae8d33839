"""The map of the mechanism, on the induction network, whose weights are written by hand."""

import pytest

from hmmscope.analysis import intervals, layer_curves
from hmmscope.analysis.mechanisms import components, mechanisms, paths, roles
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.models.base import make_model
from hmmscope.processes.make import make_process
from hmmscope_papers.constructions.induction import induction_network

V, T = 3, 8
NETWORK = induction_network(V, V, T).double()


@pytest.fixture(scope="module")
def corpus() -> ProcessDataset:
    chains = make_process("fresh-markov-chains", num_states=V, num_symbols=V, transition_concentration=0.3)
    return ProcessDataset(chains, length=T, stream="probe")


@pytest.fixture(scope="module")
def rows(corpus: ProcessDataset) -> list[dict]:
    return mechanisms(NETWORK, corpus, num_samples=128)


def lost(rows: list[dict], **chosen: object) -> dict:
    return {
        (row["component"], row["quantity"]): row for row in rows if all(row[k] == value for k, value in chosen.items())
    }


@pytest.mark.parametrize("ablation", ["mean", "resample"])
def test_heads_are_named_by_what_their_removal_does(rows: list[dict], ablation: str) -> None:
    wanted = {"head 1.0": "previous-token head", "head 1.1": "none", "attention 1": "previous-token layer"}
    wanted |= {"head 2.0": "induction head", "head 2.1": "none", "attention 2": "induction layer"}
    assert roles(rows, ablation=ablation) == wanted
    found = lost(rows, ablation=ablation)
    assert found["head 1.0", "previous-1"]["before"] > 0.999
    assert found["head 1.0", "previous-1"]["value"] > 0.9
    assert found["head 1.0", "loss"]["low"] > 0.05
    assert found["head 2.0", "loss"]["low"] > 0.05
    assert abs(found["head 2.0", "previous-1"]["value"]) < 1e-6  # it is read there before


def test_an_empty_head_changes_nothing(rows: list[dict]) -> None:
    for name in ("head 1.1", "head 2.1"):
        values = [row for row in rows if row["component"] == name]
        assert values
        assert max(abs(row["value"]) for row in values) < 1e-9
        assert all(row["low"] <= row["value"] <= row["high"] for row in values)


def test_intervals_are_as_wide_as_the_samples_that_test_are_few(
    corpus: ProcessDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(layer_curves, "stretch", lambda count: counts.append(count) or intervals.stretch(count))
    found = mechanisms(NETWORK, corpus, num_samples=20)
    asked = {row["quantity"] for row in found}
    assert counts == [20 if row["quantity"] == "loss" else 5 for row in found]
    assert asked == {"loss", "previous-1", "previous-2", "previous-3", "unigram", "bigram"}


@pytest.mark.parametrize("ablation", ["mean", "resample"])
def test_paths_are_those_of_the_circuit(corpus: ProcessDataset, ablation: str) -> None:
    rows = paths(NETWORK, corpus, num_samples=64, ablation=ablation)
    found = {(row["sender"], row["receiver"]): row for row in rows if row["quantity"] == "loss"}
    wanted = {
        ("embedding", "attention 1"),
        ("embedding", "attention 2"),
        ("head 1.0", "attention 2"),
        ("head 2.0", "output"),
    }
    assert {edge for edge, row in found.items() if row["low"] > 0.01} == wanted
    assert max(abs(row["value"]) for edge, row in found.items() if edge not in wanted) < 1e-9


def test_what_only_the_output_hears_is_lost_as_if_it_were_ablated(corpus: ProcessDataset) -> None:
    """The last MLP has no other way out, through norms too."""
    model = make_model("roformer", num_symbols=V, num_layers=1, num_heads=2, width=8).double()
    cut = {(row["sender"], row["receiver"], row["quantity"]): row for row in paths(model, corpus, num_samples=16)}
    assert len({edge[:2] for edge in cut}) == 1 + 3 + 4
    ablated = lost(mechanisms(model, corpus, num_samples=16), ablation="mean")
    assert cut["mlp 1", "output", "loss"]["value"] == pytest.approx(ablated["mlp 1", "loss"]["value"], rel=1e-9)
    assert abs(ablated["mlp 1", "loss"]["value"]) > 1e-6
    with pytest.raises(InputError, match="ablation: unknown 'zero'"):
        paths(model, corpus, num_samples=16, ablation="zero")
    with pytest.raises(InputError, match="must be a Decoder"):
        paths(make_model("rnn", num_symbols=V, width=8), corpus, num_samples=16)


def test_what_was_never_trained_has_no_role(corpus: ProcessDataset) -> None:
    """Its heads gather what can be read, and its predictions do not need them."""
    model = make_model("roformer", num_symbols=V, num_layers=1, num_heads=2, width=16)
    rows = mechanisms(model, corpus, num_samples=64)
    assert max(row["low"] for row in rows if row["quantity"] == "unigram") > 0.05
    assert set(roles(rows).values()) == {"none"}


def test_mlps_are_components_and_models_without_heads_are_refused(corpus: ProcessDataset) -> None:
    model = make_model("roformer", num_symbols=V, num_layers=1, num_heads=2, width=8)
    assert [part.name for part in components(model)] == ["head 1.0", "head 1.1", "attention 1", "mlp 1"]
    plain = make_process("mess3")
    found = mechanisms(model, ProcessDataset(plain, length=6), num_samples=16)
    assert {row["component"] for row in found} == {part.name for part in components(model)}
    assert "belief" in {row["quantity"] for row in found}
    with pytest.raises(InputError, match=r"model: has no activations blocks\.<n>\.attention\.mixed"):
        mechanisms(make_model("rnn", num_symbols=V, width=8), corpus)
    with pytest.raises(InputError, match="at least five observations"):
        mechanisms(model, ProcessDataset(plain, length=4), num_samples=16)
