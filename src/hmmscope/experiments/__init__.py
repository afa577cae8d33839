"""One file for each figure, table or demonstration: what to train, what to measure, what to draw, what was found."""
