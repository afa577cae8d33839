"""Experiments of [Limits]."""
