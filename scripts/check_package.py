"""Whether the package works where nothing else is: built, installed from its wheel into an empty environment, and tried.

    python scripts/check_package.py [--keep DIR]

It needs the extra `package`. The sdist is built from the tree and the wheel from the sdist; both are checked by twine. The
wheel goes, with the extra `pages`, into a new environment with the pinned torch. Each verb runs there at its smallest, in a
folder outside the checkout. The first command that fails ends it.
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
#: A line each; what stands before a line must be there for it.
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
run limits-table1 --scale smoke --out table1 -q
run limits --scale smoke --out paper --jobs 2 -q
claims
claims paper/limits-fig3
check run sweep study paper/limits-fig3
report paper/limits-fig3 run -o both.html
report paper/limits-fig3 --style web --figures figures -q
"""


def call(*words: object, cwd: Path) -> str:
    """What a command prints; SystemExit with it if it fails."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=bare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}\n{' '.join(map(str, words))}: exit code {done.returncode}")
    return done.stdout


def untried(help_text: str) -> list[str]:
    """Verbs of `hmmscope --help` that no line of `COMMANDS` tries; all of them if the help names none."""
    names = re.findall(r"^    (\w+) ", help_text, re.MULTILINE)
    return sorted({*names} - {line.split()[0] for line in COMMANDS.strip().splitlines()}) if names else ["all"]


def check(folder: Path) -> None:
    """Everything, with `folder` for what is made."""
    if missing := untried(call(sys.executable, "-m", "hmmscope", "--help", cwd=ROOT)):
        raise SystemExit(f"verbs that are not tried: {', '.join(missing)}")
    dist, work = folder / "dist", folder / "work"
    work.mkdir()
    call(sys.executable, "-m", "build", "--outdir", dist, ROOT, cwd=folder)
    (wheel,), built = dist.glob("*.whl"), sorted(dist.iterdir())
    print(call(sys.executable, "-m", "twine", "check", "--strict", *built, cwd=folder), end="", flush=True)
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    pins = ROOT / "constraints" / "torch.txt"
    call(folder / "venv/bin/python", "-m", "pip", "install", "-q", "-c", pins, f"{wheel}[pages]", cwd=folder)
    command = folder / "venv/bin/hmmscope"
    lines = COMMANDS.strip().splitlines()
    for line in lines:
        begun = time.monotonic()
        call(command, *line.split(), cwd=work)
        print(f"{time.monotonic() - begun:6.1f} s  hmmscope {line}", flush=True)
    print(f"{len({line.split()[0] for line in lines})} verbs and options of {wheel.name} work")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="a new folder for what is made (default: removed at the end)"
    )
    kept = parser.parse_args().keep
    if kept is None:
        with tempfile.TemporaryDirectory() as made:
            check(Path(made))
    else:
        kept.mkdir(parents=True)
        check(kept.resolve())
