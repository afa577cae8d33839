"""Splits a checkout into three distributions: hmmscope, papers/ and studies/. See README.md beside this file.

    python scripts/split/split.py TREE                 every stage
    python scripts/split/split.py TREE --stage 2       one stage, of a tree to which those before were applied
    python scripts/split/split.py TREE --link VENV     make the packages of the tree importable in an environment
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from tree import Tree

STAGES = tuple(n for n in range(1, 6) if Path(__file__).with_name(f"stage{n}.py").exists())


def sources(root: Path) -> list[Path]:
    """The roots of the distributions."""
    return [root, *(root / name for name in ("papers", "studies") if (root / name / "pyproject.toml").exists())]


def write_metadata(root: Path, site: Path) -> None:
    """Metadata of each distribution, with its entry points, as an installation would leave it in a folder of packages."""
    version = re.search(r'^__version__ = "(.*)"', (root / "src/hmmscope/__init__.py").read_text(), re.MULTILINE)[1]
    for folder in sources(root):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = site / f"{project['name'].replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
        groups = {"console_scripts": project.get("scripts", {})} | project.get("entry-points", {})
        parts = [
            f"[{name}]\n" + "".join(f"{key} = {to}\n" for key, to in points.items())
            for name, points in groups.items()
            if points
        ]
        (info / "entry_points.txt").write_text("\n".join(parts))


def link(root: Path, venv: Path) -> None:
    """What `pip install -e` of the three does, without a build: a path file, and metadata."""
    (site,) = venv.glob("lib/python3*/site-packages")
    own = [line for path in site.glob("own.pth") for line in path.read_text().splitlines()]
    (site / "own.pth").write_text("\n".join(dict.fromkeys([*(f"{one}/src" for one in sources(root)), *own])) + "\n")
    write_metadata(root, site)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tree", type=Path, help="a git checkout without changes that matter")
    parser.add_argument("--stage", type=int, choices=STAGES, help="only this one")
    parser.add_argument("--link", type=Path, metavar="VENV", help="only write path file and entry points into an environment")
    options = parser.parse_args()
    if options.link:
        link(options.tree.resolve(), options.link)
        return 0
    tree = Tree(options.tree)
    for stage in (options.stage,) if options.stage else STAGES:
        begun = time.monotonic()
        importlib.import_module(f"stage{stage}").run(tree)
        print(f"stage {stage}: {time.monotonic() - begun:.0f} s", flush=True)
    tree.finish()
    _derived(tree)
    for line in [*(f"left: {one}" for one in tree.notes), *(f"by hand: {one}" for one in tree.by_hand)]:
        print(line)
    return int(bool(tree.by_hand))


def _derived(tree: Tree) -> None:
    """What follows from the source: the table of CONTRIBUTING, and what the verbs list."""
    catalogue = (
        "from hmmscope.lab.verbs.catalogue import CATALOGUE, make_catalogue; from hmmscope.storage import store; "
        "store.write_json(CATALOGUE, make_catalogue())"
    )
    with tempfile.TemporaryDirectory() as site:
        write_metadata(tree.root, Path(site))
        paths = os.pathsep.join([site, *(f"{one}/src" for one in sources(tree.root))])
        for words in (["scripts/check_architecture.py", "--write"], ["-c", catalogue]):
            done = subprocess.run(
                [sys.executable, *words],
                cwd=tree.root,
                capture_output=True,
                text=True,
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            )
            if done.returncode:
                tree.by_hand.append(f"{words[0]} {words[1][:20]}: {' '.join(done.stderr.strip().splitlines()[-1:])}")


if __name__ == "__main__":
    sys.exit(main())
