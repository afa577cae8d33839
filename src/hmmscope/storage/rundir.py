"""The folder of a run: configuration, seeds, environment, metrics, checkpoints and completion mark.

config.json environment.json seeds.json   written at the start, with SHA-256 digests in manifest.json
metrics.jsonl                             records that the seed determines, bit by bit
timing.jsonl                              records that depend on the clock
checkpoints/step-000000100/               one <group>.safetensors per group, state.json, manifest.json
done.json  seal.json                      summary of a finished run, and checksums of all its files
lock                                      file that the writing process locks
"""

import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmmscope.errors import DamagedError, HmmscopeError, InputError, NonFiniteError, RefusedError, ResourceError
from hmmscope.storage import disk, seals, store
from hmmscope.storage.journal import Journal, read_journal
from hmmscope.storage.store import (
    new_folder,
    read_json,
    read_table,
    read_tensors,
    remove_leftovers,
    verify_folder,
    write_bytes,
    write_json,
    write_table,
    write_tensors,
    write_text,
)
from hmmscope.synonyms import STORED_KEYS
from hmmscope.system_info import environment

if TYPE_CHECKING:
    import torch

__all__ = [
    "Journal",
    "RunDir",
    "config_difference",
    "new_folder",
    "read_journal",
    "read_json",
    "read_table",
    "read_tensors",
    "remove_leftovers",
    "validate_name",
    "verify_folder",
    "write_bytes",
    "write_json",
    "write_table",
    "write_tensors",
    "write_text",
]

_DEVICE_NAME = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_STEP = re.compile(r"step-(\d{9,})")


