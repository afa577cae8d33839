"""Experiments: plan trainings, train, measure, and derive figures and findings from the measurements."""
