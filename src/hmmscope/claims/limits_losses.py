"""Claims of [Limits] on final losses and on convergence: Tables 3 and 4."""

import math
from dataclasses import replace

from hmmscope.claims.limits_effects import (
    FORGETTING,
    NAMES,
    REMEMBERING,
    Rows,
    everywhere,
    inconclusive,
    is_below,
    listed,
    mean,
    of_task,
    per_seed,
    spread,
)
from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled, pool_values

#: Losses that differ by no more than this are comparable, in nats or mean squared error.
COMPARABLE = 0.05
#: An excess that is so many times that of the RNN is much worse.
MUCH = 10.0
#: A loss that moves by less than this share of the trivial loss in the last fifth of training has converged.
AT_REST = 0.01
#: A task is learned when the loss is below this share of the trivial loss.
LEARNED = 0.1


def short_depths(length: int) -> tuple[int, int]:
    """One and two layers fewer than log2 of the length: 5 and 6 of 7 layers in the paper, at 120 observations."""
    needed = math.ceil(math.log2(length))
    return max(1, needed - 2), max(1, needed - 1)


@claim(
    "limits-remembering-worse",
    source="[Limits] App. C.3, Table 3",
    statement="On MatMul, Cyclic-DET and Cyclic-RND Transformers one or two layers short of log2 of the length fit much "
    "worse than the RNN: their excess loss is more than ten times as large.",
    experiment="limits-table3",
)
def remembering_worse(tables: Tables) -> Judgement:
    """The better of the two depths decides, within seeds."""
    rows = tables["losses"]

    def ratio(own: Rows) -> float | None:
        recurrent = [row["excess"] for row in own if row["layers"] == 0]
        others = [row["excess"] for row in own if row["layers"] in short_depths(row["length"])]
        if not recurrent or not others:
            return None
        return math.log10(min(others) / max(recurrent[0], 1e-12))

    found = {task: per_seed(of_task(rows, task), ratio) for task in REMEMBERING}
    effects = {task: pool_values(values) for task, values in found.items() if values}
    seen = {}
    for task in effects:
        own = of_task(rows, task)
        recurrent = mean([row["excess"] for row in own if row["layers"] == 0])
        depths = sorted({row["layers"] for row in own if row["layers"] in short_depths(row["length"])})
        others = [mean([row["excess"] for row in own if row["layers"] == n]) for n in depths]
        shown = " and ".join(f"{value:.3g}" for value in others)
        seen[task] = f"{recurrent:.2g} against {shown} with {' and '.join(map(str, depths))} layers"
    text = f"Mean excess over the floor, RNN against Transformers: {listed(seen)}."
    return everywhere(effects, text, "log10 of the ratio", above=math.log10(MUCH), wanted=REMEMBERING)


@claim(
    "limits-forgetting-comparable",
    source="[Limits] App. C.3, Table 3",
    statement="On RanHMM and RanLDS a Transformer of two layers and the RNN end with comparable losses (within 0.05).",
    experiment="limits-table3",
)
def forgetting_comparable(tables: Tables) -> Judgement:
    """Difference of the losses on the same samples, within seeds; comparable if the interval is inside the bounds."""
    rows = tables["losses"]

    def difference(own: Rows) -> float | None:
        losses = {row["layers"]: row["loss"] for row in own}
        return losses[2] - losses[0] if {0, 2} <= losses.keys() else None

    found = {task: per_seed(of_task(rows, task), difference) for task in FORGETTING}
    effects = {task: pool_values(values) for task, values in found.items() if values}
    text = f"Loss of two layers less that of the RNN: {listed({t: spread(e, '+.3g') for t, e in effects.items()})}."
    room = {task: _inside(effect) for task, effect in effects.items()}
    return everywhere(room, text, "room to the bound 0.05", wanted=FORGETTING)


def _inside(effect: Pooled) -> Pooled:
    """How far inside the bounds an effect is, with the ends of its interval."""
    ends = [COMPARABLE - abs(value) for value in (effect.low, effect.high)]
    crosses = effect.low < 0 < effect.high
    most = COMPARABLE if crosses else max(ends)
    return Pooled(COMPARABLE - abs(effect.value), min(ends), most, effect.num_seeds)


def _final(rows: Rows) -> Rows:
    """The rows of the last epoch of a run."""
    last = max(row["epoch"] for row in rows)
    return [row for row in rows if row["epoch"] == last]


def _trivial(tables: Tables, task: str, seed: object) -> float:
    rows = [row for row in tables["references"] if (row["task"], row["long"], row.get("seed")) == (task, False, seed)]
    return float(rows[0]["trivial"])


def late_share(tables: Tables, task: str, seed: object) -> float | None:
    """Share of the way down from the trivial loss that is made in the last two fifths of training.

    None if all of the way is less than a twentieth of the trivial loss: nothing was learned.
    """
    rows = sorted(
        (row for row in of_task(tables["losses"], task, long=False) if row.get("seed") == seed),
        key=lambda row: row["epoch"],
    )
    if not rows:
        return None
    at = min(rows, key=lambda row: abs(row["share"] - 0.6))
    trivial = _trivial(tables, task, seed)
    whole = trivial - rows[-1]["training_loss"]
    return float(at["training_loss"] - rows[-1]["training_loss"]) / whole if whole > 0.05 * trivial else None


