"""Checkpoints: find the directory, check everything about it, read parameters one at a time."""

from hybridlm.checkpoint.directory import CheckpointDirectory, open_directory
from hybridlm.checkpoint.errors import CheckpointError
from hybridlm.checkpoint.fingerprint import checkpoint_fingerprint
from hybridlm.checkpoint.hub import resolve
from hybridlm.checkpoint.safetensors_file import SafetensorsFile
from hybridlm.checkpoint.weights import LoadedWeights, LoadReport, Progress, load_weights

__all__ = [
    "CheckpointDirectory",
    "CheckpointError",
    "LoadReport",
    "LoadedWeights",
    "Progress",
    "SafetensorsFile",
    "checkpoint_fingerprint",
    "load_weights",
    "open_directory",
    "resolve",
]
