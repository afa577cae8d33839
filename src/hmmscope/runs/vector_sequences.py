"""Arrays of numbers as sequences of vectors, and fits of emission families to them."""

from collections.abc import Callable
from functools import partial
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
from hmmscope.inference.num_states import NumStatesChoice, choice_of, fit_each, summed, units_of, why_not
from hmmscope.schema import require, unknown_name
from hmmscope.seeds import numpy_generator
from hmmscope.sequences.number_cells import looks_like_numbers
from hmmscope.sequences.read_options import TIME_OPTIONS
from hmmscope.sequences.vector_data import VectorData, joined, read_vectors

#: Options for reading numbers.
READING = ("axis", "lengths", "column", "group", "missing", *TIME_OPTIONS)
#: Least number of sequences or blocks from which a part is held out, and least length of a block.
LEAST_PARTS, SHORTEST = 20, 16


def emission_of(source: Any, asked: str | type[EmissionHMM] | None, reading: dict[str, Any]) -> str | type[EmissionHMM]:
    if isinstance(asked, str) and asked == "symbols":
        return asked
    if asked is not None:
        family_of(asked)
        return asked
    if isinstance(source, VectorData) or looks_like_numbers(source, reading):
        return "gaussian"
    return "symbols"


def read_numbers(source: Any, asked: str | type[EmissionHMM] | None, reading: dict[str, Any]) -> VectorData:
    """Read numbers; booleans are names, unless the requested emission has numbers only."""
    data = read_vectors(source, **reading)
    named = isinstance(source, VectorData) or asked is None or family_name(asked) in ("mixed", "channels")
    return data if named else data.with_boolean_numbers()


def read_validation(validation: Any, data: VectorData, reading: dict[str, Any]) -> VectorData:
    options = reading if isinstance(validation, str | Path) else {"axis": reading.get("axis")}
    return read_vectors(validation, **options, symbols_from=data.read_options, width=data.rows.shape[1])


def _one_fit(
    data: VectorData, emission: str | type[EmissionHMM], options: dict[str, Any], more: dict[str, Any]
) -> Callable[[int], EmissionFit]:
    family = family_of(emission)
    for name in more:
        if name not in (*family.fit_options, "min_variance"):
            raise unknown_name("fit", name, (*family.fit_options, "min_variance", *READING))
    return partial(fit_emissions, family, data.rows, data.lengths, **options, **more)


def held_out(data: VectorData, seed: int) -> tuple[VectorData, VectorData | None, str]:
    """Split off a fifth of the data to compare numbers of states; return both parts and a description.

    Fewer than twenty sequences are cut into blocks. If there are fewer than twenty blocks, nothing is held out.
    """
    parts, how = list(data.rows.split(data.lengths.tolist())), ""
    if len(parts) < LEAST_PARTS:
        size = max(SHORTEST, -(-len(data.rows) // 50))
        parts = [block for part in parts for block in part.split(size)]
        how = f"; held-out blocks of {size} observations"
    if len(parts) < LEAST_PARTS:
        return data, None, "; there are too few data for a held-out part"
    chosen = set(numpy_generator(seed, "held-out").permutation(len(parts))[: len(parts) // 5].tolist())
    judges = [part for number, part in enumerate(parts) if number in chosen]
    if all(bool(part.isnan().all()) for part in judges):
        return data, None, "; there are too few data for a held-out part"
    rest = [part for number, part in enumerate(parts) if number not in chosen]
    return joined(rest), joined(judges), f"{how}; the refit uses all data"


def choose_vectors(
    data: VectorData,
    judges: VectorData | None,
    sizes: list[int],
    emission: str | type[EmissionHMM],
    options: dict[str, Any],
    more: dict[str, Any],
    choose: str | None = None,
) -> tuple[NumStatesChoice, dict[str, Any]]:
    apart, cut = data, ""
    if judges is not None and judges.rows.shape[1] != data.rows.shape[1]:
        raise InputError(f"validation: must have {data.rows.shape[1]} coordinates, got {judges.rows.shape[1]}")
    several, hear = len(sizes) > 1, options.get("callback")
    require(not several or options.get("known_states") is None, "known_states", "needs one num_states", sizes)
    weighted = options.get("sequence_weights") is not None
    if judges is None and several and not weighted:
        apart, judges, cut = held_out(data, options["seed"])
    fits = fit_each(sizes, _one_fit(apart, emission, options, more), hear)
    if not several:
        return choice_of(fits, None), {"whole": None}
    why = "the sequences have weights"
    evidence_of, why = (None, why) if weighted else _evidence_of(data, fits, choose, hear)
    how: dict[str, Any] = {}
    if judges is not None:
        units = units_of(judges.lengths.numpy())
        seen = summed((~judges.rows.isnan()).any(1).numpy(), np.concatenate(units))
        logs = {size: _judged(one.hmm, judges, units) for size, one in fits.items()}
        how = {"logs": logs, "lengths": seen, "each": "an observation"}
    choice = choice_of(fits, evidence_of, choose, why, **how)
    found: dict[str, Any] = {"whole": None, "num_fitted": len(apart.rows), "reason": choice.reason + cut}
    if apart is not data:
        again = options | {"start": choice.chosen.hmm, "num_restarts": 1}
        found["whole"] = _one_fit(data, emission, again, more)(choice.num_states)
    return choice, found


def _evidence_of(
    data: VectorData, fits: dict[int, EmissionFit], choose: str | None, callback: Any
) -> tuple[Callable[[int], Any] | None, str]:
    model = next(iter(fits.values())).hmm
    try:
        laws = type(model).conjugate(data.rows, **model.options)
        chains = {size: one.laws({}) for size, one in fits.items()}
    except InputError as error:
        return None, str(error).removeprefix("posterior: ")
    if why := why_not(chains.values()):
        return None, why
    how: dict[str, Any] = {"most": MOST if choose else UNASKED}
    how["callback"] = None if callback is None else lambda said: callback(0, said)
    rows = data.rows, data.lengths, laws
    return lambda size: vector_evidence(fits[size].hmm, *rows, chain=chains[size], **how), ""


def _judged(hmm: EmissionHMM, data: VectorData, units: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    parts = data.rows.split(data.lengths.tolist())
    terms = [hmm.observe(part[None]).log_likelihood_terms[0] for part in parts]
    return summed(torch.cat(terms).numpy(), np.concatenate(units))


def refuse(emission: str | type[EmissionHMM], **given: Any) -> None:
    for name, value in given.items():
        if value not in (None, False, ()):
            raise InputError(f"{name}: applies to symbols, but emission is {family_name(emission)!r}")
