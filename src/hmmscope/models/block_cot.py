"""Block chain-of-thought: after every `block_length` positions a model is told its own answer.

Columns 0 .. b are block 0, and columns kb + 1 .. (k + 1)b block k. At the first column of each later block the input has
[the answer at the column before, 1] as further features, elsewhere zeros; the answer is a law (softmax of the logits) or
the raw vector, and no gradient flows through it.

Source: [Limits] §4.3 and App. C.2. Not stated there: that the answer enters as n + 1 further features.
"""

import torch
from torch import nn

from hmmscope.axes import Float, Tensor
from hmmscope.models.base import evaluating

Inputs = Tensor


def feedback_width(num_outputs: int) -> int:
    """Further input features: the answer, and whether there is one."""
    return num_outputs + 1


def num_blocks(num_columns: int, block_length: int) -> int:
    """ceil((num_columns - 1) / block_length): full passes of the naive algorithm."""
    return max(1, -(-(num_columns - 1) // block_length))


def block_outputs(
    model: nn.Module, inputs: Inputs, *, kind: str, block_length: int, algorithm: str = "two-phase"
) -> Float[Tensor, "batch column output"]:
    """Outputs of all columns when the model hears its own answers.

    naive:     one pass over the whole input for each block, with the answers known so far; the cost is num_blocks passes
    two-phase: first all answers without gradients, block by block with a cache; then one ordinary pass

    Both give the same outputs and gradients where the model has no dropout, because answers carry no gradient and the
    model is causal.

    Args:
        model: takes ``feedback=`` (batch, column, num_outputs + 1), and ``cache=`` for the first phase.
        inputs: tokens (batch, column) or vectors (batch, column, coordinate).
        kind: "law" or "vector", how an output becomes an answer.
        block_length: b >= 1; from the number of columns on there is no feedback.
        algorithm: "two-phase" or "naive".
    """
    if algorithm == "naive":
        return _naive(model, inputs, kind, block_length)
    feedback = own_answers(model, inputs, kind=kind, block_length=block_length)
    outputs: Tensor = model(inputs, feedback=feedback)
    return outputs


def own_answers(
    model: nn.Module, inputs: Inputs, *, kind: str, block_length: int
) -> Float[Tensor, "batch column feedback"]:
    """The feedback that a model makes for itself: phase one, without gradients and dropout."""
    with evaluating(model), torch.no_grad():
        return _answers(model, inputs, kind, block_length)


def _answers(model: nn.Module, inputs: Inputs, kind: str, block_length: int) -> Tensor:
    feedback = None
    num_columns = inputs.shape[1]
    cache: dict = {}
    outputs = inputs.new_empty(0)
    for begin in [0, *range(block_length + 1, num_columns, block_length)]:
        if begin:
            answer = _as_answer(outputs[:, -1], kind)  # of the block before
            feedback = _empty_feedback(inputs, answer) if feedback is None else feedback
            feedback[:, begin] = answer
        end = min(begin + block_length + (begin == 0), num_columns)
        if end == num_columns:
            break  # nobody hears the answer of the last block
        part = None if feedback is None else feedback[:, begin:end]
        outputs = model(inputs[:, begin:end], feedback=part, cache=cache)
    return _empty_feedback(inputs, _width_of(model)) if feedback is None else feedback


def _naive(model: nn.Module, inputs: Inputs, kind: str, block_length: int) -> Tensor:
    num_columns = inputs.shape[1]
    feedback = _empty_feedback(inputs, _width_of(model))
    kept = []
    begin, end = 0, min(block_length + 1, num_columns)
    while begin < num_columns:
        outputs = model(inputs, feedback=feedback.clone())
        kept.append(outputs[:, begin:end])
        if end < num_columns:
            feedback = feedback.to(outputs.dtype)
            feedback[:, end] = _as_answer(outputs[:, end - 1].detach(), kind)
        begin, end = end, min(end + block_length, num_columns)
    return torch.cat(kept, 1)


def _as_answer(outputs_BN: Tensor, kind: str) -> Tensor:
    """The law, or the vector, and a one."""
    answer = outputs_BN.softmax(-1) if kind == "law" else outputs_BN
    return torch.cat([answer, torch.ones_like(answer[:, :1])], -1)


def _width_of(model: nn.Module) -> Tensor:
    parameter = next(model.parameters())
    width: int = model.model_io.feedback_width  # type: ignore[union-attr, assignment]
    return parameter.new_zeros(1, width)


def _empty_feedback(inputs: Inputs, answer_BF: Tensor) -> Tensor:
    return answer_BF.new_zeros(*inputs.shape[:2], answer_BF.shape[-1])
