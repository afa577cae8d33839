"""Kinds of process are open: what one has is asked for, and what it lacks is one line with the kinds that have it."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import hmmscope as hs
from hmmscope import HMM, LinearGaussian, Mixture
from hmmscope.axes import Tensor
from hmmscope.errors import InputError
from hmmscope.processes.kalman import kalman_filter
from hmmscope.processes.process import kinds
from hmmscope.processes.require_type import as_composed_cycles, require_process_type

SEEN = torch.zeros(1, 3, dtype=torch.int64)
LACKING: dict[str, tuple[Callable[[], object], str]] = {
    "memory of a mixture": (
        lambda: hs.memory_beliefs(pool(), SEEN, 2),
        "process: Mixture has no probabilities of words; supported by GeneralisedHMM, HMM, LabelledHMM, "
        "SemiMarkovHMM; use hmmscope.filter_mixture",
    ),
    "filter of a mixture": (
        lambda: hs.filter_beliefs(pool(), SEEN),
        "process: Mixture has no probabilities of words; supported by GeneralisedHMM, HMM, LabelledHMM",
    ),
    "paths of a signed law": (
        lambda: hs.most_likely_states(hs.make_process("post-quantum"), SEEN),
        "process: GeneralisedHMM has no hidden paths; supported by ComposedCycles, EmissionHMM, HMM, LabelledHMM, Mixture",
    ),
    "draws of a signed law": (
        lambda: hs.sample_state_paths(hs.make_process("post-quantum"), SEEN),
        "process: GeneralisedHMM has no hidden paths; supported by ComposedCycles, EmissionHMM, HMM, LabelledHMM, Mixture",
    ),
    "components of an HMM": (
        lambda: hs.filter_mixture(hs.load_process("umbrella"), SEEN),
        "process: HMM has no components; supported by ComposedCycles, Mixture",
    ),
    "predictions of a pool": (
        lambda: hs.observe(hs.make_process("fresh-hmms"), SEEN),
        "process: HMMPerSample has no exact predictions (the integral over all HMMs of the prior has no closed form); ",
    ),
    "predictions of sequences": (
        lambda: hs.observe(hs.ProcessDataset(hs.SequenceData(["abab", "ba", "aa"])).process, SEEN),
        "process: RecordedSequences has no exact predictions (the distribution of recorded sequences is unknown; fit an HMM "
        "to them); ",
    ),
    "forecast of a linear system": (
        lambda: hs.forecast(hs.make_process("ran-lds"), torch.zeros(1, 3, 5), 2),
        "process: LinearGaussian has no forecasts; supported by ComposedCycles, GeneralisedHMM, HMM, LabelledHMM, Mixture",
    ),
    "a method where the law answers": (
        lambda: hs.load_process("umbrella").observe(SEEN),
        "process: HMM cannot compute exact predictions itself; call hmmscope.observe(process, observations)",
    ),
    "as an HMM": (lambda: require_process_type(pool(), HMM), "process: must be a HMM, got a Mixture"),
    "as a mixture": (
        lambda: require_process_type(hs.load_process("umbrella"), Mixture),
        "process: must be a Mixture, got a HMM",
    ),
    "as no class": (lambda: require_process_type(pool(), 3), "kind: must be a subclass of Process, got 3"),  # type: ignore[type-var]
    "as a linear system": (
        lambda: require_process_type(pool(), LinearGaussian),
        "process: must be a LinearGaussian, got a Mixture",
    ),
}


def pool() -> hs.Mixture:
    return hs.Mixture([0.5, 0.5], [hs.load_process("umbrella")] * 2)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", LACKING)
def test_what_a_kind_lacks_is_said_with_those_that_have_it(name: str) -> None:
    call, said = LACKING[name]
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_name_of_files_stands_for_one_kind() -> None:
    def define(name: str) -> type[hs.Process]:
        return type(name, (hs.Process,), {"file_format": "test-kind", "__module__": __name__})

    first, again = define("_Kind"), define("_Kind")  # as in a notebook
    assert kinds()["test-kind"] is again is not first
    with pytest.raises(InputError, match="file_format: 'test-kind' is already used by _Kind; choose another name"):
        define("_Other")
    with pytest.raises(InputError, match="file_format: 'hmmscope-hmm' is already used by HMM"):
        type("_Hmm", (hs.Process,), {"file_format": "hmmscope-hmm"})


@pytest.mark.parametrize(
    "name", ["umbrella", "mess3", "post-quantum", "markov-mixture", "fresh-markov-chains", "ran-lds"]
)
def test_observe_is_one_record_of_every_kind(name: str) -> None:
    process = hs.load_process(name) if name == "umbrella" else hs.make_process(name)
    starts = torch.tensor([True, False, False, True, False, False])
    seen = process.sample_paths(np.arange(5), starts.numpy(), 3).observations
    found = hs.observe(process, seen, reset_mask=starts)
    anew = found.predicted_observation[:, 1:] - found.next_observation[:, :-1]
    assert anew[:, [0, 1, 3, 4]].abs().max() < 1e-15  # at a restart a linear system says what would come without it
    assert process.real_valued or anew.abs().max() < 1e-15
    if not process.real_valued:
        predicted = found.predicted_observation.gather(2, seen[..., None])[..., 0].log()
        torch.testing.assert_close(found.log_likelihood_terms, predicted, rtol=0, atol=1e-12)
    for law in found.probs.values():
        torch.testing.assert_close(law.sum(-1), torch.ones(5, 6, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_linear_system_begins_anew_where_a_sequence_does() -> None:
    process = hs.make_process("ran-lds")
    starts = torch.tensor([True, False, False, True, False])
    seen = process.sample_paths(np.arange(3), starts.numpy(), 1).observations
    found, parts = (
        hs.observe(process, seen, reset_mask=starts),
        [kalman_filter(process, seen[:, :3]), kalman_filter(process, seen[:, 3:])],
    )
    assert torch.equal(found.vectors["mean"], torch.cat([part.means for part in parts], 1))
    assert torch.equal(found.log_likelihood_terms, torch.cat([part.log_likelihood_terms for part in parts], 1))
    assert found.belief is found.vectors["mean"]


def test_a_pool_of_pairs_is_known_as_one() -> None:
    pairs = hs.make_process("composed-cycles", num_parts=4, num_states=6, num_symbols=3)
    assert as_composed_cycles(pairs) is pairs
    assert as_composed_cycles(pool()) is None


class Drawn(hs.Process):
    """Symbols and laws as they are given."""

    num_states = num_symbols = 2

    def __init__(self, symbol: int = 0, law: Any = (0.5, 0.5)) -> None:
        self.symbol, self.drawn_law = symbol, torch.tensor(law, dtype=torch.float64)

    def sample_paths(self, indices: Any, reset_mask: Any, seed: int, stream: str = "corpus") -> hs.SampledPaths:
        states = torch.zeros(len(indices), len(reset_mask), dtype=torch.int64)
        return hs.SampledPaths(states + self.symbol, states, None)

    def observe(self, observations: Tensor, *, reset_mask: object = None) -> hs.ObserverOutput:
        return hs.ObserverOutput.of_symbols(observations, self.drawn_law.expand(len(observations), 4, 2))


@pytest.mark.parametrize(
    "law, said",
    [
        ((0.5, 0.6), r"observe: predicted\[0, 0\] must be nonnegative with sum 1, but sums to 1.1"),
        ((1.5, -0.5), r"observe: predicted\[0, 0\] must be nonnegative with sum 1, but sums to 1"),
        ((0.5, torch.nan), r"observe: predicted\[0, 0\] must be nonnegative with sum 1, but sums to nan"),
    ],
)
def test_laws_of_a_kind_of_its_own_are_laws(law: Any, said: str) -> None:
    seen = hs.ProcessDataset(Drawn(), length=3)[0:1].observations
    assert hs.observe(Drawn(), seen).log_likelihood_terms.sum().item() == pytest.approx(3 * math.log(0.5))
    with pytest.raises(InputError, match=said):
        hs.observe(Drawn(law=law), seen)


@pytest.mark.parametrize("symbol", [-1, 2])
def test_symbols_of_a_kind_of_its_own_are_its_symbols(symbol: int) -> None:
    with pytest.raises(InputError, match=r"sample_paths: must draw symbols in \[0, 2\)"):
        hs.ProcessDataset(Drawn(symbol), length=3)[0:1]


@pytest.mark.parametrize("rows", [[[0.5, 0.4], [0.5, 0.5]], [[1.5, -0.5], [0.5, 0.5]], [[1 / 3, 2 / 3], [0.5, 0.5]]])
def test_what_no_rows_of_integers_are_is_not_drawn(rows: Any) -> None:
    half = [[0.5, 0.5], [0.5, 0.5]]
    own = hs.HMM([0.5, 0.5], half, half)
    own.params = replace(own.params, emission_MSV=torch.tensor([rows], dtype=torch.float64))
    with pytest.raises(InputError, match="params: rows must be distributions in multiples"):
        hs.ProcessDataset(own, length=3)[0:1]
