"""Effects, claims, verdicts and figures made from the tables of experiments."""
