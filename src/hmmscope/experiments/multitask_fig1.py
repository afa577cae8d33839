"""[MultiTask] Figure 1: accuracy in context, against demonstrations and along the test sequence."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmmscope import registry
from hmmscope.analysis.curves import Score
from hmmscope.analysis.intervals import mean_row
from hmmscope.evidence.claims import OURS, Seen, claim
from hmmscope.evidence.figures import Figure, Lines, Role, Series
from hmmscope.evidence.panels import curve, level, lines
from hmmscope.evidence.rows import Rows, Tables
from hmmscope.evidence.verdicts import Above, room
from hmmscope.experiments.experiment import NUM_SEEDS, SEED_INTERVALS, Experiment, Measured
from hmmscope.experiments.multitask_models import multitask_config
from hmmscope.experiments.multitask_predictors import NGRAMS, last_sequence, pool_score, unseen_score, untrained_score
from hmmscope.experiments.multitask_setting import gates, setting_rows
from hmmscope.runs.pipeline import Run
from hmmscope.schema import require

#: Shares of a uniform law that the mixture over the pool is tried with on other HMMs.
_RETRIEVAL = {"smoothings": [0.01, 0.03, 0.1, 0.3]}

_WHOLE = {"samples": 1024, "first_position": 4, "memory_lengths": [2, 4], "num_steps": 20, **_RETRIEVAL}


@registry.experiment("multitask-fig1")
class MultiTaskFig1(Experiment):
    """Fresh prompts of the pool and of HMMs never seen, beside exact, counting and constructed predictors."""

    title = "Accuracy rises with demonstrations and along the test sequence"
    summary = (
        "A RoFormer trained on prompts from a mixture of hidden Markov models predicts fresh prompts: of the HMMs of its "
        "pool, and of HMMs of the same prior that it never saw. Beside it stand what can be counted in the prompt, the "
        "network that Theorem 1 constructs, the Bayes mixture over the pool, and the filter that is told the HMM."
    )
    num_seeds = NUM_SEEDS
    intervals = SEED_INTERVALS
    groups = {"predictions": ("demonstrations", "positions", "effects"), "setting": ("setting",)}
    sizes = {
        "smoke": {
            "samples": 64,
            "first_position": 4,
            "memory_lengths": [1, 2],
            "num_steps": 3,
            "smoothings": [0.01, 0.1],
        },
        "small": _WHOLE,
        "gpu": _WHOLE,
        "paper": _WHOLE,
    }

    def plan(self, scale: str, **choices: Any) -> dict[str, dict[str, Any]]:
        return {"model": multitask_config(scale)}

    def measure(self, runs: dict[str, Run], group: str, sizes: dict[str, Any]) -> Measured:
        run = runs["model"]
        if group == "setting":
            return {"setting": setting_rows(run)}
        first, longest = sizes["first_position"], min(run.config.layout.sequence_lengths) - 1
        require(0 <= first <= longest, "measurements.first_position", f"must be in [0, {longest}]", first)
        scores = {"pool": pool_score(run, sizes), "unseen": unseen_score(run, sizes)}
        found = {"trained": effects(scores, first), "untrained": rises(untrained_score(run, scores["pool"]), first)}
        effect_rows = [{"network": network} | row for network, rows in found.items() for row in rows]
        tables: Measured = {"demonstrations": [], "positions": [], "effects": effect_rows}
        for pool, score in scores.items():
            kept = {"demonstrations": score.positions >= first, "positions": last_sequence(score)}
            for axis, columns in kept.items():
                tables[axis] += [{"pool": pool} | row for row in score.rows(axis, columns)]
        return tables

    def figures(self, tables: Tables) -> list[Figure]:
        """Accuracy, loss and excess, of both pools and along both axes."""
        told = (
            f"Accuracy of the next observation on fresh prompts. Left: against the number of demonstrations, at the later "
            f"positions of a sequence ({_positions(tables)}). Right: along the test sequence, after all demonstrations. "
            "Top: HMMs of the pool, where the Bayes mixture over the pool is the optimum. Bottom: HMMs of the same prior "
            "that the model never saw; the mixture over the pool, smoothed as suits it best, is what retrieval gives there. "
            "The ceiling is told the HMM. N-grams and the network of Theorem 1 know the prompt only; the latter speaks where"
            " its window lies inside the sequence. "
        )
        lost = (
            "Negative log-likelihood of the next observation, as in the figure on accuracy. The network of Theorem 1 has "
            "none: its vector, clipped to a law, gives zeros. "
        )
        over = (
            "KL divergence from the Bayes mixture over the pool, which is zero for the optimum itself; HMMs of the pool, "
            "positions and conditions as in the figure on accuracy. "
        )
        shown = (
            ("accuracy", "Accuracy in context", told, _panels(tables, "accuracy", "accuracy")),
            ("loss", "Loss in context", lost, _panels(tables, "loss", "nats per observation")),
            ("excess", "Distance to the optimum", over, _excess_panels(tables)),
        )
        ends = _intervals(tables)
        return [
            Figure(name=name, title=title, caption=text + ends, panels=panels) for name, title, text, panels in shown
        ]

    def without_training(self, tables: Tables) -> Tables | None:
        """The network before training; in curves the most frequent token stands in the place of the model's answer.

        Effects that were not measured of the untrained network are zero, as those of any answer that is always the same.
        """
        curves = {
            name: Rows(
                row | {"predictor": "model"} if row["predictor"] == "order-0" else row
                for row in tables[name]
                if row["predictor"] != "model"
            )
            for name in ("demonstrations", "positions")
        }
        rows = tables["effects"]
        before = rows.where(network="untrained")
        known = {(row["effect"], row["pool"]) for row in before}
        nothing = Rows(
            row | {"value": 0.0, "low": row["low"] - row["value"], "high": row["high"] - row["value"]}
            for row in rows
            if row.get("network", "trained") == "trained" and (row["effect"], row["pool"]) not in known
        )
        taken = before.with_columns(network=lambda row: "trained")
        return {**tables, "effects": Rows([*before, *taken, *nothing]), **curves}


# ---------------------------------------------------------------------------------------------------------------------
# What the claims rest on


@dataclass(frozen=True)
class _Part:
    """Where an effect is taken."""

    score: Score
    first_position: int

    def mean(self, predictor: str, metric: str, columns: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Mean over some judged columns (sample,)."""
        values = self.score.measures[predictor][metric][:, columns]
        return np.asarray(values.mean(1))

    @property
    def late(self) -> NDArray[np.bool_]:
        return np.asarray(self.score.positions >= self.first_position)

    @property
    def end(self) -> NDArray[np.bool_]:
        return np.asarray(last_sequence(self.score) & self.late)


