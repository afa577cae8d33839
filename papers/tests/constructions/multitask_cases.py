"""Prompts of the [MultiTask] constructions, and gradient descent on them in plain loops."""

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Tensor
from hmmscope_papers.constructions import MultiTaskOptions
from hmmscope_papers.constructions.multitask import multitask_theorem1
from hmmscope_papers.constructions.multitask_network import MultiTaskTransformer


def prompt_of(demonstrations: list[list[int]], test: list[int], num_symbols: int) -> Tensor:
    """delimiter | demonstration, delimiter | .. | test, one sample (1, column)."""
    tokens = [num_symbols]
    for demonstration in demonstrations:
        tokens += [*demonstration, num_symbols]
    return torch.tensor([tokens + test])


def random_demonstrations(rng: np.random.Generator, lengths: list[int], num_symbols: int) -> list[list[int]]:
    return [rng.integers(num_symbols, size=length).tolist() for length in lengths]


def random_prompts(seed: int, lengths: list[int], test_length: int, num_symbols: int, batch: int = 2) -> Tensor:
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(batch):
        test = rng.integers(num_symbols, size=test_length).tolist()
        rows.append(prompt_of(random_demonstrations(rng, lengths, num_symbols), test, num_symbols))
    return torch.cat(rows)


def one_hot_window(window: list[int], num_symbols: int) -> NDArray[np.float64]:
    """Concatenated one-hots, most recent symbol first; `window` is in time order."""
    x = np.zeros(num_symbols * len(window))
    for slot, symbol in enumerate(reversed(window)):
        x[slot * num_symbols + symbol] = 1
    return x


def samples_of(
    demonstrations: list[list[int]], num_symbols: int, memory_length: int, num_futures: int = 1
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """(x, y) of every window, in loops."""
    found = []
    for demonstration in demonstrations:
        for end in range(memory_length, len(demonstration) - num_futures + 1):
            label = demonstration[end : end + num_futures]
            y = np.zeros(num_symbols**num_futures)
            y[int("".join(map(str, label)), num_symbols)] = 1
            found.append((one_hot_window(demonstration[end - memory_length : end], num_symbols), y))
    return found


def plain_descent(
    samples: list[tuple[NDArray[np.float64], NDArray[np.float64]]], rate: float, num_steps: int, ridge: float = 0.0
) -> list[NDArray[np.float64]]:
    """W^(0) .. W^(T) of W <- W - rate (mean of (W x - y) x^T + ridge W), sample by sample."""
    weights = [np.zeros((len(samples[0][1]), len(samples[0][0])))]
    for _ in range(num_steps):
        now = weights[-1]
        gradient = sum(np.outer(now @ x - y, x) for x, y in samples) / len(samples)
        weights.append(now - rate * (gradient + ridge * now))
    return weights


def all_windows(num_symbols: int, memory_length: int) -> list[list[int]]:
    return [list(window) for window in itertools.product(range(num_symbols), repeat=memory_length)]


def gather_error(net: MultiTaskTransformer, tokens: Tensor) -> float:
    """Largest error of what the softmax layers copy."""
    errors = [note.error for note in net.notes(tokens) if note.stage.startswith("gather")]
    return max(error for error in errors if error is not None)


def weights_error(net: MultiTaskTransformer, tokens: Tensor) -> float:
    """Largest difference of any iterate, in any column, from plain gradient descent."""
    errors = [note.error for note in net.notes(tokens) if note.stage == "gradient step"]
    return max(error for error in errors if error is not None)


#: (symbols, memory, demonstrations, their length, steps, coordinates, attention layers)
SIZES = [(3, 1, 12, 2, 20, 24, 22), (4, 3, 24, 4, 30, 76, 34), (4, 3, 10, 8, 30, 76, 34), (3, 5, 20, 6, 40, 76, 45)]


def build_theorem1(sizes: tuple[int, ...], test_length: int = 8, **changes: Any) -> MultiTaskTransformer:
    num_symbols, memory_length, num_demonstrations, demonstration_length, num_steps = sizes[:5]
    return multitask_theorem1(
        num_symbols,
        memory_length,
        num_steps,
        num_demonstrations=num_demonstrations,
        demonstration_length=demonstration_length,
        test_length=test_length,
        options=MultiTaskOptions(**changes),
    )


def prompts_of(sizes: tuple[int, ...], seed: int = 0, test_length: int = 8) -> torch.Tensor:
    return random_prompts(seed, [sizes[3]] * sizes[2], test_length, sizes[0])
