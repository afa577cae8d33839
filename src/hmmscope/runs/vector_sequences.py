"""Arrays of numbers as sequences of vectors, and fits of emission families to them."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.families import family_name, family_of
from hmmscope.emissions.fit_emissions_em import EmissionFit, fit_emissions
from hmmscope.emissions.vector_evidence import vector_evidence
from hmmscope.errors import InputError
from hmmscope.inference.num_states import (
    StateCountPosterior,
    by_bic,
    choice_reason,
    held_out_mean,
    summed,
    support_of,
    units_of,
)
from hmmscope.schema import refuse_masked, require, shown, unknown_name
from hmmscope.seeds import numpy_generator

#: Minimum number of sequences or blocks for holding out, and minimum length of a block.
LEAST_PARTS, SHORTEST = 20, 16


class Vectors(NamedTuple):
    """Concatenated sequences of vectors.

    Attributes:
        rows: (row, coordinate); NaN is missing.
        lengths: Lengths of the sequences.
    """

    rows: Float64[Tensor, "row coordinate"]
    lengths: Int64[Tensor, "sequence"]


def emission_of(source: Any, asked: str | type[EmissionHMM] | None) -> str | type[EmissionHMM]:
    """Return "symbols" or the requested family; by default "gaussian" for arrays with fractional numbers."""
    if asked == "symbols":
        return "symbols"
    if asked is not None:
        family_of(asked)
        return asked
    arrays = source if isinstance(source, list | tuple) else [source]
    for one in arrays:
        if isinstance(one, Tensor | np.ndarray):
            found = _array_of(one.compressed() if isinstance(one, np.ma.MaskedArray) else one)
            if found.dtype.kind == "f" and bool((found != np.floor(found))[np.isfinite(found)].any()):
                return "gaussian"
    return "symbols"


def read_vectors(source: Any, *, axis: int | None = None, lengths: Any = None) -> Vectors:
    """Read arrays as sequences of vectors.

    (time,) and (time, 1) are one sequence of numbers, (sequence, time, coordinate) are sequences, and a list has one
    array per sequence. Two dimensions need `lengths`, which sum to the rows (each row is an observation), or `axis`,
    the axis of time (each entry is an observation).

    Raises:
        InputError: Not an array of numbers, an ambiguous shape, an infinite number, or wrong lengths.
    """
    if isinstance(source, list | tuple) and len(source) and all(np.ndim(one) in (1, 2) for one in source):
        parts = [_numbers(one) for one in source]
        if lengths is not None or axis is not None:
            raise InputError("lengths, axis: apply to a single array; the source is already divided into sequences")
        return _together([part[:, None] if part.ndim == 1 else part for part in parts])
    array = _numbers(source)
    if array.ndim == 3 and axis is None:
        if lengths is None:
            return _together(list(array))
        counts = _counts(lengths)
        if len(counts) != len(array) or max(counts) > array.shape[1]:
            raise InputError(f"lengths: must be {len(array)} whole numbers in [1, {array.shape[1]}]")
        return _together([row[:count] for row, count in zip(array, counts, strict=True)])
    if array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1 and axis is None):
        array = array.reshape(-1, 1)
        lengths = [len(array)] if lengths is None else lengths
    elif array.ndim == 2 and axis in (0, 1):
        return _together([row[:, None] for row in (array.T if axis == 0 else array)])
    if array.ndim != 2 or axis is not None:
        raise InputError(
            f"source: must be numbers (sequence, time, coordinate), got {tuple(array.shape)} with axis={axis}"
        )
    if lengths is None:
        rows, columns = array.shape
        raise InputError(
            f"source: numbers {tuple(array.shape)} are ambiguous: give lengths=[{rows}] for {rows} observations of "
            f"{columns} coordinates, axis=0 for {columns} sequences of {rows} numbers, or axis=1 for {rows} sequences of "
            f"{columns} numbers"
        )
    counts = _counts(lengths)
    if sum(counts) != len(array):
        raise InputError(f"lengths: must sum to the {len(array)} rows, got {sum(counts)}")
    return _together(list(array.split(counts)))


def _numbers(one: Any) -> Float64[Tensor, "..."]:
    try:
        if isinstance(one, np.ma.MaskedArray):
            one = np.ma.filled(one.astype(np.float64), np.nan)
        array = _array_of(one)
        if array.dtype.kind in "mMc":
            raise TypeError
        found = torch.from_numpy(np.array(array, dtype=np.float64))
    except (ValueError, TypeError):
        raise InputError(f"source: must be numbers, got {shown(one)}") from None
    if bool(found.isinf().any()):
        raise InputError(f"source{found.isinf().nonzero()[0].tolist()}: is not finite; mark a missing entry with NaN")
    return found


def _array_of(one: Any) -> NDArray[Any]:
    if not isinstance(one, Tensor):
        return np.asarray(one)
    one = one.detach().cpu()
    return (one.double() if one.dtype == torch.bfloat16 else one).numpy()


def _counts(lengths: Any) -> list[int]:
    refuse_masked("lengths", lengths)
    counts = np.asarray(lengths)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 1).any():
        raise InputError(f"lengths: must be whole numbers of at least 1, got {shown(lengths)}")
    return counts.tolist()


def _together(parts: list[Tensor]) -> Vectors:
    if len({part.shape[1] for part in parts}) != 1 or not all(map(len, parts)):
        raise InputError("source: every sequence must have observations, all with the same number of coordinates")
    return Vectors(torch.cat(parts), torch.tensor(list(map(len, parts))))


def fit_vectors(
    data: Vectors,
    sizes: list[int],
    emission: str | type[EmissionHMM],
    options: dict[str, Any],
    more: dict[str, Any],
) -> dict[int, EmissionFit]:
    """Fit each number of states.

    Args:
        data: The data.
        sizes: Numbers of states.
        emission: Name of a registered family, or its class.
        options: Options of `fit_emissions`.
        more: Options of the family, and `floor`.

    Raises:
        InputError: An unknown option of the family, or an error of `fit_emissions`.
    """
    family = family_of(emission)
    known = family.fit_options
    for name in more:
        if name not in (*known, "min_variance"):
            raise unknown_name("fit", name, (*known, "min_variance", "axis", "lengths"))
    return {size: fit_emissions(family, data.rows, data.lengths, size, **options, **more) for size in sizes}


def held_out(data: Vectors, seed: int) -> tuple[Vectors, Vectors | None, str]:
    """Split off a fifth of the data to compare numbers of states; also return a description.

    Fewer than twenty sequences are cut into blocks; with fewer than twenty blocks, nothing is held out.
    """
    parts, how = list(data.rows.split(data.lengths.tolist())), ""
    if len(parts) < LEAST_PARTS:
        size = max(SHORTEST, -(-len(data.rows) // 50))
        parts = [block for part in parts for block in part.split(size)]
        how = f"; held-out blocks of {size} observations"
    if len(parts) < LEAST_PARTS:
        return data, None, "; too little data to hold any out"
    chosen = set(numpy_generator(seed, "held-out").permutation(len(parts))[: len(parts) // 5].tolist())
    judges = [part for number, part in enumerate(parts) if number in chosen]
    if all(bool(part.isnan().all()) for part in judges):
        return data, None, "; too little data to hold any out"
    rest = [part for number, part in enumerate(parts) if number not in chosen]
    return _together(rest), _together(judges), f"{how}; then refitted to all data"


def choose_vectors(
    data: Vectors,
    judges: Vectors | None,
    sizes: list[int],
    emission: str | type[EmissionHMM],
    options: dict[str, Any],
    more: dict[str, Any],
) -> tuple[int, dict[str, Any]]:
    """Choose the number of states by BIC; return it with the fields of `hmmscope.runs.fitting.FitResult`.

    Args:
        judges: Held-out data; by default a part of `data` if there is a choice.
        data, sizes, emission, options, more: As in `fit_vectors`.
    """
    apart, cut = data, ""
    if judges is not None and judges.rows.shape[1] != data.rows.shape[1]:
        raise InputError(f"validation: must have {data.rows.shape[1]} coordinates, got {judges.rows.shape[1]}")
    weighted = options.get("sequence_weights") is not None
    if judges is None and len(sizes) > 1 and not weighted:
        apart, judges, cut = held_out(data, options["seed"])
    fits = fit_vectors(apart, sizes, emission, options, more)
    if len(sizes) == 1:
        return sizes[0], {"fits": fits, "whole": None}
    bics = {size: one.bic for size, one in fits.items()}
    require(options.get("known_states") is None, "known_states", "needs one num_states", sizes)
    restricted = weighted or any(options.get(name) for name in ("fixed", "start", "constraints"))
    support = (
        by_bic(bics, "the sequences have weights" if weighted else "parts of the model are not free")
        if restricted
        else _support(data, fits, bics)
    )
    found: dict[str, Any] = {"fits": fits, "whole": None, "support": support, "num_fitted": len(apart.rows)}
    if judges is None:
        best, reason = choice_reason(bics, {}, np.empty(0, np.int64), support)
    else:
        units = units_of(judges.lengths.numpy())
        seen = summed((~judges.rows.isnan()).any(1).numpy(), np.concatenate(units))
        logs = {size: _judged(one.hmm, judges, units) for size, one in fits.items()}
        scores = {size: held_out_mean(own, seen) for size, own in logs.items()}
        found["held_out"] = {size: one.mean for size, one in scores.items()}
        found["held_out_errors"] = {size: one.error for size, one in scores.items()}
        best, reason = choice_reason(bics, logs, seen, support, "an observation")
    if apart is not data:
        again = options | {"start": fits[best].hmm, "num_restarts": 1}
        found["whole"] = fit_vectors(data, [best], emission, again, more)[best]
    return best, found | {"reason": reason + cut}


def _support(data: Vectors, fits: dict[int, EmissionFit], bics: dict[int, float]) -> StateCountPosterior:
    model = next(iter(fits.values())).hmm
    try:
        laws = type(model).conjugate(data.rows, **model.options)
    except InputError as error:
        return by_bic(bics, str(error).removeprefix("posterior: "))
    return support_of(bics, lambda size: vector_evidence(fits[size].hmm, data.rows, data.lengths, laws))


def _judged(hmm: EmissionHMM, data: Vectors, units: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    parts = data.rows.split(data.lengths.tolist())
    terms = [hmm.observe(part[None]).log_likelihood_terms[0] for part in parts]
    return summed(torch.cat(terms).numpy(), np.concatenate(units))


def refuse(emission: str | type[EmissionHMM], **given: Any) -> None:
    """Raise InputError for given options that apply to symbols only."""
    for name, value in given.items():
        if value not in (None, False, ()):
            raise InputError(f"{name}: applies to symbols, but emission is {family_name(emission)!r}")
