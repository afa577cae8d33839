"""Claims of [Limits] on learning curves: Figure 2."""

import math
from dataclasses import replace
from typing import NamedTuple

from hmmscope.claims.limits_effects import (
    NAMES,
    SEVERITY,
    Rows,
    everywhere,
    inconclusive,
    listed,
    mean,
    of_task,
    tasks_of,
    worst,
)
from hmmscope.claims.old import Judgement, Tables, claim
from hmmscope.evidence.pooling import Pooled, pool_values
from hmmscope.evidence.verdicts import Verdict

#: A model has converged at a position when its evaluation loss stays below this.
CONVERGED = 0.1
#: A final loss that is higher by no more than this is as good.
MARGIN = 0.01
#: The tasks of the figure as we read it.
FOUR = ("cyclic-hard", "cyclic-det", "matmul", "ran-hmm")
LAST = 3


class Crossing(NamedTuple):
    """Sequences seen until the loss stays below `CONVERGED`: between two evaluations, or later than the last (None)."""

    after: float
    until: float | None


def crossing(rows: Rows) -> Crossing | None:
    """Of one run's rows (``sequences``, ``value``); None if it has no value."""
    known = sorted((row["sequences"], row["value"]) for row in rows if row["value"] is not None)
    if not known:
        return None
    after, until = 0.0, None
    for sequences, value in known:
        if value >= CONVERGED:
            after, until = sequences, None
        elif until is None:
            until = sequences
    return Crossing(after, until)


def advantage(rows: Rows) -> tuple[float | None, float | None] | None:
    """log2 of how many times as many sequences as the RNN the fastest Transformer needs: at least, and at most.

    Of one task and seed. None where there is no bound; None in all if the RNN or all Transformers are missing.
    """
    crossings = {n: crossing([row for row in rows if row["layers"] == n]) for n in {row["layers"] for row in rows}}
    recurrent = crossings.pop(0, None)
    others = [one for one in crossings.values() if one is not None]
    if recurrent is None or not others:
        return None
    after = min(one.after for one in others)
    until = min((one.until for one in others if one.until is not None), default=None)
    least = None if recurrent.until is None or after == 0 else math.log2(after / recurrent.until)
    most = None if until is None or recurrent.after == 0 else math.log2(until / recurrent.after)
    return least, most


@claim(
    "limits-rnn-converges-faster",
    source="[Limits] §4.3, Fig. 2",
    statement="On all four tasks the RNN converges faster than every Transformer.",
    experiment="limits-fig2",
)
def converges_faster(tables: Tables) -> Judgement:
    """The evaluation loss is known at evaluations only, so that each time to converge is an interval."""
    rows, found = tables["epochs"], {}
    for task in tasks_of(rows):
        found[task] = _faster(of_task(rows, task))
    known = {task: one for task, one in found.items() if one is not None}
    if not known:
        return inconclusive("The RNN or the Transformers were not trained.")
    missing = [NAMES[task] for task in FOUR if task not in known]
    verdicts: list[Verdict] = [verdict for verdict, _, _ in known.values()]
    verdict = worst([*verdicts, "inconclusive"] if missing else verdicts)
    task = min(known, key=lambda name: SEVERITY.index(known[name][0]))
    effect = known[task][1]
    said = "; ".join(f"{NAMES[name]}: {text}" for name, (_, _, text) in known.items())
    text = f"Sequences until the loss stays below {CONVERGED:g}, fastest Transformer against RNN. {said}."
    text += f" Not measured: {', '.join(missing)}." if missing else ""
    if effect is None:
        return Judgement(verdict=verdict, text=text)
    unit = f"doublings of the sequences needed, {NAMES[task]}"
    return Judgement(verdict=verdict, text=text, value=effect.value, low=effect.low, high=effect.high, unit=unit)


