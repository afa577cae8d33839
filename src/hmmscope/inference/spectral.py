"""Observable operator models and spectral learning.

    P(o_0 .. o_{T-1}) = start · A[o_0] · ... · A[o_{T-1}] · end

An HMM has A[v][i, j] = P(emit v and go to j given i).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hmmscope.axes import Float64, Int, Int64, Tensor
from hmmscope.inference.memory import all_sequences
from hmmscope.processes.capabilities import WORDS
from hmmscope.processes.combine import as_labelled
from hmmscope.processes.process import Process
from hmmscope.reprs import Shown
from hmmscope.schema import require, require_count

#: Relative threshold of zero singular values of an exact Hankel matrix.
RANK = 1e-9
#: Map from words (word, time) to probabilities (word,).
WordLaw = Callable[[Int64[Tensor, "word time"]], Float64[Tensor, " word"]]


@dataclass(frozen=True, repr=False)
class Operators(Shown):
    """Observable operators of a process with V symbols, as R x R matrices with entries of any sign.

    Attributes:
        start: Row vector before the first symbol (rank,).
        step: Matrix of each symbol (symbol, rank, rank).
        end: Column vector after the last symbol (rank,).
        singular_values: Singular values of H (see `learn_operators`), for learned operators.
    """

    start: Float64[Tensor, " rank"]
    step: Float64[Tensor, "symbol rank rank"]
    end: Float64[Tensor, " rank"]
    singular_values: Float64[Tensor, " value"] | None = None

    @classmethod
    def of(cls, process: Process) -> "Operators":
        """Convert an HMM to observable operators."""
        process.require_capability(WORDS)
        params = (as_labelled(process) if process.params.states_emit else process).params
        return cls(params.initial_MS[0], params.labelled_MVSS[0], torch.ones(process.num_states, dtype=torch.float64))

    def probabilities(self, words: Int[Tensor, "word time"]) -> Float64[Tensor, " word"]:
        """Compute the probability of each word; learned operators may give values outside [0, 1]."""
        state = self.start.expand(len(words), -1)
        for t in range(words.shape[1]):
            state = torch.einsum("br,brq->bq", state, self.step[words[:, t]])
        return state @ self.end

    def next_observation(self, observations: Int[Tensor, "batch time"]) -> Float64[Tensor, "batch time symbol"]:
        """Compute P(o_{t+1} | o_0..o_t), normalized at every step."""
        state, probs = self.start.expand(len(observations), -1), []
        for t in range(observations.shape[1]):
            state = torch.einsum("br,brq->bq", state, self.step[observations[:, t]])
            state = state / (state @ self.end)[:, None]
            probs.append(torch.einsum("br,vrq,q->bv", state, self.step, self.end))
        return torch.stack(probs, 1)


def learn_operators(law: WordLaw, num_symbols: int, *, length: int = 3, rank: int = 0) -> Operators:
    """Learn observable operators from word probabilities.

    H = [P(p s)] over words p, s of up to `length` symbols;  H ≈ Q D Wᵀ (SVD cut to rank R);
    A[v] = D⁻¹ Qᵀ [P(p v s)] W,  start = [P(s)] W,  end = D⁻¹ Qᵀ [P(p)]

    Source: Hsu, Kakade, Zhang (2009); Balle et al. (2014).

    Args:
        law: Function from words to their probabilities, such as `Operators.of(hmm).probabilities`.
        num_symbols: Number of symbols V.
        length: Length of the longest prefix and suffix; the longest word has 2 * length + 1 symbols.
        rank: Dimension R of the operators; 0 for the rank of H.

    Raises:
        InputError: V^length exceeds `MAX_ENUMERATED`, or `rank` exceeds the size of H.
    """
    require_count("length", length)
    words = [all_sequences(num_symbols, size) for size in range(length + 1)]

    def joined(middle: list[int]) -> Float64[Tensor, "prefix suffix"]:
        rows = []
        for before in words:
            row = []
            for after in words:
                parts = [before.repeat_interleave(len(after), 0), after.repeat(len(before), 1)]
                parts.insert(1, torch.tensor(middle, dtype=torch.int64).expand(len(parts[0]), -1))
                row.append(law(torch.cat(parts, 1)).view(len(before), len(after)))
            rows.append(torch.cat(row, 1))
        return torch.cat(rows)

    hankel = joined([])
    left, sizes, right = torch.linalg.svd(hankel, full_matrices=False)
    count = rank or int((sizes > RANK * sizes[0]).sum())
    require(count <= len(sizes), "rank", f"must be at most {len(sizes)} for words of up to {length} symbols", rank)
    back, onto = (left[:, :count] / sizes[:count]).T, right[:count].T
    step = torch.stack([back @ joined([symbol]) @ onto for symbol in range(num_symbols)])
    return Operators(hankel[0] @ onto, step, back @ hankel[:, 0], sizes)
