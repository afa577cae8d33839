"""The belief about RRXOR in a language model that reads sequences as text, and the effect of editing this belief."""

from typing import Any

import numpy as np

from hmmscope import EvaluateOptions, InterventionOptions, ProcessDataset, belief_interventions, evaluate, make_process
from hmmscope.analysis import ExactBeliefs
from hmmscope.interop import HuggingFaceModel
from hmmscope.lab import MeasuredTables
from hmmscope.ties import largest
from hmmscope_studies.language.language_model import NUM_TWINS, Reader

#: Ridge penalty, because there are hardly more examples than coordinates of the stream.
RIDGE = 1e-2


def belief_tables(reader: Reader, sizes: dict[str, Any]) -> MeasuredTables:
    count = sizes["belief_samples"]
    model, text = reader.read(sizes["belief_length"], sizes["separators"][0])
    dataset = ProcessDataset(make_process("rrxor"), layout=text, seed=reader.seed, stream="probe")
    last = len(list(model.residual)) - 1
    numbers = sorted({round(n) for n in np.linspace(0, last, sizes["layers"])})
    names, exact = [f"residual.{n}" for n in numbers], ExactBeliefs.of(dataset, count)
    alone = float(exact.from_prediction(ridge=RIDGE)[0])
    moved = {"trained": model, "untrained": reader.untrained(text, 0)}
    others = [("shuffled", reader.shuffled(text))]
    others += [("untrained", reader.untrained(text, draw)) for draw in range(1, NUM_TWINS)]
    readouts = [(name, exact.read(exact.stream(one, names), ridge=RIDGE)) for name, one in (*moved.items(), *others)]
    rows = [
        {"network": network, "layer": number, "from_prediction": alone} | row
        for network, found in readouts
        for number, row in zip(numbers, found.by_layer(len(found.spread)), strict=True)
    ]
    twins, own = [found for network, found in readouts if network == "untrained"], dict(reversed(readouts))
    beyond = []
    for network in ("trained", "shuffled", "untrained"):
        share = own[network].beyond([twin for twin in twins if twin is not own[network]])
        ends = {"value": share.value, "low": share.low, "high": share.high}
        beyond.append({"network": network, **ends, "said": str(share)})
    best = {name: names[largest(range(1, len(names)), own[name].fitted.tolist().__getitem__)] for name in moved}
    return {
        "beliefs": rows,
        "beyond": beyond,
        "rrxor": _scored(moved, dataset, count),
        "interventions": _moved(moved, dataset, best, sizes),
    }


def _moved(
    models: dict[str, HuggingFaceModel], dataset: ProcessDataset, best: dict[str, str], sizes: dict[str, Any]
) -> list[dict[str, Any]]:
    count, rows = sizes["belief_samples"], []
    for network, model in models.items():
        options = InterventionOptions(num_positions=sizes["positions"], num_random=1, ridge=RIDGE)
        found = belief_interventions(
            model, dataset, layers=[best[network]], num_samples=count, interventions=("set",), options=options
        )
        rows += [{"network": network} | row for row in found if row["metric"] == "kl"]
    return rows


def _scored(models: dict[str, HuggingFaceModel], dataset: ProcessDataset, count: int) -> list[dict[str, Any]]:
    rows = []
    for network, model in models.items():
        score = evaluate(
            model,
            dataset,
            num_samples=count // 4,
            options=EvaluateOptions(first=count - count // 4),
            baselines=network == "trained",
        )
        late = score.positions >= dataset.layout.num_observations // 2
        for name, found in score.measures.items():
            if "excess" in found:  # the exact filter has none
                each = found["excess"][:, late].mean(1)
                about = {"network": network if name == "model" else name}
                rows.append(about | {"value": float(each.mean()), "error": float(each.std(ddof=1) / len(each) ** 0.5)})
    return rows
