"""Completion of registered names in a shell, by argcomplete."""

import argparse

from hmmscope.lab.verbs.catalogue import KINDS, listed

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
        lines = [line for kind in kinds for line in listed(kind).splitlines() if line.startswith("  ")]
        names = [line.split()[0] for line in lines]
        if names:
            action.completer = lambda prefix, own=names, **_: [*own, *FilesCompleter()(prefix)]  # type: ignore[attr-defined]
