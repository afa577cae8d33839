"""Input-output HMMs given a sequence of inputs."""

from dataclasses import replace
from typing import Any

import torch

from hmmscope.axes import Float64, Int64, Tensor
from hmmscope.inference.continuations import Forecast
from hmmscope.inference.filtering import filter_beliefs
from hmmscope.inference.optimal import observe
from hmmscope.inference.paths import most_likely_states, sample_state_paths
from hmmscope.inference.ragged import seen_terms
from hmmscope.inference.smoothing import smooth_beliefs
from hmmscope.processes.capabilities import ObserverOutput
from hmmscope.processes.input_output import InputOutputHMM
from hmmscope.processes.process import Process
from hmmscope.schema import require, require_count
from hmmscope.sequences.gaps import MISSING


class GivenInputs(Process):
    """Distribution of the observations of an `InputOutputHMM` given inputs (time,).

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

    def fixed_memory_predictions(self, observations: Tensor, memory_length: int) -> ObserverOutput:
        """Run `observe` given all inputs and the last `memory_length` observations only."""
        require_count("memory_length", memory_length)
        count, times = self.num_symbols, torch.arange(len(self.inputs))
        seen = observations.where((observations >= 0) & (observations < count), count)
        moves, emits = self.hmm.transition[self.inputs], self.hmm.emission[self.inputs]
        likely = torch.cat([emits, torch.ones_like(emits[..., :1])], 2)
        before = [self.hmm.initial]
        for move in moves[1:]:
            before.append(before[-1] @ move)
        begins, beliefs = torch.stack(before), torch.zeros(*seen.shape, self.num_states, dtype=torch.float64)
        for back in reversed(range(min(memory_length, len(times)))):
            at = (times - back).clamp(min=0)
            moved = torch.einsum("bts,tsj->btj", beliefs, moves[at])
            opens = (at == 0) | (back == memory_length - 1)
            own = torch.where(opens[:, None], begins[at], moved) * likely[at, :, seen[:, at]]
            beliefs = torch.where((times < back)[:, None], beliefs, own / own.sum(-1, keepdim=True).clamp(min=1e-300))
        ahead = torch.einsum("bts,tsj,tjv->btv", beliefs[:, :-1], moves[1:], emits[1:])
        predicted = torch.cat([(self.hmm.initial @ emits[0]).expand(len(seen), 1, -1), ahead], 1)
        following = torch.cat([ahead, torch.zeros_like(predicted[:, :1])], 1)
        return ObserverOutput(predicted, following, seen_terms(predicted, seen), {"belief": beliefs})

    def ahead(self, observations: Tensor, next_inputs: Int64[Tensor, " step"]) -> Forecast:
        inputs, time = torch.cat([self.inputs, next_inputs]), observations.shape[1]
        gaps = torch.full((len(observations), len(next_inputs)), MISSING)
        whole = torch.cat([observations, gaps], 1)
        states = filter_beliefs(self.hmm, whole, inputs=inputs).beliefs[:, time:]
        laws = torch.einsum("bts,tsv->btv", states, self.hmm.emission[next_inputs])
        none = torch.zeros(0, *states.shape[:2], dtype=torch.int64)
        return Forecast(laws, states, none, none)

    def _given(self, reset_mask: object) -> dict[str, Any]:
        return {"inputs": self.inputs, "reset_mask": reset_mask}


class StateObserver(Process):
    """Beliefs about the state of an `InputOutputHMM`, on samples with inputs that follow a policy.

    The belief after an input is the distribution of the state that emits the next observation.

    Args:
        hmm: Model of the states.
        process: Source of the samples: `hmm.with_policy(...)` or `MultichannelHMM.of_inputs(hmm, ...)`.
    """

    stored_name, observes_gaps = "StateObserver", True

    def __init__(self, hmm: InputOutputHMM, process: Process) -> None:
        self.process, self.num_symbols, self.num_states = process, process.num_symbols, hmm.num_states
        self.real_valued = process.real_valued  # type: ignore[misc]
        self.states = hmm.states
        own, inputs, total = torch.eye(hmm.num_states).double(), hmm.num_inputs, process.num_states
        if process.real_valued:  # (input, state, held observation)
            map_XS = own.repeat_interleave(total // (inputs * hmm.num_states), 0).repeat(inputs, 1)
        elif not process.params.states_emit:  # pairs as symbols: the start, then (held, state)
            map_XS = torch.cat([hmm.initial[None], own.repeat((total - 1) // hmm.num_states, 1)])
        else:  # a first input, a later input and the state before it, (input, state, held observation)
            held = (total - inputs) // (inputs * hmm.num_states) - 1
            after = own.repeat_interleave(max(held, 0), 0).repeat(inputs, 1)
            map_XS = torch.cat([hmm.initial.expand(inputs, -1), hmm.transition.flatten(0, 1), after])
        rule = "must be hmm.with_policy(...) or MultichannelHMM.of_inputs(hmm, ...)"
        require(len(map_XS) == total, "process", rule, repr(process))
        self.map_XS = map_XS

    def observe(self, observations: Tensor, *, reset_mask: object = None) -> ObserverOutput:
        found = observe(self.process, observations, reset_mask=reset_mask)
        return replace(found, probs={"belief": found.probs["belief"] @ self.map_XS})
