"""Models: networks that map tokens or vectors to logits or vectors."""
