"""The two papers, [Limits] and [MultiTask]: a module for each figure, table and theorem, and the networks constructed.

Nothing is registered by importing the package; its entry point is `hmmscope_papers.experiments`.
"""
