"""The verb `check`: whether folders, or this installation, can be trusted."""

from hmmscope.lab.verbs.doctor import doctor
from hmmscope.lab.verbs.options import Check
from hmmscope.lab.verbs.verify import verify


def check(options: Check) -> int:
    """Check the seal of each folder and what follows from its files; without a folder, the installation.

    Returns:
        0 if all is well; 5 for an installation that lacks what is needed.

    Raises:
        DamagedError, RefusedError: see `hmmscope.lab.verbs.verify.verify`.
    """
    if not options.folders:
        return doctor()
    verify(options.folders, options.quiet)
    return 0
