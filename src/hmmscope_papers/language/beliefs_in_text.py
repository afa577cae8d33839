"""What a language model that reads RRXOR as text holds of its belief, and what follows when the belief is changed."""

from typing import Any

import numpy as np

from hmmscope import Corpus, belief_interventions, evaluate, make_process
from hmmscope.analysis import ExactBeliefs, Readout, with_interval
from hmmscope.interop import HuggingFaceModel
from hmmscope.lab import Measured
from hmmscope.ties import largest
from hmmscope_papers.language.language_model import NUM_TWINS, Reader

#: Of the regression: there are hardly more examples than coordinates of the stream.
RIDGE = 1e-2


def belief_tables(reader: Reader, sizes: dict[str, Any]) -> Measured:
    """The belief of RRXOR in the layers of the language model and its twins, and what follows when it is changed."""
    count = sizes["belief_samples"]
    model, text = reader.read(sizes["belief_length"], sizes["separators"][0])
    corpus = Corpus(make_process("rrxor"), layout=text, seed=reader.seed, stream="probe")
    last = len(list(model.residual)) - 1
    numbers = sorted({round(n) for n in np.linspace(0, last, sizes["layers"])})
    names, exact = [f"residual.{n}" for n in numbers], ExactBeliefs.of(corpus, count)
    alone = float(exact.from_prediction(ridge=RIDGE)[0])
    moved = {"trained": model, "untrained": reader.untrained(text, 0)}
    readouts: list[tuple[str, Readout]] = []
    rows: list[dict[str, Any]] = []
    others = [("shuffled", reader.shuffled(text))]
    others += [("untrained", reader.untrained(text, draw)) for draw in range(1, NUM_TWINS)]
    for network, one in (*moved.items(), *others):
        found = exact.read(exact.stream(one, names), ridge=RIDGE)
        readouts.append((network, found))
        for place, draws in enumerate(found.r2().T):
            about = {"network": network, "layer": numbers[place], "from_prediction": alone}
            rows.append(about | with_interval(draws, len(found.spread)) | {"fitted": float(found.fitted[place])})
    return {
        "beliefs": rows,
        "beyond": _beyond(readouts),
        "rrxor": _scored(moved, corpus, count),
        "interventions": _moved(moved, corpus, readouts, names, sizes),
    }


def _beyond(readouts: list[tuple[str, Readout]]) -> list[dict[str, Any]]:
    """What each network explains of what untrained twins leave; an untrained one of what the others leave."""
    twins = [found for network, found in readouts if network == "untrained"]
    rows = []
    for network in ("trained", "shuffled", "untrained"):
        own = next(found for name, found in readouts if name == network)
        share = own.beyond([twin for twin in twins if twin is not own])
        rows.append(
            {"network": network, "value": share.value, "low": share.low, "high": share.high, "said": str(share)}
        )
    return rows


def _moved(
    models: dict[str, HuggingFaceModel],
    corpus: Corpus,
    readouts: list[tuple[str, Readout]],
    names: list[str],
    sizes: dict[str, Any],
) -> list[dict[str, Any]]:
    """Another belief is written where it is read best, above the input."""
    count, rows = sizes["belief_samples"], []
    for network, model in models.items():
        fitted = next(found for name, found in readouts if name == network).fitted
        best = largest(range(1, len(names)), fitted.tolist().__getitem__)
        options = {"num_samples": count, "num_positions": sizes["positions"], "num_random": 1, "ridge": RIDGE}
        found = belief_interventions(model, corpus, layers=[names[best]], interventions=("set",), **options)
        rows += [{"network": network} | row for row in found if row["metric"] == "kl"]
    return rows


def _scored(models: dict[str, HuggingFaceModel], corpus: Corpus, count: int) -> list[dict[str, Any]]:
    """Nats above the filter in the second half of the sequences that are changed, of the models and of what counts."""
    rows = []
    for network, model in models.items():
        score = evaluate(
            model, corpus, num_samples=count // 4, first=count - count // 4, baselines=network == "trained"
        )
        late = score.positions >= corpus.layout.num_observations // 2
        for name, found in score.measures.items():
            if "excess" in found:  # the exact filter has none
                each = found["excess"][:, late].mean(1)
                about = {"network": network if name == "model" else name}
                rows.append(about | {"value": float(each.mean()), "error": float(each.std(ddof=1) / len(each) ** 0.5)})
    return rows
