"""Pretrained language models that read hidden Markov models as text."""
