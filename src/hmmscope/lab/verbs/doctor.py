"""The command `check` without folders: test this installation."""

import importlib.util
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import hmmscope
from hmmscope.kernels.cpu import sample_paths
from hmmscope.kernels.philox import philox_reference, philox_words
from hmmscope.kernels.reference import sample_paths_reference
from hmmscope.processes.make import make_process
from hmmscope.storage import store
from hmmscope.text import say

#: Known answer of Philox4x32-10 for counter and key zero (Random123, kat_vectors).
_PHILOX_ZERO = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def doctor() -> int:
    failed = 0
    for name, ok, text in checks():
        say(f"{'ok  ' if ok else 'FAIL'}  {name:<22} {text}")
        failed += not ok
    return 5 if failed else 0


def checks() -> Iterator[tuple[str, bool, str]]:
    versions = f"hmmscope {hmmscope.__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    yield "versions", True, f"{versions}, NumPy {np.__version__}"
    yield "threads", True, f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    compiled = tuple(philox_words(np.zeros((1, 4), np.uint64), (0, 0))[0].tolist())
    known = philox_reference((0, 0, 0, 0), (0, 0)) == _PHILOX_ZERO == compiled
    yield "random numbers", known, f"Philox4x32-10 gives {'its test vector' if known else compiled}"
    yield "sampler", *_sampler()
    yield "disk", *_disk()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU was found; everything runs on the CPU"
    yield "GPU", True, gpu
    present = importlib.util.find_spec("hmmlearn") is not None
    absent = "not installed; only hmmscope.interop.to_hmmlearn needs it: pip install 'hmmscope[hmm]'"
    yield "hmmlearn", True, "present" if present else absent


def _sampler() -> tuple[bool, str]:
    process = make_process("random-mixture", num_components=3, num_states=5, num_symbols=4)
    tables, starts = process.alias_tables, np.arange(40) % 10 == 0
    arguments = (np.arange(20), np.arange(20) % 3, starts, *tables[1:])
    fast, plain = sample_paths((1, 2), *arguments), sample_paths_reference((1, 2), *arguments)
    same = all((a == b).all() for a, b in zip(fast, plain, strict=True))
    return (
        same,
        "the compiled and the plain samplers give the same bits"
        if same
        else "the compiled and the plain samplers give DIFFERENT bits",
    )


def _disk() -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with store.new_folder(Path(folder) / "trial") as inside:
                store.write_json(inside / "trial.json", {"ok": True})
            store.verify_folder(Path(folder) / "trial")
        except Exception as error:
            return False, str(error)
    return True, "a folder can be written and verified"
