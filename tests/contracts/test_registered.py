"""What every registered process, layout, model and instrument must do; a new one is tested by being there."""

import dataclasses
import inspect
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from hmmscope import registry
from hmmscope.analysis.activations import capture_activations, residual_layers
from hmmscope.analysis.shuffle import attention_taps
from hmmscope.datasets.headers import observe_decoded
from hmmscope.datasets.layouts import HeaderLayout, Layout, PromptLayout, SequenceLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.inference.mixture_posterior import KnownComponentResult
from hmmscope.inference.optimal import OptimalPredictions, optimal_predictions
from hmmscope.kernels.context_counts import context_counts, ngram_laws
from hmmscope.models.base import ModelIO, SequenceModel, build_model
from hmmscope.processes.generalised import GeneralisedHMM
from hmmscope.processes.header_hmms import HeaderSpec
from hmmscope.processes.process import Process

#: Sizes for tests, wherever a spec has a field of that name.
SMALL: dict[str, Any] = {
    **{"num_components": 3, "num_states": 5, "num_symbols": 5, "num_properties": 3, "num_entities": 4, "rank": 2},
    **{"num_demonstrations": 2, "demonstration_length": 3, "test_length": 4, "length": 9, "path": "umbrella"},
    **{"num_layers": 2, "num_heads": 2, "width": 16, "mlp_ratio": 2},
}


def spec_of(kind: str, name: str) -> Any:
    """A registered spec of small size."""
    fields = {field.name for field in dataclasses.fields(registry.entries(kind)[name])}
    return registry.build_spec(kind, {"name": name} | {k: v for k, v in SMALL.items() if k in fields}, kind)


def built(name: str) -> Process:
    process: Process = spec_of("process", name).build()
    return process


def gives_vectors(process: Process) -> bool:
    """Whether observations are real vectors (linear processes), not symbols."""
    return ProcessDataset(process, 2)[0:1].observations.is_floating_point()


def model_of(name: str, *, num_symbols: int = 5, num_tokens: int = 6, seed: int = 0) -> SequenceModel:
    if registry.entries("model")[name].__module__.endswith("foreign_specs"):
        pytest.importorskip("transformers")
    ports = ModelIO(num_outputs=num_symbols, vocab_size=num_tokens, max_length=64)
    return build_model(spec_of("model", name), ports, seed).eval()


def tokens_of(seed: int = 0, batch: int = 3, time: int = 10, num_tokens: int = 6) -> torch.Tensor:
    return torch.randint(num_tokens, (batch, time), generator=torch.Generator().manual_seed(seed))


#: Stand for what a user hands over: sequences, a process, a module. Their tests are in test_objects.py.
HANDED_OVER = {"data", "given"}

PROCESSES, LAYOUTS, MODELS, INSTRUMENTS = (
    sorted(set(registry.entries(kind)) - HANDED_OVER) for kind in ("process", "layout", "model", "instrument")
)
#: A process in a layout that it may have: of headers, those that tell their HMMs.
LAID = [
    (layout, name)
    for layout in LAYOUTS
    for name in PROCESSES
    if layout != "header" or issubclass(registry.entries("process")[name], HeaderSpec)
]


def test_something_is_registered() -> None:
    assert min(map(len, (PROCESSES, LAYOUTS, MODELS, INSTRUMENTS))) >= 1
    assert {"random-hmm", "random-mixture", "file"} <= set(PROCESSES)
    assert {"sequences", "prompts", "header"} == set(LAYOUTS)


@pytest.mark.parametrize(
    "kind, name",
    [
        (kind, name)
        for kind in ("process", "layout", "model")
        for name in sorted(set(registry.entries(kind)) - HANDED_OVER)
    ],
)
def test_specs_are_frozen_and_explained(kind: str, name: str) -> None:
    cls = registry.entries(kind)[name]
    spec = spec_of(kind, name)
    assert dataclasses.is_dataclass(cls)
    assert spec == spec_of(kind, name)
    assert hash(spec) == hash(spec_of(kind, name))
    assert spec.name == name
    assert cls.__doc__
    assert not cls.__doc__.startswith(f"{cls.__name__}(")
    for field in dataclasses.fields(cls)[:1]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(spec, field.name, 1)
    with pytest.raises(TypeError):
        cls(1)  # fields have names


# --------------------------------------------------------------------------------------------------------------------
# Processes


