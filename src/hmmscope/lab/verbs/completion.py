"""Completion of registered names and configuration fields in a shell, by argcomplete."""

import argparse
import json
import os
import re

from hmmscope.lab.verbs.catalogue import KINDS, catalogue, listed

#: Kinds of names that an argument takes, by verb or for all verbs.
_ARGUMENTS = {
    "experiment": ("experiments",),
    "report folders": ("experiments",),
    "config": ("processes", "presets"),
    "grid": ("processes", "presets"),
    "process": ("processes",),
    "instrument": ("instruments",),
    "train model": ("models",),
    "name": KINDS,
}


def complete_names(verb: str, parser: argparse.ArgumentParser) -> None:
    from argcomplete import FilesCompleter

    for action in parser._actions:
        kinds = _ARGUMENTS.get(f"{verb} {action.dest}") or _ARGUMENTS.get(action.dest, ())
        names = [name for kind in kinds for name in _names(kind)]
        if names:
            action.completer = lambda prefix, own=names, **_: [*own, *FilesCompleter()(prefix)]  # type: ignore[attr-defined]
    for option in _fields(verb, os.environ.get("COMP_LINE", "").split()):
        parser.add_argument(option, help="configuration")


def _names(kind: str) -> list[str]:
    return [line.split()[0] for line in listed(kind).splitlines() if line.startswith("  ")]


def _fields(verb: str, words: list[str]) -> list[str]:
    shown = (catalogue() or {"show": {}})["show"]
    if verb not in ("run", "sweep", "train") or not shown:
        return []
    training = json.loads(shown["multitask"].partition("\n\n")[2])["training"]
    found = ["--seed", "--target"] * (verb != "run") + [f"--training.{name}" for name in training]
    for kind, section in (("models", "model"), ("processes", "process"), ("layouts", "layout"), ("experiments", "")):
        known = [name for name in _names(kind) if name in shown]
        for name in [name for name in known if name in words] or known:
            fields = re.findall(r"^  (\w+) ", shown[name].partition("\nfields\n")[2].partition("\n\n")[0], re.M)
            plan = re.findall(r"^  --(\w+\.\w+)", shown[name], re.M) if verb == "run" else []
            found += [f"--{one}" for one in plan] if not section else [f"--{section}.{field}" for field in fields]
    return list(dict.fromkeys(found))
