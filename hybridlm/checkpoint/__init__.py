"""Checkpoints: find the directory, check it, read parameters, write saved models.

Imports `gguf_files`, `quantised`, `files` and `errors`. Begin with `opened`, and with `weights`.
"""

from hybridlm.checkpoint.adapters import Adapter, BoundAdapter, bind, open_adapter
from hybridlm.checkpoint.directory import CheckpointDirectory, open_directory
from hybridlm.checkpoint.fingerprint import Fingerprint, checkpoint_fingerprint
from hybridlm.checkpoint.gguf_file import gguf_companions, is_gguf
from hybridlm.checkpoint.hub import resolve
from hybridlm.checkpoint.opened import (
    Checkpoint,
    OpenModel,
    fingerprint_of,
    has_head,
    head_tensors,
    open_checkpoint,
    stored_dtype,
)
from hybridlm.checkpoint.safetensors import SafetensorsFile
from hybridlm.checkpoint.saved.index import SavedDirectory
from hybridlm.checkpoint.shards import ParameterPath, Shards, dotted
from hybridlm.checkpoint.weights import LoadedWeights, LoadReport, Progress, load_parameters, packed_parameters
from hybridlm.errors import CheckpointError

__all__ = [
    "Adapter",
    "BoundAdapter",
    "Checkpoint",
    "CheckpointDirectory",
    "CheckpointError",
    "Fingerprint",
    "LoadReport",
    "LoadedWeights",
    "OpenModel",
    "ParameterPath",
    "Progress",
    "SafetensorsFile",
    "SavedDirectory",
    "Shards",
    "bind",
    "checkpoint_fingerprint",
    "dotted",
    "fingerprint_of",
    "gguf_companions",
    "has_head",
    "head_tensors",
    "is_gguf",
    "load_parameters",
    "open_adapter",
    "open_checkpoint",
    "open_directory",
    "packed_parameters",
    "resolve",
    "stored_dtype",
]
