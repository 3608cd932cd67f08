"""Slots after arithmetic without effect pick the lane's row; all others are refused."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from ir_passes import IsolationError, Lane, LaneContract, Pool, SlotMap, prove_isolation

LANES, WIDTH, ROWS = 3, 4, 9
CONTRACT = LaneContract((Pool("s"), Lane(), SlotMap("s", ROWS)), Pool("s"))
ARGS = jnp.ones((ROWS, WIDTH)), jnp.ones((LANES, WIDTH)), jnp.arange(1, 1 + LANES)
UNCHANGED: dict[str, Callable[[Any], Any]] = {
    "+ 0": lambda s: s + 0,
    "0 +": lambda s: 0 + s,
    "- 0": lambda s: s - 0,
    "^ 0": lambda s: s ^ 0,
    "| 0": lambda s: 0 | s,
    "* 1": lambda s: 1 * s,
    "// 1": lambda s: s // 1,
    "<< 0": lambda s: s << 0,
    ">> 0": lambda s: s >> 0,
    "& -1": lambda s: s & -1,
    "& 15": lambda s: s & 15,
    "% 16": lambda s: s % 16,
    "abs": lambda s: jnp.abs(s),
    "- -": lambda s: jnp.negative(jnp.negative(s)),
    "~ ~": lambda s: ~~s,
    "+ 1 - 1": lambda s: s + 1 - 1,
    "- 5 + 5": lambda s: s - 5 + 5,
    "* 2 // 2": lambda s: s * 2 // 2,
    "uint8": lambda s: s.astype(jnp.uint8),
    "sum over one": lambda s: s[None].sum(0),
    "clip": lambda s: jnp.clip(s, 0, ROWS - 1),
}
CHANGED: dict[str, Callable[[Any], Any]] = {
    "+ 1": lambda s: s + 1,
    "^ 1": lambda s: s ^ 1,
    "| 1": lambda s: s | 1,
    "* 2": lambda s: s * 2,
    "// 2": lambda s: s // 2,
    "<< 1": lambda s: s << 1,
    ">> 1": lambda s: s >> 1,
    "0 << s": lambda s: 1 << s,
    "& 7": lambda s: s & 7,
    "& 14": lambda s: s & 14,
    "% 8": lambda s: s % 8,
    "-": lambda s: -s,
    "+ 1 - 2": lambda s: s + 1 - 2,
    "- 5 + 4": lambda s: s - 5 + 4,
    "* 2 // 3": lambda s: s * 2 // 3,
    "wrapped": lambda s: (s.astype(jnp.int8) * jnp.int8(64) // jnp.int8(64)).astype(jnp.int32),
    "float8": lambda s: (s + 16).astype(jnp.float8_e4m3fn).astype(jnp.int32) - 16,
    "sum over two": lambda s: jnp.stack([s, s]).sum(0),
}


def written(index: Callable[..., Any]) -> Any:
    return lambda pool, x, slots: pool.at[index(slots)].set(x, mode="drop")


@pytest.mark.parametrize("name", UNCHANGED)
def test_unchanged_slots_are_proved(name: str) -> None:
    slots = np.arange(ROWS, dtype=np.int32)
    assert (np.asarray(UNCHANGED[name](jnp.asarray(slots))) == slots).all()
    assert prove_isolation(written(UNCHANGED[name]), ARGS, CONTRACT).lanes == LANES


@pytest.mark.parametrize("name", CHANGED)
def test_changed_slots_are_refused(name: str) -> None:
    slots = np.arange(ROWS, dtype=np.int32)
    assert (np.asarray(CHANGED[name](jnp.asarray(slots))) != slots).any()
    with pytest.raises(IsolationError):
        prove_isolation(written(CHANGED[name]), ARGS, CONTRACT)
