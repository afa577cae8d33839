"""Registered names and their descriptions, for the commands `show` and `claims`.

The names come from catalogue.json (see `scripts/write_pages.py`) or, if that file is outdated, from the registries.
"""

import contextlib
import dataclasses
import inspect
import io
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmmscope import registry
from hmmscope.runs.presets import PRESETS, preset
from hmmscope.schema import to_stored, unknown_name
from hmmscope.synonyms import find_term
from hmmscope.text import in_a_line, in_brief, say

if TYPE_CHECKING:
    from hmmscope.processes.process import Process

CATALOGUE = Path(__file__).with_name("catalogue.json")
_KINDS = {
    "processes": "process",
    "models": "model",
    "layouts": "layout",
    "instruments": "instrument",
    "experiments": "experiment",
    "claims": "claim",
}


#: The types of objects that `show` lists.
KINDS = (*_KINDS, "presets")


def listed(plural: str) -> str:
    kept = catalogue()
    return str(kept["list"][plural]) if kept else _listed(plural)


def meaning(name: str) -> None:
    from hmmscope.lab.verbs.output_paths import HMM_FILES

    kept = catalogue()
    if kept and name in kept["show"]:
        say(kept["show"][name], end="")
    elif kept and Path(name).suffix not in HMM_FILES:
        _show_term(name, [*kept["show"], *KINDS])
    else:
        _show(name)


def _show_term(name: str, known: Collection[str]) -> None:
    kind = next((one for one in (f"{name}s", f"{name}es") if one in KINDS), None)
    term = None if kind else find_term(name)
    if term is None:
        raise unknown_name("name", name, known, kind)
    say(str(term))


def catalogue() -> dict[str, Any] | None:
    """Return the contents of catalogue.json, or None if it is outdated or plugins are installed."""
    if registry.has_plugins() or not CATALOGUE.is_file():
        return None
    kept: dict[str, Any] = json.loads(CATALOGUE.read_text())
    return kept if kept["digest"] == registry.digest() else None


def make_catalogue() -> dict[str, Any]:
    from hmmscope.lab.evidence.ledger import LedgerRow, as_text, recorded_claim
    from hmmscope.processes.files import shipped_processes

    names = [name for kind in _KINDS.values() for name in registry.entries(kind)]
    return {
        "digest": registry.digest(),
        "list": {plural: _listed(plural) for plural in (*_KINDS, "presets")},
        "claims": "\n".join(as_text([LedgerRow(claim=claim) for claim in registry.in_order("claim")])) + "\n",
        "stated": [to_stored(recorded_claim(claim)) for claim in registry.in_order("claim")],
        "show": {name: _printed(_show, name) for name in [*names, *registry.sizes(), *shipped_processes(), *PRESETS]},
    }


