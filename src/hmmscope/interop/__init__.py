"""Conversions of HMMs and networks from and to other libraries."""

from hmmscope.interop.dataset_folder import export_dataset
from hmmscope.interop.dynamax import from_dynamax, to_dynamax
from hmmscope.interop.hmmer import from_pyhmmer, load_hmmer
from hmmscope.interop.hmmlearn import from_hmmlearn, to_hmmlearn
from hmmscope.interop.hooked_module import HookedModule
from hmmscope.interop.huggingface import export_huggingface, from_huggingface, read_record, to_huggingface
from hmmscope.interop.library_models import HuggingFaceModel
from hmmscope.interop.pomegranate import from_pomegranate
from hmmscope.interop.pretrained import pretrained
from hmmscope.interop.transformer_lens import TransformerLensModel, to_transformer_lens

__all__ = [
    "HookedModule",
    "HuggingFaceModel",
    "TransformerLensModel",
    "export_dataset",
    "export_huggingface",
    "from_dynamax",
    "from_hmmlearn",
    "from_huggingface",
    "from_pomegranate",
    "from_pyhmmer",
    "load_hmmer",
    "pretrained",
    "read_record",
    "to_dynamax",
    "to_hmmlearn",
    "to_huggingface",
    "to_transformer_lens",
]
