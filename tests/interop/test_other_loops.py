"""Training loops of other people on streams of a corpus: Lightning, transformers, accelerate; and data sets."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import hmmscope as hs
from hmmscope.errors import InputError, RefusedError
from hmmscope.interop import export_dataset

PROCESS = hs.make_process("golden-mean")
TRAIN, HELD_OUT = (hs.ProcessDataset(PROCESS, 16, stream=stream) for stream in ("train", "evaluate"))


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def near_the_optimum(model: torch.nn.Module) -> None:
    score = hs.evaluate(model, HELD_OUT, baselines=False)
    assert 0 <= score.excess[0] < 0.02


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = hs.make_model("rnn", num_symbols=2, width=8)

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            return loss_of(self.model(batch["tokens"]), batch["tokens"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.02)

    module = Module()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_steps=120, accelerator="cpu", default_root_dir=tmp_path, **quiet)
    trainer.fit(module, DataLoader(TRAIN.stream(32), batch_size=None))
    near_the_optimum(module.model)


def test_the_trainer_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng():
        torch.manual_seed(0)  # noqa: TID251 - put back at the end
        sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=2, n_positions=16, **sizes))
        options = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=200, per_device_train_batch_size=32, learning_rate=0.03,
            save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
        )  # fmt: skip

        def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
            tokens = torch.stack([sample["tokens"] for sample in samples])
            return {"input_ids": tokens, "labels": tokens}

        trainer = transformers.Trainer(
            model=model, args=options, train_dataset=TRAIN.stream(exact=False), data_collator=collate
        )
        trainer.train()
    near_the_optimum(model)


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = hs.make_model("rnn", num_symbols=2, width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    stream = TRAIN.stream(32, accelerator.process_index, accelerator.num_processes)  # it is not shared out again
    prepared, optimizer = accelerator.prepare(model, optimizer)
    for batch, _ in zip(DataLoader(stream, batch_size=None), range(120), strict=False):
        loss = loss_of(prepared(batch["tokens"]), batch["tokens"])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    near_the_optimum(accelerator.unwrap_model(prepared))


def test_a_data_set_holds_the_samples_and_their_answers_to_the_bit(tmp_path: Path) -> None:
    folder = export_dataset(HELD_OUT, tmp_path / "set", num_train=5, num_test=3)
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    expected = HELD_OUT[0:3]
    assert [row["tokens"] for row in rows] == expected.tokens.tolist()
    exact = hs.filter_beliefs(PROCESS, expected.observations)
    assert [row["beliefs"] for row in rows] == exact.beliefs.tolist()
    train = [json.loads(line)["tokens"] for line in (folder / "train.jsonl").read_text().splitlines()]
    assert train == TRAIN[0:5].tokens.tolist()
    card = (folder / "README.md").read_text()
    for words in ("pretty_name:", "path: test.jsonl", PROCESS.digest, "`optimum`: P(next observation"):
        assert words in card
    with pytest.raises(RefusedError, match="exists"):
        export_dataset(HELD_OUT, folder)
    with pytest.raises(InputError, match="num_test: must be at least 1"):
        export_dataset(HELD_OUT, tmp_path / "other", num_test=0)
    with pytest.raises(InputError, match="dataset: must contain tokens"):
        export_dataset(hs.ProcessDataset("ran-lds", 8), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_datasets_opens_it(tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets")
    folder = export_dataset(HELD_OUT, tmp_path / "set", num_train=5, num_test=3)
    found = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert found["test"]["tokens"][:] == HELD_OUT[0:3].tokens.tolist()
    assert found["train"].num_rows == 5
