"""Networks, populations and measurements that the experiments on [MultiTask] Theorems 1 and 2 share."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from hmmscope import HMM, PromptLayout, capture_activations
from hmmscope.analysis import Histories, attention_taps
from hmmscope.inference import fit_decay, memory_certificate
from hmmscope.lab import MeasuredTables
from hmmscope.seeds import torch_generator
from hmmscope_papers.constructions import (
    LeastSquares,
    MultiTaskOptions,
    MultiTaskTransformer,
    RegressionSamples,
    multitask_theorem1,
    multitask_theorem2,
)
from hmmscope_papers.multitask.independent_windows import generalisation_bound
from hmmscope_papers.theorems import instances_of

#: Errors between which the decay over gradient steps is fitted, as it is geometric there and above rounding.
FITTED = (1e-11, 1e-5)


def draw_demonstrations(hmm: HMM, number: int, length: int, seed: int, draw: int = 0) -> Int64[Tensor, "sequence time"]:
    numbers = np.arange(draw * number, (draw + 1) * number)
    return hmm.sample_paths(numbers, np.arange(length) == 0, seed, "train").observations


def prompt_tokens(
    demonstrations: Int64[Tensor, "sequence time"], test: Int64[Tensor, " time"], num_symbols: int
) -> Int64[Tensor, "one column"]:
    number, length = demonstrations.shape
    layout = PromptLayout(num_demonstrations=number, demonstration_length=length, test_length=len(test))
    return layout.tokens(torch.cat([demonstrations.flatten(), test])[None], num_symbols)


def build_network(
    num_symbols: int, memory_length: int, num_steps: int, num_futures: int | None, **sizes: Any
) -> MultiTaskTransformer:
    """Build the network of Theorem 2, or of Theorem 1 if `num_futures` is None."""
    prompt = {name: sizes.pop(name) for name in ("num_demonstrations", "demonstration_length", "test_length")}
    options = MultiTaskOptions(**sizes)
    if num_futures is None:
        return multitask_theorem1(num_symbols, memory_length, num_steps, **prompt, options=options)
    return multitask_theorem2(num_symbols, memory_length, num_steps, num_futures=num_futures, **prompt, options=options)


def trained_in_context(
    demonstrations: Int64[Tensor, "sequence time"],
    num_symbols: int,
    memory_length: int,
    num_steps: int,
    num_futures: int | None = None,
    **changes: Any,
) -> tuple[Float64[Tensor, "step label feature"], MultiTaskTransformer]:
    number, length = demonstrations.shape
    net = build_network(
        num_symbols,
        memory_length,
        num_steps,
        num_futures,
        num_demonstrations=number,
        demonstration_length=length,
        test_length=memory_length,
        **changes,
    )
    test = torch.zeros(memory_length, dtype=torch.int64)
    tokens = prompt_tokens(demonstrations, test, num_symbols)
    return net.learned_weights(tokens)[:, 0].double(), net


# ---------------------------------------------------------------------------------------------------------------------
# The population


@dataclass(frozen=True)
class Population:
    """Exact distributions of a stationary process: of windows, and of the next symbols after them.

    Attributes:
        memory_length, num_futures: Lengths L of windows and k of futures.
        features: Features x of each window (window, feature).
        probability: Probability of each window (window,).
        law: Best prediction P_L(. | window) (window, label).
        history_law: Exact prediction P(. | history) (history, label).
        history_probability: Probability of each history (history,).
        window_of: Index in `features` of each history's last window.
        place: Index in `features` of each of the V^L windows, in lexicographic order; meaningless if impossible.
    """

    memory_length: int
    num_futures: int
    features: Float64[Tensor, "window feature"]
    probability: Float64[Tensor, " window"]
    law: Float64[Tensor, "window label"]
    history_law: Float64[Tensor, "history label"]
    history_probability: Float64[Tensor, " history"]
    window_of: Int64[Tensor, " history"]
    place: Int64[Tensor, " any_window"]

    @cached_property
    def problem(self) -> LeastSquares:
        """Return the exact moments E x x^T and E y x^T; `num_samples` of the result has no meaning."""
        weighted = self.features * self.probability[:, None]
        return LeastSquares(weighted.T @ self.features, self.law.T @ weighted, 0)

    @cached_property
    def linear(self) -> Float64[Tensor, "window label"]:
        return self.features @ self.problem.solution().T

    @cached_property
    def misfit(self) -> Float64[Tensor, " window"]:
        """Squared error ||P_L - W_L x||^2 of the best linear map W_L of the window x, for each window."""
        return (self.law - self.linear).square().sum(1)

    @property
    def noise(self) -> float:
        """Residual variance sigma^2 = E||y - W_L x||^2 = 1 - tr(W_L E[x x^T] W_L^T)."""
        return 1 - float(self.probability @ self.linear.square().sum(1))

    @property
    def memory(self) -> float:
        """Memory error, the square root of E||P - P_L||^2."""
        return _rms(self.history_law - self.law[self.window_of], self.history_probability)

    @property
    def misspecification(self) -> float:
        """Misspecification error, the square root of E||P_L - W_L x||^2."""
        return math.sqrt(float(self.probability @ self.misfit))

    def estimation(self, weights: Float64[Tensor, "label feature"]) -> float:
        """Return the estimation error, the square root of E||(W - W_L) x||^2."""
        return _rms(self.features @ weights.T - self.linear, self.probability)

    def total(self, weights: Float64[Tensor, "label feature"]) -> float:
        """Return the total error, the square root of E||P - W x||^2."""
        return _rms(self.history_law - (self.features @ weights.T)[self.window_of], self.history_probability)

    def sample_misfit(self, samples: RegressionSamples) -> float:
        """Return the mean of `misfit` over samples, (1/n) sum_i ||P_L(x_i) - W_L x_i||^2."""
        return float(self.misfit[self.place[samples.numbers]].mean())


def _rms(difference: Tensor, probability: Tensor) -> float:
    return math.sqrt(float(probability @ difference.square().sum(1)))


def population(hmm: HMM, memory_length: int, num_futures: int, history_length: int) -> Population:
    """Compute the `Population` by enumeration of all V^(history_length + num_futures) sequences."""
    size, longest = hmm.num_symbols, history_length + num_futures
    histories = Histories.all(hmm, longest)
    joint = torch.zeros(size**longest, dtype=torch.float64)
    joint[histories.windows(longest)] = histories.probability
    joint = joint.view(size**history_length, size**num_futures)
    windows = torch.cartesian_prod(*[torch.arange(size)] * memory_length).view(-1, memory_length)
    by_window = joint.view(-1, len(windows), joint.shape[1]).sum(0)
    number = torch.arange(len(joint)) % len(windows)  # recent symbols vary fastest
    seen, possible = joint.sum(1), by_window.sum(1) > 0
    place = possible.cumsum(0) - 1
    kept = seen > 0
    return Population(
        memory_length=memory_length,
        num_futures=num_futures,
        features=RegressionSamples.unlabelled(windows.flip(1)[possible], size).features(),
        probability=by_window.sum(1)[possible],
        law=by_window[possible] / by_window[possible].sum(1, keepdim=True),
        history_law=joint[kept] / seen[kept, None],
        history_probability=seen[kept],
        window_of=place[number[kept]],
        place=place,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Measurements


def error_bound(
    known: Population, samples: RegressionSamples, problem: LeastSquares, num_steps: int, rate: float
) -> dict:
    """Return bounds on parts of the error, for windows in the range of Sigma.

    `independent_windows` defines W_hat, W_L and alpha.

    generalisation_bound: bound of `independent_windows` on the root mean square of ||(W_hat - W_L) x|| over labels
    optimisation_bound:   sqrt(L) ||W_hat|| (1 - rate alpha)^T,   T = `num_steps`
    estimation_bound:     sum of these two;   bound: estimation_bound + memory + misspecification

    Source: [MultiTask] Theorem 1 with explicit constants.
    """
    sample = generalisation_bound(problem, known.memory_length, known.sample_misfit(samples))
    steps = float(problem.optimisation_bound(known.memory_length, num_steps, rate))
    total = known.memory + known.misspecification + sample + steps
    parts = {"generalisation_bound": sample, "optimisation_bound": steps, "estimation_bound": sample + steps}
    return parts | {"bound": total}


def sample_row(
    known: Population,
    demonstrations: Int64[Tensor, "sequence time"],
    num_symbols: int,
    num_steps: int,
    num_futures: int | None,
    *,
    network: bool,
) -> dict:
    samples = RegressionSamples.of(demonstrations, num_symbols, known.memory_length, known.num_futures)
    problem = samples.problem()
    rate = 1 / float(problem.largest)
    weights = problem.descent(num_steps, rate)
    row: dict[str, Any] = {"road": "algebra", "samples": problem.num_samples}
    if network:
        found, _ = trained_in_context(
            demonstrations, num_symbols, known.memory_length, num_steps, num_futures, learning_rate=rate
        )
        row |= {"road": "Transformer", "difference": float((found[-1] - weights).abs().max())}
        weights = found[-1]
    row |= {
        "covered": bool(problem.in_range(known.features).all()),
        "estimation": known.estimation(weights),
        "generalisation": known.estimation(problem.solution()),
        "total": known.total(weights),
        "expected": math.sqrt(known.noise * int(known.problem.rank) / problem.num_samples),
    }
    return row | error_bound(known, samples, problem, num_steps, rate)


def step_rows(
    demonstrations: Int64[Tensor, "sequence time"],
    num_symbols: int,
    memory_length: int,
    num_steps: int,
    num_futures: int | None = None,
) -> tuple[list[dict], dict]:
    """Return the largest ||(W_hat - W^(s)) x|| of sampled windows x by step s, its bound, and the fitted decay rate."""
    samples = RegressionSamples.of(demonstrations, num_symbols, memory_length, num_futures or 1)
    problem = samples.problem()
    rate = 1 / float(problem.largest)
    weights, net = trained_in_context(
        demonstrations, num_symbols, memory_length, num_steps, num_futures, learning_rate=rate
    )
    x_NF = samples.features().unique(dim=0)
    error_S = ((problem.solution() - weights) @ x_NF.T).norm(dim=1).amax(1)
    rows = [
        {"steps": step, "error": float(error), "bound": float(problem.optimisation_bound(memory_length, step, rate))}
        for step, error in enumerate(error_S)
    ]
    fitted = [(row["steps"], math.log(row["error"])) for row in rows if FITTED[0] < row["error"] < FITTED[1]]
    stated = -math.log1p(-rate * float(problem.alpha))
    summary = {"stated": stated, "layers": net.num_layers, "points": len(fitted), "condition": float(problem.condition)}
    if len(fitted) >= 3:
        steps, logs = np.array(fitted).T
        late = steps >= steps[len(steps) // 2]
        if late.sum() >= 3:
            steps, logs = steps[late], logs[late]
        summary["measured"] = -float(np.polyfit(steps, logs, 1)[0])
    return rows, summary


def equality_row(net: MultiTaskTransformer, tokens: Int64[Tensor, "batch column"], **names: Any) -> dict:
    notes = net.notes(tokens)

    def worst(*stages: str) -> float:
        return max((note.error or 0.0 for note in notes if note.stage.startswith(stages)), default=0.0)

    return names | {
        "symbols": net.num_symbols,
        "memory_length": net.layout.memory_length,
        "futures": net.layout.num_futures,
        "steps": net.num_steps,
        "columns": net.prompt.num_columns,
        "samples": net.num_samples,
        "layers": net.num_layers,
        "heads": max(net.heads_per_layer),
        "width": net.width,
        "gather_error": worst("gather", "joint"),
        "weights_error": worst("gradient"),
        "prediction_error": worst("predict"),
    }


def step_tables(
    process: Callable[[int], HMM], sizes: dict[str, Any], memory_length: int, length: int
) -> MeasuredTables:
    rows, rates = [], []
    for instance in instances_of(sizes):
        hmm = process(instance)
        drawn = draw_demonstrations(hmm, sizes["demonstrations"], length, instance)
        found, summary = step_rows(drawn, hmm.num_symbols, memory_length, sizes["steps"], sizes.get("futures"))
        rows += [{"instance": instance} | row for row in found]
        rates.append({"instance": instance} | summary)
    return {"steps": rows, "step-rates": rates}


def sample_tables(process: Callable[[int], HMM], sizes: dict[str, Any], memory_length: int) -> MeasuredTables:
    rows, futures = [], sizes.get("futures")
    for instance in instances_of(sizes):
        hmm = process(instance)
        known = population(hmm, memory_length, futures or 1, sizes["history"])
        for network, counts, draws in ((True, sizes["network_samples"], 1), (False, sizes["samples"], sizes["draws"])):
            for number, draw in itertools.product(counts, range(draws)):
                drawn = draw_demonstrations(hmm, number, memory_length + known.num_futures, instance, draw)
                row = sample_row(known, drawn, hmm.num_symbols, sizes["network_steps"], futures, network=network)
                rows.append({"process": instance, "draw": draw} | row)
    return {"samples": rows}


def memory_tables(process: Callable[[int], HMM], sizes: dict[str, Any], first: int) -> MeasuredTables:
    """Return the parts of the error by memory length, and the decay rate from memory length `first` on.

    The column ``certificate`` bounds ||P - P_L|| by twice `memory_certificate`.
    """
    rows, rates, futures = [], [], sizes.get("futures")
    for instance in instances_of(sizes, "memory_instances"):
        hmm, found = process(instance), []
        for memory_length in sizes["memory_lengths"]:
            known = population(hmm, memory_length, futures or 1, sizes["history"])
            length, steps = memory_length + known.num_futures, sizes["network_steps"]
            drawn = draw_demonstrations(hmm, sizes["memory_samples"], length, instance)
            problem = RegressionSamples.of(drawn, hmm.num_symbols, memory_length, known.num_futures).problem()
            few = draw_demonstrations(hmm, sizes["memory_network_samples"], length, instance)
            weights, net = trained_in_context(few, hmm.num_symbols, memory_length, steps, futures)
            found.append(
                {
                    "instance": instance,
                    "memory_length": memory_length,
                    "memory": known.memory,
                    "misspecification": known.misspecification,
                    "limit": known.total(known.problem.solution()),
                    "total": known.total(problem.descent(20 * steps, 1 / float(problem.largest))),
                    "total_samples": problem.num_samples,
                    "network_total": known.total(weights[-1]),
                    "network_samples": net.num_samples,
                    "layers": net.num_layers,
                    "certificate": 2 * memory_certificate(hmm, memory_length),
                }
            )
        rows += found
        fitted = fit_decay([row["memory_length"] for row in found], [row["memory"] for row in found], first=first)
        rates.append({"instance": instance, "rate": fitted.rate, "residual": fitted.residual})
    return {"memory": rows, "memory-rates": rates}


def block_shuffle_rows(
    net: MultiTaskTransformer,
    demonstrations: Int64[Tensor, "sequence time"],
    test: Int64[Tensor, " time"],
    others: Int64[Tensor, "draw sequence time"] | None = None,
    *,
    num_permutations: int = 8,
    seed: int = 0,
) -> list[dict]:
    """Measure how attention logits from the last token to regression samples change under permuted demonstrations.

    Args:
        others: other demonstrations for the same positions, one set per draw.

    Returns:
        Rows (layer, head, value, content): `value` is the mean standard deviation of a logit over permutations divided
        by the mean size of a logit; `content` is the same over `others`. Layer 0 has the output's largest change.
    """
    number, length = demonstrations.shape
    names, generator = attention_taps(net, "logits"), torch_generator(seed, "shuffle")
    place = torch.arange(1, 1 + number * (length + 1)).view(number, length + 1)[:, :-1]
    valid = net.exact(prompt_tokens(demonstrations, test, net.num_symbols)).valid[0][place]

    def seen(shown: Tensor, keys: Tensor) -> tuple[list[Tensor], Tensor]:
        said = prompt_tokens(shown, test, net.num_symbols)
        found = capture_activations(net, names, said, lambda x: x[0, :, -1, keys].double())
        return [found[name] for name in names], net(said)[0, -1].double()

    orders = [torch.arange(number)] + [torch.randperm(number, generator=generator) for _ in range(1, num_permutations)]
    # follow each sample to its position after the permutation
    moved = {"value": [seen(demonstrations[order], place[order.argsort()][valid]) for order in orders]}
    if others is not None:
        moved["content"] = [seen(shown, place[valid]) for shown in (demonstrations, *others)]
    rows: dict[tuple[int, int], dict] = {}
    for column, looks in moved.items():
        change = max(float((law - looks[0][1]).abs().max()) for _, law in looks)
        rows.setdefault((0, 0), {"layer": 0, "head": 0})[column] = change
        for layer in range(len(names)):
            values_RHU = torch.stack([logits[layer] for logits, _ in looks])
            variation_H = values_RHU.std(0, correction=0).mean(-1) / values_RHU.abs().mean((0, -1))
            for head, value in enumerate(variation_H.tolist()):
                rows.setdefault((layer + 1, head), {"layer": layer + 1, "head": head})[column] = value
    return list(rows.values())
