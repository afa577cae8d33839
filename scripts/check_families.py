"""Check the model families of `hmmscope.fit`: compare with enumeration of all paths, and measure posterior coverage.

python scripts/check_families.py enumerate [--cases 200]
python scripts/check_families.py climb [--cases 200]
python scripts/check_families.py coverage [--datasets 1000] [--families constraints,labels,inputs,durations]

`climb` checks that no EM step lowers the likelihood. `enumerate` and `climb` also check combinations of families, such as
inputs with labels.

`coverage` draws each model from the prior that the posterior uses, so that exact 95 % intervals contain the truth in 95 % of
the data sets. The intervals are of functions of the parameters that do not depend on the order of the states.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hmmscope as hs
from hmmscope.inference.chains import effective_sizes, equal_tails
from hmmscope.inference.fit_durations import DurationSteps, SemiMarkovParams
from hmmscope.inference.fit_inputs import InputSteps, expected_input_counts
from hmmscope.inference.known_states import with_known_states
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.inference.row_rules import RowRules
from hmmscope.inference.weights import with_weights
from hmmscope.seeds import numpy_generator
from hmmscope.system_info import machine_line

OUT = Path(__file__).resolve().parents[1] / "quality" / "family_checks.json"
FAMILIES = ("constraints", "labels", "weights", "inputs", "durations")
#: Combinations of families that `enumerate` and `climb` also check.
COMBINED = ("inputs with labels", "inputs with constraints", "inputs with weights", "durations with labels")
COMBINED += ("durations with weights", "constraints with labels")
QUICK: dict[str, Any] = {"num_restarts": 1, "max_iterations": 10}
LEFT_RIGHT = hs.Constraints.left_to_right(3)


def rows(random: np.random.Generator, shape: tuple[int, ...], allowed: Any = True) -> Any:
    """Draw rows from Dirichlet(1), as multiples of 2^-14, so that neither they nor their products are rounded."""
    drawn = random.standard_gamma(np.ones(shape) * allowed)
    units = np.floor(drawn / drawn.sum(-1, keepdims=True) * 2**14)
    most = units.argmax(-1)[..., None]
    np.put_along_axis(units, most, np.take_along_axis(units, most, -1) + 2**14 - units.sum(-1, keepdims=True), -1)
    return units / 2**14


def drawn_model(family: str, random: np.random.Generator, size: int = 2, symbols: int = 2) -> Any:
    """Draw a model from the prior of its family."""
    if family == "inputs with constraints":
        moves = rows(random, (2, 3, 3), LEFT_RIGHT.transition)
        return hs.InputOutputHMM([1, 0, 0], moves, rows(random, (2, 3, symbols)))
    if "inputs" in family:
        return hs.InputOutputHMM(rows(random, (size,)), rows(random, (2, size, size)), rows(random, (2, size, symbols)))
    if "durations" in family:
        allowed = ~np.eye(size, dtype=bool) if size > 1 else True
        shapes = ((size,), (size, size), (size, 3), (size, symbols))
        masks = (True, allowed, True, True)
        return hs.SemiMarkovHMM(*(rows(random, shape, mask) for shape, mask in zip(shapes, masks, strict=True)))
    if "constraints" in family:
        return hs.HMM([1, 0, 0], rows(random, (3, 3), LEFT_RIGHT.transition), rows(random, (3, symbols)))
    return hs.HMM(rows(random, (size,)), rows(random, (size, size)), rows(random, (size, symbols)))


def paths(hmm: Any, symbols: list[int], inputs: list[int], allowed: Any) -> dict[tuple[int, ...], float]:
    """Return the joint probability of each path of states; with durations, of pairs of state and remaining duration."""
    initial, transition, emission = arrays(hmm)
    found = {}
    for path in itertools.product(range(len(initial)), repeat=len(symbols)):
        probability = 1.0
        for t, state in enumerate(path):
            u = inputs[t] if transition.ndim == 3 else 0
            arrive = transition.reshape(-1, *transition.shape[-2:])[u, path[t - 1], state] if t else initial[state]
            own = emission.reshape(-1, *emission.shape[-2:])[u, state]
            probability *= arrive * (1.0 if symbols[t] == hs.MISSING else own[symbols[t]]) * allowed[t, state]
        found[path] = float(probability)
    return found


def arrays(hmm: Any) -> tuple[Any, ...]:
    if hmm.num_inputs is not None:
        return hmm.initial.numpy(), hmm.transition.numpy(), hmm.emission.numpy()
    law = hmm.params
    return law.initial_MS[0].numpy(), law.transition_MSS[0].numpy(), law.emission_MSV[0].numpy()


def enumerate_case(family: str, random: np.random.Generator) -> float:
    """Return the largest difference between answers and their enumeration, on one random ragged data set with gaps."""
    hmm = drawn_model(family, random, int(random.integers(1, 4 if "durations" not in family else 3)), 3)
    size, lengths = hmm.num_states, [int(random.integers(1, 6 if hmm.num_states < 4 else 5)) for _ in range(2)]
    shape = (2, max(lengths))
    symbols, inputs = random.integers(0, 3, shape), random.integers(0, 2, shape)
    symbols[random.random(shape) < 0.15] = hs.MISSING
    visits = hmm.visits
    known = np.ones((*shape, size if visits is None else len(visits.names)), bool)
    if "labels" in family:
        known = random.random(known.shape) < 0.6
        known[~known.any(-1)] = True
    allowed = known if visits is None else known[..., visits.of.numpy()]
    given: dict[str, Any] = {"lengths": lengths}
    given |= {"inputs": inputs} if "inputs" in family else {}
    given |= {"known_states": known} if "labels" in family else {}
    x = torch.from_numpy(symbols)
    try:
        logs = hs.log_likelihood(hmm, x, **given).numpy()
        smoothed, best = hs.smooth_beliefs(hmm, x, **given).numpy(), hs.most_likely_states(hmm, x, **given)
    except hs.HmmscopeError as error:
        raise AssertionError(f"{family}: {error}") from error
    worst = 0.0
    weights = random.random(2) + 0.5 if "weights" in family else np.ones(2)
    moves = np.zeros(arrays(hmm)[1].shape)
    for b, length in enumerate(lengths):
        found = paths(hmm, symbols[b, :length].tolist(), inputs[b, :length].tolist(), allowed[b])
        total = sum(found.values())
        if total == 0:
            assert logs[b] == -np.inf
            return enumerate_case(family, random)
        posterior = np.zeros((length, size))
        for path, probability in found.items():
            posterior[range(length), path] += probability / total
            for t in range(1, length):
                place = (path[t - 1], path[t]) if moves.ndim == 2 else (inputs[b, t], path[t - 1], path[t])
                moves[place] += weights[b] * probability / total
        worst = max(worst, abs(logs[b] - math.log(total)), np.abs(smoothed[b, :length] - posterior).max())
        worst = max(worst, abs(float(best.log_probability[b]) - math.log(max(found.values()))))
    if "inputs" in family:
        steps = input_steps(hmm, x, inputs, lengths, weights, given.get("known_states"))
        counted = steps.counts(hmm)[0]["transition"]
        if "weights" not in family:
            own = expected_input_counts(hmm, x, **given).transitions
            assert np.array_equal(own, counted)
    elif "durations" in family:
        flat = np.concatenate(
            [np.where(symbols[b, :n] == hs.MISSING, 3, symbols[b, :n]) for b, n in enumerate(lengths)]
        )
        params = SemiMarkovParams(*(part.numpy() for part in hmm.file_tensors().values()))
        work = flat_sequences(flat, np.array(lengths))
        work = with_known_states(work, given.get("known_states"), torch.tensor(lengths), known.shape[2])
        steps = DurationSteps(with_weights(work, weights), "free", RowRules({}, 0.0, {}))
        counted, moves = steps.counts(params)[0].transition, folded(hmm, moves)
    else:
        options: dict[str, Any] = {"sequence_weights": weights} if "weights" in family else {}
        counted = hs.expected_counts(hmm, x, **given, **options).transitions.numpy()
    return max(worst, float(np.abs(counted - moves).max()))


def input_steps(hmm: Any, x: Any, inputs: Any, lengths: list[int], weights: Any, known: Any) -> InputSteps:
    inside = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
    symbols = x.where(inside & (x != hs.MISSING), hmm.num_symbols)
    allowed = None if known is None else torch.from_numpy(known) | ~inside[..., None]
    mask = torch.arange(x.shape[1]) == 0
    return InputSteps(symbols, torch.from_numpy(inputs), mask, inside, RowRules({}, 0.0, {}), weights, allowed)


def folded(hmm: Any, moves: Any) -> Any:
    """Sum the transitions that end a visit, by state; a pair is a state and its remaining duration."""
    of, size = hmm.visits.of.numpy(), len(hmm.visits.names)
    ends = np.array([name.endswith(", 1 left") for name in hmm.states])
    found = np.zeros((size, size))
    np.add.at(found, (of[ends][:, None], of[None]), moves[ends])
    return found


def targets(family: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return functions of parameters (..., array) that do not depend on the order of the states."""
    initial, transition, emission = (values[name] for name in ("initial", "transition", "emission"))
    if family == "inputs":
        return {
            "P(first symbol 0 | input 0)": (initial * emission[..., 0, :, 0]).sum(-1),
            "trace of the transitions under input 1": np.trace(transition[..., 1, :, :], axis1=-2, axis2=-1),
        }
    if family == "durations":
        steps = np.arange(1, values["durations"].shape[-1] + 1)
        return {
            "P(first symbol 0)": (initial * emission[..., 0]).sum(-1),
            "mean duration over states": (values["durations"] @ steps).mean(-1),
        }
    if family == "constraints":
        return {"transition[0, 0]": transition[..., 0, 0], "emission[1, 0]": emission[..., 1, 0]}
    return {"transition[0, 0]": transition[..., 0, 0], "emission[1, 0]": emission[..., 1, 0]}


