"""Experiments of [MultiTask]."""
