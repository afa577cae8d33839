"""Registers the package's experiments and claims when its entry point imports it."""

from hmmscope import registry

for _package in ("beliefs", "prompted", "language", "architectures", "beyond_limits", "beyond_multitask"):
    registry.import_all(f"{__package__}.{_package}")
