"""``hmmscope`` and ``python -m hmmscope``: the command line as a process, which Ctrl-C ends in order at any instant."""

import signal
import sys


def start() -> int:
    """Run the command of this process; returns its exit code, 130 after Ctrl-C."""
    heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if heard:  # while modules are imported nothing is at work, and nothing needs to be said
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hmmscope.cli import main

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main()
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work has ended; so does the process, in order


if __name__ == "__main__":
    sys.exit(start())
