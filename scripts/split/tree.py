"""A checkout that stages change: moves by git, exact replacements, imports rewritten by their place in the syntax tree."""

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

#: Never rewritten: data, history and the script itself.
KEPT = ("scripts/split/", "CHANGELOG.md", "constraints/", "docs/migration.md", "docs/experiments/ledger-changes.md")
TEXT = (".py", ".md", ".toml", ".ipynb", ".yml", ".yaml", ".sh", ".tex", "Makefile", ".ci/run", ".txt", ".cff", ".gitignore")
DATA = re.compile(r"^((papers|studies)/)?results/")


class Tree:
    """A checkout.

    Attributes:
        root: its folder.
        by_hand: edits whose place was not found, each a line.
        notes: what no stage does.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.by_hand: list[str] = []
        self.notes: list[str] = []

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True, text=True).stdout

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def read(self, path: str) -> str:
        return (self.root / path).read_text("utf-8")

    def write(self, path: str, text: str) -> None:
        """Write a file, and add it to the index if it is new."""
        place = self.root / path
        new = not place.exists()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
        if new:
            self.git("add", "--intent-to-add", path)

    def move(self, source: str, target: str) -> None:
        """`git mv` of a file, or of a folder into one that is not there; nothing if it was done."""
        if not self.has(source):
            if not self.has(target):
                self.by_hand.append(f"{source}: is not there, for {target}")
            return
        (self.root / target).parent.mkdir(parents=True, exist_ok=True)
        if (self.root / source).is_dir() and self.has(target):
            for name in sorted(self.git("ls-files", "-z", source).split("\0")[:-1]):
                self.move(name, target + name[len(source) :])
            return
        self.git("mv", "-k", source, target)
        if not self.has(target):
            self.by_hand.append(f"{source}: could not be moved to {target}")

    def move_into(self, names: list[str], folder: str) -> None:
        """`git mv` of many files or folders into a folder at once."""
        there = [name for name in names if self.has(name)]
        if there:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            self.git("mv", *there, folder)

    def remove(self, path: str) -> None:
        if self.has(path):
            self.git("rm", "-q", "-f", path)

    def listed(self) -> list[str]:
        """Every file that git knows and that is there."""
        return sorted(name for name in set(self.git("ls-files", "-z").split("\0")) if name and self.has(name))

    def texts(self, *suffixes: str) -> list[str]:
        """Files whose text may be rewritten."""
        return [
            name
            for name in self.listed()
            if name.endswith(suffixes or TEXT) and not name.startswith(KEPT) and not DATA.match(name)
        ]

    def edit(self, path: str, old: str, new: str, *, every: bool = False) -> None:
        """Replace a text that stands there once, or everywhere; note it if it does not, unless the new one is there."""
        if not self.has(path):
            self.by_hand.append(f"{path}: is not there")
            return
        text = self.read(path)
        count = text.count(old)
        if (not every and count != 1) or count == 0:
            if not (new and new in text):
                self.by_hand.append(f"{path}: {count} places for {old[:90]!r}")
            return
        self.write(path, text.replace(old, new))

    def edit_re(self, path: str, pattern: str, new: str | Callable[[re.Match[str]], str]) -> None:
        """The same of a pattern, everywhere in a file."""
        text = self.read(path)
        made, count = re.subn(pattern, new, text, flags=re.MULTILINE)
        if count:
            self.write(path, made)
        elif not (isinstance(new, str) and new in text):
            self.by_hand.append(f"{path}: no place for {pattern[:90]!r}")

    def replace(self, pairs: Mapping[str, str] | Iterable[tuple[str, str]], files: Iterable[str]) -> list[str]:
        """Replace by patterns, in this order, wherever they match; the files that changed."""
        ready = [(re.compile(old), new) for old, new in dict(pairs).items()]
        changed = []
        for name in files:
            before = text = self.read(name)
            for pattern, new in ready:
                text = pattern.sub(new, text)
            if text != before:
                self.write(name, text)
                changed.append(name)
        return changed

    def finish(self) -> None:
        """Sort imports, break lines that became too long in texts, format, and take away what moved folders leave."""
        if importlib.util.find_spec("ruff") is None:
            self.by_hand.append("ruff is not installed: sort imports and format")
            return
        names = ["src", *(one for one in ("papers", "studies") if self.has(one)), "bench", "tests", "scripts"]
        names += ["conftest.py"] if self.has("conftest.py") else []
        ruff = [sys.executable, "-m", "ruff"]
        subprocess.run([*ruff, "check", "-q", "--select", "I", "--fix", *names], cwd=self.root, check=False)
        own = [one for one in self.git("diff", "HEAD", "--name-only", "-M", "--diff-filter=d").splitlines() if one.endswith(".py")]
        own = [one for one in own if self.has(one) and not one.startswith("scripts/split/")]
        if own:  # what nothing uses any more
            subprocess.run([*ruff, "check", "-q", "--select", "F401", "--fix", *own], cwd=self.root, check=False)
        words = ["check", "--exit-zero", "--select", "E501", "--output-format", "json", *names]
        found = subprocess.run([*ruff, *words], cwd=self.root, capture_output=True, text=True).stdout
        before = self.git("diff", "HEAD", "--name-only", "-M").splitlines()
        for one in sorted(json.loads(found or "[]"), key=lambda one: -one["location"]["row"]):
            name = Path(one["filename"]).resolve().relative_to(self.root).as_posix()
            if name in before or name.startswith(("papers/", "studies/")):
                self._break(name, one["location"]["row"])
        subprocess.run([*ruff, "format", "-q", *names], cwd=self.root, check=False)
        for folder in ("src/hmmscope", "src/hmmscope_papers", "papers", "studies", "tests", "results", "protocols"):
            self._empty(self.root / folder)

    def _break(self, name: str, row: int) -> None:
        """Break a line of a docstring or a comment at its last space before column 120."""
        lines = self.read(name).splitlines(keepends=True)
        line = lines[row - 1]
        begin = re.match(r"\s*(#:? )?", line)[0]
        at = line.rfind(" ", len(begin), 118)
        made = "".join([*lines[: row - 1], line[:at] + "\n" + begin + line[at + 1 :], *lines[row:]])
        try:
            after, before = (re.sub(r"(\s|\\n)+", "", ast.dump(ast.parse(one))) for one in (made, "".join(lines)))
        except SyntaxError:
            return
        if after == before:
            self.write(name, made)

    def _empty(self, folder: Path) -> None:
        """Remove folders that hold nothing but byte code and compiled functions: they would be packages without a file."""
        if not folder.is_dir():
            return
        for place, _, _ in sorted(os.walk(folder), reverse=True):
            path = Path(place)
            left = [one for one in path.iterdir()]
            compiled = all(one.suffix in (".pyc", ".nbi", ".nbc") or one.name == "__pycache__" for one in left)
            if path.is_dir() and path.name != "__pycache__" and compiled:
                shutil.rmtree(path)


def rename(modules: Mapping[str, str], text: str) -> str:
    """A module's text with other modules imported: ``from package import module`` is split by where the modules went."""
    if not any(old.rpartition(".")[2] in text for old in modules):
        return text
    lines, places = text.splitlines(keepends=True), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = {alias: f"{node.module}.{alias.name}" for alias in node.names}
            if any(name in modules for name in full.values()):
                places.append((node, full))
    for node, full in sorted(places, key=lambda one: -one[0].lineno):
        groups: dict[str, list[str]] = {}
        for alias, name in full.items():
            package, _, last = modules.get(name, name).rpartition(".")
            known = alias.asname or alias.name
            groups.setdefault(package, []).append(last if known == last and not alias.asname else f"{last} as {known}")
        indent = " " * node.col_offset
        end = lines[node.end_lineno - 1]
        note = re.search(r"  #.*$", end.rstrip("\n"))
        made = [
            f"{indent}from {package} import {', '.join(names)}{note[0] if note else ''}\n"
            for package, names in sorted(groups.items())
        ]
        lines[node.lineno - 1 : node.end_lineno] = made
    text = "".join(lines)
    return dotted(modules)(text)


def dotted(modules: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces dotted names of modules in any text, the longest first."""
    words = "|".join(re.escape(old) for old in sorted(modules, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w.])({words})(?![\w])")
    return lambda text: pattern.sub(lambda found: modules[found[1]], text)


def cells(text: str, change: Callable[[str], str]) -> str:
    """A notebook with the source of its code cells changed."""
    book = json.loads(text)
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            before = "".join(cell["source"])
            if (after := change(before)) != before:
                cell["source"] = after.splitlines(keepends=True)
    made = json.dumps(book, indent=1, ensure_ascii=False) + "\n"
    return made if made != text else text
