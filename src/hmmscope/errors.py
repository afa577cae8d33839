"""What can go wrong, one class for each exit code of the command line."""


class HmmscopeError(Exception):
    """Base of all errors that a user can act on. The message is one line: where, what is wrong, what to do.

    Attributes:
        exit_code: of the command line.
        speaks_for_all: of several processes that end together, this is the one that says why.
    """

    exit_code = 70
    speaks_for_all = False


class InputError(HmmscopeError, ValueError):
    """A matrix, observation, configuration value or name that cannot be accepted (exit code 2)."""

    exit_code = 2


class RefusedError(HmmscopeError):
    """The request is well formed but would overwrite, or disagrees with, what exists (exit code 3)."""

    exit_code = 3


class DamagedError(HmmscopeError):
    """A file is truncated, altered or not what its manifest says (exit code 4)."""

    exit_code = 4


class ResourceError(HmmscopeError):
    """Disk, memory or device does not suffice (exit code 5)."""

    exit_code = 5


class NonFiniteError(HmmscopeError):
    """A loss, gradient or weight is NaN or infinite (exit code 6)."""

    exit_code = 6
