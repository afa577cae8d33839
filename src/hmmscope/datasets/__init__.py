"""Datasets: samples of a process as tokens, computed from (process, layout, seed), not stored."""
