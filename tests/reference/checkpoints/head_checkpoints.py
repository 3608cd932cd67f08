"""Tiny checkpoints with a multi-token-prediction head."""

import json
import pathlib

import numpy as np
from safetensors.numpy import load_file, save_file

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "dense_multimodal"
"""A head of random weights: drafts are right by chance only."""


def write_agreeing(directory: pathlib.Path) -> pathlib.Path:
    """Write a model with a head that drafts exactly its samples; return the directory.

    No layer adds anything to the residual stream, so what follows a token depends on that token alone; the head passes
    its embedding on and norms it as the model does. Both still keep the state that they would keep.
    """
    tensors = load_file(GOLDEN / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("out_proj.weight", "o_proj.weight", "mlp.down_proj.weight")):
            tensors[name] = np.zeros_like(tensor)
    hidden = tensors["mtp.norm.weight"].shape[0]
    fc = np.concatenate([np.eye(hidden), np.zeros((hidden, hidden))], axis=1)
    tensors["mtp.fc.weight"] = fc.astype(tensors["mtp.fc.weight"].dtype)
    tensors["mtp.pre_fc_norm_embedding.weight"] = np.zeros_like(tensors["mtp.norm.weight"])
    tensors["mtp.norm.weight"] = tensors["model.language_model.norm.weight"]
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text((GOLDEN / "config.json").read_text())
    return directory


def write_headless(directory: pathlib.Path, **fields: object) -> pathlib.Path:
    """Write the same without its head; these text fields of config.json record it."""
    tensors = load_file(GOLDEN / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if not name.startswith("mtp.")}, directory / "model.safetensors")
    config = json.loads((GOLDEN / "config.json").read_text())
    config["text_config"] |= fields
    (directory / "config.json").write_text(json.dumps(config))
    return directory
