"""Trials with decompression bombs, links in finished folders, calls from threads and processes, and wheels."""

import base64
import bz2
import concurrent.futures
import contextlib
import csv
import gzip
import hashlib
import io
import lzma
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hmmscope as hs
from hmmscope.errors import HmmscopeError
from hmmscope.processes.files import load_process
from hmmscope.storage import packed
from seal_trials import READ, called, files_of, rooms
from training_crash import fork, wait
from trials import LONGEST, Report, place_of, trial

ROOT = Path(__file__).parents[2]
#: Memory that reading one compressed file may take: twice the limit of 1 GiB for its unpacked content.
_MEMORY = 2 << 30
#: Unpacked sizes of compressed files, in bytes.
_SIZES = tuple(size << 20 for size in (1100, 2100))
_NONE, _REFUSED, _WRONG = range(3)


def _bomb(opener: Callable[..., Any], path: Path, byte: bytes, size: int) -> None:
    with opener(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(byte * (1 << 20))


def _npz_bomb(path: Path, size: int) -> None:
    head = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({size // 8},), }}".ljust(117).encode() + b"\n"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("tokens.npy", "w", force_zip64=True) as file,
    ):
        file.write(b"\x93NUMPY\x01\x00v\x00" + head)
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))


@trial("bombs")
def bombs(folder: Path, number: int, rng: random.Random) -> Report:
    """Read small files that unpack to gigabytes: they must be refused in one line, in bounded time and memory."""
    report = Report(
        "G9", "compressed files that unpack to gigabytes (xz, gzip, bzip2, npz), through each of their readers"
    )
    most = 0
    readers: dict[str, list[Callable[[Path], Any]]] = {
        ".json.xz": [lambda path: list(packed.seed_parts(path)), packed._read_table],
        ".txt.xz": [hs.SequenceData, hs.read_vectors],
        ".csv.gz": [hs.SequenceData, hs.read_vectors],
        ".txt.bz2": [hs.SequenceData, hs.read_vectors],
        ".npz": [hs.SequenceData, load_process],
    }
    openers: dict[str, Any] = {".xz": partial(lzma.open, preset=0), ".gz": partial(gzip.open, compresslevel=1)}
    openers[".bz2"] = partial(bz2.open, compresslevel=1)
    made: dict[tuple[str, bytes, int], Path] = {}
    for _ in range(number):
        ending, byte, size = rng.choice(list(readers)), rng.choice((b"0", b"[", b"\n")), rng.choice(_SIZES)
        if (ending, byte, size) not in made:
            path = made[ending, byte, size] = folder / f"x{len(made)}{ending}"
            _npz_bomb(path, size) if ending == ".npz" else _bomb(openers[path.suffix], path, byte, size)
        path = made[ending, byte, size]
        read = rng.choice(readers[ending])

        def attempt(read: Callable[[Path], Any] = read, path: Path = path) -> int:
            try:
                read(path)
            except HmmscopeError as error:
                return _REFUSED if 0 < len(str(error)) < 400 else _WRONG
            except BaseException as error:
                (folder / "said").write_text(f"{type(error).__name__}: {error} at {place_of(error)}")
                return _WRONG
            return _NONE

        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrusage(resource.RUSAGE_CHILDREN)
        code = wait(fork(attempt))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken = after.ru_utime + after.ru_stime - began.ru_utime - began.ru_stime
        grown = (after.ru_maxrss - before) * 1024
        most = max(most, grown)
        report.trials += 1
        what = f"{ending} of {path.stat().st_size} bytes that are {size >> 20} MiB"
        if code != _REFUSED:
            report.found(f"{what}: {code}: {(folder / 'said').read_text() if code == _WRONG else 'read, or ended'}")
        elif taken > LONGEST or grown > _MEMORY:
            report.found(f"{what}: {taken:.1f} s, {grown >> 20} MiB")
    report.note = f"at most {most >> 20} MiB of memory"
    return report


@trial("links")
def links(folder: Path, number: int, rng: random.Random) -> Report:
    """Replace a file or folder of a finished folder by a link: `check` must refuse it, no command may follow it silently."""
    report = Report(
        "G9",
        "a file or folder of a finished folder replaced by a link (to a copy, nothing, itself, a device or a system file)",
    )
    place = folder / "room"
    place.mkdir()
    names, codes = rooms(place), dict[int, int]()
    whole = folder / "whole"
    shutil.copytree(place, whole, symlinks=True)
    for _ in range(number):
        name = rng.choice(names)
        inside = [path for path in sorted((place / name).rglob("*")) if path.is_dir()]
        path = rng.choice(files_of(place / name) if rng.random() < 0.7 else inside or files_of(place / name))
        target = rng.choice(("copy", "nothing", "itself", "/dev/zero", "/etc/passwd"))
        away = folder / "away"
        if target == "copy":
            shutil.copytree(path, away) if path.is_dir() else shutil.copyfile(path, away)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.symlink_to({"copy": away, "nothing": folder / "nothing", "itself": path}.get(target, Path(target)))
        words = rng.choice([["check", name], *READ[name]])
        with contextlib.chdir(place):
            code, said, read = called(words)
        report.trials += 1
        codes[code] = codes.get(code, 0) + 1
        what = f"{' '.join(words)[:60]}: {path.relative_to(place)} to {target}: {code}"
        followed = any(path == one or path in one.parents for one in read)
        if code not in (0, 2, 3, 4, 5) or "Traceback" in said:
            report.found(f"{what}: {said[-150:]}")
        elif (
            code == 0
            and (followed or (words[0] == "check" and place / words[1] in path.parents))
            and "not verified" not in said
        ):
            report.found(f"{what}: followed, or not noticed: {said[-100:]}")
        shutil.rmtree(place)
        shutil.copytree(whole, place, symlinks=True)
        for made in (away,):
            shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    report.note = "exit codes " + ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    return report


