"""Packed tokens meet tokens of their lane: recurrences, windows, attention, token ids."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from zoo.packed import CU, TOKENS, layout
from zoo.program import HIDDEN, LANES, Program, normal

from ir_passes import Lane, LaneContract, Packed

Array = Any
NEIGHBOURS = LaneContract(inputs=(Packed(), CU), outputs=Packed())
WITH_LANES = LaneContract(inputs=(Packed(), CU, Lane()), outputs=(Packed(), Lane()))
Mask = Callable[[Array], Array]
Shift = Callable[[Array], Array]


def draw(rng: np.random.Generator) -> tuple[Any, ...]:
    return normal(rng, TOKENS, HIDDEN), layout(rng, empty=False)


def draw_with_lanes(rng: np.random.Generator) -> tuple[Any, ...]:
    return *draw(rng), normal(rng, LANES, HIDDEN)


def index() -> Array:
    return jnp.arange(TOKENS)


def ends_passed(cu: Array) -> Array:
    """Lane of each token; LANES for padding."""
    return jnp.sum(index()[:, None] >= cu[None, 1:], axis=1)


def starts_passed(cu: Array) -> Array:
    """Lane of each token; the last lane for padding."""
    return jnp.clip(jnp.sum(cu[None, :] <= index()[:, None], axis=1) - 1, 0, LANES - 1)


IDS: dict[str, Mask] = {
    "ends passed": ends_passed,
    "starts passed, clipped": starts_passed,
    "starts passed, of starts": lambda cu: (index()[None] + 1 > cu[:-1, None]).sum(0) - 1,
    "search of starts": lambda cu: jnp.searchsorted(cu[:-1], index(), side="right") - 1,
    "search from the left": lambda cu: jnp.searchsorted(cu[1:], index() + 1, side="left"),
    "digits": lambda cu: jnp.digitize(index(), cu) - 1,
    "marks of inner starts": lambda cu: jnp.cumsum(jnp.zeros(TOKENS, jnp.int32).at[cu[1:-1]].add(1)),
    "marks of starts": lambda cu: jnp.cumsum(jnp.zeros(TOKENS, jnp.int32).at[cu[:-1]].add(1)) - 1,
    "marks of ends": lambda cu: jnp.cumsum(jnp.zeros(TOKENS, jnp.int32).at[cu[1:]].add(1, mode="drop")),
    "repeated": lambda cu: jnp.repeat(jnp.arange(LANES), cu[1:] - cu[:-1], total_repeat_length=TOKENS),
}
"""Ways to compute the lane of each token."""


def gathering(ids: Mask) -> Any:
    """Return a step that reads a row by token, and each lane's last token."""

    def step(x, cu, rows):
        y = x + jnp.take(rows, ids(cu), axis=0, mode="clip")
        return y, y[jnp.clip(cu[1:] - 1, 0, TOKENS - 1)] + y[cu[:-1]]

    return step


def window(mask: Mask, shifted: Shift) -> Any:
    """Return a step that adds an earlier or later token where a mask is true."""
    return lambda x, cu: x + jnp.where(mask(cu)[:, None], shifted(x), 0.0)


def padded(by: int) -> Shift:
    return lambda x: jnp.pad(x, ((by, 0), (0, 0)))[:TOKENS]


def behind_zeros(by: int) -> Shift:
    return lambda x: jnp.concatenate([jnp.zeros((by, HIDDEN), x.dtype), x[:-by]])


def start(cu: Array) -> Array:
    return cu[starts_passed(cu)]


def stop(cu: Array) -> Array:
    return cu[1:][starts_passed(cu)]


def changed(ids: Array, first: bool = True) -> Array:
    return jnp.concatenate([jnp.full(1, first), ids[1:] != ids[:-1]])


