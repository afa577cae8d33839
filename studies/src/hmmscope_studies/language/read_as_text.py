"""A pretrained language model that reads sequences of hidden Markov models as text."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from hmmscope import ProcessDataset, Run, SequenceLayout, entropy_rate, evaluate, lab, mixing_time, registry
from hmmscope.analysis import inference_mode
from hmmscope.interop import HuggingFaceModel
from hmmscope.ties import largest, smallest
from hmmscope_studies.beyond_multitask.in_context import BAUM_WELCH, baum_welch_rows, binned, binned_score
from hmmscope_studies.language.beliefs_in_text import belief_tables
from hmmscope_studies.language.language_model import (
    NUM_SYMBOLS,
    NUM_TWINS,
    TINY,
    LazyChainExample,
    chains_of,
    facts_of,
    reader_of,
)

NAME = "pretrained"
#: Folder written by `hmmscope.interop.smollm2`.
SMOLLM2 = "smollm2-135m"
#: Training budget of the language model, as its authors report it.
SPENT = {"tokens": 2e12}
COUNTING = ("order-0", "order-1", "order-2", "order-3", "context-tree")
LOOKS: dict[str, tuple[str, lab.Role]] = {
    "trained": ("pretrained language model", "model"),
    "learner": ("RoFormer trained on noisy chains", "other"),
    "untrained": ("before training", "control"),
    "shuffled": ("weights shuffled", "control"),
    "optimum": ("exact filter", "optimum"),
    BAUM_WELCH: ("Baum-Welch on the prompt", "baseline"),
    **{name: lab.PREDICTORS[name] for name in ("order-0", "order-1", "context-tree")},
}


@registry.experiment(NAME)
class Pretrained(lab.Experiment):
    """SmolLM2-135M on lazy noisy chains and RRXOR as text."""

    title = "Does a pretrained language model learn hidden Markov models in context?"
    summary = (
        "SmolLM2-135M, a language model of 135 million weights, reads sequences of hidden Markov models as letters between "
        "spaces, commas or line ends. Its predictions of the next letter are compared with the exact filter that knows the "
        "chain, and with predictors that do not know it: Baum-Welch fitted to the same prompt with the number of states "
        "given, n-gram and context-tree baselines on the prompt, and a small RoFormer trained on such chains. There are "
        "two controls: the same architecture before training, and the trained weights shuffled. Chains differ in mixing "
        "speed and in the noise of their symbols; each has parameters and letters of its own. On RRXOR, whose next-symbol "
        "distribution does not determine the belief, an affine map reads the belief from the layers, and the belief is "
        "edited there to test whether the next prediction follows. The setting follows Dai et al., Pre-trained Large "
        "Language Models Learn to Predict Hidden Markov Models In-context (NeurIPS 2025), who test large models. `python "
        "-m hmmscope.interop.smollm2` fetches the model first."
    )
    num_seeds = {"smoke": 2, "small": 12, "medium": 12}
    sizes = {
        "smoke": {
            "pretrained": TINY,
            "stays": [0.5, 0.9],
            "noises": [0.1, 0.4],
            "separators": ["lines", "spaces"],
            "length": 16,
            "samples": 2,
            "twin_samples": 2,
            "fits": 2,
            "belief_length": 8,
            "belief_samples": 16,
            "layers": 2,
            "positions": 2,
        },
        "small": {
            "pretrained": SMOLLM2,
            "stays": [0.5, 0.8, 0.95],
            "noises": [0.1, 0.4],
            "separators": ["lines", "commas", "spaces"],
            "length": 256,
            "samples": 2,
            "twin_samples": 1,
            "fits": 6,
            "belief_length": 96,
            "belief_samples": 16,
            "layers": 7,
            "positions": 4,
        },
        "medium": {
            "pretrained": SMOLLM2,
            "stays": [0.5, 0.8, 0.9, 0.95, 0.99],
            "noises": [0.1, 0.2, 0.4],
            "separators": ["lines", "commas", "spaces"],
            "length": 1024,
            "samples": 8,
            "twin_samples": 2,
            "fits": 8,
            "belief_length": 256,
            "belief_samples": 64,
            "layers": 16,
            "positions": 4,
        },
    }
    groups = {
        "predictions": ("predictions", "chains", "models"),
        "beliefs": ("beliefs", "beyond", "rrxor", "interventions"),
    }

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        steps, batch, width = {"smoke": (5, 4, 16), "small": (300, 8, 32), "medium": (10000, 16, 128)}[scale]
        return {
            "learner": {
                "process": {"name": "fresh-lazy-chains", "num_states": NUM_SYMBOLS},
                "layout": {"name": "sequences", "length": self.sizes[scale]["length"]},
                "model": {"name": "roformer", "width": width, "num_layers": 2, "num_heads": 2},
                "training": {"num_steps": steps, "batch_size": batch, "learning_rate": 3e-3},
            }
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        run = runs["learner"]
        if group == "predictions":
            return _predictions(run, sizes)
        return belief_tables(reader_of(sizes["pretrained"], 2, run.config.seed), sizes)

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        rows = _main(tables)
        return [
            _by_context(rows, "excess", "Excess over the exact filter", "nats above the exact filter"),
            _by_context(rows, "accuracy", "Accuracy of the most likely symbol", "accuracy"),
            _separator_figure(tables["predictions"]),
            _belief_figure(tables["beliefs"]),
            _moved_figure(tables["interventions"]),
        ]


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def _predictions(run: Run, sizes: dict[str, Any]) -> lab.MeasuredTables:
    length, samples, main = sizes["length"], sizes["samples"], sizes["separators"][0]
    twins = {"untrained": sizes["twin_samples"], "shuffled": sizes["twin_samples"]}
    rows, chains = [], []
    for place, chain in enumerate(chains_of(sizes["pretrained"], run.config.seed, sizes["stays"], sizes["noises"])):
        reader, hmm = chain.reader, chain.hmm
        model, text = reader.read(length, main)
        found = [*_scored(model, text, chain, samples, baselines=True)]
        found += _scored(run.model, SequenceLayout(length=length), chain, samples, name="learner")
        if chain.noise == sizes["noises"][0]:
            draw = place // len(sizes["noises"]) % NUM_TWINS
            found += _scored(reader.untrained(text, draw), text, chain, twins["untrained"], name="untrained")
            found += _scored(reader.shuffled(text), text, chain, twins["shuffled"], name="shuffled")
        seen = ProcessDataset(hmm, layout=SequenceLayout(length=length), seed=chain.seed, stream="evaluate")[
            0 : sizes["fits"]
        ]
        found += baum_welch_rows(hmm, seen.observations, _edges(length))
        rows += [chain.about | {"separator": main} | row for row in found]
        mixing, rate = mixing_time(hmm, num_samples=200), entropy_rate(hmm, num_samples=50)
        numbers = {"names": " ".join(reader.names), "mixing_time": mixing.time, "entropy_rate": rate.value}
        chains.append(chain.about | numbers)
        if (chain.stay, chain.noise) == (_middle(sizes["stays"]), sizes["noises"][0]):
            rows += _in_separators(chain, sizes)
    own = {"network": "trained"} | facts_of(model)
    weights = {"network": "learner", "weights": sum(one.numel() for one in run.model.parameters()), "sha256": None}
    return {"predictions": rows, "chains": chains, "models": [own, weights]}


def _in_separators(chain: LazyChainExample, sizes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for separator in sizes["separators"]:
        model, text = chain.reader.read(sizes["length"], separator)
        found = _share(model, text, chain)
        if separator != sizes["separators"][0]:
            found += _scored(model, text, chain, sizes["samples"])
        yield from (chain.about | {"separator": separator} | row for row in found)


def _edges(length: int) -> list[int]:
    return [2**k for k in range(length.bit_length()) if 2**k < length]


def _middle(values: list[float]) -> float:
    return values[len(values) // 2]


def _scored(
    model: nn.Module,
    layout: Any,
    chain: LazyChainExample,
    samples: int,
    *,
    name: str = "trained",
    baselines: bool = False,
) -> list[dict[str, Any]]:
    dataset = ProcessDataset(chain.hmm, layout=layout, seed=chain.seed, stream="evaluate")
    score = evaluate(model, dataset, num_samples=samples, baselines=baselines)
    edges, keys = _edges(layout.num_observations), score.measures if baselines else ("model",)
    return [row for key in keys for row in binned_score(score, key, name if key == "model" else key, edges)]


def _share(model: HuggingFaceModel, text: Any, chain: LazyChainExample) -> list[dict[str, Any]]:
    with inference_mode(model) as device:
        tokens = ProcessDataset(chain.hmm, layout=text, seed=chain.seed, stream="evaluate")[0:1].tokens.to(device)
        found = model.share_of_outputs(tokens)[0, text.token_positions[1:] - 1].cpu().numpy()
    return binned("trained", "share", np.arange(1, len(found) + 1), found, _edges(len(found) + 1))


# ---------------------------------------------------------------------------------------------------------------------
# Figures


_CONTEXT = (
    "Each point is a mean over noise levels, and over context lengths from this point to the next. There is a panel "
    "for each probability of staying in a state. Each letter is on a separate line."
)


def _by_context(rows: lab.Rows, metric: str, title: str, y_label: str) -> lab.Figure:
    kept, names, caption = rows.where(metric=metric), list(LOOKS), _CONTEXT
    if metric == "excess":  # so large that the other curves would coincide
        names.remove("shuffled")
        least = min(row["value"] for row in _of(kept, "shuffled").pool("stay", "position"))
        caption += (
            f" The control with shuffled weights is left out: its excess is at least {least:.1f} nats everywhere."
        )

    def panel(stay: float) -> lab.Panel:
        own = kept.where(stay=stay)
        series = [lab.curve(own.where(network=name), "position", *LOOKS[name]) for name in names]
        return lab.lines(f"staying: {stay:g}", *series, x_label="observations seen", y_label=y_label, log_x=True)

    return lab.Figure(
        name=metric, title=title, caption=caption, panels=tuple(panel(stay) for stay in kept.values("stay"))
    )


def _separator_figure(rows: lab.Rows) -> lab.Figure:
    asked = rows.where(network="trained", metric="share")
    stay, noise, separators = asked[0]["stay"], asked[0]["noise"], asked.values("separator")
    own = rows.where(network="trained", stay=stay, noise=noise)

    def panel(metric: str, y_label: str, log_y: bool) -> lab.Panel:
        kept = own.where(metric=metric)
        series = [lab.curve(kept.where(separator=one), "position", one) for one in separators]
        return lab.lines("", *series, x_label="observations seen", y_label=y_label, log_x=True, log_y=log_y)

    return lab.Figure(
        name="separators",
        title="Effect of the separator between letters",
        caption=f"The same chain (probability {stay:g} of staying in a state, noise {noise:g}) is written with each "
        "separator. Left: excess loss over the exact filter, given that a letter follows. Right: total probability that the "
        "model gives to the letters of the chain.",
        panels=(
            panel("excess", "nats above the exact filter", False),
            panel("share", "probability of a letter of the chain", False),
        ),
    )


def _belief_figure(rows: lab.Rows) -> lab.Figure:
    series = [lab.curve(rows.where(network=name), "layer", *LOOKS[name]) for name in ("trained", "untrained")]
    least = min(row["value"] for row in _of(rows, "shuffled").pool("layer"))
    alone = lab.curve(
        rows.where(network="trained"), "layer", "from the exact prediction", "baseline", y="from_prediction"
    )
    return lab.Figure(
        name="beliefs",
        title="Belief of RRXOR decoded from each layer",
        caption="Curves show R² of the exact belief as an affine function of the stream, on held-out samples. The baseline "
        "is R² of a stream that encodes only the exact next-symbol distribution. The control with shuffled "
        f"weights is left out, because its R² goes down to {least:.1f}.",
        panels=(lab.lines("", *series, alone, x_label="layer", y_label="R² on held-out samples"),),
    )


def _moved_figure(rows: lab.Rows) -> lab.Figure:
    kinds = rows.values("subspace")
    own = [lab.bar(rows.where(network=name), "subspace", kinds, *LOOKS[name]) for name in ("trained", "untrained")]
    return lab.Figure(
        name="interventions",
        title="Effect of writing another belief into the stream",
        caption="Bars show how far the next prediction moves to the exact filter's prediction for the written belief "
        "(one: all the way), and how far it moves after a random change of equal size. The belief is written into the "
        "layer above the input that encodes it best.",
        panels=(lab.bars("", *own, categories=kinds, y_label="fraction of the way"),),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _main(tables: lab.Tables) -> lab.Rows:
    rows = tables["predictions"]
    return rows.where(separator=rows.where(network="optimum")[0]["separator"])


def _end(tables: lab.Tables, metric: str = "excess") -> lab.Rows:
    kept = _main(tables).where(metric=metric)
    return kept.where(position=max(kept.values("position")))


def _of(rows: lab.Rows, network: str) -> lab.Rows:
    return rows.where(network=network)


def _gained(tables: lab.Tables, twin: str) -> lab.Effect | None:
    end = _end(tables)
    own = _of(end, twin)
    return own.less(_of(end, "trained").where(noise=own.values("noise")), unit="nats")


def _gate(tables: lab.Tables, numbers: lab.Numbers = None) -> lab.Gate:
    found = _gained(tables, "untrained")
    assert found is not None
    return lab.Gate.learned(found, lab.parameter(numbers, "learned"), "its untrained control")


def _seen(found: lab.Effect | None, text: str, tables: lab.Tables, numbers: lab.Numbers = None) -> lab.Measurement:
    return lab.Measurement(found, f"{text}: {_short(found)}.", gates=(_gate(tables, numbers),), compute_used=SPENT)


#: Further baselines of pretrained-learns.
BESIDE = {"shuffled": "weights shuffled", "order-0": "letter frequencies (order 0)"}


@lab.claim("pretrained-learns")
def learns(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    beside = ", ".join(f"{said} {_short(_gained(tables, name))}" for name, said in BESIDE.items())
    text = f"Loss of a control minus that of the language model, in nats per symbol: {beside}; before training"
    return _seen(_gained(tables, "untrained"), text, tables, numbers)


@lab.claim("pretrained-context")
def context(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows = _of(_main(tables).where(metric="excess"), "trained")
    early = rows.where(position=min(lab.parameter(numbers, "early"), max(rows.values("position"))))
    return _seen(
        early.less(_of(_end(tables), "trained"), unit="nats"),
        "Excess loss over the exact filter early in the text minus that late in the text, in nats per symbol",
        tables,
        numbers,
    )


@lab.claim("pretrained-optimum")
def optimum(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    end = _end(tables, "accuracy")
    found = _of(end, "optimum").less(_of(end, "trained"), unit="accuracy")
    return _seen(found, "Accuracy of the exact filter minus that of the language model", tables, numbers)


@lab.claim("pretrained-statistics")
def statistics(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    end = _end(tables)
    means = {name: _of(end, name).mean().value for name in end.values("network")}
    best = smallest([name for name in means if name in COUNTING], means.__getitem__)
    listed = ", ".join(f"{LOOKS.get(name, (name,))[0]} {value:.3f}" for name, value in means.items())
    effects = {
        name: _of(end, other).less(_of(end, "trained"), unit="nats")
        for name, other in (("Baum-Welch", BAUM_WELCH), ("counting", best))
    }
    return _several(
        effects,
        f"Excess loss over the exact filter, in nats per symbol: {listed}. Excess loss of a baseline minus that of the "
        "language model",
        (_gate(tables, numbers),),
    )


@lab.claim("pretrained-chains")
def chains(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    end = _of(_end(tables), "trained")
    effects = {}
    for column, name in (("stay", "slow less fast"), ("noise", "noisy less clear")):
        high, low = (end.where(**{column: pick(end.values(column))}) for pick in (max, min))
        effects[name] = high.less(low, unit="nats")
    return _several(
        effects,
        "Excess loss over the exact filter, in nats per symbol, compared between chains",
        (_gate(tables, numbers),),
    )


@lab.claim("pretrained-belief")
def belief(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows, moved = tables["beliefs"], tables["interventions"].where(subspace="belief")
    tops = {name: _best(_of(rows, name)) for name in ("trained", "untrained", "shuffled")}
    alone = _of(rows, "trained").per_seed(lambda own: lab.EstimateWithError(own[0]["from_prediction"]))
    effects = {
        "read": _of(tables["beyond"], "trained").effect(unit="of the variance unexplained by untrained controls"),
        "beyond the prediction": (tops["trained"] - alone).effect("of R²"),
        "used": _of(moved, "trained").less(_of(moved, "untrained"), unit="of the way to the filter's prediction"),
    }
    listed = "; ".join(f"{LOOKS[name][0]} {_short(found.effect())}" for name, found in tops.items())
    beside = _short(_of(tables["beyond"], "shuffled").effect())
    random = _of(tables["interventions"], "trained").where(subspace="random").effect()
    text = (
        f"Held-out R² of the belief at the best layer: {listed}; from the exact prediction alone "
        f"{_short(alone.effect())}. Shuffled weights explain {beside} of the variance that untrained controls leave "
        f"unexplained. A random change of the layer moves the prediction {_short(random)} of the way to the filter's. "
        "The language model"
    )
    scored = tables.get("rrxor", lab.Rows())
    gap = _of(scored, "untrained").less(_of(scored, "trained"), unit="nats")
    unknown = lab.Gate(
        "learned", False, "the distance of the model's predictions on RRXOR from the filter is not recorded"
    )
    gate = (
        unknown
        if gap is None
        else lab.Gate.learned(gap, lab.parameter(numbers, "learned"), "its untrained control on RRXOR")
    )
    return _several(effects, text, (gate,))


def _best(rows: lab.Rows) -> lab.PerSeed[Any]:
    return rows.per_seed(lambda own: own.where(layer=largest(own, lambda row: row["fitted"])["layer"]).mean())


def _several(effects: dict[str, lab.Effect | None], text: str, gates: tuple[lab.Gate, ...]) -> lab.Measurement:
    known = {name: found for name, found in effects.items() if found is not None}
    shown = {"counting": "best n-gram baseline", "slow less fast": "slowest minus fastest chains"}
    shown |= {"noisy less clear": "noisiest minus least noisy chains", "read": "fraction of this variance explained"}
    shown["beyond the prediction"] = "R² minus the R² from the exact prediction alone"
    shown["used"] = "fraction of the way to the prediction for a written belief, trained minus untrained"
    said = "; ".join(f"{shown.get(name, name)} {found.short()}" for name, found in known.items())
    return lab.Measurement(known, f"{text}: {said}.", gates=gates, required=tuple(effects), compute_used=SPENT)


def _short(found: lab.Effect | None) -> str:
    return "unknown" if found is None else found.short()
