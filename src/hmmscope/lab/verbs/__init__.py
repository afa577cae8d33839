"""Verbs of the command line that compute exact answers: oracle, facts, fit."""
