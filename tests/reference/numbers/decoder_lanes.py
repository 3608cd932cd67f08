"""Whole decoders over lanes of pages: steps, and states after accepted drafts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.decoder.decoder import Decoder, lane_info


@jax.jit
def run(decoder: Decoder, ids: jax.Array, lengths: jax.Array, positions: jax.Array, state: Any) -> Any:
    return decoder(ids, lengths, positions, state, 1)


@jax.jit
def verified(decoder: Decoder, ids: jax.Array, accepted: jax.Array, positions: jax.Array, state: Any) -> Any:
    lengths = jnp.full(len(ids), ids.shape[1], jnp.int32)
    hidden, pending = decoder(ids, lengths, positions, state, 1, verifying=True)
    return hidden, decoder.commit(pending, lane_info(ids, accepted, positions, 1), state)


def in_lanes(cache: Any) -> np.ndarray:
    """Return the pages of each of four lanes, [lane, page, ..]."""
    return np.asarray(cache)[1:].reshape((4, -1, *cache.shape[1:]))


def check_accepted_drafts(decoder: Decoder, ids: np.ndarray, accepted: int) -> None:
    """Compare outputs and states after accepted drafts with those of the accepted tokens alone."""
    zeros = np.zeros(4, np.int32)
    _, begun = run(decoder, ids[:, :5], zeros + 5, zeros, decoder.init_state(4, 16, jnp.float32))
    drafts, positions, count = ids[:, 5:], zeros + 5, zeros + accepted
    hidden, state = verified(decoder, drafts, count, positions, begun)
    ordinary, expected = run(decoder, drafts, count, positions, begun)
    np.testing.assert_allclose(hidden[:, :accepted], ordinary[:, :accepted], atol=2e-5)
    for a, b, array in zip(*map(jax.tree.leaves, (state, expected, decoder.state_arrays())), strict=True):
        # Rejected tokens are in a cache, and overwritten before a read.
        a, b = (in_lanes(leaf)[:, 0, :, : 5 + accepted] if array.grows else leaf for leaf in (a, b))
        np.testing.assert_allclose(a, b, atol=2e-5)
