"""Inference for one sequence in log space, without underflow but ten times slower than with probabilities."""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from hmmscope.axes import Tensor
from hmmscope.emissions.states import MarkovChainParams
from hmmscope.kernels import log_space


def filtered(chain: MarkovChainParams, logs_TS: Tensor) -> tuple[Tensor, Tensor]:
    alpha_TS, terms_T, shifts_T = _forward(chain, logs_TS)
    return alpha_TS.exp(), terms_T + shifts_T


def _logs(chain: MarkovChainParams) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    with np.errstate(divide="ignore"):
        initial_S, moves_SS = map(np.log, (chain.initial.numpy(), chain.transition.numpy()))
    return initial_S, moves_SS


def _forward(chain: MarkovChainParams, logs_TS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    alpha_TS, terms_T, shifts_T = np.empty(logs_TS.shape), np.empty(len(logs_TS)), np.empty(len(logs_TS))
    log_space.forward(*_logs(chain), logs_TS.contiguous().numpy(), alpha_TS, terms_T, shifts_T)
    return torch.from_numpy(alpha_TS), torch.from_numpy(terms_T), torch.from_numpy(shifts_T)


def smoothed(chain: MarkovChainParams, logs_TS: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return P(state t | all observations) (T, S), expected transitions (S, S) and the log-likelihood."""
    alpha_TS, terms_T, shifts_T = _forward(chain, logs_TS)
    found, pairs_SS = np.zeros(logs_TS.shape), np.zeros(chain.transition.shape)
    total = float((terms_T + shifts_T).sum())
    if total > -math.inf:
        logs, known = logs_TS.contiguous().numpy(), (alpha_TS.numpy(), terms_T.numpy(), shifts_T.numpy())
        log_space.backward(_logs(chain)[1], logs, *known, found, pairs_SS)
    return torch.from_numpy(found), torch.from_numpy(pairs_SS), total


def likeliest(chain: MarkovChainParams, logs_TS: Tensor) -> tuple[Tensor, float]:
    states, pointers = np.empty(len(logs_TS), np.int64), np.empty(logs_TS.shape, np.int64)
    total = log_space.likeliest(*_logs(chain), logs_TS.contiguous().numpy(), pointers, states)
    return torch.from_numpy(states), float(total)


def drawn(chain: MarkovChainParams, logs_TS: Tensor, uniforms_PT: Tensor) -> Tensor:
    alpha_TS, terms_T, _ = _forward(chain, logs_TS)
    paths = torch.full((len(uniforms_PT), len(logs_TS)), -1)
    if terms_T[-1] == -torch.inf:
        return paths
    for t in range(len(logs_TS) - 1, -1, -1):
        after = 0.0 if t == len(logs_TS) - 1 else chain.transition.T.log()[paths[:, t + 1]]
        law_PS = torch.softmax((alpha_TS[t] + after).expand(len(paths), -1), 1)
        cumulated = law_PS.cumsum(1)
        drawn = torch.searchsorted(cumulated / cumulated[:, -1:], uniforms_PT[:, t : t + 1].contiguous(), right=True)[
            :, 0
        ]
        paths[:, t] = drawn.clamp(max=law_PS.shape[1] - 1)
    return paths