def cover_case(family: str, number: int, random: np.random.Generator) -> dict[str, bool]:
    """Return whether each 95 % interval of the posterior contains the truth, on one small data set."""
    truth = drawn_model(family, random)
    inputs = random.integers(0, 2, (6, 12))
    drawn = truth.sample(12, 6, seed=number, inputs=inputs if family == "inputs" else None)
    x, options = drawn.observations.per_sequence(), dict(QUICK)
    if family == "constraints":
        options["constraints"] = LEFT_RIGHT
    if family == "durations":
        options["durations"] = 3
    if family == "labels":
        known = np.asarray(drawn.states).reshape(6, 12).copy()
        known[:, 1::2] = -1
        options["known_states"] = known
    sizes, given = 3 if family == "constraints" else 2, None
    data = hs.SequenceData([row.tolist() for row in x], symbols=2)
    if family == "inputs":
        given = hs.SequenceData(inputs.tolist(), symbols=2)
    fit = hs.fit(data, sizes, inputs=given, options=hs.FitOptions(**options), seed=number)
    posterior = fit.posterior(200, num_chains=1, warm_up=80, every=2, seed=number, max_lengthening=1)
    draws = targets(family, {name: part.numpy() for name, part in posterior.arrays.items()})
    true = targets(family, {name: part.numpy() for name, part in truth.file_tensors().items()})
    found = {}
    for name, values in draws.items():
        bulk, tail = effective_sizes(values[..., None])
        low, high = equal_tails(values[..., None], np.fmin(bulk, tail))
        found[name] = bool(low[0] <= float(true[name]) <= high[0])
    return found


