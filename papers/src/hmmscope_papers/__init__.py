"""Figures, tables and theorems of the papers [Limits] and [MultiTask], and networks with weights from proofs."""
