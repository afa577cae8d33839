"""Questions beyond the papers, as experiments with claims.

Nothing is registered by importing the package; its entry point is `hmmscope_studies.experiments`.
"""
