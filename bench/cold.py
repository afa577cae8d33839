"""The first call of each function on a new machine: ``python -m bench.cold [NAME ...]``, in the root of a checkout.

Each is called in a process of its own with an empty folder for what is compiled, and then again in another process that
finds it there; Python's own bytecode is there both times, as an installation leaves it. What is told is processor time from
the first import of the library on; torch is imported before.
"""

import argparse
import os
import subprocess
import sys
import tempfile

from hmmscope.text import say

_FEW = "m = hs.load_process('dishonest-casino'); o = torch.arange(320).view(8, 40) % 6; "
_MANY = (
    "m = hs.HMM(np.full(128, 1 / 128), np.full((128, 128), 1 / 128), np.full((128, 8), 1 / 8)); "
    "o = torch.ones(8, 40).long(); "
)
_MIXTURE = (
    "p = hs.load_process('dishonest-casino'); m = hs.Mixture(0.5 * torch.ones(2), [p, p]); "
    "o = torch.arange(320).view(8, 40) % 6; "
)
_TRAIN = (
    "import tempfile; hs.train('mess3', tempfile.mkdtemp() + '/run', length=16, model={}, num_steps=20, "
    "training=dict(batch_size=16, engine='compiled'))"
)
CALLS = {
    "HMM": _MANY,
    "make_process": "hs.make_process('random-hmm', num_states=8, num_symbols=8)",
    "sample": f"{_FEW}hs.Corpus(m, length=40)[0:8].observations",
    **{
        f"{name}, {states} states": f"{some}hs.{name}(m, o)"
        for name in ("log_likelihood", "filter_beliefs", "smooth_beliefs", "most_likely_states", "sample_state_paths")
        for states, some in ((2, _FEW), (128, _MANY))
    },
    "memory_beliefs": f"{_FEW}hs.memory_beliefs(m, o, 4)",
    "filter_mixture": f"{_MIXTURE}hs.filter_mixture(m, o)",
    "fit, 4 states": f"{_FEW}hs.fit(o.numpy(), 4, max_iterations=5)",
    "fit, 64 states": f"{_FEW}hs.fit(o.numpy(), 64, num_restarts=1, max_iterations=5)",
    "train, RNN": _TRAIN.format("'rnn'"),
    "train, decoder": _TRAIN.format("dict(name='decoder', dropout=0.0)"),
}


def seconds(call: str, folder: str, bytecode: str) -> float:
    """Processor time of a call in a new process, with what is compiled kept in `folder`, and Python's own in `bytecode`."""
    told = "print(sum(os.times()[:4]) - sum(begun[:4]))"
    code = f"import os, torch, numpy as np; begun = os.times(); import hmmscope as hs; {call.rstrip('; ')}; {told}"
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
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.cold", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CALLS), help="; ".join(CALLS))
    say("| first call | s of processor time | once compiled |\n|---|---|---|")
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as bytecode:
            with tempfile.TemporaryDirectory() as folder:
                seconds(CALLS[name], folder, bytecode)
            with tempfile.TemporaryDirectory() as folder:
                first, again = (seconds(CALLS[name], folder, bytecode) for _ in range(2))
        say(f"| {name} | {first:.2f} | {again:.2f} |")


if __name__ == "__main__":
    main()