@pytest.mark.parametrize("name", PROCESSES)
def test_probabilities_are_exact(name: str) -> None:
    process = built(name)
    assert process.num_states >= 1
    assert process.num_symbols >= 1
    signed = isinstance(process, GeneralisedHMM)  # floats of any sign, see its own tests
    own = (
        not process.uses_hmm_inference and "law" not in vars(process) and type(process).params is Process.params
    )  # answers by itself
    law = () if signed or own else process.params.rows()
    for rows in (process.component_weights, *law):
        assert rows.dtype == torch.float64
        units = rows.numpy() * 2**32
        assert np.array_equal(units, np.round(units))
        assert (units >= 0).all()
        assert (units.sum(-1) == 2**32).all()  # whole numbers below 2^53: this sum is exact
    count = process.num_components
    assert len(process.component_weights) == (1 if count is None else count)


@pytest.mark.parametrize("name", PROCESSES)
def test_building_is_deterministic(name: str) -> None:
    assert built(name).digest == built(name).digest
    spec = spec_of("process", name)
    if any(field.name == "seed" for field in dataclasses.fields(spec)):
        others = {dataclasses.replace(spec, seed=seed).build().digest for seed in range(3)}
        assert built(name).digest in others
        assert len(others) == 3 or name == "word-problem"  # a group has few sets of generators


@pytest.mark.parametrize(("layout", "name"), LAID)
def test_sampling_is_a_function_of_the_number(layout: str, name: str) -> None:
    process = built(name)
    dataset = ProcessDataset(process, layout=spec_of("layout", layout), seed=5)
    batch, again = dataset[0:40], ProcessDataset(built(name), layout=spec_of("layout", layout), seed=5)[0:40]
    apart = dataset[[7, 30, 0]]
    for part in ("tokens", "observations", "states", "components"):
        whole = getattr(batch, part)
        assert whole is not None or (part == "components" and process.num_components is None)
        if whole is not None:
            assert whole.isfinite().all()
            assert torch.equal(whole, getattr(again, part))
            assert torch.equal(whole[[7, 30, 0]], getattr(apart, part))
    if gives_vectors(process):
        assert batch.observations.shape[2:] == (process.num_symbols,)
        own = batch.states.shape[2:] if batch.states.is_floating_point() else (int(batch.states.max()) + 1,)
        assert own == (process.num_states,)
    else:
        assert 0 <= int(batch.observations.min()) <= int(batch.observations.max()) < process.num_symbols
        assert 0 <= int(batch.states.min()) <= int(batch.states.max()) < process.num_states
    other = ProcessDataset(process, layout=spec_of("layout", layout), seed=6)[0:40]
    assert not torch.equal(batch.observations, other.observations)


#: Processes of symbols that `optimal_predictions` refuses.
WITHOUT_EXACT_ANSWER = {"fresh-aliased-cycles", "fresh-hmms", "fresh-lazy-chains", "matmul"}


@pytest.mark.drawn(30)
@pytest.mark.parametrize(("layout", "name"), LAID)
def test_nothing_predicts_better_than_the_optimum(layout: str, name: str) -> None:
    """Paired over samples: false alarm below 1e-4 for each n-gram at z > 4, by fixed seeds never."""
    process = built(name)
    laid: Layout = SequenceLayout(length=40) if layout == "sequences" else spec_of("layout", layout)
    dataset = ProcessDataset(process, layout=laid, seed=1)
    laid, batch = dataset.layout, dataset[0:64]
    observations = batch.observations
    starts = torch.from_numpy(laid.reset_mask)
    if gives_vectors(process):
        return  # no n-grams of vectors
    unknown = name in WITHOUT_EXACT_ANSWER or (process.header_format is not None and laid.header_format is None)
    optimum: OptimalPredictions | KnownComponentResult
    try:
        optimum = (
            optimal_predictions(process, observations, reset_mask=starts)
            if laid.header_format is None
            else observe_decoded(process, laid, batch)
        )
    except InputError as error:
        assert unknown, error  # noqa: PT017 - not all raise
        return
    assert not unknown
    law = optimum.predicted_observation
    assert law.shape == (*observations.shape, process.num_symbols)
    assert (law >= 0).all()
    assert (law.sum(-1) - 1).abs().max() < 1e-12
    seen = law.gather(2, observations[..., None])[..., 0]
    assert (seen > 0).all()
    assert (seen.log() - optimum.log_likelihood_terms).abs().max() < 1e-10
    ngrams = ngram_laws(
        context_counts(observations.numpy(), laid.position_in_sequence, process.num_symbols, 3), [1.0] * 4
    )
    for order in range(4):
        guessed = torch.from_numpy(ngrams[:, :, order]).gather(2, observations[..., None])[..., 0].log()
        better = (guessed - seen.log()).mean(1).numpy()
        assert better.mean() < 4 * better.std(ddof=1) / math.sqrt(len(better)) + 1e-12


