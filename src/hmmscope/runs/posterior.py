"""What may be said of a fitted model beyond the model: draws of its parameters given the sequences, and what they tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.emissions.emitting import EmittingHMM
from hmmscope.emissions.number_draws import number_draws
from hmmscope.inference.chains import effective_sizes, r_hat
from hmmscope.inference.gibbs import Chains, Draws, Prior, symbol_draws
from hmmscope.inference.laplace import expected
from hmmscope.inference.loop_inputs import Sequences, flat_sequences
from hmmscope.inference.paths import most_likely_states
from hmmscope.kernels.quantise import UNIT
from hmmscope.processes.hmm import HMM
from hmmscope.reprs import Shown
from hmmscope.runs.number_sequences import Vectors
from hmmscope.schema import unknown_name
from hmmscope.sequences.gaps import MISSING

#: Ends of intervals, and when chains are said not to have mixed.
ENDS, MIXED, ENOUGH = (0.025, 0.975), 1.01, 400
#: Sequences that are decoded side by side.
TOGETHER = 256


@dataclass(frozen=True, eq=False, repr=False)
class Posterior(Shown):
    """Draws of the parameters of a fitted model given all that it was fitted to, with its labels of the states.

    Attributes:
        hmm: the fitted model.
        arrays: by the names of its arrays ("initial", "transition", "emission"; of numbers "means", ...), each
            (chain, draw, ...).
        log_likelihood: of all observations under each draw (chain, draw), nats.
        swapped: share of the draws that had other labels and were given those of the fit.
    """

    hmm: Any
    arrays: dict[str, Float64[Tensor, "chain draw ..."]]
    log_likelihood: Float64[Tensor, "chain draw"]
    swapped: float

    def table(self) -> list[dict[str, Any]]:
        """A row for each entry: its fitted value, posterior mean, 95 % interval, R-hat, effective numbers of draws.

        `array` and `entry` say which; the interval has equal tails; see `hmmscope.inference.chains` for the rest. An entry
        that no draw changes has NaN for R-hat and effective numbers.
        """
        found = []
        fitted = self.hmm.file_tensors()
        for name, drawn in self.arrays.items():
            values = drawn.numpy()
            flat = values.reshape(*values.shape[:2], -1)
            ends, ratios = np.quantile(flat, ENDS, axis=(0, 1)), r_hat(flat)
            bulk, tail = effective_sizes(flat)
            columns = fitted[name].reshape(-1).tolist(), flat.mean((0, 1)), *ends, ratios, bulk, tail
            names = ("fitted", "mean", "low", "high", "r_hat", "bulk", "tail")
            for place, entry in enumerate(np.ndindex(values.shape[2:])):
                numbers = {key: float(column[place]) for key, column in zip(names, columns, strict=True)}
                found.append({"array": name, "entry": list(entry)} | numbers)
        return found

    def lines(self) -> list[str]:
        """How many draws, whether chains agree, and the interval of every entry of laws of few states."""
        chains, draws = self.log_likelihood.shape
        rows = self.table()
        worst, least = (
            max(_seen(rows, "r_hat"), default=1.0),
            min(_seen(rows, "bulk") + _seen(rows, "tail"), default=0.0),
        )
        ended = "agree" if worst <= MIXED else f"have not mixed (R-hat above {MIXED}): take more draws, or fewer states"
        ended += f"; fewer than {ENOUGH} are few for ends of intervals" if least < ENOUGH else ""
        said = f"posterior of {chains} chains of {draws} draws: largest R-hat {worst:.3f}, "
        said += f"least effective number {least:.0f}; they {ended}" + (
            f"; labels matched in {self.swapped:.0%} of the draws" if self.swapped else ""
        )
        shown = [row for row in rows if len(rows) <= 200 or row["array"] != "emission"]
        width = max(len(_place(row)) for row in shown)
        return [said] + [
            f"  {_place(row):<{width}}  {row['fitted']:8.4f}  95 % [{row['low']:.4f}, {row['high']:.4f}]"
            for row in shown
        ]

    def models(self, count: int = 100) -> list[Any]:
        """So many of the drawn models, evenly over all chains."""
        chains, draws = self.log_likelihood.shape
        places = np.linspace(0, chains * draws - 1, min(count, chains * draws)).round().astype(int)
        flat = {name: values.flatten(0, 1) for name, values in self.arrays.items()}
        return [
            self.hmm.replaced(**{name: values[place] for name, values in flat.items()}) for place in places.tolist()
        ]


def _seen(rows: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if not np.isnan(row[key])]


def _place(row: dict[str, Any]) -> str:
    return f"{row['array']}{row['entry']}"


def posterior_of(hmm: Any, material: tuple[Any, ...], prior: Prior, chains: Chains, laws: dict[str, Any]) -> Posterior:
    """Of a model of symbols, or of numbers, and what it was fitted to."""
    (data,) = material
    if isinstance(data, Vectors):
        return posterior_of_numbers(hmm, data, prior, chains, laws)
    if laws:
        raise unknown_name("posterior", next(iter(laws)), ("initial", "transition", "emission"))
    return posterior_of_symbols(hmm, flat_sequences(data.flat, data.lengths.numpy()), prior, chains)


def posterior_of_symbols(hmm: HMM, work: Sequences, prior: Prior, chains: Chains) -> Posterior:
    """By `symbol_draws`, from the fitted model on."""
    parts = (hmm.initial_S, hmm.transition_SS, hmm.emission_SV)
    start = [np.maximum(part.numpy(), 1 / UNIT) for part in parts]
    start = [part / part.sum(-1, keepdims=True) for part in start]
    counts, _ = expected([start[0][None], start[1], start[2]], work)
    found = symbol_draws(work, start, _reference(hmm, work), prior, chains, [counts[0][0], *counts[1:]])
    return _of(hmm, found)


def _reference(hmm: HMM, work: Sequences) -> NDArray[np.int64]:
    """The likeliest state of each step; sequences, the longest first, go side by side."""
    symbols = torch.from_numpy(work.symbols)
    symbols = symbols.where(symbols < hmm.num_symbols, MISSING)
    parts, found = symbols.split(work.lengths.tolist()), []
    for begin in range(0, len(parts), TOGETHER):
        some = parts[begin : begin + TOGETHER]
        lengths = torch.tensor([len(own) for own in some])
        padded = torch.nn.utils.rnn.pad_sequence(some, batch_first=True)
        states = most_likely_states(hmm, padded, lengths=lengths).states
        found += [row[:length] for row, length in zip(states, lengths.tolist(), strict=True)]
    return np.maximum(torch.cat(found).numpy(), 0)


def posterior_of_numbers(
    hmm: EmittingHMM, data: Vectors, prior: Prior, chains: Chains, laws: dict[str, Any]
) -> Posterior:
    """By `number_draws`, from the fitted model on; `laws` are options of `EmittingHMM.conjugate`."""
    conjugate = type(hmm).conjugate(data.rows, **hmm.options | laws)
    return _of(hmm, number_draws(hmm, data.rows, data.lengths, conjugate, prior, chains))


def _of(hmm: Any, found: Draws) -> Posterior:
    arrays = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in found.arrays.items()}
    return Posterior(hmm, arrays, torch.from_numpy(found.log_likelihood), found.swapped)
