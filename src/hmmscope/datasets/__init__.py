"""Samples of a process as tokens: a corpus is a function of (process, layout, seed), not a file."""
