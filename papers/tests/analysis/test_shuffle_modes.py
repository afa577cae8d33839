"""The modes of the position-shuffle test, on models where the answer is known."""

import pytest
import torch
from torch import nn

from hmmscope.analysis import shuffle
from hmmscope.analysis.activations import capture_activations
from hmmscope.analysis.shuffle import ShuffleValues, _moved_ids, shuffle_test
from hmmscope.datasets.layouts import PromptLayout
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.models.base import ModelIO, build_model, make_model
from hmmscope.models.decoder import RoFormerSpec
from hmmscope.processes.random_hmm import RandomMixtureSpec
from hmmscope.seeds import torch_generator
from hmmscope_papers.constructions import MultiTaskOptions
from hmmscope_papers.constructions.multitask import multitask_theorem1

PROMPTS = PromptLayout(num_demonstrations=4, demonstration_length=4, test_length=5)


def corpus() -> ProcessDataset:
    return ProcessDataset(RandomMixtureSpec(num_components=3, num_states=3, num_symbols=4).build(), layout=PROMPTS)


def roformer(num_layers: int, seed: int = 0) -> nn.Module:
    spec = RoFormerSpec(num_layers=num_layers, num_heads=2, width=16)
    return build_model(spec, ModelIO(num_outputs=4, vocab_size=5), seed).eval()


def value(rows: list[dict], metric: str, layer: int, head: int = 0) -> float:
    return next(r["value"] for r in rows if (r["metric"], r["layer"], r["head"]) == (metric, layer, head))


def test_ids_are_permuted_among_the_demonstrations_alone() -> None:
    drawn = list(_moved_ids(PROMPTS, 5, torch_generator(0, "shuffle")))
    plain = torch.arange(PROMPTS.context_length)
    keys = torch.from_numpy(PROMPTS.token_positions[:16])
    rest = plain[~torch.isin(plain, keys)]
    assert torch.equal(drawn[0], plain)
    assert len({tuple(ids.tolist()) for ids in drawn}) == 5
    for ids in drawn:
        assert torch.equal(ids[rest], rest)
        assert torch.equal(ids[keys].sort().values, keys)


def test_the_first_layer_moves_alike_by_itself_and_with_all_others() -> None:
    """What the first layer reads does not depend on positions; what the second reads does."""
    model, data = roformer(2), corpus()
    alone, all_of_them = (shuffle_test(model, data, num_samples=6, mode=mode) for mode in ("layer", "everywhere"))
    for metric in ("cv", "cv_centred", "attention_change"):
        assert value(alone, metric, 1) == pytest.approx(value(all_of_them, metric, 1), rel=1e-5)
        assert value(alone, metric, 2) != pytest.approx(value(all_of_them, metric, 2), rel=1e-3)
    assert not [row for row in alone if row["metric"] == "prediction_change"]
    assert value(all_of_them, "prediction_change", 0, -1) > 0


def test_attention_at_its_own_positions_is_what_it_was() -> None:
    model, tokens = roformer(2), corpus()[0:3].tokens
    inputs: dict[str, torch.Tensor] = {}
    block = model.get_submodule("blocks.1.attention")
    handle = block.register_forward_hook(lambda module, args, output: inputs.update(x=args[0], y=output))
    with torch.no_grad():
        model(tokens)
        handle.remove()
        again = model.attend_at(block, inputs["x"], torch.arange(tokens.shape[1]))  # type: ignore[operator]
        other = model.attend_at(block, inputs["x"], torch.arange(tokens.shape[1]).flip(0))  # type: ignore[operator]
    assert torch.allclose(again, inputs["y"], atol=1e-6)
    assert not torch.allclose(other, inputs["y"], atol=1e-3)


def test_logits_that_ignore_positions_do_not_move() -> None:
    """Rotations of so slow a base that they are none: ids then change nothing, in either mode."""
    spec = RoFormerSpec(num_layers=2, num_heads=2, width=4, rotary_base=10000.0)
    model = build_model(spec, ModelIO(num_outputs=4, vocab_size=5), 0).eval()
    model.rotary.at = lambda positions, dtype: (  # type: ignore[union-attr, assignment]
        torch.ones(positions.shape[-1], 2, dtype=dtype),
        torch.zeros(positions.shape[-1], 2, dtype=dtype),
    )
    for mode in ("layer", "everywhere"):
        rows = shuffle_test(model, corpus(), num_samples=4, mode=mode)
        assert max(row["value"] for row in rows if row["metric"] != "prediction_change") < 1e-6
    assert value(shuffle_test(roformer(2), corpus(), num_samples=4, mode="layer"), "cv", 1) > 0.01  # and with them do


