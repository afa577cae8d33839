"""Check that the package works in an empty environment: build it, install its wheel, and run every command.

    python scripts/check_package.py [--keep DIR]

Needs the extra `package`. The sdist is built from the tree and the wheel from the sdist; twine checks both. The wheel is
installed with the extra `pages` and the pinned torch into a new environment. Each command runs there at its smallest size,
outside the checkout. The first failing command ends the check.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Commands, one per line; later ones use the files of earlier ones.
COMMANDS = """
--version
check
show
show umbrella
infer umbrella
sample umbrella -n 40 --length 12 --out days.txt -q
infer umbrella days.txt --out days.jsonl -q
fit days.txt --states 2 --iterations 3 --restarts 1 --out fitted.json -q
show fitted.json
train fitted.json --out run --training.num_steps 4 --training.batch_size 4 --layout.length 8 -q
train fitted.json --dry-run --layout.length 8
analyse run probe --target state --num_samples 64 -q
analyse run --export exported -q
look run -o look.html
report run -o run.html
sweep fitted.json --vary model.width=8,16 --model.name rnn --training.num_steps 4 --layout.length 8 --out sweep --jobs 1 -q
study days.txt --states 1,2 --restarts 1 --iterations 3 --max_steps 20 --networks rnn --out study -q
"""
#: Further commands when hmmscope-papers is installed too.
OF_PAPERS = """
run limits-table1 --scale smoke --out table1 -q
run limits --scale smoke --out paper --jobs 2 -q
claims
claims paper/limits-fig3
check run sweep study paper/limits-fig3
report paper/limits-fig3 run -o both.html
report paper/limits-fig3 --style web --figures figures -q
"""
#: Further commands when hmmscope-studies is installed too.
OF_STUDIES = """
run limits-architectures --dry-run
benchmark
claims
"""
#: Distributions in the order of dependency: name, extras, and commands that run before the next one is installed.
DISTRIBUTIONS = (
    ("hmmscope", "[pages]", COMMANDS),
    ("hmmscope_papers", "", OF_PAPERS),
    ("hmmscope_studies", "", OF_STUDIES),
)


def call(*words: object, cwd: Path) -> str:
    """Run a command and return its output; SystemExit with the output if it fails."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=bare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(map(str, words))}: exit code {done.returncode}")
    return done.stdout


def untried(help_text: str) -> list[str]:
    """Return the commands in `hmmscope --help` that `COMMANDS` does not run; all commands if the help lists none."""
    names = re.findall(r"^  (\w+) ", help_text, re.MULTILINE)
    return (
        sorted({*names} - {line.split()[0] for _, _, lines in DISTRIBUTIONS for line in lines.strip().splitlines()})
        if names
        else ["all"]
    )


def check(folder: Path) -> None:
    if missing := untried(call(sys.executable, "-m", "hmmscope", "--help", cwd=ROOT)):
        raise SystemExit(f"COMMANDS: add the untested commands: {', '.join(missing)}")
    dist, work = folder / "dist", folder / "work"
    work.mkdir()
    for source in (ROOT, ROOT / "papers", ROOT / "studies"):
        call(sys.executable, "-m", "build", "--outdir", dist, source, cwd=folder)
    built = sorted(dist.iterdir())
    print(call(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=folder), end="", flush=True)
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    pins = ROOT / "constraints" / "torch.txt"
    tried = set[str]()
    for name, extras, commands in DISTRIBUTIONS:
        (wheel,) = dist.glob(f"{name}-*.whl")
        words = ["install", "-q", "-c", pins, "--find-links", dist, f"{wheel}{extras}"]
        call(folder / "venv/bin/python", "-m", "pip", *words, cwd=folder)
        for line in commands.strip().splitlines():
            begun = time.monotonic()
            call(folder / "venv/bin/hmmscope", *line.split(), cwd=work)
            tried.add(line.split()[0])
            print(f"{time.monotonic() - begun:6.1f} s  {name}: hmmscope {line}", flush=True)
    print(f"{len(tried)} verbs and options of {', '.join(name for name, *_ in DISTRIBUTIONS)} work")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="new folder that keeps all files (default: a temporary one)"
    )
    kept = parser.parse_args().keep
    if kept is None:
        with tempfile.TemporaryDirectory() as made:
            check(Path(made))
    else:
        kept.mkdir(parents=True)
        check(kept.resolve())
