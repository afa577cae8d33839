"""Sweeps: grids of runs on this machine or a cluster, with run folders identified by digests."""
