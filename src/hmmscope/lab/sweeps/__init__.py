"""Sweeps: grids of runs on this machine or a cluster."""
