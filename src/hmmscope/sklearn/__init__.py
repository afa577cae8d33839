"""Hidden Markov models as estimators of scikit-learn, with the names of hmmlearn and the same numbers.

``from hmmscope.sklearn import CategoricalHMM`` in place of ``from hmmlearn.hmm import CategoricalHMM`` is the one line that
changes. `estimator.py` is what all hidden Markov models share, and each family of emissions is a file beside it.
"""

import importlib.util

if importlib.util.find_spec("sklearn") is None:
    raise ImportError("hmmscope.sklearn: needs scikit-learn; pip install 'hmmscope[sklearn]'")

from hmmscope.sklearn.categorical import CategoricalHMM
from hmmscope.sklearn.gaussians import GaussianHMM
from hmmscope.sklearn.gmm import GMMHMM
from hmmscope.sklearn.monitor import ConvergenceMonitor
from hmmscope.sklearn.poisson_hmm import PoissonHMM

__all__ = ["GMMHMM", "CategoricalHMM", "ConvergenceMonitor", "GaussianHMM", "PoissonHMM"]
