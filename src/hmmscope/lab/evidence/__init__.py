"""Effects, claims, verdicts and figures, which are computed from the tables of experiments."""
