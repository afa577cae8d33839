"""Test whether trained models use the belief that can be read from their layers."""

from typing import Any

from hmmscope import InterventionOptions, Run, belief_interventions, lab, registry
from hmmscope.ties import largest, smallest

PROCESSES = {"mess3": "Mess3", "rrxor": "RRXOR", "ran-hmm": "RanHMM"}
ARCHITECTURES = {"rnn": "RNN", "roformer": "RoFormer"}
#: Display names and roles of the edits.
_LOOKS: dict[str, tuple[str, lab.Role]] = {
    "belief": ("belief's subspace", "model"),
    "whole": ("whole stream", "ceiling"),
    "random": ("random subspace", "control"),
}


@registry.experiment("belief-interventions")
class BeliefInterventions(lab.Experiment):
    """Networks whose activations are edited so that a probe reads another belief, on three processes."""

    title = "Does a model use the belief that it encodes?"
    summary = (
        "A linear map reads the exact belief of the forward filter from the layers of networks that predict the next "
        "observation. This shows where a belief can be decoded, not that the model uses it. The experiment edits the stream "
        "at one position so that the map decodes another sample's belief there, and compares the model's next prediction "
        "with the exact filter's prediction from that belief. Controls are edits of random subspaces of equal dimension and "
        "of the whole stream, and the same networks before training."
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

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        rows = []
        for run in runs.values():
            about = {"process": run.config.process.name, "architecture": run.config.model.name}
            for network, model in run.compare_with_untrained():
                options = InterventionOptions(num_positions=sizes["positions"])
                dataset, samples = run.dataset("probe"), sizes["samples"]
                found = belief_interventions(model, dataset, num_samples=samples, options=options)
                rows += [about | {"network": network} | row for row in found]
        return {"interventions": rows}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        return [
            lab.Figure(
                name="moved",
                title="Effect of writing another belief into a layer",
                caption=(
                    "The belief's subspace of the stream at one layer is copied from another sample. Curves show how "
                    "far the next prediction moves to the exact filter's prediction for this other sample, as a "
                    "fraction of the KL divergence (one: all). Layer 0 is the input. Random subspaces have equal "
                    "dimension; replacing the whole stream is the largest change. Bands are 95 % intervals over seeds."
                ),
                panels=_panels(tables["interventions"], "swap", "fraction of the way"),
            ),
            lab.Figure(
                name="removed",
                title="Effect of removing the belief from a layer",
                caption=(
                    "The stream is edited so that the affine map decodes the mean belief. Curves show (after - before) "
                    "/ (mean - before) of KL divergences from the exact filter's prediction: of the model before and "
                    "after the edit, and of the filter with the mean belief (one: the whole benefit is lost). Bands "
                    "are 95 % intervals over seeds."
                ),
                panels=_panels(tables["interventions"], "ablate", "fraction of the belief's benefit lost"),
            ),
        ]


def _panels(rows: lab.Rows, intervention: str, y_label: str) -> tuple[lab.Panel, ...]:
    panels = []
    for (architecture, process), own in (
        rows.where(intervention=intervention, metric="kl").by("architecture", "process").items()
    ):
        trained, untrained = (own.where(network=network) for network in ("trained", "untrained"))
        series = [lab.curve(trained.where(subspace=key), "layer", *look) for key, look in _LOOKS.items()]
        series.append(
            lab.curve(untrained.where(subspace="belief"), "layer", "belief's subspace, before training", "baseline")
        )
        title = f"{ARCHITECTURES[architecture]}, {PROCESSES[process]}"
        panels.append(lab.lines(title, *series, x_label="layer", y_label=y_label))
    return tuple(panels)


def _at_best_layer(rows: lab.Rows, **chosen: str) -> lab.EstimateWithError:
    above = rows.where(metric="kl").where(layer=[layer for layer in rows.values("layer") if layer > 0])
    layer = largest(above.pool("layer", value="fitted"), lambda row: row["fitted"])["layer"]
    return above.where(layer=layer, **chosen).mean()


def _effects(tables: lab.Tables, intervention: str, less: dict[str, str]) -> dict[str, lab.Effect]:
    effects = {}
    for (architecture, process), rows in tables["interventions"].by("architecture", "process").items():

        def difference(own: lab.Rows) -> lab.EstimateWithError:
            def of(network: str, subspace: str) -> lab.EstimateWithError:
                return _at_best_layer(own.where(network=network), intervention=intervention, subspace=subspace)

            return of("trained", "belief") - of(less.get("network", "trained"), less.get("subspace", "belief"))

        name = f"{ARCHITECTURES[architecture]} on {PROCESSES[process]}"
        unit = "of the belief's benefit" if intervention == "ablate" else "of the way to the filter's prediction"
        effects[name] = lab.Effect.pooled(list(rows.per_seed(difference).values()), unit)
    return effects


def _least(effects: dict[str, lab.Effect], what: str) -> lab.Measurement:
    least = smallest(effects, lambda name: effects[name].value)
    listed = "; ".join(f"{name} {effect.short()}" for name, effect in effects.items())
    return lab.Measurement({least: effects[least]}, f"{what}: {listed}.")


@lab.claim("belief-is-used")
def is_used(tables: lab.Tables) -> lab.Measurement:
    return _least(
        _effects(tables, "set", {"network": "untrained"}),
        "Fraction of the way that predictions move to the filter's prediction for a belief that is written into a "
        "layer, trained minus untrained networks",
    )


@lab.claim("belief-subspace-is-special")
def is_special(tables: lab.Tables) -> lab.Measurement:
    return _least(
        _effects(tables, "swap", {"subspace": "random"}),
        "Fraction of the way that predictions move to the filter's prediction for another sample if the belief's "
        "subspace is copied from that sample, minus the fraction if a random subspace is copied",
    )


@lab.claim("belief-is-needed")
def is_needed(tables: lab.Tables) -> lab.Measurement:
    return _least(
        _effects(tables, "ablate", {"subspace": "random"}),
        "Lost fraction of the exact belief's benefit over the mean belief if the belief's subspace is removed, minus "
        "the fraction if a random subspace is removed",
    )
