"""The mixture oracle: component-tokens a second, and the share of the machine's matrix-product rate."""

import torch

from hmmscope.bench.contest import Contest
from hmmscope.corpora.corpus import Corpus
from hmmscope.inference.fast import mixture_predictions
from hmmscope.processes.make import make_process
from hmmscope.processes.mixture import Mixture

STATES, SYMBOLS, BATCH, LENGTH = 128, 16, 1024, 32


def contests(*, peers: bool, components: int = 48) -> list[Contest]:
    """`components` HMMs of 128 states and 16 symbols, 1024 sequences of 32; the cost is linear in each number."""
    mixture = make_process("random-mixture", num_components=components, num_states=STATES, num_symbols=SYMBOLS)
    assert isinstance(mixture, Mixture)
    observations = Corpus(mixture, length=LENGTH)[0:BATCH].observations
    exact = mixture_predictions(mixture, observations, dtype=torch.float64).log_likelihood_terms.sum(1)
    found = []
    for dtype, name in ((torch.float32, "float32"), (torch.float64, "float64")):

        def ours(dtype: torch.dtype = dtype) -> torch.Tensor:
            return mixture_predictions(mixture, observations, dtype=dtype).log_likelihood_terms.sum(1)

        error = float(((ours() - exact) / exact).abs().max())
        what = f"mixture of {components} x {STATES} x {SYMBOLS}, {BATCH} x {LENGTH}, {name}"
        contest = Contest(
            f"{what} (largest relative error of a log-likelihood against float64: {error:.1e})", "products"
        )
        work = components * BATCH * LENGTH
        contest.add("hmmscope", ours, work)
        left, right = torch.randn(BATCH, STATES, dtype=dtype), torch.randn(STATES, STATES, dtype=dtype)
        out = torch.empty_like(left)

        def products(left: torch.Tensor = left, right: torch.Tensor = right, out: torch.Tensor = out) -> None:
            for _ in range(64):
                torch.mm(left, right, out=out)

        contest.add("matrix products alone", products, 64 * BATCH, limit=True)
        found.append(contest)
    return found
