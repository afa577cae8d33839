"""Instruments: what a model predicts and holds, beside what can be known."""
