"""What may be said of a fitted model beyond the model: draws of its parameters given the sequences, and what they tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.emissions.vector_gibbs import vector_draws
from hmmscope.errors import InputError
from hmmscope.inference.chains import effective_sizes, equal_tails, r_hat
from hmmscope.inference.em import Model, counts_of
from hmmscope.inference.gibbs import Chains, DirichletPrior, Draws, symbol_draws
from hmmscope.inference.loop_inputs import PackedSequences, flat_sequences
from hmmscope.inference.paths import most_likely_states
from hmmscope.kernels.quantise import UNIT
from hmmscope.processes.hmm import HMM
from hmmscope.reprs import Shown
from hmmscope.runs.forecasts import Forecasts, forecast_with
from hmmscope.runs.goodness import Goodness, goodness_of_fit
from hmmscope.runs.vector_sequences import Vectors
from hmmscope.schema import is_count, require, unknown_name
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import MISSING

#: When chains are said not to have mixed, and how many effective draws are enough.
MIXED, ENOUGH = 1.01, 400
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
        relabelled_fraction: share of the draws that had other labels and were given those of the fit.
        sequences: what it was fitted to: symbols (time,), or numbers (time, coordinate).
    """

    hmm: Any
    arrays: dict[str, Float64[Tensor, "chain draw ..."]]
    log_likelihood: Float64[Tensor, "chain draw"]
    relabelled_fraction: float
    sequences: Sequence[Tensor]

    def table(self) -> list[dict[str, Any]]:
        """A row for each entry: its fitted value, posterior mean, 95 % interval, R-hat, effective numbers of draws.

        `array` and `entry` say which; the interval has equal tails and is wider where draws are worth few independent ones
        (`hmmscope.inference.chains.equal_tails`; see there for the rest). An entry that no draw changes
        has NaN for R-hat and effective numbers.
        """
        found = []
        fitted = self.hmm.file_tensors()
        for name, drawn in self.arrays.items():
            values = drawn.numpy()
            flat = values.reshape(*values.shape[:2], -1)
            ratios, (bulk, tail) = r_hat(flat), effective_sizes(flat)
            ends = equal_tails(flat, np.fmin(bulk, tail))
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
            f"; labels matched in {self.relabelled_fraction:.0%} of the draws" if self.relabelled_fraction else ""
        )
        shown = [row for row in rows if len(rows) <= 200 or row["array"] != "emission"]
        width = max(len(_place(row)) for row in shown)
        return [said] + [
            f"  {_place(row):<{width}}  {row['fitted']:8.4f}  95 % [{row['low']:.4f}, {row['high']:.4f}]"
            for row in shown
        ]

    def check(self, num_simulations: int = 200, *, seed: int = 0) -> Goodness:
        """Goodness of fit by posterior predictive simulation, see `goodness_of_fit`: each data set of another draw."""
        return goodness_of_fit(self.models(num_simulations), self.sequences, num_simulations, seed)

    def forecast(self, observed: Any, steps: int, *, num_models: int = 200, seed: int = 0) -> Forecasts:
        """What follows a past, with all that is not known of the parameters; see `forecast_with`.

        Args:
            observed: one sequence, symbols (time,) or their names, or numbers (time, coordinate).
            steps: at least 1.
            num_models: draws from the posterior that are used.
            seed: of draws of numbers.
        """
        require(is_count(num_models), "num_models", "must be at least 1 and whole", num_models)
        return forecast_with(self.models(num_models), observed, steps, seed)

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


@dataclass(frozen=True)
class FitData:
    """What a model was fitted to.

    Attributes:
        data: sequences of symbols, or of numbers.
        restricted: whether parts were fixed, tied or begun from a model of the user's.
    """

    data: SequenceData | Vectors
    restricted: bool

    @property
    def sequences(self) -> Sequence[Tensor]:
        """Symbols (time,), or numbers (time, coordinate)."""
        if isinstance(self.data, Vectors):
            return self.data.rows.split(self.data.lengths.tolist())
        return [self.data[number] for number in range(len(self.data))]

    def posterior(self, hmm: Any, prior: DirichletPrior, chains: Chains, laws: dict[str, Any]) -> Posterior:
        """Of a model of symbols, or of numbers; InputError if it was restricted."""
        if self.restricted:
            raise InputError(
                "posterior: its priors are of fits whose parts are all free: no fixed, start or tied_emissions"
            )
        if isinstance(self.data, Vectors):
            conjugate = type(hmm).conjugate(self.data.rows, **hmm.options | laws)
            found = vector_draws(hmm, self.data.rows, self.data.lengths, conjugate, prior, chains)
        elif laws:
            raise unknown_name("posterior", next(iter(laws)), ("initial", "transition", "emission"))
        else:
            work = flat_sequences(self.data.flat, self.data.lengths.numpy()).packed()
            found = _symbol_draws(hmm, work, prior, chains)
        arrays = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in found.arrays.items()}
        return Posterior(hmm, arrays, torch.from_numpy(found.log_likelihood), found.relabelled_fraction, self.sequences)


def _symbol_draws(hmm: HMM, work: PackedSequences, prior: DirichletPrior, chains: Chains) -> Draws:
    """By `symbol_draws`, from the fitted model on."""
    start = [np.maximum(part, 1 / UNIT) for part in Model.of(hmm)]
    start = [part / part.sum(-1, keepdims=True) for part in start]
    counts = counts_of(Model(*start), work)
    expected = [counts.initial, counts.transitions, counts.emissions.T]
    return symbol_draws(work, start, _reference(hmm, work), prior, chains, expected)


def _reference(hmm: HMM, work: PackedSequences) -> NDArray[np.int64]:
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
