"""The experiments of the papers: what they vary, measure and show, and the claims that their tables decide.

A package as anybody's: it is found by its entry point, and imports what `hmmscope` and `hmmscope.lab` give to everyone.
"""

from hmmscope import registry

registry.import_all(__name__)
