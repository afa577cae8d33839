"""Experiments that extend the trainings and theorems of [MultiTask]."""
