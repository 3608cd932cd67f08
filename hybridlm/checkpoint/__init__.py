"""Checkpoints: find the directory, check it, read parameters, write saved models."""

from hybridlm.checkpoint.adapters import Adapter, bind, open_adapter
from hybridlm.checkpoint.directory import CheckpointDirectory, open_directory
from hybridlm.checkpoint.fingerprint import Fingerprint, checkpoint_fingerprint
from hybridlm.checkpoint.hub import resolve
from hybridlm.checkpoint.model import (
    Checkpoint,
    OpenModel,
    fingerprint_of,
    has_head,
    head_tensors,
    open_checkpoint,
    open_model,
    stored_dtype,
)
from hybridlm.checkpoint.safetensors import ArrayFile, open_safetensors
from hybridlm.checkpoint.shards import ParameterPath, Shards, dotted
from hybridlm.checkpoint.weights import LoadedWeights, load_parameters, packed_parameters
from hybridlm.errors import CheckpointError