# --------------------------------------------------------------------------------------------------------------------
# Layouts


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_is_consistent(name: str) -> None:
    process = registry.lookup("process", "told-hmms")(num_states=3, num_symbols=5).build()
    layout: Layout = spec_of("layout", name).of(process)
    assert layout.num_observations == sum(layout.sequence_lengths) == len(layout.token_positions)
    assert layout.context_length == layout.token_positions[-1] + 1
    assert layout.reset_mask.sum() == len(layout.sequence_lengths)
    assert layout.reset_mask[0]
    assert (np.diff(layout.token_positions) >= 1).all()
    observations = tokens_of(num_tokens=5, time=layout.num_observations)
    header = None if layout.header_format is None else process.encode_header(torch.arange(3))
    tokens = layout.tokens(observations, 5, header)
    assert tokens.shape == (3, layout.context_length)
    assert torch.equal(tokens[:, layout.token_positions], observations)
    rest = np.setdiff1d(np.arange(layout.context_length), layout.token_positions)
    assert ((tokens[:, rest] >= 5) & (tokens[:, rest] < layout.vocab_size(5))).all()
    assert layout.vocab_size(5) == 5 + (17 if layout.header_format else len(rest) > 0)
    assert layout.predicted_observations.tolist() == [
        t for t in range(layout.num_observations) if layout.token_positions[t] > 0
    ]


# --------------------------------------------------------------------------------------------------------------------
# Models


@pytest.mark.parametrize("name", MODELS)
def test_shape_of_the_output(name: str) -> None:
    model = model_of(name)
    assert (model.num_symbols, model.vocab_size) == (5, 6)
    for batch, time in ((3, 10), (1, 1), (2, 33)):
        logits = model(tokens_of(batch=batch, time=time))
        assert logits.shape == (batch, time, 5)
        assert logits.dtype == torch.float32
        assert logits.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("at", [0, 4, 9])
def test_the_future_changes_nothing(name: str, at: int) -> None:
    model, tokens = model_of(name), tokens_of()
    changed = tokens.clone()
    changed[:, at:] = (changed[:, at:] + 1) % 6
    with torch.no_grad():
        before, after = model(tokens), model(changed)
        short = model(tokens[:, :at]) if at else before[:, :0]
    assert torch.equal(before[:, :at], after[:, :at])
    assert not torch.equal(before[:, at:], after[:, at:])
    assert torch.allclose(before[:, :at], short, atol=1e-5)  # another shape may take another kernel


