"""Experiments: one file each, with what it varies, measures, draws and claims."""
