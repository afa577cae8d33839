"""Stage 3: what is kept of an experiment, and the protocols, stand with its distribution."""

import os
import re
import subprocess
import sys

import tables
from tree import Tree

SCALES = ("smoke", "small", "medium", "gpu", "paper")

KEPT = '''\
"""What is kept of experiments: each distribution has a folder results/, and they are read as one."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

from hmmscope.lab.evidence.ledger import SCALES
from hmmscope.lab.experiments.experiment import experiment_named

#: Folder of the distribution of a package.
OUTER = {"hmmscope_papers": "papers", "hmmscope_studies": "studies"}


class Kept:
    """The folders results/ of a checkout, or one scale of each, as a folder: ``RESULTS / "small" / "limits-fig2"``.

    Attributes:
        root: the checkout.
        parts: below results/.
    """

    def __init__(self, root: Path, *parts: str) -> None:
        self.root, self.parts = root, parts

    @property
    def parent(self) -> "Kept":
        """The same without its last part."""
        return Kept(self.root, *self.parts[:-1])

    def folders(self) -> list[Path]:
        """Where it is, in the order of dependency."""
        found = [self.root / name / "results" for name in ("", *OUTER.values())]
        return [place for folder in found if (place := folder.joinpath(*self.parts)).is_dir()]

    def __truediv__(self, name: str) -> Any:
        """A scale of all, or a path: where it is, or where it would be kept."""
        parts = (*self.parts, *PurePath(name).parts)
        if len(parts) == 1 and parts[0] in SCALES:
            return Kept(self.root, *parts)
        there = [place for folder in Kept(self.root).folders() if (place := folder.joinpath(*parts)).exists()]
        return there[0] if there else self.root / home(parts) / "results" / PurePath(*parts)

    def iterdir(self) -> Iterator[Path]:
        """What is in them."""
        return chain.from_iterable(folder.iterdir() for folder in self.folders())

    def glob(self, pattern: str) -> Iterator[Path]:
        """What is in them by a pattern."""
        return chain.from_iterable(folder.glob(pattern) for folder in self.folders())

    def rglob(self, pattern: str) -> Iterator[Path]:
        """The same, at any depth."""
        return chain.from_iterable(folder.rglob(pattern) for folder in self.folders())


def home(parts: tuple[str, ...]) -> str:
    """The folder of the distribution that an experiment below results/ is of; the root's for anything else."""
    if len(parts) < 2 or parts[0] not in SCALES:
        return ""
    package = type(experiment_named(parts[1].partition("@")[0])).__module__.partition(".")[0]
    return OUTER.get(package, "")


#: Of this checkout.
RESULTS = Kept(Path(__file__).resolve().parents[1])
'''


def run(tree: Tree) -> None:
    _move(tree)
    tree.write("scripts/kept_results.py", KEPT)
    _readers(tree)
    _scripts(tree)
    _documents(tree)
    _ledger(tree)


def _move(tree: Tree) -> None:
    for scale in SCALES:
        names = sorted({one.split("/")[2] for one in tree.listed() if one.startswith(f"results/{scale}/")})
        for package in ("papers", "studies"):
            own = [f"results/{scale}/{name}" for name in names if tables.package_of(name) == package]
            tree.move_into(own, f"{package}/results/{scale}")
    names = [one for one in tree.listed() if re.fullmatch(r"protocols/.*\.json", one)]
    for package in ("papers", "studies"):
        own = [one for one in names if tables.package_of(one[10:].removesuffix(".json")) == package]
        tree.move_into(own, f"{package}/protocols")


_ROOT = r'(?:Path\(__file__\)(?:\.resolve\(\))?\.parents\[\d\]|ROOT)'
#: Folders in results/ that are of no experiment.
_ELSE = r'(?!/? ?"?(?:ledger|controls|bench|hmm-bench|laboratory|fit-statistics|control-rates)\b)'


def _readers(tree: Tree) -> None:
    """Tests and scripts that name a folder."""
    for name in tree.texts(".py"):
        if not name.startswith(("tests/", "papers/tests/", "studies/tests/", "scripts/")) or name.endswith("kept_results.py"):
            continue
        before = tree.read(name)
        text = re.sub(rf'{_ROOT} / "results"(?! / "(?:ledger|controls|bench|hmm-bench|laboratory|fit-statistics|control-rates)")', "kept_results.RESULTS", before)
        text = re.sub(rf'{_ROOT} / "results/((?:small|medium|gpu|paper)/[^"]+)"', r'kept_results.RESULTS / "\1"', text)
        text = re.sub(r"\(kept_results\.RESULTS\)", "kept_results.RESULTS", text)
        if text != before:
            if "\nimport kept_results\n" not in text:
                text = _imported(text)
            tree.write(name, text)
    tree.replace({r'removeprefix\("results/"\)': 'partition("results/")[2]'}, ["tests/evidence/test_decided.py"])
    path = "tests/storage/test_seals.py"
    tree.edit(path, 'tmp_path / "results" / "small" / "limits-table1"', 'tmp_path / "papers" / "results" / "small" / "limits-table1"')
    text = tree.read(path)
    if 'runpy.run_path(str(ROOT / "scripts" / "write_pages.py"))' not in text:
        tree.by_hand.append(f"{path}: how write_pages is run")


