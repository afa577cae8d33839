"""Emission families by registered name or by class."""

from hmmscope import registry
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.schema import require, unknown_name


def family_of(emission: str | type[EmissionHMM]) -> type[EmissionHMM]:
    if isinstance(emission, type):
        require(hasattr(emission, "m_step"), "emission", "must be a subclass of hmmscope.EmissionHMM", emission)
        return emission
    known = registry.entries("emission")
    if not isinstance(emission, str) or emission not in known:
        raise unknown_name("emission", emission, ["symbols", *known])
    family: type[EmissionHMM] = known[emission]
    return family


def family_name(emission: str | type[EmissionHMM]) -> str:
    if isinstance(emission, str):
        return emission
    return next((name for name, one in registry.entries("emission").items() if one is emission), emission.__name__)
