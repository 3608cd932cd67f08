"""Associative scans that carry states into other lanes, and tiles that mix lanes."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from mutants.mutant import Kind, mutants_of, wrong
from zoo.program import HIDDEN
from zoo.tokens.token_neighbours import index, start
from zoo.tokens.token_scans import ROWS, decays, ends, mapped, scaled, scanned, starts, sums, tiled

BAD = (Kind.CROSS_LANE, Kind.UNKNOWN, Kind.CONTROL)


_scan = mutants_of("token scans: sums", *BAD, prefix="token-scan-", source="flash-linear-attention")
_tile = mutants_of("lane tiles: mapped in batches", *BAD, prefix="lane-tile-")
_multiplied = lambda rest, right: (rest[0] | right[0], (1.0 - right[0].astype(jnp.float32)) * rest[1] + right[1])
_first = lambda rest, right: (rest[0] | right[0], jnp.where(rest[0], right[1], rest[1] + right[1]))
_every = lambda rest, right: (rest[0] & right[0], jnp.where(right[0], right[1], rest[1] + right[1]))
_right_only = lambda rest, right: (right[0], jnp.where(right[0], right[1], rest[1] + right[1]))
_left_flag = lambda rest, right: (rest[0], jnp.where(right[0], right[1], rest[1] + right[1]))
_negated = lambda rest, right: (rest[0] | right[0], jnp.where(right[0], rest[1] + right[1], right[1]))


def _state_kept(rest: Any, right: Any) -> Any:
    flag, decay, state = right
    return rest[0] | flag, jnp.where(flag, decay, rest[1] * decay), decay * rest[2] + state


def _carried(x, y):
    tile = lambda carry, rows: (carry + rows.sum(0), rows + carry[None])
    return lax.scan(tile, jnp.zeros(HIDDEN), x.reshape(2, -1, HIDDEN))[1].reshape(ROWS, HIDDEN)


def _last(x, y):
    last, _ = lax.scan(lambda _, rows: (rows, None), jnp.zeros((ROWS // 2, HIDDEN)), x.reshape(2, -1, HIDDEN))
    return jnp.concatenate([last, last])


def _other_sizes(x, y):
    return lax.scan(lambda _, rows: (None, rows), None, x.reshape(2, -1, HIDDEN))[1].swapaxes(0, 1).reshape(x.shape)


MUTANTS = (
    _scan("none", "no reset", scanned(lambda cu: index() < 0)),
    _scan("late", "a reset one token late", scanned(lambda cu: index() == start(cu) + 1)),
    _scan("ends", "a reset at the last token", scanned(ends)),
    _scan("reverse", "in reverse, a reset at the first token", scanned(starts, reverse=True)),
    _scan("multiplied", "zero times nan is nan", scanned(starts, _multiplied)),
    _scan("left", "the flag of the left part", scanned(starts, _first)),
    _scan("and", "both flags for one of them", scanned(starts, _every)),
    _scan("right-only", "the flag of the right token only", scanned(starts, _right_only)),
    _scan("left-flag", "the flag of the left part is passed on", scanned(starts, _left_flag)),
    _scan("negated", "the cases are exchanged", scanned(starts, _negated)),
    _scan("state", "the decay is reset, and the state is not", scanned(starts, _state_kept, decaying=True)),
    _scan("inclusive", "a running sum over all", lambda x, cu: lax.associative_scan(jnp.add, x)),
    _scan("shifted", "the token before", lambda x, cu: jnp.roll(scanned(starts, decays, decaying=True)(x, cu), 1, 0)),
    _scan("strided", "every second token twice", lambda x, cu: jnp.repeat(scanned(starts, sums)(x, cu)[::2], 2, 0)),
    _scan("reversed", "the tokens in reverse", lambda x, cu: scanned(starts)(x, cu)[::-1]),
    wrong("token tiles: pad and reshape", "token-tile-mean", "MaxText", "the mean of a tile",
          tiled(lambda tiles: tiles - tiles.mean(1, keepdims=True)), *BAD),
    wrong("token tiles: pad and reshape", "token-tile-order", "MaxText", "tiles in the reverse order",
          tiled(lambda tiles: tiles[::-1]), *BAD),
    _tile("mean", "the mean of a tile", lambda x, y: x - jnp.repeat(x.reshape(2, -1, HIDDEN).mean(1), ROWS // 2, 0)),
    _tile("turned", "rows and tiles are exchanged", lambda x, y: x.reshape(2, -1, HIDDEN).swapaxes(0, 1).reshape(
        ROWS, HIDDEN)),
    _tile("sizes", "tiles of other sizes", _other_sizes),
    _tile("carried", "a state is carried from tile to tile", _carried),
    _tile("last", "the last tile for all", _last),
    _tile("first", "the first lane's rows", lambda x, y: mapped(scaled)(x, y) + x[:1]),
    _tile("rows", "a row of another tile", lambda x, y: lax.scan(
        lambda _, rows: (None, rows + x[: ROWS // 2]), None, x.reshape(2, -1, HIDDEN))[1].reshape(ROWS, HIDDEN)),
)  # fmt: skip
