"""The learning rates of scale medium of [Limits]: the best of several by layers, from pilots on a seed of their own.

Run from the root of the repository, after one pilot for each rate:

    for rate in 0.001 0.002 0.004; do
      hmmscope run limits-fig3 --scale medium --seeds 100, --plan.tasks cyclic-det --jobs 1 \
        --training.num_steps 1000 --training.learning_rate $rate --out runs/pilot/rate-$rate
    done
    python scripts/choose_rates.py runs/pilot/rate-*          prints the losses and the choice
    python scripts/choose_rates.py --write runs/pilot/rate-*  and puts it into hmmscope_papers/limits/trainings.py

The rates of limits-law, whose budgets are annealed, stand in hmmscope_papers/limits/law.py by length; they were chosen by

    for rate in 0.002 0.004 0.008; do
      hmmscope run limits-law --scale medium --seeds 100, --plan.length 32 --plan.first 2000 --plan.doublings 1 --jobs 1 \
        --training.learning_rate $rate --training.warmup_steps 200 --out runs/pilot/law-$rate
    done
    python scripts/choose_rates.py runs/pilot/law-*

A pilot of limits-fig3 has the full rate throughout; the mean over positions of the evaluation loss on fresh samples decides.
What is six layers deep, or deeper, has the rate of five.
"""

import argparse
import re
from pathlib import Path

from hmmscope.lab.evidence.rows import Rows
from hmmscope.storage import store

MODELS = Path("src/hmmscope_papers/limits/trainings.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("pilots", nargs="+", type=Path)
    options = parser.parse_args()
    losses: dict[int, dict[float, float]] = {}
    for folder in options.pilots:
        configs = store.read_json(folder / "experiment.json")["config"]["runs"]
        (rate,) = {config["training"]["learning_rate"] for config in configs.values()}
        rows = Rows(store.read_table(folder / "tables" / "positions.jsonl")).where(predictor="model")
        for layers, own in rows.by("layers").items():
            losses.setdefault(layers, {})[rate] = sum(row["value"] for row in own) / len(own)
    for layers, found in sorted(losses.items()):
        print(f"{layers} layers:", ", ".join(f"{rate:g} {loss:.4f}" for rate, loss in sorted(found.items())))
    rates = {layers: min(found, key=found.__getitem__) for layers, found in sorted(losses.items())}
    line = f"RATES = {rates}"
    print(line)
    if options.write:
        store.write_text(MODELS, re.sub(r"^RATES = .*$", line, MODELS.read_text(), flags=re.MULTILINE))


if __name__ == "__main__":
    main()
