"""The map of the mechanism, on an induction network whose weights are written by hand."""

import pytest
import torch

from hmmscope.analysis.mechanisms import components, mechanisms, roles
from hmmscope.corpora.corpus import Corpus
from hmmscope.errors import InputError
from hmmscope.models.make import make_model
from hmmscope.processes.make import make_process

V, T, HEAD = 3, 8, 12
TOKEN, PLACE, BEFORE, AFTER = (slice(0, 3), slice(3, 11), slice(11, 14), slice(14, 17))
SHARP = 60.0


def induction_network() -> torch.nn.Module:
    """Head 1.0 copies the symbol before; head 2.0 looks where the symbol before is the present one; the others are empty.

    The stream: symbol, position, symbol before, symbols that came after the present one.
    """
    spec = {"num_layers": 2, "num_heads": 2, "width": 2 * HEAD, "attention_only": True, "norm": "none", "dropout": 0.0}
    spec |= {"input_features": False, "scale_attention": False}
    model = make_model("decoder", num_symbols=V, num_tokens=V, max_length=T, **spec).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.weight[:, TOKEN] = torch.eye(V, dtype=torch.float64)
        model.positions[:, PLACE] = torch.eye(T, dtype=torch.float64)
        for layer, (query, key, value, out) in enumerate(
            [(torch.eye(T).roll(-1, 0), PLACE, TOKEN, BEFORE), (torch.eye(V), BEFORE, TOKEN, AFTER)]
        ):
            attention, asked = model.blocks[layer].attention, PLACE if layer == 0 else TOKEN
            q, k, v = attention.qkv.weight.view(3, 2, HEAD, 2 * HEAD)[:, 0]
            q[: len(query), asked] = SHARP * query.double()
            k[: len(query), key] = torch.eye(len(query), dtype=torch.float64)
            v[:V, value] = torch.eye(V, dtype=torch.float64)
            attention.out.weight[out, :V] = torch.eye(V, dtype=torch.float64)
        model.head.weight[:, AFTER] = 1.5 * torch.eye(V, dtype=torch.float64)
    return model.eval()


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    chains = make_process("fresh-markov-chains", num_states=V, num_symbols=V, transition_concentration=0.3)
    return Corpus(chains, length=T, stream="probe")


@pytest.fixture(scope="module")
def rows(corpus: Corpus) -> list[dict]:
    return mechanisms(induction_network(), corpus, num_samples=128)


def lost(rows: list[dict], **chosen: object) -> dict:
    return {
        (row["component"], row["quantity"]): row for row in rows if all(row[k] == value for k, value in chosen.items())
    }


@pytest.mark.parametrize("ablation", ["mean", "resample"])
def test_heads_are_named_by_what_their_removal_does(rows: list[dict], ablation: str) -> None:
    wanted = {"head 1.0": "previous-token head", "head 1.1": "none", "head 2.0": "induction head", "head 2.1": "none"}
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


def test_mlps_are_components_and_models_without_heads_are_refused(corpus: Corpus) -> None:
    model = make_model("roformer", num_symbols=V, num_layers=1, num_heads=2, width=8)
    assert [part.name for part in components(model)] == ["head 1.0", "head 1.1", "mlp 1"]
    plain = make_process("mess3")
    found = mechanisms(model, Corpus(plain, length=6), num_samples=16)
    assert {row["component"] for row in found} == {"head 1.0", "head 1.1", "mlp 1"}
    assert "belief" in {row["quantity"] for row in found}
    with pytest.raises(InputError, match=r"no heads with taps"):
        mechanisms(make_model("rnn", num_symbols=V, width=8), corpus)
    with pytest.raises(InputError, match="at least five observations"):
        mechanisms(model, Corpus(plain, length=4), num_samples=16)
