"""The two papers, [Limits] and [MultiTask]: a module for each figure, table and theorem, and the networks constructed."""
