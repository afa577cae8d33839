"""Edits of the header, and what a network holds of it: known answers on networks that filter, and that do not listen."""

import pytest
import torch
from torch import nn

import hmmscope as hs
from hmmscope.analysis.header_inside import exchanged, header_edits, header_memory
from hmmscope.models.base import HookPoint


def told(length=8, **fields):
    process = hs.make_process("told-hmms", **({"least": 1} | fields))
    return hs.ProcessDataset(process, layout=hs.HeaderLayout(length=length), stream="probe")


class Filters(nn.Module):
    """Reads its own header off the stream of the header's columns, and filters: outputs are laws."""

    outputs = "law"

    def __init__(self, corpus, listens=True):
        super().__init__()
        self.corpus, self.listens, self.weight = corpus, listens, nn.Parameter(torch.zeros(1))
        self.residual = nn.ModuleList([HookPoint(), HookPoint()])

    def forward(self, tokens):
        stream = self.residual[0](tokens[..., None].double())
        read = stream[..., 0].round().long() if self.listens else tokens.clone()
        if not self.listens:
            read[:, :4] = 2 + 5  # another HMM, whatever stands there
        read = torch.cat([read[:, :4], tokens[:, 4:]], 1)
        batch = hs.Batch(read, tokens[:, 4:], tokens[:, 4:], None)
        layout = hs.HeaderLayout(length=tokens.shape[1] - 4)
        laws = hs.make_target("observation", self.corpus.process, layout).optimum(batch)
        self.residual[1](stream)
        return nn.functional.pad(laws, (0, 0, 3, 1), value=0.5)


def test_one_entry_changes_places_with_the_last_of_its_row():
    dataset = told(num_states=3, num_symbols=3)
    tokens = dataset[0:60].tokens
    found = exchanged(dataset, tokens, 0)
    assert ((found != tokens).sum(1) <= 1).all()
    assert ((found != tokens).sum(1) == 1).float().mean() > 0.9
    before, after = (dataset.process.decode_header(one[:, :12] - 3).params for one in (tokens, found))
    for old, new in ((before.transition_MSS, after.transition_MSS), (before.emission_MSV, after.emission_MSV)):
        assert torch.equal(old.sort(-1).values, new.sort(-1).values)  # the same numbers in every row


def test_a_filter_follows_an_edited_header_and_who_does_not_listen_does_not():
    dataset = told()
    rows = {(row["where"], row["edit"]): row for row in header_edits(Filters(dataset), dataset, num_samples=64)}
    assert rows["tokens", "own"]["value"] == pytest.approx(1, abs=1e-9)
    assert rows["residual.0", "own"]["value"] == pytest.approx(1, abs=1e-9)
    assert rows["residual.1", "own"]["value"] == pytest.approx(0, abs=1e-9)  # nothing reads it any more
    assert rows["residual.0", "other"]["value"] < 0.5
    assert rows["tokens", "own"]["before"] > 0.02
    deaf = header_edits(Filters(dataset, listens=False), dataset, num_samples=64)
    assert all(abs(row["value"]) < 1e-9 for row in deaf)


def test_what_is_held_of_the_header_is_read_and_twins_stand_beside():
    dataset = told()

    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.residual = nn.Parameter(torch.zeros(1)), nn.ModuleList([HookPoint(), HookPoint()])

        def forward(self, tokens):
            own = nn.functional.one_hot(tokens, dataset.vocab_size).float()
            self.residual[0](own)
            self.residual[1](tokens[:, None, :2].float().expand(-1, tokens.shape[1], -1))
            return own[..., :2]

    rows = {
        (row["part"], row["layer"]): row for row in header_memory(Holds(), dataset, num_samples=128, num_controls=0)
    }
    assert rows["transition", 1]["r2"] == pytest.approx(1, abs=1e-4)  # ridge
    assert rows["emission", 1]["r2"] < 0.2
    assert rows["transition", 0]["r2"] < 0.2
    model = hs.make_model("lstm", num_symbols=2, vocab_size=dataset.vocab_size, width=8)
    beside = header_memory(model, dataset, num_samples=64)
    assert all("untrained" in row["beyond_twins"] for row in beside)
    for measure in (header_memory, header_edits):
        with pytest.raises(hs.HmmscopeError, match="header layout"):
            measure(model, hs.ProcessDataset("mess3", length=4))
