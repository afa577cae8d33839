"""Does a model adopt another prompt's task if only the task is written into a layer?"""

from typing import Any

from hmmscope import Run, evaluate, lab, registry, task_patching
from hmmscope.analysis import TunedNgrams, mean_row
from hmmscope.ties import largest
from hmmscope_papers.multitask.predictors import last_sequence

#: Number of HMMs of the mixture; one dimension fewer distinguishes them.
NUM_TASKS = 4
_LOOKS: dict[str, tuple[str, lab.Role]] = {
    "task": ("task's subspace", "model"),
    "whole": ("whole stream", "ceiling"),
    "random": ("random subspace", "control"),
}


@registry.experiment("task-patching")
class TaskPatching(lab.Experiment):
    """RoFormers on prompts of a mixture of four HMMs; the task (HMM) of one prompt is patched into another."""

    title = "Is the task a vector that the model uses?"
    summary = (
        "A prompt has demonstrations of one HMM out of four, and then a test sequence of the same HMM. Prompt B is "
        "also read with the demonstrations of prompt A, which come from another HMM. The directions in which the "
        "stream at B's test positions differs between these two readings span the task subspace. In other prompts this "
        "subspace alone is set to its value under A's demonstrations, at one layer, and the predictions in the test "
        "sequence are compared with those of the exact filter of A's HMM. Controls are random subspaces of the same "
        "dimension, the whole stream, and the untrained networks."
    )
    num_seeds = {"smoke": 2, "small": 5, "gpu": 5, "paper": 5}
    sizes = {
        "smoke": {"samples": 32, "ranks": [1, 3]},
        "small": {"samples": 512, "ranks": [1, 2, 3, 6, 12]},
        "gpu": {"samples": 2048, "ranks": [1, 2, 3, 6, 12, 24]},
        "paper": {"samples": 2048, "ranks": [1, 2, 3, 6, 12, 24]},
    }
    groups = {"patches": ("patches", "learned")}

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        steps, length, batch = {
            "smoke": (8, 5, 8),
            "small": (400, 6, 32),
            "gpu": (4000, 8, 128),
            "paper": (20000, 8, 256),
        }[scale]
        width, layers, heads = {"smoke": (16, 2, 2), "small": (64, 3, 4), "gpu": (128, 4, 4), "paper": (256, 8, 8)}[
            scale
        ]
        rows = {"transition_concentration": 0.3, "emission_concentration": 0.3}
        training = {"num_steps": steps, "learning_rate": 3e-3 if scale == "small" else 1e-3, "batch_size": batch}
        training |= {"evaluate_every": max(1, steps // 4), "checkpoint_every": steps}
        return {
            "mixture": {
                "process": {
                    "name": "random-mixture",
                    "num_components": NUM_TASKS,
                    "num_states": 3,
                    "num_symbols": 4,
                    **rows,
                },
                "layout": {
                    "name": "prompts",
                    "num_demonstrations": 3,
                    "demonstration_length": length,
                    "test_length": length,
                },
                "model": {"name": "roformer", "width": width, "num_layers": layers, "num_heads": heads},
                "training": training,
            }
        }

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> lab.MeasuredTables:
        (run,) = runs.values()
        rows: list[dict[str, Any]] = []
        for network, model in {"trained": run.model, "untrained": run.untrained()}.items():
            for rank in sizes["ranks"]:
                found = task_patching(model, run.dataset("probe"), num_samples=sizes["samples"], rank=rank)
                rows += [{"network": network} | row for row in found if row["metric"] == "kl"]
        score = evaluate(run.model, run.dataset("evaluate"), num_samples=sizes["samples"])
        loss = {name: found["loss"][:, last_sequence(score)].mean(1) for name, found in score.measures.items()}
        best = TunedNgrams.best(loss)
        return {"patches": rows, "learned": [{"baseline": best} | mean_row(loss[best] - loss["model"])]}

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        rows = tables["patches"].where(reference="filter")
        return [
            lab.Figure(
                name="layers",
                title="Effect of writing another prompt's task into a layer",
                caption=(
                    "Curves show how far the predictions in the test sequence move to those of the exact filter "
                    "of the other prompt's HMM, as a fraction of the KL divergence before the patch. The subspaces "
                    f"have {NUM_TASKS - 1} dimensions, which are enough for {NUM_TASKS} HMMs. Patching the whole stream "
                    "shows the largest possible effect of the test positions of a layer; layers above it read the prompt's "
                    "own demonstrations again. In the last layer only the prediction itself can change. Bands are 95 % "
                    "intervals over seeds."
                ),
                panels=(_by(rows.where(rank=NUM_TASKS - 1), "layer", "layer"),),
            ),
            lab.Figure(
                name="dimensions",
                title="Effect of patching, by number of dimensions",
                caption=(
                    "Curves show how far the predictions move to those of the other HMM's filter, against the number "
                    "of patched dimensions. Among the layers below the last, the patched layer is that where patching "
                    "the whole stream has the largest effect. Bands are 95 % intervals over seeds."
                ),
                panels=(_by(_at_best(rows), "rank", "dimensions of the subspace"),),
            ),
        ]


def _by(rows: lab.Rows, x: str, x_label: str) -> lab.Panel:
    trained, untrained = (rows.where(network=network) for network in ("trained", "untrained"))
    series = [lab.curve(trained.where(subspace=key), x, *look) for key, look in _LOOKS.items()]
    series.append(lab.curve(untrained.where(subspace="task"), x, "task subspace, before training", "baseline"))
    return lab.lines("", *series, x_label=x_label, y_label="fraction of the way")


def _at_best(rows: lab.Rows) -> lab.Rows:
    whole = rows.where(network="trained", subspace="whole").pool("layer")
    inner = [row for row in whole if row["layer"] < max(rows.values("layer"))]
    return rows.where(layer=largest(inner, lambda row: row["value"])["layer"])


def _less(tables: lab.Tables, reference: str, **other: str) -> dict[int, lab.Effect]:
    rows, effects = _at_best(tables["patches"].where(reference=reference)), {}
    for rank, own in rows.by("rank").items():

        def difference(seed_rows: lab.Rows) -> lab.EstimateWithError:
            def of(**chosen: str) -> lab.EstimateWithError:
                row = seed_rows.one(**{"network": "trained", "subspace": "task", **chosen})
                return lab.EstimateWithError(row["value"], row["error"])

            return of() - of(**other)

        effects[rank] = lab.Effect.pooled(list(own.per_seed(difference).values()), "fraction of the way")
    return effects


def _gates(tables: lab.Tables, numbers: lab.Numbers = None) -> tuple[Any, ...]:
    gain = tables["learned"].effect(unit="nats")
    assert gain is not None
    told = lab.Gate.learned(gain, lab.parameter(numbers, "learned"), "the best in-context n-gram baseline")
    return told, lab.Gate.flat(tables, lab.parameter(numbers, "settled"))


@lab.claim("task-is-a-vector")
def task_is_a_vector(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    controls = {"random subspaces": {"subspace": "random"}, "before training": {"network": "untrained"}}
    effects = {name: _less(tables, "filter", **other)[NUM_TASKS - 1] for name, other in controls.items()}
    rows = _at_best(tables["patches"].where(reference="filter")).where(network="trained", rank=NUM_TASKS - 1)
    shares = {look: rows.where(subspace=name).effect() for name, (look, _) in _LOOKS.items()}
    text = ", ".join(f"{name} {effect.short()}" for name, effect in shares.items() if effect is not None)
    layer = rows.values("layer")[0]
    return lab.Measurement(
        effects,
        f"Fraction of the way that predictions move to those of the other HMM's filter, after patching layer {layer}: "
        f"{text}.",
        _gates(tables, numbers),
        tuple(controls),
    )


@lab.claim("task-dimensions")
def task_dimensions(tables: lab.Tables) -> lab.Measurement:
    rows = _at_best(tables["patches"].where(reference="filter")).where(network="trained", subspace="task")
    by_rank = {rank: rows.where(rank=rank) for rank in rows.values("rank")}
    more = by_rank[NUM_TASKS - 1].less(by_rank[1], unit="fraction of the way")
    shares = {rank: own.effect() for rank, own in by_rank.items()}
    said = "; ".join(f"{rank}: {effect.short()}" for rank, effect in shares.items() if effect is not None)
    return lab.Measurement(
        more,
        "Fraction of the way that predictions move to those of the other HMM's filter, by number of patched "
        f"dimensions: {said}.",
    )
