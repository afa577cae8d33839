"""Posterior draws of the parameters of a fitted model, and their intervals, checks and forecasts."""

import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Float64, Tensor
from hmmscope.emissions.vector_gibbs import vector_draws
from hmmscope.errors import InputError
from hmmscope.inference.chains import effective_sizes, equal_tails, r_hat
from hmmscope.inference.constrained_laws import RowLaws, symmetries
from hmmscope.inference.em import PARTS, Model, counts_of
from hmmscope.inference.gibbs import Chains, ChainsStopped, DirichletPrior, Draws, symbol_draws
from hmmscope.inference.gibbs_expanded import expanded_draws, expansion_of
from hmmscope.inference.loop_inputs import PackedSequences, flat_sequences
from hmmscope.inference.paths import most_likely_states
from hmmscope.kernels.quantise import UNIT
from hmmscope.processes.hmm import HMM
from hmmscope.progress import StoppableProgress
from hmmscope.reprs import Shown, Tabular
from hmmscope.runs.forecasts import Forecasts, forecast_with
from hmmscope.runs.given_rows import GivenRows, of_symbols, of_vectors
from hmmscope.runs.goodness import Goodness, goodness_of_fit
from hmmscope.runs.state_answers import predict
from hmmscope.schema import is_count, require, unknown_name
from hmmscope.sequences.data import SequenceData
from hmmscope.sequences.gaps import MISSING
from hmmscope.sequences.time_axis import EACH_ROW
from hmmscope.sequences.vector_data import VectorData
from hmmscope.training.signals import Interrupted

#: Largest R-hat of chains that agree, R-hat above which chains are lengthened, and sufficient effective sample size.
MIXED, LONGER, ENOUGH = 1.01, 1.05, 400
#: Number of sequences whose states are decoded in one batch.
TOGETHER = 256


@dataclass(frozen=True, eq=False, repr=False)
class Posterior(Shown, Tabular):
    """Posterior draws of the parameters of a fitted model, with the state labels of the fit.

    Attributes:
        hmm: The fitted model.
        arrays: Draws (chain, draw, ...) of each array: "initial", "transition"; "emission" or "means", ...
        log_likelihood: Log-likelihood of the data under each draw (chain, draw), in nats.
        relabelled_fraction: Fraction of draws with state labels permuted to match those of the fit.
        sequences: The fitted data: symbols (time,) or numbers (time, coordinate).
        lengthened: Factor by which the chains were lengthened because R-hat was above 1.05.
    """

    hmm: Any
    arrays: dict[str, Float64[Tensor, "chain draw ..."]]
    log_likelihood: Float64[Tensor, "chain draw"]
    relabelled_fraction: float
    sequences: Sequence[Tensor]
    lengthened: int = 1

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each parameter: fitted value, posterior mean, 95 % interval, R-hat, effective sample sizes.

        The columns `array` and `entry` identify the parameter. The interval has equal tails and is wider if the
        effective sample size is small. A constant parameter has NaN for R-hat and effective sample sizes.
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
        """Return lines of text: number of draws, agreement of the chains, and an interval for each parameter."""
        chains, draws = self.log_likelihood.shape
        rows = self.table()
        worst, least = (
            max(_seen(rows, "r_hat"), default=1.0),
            min(_seen(rows, "bulk") + _seen(rows, "tail"), default=0.0),
        )
        ended = (
            "agree" if worst <= MIXED else f"have not mixed (R-hat is above {MIXED}): take more draws, or fewer states"
        )
        ended += f"; fewer than {ENOUGH} effective draws give imprecise interval ends" if least < ENOUGH else ""
        said = f"posterior of {chains} chains of {draws} draws: largest R-hat {worst:.3f}, "
        said += f"smallest effective sample size {least:.0f}; the chains {ended}" + (
            f"; states were relabelled as in the fit in {self.relabelled_fraction:.0%} of the draws"
            if self.relabelled_fraction
            else ""
        )
        said += f"; the chains were made {self.lengthened} times as long" if self.lengthened > 1 else ""
        shown = [row for row in rows if len(rows) <= 200 or row["array"] != "emission"]
        width = max(len(_place(row)) for row in shown)
        return [said] + [
            f"  {_place(row):<{width}}  {row['fitted']:8.4f}  95 % [{row['low']:.4f}, {row['high']:.4f}]"
            for row in shown
        ]

    def check(self, num_simulations: int = 200, *, seed: int = 0) -> Goodness:
        """Test goodness of fit with simulations of posterior draws; see `goodness_of_fit`."""
        return goodness_of_fit(self.models(num_simulations), self.sequences, num_simulations, seed)

    def forecast(self, observed: Any, steps: int, *, num_models: int = 200, seed: int = 0) -> Forecasts:
        """Forecast the observations after a given past, with the uncertainty of the parameters; see `forecast_with`.

        Args:
            observed: One sequence: symbols (time,) or names, or numbers (time, coordinate).
            steps: Number of steps, at least 1.
            num_models: Number of posterior draws.
            seed: Seed of the random numbers.
        """
        require(is_count(num_models), "num_models", "must be at least 1 and whole", num_models)
        return forecast_with(self.models(num_models), observed, steps, seed)

    def models(self, count: int = 100) -> list[Any]:
        """Return `count` of the drawn models, evenly spaced along the chains."""
        chains, draws = self.log_likelihood.shape
        places = np.linspace(0, chains * draws - 1, min(count, chains * draws)).round().astype(int)
        flat = {name: values.flatten(0, 1) for name, values in self.arrays.items()}
        return [self.hmm.replaced(**{name: drawn[place] for name, drawn in flat.items()}) for place in places.tolist()]


