"""Compiled training steps of small models, equivalent to the modules of `models`."""
