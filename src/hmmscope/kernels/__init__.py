"""Compiled loops over arrays: sampling, inference and matrix products."""
