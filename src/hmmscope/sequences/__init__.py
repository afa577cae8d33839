"""Sequences of symbols that users bring: read, checked, said in a line, and handed to everything else."""
