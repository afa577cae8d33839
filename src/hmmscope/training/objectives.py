"""What is minimised."""

from torch import nn

from hmmscope.axes import Float, Tensor
from hmmscope.corpora.corpus import Batch
from hmmscope.corpora.targets import Target
from hmmscope.models.block_cot import block_outputs


def judged_outputs(
    model: nn.Module, batch: Batch, target: Target, *, block_length: int = 0, block_algorithm: str = "two-phase"
) -> Float[Tensor, "batch judged output"]:
    """What a model says at the judged columns; with `block_length` while it hears its own answers."""
    num_columns = int(target.columns[-1]) + 1
    inputs = batch.tokens[:, :num_columns]
    if inputs.is_floating_point():
        inputs = inputs.to(next(model.parameters()).dtype)
    if block_length:
        outputs = block_outputs(model, inputs, kind=target.kind, block_length=block_length, algorithm=block_algorithm)
    else:
        outputs = model(inputs)
    return outputs if len(target.columns) == num_columns else outputs[:, target.columns_on(outputs.device)]


def target_loss(
    model: nn.Module, batch: Batch, target: Target, *, block_length: int = 0, block_algorithm: str = "two-phase"
) -> Float[Tensor, ""]:
    """Mean loss over judged columns: cross-entropy in nats, or mean squared error."""
    outputs = judged_outputs(model, batch, target, block_length=block_length, block_algorithm=block_algorithm)
    return target.loss(outputs, target.labels(batch))
