"""Seeds on the command line: ``--num-seeds 3`` is a number of them, ``--seeds 0,5,7`` a list."""

from hmmscope.errors import InputError
from hmmscope.schema import parse_value


def chosen_seeds(num_seeds: int | None, seeds: str | None) -> int | tuple[int, ...] | None:
    """The number of seeds, or the seeds of a list such as ``0,5,7`` or ``7,``; None for neither.

    Raises:
        InputError: both, no list, or one number without a comma, which once was the number of seeds.
    """
    if seeds is None:
        return num_seeds
    if num_seeds is not None:
        raise InputError("--seeds: names the seeds, and --num-seeds says how many; give one of them")
    if "," not in seeds:
        raise refused(seeds, f"for the one seed {seeds} give --seeds {seeds},")
    return parse_value(tuple[int, ...], seeds.removesuffix(","), "--seeds")


def refused(seeds: str, otherwise: str) -> InputError:
    """The error for one number after ``--seeds``."""
    what = f"{seeds} seeds" if seeds.isdigit() else "a number of seeds"
    number = seeds if seeds.isdigit() else "N"
    return InputError(f"--seeds {seeds}: is not clear; for {what}, from 0 on, give --num-seeds {number}; {otherwise}")
