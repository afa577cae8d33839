"""Unsupervised discovery in a trained model: states, operators and coordinates."""

from typing import Any

from hmmscope import Run, registry
from hmmscope.analysis import automaton, dictionary
from hmmscope.lab import Effect, Experiment, Figure, Gate, MeasuredTables, Measurement, Rows, Tables, bar, bars, claim
from hmmscope_studies.beliefs.belief_geometry import BeliefGeometry

#: Names in figures by process. The last two share their models with belief-geometry.
PROCESSES = {"golden mean": "golden-mean", "even": "even", "RRXOR": "rrxor", "Mess3": "mess3"}
NETWORKS = {"trained": "model", "untrained": "control"}


#: Methods that find a dictionary, and the control.
_METHODS = ("principal", "simplex", "sparse", "random")


@registry.experiment("discovery")
class Discovery(Experiment):
    """States and operators estimated from a model's predictions, and coordinates fitted to its residual stream."""

    title = "Discovery of states and coordinates without labels"
    summary = (
        "Probes need the exact belief as labels. This experiment uses no labels. States are estimated from the "
        "predictions of trained RoFormers alone, by the rank of their Hankel matrix and by merging prefixes with equal "
        "predictions of the future. Coordinates are extracted from the last layer, by principal components, by the "
        "extreme points of a simplex, and by a sparse dictionary. The results are compared with the states and beliefs "
        "of the process."
    )
    num_seeds = {"smoke": 2, "small": 5, "gpu": 5, "paper": 5}
    run_columns = ("process",)
    sizes = {"smoke": {"samples": 24}, "small": {"samples": 384}, "gpu": {"samples": 4096}, "paper": {"samples": 4096}}
    measure_per_run = True
    groups = {"states": ("states",), "coordinates": ("coordinates",)}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        like = BeliefGeometry().plan(scale)["Mess3"]
        return {name: {**like, "process": {"name": process}} for name, process in PROCESSES.items()}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> MeasuredTables:
        rows = []
        for name, run in runs.items():
            for network, model in run.compare_with_untrained():
                dataset, count = run.dataset("probe"), sizes["samples"]
                length = 2 if dataset.layout.num_observations < 9 else 0
                found = (
                    automaton(model, dataset, length=length, num_samples=count)
                    if group == "states"
                    else dictionary(model, dataset, num_samples=count, methods=_METHODS)
                )
                rows += [{"process": name, "network": network} | row for row in found]
        return {group: rows}

    def figures(self, tables: Tables) -> list[Figure]:
        states, coordinates = tables["states"], _last_layer(tables["coordinates"])
        titles = {"rank": "Rank of the Hankel matrix", "recurrent": "Recurrent states", "distance": "Learned operators"}
        panels = []
        for quantity, title in titles.items():
            own = states.where(quantity=quantity)
            names = own.values("process")
            series = [bar(own.where(network=n), "process", names, n, role) for n, role in NETWORKS.items()]  # type: ignore[arg-type]
            series.append(bar(own, "process", names, "exact process", "optimum", y="exact"))
            label = "total variation" if quantity == "distance" else "states"
            panels.append(bars(title, *series, categories=names, y_label=label))
        found = []
        for quantity, title in {"matched": "Each coordinate of the belief", "read": "Affine map to the belief"}.items():
            own = coordinates.where(quantity=quantity, network="trained")
            names = own.values("process")
            series = [
                bar(own.where(method=method), "process", names, method, "control" if method == "random" else "model")
                for method in _METHODS
            ]
            null = coordinates.where(quantity=quantity, network="untrained", method="simplex")
            series.append(bar(null, "process", names, "simplex, before training", "control"))
            label = "|correlation|" if quantity == "matched" else "held-out R²"
            found.append(bars(title, *series, categories=names, y_label=label))
        return [
            Figure(
                name="states",
                title="Numbers of states, and learned operators, estimated from predictions alone",
                caption=(
                    "Left: rank of the Hankel matrix, the number of singular values before their steepest drop. "
                    "Middle: number of recurrent states of an automaton, in which prefixes share a state if their "
                    "predictions of the future differ by at most 0.1 in total variation. Right: distance between "
                    "predictions of the process and of an observable operator model learned from the network. "
                    "The exact process is analysed in the same way. Intervals are 95 % intervals over seeds."
                ),
                panels=tuple(panels),
            ),
            Figure(
                name="coordinates",
                title="Agreement of the belief with coordinates that are found in the last layer without labels",
                caption=(
                    "Left: mean absolute correlation of coordinates of the belief with those coordinates of the layer "
                    "that match them best. Right: R² of the belief as an affine function of all these coordinates of "
                    "the layer. Intervals are 95 % intervals."
                ),
                panels=tuple(found),
            ),
        ]


def _last_layer(rows: Rows) -> Rows:
    return rows.where(layer=max(rows.values("layer")))


def _by_process(rows: Rows, networks: tuple[str, ...] = ("trained", "untrained")) -> dict[str, Effect]:
    effects = {}
    for name, own in rows.by("process").items():
        trained, untrained = (own.where(network=network) for network in ("trained", "untrained"))
        effect = trained.less(untrained) if len(networks) > 1 else trained.effect(unit="recurrent states")
        if effect is not None:
            effects[name] = effect
    return effects


def _said(effects: dict[str, Effect]) -> str:
    return "; ".join(f"{name} {effect.short()}" for name, effect in effects.items())


@claim("states-from-predictions")
def states_counted(tables: Tables) -> Measurement:
    rows = tables["states"].where(quantity="recurrent", process=("golden mean", "even", "RRXOR"))
    exact = {name: own[0]["exact"] for name, own in rows.by("process").items()}
    effects = _by_process(rows, ("trained",))
    listed = "; ".join(f"{name} {effect.short()}, exact {exact[name]:g}" for name, effect in effects.items())
    return Measurement(
        effects,
        f"Number of recurrent states in the automaton of the trained model's predictions: {listed}.",
        (Gate.flat(tables),),
    )
