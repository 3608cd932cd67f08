"""Places limited to the token's lane, starts by differences of ids, padding in a lane, multiples of indices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from zoo.packed import CU, TOKENS
from zoo.program import LANES, Program
from zoo.tokens.token_neighbours import (
    NEIGHBOURS,
    draw,
    draw_with_lanes,
    ends_passed,
    index,
    padded,
    recurrence,
    start,
    starts_passed,
    stop,
    window,
)

from ir_passes import Lane, LaneContract, Packed

Array = Any
Places = Callable[[Array], Array]
WIDTH = 3
SUMS = LaneContract((Packed(), CU, Lane()), (Packed(), Lane()))


def at(places: Places) -> Any:
    """Return a step that subtracts the token at a place, or the sum of several tokens."""

    def step(x, cu):
        rows = x[places(cu)]
        return x - (rows if rows.ndim == 2 else rows.sum(1))

    return step


def earlier(by: int = 1) -> Array:
    """[tokens, WIDTH]: earlier tokens at multiples of a distance."""
    return index()[:, None] - by * jnp.arange(WIDTH)[None]


def around() -> Array:
    """[tokens, WIDTH]: the token before, the token, and the token after."""
    return index()[:, None] + jnp.arange(WIDTH)[None] - 1


LIMITED: dict[str, Places] = {
    "the token before": lambda cu: jnp.maximum(index() - 1, start(cu)),
    "the token after": lambda cu: jnp.minimum(index() + 2, stop(cu) - 1),
    "both bounds": lambda cu: jnp.clip(around(), start(cu)[:, None], stop(cu)[:, None] - 1),
    "a window": lambda cu: jnp.maximum(earlier(), start(cu)[:, None]),
    "by two": lambda cu: jnp.maximum(start(cu)[:, None], earlier(2)),
}
"""Places within the lane of each token."""


def rises(ids: Array, first: int = -1) -> Array:
    return jnp.diff(ids, prepend=first)


RISEN: dict[str, Places] = {
    "risen": lambda cu: rises(ends_passed(cu)) > 0,
    "risen by one": lambda cu: rises(starts_passed(cu)) >= 1,
    "not equal": lambda cu: rises(ends_passed(cu)) != 0,
    "greater": lambda cu: jnp.concatenate([jnp.ones(1, bool), ends_passed(cu)[1:] > ends_passed(cu)[:-1]]),
    "not less": lambda cu: ~(jnp.pad(ends_passed(cu), (1, 0), constant_values=-1)[:TOKENS] >= ends_passed(cu)),
}
"""Marks of first tokens, by ids that rise."""


def with_padding(
    ids: Callable[[Array], Array] = lambda cu: jnp.where(index() < cu[-1], ends_passed(cu), 0), masked: bool = True
) -> Any:
    """Return a step that reads rows by ids, and sums real tokens by them."""

    def step(x, cu, rows):
        real = (index() < cu[-1])[:, None]
        total = jax.ops.segment_sum(jnp.where(real, x, 0.0) if masked else x, ids(cu), LANES)
        return x + rows[ids(cu)], rows + total

    return step


def counted(cu: Array) -> Array:
    """Lane of each token; lane 1 for padding."""
    return lax.select(index() < cu[-1], starts_passed(cu), jnp.ones(TOKENS, jnp.int32))


def strided(by: int = 2, masked_by: int = 2) -> Any:
    """Return a step that sums tokens at multiples of a distance, masked by the start."""

    def step(x, cu):
        mask = earlier(masked_by) >= start(cu)[:, None]
        return jnp.where(mask[..., None], x[jnp.maximum(earlier(by), 0)], 0.0).sum(1)

    return step


PROGRAMS = (
    *(Program(f"token limits: {name}", at(places), NEIGHBOURS, draw) for name, places in LIMITED.items()),
    *(Program(f"token rises: {name}", recurrence(first), NEIGHBOURS, draw) for name, first in RISEN.items()),
    Program("token rises: window", window(lambda cu: rises(ends_passed(cu)) <= 0, padded(1)), NEIGHBOURS, draw),
    Program("token ids: padding in lane 0", with_padding(), SUMS, draw_with_lanes),
    Program("token ids: padding in lane 1", with_padding(counted), SUMS, draw_with_lanes),
    Program("token gathers: by two", strided(), NEIGHBOURS, draw),
)
