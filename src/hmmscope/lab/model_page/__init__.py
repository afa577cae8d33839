"""The model page: a page that compares one model with the exact Bayes-optimal answers."""