def worst_r_hat(arrays: Iterable[NDArray[np.float64]]) -> float:
    ratios = np.concatenate([r_hat(values.reshape(*values.shape[:2], -1)) for values in arrays])
    return float(np.max(ratios[~np.isnan(ratios)], initial=1.0))


def _seen(rows: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if not np.isnan(row[key])]


def _place(row: dict[str, Any]) -> str:
    return f"{row['array']}{row['entry']}"


@dataclass(frozen=True, repr=False)
class FitData(Shown):
    """The data of a fit.

    Attributes:
        data: Sequences of symbols or of numbers.
        restricted: True if an option of the fit, such as sequence weights, makes posterior draws impossible.
        index: Label of each row, or None.
        columns: Names of the coordinates, or empty.
        inputs: Inputs of the observations, or None.
        known: Allowed states of each observation (row, state), or None.
    """

    data: SequenceData | VectorData
    restricted: bool
    index: Any = None
    columns: tuple[str, ...] = ()
    inputs: SequenceData | None = None
    known: NDArray[np.bool_] | None = None

    @property
    def rows(self) -> GivenRows:
        if isinstance(self.data, VectorData):
            return of_vectors(self.data, self.index, self.columns)
        return of_symbols(self.data, self.index, self.inputs)

    @property
    def sequences(self) -> Sequence[Tensor]:
        return self.rows.sequences

    def times_in_words(self) -> str:
        reading, steps = self.data.read_options, int(self.data.lengths.sum())
        if reading is None or reading.time is None:
            return ""
        counted = f"{len(self.data)} sequence{'s' * (len(self.data) != 1)} with {steps} time steps"
        every = f" every {reading.every}" if reading.every not in (None, EACH_ROW) else ""
        return f", {counted}{every}, of which {steps - self.data.num_observations} missing"

    def posterior(
        self,
        hmm: Any,
        prior: DirichletPrior,
        chains: Chains,
        laws: dict[str, Any],
        max_lengthening: int = 1,
        rules: RowLaws | None = None,
    ) -> Posterior:
        require(is_count(max_lengthening), "max_lengthening", "must be at least 1 and whole", max_lengthening)
        factor, found = 0, None
        with StoppableProgress(chains.num_sweeps, "posterior", quiet=None) as heard:
            chains = replace(chains, callback=heard)
            while not heard.stopped and (
                found is None or (2 * factor <= max_lengthening and worst_r_hat(found.arrays.values()) > LONGER)
            ):
                if found is not None:
                    chains = chains.longer()
                    heard.total = heard.made + chains.num_sweeps
                with suppress(ChainsStopped):
                    drawn = self._drawn(hmm, prior, chains, laws, rules or {})
                    if found is None or not heard.stopped:
                        found, factor = drawn, 2 * factor or 1
        if found is None:
            raise Interrupted("posterior: stopped by SIGINT before the first draws; nothing was drawn", signal.SIGINT)
        arrays = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in found.arrays.items()}
        logs = torch.from_numpy(found.log_likelihood)
        result = Posterior(hmm, arrays, logs, found.relabelled_fraction, self.sequences, factor)
        if heard.stopped:
            said = f"posterior: stopped by SIGINT after {logs.shape[1]} draws per chain, which are in `result` of this error"
            raise Interrupted(f"{said} (sys.last_value.result)", signal.SIGINT, result)
        return result

    def _drawn(self, hmm: Any, prior: DirichletPrior, chains: Chains, laws: dict[str, Any], rules: RowLaws) -> Draws:
        if self.restricted:
            other = "known_states" if isinstance(self.data, VectorData) else "duration_family"
            raise InputError(f"posterior: supports neither sequence_weights nor {other}; fit again without them")
        if isinstance(self.data, VectorData):
            rows = self.data.rows
            conjugate = type(hmm).conjugate(rows, **hmm.options | laws)
            return vector_draws(hmm, rows, self.data.lengths, conjugate, prior, chains, laws=rules)
        masks = self.known is None and all(law.rule.is_mask for law in rules.values())
        if hmm.num_inputs is not None or hmm.visits is not None or not masks:
            return self._expanded(hmm, prior, chains, laws, rules)
        if laws:
            raise unknown_name("posterior", next(iter(laws)), ("initial", "transition", "emission"))
        work = flat_sequences(self.data.flat, self.data.lengths.numpy()).packed()
        return _symbol_draws(hmm, work, prior, chains, rules)

    def _expanded(self, hmm: Any, prior: DirichletPrior, chains: Chains, laws: dict[str, Any], rules: RowLaws) -> Draws:
        start = {name: rows.numpy() for name, rows in hmm.file_tensors().items()}
        for name in laws:
            if name not in start:
                raise unknown_name("posterior", name, [*start])
        masks: dict[str, Any] = {}
        if hmm.visits is not None and len(hmm.initial) > 1:
            masks = {"transition": ~np.eye(len(hmm.initial), dtype=np.bool_) | (start["transition"] > 0)}
        kept = {"durations": laws.get("durations", 1.0)} | vars(prior)
        rules = {name: replace(law, concentration=float(kept[name])) for name, law in rules.items()}
        priors = {name: np.full(rows.shape, float(kept[name])) * masks.get(name, True) for name, rows in start.items()}
        start = {name: np.where(priors[name] > 0, np.maximum(rows, 1 / UNIT), 0.0) for name, rows in start.items()}
        start = {name: rows / rows.sum(-1, keepdims=True) for name, rows in start.items()}
        start |= {name: law.rule.maximise(start[name]) for name, law in rules.items()}
        assert isinstance(self.data, SequenceData)
        work = flat_sequences(self.data.flat.astype(np.int64), self.data.lengths.numpy())
        expansion = expansion_of(hmm, work.symbols, self.inputs, self.known)
        orders = symmetries(rules, len(hmm.initial))
        reference = np.empty(0, np.int64)
        if self.known is None and (orders is None or len(orders) > 1):
            reference = np.maximum(np.asarray(predict(hmm, self.rows)), 0).astype(np.int64)
        data = expansion.codes, work.offsets, work.lengths
        return expanded_draws(expansion, data, start, priors, reference, chains, rules, orders)


def _symbol_draws(hmm: HMM, work: PackedSequences, prior: DirichletPrior, chains: Chains, rules: RowLaws) -> Draws:
    allowed = {part: law.rule.allowed for part, law in rules.items()}
    parts = zip(PARTS, Model.of(hmm), strict=True)
    start = [np.where(allowed.get(part, True), np.maximum(own, 1 / UNIT), 0.0) for part, own in parts]
    start = [part / part.sum(-1, keepdims=True) for part in start]
    counts, orders = counts_of(Model(*start), work), symmetries(rules, hmm.num_states)
    expected = [counts.initial, counts.transitions, counts.emissions.T]
    same = orders is not None and len(orders) == 1
    reference = np.empty(0, np.int64) if same else _reference(hmm, work)
    return symbol_draws(work, start, reference, prior, chains, expected, allowed, orders)


def _reference(hmm: HMM, work: PackedSequences) -> NDArray[np.int64]:
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
