"""Losses that [Limits] prints, beside what is possible: Tables 3 and 4.

A cross-entropy with the exact belief cannot be below the belief's entropy, nor a squared error against samples below their
variance. These floors are measured at the paper's sizes, whatever the scale of the models.
"""

from dataclasses import replace

from hmmscope.claims.limits_effects import Rows, inconclusive, is_below
from hmmscope.claims.limits_numbers import TABLE_3, TABLE_4
from hmmscope.claims.old import Judgement, Tables, claim, is_above
from hmmscope.evidence.pooling import Pooled, by_seed

#: A printed loss that is above the floor by no more than this is at the floor.
AT_FLOOR = 0.05


def floor_of(tables: Tables, task: str, backward: float | None = None) -> Pooled | None:
    """The floor of a task at the paper's sizes, over seeds (over sequences, with one)."""
    rows = [row for row in tables["paper-floors"] if (row["task"], row["backward"]) == (task, backward)]
    return _pooled(rows)


def _pooled(rows: Rows) -> Pooled | None:
    found = by_seed(rows, lambda own: own[0]["value"])
    if found is not None and len(rows) == 1:
        return Pooled(rows[0]["value"], rows[0]["low"], rows[0]["high"])
    return found


def _above_floor(tables: Tables, task: str, printed: float, backward: float | None, what: str) -> Judgement:
    floor = floor_of(tables, task, backward)
    if floor is None:
        return inconclusive("The floor was not measured.")
    gap = Pooled(printed - floor.value, printed - floor.high, printed - floor.low)
    text = f"The least possible loss at the paper's sizes is {floor.value:.4f} ({floor.low:.4f} to {floor.high:.4f}). {what}"
    return is_above(gap, text, "printed loss less the floor")


@claim(
    "limits-printed-rnd-rnn",
    source="[Limits] Table 3",
    statement="The loss of the RNN on Cyclic-RND, 3.8e-6, is a cross-entropy with the belief that a predictor can have.",
    experiment="limits-table3",
)
def printed_rnd_rnn(tables: Tables) -> Judgement:
    """No predictor is below the entropy of the belief, memorised training set or not."""
    what = "No predictor's cross-entropy is below it, on any data: if it is above 3.8e-6, that is another quantity."
    return _above_floor(tables, "cyclic-rnd", TABLE_3["cyclic-rnd"]["RNN"], 0.01, what)


@claim(
    "limits-printed-rnd-transformers",
    source="[Limits] Table 3",
    statement="The losses of Transformers on Cyclic-RND, 1.247 and 1.138, are cross-entropies that a predictor can have.",
    experiment="limits-table3",
)
def printed_rnd_transformers(tables: Tables) -> Judgement:
    """The lower of the two decides."""
    what = "The six-layer model is 0.109 nats below the five-layer one."
    return _above_floor(tables, "cyclic-rnd", TABLE_3["cyclic-rnd"]["6 layers"], 0.01, what)


@claim(
    "limits-printed-lds-rnn",
    source="[Limits] Table 3",
    statement="The loss of the RNN on RanLDS, 2.58242, is a mean squared error over an epoch that a predictor can have.",
    experiment="limits-table3",
)
def printed_lds_rnn(tables: Tables) -> Judgement:
    """The floor is exact; the mean over one batch of 256 trajectories scatters around it."""
    rows = [row for row in tables["paper-floors"] if row["task"] == "ran-lds"]
    if not rows:
        return inconclusive("The floor was not measured.")
    printed, scatter = TABLE_3["ran-lds"]["RNN"], rows[0]["batch_deviation"]
    score = (printed - rows[0]["value"]) / scatter
    what = (
        f"The mean over one batch of 256 trajectories has standard deviation {scatter:.4f}; the printed loss is "
        f"{score:+.1f} of them from the floor."
    )
    return _above_floor(tables, "ran-lds", printed, None, what)


@claim(
    "limits-printed-rnd-converged",
    source="[Limits] Table 4 and its caption",
    statement="The loss to which seven layers converge on Cyclic-RND, 1.503, is due to its randomness (within 0.05 nats).",
    experiment="limits-table4",
)
def printed_rnd_converged(tables: Tables) -> Judgement:
    """The augmented HMM that the caption names has beliefs of the same entropy, unless it is read as printed.

    Proposition A.1 prints a kernel in which an action acts one step after it is seen. With the first action hidden that
    has another floor, which depends on the instance; if it explains the loss the claim stays open.
    """
    floor = floor_of(tables, "cyclic-rnd", 0.01)
    if floor is None:
        return inconclusive("The floor was not measured.")
    printed = TABLE_4["cyclic-rnd"][100]
    gap = Pooled(printed - floor.value, printed - floor.high, printed - floor.low)
    text = f"The entropy floor at backward probability 0.01 is {floor.value:.4f}"
    augmented = _pooled([row for row in tables["paper-floors"] if row["task"] == "cyclic-rnd, augmented"])
    text += f" (of the augmented HMM {augmented.value:.4f})" if augmented else ""
    others = {b: floor_of(tables, "cyclic-rnd", b) for b in _backwards(tables) if b != 0.01}
    shown = ", ".join(f"{b:g}: {found.value:.4f}" for b, found in others.items() if found is not None)
    text += f"; at other backward probabilities {shown}." if shown else "."
    text += f" Table 3 prints {TABLE_3['cyclic-rnd']['6 layers']} with six layers."
    found = is_below(gap, text, "printed loss less the floor", below=AT_FLOOR)
    rows = [row for row in tables["paper-floors"] if row["task"] == "cyclic-rnd, first action hidden"]
    as_printed = _pooled(rows)
    if as_printed is None:
        return found
    text += (
        f" With the kernel of Prop. A.1 as printed and its first action hidden the floor is {as_printed.value:.4f} "
        f"({as_printed.low:.4f} to {as_printed.high:.4f}), by instance {min(row['value'] for row in rows):.4f} to "
        f"{max(row['value'] for row in rows):.4f}."
    )
    explains = as_printed.low - AT_FLOOR <= printed <= as_printed.high + AT_FLOOR
    return replace(found, text=text, verdict="inconclusive" if explains else found.verdict)


def _backwards(tables: Tables) -> list[float]:
    return sorted({row["backward"] for row in tables["paper-floors"] if row["backward"] is not None})
