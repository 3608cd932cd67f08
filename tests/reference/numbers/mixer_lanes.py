"""Lanes of every length through one mixer: chunks against single tokens, reused rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from paged_caches import by_lane, like

from hybridlm.families import LaneInfo
from models.ops.recurrences import delta_rule, ssd


def info(lengths: jax.Array, positions: jax.Array, tokens: int, blocks: Any = 0) -> LaneInfo:
    """Operands of a mixer for lanes of these lengths and positions."""
    valid = jnp.arange(tokens, dtype=jnp.int32)[None] < lengths[:, None]
    return LaneInfo(lengths, positions, valid, (positions == 0) & (lengths > 0), blocks)


def recurrence_lengths(kernel: int = 2) -> tuple[int, ...]:
    """Return lengths around the taps of a convolution, around one chunk of both recurrences, and of several chunks."""
    chunks = sorted({delta_rule.CHUNK, ssd.CHUNK})
    edges = [chunk + offset for chunk in chunks for offset in (-1, 0, 1)]
    return tuple(dict.fromkeys((1, kernel - 1, kernel, *edges, 3 * chunks[-1] + 5)))


@jax.jit
def run(mixer, x, lengths, positions, state, blocks):
    return mixer(x, info(lengths, positions, x.shape[1], blocks), state)


@jax.jit
def by_tokens(mixer, x, lengths, positions, state, blocks):
    def token(state, inputs):
        x_t, t = inputs
        out, state = mixer(x_t[:, None], info(jnp.clip(lengths - t, 0, 1), positions + t, 1, blocks), state)
        return state, out[:, 0]

    state, outs = jax.lax.scan(token, state, (jnp.moveaxis(x, 1, 0), jnp.arange(x.shape[1], dtype=jnp.int32)))
    return jnp.moveaxis(outs, 0, 1), state


def check_equations(
    mixer: Any,
    hidden: int,
    equations: Callable[[np.ndarray], dict[str, np.ndarray]],
    lengths: tuple[int, int, int] = (9, 2, 0),
    atol: float = 2e-5,
    blocks: int = 0,
) -> None:
    """Compare lanes, from rows of NaN and with NaN in padding, with equations in float64.

    Args:
        mixer: the module.
        hidden: width of its input.
        equations: input [T, hidden] -> outputs "out" [T, hidden], and fields of the last state of one lane.
        lengths: tokens of the lanes; the last one is idle.
        atol: tolerance of the outputs; that of the states is 2e-5.
        blocks: blocks of a key/value cache to visit.
    """
    counts = np.array(lengths, np.int32)
    x = np.random.default_rng(0).normal(size=(3, max(lengths), hidden)).astype(np.float32)
    x[np.arange(max(lengths))[None] >= counts[:, None]] = np.nan
    pools = mixer.init_state(3, max(lengths), np.float32)
    state = jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan, leaf.dtype), pools)
    out, new = jax.device_get(run(mixer, x, counts, np.zeros(3, np.int32), state, blocks))
    for lane, length in enumerate(lengths[:2]):
        expected = equations(x[lane, :length].astype(np.float64))
        np.testing.assert_allclose(out[lane, :length], expected.pop("out"), rtol=0, atol=atol)
        for field, array in expected.items():
            actual = getattr(new, field)[lane].reshape(array.shape)
            np.testing.assert_allclose(actual, array, rtol=0, atol=2e-5, err_msg=field)
    assert all(np.isnan(by_lane(leaf, 3)[2]).all() for leaf in jax.tree.leaves(new))


def check_lengths(
    mixer: Any, hidden: int, lengths: tuple[int, ...], atol: float, state_atol: dict[str, float], blocks: int = 0
) -> None:
    """Assert that a mixer treats lanes of `lengths` at once as token by token.

    Every other lane begins at position 0, in rows that hold NaN; the others go on from random state. Tokens past a
    lane's length are NaN. The idle lane's row is random, then NaN: it keeps its bits, and so does everything else.

    Args:
        mixer: the module.
        hidden: width of its input.
        lengths: tokens of the lanes.
        atol: tolerance of the outputs.
        state_atol: tolerance of each field of the state.
        blocks: blocks of a key/value cache to visit.
    """
    counts = np.array([*lengths, 0], np.int32)
    positions = np.where(np.arange(len(counts)) % 2, 9, 0).astype(np.int32)
    rng = np.random.default_rng(len(lengths))
    x = rng.normal(size=(len(counts), max(lengths), hidden)).astype(np.float32)
    x[np.arange(x.shape[1])[None] >= counts[:, None]] = np.nan
    context = max(lengths) + 9
    pools, lanes = mixer.init_state(len(counts), context, jnp.float32), len(counts)
    rows = jax.tree.map(lambda leaf: rng.normal(size=by_lane(leaf, lanes).shape).astype(np.float32), pools)
    for leaf in jax.tree.leaves(rows):
        leaf[(positions == 0) & (counts > 0)] = np.nan
    state = jax.tree.map(like, rows, pools)
    out, new = jax.device_get(run(mixer, x, counts, positions, state, blocks))
    want_out, want = jax.device_get(by_tokens(mixer, x, counts, positions, state, blocks))
    for lane, length in enumerate(counts):
        np.testing.assert_allclose(out[lane, :length], want_out[lane, :length], atol=atol)
        for field, tolerance in state_atol.items():
            actual, expected = getattr(new, field), getattr(want, field)
            actual, expected = by_lane(actual, lanes)[lane], by_lane(expected, lanes)[lane]
            np.testing.assert_allclose(actual, expected, atol=tolerance, err_msg=field)
    assert len(state_atol) == len(jax.tree.leaves(new))
    poisoned = jax.tree.map(np.copy, rows)
    for leaf in jax.tree.leaves(poisoned):
        leaf[-1] = np.nan
    neighbour, saved = jax.device_get(run(mixer, x, counts, positions, jax.tree.map(like, poisoned, pools), blocks))
    new, saved = (jax.tree.map(lambda leaf: by_lane(leaf, lanes), final) for final in (new, saved))
    for lane, length in enumerate(lengths):
        assert neighbour[lane, :length].tobytes() == out[lane, :length].tobytes()
    leaves = (jax.tree.leaves(tree) for tree in (new, saved, rows, poisoned))
    for first, second, initial, nan in zip(*leaves, strict=True):
        assert first[-1].tobytes() == initial[-1].tobytes() and second[-1].tobytes() == nan[-1].tobytes()
        assert first[:-1].tobytes() == second[:-1].tobytes()
