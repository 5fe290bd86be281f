"""Floor 2. Models: loading them, GGUF files, adapters merged, weights exported."""

from sage_rlvr.models.blend import blend
from sage_rlvr.models.folders import whole_folder, write_whole
from sage_rlvr.models.gguf import gguf_folder
from sage_rlvr.models.loading import base_of, check_vocabulary, is_adapter, load_model, load_tokenizer
from sage_rlvr.models.merge import export_model, merge_adapter
from sage_rlvr.models.scratch import scratch_model

__all__ = [
    "base_of",
    "blend",
    "check_vocabulary",
    "export_model",
    "gguf_folder",
    "is_adapter",
    "load_model",
    "load_tokenizer",
    "merge_adapter",
    "scratch_model",
    "whole_folder",
    "write_whole",
]
