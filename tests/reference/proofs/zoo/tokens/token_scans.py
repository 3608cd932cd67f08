"""Associative scans over packed tokens with restarts at lanes, and tiled lanes or tokens."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.packed import CU, TOKENS
from zoo.program import HIDDEN, Program, normal
from zoo.tokens.token_neighbours import changed, draw, ends_passed, index, start, stop

from ir_passes import Lane, LaneContract, Packed

Array = Any
SCANS = LaneContract((Packed(), CU), Packed())
TILE, ROWS = 3, 8
ROW_BY_ROW = LaneContract((Lane(), Lane()), Lane())
Combine = Callable[[Any, Any], Any]


def draw_rows(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, ROWS, HIDDEN), normal(rng, ROWS)


def sums(first: Any, right: Any) -> Any:
    return first[0] | right[0], jnp.where(right[0], right[1], 0.5 * first[1] + right[1])


def decays(first: Any, right: Any) -> Any:
    flag, decay, state = right
    new = decay * first[2] + state
    return first[0] | flag, jnp.where(flag, decay, first[1] * decay), jnp.where(flag, state, new)


def scanned(
    mask: Callable[[Array], Array],
    combine: Combine = sums,
    reverse: bool = False,
    wide: bool = False,
    decaying: bool = False,
) -> Any:
    """Return an associative scan that begins anew where a mask is true.

    Args:
        mask: cu_seqlens -> mask.
        combine: two flags with their values -> flag and values.
        reverse: begin with the last token.
        wide: give each feature its flag.
        decaying: combine flags, decays and states.
    """

    def step(x, cu):
        flags = mask(cu)[:, None]
        flags = jnp.broadcast_to(flags, x.shape) if wide else flags
        values = (flags, jnp.tanh(x), x) if decaying else (flags, x)
        return lax.associative_scan(combine, values, reverse=reverse)[-1]

    return step


def starts(cu: Array) -> Array:
    return index() == start(cu)


def ends(cu: Array) -> Array:
    return index() == stop(cu) - 1


SCANNED = {
    "sums": scanned(starts),
    "sums, wide flags": scanned(starts, wide=True),
    "sums by ids": scanned(lambda cu: changed(ends_passed(cu))),
    "decays": scanned(starts, decays, decaying=True),
    "sums in reverse": scanned(ends, reverse=True),
}
"""Scans that begin anew at each lane."""


def mapped(function: Callable[..., Array], size: int = TILE) -> Any:
    return lambda x, y: lax.map(lambda row: function(*row), (x, y), batch_size=size)


def scaled(x: Array, y: Array) -> Array:
    return x * y / (1 + jnp.abs(x).sum())


def tiled(function: Callable[[Array], Array]) -> Any:
    """Return a step that pads tokens, and changes them in tiles."""

    def step(x, cu):
        tiles = jnp.pad(x, ((0, -TOKENS % TILE), (0, 0))).reshape(-1, TILE, HIDDEN)
        return function(tiles).reshape(-1, HIDDEN)[:TOKENS]

    return step


PROGRAMS = (
    *(Program(f"token scans: {name}", step, SCANS, draw) for name, step in SCANNED.items()),
    Program("token tiles: pad and reshape", tiled(lambda tiles: jnp.tanh(2 * tiles)), SCANS, draw),
    Program("lane tiles: mapped in batches", mapped(scaled), ROW_BY_ROW, draw_rows),
    Program("lane tiles: batches without remainder", mapped(scaled, 2), ROW_BY_ROW, draw_rows),
    Program("lane tiles: reshaped", lambda x, y: jnp.exp(x.reshape(2, -1, HIDDEN)).reshape(ROWS, HIDDEN) * y[:, None],
            ROW_BY_ROW, draw_rows),
)  # fmt: skip
