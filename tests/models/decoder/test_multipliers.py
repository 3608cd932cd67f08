"""Embedding factors are rounded before a layer adds, whatever else is computed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from as_for_users import compiled
from flax import nnx

from hybridlm.families import MlpConfig
from models.decoder.decoder import Decoder, DecoderConfig, lane_info

CONFIG = DecoderConfig(
    "toy", 41, 16, 64, ((MlpConfig(24),),), 1e-6, 0.0, True, (), "float32", (), embedding_multiplier=1.7
)


def test_given_embeddings_give_the_bits_of_the_tokens() -> None:
    graph, weights = nnx.split(Decoder(CONFIG, nnx.Rngs(0)))
    tokens = jnp.arange(10, dtype=jnp.int32).reshape(2, 5)
    looked_up = lambda weights: nnx.merge(graph, weights).embed(tokens, jnp.ones(tokens.shape, bool))

    def hidden(weights: Any, embeddings: Any) -> jax.Array:
        lengths = jnp.full(2, 5, jnp.int32)
        info = lane_info(tokens, lengths, 0 * lengths, 2)
        return nnx.merge(graph, weights).run(tokens, info, ((None,),), embeddings)[0]

    run = lambda fn, *operands: np.asarray(compiled(jax.jit(fn).lower(*operands), loops=True)(*operands))
    embeddings = run(looked_up, weights)
    np.testing.assert_array_equal(run(hidden, weights, None), run(hidden, weights, embeddings))
