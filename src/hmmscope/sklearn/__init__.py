"""HMMs as scikit-learn estimators, with the interface and the numerical results of hmmlearn.

Replace ``from hmmlearn.hmm import CategoricalHMM`` by ``from hmmscope.sklearn import CategoricalHMM``.
"""

import importlib.util

if importlib.util.find_spec("sklearn") is None:
    raise ImportError("hmmscope.sklearn: needs scikit-learn; run pip install 'hmmscope[sklearn]'")

from hmmscope.sklearn.categorical import CategoricalHMM
from hmmscope.sklearn.family_hmm import FamilyHMM
from hmmscope.sklearn.gaussians import GaussianHMM
from hmmscope.sklearn.gmm import GMMHMM
from hmmscope.sklearn.monitor import ConvergenceMonitor
from hmmscope.sklearn.poisson_hmm import PoissonHMM

__all__ = ["GMMHMM", "CategoricalHMM", "ConvergenceMonitor", "FamilyHMM", "GaussianHMM", "PoissonHMM"]
