"""[MultiTask] Figure 1: accuracy in context, against demonstrations and along the test sequence."""

from dataclasses import replace
from typing import Any

from hmmscope import ProcessDataset, Run, lab, registry
from hmmscope.analysis import Score, TunedNgrams, mean_row
from hmmscope.schema import require
from hmmscope.ties import largest
from hmmscope_papers.multitask.predictors import (
    NGRAMS,
    POOLS,
    TREE,
    constructed_measures,
    counting_of,
    last_sequence,
    pools_of,
    prompt_score,
)
from hmmscope_papers.multitask.training_setting import (
    SEPARATES,
    PoolFigure,
    few_prompts,
    gates,
    in_regime,
    large_pool,
    looks,
    of_cycles,
)

_WHOLE = {"samples": 512, "first_position": 4, "memory_lengths": [2, 4], "num_steps": 20}


@registry.experiment("multitask-fig1")
class MultiTaskFig1(PoolFigure):
    """Accuracy on prompts of training HMMs, of held-out pairs of a cycle and emissions, and of unseen HMMs."""

    title = "Accuracy rises with demonstrations and along the test sequence"
    in_paper: tuple[str, str] | None = (
        "[MultiTask] §2.2",
        "accuracy improves as the number of input-output examples increases",
    )
    summary = (
        "RoFormers trained on prompts from pools of hidden Markov models predict fresh prompts of three kinds: from HMMs "
        "of the pool, from held-out pairs of a cycle and an emission of the pool, and from unseen HMMs. The pools differ "
        "in size, but the number of training tokens is equal, so each HMM is shown from a few times to thousands of times. "
        "The model is compared with n-gram baselines, the network that Theorem 1 constructs, the Bayes mixture over "
        "the pool (retrieval), the mixture over all cycle-emission pairs, and the filter that knows the HMM."
    )
    groups = {"predictions": ("demonstrations", "positions", "effects"), "setting": ("setting",)}
    of_all = ("accuracy",)
    sizes = {
        "smoke": {"samples": 32, "first_position": 4, "memory_lengths": [1, 2], "num_steps": 3},
        "small": _WHOLE,
        "medium": _WHOLE | {"samples": 2048},
        "gpu": _WHOLE,
        "paper": _WHOLE,
    }

    def look(self, run: Run, sizes: dict[str, Any]) -> lab.MeasuredTables:
        first, longest = sizes["first_position"], min(run.config.layout.sequence_lengths) - 1
        require(0 <= first <= longest, "measurements.first_position", f"must be in [0, {longest}]", first)
        tables: lab.MeasuredTables = {"demonstrations": [], "positions": [], "effects": []}
        counting = counting_of(run)
        for pool, process in pools_of(run).items():
            score = prompt_score(run, process, sizes["samples"], ngrams=counting)
            tables["effects"] += effects(score, pool, first)
            dataset = ProcessDataset(process, layout=run.config.layout, seed=run.config.seed, stream="evaluate")
            built = constructed_measures(dataset, score, sizes)
            shown = replace(score, measures=score.measures | built)
            kept = {"demonstrations": score.positions >= first, "positions": last_sequence(score)}
            for axis, columns in kept.items():
                tables[axis] += [{"pool": pool} | row for row in shown.rows(axis, columns)]
        return tables

    def figures(self, tables: lab.Tables) -> list[lab.Figure]:
        own = of_cycles(tables)
        pools = [_by_prompts(own)] if len(own["effects"].values("prompts")) > 1 else []
        beside = [_by_cycles(tables)] if len(tables["effects"]) > len(own["effects"]) else []
        return [*pools, *beside, *super().figures(tables)]

    def drawn(self, tables: lab.Tables) -> list[lab.Figure]:
        told = (
            "Curves show the accuracy of predictions of the next observation on fresh prompts. First row: accuracy "
            f"late in a sequence ({_positions(tables)}), by the number of demonstrations before it. Second row: "
            "accuracy along the test sequence, after all demonstrations. The optimum is the Bayes mixture over the "
            "pool for HMMs of the pool, and the mixture over all pairs for held-out pairs. For unseen HMMs the optimum "
            "is unknown, and the mixture over the pool shows how accurate retrieval is. No predictor exceeds the "
            "accuracy of the filter that knows the HMM. N-grams and the network of Theorem 1 know only the prompt; "
            "that network predicts only once the sequence fills its memory. "
        )
        lost = (
            "Curves show the negative log-likelihood of the next observation, in the same panels as the figure on accuracy. "
            "The network of Theorem 1 is left out, because its output, clipped to a distribution, contains zeros. "
        )
        shown = (
            ("accuracy", "Accuracy in context", told, _panels(tables, "accuracy", "accuracy")),
            ("loss", "Loss in context", lost, _panels(tables, "loss", "nats per observation")),
        )
        ends = _intervals(tables)
        return [
            lab.Figure(name=name, title=title, caption=text + ends, panels=panels)
            for name, title, text, panels in shown
        ]

    def without_training(self, tables: lab.Tables) -> lab.Tables | None:
        curves = {
            name: lab.Rows(
                row | {"predictor": "model"} if row["predictor"] == "untrained" else row
                for row in tables[name]
                if row["predictor"] != "model"
            )
            for name in ("demonstrations", "positions")
        }
        return {**(super().without_training(tables) or tables), **curves}


