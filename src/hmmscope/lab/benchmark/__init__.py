"""HMM-bench: frozen tasks with exact optima, and submissions that anyone can score again."""
