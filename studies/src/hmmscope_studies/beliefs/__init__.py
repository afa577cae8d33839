"""Experiments on beliefs in networks."""
