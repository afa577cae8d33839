"""Mechanisms of small Transformers: ablations of components, and path patching."""

import math
from dataclasses import dataclass, field
from typing import Any

from hmmscope import Run, evaluate, lab, mechanisms, registry
from hmmscope.analysis import mean_row, paths, roles
from hmmscope.ties import largest
from hmmscope_papers.constructions import induction_network
from hmmscope_studies.beliefs.belief_geometry import BeliefGeometry

CHAINS = "Markov chains"
HIDDEN = ("Mess3", "RRXOR")
_TITLES = {"trained": "trained", "untrained": "before training", "constructed": "weights by hand"}
#: Readouts, in the order of the figure.
_READ = {
    "previous-1": "1 back",
    "previous-2": "2 back",
    "previous-3": "3 back",
    "unigram": "unigrams",
    "bigram": "bigrams",
    "belief": "belief",
}


@registry.experiment("mechanisms")
class Mechanisms(lab.Experiment):
    """Ablations and cut paths in two-layer RoFormers on random Markov chains, Mess3 or RRXOR."""

    title = "Which heads, layers and MLPs does a model's prediction need?"
    summary = (
        "Each head, the attention of each layer and each MLP is replaced by its mean over samples, or by its output on "
        "another sample. The experiment measures the rise of the loss, and the fall of R² of affine maps from the "
        "stream after the component's layer. Then single edges are cut: one component receives the mean output of "
        "another component instead of the actual output. Models of two layers are trained on Markov chains that are "
        "drawn anew for each sample, where the circuit of induction heads is known, and on Mess3 and RRXOR, which "
        "require belief tracking. They are compared with the same models before training, and with an induction "
        "circuit constructed by hand, whose components have known roles."
    )
    num_seeds = {"smoke": 2, "small": 5, "gpu": 5, "paper": 5}
    run_columns = ("process",)
    sizes = {"smoke": {"samples": 24}, "small": {"samples": 256}, "gpu": {"samples": 2048}, "paper": {"samples": 2048}}
    measure_per_run = True
    groups = {"parts": ("ablations", "paths", "learned")}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        steps, length, batch, width = {
            "smoke": (8, 6, 8, 16),
            "small": (500, 32, 32, 64),
            "gpu": (4000, 100, 256, 128),
            "paper": (20000, 100, 256, 256),
        }[scale]
        training = {"num_steps": steps, "learning_rate": 3e-3, "batch_size": batch}
        training |= {"evaluate_every": max(1, steps // 4), "checkpoint_every": steps}
        shapes = BeliefGeometry().plan(scale)
        return {
            CHAINS: {
                "process": {"name": "fresh-markov-chains", "num_states": 3, "num_symbols": 3},
                "layout": {"name": "sequences", "length": length, "placeholder": True},
                "model": {"name": "roformer", "width": width, "num_layers": 2, "num_heads": 2},
                "training": training,
            }
        } | {name: shapes[name] for name in HIDDEN}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        tables: lab.MeasuredTables = {"ablations": [], "paths": [], "learned": []}
        for process, run in runs.items():
            dataset = run.dataset("probe")
            networks = run.compare_with_untrained()
            if process == CHAINS:
                by_hand = induction_network(
                    dataset.num_symbols, dataset.vocab_size, dataset.layout.context_length, gain=3.0
                )
                networks.append(("constructed", by_hand))
                score = evaluate(run.model, run.dataset("evaluate"), num_samples=sizes["samples"])
                gain = (score.measures["order-0"]["loss"] - score.measures["model"]["loss"]).mean(1)
                tables["learned"].append({"process": process, "quantity": "gain over unigrams"} | mean_row(gain))
            for network, model in networks:
                about = {"process": process, "network": network}
                found = mechanisms(model, dataset, num_samples=sizes["samples"])
                called = {kind: roles(found, ablation=kind) for kind in ("mean", "resample")}
                names = _in_order(found)
                for row in found:
                    part, role = names[row["component"]], called[row["ablation"]].get(row["component"], "")
                    tables["ablations"].append(about | {"part": part, "role": role} | row)
                for row in paths(model, dataset, num_samples=sizes["samples"]):
                    row["sender"] = names.get(row["sender"], row["sender"])
                    tables["paths"].append(about | row)
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        ablated, edges = tables["ablations"], tables["paths"]
        processes = ablated.values("process")
        return [
            lab.Figure(
                name="loss",
                title="Rise of the loss if a component is removed",
                caption=(
                    "Bars show the rise of the loss if a head, the attention of a layer or an MLP is replaced by its mean "
                    "over samples, or by its output on another sample. The heads of a layer are named a, b, .. in "
                    "order of this rise, the largest first. Intervals are 95 % intervals over seeds."
                ),
                panels=tuple(_costs(ablated.where(process=process), process) for process in processes),
            ),
            lab.Figure(
                name="read",
                title="Decrease of decoded information if a component is removed",
                caption=(
                    "Colours show how much the held-out R² of affine maps from the stream falls if a component is "
                    "replaced by its mean. The maps predict earlier symbols, the frequencies of symbols in the context "
                    "(unigrams), the frequencies of symbols after earlier occurrences of the last symbol (bigrams), and the "
                    "belief. Values are means over seeds."
                ),
                panels=tuple(_readings(*one) for one in _each(ablated, ("trained", "constructed"))),
            ),
            lab.Figure(
                name="paths",
                title="Rise of the loss if one component does not receive the output of another",
                caption=(
                    "Colours show the rise of the loss if the component at the bottom receives the mean output of the "
                    "component at the left instead of the actual output; all other components still receive the actual "
                    "output. Each map has its own colour scale. Values are means over seeds."
                ),
                panels=tuple(_edges(*one) for one in _each(edges, ("trained", "constructed"))),
            ),
        ]


def _in_order(rows: list[dict[str, Any]]) -> dict[str, str]:
    costs = {
        row["component"]: (row["layer"], row["head"] is not None, -row["value"])
        for row in rows
        if row["quantity"] == "loss" and row["ablation"] == "mean"
    }
    names, count = {}, dict.fromkeys({layer for layer, _, _ in costs.values()}, 0)
    for name in sorted(costs, key=lambda one: costs[one]):
        layer, is_head, _ = costs[name]
        names[name] = f"head {layer}{'abcdefghijklmnopqrstuvwxyz'[count[layer]]}" if is_head else name
        count[layer] += is_head
    return names


# ---------------------------------------------------------------------------------------------------------------------
# Figures


@dataclass(frozen=True, order=True)
class _AxisLabel:
    place: int
    name: str = field(compare=False)

    def __str__(self) -> str:
        return self.name


def _placed(rows: lab.Rows, column: str, order: list[str]) -> lab.Rows:
    return rows.with_columns(**{column: lambda row: _AxisLabel(order.index(row[column]), row[column])})


def _parts(rows: lab.Rows) -> list[str]:
    kinds = ("head", "attention", "mlp")
    return sorted(rows.values("part"), key=lambda part: (part.split()[1][0], kinds.index(part.split()[0]), part))


def _costs(rows: lab.Rows, process: str) -> lab.Panel:
    own = rows.where(quantity="loss")
    parts = _parts(own.where(network="trained"))
    trained, untrained = (own.where(network=network) for network in ("trained", "untrained"))
    return lab.bars(
        process,
        lab.bar(trained.where(ablation="mean"), "part", parts, "by its mean", "model"),
        lab.bar(trained.where(ablation="resample"), "part", parts, "by another sample's", "other"),
        lab.bar(untrained.where(ablation="mean"), "part", parts, "by its mean, before training", "control"),
        categories=parts,
        y_label="nats",
    )


def _each(rows: lab.Rows, networks: tuple[str, ...]) -> list[tuple[lab.Rows, str]]:
    return [
        (own, f"{process}, {_TITLES[network]}")
        for (process, network), own in rows.where(network=networks).by("process", "network").items()
    ]


def _readings(rows: lab.Rows, title: str) -> lab.Panel:
    own = rows.where(ablation="mean", quantity=tuple(_READ))
    shown = own.with_columns(quantity=lambda row: _READ[row["quantity"]])
    placed = _placed(_placed(shown, "part", _parts(own)), "quantity", list(_READ.values()))
    labels = {"x_label": "decoded quantity", "y_label": "component", "z_label": "R² lost"}
    return lab.heatmap(title, placed, "quantity", "part", z_min=0.0, z_max=1.0, **labels)


def _edges(rows: lab.Rows, title: str) -> lab.Panel:
    own = rows.where(quantity="loss")
    placed = _placed(_placed(own, "sender", own.values("sender")), "receiver", own.values("receiver"))
    labels = {"x_label": "receiver", "y_label": "sender", "z_label": "nats"}
    return lab.heatmap(title, placed, "receiver", "sender", z_min=0.0, **labels)


# ---------------------------------------------------------------------------------------------------------------------
# Claims


def _lost(own: lab.Rows, network: str, part: str, quantity: str) -> lab.EstimateWithError:
    return own.where(network=network, part=part, quantity=quantity, ablation="mean").mean()


def _trained_less_untrained(rows: lab.Rows, part: str, quantity: str) -> lab.Effect:
    found = rows.per_seed(lambda own: _lost(own, "trained", part, quantity) - _lost(own, "untrained", part, quantity))
    return lab.Effect.pooled(list(found.values()), "R² lost")


def _said(effects: dict[str, lab.Effect]) -> str:
    return "; ".join(f"{name} {effect.short()}" for name, effect in effects.items())


@lab.claim("statistical-induction-heads")
def induction_heads(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    rows, gain = tables["ablations"].where(process=CHAINS), tables["learned"].effect(unit="nats")
    wanted = {"previous symbol": ("attention 1", "previous-1"), "bigrams": ("attention 2", "bigram")}
    effects = {name: _trained_less_untrained(rows, *what) for name, what in wanted.items()}
    assert gain is not None
    called = rows.where(network="trained", ablation="mean", quantity="loss")
    heads = {
        role: sum(row["role"] == role for row in called if row["head"] is not None)
        for role in ("previous-token head", "induction head")
    }
    named = ", ".join(f"{count} {role}{'' if count == 1 else 's'}" for role, count in heads.items())
    text = (
        "Decrease of R² if attention is ablated (R² of the previous symbol in layer 1, of bigrams in layer 2), in the "
        f"trained network minus in the untrained one: {_said(effects)}. Ablation of single heads finds {named} in "
        f"{len(rows.seeds())} seeds."
    )
    found = [
        sum(row["role"] == "induction head" and row["head"] is not None for row in own)
        for own in called.by("seed").values()
    ]
    gates = (
        lab.Gate.regime(
            float(min(found, default=0)),
            lab.parameter(numbers, "heads"),
            math.inf,
            "the smallest number of induction heads in a seed",
        ),
        lab.Gate.learned(gain, lab.parameter(numbers, "learned"), "the unigrams of the context"),
        lab.Gate.flat(tables, lab.parameter(numbers, "settled"), label=CHAINS),
    )
    return lab.Measurement(effects, text, gates, tuple(wanted))


@lab.claim("mechanisms-way")
def by_which_way(tables: lab.Tables) -> lab.Measurement:
    rows = tables["paths"].where(process=CHAINS, network="trained", receiver="attention 2", quantity="loss")

    def cost(own: lab.Rows, sender: str) -> lab.EstimateWithError:
        found = own.where(sender=sender)  # attention-only networks have no MLP
        return lab.EstimateWithError(found[0]["value"], found[0]["error"]) if found else lab.EstimateWithError(0.0)

    senders = rows.values("sender")
    heads = [sender for sender in senders if sender.startswith("head")]

    def more(own: lab.Rows) -> lab.EstimateWithError:
        return cost(own, "mlp 1") - largest((cost(own, head) for head in heads), lambda one: one.value)

    by_seed = rows.per_seed(lambda own: {name: cost(own, name) for name in senders})
    each = {name: lab.Effect.pooled([found[name] for found in by_seed.values()]) for name in senders}
    effect = lab.Effect.pooled(
        list(rows.per_seed(more).values()), "nats more loss without the first MLP's output than without the best head's"
    )
    return lab.Measurement(
        effect,
        f"Rise of the loss in nats if the second layer's attention no longer receives a component's output: {_said(each)}.",
    )
