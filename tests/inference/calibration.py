"""Simulation-based calibration: ranks of what was drawn from the prior among draws given what it made.

    python tests/inference/calibration.py            p of every quantity of all families, minutes
    python tests/inference/calibration.py diag full  of some
    python tests/inference/calibration.py full 56    of fewer data sets than it would take
    python tests/inference/calibration.py states     how often the interval of the number of states holds it, of laws of
                                                     numbers that are drawn from the prior, minutes

Source: Talts, Betancourt, Simpson, Vehtari and Gelman (2018), arXiv 1804.06788.
"""

import functools
import sys
from collections.abc import Callable

import numpy as np
import torch

import hmmscope as hs
from hmmscope.emissions.conjugate import DirichletRows, GammaRates, NormalInverseWishart
from hmmscope.emissions.fit_emissions_em import fit_emissions
from hmmscope.emissions.vector_evidence import vector_evidence
from hmmscope.emissions.vector_gibbs import vector_draws
from hmmscope.inference.gibbs import Chains, DirichletPrior, dirichlet_rows, symbol_draws
from hmmscope.inference.loop_inputs import flat_sequences
from hmmscope.inference.num_states import support_of

NO_STATES = np.empty(0, np.int64)
#: Families of numbers, and shapes of HMMs with what they are called.
FAMILIES = ("diag", "spherical", "full", "tied", "poisson", "channels")
SHAPES = (
    ("two states", {}),
    ("three states", {"num_states": 3, "num_symbols": 4}),
    ("one sequence", {"num_symbols": 2, "lengths": (40,)}),
)


def p_uniform(ranks, num_draws, bins=8):
    """p of each column of ranks (repetition, quantity) in 0..num_draws by a chi-square test of `bins` equal bins."""
    assert (num_draws + 1) % bins == 0
    expected = len(ranks) / bins
    found = []
    for column in ranks.T:
        counts = np.bincount(column * bins // (num_draws + 1), minlength=bins)
        square = ((counts - expected) ** 2).sum() / expected
        found.append(float(torch.special.gammaincc(torch.tensor((bins - 1) / 2).double(), torch.tensor(square / 2))))
    return np.array(found)


def ranks_of(one: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]], repetitions, seed=0):
    """Ranks (repetition, quantity): `one` gives the quantities of a draw from the prior, and of draws given its data."""
    found = []
    for number in range(repetitions):
        random = np.random.default_rng((seed, number))
        truth, drawn = one(random, number)
        ties = random.random(drawn.shape) < 0.5
        found.append((drawn < truth).sum(0) + ((drawn == truth) & ties).sum(0))
    return np.array(found)


def prior_hmm(size, num_symbols, prior, random):
    rows = {"initial": (size,), "transition": (size, size), "emission": (size, num_symbols)}
    drawn = {name: dirichlet_rows(np.full(shape, getattr(prior, name)), random) for name, shape in rows.items()}
    return hs.HMM(**drawn, allow_drop_tiny=True)


def of_symbols(
    num_states=2, num_symbols=3, lengths=(12, 9), num_draws=31, every=12, warm_up=150, prior=None, assumed=None
):
    """Quantities that no exchange of labels changes; `assumed` is the prior of the sampler, if it is to be wrong."""
    prior = prior or DirichletPrior(initial=1.5, transition=1.2, emission=0.8)
    chains = {"num_draws": num_draws, "num_chains": 1, "every": every, "warm_up": warm_up}

    def quantities(initial, transition, emission, log):
        stays = np.trace(transition, axis1=-2, axis2=-1)
        likely = np.einsum("...i,...iv->...v", initial, emission)[..., 0]
        return np.stack([log, stays, emission.max((-1, -2)), (emission**2).sum((-1, -2)), likely], -1)

    def one(random, number):
        truth = prior_hmm(num_states, num_symbols, prior, random)
        flat = np.concatenate(
            [
                hs.ProcessDataset(truth, length=length, seed=number)[i : i + 1].observations[0].numpy()
                for i, length in enumerate(lengths)
            ]
        )
        work = flat_sequences(flat, np.array(lengths))
        start = prior_hmm(num_states, num_symbols, prior, random)
        begin = [np.maximum(part.numpy(), 1e-9) for part in (start.initial, start.transition, start.emission)]
        begin = [part / part.sum(-1, keepdims=True) for part in begin]
        found = symbol_draws(work, begin, NO_STATES, assumed or prior, Chains(**chains, seed=number))
        logs = sum(
            float(hs.filter_beliefs(truth, torch.from_numpy(part)[None]).log_likelihood)
            for part in np.split(flat, np.cumsum(lengths)[:-1])
        )
        parts = truth.initial.numpy(), truth.transition.numpy(), truth.emission.numpy()
        return quantities(*parts, logs), quantities(
            *(found.arrays[name][0] for name in found.arrays), found.log_likelihood[0]
        )

    return one


def prior_of(family):
    """Of laws of numbers that differ as far as the observations do."""
    if family == "poisson":
        return GammaRates(torch.tensor([4.0], dtype=torch.float64), 1.0)
    if family == "channels":
        return DirichletRows((3, 2), 1.0)
    ones = torch.ones(2, dtype=torch.float64)
    return NormalInverseWishart(family, 0 * ones, 0.1 * ones, 0.1, 4.0 if family in ("full", "tied") else 2.0)