def rises(score: Score, first_position: int) -> list[dict]:
    """Rows (effect, pool, first_position, value, ...) on the model's accuracy alone, of the pool; see `effects`."""
    return [_effect_row(name, "pool", first_position, v) for name, v in _rises(_Part(score, first_position)).items()]


def _rises(part: _Part) -> dict[str, NDArray[np.float64]]:
    score = part.score
    none = (score.demonstrations == 0) & part.late
    along = [last_sequence(score) & (score.positions == t) for t in (0, 1, score.positions[last_sequence(score)].max())]
    first, second, last = (part.mean("model", "accuracy", columns) for columns in along)
    end = part.mean("model", "accuracy", part.end)
    return {
        "demonstrations": end - part.mean("model", "accuracy", none),
        "length": last - first,
        "length after one": last - second,
    }


def _effect_row(effect: str, pool: str, first_position: int, values: NDArray[np.float64]) -> dict[str, Any]:
    return {"effect": effect, "pool": pool, "first_position": first_position} | mean_row(values)


def effects(scores: dict[str, Score], first_position: int) -> list[dict]:
    """Differences that the claims rest on, paired within prompts: (effect, pool, first_position, value, ...).

    ``demonstrations``: model's accuracy with all demonstrations less that without any, positions >= `first_position`;
    ``length``: at the last position of the test sequence less that at the first, all demonstrations; ``length after
    one``: less that at the second. At the end (all demonstrations, positions >= `first_position`): ``above order-1``,
    ``below the ceiling``: model less order-1 n-gram, known HMM less model, accuracy; ``loss above the ceiling``: model
    less known HMM, nats; ``gain over order-1``, ``gain over retrieval``: n-gram, or smoothed mixture over the pool, less
    model, nats.
    """
    rows = []
    for pool, score in scores.items():
        part = _Part(score, first_position)
        accuracy = {name: part.mean(name, "accuracy", part.end) for name in ("model", "order-1", "known-component")}
        loss = {
            name: part.mean(name, "loss", part.end)
            for name in ("model", "order-1", "known-component", "retrieval")
            if name in score.measures
        }
        found = _rises(part) | {
            "above order-1": accuracy["model"] - accuracy["order-1"],
            "below the ceiling": accuracy["known-component"] - accuracy["model"],
            "loss above the ceiling": loss["model"] - loss["known-component"],
            "gain over order-1": loss["order-1"] - loss["model"],
        }
        if "retrieval" in loss:
            found["gain over retrieval"] = loss["retrieval"] - loss["model"]
        rows += [_effect_row(effect, pool, first_position, values) for effect, values in found.items()]
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures

