"""Experiments beyond [MultiTask] on its trainings and theorems; each varies one parameter."""
