"""Input-output HMMs given a row of inputs."""

from typing import Any

import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.paths import most_likely_states, sample_state_paths
from hmmscope.inference.smoothing import smooth_beliefs
from hmmscope.processes.capabilities import ObserverOutput
from hmmscope.processes.process import Process
from hmmscope.sequences.gaps import MISSING


class GivenInputs(Process):
    """The process of observations given inputs (time,), with the beliefs of an `InputOutputHMM`.

    Predictions after the last input are zero.
    """

    stored_name, observes_gaps = "GivenInputs", True

    def __init__(self, hmm: Any, inputs: Int64[Tensor, " time"]) -> None:
        self.hmm, self.inputs = hmm, inputs
        self.num_states, self.num_symbols = hmm.num_states, hmm.num_symbols
        self.symbols, self.states, self.title, self.read_options = hmm.symbols, hmm.states, hmm.title, hmm.read_options

    def observe(self, observations: Tensor, *, reset_mask: object = None) -> ObserverOutput:
        seen = observations.where(observations < self.num_symbols, MISSING)
        found = filter_beliefs(self.hmm, seen, **self._given(reset_mask))
        moved = torch.einsum("bts,tsj->btj", found.beliefs[:, :-1], self.hmm.transition[self.inputs[1:]])
        before = torch.cat([self.hmm.initial.expand(len(moved), 1, -1), moved], 1)
        if reset_mask is not None:
            before[:, torch.as_tensor(reset_mask)] = self.hmm.initial
        predicted = torch.einsum("btj,tjv->btv", before, self.hmm.emission[self.inputs])
        ahead = torch.cat([predicted[:, 1:], torch.zeros_like(predicted[:, :1])], 1)
        return ObserverOutput(predicted, ahead, found.log_likelihood_terms, {"belief": found.beliefs})

    def smooth(self, observations: Tensor, *, reset_mask: object = None) -> Float64[Tensor, "batch time state"]:
        return smooth_beliefs(self.hmm, observations, **self._given(reset_mask))

    def viterbi(self, observations: Tensor, *, reset_mask: object = None) -> tuple[Tensor, Tensor]:
        found = most_likely_states(self.hmm, observations, **self._given(reset_mask))
        return found.states, found.log_probability

    def sample_posterior_paths(
        self, observations: Tensor, *, num_paths: int, seed: int, reset_mask: object = None
    ) -> Tensor:
        given = self._given(reset_mask)
        return sample_state_paths(self.hmm, observations, num_paths=num_paths, seed=seed, **given)

    def _given(self, reset_mask: object) -> dict[str, Any]:
        return {"inputs": self.inputs, "reset_mask": reset_mask}
