"""Seeds on the command line: ``--num-seeds 3`` gives a number of seeds, ``--seeds 0,5,7`` a list of seeds."""

from hmmscope.errors import InputError
from hmmscope.schema import parse_value


def chosen_seeds(num_seeds: int | None, seeds: str | None) -> int | tuple[int, ...] | None:
    """Return `num_seeds`, or the seeds in a text such as ``0,5,7`` or ``7,``; None if neither is given."""
    if seeds is None:
        return num_seeds
    if num_seeds is not None:
        raise InputError("--seeds: cannot be combined with --num-seeds; give only one of them")
    if "," not in seeds:
        raise refused(seeds, f"for seed {seeds} alone give --seeds '{seeds},'")
    return parse_value(tuple[int, ...], seeds.removesuffix(","), "--seeds")


def refused(seeds: str, otherwise: str) -> InputError:
    what = f"{seeds} seeds" if seeds.isdigit() else "a number of seeds"
    number = seeds if seeds.isdigit() else "N"
    return InputError(
        f"--seeds {seeds}: is ambiguous; for {what}, starting at 0, give --num-seeds {number}; {otherwise}"
    )
