"""Models: maps from tokens to logits."""
