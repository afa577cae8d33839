"""``hmmscope`` and ``python -m hmmscope``: the command line as a process, which Ctrl-C ends in order at any instant."""

import gc
import signal
import sys


def start() -> int:
    """Run the command of this process; returns its exit code, 130 after Ctrl-C."""
    heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if heard:  # while modules are imported nothing is at work, and nothing needs to be said
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hmmscope.text import repair_streams

    repair_streams()  # before any file is opened
    gc.disable()  # until all is imported: it would be looked through for garbage again and again, and has none
    from hmmscope.lab.cli import main

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main(own_process=True)
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work has ended; so does the process, in order


if __name__ == "__main__":
    sys.exit(start())
