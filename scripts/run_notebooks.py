"""Run the notebooks of the documentation, each in an empty folder with one thread, and store their outputs.

python scripts/run_notebooks.py                       run all in place, without their install cells
python scripts/run_notebooks.py --check [FILE...]     only check that they run
python scripts/run_notebooks.py --wheels [FILE...]    check in a new environment, where install cells install built wheels
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOKS = Path("docs/notebooks")
#: Limit of a notebook in seconds of two cores, without its install cell.
MOST_SECONDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that notebooks run")
    parser.add_argument("--wheels", action="store_true", help="check in a new environment, from built wheels")
    parser.add_argument("--install", action="store_true", help="run install cells too")
    parser.add_argument("files", nargs="*", type=Path, help="default: all of docs/notebooks")
    options = parser.parse_args()
    files = options.files or sorted(NOTEBOOKS.glob("*.ipynb"))
    if options.wheels:
        with tempfile.TemporaryDirectory() as folder:
            from_wheels(files, Path(folder))
        return
    for path in files:
        run(path, check=options.check, install=options.install)


def run(path: Path, *, check: bool, install: bool) -> None:
    """Run one notebook; SystemExit if it takes too long."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["OMP_NUM_THREADS"] = "1"  # for the kernels of notebooks, because another order of sums changes digits
    notebook = nbformat.read(path, 4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    if "install" not in first.metadata.get("tags", []):
        raise SystemExit(f"{path}: begins without an install cell")
    source = first.source
    first.source = source if install else "None"
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=1800, record_timing=False, coalesce_streams=True, resources={"metadata": {"path": folder}}
        )
        begun: list[float] = []
        client.on_cell_executed = lambda **_: begun.append(time.monotonic())
        client.execute()
    first.source, spent = source, begun[-1] - begun[0]
    if not check:
        nbformat.write(notebook, path)
    print(f"{path}: {spent:.0f} s", flush=True)
    if spent > MOST_SECONDS:
        raise SystemExit(f"{path}: takes {spent:.0f} s, of at most {MOST_SECONDS}")


def from_wheels(files: list[Path], folder: Path) -> None:
    """Check notebooks in a new environment with Jupyter and torch only."""
    dist, python = folder / "dist", folder / "venv/bin/python"
    pip = [python, "-m", "pip", "-q"]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    for source in (ROOT, ROOT / "papers", ROOT / "studies"):
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", dist, source], check=True)
    pins = ROOT / "constraints" / "torch.txt"
    subprocess.run([*pip, "install", "-c", pins, "torch", "nbclient", "ipykernel"], check=True)
    places = f"{os.environ.get('PIP_FIND_LINKS', '')} {dist}".strip()
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"PIP_FIND_LINKS": places, "PIP_CONSTRAINT": f"{os.environ.get('PIP_CONSTRAINT', '')} {pins}".strip()}
    words = [python, "-P", __file__, "--check", "--install", *(path.resolve() for path in files)]
    subprocess.run(words, check=True, env=env)


if __name__ == "__main__":
    main()
