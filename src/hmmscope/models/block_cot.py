"""Block chain-of-thought: after every `block_length` positions, the model reads its own prediction.

The first position of each block, except the first block, has extra inputs [answer, 1]; other positions have zeros.
The answer is the softmax of the model's outputs at the previous position, or the output vector, and has no gradient.

Source: [Limits] §4.3 and Appendix C.2; the paper does not specify the extra inputs.
"""

import torch
from torch import nn

from hmmscope.axes import Float, Tensor
from hmmscope.models.base import evaluating

Inputs = Tensor


def feedback_width(num_outputs: int) -> int:
    return num_outputs + 1


def num_blocks(num_columns: int, block_length: int) -> int:
    """Return the number of blocks in `num_columns` positions; the first block has block_length + 1 positions."""
    return max(1, -(-(num_columns - 1) // block_length))


def block_outputs(
    model: nn.Module, inputs: Inputs, *, kind: str, block_length: int, algorithm: str = "two-phase"
) -> Float[Tensor, "batch column output"]:
    """Compute the outputs at all positions, with the model's answers as extra inputs.

    naive:     one pass over the whole input for each block;
    two-phase: all answers block by block with a cache and no gradients, then one pass over the whole input

    Without dropout, both algorithms have equal outputs and gradients.

    Args:
        model: model with the arguments ``feedback`` (batch, position, num_outputs + 1), and ``cache`` for two-phase.
        inputs: tokens (batch, position) or vectors (batch, position, coordinate).
        kind: kind of the answer, "law" (softmax of the outputs) or "vector" (the outputs).
        block_length: number of positions per block, at least 1.
        algorithm: "two-phase" or "naive", see above.
    """
    if algorithm == "naive":
        return _naive(model, inputs, kind, block_length)
    feedback = own_answers(model, inputs, kind=kind, block_length=block_length)
    outputs: Tensor = model(inputs, feedback=feedback)
    return outputs


def own_answers(
    model: nn.Module, inputs: Inputs, *, kind: str, block_length: int
) -> Float[Tensor, "batch column feedback"]:
    with evaluating(model), torch.no_grad():
        return _answers(model, inputs, kind, block_length)


def _answers(model: nn.Module, inputs: Inputs, kind: str, block_length: int) -> Tensor:
    feedback = None
    num_columns = inputs.shape[1]
    cache: dict = {}
    outputs = inputs.new_empty(0)
    for begin in [0, *range(block_length + 1, num_columns, block_length)]:
        if begin:
            answer = _as_answer(outputs[:, -1], kind)  # of the previous block
            feedback = _empty_feedback(inputs, answer) if feedback is None else feedback
            feedback[:, begin] = answer
        end = min(begin + block_length + (begin == 0), num_columns)
        if end == num_columns:
            break  # the last answer is not fed back
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
    answer = outputs_BN.softmax(-1) if kind == "law" else outputs_BN
    return torch.cat([answer, torch.ones_like(answer[:, :1])], -1)


def _width_of(model: nn.Module) -> Tensor:
    parameter = next(model.parameters())
    width: int = model.model_io.feedback_width  # type: ignore[union-attr, assignment]
    return parameter.new_zeros(1, width)


def _empty_feedback(inputs: Inputs, answer_BF: Tensor) -> Tensor:
    return answer_BF.new_zeros(*inputs.shape[:2], answer_BF.shape[-1])