#: How each predictor is called and drawn; those of Theorem 1 follow.
_PREDICTORS: dict[str, tuple[str, Role]] = {
    "optimum": ("Bayes mixture over the pool (optimum)", "optimum"),
    "known-component": ("Bayes filter, HMM known", "ceiling"),
    "model": ("model", "model"),
    "retrieval": ("Bayes mixture over the pool, smoothed", "other"),
    "order-0": ("most frequent token", "baseline"),
    "order-1": ("in-context n-gram, order 1", "baseline"),
    "order-2": ("in-context n-gram, order 2", "baseline"),
    "order-3": ("in-context n-gram, order 3", "baseline"),
}
#: Roles whose curves have bands; ten of them would hide each other.
_BANDS = ("model", "optimum", "ceiling")
_POOLS = {"pool": "HMMs of the pool", "unseen": "HMMs never seen"}
_AXES = {"demonstrations": "demonstrations before the sequence", "positions": "observations of the sequence seen"}
_BY = {"demonstrations": "demonstrations", "positions": "position"}
_THEOREM = "theorem1-"


def _panels(tables: Tables, metric: str, y_label: str) -> tuple[Lines, ...]:
    """Both pools, along both axes."""
    return tuple(
        lines(
            f"{title}, by {_BY[axis]}",
            *_curves(tables[axis].where(pool=pool, metric=metric)),
            x_label=label,
            y_label=y_label,
        )
        for pool, title in _POOLS.items()
        for axis, label in _AXES.items()
    )


def _excess_panels(tables: Tables) -> tuple[Lines, ...]:
    panels = []
    for axis, label in _AXES.items():
        rows = tables[axis].where(pool="pool", metric="excess")
        zero = level(0.0, sorted(rows.values("x")), *_PREDICTORS["optimum"])
        shown: dict[str, Any] = {"x_label": label, "y_label": "nats above the optimum", "y_min": 0.0}
        panels.append(lines(f"By {_BY[axis]}", zero, *_curves(rows), **shown))
    return tuple(panels)


def _curves(rows: Rows) -> list[Series | None]:
    """One curve a predictor, means over seeds."""
    looks = dict(_PREDICTORS)
    for name in rows.values("predictor"):
        if name.startswith(_THEOREM):
            looks[name] = (f"network of Theorem 1, memory {name.removeprefix(_THEOREM)}", "other")
    return [curve(rows.where(predictor=p), "x", *look, bands=look[1] in _BANDS) for p, look in looks.items()]


def _positions(tables: Tables) -> str:
    """The positions that the left panels average over, in words."""
    last = max(row["x"] for row in tables["positions"])
    return f"{tables['effects'][0]['first_position']} to {last} observations of it seen"


def _intervals(tables: Tables) -> str:
    seeds = len(tables["positions"].seeds())
    over = f"{seeds} seeds" if seeds > 1 else "prompts"
    return f"Bands of model, optimum and ceiling are 95 % intervals over {over}; the tables have those of all curves."


# ---------------------------------------------------------------------------------------------------------------------
# Claims

_SOURCE = "[MultiTask] §2.2, Fig. 1"


@claim(
    "multitask-high-accuracy",
    experiment="multitask-fig1",
    source=_SOURCE,
    says="Well-trained Transformers reach high accuracy in context.",
    reading=(
        "After all demonstrations, on fresh prompts of the pool, the model is right more often than the best in-context "
        "n-gram, by 0.05 or more, where the optimum is by 0.1 or more."
    ),
    rule=Above(0, matters=0.05),
)
def high_accuracy(tables: Tables) -> Seen:
    rows = tables["demonstrations"].where(pool="pool", metric="accuracy")
    end = rows.where(x=max(rows.values("x")))
    found = {name: own.effect() for name, own in end.by("predictor").items()}
    counted = {name: value.value for name, value in found.items() if name in NGRAMS and value is not None}
    best = max(counted, key=lambda name: counted[name])
    model, optimum = (end.where(predictor=name) for name in ("model", "optimum"))
    left = optimum.less(end.where(predictor=best))
    text = (
        f"After all demonstrations it is right in {found['model']} of cases, the best n-gram ({best}) in "
        f"{found[best]}, the Bayes mixture over the pool in {found['optimum']}."
    )
    gap = room(left.value if left else 0.0, 0.1, "accuracy between the best n-gram and the optimum")
    return Seen(model.less(end.where(predictor=best), unit="accuracy"), text, gates=(gap, *gates(tables)))