class RunDir:
    """The folder of a run, from `create` or `open`; only the process that holds its lock can write.

    Attributes:
        path: Path of the folder, as the caller gave it.
        config: Contents of config.json.
    """

    def __init__(self, path: Path, config: dict) -> None:
        self.path = Path(path)
        self.config = config
        self._lock_fd = -1
        self._journals: dict[str, Journal] = {}

    @classmethod
    def create(cls, path: Path, config: dict, *, seeds: dict | None = None) -> "RunDir":
        """Create a run folder atomically and hold its lock.

        Raises:
            RefusedError: `path` exists.
            InputError: `config` has no JSON form.
            ResourceError: No folder can be created at `path`.
        """
        path = Path(path)
        run = cls(path, {})
        exists = f"{path}: exists; choose another --out, or add --resume (resume=True in Python)"
        config_json = store.json_bytes(config, "config")
        if os.path.lexists(path):
            raise RefusedError(exists)
        try:
            store.make_folder(path.parent)
            with new_folder(path, manifest=False) as folder:
                write_bytes(folder / "config.json", config_json)
                write_json(folder / "environment.json", environment())
                write_json(folder / "seeds.json", seeds or {})
                store.write_manifest(folder)
                store.make_folder(folder / "checkpoints")
                for name in ("metrics.jsonl", "timing.jsonl"):
                    write_bytes(folder / name, b"")
                run._lock_fd = disk.take_lock(folder / "lock")
        except HmmscopeError as error:
            run.unlock()
            if isinstance(error, RefusedError) and os.path.lexists(path):
                raise RefusedError(exists) from error
            if isinstance(error.__cause__, PermissionError) or getattr(error.__cause__, "errno", 0) == errno.EROFS:
                raise ResourceError(f"{path}: the system cannot create a folder here; choose another --out") from error
            raise
        run.config = read_json(path / "config.json", managed=True)
        return run

    @classmethod
    def open(cls, path: Path, *, lock: bool = False) -> "RunDir":
        """Open an existing run folder for reading or, with `lock`, for writing.

        Raises:
            InputError: The folder is missing, or is not a run folder.
            DamagedError: config.json, environment.json or seeds.json has been altered.
            RefusedError: Another process holds the lock.
        """
        path = Path(path)
        if not path.is_dir():
            raise InputError(f"{path}: no such run folder")
        if not os.path.lexists(path / "config.json"):
            raise InputError(f"{path}: is not a run folder (it has no config.json)")
        if os.path.lexists(path / "hmmscope.json"):
            raise InputError(f"{path}: is an exported model, not a run folder; use hs.interop.from_huggingface")
        named = verify_folder(path, exact=False)["files"]
        config = read_json(path / "config.json", managed=True)
        if "config.json" not in named or not isinstance(config, dict):
            raise DamagedError(f"{path / 'config.json'}: is not the configuration of a run")
        run = cls(path, config)
        if lock:
            run.lock()
        return run

    def lock(self) -> None:
        """Acquire the lock for writing, and remove temporary files that a killed process left.

        Raises:
            RefusedError: Another process holds the lock.
        """
        if self._lock_fd >= 0:
            return
        self._lock_fd = disk.take_lock(self.path / "lock")
        for folder in (self.path, *self.path.iterdir()):
            if folder.is_dir() and not (folder.is_symlink() and folder != self.path):
                remove_leftovers(folder)

    def unlock(self) -> None:
        for journal in self._journals.values():
            journal.close()
        self._journals.clear()
        if self._lock_fd >= 0:
            disk.give_lock(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *error: object) -> None:
        self.unlock()

    def __del__(self) -> None:
        self.unlock()

    @property
    def metrics(self) -> Journal:
        return self._journal("metrics.jsonl")

    @property
    def timing(self) -> Journal:
        """Return the journal timing.jsonl."""
        return self._journal("timing.jsonl")

    def _journal(self, name: str) -> Journal:
        if self._lock_fd < 0:
            raise RefusedError(f"{self.path}: was opened without a lock, so it is read-only; open it with lock=True")
        if name not in self._journals:
            self._journals[name] = Journal(self.path / name)
        return self._journals[name]

    # ----------------------------------------------------------------------------------------------------------------

    def save_checkpoint(
        self,
        step: int,
        tensors: dict[str, dict[str, "torch.Tensor"]],
        state: dict,
        keep: int = 2,
        *,
        milestones: Collection[int] = (),
    ) -> None:
        """Store checkpoint `step` durably, together with the metrics so far.

        `tensors[group][name]` is stored in <group>.safetensors, and `state` as JSON; `load_checkpoint` adds
        "journal_length", the size of metrics.jsonl in bytes, to the state. Older checkpoints are removed, except the
        newest `keep` - 1 and checkpoints at steps in `milestones`.

        Raises:
            NonFiniteError: A tensor has NaN or infinity; nothing is written.
            RefusedError: The step exists with other content, or the lock is not held.
            ResourceError: The disk fails; earlier checkpoints are intact.
        """
        if step < 0 or keep < 1:
            raise InputError(f"checkpoint: step must be >= 0 and keep >= 1, got {step} and {keep}")
        for group, named in tensors.items():
            validate_name(group, "checkpoint group")
            if bad := _non_finite(named):
                raise NonFiniteError(f"step {step}: {group}: tensor {bad!r} is not finite; the checkpoint is not saved")
        if not self.path.is_dir():
            raise ResourceError(f"{self.path}: the run folder is missing, with checkpoint {step} and the earlier ones")
        self.metrics.sync()
        journal = {"journal_length": self.metrics.length, "journal_sha256": self.metrics.digest}
        document = {"step": step, **journal, "state": state}
        target = self._checkpoints() / f"step-{step:09d}"
        if os.path.lexists(target) and self._same_checkpoint(target, tensors, document):
            return
        with new_folder(target) as folder:
            for group, named in tensors.items():
                write_tensors(folder / f"{group}.safetensors", named)
            write_json(folder / "state.json", document)
        verify_folder(target)
        before = [other for other in self.checkpoint_steps() if other < step]
        for old in before[: max(0, len(before) - keep + 1)]:
            if old not in milestones:
                store.remove_folder(self._checkpoints() / f"step-{old:09d}")

    def checkpoint_steps(self) -> list[int]:
        matches = (_STEP.fullmatch(name) for name in os.listdir(self._checkpoints()))
        return sorted(int(match[1]) for match in matches if match and match[0] == f"step-{int(match[1]):09d}")

    def load_checkpoint(self, step: int | None = None) -> tuple[int, dict[str, dict[str, "torch.Tensor"]], dict] | None:
        """Load (step, tensors, state) of checkpoint `step` (default: the newest intact one); None if there is none.

        Raises:
            InputError: There is no checkpoint `step`.
            DamagedError: Checkpoint `step` is damaged or has non-finite weights, or no checkpoint is intact. Without
                `step`, damaged checkpoints are skipped with a warning.
        """
        steps = self.checkpoint_steps()
        if step is not None:
            if step not in steps:
                raise InputError(f"{self._checkpoints()}: has no step {step} (available: {steps or 'none'})")
            return step, *self._read_checkpoint(step)
        for newest in reversed(steps):
            try:
                return newest, *self._read_checkpoint(newest)
            except DamagedError as error:
                if newest not in self.checkpoint_steps():  # an active writer has replaced it
                    return self.load_checkpoint()
                warnings.warn(f"skipped checkpoint: {error}", stacklevel=2)
        if steps != self.checkpoint_steps():  # an active writer has replaced those listed
            return self.load_checkpoint()
        if steps:
            raise DamagedError(f"{self._checkpoints()}: none of {len(steps)} checkpoints is complete; start a new run")
        return None

    def _checkpoints(self) -> Path:
        folder = self.path / "checkpoints"
        if folder.is_symlink() or not folder.is_dir():
            raise DamagedError(f"{folder}: is missing, or is a link, which is not followed")
        return folder

    def _read_checkpoint(self, step: int) -> tuple[dict[str, dict[str, "torch.Tensor"]], dict]:
        folder = self._checkpoints() / f"step-{step:09d}"
        files = store.read_manifest(folder)["files"]
        data = store.read_entry(folder, "state.json", files.get("state.json"), store.MANIFEST)
        document = store.parse(data, str(folder / "state.json"))
        keys = {"step", "journal_length", "state"}  # "journal_sha256" is new in 0.3
        if not isinstance(document, dict) or document.keys() - {"journal_sha256"} != keys:
            raise DamagedError(f"{folder / 'state.json'}: does not contain the state of a checkpoint")
        length, journal = document["journal_length"], self.path / "metrics.jsonl"
        if document["step"] != step or not isinstance(length, int) or not isinstance(document["state"], dict):
            raise DamagedError(
                f"{folder / 'state.json'}: contains step {document['step']!r} instead of {step}, or no state"
            )
        if not journal.is_file() or journal.stat().st_size < length:
            raise DamagedError(f"{journal}: shorter than the {length} bytes recorded by checkpoint {step}")
        before = document.get("journal_sha256", "")
        if before and _digest(disk.read_bytes(journal, managed=True)[:length]) != before:
            raise DamagedError(f"{journal}: altered within the {length} bytes recorded by checkpoint {step}")
        tensors = {}
        for name in sorted(files.keys() - {"state.json"}):
            data = store.read_entry(folder, name, files[name], store.MANIFEST)
            named = tensors[name.removesuffix(".safetensors")] = store.parse_tensors(data, str(folder / name))
            if bad := _non_finite(named):
                raise DamagedError(f"{folder / name}: tensor {bad!r} is not finite")
        return tensors, {**document["state"], "journal_length": length}

    def _same_checkpoint(self, target: Path, tensors: dict[str, dict[str, "torch.Tensor"]], document: dict) -> bool:
        try:
            files = verify_folder(target)["files"]
        except DamagedError as error:
            aside = target.parent / f"damaged-{target.name}-{os.urandom(4).hex()}"
            warnings.warn(f"checkpoint set aside as {aside.name}: {error}", stacklevel=3)
            store.move_folder(target, aside)
            return False
        ours = {f"{group}.safetensors": _digest(store.tensor_bytes(named)) for group, named in tensors.items()}
        ours["state.json"] = _digest(store.json_bytes(document, "state"))
        if ours != {name: entry["sha256"] for name, entry in files.items()}:
            raise RefusedError(f"{target}: exists with other content; remove this folder, or resume from a later step")
        return True

    # ----------------------------------------------------------------------------------------------------------------

    def mark_done(self, summary: dict) -> None:
        self.metrics.sync()
        self.timing.sync()
        done = store.json_bytes(summary, "done")
        seals.write_seal(self.path, "run", {"finished_by": environment()}, coming={"done.json": done})
        write_bytes(self.path / "done.json", done)

    @property
    def done(self) -> dict | None:
        """Return the summary of a finished run after checking its files; None for an unfinished run."""
        path = self.path / "done.json"
        if not os.path.lexists(path):
            return None
        seals.open_sealed(self.path, weights=False)
        summary = read_json(path, managed=True)
        if not isinstance(summary, dict):
            raise DamagedError(f"{path}: not a summary")
        return summary

    @property
    def sealed(self) -> bool:
        return seals.read_seal(self.path) is not None


