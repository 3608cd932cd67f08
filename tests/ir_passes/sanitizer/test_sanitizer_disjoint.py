"""The sanitizer compares slot maps that are declared disjoint, in each step."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from ir_passes import Lane, LaneContract, Pool, SlotMap
from ir_passes.host.row_ledger import LaneWork, RowLedger
from ir_passes.sanitizer.sanitize import sanitize
from ir_passes.sanitizer.verdict import SanitizerError

N, ROWS, D = 3, 8, 4
CONTRACT = LaneContract(
    (Lane(), Pool("s"), SlotMap("s", ROWS), SlotMap("s", ROWS, role="write", disjoint=True)), (Lane(), Pool("s"))
)


def step(x: Array, pool: Array, slots: Array, tracked: Array) -> tuple[Array, Array]:
    new = jnp.tanh(pool[slots] + x)
    return new, pool.at[slots].set(new).at[tracked].set(new)


def run(slots: list[int], tracked: list[int]) -> None:
    args = jnp.ones((N, D)), jnp.zeros((ROWS, D)), np.array(slots, np.int32), np.array(tracked, np.int32)
    sanitized = sanitize(step, args, CONTRACT)
    expected = RowLedger().expect([LaneWork(lane + 1, position=0, length=1) for lane in range(N)])
    *_, verdict = sanitized.step(*args, shadow_labels=sanitized.shadow_labels(), expected=expected)
    sanitized.require(verdict, expected)


def test_rows_apart_pass() -> None:
    run([1, 2, 3], [4, 0, 5])


@pytest.mark.parametrize(("tracked", "lane"), [([4, 3, 5], 1), ([1, 4, 5], 0), ([0, 0, 2], 2)])
def test_a_row_in_both_maps_is_named(tracked: list[int], lane: int) -> None:
    with pytest.raises(SanitizerError, match=f"lane {lane}, row {tracked[lane]}.*args.3. has a row of args.2."):
        run([1, 2, 3], tracked)
