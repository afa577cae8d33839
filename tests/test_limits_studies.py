"""Mixing, block chain-of-thought, width and heads, architectures: judges on made-up tables, instruments on known answers."""

import math
from typing import Any

import pytest
import torch

from hmmscope.claims.limits_cot import half_of_fit
from hmmscope.claims.old import Judgement, Tables
from hmmscope.corpora.targets import make_target
from hmmscope.errors import InputError
from hmmscope.evidence.claims import claims_of
from hmmscope.evidence.figures import Figure
from hmmscope.experiments.experiment import experiment_named
from hmmscope.experiments.limits_fig4_mixing import uniform_errors
from hmmscope.experiments.limits_models import limits_config
from hmmscope.experiments.limits_studies import evaluations_of, fit_length_of, shortened
from hmmscope.inference.window import window_errors
from hmmscope.processes.labelled import LabelledHMM
from hmmscope.runs.config import config_from_data
from hmmscope.runs.pipeline import Run, fresh_model, ports_of, train
from hmmscope.training.spec import TrainingSpec

SEEDS = (0, 1, 2)


def judged(experiment: str, name: str, tables: Tables) -> Judgement:
    """What one claim says of tables."""
    return next(claim for claim in claims_of(experiment) if claim.name == name).judge(tables)


# ---------------------------------------------------------------------------------------------------------------------
# Shortened trainings


