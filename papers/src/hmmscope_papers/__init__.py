"""The papers [Limits] and [MultiTask]: a module for each figure, table and theorem, and the constructed networks."""