# ---------------------------------------------------------------------------------------------------------------------
# Inputs of the claims


def effects(score: Score, pool: str, first_position: int) -> list[dict]:
    """Return differences that claims test, paired within prompts: (network, effect, pool, first_position, value, ...).

    ``demonstrations`` is the accuracy with all minus the accuracy with no demonstrations, at positions >=
    `first_position`. ``length`` is the accuracy at the last minus the accuracy at the first position of the test
    sequence; ``length after one`` subtracts the second position instead. Other effects are measured after all
    demonstrations. ``loss above the ceiling`` is the network's loss minus that of the filter that knows the HMM, in
    nats. ``gain over`` is a decrease of loss, ``accuracy over`` an increase of accuracy, from the best n-gram baseline
    (``counting``) or the mixture over the pool (``retrieval``).
    """
    late, last = score.positions >= first_position, last_sequence(score)
    end, none = last & late, (score.demonstrations == 0) & late
    along = [last & (score.positions == t) for t in (0, 1, score.positions[last].max())]
    loss = {name: metrics["loss"][:, end].mean(1) for name, metrics in score.measures.items()}
    right = {name: metrics["accuracy"][:, end].mean(1) for name, metrics in score.measures.items()}
    rows = []
    for network, name in (("trained", "model"), ("untrained", "untrained")):
        accuracy = score.measures[name]["accuracy"]
        at_end, at_none = accuracy[:, end].mean(1), accuracy[:, none].mean(1)
        first, second, final = (accuracy[:, columns].mean(1) for columns in along)
        found = {
            "demonstrations": at_end - at_none,
            "length": final - first,
            "length after one": final - second,
            "loss above the ceiling": loss[name] - loss["known-component"],
            "gain over counting": loss[TunedNgrams.best(loss)] - loss[name],
            "gain over retrieval": loss["retrieval"] - loss[name],
            "accuracy over counting": right[name] - right[TunedNgrams.best(right, "accuracy")],
            "accuracy over retrieval": right[name] - right["retrieval"],
        }
        where = {"network": network, "pool": pool, "first_position": first_position}
        rows += [where | {"effect": effect} | mean_row(values) for effect, values in found.items()]
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Figures

#: Roles whose curves have bands; more bands would hide each other.
_BANDS = ("model", "optimum", "ceiling")
_AXES = {"demonstrations": "demonstrations before the sequence", "positions": "earlier observations of the sequence"}
_THEOREM = "theorem1-"


