"""Datasets: samples of a process as tokens."""
