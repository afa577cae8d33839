"""What the header of a sample tells, and what the observer knows who reads it."""

from typing import TYPE_CHECKING

import torch

from hmmscope.axes import Tensor
from hmmscope.datasets.layouts import Layout
from hmmscope.inference.mixture_posterior import KnownComponentResult, filter_known_component
from hmmscope.processes.process import Process

if TYPE_CHECKING:
    from hmmscope.datasets.process_dataset import Batch


def decoded_hmms(process: Process, layout: Layout, tokens: Tensor) -> Process | None:
    """What the headers of samples tell, as a mixture of one component a sample; None in a layout without headers."""
    telling = layout.of(process).header_format
    return None if telling is None else process.decode_header(tokens[:, : telling.num_entries] - process.num_symbols)


def observe_decoded(process: Process, layout: Layout, batch: "Batch") -> KnownComponentResult:
    """Beliefs and predictions of the observer who knows the HMM that stands in the header of each sample.

    They are read from the tokens alone: of an edited header they are those of the HMM that it tells then.
    """
    hmms = decoded_hmms(process, layout, batch.tokens)
    assert hmms is not None
    numbers, starts = torch.arange(len(batch.tokens)), torch.from_numpy(layout.reset_mask)
    return filter_known_component(hmms, batch.observations, numbers, reset_mask=starts)
