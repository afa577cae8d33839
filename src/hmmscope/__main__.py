"""``python -m hmmscope`` is the command line."""

import sys

from hmmscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
