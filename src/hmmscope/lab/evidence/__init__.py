"""Effects, claims, verdicts and figures, computed from the tables of experiments."""
