"""Task patching on a theorem's network, whose task is where we put it, and on a network that has none."""

import pytest
import torch

import hmmscope as hs
from hmmscope.analysis.task_patching import _of_another_component, task_patching
from hmmscope.datasets.process_dataset import ProcessDataset
from hmmscope.errors import InputError
from hmmscope.processes.make import make_process
from hmmscope_papers.constructions import MultiTaskOptions
from hmmscope_papers.constructions.multitask import multitask_theorem1

STEPS = 12
#: After the first gradient steps, after all of them, and after the prediction.
LAYERS = ["residual.4", f"residual.{STEPS + 1}", f"residual.{STEPS + 2}"]


@pytest.fixture(scope="module")
def prompts() -> ProcessDataset:
    chains = make_process("markov-mixture", num_components=3, num_states=3, num_symbols=3, transition_concentration=0.1)
    layout = hs.PromptLayout(num_demonstrations=10, demonstration_length=4, test_length=3)
    return ProcessDataset(chains, layout=layout, stream="probe")


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    sizes = {"num_demonstrations": 10, "demonstration_length": 4, "test_length": 3}
    return multitask_theorem1(3, 1, STEPS, **sizes, options=MultiTaskOptions(dtype=torch.float64))


def by_layer(rows: list[dict], **chosen: str) -> dict[str, float]:
    return {row["layer_name"]: row["value"] for row in rows if all(row[key] == value for key, value in chosen.items())}


TASK = {"subspace": "task", "reference": "model", "metric": "total_variation"}


def test_the_network_of_the_theorem_follows_the_other_prompt(prompts: ProcessDataset, network: torch.nn.Module) -> None:
    """[MultiTask] Theorem 1: once the steps are done, the task is the 3 x 3 weights, of which one row follows."""
    rows = task_patching(network, prompts, num_samples=64, layers=LAYERS, columns="all")
    early, done, _ = (by_layer(rows, **TASK)[name] for name in LAYERS)
    assert done == pytest.approx(1, abs=1e-9)
    assert early < 0.5  # the steps that follow learn from the prompt's own demonstrations again
    assert by_layer(rows, **{**TASK, "subspace": "random"})[LAYERS[1]] < 0.6
    assert by_layer(rows, **{**TASK, "reference": "filter"})[LAYERS[1]] > 0.3
    (row,) = (r for r in rows if r["layer_name"] == LAYERS[1] and all(r[key] == value for key, value in TASK.items()))
    assert row["rank"] <= 9
    assert row["low"] <= row["value"] <= row["high"]
    assert row["samples"] == 16


def test_rank_and_columns_matter(prompts: ProcessDataset, network: torch.nn.Module) -> None:
    options = {"num_samples": 64, "layers": LAYERS[1:2]}
    whole = by_layer(task_patching(network, prompts, columns="all", **options), **TASK)
    assert max(by_layer(task_patching(network, prompts, columns="all", rank=1, **options), **TASK).values()) < min(
        whole.values()
    )
    here = by_layer(task_patching(network, prompts, **options), **TASK)  # it reads the weights of earlier columns too
    assert here[LAYERS[1]] < 0.5


def test_a_network_that_knows_no_task_is_not_moved(prompts: ProcessDataset) -> None:
    model = hs.make_model("roformer", num_symbols=3, vocab_size=4, num_layers=1, num_heads=2, width=8)
    rows = task_patching(model, prompts, num_samples=32)
    found = by_layer(rows, subspace="task", reference="filter", metric="kl")
    assert max(map(abs, found.values())) < 0.1


def test_refused(prompts: ProcessDataset) -> None:
    model = hs.make_model("roformer", num_symbols=3, vocab_size=4, num_layers=1, num_heads=2, width=8)
    with pytest.raises(InputError, match="must be prompts of a mixture"):
        task_patching(model, ProcessDataset(prompts.process, length=6))
    with pytest.raises(InputError, match="columns: unknown 'tset'"):
        task_patching(model, prompts, columns="tset")
    with pytest.raises(InputError, match="must have prompts of at least two components"):
        _of_another_component(torch.zeros(4, dtype=torch.int64))
    assert _of_another_component(torch.tensor([0, 0, 1, 0])).tolist() == [2, 2, 3, 2]