@pytest.mark.parametrize("scale", ["smoke", "small", "gpu", "paper"])
@pytest.mark.parametrize("steps", [12, 1000])
def test_a_shortened_training_keeps_its_shape(scale: str, steps: int) -> None:
    config = config_from_data(limits_config(scale, "cyclic-det", 2, training=shortened(steps), length=120))
    spec = config.training
    assert isinstance(spec, TrainingSpec)
    assert spec.num_steps == steps
    assert spec.warmup_steps <= steps
    assert spec.evaluate_every == spec.steps_per_epoch  # one evaluation an epoch
    assert shortened(0) == {}
    with pytest.raises(InputError, match=r"plan\.steps: must be at least 0"):
        shortened(-1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A little Transformer on Cyclic-RND."""
    slip = {"backward_probability": 0.1}
    data = limits_config("smoke", "cyclic-rnd", 1, process=slip, training=shortened(40, 4), length=6)
    return train(config_from_data(data), tmp_path_factory.mktemp("studies") / "run", quiet=True)


def test_evaluations_are_those_of_the_journal(trained: Run) -> None:
    steps, positions, losses = evaluations_of(trained)
    assert steps == [10, 20, 30, 40]
    assert positions == [1, 2, 3, 4, 5, 6]  # the constant answer before the first observation is left out
    assert all(len(row) == 6 and all(0 <= loss <= 1 for loss in row if loss is not None) for row in losses)
    assert fit_length_of(trained, 1.0) == 6  # total variation is below 1
    assert fit_length_of(trained, 1e-9) == 0


def test_uniform_errors_are_those_of_a_window(trained: Run) -> None:
    """On other samples of the same process, so up to their noise."""
    assert isinstance(trained.process, LabelledHMM)
    found = uniform_errors(trained, 2000).mean(0)[1:]
    known = window_errors(trained.process, [0], [1, 2, 3, 4, 5, 6], num_samples=2000, seed=1)
    assert ((found - known.mean[0]).abs() < 0.03).all()  # standard errors are below 0.005
    exact = 0.9 - 1 / 5  # after one symbol: 0.9 on one state and 0.1 on another, which both exceed 1/5 or are below it
    assert float(found[0]) == pytest.approx(exact, abs=1e-6)  # 0.1 < 1/5: only the 0.9 exceeds
    assert torch.all(found[:-1] > found[1:])


# ---------------------------------------------------------------------------------------------------------------------
# Table 1


def times(**of_process: list[float]) -> Tables:
    """Rows of the table of mixing times, one value an instance."""
    printed = {"CR_0_03": ("CR-0.03", 69.4), "CR_0_1": ("CR-0.1", 21.4)}
    rows = []
    for key, values in of_process.items():
        name, known = printed[key]
        rows += [
            {"seed": seed, "process": name, "time": value, "capped": value, "shifted": value - 2, "printed": known}
            | {"tolerance": 1.0}
            for seed, value in enumerate(values)
        ]
    return {"mixing-times": rows}


@pytest.mark.parametrize(
    "values, verdict",
    [
        ([69.3, 69.4, 69.6], "reproduced"),
        ([71.9, 72.0, 72.2], "not reproduced"),
        ([66.0, 72.0, 70.0], "inconclusive"),  # the interval is wider than the tolerance
    ],
)
def test_table1_values(values: list[float], verdict: str) -> None:
    found = judged("limits-table1", "limits-table1-values", times(CR_0_03=values))
    assert found.verdict == verdict
    assert "CR-0.03" in found.text
    assert found.value == pytest.approx(sum(abs(value - 69.4) for value in values) / 3)


def test_table1_needs_every_row() -> None:
    tables = times(CR_0_03=[69.3, 69.4, 69.6], CR_0_1=[30.0, 30.1, 30.2])
    assert judged("limits-table1", "limits-table1-values", tables).verdict == "not reproduced"


def test_table1_fall() -> None:
    name = "limits-mixing-falls"
    assert judged("limits-table1", name, times(CR_0_03=[70, 71, 72], CR_0_1=[21, 22, 22])).verdict == "reproduced"
    assert judged("limits-table1", name, times(CR_0_03=[20, 21, 20], CR_0_1=[30, 31, 31])).verdict == "not reproduced"
    assert judged("limits-table1", name, times(CR_0_03=[20, 31, 20], CR_0_1=[30, 21, 25])).verdict == "inconclusive"
    assert judged("limits-table1", name, times(CR_0_03=[20, 31, 20])).verdict == "inconclusive"


def test_table1_measures_what_is_known() -> None:
    """RanLDS by its formula, and the offset; two steps are taken off where there is no formula."""
    experiment = experiment_named("limits-table1")
    tables = experiment.measure({}, "times", experiment.measurements("smoke") | {"instances": 1})
    rows = {row["process"]: row for row in tables["mixing-times"]}
    golden = (1 + math.sqrt(5)) / 2
    assert rows["RanLDS"]["time"] == pytest.approx(math.log(0.05) / math.log(1 - 1 / golden), abs=1e-6)
    assert rows["RanLDS"]["shifted"] == rows["RanLDS"]["time"]
    assert rows["CR-0.15"]["shifted"] == rows["CR-0.15"]["time"] - 2
    assert rows["CR-0.01"]["capped"] == rows["CR-0.01"]["shifted"] == 120


# ---------------------------------------------------------------------------------------------------------------------
# Figure 4, left


def curves(model: dict[float, list[float]], uniform: dict[float, list[float]], noise: float = 0.0) -> Tables:
    """Errors by position of three seeds, which differ by the noise."""
    rows: list[dict[str, Any]] = []
    for seed in SEEDS:
        for name, found in (("model", model), ("uniform", uniform)):
            for probability, curve in found.items():
                shared = {"seed": seed, "predictor": name, "probability": probability, "layers": 1}
                off = noise * (seed - 1) if name == "model" else 0.0
                rows += [shared | {"position": t, "value": v + off * t} for t, v in enumerate(curve, 1)]
    return {"errors": rows}


SLOW, FAST = [0.75, 0.7, 0.65, 0.6], [0.7, 0.4, 0.2, 0.1]


def test_hump() -> None:
    uniform = {0.01: SLOW, 0.1: FAST}
    humped, flat, rising = [0.0, 0.35, 0.2, 0.1], [0.3, 0.2, 0.1, 0.05], [0.0, 0.1, 0.2, 0.21]
    name = "limits-mixing-hump"
    good = judged("limits-fig4-mixing", name, curves({0.01: rising, 0.1: humped}, uniform))
    assert good.verdict == "reproduced"  # the slow process is not asked
    assert good.value == pytest.approx(0.25)
    assert "position 2" in good.text
    for curve in (flat, rising):
        found = judged("limits-fig4-mixing", name, curves({0.01: humped, 0.1: curve}, uniform))
        assert found.verdict == "not reproduced"
    noisy = curves({0.1: humped}, {0.1: FAST})
    for row in noisy["errors"]:
        if row["predictor"] == "model" and row["position"] == 4:
            row["value"] += 0.2 * row["seed"]
    assert judged("limits-fig4-mixing", name, noisy).verdict == "inconclusive"
    none = judged("limits-fig4-mixing", name, curves({0.01: humped}, {0.01: SLOW}))
    assert none.verdict == "inconclusive"
    assert "No backward probability" in none.text


def test_end_falls() -> None:
    name, uniform = "limits-mixing-end", {0.01: SLOW, 0.1: FAST}
    falling = curves({0.01: SLOW, 0.1: FAST}, uniform)
    assert judged("limits-fig4-mixing", name, falling).verdict == "reproduced"
    assert judged("limits-fig4-mixing", name, curves({0.01: FAST, 0.1: SLOW}, uniform)).verdict == "not reproduced"
    for row in falling["errors"]:
        if row["predictor"] == "model" and row["probability"] == 0.1:
            row["value"] += 0.4 * row["seed"]
    assert judged("limits-fig4-mixing", name, falling).verdict == "inconclusive"
    assert judged("limits-fig4-mixing", name, curves({0.01: SLOW}, uniform)).verdict == "inconclusive"


def test_window() -> None:
    name, uniform = "limits-mixing-window", {0.1: FAST}
    limited = [0.0, 0.0, 0.2, 0.1]  # one layer: 2^1 positions, then the uniform law
    assert judged("limits-fig4-mixing", name, curves({0.1: limited}, uniform)).verdict == "reproduced"
    better = judged("limits-fig4-mixing", name, curves({0.1: [0.0, 0.0, 0.0, 0.0]}, uniform))
    assert better.verdict == "not reproduced"
    assert better.value == pytest.approx(0.15)
    assert judged("limits-fig4-mixing", name, curves({0.1: limited}, uniform, 0.1)).verdict == "inconclusive"
    nothing = judged("limits-fig4-mixing", name, curves({0.1: FAST}, uniform))
    assert nothing.verdict == "inconclusive"  # it has learned nothing, so it says nothing of windows
    assert "not learned" in nothing.text
    assert judged("limits-fig4-mixing", name, curves({0.1: [0.0, 0.0]}, {0.1: FAST[:2]})).verdict == "inconclusive"


# ---------------------------------------------------------------------------------------------------------------------
# Block chain-of-thought


def final(errors: dict[int, float], fits: dict[int, int], noise: float = 0.0) -> Tables:
    """The table of final errors by block length, of three seeds."""
    rows = [
        {"seed": seed, "task": "Cyclic-DET", "layers": 1, "block_length": block, "chosen_position": 16}
        | {"error": error + noise * (seed - 1) * (block + 1), "fit_0.05": fits.get(block, 0), "fit_0.1": 0}
        for seed in SEEDS
        for block, error in errors.items()
    ]
    return {"final": rows}


def test_half_of_the_fit_length() -> None:
    assert half_of_fit([0, 1, 2, 4, 8], 9) == 4
    assert half_of_fit([0, 1, 2, 4, 8], 0) == 1  # never less than one position
    assert half_of_fit([0, 4, 8], 5) is None


def test_cot_lowers_the_loss() -> None:
    name, fits = "limits-cot-lowers-loss", {0: 5}
    good = judged("limits-fig4-cot", name, final({0: 0.8, 1: 0.3, 2: 0.1, 8: 0.7}, fits))
    assert good.verdict == "reproduced"
    assert good.value == pytest.approx(0.7)  # block length 2, half of five
    assert judged("limits-fig4-cot", name, final({0: 0.5, 2: 0.6}, fits)).verdict == "not reproduced"
    assert judged("limits-fig4-cot", name, final({0: 0.5, 2: 0.45}, fits, 0.1)).verdict == "inconclusive"
    assert judged("limits-fig4-cot", name, final({0: 0.5, 8: 0.1}, fits)).verdict == "inconclusive"  # no short block


def test_cot_block_bound() -> None:
    name, fits = "limits-cot-block-bound", {0: 5}
    assert judged("limits-fig4-cot", name, final({0: 0.8, 2: 0.1, 8: 0.7}, fits)).verdict == "reproduced"
    assert judged("limits-fig4-cot", name, final({0: 0.8, 2: 0.1, 8: 0.0}, fits)).verdict == "not reproduced"
    assert judged("limits-fig4-cot", name, final({0: 0.8, 2: 0.1, 8: 0.2}, fits, 0.1)).verdict == "inconclusive"
    open_ = judged("limits-fig4-cot", name, final({0: 0.8, 2: 0.1, 4: 0.2}, fits))
    assert open_.verdict == "inconclusive"
    assert "both sides" in open_.text


def costs(ratio: float, spread: float = 0.01, passes: int = 8, plain: float = 8.0) -> Tables:
    """A table of costs and times of block length 8 at length 60."""
    shared = {"task": "MatMul", "algorithm": "naive", "length": 60}
    time = {"to_vanilla": ratio, "to_vanilla_low": ratio - spread, "to_vanilla_high": ratio + spread}
    time |= {"to_plain": plain, "to_plain_low": plain - 0.1, "to_plain_high": plain + 0.1}
    vanilla = dict.fromkeys(("to_vanilla", "to_vanilla_low", "to_vanilla_high"), 1.0) | {"to_plain": 60.0}
    return {
        "costs": [shared | {"block_length": 8, "passes": float(passes)}, shared | {"block_length": 1, "passes": 60.0}],
        "times": [shared | {"block_length": 8} | time, shared | {"block_length": 1} | vanilla],
    }


def test_cot_cost() -> None:
    name, share = "limits-cot-cost", 8 / 60
    good = judged("limits-table2", name, costs(share))
    assert good.verdict == "reproduced"
    assert good.value == pytest.approx(1)
    assert judged("limits-table2", name, costs(2 * share)).verdict == "not reproduced"
    assert judged("limits-table2", name, costs(share, passes=9)).verdict == "not reproduced"  # counted, not timed
    assert judged("limits-table2", name, costs(share, plain=20.0)).verdict == "not reproduced"
    assert judged("limits-table2", name, costs(share, 0.05)).verdict == "inconclusive"
    assert judged("limits-table2", name, {"costs": [], "times": []}).verdict == "inconclusive"


def test_costs_are_counted() -> None:
    """Passes of the naive algorithm, positions that the cache reads, and operations against the formula."""
    experiment = experiment_named("limits-table2")
    sizes = experiment.measurements("smoke") | {"tasks": ["matmul"], "blocks": [1, 4]}
    rows = {(row["block_length"], row["algorithm"]): row for row in experiment.measure({}, "counting", sizes)["costs"]}
    length = sizes["length"]
    assert [rows[b, "naive"]["passes"] for b in (1, 4)] == [6, 2]
    assert [rows[b, "two-phase"]["passes"] for b in (1, 4)] == [1, 1]
    assert [rows[b, "two-phase"]["tokens_without_gradient"] for b in (1, 4)] == [length, 5]  # all but the last block
    assert rows[0, "none"]["tokens_without_gradient"] == 0
    ratios = {key: row["flops_ratio"] for key, row in rows.items()}
    assert ratios[0, "none"] == 1
    # every block is a whole pass; the feedback is read by a map of its own, a little more
    assert 6 <= ratios[1, "naive"] < 6.5
    assert 2 <= ratios[4, "naive"] < 2.2
    assert 1 < ratios[4, "two-phase"] < ratios[1, "two-phase"] < 1.6
    data = limits_config("paper", "matmul", 1, model={"width": 8, "num_heads": 2}, length=length)
    config = config_from_data(data)
    target = make_target(config.target, config.process.build(), config.layout)
    known = config.model.cost(ports_of(config, target), length + 1).flops
    # The formula takes half of the attention's square, the code's blocks compute more of it; no gradient of the inputs.
    assert rows[0, "none"]["flops"] == pytest.approx(known, rel=0.15)


# ---------------------------------------------------------------------------------------------------------------------
# Figure 5 and architectures


@pytest.mark.parametrize("claim, axis", [("limits-fig5-width", "width"), ("limits-fig5-heads", "heads")])
def test_width_and_heads(claim: str, axis: str) -> None:
    def tables(values: dict[int, float], noise: float = 0.0) -> Tables:
        rows = [
            {"seed": seed, "predictor": name, "width": 8, "heads": 8, "vary_width": True, "vary_heads": True}
            | {axis: x, "value": value + noise * (seed - 1) * x + (name == "untrained")}
            for seed in SEEDS
            for name in ("model", "untrained")
            for x, value in values.items()
        ]
        return {"errors": rows}

    falls = judged("limits-fig5", claim, tables({1: 0.5, 2: 0.1, 4: 0.2}))
    assert falls.verdict == "found"  # the paper has no sentence on it
    assert falls.value == pytest.approx(0.3)
    assert "falls" in falls.text
    assert "least at 2" in falls.text
    assert "rises" in judged("limits-fig5", claim, tables({1: 0.1, 4: 0.2})).text
    assert "does not clearly depend" in judged("limits-fig5", claim, tables({1: 0.3, 4: 0.2}, 0.1)).text
    assert judged("limits-fig5", claim, tables({4: 0.2})).verdict == "inconclusive"


def architectures(
    errors: dict[tuple[str, int], tuple[float, float]], noise: float = 0.0, task: str = "cyclic-det"
) -> Tables:
    """Errors within and beyond the training length, by architecture and layers."""
    rows = [
        {"seed": seed, "task": task, "architecture": name, "layers": layers, "predictor": "model"}
        | {"position": 1 + beyond, "beyond": bool(beyond), "value": pair[beyond] + noise * (seed - 1) * len(name)}
        for seed in SEEDS
        for (name, layers), pair in errors.items()
        for beyond in (0, 1)
    ]
    return {"errors": rows}


@pytest.mark.parametrize("claim", ["recurrence", "length", "depth"])
def test_architectures(claim: str) -> None:
    name = f"limits-architectures-{claim}"
    shallow, deep = ("transformer", 1), ("transformer", 4)
    usual = {("rnn", 1): (0.0, 0.0), shallow: (0.5, 0.8), deep: (0.05, 0.7)}
    good = judged("limits-architectures", name, architectures(usual))
    assert good.verdict == "reproduced"
    assert good.value == pytest.approx({"recurrence": 0.05, "length": 0.7, "depth": 0.45}[claim])
    against = {("rnn", 1): (0.9, 0.9), shallow: (0.01, 0.1), deep: (0.02, 0.2)}
    assert judged("limits-architectures", name, architectures(against)).verdict == "not reproduced"
    tables = architectures(usual)
    for row in tables["errors"]:
        if (row["architecture"], row["layers"]) == deep:
            row["value"] += 0.6 * (row["seed"] - 1)
    assert judged("limits-architectures", name, tables).verdict == "inconclusive"
    assert judged("limits-architectures", name, architectures({deep: (0.1, 0.1)})).verdict == "inconclusive"


def test_a_transformer_that_has_not_learned_its_length_says_nothing_beyond() -> None:
    tables = architectures({("rnn", 1): (0.0, 0.0), ("transformer", 1): (0.5, 0.8), ("transformer", 4): (0.2, 0.7)})
    found = judged("limits-architectures", "limits-architectures-length", tables)
    assert (found.verdict, found.value) == ("inconclusive", pytest.approx(0.7))
    assert "has not learned" in found.text


def test_a_process_that_forgets_is_no_task_of_tracking() -> None:
    """Claims on tracking do not see it, and one layer is judged against a constant answer."""
    name = "limits-architectures-forgetting"

    def tables(shallow: float, noise: float = 0.0) -> Tables:
        found = architectures({("rnn", 1): (0.0, 0.0), ("transformer", 1): (shallow, 0.9)}, noise, "mess3")["errors"]
        constants = [row | {"predictor": "constant", "value": 0.5} for row in found]
        return {"errors": found + constants}

    good = judged("limits-architectures", name, tables(0.01))
    assert (good.verdict, good.value) == ("reproduced", pytest.approx(0.02))
    assert judged("limits-architectures", name, tables(0.2)).verdict == "not reproduced"
    assert judged("limits-architectures", name, tables(0.05, 0.01)).verdict == "inconclusive"
    none = architectures({("transformer", 1): (0.1, 0.1)})
    assert judged("limits-architectures", name, none).verdict == "inconclusive"
    tracking = architectures({("rnn", 1): (0.0, 0.0), ("transformer", 1): (0.5, 0.8), ("transformer", 4): (0.2, 0.7)})
    both = {"errors": tracking["errors"] + architectures({("rnn", 1): (9.0, 9.0)}, task="mess3")["errors"]}
    for claim in ("recurrence", "length", "depth"):
        judgements = [judged("limits-architectures", f"limits-architectures-{claim}", one) for one in (tracking, both)]
        assert judgements[0] == judgements[1]


def test_architectures_of_every_name_can_be_planned() -> None:
    """Also those that need an extra: the plan names them, and the model says what is missing."""
    from hmmscope.experiments.limits_architectures import ARCHITECTURES, TASKS

    experiment = experiment_named("limits-architectures")
    for scale in ("smoke", "small", "paper"):
        choices = experiment.choices(scale) | {"architectures": list(ARCHITECTURES), "tasks": list(TASKS)}
        configs = {label: config_from_data(data) for label, data in experiment.plan(scale, **choices).items()}
        depths = len(choices["layers"])
        assert len(configs) == len(TASKS) * (4 + (len(ARCHITECTURES) - 4) * depths)
        assert {config.target for config in configs.values()} == {"belief"}
        for config in configs.values():
            if config.model.name in ("rnn", "decoder", "linear-attention"):
                fresh_model(config, config.process.build())
    with pytest.raises(InputError, match=r"plan\.architectures.*did you mean 'lstm'"):
        experiment.plan("smoke", **(experiment.choices("smoke") | {"architectures": ["lstn"]}))


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("limits-fig4-cot", {"tasks": ["cyclic-hard"]}, "must be asked for beliefs"),
        ("limits-fig4-cot", {"layers": [1, 2]}, r"plan\.layers: must have a number for each of 1 tasks"),
        ("limits-fig5", {"widths": [7]}, r"plan\.widths: must be a multiple of the number of heads 2"),
        ("limits-fig5", {"tasks": ["cyclic"]}, r"plan\.tasks"),
        ("limits-architectures", {"tasks": ["cyclic"]}, r"plan\.tasks"),
    ],
)
def test_plans_refuse(name: str, changes: dict[str, Any], message: str) -> None:
    experiment = experiment_named(name)
    with pytest.raises(InputError, match=message):
        experiment.plan("smoke", **(experiment.choices("smoke") | changes))


def test_figures_of_table2_show_the_paper_at_its_length_only() -> None:
    experiment = experiment_named("limits-table2")
    rows = [
        {"task": "MatMul", "algorithm": algorithm, "block_length": block, "length": 60, "to_plain": 2.0}
        | {"to_plain_low": 1.9, "to_plain_high": 2.1, "flops_ratio": 2.0}
        for algorithm in ("naive", "two-phase")
        for block in (8, 12)
    ]

    def names(found: list[dict]) -> set[str]:
        figures: list[Figure] = experiment.figures({"costs": found, "times": found})
        return {series.name for figure in figures for panel in figure.panels for series in panel.series}  # type: ignore[attr-defined]

    assert "naive, as printed in [Limits]" in names(rows)
    assert "naive, as printed in [Limits]" not in names([row | {"length": 24} for row in rows])
