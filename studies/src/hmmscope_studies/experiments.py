"""Registers every experiment and claim of the package: its entry point imports this module."""

from hmmscope import registry

for _package in ("beliefs", "prompted", "language", "architectures", "beyond_limits", "beyond_multitask"):
    registry.import_all(f"{__package__}.{_package}")
