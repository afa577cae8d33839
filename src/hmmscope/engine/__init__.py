"""Compiled training steps of small models, equivalent to the torch modules in `hmmscope.models`."""