def _by_prompts(tables: lab.Tables) -> lab.Figure:
    panels = []
    for metric, unit in (("accuracy", "accuracy"), ("loss", "nats per observation")):
        for pool, title in _pools(tables).items():
            end = _end(tables, pool, metric).with_columns(prompts=lambda row: float(f"{row['prompts']:.3g}"))
            shown = {name: look for name, look in looks(pool).items() if name not in ("order-0", "order-1")}
            series = [
                lab.curve(end.where(predictor=p), "prompts", *look, bands=look[1] in _BANDS)
                for p, look in shown.items()
            ]
            panels.append(lab.lines(title, *series, x_label="prompts per HMM", y_label=unit, log_x=True))
    return lab.Figure(
        name="by-prompts",
        title="Accuracy and loss after all demonstrations, by training prompts per HMM",
        caption=(
            "Curves show accuracy and loss at the later positions of the test sequence, after all demonstrations. All "
            "models were trained on equally many tokens, so that models with a smaller pool saw each HMM more often. "
            f"The paper's model saw each HMM 16 times. {_intervals(tables)}"
        ),
        panels=tuple(panels),
    )


def _by_cycles(tables: lab.Tables) -> lab.Figure:
    prompts = in_regime(tables)["effects"].values("prompts")
    own = {name: lab.Rows(row for row in rows if row.get("prompts") in prompts) for name, rows in tables.items()}
    cycles = own["effects"].values("cycles")
    panels = []
    for metric, unit in (("accuracy", "accuracy"), ("loss", "nats per observation")):
        for pool, title in _pools(tables).items():
            end = _end(own, pool, metric)
            shown = looks(pool) | {TREE: ("context tree weighting", "baseline")}
            series = [lab.bar(end.where(predictor=name), "cycles", cycles, *look) for name, look in shown.items()]
            panels.append(lab.bars(title, *series, categories=cycles, y_label=unit, y_min=0.0))
    return lab.Figure(
        name="by-cycles",
        title="Accuracy and loss after all demonstrations, by states and symbols of the cycles",
        caption=(
            "Bars show accuracy and loss at the later positions of the test sequence, after all demonstrations, for "
            "cycles with different numbers of states and symbols (states/symbols). All pools have equally many HMMs, "
            f"and each HMM was shown equally often. The claims are about cycles {SEPARATES}, where a trial model "
            f"gained most over n-gram baselines. {_intervals(tables)}"
        ),
        panels=tuple(panels),
    )


def _pools(tables: lab.Tables) -> dict[str, str]:
    measured = tables["effects"].values("pool")
    return {pool: title[0].upper() + title[1:] for pool, title in POOLS.items() if pool in measured}


def _end(tables: lab.Tables, pool: str, metric: str) -> lab.Rows:
    rows = tables["demonstrations"].where(pool=pool, metric=metric)
    return rows.where(x=max(rows.values("x")))


def _panels(tables: lab.Tables, metric: str, y_label: str) -> tuple[lab.Panel, ...]:
    return tuple(
        lab.lines(
            title,
            *_curves(tables[axis].where(metric=metric), pool),
            x_label=label,
            y_label=y_label,
        )
        for axis, label in _AXES.items()
        for pool, title in _pools(tables).items()
    )


def _curves(rows: lab.Rows, pool: str) -> list[lab.Series | None]:
    own, shown = rows.where(pool=pool), looks(pool)
    for name in own.values("predictor"):
        if name.startswith(_THEOREM):
            shown[name] = (f"network of Theorem 1, memory {name.removeprefix(_THEOREM)}", "other")
    return [lab.curve(own.where(predictor=p), "x", *look, bands=look[1] in _BANDS) for p, look in shown.items()]


def _positions(tables: lab.Tables) -> str:
    last = max(row["x"] for row in tables["positions"])
    return f"after {tables['effects'][0]['first_position']} to {last} of its observations"


def _intervals(tables: lab.Tables) -> str:
    seeds = len(tables["positions"].seeds())
    over = f"{seeds} seeds" if seeds > 1 else "prompts"
    return (
        f"Bands (of model, optimum and known HMM only) are 95 % intervals over {over}; the tables have all intervals."
    )


# ---------------------------------------------------------------------------------------------------------------------
# Claims

_SOURCE = "[MultiTask] §2.2, Fig. 1"