WINDOWS = {
    "padded in front": window(lambda cu: index() - 2 >= start(cu), padded(2)),
    "behind zeros": window(lambda cu: index() - start(cu) > 1, behind_zeros(2)),
    "rolled": window(lambda cu: index() != start(cu), lambda x: jnp.roll(x, 1, axis=0)),
    "rolled back": window(lambda cu: index() + 1 < stop(cu), lambda x: jnp.roll(x, -1, axis=0)),
    "gathered": window(lambda cu: start(cu) <= index() - 1, lambda x: 2 * x[jnp.maximum(index() - 1, 0)]),
    "counted from the end": window(lambda cu: index() - 1 >= start(cu), lambda x: x[index() - 1]),
    "one id": window(lambda cu: ~changed(ends_passed(cu)), padded(1)),
    "shifted ids": window(
        lambda cu: ends_passed(cu) == jnp.pad(ends_passed(cu), (1, 0), constant_values=-1)[:TOKENS], padded(1)
    ),
    "real tokens": window(lambda cu: (index() > start(cu)) & (index() < cu[-1]), padded(1)),
}
"""Windows of tokens that end at the bounds of a lane."""


def recurrence(first: Mask, reverse: bool = False, masked: bool = False) -> Any:
    """Return a recurrence over all tokens that begins anew where a mask is true.

    Args:
        first: cu_seqlens -> mask.
        reverse: begin with the last token.
        kept: keep the state at padding.
    """

    def step(x, cu):
        def token(state, now):
            x, first, real = now
            new = jnp.tanh(0.5 * jnp.where(first, 0.0, state) + x)
            return jnp.where(real, new, state) if masked else new, new

        masks = first(cu), index() < cu[-1]
        return lax.scan(token, jnp.zeros(HIDDEN), (x, *masks), reverse=reverse)[1]

    return step


def at_position(begins: Callable[[Array], Array] = lambda position: position == 0) -> Any:
    """Return a recurrence that begins anew at positions of each lane."""

    def step(x, cu):
        def token(state, now):
            x, position = now
            new = jnp.tanh(0.5 * jnp.where(begins(position), 0.0, state) + x)
            return new, new

        return lax.scan(token, jnp.zeros(HIDDEN), (x, index() - start(cu)))[1]

    return step


RECURRENCES = {
    "at starts": recurrence(lambda cu: index() == start(cu)),
    "at position 0": recurrence(lambda cu: index() - start(cu) < 1, masked=True),
    "at a number of cu_seqlens": recurrence(lambda cu: jnp.isin(index(), cu[:-1])),
    "at any start": recurrence(lambda cu: (index()[:, None] == cu[None]).any(1)),
    "at marks": recurrence(lambda cu: jnp.zeros(TOKENS, bool).at[cu[:-1]].set(True)),
    "at marks, cleared": recurrence(lambda cu: ~jnp.ones(TOKENS, bool).at[cu[:-1]].set(False)),
    "at position 0, in the loop": at_position(),
    "where ids change": recurrence(lambda cu: changed(ends_passed(cu))),
    "at ends, in reverse": recurrence(lambda cu: index() == stop(cu) - 1, reverse=True),
}
"""Recurrences over packed tokens with the state reset between lanes."""


def attention(mask: Mask, fill: float, remasked: bool = True) -> Any:
    """Return attention among tokens with a finite mask, applied to the weights again."""

    def step(x, cu):
        visible = mask(cu)
        scores = jnp.where(visible, x @ x.T, fill)
        weights = jnp.exp(scores - scores.max(axis=1, keepdims=True))
        weights = jnp.where(visible, weights, 0.0) if remasked else weights
        return weights / weights.sum(axis=1, keepdims=True) @ jnp.where(jnp.isfinite(x), x, 0.0)

    return step


def same(ids: Mask, causal: bool = True) -> Mask:
    """Return the mask of earlier and equal tokens in the same lane."""

    def mask(cu: Array) -> Array:
        equal = ids(cu)[:, None] == ids(cu)[None]
        return equal & (index()[:, None] >= index()[None]) if causal else equal

    return mask


LOWEST = float(jnp.finfo(jnp.float32).min)
PROGRAMS = (
    *(Program(f"token ids: {name}", gathering(ids), WITH_LANES, draw_with_lanes) for name, ids in IDS.items()),
    *(Program(f"token windows: {name}", step, NEIGHBOURS, draw) for name, step in WINDOWS.items()),
    *(Program(f"token recurrence: {name}", step, NEIGHBOURS, draw) for name, step in RECURRENCES.items()),
    Program("token attention, finite mask", attention(same(starts_passed), LOWEST), NEIGHBOURS, draw),
    Program("token attention, ids past the end", attention(same(ends_passed, False), -1.0), NEIGHBOURS, draw),
)
