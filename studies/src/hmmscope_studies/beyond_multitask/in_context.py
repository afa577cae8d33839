"""Unseen HMMs in context: how much of a sequence a network must read to predict well, by mixing time and entropy."""

from typing import Any

import numpy as np
import torch
from torch import nn

from hmmscope import (
    HMM,
    ProcessDataset,
    Run,
    SequenceLayout,
    entropy_rate,
    evaluate,
    filter_beliefs,
    lab,
    make_process,
    mixing_time,
    registry,
    require_process_type,
    stable_argmax,
)
from hmmscope.analysis import Score, inference_mode
from hmmscope.inference import baum_welch_predictions
from hmmscope.interop import HuggingFaceModel, pretrained
from hmmscope_papers.theorems import by_scale

NAME = "in-context"
NUM_STATES = NUM_SYMBOLS = 4
#: A predictor has converged once its loss stays within this of the exact filter, in nats.
TOLERANCE = 0.05
METRICS = ("accuracy", "loss", "excess")
BAUM_WELCH = "Baum-Welch"
_LOOKS: dict[str, tuple[str, lab.Role]] = {
    "optimum": ("exact filter", "optimum"),
    "trained": ("trained here", "model"),
    "untrained": ("before training", "control"),
    BAUM_WELCH: ("Baum-Welch on the prompt", "baseline"),
    **{name: lab.PREDICTORS[name] for name in ("order-0", "order-1", "order-2", "order-3")},
}