@lab.claim("multitask-high-accuracy")
def high_accuracy(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    everything, tables = tables, in_regime(tables, numbers)
    end = _end(tables, "pool", "accuracy")
    found = {name: own.effect() for name, own in end.by("predictor").items()}
    best = largest((name for name in NGRAMS if name in found), lambda name: _value(found[name]))
    model, optimum = (end.where(predictor=name) for name in ("model", "retrieval"))
    left = optimum.less(end.where(predictor=best))
    text = (
        f"Accuracy after all demonstrations: model {found['model']}, best n-gram baseline ({best}) {found[best]}, "
        f"Bayes mixture over the pool {found['retrieval']}."
    )
    gap = lab.Gate.headroom(
        left.value if left else 0.0,
        lab.parameter(numbers, "room"),
        "the accuracy of the optimum minus the accuracy of the best n-gram baseline",
    )
    tuned = lab.Gate("learned", NGRAMS[-1] in found, "the tuned n-gram baseline that mixes all orders was not measured")
    text += _beside(everything)
    #: That n-grams are outdone is the claim itself: as a gate it would allow no denial.
    raised = lab.Gate.learned(
        model.less(end.where(predictor="untrained"), unit="accuracy"),
        lab.parameter(numbers, "right"),
        "the untrained model",
    )
    gates = (
        gap,
        tuned,
        few_prompts(tables, numbers),
        large_pool(tables, numbers),
        raised,
        lab.Gate.flat(tables, lab.parameter(numbers, "settled")),
    )
    return lab.Measurement(model.less(end.where(predictor=best), unit="accuracy"), text, gates=gates)


def _beside(tables: lab.Tables) -> str:
    gained = [
        f"{cycles} {rows.where(effect='accuracy over counting', network='trained', pool='pool').effect()}"
        for cycles, rows in tables["effects"].by("cycles").items()
        if cycles not in (None, SEPARATES)
    ]
    return f" Gain over the n-gram baseline on cycles of other sizes: {', '.join(gained)}." if gained else ""


@lab.claim("multitask-accuracy-rises-with-demonstrations")
def rises_with_demonstrations(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    along, best = (_along(tables, "demonstrations", name) for name in ("model", "retrieval"))
    (first, start), (last, end) = along[0], along[-1]
    text = (
        f"The accuracy of the model rises from {start:.3f} with {first} demonstrations to {end:.3f} with {last}, by "
        f"{_rows(tables, 'demonstrations').effect()}; the accuracy of the Bayes mixture rises from {best[0][1]:.3f} to "
        f"{best[-1][1]:.3f}. On unseen HMMs the accuracy of the model changes by "
        f"{_rows(tables, 'demonstrations', 'unseen').effect()}."
    )
    return _rise(tables, "demonstrations", text, numbers)


@lab.claim("multitask-accuracy-rises-with-length")
def rises_with_length(tables: lab.Tables, numbers: lab.RuleParameters) -> lab.Measurement:
    tables = in_regime(tables, numbers)
    along = _along(tables, "positions", "model")
    (_, start), (last, end) = along[0], along[-1]
    text = (
        f"After all demonstrations the accuracy of the model is {start:.3f} at the first observation of the test "
        f"sequence and {end:.3f} after {last} observations. It rises by {_rows(tables, 'length').effect()} from the first "
        f"to the last observation, and by {_rows(tables, 'length after one').effect()} from the second to the last."
    )
    return _rise(tables, "length", text, numbers)


def _rise(tables: lab.Tables, effect: str, text: str, numbers: lab.Numbers = None) -> lab.Measurement:
    trained, before = (_rows(tables, effect, network=network) for network in ("trained", "untrained"))
    return lab.Measurement(trained.less(before, unit="accuracy"), text, gates=gates(tables, numbers))


def _rows(tables: lab.Tables, effect: str, pool: Any = "pool", network: str = "trained") -> lab.Rows:
    return tables["effects"].where(effect=effect, pool=pool, network=network)


def _value(effect: lab.Effect | None) -> float:
    assert effect is not None
    return effect.value


def _along(tables: lab.Tables, axis: str, predictor: str) -> list[tuple[int, float]]:
    rows = tables[axis].where(pool="pool", predictor=predictor, metric="accuracy").pool("x")
    return [(row["x"], row["value"]) for row in sorted(rows, key=lambda row: row["x"])]
