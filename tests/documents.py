"""Run the examples of a Markdown page in the order in which they stand, and compare what they print.

    python tests/documents.py PAGE        in an empty folder: examples write files

``python`` blocks share one interpreter. A ``text`` block right after one is what it prints. In ``console`` blocks a
line that begins with ``$ `` is a command for the shell, and the lines up to the next one are its output: standard
output, or standard error if the command fails. Without such lines the output is not compared.

Commands of hmmscope that ask nothing of the shell run in this interpreter, which has loaded the library once. With
``--serve`` in place of the page, pages and folders are read from standard input, a pair of lines for each; every page runs
in a fork, and its exit code is printed: so torch is loaded once for all pages.

``...`` stands for any text. A comment ``<!-- within 20 % -->`` before a block lets its numbers differ by that share of
themselves: training depends on the machine. Commands that begin with ``make`` are passed over.
"""

import contextlib
import gc
import io
import os
import re
import shlex
import subprocess
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

SKIPPED = ("make ",)
_NUMBER = r"-?\d+(?:\.\d+)?"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WITHIN = re.compile(r"<!-- within (\d+) % -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int
    within: float
    follows: bool  # only blank lines and comments stand between the block before and this one


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found, end = [], 0
    for match in _FENCE.finditer(page):
        between = page[end : match.start()]
        within = _WITHIN.search(between)
        plain = re.sub(r"<!--.*?-->|\s|It prints:?", "", between, flags=re.DOTALL)
        line = page.count("\n", 0, match.start()) + 1
        found.append(Block(match[1], match[2], line, float(within[1]) / 100 if within else 0.0, plain == ""))
        end = match.end()
    return found


def same(expected: str, printed: str, within: float) -> bool:
    """Whether `printed` is what a page says, numbers to a share `within` of them, ``...`` being any text."""
    expected, printed = _stripped(expected), _stripped(printed)
    pattern = re.escape(expected).replace(re.escape("..."), "(?:.*?)")
    if not within:
        return re.fullmatch(pattern, printed, re.DOTALL) is not None
    numbers = [float(number) for number in re.findall(_NUMBER, expected)]
    pattern = re.sub(r"(?:\\-)?\d+(?:\\\.\d+)?", lambda _: f"({_NUMBER})", pattern)
    match = re.fullmatch(pattern, printed, re.DOTALL)
    return bool(match) and all(
        abs(a - float(b)) <= within * abs(a) for a, b in zip(numbers, match.groups(), strict=True)
    )


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def commands(block: str) -> list[tuple[str, str]]:
    """(command, output) pairs of a console block."""
    pairs: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], ""))
        elif pairs:
            pairs[-1] = (pairs[-1][0], pairs[-1][1] + line + "\n")
    return pairs


def run_page(path: Path) -> int:
    """Run all examples; returns how many commands and python blocks ran. AssertionError names the line."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    path_of_ours = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.update(PATH=path_of_ours, COLUMNS="100")
    found, count = blocks(path.read_text(encoding="utf-8")), 0
    for block, following in zip(found, [*found[1:], None], strict=True):
        where = f"{path.name}:{block.line}"
        if block.language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * block.line + block.text, path.name, "exec"), namespace)
            count += 1
            if following and following.language == "text" and following.follows:
                check(where, following.text, out.getvalue(), following.within)
        elif block.language == "console":
            for command, expected in commands(block.text):
                if not command.startswith(SKIPPED):
                    check_command(where, command, expected, block.within)
                    count += 1
    return count


def check_command(where: str, command: str, expected: str, within: float) -> None:
    """Run one line through the shell; it may fail only where the page shows an error."""
    if command.startswith("hmmscope ") and not re.search(r"[|<>*?;&$~`\\]", command):
        code, out, error = call(shlex.split(command)[1:])
    else:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300)
        code, out, error = done.returncode, done.stdout, done.stderr
    printed = error if code else out
    shows_error = expected.startswith("error[")
    assert (code != 0) == shows_error, f"{where}: {command}: exit code {code}\n{error}"
    if expected.strip():
        check(f"{where}: {command}", expected, printed, within)


def call(words: list[str]) -> tuple[int, str, str]:
    """A command of hmmscope in this interpreter: exit code, standard output, standard error."""
    from hmmscope.lab.cli import main

    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(words)
        except SystemExit as end:  # --help
            code = end.code if isinstance(end.code, int) else 1
    return code, out.getvalue(), error.getvalue()


def serve() -> None:
    """Run pages, each in a fork, as they are asked for on standard input: a line with the page, and one with a folder."""
    from hmmscope import load_process, registry
    from hmmscope.lab import cli
    from hmmscope.lab.report import plots

    # drawn once: that all files of a style show one drawing is tested with the styles
    plots.STYLES["paper"] = replace(plots.STYLES["paper"], endings=("svg",))
    for kind in ("process", "layout", "model", "instrument", "experiment", "claim"):
        registry.entries(kind)
    assert cli
    load_process("umbrella")  # compiled functions are looked up, for which numba loads all that it has
    gc.freeze()  # what children share with this process they neither look through nor copy
    for page in sys.stdin:
        folder = sys.stdin.readline().strip()
        if (child := os.fork()) == 0:
            log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(folder)
            code = 1
            try:
                run_page(Path(page.strip()))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def check(where: str, expected: str, printed: str, within: float) -> None:
    """AssertionError unless the page tells the truth."""
    assert same(expected, printed, within), f"{where}: the page says\n{expected}\nand it prints\n{printed}"


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve()
    else:
        print(f"{run_page(Path(sys.argv[1]).resolve())} examples ran")
