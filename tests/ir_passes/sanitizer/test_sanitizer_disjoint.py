"""The sanitizer compares slot maps: rows declared disjoint, and idle lanes."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from labelled_steps import LabelledSteps

from ir_passes import Lane, LaneContract, Pool, SlotMap
from ir_passes.sanitizer.verdict import LabelFault, SanitizerError

N, ROWS, D = 3, 8, 4
CONTRACT = LaneContract(
    (Lane(), Pool("s"), SlotMap("s", ROWS), SlotMap("s", ROWS, role="write", disjoint=True)), (Lane(), Pool("s"))
)


def step(x: Array, pool: Array, slots: Array, tracked: Array) -> tuple[Array, Array]:
    new = jnp.tanh(pool[slots] + x)
    return new, pool.at[slots].set(new).at[tracked].set(new)


def run(slots: list[int], tracked: list[int]) -> None:
    args = jnp.ones((N, D)), jnp.zeros((ROWS, D)), np.array(slots, np.int32), np.array(tracked, np.int32)
    LabelledSteps(step, args, CONTRACT).take(args, [(lane + 1, 0, 1) for lane in range(N)])


@pytest.mark.slow
def test_rows_apart_pass() -> None:
    run([1, 2, 3], [4, 0, 5])


@pytest.mark.slow
@pytest.mark.parametrize(("tracked", "lane"), [([4, 3, 5], 1), ([1, 4, 5], 0), ([0, 0, 2], 2)])
def test_a_row_in_both_maps_is_named(tracked: list[int], lane: int) -> None:
    with pytest.raises(SanitizerError) as error:
        run([1, 2, 3], tracked)
    assert [(fault.id, fault.about) for fault in error.value.faults] == [
        (LabelFault.NOT_DISJOINT, f"lane {lane}, row {tracked[lane]}")
    ]


def test_a_lane_is_idle_in_every_map_or_in_none() -> None:
    contract = LaneContract((Pool("s"), Pool("t"), SlotMap("s", ROWS), SlotMap("t", ROWS)), (Pool("s"), Pool("t")))

    def both(array: Array, other: Array, first: Array, second: Array) -> tuple[Array, Array]:
        return array.at[first].set(array[first] + 1), other.at[second].set(other[second] + 1)

    pools = jnp.zeros((ROWS, D)), jnp.zeros((ROWS, D))
    for second, fault in (([2, 0, 1], False), ([2, 3, 1], True), ([0, 0, 1], True)):
        args = *pools, np.array([1, 0, 3], np.int32), np.array(second, np.int32)
        steps = LabelledSteps(both, args, contract)
        turns = [None if slot == 0 else (lane + 1, 0, 1) for lane, slot in enumerate(second)]
        if fault:
            with pytest.raises(SanitizerError, check=lambda error: {*error.ids} == {LabelFault.NULL_ROW}):
                steps.take(args, turns)
        else:
            steps.take(args, turns)