def validate_name(name: str, field: str) -> str:
    """Return `name` if every file system allows it, else raise InputError.

    Names have 1 to 100 letters, digits and ``. _ -``; they do not start with a dot or dash, end with a dot, or name a
    Windows device.
    """
    allowed = isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name)
    if not allowed or name.endswith(".") or _DEVICE_NAME.fullmatch(name):
        raise InputError(
            f"{field}: {str(name)[:100]!r} cannot name a file; use 1 to 100 letters, digits, '_', '-' and '.', "
            "with no '-' or '.' first and no '.' last"
        )
    return name


def config_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return a line for each value that differs, such as ``training.accumulation_steps: 1 -> 2``."""
    lines = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after, name = old.get(key), new.get(key), STORED_KEYS.get(key, key)
        if key in old and key in new and isinstance(before, dict) and isinstance(after, dict):
            lines += [f"{name}.{line}" for line in config_difference(before, after)]
            continue
        left = json.dumps(before, sort_keys=True) if key in old else "absent"
        right = json.dumps(after, sort_keys=True) if key in new else "absent"
        if left != right:
            lines.append(f"{name}: {left} -> {right}")
    return lines


def _non_finite(named: dict[str, "torch.Tensor"]) -> str | None:
    import torch

    for name, tensor in named.items():
        if (tensor.is_floating_point() or tensor.is_complex()) and not torch.isfinite(tensor).all():
            return name
    return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