def answers(seed: int) -> str:
    """Return a digest of the results of several public functions on a random HMM and dataset."""
    rng = np.random.default_rng(seed)
    hmm = hs.make_process("random-hmm", num_states=int(rng.integers(2, 6)), num_symbols=3, seed=seed)
    dataset = hs.ProcessDataset(hmm, length=int(rng.integers(4, 40)), seed=seed)
    tokens = dataset[0:8].tokens
    model = hs.make_model("rnn", num_symbols=3, vocab_size=dataset.vocab_size, width=8, seed=seed)
    fitted = hs.fit(tokens.numpy(), 2, seed=seed, options=hs.FitOptions(num_restarts=1, max_iterations=3, quiet=True))
    parts = [
        tokens,
        hs.filter_beliefs(hmm, tokens).beliefs,
        hs.smooth_beliefs(hmm, tokens),
        hs.log_likelihood(hmm, tokens),
        hs.sample_state_paths(hmm, tokens, num_paths=2, seed=seed),
        fitted.hmm.params.transitions(),
        torch.tensor(
            [row["r2"] for row in hs.probe(model, dataset, num_samples=16, shuffled_labels=False) if "r2" in row]
        ),
    ]
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()


def _in_fork(seed: int) -> str:
    read, write = os.pipe()
    child = fork(lambda: os.write(write, answers(seed).encode()) and 0)
    os.close(write)
    with os.fdopen(read) as said:
        found = said.read()
    return found if wait(child) == 0 else "ended"


@trial("callers")
def callers(folder: Path, number: int, rng: random.Random) -> Report:
    """Make the same calls alone, from eight threads, and in forked and spawned processes: the bits must be equal."""
    report = Report(
        "G5", "bits of public functions called from several threads at once, and from forked and spawned processes"
    )
    kinds: dict[str, int] = {}
    spawned = concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    with concurrent.futures.ThreadPoolExecutor(8) as threads, spawned:
        while report.trials < number:
            seeds = [rng.randrange(2**31) for _ in range(8)]
            alone = [answers(seed) for seed in seeds]
            ways: dict[str, list[str]] = {
                "threads": list(threads.map(answers, seeds)),
                "forked": [_in_fork(seed) for seed in seeds],
                "forked beside threads": list(threads.map(_in_fork, seeds)),
                "spawned": list(spawned.map(answers, seeds)),
            }
            for way, found in ways.items():
                for seed, one, other in zip(seeds, alone, found, strict=True):
                    report.trials += 1
                    kinds[way] = kinds.get(way, 0) + 1
                    if one != other:
                        report.found(f"{way}, seed {seed}: {other[:8]} for {one[:8]}")
    report.note = ", ".join(f"{count} {way}" for way, count in kinds.items())
    return report


@trial("wheels")
def wheels(folder: Path, number: int, rng: random.Random) -> Report:
    """Build the three wheels twice: both builds must be equal, with exactly the files of the tree and their digests."""
    report = Report(
        "G25",
        "files in the wheels of the three packages: same files and digests as in the source, and equal in two builds",
    )
    for name, where in (
        ("hmmscope", ROOT),
        ("hmmscope_papers", ROOT / "papers"),
        ("hmmscope_studies", ROOT / "studies"),
    ):
        made = [_wheel(where, folder / f"{name}{turn}") for turn in range(2)]
        report.trials += 1
        if made[0].read_bytes() != made[1].read_bytes():
            report.found(f"{name}: two builds differ")
        with zipfile.ZipFile(made[0]) as wheel:
            data = {one: wheel.read(one) for one in wheel.namelist()}
        record = next(one for one in data if one.endswith(".dist-info/RECORD"))
        listed = {row[0]: row[1] for row in csv.reader(io.StringIO(data[record].decode()))}
        tree = {
            path.relative_to(where / "src").as_posix(): path
            for path in (where / "src" / name).rglob("*")
            if path.is_file()
        }
        tree = {one: path for one, path in tree.items() if "__pycache__" not in one}
        for one in sorted({*data, *tree} - {record})[:number]:
            report.trials += 1
            digest = base64.urlsafe_b64encode(hashlib.sha256(data.get(one, b"")).digest()).rstrip(b"=").decode()
            ours = ".dist-info/" in one or (one in tree and data.get(one) == tree[one].read_bytes())
            if not ours or listed.get(one) != f"sha256={digest}" or one.endswith((".pyc", ".pth", ".so")):
                report.found(f"{name}: {one}: {'is not as in the tree' if not ours else listed.get(one)}")
    report.note = "built in the sandbox without a network"
    return report


def _wheel(where: Path, out: Path) -> Path:
    words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(where)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(done.stdout[-200:] + done.stderr[-200:])
    (wheel,) = out.glob("*.whl")
    return wheel
