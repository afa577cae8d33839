"""Exactly resumable training of models on datasets."""
