"""HMM estimator with emissions of any registered family."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.emissions.emission_hmm import EmissionHMM
from hmmscope.emissions.families import family_of
from hmmscope.errors import InputError
from hmmscope.inference.constraints import Constraints
from hmmscope.sklearn.encoded import Array
from hmmscope.sklearn.vector_estimator import RealValuedHMM, without_gaps


class FamilyHMM(RealValuedHMM):
    """HMM with emissions of any registered family, including those of other packages.

    Args:
        n_components: Number of states S.
        emission: Name of the family (`hmmscope.registry.emission`), or a subclass of `hmmscope.EmissionHMM`.
        emission_options: Options of the family, such as {"num_gaussians": 2}.
        min_variance: Least variance within a state, as a fraction of the feature's variance in X.
        startprob_prior, transmat_prior: Concentrations of Dirichlet priors; 1 means no prior.
        algorithm, random_state, n_iter, tol, verbose, implementation, n_init, constraints: See `CategoricalHMM`.
        params, init_params: See `CategoricalHMM`.

    Attributes:
        startprob_, transmat_, monitor_: See `CategoricalHMM`.
        emissions_: Arguments of the emission family's class, by name, except `initial` and `transition`.
    """

    parts = RealValuedHMM.parts | {"e": "emissions_"}
    emissions_: dict[str, Any]
    emission: str | type[EmissionHMM]
    emission_options: dict[str, Any] | None
    min_variance: float

    def __init__(
        self,
        n_components: int = 1,
        emission: str | type[EmissionHMM] = "gaussian",
        emission_options: dict[str, Any] | None = None,
        min_variance: float = 1e-6,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        algorithm: str = "viterbi",
        random_state: Any = None,
        n_iter: int = 10,
        tol: float = 1e-2,
        verbose: bool = False,
        params: str = "ste",
        init_params: str = "ste",
        implementation: str = "log",
        n_init: int = 1,
        constraints: Constraints | None = None,
    ) -> None:
        self._take(locals())

    def process(self) -> EmissionHMM:
        arrays: dict[str, Any] = {"initial": self.startprob_, "transition": self.transmat_} | self.emissions_
        return family_of(self.emission)(**arrays)

    def _check_options(self) -> None:
        super()._check_options()
        family_of(self.emission)
        if not 0 < self.min_variance < 1:
            raise InputError(f"min_variance: must be in (0, 1), got {self.min_variance!r}")

    def _check_emissions(self) -> None:
        self.process()

    def _read(self, X: Any, *, fitting: bool) -> Array:
        found = super()._read(X, fitting=fitting)
        family_of(self.emission).checked(torch.from_numpy(found))
        return found

    def _begin_emissions(self, X: NDArray[Any], random: np.random.RandomState) -> dict[str, Any]:
        filled = without_gaps(X, self.n_components)
        self._least = torch.from_numpy(np.where(np.ptp(filled, 0) > 0, self.min_variance * filled.var(0), 1e-12))
        family, drawn = family_of(self.emission), np.random.default_rng(random.randint(2**31))
        begun = family.initialize(
            torch.from_numpy(X), self.n_components, drawn, min_variance=self._least, **(self.emission_options or {})
        )
        arrays = {name: value.numpy() for name, value in begun.file_tensors().items()}
        texts = {name: text for name, text in begun.file_texts().items() if name in family.fit_options}
        return {"emissions_": {name: one for name, one in (arrays | texts).items() if name not in _CHAIN}}

    def _maximise_emissions(self, X: NDArray[Any], visits: Float64[Tensor, "row state"]) -> None:
        if "e" in self.params:
            found = self.process().m_step(torch.from_numpy(X), visits, self._least)
            self.emissions_ = self.emissions_ | {name: np.asarray(value) for name, value in found.items()}

    def _num_free_emissions(self, positive: dict[str, NDArray[np.bool_]]) -> dict[str, int]:
        process = self.process()
        own = {name: where for name, where in process.positive.items() if name not in _CHAIN}
        return {"emissions_": sum(process.num_free(own).values())}


_CHAIN = ("initial", "transition")
