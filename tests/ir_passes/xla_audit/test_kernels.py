"""Bytes, operations and pools of each operation in programs with known figures."""

import jax
import numpy as np
import pytest
from audited_steps import ONE, Step, fori_loop, pool, slots, x
from hlo_text import module_of

from ir_passes import compile_step
from ir_passes.xla_audit.kernels import Kernels, ScheduledKernel, kernels_in
from ir_passes.xla_audit.program import Buffers, Executable

LOOPS = """
HloModule loops, is_scheduled=true

rows {
  table = f32[100,64]{1,0} parameter(0)
  at = s32[] parameter(1)
  zero = s32[] constant(0)
  ROOT read_rows = f32[4,64]{1,0} dynamic-slice(table, at, zero), dynamic_slice_sizes={4,64}
}

update {
  table = f32[100,64]{1,0} parameter(0)
  new = f32[4,64]{1,0} parameter(1)
  at = s32[] parameter(2)
  zero = s32[] constant(0)
  ROOT with_rows = f32[100,64]{1,0} dynamic-update-slice(table, new, at, zero)
}

body {
  carried = (s32[], f32[100,64]{1,0}) parameter(0)
  at = s32[] get-tuple-element(carried), index=0
  table = f32[100,64]{1,0} get-tuple-element(carried), index=1
  read = f32[4,64]{1,0} fusion(table, at), kind=kLoop, calls=rows
  written = f32[100,64]{1,0} fusion(table, read, at), kind=kLoop, calls=update
  next = s32[] negate(at)
  ROOT both = (s32[], f32[100,64]{1,0}) tuple(next, written)
}

again {
  carried = (s32[], f32[100,64]{1,0}) parameter(0)
  at = s32[] get-tuple-element(carried), index=0
  limit = s32[] constant(9)
  ROOT more = pred[] compare(at, limit), direction=LT
}

ENTRY main {
  at = s32[] parameter(0)
  table = f32[100,64]{1,0} parameter(1)
  left = bf16[8,16,32]{2,1,0} parameter(2)
  right = bf16[8,32,4]{2,1,0} parameter(3)
  both = (s32[], f32[100,64]{1,0}) tuple(at, table)
  looped = (s32[], f32[100,64]{1,0}) while(both), condition=again, body=body, metadata={op_name="turning"} TURNS
  kept = f32[100,64]{1,0} get-tuple-element(looped), index=1
  product = f32[8,16,4]{2,1,0} dot(left, right), DIMS
  ROOT results = (f32[100,64]{1,0}, f32[8,16,4]{2,1,0}) tuple(kept, product)
}
"""
LOOPS = LOOPS.replace(
    "DIMS", "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
)
KNOWN = ', backend_config={"known_trip_count":{"n":"5"}}'
ROWS = 4 * 64 * 4


def kernels(text: str, pools: dict[int, str] | None = None) -> Kernels:
    return kernels_in(Executable(module_of(text), Buffers({}, {}), {}, "gpu", 0, ""), pools or {})


def by_name(kernels: Kernels) -> dict[str, ScheduledKernel]:
    return {kernel.name: kernel for kernel in kernels.kernels}


@pytest.mark.parametrize(("turns", "times", "by_data"), [(KNOWN, 5, False), ("", 1, True)])
def test_rows_and_turns_of_a_loop(turns: str, times: int, by_data: bool) -> None:
    result = kernels(LOOPS.replace("TURNS", turns), {1: "table"})
    item, inner = by_name(result), ["read", "written", "next"]
    inner += ["more"] if by_data else []  # a GPU does not ask whether to go on where the turns are known
    assert set(item) == {*inner, "product"}
    assert (item["read"].read, item["read"].written) == (ROWS + 4, ROWS)
    assert (item["written"].read, item["written"].written) == (ROWS + 4, ROWS), "the table is updated in place"
    assert all((item[name].times, item[name].by_data) == (times, by_data) for name in inner)
    assert {item[name].loop for name in inner} == ({"turning"} if by_data else {None})
    assert not item["product"].by_data and item["product"].times == 1
    nested = 4 * ROWS + 8 + 8 + (9 if by_data else 0)
    product = 2 * (8 * 16 * 32 + 8 * 32 * 4) + 4 * 8 * 16 * 4
    assert result.moved == product + (0 if by_data else 5 * nested)
    assert result.moved_in_a_turn == (nested if by_data else 0)
    assert result.count == (1 if by_data else 16)


def test_operations_of_a_product_of_batches() -> None:
    result = kernels(LOOPS.replace("TURNS", KNOWN))
    item = by_name(result)["product"]
    assert (item.flops, item.dtype) == (2 * 8 * 16 * 4 * 32, "bf16") and result.flops == item.flops
    assert result.largest(2) == (item, by_name(result)["read"]) and len(result.largest(99)) == 4


