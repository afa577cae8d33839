"""What tests of emissions share: answers by all paths, in logarithms."""

import itertools
import math

import torch

from hmmscope.emissions.chain import MarkovChainParams

Tensor = torch.Tensor


def enumerated(chain: MarkovChainParams, logs_TS: Tensor) -> dict[str, Tensor]:
    """By all paths, in logarithms."""
    time, size = logs_TS.shape
    paths = torch.tensor(list(itertools.product(range(size), repeat=time)))
    joint = chain.initial.log()[paths[:, 0]] + logs_TS[0, paths[:, 0]]
    parts = [joint]
    for t in range(1, time):
        joint = joint + chain.transition.log()[paths[:, t - 1], paths[:, t]] + logs_TS[t, paths[:, t]]
        parts.append(joint)
    total, law = torch.logsumexp(joint, 0), torch.softmax(joint, 0)
    one_hot = torch.nn.functional.one_hot(paths, size).double()
    # of the shorter path each prefix stands size^(time - 1 - t) times
    prefix = [torch.logsumexp(part, 0) - (time - 1 - t) * math.log(size) for t, part in enumerate(parts)]
    return {
        "beliefs": torch.stack([torch.softmax(part, 0) @ one_hot[:, t] for t, part in enumerate(parts)]),
        "terms": torch.diff(torch.stack(prefix), prepend=torch.zeros(1, dtype=torch.float64)),
        "smoothed": torch.einsum("p,pts->ts", law, one_hot),
        "pairs": torch.einsum("p,pti,ptj->ij", law, one_hot[:, :-1], one_hot[:, 1:]),
        "best": paths[joint.argmax()],
        "best_log": joint.max(),
        "total": total,
    }


def close(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12)
