"""Training runs and fits: configuration, training, results."""
