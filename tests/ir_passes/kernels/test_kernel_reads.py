"""Reads and writes of kernels are counted in their programs; excessive ones are found."""

from typing import Any

import numpy as np
import pytest
from card_kernels import array
from counted_kernels import (
    EXPERTS,
    LANES,
    MATRIX,
    ROWS,
    WIDTH,
    counted,
    counted_kernel,
    doubled,
    exchanged,
    experts,
    over_a_context,
    over_a_range,
    part_of_a_part,
)
from jax import numpy as jnp
from jax import ref
from jax.experimental.pallas import triton

from ir_passes.kernels.reads import KernelReads


def test_a_loop_over_a_range_of_experts_is_counted() -> None:
    """Eight rows read 64 matrices from first to last; 8 are needed."""
    chosen = np.array([0, 9, 18, 27, 36, 45, 54, 63], np.int32)
    assert counted_kernel(over_a_range, experts(8), (None, None, chosen)).loaded[3] == EXPERTS * MATRIX


def test_a_loop_over_the_limit_of_a_context_is_counted() -> None:
    lanes, context, size = 2, 512, 128
    types = array(lanes, dtype=jnp.int32), array(lanes, context, size)
    result = counted_kernel(over_a_context, types, (np.array([1, 64], np.int32), None))
    assert result.loaded[1] == lanes * context * size * 4


def test_rows_of_lanes_in_a_pool_are_counted_and_not_the_pool() -> None:
    result = doubled(all_rows=False)
    assert result.loaded == (4 * LANES, 4 * LANES * WIDTH) and result.stored == (4 * LANES * WIDTH,) * 2


def test_a_kernel_that_writes_more_than_it_declares_is_counted() -> None:
    """Each lane writes all rows of the pool, and declares one."""
    assert doubled(all_rows=True).stored == (4 * LANES * WIDTH, 4 * LANES * ROWS * WIDTH)


def atomic_exchange(ref: Any, index: Any, value: Any) -> Any:
    return triton.atomic_xchg(ref, (index,), value)


@pytest.mark.parametrize("exchange", [ref.swap, atomic_exchange])
def test_a_store_that_returns_the_old_numbers_loads_them_too(exchange: Any) -> None:
    result = exchanged(exchange)
    assert (result.loaded, result.stored) == ((2 * 4 * WIDTH,), (4 * WIDTH,) * 2)


def test_loads_of_a_small_operand_come_from_the_cache() -> None:
    subject = KernelReads("kernel", ((4,), (8,)), (100, 100), (16, 32))
    assert (subject.read(0), subject.read(16), subject.read(32)) == (200, 116, 48)


def test_a_kernel_with_an_unknown_number_of_iterations_is_not_counted() -> None:
    assert counted(over_a_range, experts(8), (None, None, None)) == []


def test_a_number_in_a_part_of_a_part_is_read() -> None:
    assert part_of_a_part(np.array([5, 3, 7, 9], np.int32)).loaded == (4, 3 * 4 * WIDTH)