def test_the_construction_reads_positions_where_it_gathers_only() -> None:
    network = multitask_theorem1(
        4, 2, 2, num_demonstrations=4, demonstration_length=4, test_length=5, options=MultiTaskOptions(causal=True)
    )

    def attend_at(attention: nn.Module, x_BTD: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        moved = x_BTD.clone()
        moved[..., network.subspaces["position"]] = network.positions[positions]
        return attention(moved)

    rows = ShuffleValues.of(network, corpus(), num_samples=4, mode="layer", attend_at=attend_at).rows()
    notes = {note.layer: note.stage for note in network.notes()}
    for layer, stage in notes.items():
        moved = max(row["value"] for row in rows if row["layer"] == layer and row["metric"] == "cv")
        assert (moved < 1e-12) == (stage == "gradient step"), (layer, stage, moved)


def test_the_prediction_is_followed_where_the_query_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """All other columns are told in which order the demonstrations stand."""

    def outputs(model: nn.Module, tokens: torch.Tensor, num_symbols: int) -> torch.Tensor:
        order = (tokens * torch.arange(1, tokens.shape[1] + 1)).sum(1) % num_symbols
        law = torch.nn.functional.one_hot(order, num_symbols).double()[:, None].repeat(1, tokens.shape[1], 1)
        law[:, -1] = 1 / num_symbols
        return law

    monkeypatch.setattr(shuffle, "model_outputs", outputs)
    monkeypatch.setattr(shuffle, "to_probs", lambda model, law: law)
    assert value(shuffle_test(roformer(1), corpus(), num_samples=4), "prediction_change", 0, -1) == 0


def test_the_change_of_a_prediction_is_half_its_l1_distance_from_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of certain predictions it is the share of the others, by the orders in which the demonstrations stood."""
    said = []

    def outputs(model: nn.Module, tokens: torch.Tensor, num_symbols: int) -> torch.Tensor:
        said.append((tokens * torch.arange(1, tokens.shape[1] + 1)).sum(1) % num_symbols)
        return torch.nn.functional.one_hot(said[-1], num_symbols).double()[:, None].repeat(1, tokens.shape[1], 1)

    monkeypatch.setattr(shuffle, "model_outputs", outputs)
    monkeypatch.setattr(shuffle, "to_probs", lambda model, law: law)
    rows = shuffle_test(roformer(1), corpus(), num_samples=4)
    shares = torch.nn.functional.one_hot(torch.stack(said), 4).double().mean(0)
    assert value(rows, "prediction_change", 0, -1) == pytest.approx(float((1 - shares.square().sum(1)).mean()))
    assert value(rows, "prediction_change", 0, -1) > 0.1


def test_shuffle_modes_are_checked() -> None:
    with pytest.raises(InputError, match="did you mean 'layer'"):
        shuffle_test(roformer(1), corpus(), mode="layers")
    learned = make_model("decoder", num_symbols=4, vocab_size=5, num_layers=1, num_heads=1, width=4, max_length=32)
    with pytest.raises(InputError, match="other positions enter only the first layer"):
        shuffle_test(learned, corpus(), num_samples=2, mode="layer")
    network = multitask_theorem1(
        4, 2, 2, num_demonstrations=4, demonstration_length=4, test_length=5, options=MultiTaskOptions(causal=True)
    )
    with pytest.raises(
        InputError, match="mode: 'layer' needs a model with a method attend_at, which sets positions in one layer"
    ):
        shuffle_test(network, corpus(), num_samples=2, mode="layer")


def test_moving_one_layer_leaves_no_hooks() -> None:
    model = roformer(2)
    shuffle_test(model, corpus(), num_samples=2, mode="layer")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert capture_activations(model, ["residual.0"], corpus()[0:1].tokens)["residual.0"].shape[0] == 1


def test_the_gradient_layers_do_not_move_with_the_demonstrations() -> None:
    """On their samples, windows inside a demonstration; earlier windows reach into the demonstration before."""
    network = multitask_theorem1(
        4, 2, 2, num_demonstrations=4, demonstration_length=4, test_length=5, options=MultiTaskOptions(causal=True)
    )
    steps = [note.layer for note in network.notes() if note.stage == "gradient step"]
    samples, everything = (
        ShuffleValues.of(network, corpus(), num_samples=4, first_position=first)["cv"] for first in (2, 0)
    )
    assert all(samples[layer].max() < 1e-12 for layer in steps)
    assert all(everything[layer].max() > 0.01 for layer in steps)
    assert samples[1].min() > 0.1
    with pytest.raises(InputError, match=r"first_position: must be in \[0, 3\]"):
        ShuffleValues.of(network, corpus(), first_position=4)