def climb_case(family: str, number: int, random: np.random.Generator) -> float:
    """Return the smallest gain of an EM step without pseudo-counts, on one ragged data set with gaps."""
    truth, lengths = drawn_model(family, random), [12, 9, 5, 1]
    inputs = [random.integers(0, 2, length).tolist() for length in lengths]
    drawn = truth.sample(12, 4, seed=number, inputs=random.integers(0, 2, (4, 12)) if "inputs" in family else None)
    rows = [np.asarray(row)[:n] for row, n in zip(drawn.observations.per_sequence(), lengths, strict=True)]
    rows = [np.where(random.random(len(row)) < 0.15, hs.MISSING, row).tolist() for row in rows[:-1]] + [[0]]
    each: dict[str, dict[str, Any]] = {
        "constraints": {"constraints": LEFT_RIGHT},
        "labels": {"known_states": [[0, *[-1] * (n - 1)] for n in lengths]},
        "weights": {"sequence_weights": random.random(4) + 0.5},
        "durations": {"durations": 3, "duration_family": ("free", "negative-binomial")[number % 2]},
    }
    options = {name: value for one in family.split(" with ") for name, value in each.get(one, {}).items()}
    limits = {"num_restarts": 2, "max_iterations": 30, "pseudo_count": 0.0}
    fit = hs.fit(
        hs.SequenceData(rows, symbols=2),
        3 if "constraints" in family else 2,
        inputs=hs.SequenceData(inputs, symbols=2) if "inputs" in family else None,
        options=hs.FitOptions(**limits, **options),
        seed=number,
    )
    return min(float(np.diff(one).min(initial=np.inf)) for one in fit.final.history)


