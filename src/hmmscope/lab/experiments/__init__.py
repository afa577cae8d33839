"""Experiments: plan, train, measure and derive figures and findings."""
