"""Claims of the papers as functions from the tables of an experiment to a verdict."""
