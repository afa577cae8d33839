"""Maps from tokens to logits; ignorant of what generated the tokens."""