@claim(
    "multitask-accuracy-rises-with-demonstrations",
    experiment="multitask-fig1",
    source=f"{_SOURCE} (1)",
    says="Accuracy improves as the number of input-output examples increases.",
    reading=(
        "The model's accuracy with all demonstrations less that with none, at the later positions of a sequence, less the "
        "same before training, is above zero by 0.02 or more."
    ),
    rule=Above(0, matters=0.02),
)
def rises_with_demonstrations(tables: Tables) -> Seen:
    along, best = (_along(tables, "demonstrations", name) for name in ("model", "optimum"))
    (first, start), (last, end) = along[0], along[-1]
    text = (
        f"It goes from {start:.3f} with {first} demonstrations to {end:.3f} with {last}, by "
        f"{_rows(tables, 'demonstrations').effect()}; that of the Bayes mixture from {best[0][1]:.3f} to {best[-1][1]:.3f}. "
        f"On HMMs never seen the model's changes by {_rows(tables, 'demonstrations', 'unseen').effect()}."
    )
    return _rise(tables, "demonstrations", text)


@claim(
    "multitask-accuracy-rises-with-length",
    experiment="multitask-fig1",
    source=f"{_SOURCE} (2)",
    says="Task outputs become more predictable with longer test sequences.",
    reading=(
        "The model's accuracy at the last position of the test sequence less that at its first, after all demonstrations, "
        "less the same before training, is above zero by 0.02 or more."
    ),
    rule=Above(0, matters=0.02),
)
def rises_with_length(tables: Tables) -> Seen:
    along = _along(tables, "positions", "model")
    (_, start), (last, end) = along[0], along[-1]
    text = (
        f"After all demonstrations it goes from {start:.3f} at the first observation of the test sequence to {end:.3f} "
        f"after {last} of them, by {_rows(tables, 'length').effect()}; from the second observation on it changes by "
        f"{_rows(tables, 'length after one').effect()}."
    )
    return _rise(tables, "length", text)


@claim(
    "multitask-retrieval-or-estimation",
    experiment="multitask-fig1",
    source=OURS,
    says="Does the model retrieve an HMM of its pool, or estimate in context?",
    reading=(
        "The paper does not say on which HMMs it measured. The number is the loss above the filter that is told the HMM, "
        "on HMMs never seen less on the pool; beside it stands what retrieval alone reaches on HMMs never seen, the Bayes "
        "mixture over the pool with the smoothing that suits these prompts best."
    ),
)
def retrieval_or_estimation(tables: Tables) -> Seen:
    gap = {pool: _rows(tables, "loss above the ceiling", pool) for pool in _POOLS}
    difference = gap["unseen"].less(gap["pool"], unit="nats more above the ceiling on HMMs never seen")
    retrieval, ngram = (_rows(tables, f"gain over {name}", "unseen").effect() for name in ("retrieval", "order-1"))
    assert difference is not None
    assert retrieval is not None
    assert ngram is not None
    knows = "It knows its pool" if (difference.low or 0) > 0 else "That it knows its pool does not show"
    tells = "; whether it estimates in context is open"
    if (retrieval.low or 0) > 0:
        tells = "; it estimates in context"
    elif (retrieval.high or 0) < 0:
        tells = "; what it does beyond the pool is worse than retrieval"
    text = (
        f"{knows}{tells}. Its loss is {gap['pool'].effect()} nats above that of the filter that is told the HMM on the pool "
        f"and {gap['unseen'].effect()} on HMMs never seen. There it gains {retrieval} nats over the smoothed Bayes mixture "
        f"of the pool, and {ngram} over the n-gram of order 1{', which needs no training' if (ngram.high or 0) < 0 else ''}."
    )
    return Seen(difference, text)


def _rise(tables: Tables, effect: str, text: str) -> Seen:
    trained, before = (_rows(tables, effect, network=network) for network in ("trained", "untrained"))
    return Seen(trained.less(before, unit="accuracy"), text, gates=gates(tables))


def _rows(tables: Tables, effect: str, pool: str = "pool", network: str = "trained") -> Rows:
    """Rows of an effect; tables without the column have trained networks only."""
    found = tables["effects"].where(effect=effect, pool=pool)
    return Rows(row for row in found if row.get("network", "trained") == network)


def _along(tables: Tables, axis: str, predictor: str) -> list[tuple[int, float]]:
    """Accuracy on the pool along an axis, means over seeds."""
    rows = tables[axis].where(pool="pool", predictor=predictor, metric="accuracy").pool("x")
    return [(row["x"], row["value"]) for row in sorted(rows, key=lambda row: row["x"])]
