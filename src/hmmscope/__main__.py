"""The command line as a process (``python -m hmmscope``), with a clean exit on Ctrl-C."""

import gc
import signal
import sys


def start() -> int:
    heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    if heard:  # during imports Ctrl-C may end the process silently
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hmmscope.text import repair_streams

    repair_streams()  # before any file is opened
    gc.disable()  # no garbage collection during imports
    from hmmscope.lab.cli import main

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main(own_process=True)
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work has ended; exit cleanly


if __name__ == "__main__":
    sys.exit(start())