def check_climbs(families: list[str], cases: int) -> dict[str, Any]:
    found = {}
    for family in families:
        random = numpy_generator(2, "check-families", (*FAMILIES, *COMBINED).index(family))
        least = min(climb_case(family, number, random) for number in range(cases))
        found[family] = {"fits": cases, "smallest_gain": least}
        print(f"{family}: {cases} fits, smallest gain of a step {least:.1e} nats", flush=True)
        keep("climb", {family: found[family]})
        assert least > -1e-9
    return found


def check_enumeration(families: list[str], cases: int) -> dict[str, Any]:
    found = {}
    for family in families:
        random = numpy_generator(0, "check-families", (*FAMILIES, *COMBINED).index(family))
        differences = [enumerate_case(family, random) for _ in range(cases)]
        found[family] = {"comparisons": cases, "largest_difference": max(differences)}
        print(f"{family}: {cases} comparisons by enumeration, largest difference {max(differences):.1e}", flush=True)
        assert max(differences) < 1e-9
    return found


def check_coverage(families: list[str], datasets: int) -> dict[str, Any]:
    found = {}
    for family in families:
        random, begun = numpy_generator(1, "check-families", FAMILIES.index(family)), time.time()
        cases = [cover_case(family, number, random) for number in range(datasets)]
        share = {name: sum(case[name] for case in cases) / datasets for name in cases[0]}
        found[family] = {"datasets": datasets, "coverage": share}
        print(f"{family}: {share} of {datasets} data sets, {time.time() - begun:.0f} s", flush=True)
        keep("coverage", {family: found[family]})
    return found


def keep(name: str, found: dict[str, Any]) -> None:
    kept = json.loads(OUT.read_text()) if OUT.exists() else {}
    about = {"date": datetime.now(UTC).date().isoformat(), "machine": machine_line()}
    before = kept.get(name, {})
    kept[name] = before | {family: own | about for family, own in found.items()}
    OUT.write_text(json.dumps(kept, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=("enumerate", "climb", "coverage"))
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--datasets", type=int, default=1000)
    parser.add_argument("--families")
    given = parser.parse_args()
    torch.set_num_threads(1)
    asked = given.families.split(",") if given.families else None
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "climb": lambda: check_climbs(asked or [*FAMILIES, *COMBINED], given.cases),
        "enumerate": lambda: check_enumeration(asked or [*FAMILIES, *COMBINED], given.cases),
        "coverage": lambda: check_coverage(asked or [one for one in FAMILIES if one != "weights"], given.datasets),
    }
    keep(given.check, checks[given.check]())


if __name__ == "__main__":
    main()
