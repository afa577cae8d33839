"""Run the laboratory: try to break the library's guarantees, count failures, and write docs/laboratory.md.

    python quality/adversarial --kills 1000 --power-losses 20000 --mutations 10000 --configurations 20000 --files 50000

Results are added to results/laboratory/; docs/laboratory.md has the counts of all results. Each trial runs in its own
sandbox (see `sandbox`). A size of 0 skips a trial.
"""

import argparse
import importlib.util
import json
import os
import secrets
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests"
FOLDERS = ("analysis", "storage", "runs", "report", "training", "sweeps")
for folder in (HERE, HERE.parent, ROOT, ROOT / "scripts", TESTS, *(TESTS / name for name in FOLDERS)):
    sys.path.insert(0, str(folder))

import fresh_seeds  # noqa: E402
import sandbox  # noqa: E402
import table  # noqa: E402

#: Default number of attempts and module of each trial, by the name of its option.
SIZES = {
    "kills": (1000, "storage_trials"),
    "power-losses": (20_000, "storage_trials"),
    "errors": (2000, "storage_trials"),
    "races": (50, "storage_trials"),
    "mutations": (10_000, "folder_trials"),
    "readings": (500, "folder_trials"),
    "configurations": (20_000, "input_trials"),
    "commands": (2000, "input_trials"),
    "files": (50_000, "input_trials"),
    "pages": (200, "input_trials"),
    "sizes": (50, "input_trials"),
    "trainings": (200, "run_trials"),
    "interrupts": (50, "run_trials"),
    "starts": (200, "run_trials"),
    "sweeps": (100, "run_trials"),
    "runs": (1000, "run_trials"),
    "drivers": (200, "run_trials"),
    "jumps": (500, "run_trials"),
    "resizes": (10, "run_trials"),
    "resumptions": (20, "run_trials"),
    "verb-kills": (1000, "verb_trials"),
    "verb-errors": (1000, "verb_trials"),
    "mounts": (100, "verb_trials"),
    "bytes": (3, "folder_trials"),
    "packages": (1000, "input_trials"),
    "typed": (100_000, "typed_trials"),
    "options": (5000, "option_trials"),
    "calls": (20_000, "call_trials"),
    "grammars": (20_000, "call_trials"),
    "round-trips": (10_000, "return_trials"),
    "coverage": (2000, "interval_trials"),
    "alarms": (10_000, "interval_trials"),
    "leaks": (1000, "interval_trials"),
    "folders": (100, "seal_trials"),
    "uncovered": (1000, "seal_trials"),
    "refusals": (500, "seal_trials"),
    "long-kills": (420, "verb_trials"),
    "bombs": (100, "hostile_trials"),
    "links": (500, "hostile_trials"),
    "callers": (320, "hostile_trials"),
    "wheels": (5000, "hostile_trials"),
}
#: Trials of `make mutate`, which first writes the maps that they need.
SIZES |= {f"mutants-{package.rpartition('/')[2]}": (0, "mutant_trials") for package in table.MUTATED}
assert not SIZES.keys() & table.SUITES.keys()
JOURNAL, PAGE = ROOT / "results" / "laboratory" / "laboratory.jsonl", ROOT / "docs" / "laboratory.md"

_HEAD = """# The laboratory

`make break` tries to break the guarantees of the library. It kills processes, simulates power cuts, fills disks, alters
bytes and writes nonsense into files. It also replaces values by others of any type and structure, compares saved objects
with the loaded ones, and measures the coverage of intervals. Each attack runs in a sandbox that can write only to a file
system in memory. `make mutate` changes the source itself. Both commands write this page from all measurements so far;
results/laboratory/ has each measurement with its seed and machine. For example,
`make break SIZES="--only --kills 1000 --suites flaky"` runs two of the attacks and adds to their counts. `make test` runs
a small part of `make break`.

A mutant is the source with one small change, such as `<=` in place of `<`. Each draw takes a few mutants of a package at
random and runs tests on each. The detection rate is the fraction of mutants that a test detected when they were drawn.
The goal is 95 % in each package; 12 of 12 detected mutants show only that the rate is at least 76 %. Each mutant that no
test detected (a survivor) later got a test, or was found equivalent to the original, or is listed below the table with a
reason. Mutants that change no result are skipped if quality/adversarial/source_mutants.py gives the reason.

The rates are lower bounds. On each mutant we first run tests that execute the changed line, up to 15 seconds in total,
and then further tests, up to 60 seconds: those in the same files, which may check results of a shared fixture, and, for
code that runs on import, all that use the module. Tests that are marked slow are left out, such as those with several
processes. Draws up to 2026-11-29 had only the first part (40 seconds in the first draws), and they omitted most of the
tests in tests/heavy.txt, of which each commit runs one in eight. The first draws ran only tests that execute the changed
line. Since 2026-11-30 the tests also compare public constants, answers in small cases and plots with recorded ones.

Each row of the table is an attack on one goal (G1, G2, ...), which the second column states as failures. A trial is one
attempt or one test, and *broken* counts the failures that are not fixed yet; fixed failures are listed below the table.
The first digits of the source's SHA-256 follow each date.

Not measured: real power cuts, real disks and file systems (the sandbox mounts file systems in memory), networks, several
machines, and systems other than Linux. `SECURITY.md` lists the files that no seal (list of checksums) covers.
"""


