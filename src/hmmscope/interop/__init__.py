"""Hidden Markov models of other libraries, in and out. Foreign objects are known by their attributes only."""

from hmmscope.interop.dynamax import from_dynamax
from hmmscope.interop.hmmer import from_pyhmmer, load_hmmer
from hmmscope.interop.hmmlearn import from_hmmlearn, to_hmmlearn
from hmmscope.interop.pomegranate import from_pomegranate

__all__ = ["from_dynamax", "from_hmmlearn", "from_pomegranate", "from_pyhmmer", "load_hmmer", "to_hmmlearn"]
