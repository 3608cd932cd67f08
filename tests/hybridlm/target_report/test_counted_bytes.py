"""A report counts the bytes that kernels move, in place of what they declare."""

from typing import Any

import numpy as np
from counted_kernels import (
    LANES,
    MATRIX,
    WIDTH,
    counted_kernel,
    doubled,
    experts,
    over_a_range,
)

from hybridlm.compiler import targets
from hybridlm.target_report.kernel_reads import with_reads


def declared(reads: Any, read: int, written: int = 0) -> targets.Kernels:
    """Return the kernel as XLA lists it, with the bytes that it declares."""
    name = f"jit(step)/{reads.name}/pallas_call"
    kernel = targets.ScheduledKernel(
        "call", "__gpu$xla.gpu.triton", name, "", read, written, 0, "", 1, None, (), reads.shapes
    )
    return targets.Kernels((kernel,))


def test_a_range_of_experts_is_reported() -> None:
    """Eight rows declare eight matrices, and read all 64."""
    chosen = np.array([0, 9, 18, 27, 36, 45, 54, 63], np.int32)
    result = counted_kernel(over_a_range, experts(8), (None, None, chosen))
    kernels = declared(result, 8 * MATRIX)
    counted, uncounted = with_reads(kernels, [result], 0)
    assert counted.moved >= 64 * MATRIX > kernels.moved and not uncounted


def test_written_rows_of_a_pool_are_reported() -> None:
    result = doubled(all_rows=True)
    kernels = declared(result, 4 * LANES * WIDTH, 2 * 4 * LANES * WIDTH)
    counted, uncounted = with_reads(kernels, [result], 0)
    assert counted.moved == sum(result.loaded) + result.written > kernels.moved and not uncounted


def test_a_kernel_that_is_not_counted_is_named() -> None:
    result = counted_kernel(over_a_range, experts(8), (None, None, np.arange(8, dtype=np.int32)))
    kernels = declared(result, 8 * MATRIX)
    assert with_reads(kernels, [], 0) == (kernels, ("range_kernel",))
