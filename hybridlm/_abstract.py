"""A model from its config.json alone: every weight is a shape and a dtype, and none of it is in memory."""

from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from hybridlm._engine import Engine
from hybridlm._load import assemble, check_arguments, dtype_of_caches, read_model
from hybridlm._programs import Programs
from hybridlm._steps import flatten
from hybridlm.checkpoint.directory import read_config

LANES, STAGING, CHUNK = 64, 8, 256
"""Sizes at which a large model is served: sequences that decode, prompts read at the same time, tokens of each."""


def abstract_engine(
    path: Path, lanes: int | None = None, context: int | None = None, dtype: str | None = None, chunk: int | None = None
) -> Engine:
    """An engine whose steps can be proved and planned, and neither compiled nor run.

    Args:
        path: a config.json as Hugging Face writes it.
        lanes: most sequences that decode at the same time; None for 64, of which 8 read prompts.
        context: most tokens of a sequence; None for min(4096, the model's max_position_embeddings).
        dtype: of the matrices; None for what the file says.
        chunk: tokens of a prompt consumed by one step; None for 256, or the context if that is less.

    Raises:
        CheckpointError, ConfigError, UnsupportedModel: the file cannot be used; every fault is named.
        ValueError: arguments are wrong; every one is named.
    """
    family, config = read_model(path, read_config(path))
    lanes, dtype = LANES if lanes is None else lanes, config.dtype if dtype is None else dtype
    context, chunk = check_arguments(config, lanes, context, chunk, dtype, False, "error", CHUNK)
    weights = {
        weight.path: jax.ShapeDtypeStruct(weight.shape, jnp.dtype("float32" if weight.float32 else dtype))
        for weight in family.weights(config)
    }
    model, _ = assemble(nnx.eval_shape(lambda: family.build(config, nnx.Rngs(0))), weights)
    structure, params = flatten(model)
    caches = dtype_of_caches(dtype)
    # Without weights there is no fingerprint, and no state that would need one.
    return Engine(model, params, Programs(structure), lanes, context, chunk, caches, "", dtype, staging=STAGING)
