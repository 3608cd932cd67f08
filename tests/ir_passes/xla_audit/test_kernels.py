"""Bytes, operations and pools of each operation of a program, in programs whose figures are known by hand."""

import jax
import numpy as np
import pytest
from audited_steps import ONE, Step, fori_loop, pool, slots, x
from hlo_text import serialized

from ir_passes import compile_step
from ir_passes.xla_audit.hlo import read_module
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
    module = read_module(serialized(text))
    return kernels_in(Executable(module, Buffers({}, {}), {}, "gpu", 0, ""), pools or {})


def by_name(found: Kernels) -> dict[str, ScheduledKernel]:
    return {one.name: one for one in found.kernels}


@pytest.mark.parametrize(("turns", "times", "by_data"), [(KNOWN, 5, False), ("", 1, True)])
def test_rows_and_turns_of_a_loop(turns: str, times: int, by_data: bool) -> None:
    found = kernels(LOOPS.replace("TURNS", turns), {1: "table"})
    one, inner = by_name(found), ["read", "written", "next"]
    inner += ["more"] if by_data else []  # a GPU does not ask whether to go on where the turns are known
    assert set(one) == {*inner, "product"}
    assert (one["read"].read, one["read"].written) == (ROWS + 4, ROWS)
    assert (one["written"].read, one["written"].written) == (ROWS + 4, ROWS), "the table is updated in place"
    assert all((one[name].times, one[name].by_data) == (times, by_data) for name in inner)
    assert {one[name].loop for name in inner} == ({"turning"} if by_data else {None})
    assert not one["product"].by_data and one["product"].times == 1
    inside = 4 * ROWS + 8 + 8 + (9 if by_data else 0)
    product = 2 * (8 * 16 * 32 + 8 * 32 * 4) + 4 * 8 * 16 * 4
    assert found.moved == product + (0 if by_data else 5 * inside)
    assert found.moved_in_a_turn == (inside if by_data else 0)
    assert found.count == (1 if by_data else 16)


def test_operations_of_a_product_of_batches() -> None:
    found = kernels(LOOPS.replace("TURNS", KNOWN))
    one = by_name(found)["product"]
    assert (one.flops, one.dtype) == (2 * 8 * 16 * 4 * 32, "bf16") and found.flops == one.flops
    assert found.largest(2) == (one, by_name(found)["read"]) and len(found.largest(99)) == 4


CONVOLUTION = """
HloModule convolution, is_scheduled=true

ENTRY main {
  left = f32[SIZES] parameter(0)
  right = f32[KERNEL] parameter(1)
  ROOT out = f32[RESULT] convolution(left, right), window={WINDOW}, dim_labels=b0f_0io->b0f
}
"""


@pytest.mark.parametrize(
    ("size", "kernel", "result", "window", "met"),
    [
        (10, 1, 10, "size=1", 10),
        (10, 3, 8, "size=3", 24),
        (10, 3, 10, "size=3 pad=1_1", 28),
        (10, 3, 4, "size=3 stride=2", 12),
        (10, 3, 6, "size=3 rhs_dilate=2", 18),
        (4, 4, 4, "size=4 stride=3 lhs_dilate=4", 4),
    ],
)
def test_operations_of_a_convolution(size: int, kernel: int, result: int, window: str, met: int) -> None:
    """Places of the window that lie in padding, or between elements, multiply nothing."""
    text = CONVOLUTION.replace("SIZES", f"2,{size},5").replace("KERNEL", f"{kernel},5,7")
    text = text.replace("RESULT", f"2,{result},7").replace("WINDOW", window)
    (one,) = kernels(text).kernels
    assert one.flops == 2 * 2 * 7 * 5 * met


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
    (one,) = kernels(NESTED).kernels
    assert (one.read, one.written) == (ROWS + 4, ROWS)


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
    """Pools are known by the buffer assignment, which JAX returns of executables for CPUs."""
    step = compile_step(fori_loop, (pool(), slots(), x()), ONE)
    touched = [one for one in step.kernels.kernels if one.pools]
    assert touched and {one.pools for one in touched} == {("args[0]",)}
    assert all(one.read + one.written < 2 * pool().nbytes for one in touched), "a row at a time"


def test_copy_of_a_pool_is_the_largest() -> None:
    def copied(pool: jax.Array, slots: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        new = pool.at[slots].set(x)
        return new, (pool[::-1] * new).sum() + x.sum((1, 2))

    step = compile_step(copied, (pool(), slots(), x()), ONE, certify="off")
    most = step.kernels.largest(1)[0]
    assert most.read + most.written >= np.size(pool()) * 4 and most.pools == ("args[0]",)


def test_executable_without_pools() -> None:
    found = Step(fori_loop, ONE, (pool(), slots(), x()))
    assert all(not one.pools for one in kernels_in(found.executable(), {}).kernels)