def main() -> int:
    """Run the requested trials and write the page; return 1 if this call found a violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (size, _) in SIZES.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"attempts (default {size}; 0 skips)")
    parser.add_argument("--suites", metavar="NAMES", help=f"of {', '.join(table.SUITES)} (default all)")
    parser.add_argument("--only", action="store_true", help="run only the trials with a given size")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbits(31), help="seed of the random draws (default: a new one)"
    )
    parser.add_argument("--inside", nargs=2, metavar=("TRIAL", "N"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        return inside(*asked.inside, asked.seed)
    from hmmscope.storage import seals

    jobs = {name: getattr(asked, name.replace("-", "_")) for name in SIZES}
    jobs = {name: (0 if asked.only else SIZES[name][0]) if given is None else given for name, given in jobs.items()}
    wanted = asked.suites.split(",") if asked.suites else [] if asked.only else list(table.SUITES)
    broken = 0
    seals.open_sealed(JOURNAL.parent)
    sandbox.compile_kernels()
    for name, number in [*jobs.items(), *((name, 1) for name in wanted)]:
        if number:
            record = attempt(name, number, asked.seed)
            broken += record["violations"]
            said = f"{record['trials']} trials, {record['violations']} broken, {record['seconds']} s"
            print(f"{name}: {said}", *record["broken"], sep="\n  ", flush=True)
    write_page()
    print(f"page: {PAGE}")
    return int(broken > 0)


def attempt(name: str, number: int, seed: int) -> dict[str, Any]:
    """Run one trial in a sandbox and add its record to the journal."""
    from hmmscope.storage import seals
    from hmmscope.system_info import environment, machine

    bounded = name not in table.SUITES or not table.SUITES[name].needs
    ended = sandbox.run([str(HERE), "--inside", name, str(number), "--seed", str(seed)], 3600.0, bounded=bounded)
    try:
        record = json.loads(ended.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = f"{ended.returncode}: {ended.stderr[-300:]}"
        # The sandbox or the trial did not start: nothing was measured.
        return {"trials": 0, "violations": 1, "broken": [said], "seconds": 0.0}
    if not record["goal"]:  # the trial itself failed
        return record
    about = machine()
    record |= {"date": date.today().isoformat(), "seed": seed, "machine": about["processor"], "cores": about["cores"]}
    record |= {"torch": about["torch"], "source": environment()["source_sha256"][:8]}
    with JOURNAL.open("a") as file:
        file.write(json.dumps(record) + "\n")
    seals.keep(JOURNAL.parent, [JOURNAL.name])
    return record


def inside(name: str, number: str, seed: int) -> int:
    """Run a trial inside the sandbox and print its report as the last line of the output."""
    if not sandbox.inside():
        sys.exit("--inside: a trial runs only in the sandbox; start the laboratory without --inside")
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from trials import conduct

    if name in table.SUITES:
        report = suite(name, seed)
    else:
        import torch

        torch.set_num_threads(1)
        importlib.import_module(SIZES[name][1])
        report = conduct(name, Path.cwd() / "room", int(number), seed).to_data()
    os.write(output, (json.dumps(report) + "\n").encode())
    return 0


def suite(name: str, seed: int) -> dict[str, Any]:
    """Run the tests of a goal and count them: each test is a trial, or each branch of the modules in `covers`."""
    chosen = table.SUITES[name]
    command = [sys.executable]
    if chosen.covers:
        if importlib.util.find_spec("coverage") is None:
            sys.exit("coverage is missing; pip install coverage")
        covered = (str(ROOT / "src" / "hmmscope" / file) for file in chosen.covers)
        command += ["-m", "coverage", "run", "--branch", "--include", ",".join(covered)]
    command += ["-m", "pytest", "-n", "0", "-q", "--rootdir", str(ROOT), "-p", "no:cacheprovider", *chosen.select]
    command += [*(str(TESTS / file) for file in chosen.files or (".",)), "--basetemp", str(Path.cwd() / "tests")]
    environment = os.environ | {"COLUMNS": "400"}  # wide, so that pytest prints the reason of a failure
    del environment[sandbox.INSIDE]  # tests of the laboratory must start outside of the sandbox
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), fresh_seeds.SEED: str(seed)}
    out = subprocess.run([*command, "--junitxml", "x.xml"], capture_output=True, text=True, env=environment)
    counts = next(iter(ElementTree.parse("x.xml").getroot())).attrib
    wrong = int(counts["failures"]) + int(counts["errors"])
    lines = [line for line in out.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    lines = [line.partition("tests/")[2][:300] for line in lines]
    ran = int(counts["tests"]) - int(counts["skipped"])
    note = (
        f"tests: {', '.join(chosen.files) or 'all'}" if ran else f"{chosen.needs or 'what they test'} is not installed"
    )
    if chosen.covers and not wrong:
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", "branches.json"], check=True)
        ran, wrong, lines = table.branches(json.loads(Path("branches.json").read_bytes()))
    record = {"goal": chosen.goal, "attack": chosen.attack, "trials": ran, "violations": wrong, "broken": lines[:20]}
    return record | {"note": note, "seconds": round(float(counts["time"]), 1)}


def write_page() -> None:
    """Write docs/laboratory.md from the journal."""
    records = [json.loads(table.renamed(line)) for line in JOURNAL.read_text().splitlines()] if JOURNAL.exists() else []
    machines = sorted({f"{one['machine']}, {one['cores']} cores, torch {one['torch']}" for one in records})
    lines = [_HEAD, *(f"Measured on: {one}." for one in machines), "", *table.markdown(records)]
    if findings := table.found(records):
        lines += ["", "## What was found", "", *findings]
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