def _printed(function: Callable[[str], None], name: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(name)
    return out.getvalue()


def _listed(plural: str) -> str:
    from hmmscope.processes.files import load_process, shipped_processes

    if plural == "presets":
        lines = [f"  {name:<22} {text}" for name, text in PRESETS.items()]
    else:
        kind = _KINDS[plural]
        lines = [f"  {name:<18} {_in_a_line(kind, entry)}" for name, entry in registry.entries(kind).items()]
        if kind == "model":
            lines += [f"  {name:<18} {size.about}" for name, size in registry.sizes().items()]
        if kind == "process":
            lines += [f"  {name:<18} {load_process(name).title} (shipped)" for name in shipped_processes()]
    return "\n".join([plural, *lines]) + "\n"


def _show(name: str) -> None:
    from hmmscope.lab.evidence.finding import asked_by
    from hmmscope.lab.verbs.output_paths import HMM_FILES
    from hmmscope.processes.files import load_process, shipped_processes
    from hmmscope.runs.config import config_from_data

    for singular in _KINDS.values():
        entry = registry.entries(singular).get(name)
        if entry is not None:
            if singular == "claim":
                source = asked_by(entry.source)
                say(f"claim {name}: {entry.claim_text}\n\n{source}; decided by the experiment {entry.experiment}\n")
                say(f"{entry.operationalization}\nRule: {entry.rule or 'none (this is a question)'}")
            else:
                _show_experiment(name) if singular == "experiment" else _show_entry(name, singular, entry)
            return
    if name in registry.sizes():
        size = registry.sizes()[name]
        say(f"model {name}: {size.about}\n")
        say(f"{json.dumps({'name': size.model} | size.fields)}; all fields: hmmscope show {size.model}")
        return
    if name in PRESETS:
        say(f"preset {name}: {PRESETS[name]}\n\n{json.dumps(config_from_data(preset(name)).to_data(), indent=2)}")
        return
    known = [name for kind in _KINDS.values() for name in registry.entries(kind)]
    known += [*registry.sizes(), *shipped_processes(), *PRESETS]
    if name not in shipped_processes() and Path(name).suffix not in HMM_FILES:
        _show_term(name, known)
        return
    loaded = load_process(name)
    say(f"{type(loaded).__name__}: {in_a_line(loaded.describe())}")
    if loaded.source:
        say(f"\n{in_a_line(loaded.source)}")
    card = loaded.card()
    say("".join(f"\n{line}" for line in card), end="\n" if card else "")
    _show_facts(loaded)
    for kind in ("symbols", "states"):
        names = getattr(loaded, kind, None) or ()
        if names:
            say(f"  {kind:<16} {', '.join(map(in_brief, names[:20]))}{', ...' * (len(names) > 20)}")
    if loaded.read_options is not None:
        say(f"  {'fitted to':<16} sequences read with options {in_a_line(loaded.read_options.flags())}")
    say(f"  {'digest':<16} {loaded.digest}")


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _in_a_line(kind: str, entry: Any) -> str:
    said = {"experiment": "title", "claim": "claim_text"}.get(kind)
    return getattr(entry, said) if said else _first_line(entry)


def _show_entry(name: str, kind: str, entry: Any) -> None:
    say(f"{kind} {name}\n\n{inspect.getdoc(entry)}\n")
    if dataclasses.is_dataclass(entry):
        say("fields")
        for field in dataclasses.fields(entry):
            default = "required" if field.default is dataclasses.MISSING else f"default {field.default}"
            say(f"  {field.name:<26} {default}")
        defaults = {field.name: field.default for field in dataclasses.fields(entry)}
        if kind == "process" and dataclasses.MISSING not in defaults.values() and "num_components" not in defaults:
            built: Process = registry.build_spec("process", {"name": name}, "process").build()
            _show_facts(built, "with the defaults: ")


def _show_facts(process: "Process", beginning: str = "") -> None:
    from hmmscope.inference.process_facts import process_facts

    facts = process_facts(process)
    if facts:
        say(f"\n{beginning}{process.num_states} states, {process.num_symbols} symbols" if beginning else "")
    for name, value in facts:
        say(f"  {name:<16} {value}")


def _show_experiment(name: str) -> None:
    from hmmscope.lab.experiments.experiment import experiment_named

    experiment = experiment_named(name)
    say(f"experiment {name}: {experiment.title}\n\n{experiment.summary}\n")
    for scale in experiment.scales:
        choices = experiment.choices(scale)
        plan = experiment.plan(scale, **choices)
        seeds = f"{experiment.num_seeds[scale]} seeds of " if experiment.num_seeds else ""
        say(f"{scale}: {seeds}{len(plan)} {'model' if len(plan) == 1 else 'models'}")
        for section, numbers in (("plan", choices), ("measurements", experiment.measurements(scale))):
            say("".join(f"  --{section}.{key} {_as_option(value)}\n" for key, value in numbers.items()), end="")
        for label, data in list(plan.items())[:1]:
            say(f"  {label}: {json.dumps(data)}")


def _as_option(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