def drawn_from(laws, prior, family, size, random):
    """A model of numbers drawn from its prior."""
    one = laws.features(torch.zeros(1, 1 if family == "poisson" else 2, dtype=torch.float64))
    arrays = laws.draw(torch.zeros(size, one.shape[1], dtype=torch.float64), random)
    chain = random.dirichlet(np.full(size, prior.initial)), random.dirichlet(np.full(size, prior.transition), size)
    if family == "channels":
        return hs.MultichannelHMM(*chain, arrays["emissions"], laws.sizes)
    kind, options = (hs.PoissonHMM, {}) if family == "poisson" else (hs.GaussianHMM, {"covariance_type": family})
    return kind(*chain, **arrays, **options)


def of_num_states(family, number, most=4):
    """Of a data set whose number of states is drawn from 1 to `most`: whether the interval holds it, its width, the share of
    the true number, and what is expected of that share, if numbers are as likely as is said."""
    random = np.random.default_rng(number)
    size, length = 1 + number % most, round(np.exp(random.uniform(np.log(100), np.log(2000))))
    laws = prior_of(family)
    truth = drawn_from(laws, DirichletPrior(), family, size, random)
    rows, lengths = hs.ProcessDataset(truth, length=length, seed=number)[0:1].observations[0], torch.tensor([length])
    sizes = range(1, most + 1)
    fits = {one: fit_emissions(type(truth), rows, lengths, one, num_restarts=4, **truth.options) for one in sizes}
    bics = {one: fit.bic for one, fit in fits.items()}
    support = support_of(bics, lambda one: vector_evidence(fits[one].hmm, rows, lengths, laws, seed=number))
    (low, high), shares = support.interval(min(bics, key=bics.get)), support.shares
    return low <= size <= high, high - low + 1, shares[size], sum(share**2 for share in shares.values())


def of_numbers(family, num_draws=31, every=8, warm_up=100, length=25, wrong=False):
    """The same of a family of numbers, one of `FAMILIES`; `wrong`: a prior count too many."""
    prior = DirichletPrior(initial=1.5, transition=1.2)
    two = torch.ones(2, dtype=torch.float64)
    degrees = 4.0 if family in ("full", "tied") else 3.0
    if family == "poisson":
        laws = GammaRates(4 * two[:1], 2.0)
    elif family == "channels":
        laws = DirichletRows((3, 2), 0.8)
    else:
        centre, spread = torch.tensor([0.5, -1.0]).double(), torch.tensor([1.0, 0.5]).double()
        laws = NormalInverseWishart(family, centre, spread, 0.3, degrees)
    chains = {"num_draws": num_draws, "num_chains": 1, "every": every, "warm_up": warm_up}

    def quantities(arrays, log):
        stays = np.trace(arrays["transition"], axis1=-2, axis2=-1)
        means = arrays[laws.names[0]][..., 0]
        found = [log, stays, means.max(-1), means.min(-1)]
        if isinstance(laws, NormalInverseWishart):
            spread = arrays["covariances"]
            found.append(spread.reshape(*spread.shape[: len(log.shape)], -1).sum(-1))
        return np.stack(found, -1)

    def one(random, number):
        truth = drawn_from(laws, prior, family, 2, random)
        data = hs.ProcessDataset(truth, length=length, seed=number)[0:1].observations
        assumed = DirichletPrior(initial=1.5, transition=3.2) if wrong else prior
        found = vector_draws(
            drawn_from(laws, prior, family, 2, random),
            data[0],
            torch.tensor([length]),
            laws,
            assumed,
            Chains(**chains, seed=number),
            match=False,
        )
        log = np.array(float(truth.observe(data).log_likelihood_terms.sum()))
        arrays = {name: value.numpy() for name, value in truth.file_tensors().items()}
        return quantities(arrays, log), quantities({k: v[0] for k, v in found.arrays.items()}, found.log_likelihood[0])

    return one


#: What is long to measure, and is by `pytest -m slow` or by this file as a program: name, data sets, what to draw, bins.
LONG = [
    *((family, 400, functools.partial(of_numbers, family), 31, 8) for family in FAMILIES),
    *(
        (f"symbols, {said}", 2000, functools.partial(of_symbols, num_draws=63, **shape), 63, 16)
        for said, shape in SHAPES
    ),
]


def main() -> None:
    """Print p of each quantity, whose ranks are uniform where the sampler is sound; of families that are named, or all."""
    torch.set_num_threads(1)
    names = [word for word in sys.argv[1:] if not word.isdigit()]
    fewer = [int(word) for word in sys.argv[1:] if word.isdigit()]
    if "states" in names:
        for family in [name for name in names if name in FAMILIES] or FAMILIES:
            found = np.array([of_num_states(family, number) for number in range(min([100, *fewer]))], np.float64)
            held, width, share, expected = found.T
            error = (share - expected).std(ddof=1) / len(found) ** 0.5
            print(
                f"{family}: {len(found)} data sets, interval holds {held.sum():.0f}, width {width.mean():.2f}; share of the"
            )
            print(
                f"  true number {share.mean():.3f}, expected {expected.mean():.3f}, apart by {error:.3f} at random",
                flush=True,
            )
        return
    for name, most, make, num_draws, bins in LONG:
        if names and name not in names:
            continue
        repetitions = min([most, *fewer])
        p_values = p_uniform(ranks_of(make(), repetitions), num_draws, bins)
        print(f"{name}: {repetitions} data sets, p {', '.join(f'{p:.3f}' for p in p_values)}", flush=True)


if __name__ == "__main__":
    main()
