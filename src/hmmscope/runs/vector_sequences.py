"""Arrays of numbers as sequences of vectors, and fits of emission families to them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.families import family_name, family_of
from hmmscope.emissions.fit_emissions_em import EmissionFit, fit_emissions
from hmmscope.emissions.vector_evidence import MOST, UNASKED, vector_evidence
from hmmscope.errors import InputError
from hmmscope.inference.num_states import (
    StateCountPosterior,
    choice_reason,
    fit_each,
    held_out_mean,
    summed,
    support_of,
    units_of,
)
from hmmscope.schema import require, unknown_name
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.number_cells import looks_like_numbers
from hmmscope.sequences.read_options import TIME_OPTIONS
from hmmscope.sequences.vector_data import VectorData, joined, read_vectors

#: Reading options of numbers.
READING = ("axis", "lengths", "column", "group", "missing", *TIME_OPTIONS)
#: Minimum number of sequences or blocks for holding out, and minimum length of a block.
LEAST_PARTS, SHORTEST = 20, 16


def emission_of(source: Any, asked: str | type[EmissionHMM] | None, reading: dict[str, Any]) -> str | type[EmissionHMM]:
    """Return "symbols" or the requested family; by default "gaussian" for fractional numbers."""
    if asked == "symbols":
        return "symbols"
    if asked is not None:
        family_of(asked)
        return asked
    if isinstance(source, VectorData) or looks_like_numbers(source, reading):
        return "gaussian"
    return "symbols"


def read_validation(validation: Any, data: VectorData, reading: dict[str, Any]) -> VectorData:
    """Read held-out data in the same way as the fitted data."""
    options = reading if isinstance(validation, str | Path) else {"axis": reading.get("axis")}
    return read_vectors(validation, **options, symbols_from=data.read_options, width=data.rows.shape[1])


def fit_vectors(
    data: VectorData,
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
            raise unknown_name("fit", name, (*known, "min_variance", *READING))
    rows, lengths = data.rows, data.lengths
    return fit_each(
        sizes, lambda size: fit_emissions(family, rows, lengths, size, **options, **more), options.get("callback")
    )


def held_out(data: VectorData, seed: int) -> tuple[VectorData, VectorData | None, str]:
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
    return joined(rest), joined(judges), f"{how}; then refitted to all data"


def choose_vectors(
    data: VectorData,
    judges: VectorData | None,
    sizes: list[int],
    emission: str | type[EmissionHMM],
    options: dict[str, Any],
    more: dict[str, Any],
    choose: str | None = None,
) -> tuple[int, dict[str, Any]]:
    """Choose the number of states by BIC; return it with the fields of `FitResult`.

    Args:
        judges: Held-out data; by default a part of `data` if there is a choice.
        data, sizes, emission, options, more: As in `fit_vectors`.
        choose: See `hmmscope.fit`.
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
    if restricted:
        why = "the sequences have weights" if weighted else "parts of the model are not free"
        support = support_of(bics, None, choose, why)
    else:
        support = _support(data, fits, bics, choose, options.get("callback"))
    found: dict[str, Any] = {"fits": fits, "whole": None, "support": support, "num_fitted": len(apart.rows)}
    if judges is None:
        best, reason = choice_reason(bics, {}, np.empty(0, np.int64), support, choose=choose)
    else:
        units = units_of(judges.lengths.numpy())
        seen = summed((~judges.rows.isnan()).any(1).numpy(), np.concatenate(units))
        logs = {size: _judged(one.hmm, judges, units) for size, one in fits.items()}
        scores = {size: held_out_mean(own, seen) for size, own in logs.items()}
        found["held_out"] = {size: one.mean for size, one in scores.items()}
        found["held_out_errors"] = {size: one.error for size, one in scores.items()}
        best, reason = choice_reason(bics, logs, seen, support, "an observation", choose=choose)
    if apart is not data:
        again = options | {"start": fits[best].hmm, "num_restarts": 1}
        found["whole"] = fit_vectors(data, [best], emission, again, more)[best]
    return best, found | {"reason": reason + cut}


def _support(
    data: VectorData, fits: dict[int, EmissionFit], bics: dict[int, float], choose: str | None, callback: Any
) -> StateCountPosterior:
    model = next(iter(fits.values())).hmm
    try:
        laws = type(model).conjugate(data.rows, **model.options)
    except InputError as error:
        return support_of(bics, None, choose, str(error).removeprefix("posterior: "))
    how: dict[str, Any] = {"most": MOST if choose else UNASKED}
    how["callback"] = None if callback is None else lambda said: callback(0, said)
    return support_of(bics, lambda size: vector_evidence(fits[size].hmm, data.rows, data.lengths, laws, **how), choose)


def _judged(hmm: EmissionHMM, data: VectorData, units: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    parts = data.rows.split(data.lengths.tolist())
    terms = [hmm.observe(part[None]).log_likelihood_terms[0] for part in parts]
    return summed(torch.cat(terms).numpy(), np.concatenate(units))


def refuse(emission: str | type[EmissionHMM], **given: Any) -> None:
    """Raise InputError for given options that apply to symbols only."""
    for name, value in given.items():
        if value not in (None, False, ()):
            raise InputError(f"{name}: applies to symbols, but emission is {family_name(emission)!r}")
