"""Loops on arrays, each beside a plain twin with the same bits: Philox, alias tables, samplers."""
