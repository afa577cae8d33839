"""Emission families for vector observations, with one common filter."""
