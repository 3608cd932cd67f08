"""A checkpoint with its multi-token-prediction head, and the head's logits."""

import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from comparison import padded
from flax import nnx

from hybridlm.checkpoint import OpenModel, load_parameters, open_directory
from hybridlm.engine.arguments import assemble
from models import MtpDecoder, family_of, kv_blocks
from models.decoder.decoder import lane_info


def load_with_head(directory: pathlib.Path) -> MtpDecoder:
    """The model in float32."""
    checkpoint = open_directory(directory)
    family = family_of(checkpoint.config).with_head
    assert family is not None
    config = family.read_config(checkpoint.config)
    arrays = load_parameters(OpenModel(checkpoint, family, config), "float32").arrays
    model, _ = assemble(nnx.eval_shape(lambda: family.build(config, nnx.Rngs(0))), arrays)
    assert isinstance(model, MtpDecoder)
    return model


def head_logits(model: MtpDecoder, prompts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """float32 [T-1, V] for each prompt: the head's logits after every token but the first."""
    graph, parameters = nnx.split(model)
    tokens = padded(prompts)

    @jax.jit
    def run(parameters: nnx.State, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        model = nnx.merge(graph, parameters)
        positions, blocks = jnp.zeros_like(lengths), kv_blocks(tokens.shape[1])
        state = model.init_state(tokens.shape[0], tokens.shape[1], jnp.float32)
        hidden, _ = model(tokens, lengths, positions, state, blocks)
        # nothing is before the first token, and nobody may look
        initial = jnp.pad(hidden[:, :-1], [(0, 0), (1, 0), (0, 0)], constant_values=jnp.nan)
        final, _ = model.mtp_forward(tokens, initial, lane_info(tokens, lengths, positions, blocks), state[-1].layer)
        return model.logits(final)

    array = np.asarray(run(parameters, jnp.asarray(tokens), jnp.array([len(prompt) for prompt in prompts])))
    return [row[1 : len(prompt)] for row, prompt in zip(array, prompts, strict=True)]