def _faster(rows: Rows) -> tuple[Verdict, Pooled | None, str] | None:
    """Of one task: verdict, effect and words."""
    seeds = dict.fromkeys(row.get("seed") for row in rows)
    bounds = [advantage([row for row in rows if row.get("seed") == seed]) for seed in seeds]
    known = [bound for bound in bounds if bound is not None]
    if not known:
        return None
    low, high = [bound[0] for bound in known], [bound[1] for bound in known]
    least = pool_values([x for x in low if x is not None]) if None not in low else None
    most = pool_values([x for x in high if x is not None]) if None not in high else None
    if least is not None and least.decides and least.low > 0:
        return "reproduced", least, f"at least {2**least.value:.1f} times as many"
    if most is not None and most.decides and most.high <= 0:
        return "not reproduced", most, f"at most {2**most.value:.2g} times as many"
    ends = [f"at least {2**least.value:.2g}" if least else "", f"at most {2**most.value:.2g}" if most else ""]
    shown = " and ".join(end for end in ends if end)
    return "inconclusive", least or most, f"{shown} times as many" if shown else "not decided by these evaluations"


@claim(
    "limits-rnn-final-accuracy",
    source="[Limits] §4.3, Fig. 2",
    statement="At the end of training the RNN is at least as accurate as every Transformer on all four tasks (within 0.01).",
    experiment="limits-fig2",
)
def final_accuracy(tables: Tables) -> Judgement:
    """Mean loss of the last epochs: that of the best Transformer less that of the RNN, within seeds."""
    return _more_accurate(tables["epochs"], "Final evaluation loss")


@claim(
    "limits-rnn-accuracy-per-sequence",
    source="[Limits] §4.3, Fig. 2",
    statement="After as many sequences as a Transformer's whole training the RNN is at least as accurate as every "
    "Transformer on all four tasks (within 0.01).",
    experiment="limits-fig2",
)
def accuracy_per_sequence(tables: Tables) -> Judgement:
    """As at the end, with the RNN's last epochs within the sequences that the Transformers saw."""
    rows: Rows = []
    for task in tasks_of(tables["epochs"]):
        own = of_task(tables["epochs"], task)
        most = max((row["sequences"] for row in own if row["layers"] > 0), default=0)
        rows += [row for row in own if row["sequences"] <= most]
    found = _more_accurate(rows, "Evaluation loss after as many sequences")
    return replace(found, text=f"{found.text} The RNN's learning rate is not yet lowered then, if it trains longer.")


def _more_accurate(rows: Rows, what: str) -> Judgement:
    """Whether the RNN is as accurate as the best Transformer in the last epochs among these."""
    effects, seen = {}, {}
    for task in tasks_of(rows):
        own = of_task(rows, task)
        pairs = [pair for pair in _finals(own) if pair is not None]
        if pairs:
            effects[task] = pool_values([other - recurrent for recurrent, other in pairs])
            seen[task] = f"{mean([a for a, _ in pairs]):.4f} against {mean([b for _, b in pairs]):.4f}"
            both = [max(row["sequences"] for row in own if (row["layers"] > 0) == deep) for deep in (False, True)]
            seen[task] += f" ({both[0]:,} and {both[1]:,} sequences)"
    text = f"{what}, RNN against best Transformer: {listed(seen)}."
    return everywhere(effects, text, "loss of the best Transformer less the RNN's", above=-MARGIN, wanted=FOUR)


def _finals(rows: Rows) -> list[tuple[float, float] | None]:
    """By seed the final loss of the RNN and of the best Transformer."""
    found: list[tuple[float, float] | None] = []
    for seed in dict.fromkeys(row.get("seed") for row in rows):
        final = {}
        for n in {row["layers"] for row in rows}:
            own = [row for row in rows if (row.get("seed"), row["layers"]) == (seed, n) and row["value"] is not None]
            if own:
                final[n] = mean([row["value"] for row in sorted(own, key=lambda row: row["epoch"])[-LAST:]])
        recurrent = final.pop(0, None)
        found.append((recurrent, min(final.values())) if recurrent is not None and final else None)
    return found
