"""Sweeps: training of a grid of configurations on this machine or a cluster."""