CONVOLUTION = """
HloModule convolution, is_scheduled=true

ENTRY main {
  left = f32[SIZES] parameter(0)
  right = f32[KERNEL] parameter(1)
  ROOT out = f32[RESULT] convolution(left, right), window={WINDOW}, dim_labels=b0f_0io->b0f
}
"""


@pytest.mark.parametrize(("size", "kernel", "result", "window", "met"), [
    (10, 1, 10, "size=1", 10),
    (10, 3, 8, "size=3", 24),
    (10, 3, 10, "size=3 pad=1_1", 28),
    (10, 3, 4, "size=3 stride=2", 12),
    (10, 3, 6, "size=3 rhs_dilate=2", 18),
    (4, 4, 4, "size=4 stride=3 lhs_dilate=4", 4),
])  # fmt: skip
def test_operations_of_a_convolution(size: int, kernel: int, result: int, window: str, met: int) -> None:
    """Places of the window in padding, or between elements, multiply nothing."""
    text = CONVOLUTION.replace("SIZES", f"2,{size},5").replace("KERNEL", f"{kernel},5,7")
    text = text.replace("RESULT", f"2,{result},7").replace("WINDOW", window)
    (item,) = kernels(text).kernels
    assert item.flops == 2 * 2 * 7 * 5 * met


NESTED = """
HloModule nested, is_scheduled=true

inner {
  rows = f32[100,64] parameter(0)
  at = s32[] parameter(1)
  zero = s32[] constant(0)
  ROOT some = f32[4,64] dynamic-slice(rows, at, zero), dynamic_slice_sizes={4,64}
}

outer {
  table = f32[100,64] parameter(0)
  place = s32[] parameter(1)
  found = f32[4,64] fusion(table, place), kind=kLoop, calls=inner
  ROOT negated = f32[4,64] negate(found)
}

ENTRY main {
  pool = f32[100,64] parameter(0)
  start = s32[] parameter(1)
  ROOT out = f32[4,64] fusion(pool, start), kind=kOutput, calls=outer
}
"""


def test_rows_that_a_fusion_in_a_fusion_reads() -> None:
    (stream,) = kernels(NESTED).kernels
    assert (stream.read, stream.written) == (ROWS + 4, ROWS)


VIEWED = """
HloModule viewed, is_scheduled=true

inner {
  matrix = f32[16,16] parameter(0)
  ROOT turned = f32[256] bitcast(matrix)
}

outer {
  table = f32[16,16] parameter(0)
  flat = f32[256] fusion(table), kind=kLoop, calls=inner
  ROOT negated = f32[256] negate(flat)
}

ENTRY main {
  weight = f32[16,16] parameter(0)
  ROOT out = f32[256] fusion(weight), kind=kCustom, calls=outer
}
"""


def test_a_value_that_a_fusion_in_a_fusion_returns_is_read() -> None:
    """A TPU's products of experts read their matrices so."""
    (product,) = kernels(VIEWED).kernels
    assert (product.read, product.written) == (1024, 1024)


CUBLAS = """
HloModule product, is_scheduled=true

ENTRY main {
  left = f32[8,16] parameter(0)
  right = f32[16,4] parameter(1)
  both = (f32[8,4], s8[4194304]) custom-call(left, right), custom_call_target="TARGET"
  ROOT out = f32[8,4] get-tuple-element(both), index=0
}
"""


def test_workspace_of_cublas_is_not_moved() -> None:
    moved = {name: kernels(CUBLAS.replace("TARGET", name)).moved for name in ("__cublas$lt$matmul", "other")}
    operands = 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert moved == {"__cublas$lt$matmul": operands, "other": operands + (4 << 20)}


def test_pools_of_a_compiled_step() -> None:
    """Pools come from the buffer assignment that JAX gives for CPUs."""
    step = compile_step(fori_loop, (pool(), slots(), x()), ONE)
    touched = [kernel for kernel in step.kernels.kernels if kernel.pools]
    assert touched and {item.pools for item in touched} == {("args[0]",)}
    assert all(stream.read + stream.written < 2 * pool().nbytes for stream in touched), "a row at a time"


def test_copy_of_a_pool_is_the_largest() -> None:
    def copied(pool: jax.Array, slots: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        new = pool.at[slots].set(x)
        return new, (pool[::-1] * new).sum() + x.sum((1, 2))

    step = compile_step(copied, (pool(), slots(), x()), ONE, certify="off")
    largest = step.kernels.largest(1)[0]
    assert largest.read + largest.written >= np.size(pool()) * 4 and largest.pools == ("args[0]",)


def test_executable_without_pools() -> None:
    step = Step(fori_loop, ONE, (pool(), slots(), x()))
    assert all(not kernel.pools for kernel in kernels_in(step.executable(), {}).kernels)
