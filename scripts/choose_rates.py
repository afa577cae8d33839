"""Choose learning rates of campaigns by layers or architecture, from pilots on a separate seed.

Run from the root of the repository, after one pilot for each rate:

    for rate in 0.001 0.002 0.004; do
      hmmscope run limits-fig3 --scale medium --seeds 100, --plan.tasks cyclic-det --jobs 1 \
        --training.num_steps 1000 --training.learning_rate $rate --out runs/pilot/rate-$rate
    done
    python scripts/choose_rates.py runs/pilot/rate-*              print the losses and the choice
    python scripts/choose_rates.py --write 32 runs/pilot/rate-*   write the choice into hmmscope_papers/limits/trainings.py

The rates of limits-law, by length, are in hmmscope_studies/beyond_limits/scaling_law.py. Its trainings anneal the rate. They
were chosen by

    for rate in 0.002 0.004 0.008; do
      hmmscope run limits-law --scale medium --seeds 100, --plan.length 32 --plan.first 2000 --plan.doublings 1 --jobs 1 \
        --training.learning_rate $rate --training.warmup_steps 200 --out runs/pilot/law-$rate
    done
    python scripts/choose_rates.py runs/pilot/law-*

The rates of header-filtering, which also anneals, are in hmmscope_studies/prompted/filtering_models.py:

    for rate in 0.002 0.004 0.008; do
      hmmscope run header-filtering --scale small --seeds 100, --plan.sizes 3 --plan.first 400 --plan.doublings 1 --jobs 1 \
        --plan.architectures rnn,lstm,transformer --training.learning_rate $rate --out runs/pilot/told-$rate
    done
    python scripts/choose_rates.py runs/pilot/told-*          nats above the exact filter, at three states

A pilot of limits-fig3 has a constant rate. The rate with the smallest evaluation loss on fresh samples, as the mean over
positions, is chosen. Models of six or more layers have the rate of five layers.
"""

import argparse
import re
from pathlib import Path

from hmmscope.lab.evidence.rows import Rows
from hmmscope.storage import store

MODELS = Path("papers/src/hmmscope_papers/limits/trainings.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--write",
        type=int,
        metavar="LENGTH",
        help="write the chosen rates for sequences of this length into trainings.py",
    )
    parser.add_argument("pilots", nargs="+", type=Path)
    options = parser.parse_args()
    losses: dict[int | str, dict[float, float]] = {}
    for folder in options.pilots:
        configs = store.read_json(folder / "experiment.json")["config"]["runs"]
        (rate,) = {config["training"]["learning_rate"] for config in configs.values()}
        told = (folder / "tables" / "learning.jsonl").is_file()
        table, column = ("learning", "architecture") if told else ("positions", "layers")
        rows = Rows(store.read_table(folder / "tables" / f"{table}.jsonl")).where(predictor="model")
        for which, own in rows.by(column).items():
            losses.setdefault(which, {})[rate] = sum(row["value"] for row in own) / len(own)
    for which, found in sorted(losses.items()):
        name = which if isinstance(which, str) else f"{which} layers"
        print(f"{name}:", ", ".join(f"{rate:g} {loss:.4f}" for rate, loss in sorted(found.items())))
    rates = {which: min(found, key=found.__getitem__) for which, found in sorted(losses.items())}
    print(f"RATES: {rates}")
    if options.write:
        pattern, line = rf"^    {options.write}: {{.*}},$", f"    {options.write}: {rates},"
        text, count = re.subn(pattern, line, MODELS.read_text(), flags=re.MULTILINE)
        if count != 1:
            raise SystemExit(f"--write: RATES in {MODELS} has no line for length {options.write}; add one")
        store.write_text(MODELS, text)


if __name__ == "__main__":
    main()
