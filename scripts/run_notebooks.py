"""Run the notebooks of the documentation, each in an empty folder, and keep what they show.

python scripts/run_notebooks.py                      all, in place
python scripts/run_notebooks.py --check [FILE...]    only whether they run
"""

import argparse
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path("docs/notebooks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("files", nargs="*", type=Path, help="default: all of docs/notebooks")
    options = parser.parse_args()
    for path in options.files or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, 4)
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(
                notebook, timeout=1800, record_timing=False, resources={"metadata": {"path": folder}}
            )
            client.execute()
        if not options.check:
            nbformat.write(notebook, path)
        print(path, flush=True)


if __name__ == "__main__":
    main()
