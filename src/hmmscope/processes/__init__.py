"""Processes: hidden Markov models, mixtures, and random families."""
