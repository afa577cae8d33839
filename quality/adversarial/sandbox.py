"""Sandbox for destructive trials: a process that can write only to one folder in memory and has no network.

It has its own mount, process and network namespaces, no privileges, and limits of memory and time. All mounts except the
folder and an empty /dev/shm are read-only. The network has only the loopback interface. The laboratory runs no trial
outside of the sandbox.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOM = Path("/tmp/hmmscope-laboratory")
#: Compiled kernels. Each sandbox gets a copy, because compiling them takes longer than most trials.
KERNELS = Path.home() / ".cache" / "hmmscope-laboratory"
INSIDE = "HMMSCOPE_LABORATORY"
_MEMORY, _PROCESSES = 12 << 30, 2048
#: File systems inside the folder: a small one to be filled, and a read-only one.
FULL, READ_ONLY, FULL_BYTES = ROOM / "full", ROOM / "readonly", 64 << 20
_MOUNTS = r"""
set -e
mount --make-rprivate /
ip link set lo up
mount -t tmpfs -o size=2g,mode=0700 none {room}
cp -r {kernels} {room}/numba
mkdir {room}/full {room}/readonly
mount -t tmpfs -o size={full},nr_inodes=2000,mode=0700 none {room}/full
mount -t tmpfs -o ro,mode=0700 none {room}/readonly
mount -t tmpfs -o size=1g,mode=0700 none /dev/shm
for m in $(awk '{{print $5}}' /proc/self/mountinfo | sort -ru); do
  case "$m" in {room}|{room}/full|/dev/shm|/proc*) ;; *) mount -o remount,bind,ro "$m" 2>/dev/null || true ;; esac
done
cd {room}
exec prlimit --nproc={processes} --as={memory} --core=0 \
  setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def inside() -> bool:
    """Return whether this process is in the sandbox; tested by trying to make folders outside of it."""
    if os.environ.get(INSIDE) != "1":
        return False
    for place in ("/", "/dev", "/tmp", os.path.dirname(__file__)):
        try:
            os.rmdir(os.mkdir(f"{place}/hmmscope-was-here") or f"{place}/hmmscope-was-here")
        except OSError:
            continue
        return False
    return True


def compile_kernels() -> None:
    """Compile the kernels outside of the sandbox, unless they are in the cache."""
    KERNELS.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(KERNELS)}
        command = [sys.executable, "-m", "hmmscope", "check", "--compile", "-q"]
        subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)


def run(words: list[str], seconds: float, *, bounded: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python with the arguments `words` in a new sandbox; its output is returned, and its files are lost.

    Pass `bounded=False` for browsers, because they reserve more address space than the limit of memory allows.
    """
    ROOM.mkdir(mode=0o700, exist_ok=True)
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = _MOUNTS.format(
        room=ROOM, kernels=KERNELS, full=FULL_BYTES, processes=_PROCESSES, memory=_MEMORY if bounded else "unlimited"
    )
    apart = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *user,
        "--mount",
        "--pid",
        "--fork",
        "--net",
        "--mount-proc",
        "--kill-child",
    ]
    environment = os.environ | {INSIDE: "1", "TMPDIR": str(ROOM), "HOME": str(ROOM), "OMP_NUM_THREADS": "1"}
    environment |= {"MPLCONFIGDIR": str(ROOM), "NUMBA_CACHE_DIR": str(ROOM / "numba")}
    command = [*apart, "bash", "-c", script, "bash", sys.executable, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