def _imported(text: str) -> str:
    """With `import kept_results` after the docstring; the formatter puts it in its place."""
    lines = text.splitlines(keepends=True)
    at = next(at for at, line in enumerate(lines) if re.match(r"(import|from) \w", line))
    return "".join([*lines[:at], "import kept_results\n", *lines[at:]])


def _scripts(tree: Tree) -> None:
    path = "scripts/write_pages.py"
    tree.edit_re(path, r'^RESULTS, PAGES, PICTURES = Path\("results"\), ', "RESULTS, PAGES, PICTURES = Kept(Path()), ")
    if "from kept_results import Kept\n" not in tree.read(path):
        tree.edit(path, "from PIL import Image\n", "from kept_results import Kept\nfrom PIL import Image\n")
    path = "scripts/article.py"
    tree.edit(path, 'row["folder"] == f"results/{folder}"', 'row["folder"].partition("results/")[2] == folder')
    path = "scripts/check_architecture.py"
    tree.edit_re(
        path,
        r'^    size = sum\(path\.stat\(\)\.st_size for path in .*\n',
        '    folders = [ROOT / name / "results" for name in ("", "papers", "studies")]\n'
        '    size = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())\n',
    )
    text = tree.read(path)
    if "kept_results" in text:  # it is read without the library
        tree.write(path, text.replace("import kept_results\n", ""))
    tree.edit_re("scripts/map_identities.py", r'ROOT\.glob\(f"results/\*/', 'ROOT.glob(f"*/results/*/')
    tree.edit("scripts/law_power.py", 'Path("results/small") / NAME', 'Path("studies/results/small") / NAME')
    path = "scripts/campaign.sh"
    tree.edit(path, '  [ -f "protocols/$name.json" ] ||', '  protocol=$(ls */protocols/"$name.json" 2>/dev/null || true)\n  [ -f "$protocol" ] ||')
    tree.edit(path, 'begin="--protocol protocols/$name.json"', 'begin="--protocol $protocol"')
    tree.edit(path, '[ -d "results/medium/$name" ] && begin="--reuse results/medium/$name"', 'kept=$(ls -d */results/medium/"$name" 2>/dev/null || true)\n  [ -d "$kept" ] && begin="--reuse $kept"')
    tree.notes.append("scripts/compare_results.py: compares the folder results/ of a revision; give it those of papers/ and studies/")
    tree.edit(
        "src/hmmscope/lab/experiments/decidable.py",
        "    found = [(RESULTS / scale).glob(pattern) for scale in scales for pattern in (name, f\"{name}@*\")]\n",
        "    found = [\n"
        "        [*(RESULTS / scale).glob(pattern), *Path().glob(f\"*/{RESULTS}/{scale}/{pattern}\")]\n"
        "        for scale in scales\n"
        "        for pattern in (name, f\"{name}@*\")\n"
        "    ]\n",
    )
    tree.replace(
        {r"from the root of the repository: <scale>/<experiment>": "from the root of the repository, or of a folder in it: <scale>/<experiment>"},
        ["src/hmmscope/lab/experiments/decidable.py"],
    )


def _placed(text: str) -> str:
    """Paths of results and protocols in a text, with their distribution."""

    def result(found: re.Match[str]) -> str:
        return f"{found[1]}{tables.package_of(found[3])}/results/{found[2]}/{found[3]}"

    text = re.sub(r"(?<![\w/*}])((?:\.\./)*)results/(small|medium|gpu|paper)/([a-z][\w.-]*[\w])", result, text)
    text = re.sub(r"(?<![\w/*}])results/(small|medium|gpu|paper)/(?=[*`\s,]|$)", r"*/results/\1/", text)
    return re.sub(
        r"(?<![\w/*}])((?:\.\./)*)protocols/([a-z][\w.@-]*)\.json",
        lambda found: f"{found[1]}{tables.package_of(found[2])}/protocols/{found[2]}.json",
        text,
    )


def _documents(tree: Tree) -> None:
    for name in tree.texts(".md", ".toml", ".py", ".sh", ".tex", "Makefile"):
        if name.endswith((".py", ".sh")) and "results/" not in tree.read(name) and "protocols/" not in tree.read(name):
            continue
        before = tree.read(name)
        after = _placed(before)
        if after != before:
            tree.write(name, after)


def _ledger(tree: Tree) -> None:
    """Its rows name the folders; its seal has its digest."""
    path = "results/ledger/ledger.json"
    before = tree.read(path)
    after = _placed(before)
    if after == before:
        return
    tree.write(path, after)
    code = "from pathlib import Path; from hmmscope.storage import seals; seals.keep(Path('results/ledger'), ['ledger.json'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree.root,
        env=os.environ | {"PYTHONPATH": str(tree.root / "src")},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        tree.by_hand.append(f"results/ledger: seal it again: {done.stderr.strip().splitlines()[-1:]}")
