"""Decoding of headers (HMM parameters at the start of a sample) to HMMs."""

from typing import TYPE_CHECKING

import torch

from hmmscope.axes import Tensor
from hmmscope.datasets.layouts import Layout
from hmmscope.inference.mixture_posterior import KnownComponentResult, filter_known_component
from hmmscope.processes.process import Process

if TYPE_CHECKING:
    from hmmscope.datasets.process_dataset import Batch


def decoded_hmms(process: Process, layout: Layout, tokens: Tensor) -> Process | None:
    """Return a mixture of one HMM per sample, decoded from the sample's header; None for a layout without headers."""
    telling = layout.of(process).header_format
    return None if telling is None else process.decode_header(tokens[:, : telling.num_entries] - process.num_symbols)


def observe_decoded(process: Process, layout: Layout, batch: "Batch") -> KnownComponentResult:
    hmms = decoded_hmms(process, layout, batch.tokens)
    assert hmms is not None
    numbers, reset_mask = torch.arange(len(batch.tokens)), torch.from_numpy(layout.reset_mask)
    return filter_known_component(hmms, batch.observations, numbers, reset_mask=reset_mask)
