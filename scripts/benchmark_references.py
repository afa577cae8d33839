"""Score HMMs fitted by EM and by spectral learning on the light track of HMM-bench.

    nice python scripts/benchmark_references.py [--samples 500] [--seeds 1] [--tasks A,B]

Each reference is fitted to the first samples of the stream `train` of a seed and scored like a submission, on other
samples. The script writes studies/src/hmmscope_studies/benchmark/references.json, which the leaderboard shows. With --tasks,
the other tasks keep their stored rows.
"""

import argparse
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import hmmscope as hs
from hmmscope.datasets.targets import make_target
from hmmscope.errors import InputError
from hmmscope.inference.spectral import Operators, learn_operators
from hmmscope.processes.process import Process
from hmmscope.system_info import machine_line
from hmmscope_studies.benchmark.scoring import SCORED, ScoredSamples, _constant, _excess
from hmmscope_studies.benchmark.tasks import VERSION, BenchmarkTask, tasks_of

OUT = Path(__file__).resolve().parents[1] / "studies/src/hmmscope_studies/benchmark/references.json"
#: Numbers of states for BIC, restarts and iterations of each fit, and the longest prefix and suffix for spectral learning.
SIZES, FIT, WORD = range(1, 11), {"num_restarts": 8, "quiet": True}, 2
#: Smallest probability of learned operators, whose answers may be negative.
LEAST = 1e-3
#: Maps observations (sample, time) to answers at the positions of a task.
Answers = Callable[[BenchmarkTask, ScoredSamples], Tensor]


def fitted(hmm: Process) -> Answers:
    def answers(task: BenchmarkTask, samples: ScoredSamples) -> Tensor:
        target = make_target(task.target, hmm, samples.trained.layout)
        return target.optimum(samples.batch(samples.trained, SCORED))

    return answers


def by_em(num_states: int | Sequence[int]) -> Callable[[BenchmarkTask, Tensor], Answers]:
    def learn(task: BenchmarkTask, observations: Tensor) -> Answers:
        size = task.generator(scored=False).num_states if num_states == 0 else num_states
        chosen = FIT if isinstance(size, int) else FIT | {"choose": "bic"}
        fit = hs.fit(observations.numpy(), size, options=hs.FitOptions(**chosen))
        return fitted(fit.hmm)

    return learn


def spectral(task: BenchmarkTask, observations: Tensor) -> Answers:
    """Learn operators of the true rank from frequencies of words at all positions of a sample."""
    process = task.generator(scored=False)
    count = process.num_symbols

    def frequencies(words: Tensor) -> Tensor:
        length = words.shape[1]
        if length == 0:
            return torch.ones(len(words), dtype=torch.float64)
        base = count ** torch.arange(length)
        codes = (observations.unfold(1, length, 1) * base).sum(-1).flatten()
        seen = torch.bincount(codes, minlength=count**length).double() / len(codes)
        return seen[(words * base).sum(-1)]

    operators = learn_operators(frequencies, count, length=WORD, rank=_rank(task))

    def answers(task: BenchmarkTask, samples: ScoredSamples) -> Tensor:
        seen = samples.batch(samples.trained, SCORED).observations
        first = torch.einsum("r,vrq,q->v", operators.start, operators.step, operators.end)
        later = operators.next_observation(seen)[:, :-1]
        probs = torch.cat([first.expand(len(seen), 1, -1), later], 1).nan_to_num(0.0).clamp_min(LEAST)
        probs = probs / probs.sum(-1, keepdim=True)
        return probs[:, task.asked(samples.trained).kept]

    return answers


def _rank(task: BenchmarkTask) -> int:
    exact = Operators.of(task.generator(scored=False))
    return len(learn_operators(exact.probabilities, exact.step.shape[0], length=WORD).start)


#: References by name in the leaderboard.
REFERENCES: dict[str, Callable[[BenchmarkTask, Tensor], Answers]] = {
    "HMM by EM, true number of states": by_em(0),
    "HMM by EM, number of states by BIC": by_em(SIZES),
    "spectral learning, true rank": spectral,
}


def solved(task: BenchmarkTask, learn: Callable[[BenchmarkTask, Tensor], Answers], seed: int, count: int) -> float:
    """Return the fraction of a constant answer's excess loss that a reference removes."""
    observations = task.corpus(seed, stream="train", scored=False)[0:count].observations
    digest = hashlib.sha256(f"{task.name}-{seed}".encode()).hexdigest()
    samples = ScoredSamples.of(task, digest)
    asked = task.asked(samples.trained)
    exact = asked.optimum(samples.batch(samples.trained, SCORED))
    excess = _excess(asked, learn(task, observations)(task, samples), exact).mean().item()
    return 1 - excess / _excess(asked, _constant(task, samples).expand_as(exact), exact).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tasks", help="comma-separated tasks to measure; the others keep their stored rows")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    every = json.loads(OUT.read_text())
    before = every.get(VERSION, {}).get("rows") or every["1"]["rows"]
    asked = tasks_of("light", given.tasks.split(",") if given.tasks else None)
    names = {task.name for task in tasks_of("light")} - {task.name for task in asked}
    rows: dict[str, dict[str, float | None]] = {
        name: {task: value for task, value in before.get(name, {}).items() if task in names} for name in REFERENCES
    }
    for task in asked:
        if task.target != "observation":  # labels that a fit to the symbols cannot predict
            continue
        for name, learn in REFERENCES.items():
            try:
                values = [solved(task, learn, seed, given.samples) for seed in range(given.seeds)]
                value = float(np.mean(values))
            except InputError as error:  # the process is no HMM, or its prompts are not sequences of its symbols
                print(f"{task.name}, {name}: {' '.join(str(error).split())[:100]}")
                value = math.nan
            rows[name][task.name] = None if math.isnan(value) else round(value, 4)
            print(f"{task.name}, {name}: {value:.4f}", flush=True)
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine_line()}
    about |= {"samples": given.samples, "seeds": given.seeds, "sizes": list(SIZES), **FIT, "word": WORD}
    OUT.write_text(json.dumps(every | {VERSION: about | {"rows": rows}}, indent=1) + "\n")
    print(OUT)


if __name__ == "__main__":
    main()
