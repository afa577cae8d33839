"""Questions beyond [MultiTask], on its trainings and theorems: one thing varied at a time."""