@claim(
    "limits-matmul-slower",
    source="[Limits] App. C.4, Table 4",
    statement="The deepest Transformer converges much slower on MatMul than on Cyclic-DET and Cyclic-RND: more of its way "
    "down is made in the last two fifths of training.",
    experiment="limits-table4",
)
def matmul_slower(tables: Tables) -> Judgement:
    """Share on MatMul less the larger one of the cycles that were trained for as many steps, within seeds."""
    rows = [row for row in tables["losses"] if not row["long"]]
    steps = {task: max((row["step"] for row in of_task(rows, task)), default=0) for task in REMEMBERING}
    alike = [task for task in REMEMBERING if steps[task] == steps["matmul"]]
    values, shares = [], []
    for seed in dict.fromkeys(row.get("seed") for row in rows):
        found = {task: late_share(tables, task, seed) for task in alike}
        if "matmul" not in found:
            continue
        slow, others = found.pop("matmul"), [value for value in found.values() if value is not None]
        if slow is not None and others:
            values.append(slow - max(others))
            shares.append((slow, max(others)))
    if not values:
        return inconclusive("MatMul and a cycle were not both learned in as many steps.")
    slow, other = (mean([pair[i] for pair in shares]) for i in (0, 1))
    cycles = " and ".join(NAMES[task] for task in alike if task != "matmul")
    text = f"Share of the way down in the last two fifths: {slow:.2g} on MatMul, at most {other:.2g} on {cycles}"
    apart = [f"{NAMES[task]} ({steps[task]:,} steps)" for task in REMEMBERING if task not in alike and steps[task]]
    text += f"; not compared, because trained for another number of steps than {steps['matmul']:,}: " if apart else "."
    text += f"{', '.join(apart)}." if apart else ""
    return is_above(pool_values(values), text, "difference of the shares")


@claim(
    "limits-cycles-converged",
    source="[Limits] App. C.4, Table 4",
    statement="On Cyclic-DET and Cyclic-RND the deepest Transformer has converged: in the last fifth of training its loss "
    "falls by less than 0.01 of the trivial loss.",
    experiment="limits-table4",
)
def cycles_converged(tables: Tables) -> Judgement:
    """The larger of the two falls, within seeds."""
    values, falls = [], {}
    for task in ("cyclic-det", "cyclic-rnd"):
        rows = of_task(tables["losses"], task, long=False)
        found = []
        for seed in dict.fromkeys(row.get("seed") for row in rows):
            own = [row for row in rows if row.get("seed") == seed]
            at = min(own, key=lambda row: abs(row["share"] - 0.8))
            fall = at["training_loss"] - _final(own)[0]["training_loss"]
            found.append(fall / _trivial(tables, task, seed))
        if found:
            falls[task] = found
    if not falls:
        return inconclusive("Neither was measured.")
    values = [max(both) for both in zip(*falls.values(), strict=True)]
    shown = listed({task: f"{mean(found):.2g}" for task, found in falls.items()})
    text = f"Fall of the loss in the last fifth, as a share of the trivial loss: {shown}."
    missing = [NAMES[task] for task in ("cyclic-det", "cyclic-rnd") if task not in falls]
    if missing:
        return inconclusive(f"{text} Not measured: {', '.join(missing)}.")
    return is_below(pool_values(values), text, "share of the trivial loss", below=AT_REST)


@claim(
    "limits-matmul-fails",
    source="[Limits] App. C.4, Tables 3 and 4",
    statement="The deepest Transformer does not learn MatMul: its final loss is above a tenth of the trivial one.",
    experiment="limits-table4",
)
def matmul_fails(tables: Tables) -> Judgement:
    """Final training loss over that of the predictor that always gives the same answer; Cyclic-DET is the control."""
    values, control = (_left(tables, task) for task in ("matmul", "cyclic-det"))
    if not values:
        return inconclusive("MatMul was not measured.")
    pooled = pool_values(values)
    text = f"Its final loss is {spread(pooled)} of the trivial one (0.46 in the paper, 0.44 after 200 epochs)"
    text += f"; on Cyclic-DET {mean(control):.2g}." if control else "."
    found = is_above(pooled, text, "share of the trivial loss", above=LEARNED)
    if found.verdict == "reproduced" and (not control or mean(control) > LEARNED):
        short = "It does not learn Cyclic-DET either, so that the training may be too short."
        return replace(found, verdict="inconclusive", text=f"{text} {short}" if control else text)
    return found


def _left(tables: Tables, task: str) -> list[float]:
    """Final training loss over the trivial one, by seed."""
    rows = of_task(tables["losses"], task, long=False)
    by_seed = {row.get("seed"): [own for own in rows if own.get("seed") == row.get("seed")] for row in rows}
    return [_final(own)[0]["training_loss"] / _trivial(tables, task, seed) for seed, own in by_seed.items()]
