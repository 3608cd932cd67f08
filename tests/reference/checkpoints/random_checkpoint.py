"""Tiny random checkpoints of every family, from the family's own tensor list."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tiny_variants import variant

from models import family_of

VOCABULARY = 64
MESHES = ((8, 1, 1), (1, 2, 1), (1, 4, 1), (2, 2, 2), (1, 1, 8), (4, 1, 2))
"""Devices along data, model and expert."""
FAMILIES: dict[str, dict[str, Any]] = {
    "sparse_base": {}, "next_base": {}, "dense_base": {}, "lfm2_moe_base": {}, "mamba_base": {},
    "falcon_mamba_base": {}, "jamba_base": {}, "mamba2_base": {}, "indexed_base": {},
    "nemotron_latent": {"mamba_num_heads": 8, "n_groups": 2}, "granite_experts": {"embedding_multiplier": 1.7},
    "falcon_base": {}, "kimi_base": {}, "ling_base": {}, "olmo_base": {}, "bamba_one_group": {}, "zamba2_base": {},
    "lfm3_base": {}, "lara_base": {}, "minimax_base": {}, "ling_lightning": {"num_attention_heads": 8},
    "gigachat_base": {"linear_num_value_heads": 8, "num_attention_heads": 8, "num_key_value_heads": 8},
    "alice_base": {"linear_num_key_heads": 8, "linear_num_value_heads": 8},
}  # fmt: skip
"""A variant of every family, with the fields that its sizes need to divide, and factors that round."""


def write_random_checkpoint(name: str, directory: Path, head: bool = False, seed: int = 0, **fields: Any) -> Path:
    """Write a family variant with a divisible vocabulary; return the directory.

    Args:
        name: of the variant.
        directory: for config.json and the tensors.
        head: with the tensors of the multi-token-prediction head.
        seed: of the tensors.
        fields: of config.json, in place of the variant's.
    """
    text = {**variant(name).config, "vocab_size": VOCABULARY, **fields}
    family = family_of(text)
    if head:
        assert family.with_head is not None
        family = family.with_head
    rng, tensors = np.random.default_rng(seed), {}
    for weight in family.weights(family.read_config(text)):
        for tensor, shape in weight.options[0].shapes.items():
            flat = sum(size > 1 for size in shape) < 2
            value = rng.uniform(0.2, 1, shape) if flat else rng.normal(size=shape) * 1.5 / shape[-1] ** 0.5
            tensors[tensor] = value.astype(np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(text))
    return directory
