"""Do trained models use the belief that can be read from their layers?"""

from typing import Any

from hmmscope import Run, belief_interventions, registry
from hmmscope.lab import (
    Effect,
    EstimateWithError,
    Experiment,
    Figure,
    MeasuredTables,
    Measurement,
    Panel,
    Role,
    Rows,
    Tables,
    claim,
    curve,
    lines,
)
from hmmscope.ties import largest, smallest

PROCESSES = {"mess3": "Mess3", "rrxor": "RRXOR", "ran-hmm": "RanHMM"}
ARCHITECTURES = {"rnn": "RNN", "roformer": "RoFormer"}
#: How the edits are called in figures, and drawn.
_LOOKS: dict[str, tuple[str, Role]] = {
    "belief": ("belief's subspace", "model"),
    "whole": ("whole stream", "ceiling"),
    "random": ("random subspace", "control"),
}


@registry.experiment("belief-interventions")
class BeliefInterventions(Experiment):
    """Recurrent networks and RoFormers on three processes, changed so that another belief is read from them."""

    title = "Does a model use its belief?"
    summary = (
        "A linear map reads the exact belief of the forward filter from the layers of networks that predict the next "
        "observation. That says where a belief can be read, not that anything listens. Here the stream of one position is "
        "changed so that the belief of another sample is read there, and the model's next prediction is compared with what "
        "the exact filter would predict from that belief. Beside it stand random subspaces of as many dimensions, the whole "
        "stream, and the same networks before training."
    )
    num_seeds = {"smoke": 2, "small": 5, "gpu": 5, "paper": 5}
    run_columns = ("process", "architecture")
    sizes = {
        "smoke": {"samples": 32, "positions": 2},
        "small": {"samples": 512, "positions": 4},
        "gpu": {"samples": 4096, "positions": 8},
        "paper": {"samples": 4096, "positions": 8},
    }
    groups = {"interventions": ("interventions",)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        steps, length = {"smoke": (10, 8), "small": (600, 16), "gpu": (4000, 32), "paper": (20000, 64)}[scale]
        width, layers = {"smoke": (16, 1), "small": (64, 2), "gpu": (128, 4), "paper": (256, 8)}[scale]
        models = {"rnn": {}, "roformer": {"num_layers": layers, "num_heads": 2 if scale == "smoke" else 4}}
        training = {"num_steps": steps, "learning_rate": 3e-3, "batch_size": 16 if scale == "smoke" else 64}
        return {
            f"{architecture} on {process}": {
                "process": {"name": process, **({"num_states": 3, "num_symbols": 3} if process == "ran-hmm" else {})},
                "layout": {"name": "sequences", "length": length, "placeholder": True},
                "model": {"name": architecture, "width": width, **model},
                "training": dict(training),
            }
            for process in PROCESSES
            for architecture, model in models.items()
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        rows = []
        for run in runs.values():
            about = {"process": run.config.process.name, "architecture": run.config.model.name}
            for network, model in run.compare_with_untrained():
                options = {"num_samples": sizes["samples"], "num_positions": sizes["positions"]}
                found = belief_interventions(model, run.dataset("probe"), **options)
                rows += [about | {"network": network} | row for row in found]
        return {"interventions": rows}

    def figures(self, tables: Tables) -> list[Figure]:
        return [
            Figure(
                name="moved",
                title="Another belief is written into a layer",
                caption=(
                    "How far the next prediction goes to that of the exact filter with another sample's belief (one: all "
                    "the way), when the part of the stream that reads as the belief is taken from that sample, by layer; "
                    "share of the KL divergence. Layer 0 is the input. A random subspace has as many dimensions; the whole "
                    "stream is all that a change at this layer and position can do. Bands are 95 % intervals over seeds."
                ),
                panels=_panels(tables["interventions"], "swap", "share of the way"),
            ),
            Figure(
                name="removed",
                title="The belief is removed from a layer",
                caption=(
                    "What is lost when the stream of a position reads as the mean belief: the KL divergence from the exact "
                    "filter, as a share of that of a predictor with the mean belief (one: all that the belief is worth). "
                    "Bands are 95 % intervals over seeds."
                ),
                panels=_panels(tables["interventions"], "ablate", "share of the belief's worth lost"),
            ),
        ]


def _panels(rows: Rows, intervention: str, y_label: str) -> tuple[Panel, ...]:
    panels = []
    for (architecture, process), own in (
        rows.where(intervention=intervention, metric="kl").by("architecture", "process").items()
    ):
        trained, untrained = (own.where(network=network) for network in ("trained", "untrained"))
        series = [curve(trained.where(subspace=key), "layer", *look) for key, look in _LOOKS.items()]
        series.append(
            curve(untrained.where(subspace="belief"), "layer", "belief's subspace, before training", "baseline")
        )
        title = f"{ARCHITECTURES[architecture]}, {PROCESSES[process]}"
        panels.append(lines(title, *series, x_label="layer", y_label=y_label))
    return tuple(panels)


def _at_best_layer(rows: Rows, **chosen: str) -> EstimateWithError:
    """The value at the layer above the input from which the belief is read best, of one seed and network; mean of twins."""
    above = rows.where(metric="kl").where(layer=[layer for layer in rows.values("layer") if layer > 0])
    layer = largest(above.pool("layer", value="fitted"), lambda row: row["fitted"])["layer"]
    return above.where(layer=layer, **chosen).mean()


def _effects(tables: Tables, intervention: str, less: dict[str, str]) -> dict[str, Effect]:
    """By architecture and process: the belief's subspace in the trained network, less another number of the same seed."""
    effects = {}
    for (architecture, process), rows in tables["interventions"].by("architecture", "process").items():

        def difference(own: Rows) -> EstimateWithError:
            def of(network: str, subspace: str) -> EstimateWithError:
                return _at_best_layer(own.where(network=network), intervention=intervention, subspace=subspace)

            return of("trained", "belief") - of(less.get("network", "trained"), less.get("subspace", "belief"))

        name = f"{ARCHITECTURES[architecture]} on {PROCESSES[process]}"
        effects[name] = Effect.pooled(list(rows.per_seed(difference).values()), "share of the way")
    return effects


def _least(effects: dict[str, Effect], what: str) -> Measurement:
    """The least of the effects, with all of them in a sentence."""
    least = smallest(effects, lambda name: effects[name].value)
    listed = "; ".join(f"{name} {effect.short()}" for name, effect in effects.items())
    return Measurement({least: effects[least]}, f"{what}: {listed}.")


@claim("belief-is-used")
def is_used(tables: Tables) -> Measurement:
    return _least(
        _effects(tables, "set", {"network": "untrained"}),
        "Trained less untrained, of the way that a written belief calls for",
    )


@claim("belief-subspace-is-special")
def is_special(tables: Tables) -> Measurement:
    return _least(
        _effects(tables, "swap", {"subspace": "random"}),
        "Belief's subspace less random ones, taken from another sample",
    )


@claim("belief-is-needed")
def is_needed(tables: Tables) -> Measurement:
    return _least(
        _effects(tables, "ablate", {"subspace": "random"}),
        "Lost without the belief's subspace, less what is lost without a random one",
    )
