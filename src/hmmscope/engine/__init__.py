"""Compiled training steps of small models: arrays in, arrays out; the same function as the modules of `models`."""
