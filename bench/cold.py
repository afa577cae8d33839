"""Time each function's first call on a new machine: ``python -m bench.cold [NAME ...]``, in the root of a checkout.

Each function is called in a new process with an empty cache of compiled code, and again in another process with that cache;
Python's bytecode is present both times. The result is processor time from the first import of the library; torch is imported
before the measurement.
"""

import argparse
import os
import subprocess
import sys
import tempfile

from hmmscope.lab.verbs.precompile import CALLS
from hmmscope.text import say


def seconds(call: str, folder: str, bytecode: str) -> float:
    """Return the processor time of a call in a new process, with caches in `folder` and `bytecode`."""
    told = "print(sum(os.times()[:4]) - sum(begun[:4]))"
    made = f"from hmmscope.lab.verbs.precompile import CALLS; CALLS[{call!r}]()"
    code = f"import os, torch, numpy; begun = os.times(); {made}; {told}"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ
        | {"NUMBA_CACHE_DIR": folder, "XDG_CACHE_HOME": folder, "OMP_NUM_THREADS": "1"}
        | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(run.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cold", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CALLS), help="; ".join(CALLS))
    say("| first call | s of processor time | once compiled |\n|---|---|---|")
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as bytecode:
            with tempfile.TemporaryDirectory() as folder:
                seconds(name, folder, bytecode)
            with tempfile.TemporaryDirectory() as folder:
                first, again = (seconds(name, folder, bytecode) for _ in range(2))
        say(f"| {name} | {first:.2f} | {again:.2f} |")


if __name__ == "__main__":
    main()
