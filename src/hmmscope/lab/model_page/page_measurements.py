"""Measurements of the model page: losses, belief maps, attention, one trace, one intervention."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import capture_activations, inference_mode, layers_read
from hmmscope.analysis.belief_map import BeliefMap, BeliefReader
from hmmscope.analysis.curves import EvaluateOptions, Score, evaluate
from hmmscope.analysis.devices import about_of
from hmmscope.analysis.geometry import Readout
from hmmscope.analysis.intervals import bootstrap_means
from hmmscope.analysis.layer_curves import with_interval
from hmmscope.analysis.learned import learned
from hmmscope.analysis.ngrams import is_ngram
from hmmscope.analysis.untrained_controls import ExplainedFraction, UntrainedControls, explained_by_layer
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.datasets.targets import NextObservation, Target
from hmmscope.errors import InputError
from hmmscope.lab.model_page.description_panel import architecture, explained
from hmmscope.lab.model_page.intervention_panel import pushed, used
from hmmscope.lab.model_page.trace_panel import traced
from hmmscope.models.adapted import called_title
from hmmscope.models.rehearsal import leak_in
from hmmscope.processes.capabilities import STATES
from hmmscope.runs.page_export import ControlScores, live_model_data

#: Most layers with a belief map, most attention heads, and most positions of attention on the page.
MOST_LAYERS, MOST_HEADS, MOST_COLUMNS = 7, 16, 64
#: Number of samples for losses of controls, and number of steps of the grid that points are rounded to.
TWIN_SAMPLES, GRID = 64, 65_535


@dataclass(frozen=True, kw_only=True)
class PageInputs:
    """The model and the data from which a model page is computed.

    Attributes:
        model: The model as the caller gave it.
        name: Short name of the model.
        probe, held_out, training: Samples for belief maps, for losses, and for n-gram baselines.
        target: Prediction target of the model.
        block_length: Positions per block of block chain-of-thought; 0 for none.
        controls: Untrained networks of the same architecture.
        before: The model before training, or an untrained control if the initial weights are unknown.
        before_is: Description of `before` in words.
        steps: Number of training steps, if known.
        warnings: Warnings from the check of the model before measurements, one line each.
        seed: Seed of samples and controls.
    """

    model: nn.Module
    name: str
    probe: ProcessDataset
    held_out: ProcessDataset
    training: ProcessDataset
    target: Target
    block_length: int
    controls: UntrainedControls
    before: nn.Module | None
    before_is: str
    steps: int | None = None
    warnings: tuple[str, ...] = ()
    seed: int = 0


def measured(
    subject: PageInputs, *, num_samples: int, num_points: int, layers: Sequence[str] | None = None
) -> dict[str, Any]:
    unknown: list[str] = []
    process = subject.probe.process
    score = evaluate(
        subject.model,
        subject.held_out,
        num_samples=num_samples,
        target=subject.target,
        options=EvaluateOptions(block_length=subject.block_length),
    )
    found: dict[str, Any] = {
        "name": subject.name,
        "process": process.title or process.describe(),
        "titled": bool(process.title),
        "explained": explained(process),
        "architecture": architecture(subject.model),
        "unit": subject.target.unit,
        "samples": num_samples,
        "length": int(subject.probe.layout.num_observations),
        "steps": subject.steps,
        "losses": _losses(subject, score, unknown),
        "ahead": _ahead(score),
        "invalid": score.invalid or leak_in(subject.model, subject.warnings),
        "warnings": [*subject.warnings, *score.warnings],
        "learned": _learned(subject, unknown),
        "before": subject.before_is,
    }
    if subject.controls.reason:
        unknown.append(f"The contribution of training is unknown: {subject.controls.reason}.")
    found["beliefs"], reader = _beliefs(subject, num_points, layers, unknown)
    read = layers if found["beliefs"] is None else [row["name"] for row in found["beliefs"]["layers"]]
    found["about"] = about_of(subject.model, subject.held_out, num_samples, seed=subject.seed, layers=read)
    found["attention"] = _attention(subject, unknown)
    found["live"] = _live(subject, found["beliefs"], unknown)
    found["push"] = found["trace"] = found["used"] = None
    if found["live"] is None:
        found["trace"] = traced(subject.model, subject.held_out, reader, (found["beliefs"] or {}).get("best"))
    if found["beliefs"] is not None:
        best = found["beliefs"]["best"]
        try:
            _require_pushable(subject)
            found["push"] = None if found["live"] else pushed(subject.model, subject.probe, best)
            found["used"] = used(subject.model, subject.probe, best)
        except InputError as error:
            unknown.append(f"It is unknown whether the model uses the decoded belief: {error}.")
    unknown += [
        "Variation between seeds is unknown, because this page shows one network.",
        "Behaviour on longer samples or on another process is unknown.",
    ]
    return found | {"unknown": unknown}


def _require_pushable(subject: PageInputs) -> None:
    if not isinstance(subject.target, NextObservation) or subject.block_length:
        raise InputError("the page can write beliefs only into models that predict the next observation")
    if STATES not in subject.probe.process.uses_hmm_inference:
        raise InputError("the page can write only beliefs about the state of a single HMM, which this process is not")


def _losses(subject: PageInputs, score: Score, unknown: list[str]) -> list[dict[str, Any]]:
    by_sample = {name: np.nanmean(measured["loss"], 1) for name, measured in score.measures.items()}
    floor = by_sample.get("optimum")
    best = score.baseline
    named = [("optimum", "the exact optimum", "exact"), ("model", subject.name, "model")]
    if best is not None:
        named.append(
            (best[0], f"the best {'n-gram ' * is_ngram(best[0])}baseline ({best[0].replace('-', ' ')})", "ngram")
        )
    rows = [
        {"name": name, "role": role, **_mean(by_sample[key])}
        | {"above": None if floor is None else _mean(by_sample[key] - floor)}
        for key, name, role in named
        if key in by_sample
    ]
    if score.no_optimum is not None:
        unknown.append(f"The optimum is unknown: {score.no_optimum}.")
    twins = [_loss_of_twin(subject, twin) for twin in subject.controls.models]
    if twins:
        whole = _range([loss for loss, _ in twins])
        above = None if floor is None else _range([loss - optimum for loss, optimum in twins])
        rows.append({"name": f"{len(twins)} untrained controls", "role": "twin", **whole, "above": above})
    return rows


def _mean(values: NDArray[np.float64]) -> dict[str, float]:
    mean, low, high = (float(x) for x in bootstrap_means(values[~np.isnan(values)]))
    return {"value": mean, "low": low, "high": high}


def _range(values: list[float]) -> dict[str, float]:
    return {"value": float(np.mean(values)), "low": min(values), "high": max(values)}


def _loss_of_twin(subject: PageInputs, twin: nn.Module) -> tuple[float, float]:
    options = EvaluateOptions(block_length=subject.block_length)
    asked: dict[str, Any] = {"num_samples": TWIN_SAMPLES, "target": subject.target, "options": options}
    score = evaluate(twin, subject.held_out, baselines=False, **asked)
    return score.loss, np.nan if score.bayes_loss is None else score.bayes_loss


def _ahead(score: Score) -> dict[str, float] | None:
    if score.baseline is None:
        return None
    counting, model = (np.nanmean(score.measures[name]["loss"], 1) for name in (score.baseline[0], "model"))
    return _mean(counting - model)


def _learned(subject: PageInputs, unknown: list[str]) -> dict[str, str] | None:
    try:
        if subject.target.kind != "law" or not subject.target.exact or subject.block_length:
            return None
        gone = learned(subject.model, subject.held_out, subject.training)
    except InputError as error:
        unknown.append(f"It is unknown how much the model learned beyond a memoryless baseline: {error}.")
        return None
    return {"verdict": gone.verdict, "bar": gone.bar, "text": str(gone)}


def _beliefs(
    subject: PageInputs, num_points: int, layers: Sequence[str] | None, unknown: list[str]
) -> tuple[dict[str, Any] | None, BeliefReader | None]:
    if subject.probe.process.data is not None:
        unknown.append(
            "The belief is unknown, because the distribution of recorded sequences is unknown. Fit an HMM, "
            "hs.fit(data, ...).hmm, and pass it as the process."
        )
        return None, None
    try:
        model = registry.adapted(subject.model, layers)
        names = _chosen(layers_read(model, layers or None))
        reader = BeliefReader.of(subject.probe, 512, num_points)
        own = reader.measured(model, names)
    except InputError as error:
        unknown.append(f"There are no belief maps: {error}.")
        return None, None
    taken = [registry.adapted(twin, layers) for twin in subject.controls.models]
    beside = [reader.measured(twin, names) for twin in taken]
    shares = explained_by_layer(
        1 - own.r2(), [1 - one.r2() for one in beside], len(own.spread), reason=subject.controls.reason
    )
    whole = (
        own.beyond(beside)
        if beside
        else ExplainedFraction(float(own.r2()[0, own.chosen]), reason=subject.controls.reason)
    )
    before = None if subject.before is None else registry.adapted(subject.before, layers)
    first = None if before is None else reader.measured(before, names)
    plane = BeliefMap(
        names[own.chosen], reader.points, reader.points, None, 1.0, 1.0, 1.0, whole, reader.from_prediction
    )
    if plane.note:
        unknown.append(f"It is unknown whether the model holds the belief or only the prediction. {plane.note}")
    exact = plane.coordinates(reader.points)
    box = _box(exact, triangle=reader.points.shape[1] == 3)
    states = subject.probe.process.states or tuple(map(str, range(reader.points.shape[1])))
    found = {
        "best": names[own.chosen],
        "text": str(whole),
        "verdict": whole.verdict,
        "r2": whole.read,
        "twins": whole.controls,
        "states": [str(state) for state in states][: reader.points.shape[1]],
        "triangle": reader.points.shape[1] == 3,
        "points": len(exact),
        "samples": reader.num_samples,
        "colours": _bytes(plane.colours() * 255, "u1"),
        "exact": _placed(exact, box),
        "layers": [
            _layer(name, own, first, shares[place], place)
            | {"after": _placed(plane.coordinates(reader.drawn(model, name)), box)}
            | {"before": None if before is None else _placed(plane.coordinates(reader.drawn(before, name)), box)}
            for place, name in enumerate(names)
        ],
    }
    return found, reader


def _layer(name: str, own: Readout, first: Readout | None, share: ExplainedFraction, place: int) -> dict[str, Any]:
    r2 = with_interval(own.r2()[:, place], len(own.spread))
    return {
        "name": name,
        "r2": r2["value"],
        "low": r2["low"],
        "high": r2["high"],
        "twins": share.controls,
        "share": share.value,
        "share_low": share.low,
        "share_high": share.high,
        "text": str(share),
        "r2_before": None if first is None else float(first.r2()[0, place]),
    }


def _chosen(names: list[str]) -> list[str]:
    places = np.linspace(0, len(names) - 1, min(len(names), MOST_LAYERS)).round().astype(int)
    return [names[place] for place in dict.fromkeys(places.tolist())]


def _attention(subject: PageInputs, unknown: list[str]) -> dict[str, Any] | None:
    model = registry.adapted(subject.model)
    names = [name for name, _ in model.named_modules() if name.endswith(".attention.pattern")]
    if not names:
        unknown.append(
            f"There is no attention to show: no softmax attention was found in {called_title(subject.model)}."
        )
        return None
    batch = subject.held_out[0:1]
    with inference_mode(model) as device:
        patterns = capture_activations(
            model, names, batch.tokens.to(device), lambda x: x[0, :, :MOST_COLUMNS, :MOST_COLUMNS].cpu()
        )
    heads = [(layer, head) for layer, name in enumerate(names) for head in range(len(patterns[name]))]
    size = patterns[names[0]].shape[-1]
    symbols = subject.probe.process.symbols or tuple(map(str, range(subject.probe.num_symbols)))
    tokens = [[*symbols, "·", "?"][int(token)] for token in batch.tokens[0, :size]] if batch.tokens.ndim == 2 else []
    return {
        "size": size,
        "tokens": [str(token) for token in tokens],
        "left_out": max(0, len(heads) - MOST_HEADS),
        "heads": [
            {
                "name": f"layer {layer + 1}, head {head + 1}",
                "pattern": _bytes(patterns[names[layer]][head].double().numpy() * 255, "u1"),
            }
            for layer, head in heads[:MOST_HEADS]
        ],
    }


def _live(subject: PageInputs, beliefs: dict[str, Any] | None, unknown: list[str]) -> dict[str, Any] | None:
    if not isinstance(subject.target, NextObservation) or subject.block_length:
        unknown.append("You cannot enter symbols: the page can run only models that predict the next observation.")
        return None
    try:
        parts = (subject.probe, subject.held_out, subject.training)
        live = live_model_data(
            subject.model, *parts, name=subject.name, twinned=_twinned(subject.probe, beliefs), twins=subject.controls
        )
    except InputError as error:
        unknown.append(
            f"You cannot enter symbols: the page cannot run this model ({error}), so it shows precomputed results."
        )
        return None
    live["model"]["steps"] = subject.steps
    if beliefs is not None:  # the same number as in the headline
        live["beyond"] = {key: beliefs[key] for key in ("verdict", "text", "r2", "twins")}
    return live


def _twinned(probe: ProcessDataset, beliefs: dict[str, Any] | None) -> ControlScores | None:
    if beliefs is None or len(probe.layout.sequence_lengths) > 1:
        return None
    beyond = {key: beliefs[key] for key in ("verdict", "text", "r2", "twins")}
    return ControlScores(beliefs["samples"], {layer["name"]: layer["twins"] for layer in beliefs["layers"]}, beyond)


def _box(exact: NDArray[np.float64], *, triangle: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if triangle:
        return np.array([-0.15, -0.15]), np.array([1.3, 1.2])
    low, high = exact.min(0), exact.max(0)
    side = np.maximum(1.4 * (high - low), 1e-6)
    return (low + high - side) / 2, side


def _placed(points: NDArray[np.float64], box: tuple[NDArray[np.float64], NDArray[np.float64]]) -> str:
    low, side = box
    return _bytes(np.clip((points - low) / side, 0, 1) * GRID, "<u2")


def _bytes(values: NDArray[np.float64], kind: str) -> str:
    return base64.b64encode(np.nan_to_num(values).round().astype(kind).tobytes()).decode()