@pytest.mark.parametrize("name", MODELS)
def test_samples_do_not_see_each_other(name: str) -> None:
    model, tokens = model_of(name), tokens_of()
    with torch.no_grad():
        together = model(tokens)
        apart = torch.cat([model(sample[None]) for sample in tokens])
        reordered = model(tokens.flip(0)).flip(0)
    assert torch.allclose(together, apart, atol=1e-5)
    assert torch.allclose(together, reordered, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_past_is_seen(name: str) -> None:
    model, tokens = model_of(name), tokens_of()
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 6
    with torch.no_grad():
        assert ((model(tokens) - model(changed))[:, -1].abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_a_gradient(name: str) -> None:
    model = model_of(name)
    tokens = torch.arange(6).repeat(4, 3)  # every token is there
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten() % 5)
    loss.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert (parameter.grad != 0).any(), parameter_name


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_symbols", [2, 5, 50])
def test_first_loss_is_that_of_ignorance(name: str, num_symbols: int) -> None:
    for seed in range(3):
        model = model_of(name, num_symbols=num_symbols, num_tokens=num_symbols, seed=seed)
        tokens = tokens_of(seed, batch=16, time=32, num_tokens=num_symbols)
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        assert abs(loss.item() - math.log(num_symbols)) < 0.1


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_seed(name: str) -> None:
    torch.rand(3)  # the global generator is nobody's
    one, same, other = (dict(model_of(name, seed=seed).named_parameters()) for seed in (4, 4, 5))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("name", MODELS)
def test_positions(name: str) -> None:
    model, tokens = model_of(name), tokens_of()
    default = torch.arange(10)
    with torch.no_grad():
        plain = model(tokens)
        assert torch.equal(plain, model(tokens, positions=default))
        assert torch.allclose(plain, model(tokens, positions=default.expand(3, -1)), atol=1e-5)
        if name in ("roformer", "llama"):  # only differences of positions matter
            for shift in (1, 17, 1000):
                assert (plain - model(tokens, positions=default + shift)).abs().max() < 1e-4
            shifts = torch.tensor([[0], [5], [90]])
            assert (plain - model(tokens, positions=default + shifts)).abs().max() < 1e-4
            assert (plain - model(tokens, positions=2 * default)).abs().max() > 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_residual_taps(name: str) -> None:
    model, tokens = model_of(name), tokens_of()
    names = residual_layers(model)
    num_layers = getattr(spec_of("model", name), "num_layers")  # noqa: B009 - every model has layers
    assert names == [f"residual.{layer}" for layer in range(num_layers + 1)]
    with torch.no_grad():
        plain = model(tokens)
        found = capture_activations(model, names, tokens)
        again = model(tokens)
    assert all(found[tap].shape[:2] == tokens.shape and found[tap].ndim == 3 for tap in names)
    assert not any(torch.equal(found[a], found[b]) for a, b in itertools.pairwise(names))
    assert torch.equal(plain, again)


@pytest.mark.parametrize("name", MODELS)
def test_listening_to_attention_changes_nothing(name: str) -> None:
    model, tokens = model_of(name), tokens_of()
    try:
        names = attention_taps(model, "logits") + attention_taps(model, "pattern")
    except InputError:
        return  # a model without attention
    outputs = []
    model.register_forward_hook(lambda module, args, output: outputs.append(output))
    with torch.no_grad():
        model(tokens)
        found = capture_activations(model, names, tokens)
    fused, tapped = outputs
    assert (fused - tapped).abs().max() < 1e-5
    future = torch.ones(10, 10, dtype=torch.bool).triu(1)
    for tap, activation in found.items():
        assert activation.shape[0] == 3
        assert activation.shape[2:] == (10, 10)
        if tap.endswith("pattern"):
            assert (activation[..., future] == 0).all()
            assert torch.allclose(activation.sum(-1), torch.ones(()), atol=1e-6)
        else:
            assert (activation[..., future] == -torch.inf).all()
            assert activation[..., ~future].isfinite().all()


# --------------------------------------------------------------------------------------------------------------------
# Instruments


@pytest.mark.parametrize("name", INSTRUMENTS)
@pytest.mark.parametrize("field, value", [("dataset", np.ones(2)), ("num_samples", torch.ones(2)), ("num_samples", 0)])
def test_instruments_name_an_argument_of_another_type(name: str, field: str, value: Any, unchecked: None) -> None:
    given = {"dataset": ProcessDataset(built("random-mixture"), 4), field: value}
    with pytest.raises(InputError, match=f"^{field}: must be "):
        registry.entries("instrument")[name](model=model_of("rnn", num_tokens=4), **given)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", INSTRUMENTS)
def test_instruments_give_the_same_table_twice(name: str) -> None:
    layout: Layout = PromptLayout(num_demonstrations=3, demonstration_length=4, test_length=6)
    process = built("random-mixture")
    if name in ("automaton", "constrained-updates"):  # of one process
        process, layout = built("random-hmm"), SequenceLayout(length=9, placeholder=True)
    if name.startswith("header"):
        process, layout = built("told-hmms"), HeaderLayout(length=6)
    dataset = ProcessDataset(process, layout=layout, stream="probe")
    instrument = registry.entries("instrument")[name]
    tables = [
        instrument(
            model=model_of("roformer", num_tokens=dataset.vocab_size), dataset=dataset, num_samples=24, device=device
        )
        for device in (None, "cpu")
    ]
    assert tables[0] == tables[1]
    assert len(tables[0]) > 0
    for row in tables[0]:
        assert row.keys() == tables[0][0].keys()
        json.dumps(row, allow_nan=False)
        assert row["samples"] > 0
    stated = tables[0].about
    assert set(stated) >= {"length", "samples", "seed of samples", "device"}
    assert ("seed" in stated) == ("seed" in inspect.signature(instrument).parameters)
    assert stated.get("layers", []) == list(dict.fromkeys(filter(None, (row.get("layer_name") for row in tables[0]))))
    assert list(tables[0].columns()) == list(tables[0][0])  # what to_pandas passes on
    axes = Figure().subplots()
    assert tables[0].plot(ax=axes) is axes.figure
    assert any(line.get_ydata().size for line in axes.lines)
    assert instrument.__doc__
