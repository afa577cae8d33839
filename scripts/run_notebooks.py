"""Run the notebooks of the documentation, each in an empty folder with one thread, and store their outputs.

python scripts/run_notebooks.py                      all, in place
python scripts/run_notebooks.py --check [FILE...]    only check that they run
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path("docs/notebooks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that notebooks run")
    parser.add_argument("files", nargs="*", type=Path, help="default: all of docs/notebooks")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the kernels: another order of sums changes digits
    for path in options.files or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, 4)
        with tempfile.TemporaryDirectory() as folder:
            where = {"metadata": {"path": folder}}
            NotebookClient(
                notebook, timeout=1800, record_timing=False, coalesce_streams=True, resources=where
            ).execute()
        if not options.check:
            nbformat.write(notebook, path)
        print(path, flush=True)


if __name__ == "__main__":
    main()
