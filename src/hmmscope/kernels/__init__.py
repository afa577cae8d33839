"""Compiled loops on arrays, each with a bit-identical reference implementation."""
