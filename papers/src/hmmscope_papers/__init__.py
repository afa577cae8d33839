"""The two papers, [Limits] and [MultiTask]: a module for each figure, table and theorem, and the networks constructed.

The entry point is `hmmscope_papers.experiments`.
"""
