"""Simulate the power of the protocol of limits-law before its data: how often its rules are right in known worlds.

    python scripts/law_power.py                                    the plan of scale medium
    python scripts/law_power.py --length 64 --doublings 6 --seeds 3

A world states how fit lengths grow with depth and budget. Fit lengths are drawn with the standard deviations (between
instances, and of noise) of the stored results of scale small, cut at the end of the sequence, and evaluated by the present
rules. The script prints fractions of verdicts by world and claim.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

from hmmscope.lab.evidence.claim import claims_of
from hmmscope.lab.evidence.ledger import read_tables
from hmmscope.lab.evidence.rows import Rows, Tables
from hmmscope.lab.experiments.experiment import experiment_named

NAME, BATCH = "limits-law", 64
#: Maps depth and doublings of the first budget to log2 of the fit length; the paper's budget is 14 doublings above the 7th.
World = Callable[[int, float], float]


def rests(at: Callable[[int], float], rate: float = 0.5) -> World:
    """Return a world with lengths that converge, halving the distance every 1 / rate doublings."""
    return lambda layers, x: at(layers) - 1.5 * 2 ** (-rate * x)


#: Worlds by name; the name seeds the draws. In three, lengths converge to a limit that doubles every third layer, doubles
#: with each layer, or is constant. In two, log2 of lengths grows by .1 per doubling; in one of these, by .03 more per layer.
#: Depth 0 is the RNN.
WORLDS: dict[str, World] = {
    "rests, a third of a doubling a layer": rests(lambda layers: math.log2(10) + (layers - 1) / 3),
    "rests, doubles with each layer": rests(lambda layers: 2.0 + layers),
    "rests, the same for all": rests(lambda layers: math.log2(12)),
    "grows on, more with depth": lambda layers, x: 2.5 + (0.1 + 0.03 * layers) * x,
    "grows on, the same for all": lambda layers, x: 2.5 + 0.1 * x,
}


def spread() -> tuple[float, float]:
    """Return standard deviations of log2 of the stored lengths: between instances, and residual."""
    rows = Rows(
        row
        for row in read_tables(Path("studies/results/small") / NAME)[1]["fit-lengths"].where(
            predictor="model", error_rate=0.1
        )
        if row["layers"] and row["length"] < 0.95 * row["longest"]
    )
    between, left = [], []
    for own in rows.by("layers").values():
        budgets = {x: fmean(math.log2(row["length"]) for row in some) for x, some in own.by("sequences").items()}
        effects = {}
        for seed, some in own.by("seed").items():
            moved = [math.log2(row["length"]) - budgets[row["sequences"]] for row in some]
            effects[seed] = fmean(moved)
            left += [one - effects[seed] for one in moved]
        between.append(stdev(effects.values()))
    return fmean(between), math.sqrt(fmean(one * one for one in left))


def drawn(world: World, options: argparse.Namespace, draw: random.Random) -> Tables:
    """Draw the table of fit lengths of an experiment in a world."""
    between, noise = options.spread
    rows = Rows()
    for seed in range(options.seeds):
        for layers in options.layers:
            own = draw.gauss(0, between)
            for k in range(options.doublings):
                y = world(layers, k) + own + draw.gauss(0, noise) if layers else math.inf
                about = {"seed": seed, "layers": layers, "longest": options.length, "error_rate": 0.1}
                about |= {"task": "cyclic-det", "by": "final", "definition": "prefix", "steps": options.first * 2**k}
                about["sequences"] = BATCH * about["steps"]
                length = 2 ** min(y, math.log2(options.length))
                rows += [
                    about | {"predictor": "model", "length": length},
                    about | {"predictor": "constant", "length": 1.0},
                ]
    return {"fit-lengths": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    plan = experiment_named(NAME).choices("medium")
    for name in ("length", "first", "doublings"):
        parser.add_argument(f"--{name}", type=int, default=plan[name])
    parser.add_argument("--layers", type=int, nargs="+", default=plan["layers"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    options.spread = spread()
    print("standard deviations of log2: instances {:.3f}, the rest {:.3f}".format(*options.spread))
    for name, world in WORLDS.items():
        draw = random.Random(name)
        tables = [drawn(world, options, draw) for _ in range(options.draws)]
        for claim in claims_of(NAME):
            if claim.rule is not None:
                counts = Counter(claim.evaluate(one).verdict for one in tables)
                said = ", ".join(f"{verdict} {count / options.draws:.2f}" for verdict, count in counts.most_common())
                print(f"{name}: {claim.name}: {said}")


if __name__ == "__main__":
    main()
