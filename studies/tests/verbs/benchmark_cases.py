"""A model file, and refusals, of the tests of HMM-bench."""

import hmmscope as hs
from comparing import refuses
from hmmscope.storage import seals, store
from hmmscope_studies.benchmark.card import as_text

MODEL = """
from torch import nn

NAME, TRAINING, DECLARED, LAYERS = "small gru", {"learning_rate": 1e-2}, {"parameters": 500}, ["1"]


class Small(nn.Sequential):
    def forward(self, tokens):
        return self[2](self[1](self[0](tokens))[0])


def build(vocab_size, num_outputs):
    return Small(nn.Embedding(vocab_size, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, num_outputs))
"""


def failing(part, call, *args, **options):
    refuses(lambda: call(*args, **options), part, kind=hs.HmmscopeError)


def sealed_again(folder, card):
    """What a cheat would do: change the card, and seal the folder anew."""
    store.write_json(folder / "card.json", card)
    if "solved" in card:
        (folder / "card.txt").write_text(as_text(card) + "\n")
    seals.remove_seal(folder)
    seals.write_seal(folder, "submission", {})