@registry.experiment(NAME)
class InContext(lab.Experiment):
    """A RoFormer trained on random HMMs, and optionally a language model, on noisily observed lazy Markov chains."""

    title = "In-context predictions of observations of hidden Markov models"
    summary = (
        "How well does a network predict an unseen hidden Markov model from the sequence in its context alone? A "
        "RoFormer is trained on a new random HMM for every sample; `--measurements.pretrained PATH` adds a pretrained "
        "language model, which reads the symbols as text. Both predict chains of chosen laziness (probability of "
        "staying in a state) and noise, and are compared with the exact filter that knows the chain, with Baum-Welch "
        "fitted to the same prompt with the true number of states, and with in-context n-grams. The context length "
        f"from which a predictor stays within {TOLERANCE} nats of the filter is its convergence length. The setting "
        "follows Dai et al., Pre-trained Large Language Models Learn to Predict Hidden Markov Models In-context "
        "(NeurIPS 2025). Their optimum is the Viterbi algorithm, ours is the exact distribution of the next symbol."
    )
    num_seeds = {"smoke": 2, "small": 3, "gpu": 5, "paper": 5}
    sizes = by_scale(
        pretrained=("none", "none", "none", "none"),
        separators=(
            ["spaces"],
            ["spaces", "commas", "lines"],
            ["spaces", "commas", "lines"],
            ["spaces", "commas", "lines"],
        ),
        mixing=([0.5, 0.9], [0.5, 0.8, 0.95], [0.5, 0.8, 0.9, 0.95], [0.5, 0.75, 0.95, 0.99]),
        noise=([0.2], [0.1, 0.4], [0.1, 0.3, 0.5], [0.1, 0.3, 0.5]),
        length=(16, 128, 512, 2048),
        samples=(4, 64, 256, 256),
        fits=(2, 8, 32, 32),
    )
    groups = {"predictions": ("predictions", "convergence")}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        steps, batch, width, layers = {
            "smoke": (10, 8, 16, 1),
            "small": (1500, 16, 64, 2),
            "gpu": (20000, 128, 256, 6),
            "paper": (100000, 128, 512, 8),
        }[scale]
        return {
            "learner": {
                "process": {"name": "fresh-hmms", "num_states": NUM_STATES, "num_symbols": NUM_SYMBOLS},
                "layout": {"name": "sequences", "length": self.sizes[scale]["length"]},
                "model": {
                    "name": "roformer",
                    "width": width,
                    "num_layers": layers,
                    "num_heads": 2 if width < 64 else 4,
                },
                "training": {"num_steps": steps, "batch_size": batch, "learning_rate": 1e-3},
            }
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        run, length = runs["learner"], sizes["length"]
        plain = SequenceLayout(length=length)
        networks: dict[str, tuple[nn.Module, Any]] = {
            "trained": (run.model, plain),
            "untrained": (run.untrained(), plain),
        }
        if sizes["pretrained"] != "none":
            for separator in sizes["separators"]:
                found = pretrained(sizes["pretrained"], NUM_SYMBOLS, length=length, separator=separator)
                networks[f"pretrained, {separator}"] = found
        predictions, convergence = [], []
        for mixing in sizes["mixing"]:
            for noise in sizes["noise"]:
                hmm = chain_of(mixing, noise, run.config.seed)
                about = {"mixing": mixing, "noise": noise}
                rows = [about | row for row in _predictions(hmm, networks, sizes, run.config.seed)]
                predictions += rows
                time, rate = mixing_time(hmm, num_samples=200), entropy_rate(hmm, num_samples=50)
                about |= {"mixing_time": time.time, "entropy_rate": rate.value}
                convergence += [about | row for row in convergence_rows(lab.Rows(rows))]
        return {"predictions": predictions, "convergence": convergence}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        rows, reached = tables["predictions"], tables["convergence"]
        return [
            _figure(rows, "excess", "Nats above the exact filter", "nats above the exact filter"),
            _figure(rows, "accuracy", "Accuracy of the most likely symbol", "accuracy"),
            lab.Figure(
                name="convergence",
                title="Length of context until the loss is close to the filter's",
                caption=f"Curves show the number of observations from which on the loss stays within {TOLERANCE} nats "
                "of the filter's. Means leave out seeds in which the loss never stays that close.",
                panels=tuple(
                    lab.lines(
                        "",
                        *(
                            lab.curve(reached.where(network=name), by, *_look(name), y="length")
                            for name in _networks(reached)
                        ),
                        x_label=label,
                        y_label="convergence length",
                        log_y=True,
                    )
                    for by, label in (("mixing", "laziness of the chain"), ("noise", "noise of its symbols"))
                ),
            ),
        ]


def chain_of(mixing: float, noise: float, seed: int) -> HMM:
    return require_process_type(make_process("lazy-chain", stay=mixing, noise=noise, seed=seed), HMM)


def chain_rows(hmm: HMM, untrained: nn.Module, sizes: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    layout, edges = SequenceLayout(length=sizes["length"]), _edges(sizes)
    score = evaluate(
        untrained, ProcessDataset(hmm, layout=layout, seed=seed, stream="evaluate"), num_samples=sizes["samples"]
    )
    names = {key: "untrained" if key == "model" else key for key in score.measures}
    return [row for key, network in names.items() for row in binned_score(score, key, network, edges)]


def _edges(sizes: dict[str, Any]) -> list[int]:
    return [2**k for k in range(sizes["length"].bit_length()) if 2**k < sizes["length"]]


def _predictions(
    hmm: HMM, networks: dict[str, tuple[nn.Module, Any]], sizes: dict[str, Any], seed: int
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    edges = _edges(sizes)
    for number, (name, (model, layout)) in enumerate(networks.items()):
        dataset = ProcessDataset(hmm, layout=layout, seed=seed, stream="evaluate")
        score = evaluate(model, dataset, num_samples=sizes["samples"], baselines=number == 0)
        names = {"model": name} if number else {key: name if key == "model" else key for key in score.measures}
        for key, network in names.items():
            rows += binned_score(score, key, network, edges)
        if isinstance(model, HuggingFaceModel):
            with inference_mode(model) as device:
                tokens = dataset[0 : sizes["fits"]].tokens.to(device)
                share = model.share_of_outputs(tokens)[:, layout.token_positions[1:] - 1].mean(0).cpu().numpy()
            rows += binned(name, "share", np.arange(1, len(share) + 1), share, edges)
    observations = ProcessDataset(hmm, layout=SequenceLayout(length=sizes["length"]), seed=seed, stream="evaluate")[
        0 : sizes["fits"]
    ].observations
    return rows + baum_welch_rows(hmm, observations, edges)


def binned_score(score: Score, predictor: str, network: str, edges: list[int]) -> list[dict[str, Any]]:
    found = score.measures[predictor]
    rows = []
    for metric in METRICS:
        values = found[metric].mean(0) if metric in found else np.zeros(len(score.positions))  # the optimum's excess
        rows += binned(network, metric, score.positions, values, edges)
    return rows


def binned(network: str, metric: str, positions: Any, values: Any, edges: list[int]) -> list[dict[str, Any]]:
    return [
        {"network": network, "metric": metric, "position": begin, "value": float(values[inside].mean())}
        for begin in edges
        if (inside := (positions >= begin) & (positions < 2 * begin)).any()
    ]


def baum_welch_rows(hmm: HMM, observations: torch.Tensor, edges: list[int]) -> list[dict[str, Any]]:
    seen = [min(round(edge * 2**0.5), observations.shape[1] - 1) for edge in edges]
    probs = baum_welch_predictions(
        observations, NUM_STATES, NUM_SYMBOLS, [t - 1 for t in seen], num_restarts=2, num_tries=1, max_iterations=30
    )
    exact, happened = (
        filter_beliefs(hmm, observations).next_observation[:, [t - 1 for t in seen]],
        observations[:, seen],
    )
    values = {
        "accuracy": (stable_argmax(probs) == happened).double(),
        "loss": -probs.gather(2, happened[..., None])[..., 0].log(),
        "excess": (torch.special.xlogy(exact, exact) - torch.special.xlogy(exact, probs)).sum(-1),
    }
    return [
        {"network": BAUM_WELCH, "metric": metric, "position": edge, "value": float(found)}
        for metric in METRICS
        for edge, found in zip(edges, values[metric].mean(0), strict=True)
    ]


def convergence_rows(rows: lab.Rows) -> list[dict[str, Any]]:
    """Return rows (network, length, last excess); `length`: position from which excess stays within `TOLERANCE`."""
    found = []
    for network, own in rows.where(metric="excess").by("network").items():
        ordered = sorted(own, key=lambda row: row["position"])
        above = [row["position"] for row in ordered if row["value"] > TOLERANCE]
        later = [row["position"] for row in ordered if not above or row["position"] > above[-1]]
        found.append({"network": network, "length": later[0] if later else None, "excess": ordered[-1]["value"]})
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Figures and claims


def _look(network: str) -> tuple[str, lab.Role]:
    return _LOOKS.get(network, (network, "other"))


def _networks(rows: lab.Rows) -> list[str]:
    return sorted(rows.values("network"), key=lambda name: list(_LOOKS).index(name) if name in _LOOKS else -1)


def _figure(rows: lab.Rows, metric: str, title: str, y_label: str) -> lab.Figure:
    kept = rows.where(metric=metric)

    def panel(mixing: float) -> lab.Panel:
        own = kept.where(mixing=mixing)
        series = [lab.curve(own.where(network=name), "position", *_look(name)) for name in _networks(own)]
        return lab.lines(f"staying: {mixing:g}", *series, x_label="observations seen", y_label=y_label, log_x=True)

    return lab.Figure(
        name=metric,
        title=title,
        caption="Each point is a mean over noise levels, and over context lengths from this point to the next. There "
        "is a panel for each probability of staying in a state.",
        panels=tuple(panel(mixing) for mixing in kept.values("mixing")),
    )


def _said(effects: dict[str, lab.Effect]) -> str:
    return "; ".join(f"{_look(name)[0]} {effect.short()}" for name, effect in effects.items())


@lab.claim("in-context-baum-welch")
def better_than_baum_welch(tables: lab.Tables) -> lab.Measurement:
    rows = tables["convergence"]
    effects = {}
    for name in rows.values("network"):
        if name != "trained" and not name.startswith("pretrained"):
            continue

        def less(own: lab.Rows, name: str = name) -> float:
            ours, fitted = (float(np.mean([row["excess"] for row in own.where(network=n)])) for n in (name, BAUM_WELCH))
            return ours - fitted

        effects[name] = lab.Effect.pooled(list(rows.per_seed(less).values()), "nats")
    return lab.Measurement(
        effects, f"Excess loss over the exact filter in nats, network minus Baum-Welch: {_said(effects)}."
    )
