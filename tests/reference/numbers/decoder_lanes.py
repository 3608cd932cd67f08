"""Whole decoders over lanes of pages: steps of tokens at once and one by one, states after accepted drafts."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models import Decoder, kv_blocks
from models.decoder.decoder import lane_info


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


def check_single_tokens(decoder: Decoder, ids: np.ndarray, lengths: np.ndarray, state: Any) -> None:
    """Compare lanes at once with the same token by token; the idle last lane keeps its rows bit for bit."""
    hidden, new = jax.device_get(run(decoder, ids, lengths, np.zeros(4, np.int32), state))
    outputs, last = [], state
    for i in range(ids.shape[1]):
        real, positions = np.clip(lengths - i, 0, 1), np.full(4, i, np.int32)
        out, last = run(decoder, ids[:, i : i + 1], real, positions, last)
        outputs.append(np.asarray(out)[:, 0])
    for lane, length in enumerate(lengths):
        np.testing.assert_allclose(hidden[lane, :length], np.stack(outputs, 1)[lane, :length], atol=2e-5)
    leaves = map(jax.tree.leaves, (new, last, state, decoder.state_arrays()))
    for a, b, old, array in zip(*leaves, strict=True):
        a, b, old = (in_lanes(leaf) if array.grows else np.asarray(leaf) for leaf in (a, b, old))
        np.testing.assert_allclose(a[:3], b[:3], atol=2e-5)
        assert a[3].tobytes() == old[3].tobytes() == b[3].tobytes()


def check_accepted_drafts(decoder: Decoder, ids: np.ndarray, accepted: int) -> None:
    """Compare outputs and states after accepted drafts with those of the accepted tokens alone.

    Args:
        ids: [lane, 8], four tokens and four drafts, so that both steps are one program.
    """
    zeros = np.zeros(4, np.int32)
    _, begun = run(decoder, ids[:, :4], zeros + 4, zeros, decoder.init_state(4, 16, jnp.float32))
    drafts, positions, count = ids[:, 4:], zeros + 4, zeros + accepted
    hidden, state = verified(decoder, drafts, count, positions, begun)
    ordinary, expected = run(decoder, drafts, count, positions, begun)
    np.testing.assert_allclose(hidden[:, :accepted], ordinary[:, :accepted], atol=2e-5)
    for a, b, array in zip(*map(jax.tree.leaves, (state, expected, decoder.state_arrays())), strict=True):
        # Rejected tokens are in a cache, and overwritten before a read.
        a, b = (in_lanes(leaf)[:, 0, :, : 4 + accepted] if array.grows else leaf for leaf in (a, b))
        np.testing.assert_allclose(a, b, atol=2e-5)


def layer_by_layer(model: Decoder, rows: Any) -> Callable[[Sequence[int], np.ndarray], jax.Array]:
    """Return a function of tokens and of vectors [layer + 1, token, hidden] that are added before and after each layer.

    It calls the layers one by one over `rows`, the empty state of a row, and returns logits [token, vocabulary].
    """

    @jax.jit
    def run(tokens: jax.Array, added: jax.Array) -> jax.Array:
        lengths, positions = jnp.full(1, tokens.shape[1], jnp.int32), jnp.zeros(1, jnp.int32)
        info = lane_info(tokens, lengths, positions, kv_blocks(tokens.shape[1]))
        x = model.embed(tokens, info.valid) + added[0]
        for i, layer in enumerate(model.layers):
            x = layer(x, info, rows[i])[0] + added[i + 1]
        return model.logits(model.norm(x))[0]

    return lambda tokens, added: run(jnp.array([tokens], jnp.int32), jnp.asarray(added)[:, None])
