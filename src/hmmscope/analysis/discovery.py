"""Discovery without labels: automata from a model's predictions, belief coordinates from its residual stream."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from hmmscope import registry
from hmmscope.analysis.activations import layers_read, model_probs
from hmmscope.analysis.geometry import ExactBeliefs
from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.minimal_automata import RARE, extract_automaton
from hmmscope.inference.spectral import Operators, WordLaw, learn_operators
from hmmscope.inference.stable_argmax import stable_argmax
from hmmscope.processes.capabilities import WORDS
from hmmscope.schema import require, require_known
from hmmscope.seeds import torch_generator

#: Most words enumerated by default.
_MOST_WORDS = 4096
METHODS = ("principal", "simplex", "sparse", "random")


def model_words(model: nn.Module, dataset: ProcessDataset) -> WordLaw:
    """Return a function that maps words (symbol sequences) to their probabilities under a model.

    Raises:
        InputError: the layout has several sequences, or no placeholder token before the first symbol.
    """
    layout = dataset.layout
    if len(layout.sequence_lengths) > 1 or not layout.has_delimiter:
        raise InputError("layout: must be SequenceLayout(..., placeholder=True), to predict the first symbol")

    def law(words: Int64[Tensor, "word time"]) -> Float64[Tensor, " word"]:
        time = words.shape[1]
        require(time <= layout.num_observations, "words", f"must have at most {layout.num_observations} symbols", time)
        tokens = torch.cat([words.new_full((len(words), 1), dataset.num_symbols), words], 1)[:, : max(time, 1)]
        probs = model_probs(model, tokens, dataset.num_symbols)
        return probs[:, :time].gather(2, words[..., None])[..., 0].prod(1)

    return law


@registry.instrument("automaton", x="quantity")
def automaton(
    model: nn.Module, dataset: ProcessDataset, *, length: int = 0, tolerance: float = 0.1, num_samples: int = 256
) -> list[dict]:
    """Estimate how many hidden states a model's predictions distinguish.

    - rank: rank of the Hankel matrix [P(prefix then suffix)], the number of singular values before their steepest drop;
    - states: number of classes of prefixes that predict different futures;
    - recurrent: number of these classes that are recurrent;
    - distance: mean total variation between predictions of the process and of an observable operator model learned
    from the network.

    Args:
        model: any module from tokens to logits.
        dataset: single sequences of an HMM or generalised HMM, which start with a placeholder token (`SequenceLayout`).
        length: length of prefixes, suffixes and futures; 0 for the largest n <= 6 with <= 4096 words of length 2 n + 1.
        tolerance: total variation up to which two future distributions count as equal.
        num_samples: number of samples on which the operators are evaluated.

    Returns:
        Rows (quantity, value, exact, samples); `exact` is the value for the process itself.

    Raises:
        InputError: the dataset is not as described, or words are longer than the samples.

    Source: Hsu, Kakade, Zhang (2009) for the operators; see `extract_automaton`.
    """
    dataset.process.require_capability(WORDS)
    length = length or max([1, *(n for n in range(1, 7) if dataset.num_symbols ** (2 * n + 1) <= _MOST_WORDS)])
    exact = Operators.of(dataset.process)
    observations = dataset[0:num_samples].observations
    told, found = exact.next_observation(observations), {}
    true_rank = len(learn_operators(exact.probabilities, dataset.num_symbols, length=length).start)
    depth = dataset.layout.num_observations - length
    for name, law in {"value": model_words(model, dataset), "exact": exact.probabilities}.items():
        graph = extract_automaton(
            law,
            dataset.num_symbols,
            futures=length,
            tolerance=tolerance,
            rare=RARE if RARE * dataset.num_symbols < 1 else 0.5 / dataset.num_symbols,
            max_depth=min(8, depth - 1),
        )
        learned = learn_operators(law, dataset.num_symbols, length=length, rank=true_rank)
        apart = 0.5 * (learned.next_observation(observations) - told).abs().sum(-1)
        counts = {"rank": _gap(learned), "states": len(graph.prefixes), "recurrent": len(graph.recurrent)}
        found[name] = {**counts, "distance": float(apart.clamp_max(1.0).mean())}
    return [
        {"quantity": key, "value": float(value), "exact": float(found["exact"][key]), "samples": num_samples}
        for key, value in found["value"].items()
    ]


def _gap(learned: Operators) -> int:
    assert learned.singular_values is not None
    sizes = learned.singular_values / learned.singular_values[0]
    sizes = sizes.clamp_min(1e-12)
    return int(stable_argmax(sizes[:-1] / sizes[1:])) + 1


@registry.instrument("dictionary", by=("method",), only=("quantity",))
def dictionary(
    model: nn.Module,
    dataset: ProcessDataset,
    *,
    layers: Sequence[str] | None = None,
    num_samples: int = 256,
    methods: Sequence[str] = ("principal", "simplex", "random"),
    seed: int = 0,
) -> list[dict]:
    """Find coordinates in a layer without using the belief; measure how well they match it.

    The methods for S hidden states are:

    - principal: the first S - 1 principal components;
    - simplex: barycentric coordinates in the simplex of the S extreme points of `principal` (successive projection);
    - sparse: codes of a sparse dictionary of S atoms (scikit-learn);
    - random: S - 1 random directions, as a control.

    ``read`` is the held-out R² of an affine map from the coordinates to the belief. ``matched`` is the mean absolute
    correlation of the belief's entries, each with its own coordinate (largest correlations first; 0 if none is left).

    Args:
        model: any module.
        dataset: samples of an HMM, a generalised HMM or a mixture.
        layers: module names (default: the residual stream).
        num_samples: number of samples; the last quarter tests the maps.
        methods: names of methods (default: all but sparse).
        seed: seed of random directions and dictionaries.

    Returns:
        Rows (layer, layer_name, method, quantity, value, samples).

    Raises:
        InputError: a method is unknown, the process has no belief states, or scikit-learn is missing.

    Source: successive projection: Araújo et al. (2001), Gillis and Vavasis (2014); dictionaries: Mairal et al. (2009).
    """
    for method in methods:
        require_known("methods", method, METHODS)
    names = layers_read(model, layers)
    exact, rows = ExactBeliefs.of(dataset, num_samples), []
    for layer, (name, stream) in enumerate(zip(names, exact.stream(model, names), strict=True)):
        for method in methods:
            coordinates = _FIND[method](stream.double(), exact.belief.shape[1], seed)
            read = float(exact.read(coordinates[None]).r2()[0, 0])
            about = {"layer": layer, "layer_name": name, "method": method, "samples": num_samples}
            rows += [about | {"quantity": "read", "value": read}]
            rows += [about | {"quantity": "matched", "value": _matched(coordinates, exact.belief)}]
    return rows


Found = Float64[Tensor, "example coordinate"]


def _principal(stream: Tensor, size: int, seed: int) -> Found:
    centred = stream - stream.mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False)[2][: size - 1]
    return centred @ directions.T


def _simplex(stream: Tensor, size: int, seed: int) -> Found:
    places = _principal(stream, size, seed)
    lifted = torch.cat([places, places.norm(dim=1).max() * torch.ones_like(places[:, :1])], 1)
    left, vertices = lifted.clone(), []
    for _ in range(size):
        vertex = int(stable_argmax(left.norm(dim=1)))
        vertices.append(lifted[vertex])
        away = left[vertex] / left[vertex].norm().clamp_min(torch.finfo(left.dtype).tiny)
        left = left - torch.outer(left @ away, away)
    return lifted @ torch.linalg.pinv(torch.stack(vertices))


def _sparse(stream: Tensor, size: int, seed: int) -> Found:
    try:
        from sklearn.decomposition import MiniBatchDictionaryLearning
        from sklearn.exceptions import ConvergenceWarning
    except ImportError:
        raise InputError("methods: sparse needs scikit-learn: pip install 'hmmscope[discovery]'") from None
    scaled = ((stream - stream.mean(0)) / stream.std()).numpy()
    learner = MiniBatchDictionaryLearning(
        size, alpha=0.1, batch_size=256, max_iter=20, random_state=seed, positive_code=True, fit_algorithm="cd",
        transform_algorithm="lasso_cd",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # codes are scored by what is read from them
        return torch.from_numpy(np.asarray(learner.fit_transform(scaled), np.float64))


def _random(stream: Tensor, size: int, seed: int) -> Found:
    directions = torch.randn(stream.shape[1], size - 1, generator=torch_generator(seed, "probe"), dtype=torch.float64)
    return (stream - stream.mean(0)) @ directions


_FIND: dict[str, Callable[[Tensor, int, int], Found]] = {
    "principal": _principal,
    "simplex": _simplex,
    "sparse": _sparse,
    "random": _random,
}


def _matched(found: Found, belief: Float64[Tensor, "example state"]) -> float:
    one, other = ((x - x.mean(0)) / x.std(0).clamp_min(1e-12) for x in (found, belief))
    size, left = (one.T @ other / (len(one) - 1)).abs(), []
    for _ in range(min(size.shape)):
        row, column = divmod(int(stable_argmax(size.flatten())), size.shape[1])
        left.append(float(size[row, column]))
        size[row], size[:, column] = -1.0, -1.0
    return sum(left) / belief.shape[1]
