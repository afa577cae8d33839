"""From tables to effects, verdicts and figures: one vocabulary."""
