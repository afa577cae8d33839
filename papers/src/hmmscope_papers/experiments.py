"""Registers the package's experiments and claims when an entry point imports this module."""

from hmmscope import registry

for _package in ("limits", "multitask"):
    registry.import_all(f"{__package__}.{_package}")
