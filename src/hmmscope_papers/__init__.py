"""Experiments of the papers: what they vary, measure and show, and their claims.

An ordinary package, found by its entry point; it imports public names of `hmmscope` and `hmmscope.lab` only.
"""

from hmmscope import registry

registry.import_all(__name__)
